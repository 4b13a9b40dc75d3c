//! Which situation a job is in. Everything that is said about now and next follows from it.

use std::time::Duration;

use serde_json::Value;

use super::{Facts, history};
use crate::read;
use crate::span::human;

/// An attempt that is this close to stuck is called slow, where more is not known.
const SLOW_BELOW: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Situation {
    /// It was handed out, and has not said a word since.
    Begun,
    Moving,
    Slow,
    Quiet,
    Cancelling,
    NoWorker,
    Limited,
    Paused,
    /// Nothing is in its way: it is the next worker's turn.
    Queued,
    Delayed,
    Waiting,
    Succeeded,
    /// Failed permanently, and kept for somebody to look at.
    Dead,
    Failed,
    TimedOut,
    Cancelled,
    Unknown,
}

impl Situation {
    pub fn of(facts: &Facts<'_>) -> Self {
        match facts.state() {
            "running" => facts.running().map_or(Self::Moving, |attempt| of_running(attempt, facts)),
            "cancelling" => Self::Cancelling,
            "ready" => match read::text(facts.workflow, "blocked") {
                Some("no_capable_worker") => Self::NoWorker,
                Some("limit") => Self::Limited,
                Some("queue_paused") => Self::Paused,
                _ => Self::Queued,
            },
            "delayed" => Self::Delayed,
            "waiting" => Self::Waiting,
            "succeeded" => Self::Succeeded,
            "failed" if read::flag(facts.job, "dead_letter") => Self::Dead,
            "failed" => Self::Failed,
            "timed_out" => Self::TimedOut,
            "cancelled" => Self::Cancelled,
            _ => Self::Unknown,
        }
    }

    pub fn headline(self, facts: &Facts<'_>) -> String {
        let job = format!("Job {} ({})", facts.id(), facts.kind());
        let (kind, queue) = (facts.kind(), facts.queue());
        let left = |field| facts.running().and_then(|attempt| read::span(attempt, field)).unwrap_or_default();
        match self {
            Self::Begun => {
                let began = facts.running().and_then(|attempt| read::instant(attempt, "started_at"));
                let began = began.map_or_else(|| "a while".into(), |began| human(read::between(began, facts.now)));
                format!("{job} was handed out {began} ago, and nothing was heard of it since.{}", again(facts))
            }
            Self::Moving => format!("{job} is running and moving{}.{}", done(facts), again(facts)),
            Self::Slow => {
                let still = facts.running().and_then(|attempt| read::span(attempt, "since_step"));
                let still = still.map_or_else(|| "a while".into(), human);
                format!("{job} is running but has not moved for {still}{}.{}", done(facts), again(facts))
            }
            Self::Quiet => format!(
                "{job} is in a quiet section: it said that it would be silent, for another {} at most.",
                human(left("quiet_remaining"))
            ),
            Self::Cancelling => format!("{job} is being cancelled: running attempts were told to stop."),
            Self::NoWorker => format!(
                "{job} waits: no worker that is connected takes kind `{kind}` from queue `{queue}`.{}",
                again(facts)
            ),
            Self::Limited => match kept(facts) {
                Some((key, keeper)) => format!(
                    "{job} waits: job {keeper} keeps the concurrency key `{key}` in order, until it has ended.{}",
                    again(facts)
                ),
                None => format!(
                    "{job} waits: one of its concurrency keys{} is used up by other jobs.{}",
                    keys(facts),
                    again(facts)
                ),
            },
            Self::Paused => format!("{job} waits: its queue `{queue}` is paused.{}", again(facts)),
            Self::Queued => format!("{job} is ready and waits for a free slot.{}", again(facts)),
            Self::Delayed => match facts.ended() {
                Some(_) => format!("{job} waits before its next attempt.{}", again(facts)),
                None => format!("{job} is delayed: it was submitted to run later."),
            },
            Self::Waiting => format!("{job} waits for other workflows of the same job."),
            Self::Succeeded => format!("{job} succeeded{}.", took(facts)),
            Self::Dead => {
                format!("{job} failed permanently{} and is among the dead letters.{}", took(facts), because(facts))
            }
            Self::Failed => format!("{job} failed permanently{}.{}", took(facts), because(facts)),
            Self::TimedOut => match read::text(facts.job, "reason") {
                Some("stuck") if read::text(facts.job, "on_stuck") == Some("time_out") => {
                    format!("{job} timed out{}: it was stuck, and was submitted to end then.", took(facts))
                }
                Some("stuck") => format!("{job} timed out{}: it was stuck, and had no attempt left.", took(facts)),
                _ => format!("{job} timed out{}: its overall deadline was over.", took(facts)),
            },
            Self::Cancelled => format!("{job} was cancelled{}.", took(facts)),
            Self::Unknown => format!("{job} is {}.", facts.state()),
        }
    }

