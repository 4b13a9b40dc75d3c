//! The shapes of the calls about leases.

use std::collections::BTreeMap;

use onward_core::message::Assignment;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::api::payload::{Shown, show, show_payload};
use crate::api::problem::Problem;
use crate::api::receipt::Receipts;
use crate::api::span;

/// Ask for work.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PollBody {
    /// What this worker calls itself; the same over its restarts.
    pub worker_id: String,
    /// One life of this worker; a new one takes the place of the old, and what that held is given to others.
    pub incarnation: String,
    /// The node's default queue (setting `job.queue`) if left out.
    pub queues: Option<Vec<String>>,
    pub kinds: Vec<String>,
    /// 1 to 1000; 1 if left out.
    pub max: Option<u32>,
    /// How long to wait for work, 0 to 60; 0 if left out.
    pub wait_s: Option<f64>,
    /// 1 to 43200.
    pub lease_s: Option<f64>,
    /// The same id again gives the same leases, should the answer have been lost.
    pub poll_id: Option<String>,
    /// This worker fetches inputs: where they have more than 16 MiB in one answer, they come by reference. Without it a
    /// lease has all of them, and an attempt of more than 255 MiB fails.
    pub inputs_by_reference: Option<bool>,
}

/// The worker wants no more work.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GoodbyeBody {
    /// The life that ends, as it polled.
    pub incarnation: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct GoodbyeAnswer {
    /// How many leases the worker still holds.
    pub held: u32,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Leases<'a> {
    pub leases: Vec<Lease<'a>>,
}

/// One attempt of a workflow, for this worker alone until the lease ends.
#[derive(Debug, Serialize, ToSchema)]
pub struct Lease<'a> {
    /// Proves the lease; every later call about it carries this.
    pub receipt: String,
    /// Rises every time the workflow is handed out.
    pub fence: u64,
    pub job_id: String,
    pub workflow: &'a str,
    /// 1 for the first attempt that counts.
    pub attempt: u32,
    pub kind: &'a str,
    pub queue: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<&'a RawValue>,
    /// Instead of `payload`, where that is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<&'a str>,
    /// Results of the workflows that this one waited for, by their names.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub inputs: BTreeMap<&'a str, &'a RawValue>,
    /// Those of them that are not JSON.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs_base64: BTreeMap<&'a str, String>,
    /// Those of them that are to be fetched (`GET /v1/leases/{receipt}/inputs/{workflow}`) before the work begins. Only
    /// for a worker whose poll said `inputs_by_reference`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, InputReference>)]
    pub inputs_by_reference: BTreeMap<&'a str, InputReference>,
    pub headers: BTreeMap<&'a str, &'a str>,
    /// What an earlier attempt left with its last beat that had one.
    #[schema(value_type = Option<serde_json::Value>)]
    pub checkpoint: Option<Checkpoint<'a>>,
    pub lease_remaining_ms: u64,
    pub deadline_remaining_ms: u64,
}

/// An input that is to be fetched.
#[derive(Debug, Serialize, ToSchema)]
pub struct InputReference {
    /// SHA-256 of the content, in hexadecimal; equal ones need one fetch.
    pub digest: String,
    /// Of the content.
    pub bytes: u32,
}

/// JSON as it came, or the base64 of what is no JSON.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Checkpoint<'a> {
    Json(&'a RawValue),
    Base64(String),
}

impl<'a> Lease<'a> {
    pub fn of(assignment: &'a Assignment, receipts: &Receipts) -> Self {
        let workflow = &assignment.workflow;
        let content_type = workflow.content_type.as_ref().map(|name| name.as_str());
        let (payload, payload_base64) = match show_payload(&workflow.payload, content_type) {
            Shown::Json(json) => (Some(json), None),
            Shown::Base64(text) => (None, Some(text)),
        };
        let (mut inputs, mut inputs_base64, mut references) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (name, payload) in &assignment.inputs {
            if let Some(stored) = payload.as_stored() {
                let reference = InputReference { digest: stored.digest.to_string(), bytes: stored.len };
                references.insert(name.as_str(), reference);
                continue;
            }
            match show_payload(payload, None) {
                Shown::Json(json) => drop(inputs.insert(name.as_str(), json)),
                Shown::Base64(text) => drop(inputs_base64.insert(name.as_str(), text)),
            }
        }
        Self {
            receipt: receipts.write(&assignment.claim),
            fence: assignment.claim.fence.get(),
            job_id: assignment.claim.job.to_string(),
            workflow: workflow.name.as_str(),
            attempt: assignment.attempt,
            kind: workflow.kind.as_str(),
            queue: assignment.queue.as_str(),
            payload,
            payload_base64,
            content_type,
            inputs,
            inputs_base64,
            inputs_by_reference: references,
            headers: assignment.headers.iter().map(|(name, value)| (name.as_str(), &**value)).collect(),
            checkpoint: assignment.checkpoint.as_ref().map(|bytes| match show(bytes, None) {
                Shown::Json(json) => Checkpoint::Json(json),
                Shown::Base64(text) => Checkpoint::Base64(text),
            }),
            lease_remaining_ms: span::ms(assignment.lease),
            deadline_remaining_ms: span::ms(assignment.deadline_remaining),
        }
    }
}

