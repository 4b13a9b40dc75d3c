//! Jobs over HTTP: commands to submit, and what became of them.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::http::Client;
use super::process::until;

const TERMINAL: [&str; 4] = ["succeeded", "failed", "timed_out", "cancelled"];

/// An attempt as the job shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    pub fence: u64,
    pub worker: String,
    /// Empty while it runs.
    pub outcome: String,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

/// A shell script as a job; `more` goes into the submission.
pub fn shell(script: &str, env: &[(&str, &str)], more: &Value) -> Value {
    let env: serde_json::Map<String, Value> =
        env.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let mut job = json!({ "kind": "exec", "payload": { "argv": ["sh", "-c", script], "env": env } });
    for (name, value) in more.as_object().into_iter().flatten() {
        job[name] = value.clone();
    }
    job
}

pub async fn submit(client: &mut Client, job: &Value) -> String {
    let reply = client.post("/v1/jobs", job).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    reply.json()["id"].as_str().expect("an id").to_owned()
}

pub async fn show(client: &mut Client, id: &str) -> Value {
    let reply = client.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

pub fn is_terminal(job: &Value) -> bool {
    TERMINAL.contains(&job["state"].as_str().unwrap_or_default())
}

pub async fn ended(client: &mut Client, id: &str, within: Duration) -> Value {
    until(&format!("job {id} ends"), within, async || Some(show(client, id).await).filter(is_terminal)).await
}

pub fn attempts(job: &Value) -> Vec<Attempt> {
    let text = |attempt: &Value, name: &str| attempt[name].as_str().unwrap_or_default().to_owned();
    let shown = job["workflows"][0]["attempts"].as_array().expect("attempts are shown");
    let one = |one: &Value| Attempt {
        fence: one["fence"].as_u64().expect("a fence is a number"),
        worker: text(one, "worker"),
        outcome: text(one, "outcome"),
        started_at: instant(&one["started_at"]).expect("an attempt has begun"),
        ended_at: instant(&one["ended_at"]),
    };
    shown.iter().map(one).collect()
}

/// An instant by the node's clock, which no delay of a test can move.
pub fn instant(value: &Value) -> Option<Timestamp> {
    value.as_str().map(|text| text.parse().expect("instants are written as RFC 3339"))
}

/// The time from one instant to another; nothing, if the other was first.
pub fn span(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// The time of the node's clock: it stamps a job that nobody takes.
pub async fn now(client: &mut Client) -> Timestamp {
    let id = submit(client, &json!({ "kind": "nobody-takes-this" })).await;
    instant(&show(client, &id).await["created_at"]).expect("it was submitted")
}

pub fn outcomes(job: &Value) -> Vec<String> {
    attempts(job).into_iter().map(|attempt| attempt.outcome).collect()
}

pub async fn ledger(client: &mut Client, id: &str) -> Vec<Value> {
    let reply = client.get(&format!("/v1/jobs/{id}/ledger")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["entries"].as_array().expect("a ledger has entries").clone()
}

/// Facts of the ledger, in short: `attempt_ended stuck`, `refused stale_attempt`, `timed_out stuck`.
pub fn facts(ledger: &[Value]) -> Vec<String> {
    let word = |entry: &Value| {
        let about = ["outcome", "refusal", "reason"].iter().find_map(|name| entry[*name].as_str());
        format!("{} {}", entry["what"].as_str().unwrap_or_default(), about.unwrap_or_default()).trim_end().to_owned()
    };
    ledger.iter().map(word).collect()
}

/// How often a claim was refused as this, by whoever it came.
pub async fn refusals(client: &mut Client, code: &str) -> u64 {
    client.get("/v1/stats").await.json()["refusals"][code].as_u64().unwrap_or(0)
}
