//! What may be asked of a job besides submitting it, and of many at once. All of it is safe to repeat.

use serde::{Deserialize, Serialize};

use crate::job::JobState;

/// A call that takes nothing: `{}`, or no body at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Retry))]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// Repeating it gives the same job again.
    pub request_id: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Extend {
    pub by_s: f64,
    pub reason: String,
    /// Repeating it extends no further.
    pub request_id: String,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Extended))]
pub struct ExtendAnswer {
    /// Total of all extensions so far, grants included. Of those, what counts is capped by the job's `max_extension_s`;
    /// extensions given by hand count in full.
    pub extensions_s: f64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelAnswer {
    pub id: String,
    /// The state now: what runs is `cancelling` until its worker has stopped.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub state: JobState,
}

/// A filter for jobs; fields that are not given match all.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelWhere {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Only jobs with an attempt that has made no forward step for this long, and did not announce a silence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_moving_s: Option<f64>,
    /// Only jobs that were submitted within this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_s: Option<f64>,
    /// Needed where nothing else is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// Count the jobs that would be cancelled, and change nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
    /// The most jobs that this call cancels (or counts): 1 to 100000; 100000 if it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `next_cursor` of the call before, to go on behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Cancelled))]
pub struct CancelWhereAnswer {
    /// Jobs cancelled by this call; 0 in a dry run.
    pub cancelled: usize,
    /// Jobs that would be cancelled, in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_cancel: Option<usize>,
    /// The newest ten of them, in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<Vec<String>>,
    /// A cursor where there may be more: repeat the call with it as `cursor`. None once all were looked at.
    pub next_cursor: Option<String>,
}
