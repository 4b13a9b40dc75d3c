//! What is said about events and notices: to the node's own log, and to those who watch jobs.

use onward_core::effect::Notice;
use onward_core::event::Event;
use onward_core::ids::JobId;
use onward_core::time::span_ms;

pub(super) fn report(notice: &Notice) {
    match notice {
        Notice::WallClockStepped(step) => {
            tracing::warn!(by_ms = step.by_ms, "the wall clock was stepped; log time does not follow");
        }
        Notice::GapNoticed { gap } => {
            tracing::warn!(gap_ms = span_ms(*gap), "this process could not run; clocks are moved by the gap");
        }
        Notice::HoldBegan { failing, tracked } => {
            tracing::warn!(failing, tracked, "systemic failure, holding eviction");
        }
        Notice::HoldEnded => tracing::info!("eviction is no longer held"),
        Notice::WorkerEvicted { worker } => tracing::warn!(%worker, "evicted"),
        Notice::DeadLetterOverflow { job } => tracing::warn!(%job, "dropped the oldest dead letter to make room"),
    }
}

/// The jobs that an event is about.
pub(super) fn jobs_of(event: &Event) -> Vec<JobId> {
    match event {
        Event::JobSubmitted(submitted) => vec![submitted.id],
        Event::WorkflowDue(workflow) => vec![workflow.job],
        Event::HandedOut(handed) => vec![handed.workflow.job],
        Event::AttemptEnded { claim, .. }
        | Event::QuietBegan { claim, .. }
        | Event::QuietEnded { claim, .. }
        | Event::Checkpointed { claim, .. }
        | Event::ProgressMarked { claim, .. }
        | Event::ClaimRefused { claim, .. } => vec![claim.job],
        Event::CancelAsked { job, .. }
        | Event::JobTimedOut { job, .. }
        | Event::JobExtended { job, .. }
        | Event::DeadLetterDropped { job } => vec![*job],
        Event::ExtensionDecided(decided) => decided.claims.iter().map(|claim| claim.job).collect(),
        Event::JobsArchived { jobs } => jobs.clone(),
        Event::TermBegan { .. }
        | Event::WorkerEvicted { .. }
        | Event::IncarnationReplaced { .. }
        | Event::ProbationBegan { .. }
        | Event::ProbationEnded { .. }
        | Event::GrantsReset { .. }
        | Event::WorkerDrained { .. }
        | Event::WorkerUndrained { .. }
        | Event::WorkerForgotten { .. }
        | Event::QueuePaused { .. }
        | Event::QueueResumed { .. }
        | Event::KeysExpired { .. } => Vec::new(),
    }
}
