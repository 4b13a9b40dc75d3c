//! A job as it is shown.

use std::collections::BTreeMap;

use onward_api::instant::At;
use onward_api::job::{
    Attempt, AttemptClocks, Job, JobDatacenter, KeyWaitShown, LeftOutShown, LimitShown, Progress, RetryShown, Workflow,
};
use onward_api::raw::Raw;
use onward_core::job::spec::{ConcurrencyLimit, OnStuck, Retry, Start, TimeoutPolicy};
use onward_core::job::{Ending, JobSpec, WorkflowSpec, WorkflowState};
use onward_core::manager::{AttemptView, JobView, KeyWait, WorkflowView};
use onward_core::state::EndedAttempt;
use onward_core::time::{Wall, span_ms};
use serde::Serialize;

use super::super::payload::{self, PayloadView};
use super::reason::reason;
use super::submit::EXEC;
use crate::engine::{ContentField, DamagedContent};

/// The part of a job that is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Everything.
    Full,
    /// All but payloads, which were the submitter's and may be large.
    Brief,
}

pub fn job(view: &JobView, detail: Detail) -> Job {
    let spec = &view.spec;
    let first = &spec.workflows[0].kind;
    let extras = spec.extras.as_deref();
    let (result, result_base64) = results(view);
    Job {
        id: view.id.to_string(),
        kind: spec.workflows.iter().all(|workflow| workflow.kind == *first).then(|| first.to_string()),
        command: command(spec.workflows.as_ref()),
        queue: view.queue.to_string(),
        state: view.state.into(),
        reason: reason(view),
        created_at: At(view.created_at),
        started_at: view.started_at.map(At),
        ended_at: view.ended_at.map(At),
        priority: spec.priority,
        tags: spec.tags().iter().map(ToString::to_string).collect(),
        progress: progress(view),
        workflows: workflows(view, detail),
        result,
        result_base64,
        deadline_at: view.deadline.map(At),
        timeout_s: spec.timeout.as_secs_f64(),
        stuck_after_s: spec.stuck_after.as_secs_f64(),
        max_extension_s: spec.max_extension.as_secs_f64(),
        extensions_s: view.extensions.as_secs_f64(),
        on_stuck: on_stuck(spec.on_stuck).into(),
        require_progress: spec.require_progress,
        run_at: run_at(view.created_at, spec.start),
        retry: retry(&spec.retry),
        limits: spec.limits.iter().map(limit).collect(),
        unique_key: spec.unique_key().map(ToString::to_string),
        idempotency_key: spec.idempotency_key().map(ToString::to_string),
        headers: headers(spec),
        datacenters: datacenters(spec).into_iter().map(JobDatacenter::Named).collect(),
        timeout_policy: timeout_policy(spec).into(),
        retain_s: extras.and_then(|extras| extras.retain).map(|retain| retain.as_secs_f64()),
        retry_of: view.retry_of.map(|job| job.to_string()),
        dead_letter: view.dead_letter,
        left_out: left_out(view, detail),
    }
}

/// The job as it is shown, saying of what could not be read that it could not.
pub fn job_with_damage(view: &JobView, detail: Detail, damaged: &[DamagedContent]) -> Job {
    let mut job = job(view, detail);
    for damaged in damaged {
        let (workflow, field) = (&job.workflows[damaged.workflow].name, field_word(damaged.field));
        let mut left_out = job.left_out.iter_mut();
        if let Some(left) = left_out.find(|left| left.workflow == *workflow && left.field == field) {
            left.why = "damaged".into();
        }
    }
    job
}

pub(crate) const fn on_stuck(action: OnStuck) -> &'static str {
    match action {
        OnStuck::Retry => "retry",
        OnStuck::TimeOut => "time_out",
    }
}

pub(crate) fn timeout_policy(spec: &JobSpec) -> &'static str {
    match spec.extras.as_deref().map_or(TimeoutPolicy::Any, |extras| extras.timeout_policy) {
        TimeoutPolicy::Any => "any",
        TimeoutPolicy::Majority => "majority",
        TimeoutPolicy::All => "all",
    }
}