/// The handler is active; and, where given, how far it is.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeatBody {
    /// Units done; it only rises.
    pub watermark: Option<u64>,
    pub total: Option<u64>,
    pub note: Option<String>,
    /// Begin a quiet section: permission to be silent for at most this long.
    pub quiet_s: Option<f64>,
    /// Any JSON, given back to the next attempt.
    #[schema(value_type = Option<serde_json::Value>)]
    pub checkpoint: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct BeatAnswerBody {
    pub lease_remaining_ms: u64,
    /// The handler should stop.
    pub cancel: bool,
    /// What was allowed of the quiet section that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_allowed_ms: Option<u64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeatsBody {
    pub beats: Vec<BeatItem>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeatItem {
    pub receipt: String,
    pub watermark: Option<u64>,
    pub total: Option<u64>,
    pub note: Option<String>,
    pub quiet_s: Option<f64>,
    #[schema(value_type = Option<serde_json::Value>)]
    pub checkpoint: Option<Box<RawValue>>,
}

impl BeatItem {
    pub fn split(self) -> (String, BeatBody) {
        let Self { receipt, watermark, total, note, quiet_s, checkpoint } = self;
        (receipt, BeatBody { watermark, total, note, quiet_s, checkpoint })
    }
}

/// In the order of the request.
#[derive(Debug, Serialize, ToSchema)]
pub struct BeatsAnswer {
    pub beats: Vec<BeatItemAnswer>,
}

/// The answer to one beat, or the problem with it.
#[derive(Debug, Default, Serialize, ToSchema)]
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
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputBody {
    pub text: Option<String>,
    /// Instead of `text`, for what is not UTF-8.
    pub data_base64: Option<String>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SucceedBody {
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// Instead of `result`, for what is not JSON.
    pub result_base64: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailBody {
    pub error: String,
    /// True if left out. What is not retryable is not tried again.
    pub retryable: Option<bool>,
    /// Instead of the backoff of the retry policy.
    pub delay_s: Option<f64>,
    /// Any JSON, given back to the next attempt.
    #[schema(value_type = Option<serde_json::Value>)]
    pub checkpoint: Option<Box<RawValue>>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseBody {
    pub delay_s: Option<f64>,
    /// Any JSON, given back to the next attempt.
    #[schema(value_type = Option<serde_json::Value>)]
    pub checkpoint: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleBody {
    pub settlements: Vec<SettleItem>,
}

/// Exactly one of `succeed`, `fail` and `release` is given.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleItem {
    pub receipt: String,
    pub succeed: Option<SucceedBody>,
    pub fail: Option<FailBody>,
    pub release: Option<ReleaseBody>,
}

/// In the order of the request.
#[derive(Debug, Serialize, ToSchema)]
pub struct SettleAnswerBody {
    pub settlements: Vec<SettleItemAnswer>,
}

/// Without an error it was accepted.
#[derive(Debug, Serialize, ToSchema)]
pub struct SettleItemAnswer {
    pub receipt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// Accepted, now or before.
#[derive(Debug, Serialize, ToSchema)]
pub struct Accepted {}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtensionBody {
    /// `long_workflow`, `gc_pause` or `resource_contention`.
    pub reason: String,
    /// How much of the work is done, 0 to 1. A grant after the first needs more than at the last one.
    pub progress: f64,
    pub estimated_remaining_s: Option<f64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ExtensionAnswerBody {
    pub granted: bool,
    pub extension_ms: u64,
    /// Until the worker's health deadline.
    pub remaining_ms: u64,
    pub remaining_extensions: u32,
    /// Why not; null where it was granted.
    pub denial: Option<DenialBody>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct DenialBody {
    pub code: &'static str,
    pub detail: String,
}
