//! Jobs from submission to their end: dependencies, retries, dead letters, keys, order, cancel and timeout.

mod cancel;
mod dead_letters;
mod dependencies;
mod keys;
mod order;
mod outcomes;
mod retrying;
mod timeout;

use std::time::Duration;

use crate::rig::*;
use onward_core::effect::{AcceptedJob, Answer, ManagerNotice};
use onward_core::event::Event;
use onward_core::fence::GateEpoch;
use onward_core::health::Verdict;
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::input::{Call, Filter, Input, ReplayFrom, Submission};
use onward_core::job::{Draft, JobState, LimitDraft, OnStuck, Retry, WorkflowDraft, WorkflowState};
use onward_core::message::{Beat, CancelWhy, EndReport, FromWorker, ToWorker};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::state::LedgerFact;
use onward_core::time::Wall;
use onward_core::timeout::TimeoutReason;

/// Workflows of kind `k`, each with its name and those that it waits for.
fn dag(workflows: &[(&str, &[&str])]) -> Draft {
    let workflow = |(name, after): &(&str, &[&str])| WorkflowDraft {
        name: Some((*name).into()),
        kind: "k".into(),
        payload: bytes("{}").into(),
        content_type: None,
        after: after.iter().map(|name| (*name).into()).collect(),
    };
    Draft { workflows: workflows.iter().map(workflow).collect(), ..Draft::default() }
}

fn states(rig: &Rig, id: JobId) -> Vec<&'static str> {
    rig.view(id).workflows.iter().map(|workflow| workflow.state.word()).collect()
}

fn given(rig: &mut Rig, session: SessionId) -> Vec<Claim> {
    rig.assigned(session).iter().map(|assignment| assignment.claim).collect()
}

fn retries(max_attempts: u32, base_s: u64, max_s: u64) -> Option<Retry> {
    Some(Retry { max_attempts, base: secs(base_s), max: secs(max_s) })
}
