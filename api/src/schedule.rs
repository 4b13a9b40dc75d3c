//! Schedules: plans that start jobs by the clock, and what became of each due instant.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::instant::At;
use crate::job::{LimitShown, RetryShown};
use crate::raw::Raw;
use crate::submit::SubmitJob;
use crate::word::Word;

/// Either `cron`, or `every_s`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SetSchedule {
    /// Minute, hour, day of month, month, day of week; seconds may stand in front.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "0 6 * * *"))]
    pub cron: Option<String>,
    /// A name of the IANA time zone database; `UTC` if it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "Europe/Berlin"))]
    pub zone: Option<String>,
    /// Every multiple of this since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_s: Option<f64>,
    /// The job of every run, as it would be submitted. It has neither `idempotency_key` nor `run_at`.
    pub job: SubmitJob,
    /// The fate of an instant while an earlier run is open. `skip` if it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<OverlapWord>,
    /// The fate of instants that have come together. `once` if it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<MissedWord>,
    /// Start up to this much later; how much depends on the schedule and the instant alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_s: Option<f64>,
    /// Set to have its repeated failure shown by `/status` and by metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical: Option<bool>,
    /// Left as it is if it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OverlapWord {
    Skip,
    Queue,
    Allow,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MissedWord {
    Skip,
    Once,
    All,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunNow {
    /// The same request again gives the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

// The answer of `GET /v1/schedules`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleList {
    pub schedules: Vec<Schedule>,
    pub next_cursor: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Schedule {
    pub name: String,
    pub cron: Option<String>,
    pub zone: Option<String>,
    pub every_s: Option<f64>,
    pub job: JobTemplate,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "skip"))]
    pub overlap: Word,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "once"))]
    pub missed: Word,
    pub jitter_s: f64,
    pub critical: bool,
    pub paused: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub created_at: At,
    /// The next due instant; none if it is paused, or never due again.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub next_at: Option<At>,
    /// The record of the newest due instant.
    pub last: Option<RecordShown>,
    /// Runs that have not ended.
    pub open: Vec<String>,
    /// Due instants that wait for a run to end.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub waiting: Vec<At>,
    /// Runs that failed or timed out since the last one that succeeded.
    pub failures: u32,
    /// Set where the schedule is critical, and three or more runs in a row have failed, or it was due and none has succeeded
    /// in time; critical or not, where the node cannot search its timing.
    pub failing: bool,
    /// `runs_fail`, `not_fresh`, `never_succeeded` or `timing_unknown`, while it is failing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub failing_reason: Option<Word>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub failing_since: Option<At>,
    pub counts: RecordCountsShown,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Removed))]
pub struct RemoveAnswer {
    pub name: String,
    pub removed: bool,
}

/// Due instants by their fate, since the schedule was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecordCountsShown {
    pub fired: u64,
    pub skipped: u64,
    pub missed: u64,
}

// The answer of `GET /v1/schedules/{name}/records`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecordList {
    pub records: Vec<RecordShown>,
    pub next_cursor: Option<String>,
    /// Older instants whose records are not kept any more.
    pub dropped: u64,
}

/// The record of a due instant, or of several in a row that shared one fate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecordShown {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub due_at: At,
    /// `fired`, `skipped` or `missed`.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "fired"))]
    pub record: Word,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "on_time"))]
    pub reason: Word,
    /// The job of a run that was started.
    pub job_id: Option<String>,
    /// The outcome of the run; none while it has not ended.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub outcome: Option<Word>,
    /// The number of instants in a row that this is about.
    pub count: u64,
    /// The last of them.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub last_due_at: At,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub decided_at: At,
}

// The job of a schedule as it is shown: under the names of a submission, so that it can be set again as it is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobTemplate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Workflows of a job that has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflows: Option<Vec<WorkflowTemplate>>,
    pub queue: String,
    pub priority: i8,
    pub timeout_s: f64,
    pub stuck_after_s: f64,
    pub max_extension_s: f64,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "retry"))]
    pub on_stuck: Word,
    pub require_progress: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_s: Option<f64>,
    pub retry: RetryShown,
    pub limits: Vec<LimitShown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    pub tags: Vec<String>,
    pub headers: BTreeMap<String, String>,
    pub datacenters: Vec<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "any"))]
    pub timeout_policy: Word,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain_s: Option<f64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkflowTemplate {
    pub name: String,
    pub kind: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    pub after: Vec<String>,
}
