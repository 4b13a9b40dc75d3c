use serde_json::{Value, json};

use crate::rig::Rig;

#[tokio::test]
async fn a_job_is_stored_and_shown_as_it_was_given() {
    let rig = Rig::new().await;
    let body = r#"{"kind": "mail", "payload": {"n": 12345678901234567890123, "b": 1.10}, "queue": "q", "priority": 7,
        "timeout_s": 90.5, "stuck_after_s": 30, "max_extension_s": 12, "on_stuck": "time_out", "require_progress": true,
        "retry": {"max_attempts": 2, "base_s": 0.5}, "limits": [{"key": "k", "max": 3}, {"key": "o", "max": 1, "ordered": true}], "unique_key": "u",
        "idempotency_key": "i", "tags": ["a", "b"], "headers": {"x": "y"}, "retain_s": 60, "datacenters": ["local"],
        "timeout_policy": "majority"}"#;
    let answer = rig.post_text("/v1/jobs", body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let text = rig.get(&format!("/v1/jobs/{}", answer.id())).await.body;
    for (field, expected) in [
        ("id", json!(answer.id())),
        ("kind", json!("mail")),
        ("queue", json!("q")),
        ("state", json!("ready")),
        ("reason", json!("no_capable_worker: no worker takes `mail`")),
        ("ended_at", Value::Null),
        ("priority", json!(7)),
        ("timeout_s", json!(90.5)),
        ("stuck_after_s", json!(30.0)),
        ("max_extension_s", json!(12.0)),
        ("on_stuck", json!("time_out")),
        ("require_progress", json!(true)),
        ("retry", json!({"max_attempts": 2, "base_s": 0.5, "max_s": 300.0})),
        ("limits", json!([{"key": "k", "max": 3, "ordered": false}, {"key": "o", "max": 1, "ordered": true}])),
        ("unique_key", json!("u")),
        ("idempotency_key", json!("i")),
        ("tags", json!(["a", "b"])),
        ("headers", json!({"x": "y"})),
        ("retain_s", json!(60.0)),
        ("datacenters", json!(["local"])),
        ("timeout_policy", json!("majority")),
        ("progress", json!({"done": 0, "total": 1})),
        ("result", Value::Null),
        ("retry_of", Value::Null),
        ("dead_letter", json!(false)),
    ] {
        assert_eq!(text[field], expected, "{field}");
    }
    let created = text["created_at"].as_str().unwrap();
    assert!(created.len() == 24 && created.ends_with('Z'), "{created}");
    assert_eq!(text["started_at"], text["created_at"]);
    let taken = rig.engine.read(|view| view.catalog.newest_before(None).next()).await.unwrap().unwrap();
    let payload = rig.engine.read(move |view| view.manager.job(taken).unwrap().spec.workflows[0].payload.clone()).await;
    let kept = payload.unwrap();
    assert_eq!(&**kept.as_inline().unwrap(), br#"{"n": 12345678901234567890123, "b": 1.10}"#, "kept to the digit");
}

#[tokio::test]
async fn a_delay_and_an_instant_are_both_understood() {
    let rig = Rig::new().await;
    let delayed = rig.job(&rig.submit(json!({"kind": "a", "delay_s": 3600.25})).await).await;
    assert_eq!(delayed["state"], "delayed");
    assert_eq!(delayed["workflows"][0]["due_at"], delayed["run_at"]);
    assert!(delayed["reason"].as_str().unwrap().starts_with("delayed: until "), "{}", delayed["reason"]);
    for run_at in [json!("2100-01-01T01:00:00+01:00"), json!(4_102_444_800_000u64)] {
        let job = rig.job(&rig.submit(json!({"kind": "a", "run_at": run_at})).await).await;
        assert_eq!(job["run_at"], "2100-01-01T00:00:00.000Z");
        assert_eq!(job["workflows"][0]["due_at"], "2100-01-01T00:00:00.000Z");
    }
    assert_eq!(rig.job(&rig.submit(json!({"kind": "a", "run_at": 0})).await).await["state"], "ready");
}

#[tokio::test]
async fn what_is_not_json_travels_as_base64() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a", "payload_base64": "AP8=", "content_type": "image/png"})).await;
    let workflow = &rig.job(&id).await["workflows"][0];
    assert_eq!(workflow["payload_base64"], "AP8=");
    assert_eq!(workflow["content_type"], "image/png");
    assert_eq!(workflow.get("payload"), None);
    let taken = rig.take("a").await;
    assert_eq!(taken.workflow.payload, [0, 255].into());
    rig.succeed(&taken, &[0, 255]).await;
    let job = rig.job(&id).await;
    assert_eq!((&job["result"], &job["result_base64"]), (&Value::Null, &json!("AP8=")));
}