pub(crate) fn retry(retry: &Retry) -> RetryShown {
    let Retry { max_attempts, base, max } = *retry;
    RetryShown { max_attempts, base_s: base.as_secs_f64(), max_s: max.as_secs_f64() }
}

pub(crate) fn limit(limit: &ConcurrencyLimit) -> LimitShown {
    LimitShown { key: limit.key.to_string(), max: limit.max, ordered: limit.ordered }
}

pub(crate) fn headers(spec: &JobSpec) -> BTreeMap<String, String> {
    spec.headers().iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

pub(super) fn datacenters(spec: &JobSpec) -> Vec<String> {
    let extras = spec.extras.as_deref();
    extras.map_or(Vec::new(), |extras| extras.datacenters.iter().map(ToString::to_string).collect())
}

/// Contents that would be shown and were not fetched, results first.
fn left_out(view: &JobView, detail: Detail) -> Vec<LeftOutShown> {
    let results = view.workflows.iter().filter_map(|workflow| {
        let result = workflow.ended.last().and_then(EndedAttempt::result)?;
        Some((&workflow.name, ContentField::Result, result))
    });
    let given = view.spec.workflows.iter().filter(|_| detail == Detail::Full);
    let payloads = given.map(|spec| (&spec.name, ContentField::Payload, &spec.payload));
    let stored = results.chain(payloads).filter(|(_, _, payload)| payload.as_stored().is_some());
    stored
        .map(|(workflow, field, payload)| LeftOutShown {
            workflow: workflow.to_string(),
            field: field_word(field).into(),
            bytes: payload.len(),
            why: "size".into(),
        })
        .collect()
}

const fn field_word(field: ContentField) -> &'static str {
    match field {
        ContentField::Payload => "payload",
        ContentField::Result => "result",
    }
}

/// The command line as a shell would take it, cut where it is no longer of use to people.
pub(crate) fn command(workflows: &[WorkflowSpec]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Command {
        argv: Vec<String>,
    }
    const LETTERS: usize = 200;
    let [only] = workflows else { return None };
    let payload = only.payload.as_inline().filter(|_| only.kind.as_str() == EXEC)?;
    let Command { argv } = serde_json::from_slice(payload).ok()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    let quoted = |word: String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let line = argv.into_iter().map(quoted).collect::<Vec<_>>().join(" ");
    Some(line.chars().take(LETTERS).collect())
}

fn key_wait(wait: &KeyWait) -> KeyWaitShown {
    KeyWaitShown { key: wait.key.to_string(), kept_by: wait.kept_by.map(|job| job.to_string()) }
}

pub(crate) fn run_at(created_at: Wall, start: Start) -> Option<At> {
    match start {
        Start::AtOnce => None,
        Start::After(delay) => Some(At(created_at + delay)),
        Start::At(at) => Some(At(at)),
    }
}

pub(super) fn progress(view: &JobView) -> Progress {
    if let [only] = &view.workflows[..]
        && let Some((done, total)) = only.running.as_ref().and_then(|running| running.watermark)
    {
        return Progress { done, total };
    }
    let done = view.workflows.iter().filter(|workflow| workflow.state == WorkflowState::Succeeded).count();
    Progress { done: done as u64, total: Some(view.workflows.len() as u64) }
}

fn results(view: &JobView) -> (Option<Raw>, Option<Raw>) {
    let shown = |workflow: &WorkflowView| match &workflow.ended.last()?.ending {
        Ending::Succeeded { result } => Some(match payload::show_payload(result, None) {
            PayloadView::Json(json) => (Some(json.to_owned().into()), None),
            PayloadView::Base64(text) => (None, Some(raw(&text))),
        }),
        _ => None,
    };
    if let [only] = &view.workflows[..] {
        return shown(only).unwrap_or_default();
    }
    let (mut json, mut base64) = (BTreeMap::new(), BTreeMap::new());
    for workflow in &view.workflows {
        match shown(workflow) {
            Some((Some(value), _)) => drop(json.insert(workflow.name.as_str(), value)),
            Some((None, Some(text))) => drop(base64.insert(workflow.name.as_str(), text)),
            _ => {}
        }
    }
    ((!json.is_empty()).then(|| raw(&json)), (!base64.is_empty()).then(|| raw(&base64)))
}

