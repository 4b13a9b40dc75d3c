//! A worker in curl and sh, and what becomes of workers whose time is over: the same while the job is in memory and
//! after it went to the archive.

mod support;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use support::http::Client;
use support::{Node, PATIENCE};

const VERBS: [(&str, &str); 5] = [
    ("beat", "{}"),
    ("succeed", r#"{"result":"late"}"#),
    ("fail", r#"{"error":"late"}"#),
    ("release", "{}"),
    ("request-extension", r#"{"reason":"long_workflow","progress":0.5}"#),
];

#[tokio::test]
async fn the_worker_of_the_examples_does_a_job() {
    let curl = Command::new("curl").arg("--version").output();
    assert!(curl.is_ok(), "curl is missing, and this test needs it: apt-get install curl");
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let submitted = node.call(folder.path(), &["submit", "--kind", "greet", "--payload", r#"{"to":"world"}"#]);
    assert!(submitted.status.success(), "{submitted:?}");
    let id = String::from_utf8(submitted.stdout).unwrap().trim().to_owned();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/curl-worker.sh");
    let mut worker = Command::new("sh");
    worker.arg(script).arg(&node.url).env_remove("ONWARD_TOKEN").env_remove("ONWARD_SERVER");
    let worked = worker.output().expect("sh is there");
    let said = String::from_utf8_lossy(&worked.stdout);
    assert!(worked.status.success(), "{said}{}", String::from_utf8_lossy(&worked.stderr));
    assert!(said.contains(&format!("leased job {id}")) && said.ends_with("done\n"), "{said}");
    assert!(said.contains(r#"more time: {"granted":true"#), "{said}");
    assert_eq!(said.matches("lease_remaining_ms").count(), 3, "{said}");

    let shown = node.call(folder.path(), &["show", "--json", &id]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!((&shown["state"], &shown["result"]), (&json!("succeeded"), &json!({ "greeting": "hello from curl" })));
    assert_eq!(shown["workflows"][0]["attempts"].as_array().unwrap().len(), 1);

    let nodes = String::from_utf8(node.call(folder.path(), &["node", "list"]).stdout).unwrap();
    let row = nodes.lines().find(|line| line.starts_with("curl-")).unwrap_or_else(|| panic!("it is gone: {nodes}"));
    let words: Vec<&str> = row.split_whitespace().skip(1).collect();
    assert_eq!(words, ["worker", "away", "none", "0", "0", "-", "goodbye"], "it said goodbye");
}

#[tokio::test]
async fn who_was_superseded_is_refused_now_and_from_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut client = Client::new(node.address);
    let retry = json!({ "max_attempts": 5, "base_s": 0.01, "max_s": 0.05 });
    let submitted = client.post("/v1/jobs", &json!({ "kind": "greet", "retry": retry })).await;
    assert_eq!(submitted.status, 201, "{}", submitted.text());
    let old = lease(&mut client, "first", 1).await;
    // It does not beat, so that the next one is handed the job as soon as the lease is over.
    let new = lease(&mut client, "second", 600).await;
    assert_eq!((&new["job_id"], &old["job_id"]), (&submitted.json()["id"], &submitted.json()["id"]));
    assert!(new["fence"].as_u64() > old["fence"].as_u64());
    refused(&mut client, &old, &new).await;

    let path = format!("/v1/leases/{}/succeed", new["receipt"].as_str().unwrap());
    let result = json!({ "result": { "by": "second" } });
    assert_eq!(client.post(&path, &result).await.status, 200);
    let began = Instant::now();
    loop {
        // At first it is in memory, then on its way, then in the archive alone.
        let repeated = client.post(&path, &result).await;
        assert_eq!(repeated.status, 200, "{}", repeated.text());
        let other = client.post(&path, &json!({ "result": "other" })).await;
        assert_eq!((other.status, other.code().as_str()), (409, "already_ended"));
        refused(&mut client, &old, &new).await;
        let stats = client.get("/v1/stats").await.json();
        if stats["jobs"] == 0 && stats["engine"]["archived"] == 1 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "the job is not archived: {stats}");
    }
    let repeated = client.post(&path, &result).await;
    assert_eq!(repeated.status, 200, "{}", repeated.text());
    let other = client.post(&path, &json!({ "result": "other" })).await;
    assert_eq!((other.status, other.code().as_str()), (409, "already_ended"));
    refused(&mut client, &old, &new).await;
    let shown = client.get(&format!("/v1/jobs/{}", new["job_id"].as_str().unwrap())).await.json();
    assert_eq!((&shown["state"], &shown["result"]), (&json!("succeeded"), &json!({ "by": "second" })));
}

async fn lease(client: &mut Client, worker: &str, lease_s: u32) -> Value {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let poll =
            json!({ "worker_id": worker, "incarnation": "1", "kinds": ["greet"], "wait_s": 10, "lease_s": lease_s });
        let answer = client.post("/v1/leases", &poll).await.json();
        if let Some(lease) = answer["leases"].get(0) {
            return lease.clone();
        }
    }
    panic!("no lease for {worker} within {PATIENCE:?}");
}

/// The old receipt is stale for every verb; one that was never given is unknown.
async fn refused(client: &mut Client, old: &Value, new: &Value) {
    let good = new["receipt"].as_str().unwrap();
    let altered = |at: usize| {
        let other = if good.as_bytes()[at] == b'A' { "B" } else { "A" };
        format!("{}{other}{}", &good[..at], &good[at + 1..])
    };
    let last = good.len() - 1;
    let unknown = ["forged".to_owned(), altered(0), altered(last / 2), altered(last - 1), good[..last].to_owned()];
    for (verb, body) in VERBS {
        let body: Value = serde_json::from_str(body).unwrap();
        let stale = client.post(&format!("/v1/leases/{}/{verb}", old["receipt"].as_str().unwrap()), &body).await;
        assert_eq!((stale.status, stale.code().as_str()), (409, "stale_attempt"), "{verb}: {}", stale.text());
        for receipt in &unknown {
            let reply = client.post(&format!("/v1/leases/{receipt}/{verb}"), &body).await;
            assert_eq!((reply.status, reply.code().as_str()), (404, "unknown_attempt"), "{verb}: {}", reply.text());
        }
    }
}