#[tokio::test]
async fn workflows_run_in_order_and_results_are_shown_by_name() {
    let rig = Rig::new().await;
    let id = rig
        .submit(json!({"workflows": [
            {"name": "b", "kind": "load", "after": ["a"]}, {"name": "a", "kind": "fetch", "payload": [1]}]}))
        .await;
    let job = rig.job(&id).await;
    assert_eq!(job["kind"], Value::Null);
    assert_eq!(job["workflows"][0]["after"], json!(["a"]));
    assert_eq!((&job["workflows"][0]["state"], &job["workflows"][1]["state"]), (&json!("waiting"), &json!("ready")));
    let taken = rig.take("fetch").await;
    rig.succeed(&taken, b"{\"rows\": 3}").await;
    let job = rig.job(&id).await;
    assert_eq!(job["result"], json!({"a": {"rows": 3}}));
    assert_eq!(job["progress"], json!({"done": 1, "total": 2}));
    let taken = rig.take("load").await;
    rig.succeed(&taken, b"").await;
    let job = rig.job(&id).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("succeeded"), &Value::Null));
    assert_eq!(job["result"], json!({"a": {"rows": 3}, "b": null}));
    let attempt = &job["workflows"][1]["attempts"][0];
    assert_eq!(
        (&attempt["n"], &attempt["worker"], &attempt["outcome"]),
        (&json!(1), &json!("w1"), &json!("succeeded"))
    );
    assert!(attempt["fence"].as_u64().unwrap() > 0 && attempt["ended_at"].is_string());
}

