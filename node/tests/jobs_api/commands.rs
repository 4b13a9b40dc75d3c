use std::time::Duration;

use onward_core::event::{Event, StampedEvent};
use onward_core::ids::Seq;
use onward_log::{BatchId, BatchKey, EventLog, MemoryLog};
use serde_json::{Value, json};

use crate::rig::Rig;

const NOBODY: &str = "01890000-0000-7000-8000-000000000000";

#[tokio::test]
async fn what_is_no_job_is_unknown_everywhere() {
    let rig = Rig::new().await;
    for id in [NOBODY, "nonsense", "%FF", "1", "💥"] {
        let id = id.replace('💥', "%F0%9F%92%A5");
        for tail in ["", "/ledger", "/explain", "/events", "?wait_s=1"] {
            assert_eq!(rig.get(&format!("/v1/jobs/{id}{tail}")).await.problem(), (404, "unknown_job"), "{id}{tail}");
        }
        for (verb, body) in [
            ("cancel", json!({})),
            ("retry", json!({"request_id": "r"})),
            ("extend", json!({"by_s": 1, "reason": "why", "request_id": "r"})),
        ] {
            let answer = rig.post(&format!("/v1/jobs/{id}/{verb}"), body).await;
            assert_eq!(answer.problem(), (404, "unknown_job"), "{id} {verb}");
        }
    }
}

#[tokio::test]
async fn a_cancel_is_safe_to_repeat_and_shows_in_the_ledger() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a"})).await;
    let path = format!("/v1/jobs/{id}/cancel");
    for _ in 0..2 {
        let answer = rig.post_text(&path, "").await;
        assert_eq!((answer.status, &answer.body["state"]), (200, &json!("cancelled")));
    }
    assert_eq!(rig.job(&id).await["reason"], "cancelled");
    let ledger = rig.get(&format!("/v1/jobs/{id}/ledger")).await.body;
    assert_eq!((&ledger["id"], &ledger["dropped"]), (&json!(id), &json!(0)));
    let entries = ledger["entries"].as_array().unwrap();
    assert_eq!((entries.len(), &entries[0]["what"], &entries[0]["times"]), (1, &json!("cancel_asked"), &json!(1)));
    assert!(entries[0]["at"].is_string());
    assert_eq!(rig.post(&path, json!({"force": true})).await.problem(), (400, "invalid"));

    let id = rig.submit(json!({"kind": "b"})).await;
    rig.take("b").await;
    let answer = rig.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    assert_eq!(answer.body["state"], "cancelling");
    assert_eq!(rig.job(&id).await["reason"], "cancel_asked: w1 must stop first");
}

#[tokio::test]
async fn why_a_job_is_where_it_is_is_told_in_sentences_and_as_data() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a"})).await;
    let explain = async || rig.get(&format!("/v1/jobs/{id}/explain")).await.body;
    let waits = explain().await;
    assert_eq!(waits["code"], "no_capable_worker");
    assert!(waits["summary"].as_str().unwrap().starts_with(&format!("Job {id} (a) waits: no worker")), "{waits}");
    assert_eq!(waits["can_do"][1]["command"], "onward node list");
    assert_eq!((&waits["clocks"][0]["name"], waits["clocks"].as_array().unwrap().len()), (&json!("deadline"), 1));
    let taken = rig.take("a").await;
    assert_eq!(explain().await["clocks"][2]["name"], "stuck clock");
    rig.succeed(&taken, b"1").await;
    let ended = explain().await;
    assert_eq!((&ended["code"], &ended["clocks"]), (&json!("succeeded"), &json!([])));
}

