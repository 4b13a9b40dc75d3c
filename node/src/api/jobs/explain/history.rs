//! What was decided so far, by whom and under which fence: ended attempts, the running one, and the ledger.

use core::time::Duration;

use onward_api::span::human;
use onward_core::grant::Denial;
use onward_core::job::{Ending, EndingKind};
use onward_core::manager::{AttemptView, WorkflowView};
use onward_core::refusal::RefusalKind;
use onward_core::state::{EndedAttempt, LedgerEntry, LedgerFact};
use onward_core::time::Wall;

use super::{Attempt, Facts, attempts, fence, instant};

/// Attempts told of a long history, the last ones; `show` and the ledger have all of it.
const ATTEMPTS_TOLD: usize = 5;
const ENTRIES_TOLD: usize = 8;
/// Workflows told of a job that has several.
const WORKFLOWS_TOLD: usize = 20;
const MOST_ENTRIES_TOLD: usize = 40;

pub fn lines(facts: &Facts<'_>) -> Vec<String> {
    let mut lines = vec![submitted(facts)];
    lines.extend(others(facts));
    let workflows = &facts.job.workflows;
    for workflow in workflows.iter().take(WORKFLOWS_TOLD) {
        let name = facts.prefix(Some(workflow.name.as_str()));
        if let Some(origin) = facts.job.retry_of.filter(|_| workflow.taken_over) {
            lines.push(format!("{name}succeeded in job {origin}; its result was taken over from there"));
        }
        let all = attempts(workflow);
        let left_out = all.len().saturating_sub(ATTEMPTS_TOLD);
        if left_out > 0 {
            lines.push(format!(
                "{name}{left_out} earlier attempts ended too; `onward show {}` lists them",
                facts.job.id
            ));
        }
        lines.extend(all.skip(left_out).map(|attempt| match attempt {
            Attempt::Ended(ended) => format!("{name}{}", of_ended(ended)),
            Attempt::Running(running) => format!("{name}{}", of_running(running, facts)),
        }));
    }
    // Attempts tell of their ends themselves.
    let news = facts.ledger().iter().filter(|entry| !matches!(entry.what, LedgerFact::AttemptEnded { .. }));
    let news: Vec<&LedgerEntry> = news.collect();
    let first = news.len().saturating_sub(ENTRIES_TOLD.max(2 * workflows.len()).min(MOST_ENTRIES_TOLD));
    lines.extend(news[first..].iter().map(|entry| of_entry(entry, facts)));
    lines
}

fn submitted(facts: &Facts<'_>) -> String {
    let mut line = format!("submitted {} ago to queue `{}`", ago(facts.job.created_at, facts), facts.job.queue);
    if let Some(origin) = facts.job.retry_of {
        line += &format!(", to repeat job {origin}");
    }
    line
}

/// The other workflows of the job, in a line.
fn others(facts: &Facts<'_>) -> Option<String> {
    let all = &facts.job.workflows;
    if all.len() < 2 {
        return None;
    }
    let about = |workflow: &WorkflowView| format!("{} {}", workflow.name, workflow.state.word());
    let mut told: Vec<String> = all.iter().take(10).map(about).collect();
    if all.len() > told.len() {
        told.push(format!("and {} more", all.len() - told.len()));
    }
    let focus = match facts.job.state.is_terminal() {
        true => String::new(),
        false => format!("; the one that matters now is {}", facts.workflow.name),
    };
    Some(format!("workflows: {}{focus}", told.join(", ")))
}

fn of_running(attempt: &AttemptView, facts: &Facts<'_>) -> String {
    let note = attempt.note.as_deref().map(|note| format!("; it says: {note}")).unwrap_or_default();
    let since = ago(attempt.started_at, facts);
    let fence = fence(attempt.claim.fence);
    format!("attempt {} on {} under {fence} runs, for {since}{note}", attempt.number, attempt.worker)
}

fn of_ended(attempt: &EndedAttempt) -> String {
    let took = human(attempt.ended_at.since(attempt.started_at));
    let error = match &attempt.ending {
        Ending::Failed { error, .. } if !error.is_empty() => format!(": {error}"),
        _ => attempt.note.as_deref().map(|note| format!("; it had said: {note}")).unwrap_or_default(),
    };
    let (who, fence) = (&attempt.worker, fence(attempt.fence));
    format!("attempt {} on {who} under {fence} {} after {took}{error}", attempt.number, ending(attempt.ending.kind()))
}

/// The end of the attempt, and by whose word.
fn ending(ending: EndingKind) -> &'static str {
    match ending {
        EndingKind::Succeeded => "ended: its worker reported success",
        EndingKind::Failed => "ended: its worker reported failure",
        EndingKind::Released => "was given back by its worker, uncounted,",
        EndingKind::Stuck => "was ended by the manager as stuck (no forward step in time)",
        EndingKind::LeaseExpired => "was ended by the manager: no beat renewed its lease,",
        EndingKind::Evicted => "was ended by the manager: its worker was evicted,",
        EndingKind::Crashed => "was ended by the manager: its worker came back as a new incarnation,",
        EndingKind::NeverArrived => "never arrived at its worker, uncounted,",
        EndingKind::Cancelled => "was cancelled",
        EndingKind::TimedOut => "was ended by the job's own deadline",
    }
}

fn of_entry(entry: &LedgerEntry, facts: &Facts<'_>) -> String {
    let times = if entry.times > 1 { format!(" ({} times)", entry.times) } else { String::new() };
    let name = facts.prefix(workflow_of(entry, facts));
    format!("{name}{} ago: {}{times}", ago(entry.at, facts), fact(&entry.what, facts.job.gate.is_some()))
}