fn raw(value: &impl Serialize) -> Raw {
    Raw::of(value).expect("texts, and maps from texts to JSON, can be written as JSON")
}

fn workflows(view: &JobView, detail: Detail) -> Vec<Workflow> {
    let specs = view.spec.workflows.iter();
    view.workflows.iter().zip(specs).map(|(workflow, spec)| workflow_of(workflow, spec, view, detail)).collect()
}

fn workflow_of(view: &WorkflowView, spec: &WorkflowSpec, job: &JobView, detail: Detail) -> Workflow {
    let content_type = spec.content_type.as_ref().map(|text| text.to_string());
    let (payload, payload_base64) = match detail {
        Detail::Brief => (None, None),
        Detail::Full => match payload::show_payload(&spec.payload, content_type.as_deref()) {
            PayloadView::Json(json) => (Some(json.to_owned().into()), None),
            PayloadView::Base64(text) => (None, Some(text)),
        },
    };
    Workflow {
        name: view.name.to_string(),
        kind: view.kind.to_string(),
        state: view.state.word().into(),
        taken_from: job.retry_of.filter(|_| view.taken_over).map(|job| job.to_string()),
        blocked: view.blocked.map(Into::into),
        waits_for_key: view.waits_for_key.as_ref().map(key_wait),
        due_at: view.due_at.map(At),
        after: spec.after.iter().map(|index| job.spec.workflows[usize::from(*index)].name.to_string()).collect(),
        counted: view.counted,
        payload,
        payload_base64,
        content_type,
        attempts: match view.taken_over {
            // It was one of the other job.
            true => Vec::new(),
            false => view.ended.iter().map(ended).chain(view.running.as_ref().map(running)).collect(),
        },
    }
}

fn ended(attempt: &EndedAttempt) -> Attempt {
    Attempt {
        n: attempt.number,
        fence: attempt.fence.get(),
        worker: attempt.worker.to_string(),
        started_at: At(attempt.started_at),
        ended_at: Some(At(attempt.ended_at)),
        outcome: Some(attempt.ending.code().into()),
        error: match &attempt.ending {
            Ending::Failed { error, .. } => Some(error.to_string()),
            _ => None,
        },
        running: None,
    }
}

fn running(attempt: &AttemptView) -> Attempt {
    Attempt {
        n: attempt.number,
        fence: attempt.claim.fence.get(),
        worker: attempt.worker.to_string(),
        started_at: At(attempt.started_at),
        ended_at: None,
        outcome: None,
        error: None,
        running: Some(AttemptClocks {
            lease_remaining_ms: span_ms(attempt.lease_remaining),
            stuck_in_ms: span_ms(attempt.stuck_in),
            since_step_ms: span_ms(attempt.since_step),
            quiet_remaining_ms: attempt.quiet_remaining.map(span_ms),
            progress: attempt.watermark.map(|(done, total)| Progress { done, total }),
            note: attempt.note.as_deref().map(Into::into),
        }),
    }
}

/// About how many bytes a job takes when it is shown, so that no page grows without end.
pub fn weight(view: &JobView) -> usize {
    let of_workflow = |workflow: &WorkflowView| -> usize {
        let of_attempt = |attempt: &EndedAttempt| {
            256 + match &attempt.ending {
                Ending::Failed { error, .. } => error.len(),
                Ending::Succeeded { result } => result.len(),
                _ => 0,
            }
        };
        256 + workflow.ended.iter().map(of_attempt).sum::<usize>()
    };
    1_024 + view.workflows.iter().map(of_workflow).sum::<usize>()
}
