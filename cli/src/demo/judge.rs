//! Did each job end as it must? Read from what the node says, not from what the demo knows.

use std::time::{Duration, Instant};

use anyhow::Result;
use onward::{Client, JobInfo, JobState, NodeAnswer};
use onward_api::job::Attempt;
use onward_api::ledger::{Ledger, LedgerLine};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::cast::{Cast, DemoPart, STUCK_AFTER};
use super::zombie;
use crate::read;
use crate::span::human;

#[derive(Debug)]
pub struct PartVerdict {
    pub part: DemoPart,
    pub id: String,
    pub state: String,
    /// Decisions of the node, with their reasons.
    pub reasons: Vec<String>,
    pub wrong: Option<String>,
    pub took: Duration,
    job: NodeAnswer<JobInfo>,
    ledger: NodeAnswer<Ledger>,
}

impl PartVerdict {
    pub fn json(&self) -> Value {
        json!({
            "part": self.part.title(), "id": self.id, "state": self.state, "as_it_must": self.wrong.is_none(),
            "reasons": self.reasons, "wrong": self.wrong, "took_s": self.took.as_secs_f64(),
            "job": read::value(self.job.text()), "ledger": read::value(self.ledger.text()),
        })
    }
}

/// A verdict on each, as they end; what has not ended `within` that has not.
pub async fn all(
    client: &Client,
    cast: &Cast,
    within: Duration,
    mut tell: impl FnMut(&PartVerdict) -> Result<()>,
) -> Result<Vec<PartVerdict>> {
    let began = Instant::now();
    let mut verdicts = Vec::new();
    for (part, id) in &cast.jobs {
        let left = within.saturating_sub(began.elapsed());
        let job = match timeout(left, client.wait(id)).await {
            Ok(ended) => ended?,
            Err(_) => client.job(id).await?,
        };
        let ledger = client.ledger(id).await?;
        let wrong = wrong(*part, &job, &ledger);
        let reasons = reasons(*part, &job, &ledger);
        let took = match (job.started_at, job.ended_at) {
            (Some(from), Some(to)) => read::between(from, to),
            _ => began.elapsed(),
        };
        let state = job.state.to_string();
        let verdict = PartVerdict { part: *part, id: id.clone(), state, reasons, wrong, took, job, ledger };
        tell(&verdict)?;
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

fn outcome(attempt: &Attempt) -> &str {
    attempt.outcome.as_deref().unwrap_or("running")
}

fn refused(ledger: &Ledger) -> Option<&LedgerLine> {
    ledger.entries.iter().find(|entry| entry.what == "refused")
}

/// The error of a part that is not as it must be, if there is one.
fn wrong(part: DemoPart, job: &JobInfo, ledger: &Ledger) -> Option<String> {
    let state = &job.state;
    let outcomes: Vec<&str> = job.attempts().map(outcome).collect();
    let reason = job.reason.as_deref().unwrap_or_default();
    let is_of_zombie = || job.result::<String>().is_ok_and(|result| result == zombie::RESULT);
    let expect = |expected: &[&str]| {
        (outcomes != expected).then(|| format!("its attempts ended as {outcomes:?}, and should have as {expected:?}"))
    };
    if !state.is_terminal() {
        return Some(format!("it is still {state}, and nobody would ever notice"));
    }
    match part {
        DemoPart::Healthy | DemoPart::Slow if *state != JobState::Succeeded => {
            Some(format!("it moved all the time, and is {state}: {reason}"))
        }
        DemoPart::Healthy | DemoPart::Slow => expect(&["succeeded"]),
        DemoPart::Hung | DemoPart::Busywork if *state != JobState::TimedOut || !reason.contains("stuck") => {
            Some(format!("it stood still, and is {state} ({reason}) instead of timed out as stuck"))
        }
        DemoPart::Hung => expect(&["stuck", "stuck"]),
        DemoPart::Busywork => expect(&["stuck"]),
        DemoPart::Zombie if is_of_zombie() => {
            Some("the zombie's result was taken, and its successor's work is lost".into())
        }
        DemoPart::Zombie if *state != JobState::Succeeded => Some(format!("it is {state}: {reason}")),
        DemoPart::Zombie if refused(ledger).is_none() => Some("the zombie's result was not refused".into()),
        DemoPart::Zombie => expect(&["lease_expired", "succeeded"]),
    }
}

fn reasons(part: DemoPart, job: &JobInfo, ledger: &Ledger) -> Vec<String> {
    let mut lines = Vec::new();
    for attempt in job.attempts() {
        let took = attempt.ended_at.map(|to| format!(" after {}", human(read::between(attempt.started_at, to))));
        let (n, worker, fence) = (attempt.n, &attempt.worker, attempt.fence);
        let outcome = outcome(attempt).replace('_', " ");
        lines.push(format!("attempt {n} on {worker}, fence {fence}: {outcome}{}", took.unwrap_or_default()));
    }
    let stuck = human(STUCK_AFTER);
    lines.extend(match part {
        DemoPart::Healthy => None,
        DemoPart::Slow => Some(format!("longer than the {stuck} that a job may stand still here: it never did")),
        DemoPart::Hung => {
            Some(format!("no beat and no progress for {stuck}, twice: a probe would have called it alive"))
        }
        DemoPart::Busywork => {
            Some(format!("it beat ten times a second, but reported 1 of 10 and nothing more for {stuck}"))
        }
        DemoPart::Zombie => refused(ledger).map(|entry| {
            let (verb, refusal) = (read::word(entry.verb.as_deref()), read::word(entry.refusal.as_deref()));
            let fence = entry.fence.unwrap_or_default();
            format!("the zombie came back: its `{verb}` under fence {fence} was refused as {refusal}, and counted")
        }),
    });
    lines
}
