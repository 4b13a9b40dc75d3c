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
async fn content_that_is_damaged_does_not_hide_its_job_and_a_backup_names_it() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let payload = format!("\"{}\"", "a large payload ".repeat(1_000));
    let job = done(&node, &payload).await;
    until(async || node.engine().read(move |view| view.manager.job(job)).await.unwrap().is_none()).await;
    node.shutdown(PATIENCE).await;
    let file = data.path().join("archive.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    let begin = &payload.as_bytes()[..64];
    let found: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(begin)).collect();
    assert!(!found.is_empty());
    found.into_iter().for_each(|at| bytes[at + 9] ^= 1);
    std::fs::write(&file, bytes).unwrap();

    let node = start(data.path()).await;
    let shown = Request::get(&format!("/v1/jobs/{job}?wait_s=60")).send(node.address()).await;
    assert_eq!(shown.status, 200, "{}", String::from_utf8_lossy(&shown.body));
    let shown = shown.json();
    let workflow = &shown["workflows"][0];
    assert_eq!((&shown["state"], &workflow["payload"]), (&json!("succeeded"), &json!(null)));
    let name = workflow["name"].as_str().unwrap();
    let left_out = json!([{ "workflow": name, "field": "payload", "bytes": payload.len(), "why": "damaged" }]);
    assert_eq!(shown["left_out"], left_out);
    let alone = Request::get(&format!("/v1/jobs/{job}?workflow={name}")).send(node.address()).await;
    assert_eq!(alone.code(), (500, "damaged".into()));

    let token = std::fs::read_to_string(data.path().join("token")).unwrap();
    let elsewhere = tempdir().unwrap();
    let path = elsewhere.path().join("a.backup").display().to_string();
    let backup = Request::post("/v1/backup", &json!({ "path": path }))
        .header("authorization", &format!("Bearer {}", token.trim()));
    let made = backup.send(node.address()).await;
    assert_eq!(made.status, 200);
    let damaged = json!({ "contents": 1, "jobs": [job.to_string()], "jobs_total": 1 });
    assert_eq!(made.json()["damaged"], damaged);
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
    let shown = Request::get(&format!("/v1/jobs/{job}")).send(node.address()).await.json();
    assert_eq!((&shown["state"], &shown["left_out"][0]["why"]), (&json!("succeeded"), &json!("damaged")));
    let reply = Request::get(&format!("/v1/jobs/{job}?workflow=k")).send(node.address()).await;
    assert_eq!(reply.code(), (500, "damaged".into()));
    assert!(!reply.head.contains("retry-after"), "{}", reply.head);
    let detail = reply.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("is missing from the store") && detail.contains("backup"), "{detail}");
}
