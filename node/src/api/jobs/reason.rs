//! Why a job is where it is, in one line.

use onward_api::instant::At;
use onward_core::job::{Ending, WorkflowState};
use onward_core::manager::{JobView, KeyWait, WorkflowView};

/// A stable word, and after a colon what there is to say about it. Success needs no reason.
pub fn reason(view: &JobView) -> Option<String> {
    let first = |state| view.workflows.iter().find(move |workflow| workflow.state == state);
    Some(match view.state {
        WorkflowState::Succeeded => return None,
        WorkflowState::TimedOut => view.timed_out.map_or("timeout", |reason| reason.code()).into(),
        WorkflowState::Failed => first(WorkflowState::Failed).and_then(last_ending).unwrap_or_else(|| "failed".into()),
        WorkflowState::Cancelled => "cancelled".into(),
        WorkflowState::Cancelling => format!("cancel_asked: {} must stop first", holders(view)),
        WorkflowState::Running => format!("running: on {}", holders(view)),
        WorkflowState::Ready => first(WorkflowState::Ready).map_or("waiting_for_slot".into(), blocked),
        WorkflowState::Delayed => first(WorkflowState::Delayed).map_or("delayed".into(), delayed),
        WorkflowState::Waiting => "waiting_for_predecessors".into(),
    })
}

fn blocked(workflow: &WorkflowView) -> String {
    match workflow.blocked {
        Some("queue_paused") => "queue_paused: resume it to go on".into(),
        Some("limit") => match &workflow.waits_for_key {
            Some(KeyWait { key, kept_by: Some(job) }) => format!("limit: job {job} keeps the key `{key}` in order"),
            _ => "limit: a concurrency key is full".into(),
        },
        Some("no_capable_worker") => format!("no_capable_worker: no worker takes `{}`", workflow.kind),
        Some(other) => other.into(),
        None => "waiting_for_slot: all workers that take it are busy".into(),
    }
}

fn delayed(workflow: &WorkflowView) -> String {
    let due = workflow.due_at.map_or(String::new(), |due| format!(" until {}", At(due)));
    match last_ending(workflow) {
        Some(ending) => format!("retrying:{due}, after {ending}"),
        None => format!("delayed:{due}"),
    }
}

fn last_ending(workflow: &WorkflowView) -> Option<String> {
    Some(match &workflow.ended.last()?.ending {
        Ending::Failed { error, .. } => format!("failed: {error}"),
        other => other.code().into(),
    })
}

/// Workers that hold an attempt; a few of them.
fn holders(view: &JobView) -> String {
    let names = || view.workflows.iter().filter_map(|workflow| Some(workflow.running.as_ref()?.worker.as_str()));
    let shown: Vec<_> = names().take(3).collect();
    match names().count() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