#[tokio::test]
async fn an_explanation_goes_by_the_logs_time_though_the_clock_was_stepped_back() {
    // As if the clock had been an hour ahead when the log was written last.
    let (mut log, ahead) = (MemoryLog::new(), Duration::from_secs(3_600));
    let term = log.seize_seat().unwrap().term;
    let began = StampedEvent { at: onward_node::clock::now().wall + ahead, event: Event::TermBegan { term } };
    log.append_events(BatchKey { term, id: BatchId(1), first: Seq(1) }, &[began], &[]).unwrap();
    let rig = Rig::on(log).await;
    let id = rig.submit(json!({"kind": "a", "timeout_s": 7_200})).await;
    let explained = rig.get(&format!("/v1/jobs/{id}/explain")).await.body;
    let left = explained["clocks"][0]["remaining_ms"].as_u64().unwrap();
    assert!((7_000_000..=7_200_000).contains(&left), "{explained}");
}

#[tokio::test]
async fn a_retry_makes_one_new_job_of_an_ended_one() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a", "payload": {"n": 1}})).await;
    let path = format!("/v1/jobs/{id}/retry");
    assert_eq!(rig.post(&path, json!({"request_id": "r1"})).await.problem(), (409, "not_terminal"));
    let taken = rig.take("a").await;
    rig.succeed(&taken, b"1").await;
    for bad in [json!({}), json!({"request_id": ""}), json!({"request_id": 1}), json!({"request_id": "r", "x": 1})] {
        assert_eq!(rig.post(&path, bad).await.problem(), (400, "invalid"));
    }
    let first = rig.post(&path, json!({"request_id": "r1"})).await;
    assert_eq!(first.status, 201);
    let again = rig.post(&path, json!({"request_id": "r1"})).await;
    assert_eq!((again.status, again.id()), (200, first.id()));
    let other = rig.post(&path, json!({"request_id": "r2"})).await;
    assert_eq!(other.status, 201);
    assert_ne!(other.id(), first.id());
    let job = rig.job(&first.id()).await;
    assert_eq!((&job["retry_of"], &job["workflows"][0]["payload"]), (&json!(id), &json!({"n": 1})));
}

#[tokio::test]
async fn an_extension_by_hand_counts_once_per_request() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a", "timeout_s": 100})).await;
    let path = format!("/v1/jobs/{id}/extend");
    let extend = |by: Value, request: &str| json!({"by_s": by, "reason": "slow disk", "request_id": request});
    let before = rig.newest().await;
    for by in [json!(0), json!(-1), json!(1e300), json!("1"), json!(null)] {
        assert_eq!(rig.post(&path, extend(by.clone(), "r")).await.problem(), (400, "invalid"), "{by}");
    }
    let long = json!({"by_s": 1, "reason": "x".repeat(1_000), "request_id": "r"});
    assert_eq!(rig.post(&path, long).await.problem(), (429, "limited"));
    assert_eq!(rig.newest().await, before);
    for _ in 0..2 {
        let answer = rig.post(&path, extend(json!(7.5), "r1")).await;
        assert_eq!((answer.status, &answer.body), (200, &json!({"extensions_s": 7.5})));
    }
    assert_eq!(rig.post(&path, extend(json!(8), "r1")).await.problem(), (409, "conflict"));
    assert_eq!(rig.post(&path, extend(json!(2.5), "r2")).await.body["extensions_s"], 10.0);
    let job = rig.job(&id).await;
    assert_eq!(job["extensions_s"], 10.0);
    let ledger = rig.get(&format!("/v1/jobs/{id}/ledger")).await.body;
    let entry = &ledger["entries"][0];
    assert_eq!((&entry["what"], &entry["by_s"]), (&json!("extended_by_hand"), &json!(7.5)));
    assert_eq!((&entry["reason"], &entry["request_id"]), (&json!("slow disk"), &json!("r1")));
    rig.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    assert_eq!(rig.post(&path, extend(json!(1), "r3")).await.problem(), (409, "already_ended"));
}

