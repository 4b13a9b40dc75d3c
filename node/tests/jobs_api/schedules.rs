use axum::http::Method;
use std::time::Duration;

use onward_core::ids::Seq;
use onward_core::time::{Wall, span_ms};
use onward_log::{BatchKey, EventLog, Log, MemoryLog};
use onward_node::api::access::{Access, Scope};
use serde_json::{Value, json};

use crate::rig::{JsonAnswer, Rig, read, request};

async fn put(rig: &Rig, name: &str, body: Value) -> JsonAnswer {
    read(rig.send(request(Method::PUT, &format!("/v1/schedules/{name}"), &body.to_string())).await).await
}

async fn remove(rig: &Rig, name: &str) -> JsonAnswer {
    read(rig.send(request(Method::DELETE, &format!("/v1/schedules/{name}"), "")).await).await
}

/// A schedule that is not due within the life of a test.
fn yearly(job: Value) -> Value {
    json!({ "cron": "0 6 1 1 *", "zone": "Europe/Berlin", "job": job })
}

#[tokio::test]
async fn a_schedule_is_set_shown_and_removed() {
    let rig = Rig::new().await;
    assert_eq!(rig.get("/v1/schedules").await.body, json!({"schedules": [], "next_cursor": null}));
    let job = json!({
        "workflows": [{"name": "a", "kind": "k", "payload": {"n": 1}}, {"name": "b", "kind": "k", "after": ["a"]}],
        "queue": "q", "priority": 3, "timeout_s": 60.0, "delay_s": 2.0, "tags": ["t"], "headers": {"x": "y"},
        "limits": [{"key": "l", "max": 2, "ordered": false}], "unique_key": "u", "retain_s": 5.0
    });
    let plan = json!({
        "cron": "0 6 1 1 *", "zone": "Europe/Berlin", "overlap": "queue", "missed": "all", "jitter_s": 1.5,
        "critical": true, "job": job
    });
    let made = put(&rig, "new%2Fyear", plan.clone()).await;
    assert_eq!(made.status, 201, "{}", made.body);
    for (field, value) in plan.as_object().unwrap().iter().filter(|(field, _)| *field != "job") {
        assert_eq!(&made.body[field], value, "{field}");
    }
    for (field, value) in job.as_object().unwrap().iter().filter(|(field, _)| *field != "workflows") {
        assert_eq!(&made.body["job"][field], value, "{field}");
    }
    assert_eq!(
        (&made.body["name"], &made.body["last"], &made.body["paused"]),
        (&json!("new/year"), &Value::Null, &json!(false))
    );
    let next = made.body["next_at"].as_str().unwrap();
    assert!(next.ends_with("-01-01T05:00:00.000Z"), "{next}: six in Berlin");
    assert_eq!(rig.get("/v1/schedules/new%2Fyear").await.body, made.body);

    // As it is shown it can be set again, and that changes nothing.
    let newest = rig.newest().await;
    let mut again = plan;
    again["job"] = made.body["job"].clone();
    assert_eq!(put(&rig, "new%2Fyear", again).await.status, 200);
    assert_eq!(rig.newest().await, newest);

    let paused = rig.post("/v1/schedules/new%2Fyear/pause", json!({})).await;
    assert_eq!((&paused.body["paused"], &paused.body["next_at"]), (&json!(true), &Value::Null));
    assert_eq!(rig.post("/v1/schedules/new%2Fyear/resume", json!({})).await.body["paused"], false);
    put(&rig, "another", yearly(json!({"kind": "k"}))).await;
    let first = rig.get("/v1/schedules?limit=1").await.body;
    assert_eq!((&first["schedules"][0]["name"], &first["next_cursor"]), (&json!("another"), &json!("another")));
    let rest = rig.get("/v1/schedules?cursor=another").await.body;
    assert_eq!((&rest["schedules"][0]["name"], &rest["next_cursor"]), (&json!("new/year"), &Value::Null));
    assert_eq!(remove(&rig, "another").await.body, json!({"name": "another", "removed": true}));
    for answer in [
        remove(&rig, "another").await,
        rig.get("/v1/schedules/another").await,
        rig.get("/v1/schedules/another/records").await,
        rig.post("/v1/schedules/another/pause", json!({})).await,
        rig.post("/v1/schedules/another/resume", json!({})).await,
        rig.post("/v1/schedules/another/run-now", json!({})).await,
    ] {
        assert_eq!(answer.problem(), (404, "unknown_schedule"));
    }
}

