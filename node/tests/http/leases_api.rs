//! Leases over HTTP, as a worker in any language sees them.

use crate::rig::{self, Request, lease, poll_body, post, receipt, start, submit, submit_kind, until, verb};
use onward_core::ids::{JobId, Name};
use onward_core::input::Call;
use onward_core::job::Draft;
use onward_core::job::draft::{JobDefaults, WorkflowDraft};
use onward_core::settings::Settings;
use onward_node::server::{Node, NodeConfig};
use serde_json::{Value, json};
use tempfile::tempdir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const VERBS: [(&str, &str); 5] = [
    ("beat", "{}"),
    ("succeed", "{}"),
    ("fail", r#"{"error":"x"}"#),
    ("release", "{}"),
    ("request-extension", r#"{"reason":"long_workflow","progress":0.5}"#),
];

/// The state as a client is told: once a job has ended, it can be in the archive at any moment.
async fn state_of(node: &Node, job: JobId) -> Value {
    let reply = Request::get(&format!("/v1/jobs/{job}")).send(node.address()).await;
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    reply.json()["state"].clone()
}

#[tokio::test]
async fn a_poll_is_for_the_default_queue_of_the_node_and_for_so_many_kinds() {
    let data = tempdir().unwrap();
    let job = JobDefaults { queue: Name::new("night").unwrap(), ..JobDefaults::default() };
    let mut settings = Settings { job, ..rig::settings() };
    settings.limits.subscription_pairs = 3;
    let rules = settings.check().unwrap();
    let node = Node::start(NodeConfig { rules, ..rig::config(data.path()) }).await.unwrap();
    submit_kind(node.engine(), "k").await;
    assert_eq!(lease(&node, poll_body("1")).await.len(), 1, "neither the job nor the poll names a queue");

    let many =
        |queues: Value, kinds: Value| json!({ "worker_id": "w", "incarnation": "1", "queues": queues, "kinds": kinds });
    for (body, field) in [
        (many(json!(["a"]), json!(["k", "l", "m", "n"])), "kinds"),
        (many(json!(["a", "b", "c", "d"]), json!(["k"])), "queues"),
        (many(json!(["a", "b"]), json!(["k", "l"])), "kinds"),
    ] {
        let reply = post(&node, "/v1/leases", body).await;
        assert_eq!((reply.code(), &reply.json()["field"]), ((400, "invalid".into()), &json!(field)));
    }
    assert_eq!(post(&node, "/v1/leases", many(json!(["a"]), json!(["k", "l", "m"]))).await.status, 200);
}

#[tokio::test]
async fn a_job_is_leased_beaten_for_and_done() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let mut draft = Draft::of_kind("k", b"{\"n\": 123456789012345678901234567890}".as_slice());
    draft.headers = vec![("traceparent".into(), "00-1".into())];
    let job = submit(node.engine(), draft).await;

    let reply = post(&node, "/v1/leases", poll_body("1")).await;
    assert!(String::from_utf8_lossy(&reply.body).contains(r#""payload":{"n": 123456789012345678901234567890}"#));
    let lease = reply.json()["leases"][0].clone();
    assert_eq!(lease["job_id"], job.to_string());
    assert_eq!((&lease["workflow"], &lease["attempt"], &lease["kind"]), (&json!("k"), &json!(1), &json!("k")));
    assert_eq!((&lease["inputs"], &lease["checkpoint"]), (&json!({}), &Value::Null));
    assert_eq!(lease["headers"], json!({ "traceparent": "00-1" }));
    assert!(lease["fence"].as_u64().unwrap() > 0);
    assert!(lease["deadline_remaining_ms"].as_u64().unwrap() > 86_000_000);
    assert!((3_000_000..=3_600_000).contains(&lease["lease_remaining_ms"].as_u64().unwrap()));

    let beat = json!({ "watermark": 1, "total": 2, "note": "half", "quiet_s": 1.5, "checkpoint": { "at": [1, 2] } });
    let reply = post(&node, &verb(&lease, "beat"), beat).await;
    assert_eq!(reply.status, 200);
    assert_eq!((&reply.json()["cancel"], &reply.json()["quiet_allowed_ms"]), (&json!(false), &json!(1_500)));
    assert!(reply.json()["lease_remaining_ms"].as_u64().unwrap() >= 3_000_000);

    let reply = post(&node, &verb(&lease, "succeed"), json!({ "result": { "ok": true } })).await;
    assert_eq!((reply.status, reply.json()), (200, json!({})));
    assert_eq!(state_of(&node, job).await, "succeeded");

    // The same outcome again is the same answer; another one is not.
    let again = post(&node, &verb(&lease, "succeed"), json!({ "result": { "ok": true } })).await;
    assert_eq!(again.status, 200);
    let other = post(&node, &verb(&lease, "succeed"), json!({ "result": { "ok": false } })).await;
    assert_eq!(other.code(), (409, "already_ended".into()));
    let other = post(&node, &verb(&lease, "fail"), json!({ "error": "no" })).await;
    assert_eq!(other.code(), (409, "already_ended".into()));
}

#[tokio::test]
async fn a_checkpoint_and_results_reach_those_who_follow() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let workflow = |name: &str, after: &[&str]| WorkflowDraft {
        name: Some(name.into()),
        kind: "k".into(),
        after: after.iter().map(|name| (*name).into()).collect(),
        ..WorkflowDraft::default()
    };
    let workflows = vec![workflow("a", &[]), workflow("b", &[]), workflow("c", &["a", "b"])];
    submit(node.engine(), Draft { workflows, ..Draft::default() }).await;

    let first = lease(&node, poll_body("1")).await;
    assert_eq!(first.len(), 2);
    let by_name = |leases: &[Value], name: &str| leases.iter().find(|lease| lease["workflow"] == name).unwrap().clone();
    let (a, b) = (by_name(&first, "a"), by_name(&first, "b"));
    assert_eq!(a["payload"], Value::Null);
    assert_eq!(post(&node, &verb(&a, "beat"), json!({ "checkpoint": { "row": 7 } })).await.status, 200);
    assert_eq!(post(&node, &verb(&a, "release"), json!({})).await.status, 200);
    let a = lease(&node, poll_body("1")).await.pop().unwrap();
    assert_eq!((&a["checkpoint"], &a["attempt"]), (&json!({ "row": 7 }), &json!(1)));

    let settle = json!({ "settlements": [
        { "receipt": receipt(&a), "succeed": { "result": [1] } },
        { "receipt": receipt(&b), "succeed": { "result_base64": "/w==" } },
        { "receipt": "forged", "release": {} },
        { "receipt": receipt(&b), "fail": { "error": "too late" } },
        { "receipt": receipt(&b) },
    ] });
    let reply = post(&node, "/v1/leases/settle", settle).await.json();
    let codes: Vec<&Value> =
        reply["settlements"].as_array().unwrap().iter().map(|item| &item["error"]["code"]).collect();
    assert_eq!(
        codes,
        [&Value::Null, &Value::Null, &json!("unknown_attempt"), &json!("already_ended"), &json!("invalid")]
    );

    let c = lease(&node, poll_body("1")).await.pop().unwrap();
    assert_eq!((&c["inputs"], &c["inputs_base64"]), (&json!({ "a": [1] }), &json!({ "b": "/w==" })));
}

#[tokio::test]
async fn bytes_that_are_no_json_travel_as_base64() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let workflow = WorkflowDraft {
        kind: "k".into(),
        payload: b"1".as_slice().into(),
        content_type: Some("text/plain".into()),
        ..WorkflowDraft::default()
    };
    submit(node.engine(), Draft { workflows: vec![workflow], ..Draft::default() }).await;
    let lease = lease(&node, poll_body("1")).await.pop().unwrap();
    assert_eq!((&lease["payload_base64"], &lease["content_type"]), (&json!("MQ=="), &json!("text/plain")));
    assert_eq!(lease.get("payload"), None);
}

#[tokio::test]
async fn an_old_receipt_is_stale_for_every_verb_and_a_forged_one_unknown() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    submit_kind(node.engine(), "k").await;
    let old = lease(&node, poll_body("1")).await.pop().unwrap();
    // A new incarnation of the worker: what the old one held is handed out again.
    let new = lease(&node, poll_body("2")).await.pop().unwrap();
    assert!(new["fence"].as_u64() > old["fence"].as_u64());

    for (word, body) in VERBS {
        let body: Value = serde_json::from_str(body).unwrap();
        let reply = post(&node, &verb(&old, word), body.clone()).await;
        assert_eq!(reply.code(), (409, "stale_attempt".into()), "{word}");
        let good = receipt(&new);
        let last = if good.ends_with('A') { 'Q' } else { 'A' };
        let altered = format!("{}{last}", &good[..good.len() - 1]);
        for forged in [altered.as_str(), &good[..good.len() - 4], "x", "%00", &"A".repeat(58), &"A".repeat(4_000)] {
            let reply = post(&node, &format!("/v1/leases/{forged}/{word}"), body.clone()).await;
            assert_eq!(reply.code(), (404, "unknown_attempt".into()), "{word} {forged}");
        }
    }
    let beats = json!({ "beats": [
        { "receipt": receipt(&old) },
        { "receipt": receipt(&new), "watermark": 3 },
        { "receipt": "forged" },
        { "receipt": receipt(&new), "quiet_s": -1 },
    ] });
    let reply = post(&node, "/v1/leases/beat", beats).await.json();
    let beats = reply["beats"].as_array().unwrap();
    assert_eq!(beats[0]["error"]["code"], "stale_attempt");
    assert_eq!((&beats[1]["receipt"], &beats[1]["cancel"]), (&new["receipt"], &json!(false)));
    assert!(beats[1]["lease_remaining_ms"].as_u64().unwrap() > 3_000_000);
    assert_eq!(beats[2]["error"]["code"], "unknown_attempt");
    assert_eq!((&beats[3]["error"]["code"], &beats[3]["error"]["field"]), (&json!("invalid"), &json!("quiet_s")));
    // None of that has hurt the one that holds.
    assert_eq!(post(&node, &verb(&new, "succeed"), json!({})).await.status, 200);
}

