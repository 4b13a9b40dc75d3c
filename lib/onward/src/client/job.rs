//! A job to submit.

use core::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

/// A job with its options. What is not said is as the node's defaults are.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    body: Map<String, Value>,
}

impl Job {
    /// A job of one workflow, whose payload is written as JSON.
    pub fn new(kind: &str, payload: impl Serialize) -> Result<Self, serde_json::Error> {
        let mut body = Map::new();
        body.insert("kind".into(), kind.into());
        body.insert("payload".into(), serde_json::to_value(payload)?);
        Ok(Self { body })
    }

    /// A job of one workflow, whose payload is still to be [set](Self::set).
    #[cfg(feature = "outbox")]
    pub(crate) fn of_kind(kind: &str) -> Self {
        Self { body: Map::from_iter([("kind".to_owned(), kind.into())]) }
    }

    /// A job of several workflows: add them with [`Job::workflow`].
    pub fn of_workflows() -> Self {
        Self { body: Map::from_iter([("workflows".to_owned(), Value::Array(Vec::new()))]) }
    }

    /// One more workflow, which waits for the success of those in `after` and gets their results as inputs.
    pub fn workflow(
        mut self,
        name: &str,
        kind: &str,
        payload: impl Serialize,
        after: &[&str],
    ) -> Result<Self, serde_json::Error> {
        let one = json!({ "name": name, "kind": kind, "payload": serde_json::to_value(payload)?, "after": after });
        match self.body.get_mut("workflows") {
            Some(Value::Array(list)) => list.push(one),
            _ => drop(self.body.insert("workflows".into(), Value::Array(vec![one]))),
        }
        Ok(self)
    }

    pub fn queue(self, queue: &str) -> Self {
        self.set("queue", queue)
    }

    /// −100 to 100, higher first.
    pub fn priority(self, priority: i32) -> Self {
        self.set("priority", priority)
    }

    /// Until the job must have ended, queueing included.
    pub fn timeout(self, span: Duration) -> Self {
        self.set("timeout_s", span.as_secs_f64())
    }

    /// For how long an attempt may go without a forward step.
    pub fn stuck_after(self, span: Duration) -> Self {
        self.set("stuck_after_s", span.as_secs_f64())
    }

    /// A stuck attempt ends the job, instead of being redelivered.
    pub fn time_out_when_stuck(self) -> Self {
        self.set("on_stuck", "time_out")
    }

    /// Beats alone are no forward steps.
    pub fn require_progress(self) -> Self {
        self.set("require_progress", true)
    }

    pub fn delay(self, span: Duration) -> Self {
        self.set("delay_s", span.as_secs_f64())
    }

    /// How often it is tried in all.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        let retry = self.body.entry("retry").or_insert_with(|| json!({}));
        retry["max_attempts"] = attempts.into();
        self
    }

    /// How long it waits between attempts: from `base`, doubling, up to `max`, with full jitter.
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        let retry = self.body.entry("retry").or_insert_with(|| json!({}));
        retry["base_s"] = base.as_secs_f64().into();
        retry["max_s"] = max.as_secs_f64().into();
        self
    }

    /// At most `max` running workflows that carry `key`.
    pub fn limit(self, key: &str, max: u32) -> Self {
        self.add_limit(json!({ "key": key, "max": max }))
    }

    /// One running workflow that carries `key`, and in order: one that has begun keeps the key until it ends, also while it
    /// waits for its next attempt, so that no other overtakes it.
    pub fn ordered(self, key: &str) -> Self {
        self.add_limit(json!({ "key": key, "max": 1, "ordered": true }))
    }

    fn add_limit(mut self, limit: Value) -> Self {
        let limits = self.body.entry("limits").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(limits) = limits {
            limits.push(limit);
        }
        self
    }

    /// One job at a time that has not ended.
    pub fn unique_key(self, key: &str) -> Self {
        self.set("unique_key", key)
    }

    /// The same submission again is the same job. One is made up where none is given, so that a repeated call is safe.
    pub fn idempotency_key(self, key: &str) -> Self {
        self.set("idempotency_key", key)
    }

    pub fn tags(self, tags: &[&str]) -> Self {
        self.set("tags", tags)
    }

    /// Passed through to the handler; `traceparent` among them.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let headers = self.body.entry("headers").or_insert_with(|| json!({}));
        headers[name] = value.into();
        self
    }

    /// Any other field of the HTTP API.
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.body.insert(field.into(), value.into());
        self
    }

    pub(super) fn with_key(mut self) -> Self {
        self.body.entry("idempotency_key").or_insert_with(|| random_key().into());
        self
    }

    pub(super) fn into_body(self) -> Map<String, Value> {
        self.body
    }
}

pub(crate) fn random_key() -> String {
    let mut bytes = [0u8; 16];
    // Without randomness there is no safe way to go on.
    getrandom::fill(&mut bytes).expect("the system gives randomness");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_the_api_reads_them() {
        let job = Job::new("k", 1).unwrap().limit("gpu", 2).ordered("account-1");
        let limits = json!([{"key": "gpu", "max": 2}, {"key": "account-1", "max": 1, "ordered": true}]);
        assert_eq!(job.into_body()["limits"], limits);
    }
}
