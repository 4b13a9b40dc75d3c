//! What was decided so far, by whom and under which fence: ended attempts, the running one, and the ledger.

use serde_json::Value;

use super::{Facts, fence, is_open};
use crate::read;
use crate::span::human;

/// Of a long history only the end is told; `show` and the ledger have all of it.
const ATTEMPTS_TOLD: usize = 5;
const ENTRIES_TOLD: usize = 8;
/// Of a job with several workflows.
const WORKFLOWS_TOLD: usize = 20;
const MOST_ENTRIES_TOLD: usize = 40;

pub fn lines(facts: &Facts<'_>) -> Vec<String> {
    let mut lines = vec![submitted(facts)];
    lines.extend(others(facts));
    let workflows = facts.workflows();
    for workflow in workflows.iter().take(WORKFLOWS_TOLD) {
        let attempts = read::items(workflow, "attempts");
        let name = facts.prefix(Some(read::word(workflow, "name")));
        if let Some(origin) = read::text(workflow, "taken_from") {
            lines.push(format!("{name}succeeded in job {origin}; its result was taken over from there"));
        }
        let left_out = attempts.len().saturating_sub(ATTEMPTS_TOLD);
        if left_out > 0 {
            lines.push(format!("{name}{left_out} earlier attempts ended too; `onward show {}` lists them", facts.id()));
        }
        lines.extend(attempts[left_out..].iter().map(|attempt| name.clone() + &told(attempt, facts)));
    }
    let told: Vec<&Value> = facts.ledger.iter().filter(|entry| is_news(entry)).collect();
    let first = told.len().saturating_sub(ENTRIES_TOLD.max(2 * workflows.len()).min(MOST_ENTRIES_TOLD));
    lines.extend(told[first..].iter().map(|entry| noted(entry, facts)));
    lines
}

/// Whose time an entry is about: as it says, or else the workflow that its worker had then.
fn workflow_of<'a>(entry: &'a Value, facts: &Facts<'a>) -> Option<&'a str> {
    let had_it = |attempt: &Value, at: jiff::Timestamp| {
        attempt["worker"] == entry["worker"]
            && read::instant(attempt, "started_at").is_some_and(|began| began <= at)
            && read::instant(attempt, "ended_at").is_none_or(|ended| at <= ended)
    };
    let by_worker = || {
        let at = read::instant(entry, "at").filter(|_| !entry["worker"].is_null())?;
        let had_it = |workflow: &&Value| read::items(workflow, "attempts").iter().any(|attempt| had_it(attempt, at));
        let mut all = facts.workflows().iter().filter(had_it);
        let found = all.next()?;
        // A worker with several of them has asked for all.
        all.next().is_none().then(|| read::text(found, "name"))?
    };
    read::text(entry, "workflow").or_else(by_worker)
}

fn submitted(facts: &Facts<'_>) -> String {
    let age = read::instant(facts.job, "created_at").map(|at| format!("{} ago", ago(at, facts)));
    let queue = facts.queue();
    let mut line = format!("submitted {} to queue `{queue}`", age.unwrap_or_else(|| "at an unknown time".into()));
    if let Some(origin) = read::text(facts.job, "retry_of") {
        line += &format!(", to repeat job {origin}");
    }
    line
}

/// The other workflows of the job, in a line.
fn others(facts: &Facts<'_>) -> Option<String> {
    let all = read::items(facts.job, "workflows");
    if all.len() < 2 {
        return None;
    }
    let about = |workflow: &Value| format!("{} {}", read::word(workflow, "name"), read::word(workflow, "state"));
    let mut told: Vec<String> = all.iter().take(10).map(about).collect();
    if all.len() > told.len() {
        told.push(format!("and {} more", all.len() - told.len()));
    }
    let focus = match read::is_terminal(facts.state()) {
        true => String::new(),
        false => format!("; the one that matters now is {}", read::word(facts.workflow, "name")),
    };
    Some(format!("workflows: {}{focus}", told.join(", ")))
}

fn told(attempt: &Value, facts: &Facts<'_>) -> String {
    let began = read::instant(attempt, "started_at");
    let who =
        format!("attempt {} on {} under {}", read::plain(&attempt["n"]), read::word(attempt, "worker"), fence(attempt));
    if is_open(attempt) {
        let since = began.map(|at| format!(", for {}", ago(at, facts))).unwrap_or_default();
        let note = read::text(attempt, "note").map(|note| format!("; it says: {note}")).unwrap_or_default();
        return format!("{who} runs{since}{note}");
    }
    let took = began.zip(read::instant(attempt, "ended_at")).map(|(from, to)| human(read::between(from, to)));
    let took = took.map(|took| format!(" after {took}")).unwrap_or_default();
    let outcome = read::text(attempt, "outcome").unwrap_or("ended");
    let error = read::text(attempt, "error").filter(|error| !error.is_empty());
    let error = error.map(|error| format!(": {error}")).unwrap_or_default();
    format!("{who} {}{took}{error}", ending(outcome))
}

