//! A job to submit.

use core::time::Duration;
use std::collections::BTreeMap;

use onward_api::raw::Raw;
use onward_api::submit::{KeyLimit, OnStuckWord, RetryPolicy, SubmitJob, SubmitWorkflow};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A job with its options. What is not said is as the node's defaults are.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Job {
    body: SubmitJob,
    /// Fields that were [set](Job::set) by their names, in place of those of `body`.
    more: BTreeMap<String, Value>,
}

impl Job {
    /// A job of one workflow, whose payload is written as JSON.
    pub fn new(kind: &str, payload: impl Serialize) -> Result<Self, serde_json::Error> {
        let payload = Some(Raw::of(&payload)?);
        Ok(Self { body: SubmitJob { payload, ..Self::of_kind(kind).body }, ..Self::default() })
    }

    /// A job of one workflow, without a payload.
    pub fn of_kind(kind: &str) -> Self {
        Self { body: SubmitJob { kind: Some(kind.into()), ..SubmitJob::default() }, ..Self::default() }
    }

    /// A job of several workflows: add them with [`Job::workflow`].
    pub fn of_workflows() -> Self {
        Self { body: SubmitJob { workflows: Some(Vec::new().into()), ..SubmitJob::default() }, ..Self::default() }
    }

    /// Adds a workflow, which waits for the success of those in `after` and gets their results as inputs.
    pub fn workflow(
        mut self,
        name: &str,
        kind: &str,
        payload: impl Serialize,
        after: &[&str],
    ) -> Result<Self, serde_json::Error> {
        self.body.workflows.get_or_insert_default().push(SubmitWorkflow {
            name: Some(name.into()),
            kind: kind.into(),
            payload: Some(Raw::of(&payload)?),
            after: Some(after.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>().into()),
            ..SubmitWorkflow::default()
        });
        Ok(self)
    }

    pub fn queue(mut self, queue: &str) -> Self {
        self.body.queue = Some(queue.into());
        self
    }

    /// −100 to 100, higher first.
    pub fn priority(mut self, priority: i32) -> Self {
        self.body.priority = Some(priority);
        self
    }

    /// The time in which the job must have ended, queueing included.
    pub fn timeout(mut self, span: Duration) -> Self {
        self.body.timeout_s = Some(span.as_secs_f64());
        self
    }

    /// The time that an attempt may go without a forward step.
    pub fn stuck_after(mut self, span: Duration) -> Self {
        self.body.stuck_after_s = Some(span.as_secs_f64());
        self
    }

    /// A stuck attempt ends the job, instead of being redelivered.
    pub fn time_out_when_stuck(mut self) -> Self {
        self.body.on_stuck = Some(OnStuckWord::TimeOut);
        self
    }

    /// Beats alone are no forward steps.
    pub fn require_progress(mut self) -> Self {
        self.body.require_progress = Some(true);
        self
    }

    pub fn delay(mut self, span: Duration) -> Self {
        self.body.delay_s = Some(span.as_secs_f64());
        self
    }

    /// The number of attempts in all.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.retry_policy().max_attempts = Some(attempts);
        self
    }

    /// The wait between attempts: from `base`, doubling, up to `max`, with full jitter.
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        let policy = self.retry_policy();
        (policy.base_s, policy.max_s) = (Some(base.as_secs_f64()), Some(max.as_secs_f64()));
        self
    }

    fn retry_policy(&mut self) -> &mut RetryPolicy {
        self.body.retry.get_or_insert_default()
    }

    /// Limits the running workflows that carry `key` to `max`.
    pub fn limit(self, key: &str, max: u32) -> Self {
        self.add_limit(KeyLimit { key: key.into(), max, ordered: false })
    }

    /// Allows one running workflow that carries `key`, and in order: one that has begun keeps the key until it ends,
    /// also while it waits for its next attempt, so that no other overtakes it.
    pub fn ordered(self, key: &str) -> Self {
        self.add_limit(KeyLimit { key: key.into(), max: 1, ordered: true })
    }

    fn add_limit(mut self, limit: KeyLimit) -> Self {
        self.body.limits.get_or_insert_default().push(limit);
        self
    }

    /// Allows one job with this key at a time that has not ended.
    pub fn unique_key(mut self, key: &str) -> Self {
        self.body.unique_key = Some(key.into());
        self
    }

    /// The same submission again is the same job. One is made up where none is given, so that a repeated call is safe.
    pub fn idempotency_key(mut self, key: &str) -> Self {
        self.body.idempotency_key = Some(key.into());
        self
    }

    pub fn tags(mut self, tags: &[&str]) -> Self {
        self.body.tags = Some(tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>().into());
        self
    }

    /// Passed through to the handler; `traceparent` among them.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.body.headers.get_or_insert_default().set(name.into(), value.into());
        self
    }

    /// Any other field of the HTTP API, in place of what was said of it before.
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.more.insert(field.into(), value.into());
        self
    }

    pub(super) fn with_key(mut self) -> Self {
        if !self.more.contains_key("idempotency_key") {
            self.body.idempotency_key.get_or_insert_with(random_key);
        }
        self
    }
}

impl From<SubmitJob> for Job {
    fn from(body: SubmitJob) -> Self {
        Self { body, ..Self::default() }
    }
}

impl Serialize for Job {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::Error;
        if self.more.is_empty() {
            return self.body.serialize(serializer);
        }
        let body = serde_json::to_string(&self.body).map_err(S::Error::custom)?;
        let mut fields: BTreeMap<String, Raw> = serde_json::from_str(&body).map_err(S::Error::custom)?;
        for (name, value) in &self.more {
            fields.insert(name.clone(), Raw::of(value).map_err(S::Error::custom)?);
        }
        fields.serialize(serializer)
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
    use serde_json::json;

    #[test]
    fn limits_are_written_as_the_api_reads_them() {
        let job = Job::new("k", 1).unwrap().limit("gpu", 2).ordered("account-1");
        let limits = json!([{"key": "gpu", "max": 2}, {"key": "account-1", "max": 1, "ordered": true}]);
        assert_eq!(serde_json::to_value(job).unwrap()["limits"], limits);
    }

    #[test]
    fn a_field_that_is_set_by_its_name_takes_the_place_of_what_was_said() {
        let job = Job::new("k", json!({"n": 1})).unwrap().queue("slow").set("queue", "fast").set("new_field", 7);
        let body = json!({"kind": "k", "payload": {"n": 1}, "queue": "fast", "new_field": 7});
        assert_eq!(serde_json::to_value(&job).unwrap(), body);
        assert_eq!(
            serde_json::to_value(job.set("idempotency_key", "own").with_key()).unwrap()["idempotency_key"],
            "own"
        );
    }
}
