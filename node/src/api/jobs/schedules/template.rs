//! The job of a schedule as it is shown: under the names of a submission, so that it can be set again as it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use onward_core::ids::JobId;
use onward_core::job::spec::{OnStuck, Start, TimeoutPolicy};
use onward_core::job::{JobSpec, WorkflowSpec};
use onward_core::payload::Payload;
use onward_core::state::Schedule as Known;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::super::super::payload::{self, Shown};
use super::super::super::problem::Problem;
use super::super::shape::{LimitShown, RetryShown};
use crate::engine::Engine;

#[derive(Debug, Serialize, ToSchema)]
pub struct JobTemplate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Of a job with several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflows: Option<Vec<WorkflowTemplate>>,
    pub queue: String,
    pub priority: i8,
    pub timeout_s: f64,
    pub stuck_after_s: f64,
    pub max_extension_s: f64,
    #[schema(example = "retry")]
    pub on_stuck: &'static str,
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
    #[schema(example = "any")]
    pub timeout_policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain_s: Option<f64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct WorkflowTemplate {
    pub name: String,
    pub kind: String,
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    pub after: Vec<String>,
}

impl JobTemplate {
    pub fn of(spec: &JobSpec) -> Self {
        let all: Vec<WorkflowTemplate> =
            spec.workflows.iter().map(|workflow| WorkflowTemplate::of(workflow, spec)).collect();
        let extras = spec.extras.as_deref();
        let mut template = Self {
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
            on_stuck: match spec.on_stuck {
                OnStuck::Retry => "retry",
                OnStuck::TimeOut => "time_out",
            },
            require_progress: spec.require_progress,
            delay_s: match spec.start {
                Start::After(delay) => Some(delay.as_secs_f64()),
                Start::AtOnce | Start::At(_) => None,
            },
            retry: RetryShown {
                max_attempts: spec.retry.max_attempts,
                base_s: spec.retry.base.as_secs_f64(),
                max_s: spec.retry.max.as_secs_f64(),
            },
            limits: spec.limits.iter().map(LimitShown::of).collect(),
            unique_key: spec.unique_key().map(ToString::to_string),
            tags: spec.tags().iter().map(ToString::to_string).collect(),
            headers: spec.headers().iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            datacenters: extras
                .map_or(Vec::new(), |extras| extras.datacenters.iter().map(ToString::to_string).collect()),
            timeout_policy: match extras.map_or(TimeoutPolicy::Any, |extras| extras.timeout_policy) {
                TimeoutPolicy::Any => "any",
                TimeoutPolicy::Majority => "majority",
                TimeoutPolicy::All => "all",
            },
            retain_s: extras.and_then(|extras| extras.retain).map(|retain| retain.as_secs_f64()),
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
}

impl WorkflowTemplate {
    fn of(workflow: &WorkflowSpec, spec: &JobSpec) -> Self {
        let content_type = workflow.content_type.as_ref().map(ToString::to_string);
        let (payload, payload_base64) = match &workflow.payload {
            // It was not fetched.
            Payload::Stored(_) => (None, None),
            Payload::Inline(bytes) if bytes.is_empty() => (None, None),
            given => match payload::show_payload(given, content_type.as_deref()) {
                Shown::Json(json) => (Some(json.to_owned()), None),
                Shown::Base64(text) => (None, Some(text)),
            },
        };
        Self {
            name: workflow.name.to_string(),
            kind: workflow.kind.to_string(),
            payload,
            payload_base64,
            content_type,
            after: workflow.after.iter().map(|index| spec.workflows[usize::from(*index)].name.to_string()).collect(),
        }
    }
}

/// Puts the bytes of large payloads into the template.
pub async fn fetch(engine: &Engine, known: &mut Known) -> Result<(), Problem> {
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
