//! A lease as it is shown.

use std::borrow::Cow;
use std::collections::BTreeMap;

use onward_api::lease::{InputReference, Lease};
use onward_core::message::Assignment;
use serde_json::value::to_raw_value;

use crate::api::payload::{PayloadView, show, show_payload};
use crate::api::receipt::Receipts;
use crate::api::span;

pub fn lease<'a>(assignment: &'a Assignment, receipts: &Receipts) -> Lease<'a> {
    let workflow = &assignment.workflow;
    let content_type = workflow.content_type.as_ref().map(|name| name.as_str());
    let (payload, payload_base64) = match show_payload(&workflow.payload, content_type) {
        PayloadView::Json(json) => (Some(Cow::Borrowed(json)), None),
        PayloadView::Base64(text) => (None, Some(text)),
    };
    let (mut inputs, mut inputs_base64, mut references) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for (name, payload) in &assignment.inputs {
        let name = Cow::Borrowed(name.as_str());
        if let Some(stored) = payload.as_stored() {
            references.insert(name, InputReference { digest: stored.digest.to_string(), bytes: stored.len });
            continue;
        }
        match show_payload(payload, None) {
            PayloadView::Json(json) => drop(inputs.insert(name, Cow::Borrowed(json))),
            PayloadView::Base64(text) => drop(inputs_base64.insert(name, text)),
        }
    }
    Lease {
        receipt: receipts.write(&assignment.claim),
        fence: assignment.claim.fence.get(),
        job_id: assignment.claim.job.to_string(),
        workflow: workflow.name.as_str().into(),
        attempt: assignment.attempt,
        kind: workflow.kind.as_str().into(),
        queue: assignment.queue.as_str().into(),
        payload,
        payload_base64,
        content_type: content_type.map(Cow::Borrowed),
        inputs,
        inputs_base64,
        inputs_by_reference: references,
        headers: assignment.headers.iter().map(|(name, value)| (name.as_str().into(), (**value).into())).collect(),
        checkpoint: assignment.checkpoint.as_ref().map(|bytes| match show(bytes, None) {
            PayloadView::Json(json) => Cow::Borrowed(json),
            PayloadView::Base64(text) => Cow::Owned(to_raw_value(&text).expect("a text can be written as JSON")),
        }),
        lease_remaining_ms: span::ms(assignment.lease),
        deadline_remaining_ms: span::ms(assignment.deadline_remaining),
    }
}
