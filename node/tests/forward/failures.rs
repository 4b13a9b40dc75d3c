//! Leaders that are not there, die or freeze: what is made again, and what is said of the rest.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::pair::{Dying, FrozenNode, Pair, SOON, cut_off, follow, follow_nobody, free_port, header, send};
use crate::rig::{Reply, Request};

fn submission() -> Request {
    Request::post("/v1/jobs", &json!({ "kind": "k" }))
}

fn keyed() -> Request {
    submission().header("idempotency-key", "one")
}

fn done(reply: &Reply) -> Option<&str> {
    assert_eq!((reply.status, header(reply, "onward-code")), (503, Some("no_leader")), "{}", reply.head);
    header(reply, "onward-done")
}

async fn jobs(pair: &Pair) -> usize {
    pair.leader.engine().read(|view| view.manager.view().jobs).await.unwrap()
}

#[tokio::test]
async fn a_call_is_forwarded_once() {
    let pair = Pair::start().await;
    // Each takes the other for the leader.
    follow(&pair.leader, pair.follower.address());
    let began = Instant::now();
    let marked = send(&pair.follower, &submission().header("onward-forwarded", "somebody")).await;
    assert_eq!(done(&marked), Some("no"));
    assert!(began.elapsed() < SOON, "nobody waits for a leader on behalf of another node");
    let refused = send(&pair.follower, &submission()).await;
    assert_eq!(done(&refused), Some("no"));
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert_eq!(jobs(&pair).await, 0);
}

#[tokio::test]
async fn without_a_leader_calls_wait_for_one() {
    let pair = Pair::start().await;
    follow_nobody(&pair.follower);
    let address = pair.follower.address();
    let waiting = tokio::spawn(async move { submission().send(address).await });
    tokio::task::yield_now().await;
    let began = Instant::now();
    let refused = submission().send(pair.follower.address()).await;
    assert_eq!(done(&refused), Some("no"), "and not for ever");
    let took = began.elapsed();
    assert!((Duration::from_secs(4)..Duration::from_secs(8)).contains(&took), "{took:?}");
    assert_eq!(done(&waiting.await.unwrap()), Some("no"));

    let waiting = tokio::spawn(async move { submission().send(address).await });
    let nowhere = free_port().await;
    follow(&pair.follower, nowhere);
    tokio::time::sleep(Duration::from_millis(200)).await;
    follow(&pair.follower, pair.leader.address());
    assert_eq!(waiting.await.unwrap().status, 201, "where nobody listens, nothing was done");
    assert_eq!(jobs(&pair).await, 1);
}

#[tokio::test]
async fn a_node_that_is_cut_off_from_its_storage_does_not_say_that_it_leads() {
    let pair = Pair::start().await;
    cut_off(&pair.leader);
    let read = send(&pair.leader, &Request::get("/v1/jobs")).await;
    assert_eq!((read.status, header(&read, "onward-leader")), (200, None), "its machine answers if it can");
    let status = send(&pair.leader, &Request::get("/status")).await.json();
    assert_eq!((&status["role"], &status["leader"]), (&json!("cut_off"), &json!(null)));
    let began = Instant::now();
    let marked = send(&pair.leader, &submission().header("onward-forwarded", "somebody")).await;
    assert_eq!((done(&marked), header(&marked, "onward-leader")), (Some("no"), None));
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_leader_that_dies_leaves_a_submission_in_doubt_and_a_read_is_made_again() {
    let pair = Pair::start().await;
    let dying = Dying::start().await;
    follow(&pair.follower, dying.address);
    let began = Instant::now();
    let refused = send(&pair.follower, &submission()).await;
    assert_eq!(done(&refused), Some("unknown"));
    assert!(refused.json()["detail"].as_str().unwrap().contains("not known"));
    assert!(began.elapsed() < SOON, "there is nothing to wait for: {:?}", began.elapsed());

    let address = pair.follower.address();
    let asked = [Request::get("/v1/jobs"), keyed(), Request::post("/v1/queues/q/pause", &json!({}))];
    let asked = asked.map(|request| tokio::spawn(async move { request.send(address).await }));
    tokio::time::sleep(Duration::from_millis(200)).await;
    follow(&pair.follower, pair.leader.address());
    for (answer, status) in asked.into_iter().zip([200, 201, 200]) {
        assert_eq!(answer.await.unwrap().status, status);
    }
    assert_eq!(jobs(&pair).await, 1);

    follow(&pair.follower, dying.address);
    assert_eq!(done(&send(&pair.follower, &keyed()).await), Some("unknown"), "it was sent, more than once");
}

#[tokio::test]
async fn a_frozen_leader_is_noticed() {
    let pair = Pair::start().await;
    let frozen = FrozenNode::start().await;
    follow(&pair.follower, frozen.address);
    let began = Instant::now();
    let refused = send(&pair.follower, &submission()).await;
    assert_eq!(done(&refused), Some("unknown"));
    let took = began.elapsed();
    assert!((Duration::from_millis(1_500)..SOON).contains(&took), "{took:?}");

    // What may be made again does not wait for that, once another node leads.
    let address = pair.follower.address();
    let reading = tokio::spawn(async move { Request::get("/v1/jobs").send(address).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    follow(&pair.follower, pair.leader.address());
    assert_eq!(reading.await.unwrap().status, 200);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}
