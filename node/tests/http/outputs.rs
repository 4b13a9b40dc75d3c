//! What attempts print, by HTTP: in through a receipt, out through the job, also when it has ended and after a restart.

use std::time::Duration;

use crate::rig::{
    PATIENCE, Reply, Request, config, lease, poll_body, post, settings, start, submit, submit_kind, until, verb,
};
use onward_core::ids::JobId;
use onward_core::job::Draft;
use onward_core::job::draft::WorkflowDraft;
use onward_core::settings::Settings;
use onward_node::server::{Node, NodeConfig};
use serde_json::{Value, json};
use tempfile::tempdir;
use tokio::time::timeout;

async fn output(node: &Node, job: JobId, tail: &str) -> Reply {
    Request::get(&format!("/v1/jobs/{job}/attempts/{tail}")).send(node.address()).await
}

fn skipped(reply: &Reply) -> u64 {
    let line = reply.head.lines().find_map(|line| line.strip_prefix("onward-skipped-bytes: "));
    line.expect("it is always said").parse().unwrap()
}

async fn print(node: &Node, lease: &Value, body: Value) {
    let reply = post(node, &verb(lease, "output"), body).await;
    assert_eq!((reply.status, reply.body.len()), (204, 0));
}

#[tokio::test]
async fn output_is_there_while_the_job_runs_when_it_is_archived_and_after_a_restart() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let job = submit_kind(node.engine(), "k").await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    assert_eq!(output(&node, job, "1/output").await.code(), (404, "no_output".into()));

    print(&node, &held, json!({ "text": "h\u{e4}llo\n" })).await;
    print(&node, &held, json!({ "data_base64": "/wAB" })).await;
    let expected = b"h\xc3\xa4llo\n\xff\x00\x01".to_vec();
    let running = output(&node, job, "1/output").await;
    assert_eq!((running.status, skipped(&running), &running.body), (200, 0, &expected));
    assert!(running.head.contains("content-type: application/octet-stream"), "{}", running.head);

    // The next attempt has its own.
    assert_eq!(post(&node, &verb(&held, "fail"), json!({ "error": "no", "delay_s": 0 })).await.status, 200);
    let second = lease(&node, poll_body("1")).await.pop().unwrap();
    print(&node, &second, json!({ "text": "again" })).await;
    assert_eq!(post(&node, &verb(&second, "succeed"), json!({})).await.status, 200);
    until(async || node.engine().archived(job).await.unwrap().is_some()).await;
    assert_eq!(output(&node, job, "1/output").await.body, expected);
    assert_eq!(output(&node, job, "2/output").await.body, b"again");
    node.shutdown(PATIENCE).await;
    let node = start(data.path()).await;
    assert_eq!(output(&node, job, "1/output").await.body, expected);
    assert_eq!(output(&node, job, "2/output").await.body, b"again");
}

/// A pipe that nobody writes to in the place of the file: opening it waits.
#[tokio::test]
async fn whoever_asks_for_output_that_hangs_in_the_disk_is_refused_in_time() {
    let (data, seat_ttl) = (tempdir().unwrap(), Duration::from_millis(1_500));
    let settings = Settings { seat_ttl, gap_after: seat_ttl / 2, ..settings() };
    let node = Node::start(NodeConfig { rules: settings.check().unwrap(), ..config(data.path()) }).await.unwrap();
    let job = submit_kind(node.engine(), "k").await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    print(&node, &held, json!({ "text": "hello" })).await;
    assert_eq!(output(&node, job, "1/output").await.body, b"hello");
    let kept = std::fs::read_dir(data.path().join("output")).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&kept).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &kept, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();

    let answer = timeout(PATIENCE / 4, output(&node, job, "1/output")).await;
    // Whatever became of it: what hangs keeps the node from stopping.
    drop(std::fs::OpenOptions::new().write(true).open(&kept).unwrap());
    assert_eq!(answer.expect("nobody waits for a disk that hangs").code(), (503, "no_leader".into()));
    node.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_long_output_loses_its_beginning_and_says_so() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let job = submit_kind(node.engine(), "k").await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    for n in 0..5 {
        print(&node, &held, json!({ "text": n.to_string().repeat(40_000) })).await;
    }
    let kept = output(&node, job, "1/output").await;
    assert_eq!((kept.body.len() as u64, skipped(&kept)), (64 << 10, 200_000 - (64 << 10)));
    assert_eq!(kept.body, [vec![b'3'; (64 << 10) - 40_000], vec![b'4'; 40_000]].concat());
}

async fn refused_output(node: &Node, lease: &Value) -> (u16, String) {
    post(node, &verb(lease, "output"), json!({ "text": " (late)" })).await.code()
}

