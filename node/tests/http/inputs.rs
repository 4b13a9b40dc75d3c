//! Inputs that are too large together for one answer: a worker that says so fetches them.

use std::time::Duration;

use crate::rig::{Reply, Request, lease, poll_body, post, receipt, start, submit, verb};
use onward_core::ids::{ClientId, Incarnation, JobId, Name, WorkerId};
use onward_core::input::{Call, Poll};
use onward_core::job::Draft;
use onward_core::job::draft::WorkflowDraft;
use onward_core::message::{EndReport, Settlement, Subscription};
use onward_core::payload::Digest;
use onward_node::server::Node;
use serde_json::{Value, json};
use tempfile::tempdir;

const MIB: usize = 1 << 20;

/// No JSON, and like no other.
fn part(n: usize) -> Vec<u8> {
    let mut part = vec![0xff; MIB];
    part[..8].copy_from_slice(&n.to_le_bytes());
    part
}

/// A job whose last workflow is ready, and has so many inputs of 1 MiB: `part/0`, `part/1` and so on.
async fn join_of(node: &Node, parts: usize) -> JobId {
    let name = |n: usize| format!("part/{n}");
    let text = |text: &str| Name::new(text).unwrap();
    let workflow = |name: String, kind: &str, after: Vec<String>| WorkflowDraft {
        name: Some(name.into()),
        kind: kind.into(),
        after: after.into_iter().map(Into::into).collect(),
        ..WorkflowDraft::default()
    };
    let mut workflows: Vec<_> = (0..parts).map(|n| workflow(name(n), "part", vec![])).collect();
    workflows.push(workflow("join".into(), "k", (0..parts).map(name).collect()));
    let id = submit(node.engine(), Draft { workflows, ..Draft::default() }).await;
    let poll = Poll {
        worker: WorkerId::new("parts").unwrap(),
        incarnation: Incarnation::new("1").unwrap(),
        subscription: Subscription { queues: vec![text("default")], kinds: vec![text("part")] },
        max: parts as u32,
        wait: Duration::from_secs(60),
        lease: Duration::from_secs(600),
        id: None,
        client: ClientId::default(),
    };
    let (leases, mut delivery) = node.engine().poll(poll).await.unwrap();
    delivery.done();
    let settle = leases.iter().map(|lease| {
        let result = part(usize::from(lease.claim.workflow));
        Settlement::new(lease.claim, EndReport::Succeed { result: result.into() })
    });
    node.engine().call(Call::Settle(settle.collect())).await.unwrap();
    id
}

fn by_reference(incarnation: &str) -> Value {
    let mut body = poll_body(incarnation);
    body["inputs_by_reference"] = true.into();
    body
}

async fn fetch(node: &Node, lease: &Value, workflow: &str) -> Reply {
    let path = format!("/v1/leases/{}/inputs/{}", receipt(lease), workflow.replace('/', "%2F"));
    Request::get(&path).send(node.address()).await
}

#[tokio::test]
async fn a_worker_that_says_so_fetches_what_is_too_large_for_one_answer() {
    const PARTS: usize = 17;
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    join_of(&node, PARTS).await;
    let join = lease(&node, by_reference("1")).await.pop().unwrap();
    assert_eq!((&join["inputs"], &join["inputs_base64"]), (&json!({}), &Value::Null));
    let references = join["inputs_by_reference"].as_object().unwrap();
    assert_eq!(references.len(), PARTS);
    for n in 0..PARTS {
        let expected = json!({ "digest": Digest::of(&part(n)).to_string(), "bytes": MIB });
        assert_eq!(references[&format!("part/{n}")], expected);
        let reply = fetch(&node, &join, &format!("part/{n}")).await;
        assert!(reply.status == 200 && reply.head.contains("application/octet-stream"), "{}", reply.head);
        assert!(reply.body == part(n), "part {n}, to the byte");
    }
    for other in ["join", "none"] {
        let refused = fetch(&node, &join, other).await;
        assert_eq!(refused.code(), (404, "unknown_workflow".into()));
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("does not come after") && detail.contains("inputs_by_reference"), "{detail}");
    }
    let forged = json!({ "receipt": "forged" });
    assert_eq!(fetch(&node, &forged, "part/0").await.code(), (404, "unknown_attempt".into()));

    // A zombie fetches nothing, and neither does a worker that is done.
    let next = lease(&node, by_reference("2")).await.pop().unwrap();
    assert_eq!(fetch(&node, &join, "part/0").await.code(), (409, "stale_attempt".into()));
    assert_eq!(fetch(&node, &next, "part/0").await.status, 200);
    assert_eq!(post(&node, &verb(&next, "succeed"), json!({})).await.status, 200);
    assert_eq!(fetch(&node, &next, "part/0").await.code(), (409, "already_ended".into()));
}

#[tokio::test]
async fn what_fits_into_one_answer_is_in_it() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    for (parts, body) in [(2, by_reference("1")), (17, poll_body("1"))] {
        join_of(&node, parts).await;
        let join = lease(&node, body).await.pop().unwrap();
        assert_eq!(join["inputs_base64"].as_object().map(|inputs| inputs.len()), Some(parts));
        assert_eq!(join.get("inputs_by_reference"), None);
        assert_eq!(post(&node, &verb(&join, "succeed"), json!({})).await.status, 200);
    }
}

#[tokio::test]
async fn the_leases_of_one_answer_share_the_room_in_it() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    join_of(&node, 9).await;
    join_of(&node, 9).await;
    let leases = lease(&node, by_reference("1")).await;
    let inside = |lease: &Value| lease["inputs_base64"].as_object().map_or(0, |inputs| inputs.len());
    let outside = |lease: &Value| lease["inputs_by_reference"].as_object().map_or(0, |inputs| inputs.len());
    let carried: Vec<_> = leases.iter().map(|lease| (inside(lease), outside(lease))).collect();
    assert_eq!(carried, [(9, 0), (0, 9)]);
}
