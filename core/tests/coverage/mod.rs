//! The names of all that can come in and all that can be decided, for tests that count what has occurred.
//!
//! A list and the function that names a value are made of the same variants, and the function is exhaustive: a variant
//! that is added to one of the enums does not compile until it is named here, and then it must occur.

#![allow(dead_code, reason = "every test counts its own part")]

use onward_core::event::{Event, NextState};
use onward_core::input::{Call, Input};
use onward_core::message::FromWorker;

macro_rules! names {
    ($list:ident, $name_of:ident, $of:ident: $($variant:ident)*) => {
        pub const $list: &[&str] = &[$(concat!(stringify!($of), "::", stringify!($variant))),*];

        pub fn $name_of(value: &$of) -> &'static str {
            match value {
                $($of::$variant { .. } => concat!(stringify!($of), "::", stringify!($variant)),)*
            }
        }
    };
}

names!(INPUTS, input_name, Input: Wake SeatTaken SeatConfirmed SeatLost QueueEmptied Durable Load Call CallGone Session
    SessionClosed Undeliverable Archived Due GateOpened GateClosed Gate ArchivedFound);
names!(CALLS, call_name, Call: Submit Cancel CancelWhere Retry RetryArchived Extend Poll Beat Settle RequestExtension
    FetchInput PauseQueue ResumeQueue DrainWorker UndrainWorker Goodbye ReplayDeadLetter DropDeadLetter
    SetSchedule RemoveSchedule PauseSchedule ResumeSchedule RunSchedule);
names!(MESSAGES, message_name, FromWorker: Hello Capacity Beats Settle ProbeAnswer RequestExtension Ended Goodbye);
names!(EVENTS, event_name, Event: TermBegan JobSubmitted WorkflowDue HandedOut AttemptEnded CancelAsked JobTimedOut
    QuietBegan QuietEnded Checkpointed ProgressMarked ExtensionDecided JobExtended ClaimRefused WorkerEvicted
    IncarnationReplaced IncarnationSeen ProbationBegan ProbationEnded GrantsReset WorkerDrained WorkerUndrained
    WorkerForgotten QueuePaused QueueResumed DeadLetterDropped JobsArchived KeysExpired ScheduleSet ScheduleRemoved
    SchedulePaused ScheduleResumed InstantsPassed InstantWaits LocallyTimedOut LocalTimeoutOver GateAnswered TimeGiven
    JobWithdrawn);

/// Whether something is about gates, which have tests of their own.
pub fn is_of_gates(what: &str) -> bool {
    let names = ["Gate", "ArchivedFound", "Local", "TimeGiven", "JobWithdrawn", "stale_term"];
    let word = what.rsplit("::").next().unwrap_or(what);
    names.iter().any(|name| word.starts_with(name))
}
names!(NEXT_STATES, next_state_name, NextState: Succeeded Ready Delayed Failed TimedOut Cancelled);
