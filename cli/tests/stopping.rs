//! A node that is told to stop: what its probes say meanwhile, and how long it takes.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use support::http::Client;
use support::jobs::{shell, submit};
use support::process::{Mark, until, with_gaps};
use support::{Node, PATIENCE, a_moment, onward, own_loopback};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

fn node(data: &Path, mark: &Mark, more: &[&str]) -> Node {
    let mut command = onward(&["up", "--slots", "1", "--listen", &own_loopback(), "--data"]);
    mark.put(command.arg(data).args(more));
    Node::start_as(command)
}

#[tokio::test]
async fn from_the_first_signal_on_it_is_not_ready_whatever_runs_here() {
    let (folder, mark) = (tempfile::tempdir().unwrap(), Mark::new());
    let (data, go) = (folder.path().join("data"), folder.path().join("go"));
    let mut node = node(&data, &mark, &[]);
    let mut client = Client::with_token(node.address, &data);
    let script = format!("while [ ! -e {} ]; do sleep 0.1; done", go.display());
    submit(&mut client, &shell(&script, &[mark.variable()], &json!({}))).await;
    mark.runs("sh", 1).await;
    assert_eq!(client.get("/readyz").await.status, 200);
    node.signal(Signal::TERM);
    let told = until("it says that it drains", PATIENCE, async || {
        let told = client.try_call("GET", "/readyz", "").await.expect("it answers while its command runs");
        (told.status == 503).then_some(told)
    })
    .await;
    assert_eq!(told.json()["reason"], "the node is draining");
    mark.runs("sh", 1).await;
    std::fs::write(&go, "").unwrap();
    assert_eq!(node.ended(PATIENCE).await, Some(0));
}

#[tokio::test]
async fn its_graces_do_not_add_up() {
    let (folder, mark) = (tempfile::tempdir().unwrap(), Mark::new());
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let grace = Duration::from_secs(6);
    std::fs::write(data.join("onward.toml"), "[drain]\ngrace = '6s'\nready_grace = '6s'\n").unwrap();
    let mut node = node(&data, &mark, &["--grace", "10s"]);
    let mut client = Client::with_token(node.address, &data);
    submit(&mut client, &shell("trap '' TERM; while :; do sleep 1; done", &[mark.variable()], &json!({}))).await;
    mark.runs("sleep", 1).await;
    let mut unfinished = TcpStream::connect(node.address).await.unwrap();
    unfinished.write_all(b"POST /v1/jobs HTTP/1.1\r\nhost: ").await.unwrap();
    let (moment, asked) = (a_moment(), Instant::now());
    node.signal(Signal::TERM);
    let (code, gaps) = with_gaps(node.ended(PATIENCE)).await;
    let took = asked.elapsed();
    assert_eq!(code, Some(0));
    assert!(took < grace + moment.max(a_moment()) + gaps, "it took {took:?}");
    mark.gone(PATIENCE).await;
}
