//! A submission. Only its shape is checked here; core's `job::draft::check` judges the rest, for every way in.

use onward_core::ids::JobId;
use onward_core::job::{Draft, LimitDraft, OnStuck, Retry, TimeoutPolicy, WorkflowDraft};
use onward_core::time::Wall;
use std::sync::Arc;

use crate::common::{job_id_in, job_id_out, payload_in, payload_out, some_span_in, span_out};
use crate::malformed::{FieldProblem, MalformedMessage};
use crate::v1;

/// Reads a draft. Fields that a retry policy leaves out are taken from `retry`.
pub fn draft_in(wire: v1::Draft, retry: &Retry) -> Result<Draft, MalformedMessage> {
    Ok(Draft {
        on_stuck: on_stuck_in(wire.on_stuck)?,
        timeout_policy: timeout_policy_in(wire.timeout_policy)?,
        queue: some_text(wire.queue),
        workflows: wire.workflows.into_iter().map(workflow_in).collect(),
        priority: wire.priority,
        timeout: some_span_in(wire.timeout_ms, "timeout_ms")?,
        stuck_after: some_span_in(wire.stuck_after_ms, "stuck_after_ms")?,
        max_extension: some_span_in(wire.max_extension_ms, "max_extension_ms")?,
        require_progress: wire.require_progress,
        delay: some_span_in(wire.delay_ms, "delay_ms")?,
        run_at: wire.run_at_unix_ms.map(run_at_in).transpose()?,
        retry: wire.retry.map(|policy| retry_in(policy, retry)).transpose().map_err(|error| error.under("retry"))?,
        limits: wire.limits.into_iter().map(limit_in).collect(),
        unique_key: some_text(wire.unique_key),
        idempotency_key: some_text(wire.idempotency_key),
        tags: texts(wire.tags),
        headers: wire.headers.into_iter().map(|header| (header.name.into(), header.value.into())).collect(),
        retain: some_span_in(wire.retain_ms, "retain_ms")?,
        datacenters: texts(wire.datacenters),
    })
}

pub fn draft_out(draft: Draft) -> v1::Draft {
    let strings = |list: Vec<Arc<str>>| list.iter().map(|text| String::from(&**text)).collect();
    let some_string = |text: Option<Arc<str>>| text.map(|text| String::from(&*text));
    let on_stuck = match draft.on_stuck {
        OnStuck::Retry => v1::OnStuck::Retry,
        OnStuck::TimeOut => v1::OnStuck::TimeOut,
    };
    let workflow = |workflow: WorkflowDraft| v1::WorkflowDraft {
        name: some_string(workflow.name),
        kind: String::from(&*workflow.kind),
        payload: payload_out(&workflow.payload),
        content_type: some_string(workflow.content_type),
        after: strings(workflow.after),
    };
    v1::Draft {
        workflows: draft.workflows.into_iter().map(workflow).collect(),
        queue: some_string(draft.queue),
        priority: draft.priority,
        timeout_ms: draft.timeout.map(span_out),
        stuck_after_ms: draft.stuck_after.map(span_out),
        max_extension_ms: draft.max_extension.map(span_out),
        on_stuck: on_stuck.into(),
        require_progress: draft.require_progress,
        delay_ms: draft.delay.map(span_out),
        run_at_unix_ms: draft.run_at.map(Wall::as_ms),
        retry: draft.retry.map(|retry| v1::RetryPolicy {
            max_attempts: Some(retry.max_attempts),
            base_ms: Some(span_out(retry.base)),
            max_ms: Some(span_out(retry.max)),
        }),
        limits: draft
            .limits
            .into_iter()
            .map(|LimitDraft { key, max, ordered }| v1::ConcurrencyLimit { key: String::from(&*key), max, ordered })
            .collect(),
        unique_key: some_string(draft.unique_key),
        idempotency_key: some_string(draft.idempotency_key),
        tags: strings(draft.tags),
        headers: draft
            .headers
            .into_iter()
            .map(|(name, value)| v1::Header { name: String::from(&*name), value: value.into() })
            .collect(),
        retain_ms: draft.retain.map(span_out),
        datacenters: strings(draft.datacenters),
        timeout_policy: timeout_policy_out(draft.timeout_policy).into(),
    }
}

