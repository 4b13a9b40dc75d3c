//! A schedule as it is written in JSON.

use core::time::Duration;

use onward_core::ids::Name;
use onward_core::input::ScheduleDraft;
use onward_core::schedule::{Missed, Overlap, Timing};
use onward_core::settings::Rules;
use onward_health::schedule::Calendar;
use serde::Deserialize;
use utoipa::ToSchema;

use super::super::super::problem::Problem;
use super::super::super::span;
use super::super::request::SubmitJob;

/// Either `cron`, or `every_s`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetSchedule {
    /// Minute, hour, day of month, month, day of week; seconds may stand in front.
    #[schema(example = "0 6 * * *")]
    cron: Option<String>,
    /// A name of the IANA time zone database; `UTC` if it is not given.
    #[schema(example = "Europe/Berlin")]
    zone: Option<String>,
    /// Every multiple of this since 1970.
    every_s: Option<f64>,
    /// What every run is, as it would be submitted. It has neither `idempotency_key` nor `run_at`.
    job: SubmitJob,
    /// What becomes of an instant while an earlier run is open. `skip` if it is not given.
    overlap: Option<OverlapWord>,
    /// What becomes of instants that have come together. `once` if it is not given.
    missed: Option<MissedWord>,
    /// Start up to this much later; how much depends on the schedule and the instant alone.
    jitter_s: Option<f64>,
    /// Its repeated failure is shown by `/status` and by metrics.
    critical: Option<bool>,
    /// Left as it is if it is not given.
    paused: Option<bool>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OverlapWord {
    Skip,
    Queue,
    Allow,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissedWord {
    Skip,
    Once,
    All,
}

impl SetSchedule {
    pub fn draft(self, schedule: Name, rules: &Rules) -> Result<ScheduleDraft, Problem> {
        let timing = timing(self.cron, self.zone, span::if_given("every_s", self.every_s)?)?;
        Ok(ScheduleDraft {
            schedule,
            timing,
            job: self.job.draft(rules).map_err(of_job)?,
            overlap: match self.overlap {
                None | Some(OverlapWord::Skip) => Overlap::Skip,
                Some(OverlapWord::Queue) => Overlap::Queue,
                Some(OverlapWord::Allow) => Overlap::Allow,
            },
            missed: match self.missed {
                None | Some(MissedWord::Once) => Missed::Once,
                Some(MissedWord::Skip) => Missed::Skip,
                Some(MissedWord::All) => Missed::All,
            },
            jitter: span::if_given("jitter_s", self.jitter_s)?.unwrap_or_default(),
            critical: self.critical.unwrap_or(false),
            paused: self.paused,
        })
    }
}

fn of_job(problem: Problem) -> Problem {
    let field = problem.field.as_ref().map_or_else(|| "job".to_owned(), |field| format!("job.{field}"));
    problem.of_field(field)
}

/// Only what is due at some time is a timing.
fn timing(cron: Option<String>, zone: Option<String>, every: Option<Duration>) -> Result<Timing, Problem> {
    let refuse = |field: &str, detail: &str| Err(Problem::invalid(detail.to_owned()).of_field(field));
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
        Ok(_) => Ok(timing),
        Err(error) => {
            let of_zone = matches!(error, onward_health::schedule::TimingError::UnknownZone { .. });
            refuse(if of_zone { "zone" } else { field }, &error.to_string())
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunNow {
    /// The same request again gives the same run.
    request_id: Option<String>,
}

impl RunNow {
    pub fn request(self) -> Result<Option<Name>, Problem> {
        let bad = || {
            Problem::invalid("`request_id` must be 1 to 128 bytes without control characters").of_field("request_id")
        };
        self.request_id.map(|text| Name::new(text).ok_or_else(bad)).transpose()
    }
}