#[tokio::test]
async fn what_is_no_schedule_is_refused_by_its_field_and_changes_nothing() {
    let rig = Rig::with_settings(|settings| settings.limits.schedules = 1).await;
    let job = json!({"kind": "k"});
    put(&rig, "only", yearly(job.clone())).await;
    let newest = rig.newest().await;
    for (body, field, says) in [
        (json!({"job": job}), "cron", "`cron` is missing"),
        (json!({"cron": "0 6 * * *", "every_s": 60, "job": job}), "every_s", "exclude each other"),
        (json!({"cron": "0 25 * * *", "job": job}), "cron", "write five fields"),
        (json!({"cron": "0 0 30 2 *", "job": job}), "cron", "never due"),
        (json!({"cron": "0 6 * * *", "zone": "Europe/Atlantis", "job": job}), "zone", "IANA time zone database"),
        (json!({"every_s": 60, "zone": "UTC", "job": job}), "zone", "belongs to `cron`"),
        (json!({"every_s": 0.5, "job": job}), "every_s", "too short"),
        (json!({"every_s": -1, "job": job}), "every_s", "number of seconds"),
        (json!({"every_s": 200_000, "jitter_s": 90_000, "job": job}), "jitter_s", "it must be from 0s to 86400s"),
        (json!({"every_s": 60, "jitter_s": 60.001, "job": job}), "jitter_s", "is 60.001s; it must be from 0s to 60s"),
        (json!({"cron": "0 * * * *", "jitter_s": 3_601, "job": job}), "jitter_s", "it must be from 0s to 3600s"),
        (json!({"every_s": 60, "job": {"kind": "k", "timeout_s": -1}}), "job.timeout_s", "number of seconds"),
        (json!({"every_s": 60, "job": {"kind": "k", "idempotency_key": "i"}}), "idempotency_key", "cannot be given"),
        (json!({"every_s": 60, "job": {"kind": "k", "run_at": "2030-01-01T00:00:00Z"}}), "run_at", "cannot be given"),
    ] {
        let answer = put(&rig, "s", body).await;
        assert_eq!(answer.problem(), (400, "invalid"), "{}", answer.body);
        assert_eq!(answer.body["field"], field, "{}", answer.body);
        assert!(answer.body["detail"].as_str().unwrap().contains(says), "{}", answer.body);
    }
    let unknown = put(&rig, "s", json!({"every_s": 60, "job": job, "often": true})).await;
    assert_eq!(unknown.problem(), (400, "invalid"));
    assert_eq!(put(&rig, "s", json!({"every_s": 60, "job": job})).await.problem(), (429, "limited"));
    assert_eq!(rig.get("/v1/schedules?limit=0").await.problem(), (400, "invalid"));
    assert_eq!(rig.newest().await, newest);
}

#[tokio::test]
async fn what_is_due_runs_and_every_instant_has_its_record() {
    let rig = Rig::new().await;
    let plan = json!({"every_s": 1, "overlap": "allow", "job": {"kind": "k", "payload": {"n": 1}}});
    assert_eq!(put(&rig, "tick", plan).await.status, 201);
    for _ in 0..3 {
        let taken = rig.take("k").await;
        rig.succeed(&taken, b"").await;
        let job = rig.job(&taken.claim.job.to_string()).await;
        assert_eq!(job["headers"]["onward-schedule"], "tick");
        let due: u64 = job["headers"]["onward-due-ms"].as_str().unwrap().parse().unwrap();
        assert_eq!(due % 1_000, 0);
    }
    rig.post("/v1/schedules/tick/pause", json!({})).await;
    let all = rig.get("/v1/schedules/tick/records").await.body;
    let records = all["records"].as_array().unwrap();
    let ended: Vec<&Value> = records.iter().filter(|record| record["outcome"] == "succeeded").collect();
    assert_eq!(ended.len(), 3, "{all}");
    assert!(ended.iter().all(|record| record["record"] == "fired" && record["job_id"].is_string()), "{all}");
    // The newest first, each once, and none between them left out.
    let ms = |record: &Value, field: &str| {
        let at: jiff::Timestamp = record[field].as_str().unwrap().parse().unwrap();
        at.as_millisecond()
    };
    for pair in records.windows(2) {
        assert_eq!(ms(&pair[0], "due_at") - ms(&pair[1], "last_due_at"), 1_000, "{all}");
    }
    let page = rig.get("/v1/schedules/tick/records?limit=1").await.body;
    let rest =
        rig.get(&format!("/v1/schedules/tick/records?cursor={}", page["next_cursor"].as_str().unwrap())).await.body;
    assert_eq!(rest["records"][0], all["records"][1]);
    assert_eq!(rig.get("/v1/schedules/tick/records?cursor=x").await.problem(), (400, "invalid"));
}

/// The same log, written so much earlier.
fn written_earlier(mut log: MemoryLog, by: Duration) -> MemoryLog {
    let mut old = MemoryLog::new();
    for mut batch in log.read_events(Seq(1), usize::MAX).unwrap() {
        for stamped in &mut batch.events {
            stamped.at = Wall::from_ms(stamped.at.as_ms() - span_ms(by));
        }
        while old.tail().unwrap().term < batch.term {
            old.seize_seat().unwrap();
        }
        let key = BatchKey { term: batch.term, id: batch.id, first: batch.first };
        old.append_events(key, &batch.events, &[]).unwrap();
    }
    old
}

