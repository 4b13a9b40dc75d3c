use std::path::Path;

use serde_json::{Value, json};

use super::*;

/// Everything happens on one day; `hms` is the time of it.
fn at(hms: &str) -> String {
    format!("2026-11-16T{hms}Z")
}

fn job(state: &str, workflow: Value, more: Value) -> Value {
    let mut job = json!({
        "id": "0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d10", "kind": "transcode", "queue": "media", "state": state, "reason": null,
        "created_at": at("09:50:00"), "started_at": at("09:50:00"), "ended_at": null, "progress": {"done": null, "total": null},
        "workflows": [workflow], "result": null, "deadline_at": at("11:50:00"), "extensions_s": 0, "stuck_after_s": 120, "retry_of": null,
        "dead_letter": false
    });
    for (name, value) in more.as_object().unwrap() {
        job[name] = value.clone();
    }
    job
}

fn workflow(state: &str, attempts: Value) -> Value {
    json!({"name": "main", "kind": "transcode", "state": state, "blocked": null, "due_at": null, "attempts": attempts})
}

fn blocked(why: &str) -> Value {
    let mut workflow = workflow("ready", json!([]));
    workflow["blocked"] = why.into();
    workflow
}

fn running(n: u64, stuck_in_ms: u64, quiet_ms: Option<u64>) -> Value {
    json!({"n": n, "fence": (3_u64 << 20) + n, "worker": format!("worker-{n}"), "started_at": at("09:58:00"), "ended_at": null,
        "outcome": null, "error": null, "lease_remaining_ms": 250_000, "since_step_ms": 120_000 - stuck_in_ms.min(120_000), "stuck_in_ms": stuck_in_ms, "quiet_remaining_ms": quiet_ms,
        "note": null})
}

fn ended(n: u64, outcome: &str, error: Option<&str>) -> Value {
    json!({"n": n, "fence": (3_u64 << 20) + n, "worker": format!("worker-{n}"), "started_at": at("09:50:10"),
        "ended_at": at("09:57:10"), "outcome": outcome, "error": error})
}

fn nothing() -> Value {
    json!({ "entries": [] })
}

/// Compares with the file of that name; `ONWARD_WRITE_GOLDEN=1` writes it.
fn golden(name: &str, job: &Value, ledger: &Value) {
    let text = explain(job, ledger, at("10:00:00").parse().unwrap());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/explain/golden/{name}.txt"));
    if std::env::var_os("ONWARD_WRITE_GOLDEN").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, expected, "{name} differs from {}", file.display());
}

#[test]
fn running_well() {
    let mut attempt = running(1, 110_000, None);
    attempt["note"] = "part 40".into();
    let more = json!({"progress": {"done": 40, "total": 100}});
    golden("running_well", &job("running", workflow("running", json!([attempt])), more), &nothing());
}

/// It is only known to have been handed out, which is not moving.
#[test]
fn nothing_heard_yet() {
    let mut attempt = running(1, 90_000, None);
    attempt["started_at"] = at("09:59:30").into();
    let ledger = json!({"entries": [{"at": at("09:59:40"), "what": "refused", "workflow": "main", "verb": "succeed",
        "fence": 3 << 20, "refusal": "already_ended"}]});
    golden("nothing_heard_yet", &job("running", workflow("running", json!([attempt.clone()])), json!({})), &ledger);
    attempt["note"] = "reading".into();
    let said = job("running", workflow("running", json!([attempt])), json!({}));
    assert!(explain(&said, &nothing(), at("10:00:00").parse().unwrap()).contains("is running and moving"));
}

#[test]
fn slow() {
    let more = json!({"progress": {"done": 40, "total": 100}});
    golden("slow", &job("running", workflow("running", json!([running(1, 12_000, None)])), more), &nothing());
}

#[test]
fn quiet_section() {
    let ledger =
        json!({"entries": [{"at": at("09:59:30"), "what": "quiet_began", "workflow": "main", "allowed_s": 120}]});
    let job = job("running", workflow("running", json!([running(1, 100_000, Some(90_000))])), json!({}));
    golden("quiet_section", &job, &ledger);
}

#[test]
fn stuck_and_redelivered() {
    let attempts = json!([ended(1, "stuck", None), running(2, 118_000, None)]);
    let ledger =
        json!({"entries": [{"at": at("09:57:10"), "what": "attempt_ended", "fence": 3_145_729, "outcome": "stuck"}]});
    golden("stuck_and_redelivered", &job("running", workflow("running", attempts), json!({})), &ledger);
}

#[test]
fn no_worker_takes_the_kind() {
    golden("no_capable_worker", &job("ready", blocked("no_capable_worker"), json!({})), &nothing());
}

#[test]
fn blocked_by_a_limit_key() {
    let more = json!({"limits": [{"key": "gpu", "max": 2}]});
    golden("limit", &job("ready", blocked("limit"), more), &nothing());
}

#[test]
fn behind_a_job_that_keeps_its_key_in_order() {
    let mut workflow = blocked("limit");
    workflow["waits_for_key"] = json!({"key": "account-1", "kept_by": "0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d0f"});
    let more = json!({"limits": [{"key": "account-1", "max": 1, "ordered": true}]});
    golden("ordered", &job("ready", workflow, more), &nothing());
}

#[test]
fn paused_queue() {
    golden("queue_paused", &job("ready", blocked("queue_paused"), json!({})), &nothing());
}

