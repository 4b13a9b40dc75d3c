//! A gate's job as it is shown: the shape of a manager's, with how it is in each datacenter.

use std::collections::BTreeMap;

use onward_api::instant::At;
use onward_api::job::{Job, JobDatacenter, JobInDatacenter, LeftOutShown, Progress, RetryShown};
use onward_api::ledger::Ledger;
use onward_api::raw::Raw;
use onward_core::gate::event::EndCause;
use onward_core::gate::message::Outcome;
use onward_core::gate::{JobView, TargetState, TargetView};
use onward_core::job::spec::TimeoutPolicy;
use onward_core::job::{JobSpec, JobState};
use onward_core::time::span_ms;

use crate::api::jobs::ledger::shown as entry_shown;
use crate::api::jobs::shape as of_manager;
use crate::api::payload::{self, PayloadView};

pub fn job(view: &JobView) -> Job {
    let job = &view.job;
    let spec = job.spec.as_deref();
    let extras = spec.and_then(|spec| spec.extras.as_deref());
    let extended = job.extensions();
    let (result, result_base64) = results(view);
    Job {
        id: job.id.to_string(),
        kind: kind(view),
        command: spec.and_then(|spec| of_manager::command(&spec.workflows)),
        queue: job.outline.queue.to_string(),
        state: view.state.into(),
        reason: reason(view),
        created_at: At(job.created_at),
        started_at: Some(At(job.started_at)).filter(|_| view.state != JobState::Delayed),
        ended_at: job.ended_at.map(At),
        priority: spec.map_or(0, |spec| spec.priority),
        tags: spec.map_or_else(Vec::new, |spec| spec.tags().iter().map(ToString::to_string).collect()),
        progress: progress(view),
        workflows: Vec::new(),
        result,
        result_base64,
        deadline_at: Some(At(view.deadline)),
        timeout_s: job.outline.timeout.as_secs_f64(),
        stuck_after_s: spec.map_or(0.0, |spec| spec.stuck_after.as_secs_f64()),
        max_extension_s: job.outline.max_extension.as_secs_f64(),
        extensions_s: (extended.grants + extended.by_hand).as_secs_f64(),
        on_stuck: spec.map_or("retry", |spec| of_manager::on_stuck(spec.on_stuck)).into(),
        require_progress: spec.is_some_and(|spec| spec.require_progress),
        run_at: spec.and_then(|spec| of_manager::run_at(job.created_at, spec.start)),
        retry: spec.map_or(UNKNOWN_RETRY, |spec| of_manager::retry(&spec.retry)),
        limits: spec.map_or_else(Vec::new, |spec| spec.limits.iter().map(of_manager::limit).collect()),
        unique_key: spec.and_then(JobSpec::unique_key).map(ToString::to_string),
        idempotency_key: spec.and_then(JobSpec::idempotency_key).map(ToString::to_string),
        headers: spec.map_or_else(BTreeMap::new, of_manager::headers),
        datacenters: view.targets.iter().map(|target| JobDatacenter::Seen(Box::new(datacenter(target)))).collect(),
        timeout_policy: policy(job.outline.policy).into(),
        retain_s: extras.and_then(|extras| extras.retain).map(|retain| retain.as_secs_f64()),
        retry_of: None,
        dead_letter: false,
        left_out: left_out(view),
    }
}

pub fn ledger(view: &JobView) -> Ledger {
    let (entries, dropped) =
        view.job.ledger.as_ref().map_or((&[][..], 0), |ledger| (&ledger.entries[..], ledger.dropped));
    Ledger {
        id: view.job.id.to_string(),
        state: view.state.into(),
        entries: entries.iter().map(|entry| entry_shown(entry, |_| None)).collect(),
        dropped,
    }
}

/// A job that was rebuilt from a report is known by its outline alone.
const UNKNOWN_RETRY: RetryShown = RetryShown { max_attempts: 0, base_s: 0.0, max_s: 0.0 };

/// The kind of all its workflows; none if they differ.
fn kind(view: &JobView) -> Option<String> {
    let kind = &view.job.outline.kind;
    let is_of_all = |spec: &JobSpec| spec.workflows.iter().all(|workflow| workflow.kind == *kind);
    view.job.spec.as_deref().is_none_or(is_of_all).then(|| kind.to_string())
}

const fn policy(policy: TimeoutPolicy) -> &'static str {
    match policy {
        TimeoutPolicy::Any => "any",
        TimeoutPolicy::Majority => "majority",
        TimeoutPolicy::All => "all",
    }
}

/// Workflows of all datacenters together.
fn progress(view: &JobView) -> Progress {
    let done = view.targets.iter().map(|target| u64::from(target.workflows.succeeded)).sum();
    let total: u64 = view.targets.iter().map(|target| u64::from(target.workflows.total)).sum();
    let ended = view.targets.iter().filter(|target| target.state == TargetState::Succeeded).count() as u64;
    if total == 0 || view.job.has_ended() {
        return Progress { done: ended, total: Some(view.targets.len() as u64) };
    }
    Progress { done, total: Some(total) }
}

