//! What passes through a follower is what the leader says.

use std::time::{Duration, Instant};

use onward_core::settings::Settings;
use onward_node::auth::{Scope, TOKENS_FILE, TokenFile};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::pair::{Pair, SOON, essence, header, lead, send};
use crate::rig::{PATIENCE, Request, lease, poll_body, submit_kind, until, verb};

/// The same of both, and given back.
async fn same(pair: &Pair, request: &Request) -> crate::rig::Reply {
    let direct = send(&pair.leader, request).await;
    let passed = send(&pair.follower, request).await;
    assert_eq!(essence(&direct), essence(&passed), "{}", request.line);
    passed
}

#[tokio::test]
async fn every_answer_is_the_leaders_to_the_byte() {
    let pair = Pair::start().await;
    let body = json!({ "kind": "k", "payload": "x".repeat((1 << 20) - 2), "idempotency_key": "large" });
    let made = send(&pair.follower, &Request::post("/v1/jobs", &body)).await;
    assert_eq!(made.status, 201);
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(pair.follower.engine().read(|view| view.manager.view().jobs).await, Ok(0), "it is the leader's");

    let again = same(&pair, &Request::post("/v1/jobs", &body)).await;
    assert_eq!((again.status, again.json()["id"].as_str()), (200, Some(id.as_str())));
    let read = same(&pair, &Request::get(&format!("/v1/jobs/{id}"))).await;
    let name = read.json()["workflows"][0]["name"].as_str().unwrap().to_owned();
    let read = same(&pair, &Request::get(&format!("/v1/jobs/{id}?workflow={name}"))).await;
    assert!(read.body.len() >= 1 << 20, "{}", read.body.len());
    assert_eq!(header(&read, "onward-leader"), Some(&*format!("{}; term=1", pair.leader.address())));
    for path in ["/v1/jobs", "/v1/jobs?limit=1&state=ready", "/v1/queues", "/v1/dead-letters", "/v1/schedules"] {
        assert_eq!(same(&pair, &Request::get(path)).await.status, 200, "{path}");
    }
    assert_eq!(same(&pair, &Request::get(&format!("/v1/jobs/{id}/ledger"))).await.status, 200);

    let other = json!({ "kind": "other", "idempotency_key": "large" });
    assert_eq!(same(&pair, &Request::post("/v1/jobs", &other)).await.code(), (409, "conflict".into()));
    assert_eq!(same(&pair, &Request::post("/v1/jobs", &json!({ "kin": 1 }))).await.status, 400);
    assert_eq!(same(&pair, &Request::get("/v1/jobs/00000000000000000000000000000000")).await.status, 404);
    assert_eq!(same(&pair, &Request::get("/v1/nothing")).await.status, 404);
    let plain = Request::post("/v1/jobs", &body).header("content-type", "text/plain");
    assert_eq!(same(&pair, &plain).await.status, 415);
    let mut removed = Request::get("/v1/schedules/none").header("content-type", "application/json");
    removed.line = "DELETE /v1/schedules/none HTTP/1.1".into();
    assert_eq!(same(&pair, &removed).await.status, 404);
}

/// The leader knows whose token it was, and ends it for whoever passes it on.
#[tokio::test]
async fn events_that_pass_through_a_follower_end_with_their_token() {
    let pair = Pair::start().await;
    let job = submit_kind(pair.leader.engine(), "k").await;
    let [of_leader, of_follower] = pair.folders();
    let token = TokenFile::add(of_leader, "read", [Scope::Read]).unwrap().text;
    std::fs::copy(of_leader.join(TOKENS_FILE), of_follower.join(TOKENS_FILE)).unwrap();
    let request = Request::get(&format!("/v1/jobs/{job}/events")).header("authorization", &format!("Bearer {token}"));
    let address = pair.follower.address();
    let mut bytes = Vec::new();
    let told = async {
        loop {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.text(address).as_bytes()).await.unwrap();
            // A token that has just been made may not be known yet.
            bytes.clear();
            while !String::from_utf8_lossy(&bytes).contains("HTTP/1.1 4") {
                if String::from_utf8_lossy(&bytes).contains("event: job") {
                    return stream;
                }
                assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{:?}", String::from_utf8_lossy(&bytes));
            }
        }
    };
    let mut stream = timeout(PATIENCE, told).await.expect("it is told");
    TokenFile::revoke(of_leader, "read").unwrap();
    let ended = async {
        while !String::from_utf8_lossy(&bytes).contains("\r\n0\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{:?}", String::from_utf8_lossy(&bytes));
        }
    };
    timeout(PATIENCE, ended).await.expect("it ends");
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("event: error") && text.contains("\"code\":\"unauthorized\""), "{text}");
}

#[tokio::test]
async fn a_worker_without_a_session_works_through_a_follower() {
    let pair = Pair::start().await;
    let job = submit_kind(pair.leader.engine(), "k").await;
    let mut poll = poll_body("1");
    poll["poll_id"] = json!("p1");
    let leases = lease(&pair.follower, poll.clone()).await;
    assert_eq!(leases.len(), 1);
    assert_eq!(lease(&pair.leader, poll).await[0]["receipt"], leases[0]["receipt"], "the same poll, the same lease");
    let beat = Request::post(&verb(&leases[0], "beat"), &json!({ "watermark": 3 }));
    assert_eq!(send(&pair.follower, &beat).await.json()["cancel"], json!(false));

    // Followed to its end, each event as it comes.
    let mut feed = TcpStream::connect(pair.follower.address()).await.unwrap();
    let events = Request::get(&format!("/v1/jobs/{job}/events"));
    feed.write_all(events.text(pair.follower.address()).as_bytes()).await.unwrap();
    let mut text = read_until(&mut feed, "\"done\":3").await;
    assert!(text.contains("text/event-stream"), "{text}");
    let done = Request::post(&verb(&leases[0], "succeed"), &json!({ "result": "fine" }));
    assert_eq!(send(&pair.follower, &done).await.status, 200);
    text += &read_until(&mut feed, "event: end").await;
    assert!(text.contains("\"succeeded\""), "{text}");
    let path = format!("/v1/jobs/{job}?wait_s=30");
    assert_eq!(same(&pair, &Request::get(&path)).await.json()["result"], json!("fine"));
}

