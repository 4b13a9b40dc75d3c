//! The clocks that run over the job, each with what it reads and what sets it.

use serde_json::Value;

use super::Facts;
use crate::read;
use crate::span::human;

pub fn lines(facts: &Facts<'_>) -> Vec<String> {
    if read::is_terminal(facts.state()) {
        return Vec::new();
    }
    let mut lines = Vec::new();
    lines.push(deadline(facts));
    if let Some(due) = read::instant(facts.workflow, "due_at").filter(|due| *due > facts.now) {
        lines.push(format!("due            in {} ({due})", human(read::between(facts.now, due))));
    }
    if let Some(attempt) = facts.running() {
        lines.extend(of_attempt(attempt));
    }
    lines
}

fn deadline(facts: &Facts<'_>) -> String {
    let Some(at) = read::instant(facts.job, "deadline_at") else {
        return "deadline       not running yet: it starts when the job could first run".into();
    };
    let extended = read::span(facts.job, "extensions").filter(|span| !span.is_zero());
    let extended = extended.map(|span| format!(", {} of it by extensions", human(span))).unwrap_or_default();
    if at <= facts.now {
        return format!("deadline       over since {} ({at}{extended})", human(read::between(at, facts.now)));
    }
    format!("deadline       in {} ({at}{extended}); only extensions move it", human(read::between(facts.now, at)))
}

fn of_attempt(attempt: &Value) -> Vec<String> {
    let left = |field: &str| read::span(attempt, field);
    let mut lines = Vec::new();
    if let Some(lease) = left("lease_remaining") {
        lines.push(format!("lease          {} left; every beat renews it", human(lease)));
    }
    if let Some(stuck) = left("stuck_in") {
        lines.push(format!("stuck clock    {} left; only a forward step sets it back", human(stuck)));
    }
    if let Some(quiet) = left("quiet_remaining").filter(|quiet| !quiet.is_zero()) {
        lines.push(format!("quiet section  {} left; it holds the lease and the stuck clock", human(quiet)));
    }
    lines
}