#[tokio::test]
async fn whatever_is_wrong_is_refused_by_name_and_nothing_is_stored() {
    let rig = Rig::new().await;
    let many = |entry: &str, count: usize| format!("[{}]", vec![entry; count].join(","));
    let name = "x".repeat(129);
    // (body, field at fault if it is known)
    let table = [
        ("".into(), Some("kind")),
        ("{".into(), None),
        ("[]".into(), None),
        ("null".into(), None),
        ("{\"kind\": 3}".into(), Some("kind")),
        (r#"{"kind": "a", "nonsense": 1}"#.into(), Some("nonsense")),
        (r#"{"kind": "a", "retry": {"tries": 1}}"#.into(), Some("retry.tries")),
        (r#"{"workflows": [{"kind": "a", "nonsense": 1}]}"#.into(), Some("workflows[0].nonsense")),
        (r#"{"kind": "a", "kind": "b"}"#.into(), None),
        (r#"{"kind": "a"} x"#.into(), None),
        (r#"{"kind": ""}"#.into(), Some("kind")),
        (format!(r#"{{"kind": "{name}"}}"#), Some("kind")),
        (r#"{"kind": "a\u0000"}"#.into(), Some("kind")),
        (r#"{"kind": "a", "workflows": []}"#.into(), Some("kind")),
        (r#"{"workflows": []}"#.into(), Some("workflows")),
        (r#"{"workflows": [{"name": "a", "kind": "a"}], "payload": 1}"#.into(), Some("payload")),
        (r#"{"workflows": [{"kind": "a"}, {"kind": "b"}]}"#.into(), Some("workflows.name")),
        (r#"{"workflows": [{"name": "a", "kind": "a"}, {"name": "a", "kind": "a"}]}"#.into(), Some("workflows.name")),
        (r#"{"workflows": [{"name": "a", "kind": "a", "after": ["z"]}]}"#.into(), Some("after")),
        (
            r#"{"workflows": [{"name": "a", "kind": "a", "after": ["b"]}, {"name": "b", "kind": "a", "after": ["a"]}]}"#.into(),
            Some("after"),
        ),
        (r#"{"kind": "a", "payload": 1, "payload_base64": ""}"#.into(), Some("payload")),
        (r#"{"kind": "a", "payload_base64": "?"}"#.into(), Some("payload_base64")),
        (r#"{"kind": "a", "timeout_s": -1}"#.into(), Some("timeout_s")),
        (r#"{"kind": "a", "timeout_s": 0}"#.into(), Some("timeout_s")),
        (r#"{"kind": "a", "timeout_s": 1e308}"#.into(), Some("timeout_s")),
        (r#"{"kind": "a", "timeout_s": 1e999}"#.into(), None),
        (r#"{"kind": "a", "timeout_s": NaN}"#.into(), None),
        (r#"{"kind": "a", "timeout_s": "1"}"#.into(), Some("timeout_s")),
        (r#"{"kind": "a", "stuck_after_s": -0.1}"#.into(), Some("stuck_after_s")),
        (r#"{"kind": "a", "delay_s": 1e20}"#.into(), Some("delay_s")),
        (r#"{"kind": "a", "delay_s": 1, "run_at": 1}"#.into(), Some("delay_s")),
        (r#"{"kind": "a", "run_at": "soon"}"#.into(), Some("run_at")),
        (r#"{"kind": "a", "run_at": -1}"#.into(), Some("run_at")),
        (r#"{"kind": "a", "run_at": 18446744073709551615}"#.into(), Some("run_at")),
        (r#"{"kind": "a", "retain_s": -1}"#.into(), Some("retain_s")),
        (r#"{"kind": "a", "priority": 101}"#.into(), Some("priority")),
        (r#"{"kind": "a", "priority": 5000000000}"#.into(), Some("priority")),
        (r#"{"kind": "a", "on_stuck": "panic"}"#.into(), Some("on_stuck")),
        (r#"{"kind": "a", "retry": {"max_attempts": 0}}"#.into(), Some("retry.max_attempts")),
        (r#"{"kind": "a", "retry": {"base_s": -1}}"#.into(), Some("retry.base_s")),
        (r#"{"kind": "a", "retry": {"base_s": 9, "max_s": 3}}"#.into(), Some("retry.max_s")),
        (r#"{"kind": "a", "limits": [{"key": "k", "max": 0}]}"#.into(), Some("limits.max")),
        (r#"{"kind": "a", "limits": [{"key": "k", "max": 1}, {"key": "k", "max": 2}]}"#.into(), Some("limits")),
        (r#"{"kind": "a", "limits": [{"key": "k", "max": 2, "ordered": true}]}"#.into(), Some("limits.ordered")),
        (r#"{"kind": "a", "datacenters": ["dc-a", "dc-b", "dc-a"]}"#.into(), Some("datacenters")),
        (r#"{"kind": "a", "idempotency_key": ""}"#.into(), Some("idempotency_key")),
        (format!(r#"{{"kind": "a", "tags": {}}}"#, many(r#""t""#, 17)), Some("tags")),
        (format!(r#"{{"kind": "a", "tags": {}}}"#, many("0", 1_000_000)), Some("tags[0]")),
        (format!(r#"{{"kind": "a", "tags": {}}}"#, many(r#""t""#, 1_000_000)), Some("tags")),
        (format!(r#"{{"workflows": {}}}"#, many(r#"{"kind":"a"}"#, 100_000)), Some("workflows")),
        (format!(r#"{{"kind": "a", "headers": {{"h": "{}"}}}}"#, "v".repeat(9_000)), Some("headers")),
        (format!("{}1{}", "[".repeat(200_000), "]".repeat(200_000)), Some("[0]")),
    ];
    let before = rig.newest().await;
    let mut other = Vec::new();
    for (body, field) in &table {
        let shown = &body[..body.len().min(120)];
        let answer = rig.post_text("/v1/jobs", body).await;
        assert_eq!(answer.problem(), (400, "invalid"), "{shown}");
        if answer.body["field"].as_str() != *field {
            other.push(format!("{shown}: {}", answer.body));
        }
    }
    assert!(other.is_empty(), "{other:#?}");
    let unknown = rig.post("/v1/jobs", json!({"kind": "a", "nonsense": 1})).await;
    assert!(unknown.body["detail"].as_str().unwrap().contains("`nonsense`"), "{}", unknown.body);
    let large = format!(r#"{{"kind": "a", "payload": "{}"}}"#, "p".repeat(1 << 20));
    assert_eq!(rig.post_text("/v1/jobs", &large).await.problem(), (413, "too_large"));
    let huge = format!(r#"{{"kind": "a", "payload": "{}"}}"#, "p".repeat(9 << 20));
    assert_eq!(rig.post_text("/v1/jobs", &huge).await.problem(), (413, "too_large"));
    let plain =
        axum::http::Request::post("/v1/jobs").header("content-type", "text/plain").body(r#"{"kind":"a"}"#.into());
    let answer = crate::rig::read(rig.send(plain.unwrap()).await).await;
    assert_eq!(answer.problem(), (415, "unsupported_media_type"));
    assert_eq!(rig.newest().await, before, "nothing was stored");
}

#[tokio::test]
async fn a_key_gives_the_same_job_again_and_another_body_conflicts() {
    let rig = Rig::new().await;
    let body = json!({"kind": "a", "payload": 1});
    let key = [("Idempotency-Key", "k")];
    let first = rig.post_with("/v1/jobs", &key, body.clone()).await;
    assert_eq!(first.status, 201);
    let again = rig.post_with("/v1/jobs", &key, body.clone()).await;
    assert_eq!((again.status, again.id()), (200, first.id()));
    let in_body = rig.post("/v1/jobs", json!({"kind": "a", "payload": 1, "idempotency_key": "k"})).await;
    assert_eq!((in_body.status, in_body.id()), (200, first.id()));
    let before = rig.newest().await;
    let other = rig.post_with("/v1/jobs", &key, json!({"kind": "a", "payload": 2})).await;
    assert_eq!(other.problem(), (409, "conflict"));
    let both = rig.post_with("/v1/jobs", &key, json!({"kind": "a", "payload": 1, "idempotency_key": "l"})).await;
    assert_eq!(both.problem(), (400, "invalid"));
    assert_eq!(both.body["field"], "idempotency_key");
    let same = rig.post_with("/v1/jobs", &key, json!({"kind": "a", "payload": 1, "idempotency_key": "k"})).await;
    assert_eq!(same.status, 200);
    assert_eq!(rig.newest().await, before);
}

#[tokio::test]
async fn a_unique_key_is_held_until_its_job_ends() {
    let rig = Rig::new().await;
    let body = json!({"kind": "a", "unique_key": "u"});
    let first = rig.submit(body.clone()).await;
    let second = rig.post("/v1/jobs", body.clone()).await;
    assert_eq!(second.problem(), (409, "unique_key_taken"));
    assert!(second.body["detail"].as_str().unwrap().contains(&first));
    rig.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await;
    rig.submit(body).await;
}

#[tokio::test]
async fn a_batch_is_all_or_nothing_and_names_who_is_at_fault() {
    let rig = Rig::new().await;
    let known = rig.submit(json!({"kind": "a", "idempotency_key": "k"})).await;
    rig.submit(json!({"kind": "a", "unique_key": "u"})).await;
    let answer = rig
        .post("/v1/jobs/batch", json!({"jobs": [{"kind": "a"}, {"kind": "a", "idempotency_key": "k"}, {"kind": "b"}]}))
        .await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let jobs = answer.body["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 3);
    assert_eq!(jobs[1], json!({"id": known, "duplicate": true}));
    assert_eq!(jobs[2]["duplicate"], false);
    assert_eq!(rig.job(jobs[2]["id"].as_str().unwrap()).await["kind"], "b");
    let all_known = rig.post("/v1/jobs/batch", json!({"jobs": [{"kind": "a", "idempotency_key": "k"}]})).await;
    assert_eq!(all_known.status, 200);

    let before = rig.newest().await;
    // (the second job of a batch, status and code, field)
    for (job, expected, field) in [
        (json!({"kind": "a", "timeout_s": -1}), (400, "invalid"), "jobs[1].timeout_s"),
        (json!({"kind": "a", "priority": 200}), (400, "invalid"), "jobs[1].priority"),
        (json!({"kind": "a", "prioritty": 1}), (400, "invalid"), "jobs[1].prioritty"),
        (json!({"kind": 7}), (400, "invalid"), "jobs[1].kind"),
        (json!({"kind": "a", "payload": 1, "idempotency_key": "k"}), (409, "conflict"), "jobs[1]"),
        (json!({"kind": "a", "payload": 1, "idempotency_key": "new"}), (409, "conflict"), "jobs[1]"),
        (json!({"kind": "a", "unique_key": "u"}), (409, "unique_key_taken"), "jobs[1]"),
    ] {
        let first = json!({"kind": "a", "idempotency_key": "new"});
        let answer = rig.post("/v1/jobs/batch", json!({"jobs": [first, job]})).await;
        assert_eq!(answer.problem(), expected, "{job}");
        assert_eq!(answer.body["field"], field, "{job}");
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.starts_with("jobs[1]: ") && detail.ends_with("; none of this batch was stored"), "{detail}");
    }
    for body in [json!({}), json!({"jobs": 1}), json!({"jobs": [1]}), json!({"jobs": [], "x": 1})] {
        assert_eq!(rig.post("/v1/jobs/batch", body).await.problem(), (400, "invalid"));
    }
    let too_many = json!({"jobs": vec![json!({"kind": "a"}); 10_001]});
    let answer = rig.post("/v1/jobs/batch", too_many).await;
    assert_eq!((answer.problem(), &answer.body["field"]), ((400, "invalid"), &json!("jobs")));
    let keyed = rig.post_with("/v1/jobs/batch", &[("Idempotency-Key", "x")], json!({"jobs": [{"kind": "a"}]})).await;
    assert_eq!(keyed.problem(), (400, "invalid"));
    assert_eq!(rig.newest().await, before, "nothing was stored");

    let full = rig.post("/v1/jobs/batch", json!({"jobs": vec![json!({"kind": "a"}); 10_000]})).await;
    assert_eq!(full.status, 201);
    assert_eq!(full.body["jobs"].as_array().unwrap().len(), 10_000);
}

#[tokio::test]
async fn a_full_node_says_which_limit_was_met() {
    let rig = Rig::with_settings(|settings| settings.limits.jobs = 1).await;
    rig.submit(json!({"kind": "a"})).await;
    let answer = rig.post("/v1/jobs", json!({"kind": "a"})).await;
    assert_eq!(answer.problem(), (429, "limited"));
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn the_callers_trace_goes_on_unless_the_job_has_its_own() {
    let rig = Rig::new().await;
    let trace = [("traceparent", "00-a"), ("tracestate", "s=1")];
    let id = rig.post_with("/v1/jobs", &trace, json!({"kind": "a"})).await.id();
    assert_eq!(rig.job(&id).await["headers"], json!({"traceparent": "00-a", "tracestate": "s=1"}));
    let own = json!({"kind": "a", "headers": {"traceparent": "00-b"}});
    let id = rig.post_with("/v1/jobs", &trace[..1], own).await.id();
    assert_eq!(rig.job(&id).await["headers"], json!({"traceparent": "00-b"}));
}

#[tokio::test]
async fn without_a_machine_the_answer_is_no_leader() {
    let rig = Rig::new().await;
    rig.engine.stop();
    let answer = rig.post("/v1/jobs", json!({"kind": "a"})).await;
    assert_eq!(answer.problem(), (503, "no_leader"));
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(rig.get("/v1/jobs").await.problem(), (503, "no_leader"));
}