async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&bytes).contains(wanted) {
            assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{}", String::from_utf8_lossy(&bytes));
        }
    };
    timeout(PATIENCE, reading).await.expect("it comes");
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_poll_that_is_closed_at_the_follower_is_closed_at_the_leader() {
    // Whoever has no poll open is away after this.
    let second = Duration::from_secs(1);
    let short = |settings: &mut Settings| {
        (settings.liveness.answer_within, settings.liveness.probe_every) = (second, second / 2);
    };
    let pair = Pair::start_with(short).await;
    let mut client = TcpStream::connect(pair.follower.address()).await.unwrap();
    let poll = Request::post("/v1/leases", &poll_body("1"));
    client.write_all(poll.text(pair.follower.address()).as_bytes()).await.unwrap();
    let is_away = async || {
        let nodes = send(&pair.leader, &Request::get("/v1/nodes")).await.json();
        let worker = nodes["nodes"].as_array().unwrap().iter().find(|node| node["id"] == "w").cloned();
        worker.map(|worker| worker["verdict"] == "away")
    };
    until(async || is_away().await == Some(false)).await;
    tokio::time::sleep(2 * second).await;
    assert_eq!(is_away().await, Some(false), "its poll is open");
    drop(client);
    let began = Instant::now();
    until(async || is_away().await == Some(true)).await;
    assert!(began.elapsed() < 10 * second, "long before the end of the poll: {:?}", began.elapsed());
}

#[tokio::test]
async fn what_is_each_nodes_own_is_not_passed_on() {
    let pair = Pair::start().await;
    let (leader, follower) = (pair.leader.address().to_string(), pair.follower.address().to_string());
    let status = |reply: crate::rig::Reply| -> Value { reply.json() };
    let of_follower = status(send(&pair.follower, &Request::get("/status")).await);
    assert_eq!((&of_follower["node"], &of_follower["role"]), (&json!("b"), &json!("follower")));
    assert_eq!(of_follower["leader"], json!({ "name": "leader", "address": leader }));
    assert_eq!((&of_follower["term"], &of_follower["listen"]), (&json!(7), &json!(follower)));
    let of_leader = status(send(&pair.leader, &Request::get("/status")).await);
    assert_eq!((&of_leader["role"], &of_leader["term"]), (&json!("leader"), &json!(1)));
    assert_eq!(of_leader["leader"], json!({ "name": "a", "address": leader }));

    let ready = send(&pair.follower, &Request::get("/readyz")).await;
    assert_eq!(ready.status, 200);
    assert!(ready.json()["reason"].as_str().unwrap().contains(&leader), "it says whom it follows");
    crate::pair::follow(&pair.follower, crate::pair::free_port().await);
    assert_eq!(send(&pair.follower, &Request::get("/readyz")).await.status, 503, "nobody is there");
    crate::pair::follow_nobody(&pair.follower);
    assert_eq!(send(&pair.follower, &Request::get("/readyz")).await.status, 503);
    assert_eq!(send(&pair.follower, &Request::get("/livez")).await.status, 200);
    lead(&pair.follower);
    assert_eq!(send(&pair.follower, &Request::get("/readyz")).await.status, 200);
}

#[tokio::test]
async fn who_may_not_call_is_refused_where_they_call() {
    let pair = Pair::start().await;
    let foreign = Request::get("/v1/jobs").host("evil.example:80");
    assert_eq!(send(&pair.follower, &foreign).await.code(), (403, "foreign_host".into()));
    let page = Request::get("/v1/jobs").header("origin", "http://evil.example");
    assert_eq!(send(&pair.follower, &page).await.code(), (403, "foreign_origin".into()));
    let own_page = Request::get("/v1/jobs").header("origin", &format!("http://{}", pair.follower.address()));
    assert_eq!(send(&pair.follower, &own_page).await.status, 200, "its own page may");
    let token = Request::get("/v1/jobs").header("authorization", "Bearer nonsense");
    assert_eq!(send(&pair.follower, &token).await.code(), (401, "unauthorized".into()));
}

#[tokio::test]
async fn a_follower_that_drains_answers_whoever_waits() {
    let pair = Pair::start().await;
    let job = submit_kind(pair.leader.engine(), "unserved").await;
    let address = pair.follower.address();
    let poll = tokio::spawn(async move { Request::post("/v1/leases", &poll_body("1")).send(address).await });
    let path = format!("/v1/jobs/{job}?wait_s=60");
    let wait = tokio::spawn(async move { Request::get(&path).send(address).await });
    until(async || pair.follower.engine().read(|_| ()).await.is_ok()).await;
    let nodes = async || send(&pair.leader, &Request::get("/v1/nodes")).await.json()["nodes"].to_string();
    until(async || nodes().await.contains("\"w\"")).await;
    let began = Instant::now();
    pair.follower.shutdown(PATIENCE).await;
    assert_eq!(poll.await.unwrap().json(), json!({ "leases": [] }));
    assert_eq!(wait.await.unwrap().json()["state"], json!("ready"));
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}