#[tokio::test]
async fn a_cancel_by_filter_needs_a_filter_or_the_word_all() {
    let rig = Rig::new().await;
    let keep = rig.submit(json!({"kind": "a", "queue": "keep"})).await;
    rig.submit(json!({"kind": "a", "queue": "go", "tags": ["t"]})).await;
    rig.submit(json!({"kind": "b", "queue": "go"})).await;
    let before = rig.newest().await;
    for bad in [
        json!({}),
        json!({"all": false}),
        json!({"state": "asleep"}),
        json!({"queue": ""}),
        json!({"id": "x"}),
        json!({"all": true, "limit": 0}),
        json!({"all": true, "limit": 100_001}),
        json!({"all": true, "cursor": "x"}),
    ] {
        assert_eq!(rig.post("/v1/jobs/cancel", bad.clone()).await.problem(), (400, "invalid"), "{bad}");
    }
    assert_eq!(rig.newest().await, before);
    let all = |cancelled: u64| json!({"cancelled": cancelled, "next_cursor": null});
    assert_eq!(rig.post("/v1/jobs/cancel", json!({"tag": "t", "kind": "b"})).await.body, all(0));
    assert_eq!(rig.post("/v1/jobs/cancel", json!({"queue": "go"})).await.body, all(2));
    assert_eq!(rig.post("/v1/jobs/cancel", json!({"queue": "go"})).await.body, all(0));
    assert_eq!(rig.job(&keep).await["state"], "ready");
    assert_eq!(rig.post("/v1/jobs/cancel", json!({"all": true})).await.body, all(1));
}

#[tokio::test]
async fn a_cancel_by_filter_can_be_tried_and_knows_what_stands_still_and_what_is_new() {
    let rig = Rig::new().await;
    let mut jobs = Vec::new();
    for kind in ["go", "go", "go", "keep"] {
        jobs.push(rig.submit(json!({"kind": kind})).await);
    }
    let before = rig.newest().await;
    let cancel = |call: serde_json::Value| rig.post("/v1/jobs/cancel", call);
    let tried = cancel(json!({"kind": "go", "dry_run": true})).await.body;
    let newest_first = json!([jobs[2], jobs[1], jobs[0]]);
    assert_eq!(tried, json!({"cancelled": 0, "would_cancel": 3, "jobs": newest_first, "next_cursor": null}));
    let part = cancel(json!({"kind": "go", "dry_run": true, "limit": 2})).await.body;
    assert_eq!((&part["would_cancel"], &part["next_cursor"]), (&json!(2), &json!(jobs[1])));
    let rest = cancel(json!({"kind": "go", "dry_run": true, "cursor": jobs[1]})).await.body;
    assert_eq!((&rest["would_cancel"], &rest["jobs"]), (&json!(1), &json!([jobs[0]])));
    for none in [json!({"not_moving_s": 0}), json!({"since_s": 3600, "kind": "other"})] {
        assert_eq!(cancel(none.clone()).await.body["cancelled"], 0, "{none}");
    }
    assert_eq!(rig.newest().await, before, "nothing has changed");
    for bad in
        [json!({"dry_run": true}), json!({"not_moving_s": -1}), json!({"since_s": "x"}), json!({"since_s": 1e300})]
    {
        assert_eq!(cancel(bad.clone()).await.problem(), (400, "invalid"), "{bad}");
    }
    rig.take("go").await;
    assert_eq!(cancel(json!({"not_moving_s": 3600})).await.body["cancelled"], 0);
    let stands_still = cancel(json!({"not_moving_s": 0, "dry_run": true})).await.body;
    assert_eq!(stands_still["jobs"], json!([jobs[0]]), "the one that runs");
    assert_eq!(cancel(json!({"not_moving_s": 0})).await.body["cancelled"], 1);
    assert_eq!(rig.job(&jobs[0]).await["state"], "cancelling");
    assert_eq!(cancel(json!({"since_s": 3600})).await.body["cancelled"], 3);
}

