//! An embedded node's data in a database: all that could be read before can be read after, byte for byte.

mod support;

use std::path::Path;
use std::process::{Command, Output};

use onward_testkit::PostgresServer;
use serde_json::{Value, json};
use support::http::Client;
use support::process::until;
use support::{Node, PATIENCE, onward, own_loopback};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn migrate(from: &Path, to: &str) -> Output {
    onward(&["migrate", "--from"]).arg(from).args(["--to", to, "--json"]).output().unwrap()
}

fn psql(url: &str, command: &str) -> String {
    let output = Command::new("psql").args(["--no-psqlrc", "-qtA", url, "-c", command]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// The paths of all that can be read and does not count on.
async fn paths(client: &mut Client) -> Vec<String> {
    let listed = client.get("/v1/jobs?limit=500").await.json();
    let jobs = listed["jobs"].as_array().unwrap();
    assert!(listed["next_cursor"].is_null());
    let mut paths = vec!["/v1/jobs?limit=500".to_owned(), "/v1/dead-letters".into(), "/v1/queues".into()];
    paths.push("/v1/schedules/often/records".into());
    for id in jobs.iter().map(|job| job["id"].as_str().unwrap()) {
        paths.extend(["", "/ledger", "/attempts/1/output"].map(|more| format!("/v1/jobs/{id}{more}")));
    }
    paths
}

async fn documents(client: &mut Client, paths: &[String]) -> Vec<(String, u16, String)> {
    let mut found = Vec::new();
    for path in paths {
        let reply = client.get(path).await;
        found.push((path.clone(), reply.status, reply.lasting()));
    }
    found
}

async fn leased(client: &mut Client, max: u32) -> Vec<Value> {
    let poll =
        json!({ "worker_id": "w", "incarnation": "1", "kinds": ["k"], "max": max, "wait_s": 10, "lease_s": 600 });
    client.post("/v1/leases", &poll).await.json()["leases"].as_array().unwrap().clone()
}

fn path(lease: &Value, verb: &str) -> String {
    format!("/v1/leases/{}/{verb}", lease["receipt"].as_str().unwrap())
}

fn submission(number: u32) -> Value {
    let pad = if number.is_multiple_of(3) { format!("{number:08}").repeat(1_000) } else { String::new() };
    json!({ "kind": "k", "payload": { "number": number, "pad": pad }, "idempotency_key": format!("key {number}"),
        "tags": ["migrated"], "retry": { "max_attempts": 1 } })
}

/// Jobs of every kind: ended and archived, failed for good, held by a worker, waiting; and a schedule, a paused queue, a token.
async fn lived(client: &mut Client) -> (Value, String) {
    for number in 0..60 {
        assert_eq!(client.post("/v1/jobs", &submission(number)).await.status, 201);
    }
    for (number, lease) in leased(client, 30).await.into_iter().enumerate() {
        let said = json!({ "text": format!("attempt {number}\n").repeat(1 + 100 * (number % 2) * number) });
        assert!(client.post(&path(&lease, "output"), &said).await.status < 300);
        let ended = match number % 5 {
            0 => client.post(&path(&lease, "fail"), &json!({ "error": "no", "retryable": false })).await,
            _ => client.post(&path(&lease, "succeed"), &json!({ "result": lease["payload"] })).await,
        };
        assert_eq!(ended.status, 200, "{}", ended.text());
    }
    let held = leased(client, 1).await[0].clone();
    assert_eq!(
        client.post(&path(&held, "beat"), &json!({ "watermark": 7, "checkpoint": { "at": 7 } })).await.status,
        200
    );
    let schedule = json!({ "every_s": 86_400, "job": { "kind": "later" } });
    let put = client.call("PUT", "/v1/schedules/often", &schedule.to_string()).await.unwrap();
    assert!(put.status < 300, "{}", put.text());
    assert!(client.post("/v1/queues/default/pause", &json!({})).await.status < 300);
    until("24 jobs are archived", PATIENCE, async || {
        (client.get("/status").await.json()["manager"]["archived_jobs"] == 24).then_some(())
    })
    .await;
    let held_id = held["job_id"].as_str().unwrap().to_owned();
    (held, held_id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_could_be_read_before_is_read_after_byte_for_byte() {
    let (server, folder) = (PostgresServer::options().fsync().start().unwrap(), tempfile::tempdir().unwrap());
    let (url, data) = (server.database().unwrap(), folder.path().join("data"));
    // So few events that there are snapshots, and a log without its beginning.
    let flags = ["--set", "snapshot_every=20"];
    let node = Node::start_with(&data, &own_loopback(), &flags);
    let mut client = Client::new(node.address);
    let (held, held_id) = lived(&mut client).await;
    // What a restart forgets, such as who is connected, is not what this is about.
    node.kill();
    let node = Node::start_with(&data, &own_loopback(), &flags);
    let mut client = Client::new(node.address);
    let made = onward(&["token", "new", "--scope", "read", "--name", "ci", "--data"]).arg(&data).output().unwrap();
    let token = text(&made.stdout).trim().to_owned();
    let paths = paths(&mut client).await;
    let before = documents(&mut client, &paths).await;

    let refused = migrate(&data, &url);
    assert!(!refused.status.success() && text(&refused.stderr).contains("another process has the data folder"));
    node.kill();

    // What an import has left that was killed: nobody leads it, and the next one begins anew.
    drop(Node::start_with(&folder.path().join("made"), &own_loopback(), &["--storage", &url]));
    psql(&url, "update onward.seat set term = 0, holder = gen_random_uuid(), is_importing = true");
    let half = onward(&["up", "--slots", "0", "--listen", &own_loopback(), "--storage", &url, "--data"])
        .arg(folder.path().join("half"))
        .env("ONWARD_LOG", "off")
        .output()
        .unwrap();
    assert!(text(&half.stderr).contains("run `onward migrate` again"), "{}", text(&half.stderr));

    let moved = migrate(&data, &url);
    assert!(moved.status.success(), "{}", text(&moved.stderr));
    let told: Value = serde_json::from_slice(&moved.stdout).unwrap();
    assert_eq!((&told["archived_jobs"], &told["missing"], &told["was_there"]), (&24.into(), &0.into(), &false.into()));
    assert_eq!(psql(&url, "select count(*) from onward.batch where first <= 2"), "0", "the log had no beginning");

    let node = Node::start_with(&data, &own_loopback(), &["--storage", &url]);
    let mut client = Client::new(node.address);
    let after = documents(&mut client, &paths).await;
    for (before, after) in before.iter().zip(&after) {
        let same = before.2.bytes().zip(after.2.bytes()).take_while(|(one, other)| one == other).count();
        let shown = |one: &str| one.chars().skip(same.saturating_sub(200)).take(400).collect::<String>();
        assert!(before == after, "{}\n… {}\n… {}", before.0, shown(&before.2), shown(&after.2));
    }
    // What was promised goes on: keys, receipts, tokens, and the worker's lease.
    let again = client.post("/v1/jobs", &submission(7)).await;
    assert_eq!(again.status, 200, "{}", again.text());
    assert_eq!(client.post(&path(&held, "beat"), &json!({ "watermark": 8 })).await.status, 200);
    assert_eq!(client.post(&path(&held, "succeed"), &json!({ "result": "moved" })).await.status, 200);
    assert_eq!(client.get(&format!("/v1/jobs/{held_id}")).await.json()["result"], "moved");
    let listed = onward(&["list", "--json", "--server", &node.url, "--token", &token]).output().unwrap();
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    node.kill();

    let embedded = onward(&["up", "--slots", "0", "--data"]).arg(&data).env("ONWARD_LOG", "off").output().unwrap();
    assert!(text(&embedded.stderr).contains("were taken over into"), "{}", text(&embedded.stderr));
    let twice = text(&migrate(&data, &url).stderr);
    assert!(twice.contains("has been moved to"), "{twice}");
    std::fs::remove_file(data.join("moved")).unwrap();
    let used = text(&migrate(&data, &url).stderr);
    assert!(used.contains("holds a node's data already"), "{used}");
    let other = server.database().unwrap();
    let none = text(&migrate(&folder.path().join("nothing"), &other).stderr);
    assert!(none.contains("is no data folder of a node"), "{none}");
}

/// The answer of the last step is all that is lost: then it is known that everything is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_is_asked_for_again_is_done_once() {
    let (server, folder) = (PostgresServer::options().fsync().start().unwrap(), tempfile::tempdir().unwrap());
    let (url, data) = (server.database().unwrap(), folder.path().join("data"));
    drop(Node::start(&data));
    assert!(migrate(&data, &url).status.success());
    std::fs::remove_file(data.join("moved")).unwrap();
    let again = migrate(&data, &url);
    let told: Value = serde_json::from_slice(&again.stdout).unwrap_or_default();
    assert_eq!(told["was_there"], true, "{}", text(&again.stderr));
    assert!(data.join("moved").exists());
}
