//! A submission as it is written in JSON, and the way from there to a draft.

use std::sync::Arc;

use axum::http::HeaderMap;
use onward_core::job::spec::{OnStuck, Retry, TimeoutPolicy};
use onward_core::job::{Draft, LimitDraft, WorkflowDraft};
use onward_core::limits::Limits;
use onward_core::settings::Rules;
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::super::few::{Few, FewPairs};
use super::super::instant::Written;
use super::super::problem::Problem;
use super::super::{payload, span};

/// More than any setting allows; the settings' own limits are checked after this.
const MANY: usize = 1_024;
const MAX_WORKFLOWS: usize = 10_000;

/// One job: either `kind`, or `workflows`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitJob {
    /// The name that a handler is registered under.
    kind: Option<String>,
    /// Any JSON; handed to the handler as it was written.
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// Instead of `payload`, for what is not JSON.
    payload_base64: Option<String>,
    content_type: Option<String>,
    #[schema(value_type = Option<Vec<SubmitWorkflow>>)]
    workflows: Option<Few<SubmitWorkflow, MAX_WORKFLOWS>>,
    queue: Option<String>,
    /// From −100 to 100, higher first.
    priority: Option<i32>,
    timeout_s: Option<f64>,
    stuck_after_s: Option<f64>,
    max_extension_s: Option<f64>,
    on_stuck: Option<OnStuckWord>,
    require_progress: Option<bool>,
    delay_s: Option<f64>,
    /// RFC 3339, or milliseconds since 1970.
    #[schema(value_type = Option<String>)]
    run_at: Option<Written>,
    retry: Option<RetryPolicy>,
    #[schema(value_type = Option<Vec<KeyLimit>>)]
    limits: Option<Few<KeyLimit, MANY>>,
    /// One job at a time that has not ended.
    unique_key: Option<String>,
    /// The same submission again gives the same job. The header `Idempotency-Key` says the same.
    pub(super) idempotency_key: Option<String>,
    #[schema(value_type = Option<Vec<String>>)]
    datacenters: Option<Few<String, MANY>>,
    timeout_policy: Option<TimeoutPolicyWord>,
    #[schema(value_type = Option<Vec<String>>)]
    tags: Option<Few<String, MANY>>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    headers: Option<FewPairs<MANY>>,
    /// How long the ended job is kept.
    retain_s: Option<f64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitWorkflow {
    name: Option<String>,
    kind: String,
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    content_type: Option<String>,
    /// Names of the workflows whose success this one waits for.
    #[schema(value_type = Option<Vec<String>>)]
    after: Option<Few<String, MAX_WORKFLOWS>>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryPolicy {
    max_attempts: Option<u32>,
    base_s: Option<f64>,
    max_s: Option<f64>,
}

/// At most `max` running workflows that carry `key`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyLimit {
    key: String,
    max: u32,
    /// Only with a `max` of 1: a workflow that has begun keeps the key until it ends, also while it waits for its next
    /// attempt, so that no other overtakes it.
    #[serde(default)]
    ordered: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnStuckWord {
    Retry,
    TimeOut,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutPolicyWord {
    Any,
    Majority,
    All,
}

impl SubmitJob {
    /// Nothing is decided here but what JSON can get wrong; the core checks the draft.
    pub fn draft(self, rules: &Rules) -> Result<Draft, Problem> {
        let retry = self.retry.map(|retry| retry.checked(rules.job.retry)).transpose()?;
        let payload = Payload { json: self.payload, base64: self.payload_base64, content_type: self.content_type };
        let workflows = match (self.kind, self.workflows) {
            (Some(kind), None) => vec![payload.workflow(kind, &rules.limits)?],
            (None, Some(_)) if payload.is_given() => {
                let detail = "`payload` belongs to a workflow; give it inside `workflows`";
                return Err(Problem::invalid(detail).of_field("payload"));
            }
            (None, Some(workflows)) => {
                let workflows = workflows.take("workflows")?;
                workflows.into_iter().map(|workflow| workflow.draft(&rules.limits)).collect::<Result<_, _>>()?
            }
            (Some(_), Some(_)) => {
                let detail = "`kind` and `workflows` exclude each other; give one of them";
                return Err(Problem::invalid(detail).of_field("kind"));
            }
            (None, None) => {
                let detail = "`kind` is missing; give it, or `workflows` with a kind each";
                return Err(Problem::invalid(detail).of_field("kind"));
            }
        };
        let limits = self.limits.unwrap_or_default().take("limits")?;
        let headers = self.headers.unwrap_or_default().take("headers")?;
        Ok(Draft {
            queue: self.queue.map(Into::into),
            workflows,
            priority: self.priority.unwrap_or(0),
            timeout: span::if_given("timeout_s", self.timeout_s)?,
            stuck_after: span::if_given("stuck_after_s", self.stuck_after_s)?,
            max_extension: span::if_given("max_extension_s", self.max_extension_s)?,
            on_stuck: match self.on_stuck {
                None | Some(OnStuckWord::Retry) => OnStuck::Retry,
                Some(OnStuckWord::TimeOut) => OnStuck::TimeOut,
            },
            require_progress: self.require_progress.unwrap_or(false),
            delay: span::if_given("delay_s", self.delay_s)?,
            run_at: self.run_at.map(|at| at.instant("run_at")).transpose()?,
            retry,
            limits: limits.into_iter().map(KeyLimit::draft).collect(),
            unique_key: self.unique_key.map(Into::into),
            idempotency_key: self.idempotency_key.map(Into::into),
            tags: texts("tags", self.tags)?,
            headers: headers.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
            retain: span::if_given("retain_s", self.retain_s)?,
            datacenters: texts("datacenters", self.datacenters)?,
            timeout_policy: match self.timeout_policy {
                None | Some(TimeoutPolicyWord::Any) => TimeoutPolicy::Any,
                Some(TimeoutPolicyWord::Majority) => TimeoutPolicy::Majority,
                Some(TimeoutPolicyWord::All) => TimeoutPolicy::All,
            },
        })
    }
}

impl SubmitWorkflow {
    fn draft(self, limits: &Limits) -> Result<WorkflowDraft, Problem> {
        let payload = Payload { json: self.payload, base64: self.payload_base64, content_type: self.content_type };
        let draft = payload.workflow(self.kind, limits)?;
        Ok(WorkflowDraft { name: self.name.map(Into::into), after: texts("after", self.after)?, ..draft })
    }
}

struct Payload {
    json: Option<Box<RawValue>>,
    base64: Option<String>,
    content_type: Option<String>,
}

impl Payload {
    fn is_given(&self) -> bool {
        self.json.is_some() || self.base64.is_some() || self.content_type.is_some()
    }

    fn workflow(self, kind: String, limits: &Limits) -> Result<WorkflowDraft, Problem> {
        let payload =
            payload::from_fields("payload", self.json.as_deref(), self.base64.as_deref(), limits.payload_bytes)?;
        let content_type = self.content_type.map(Into::into);
        Ok(WorkflowDraft { kind: kind.into(), payload: payload.into(), content_type, ..WorkflowDraft::default() })
    }
}

impl KeyLimit {
    fn draft(self) -> LimitDraft {
        LimitDraft { key: self.key.into(), max: self.max, ordered: self.ordered }
    }
}

impl RetryPolicy {
    /// What is not given is as the settings say, as far as it goes with what is.
    fn checked(self, defaults: Retry) -> Result<Retry, Problem> {
        let base = span::if_given("retry.base_s", self.base_s)?;
        let max = span::if_given("retry.max_s", self.max_s)?;
        let (base, max) = match (base, max) {
            (Some(base), Some(max)) => (base, max),
            (Some(base), None) => (base, defaults.max.max(base)),
            (None, Some(max)) => (defaults.base.min(max), max),
            (None, None) => (defaults.base, defaults.max),
        };
        Ok(Retry { max_attempts: self.max_attempts.unwrap_or(defaults.max_attempts), base, max })
    }
}

fn texts<const MAX: usize>(field: &str, list: Option<Few<String, MAX>>) -> Result<Vec<Arc<str>>, Problem> {
    Ok(list.unwrap_or_default().take(field)?.into_iter().map(Into::into).collect())
}

/// Where the caller's own trace goes on, unless the job says otherwise.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

pub fn add_trace(draft: &mut Draft, headers: &HeaderMap) {
    for name in TRACE {
        let given = draft.headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name));
        if let Some(value) = headers.get(name).and_then(|value| value.to_str().ok())
            && !given
            && value.len() <= MAX_TRACE_BYTES
        {
            draft.headers.push((name.into(), value.into()));
        }
    }
}

/// A longer one is not worth refusing a job for.
const MAX_TRACE_BYTES: usize = 512;

/// The key in the header and the one in the body are the same thing, so they must not differ.
pub fn add_idempotency_key(job: &mut SubmitJob, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(given) = headers.get("idempotency-key") else { return Ok(()) };
    let invalid = |detail: &str| Problem::invalid(detail).of_field("idempotency_key");
    let given = given.to_str().map_err(|_| invalid("the header `Idempotency-Key` must be printable ASCII"))?;
    match &job.idempotency_key {
        Some(own) if own != given => {
            Err(invalid("`idempotency_key` and the header `Idempotency-Key` differ; give one of them"))
        }
        _ => {
            job.idempotency_key = Some(given.into());
            Ok(())
        }
    }
}
