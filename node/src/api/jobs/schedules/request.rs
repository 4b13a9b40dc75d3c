//! The way from a schedule as it is written to a draft.

use core::time::Duration;

use onward_api::schedule::{MissedWord, OverlapWord, RunNow, SetSchedule};
use onward_core::ids::Name;
use onward_core::input::ScheduleDraft;
use onward_core::schedule::{MissedPolicy, Overlap, Timing};
use onward_core::settings::Rules;
use onward_health::schedule::Calendar;

use super::super::super::problem::ProblemResponse;
use super::super::super::span;
use super::super::command::request_id;
use super::super::request::draft;

pub fn schedule_draft(body: SetSchedule, schedule: Name, rules: &Rules) -> Result<ScheduleDraft, ProblemResponse> {
    let (timing, calendar) = timing(body.cron, body.zone, span::if_given("every_s", body.every_s)?)?;
    let jitter = span::if_given("jitter_s", body.jitter_s)?.unwrap_or_default();
    check_jitter(jitter, &calendar)?;
    Ok(ScheduleDraft {
        schedule,
        timing,
        job: draft(body.job, rules).map_err(of_job)?,
        overlap: match body.overlap {
            None | Some(OverlapWord::Skip) => Overlap::Skip,
            Some(OverlapWord::Queue) => Overlap::Queue,
            Some(OverlapWord::Allow) => Overlap::Allow,
        },
        missed: match body.missed {
            None | Some(MissedWord::Once) => MissedPolicy::Once,
            Some(MissedWord::Skip) => MissedPolicy::Skip,
            Some(MissedWord::All) => MissedPolicy::All,
        },
        jitter,
        critical: body.critical.unwrap_or(false),
        paused: body.paused,
    })
}

/// A start that comes later than the next instant would make that one late, or skipped.
fn check_jitter(jitter: Duration, calendar: &Calendar) -> Result<(), ProblemResponse> {
    match calendar.longest_gap(crate::clock::now().wall) {
        Some(gap) if jitter > gap => {
            let why = "no longer than from one due instant to the next; give less jitter, or a longer interval";
            let detail = format!("`jitter_s` is {jitter:?}; it must be from 0s to {gap:?}, {why}");
            Err(ProblemResponse::invalid(detail).of_field("jitter_s"))
        }
        _ => Ok(()),
    }
}

fn of_job(problem: ProblemResponse) -> ProblemResponse {
    let field = problem.field.as_ref().map_or_else(|| "job".to_owned(), |field| format!("job.{field}"));
    problem.of_field(field)
}

/// Only what is due at some time is a timing.
fn timing(
    cron: Option<String>,
    zone: Option<String>,
    every: Option<Duration>,
) -> Result<(Timing, Calendar), ProblemResponse> {
    let refuse = |field: &str, detail: &str| Err(ProblemResponse::invalid(detail.to_owned()).of_field(field));
    let (timing, field) = match (cron, every) {
        (Some(_), Some(_)) => {
            return refuse("every_s", "`cron` and `every_s` exclude each other; give one of them");
        }
        (None, None) => return refuse("cron", "`cron` is missing; give it, or `every_s`"),
        (Some(cron), None) => {
            let zone = zone.unwrap_or_else(|| "UTC".to_owned());
            (Timing::Cron { expression: cron.into(), zone: zone.into() }, "cron")
        }
        (None, Some(_)) if zone.is_some() => {
            return refuse("zone", "`zone` belongs to `cron`; an interval is the same everywhere");
        }
        (None, Some(every)) => (Timing::Every(every), "every_s"),
    };
    match Calendar::new(&timing) {
        Ok(calendar) => Ok((timing, calendar)),
        Err(error) => {
            let of_zone = matches!(error, onward_health::schedule::TimingError::UnknownZone { .. });
            refuse(if of_zone { "zone" } else { field }, &error.to_string())
        }
    }
}

/// The name of a request, if it has one.
pub fn request_of(body: RunNow) -> Result<Option<Name>, ProblemResponse> {
    body.request_id.map(request_id).transpose()
}