#[tokio::test]
async fn a_critical_schedule_whose_run_nobody_takes_is_shown_as_failing_with_its_reason() {
    let log = MemoryLog::new();
    let before = Rig::on(log.clone()).await;
    let plan = json!({"every_s": 1, "critical": true, "job": {"kind": "k", "timeout_s": 86_400}});
    assert_eq!(put(&before, "tick", plan).await.status, 201);
    let mut shown = before.get("/v1/schedules/tick").await.body;
    while shown["open"].as_array().unwrap().is_empty() {
        shown = before.get("/v1/schedules/tick").await.body;
    }
    assert_eq!(
        (&shown["failing"], shown.get("failing_reason"), &shown["failing_since"]),
        (&json!(false), None, &Value::Null)
    );
    drop(before);
    let rig = Rig::on(written_earlier(log, Duration::from_secs(3 * 3_600))).await;
    let shown = rig.get("/v1/schedules/tick").await.body;
    assert_eq!((&shown["failing"], &shown["failing_reason"]), (&json!(true), &json!("never_succeeded")), "{shown}");
    assert_eq!(shown["failures"], 0, "nothing has failed");
    let listed = &rig.get("/v1/schedules").await.body["schedules"][0];
    assert_eq!(
        (&listed["failing_reason"], &listed["failing_since"]),
        (&shown["failing_reason"], &shown["failing_since"])
    );
    let taken = rig.take("k").await;
    rig.succeed(&taken, b"").await;
    let shown = rig.get("/v1/schedules/tick").await.body;
    assert_eq!((&shown["failing"], shown.get("failing_reason")), (&json!(false), None), "{shown}");
}

#[tokio::test]
async fn a_run_that_is_asked_for_is_given_once_and_has_the_payload_of_its_schedule() {
    let rig = Rig::new().await;
    let large = json!({"text": "x".repeat(6_000)});
    put(&rig, "s", yearly(json!({"kind": "k", "payload": large}))).await;
    assert_eq!(rig.get("/v1/schedules/s").await.body["job"]["payload"], large, "it lies in the store");
    let first = rig.post("/v1/schedules/s/run-now", json!({"request_id": "r1"})).await;
    assert_eq!(first.status, 201, "{}", first.body);
    let again = rig.post("/v1/schedules/s/run-now", json!({"request_id": "r1"})).await;
    assert_eq!((again.status, again.id()), (200, first.id()));
    assert_eq!(rig.job(&first.id()).await["workflows"][0]["payload"], large);
    let last = &rig.get("/v1/schedules/s").await.body["last"];
    assert_eq!((&last["reason"], &last["job_id"]), (&json!("run_now"), &json!(first.id())));
    assert_eq!(rig.post("/v1/schedules/s/run-now", json!({"request_id": ""})).await.problem(), (400, "invalid"));
}

#[tokio::test]
async fn records_are_paged_also_where_runs_were_asked_for_in_one_millisecond() {
    let rig = Rig::new().await;
    put(&rig, "s", yearly(json!({"kind": "k"}))).await;
    let run = || rig.post("/v1/schedules/s/run-now", json!({}));
    let (a, b, c, d) = tokio::join!(run(), run(), run(), run());
    let mut wanted = [a, b, c, d].map(|run| run.id());
    let (mut found, mut cursor) = (Vec::new(), String::new());
    for _ in 0..wanted.len() {
        let page = rig.get(&format!("/v1/schedules/s/records?limit=1{cursor}")).await.body;
        found.push(page["records"][0]["job_id"].as_str().unwrap().to_owned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    wanted.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, wanted);
}

#[tokio::test]
async fn commands_need_a_token_and_changes_the_scope_of_operators() {
    let mut rig = Rig::new().await;
    let exec = yearly(json!({"kind": "exec", "payload": {"argv": ["true"]}}));
    assert_eq!(put(&rig, "s", exec.clone()).await.status, 201);
    rig.access = Access::without_token();
    assert_eq!(put(&rig, "other", exec).await.problem(), (403, "exec_needs_token"));
    assert_eq!(rig.post("/v1/schedules/s/run-now", json!({})).await.problem(), (403, "exec_needs_token"));
    assert_eq!(rig.post("/v1/schedules/s/pause", json!({})).await.status, 200);
    assert_eq!(rig.post("/v1/schedules/s/resume", json!({})).await.problem(), (403, "exec_needs_token"));
    assert_eq!(put(&rig, "plain", yearly(json!({"kind": "k"}))).await.status, 201);
    let scopes = |scopes: &[Scope]| Access::of_token(scopes.iter().copied().collect());
    rig.access = scopes(&[Scope::Read, Scope::Submit]);
    for answer in [
        put(&rig, "plain", yearly(json!({"kind": "k"}))).await,
        remove(&rig, "plain").await,
        rig.post("/v1/schedules/plain/pause", json!({})).await,
    ] {
        assert_eq!(answer.problem(), (403, "forbidden"));
    }
    assert_eq!(rig.get("/v1/schedules/plain").await.status, 200);
    rig.access = scopes(&[Scope::Operate]);
    assert_eq!(put(&rig, "plain", yearly(json!({"kind": "k"}))).await.problem(), (403, "forbidden"));
    assert_eq!(rig.get("/v1/schedules").await.problem(), (403, "forbidden"));
}
