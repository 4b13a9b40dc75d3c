//! Which situation a job is in. Everything that is said about now and next follows from it.

use core::time::Duration;

use onward_api::explanation::Remedy;
use onward_api::job::Progress;
use onward_api::span::human;
use onward_core::grant::Denial;
use onward_core::ids::JobId;
use onward_core::job::retry::next;
use onward_core::job::{Ending, EndingKind, Next, OnStuck, WorkflowState};
use onward_core::manager::AttemptView;
use onward_core::state::LedgerFact;
use onward_core::timeout::TimeoutReason;

use super::super::reason::reason;
use super::super::shape::progress;
use super::{Facts, history};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Situation {
    /// The workflow was handed out, and its worker has not said a word since.
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
}

impl Situation {
    pub fn of(facts: &Facts<'_>) -> Self {
        match facts.job.state {
            WorkflowState::Running => facts.running().map_or(Self::Moving, |attempt| of_running(attempt, facts)),
            WorkflowState::Cancelling => Self::Cancelling,
            WorkflowState::Ready => match facts.workflow.blocked {
                Some("no_capable_worker") => Self::NoWorker,
                Some("limit") => Self::Limited,
                Some("queue_paused") => Self::Paused,
                _ => Self::Queued,
            },
            WorkflowState::Delayed => Self::Delayed,
            WorkflowState::Waiting => Self::Waiting,
            WorkflowState::Succeeded => Self::Succeeded,
            WorkflowState::Failed if facts.job.dead_letter => Self::Dead,
            WorkflowState::Failed => Self::Failed,
            WorkflowState::TimedOut => Self::TimedOut,
            WorkflowState::Cancelled => Self::Cancelled,
        }
    }

