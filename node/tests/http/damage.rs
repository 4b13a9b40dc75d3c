//! What the disk damaged: said as what it is, once and for good, and of nothing else.

use crate::rig::{PATIENCE, Request, lease, poll_body, post, start, submit, until, verb};
use onward_core::ids::JobId;
use onward_core::job::Draft;
use onward_node::server::Node;
use serde_json::json;
use tempfile::tempdir;

async fn done(node: &Node, payload: &str) -> JobId {
    let job = submit(node.engine(), Draft::of_kind("k", payload.as_bytes())).await;
    let held = lease(node, poll_body("1")).await.pop().unwrap();
    assert_eq!(post(node, &verb(&held, "succeed"), json!({})).await.status, 200);
    until(async || node.engine().archived(job).await.unwrap().is_some()).await;
    job
}

#[tokio::test]
async fn a_damaged_row_of_the_archive_is_not_a_reason_to_try_again() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let (good, bad) = (done(&node, "\"a good payload\"").await, done(&node, "\"a bad payload\"").await);
    node.shutdown(PATIENCE).await;
    let file = data.path().join("archive.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    let found: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"a bad payload")).collect();
    assert!(!found.is_empty());
    found.into_iter().for_each(|at| bytes[at] ^= 1);
    std::fs::write(&file, bytes).unwrap();

    let node = start(data.path()).await;
    let reply = Request::get(&format!("/v1/jobs/{bad}")).send(node.address()).await;
    assert_eq!(reply.code(), (500, "damaged".into()));
    assert!(!reply.head.contains("retry-after"), "{}", reply.head);
    let detail = reply.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("the checksum does not match") && detail.contains("backup"), "{detail}");
    let reply = post(&node, &format!("/v1/jobs/{bad}/retry"), json!({ "request_id": "r" })).await;
    assert_eq!(reply.code(), (500, "damaged".into()));
    assert_eq!(Request::get(&format!("/v1/jobs/{good}")).send(node.address()).await.status, 200);
}

const BLOBS: redb::TableDefinition<'_, (u128, &[u8; 32]), (u64, u32)> = redb::TableDefinition::new("job_blobs");

#[tokio::test]
async fn content_that_is_missing_from_the_archive_is_not_a_reason_to_try_again() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let job = done(&node, &json!("x".repeat(10_000)).to_string()).await;
    node.shutdown(PATIENCE).await;
    let file = redb::Database::open(data.path().join("archive.redb")).unwrap();
    let transaction = file.begin_write().unwrap();
    let removed = transaction.open_table(BLOBS).unwrap().extract_if(|_, _| true).unwrap().count();
    transaction.commit().unwrap();
    drop(file);
    assert_eq!(removed, 1);

    let node = start(data.path()).await;
    let reply = Request::get(&format!("/v1/jobs/{job}")).send(node.address()).await;
    assert_eq!(reply.code(), (500, "damaged".into()));
    assert!(!reply.head.contains("retry-after"), "{}", reply.head);
    let detail = reply.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("is missing from the store") && detail.contains("backup"), "{detail}");
}