pub fn accepted_in(wire: &v1::Accepted) -> Result<(JobId, bool), MalformedMessage> {
    Ok((job_id_in(&wire.job_id, "job_id")?, wire.duplicate))
}

pub fn accepted_out(id: JobId, duplicate: bool) -> v1::Accepted {
    v1::Accepted { job_id: job_id_out(id), duplicate }
}

fn workflow_in(wire: v1::WorkflowDraft) -> WorkflowDraft {
    WorkflowDraft {
        name: some_text(wire.name),
        kind: wire.kind.into(),
        payload: payload_in(&wire.payload),
        content_type: some_text(wire.content_type),
        after: texts(wire.after),
    }
}

fn limit_in(wire: v1::ConcurrencyLimit) -> LimitDraft {
    LimitDraft { key: wire.key.into(), max: wire.max, ordered: wire.ordered }
}

fn retry_in(wire: v1::RetryPolicy, defaults: &Retry) -> Result<Retry, MalformedMessage> {
    Ok(Retry {
        max_attempts: wire.max_attempts.unwrap_or(defaults.max_attempts),
        base: some_span_in(wire.base_ms, "base_ms")?.unwrap_or(defaults.base),
        max: some_span_in(wire.max_ms, "max_ms")?.unwrap_or(defaults.max),
    })
}

/// The year 9999 ends here; what lies beyond is a mistake in the unit.
const MAX_UNIX_MS: u64 = 253_402_300_799_999;

fn run_at_in(ms: u64) -> Result<Wall, MalformedMessage> {
    if ms > MAX_UNIX_MS {
        return Err(MalformedMessage::new("run_at_unix_ms", FieldProblem::TooLarge { value: ms, max: MAX_UNIX_MS }));
    }
    Ok(Wall::from_ms(ms))
}

fn on_stuck_in(number: i32) -> Result<OnStuck, MalformedMessage> {
    match v1::OnStuck::try_from(number) {
        Ok(v1::OnStuck::Unspecified) => Ok(OnStuck::default()),
        Ok(v1::OnStuck::Retry) => Ok(OnStuck::Retry),
        Ok(v1::OnStuck::TimeOut) => Ok(OnStuck::TimeOut),
        Err(_) => Err(MalformedMessage::new("on_stuck", FieldProblem::UnknownNumber(number))),
    }
}

pub(crate) fn timeout_policy_out(policy: TimeoutPolicy) -> v1::TimeoutPolicy {
    match policy {
        TimeoutPolicy::Any => v1::TimeoutPolicy::Any,
        TimeoutPolicy::Majority => v1::TimeoutPolicy::Majority,
        TimeoutPolicy::All => v1::TimeoutPolicy::All,
    }
}

pub(crate) fn timeout_policy_in(number: i32) -> Result<TimeoutPolicy, MalformedMessage> {
    match v1::TimeoutPolicy::try_from(number) {
        Ok(v1::TimeoutPolicy::Unspecified) => Ok(TimeoutPolicy::default()),
        Ok(v1::TimeoutPolicy::Any) => Ok(TimeoutPolicy::Any),
        Ok(v1::TimeoutPolicy::Majority) => Ok(TimeoutPolicy::Majority),
        Ok(v1::TimeoutPolicy::All) => Ok(TimeoutPolicy::All),
        Err(_) => Err(MalformedMessage::new("timeout_policy", FieldProblem::UnknownNumber(number))),
    }
}

fn some_text(text: Option<String>) -> Option<Arc<str>> {
    text.map(Arc::from)
}

fn texts(list: Vec<String>) -> Vec<Arc<str>> {
    list.into_iter().map(Arc::from).collect()
}
