use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onward_core::event::{Event, StampedEvent};
use onward_core::ids::Seq;
use onward_core::time::Wall;
use onward_log::{BatchId, BatchKey, EventLog, Log, MemoryLog};
use serde_json::{Value, json};

use crate::rig::Rig;

fn ids(list: &Value) -> Vec<&str> {
    list["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn the_newest_comes_first_and_pages_go_on_where_the_last_one_ended() {
    let rig = Rig::new().await;
    assert_eq!(rig.get("/v1/jobs").await.body, json!({"jobs": [], "next_cursor": null}));
    let mut submitted = Vec::new();
    for n in 0..7 {
        submitted.push(rig.submit(json!({"kind": "a", "payload": n})).await);
    }
    submitted.reverse();
    let all = rig.get("/v1/jobs").await.body;
    assert_eq!(ids(&all), submitted);
    assert_eq!(all["next_cursor"], Value::Null);
    assert_eq!(all["jobs"][0]["workflows"][0].get("payload"), None, "a list has no payloads");
    let exact = rig.get("/v1/jobs?limit=7").await.body;
    assert_eq!((ids(&exact).len(), &exact["next_cursor"]), (7, &Value::Null), "nothing is left");
    let (mut seen, mut path, mut pages) = (Vec::new(), "/v1/jobs?limit=3".to_owned(), 0);
    loop {
        let page = rig.get(&path).await.body;
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        pages += 1;
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/jobs?limit=3&cursor={cursor}");
    }
    assert_eq!((seen, pages), (submitted, 3));
}

#[tokio::test]
async fn filters_are_exact_and_all_must_match() {
    let rig = Rig::new().await;
    let one = rig.submit(json!({"kind": "a", "queue": "q1", "tags": ["t1", "t2"]})).await;
    let two = rig.submit(json!({"kind": "b", "queue": "q1", "tags": ["t2"], "delay_s": 100})).await;
    let many = json!({"workflows": [{"name": "x", "kind": "a"}, {"name": "y", "kind": "b"}], "queue": "q2"});
    let three = rig.submit(many).await;
    let table: [(&str, &[&String]); 9] = [
        ("kind=a", &[&three, &one]),
        ("kind=b", &[&three, &two]),
        ("queue=q1", &[&two, &one]),
        ("queue=q", &[]),
        ("tag=t2", &[&two, &one]),
        ("tag=t1&kind=a", &[&one]),
        ("state=delayed", &[&two]),
        ("state=ready&queue=q1", &[&one]),
        ("state=succeeded", &[]),
    ];
    for (query, expected) in table {
        let list = rig.get(&format!("/v1/jobs?{query}")).await.body;
        assert_eq!(ids(&list), expected, "{query}");
        assert_eq!(list["next_cursor"], Value::Null, "{query}");
    }
}

/// A leader whose clock was an hour ahead has held the seat: log time does not go back with the clock of the next.
fn move_log_time_on(log: &MemoryLog) {
    let mut log = log.clone();
    let term = log.seize_seat().unwrap().term;
    let Seq(last) = log.tail().unwrap().last;
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(3_600);
    let began = StampedEvent { at: Wall::from_ms(wall.as_millis() as u64), event: Event::TermBegan { term } };
    log.append_events(BatchKey { term, id: BatchId(last + 1), first: Seq(last + 1) }, &[began], &[]).unwrap();
}

#[tokio::test]
async fn since_when_is_measured_as_the_instants_of_jobs_are_whatever_the_wall_clock_says() {
    let log = MemoryLog::new();
    let before = Rig::on(log.clone()).await;
    let old = before.submit(json!({"kind": "a"})).await;
    before.submit(json!({"kind": "dead"})).await;
    before.fail_for_good(&before.take("dead").await, "no").await;
    drop(before);
    move_log_time_on(&log);
    let rig = Rig::on(log).await;
    let mut new = Vec::new();
    for _ in 0..3 {
        new.insert(0, rig.submit(json!({"kind": "a"})).await);
    }
    let all = rig.get("/v1/jobs?kind=a&since_s=7200").await.body;
    assert_eq!(ids(&all), [&new[0], &new[1], &new[2], &old]);
    let (mut seen, mut path) = (Vec::new(), "/v1/jobs?since_s=1800&limit=1".to_owned());
    loop {
        let page = rig.get(&path).await.body;
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/jobs?since_s=1800&limit=1&cursor={cursor}");
    }
    assert_eq!(seen, new, "page by page, those of the last half hour of log time");
    let dead = rig.get("/v1/dead-letters?since_s=1800").await.body;
    assert_eq!(dead["dead_letters"], json!([]), "it died an hour ago");
    let would = rig.post("/v1/jobs/cancel", json!({"since_s": 1800, "dry_run": true})).await.body;
    assert_eq!((&would["would_cancel"], &would["jobs"]), (&json!(3), &json!(new)));
}

#[tokio::test]
async fn a_rare_job_is_found_behind_many_others() {
    let rig = Rig::new().await;
    let rare = rig.submit(json!({"kind": "rare"})).await;
    for _ in 0..2 {
        let batch = json!({"jobs": vec![json!({"kind": "a"}); 3_000]});
        assert_eq!(rig.post("/v1/jobs/batch", batch).await.status, 201);
    }
    let reads = rig.engine.stats().reads.get();
    assert_eq!(ids(&rig.get("/v1/jobs?kind=rare").await.body), [&rare]);
    assert!(rig.engine.stats().reads.get() - reads >= 6, "no single read went through all of them");
    assert_eq!(ids(&rig.get("/v1/jobs?limit=1000").await.body).len(), 1_000);
}

#[tokio::test]
async fn a_page_of_large_results_is_cut_and_says_where_to_go_on() {
    let rig = Rig::new().await;
    let large = format!("\"{}\"", "r".repeat(1_000_000));
    for _ in 0..10 {
        rig.submit(json!({"kind": "a"})).await;
        let taken = rig.take("a").await;
        rig.succeed(&taken, large.as_bytes()).await;
    }
    let first = rig.get("/v1/jobs").await.body;
    let shown = ids(&first).len();
    assert!((1..10).contains(&shown), "{shown}");
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = rig.get(&format!("/v1/jobs?cursor={cursor}")).await.body;
    assert_eq!(shown + ids(&rest).len(), 10);
}

#[tokio::test]
async fn a_query_that_makes_no_sense_is_refused_by_name() {
    let rig = Rig::new().await;
    for (path, word) in [
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=1001", "limit"),
        ("/v1/jobs?limit=-1", "limit"),
        ("/v1/jobs?limit=many", "limit"),
        ("/v1/jobs?cursor=x", "cursor"),
        ("/v1/jobs?state=asleep", "state"),
        ("/v1/jobs?kind=", "kind"),
        ("/v1/jobs?tag=%00", "tag"),
        ("/v1/jobs?colour=red", "colour"),
        ("/v1/nodes?cursor=x", "cursor"),
        ("/v1/nodes?limit=0", "limit"),
        ("/v1/dead-letters?cursor=-1", "cursor"),
        ("/v1/dead-letters?limit=5000", "limit"),
    ] {
        let answer = rig.get(path).await;
        assert_eq!(answer.problem(), (400, "invalid"), "{path}");
        assert!(answer.body["detail"].as_str().unwrap().contains(word), "{path}: {}", answer.body);
    }
}
