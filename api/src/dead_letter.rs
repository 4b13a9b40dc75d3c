//! Dead letters: jobs with a workflow that failed for good, until somebody replays or drops them.

use serde::{Deserialize, Serialize};

use crate::few::Few;
use crate::job::Job;
use crate::problem::Problem;

/// Jobs of one call.
pub const MAX_JOBS: usize = 1_000;

// The answer of `GET /v1/dead-letters`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeadLetterList {
    /// Jobs in the order in which they died.
    pub dead_letters: Vec<Job>,
    /// None at the end. A page may be short and have one all the same.
    pub next_cursor: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Replay {
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub jobs: Few<String, MAX_JOBS>,
    /// Repeating it gives the same jobs again.
    pub request_id: String,
    #[serde(default)]
    pub from: ReplayFromWord,
}

/// The workflows that run again: those that have not succeeded, while the others keep their results; or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReplayFromWord {
    #[default]
    Failed,
    Start,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DropLetters {
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub jobs: Few<String, MAX_JOBS>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Replayed))]
pub struct ReplayAnswers {
    /// Answers in the order of the request.
    pub jobs: Vec<ReplayAnswer>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplayAnswer {
    /// The dead letter.
    pub job: String,
    /// The new job, if there is one.
    pub id: Option<String>,
    /// The reason why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Dropped))]
pub struct DropAnswers {
    /// Answers in the order of the request.
    pub jobs: Vec<DropAnswer>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DropAnswer {
    pub job: String,
    /// False: it was no dead letter any more.
    pub dropped: bool,
}