    pub fn next(self, facts: &Facts<'_>) -> Vec<String> {
        let left = |field: &str| facts.running().and_then(|attempt| read::span(attempt, field)).map(human);
        let in_time = |field: &str| left(field).map_or_else(|| "in time".into(), |left| format!("within {left}"));
        let due = read::instant(facts.workflow, "due_at").map(|at| human(read::between(facts.now, at)));
        match self {
            Self::Begun | Self::Moving | Self::Slow => {
                let mut lines = vec![
                    format!(
                        "no forward step {}: the attempt is stuck, ends, and the retry policy decides",
                        in_time("stuck_in")
                    ),
                    format!(
                        "no beat {}: its lease ends, and it is handed out again under a higher fence",
                        in_time("lease_remaining")
                    ),
                ];
                if let Some(denied) = denied_last(facts) {
                    lines.push(format!(
                        "more time was denied because {}; it may ask again once that has changed",
                        history::denied_because(denied)
                    ));
                }
                lines
            }
            Self::Quiet => vec![format!(
                "no word {}: the quiet section is over, and lease and stuck clock run on",
                in_time("quiet_remaining")
            )],
            Self::Cancelling => vec![format!(
                "its worker confirms, or its lease ends ({}): it is cancelled then; if it ends by itself first, that counts",
                in_time("lease_remaining")
            )],
            Self::NoWorker => {
                vec!["nothing, until a worker for that kind and queue connects; it then starts at once".into()]
            }
            Self::Limited => vec![match kept(facts) {
                Some((key, _)) => {
                    format!("it starts when that job's workflow under `{key}` has ended, retries included")
                }
                None => "it starts when a job that holds the key ends".into(),
            }],
            Self::Paused => vec!["nothing, until the queue is resumed; its deadline runs on meanwhile".into()],
            Self::Queued => {
                vec!["the next worker with a free slot takes it, if nothing of higher priority is there".into()]
            }
            Self::Delayed => vec![match due {
                Some(due) => format!("it is ready in {due}, and handed out under a higher fence"),
                None => "it is ready when its delay is over".into(),
            }],
            Self::Waiting => {
                vec![
                    "it is ready when those before it have succeeded; if one fails permanently, it is cancelled".into(),
                ]
            }
            Self::Succeeded => {
                vec!["nothing: this is final. Late reports from older attempts are rejected".into()]
            }
            Self::Dead => vec!["nothing by itself: it stays there until it is replayed or dropped".into()],
            Self::Failed | Self::TimedOut | Self::Cancelled => vec!["nothing: this is final".into()],
            Self::Unknown => Vec::new(),
        }
    }

    pub fn remedies(self, facts: &Facts<'_>) -> Vec<String> {
        let id = facts.id();
        let watch = format!("onward watch {id}    follow it");
        let cancel = format!("onward cancel {id}    stop it");
        let extend = format!("onward extend {id} --by 30m --reason WHY    move its deadline");
        let nodes = "onward node list    see which workers are there, and how they are".to_owned();
        let retry = format!("onward retry {id}    submit it once more, as a new job");
        match self {
            Self::Begun | Self::Moving | Self::Quiet => vec![watch, extend, cancel],
            Self::Slow => {
                let worker = facts.running().map_or("-", |attempt| read::word(attempt, "worker"));
                vec![watch, format!("onward node show {worker}    see how its worker is"), extend, cancel]
            }
            Self::Cancelling => vec![watch],
            Self::NoWorker => vec![format!("start a worker that handles `{}`", facts.kind()), nodes, cancel],
            Self::Limited => {
                let before = match kept(facts) {
                    Some((_, keeper)) => format!("onward explain {keeper}    see where the job before it is"),
                    None => format!("onward list --state running --queue {}    see the running jobs", facts.queue()),
                };
                vec![before, extend, cancel]
            }
            Self::Paused => vec![format!("onward queue resume {}    open the queue", facts.queue()), extend, cancel],
            Self::Queued => vec![nodes, extend, cancel],
            Self::Delayed | Self::Waiting => vec![watch, cancel],
            Self::Succeeded => vec![format!("onward result {id}    print its result")],
            Self::Dead => vec![
                format!("onward dead-letter replay {id}    submit it once more, when the cause is gone"),
                format!("onward dead-letter drop {id}    forget it"),
            ],
            Self::Failed | Self::TimedOut | Self::Cancelled => vec![retry],
            Self::Unknown => vec![watch],
        }
    }
}