#[tokio::test]
async fn only_the_last_who_held_an_attempt_adds_to_its_output_and_only_until_it_is_archived() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    // Another workflow keeps the job in memory.
    let workflow =
        |kind: &str| WorkflowDraft { name: Some(kind.into()), kind: kind.into(), ..WorkflowDraft::default() };
    let workflows = vec![workflow("k"), workflow("other")];
    let job = submit(node.engine(), Draft { workflows, ..Draft::default() }).await;
    let first = lease(&node, poll_body("1")).await.pop().unwrap();
    print(&node, &first, json!({ "text": "one" })).await;
    assert_eq!(post(&node, &verb(&first, "fail"), json!({ "error": "no", "delay_s": 0 })).await.status, 200);
    let second = lease(&node, poll_body("1")).await.pop().unwrap();
    assert_eq!(refused_output(&node, &first).await, (409, "stale_attempt".into()));
    print(&node, &second, json!({ "text": "two" })).await;
    assert_eq!(post(&node, &verb(&second, "succeed"), json!({})).await.status, 200);
    // Its last lines came behind its outcome.
    print(&node, &second, json!({ "text": " and the end" })).await;

    let mut poll = poll_body("1");
    poll["kinds"] = json!(["other"]);
    let other = lease(&node, poll).await.pop().unwrap();
    assert_eq!(post(&node, &verb(&other, "succeed"), json!({})).await.status, 200);
    until(async || node.engine().read(move |view| view.manager.job(job)).await.unwrap().is_none()).await;
    assert_eq!(refused_output(&node, &first).await, (409, "already_ended".into()));
    assert_eq!(refused_output(&node, &second).await, (409, "already_ended".into()));
    assert_eq!(output(&node, job, "1/output").await.body, b"one");
    assert_eq!(output(&node, job, "2/output").await.body, b"two and the end");
    let metrics = Request::get("/metrics").send(node.address()).await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.contains("\nonward_output_refused_total 3\n"), "{metrics}");
    assert!(metrics.contains("\nonward_refusals_total{code=\"stale_attempt\"} 1\n"), "{metrics}");
    assert!(metrics.contains("\nonward_late_claims_refused_total 2\n"), "{metrics}");
}

#[tokio::test]
async fn what_there_is_not_has_a_code_of_its_own() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let workflow = |name: &str| WorkflowDraft { name: Some(name.into()), kind: "k".into(), ..WorkflowDraft::default() };
    let workflows = vec![workflow("a"), workflow("b")];
    let job = submit(node.engine(), Draft { workflows, ..Draft::default() }).await;
    for held in lease(&node, poll_body("1")).await {
        print(&node, &held, json!({ "text": held["workflow"] })).await;
    }
    assert_eq!(output(&node, job, "1/output").await.body, b"a");
    assert_eq!(output(&node, job, "1/output?workflow=b").await.body, b"b");
    for (tail, code) in [
        ("2/output", "unknown_attempt"),
        ("first/output", "unknown_attempt"),
        ("1/output?workflow=c", "unknown_workflow"),
        ("0/output?workflow=b", "unknown_attempt"),
    ] {
        assert_eq!(output(&node, job, tail).await.code(), (404, code.into()), "{tail}");
    }
    assert_eq!(output(&node, job, "1/output?flow=b").await.code(), (400, "invalid".into()));
    assert_eq!(output(&node, JobId::from_u128(1), "1/output").await.code(), (404, "unknown_job".into()));
}

#[tokio::test]
async fn what_is_wrong_with_an_output_is_said_and_nothing_is_kept() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let job = submit_kind(node.engine(), "k").await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    for (body, status, code, field) in [
        (json!({}), 400, "invalid", "text"),
        (json!({ "text": "a", "data_base64": "YQ==" }), 400, "invalid", "text"),
        (json!({ "data_base64": "?" }), 400, "invalid", "data_base64"),
        (json!({ "text": "x".repeat((64 << 10) + 1) }), 413, "too_large", "text"),
    ] {
        let reply = post(&node, &verb(&held, "output"), body).await;
        assert_eq!((reply.code(), &reply.json()["field"]), ((status, code.into()), &json!(field)));
    }
    let reply = post(&node, "/v1/leases/made-up/output", json!({ "text": "a" })).await;
    assert_eq!(reply.code(), (404, "unknown_attempt".into()));
    assert_eq!(output(&node, job, "1/output").await.code(), (404, "no_output".into()));
    let metrics = Request::get("/metrics").send(node.address()).await;
    assert!(String::from_utf8_lossy(&metrics.body).contains("\nonward_output_written_bytes_total 0\n"));
}