#[tokio::test]
async fn more_time_is_granted_or_denied_with_a_reason() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    submit_kind(node.engine(), "k").await;
    let lease = lease(&node, poll_body("1")).await.pop().unwrap();
    let ask = async |reason: &str, progress: f64| {
        let body = json!({ "reason": reason, "progress": progress, "estimated_remaining_s": 5.5 });
        let reply = post(&node, &verb(&lease, "request-extension"), body).await;
        assert_eq!(reply.status, 200);
        reply.json()
    };
    let granted = ask("long_workflow", 0.1).await;
    assert_eq!((&granted["granted"], &granted["extension_ms"]), (&json!(true), &json!(30_000)));
    assert_eq!((&granted["remaining_extensions"], &granted["denial"]), (&json!(4), &Value::Null));
    assert!(granted["remaining_ms"].as_u64().unwrap() > 0);
    for (reason, progress, code) in [
        ("long_workflow", 0.1, "no_progress"),
        ("lunch", 0.2, "unknown_reason"),
        ("gc_pause", 2.0, "progress_out_of_range"),
    ] {
        let denied = ask(reason, progress).await;
        assert_eq!((&denied["granted"], &denied["extension_ms"]), (&json!(false), &json!(0)));
        assert_eq!(denied["denial"]["code"], code);
    }
}