#[tokio::test]
async fn dead_letters_are_listed_by_filter_and_a_page_that_is_short_goes_on() {
    let rig = Rig::new().await;
    let mut letters = Vec::new();
    for (kind, tag) in [("a", "x"), ("b", "x"), ("b", "y"), ("a", "y")] {
        letters.push(rig.submit(json!({"kind": kind, "tags": [tag], "queue": format!("q{tag}")})).await);
        let taken = rig.take_from(kind, &format!("q{tag}")).await;
        rig.fail_for_good(&taken, "broken").await;
    }
    let ids = |page: &serde_json::Value| {
        page["dead_letters"].as_array().unwrap().iter().map(|job| job["id"].clone()).collect::<Vec<_>>()
    };
    for (query, wanted) in [
        ("", vec![0, 1, 2, 3]),
        ("kind=b", vec![1, 2]),
        ("tag=x", vec![0, 1]),
        ("queue=qy", vec![2, 3]),
        ("kind=a&tag=y", vec![3]),
        ("state=failed&since_s=3600", vec![0, 1, 2, 3]),
        ("state=timed_out", vec![]),
    ] {
        let page = rig.get(&format!("/v1/dead-letters?{query}")).await.body;
        let wanted: Vec<_> = wanted.into_iter().map(|at: usize| json!(letters[at])).collect();
        assert_eq!((ids(&page), &page["next_cursor"]), (wanted, &json!(null)), "{query}");
    }
    let first = rig.get("/v1/dead-letters?kind=b&limit=1").await.body;
    assert_eq!(ids(&first), [json!(letters[1])]);
    let next = first["next_cursor"].as_str().unwrap();
    assert_eq!(
        ids(&rig.get(&format!("/v1/dead-letters?kind=b&limit=1&cursor={next}")).await.body),
        [json!(letters[2])]
    );
    for bad in ["state=asleep", "kind=", "since_s=-1", "not_moving_s=1"] {
        assert_eq!(rig.get(&format!("/v1/dead-letters?{bad}")).await.problem(), (400, "invalid"), "{bad}");
    }
}

#[tokio::test]
async fn a_cancel_by_filter_says_how_many_so_far_and_goes_on_by_its_cursor_or_without() {
    let rig = Rig::new().await;
    let mut jobs = Vec::new();
    for n in 0..7 {
        jobs.push(rig.submit(json!({"kind": if n == 3 { "keep" } else { "go" }})).await);
    }
    let cancel = |more: serde_json::Value| {
        let mut call = json!({"kind": "go", "limit": 2});
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rig.post("/v1/jobs/cancel", call)
    };
    let first = cancel(json!({})).await.body;
    assert_eq!((&first["cancelled"], first["next_cursor"].as_str()), (&json!(2), Some(&*jobs[5])), "the newest first");
    let later = rig.submit(json!({"kind": "go"})).await;
    let second = cancel(json!({"cursor": first["next_cursor"]})).await.body;
    assert_eq!((&second["cancelled"], second["next_cursor"].as_str()), (&json!(2), Some(&*jobs[2])));
    assert_eq!(rig.job(&later).await["state"], "ready", "it came after the cursor");
    // Without the cursor it begins anew, and what is cancelled counts no more.
    let third = cancel(json!({})).await.body;
    assert_eq!((&third["cancelled"], third["next_cursor"].as_str()), (&json!(2), Some(&*jobs[1])));
    let last = cancel(json!({"cursor": third["next_cursor"]})).await.body;
    assert_eq!(last, json!({"cancelled": 1, "next_cursor": null}), "the last of all was the last that was looked at");
    assert_eq!(rig.job(&jobs[3]).await["state"], "ready");
    assert_eq!(cancel(json!({})).await.body, json!({"cancelled": 0, "next_cursor": null}));
}

