//! The job of a schedule as it is shown: under the names of a submission, so that it can be set again as it is.

use std::sync::Arc;

use onward_api::schedule::{JobTemplate, WorkflowTemplate};
use onward_core::ids::JobId;
use onward_core::job::spec::Start;
use onward_core::job::{JobSpec, WorkflowSpec};
use onward_core::payload::Payload;
use onward_core::state::Schedule as Known;

use super::super::super::payload::{self, PayloadView};
use super::super::super::problem::ProblemResponse;
use super::super::shape;
use crate::engine::Engine;

pub fn template(spec: &JobSpec) -> JobTemplate {
    let all: Vec<WorkflowTemplate> = spec.workflows.iter().map(|workflow| of_workflow(workflow, spec)).collect();
    let mut template = JobTemplate {
        kind: None,
        payload: None,
        payload_base64: None,
        content_type: None,
        workflows: None,
        queue: spec.queue.to_string(),
        priority: spec.priority,
        timeout_s: spec.timeout.as_secs_f64(),
        stuck_after_s: spec.stuck_after.as_secs_f64(),
        max_extension_s: spec.max_extension.as_secs_f64(),
        on_stuck: shape::on_stuck(spec.on_stuck).into(),
        require_progress: spec.require_progress,
        delay_s: match spec.start {
            Start::After(delay) => Some(delay.as_secs_f64()),
            Start::AtOnce | Start::At(_) => None,
        },
        retry: shape::retry(&spec.retry),
        limits: spec.limits.iter().map(shape::limit).collect(),
        unique_key: spec.unique_key().map(ToString::to_string),
        tags: spec.tags().iter().map(ToString::to_string).collect(),
        headers: shape::headers(spec),
        datacenters: shape::datacenters(spec),
        timeout_policy: shape::timeout_policy(spec).into(),
        retain_s: spec.extras.as_deref().and_then(|extras| extras.retain).map(|retain| retain.as_secs_f64()),
    };
    match <[WorkflowTemplate; 1]>::try_from(all) {
        Ok([only]) => {
            template.kind = Some(only.kind);
            template.payload = only.payload;
            template.payload_base64 = only.payload_base64;
            template.content_type = only.content_type;
        }
        Err(several) => template.workflows = Some(several),
    }
    template
}

fn of_workflow(workflow: &WorkflowSpec, spec: &JobSpec) -> WorkflowTemplate {
    let content_type = workflow.content_type.as_ref().map(ToString::to_string);
    let (payload, payload_base64) = match &workflow.payload {
        // The payload was not fetched.
        Payload::Stored(_) => (None, None),
        Payload::Inline(bytes) if bytes.is_empty() => (None, None),
        given => match payload::show_payload(given, content_type.as_deref()) {
            PayloadView::Json(json) => (Some(json.to_owned().into()), None),
            PayloadView::Base64(text) => (None, Some(text)),
        },
    };
    WorkflowTemplate {
        name: workflow.name.to_string(),
        kind: workflow.kind.to_string(),
        payload,
        payload_base64,
        content_type,
        after: workflow.after.iter().map(|index| spec.workflows[usize::from(*index)].name.to_string()).collect(),
    }
}

/// Puts the bytes of large payloads into the template.
pub async fn fetch(engine: &Engine, known: &mut Known) -> Result<(), ProblemResponse> {
    if known.plan.job.workflows.iter().all(|workflow| workflow.payload.as_stored().is_none()) {
        return Ok(());
    }
    // No job has it that could have taken it to the archive.
    let nobody = JobId::from_u128(0);
    let plan = Arc::make_mut(&mut known.plan);
    for workflow in plan.job.workflows.iter_mut() {
        workflow.payload = Payload::Inline(engine.content(nobody, &workflow.payload).await?);
    }
    Ok(())
}
