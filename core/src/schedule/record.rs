//! Records of due instants: what became of each, and why.

use std::collections::VecDeque;

use crate::ids::JobId;
use crate::job::JobState;
use crate::refusal::RefusalKind;
use crate::time::Wall;

use super::PassedInstants;

/// The number of records of a schedule that are kept; the oldest go first, and are counted.
pub const RECORDS_KEPT: usize = 256;

/// The fate of a due instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RecordKind {
    /// A run was started.
    Fired,
    /// No run was started, by the policy about overlaps, or because the schedule could not start one.
    Skipped,
    /// No run was started, by the policy about what comes late.
    Missed,
}

impl RecordKind {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fired => "fired",
            Self::Skipped => "skipped",
            Self::Missed => "missed",
        }
    }
}

/// The reason of an instant's fate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecordReason {
    OnTime,
    /// Late, and started nevertheless.
    CaughtUp,
    /// Started after it had waited for an earlier run.
    Queued,
    /// The run was asked for; its instant is when that was.
    RunNow,
    StillRunning,
    QueueFull,
    TooManyOpen,
    Paused,
    /// The job was not accepted.
    Refused(RefusalKind),
    /// A later instant had come as well.
    Superseded,
    Late,
}

impl RecordReason {
    pub const fn kind(self) -> RecordKind {
        match self {
            Self::OnTime | Self::CaughtUp | Self::Queued | Self::RunNow => RecordKind::Fired,
            Self::StillRunning | Self::QueueFull | Self::TooManyOpen | Self::Paused | Self::Refused(_) => {
                RecordKind::Skipped
            }
            Self::Superseded | Self::Late => RecordKind::Missed,
        }
    }

    /// The stable word of the API. A refusal has that of the refusal.
    pub const fn code(self) -> &'static str {
        match self {
            Self::OnTime => "on_time",
            Self::CaughtUp => "caught_up",
            Self::Queued => "queued",
            Self::RunNow => "run_now",
            Self::StillRunning => "still_running",
            Self::QueueFull => "queue_full",
            Self::TooManyOpen => "too_many_open",
            Self::Paused => "paused",
            Self::Refused(kind) => kind.code(),
            Self::Superseded => "superseded",
            Self::Late => "late",
        }
    }
}

/// The fate of one due instant, or of several in a row that shared one and started nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    pub due: Wall,
    /// The last of several; else the same as `due`.
    pub last: Wall,
    pub count: u64,
    pub reason: RecordReason,
    /// The instant of the decision.
    pub at: Wall,
    /// The run that was started.
    pub job: Option<JobId>,
    /// The end of the run.
    pub outcome: Option<JobState>,
}

impl Record {
    pub fn kind(&self) -> RecordKind {
        self.reason.kind()
    }

    pub fn fired(due: Wall, reason: RecordReason, at: Wall, job: JobId) -> Self {
        Self { due, last: due, count: 1, reason, at, job: Some(job), outcome: None }
    }
}

/// The newest records of a schedule.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Records {
    pub list: VecDeque<Record>,
    /// Instants whose records are not kept any more.
    pub dropped: u64,
}

impl Records {
    pub fn push(&mut self, record: Record) {
        if self.list.len() == RECORDS_KEPT
            && let Some(oldest) = self.list.pop_front()
        {
            self.dropped += oldest.count;
        }
        self.list.push_back(record);
    }

    /// Instants that share the fate of those before them share their record, unless one `between` them has another: an
    /// instant that waits for its turn has no record yet.
    pub fn pass(&mut self, at: Wall, passed: &PassedInstants, is_any_between: impl Fn(Wall, Wall) -> bool) {
        match self.list.back_mut() {
            Some(before) if before.reason == passed.reason && !is_any_between(before.last, passed.first) => {
                before.last = passed.last;
                before.count += passed.count;
                before.at = at;
            }
            _ => {
                let &PassedInstants { reason, first, last, count } = passed;
                self.push(Record { due: first, last, count, reason, at, job: None, outcome: None });
            }
        }
    }

    /// Notes how a run ended, if its record is still kept.
    pub fn end(&mut self, job: JobId, outcome: JobState) {
        if let Some(record) = self.list.iter_mut().rev().find(|record| record.job == Some(job)) {
            record.outcome = Some(outcome);
        }
    }
}
