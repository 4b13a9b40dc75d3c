//! A schedule as it is shown.

use onward_api::instant::At;
use onward_api::schedule::{RecordCountsShown, RecordShown, Schedule};
use onward_core::ids::Name;
use onward_core::schedule::{Record, Timing};
use onward_core::state::{Schedule as Known, ScheduleTrouble};
use onward_core::time::Wall;
use onward_health::schedule::Calendar;

use super::template::template;

pub fn record(record: &Record) -> RecordShown {
    RecordShown {
        due_at: At(record.due),
        record: record.kind().word().into(),
        reason: record.reason.code().into(),
        job_id: record.job.map(|job| job.to_string()),
        outcome: record.outcome.map(|state| state.word().into()),
        count: record.count,
        last_due_at: At(record.last),
        decided_at: At(record.at),
    }
}

pub fn schedule(name: &Name, known: &Known, trouble: Option<(ScheduleTrouble, Wall)>, now: Wall) -> Schedule {
    let plan = &known.plan;
    let (cron, zone, every_s) = match &plan.timing {
        Timing::Cron { expression, zone } => (Some(expression.to_string()), Some(zone.to_string()), None),
        Timing::Every(interval) => (None, None, Some(interval.as_secs_f64())),
    };
    Schedule {
        name: name.to_string(),
        cron,
        zone,
        every_s,
        job: template(&plan.job),
        overlap: plan.overlap.word().into(),
        missed: plan.missed.word().into(),
        jitter_s: plan.jitter.as_secs_f64(),
        critical: plan.critical,
        paused: known.paused,
        created_at: At(known.created_at),
        next_at: next_due(known, now).map(At),
        last: known.last().map(record),
        open: known.open.iter().map(ToString::to_string).collect(),
        waiting: known.waiting.iter().copied().map(At).collect(),
        failures: known.failures,
        failing: trouble.is_some(),
        failing_reason: trouble.map(|(why, _)| why.code().into()),
        failing_since: trouble.map(|(_, since)| since).or(known.failing_since).map(At),
        counts: RecordCountsShown {
            fired: known.counts.fired,
            skipped: known.counts.skipped,
            missed: known.counts.missed,
        },
    }
}

/// The next due instant behind the horizon and behind the present: an instant that has come is being decided.
fn next_due(known: &Known, now: Wall) -> Option<Wall> {
    if known.paused {
        return None;
    }
    Calendar::new(&known.plan.timing).ok()?.after(known.horizon.max(now)).next()
}