#[tokio::test]
async fn what_a_poll_may_not_ask_is_named() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let bad = [
        ("worker_id", json!("")),
        ("incarnation", json!("a\nb")),
        ("queues", json!([])),
        ("kinds", json!([])),
        ("kinds", json!([""])),
        ("max", json!(0)),
        ("max", json!(1_001)),
        ("wait_s", json!(-1)),
        ("wait_s", json!(60.5)),
        ("wait_s", json!(1e300)),
        ("lease_s", json!(0.5)),
        ("lease_s", json!(43_201)),
        ("poll_id", json!("")),
    ];
    for (field, value) in bad {
        let mut body = poll_body("1");
        body[field] = value.clone();
        let reply = post(&node, "/v1/leases", body).await;
        assert_eq!((reply.code(), &reply.json()["field"]), ((400, "invalid".into()), &json!(field)), "{field} {value}");
    }
    let mut unknown = poll_body("1");
    unknown["colour"] = json!("red");
    let reply = post(&node, "/v1/leases", unknown).await;
    assert_eq!(reply.code(), (400, "invalid".into()));
    assert!(reply.json()["detail"].as_str().unwrap().contains("colour"));
    assert_eq!(
        lease(&node, json!({ "worker_id": "w", "incarnation": "1", "kinds": ["k"] })).await,
        Vec::<Value>::new()
    );
}

