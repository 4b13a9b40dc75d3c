//! The node has done what was asked, and the answer never arrives: asking again is safe.

mod support;

use std::net::SocketAddr;

use serde_json::{Value, json};
use support::Node;
use support::http::{Client, Reply, read_reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Passes one request on, waits until the whole answer is there, and hangs up without a word of it.
async fn swallow(node: SocketAddr) -> (SocketAddr, JoinHandle<Reply>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let swallowing = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut node = TcpStream::connect(node).await.unwrap();
        let mut bytes = vec![0; 64 << 10];
        loop {
            tokio::select! {
                count = client.read(&mut bytes) => node.write_all(&bytes[..count.unwrap()]).await.unwrap(),
                ready = node.readable() => {
                    ready.unwrap();
                    return read_reply(&mut node).await.unwrap();
                }
            }
        }
    });
    (address, swallowing)
}

/// What the node answered, and nobody heard.
async fn lost(node: &Node, path: &str, body: &Value) -> Reply {
    let (address, swallowing) = swallow(node.address).await;
    let heard = Client::through(address, node.address).try_call("POST", path, &body.to_string()).await;
    assert!(heard.is_err(), "the answer arrived: {heard:?}");
    swallowing.await.unwrap()
}

#[tokio::test]
async fn a_submission_whose_answer_was_lost_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut client = Client::new(node.address);
    let body = json!({ "kind": "k", "payload": 1, "idempotency_key": "once" });
    let unheard = lost(&node, "/v1/jobs", &body).await;
    assert_eq!(unheard.status, 201, "{}", unheard.text());
    let again = client.post("/v1/jobs", &body).await;
    assert_eq!((again.status, &again.json()["id"]), (200, &unheard.json()["id"]));
    let jobs = client.get("/v1/jobs").await.json();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_poll_whose_answer_was_lost_is_repeated_and_strands_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut client = Client::new(node.address);
    for _ in 0..3 {
        assert_eq!(client.post("/v1/jobs", &json!({ "kind": "k" })).await.status, 201);
    }
    let poll = |id: &str| json!({ "worker_id": "w", "incarnation": "1", "kinds": ["k"], "max": 2, "wait_s": 1, "lease_s": 600, "poll_id": id });
    let unheard = lost(&node, "/v1/leases", &poll("a")).await;
    assert_eq!(unheard.json()["leases"].as_array().unwrap().len(), 2, "{}", unheard.text());
    let again = client.post("/v1/leases", &poll("a")).await;
    assert_eq!((again.status, proofs(&again)), (200, proofs(&unheard)));
    // The third is there for the next poll, and then there is nothing left.
    let next = client.post("/v1/leases", &poll("b")).await;
    assert_eq!(proofs(&next).len(), 1, "{}", next.text());
    for (receipt, _) in proofs(&again).iter().chain(&proofs(&next)) {
        assert_eq!(client.post(&format!("/v1/leases/{receipt}/succeed"), &json!({})).await.status, 200);
    }
    assert_eq!(client.get("/v1/stats").await.json()["open_jobs"], 0);
}

fn proofs(reply: &Reply) -> Vec<(String, u64)> {
    let body = reply.json();
    let leases = body["leases"].as_array().unwrap().iter();
    let mut proofs: Vec<_> =
        leases.map(|lease| (lease["receipt"].as_str().unwrap().to_owned(), lease["fence"].as_u64().unwrap())).collect();
    proofs.sort();
    proofs
}

#[tokio::test]
async fn an_outcome_whose_answer_was_lost_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut client = Client::new(node.address);
    for (verb, body, state) in [
        ("succeed", json!({ "result": { "n": 1 } }), "succeeded"),
        ("fail", json!({ "error": "no", "retryable": false }), "failed"),
    ] {
        let id = client.post("/v1/jobs", &json!({ "kind": "k" })).await.json()["id"].as_str().unwrap().to_owned();
        let poll = json!({ "worker_id": "w", "incarnation": "1", "kinds": ["k"], "wait_s": 10, "lease_s": 600 });
        let leases = proofs(&client.post("/v1/leases", &poll).await);
        let path = format!("/v1/leases/{}/{verb}", leases[0].0);
        let unheard = lost(&node, &path, &body).await;
        assert_eq!(unheard.status, 200, "{}", unheard.text());
        let again = client.post(&path, &body).await;
        assert_eq!(again.status, 200, "{}", again.text());
        let other = client.post(&format!("/v1/leases/{}/succeed", leases[0].0), &json!({ "result": 2 })).await;
        assert_eq!((other.status, other.code().as_str()), (409, "already_ended"));
        let shown = client.get(&format!("/v1/jobs/{id}")).await.json();
        assert_eq!(shown["state"], state);
        assert_eq!(shown["workflows"][0]["attempts"].as_array().unwrap().len(), 1);
    }
}