pub(super) fn datacenter(target: &TargetView) -> JobInDatacenter {
    let end = target.end.as_ref();
    let result = end.and_then(|end| end.result.as_ref());
    let (result, result_base64) = match result.map(|result| payload::show_payload(result, None)) {
        Some(PayloadView::Json(json)) => (Some(json.to_owned().into()), None),
        Some(PayloadView::Base64(text)) => (None, Some(text)),
        None => (None, None),
    };
    JobInDatacenter {
        name: target.datacenter.to_string(),
        state: target.state.code().into(),
        confirmed: target.confirmed,
        reason: target.reason.as_deref().map(str::to_owned),
        since_progress_ms: target.since_progress.map(span_ms),
        since_report_ms: target.since_report.map(span_ms),
        attempts: target.attempts,
        ended_at: target.ended_at.map(At),
        error: end.and_then(|end| end.error.as_deref()).map(str::to_owned),
        result,
        result_base64,
    }
}

/// The result of the only datacenter, or the results by the names of the datacenters.
fn results(view: &JobView) -> (Option<Raw>, Option<Raw>) {
    let raw = |text: &String| Raw::of(text).expect("a text can be written as JSON");
    let shown: Vec<JobInDatacenter> = view.targets.iter().map(datacenter).collect();
    if let [only] = &shown[..] {
        return (only.result.clone(), only.result_base64.as_ref().map(raw));
    }
    let json: BTreeMap<&str, &Raw> = shown.iter().filter_map(|one| Some((&*one.name, one.result.as_ref()?))).collect();
    let base64: BTreeMap<&str, &String> =
        shown.iter().filter_map(|one| Some((&*one.name, one.result_base64.as_ref()?))).collect();
    let map = "a map from texts to JSON can be written as JSON";
    let json = (!json.is_empty()).then(|| Raw::of(&json).expect(map));
    (json, (!base64.is_empty()).then(|| Raw::of(&base64).expect(map)))
}

/// Results that would be shown and were not fetched; the datacenter stands where a workflow's name does.
fn left_out(view: &JobView) -> Vec<LeftOutShown> {
    let ends =
        view.targets.iter().filter_map(|target| Some((&target.datacenter, target.end.as_ref()?.result.as_ref()?)));
    let stored = ends.filter(|(_, result)| result.as_stored().is_some());
    stored
        .map(|(datacenter, result)| LeftOutShown {
            workflow: datacenter.to_string(),
            field: "result".into(),
            bytes: result.len(),
            why: "size".into(),
        })
        .collect()
}

/// A stable word, and after a colon what there is to say about it. Success needs no reason.
pub fn reason(view: &JobView) -> Option<String> {
    let named = |wanted: &dyn Fn(&&TargetView) -> bool| {
        let names: Vec<&str> = view.targets.iter().filter(wanted).map(|target| target.datacenter.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    if let Some(outcome) = view.job.outcome() {
        return match outcome {
            Outcome::Succeeded => None,
            Outcome::Cancelled => Some("cancelled".into()),
            Outcome::TimedOut => Some(timeout_reason(view).unwrap_or_else(|| "timeout".into())),
            Outcome::Failed => Some(failure(view)),
        };
    }
    if view.decided.is_some() {
        let open = named(&|target| target.end.is_none())?;
        return Some(format!("ending: {open} must confirm it"));
    }
    if let Some(waits) = view.waits {
        return Some(waits.code().into());
    }
    if let Some(names) = named(&|target| target.state == TargetState::Unreachable) {
        return Some(format!("unreachable: {names}"));
    }
    if let Some(names) = named(&|target| target.state == TargetState::Submitting) {
        return Some(format!("submitting: to {names}"));
    }
    named(&|target| target.state == TargetState::Running).map(|names| format!("running: in {names}"))
}

fn timeout_reason(view: &JobView) -> Option<String> {
    let decided = view.decided.and_then(|decision| match decision.why {
        EndCause::TimedOut(reason) => Some(reason.code().to_owned()),
        EndCause::Cancelled => None,
    });
    let of_target = || {
        let ended = view.targets.iter().find(|target| target.state == TargetState::TimedOut)?;
        ended.reason.as_deref().map(str::to_owned)
    };
    decided.or_else(of_target)
}

fn failure(view: &JobView) -> String {
    let failed = view.targets.iter().find(|target| target.state == TargetState::Failed);
    let error = failed.and_then(|target| Some((&target.datacenter, target.end.as_ref()?.error.as_deref()?)));
    error.map_or_else(|| "failed".into(), |(datacenter, error)| format!("failed: in {datacenter}: {error}"))
}