    pub const fn code(self) -> &'static str {
        match self {
            Self::Begun => "nothing_heard_yet",
            Self::Moving => "moving",
            Self::Slow => "slow",
            Self::Quiet => "quiet_section",
            Self::Cancelling => "cancelling",
            Self::NoWorker => "no_capable_worker",
            Self::Limited => "limit",
            Self::Paused => "queue_paused",
            Self::Queued => "waiting_for_slot",
            Self::Delayed => "delayed",
            Self::Waiting => "waiting_for_predecessors",
            Self::Succeeded => "succeeded",
            Self::Dead => "dead_letter",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn headline(self, facts: &Facts<'_>) -> String {
        let job = format!("Job {} ({})", facts.job.id, facts.workflow.kind);
        let (kind, queue) = (&facts.workflow.kind, &facts.job.queue);
        match self {
            Self::Begun => {
                let began = facts.running().map(|attempt| facts.now.since(attempt.started_at)).unwrap_or_default();
                let began = human(began);
                format!("{job} was handed out {began} ago, and nothing was heard of it since.{}", again(facts))
            }
            Self::Moving => format!("{job} is running and moving{}.{}", done(facts), again(facts)),
            Self::Slow => {
                let still = facts.running().map(|attempt| human(attempt.since_step)).unwrap_or_default();
                format!("{job} is running but has not moved for {still}{}.{}", done(facts), again(facts))
            }
            Self::Quiet => {
                let left = human(facts.running().and_then(|attempt| attempt.quiet_remaining).unwrap_or_default());
                format!("{job} is in a quiet section: it said that it would be silent, for another {left} at most.")
            }
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
            Self::TimedOut => match facts.job.timed_out {
                Some(reason) if facts.job.gate.is_some() => {
                    let why = match (timed_out_by_gate(facts), reason) {
                        (true, TimeoutReason::Stuck) => "a gate ended it in all datacenters, as stuck",
                        (true, TimeoutReason::Overall) => {
                            "a gate ended it in all datacenters, since its overall deadline was over"
                        }
                        (false, TimeoutReason::Stuck) => "it was stuck, and no gate answered",
                        (false, TimeoutReason::Overall) => "its overall deadline was over, and no gate answered",
                    };
                    format!("{job} timed out{}: {why}.", took(facts))
                }
                Some(TimeoutReason::Stuck) if facts.job.spec.on_stuck == OnStuck::TimeOut => {
                    format!("{job} timed out{}: it was stuck, and was submitted to end then.", took(facts))
                }
                Some(TimeoutReason::Stuck) => {
                    format!("{job} timed out{}: it was stuck, and had no attempt left.", took(facts))
                }
                Some(TimeoutReason::Overall) | None => {
                    format!("{job} timed out{}: its overall deadline was over.", took(facts))
                }
            },
            Self::Cancelled => format!("{job} was cancelled{}.", took(facts)),
        }
    }

    pub fn next(self, facts: &Facts<'_>) -> Vec<String> {
        let in_time = |left: fn(&AttemptView) -> Duration| match facts.running() {
            Some(attempt) => format!("within {}", human(left(attempt))),
            None => "in time".into(),
        };
        let due = facts.workflow.due_at.map(|at| human(at.since(facts.now)));
        match self {
            Self::Begun | Self::Moving | Self::Slow => {
                let mut lines = vec![
                    format!(
                        "no forward step {}: the attempt is stuck{}",
                        in_time(|attempt| attempt.stuck_in),
                        match is_gates_when_stuck(facts) {
                            true => ", and a gate decides whether the job ends in all datacenters",
                            false => ", ends, and the retry policy decides",
                        }
                    ),
                    format!(
                        "no beat {}: its lease ends, and it is handed out again under a higher fence",
                        in_time(|attempt| attempt.lease_remaining)
                    ),
                ];
                if let Some(denied) = denied_last(facts) {
                    lines.push(format!(
                        "more time was denied because {}; it may ask again once that has changed",
                        history::denied_because(denied)
                    ));
                }
                lines.extend(gate_is_asked(facts));
                lines
            }
            Self::Quiet => vec![format!(
                "no word {}: the quiet section is over, and lease and stuck clock run on",
                in_time(|attempt| attempt.quiet_remaining.unwrap_or_default())
            )],
            Self::Cancelling => vec![format!(
                "its worker confirms, or its lease ends ({}): it is cancelled then; if it ends by itself first, that counts",
                in_time(|attempt| attempt.lease_remaining)
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
        }
    }

    pub fn remedies(self, facts: &Facts<'_>) -> Vec<Remedy> {
        let (id, queue) = (facts.job.id, &facts.job.queue);
        let watch = || Remedy::command(format!("onward watch {id}"), "follow it");
        let cancel = || Remedy::command(format!("onward cancel {id}"), "stop it");
        let extend = || Remedy::command(format!("onward extend {id} --by 30m --reason WHY"), "move its deadline");
        let nodes = || Remedy::command("onward node list", "see which workers are there, and how they are");
        match self {
            Self::Begun | Self::Moving | Self::Quiet => vec![watch(), extend(), cancel()],
            Self::Slow => {
                let show = |attempt: &AttemptView| format!("onward node show {}", attempt.worker);
                let worker = facts.running().map(|attempt| Remedy::command(show(attempt), "see how its worker is"));
                [watch()].into_iter().chain(worker).chain([extend(), cancel()]).collect()
            }
            Self::Cancelling => vec![watch()],
            Self::NoWorker => {
                let start = Remedy::advice(format!("start a worker that handles `{}`", facts.workflow.kind));
                vec![start, nodes(), cancel()]
            }
            Self::Limited => {
                let before = match kept(facts) {
                    Some((_, keeper)) => {
                        Remedy::command(format!("onward explain {keeper}"), "see where the job before it is")
                    }
                    None => {
                        Remedy::command(format!("onward list --state running --queue {queue}"), "see the running jobs")
                    }
                };
                vec![before, extend(), cancel()]
            }
            Self::Paused => {
                vec![Remedy::command(format!("onward queue resume {queue}"), "open the queue"), extend(), cancel()]
            }
            Self::Queued => vec![nodes(), extend(), cancel()],
            Self::Delayed | Self::Waiting => vec![watch(), cancel()],
            Self::Succeeded => vec![Remedy::command(format!("onward result {id}"), "print its result")],
            Self::Dead => vec![
                Remedy::command(
                    format!("onward dead-letter replay {id}"),
                    "submit it once more, when the cause is gone",
                ),
                Remedy::command(format!("onward dead-letter drop {id}"), "forget it"),
            ],
            Self::Failed | Self::TimedOut | Self::Cancelled => {
                vec![Remedy::command(format!("onward retry {id}"), "submit it once more, as a new job")]
            }
        }
    }
}

/// Whether a gate decides once the running attempt is stuck: it does where the job would end by it.
fn is_gates_when_stuck(facts: &Facts<'_>) -> bool {
    let spec = &facts.job.spec;
    facts.job.gate.is_some()
        && next(&Ending::Stuck, facts.workflow.counted, &spec.retry, spec.on_stuck, 0) == Next::TimeOut
}

/// What becomes of a gate's job that would have timed out here.
fn gate_is_asked(facts: &Facts<'_>) -> Option<String> {
    let local = facts.job.gate.as_ref()?.local?;
    Some(format!(
        "a gate decides: the job would have timed out here ({}); if none answers for as long as `gate.fallback_after`, it ends here",
        local.reason.code()
    ))
}

/// Whether the newest word about its end is a gate's.
fn timed_out_by_gate(facts: &Facts<'_>) -> bool {
    let mut newest = facts.ledger().iter().rev();
    newest.any(|entry| matches!(entry.what, LedgerFact::TimedOut { epoch: Some(_), .. }))
}

/// Slow: half of the stuck clock has run.
fn of_running(attempt: &AttemptView, facts: &Facts<'_>) -> Situation {
    if attempt.quiet_remaining.is_some_and(|quiet| !quiet.is_zero()) {
        Situation::Quiet
    } else if attempt.since_step >= facts.job.spec.stuck_after / 2 {
        Situation::Slow
    } else if has_said_nothing(attempt, facts) {
        Situation::Begun
    } else {
        Situation::Moving
    }
}

/// No forward step since it was handed out; those two clocks are read a moment apart.
fn has_said_nothing(attempt: &AttemptView, facts: &Facts<'_>) -> bool {
    const MOMENT: Duration = Duration::from_secs(1);
    let no_step = attempt.since_step + MOMENT > facts.now.since(attempt.started_at);
    no_step && done(facts).is_empty() && attempt.note.is_none()
}

/// The newest answer to a request for more time, if it was no.
fn denied_last(facts: &Facts<'_>) -> Option<Denial> {
    let answer = |fact: &LedgerFact| match fact {
        LedgerFact::Granted { .. } => Some(None),
        LedgerFact::Denied { denial, .. } => Some(Some(*denial)),
        _ => None,
    };
    facts.ledger().iter().rev().find_map(|entry| answer(&entry.what)).flatten()
}

fn done(facts: &Facts<'_>) -> String {
    match progress(facts.job) {
        Progress { done, total: Some(total) } if done > 0 && total > 0 => {
            format!(": {done} of {total} ({} %)", done.saturating_mul(100) / total)
        }
        Progress { done, .. } if done > 0 => format!(": {done} done"),
        _ => String::new(),
    }
}

/// The key that the workflow waits for and the job that keeps it, if that one asked for order.
fn kept<'a>(facts: &Facts<'a>) -> Option<(&'a str, JobId)> {
    let wait = facts.workflow.waits_for_key.as_ref()?;
    Some((wait.key.as_str(), wait.kept_by?))
}

/// The keys by name, with how many jobs each lets run.
fn keys(facts: &Facts<'_>) -> String {
    let limits = facts.job.spec.limits.iter();
    let keys: Vec<String> = limits.map(|limit| format!("`{}` (at most {})", limit.key, limit.max)).collect();
    if keys.is_empty() { String::new() } else { format!(", {},", keys.join(", ")) }
}

/// Tells that it is not the first attempt, and how the one before ended.
fn again(facts: &Facts<'_>) -> String {
    let Some(before) = facts.ended() else { return String::new() };
    let kind = before.ending.kind();
    let outcome = match kind {
        EndingKind::LeaseExpired => "lost its lease".into(),
        EndingKind::Stuck | EndingKind::Evicted | EndingKind::Released => format!("was {}", kind.code()),
        _ => kind.code().replace('_', " "),
    };
    let is_zombie = facts.ledger().iter().any(|entry| matches!(entry.what, LedgerFact::Refused { .. }));
    let zombie = if is_zombie { ", and was refused when it spoke up afterwards" } else { "" };
    format!(" Its attempt {} {outcome}{zombie}.", before.number)
}

fn took(facts: &Facts<'_>) -> String {
    let from = facts.job.started_at.unwrap_or(facts.job.created_at);
    facts.job.ended_at.map(|ended| format!(" after {}", human(ended.since(from)))).unwrap_or_default()
}

fn because(facts: &Facts<'_>) -> String {
    let error = facts.ended().and_then(|attempt| match &attempt.ending {
        Ending::Failed { error, .. } if !error.is_empty() => Some(error.to_string()),
        _ => None,
    });
    error.or_else(|| reason(facts.job)).map(|why| format!(" The last word was: {why}.")).unwrap_or_default()
}
