//! The clocks that run over the job, each with what it reads and what sets it.

use core::time::Duration;

use onward_api::explanation::Clock;
use onward_api::span::human;
use onward_core::manager::AttemptView;
use onward_core::time::span_ms;

use super::{Facts, instant};

pub fn clocks(facts: &Facts<'_>) -> Vec<Clock> {
    if facts.job.state.is_terminal() {
        return Vec::new();
    }
    let mut clocks = vec![deadline(facts)];
    if let Some(due) = facts.workflow.due_at.filter(|due| *due > facts.now) {
        let left = due.since(facts.now);
        clocks.push(clock("due", left, format!("in {} ({})", human(left), instant(due))));
    }
    if let Some(attempt) = facts.running() {
        clocks.extend(of_attempt(attempt));
    }
    clocks
}

fn clock(name: &str, left: Duration, text: String) -> Clock {
    Clock { name: name.into(), text, remaining_ms: Some(span_ms(left)) }
}

fn deadline(facts: &Facts<'_>) -> Clock {
    let Some(at) = facts.job.deadline else {
        let text = "not running yet: it starts when the job could first run".into();
        return Clock { name: "deadline".into(), text, remaining_ms: None };
    };
    let extended = match facts.job.extensions {
        Duration::ZERO => String::new(),
        span => format!(", {} of it by extensions", human(span)),
    };
    let left = at.since(facts.now);
    let (over, moves) = match facts.job.gate {
        Some(_) => ("; a gate decides", "only extensions move it, here or in another datacenter, by a gate's word"),
        None => ("", "only extensions move it"),
    };
    let text = match left.is_zero() {
        true => format!("over since {} ({}{extended}){over}", human(facts.now.since(at)), instant(at)),
        false => format!("in {} ({}{extended}); {moves}", human(left), instant(at)),
    };
    clock("deadline", left, text)
}

fn of_attempt(attempt: &AttemptView) -> impl Iterator<Item = Clock> {
    let lease = attempt.lease_remaining;
    let stuck = attempt.stuck_in;
    let quiet = attempt.quiet_remaining.filter(|quiet| !quiet.is_zero());
    let quiet = quiet.map(|quiet| {
        clock("quiet section", quiet, format!("{} left; it holds the lease and the stuck clock", human(quiet)))
    });
    [
        clock("lease", lease, format!("{} left; every beat renews it", human(lease))),
        clock("stuck clock", stuck, format!("{} left; only a forward step sets it back", human(stuck))),
    ]
    .into_iter()
    .chain(quiet)
}