#[tokio::test]
async fn a_cancel_by_filter_of_many_is_no_single_step() {
    let rig = Rig::new().await;
    let batch: Vec<_> = (0..3_000).map(|_| json!({"kind": "go"})).collect();
    assert_eq!(rig.post("/v1/jobs/batch", json!({"jobs": batch})).await.status, 201);
    let part = rig.post("/v1/jobs/cancel", json!({"all": true, "limit": 700, "dry_run": true})).await.body;
    assert_eq!(part["would_cancel"], 700, "no more than asked for, in however many steps");
    let before = rig.engine.stats().listed().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(rig.post("/v1/jobs/cancel", json!({"all": true})).await.body["cancelled"], 3_000);
    let after = rig.engine.stats().listed().collect::<std::collections::BTreeMap<_, _>>();
    assert!(after["inputs"] - before["inputs"] >= 6, "a call for each few of them");
    assert!(after["reads"] - before["reads"] >= 6, "which were looked for a few at a time");
}

#[tokio::test]
async fn dead_letters_are_paged_replayed_and_dropped() {
    let rig = Rig::new().await;
    let mut dead = Vec::new();
    for n in 0..3 {
        dead.push(rig.submit(json!({"kind": "a", "payload": n})).await);
        let taken = rig.take("a").await;
        rig.fail_for_good(&taken, "disk full").await;
    }
    let job = rig.job(&dead[0]).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("failed"), &json!("failed: disk full")));
    assert_eq!(job["dead_letter"], true);
    assert_eq!(job["workflows"][0]["attempts"][0]["error"], "disk full");
    let list = |path: String| {
        let rig = &rig;
        async move { rig.get(&path).await.body }
    };
    let ids = |list: &Value| -> Vec<String> {
        let letters = list["dead_letters"].as_array().unwrap();
        letters.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
    };
    let first = list("/v1/dead-letters?limit=2".into()).await;
    assert_eq!(ids(&first), dead[..2]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = list(format!("/v1/dead-letters?limit=2&cursor={cursor}")).await;
    assert_eq!((ids(&second), &second["next_cursor"]), (dead[2..].to_vec(), &Value::Null));

    let alive = rig.submit(json!({"kind": "b"})).await;
    let before = rig.newest().await;
    let replay = |jobs: Value| json!({"jobs": jobs, "request_id": "r"});
    for (body, expected) in [
        (replay(json!([])), (400, "invalid")),
        (replay(json!(vec![NOBODY; 1_001])), (400, "invalid")),
        (json!({"jobs": [dead[0]]}), (400, "invalid")),
        (replay(json!([dead[0], NOBODY])), (404, "unknown_job")),
        (replay(json!([dead[0], "nonsense"])), (404, "unknown_job")),
        (replay(json!([dead[0], alive])), (409, "not_a_dead_letter")),
    ] {
        assert_eq!(rig.post("/v1/dead-letters/replay", body.clone()).await.problem(), expected, "{body}");
    }
    assert_eq!(rig.newest().await, before, "nothing was replayed");
    let answer = rig.post("/v1/dead-letters/replay", replay(json!([dead[0], dead[1]]))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let new = answer.body["jobs"][0]["id"].as_str().unwrap();
    assert_eq!(answer.body["jobs"][0]["job"], json!(dead[0]));
    assert_eq!(rig.job(new).await["retry_of"], json!(dead[0]));
    let again = rig.post("/v1/dead-letters/replay", replay(json!([dead[0], dead[1]]))).await;
    assert_eq!(again.body, answer.body, "safe to repeat");
    assert_eq!(ids(&list("/v1/dead-letters".into()).await), dead[2..]);

    let drop = |jobs: Value| rig.post("/v1/dead-letters/drop", json!({"jobs": jobs}));
    assert_eq!(drop(json!([dead[2], NOBODY])).await.problem(), (404, "unknown_job"));
    assert_eq!(drop(json!([])).await.problem(), (400, "invalid"));
    assert_eq!(drop(json!([dead[2]])).await.body, json!({"jobs": [{"job": dead[2], "dropped": true}]}));
    assert_eq!(drop(json!([dead[2]])).await.body, json!({"jobs": [{"job": dead[2], "dropped": false}]}));
    assert!(ids(&list("/v1/dead-letters".into()).await).is_empty());
}
