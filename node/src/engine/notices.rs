//! Who is told about an event: those who watch its jobs.

use onward_core::event::Event;
use onward_core::ids::JobId;

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
        | Event::IncarnationSeen { .. }
        | Event::ProbationBegan { .. }
        | Event::ProbationEnded { .. }
        | Event::GrantsReset { .. }
        | Event::WorkerDrained { .. }
        | Event::WorkerUndrained { .. }
        | Event::WorkerForgotten { .. }
        | Event::QueuePaused { .. }
        | Event::QueueResumed { .. }
        | Event::KeysExpired { .. }
        | Event::ScheduleSet(_)
        | Event::ScheduleRemoved { .. }
        | Event::SchedulePaused { .. }
        | Event::ScheduleResumed { .. }
        | Event::InstantsPassed { .. }
        | Event::InstantWaits { .. } => Vec::new(),
    }
}
