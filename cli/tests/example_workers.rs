//! The workers that people copy, each run as it is against a real node: progress, checkpoint, more time, cancel, and a
//! SIGTERM that gives the job back and says goodbye.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::Client;
use support::process::{ended, signal, until};
use support::{Node, PATIENCE, end, in_own_environment};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
}

fn named(program: &str, missing: &str) -> Command {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(found.is_ok(), "{program} is missing, and this test needs it: apt-get install {missing}");
    in_own_environment(Command::new(program))
}

#[tokio::test]
async fn the_python_worker_does_what_a_worker_should() {
    let mut command = named("python3", "python3");
    command.arg(example("worker.py"));
    a_working_life(command).await;
}

#[tokio::test]
async fn the_javascript_worker_does_what_a_worker_should() {
    let mut command = named("node", "nodejs");
    command.arg(example("worker.mjs"));
    a_working_life(command).await;
}

#[tokio::test]
async fn the_go_worker_does_what_a_worker_should() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut build = named("go", "golang-go");
    build.args(["build", "-o"]).arg(folder.path().join("worker")).arg(example("worker.go"));
    build.env("GOCACHE", folder.path().join("cache")).env("GOFLAGS", "").env("GO111MODULE", "off");
    let built = build.output().expect("go runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    a_working_life(in_own_environment(Command::new(folder.path().join("worker")))).await;
}

#[test]
fn each_is_short_enough_to_read_at_once() {
    for name in ["worker.py", "worker.mjs", "worker.go"] {
        let text = std::fs::read_to_string(example(name)).expect("it is there");
        let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
        assert!(lines < 80, "{name} has {lines} lines");
    }
}

/// Ended when it is dropped, whatever the test found.
struct Worker(Child);

impl Worker {
    fn start(command: &mut Command, node: &Node) -> Self {
        command.env("ONWARD_SERVER", &node.url).env("WORKER_ID", "copied").stdout(Stdio::null());
        Self(command.spawn().expect("it starts"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

async fn a_working_life(mut command: Command) {
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::start(folder.path());
    let mut client = Client::new(node.address);
    let mut worker = Worker::start(&mut command, &node);

    // Short, and with a deadline so near that it asks for more time.
    let done =
        submit(&mut client, json!({ "kind": "count", "timeout_s": 8, "payload": { "steps": 5, "pause_s": 0.05 } }))
            .await;
    let job = until_job(&mut client, &done, |job| job["state"] == "succeeded").await;
    assert_eq!(job["result"], json!({ "counted_to": 5 }));
    let ledger = client.get(&format!("/v1/jobs/{done}/ledger")).await.json();
    let entry = &ledger["entries"][0];
    assert_eq!((&entry["what"], &entry["by_s"]), (&json!("granted"), &json!(30.0)), "{ledger}");

    // Endless, until it is cancelled: the worker is told by its next beat.
    let endless = json!({ "kind": "count", "payload": { "steps": 1_000_000, "pause_s": 0.02 } });
    let cancelled = submit(&mut client, endless.clone()).await;
    until_job(&mut client, &cancelled, |job| job["progress"]["done"].as_u64() >= Some(2)).await;
    assert_eq!(client.post(&format!("/v1/jobs/{cancelled}/cancel"), &json!({})).await.status, 200);
    until_job(&mut client, &cancelled, |job| job["state"] == "cancelled").await;

    // Told to stop, it gives the job back with its checkpoint, and says goodbye.
    let given_back = submit(&mut client, endless).await;
    until_job(&mut client, &given_back, |job| job["progress"]["done"].as_u64() >= Some(3)).await;
    signal(worker.0.id(), Signal::TERM);
    assert_eq!(ended(&mut worker.0, PATIENCE).await, Some(0));
    let job = until_job(&mut client, &given_back, |job| job["state"] == "ready").await;
    let attempt = &job["workflows"][0]["attempts"][0];
    assert_eq!(attempt["outcome"], "released", "{attempt}");
    let nodes = client.get("/v1/nodes").await.json();
    let verdict = nodes["nodes"].as_array().and_then(|nodes| nodes.iter().find(|node| node["id"] == "copied")).cloned();
    assert_eq!(verdict.expect("it is still shown")["verdict"], "away", "{nodes}");

    // The next life goes on where the last one stopped.
    let poll = json!({ "worker_id": "next", "incarnation": "1", "kinds": ["count"], "wait_s": 10, "lease_s": 30 });
    let lease = client.post("/v1/leases", &poll).await.json()["leases"][0].clone();
    assert_eq!(lease["job_id"], given_back.as_str());
    assert!(lease["checkpoint"].as_u64() >= Some(3), "{lease}");
}

async fn submit(client: &mut Client, job: Value) -> String {
    let submitted = client.post("/v1/jobs", &job).await;
    assert_eq!(submitted.status, 201, "{}", submitted.text());
    submitted.json()["id"].as_str().expect("an id").to_owned()
}

async fn until_job(client: &mut Client, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    until("the job is as it should be", PATIENCE, async || {
        let job = client.get(&format!("/v1/jobs/{id}")).await.json();
        wanted(&job).then_some(job)
    })
    .await
}
