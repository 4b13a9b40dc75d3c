//! Why a job is where it is, as a colleague would answer: what is the case, who decided it under which fence, which
//! clocks run and what they read, what happens next and when, and what can be done.
//!
//! Pure: the node's answers and the time go in, text comes out.

mod clocks;
mod history;
mod situation;

use jiff::Timestamp;
use serde_json::Value;

use crate::read;
use crate::work::handler::KIND;
use situation::Situation;

/// `job` and `ledger` as the node gives them for `/v1/jobs/{id}` and `/v1/jobs/{id}/ledger`.
pub fn explain(job: &Value, ledger: &Value, now: Timestamp) -> String {
    let facts = Facts { job, workflow: focus(job), ledger: read::listed(ledger), now };
    let situation = Situation::of(&facts);
    let mut page = situation.headline(&facts) + "\n";
    section(&mut page, "So far", history::lines(&facts));
    section(&mut page, "Clocks", clocks::lines(&facts));
    section(&mut page, "What happens next", situation.next(&facts));
    let mut remedies = situation.remedies(&facts);
    if facts.kind() == KIND && !facts.attempts().is_empty() {
        remedies.push(format!("onward logs {}    see what it printed", facts.id()));
    }
    section(&mut page, "What you can do", remedies);
    page
}

/// What is known, and the workflow that decides where the job is.
struct Facts<'a> {
    job: &'a Value,
    workflow: &'a Value,
    ledger: &'a [Value],
    now: Timestamp,
}

impl<'a> Facts<'a> {
    fn id(&self) -> &'a str {
        read::word(self.job, "id")
    }

    fn state(&self) -> &'a str {
        read::word(self.job, "state")
    }

    fn kind(&self) -> &'a str {
        read::text(self.workflow, "kind").unwrap_or_else(|| read::word(self.job, "kind"))
    }

    fn queue(&self) -> &'a str {
        read::word(self.job, "queue")
    }

    fn workflows(&self) -> &'a [Value] {
        read::items(self.job, "workflows")
    }

    /// Before a line about one of several workflows: its name.
    fn prefix(&self, workflow: Option<&str>) -> String {
        match workflow {
            Some(name) if self.workflows().len() > 1 => format!("{name}: "),
            _ => String::new(),
        }
    }

    fn attempts(&self) -> &'a [Value] {
        read::items(self.workflow, "attempts")
    }

    /// The attempt that holds the lease.
    fn running(&self) -> Option<&'a Value> {
        self.attempts().last().filter(|attempt| is_open(attempt))
    }

    /// The newest attempt that ended.
    fn ended(&self) -> Option<&'a Value> {
        self.attempts().iter().rfind(|attempt| !is_open(attempt))
    }

    /// The newest entry of the ledger that says `what`.
    fn newest(&self, what: &str) -> Option<&'a Value> {
        self.ledger.iter().rfind(|entry| read::text(entry, "what") == Some(what))
    }
}

fn is_open(attempt: &Value) -> bool {
    attempt["ended_at"].is_null() && matches!(read::text(attempt, "outcome"), None | Some("running"))
}

/// The workflow that the job's state is due to: one that is in that state, or else one that has not ended.
fn focus(job: &Value) -> &Value {
    let workflows = read::items(job, "workflows");
    let in_state = workflows.iter().find(|workflow| workflow["state"] == job["state"]);
    let open = || workflows.iter().find(|workflow| !read::text(workflow, "state").is_some_and(read::is_terminal));
    in_state.or_else(open).or(workflows.last()).unwrap_or(&Value::Null)
}

fn section(page: &mut String, title: &str, lines: Vec<String>) {
    if !lines.is_empty() {
        *page += &format!("\n{title}\n");
        for line in lines {
            *page += &format!("  {line}\n");
        }
    }
}

/// A fence as people compare it: the whole number, and what it is made of.
fn fence(attempt: &Value) -> String {
    match read::number(attempt, "fence") {
        Some(fence) => format!("fence {fence} (term {}, hand-out {})", fence >> 20, fence & 0xF_FFFF),
        None => "an unknown fence".into(),
    }
}

#[cfg(test)]
mod tests;
