//! A submission as it is written.

use serde::{Deserialize, Serialize};

use crate::few::{Few, FewPairs};
use crate::instant::WrittenInstant;
use crate::raw::Raw;

/// More than any setting allows; the settings' own limits are checked after this.
const MANY: usize = 1_024;
const MAX_WORKFLOWS: usize = 10_000;
/// Jobs of one call.
pub const MAX_BATCH: usize = 10_000;

/// A job: either `kind`, or `workflows`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SubmitJob {
    /// The name that a handler is registered under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Any JSON; handed to the handler as it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    pub payload: Option<Raw>,
    /// Instead of `payload`, for what is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<SubmitWorkflow>>))]
    pub workflows: Option<Few<SubmitWorkflow, MAX_WORKFLOWS>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The priority, from −100 to 100, higher first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck_after_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_extension_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_stuck: Option<OnStuckWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_progress: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_s: Option<f64>,
    /// RFC 3339, or milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub run_at: Option<WrittenInstant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<KeyLimit>>))]
    pub limits: Option<Few<KeyLimit, MANY>>,
    /// A key that one job at a time carries until it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// The same submission again gives the same job. The header `Idempotency-Key` says the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<String>>))]
    pub datacenters: Option<Few<String, MANY>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_policy: Option<TimeoutPolicyWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<String>>))]
    pub tags: Option<Few<String, MANY>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<std::collections::BTreeMap<String, String>>))]
    pub headers: Option<FewPairs<MANY>>,
    /// The time for which the ended job is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain_s: Option<f64>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SubmitWorkflow {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    pub payload: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Names of the workflows whose success this one waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<String>>))]
    pub after: Option<Few<String, MAX_WORKFLOWS>>,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_s: Option<f64>,
}

/// A limit of `max` running workflows that carry `key`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct KeyLimit {
    pub key: String,
    pub max: u32,
    /// Only with a `max` of 1: a workflow that has begun keeps the key until it ends, also while it waits for its next
    /// attempt, so that no other overtakes it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub ordered: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnStuckWord {
    Retry,
    TimeOut,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TimeoutPolicyWord {
    Any,
    Majority,
    All,
}

// The job that was submitted, or that a request like it made before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Submitted))]
pub struct SubmitAnswer {
    pub id: String,
}

/// Up to 10,000 jobs: all are accepted, or none is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SubmitBatch {
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<SubmitJob>))]
    pub jobs: Few<SubmitJob, MAX_BATCH>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchSubmitted {
    /// Answers in the order of the submission.
    pub jobs: Vec<BatchAnswer>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchAnswer {
    pub id: String,
    /// The idempotency key was known: this is the job of the first submission.
    pub duplicate: bool,
}
