//! A data folder that the version before left when it was killed: it opens, it says what it said, and it goes on.
//!
//! `golden/folder-3.tar.gz` holds that folder (`data/`), and in `answers.json` what the version before answered about it
//! by path, a receipt and a token that it gave out. There are jobs in each state, payloads and results that lie in the
//! store, archived jobs, output, a schedule, a snapshot, and rows behind it in the journal. All of it is of the year
//! 2090: log time never goes back, so no lease, timeout or retention of it is ever over.

use std::path::{Path, PathBuf};
use std::process::Command;

use onward_core::ids::JobId;
use onward_log::{EmbeddedLog, Log};
use onward_node::server::{Node, NodeConfig};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::rig::{PATIENCE, Reply, Request, config, until};

struct Older {
    folder: TempDir,
    said: Value,
}

impl Older {
    fn unpacked() -> Self {
        let folder = tempdir().unwrap();
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/folder-3.tar.gz");
        // With dates of today: output is kept by the date of its file.
        let done = Command::new("tar").args(["-xzmf", golden, "-C"]).arg(folder.path()).status();
        assert!(done.expect("there is a tar").success());
        let said = std::fs::read(folder.path().join("answers.json")).unwrap();
        Self { folder, said: serde_json::from_slice(&said).unwrap() }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn text(&self, name: &str) -> &str {
        self.said[name].as_str().unwrap()
    }
}

/// A node that believes nobody without a token.
struct GuardedNode {
    node: Node,
    token: String,
}

impl GuardedNode {
    async fn start(data: &Path) -> Self {
        let token = std::fs::read_to_string(data.join("token")).unwrap().trim().to_owned();
        let node = Node::start(NodeConfig { require_tokens: true, ..config(data) }).await.unwrap();
        Self { node, token }
    }

    async fn send(&self, request: Request) -> Reply {
        self.send_as(&self.token, request).await
    }

    async fn send_as(&self, token: &str, request: Request) -> Reply {
        request.header("authorization", &format!("Bearer {token}")).send(self.node.address()).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path)).await
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let reply = self.send(Request::post(path, &body)).await;
        assert!(matches!(reply.status, 200 | 201), "{path}: {}", String::from_utf8_lossy(&reply.body));
        if reply.body.is_empty() { Value::Null } else { reply.json() }
    }

    async fn lease(&self, kind: &str) -> Value {
        let poll = json!({
            "worker_id": "new", "incarnation": "1", "kinds": [kind], "max": 1, "wait_s": 60, "lease_s": 3600
        });
        self.post("/v1/leases", poll).await["leases"][0].clone()
    }

    async fn job(&self, id: &str) -> Value {
        self.get(&format!("/v1/jobs/{id}")).await.json()
    }

    /// Everything that was said is said again, in the same words; more may be said.
    async fn repeats(&self, said: &Value, but: &[&str]) {
        for (path, answer) in said["answers"].as_object().unwrap() {
            if but.iter().any(|id| path.contains(id)) {
                continue;
            }
            let reply = self.get(path).await;
            assert_eq!(json!(reply.status), answer["status"], "{path}");
            match &answer["body"] {
                Value::String(printed) if reply.status == 200 => assert_eq!(reply.body, printed.as_bytes(), "{path}"),
                Value::String(_) => {}
                body => same(path, body, &reply.json()),
            }
        }
    }
}

fn same(at: &str, older: &Value, now: &Value) {
    match (older, now) {
        (Value::Object(fields), Value::Object(_)) => {
            fields.iter().for_each(|(name, value)| same(&format!("{at}.{name}"), value, &now[name]));
        }
        (Value::Array(items), Value::Array(found)) => {
            assert_eq!(items.len(), found.len(), "{at}");
            items.iter().zip(found).for_each(|(item, found)| same(at, item, found));
        }
        _ => assert_eq!(older, now, "{at}"),
    }
}

#[tokio::test]
async fn a_folder_of_the_version_before_says_what_it_said_and_goes_on() {
    let older = Older::unpacked();
    let said = &older.said;
    let (last, covers) = {
        let mut log = EmbeddedLog::open(older.data()).unwrap();
        (log.tail().unwrap().last, log.snapshot().unwrap().expect("it has one").covers)
    };
    assert!(covers < last, "the journal has rows behind the snapshot");
    let node = GuardedNode::start(&older.data()).await;
    let listed = node.get("/v1/jobs?limit=100").await.json();
    let ids: Vec<&Value> = listed["jobs"].as_array().unwrap().iter().map(|job| &job["id"]).collect();
    assert_eq!(json!(ids), said["jobs"]);
    node.repeats(said, &[]).await;

    // A token and a receipt that were given out then are still good.
    let (ci, receipt) = (older.text("token"), older.text("receipt"));
    assert_eq!(node.send_as(ci, Request::get("/v1/jobs")).await.status, 200);
    let pause = Request::post("/v1/queues/q/pause", &json!({}));
    assert_eq!(node.send_as(ci, pause).await.code(), (403, "forbidden".into()));
    let result = json!({ "text": "y".repeat(5_000) });
    node.post(&format!("/v1/leases/{receipt}/succeed"), json!({ "result": result })).await;
    let running = ids[0].as_str().unwrap();
    until(async || node.node.engine().archived(JobId::parse(running).unwrap()).await.unwrap().is_some()).await;
    assert_eq!(node.job(running).await["result"], result);

    // What was ready is run with the payload that it had, and so is something new.
    let lease = node.lease("later").await;
    let later = lease["job_id"].as_str().unwrap().to_owned();
    same("later", &said["answers"][format!("/v1/jobs/{later}")]["body"]["workflows"][0]["payload"], &lease["payload"]);
    let receipt = lease["receipt"].as_str().unwrap();
    node.post(&format!("/v1/leases/{receipt}/succeed"), json!({})).await;
    let new = node.post("/v1/jobs", json!({ "kind": "new", "payload": { "n": 1 } })).await["id"].clone();
    let lease = node.lease("new").await;
    assert_eq!((&lease["job_id"], &lease["payload"]), (&new, &json!({ "n": 1 })));
    let receipt = lease["receipt"].as_str().unwrap();
    node.post(&format!("/v1/leases/{receipt}/succeed"), json!({ "result": 7 })).await;
    node.node.shutdown(PATIENCE).await;

    let node = GuardedNode::start(&older.data()).await;
    node.repeats(said, &[running, &later]).await;
    assert_eq!(node.job(running).await["result"], result);
    let new = node.job(new.as_str().unwrap()).await;
    assert_eq!((&new["state"], &new["result"]), (&json!("succeeded"), &json!(7)));
}