#[test]
fn replayed_from_the_failed_workflow_on() {
    const ORIGIN: &str = "0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d0f";
    let mut job = job("running", Value::Null, json!({"retry_of": ORIGIN}));
    job["workflows"] = json!([
        {"name": "fetch", "kind": "fetch", "state": "succeeded", "taken_from": ORIGIN, "attempts": []},
        {"name": "cut", "kind": "cut", "state": "running", "attempts": [running(1, 110_000, None)]},
    ]);
    golden("replayed", &job, &nothing());
}

#[test]
fn delayed() {
    let mut workflow = workflow("delayed", json!([]));
    workflow["due_at"] = at("10:05:00").into();
    golden("delayed", &job("delayed", workflow, json!({"started_at": null, "deadline_at": null})), &nothing());
}

#[test]
fn backing_off_after_a_failure() {
    let mut workflow = workflow("delayed", json!([ended(1, "failed", Some("connection reset"))]));
    workflow["due_at"] = at("10:00:04").into();
    golden("backing_off", &job("delayed", workflow, json!({})), &nothing());
}

#[test]
fn extension_denied() {
    let entry = |hms, what, more: Value| {
        let mut entry =
            json!({"at": at(hms), "what": what, "worker": "worker-1", "reason": "long_workflow", "progress": 0.4});
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry
    };
    let ledger = json!({"entries": [
        entry("09:58:30", "granted", json!({"by_s": 30})),
        entry("09:59:30", "denied", json!({"denial": "no_progress", "times": 2})),
    ]});
    let more = json!({"progress": {"done": 40, "total": 100}, "extensions_s": 30});
    golden("extension_denied", &job("running", workflow("running", json!([running(1, 80_000, None)])), more), &ledger);
}

#[test]
fn zombie_refused() {
    let attempts = json!([ended(1, "lease_expired", None), running(2, 100_000, None)]);
    let ledger = json!({"entries": [
        {"at": at("09:59:00"), "what": "refused", "workflow": "main", "fence": 3_145_729, "verb": "succeed", "refusal": "stale_attempt"}
    ]});
    golden("zombie_refused", &job("running", workflow("running", attempts), json!({})), &ledger);
}

#[test]
fn dead_lettered() {
    let attempts = json!([ended(1, "failed", Some("exit status 1")), ended(2, "failed", Some("no space left"))]);
    let more = json!({"dead_letter": true, "ended_at": at("09:57:10"), "reason": "attempts spent"});
    golden("dead_lettered", &job("failed", workflow("failed", attempts), more), &nothing());
}

#[test]
fn timed_out_by_hand_of_the_clock() {
    let more = json!({"ended_at": at("09:57:10"), "reason": "timeout"});
    let ledger = json!({"entries": [{"at": at("09:57:10"), "what": "timed_out", "reason": "timeout"}]});
    golden("timed_out", &job("timed_out", workflow("timed_out", json!([ended(1, "timed_out", None)])), more), &ledger);
}

#[test]
fn succeeded() {
    let more = json!({"ended_at": at("09:57:10"), "progress": {"done": 100, "total": 100}, "result": {"parts": 100}});
    golden(
        "succeeded",
        &job("succeeded", workflow("succeeded", json!([ended(1, "succeeded", None)])), more),
        &nothing(),
    );
}

#[test]
fn nothing_known_is_still_an_answer() {
    let text = explain(&json!({}), &json!({}), Timestamp::UNIX_EPOCH);
    assert!(text.starts_with("Job - (-) is -."), "{text}");
}

#[test]
fn of_an_ended_graph_every_workflow_is_told() {
    let on = |mut attempt: Value, worker: &str| {
        attempt["worker"] = worker.into();
        attempt
    };
    let mut job = job("failed", Value::Null, json!({"dead_letter": true, "ended_at": at("09:57:10")}));
    job["workflows"] = json!([
        {"name": "fetch", "kind": "fetch", "state": "succeeded", "attempts": [on(ended(1, "succeeded", None), "a")]},
        {"name": "cut", "kind": "cut", "state": "failed", "attempts": [
            on(ended(1, "lease_expired", None), "b"), on(ended(2, "stuck", None), "b"), on(ended(3, "failed", Some("no space")), "c")]},
        {"name": "join", "kind": "join", "state": "cancelled", "attempts": []},
    ]);
    let entry = |worker: &str| json!({"at": at("09:55:00"), "what": "granted", "worker": worker, "reason": "gc_pause", "by_s": 30});
    let quiet = json!({"at": at("09:56:00"), "what": "quiet_began", "workflow": "cut", "allowed_s": 60});
    let ledger = json!({"entries": [entry("a"), entry("c"), entry("nobody"), quiet]});
    golden("ended_graph", &job, &ledger);
    let text = explain(&job, &ledger, at("10:00:00").parse().unwrap());
    assert!(!text.contains("matters now"), "{text}");
    for line in [
        "  fetch: attempt 1 on a",
        "  cut: attempt 3 on c",
        "  fetch: 5m ago: a asked",
        "  cut: 5m ago: c asked",
        "  5m ago: nobody asked",
        "  cut: 4m ago: a quiet",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn of_several_workflows_the_one_that_matters_is_told() {
    let mut job = job("ready", Value::Null, json!({}));
    job["workflows"] = json!([
        {"name": "fetch", "kind": "fetch", "state": "succeeded", "attempts": []},
        {"name": "cut", "kind": "cut", "state": "ready", "blocked": "no_capable_worker", "attempts": []},
        {"name": "join", "kind": "join", "state": "waiting", "attempts": []},
    ]);
    golden("several_workflows", &job, &nothing());
}