/// The workflow that an entry is about: the one that it names, or else the one that its worker had then.
fn workflow_of<'a>(entry: &LedgerEntry, facts: &Facts<'a>) -> Option<&'a str> {
    let workflows = &facts.job.workflows;
    let worker = match &entry.what {
        LedgerFact::QuietBegan { workflow, .. }
        | LedgerFact::QuietEnded { workflow, .. }
        | LedgerFact::AttemptEnded { workflow, .. }
        | LedgerFact::Refused { workflow, .. } => {
            return workflows.get(usize::from(*workflow)).map(|workflow| workflow.name.as_str());
        }
        LedgerFact::Granted { worker, .. } | LedgerFact::Denied { worker, .. } => worker,
        LedgerFact::ExtendedByHand { .. }
        | LedgerFact::TimedOut { .. }
        | LedgerFact::CancelAsked { .. }
        | LedgerFact::LocallyTimedOut { .. }
        | LedgerFact::LocalTimeoutOver
        | LedgerFact::GateAnswered
        | LedgerFact::TimeGiven { .. }
        | LedgerFact::ExtensionsReported { .. } => return None,
    };
    let had_it = |attempt: Attempt<'_>| match attempt {
        Attempt::Ended(ended) => ended.worker == *worker && (ended.started_at..=ended.ended_at).contains(&entry.at),
        Attempt::Running(running) => running.worker == *worker && running.started_at <= entry.at,
    };
    let mut all = workflows.iter().filter(|workflow| attempts(workflow).any(had_it));
    let found = all.next()?;
    // A worker with several of them has asked for all.
    all.next().is_none().then(|| found.name.as_str())
}

/// The fact in words. `is_gates`: a gate decides about the job.
pub(crate) fn fact(fact: &LedgerFact, is_gates: bool) -> String {
    let at = |progress: f64| match progress.is_finite() {
        true => format!(" at {:.0} %", progress * 100.0),
        false => String::new(),
    };
    match fact {
        LedgerFact::Granted { worker, by, reason, progress } => {
            let reason = reason.map_or("no known reason", |reason| reason.code());
            format!("{worker} asked for more time{} ({reason}) and was granted {}", at(*progress), human(*by))
        }
        LedgerFact::Denied { worker, denial, progress, .. } => {
            let (code, why) = (denial.code(), denied_because(*denial));
            format!("{worker} asked for more time{} and was denied: {code} ({why})", at(*progress))
        }
        LedgerFact::ExtendedByHand { by, reason, .. } => format!("an operator gave {} more: {reason}", human(*by)),
        LedgerFact::QuietBegan { allowed, .. } => format!("a quiet section of at most {} began", human(*allowed)),
        LedgerFact::QuietEnded { used, .. } => format!("the quiet section ended after {}", human(*used)),
        LedgerFact::AttemptEnded { fence: of, ending: kind, .. } => {
            format!("an attempt under {} {}", fence(*of), ending(*kind))
        }
        LedgerFact::TimedOut { reason, epoch: Some(epoch) } => {
            format!("a gate timed it out in all datacenters ({}), under epoch {}", reason.code(), epoch.n)
        }
        LedgerFact::TimedOut { reason, epoch: None } if is_gates => {
            format!("no gate answered, so this datacenter timed it out by itself ({})", reason.code())
        }
        LedgerFact::TimedOut { reason, epoch: None } => format!("the job was timed out: {}", reason.code()),
        LedgerFact::CancelAsked { .. } => "somebody asked to cancel it".into(),
        LedgerFact::Refused { fence: of, verb, refusal, .. } => {
            let verb = verb.code().replace('_', " ");
            format!("a `{verb}` under {} was refused: {}{}", fence(*of), refusal.code(), refused_because(*refusal))
        }
        LedgerFact::LocallyTimedOut { reason } => {
            format!("it would have timed out here ({}); a gate was told, and decides", reason.code())
        }
        LedgerFact::LocalTimeoutOver => "it would time out here no longer: it moved, or has more time".into(),
        LedgerFact::GateAnswered => "a gate answered, and has not ended it".into(),
        LedgerFact::TimeGiven { until } => format!("a gate gave it time until {}", instant(*until)),
        LedgerFact::ExtensionsReported { grants, by_hand } => {
            format!("its datacenters have given it {} more in all", human(*grants + *by_hand))
        }
    }
}

const fn refused_because(refusal: RefusalKind) -> &'static str {
    match refusal {
        RefusalKind::StaleAttempt => "; a newer fence had been handed out, or its lease was over",
        RefusalKind::AlreadyEnded => "; its attempt had ended before, and not with that",
        _ => "",
    }
}

pub const fn denied_because(denial: Denial) -> &'static str {
    match denial {
        Denial::NoProgress => "it had not moved since its last grant",
        Denial::WorkerGrantsSpent => "its worker has had all the grants it gets until it completes an attempt",
        Denial::AttemptGrantsSpent => "the attempt has had all the grants that one attempt gets",
        Denial::WorkerSuspect => "its worker does not answer probes",
        Denial::WorkerEvicted => "its worker was evicted",
        Denial::StaleAttempt => "the attempt was no longer its own",
        Denial::UnknownWorker => "the worker is not known",
        Denial::Malformed(_) => "the request was malformed",
    }
}

fn ago(at: Wall, facts: &Facts<'_>) -> String {
    let span: Duration = facts.now.since(at);
    human(span)
}