/// How it ended, and by whose word.
fn ending(outcome: &str) -> String {
    match outcome {
        "succeeded" => "ended: its worker reported success".into(),
        "failed" => "ended: its worker reported failure".into(),
        "released" => "was given back by its worker, uncounted,".into(),
        "stuck" => "was ended by the manager as stuck (no forward step in time)".into(),
        "lease_expired" => "was ended by the manager: no beat renewed its lease,".into(),
        "evicted" => "was ended by the manager: its worker was evicted,".into(),
        "crashed" => "was ended by the manager: its worker came back as a new incarnation,".into(),
        "never_arrived" => "never arrived at its worker, uncounted,".into(),
        "cancelled" => "was cancelled".into(),
        "timed_out" => "was ended by the job's own deadline".into(),
        other => other.replace('_', " "),
    }
}

/// Attempts tell of their ends themselves.
fn is_news(entry: &Value) -> bool {
    read::text(entry, "what") != Some("attempt_ended")
}

fn noted(entry: &Value, facts: &Facts<'_>) -> String {
    let when = read::instant(entry, "at").map(|at| format!("{} ago", ago(at, facts)));
    let times = read::number(entry, "times").filter(|times| *times > 1);
    let times = times.map(|times| format!(" ({times} times)")).unwrap_or_default();
    let name = facts.prefix(workflow_of(entry, facts));
    format!("{name}{}: {}{times}", when.unwrap_or_else(|| "at an unknown time".into()), fact(entry))
}

fn fact(entry: &Value) -> String {
    let word = |field| read::word(entry, field);
    let span = |field| read::span(entry, field).map_or_else(|| "some time".into(), human);
    let progress = entry["progress"].as_f64().map(|done| format!(" at {:.0} %", done * 100.0)).unwrap_or_default();
    match word("what") {
        "granted" => format!(
            "{} asked for more time{progress} ({}) and was granted {}",
            word("worker"),
            word("reason"),
            span("by")
        ),
        "denied" => {
            let denial = word("denial");
            format!(
                "{} asked for more time{progress} and was denied: {denial} ({})",
                word("worker"),
                denied_because(denial)
            )
        }
        "extended_by_hand" | "extended" => format!("an operator gave {} more: {}", span("by"), word("reason")),
        "quiet_began" => format!("a quiet section of at most {} began", span("allowed")),
        "quiet_ended" => format!("the quiet section ended after {}", span("used")),
        "timed_out" => format!("the job was timed out: {}", word("reason")),
        "cancel_asked" => "somebody asked to cancel it".into(),
        "refused" => {
            let (verb, refusal) = (word("verb").replace('_', " "), word("refusal"));
            format!("a `{verb}` under {} was refused: {refusal}{}", fence(entry), refused_because(refusal))
        }
        other => {
            let fields = entry.as_object().into_iter().flatten();
            let rest = fields.filter(|(name, _)| !matches!(name.as_str(), "what" | "at" | "times"));
            let rest: Vec<String> = rest.map(|(name, value)| format!("{name} {}", read::plain(value))).collect();
            format!("{} {}", other.replace('_', " "), rest.join(", ")).trim_end().to_owned()
        }
    }
}

fn refused_because(refusal: &str) -> &'static str {
    match refusal {
        "stale_attempt" => "; a newer fence had been handed out, or its lease was over",
        "already_ended" => "; its attempt had ended before, and not with that",
        _ => "",
    }
}

pub fn denied_because(denial: &str) -> &'static str {
    match denial {
        "no_progress" => "it had not moved since its last grant",
        "worker_grants_spent" => "its worker has had all the grants it gets until it completes an attempt",
        "attempt_grants_spent" => "the attempt has had all the grants that one attempt gets",
        "worker_suspect" => "its worker does not answer probes",
        "worker_evicted" => "its worker was evicted",
        "stale_attempt" => "the attempt was no longer its own",
        "unknown_worker" => "the worker is not known",
        "progress_out_of_range" | "unknown_reason" => "the request was malformed",
        _ => "see the rules for extensions",
    }
}

fn ago(at: jiff::Timestamp, facts: &Facts<'_>) -> String {
    human(read::between(at, facts.now))
}