#[tokio::test]
async fn a_lost_answer_with_a_poll_id_is_given_again() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    submit_kind(node.engine(), "k").await;
    let mut body = poll_body("1");
    body["poll_id"] = json!("p1");
    let first = lease(&node, body.clone()).await;
    let again = lease(&node, body).await;
    assert_eq!(receipt(&first[0]), receipt(&again[0]));
    assert_eq!(again[0]["attempt"], 1);
}

/// Whether somebody waits for work.
async fn polls_are_open(node: &Node) -> bool {
    node.engine().read(|view| view.manager.workers().any(|worker| worker.free > 0)).await.unwrap()
}

#[tokio::test]
async fn a_poll_whose_connection_closes_takes_nothing_with_it() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    let request = Request::post("/v1/leases", &poll_body("1")).text(node.address());
    stream.write_all(request.as_bytes()).await.unwrap();
    until(async || polls_are_open(&node).await).await;
    drop(stream);
    until(async || !polls_are_open(&node).await).await;
    submit_kind(node.engine(), "k").await;
    let mut body = poll_body("1");
    body["worker_id"] = json!("other");
    let lease = lease(&node, body).await.pop().unwrap();
    assert_eq!(lease["attempt"], 1);
}

#[tokio::test]
async fn an_answer_that_was_not_taken_gives_its_leases_back_uncounted() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    // More than the sockets between us hold, so that the end of the answer is never taken.
    let payload = format!("\"{}\"", "x".repeat(1_000_000));
    for _ in 0..40 {
        submit(node.engine(), Draft::of_kind("k", payload.as_bytes())).await;
    }
    let mut body = poll_body("1");
    body["max"] = json!(40);
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    stream.write_all(Request::post("/v1/leases", &body).text(node.address()).as_bytes()).await.unwrap();
    let held = async || {
        node.engine().read(|view| view.manager.workers().map(|worker| worker.held).sum::<u32>()).await.unwrap()
    };
    until(async || held().await == 40).await;
    drop(stream);
    until(async || held().await == 0).await;
    body["worker_id"] = json!("other");
    let leases = lease(&node, body).await;
    assert_eq!(leases.len(), 40);
    assert!(leases.iter().all(|lease| lease["attempt"] == 1));
}

#[tokio::test]
async fn a_worker_that_says_goodbye_is_away_and_keeps_what_it_holds() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    submit_kind(node.engine(), "k").await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    let worker = async || Request::get("/v1/nodes/w").send(node.address()).await.json();
    let shown = |node: &Value| ["verdict", "action", "reason"].map(|field| node[field].as_str().unwrap().to_owned());
    let leave =
        async |incarnation: &str| post(&node, "/v1/workers/w/goodbye", json!({ "incarnation": incarnation })).await;
    let workers = async || {
        let all = Request::get("/v1/datacenters").send(node.address()).await.json();
        all["datacenters"][0]["workers"].clone()
    };

    let other = leave("never seen").await;
    assert_eq!(other.code(), (409, "stale_incarnation".into()));
    assert_eq!(other.json()["detail"], "another incarnation of this worker has its place; stop");
    let left = leave("1").await;
    assert_eq!((left.status, left.json()), (200, json!({ "held": 1 })));
    assert_eq!((&worker().await["verdict"], workers().await), (&json!("busy"), json!(1)));
    assert_eq!(post(&node, &verb(&held, "beat"), json!({})).await.status, 200, "nothing was taken from it");
    assert_eq!(post(&node, &verb(&held, "succeed"), json!({})).await.status, 200);
    assert_eq!(shown(&worker().await), ["away", "none", "goodbye"]);
    assert_eq!(workers().await, 0, "it counts nowhere");
    assert_eq!(leave("1").await.json(), json!({ "held": 0 }), "safe to repeat");

    // Whoever waits for work while it is said gets none.
    let mut body = poll_body("1");
    body["wait_s"] = json!(60);
    let waiting = post(&node, "/v1/leases", body);
    let leaving = async {
        until(async || polls_are_open(&node).await).await;
        leave("1").await
    };
    let (answer, left) = tokio::join!(waiting, leaving);
    assert_eq!((answer.json(), left.status), (json!({ "leases": [] }), 200));
    assert_eq!(shown(&worker().await), ["away", "none", "goodbye"]);
    for (body, code) in [(json!({}), 400), (json!({ "incarnation": "" }), 400), (json!({ "incarnation": 1 }), 400)] {
        assert_eq!(post(&node, "/v1/workers/w/goodbye", body).await.status, code);
    }
}

