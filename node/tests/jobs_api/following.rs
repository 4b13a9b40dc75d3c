use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use onward_core::input::Call;
use onward_core::message::Beat;
use onward_node::api::jobs::follow::Followers;
use serde_json::{Value, json};

use crate::rig::Rig;

/// Longer than anything here takes, on a busy computer too.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn waiting_answers_when_the_job_has_ended() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a"})).await;
    let taken = rig.take("a").await;
    let path = format!("/v1/jobs/{id}?wait_s=60");
    let early = |path| tokio::time::timeout(Duration::from_secs(50), rig.get(path));
    let (answer, ()) = tokio::join!(early(&path), async {
        tokio::task::yield_now().await;
        rig.succeed(&taken, b"42").await;
    });
    let answer = answer.expect("as soon as it has ended");
    assert_eq!((&answer.body["state"], &answer.body["result"]), (&json!("succeeded"), &json!(42)));
    // One that has ended is answered at once.
    assert_eq!(early(&path).await.expect("at once").body["state"], "succeeded");
}

#[tokio::test]
async fn waiting_ends_when_its_time_is_over() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a"})).await;
    for wait in ["0", "0.02", "-0"] {
        assert_eq!(rig.get(&format!("/v1/jobs/{id}?wait_s={wait}")).await.body["state"], "ready");
    }
    for wait in ["-1", "60.1", "NaN", "inf", "1e400", "soon", ""] {
        let answer = rig.get(&format!("/v1/jobs/{id}?wait_s={wait}")).await;
        assert_eq!(answer.problem(), (400, "invalid"), "{wait}");
        assert!(answer.body["detail"].as_str().unwrap().contains("wait_s"), "{wait}: {}", answer.body);
    }
}

struct Events {
    body: Body,
    text: String,
}

impl Events {
    async fn of(rig: &Rig, id: &str) -> Self {
        let request = Request::get(format!("/v1/jobs/{id}/events")).body(Body::empty()).unwrap();
        let response = rig.send(request).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new() }
    }

    /// The next event's name and data; none once the stream has closed.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                // A comment keeps a quiet stream open.
                if event.starts_with(':') {
                    continue;
                }
                let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
                return Some((name.to_owned(), serde_json::from_str(data).unwrap()));
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("in time")?;
            self.text.push_str(core::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap());
        }
    }

    async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (name, job) = self.next().await.expect("not yet ended");
            assert_eq!(name, "job");
            if wanted(&job) {
                return job;
            }
        }
    }
}

#[tokio::test]
async fn a_stream_shows_the_job_then_each_change_then_its_end() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a", "payload": {"n": 1}})).await;
    let mut events = Events::of(&rig, &id).await;
    let (name, job) = events.next().await.unwrap();
    assert_eq!((name.as_str(), &job["id"], &job["state"]), ("job", &json!(id), &json!("ready")));
    assert_eq!(job["workflows"][0].get("payload"), None, "who follows knows it, or asks for it");
    let taken = rig.take("a").await;
    let job = events.until(|job| job["state"] == "running").await;
    let attempt = &job["workflows"][0]["attempts"][0];
    assert_eq!((&attempt["ended_at"], &attempt["outcome"]), (&Value::Null, &Value::Null));
    assert!(attempt["lease_remaining_ms"].as_u64().unwrap() > 0 && attempt["stuck_in_ms"].as_u64().unwrap() > 0);
    assert_eq!(job["reason"], "running: on w1");
    // Progress is soft and rings no bell; it shows all the same.
    let beat = Beat { total: Some(10), note: Some("third".into()), ..Beat::progress(taken.claim, 3) };
    rig.engine.call(Call::Beat(vec![beat])).await.unwrap();
    let job = events.until(|job| job["progress"]["done"] == 3).await;
    assert_eq!(job["progress"], json!({"done": 3, "total": 10}));
    assert_eq!(job["workflows"][0]["attempts"][0]["note"], "third");
    rig.succeed(&taken, b"{\n\"a\":\r\n1}").await;
    events.until(|job| job["state"] == "succeeded").await;
    let (name, job) = events.next().await.unwrap();
    assert_eq!((name.as_str(), &job["result"]), ("end", &json!({"a": 1})));
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn who_has_not_taken_an_event_is_given_none_but_the_newest_afterwards() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a"})).await;
    let mut slow = Events::of(&rig, &id).await.body;
    let mut next = async || {
        let frame = tokio::time::timeout(PATIENCE, slow.frame()).await.expect("in time").expect("it goes on");
        frame.unwrap().into_data().unwrap()
    };
    // Its name, the job, and an empty line.
    let untaken = [next().await, next().await, next().await];
    let mut others = Events::of(&rig, &id).await;
    for n in 1..=5 {
        let extend = json!({"by_s": 1, "reason": "slow", "request_id": format!("r{n}")});
        assert_eq!(rig.post(&format!("/v1/jobs/{id}/extend"), extend).await.status, 200);
        others.until(|job| job["extensions_s"] == f64::from(n)).await;
    }
    drop(untaken);
    next().await;
    let job: Value = serde_json::from_slice(&next().await).unwrap();
    assert_eq!(job["extensions_s"], 5.0);
}

#[tokio::test]
async fn a_stream_of_an_ended_job_ends_at_once_and_an_unknown_one_has_none() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a"})).await;
    rig.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    let mut events = Events::of(&rig, &id).await;
    assert_eq!(events.next().await.unwrap().0, "job");
    let (name, job) = events.next().await.unwrap();
    assert_eq!((name.as_str(), &job["state"]), ("end", &json!("cancelled")));
    assert_eq!(events.next().await, None);
    assert_eq!(rig.get("/v1/jobs/nonsense/events").await.problem(), (404, "unknown_job"));
}

#[tokio::test]
async fn only_so_many_may_follow_and_who_leaves_makes_room() {
    let rig = Rig::with_followers(Followers::at_most(1)).await;
    let id = rig.submit(json!({"kind": "a"})).await;
    let mut first = Events::of(&rig, &id).await;
    first.next().await.unwrap();
    let path = format!("/v1/jobs/{id}/events");
    let refused = rig.get(&path).await;
    assert_eq!(refused.problem(), (503, "overloaded"));
    assert!(refused.headers.contains_key("retry-after"));
    let waiting = format!("/v1/jobs/{id}?wait_s=1");
    assert_eq!(rig.get(&waiting).await.problem(), (503, "overloaded"));
    assert_eq!(rig.get(&format!("/v1/jobs/{id}")).await.status, 200, "looking once is always possible");
    drop(first);
    rig.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    let followed = tokio::time::timeout(PATIENCE, async {
        while rig.get(&waiting).await.status != 200 {
            tokio::task::yield_now().await;
        }
    });
    followed.await.expect("the place of the one that left is free again");
}
