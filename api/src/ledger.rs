//! A job's ledger: every decision about its time, the oldest first.

use serde::{Deserialize, Serialize};

use crate::instant::At;
use crate::job::JobState;
use crate::word::Word;

// The answer of `GET /v1/jobs/{id}/ledger`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ledger {
    pub id: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub state: JobState,
    pub entries: Vec<LedgerLine>,
    /// Older entries that are not kept.
    pub dropped: u64,
}

/// `what` says which of the other fields there are.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Entry))]
pub struct LedgerLine {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub at: Option<At>,
    /// The number of times in a row that the same was decided; `at` is of the last.
    pub times: u32,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "granted"))]
    pub what: Word,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub denial: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub outcome: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub verb: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub refusal: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub until: Option<At>,
}
