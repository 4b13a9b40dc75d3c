//! Did each job end as it must? Read from what the node says, not from what the demo knows.

use std::time::{Duration, Instant};

use anyhow::Result;
use onward::{Client, JobState};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::cast::{Cast, Part, STUCK_AFTER};
use super::zombie;
use crate::read;
use crate::span::human;

#[derive(Debug)]
pub struct Verdict {
    pub part: Part,
    pub id: String,
    pub state: String,
    /// What the node decided, and why.
    pub reasons: Vec<String>,
    pub wrong: Option<String>,
    pub took: Duration,
    job: Value,
    ledger: Value,
}

impl Verdict {
    pub fn json(&self) -> Value {
        json!({
            "part": self.part.title(), "id": self.id, "state": self.state, "as_it_must": self.wrong.is_none(),
            "reasons": self.reasons, "wrong": self.wrong, "took_s": self.took.as_secs_f64(),
            "job": self.job, "ledger": self.ledger,
        })
    }
}

/// A verdict on each, as they end; what has not ended `within` that has not.
pub async fn all(
    client: &Client,
    cast: &Cast,
    within: Duration,
    mut tell: impl FnMut(&Verdict) -> Result<()>,
) -> Result<Vec<Verdict>> {
    let began = Instant::now();
    let mut verdicts = Vec::new();
    for (part, id) in &cast.jobs {
        let left = within.saturating_sub(began.elapsed());
        let job = match timeout(left, client.wait(id)).await {
            Ok(ended) => ended?,
            Err(_) => client.job(id).await?,
        };
        let ledger = client.ledger(id).await?;
        let wrong = wrong(*part, job.state, &job.json, &ledger);
        let reasons = reasons(*part, &job.json, &ledger);
        let took = match (read::instant(&job.json, "started_at"), read::instant(&job.json, "ended_at")) {
            (Some(from), Some(to)) => read::between(from, to),
            _ => began.elapsed(),
        };
        let state = job.state.to_string();
        let verdict = Verdict { part: *part, id: id.clone(), state, reasons, wrong, took, job: job.json, ledger };
        tell(&verdict)?;
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

fn attempts(job: &Value) -> Vec<&Value> {
    read::items(job, "workflows").iter().flat_map(|workflow| read::items(workflow, "attempts")).collect()
}

fn outcomes(job: &Value) -> Vec<&str> {
    attempts(job).into_iter().map(|attempt| read::text(attempt, "outcome").unwrap_or("running")).collect()
}

fn refused(ledger: &Value) -> Option<&Value> {
    read::items(ledger, "entries").iter().find(|entry| read::text(entry, "what") == Some("refused"))
}

/// What is not as it must be, if anything.
fn wrong(part: Part, state: JobState, job: &Value, ledger: &Value) -> Option<String> {
    let outcomes = outcomes(job);
    let reason = read::text(job, "reason").unwrap_or_default();
    let expect = |expected: &[&str]| {
        (outcomes != expected).then(|| format!("its attempts ended as {outcomes:?}, and should have as {expected:?}"))
    };
    if !state.is_terminal() {
        return Some(format!("it is still {state}, and nobody would ever notice"));
    }
    match part {
        Part::Healthy | Part::Slow if state != JobState::Succeeded => {
            Some(format!("it moved all the time, and is {state}: {reason}"))
        }
        Part::Healthy | Part::Slow => expect(&["succeeded"]),
        Part::Hung | Part::Busywork if state != JobState::TimedOut || !reason.contains("stuck") => {
            Some(format!("it stood still, and is {state} ({reason}) instead of timed out as stuck"))
        }
        Part::Hung => expect(&["stuck", "stuck"]),
        Part::Busywork => expect(&["stuck"]),
        Part::Zombie if job["result"] == zombie::RESULT => {
            Some("the zombie's result was taken, and its successor's work is lost".into())
        }
        Part::Zombie if state != JobState::Succeeded => Some(format!("it is {state}: {reason}")),
        Part::Zombie if refused(ledger).is_none() => Some("the zombie's result was not refused".into()),
        Part::Zombie => expect(&["lease_expired", "succeeded"]),
    }
}

fn reasons(part: Part, job: &Value, ledger: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for attempt in attempts(job) {
        let took = read::instant(attempt, "started_at").zip(read::instant(attempt, "ended_at"));
        let took = took.map(|(from, to)| format!(" after {}", human(read::between(from, to)))).unwrap_or_default();
        let (n, fence) = (read::plain(&attempt["n"]), read::plain(&attempt["fence"]));
        let worker = read::word(attempt, "worker");
        let outcome = read::text(attempt, "outcome").unwrap_or("running").replace('_', " ");
        lines.push(format!("attempt {n} on {worker}, fence {fence}: {outcome}{took}"));
    }
    let stuck = human(STUCK_AFTER);
    lines.extend(match part {
        Part::Healthy => None,
        Part::Slow => Some(format!("longer than the {stuck} that a job may stand still here: it never did")),
        Part::Hung => Some(format!("no beat and no progress for {stuck}, twice: a probe would have called it alive")),
        Part::Busywork => {
            Some(format!("it beat ten times a second, but reported 1 of 10 and nothing more for {stuck}"))
        }
        Part::Zombie => refused(ledger).map(|entry| {
            let (verb, refusal, fence) =
                (read::word(entry, "verb"), read::word(entry, "refusal"), read::plain(&entry["fence"]));
            format!("the zombie came back: its `{verb}` under fence {fence} was refused as {refusal}, and counted")
        }),
    });
    lines
}
