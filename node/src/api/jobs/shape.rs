//! A job as it is shown.

use std::collections::BTreeMap;

use onward_core::job::spec::{ConcurrencyLimit, OnStuck, Start, TimeoutPolicy};
use onward_core::job::{Ending, WorkflowSpec, WorkflowState};
use onward_core::manager::{AttemptView, JobView, KeyWait, WorkflowView};
use onward_core::state::EndedAttempt;
use onward_core::time::{Wall, span_ms};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use utoipa::ToSchema;

use super::super::instant::At;
use super::super::payload::{self, Shown};
use super::reason::reason;
use super::submit::EXEC;
use crate::engine::{DamagedContent, Field};

#[derive(Debug, Serialize, ToSchema)]
pub struct Job {
    pub id: String,
    /// Of all its workflows; none if they differ.
    pub kind: Option<String>,
    /// What a job of kind `exec` runs, in a line; none where that is long and was not fetched.
    pub command: Option<String>,
    pub queue: String,
    #[schema(example = "running")]
    pub state: &'static str,
    /// Why it is where it is: a stable word, and after a colon what there is to say about it.
    pub reason: Option<String>,
    #[schema(value_type = String)]
    pub created_at: At,
    /// When it could first run: at its submission, or at the end of its delay. Its time counts from then on. When work on it
    /// began is in its attempts.
    #[schema(value_type = Option<String>)]
    pub started_at: Option<At>,
    #[schema(value_type = Option<String>)]
    pub ended_at: Option<At>,
    pub priority: i8,
    pub tags: Vec<String>,
    pub progress: Progress,
    pub workflows: Vec<Workflow>,
    /// Of the only workflow, or by name.
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// Likewise, of those that are not JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Box<RawValue>>,
    /// When it is over at the latest, extensions included.
    #[schema(value_type = Option<String>)]
    pub deadline_at: Option<At>,
    pub timeout_s: f64,
    pub stuck_after_s: f64,
    pub max_extension_s: f64,
    pub extensions_s: f64,
    #[schema(example = "retry")]
    pub on_stuck: &'static str,
    pub require_progress: bool,
    #[schema(value_type = Option<String>)]
    pub run_at: Option<At>,
    pub retry: RetryShown,
    pub limits: Vec<LimitShown>,
    pub unique_key: Option<String>,
    pub idempotency_key: Option<String>,
    pub headers: BTreeMap<String, String>,
    pub datacenters: Vec<String>,
    pub timeout_policy: &'static str,
    pub retain_s: Option<f64>,
    pub retry_of: Option<String>,
    pub dead_letter: bool,
    /// Payloads and results that are kept, and shown as `null` here: those over 4 KiB in lists, what is too large for one
    /// answer, and what is damaged. Ask for the job with `?workflow=NAME` to get those of one workflow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutShown>,
}

/// Content that is kept and not in this answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeftOutShown {
    pub workflow: String,
    #[schema(example = "result")]
    pub field: &'static str,
    pub bytes: usize,
    /// `size`: it can be asked for by itself. `damaged`: it cannot be read.
    #[schema(example = "size")]
    pub why: &'static str,
}

