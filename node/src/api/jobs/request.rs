//! The way from a submission as it is written to a draft.

use std::sync::Arc;

use axum::http::HeaderMap;
use onward_api::few::Few;
use onward_api::raw::Raw;
use onward_api::submit::{KeyLimit, OnStuckWord, RetryPolicy, SubmitJob, SubmitWorkflow, TimeoutPolicyWord};
use onward_core::job::spec::{OnStuck, Retry, TimeoutPolicy};
use onward_core::job::{Draft, LimitDraft, WorkflowDraft};
use onward_core::limits::Limits;
use onward_core::settings::Rules;

use super::super::problem::ProblemResponse;
use super::super::{instant, payload, span};

/// Nothing is decided here but what JSON can get wrong; the core checks the draft.
pub fn draft(job: SubmitJob, rules: &Rules) -> Result<Draft, ProblemResponse> {
    let retry = job.retry.map(|retry| checked(retry, rules.job.retry)).transpose()?;
    let payload = Payload { json: job.payload, base64: job.payload_base64, content_type: job.content_type };
    let workflows = match (job.kind, job.workflows) {
        (Some(kind), None) => vec![payload.workflow(kind, &rules.limits)?],
        (None, Some(_)) if payload.is_given() => {
            let detail = "`payload` belongs to a workflow; give it inside `workflows`";
            return Err(ProblemResponse::invalid(detail).of_field("payload"));
        }
        (None, Some(workflows)) => {
            let workflows = workflows.take("workflows")?;
            workflows.into_iter().map(|workflow| workflow_draft(workflow, &rules.limits)).collect::<Result<_, _>>()?
        }
        (Some(_), Some(_)) => {
            let detail = "`kind` and `workflows` exclude each other; give one of them";
            return Err(ProblemResponse::invalid(detail).of_field("kind"));
        }
        (None, None) => {
            let detail = "`kind` is missing; give it, or `workflows` with a kind each";
            return Err(ProblemResponse::invalid(detail).of_field("kind"));
        }
    };
    let limits = job.limits.unwrap_or_default().take("limits")?;
    let headers = job.headers.unwrap_or_default().take("headers")?;
    Ok(Draft {
        queue: job.queue.map(Into::into),
        workflows,
        priority: job.priority.unwrap_or(0),
        timeout: span::if_given("timeout_s", job.timeout_s)?,
        stuck_after: span::if_given("stuck_after_s", job.stuck_after_s)?,
        max_extension: span::if_given("max_extension_s", job.max_extension_s)?,
        on_stuck: match job.on_stuck {
            None | Some(OnStuckWord::Retry) => OnStuck::Retry,
            Some(OnStuckWord::TimeOut) => OnStuck::TimeOut,
        },
        require_progress: job.require_progress.unwrap_or(false),
        delay: span::if_given("delay_s", job.delay_s)?,
        run_at: job.run_at.map(|at| instant::from_written("run_at", &at)).transpose()?,
        retry,
        limits: limits.into_iter().map(limit_draft).collect(),
        unique_key: job.unique_key.map(Into::into),
        idempotency_key: job.idempotency_key.map(Into::into),
        tags: texts("tags", job.tags)?,
        headers: headers.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
        retain: span::if_given("retain_s", job.retain_s)?,
        datacenters: texts("datacenters", job.datacenters)?,
        timeout_policy: match job.timeout_policy {
            None | Some(TimeoutPolicyWord::Any) => TimeoutPolicy::Any,
            Some(TimeoutPolicyWord::Majority) => TimeoutPolicy::Majority,
            Some(TimeoutPolicyWord::All) => TimeoutPolicy::All,
        },
    })
}

fn workflow_draft(workflow: SubmitWorkflow, limits: &Limits) -> Result<WorkflowDraft, ProblemResponse> {
    let SubmitWorkflow { name, kind, payload, payload_base64, content_type, after } = workflow;
    let draft = Payload { json: payload, base64: payload_base64, content_type }.workflow(kind, limits)?;
    Ok(WorkflowDraft { name: name.map(Into::into), after: texts("after", after)?, ..draft })
}

struct Payload {
    json: Option<Raw>,
    base64: Option<String>,
    content_type: Option<String>,
}

impl Payload {
    fn is_given(&self) -> bool {
        self.json.is_some() || self.base64.is_some() || self.content_type.is_some()
    }

    fn workflow(self, kind: String, limits: &Limits) -> Result<WorkflowDraft, ProblemResponse> {
        let payload =
            payload::from_fields("payload", self.json.as_deref(), self.base64.as_deref(), limits.payload_bytes)?;
        let content_type = self.content_type.map(Into::into);
        Ok(WorkflowDraft { kind: kind.into(), payload: payload.into(), content_type, ..WorkflowDraft::default() })
    }
}

fn limit_draft(limit: KeyLimit) -> LimitDraft {
    LimitDraft { key: limit.key.into(), max: limit.max, ordered: limit.ordered }
}

/// Checks a retry policy. Fields that are not given are as the settings say, as far as that goes with the others.
fn checked(policy: RetryPolicy, defaults: Retry) -> Result<Retry, ProblemResponse> {
    let base = span::if_given("retry.base_s", policy.base_s)?;
    let max = span::if_given("retry.max_s", policy.max_s)?;
    let (base, max) = match (base, max) {
        (Some(base), Some(max)) => (base, max),
        (Some(base), None) => (base, defaults.max.max(base)),
        (None, Some(max)) => (defaults.base.min(max), max),
        (None, None) => (defaults.base, defaults.max),
    };
    Ok(Retry { max_attempts: policy.max_attempts.unwrap_or(defaults.max_attempts), base, max })
}

fn texts<const MAX: usize>(field: &str, list: Option<Few<String, MAX>>) -> Result<Vec<Arc<str>>, ProblemResponse> {
    Ok(list.unwrap_or_default().take(field)?.into_iter().map(Into::into).collect())
}

/// Headers with the caller's own trace, which goes on in the job unless that says otherwise.
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
pub fn add_idempotency_key(job: &mut SubmitJob, headers: &HeaderMap) -> Result<(), ProblemResponse> {
    let Some(given) = headers.get("idempotency-key") else { return Ok(()) };
    let invalid = |detail: &str| ProblemResponse::invalid(detail).of_field("idempotency_key");
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