#[tokio::test]
async fn receipts_outlive_the_node() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let job = submit_kind(node.engine(), "k").await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    node.shutdown(rig::PATIENCE).await;

    let node = start(data.path()).await;
    assert_eq!(post(&node, &verb(&held, "beat"), json!({})).await.status, 200);
    assert_eq!(post(&node, &verb(&held, "succeed"), json!({})).await.status, 200);
    assert_eq!(state_of(&node, job).await, "succeeded");
}

#[tokio::test]
async fn a_cancelled_job_says_so_with_the_next_beat() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let job = submit_kind(node.engine(), "k").await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    node.engine().call(Call::Cancel { job, epoch: None }).await.unwrap();
    assert_eq!(post(&node, &verb(&held, "beat"), json!({})).await.json()["cancel"], true);
}

#[tokio::test]
async fn what_is_too_large_is_refused_by_name() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    submit_kind(node.engine(), "k").await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    let long = |bytes: usize| "x".repeat(bytes);
    for (word, body, field) in [
        ("beat", json!({ "note": long(257) }), "note"),
        ("beat", json!({ "checkpoint": long(64 << 10) }), "checkpoint"),
        ("succeed", json!({ "result": long(1 << 20) }), "result"),
        ("fail", json!({ "error": long(4_097) }), "error"),
    ] {
        let reply = post(&node, &verb(&held, word), body).await;
        assert_eq!((reply.code(), &reply.json()["field"]), ((413, "too_large".into()), &json!(field)));
    }
    for (word, body) in [("fail", json!({ "error": "x", "delay_s": -1 })), ("release", json!({ "delay_s": 1e12 }))] {
        let reply = post(&node, &verb(&held, word), body).await;
        assert_eq!((reply.code(), &reply.json()["field"]), ((400, "invalid".into()), &json!("delay_s")));
    }
}

#[tokio::test]
async fn a_failure_and_a_release_leave_a_checkpoint_for_the_next_attempt() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    submit_kind(node.engine(), "k").await;
    let words = [
        ("fail", json!({ "error": "no", "delay_s": 0, "checkpoint": { "page": 1 } }), json!({ "page": 1 })),
        ("release", json!({ "checkpoint": [2] }), json!([2])),
    ];
    for (word, body, left) in words {
        let held = lease(&node, poll_body("1")).await.remove(0);
        assert_eq!(post(&node, &verb(&held, word), body).await.status, 200);
        let held = lease(&node, poll_body("1")).await.remove(0);
        assert_eq!(held["checkpoint"], left, "{word}");
        let settle = json!({ "settlements": [{ "receipt": receipt(&held), "release": { "checkpoint": "many" } }] });
        assert_eq!(post(&node, "/v1/leases/settle", settle).await.status, 200);
        let held = lease(&node, poll_body("1")).await.remove(0);
        assert_eq!(held["checkpoint"], json!("many"));
        assert_eq!(post(&node, &verb(&held, "release"), json!({})).await.status, 200);
    }
}

#[tokio::test]
async fn while_a_job_is_cancelled_a_failure_makes_it_cancelled_and_a_success_succeed() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    for (word, body, state) in
        [("fail", json!({ "error": "stopped" }), "cancelled"), ("succeed", json!({ "result": 1 }), "succeeded")]
    {
        let job = submit_kind(node.engine(), "k").await;
        let held = lease(&node, poll_body("1")).await.remove(0);
        assert_eq!(post(&node, &format!("/v1/jobs/{job}/cancel"), json!({})).await.status, 200);
        assert_eq!(post(&node, &verb(&held, word), body).await.status, 200);
        assert_eq!(state_of(&node, job).await, json!(state));
    }
}
