//! A schedule as it is shown.

use onward_core::ids::Name;
use onward_core::schedule::{Record, Timing};
use onward_core::state::Schedule as Known;
use onward_core::time::Wall;
use onward_health::schedule::Calendar;
use serde::Serialize;
use utoipa::ToSchema;

use super::super::super::instant::At;
use super::template::JobTemplate;

#[derive(Debug, Serialize, ToSchema)]
pub struct ScheduleList {
    pub schedules: Vec<Schedule>,
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Schedule {
    pub name: String,
    pub cron: Option<String>,
    pub zone: Option<String>,
    pub every_s: Option<f64>,
    pub job: JobTemplate,
    #[schema(example = "skip")]
    pub overlap: &'static str,
    #[schema(example = "once")]
    pub missed: &'static str,
    pub jitter_s: f64,
    pub critical: bool,
    pub paused: bool,
    #[schema(value_type = String)]
    pub created_at: At,
    /// The next due instant; none if it is paused, or never due again.
    #[schema(value_type = Option<String>)]
    pub next_at: Option<At>,
    /// What became of the newest due instant.
    pub last: Option<RecordShown>,
    /// Runs that have not ended.
    pub open: Vec<String>,
    /// Due instants that wait for a run to end.
    #[schema(value_type = Vec<String>)]
    pub waiting: Vec<At>,
    /// Runs that failed or timed out since the last one that succeeded.
    pub failures: u32,
    /// It is critical, and three or more runs in a row have failed.
    pub failing: bool,
    #[schema(value_type = Option<String>)]
    pub failing_since: Option<At>,
    pub counts: RecordCountsShown,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Removed {
    pub name: String,
    pub removed: bool,
}

/// How many due instants became what, since the schedule was made.
#[derive(Debug, Serialize, ToSchema)]
pub struct RecordCountsShown {
    pub fired: u64,
    pub skipped: u64,
    pub missed: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct RecordList {
    pub records: Vec<RecordShown>,
    pub next_cursor: Option<String>,
    /// Older instants whose records are not kept any more.
    pub dropped: u64,
}

/// What became of a due instant, or of several in a row that shared one fate.
#[derive(Debug, Serialize, ToSchema)]
pub struct RecordShown {
    #[schema(value_type = String)]
    pub due_at: At,
    /// `fired`, `skipped` or `missed`.
    #[schema(example = "fired")]
    pub record: &'static str,
    #[schema(example = "on_time")]
    pub reason: &'static str,
    /// Of a run that was started.
    pub job_id: Option<String>,
    /// How the run ended; none while it has not.
    pub outcome: Option<&'static str>,
    /// How many instants in a row this is about.
    pub count: u64,
    /// The last of them.
    #[schema(value_type = String)]
    pub last_due_at: At,
    #[schema(value_type = String)]
    pub decided_at: At,
}

impl RecordShown {
    pub fn of(record: &Record) -> Self {
        Self {
            due_at: At(record.due),
            record: record.kind().word(),
            reason: record.reason.code(),
            job_id: record.job.map(|job| job.to_string()),
            outcome: record.outcome.map(|state| state.word()),
            count: record.count,
            last_due_at: At(record.last),
            decided_at: At(record.at),
        }
    }
}

impl Schedule {
    pub fn of(name: &Name, known: &Known, now: Wall) -> Self {
        let plan = &known.plan;
        let (cron, zone, every_s) = match &plan.timing {
            Timing::Cron { expression, zone } => (Some(expression.to_string()), Some(zone.to_string()), None),
            Timing::Every(interval) => (None, None, Some(interval.as_secs_f64())),
        };
        Self {
            name: name.to_string(),
            cron,
            zone,
            every_s,
            job: JobTemplate::of(&plan.job),
            overlap: plan.overlap.word(),
            missed: plan.missed.word(),
            jitter_s: plan.jitter.as_secs_f64(),
            critical: plan.critical,
            paused: known.paused,
            created_at: At(known.created_at),
            next_at: next_due(known, now).map(At),
            last: known.last().map(RecordShown::of),
            open: known.open.iter().map(ToString::to_string).collect(),
            waiting: known.waiting.iter().copied().map(At).collect(),
            failures: known.failures,
            failing: known.is_failing(),
            failing_since: known.failing_since.map(At),
            counts: RecordCountsShown {
                fired: known.counts.fired,
                skipped: known.counts.skipped,
                missed: known.counts.missed,
            },
        }
    }
}

/// What is behind the horizon and behind us both: an instant that has come is being decided.
fn next_due(known: &Known, now: Wall) -> Option<Wall> {
    if known.paused {
        return None;
    }
    Calendar::new(&known.plan.timing).ok()?.after(known.horizon.max(now)).next()
}
