//! Payloads and results in answers: within bounds, whoever asks, and never lost from sight.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::rig::{Rig, read};

const MIB: usize = 1 << 20;

/// A JSON text of a megabyte.
fn large(n: usize) -> String {
    format!("\"{n:04}{}\"", "y".repeat(MIB - 6))
}

/// A job of so many workflows, each of which has succeeded with a megabyte.
async fn with_results(rig: &Rig, count: usize) -> String {
    let workflows: Vec<_> = (0..count).map(|n| json!({"name": format!("w{n}"), "kind": "k"})).collect();
    let id = rig.submit(json!({"workflows": workflows})).await;
    for n in 0..count {
        let taken = rig.take("k").await;
        rig.succeed(&taken, large(n).as_bytes()).await;
    }
    id
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_has_sixteen_mebibytes_of_content_at_most_and_says_what_it_leaves_out() {
    let rig = Rig::new().await;
    let id = with_results(&rig, 20).await;
    let job = rig.job(&id).await;
    let results = job["result"].as_object().unwrap();
    let there = results.values().filter(|result| result.is_string()).count();
    assert_eq!((there, results.len()), (16, 20));
    let left_out = job["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 4);
    for one in left_out {
        let name = one["workflow"].as_str().unwrap();
        assert_eq!((&one["field"], &one["bytes"]), (&json!("result"), &json!(MIB)));
        assert_eq!(results[name], Value::Null);
        let alone = rig.job(&format!("{id}?workflow={name}")).await;
        assert_eq!(alone["result"][name].as_str().unwrap().len(), MIB - 2, "it can be asked for by itself");
    }
    let unknown = rig.get(&format!("/v1/jobs/{id}?workflow=none")).await;
    assert_eq!(unknown.problem(), (404, "unknown_workflow"));
}

#[tokio::test]
async fn a_list_tells_a_large_result_from_none() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"workflows": [{"name": "a", "kind": "k"}, {"name": "b", "kind": "k"}]})).await;
    for result in [format!("\"{}\"", "y".repeat(5_000)), "null".into()] {
        let taken = rig.take("k").await;
        rig.succeed(&taken, result.as_bytes()).await;
    }
    let list = rig.get("/v1/jobs").await.body;
    assert_eq!(list["jobs"][0]["id"], json!(id));
    assert_eq!(list["jobs"][0]["result"], json!({"a": null, "b": null}));
    let left_out = json!([{"workflow": "a", "field": "result", "bytes": 5_002, "why": "size"}]);
    assert_eq!(list["jobs"][0]["left_out"], left_out);
    assert_eq!(rig.job(&id).await.get("left_out"), None, "it is in the answer about the job alone");
}

#[tokio::test]
async fn a_job_of_one_workflow_is_shown_whole() {
    let rig = Rig::new().await;
    let payload: Value = serde_json::from_str(&large(1)).unwrap();
    let id = rig.submit(json!({"kind": "k", "payload": payload})).await;
    let taken = rig.take("k").await;
    rig.succeed(&taken, large(2).as_bytes()).await;
    let job = rig.job(&id).await;
    assert_eq!(job["workflows"][0]["payload"], payload);
    assert_eq!(job["result"].to_string(), large(2));
    assert_eq!(job.get("left_out"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_are_bounded_and_the_rest_is_asked_to_come_again() {
    let rig = Rig::new().await;
    let id = with_results(&rig, 14).await;
    let path = format!("/v1/jobs/{id}");
    let mut unread = Vec::new();
    let refused = loop {
        assert!(unread.len() < 50, "{} answers of 14 MiB are under way", unread.len());
        let response = rig.send(get(&path)).await;
        match response.status().as_u16() {
            200 => unread.push(response),
            _ => break read(response).await,
        }
    };
    assert_eq!(refused.problem(), (503, "overloaded"));
    assert_eq!(refused.headers["retry-after"], "1");
    assert!(unread.len() > 4, "several can be under way: {}", unread.len());
    let small = rig.submit(json!({"kind": "other"})).await;
    assert_eq!(rig.job(&small).await["state"], "ready", "small answers are given all the same");
    // What was read, or given up, makes room.
    assert_eq!(read(unread.pop().unwrap()).await.status, 200);
    drop(unread);
    assert_eq!(rig.get(&path).await.status, 200);
}