/// Units of the only workflow's running attempt if it reports them, else workflows.
#[derive(Debug, Serialize, ToSchema)]
pub struct Progress {
    pub done: u64,
    pub total: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct RetryShown {
    pub max_attempts: u32,
    pub base_s: f64,
    pub max_s: f64,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LimitShown {
    pub key: String,
    pub max: u32,
    pub ordered: bool,
}

impl LimitShown {
    pub fn of(limit: &ConcurrencyLimit) -> Self {
        Self { key: limit.key.to_string(), max: limit.max, ordered: limit.ordered }
    }
}

/// The concurrency key that a workflow waits for.
#[derive(Debug, Serialize, ToSchema)]
pub struct KeyWaitShown {
    pub key: String,
    /// The job that keeps it until its workflow has ended, because it asked for order; none where others merely use it.
    pub kept_by: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Workflow {
    pub name: String,
    pub kind: String,
    pub state: &'static str,
    /// The job that it succeeded in, where this one repeats that job from the failed workflow on.
    pub taken_from: Option<String>,
    /// Why it does not run although it could.
    pub blocked: Option<&'static str>,
    /// Where it is blocked by a limit.
    pub waits_for_key: Option<KeyWaitShown>,
    #[schema(value_type = Option<String>)]
    pub due_at: Option<At>,
    /// Names of the workflows that it waits for.
    pub after: Vec<String>,
    /// How many attempts count against `retry.max_attempts`.
    pub counted: u32,
    /// Not in lists.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    pub content_type: Option<String>,
    /// The oldest first.
    pub attempts: Vec<Attempt>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Attempt {
    pub n: u32,
    pub fence: u64,
    pub worker: String,
    #[schema(value_type = String)]
    pub started_at: At,
    #[schema(value_type = Option<String>)]
    pub ended_at: Option<At>,
    /// None while it runs.
    pub outcome: Option<&'static str>,
    pub error: Option<String>,
    #[serde(flatten)]
    pub running: Option<Running>,
}

/// The clocks of an attempt that runs.
#[derive(Debug, Serialize, ToSchema)]
pub struct Running {
    pub lease_remaining_ms: u64,
    pub stuck_in_ms: u64,
    pub since_step_ms: u64,
    pub quiet_remaining_ms: Option<u64>,
    pub progress: Option<Progress>,
    pub note: Option<String>,
}

/// How much of a job is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Everything.
    Full,
    /// Without payloads, which were the submitter's and may be large.
    Brief,
}

impl Job {
    pub fn of(view: &JobView, detail: Detail) -> Self {
        let spec = &view.spec;
        let first = &spec.workflows[0].kind;
        let extras = spec.extras.as_deref();
        let (result, result_base64) = results(view);
        Self {
            id: view.id.to_string(),
            kind: spec.workflows.iter().all(|workflow| workflow.kind == *first).then(|| first.to_string()),
            command: command(spec.workflows.as_ref()),
            queue: view.queue.to_string(),
            state: view.state.word(),
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
            on_stuck: match spec.on_stuck {
                OnStuck::Retry => "retry",
                OnStuck::TimeOut => "time_out",
            },
            require_progress: spec.require_progress,
            run_at: run_at(view.created_at, spec.start),
            retry: RetryShown {
                max_attempts: spec.retry.max_attempts,
                base_s: spec.retry.base.as_secs_f64(),
                max_s: spec.retry.max.as_secs_f64(),
            },
            limits: spec.limits.iter().map(LimitShown::of).collect(),
            unique_key: spec.unique_key().map(ToString::to_string),
            idempotency_key: spec.idempotency_key().map(ToString::to_string),
            headers: spec.headers().iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            datacenters: extras
                .map_or(Vec::new(), |extras| extras.datacenters.iter().map(ToString::to_string).collect()),
            timeout_policy: match extras.map_or(TimeoutPolicy::Any, |extras| extras.timeout_policy) {
                TimeoutPolicy::Any => "any",
                TimeoutPolicy::Majority => "majority",
                TimeoutPolicy::All => "all",
            },
            retain_s: extras.and_then(|extras| extras.retain).map(|retain| retain.as_secs_f64()),
            retry_of: view.retry_of.map(|job| job.to_string()),
            dead_letter: view.dead_letter,
            left_out: left_out(view, detail),
        }
    }

    /// Says of what could not be read that it could not.
    pub fn with_damage(mut self, damaged: &[DamagedContent]) -> Self {
        for damaged in damaged {
            let (workflow, field) = (&self.workflows[damaged.workflow].name, field_word(damaged.field));
            let mut left_out = self.left_out.iter_mut();
            if let Some(left) = left_out.find(|left| left.workflow == *workflow && left.field == field) {
                left.why = "damaged";
            }
        }
        self
    }
}

/// What would be shown and was not fetched, results first.
fn left_out(view: &JobView, detail: Detail) -> Vec<LeftOutShown> {
    let results = view.workflows.iter().filter_map(|workflow| {
        let result = workflow.ended.last().and_then(EndedAttempt::result)?;
        Some((&workflow.name, Field::Result, result))
    });
    let given = view.spec.workflows.iter().filter(|_| detail == Detail::Full);
    let payloads = given.map(|spec| (&spec.name, Field::Payload, &spec.payload));
    let stored = results.chain(payloads).filter(|(_, _, payload)| payload.as_stored().is_some());
    stored
        .map(|(workflow, field, payload)| LeftOutShown {
            workflow: workflow.to_string(),
            field: field_word(field),
            bytes: payload.len(),
            why: "size",
        })
        .collect()
}

const fn field_word(field: Field) -> &'static str {
    match field {
        Field::Payload => "payload",
        Field::Result => "result",
    }
}

/// As a shell would take it, cut where it is no longer of use to people.
fn command(workflows: &[WorkflowSpec]) -> Option<String> {
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

fn run_at(created_at: Wall, start: Start) -> Option<At> {
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

fn results(view: &JobView) -> (Option<Box<RawValue>>, Option<Box<RawValue>>) {
    let shown = |workflow: &WorkflowView| match &workflow.ended.last()?.ending {
        Ending::Succeeded { result } => Some(match payload::show_payload(result, None) {
            Shown::Json(json) => (Some(json.to_owned()), None),
            Shown::Base64(text) => (None, Some(raw(&text))),
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

fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("texts, and maps from texts to JSON, can be written as JSON")
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
            Shown::Json(json) => (Some(json.to_owned()), None),
            Shown::Base64(text) => (None, Some(text)),
        },
    };
    Workflow {
        name: view.name.to_string(),
        kind: view.kind.to_string(),
        state: view.state.word(),
        taken_from: job.retry_of.filter(|_| view.taken_over).map(|job| job.to_string()),
        blocked: view.blocked,
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
        outcome: Some(attempt.ending.code()),
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
        running: Some(Running {
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