/// Slow: half of the stuck clock has run, or, where its length is not known, it is nearly over.
fn of_running(attempt: &Value, facts: &Facts<'_>) -> Situation {
    let left = |field| read::span(attempt, field);
    let is_slow = match (left("since_step"), read::span(facts.job, "stuck_after")) {
        (Some(still), Some(allowed)) => still >= allowed / 2,
        _ => left("stuck_in").is_some_and(|stuck| stuck < SLOW_BELOW),
    };
    if left("quiet_remaining").is_some_and(|quiet| !quiet.is_zero()) {
        Situation::Quiet
    } else if is_slow {
        Situation::Slow
    } else if has_said_nothing(attempt, facts) {
        Situation::Begun
    } else {
        Situation::Moving
    }
}

/// No forward step since it was handed out; those two clocks are read a moment apart.
fn has_said_nothing(attempt: &Value, facts: &Facts<'_>) -> bool {
    const MOMENT: Duration = Duration::from_secs(1);
    let ran = read::instant(attempt, "started_at").map(|began| read::between(began, facts.now));
    let no_step = ran.zip(read::span(attempt, "since_step")).is_some_and(|(ran, still)| still + MOMENT > ran);
    no_step && done(facts).is_empty() && read::text(attempt, "note").is_none()
}

/// The newest answer to a request for more time, if it was no.
fn denied_last<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let answers = |entry: &&Value| matches!(read::text(entry, "what"), Some("granted" | "denied"));
    let last = facts.ledger.iter().rfind(answers)?;
    read::text(last, "denial").filter(|_| read::text(last, "what") == Some("denied"))
}

fn done(facts: &Facts<'_>) -> String {
    let progress = &facts.job["progress"];
    match (read::number(progress, "done"), read::number(progress, "total")) {
        (Some(done), Some(total)) if done > 0 && total > 0 => {
            format!(": {done} of {total} ({} %)", done.saturating_mul(100) / total)
        }
        (Some(done), _) if done > 0 => format!(": {done} done"),
        _ => String::new(),
    }
}

/// The key that the workflow waits for and the job that keeps it, if that one asked for order.
fn kept<'a>(facts: &Facts<'a>) -> Option<(&'a str, &'a str)> {
    let wait = &facts.workflow["waits_for_key"];
    read::text(wait, "key").zip(read::text(wait, "kept_by"))
}

/// The keys by name, with how many jobs each lets run.
fn keys(facts: &Facts<'_>) -> String {
    let key = |limit: &Value| format!("`{}` (at most {})", read::word(limit, "key"), read::plain(&limit["max"]));
    let keys: Vec<String> = read::items(facts.job, "limits").iter().map(key).collect();
    if keys.is_empty() { String::new() } else { format!(", {},", keys.join(", ")) }
}

/// That it is not the first attempt, and what became of the one before.
fn again(facts: &Facts<'_>) -> String {
    let Some(before) = facts.ended() else { return String::new() };
    let outcome = match read::text(before, "outcome").unwrap_or("ended") {
        "lease_expired" => "lost its lease".into(),
        word @ ("stuck" | "evicted" | "released") => format!("was {word}"),
        word => word.replace('_', " "),
    };
    let zombie = if facts.newest("refused").is_some() { ", and was refused when it spoke up afterwards" } else { "" };
    format!(" Its attempt {} {outcome}{zombie}.", read::plain(&before["n"]))
}

fn took(facts: &Facts<'_>) -> String {
    let from = read::instant(facts.job, "started_at").or_else(|| read::instant(facts.job, "created_at"));
    let took = from.zip(read::instant(facts.job, "ended_at")).map(|(from, to)| human(read::between(from, to)));
    took.map(|took| format!(" after {took}")).unwrap_or_default()
}

fn because(facts: &Facts<'_>) -> String {
    let error = facts.ended().and_then(|attempt| read::text(attempt, "error")).filter(|error| !error.is_empty());
    match error.or_else(|| read::text(facts.job, "reason")) {
        Some(why) => format!(" The last word was: {why}."),
        None => String::new(),
    }
}
