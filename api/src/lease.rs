//! Leases for workers without a session: ask for work, beat, say how it ended.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::problem::Problem;
use crate::raw::Raw;
use crate::word::Word;

/// Ask for work.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PollBody {
    /// The worker's own name; the same over its restarts.
    pub worker_id: String,
    /// The life of this worker; a new one takes the place of the old, and the leases of the old are given to others.
    pub incarnation: String,
    /// The node's default queue (setting `job.queue`) if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    pub kinds: Vec<String>,
    /// 1 to 1000; 1 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// The time to wait for work, 0 to 60; 0 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
    /// 1 to 43200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<f64>,
    /// The same id again gives the same leases, should the answer have been lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_id: Option<String>,
    /// Set by a worker that fetches inputs: where they have more than 16 MiB in one answer, they come by reference.
    /// Without it a lease has all of them, and an attempt of more than 255 MiB fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs_by_reference: Option<bool>,
}

/// The worker wants no more work.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GoodbyeBody {
    /// The life that ends, as it polled.
    pub incarnation: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GoodbyeAnswer {
    /// The number of leases that the worker still holds.
    pub held: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leases<'a> {
    pub leases: Vec<Lease<'a>>,
}

/// An attempt of a workflow, for this worker alone until the lease ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease<'a> {
    /// Proves the lease; every later call about it carries this.
    pub receipt: String,
    /// Rises every time the workflow is handed out.
    pub fence: u64,
    pub job_id: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub workflow: Cow<'a, str>,
    /// 1 for the first attempt that counts.
    pub attempt: u32,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub kind: Cow<'a, str>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub queue: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    pub payload: Option<Cow<'a, RawValue>>,
    /// Instead of `payload`, where that is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub content_type: Option<Cow<'a, str>>,
    /// Results of the workflows that this one waited for, by their names.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, serde_json::Value>))]
    pub inputs: BTreeMap<Cow<'a, str>, Cow<'a, RawValue>>,
    /// Inputs that are not JSON.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
    pub inputs_base64: BTreeMap<Cow<'a, str>, String>,
    /// Inputs that are to be fetched (`GET /v1/leases/{receipt}/inputs/{workflow}`) before the work begins. Only
    /// for a worker whose poll said `inputs_by_reference`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, InputReference>))]
    pub inputs_by_reference: BTreeMap<Cow<'a, str>, InputReference>,
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
    pub headers: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    /// The checkpoint of the last beat of an earlier attempt that had one.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    pub checkpoint: Option<Cow<'a, RawValue>>,
    pub lease_remaining_ms: u64,
    pub deadline_remaining_ms: u64,
}

/// An input that is to be fetched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InputReference {
    /// SHA-256 of the content, in hexadecimal; equal ones need one fetch.
    pub digest: String,
    /// The length of the content.
    pub bytes: u32,
}

/// The handler is active; and, where given, how far it is.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BeatBody {
    /// Units done; it only rises.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watermark: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Begin a quiet section: permission to be silent for at most this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_s: Option<f64>,
    /// Any JSON, given back to the next attempt.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Raw>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BeatAnswerBody {
    pub lease_remaining_ms: u64,
    /// The handler should stop.
    pub cancel: bool,
    /// The time allowed of the quiet section that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_allowed_ms: Option<u64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BeatsBody {
    pub beats: Vec<BeatItem>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BeatItem {
    pub receipt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watermark: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_s: Option<f64>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Raw>,
}

impl BeatItem {
    pub fn new(receipt: String, beat: BeatBody) -> Self {
        let BeatBody { watermark, total, note, quiet_s, checkpoint } = beat;
        Self { receipt, watermark, total, note, quiet_s, checkpoint }
    }

    pub fn split(self) -> (String, BeatBody) {
        let Self { receipt, watermark, total, note, quiet_s, checkpoint } = self;
        (receipt, BeatBody { watermark, total, note, quiet_s, checkpoint })
    }
}

/// Answers in the order of the request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BeatsAnswer {
    pub beats: Vec<BeatItemAnswer>,
}

/// The answer to one beat, or the problem with it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BeatItemAnswer {
    pub receipt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_remaining_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_allowed_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// One of the two; at most 64 KiB.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OutputBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Instead of `text`, for what is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SucceedBody {
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Raw>,
    /// Instead of `result`, for what is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FailBody {
    pub error: String,
    /// True if left out. What is not retryable is not tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// Instead of the backoff of the retry policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_s: Option<f64>,
    /// Any JSON, given back to the next attempt.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Raw>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReleaseBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_s: Option<f64>,
    /// Any JSON, given back to the next attempt.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Raw>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SettleBody {
    pub settlements: Vec<SettleItem>,
}

/// Exactly one of `succeed`, `fail` and `release` is given.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SettleItem {
    pub receipt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeed: Option<SucceedBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fail: Option<FailBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleaseBody>,
}

/// Answers in the order of the request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SettleAnswerBody {
    pub settlements: Vec<SettleItemAnswer>,
}

/// The answer for one settlement: without an error it was accepted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SettleItemAnswer {
    pub receipt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// Accepted, now or before.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Accepted))]
pub struct Acceptance {}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExtensionBody {
    /// `long_workflow`, `gc_pause` or `resource_contention`.
    pub reason: String,
    /// The part of the work that is done, 0 to 1. A grant after the first needs more than at the last one.
    pub progress: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_remaining_s: Option<f64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExtensionAnswerBody {
    pub granted: bool,
    pub extension_ms: u64,
    /// The time until the worker's health deadline.
    pub remaining_ms: u64,
    pub remaining_extensions: u32,
    /// The reason of a denial; null where it was granted.
    pub denial: Option<DenialBody>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DenialBody {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub code: Word,
    pub detail: String,
}
