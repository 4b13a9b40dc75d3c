//! What an attempt has printed, byte for byte.

use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use onward_core::fence::AttemptFence;
use onward_core::ids::{Claim, JobId};
use onward_core::manager::{JobView, WorkflowView};
use onward_core::refusal::Refusal;
use serde::Deserialize;
use tokio::time::timeout;
use utoipa::IntoParams;

use super::super::App;
use super::super::may::{May, Read};
use super::super::params::Params;
use super::super::problem::ProblemResponse;
use super::read::without_contents;
use crate::engine::EngineRefusal;
use crate::outputs::Unreadable;

/// The header with the number of bytes before the first one of the body.
const SKIPPED: HeaderName = HeaderName::from_static("onward-skipped-bytes");

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OutputQuery {
    /// The name of a workflow; the first one unless said.
    workflow: Option<String>,
}

/// The last 64 KiB that an attempt has printed, also while it runs.
#[utoipa::path(get, path = "/v1/jobs/{id}/attempts/{n}/output", tag = "jobs",
    params(("id" = String, Path), ("n" = u32, Path, description = "as in the job's `attempts`"), OutputQuery),
    responses((status = 200, description = "the bytes as they were printed", body = Vec<u8>,
            content_type = "application/octet-stream",
            headers(("onward-skipped-bytes" = u64, description = "printed before these, and not kept"))),
        (status = 404, description = "unknown_job, unknown_workflow, unknown_attempt, or no_output", body = ProblemResponse,
            content_type = "application/problem+json")))]
pub async fn output(
    _: May<Read>,
    State(app): State<App>,
    Path((id, n)): Path<(String, String)>,
    Params(query): Params<OutputQuery>,
) -> Result<Response, ProblemResponse> {
    let job = JobId::parse(&id).ok_or(Refusal::UnknownJob)?;
    let view = without_contents(&app.engine, job).await?;
    let (index, workflow) = workflow_of(&view, query.workflow.as_deref())?;
    let fence = fence_of(workflow, &n)?;
    let span = app.engine.rules().seat_ttl;
    let reading = timeout(span, app.outputs.read(Claim { job, workflow: index, fence })).await;
    let kept = reading.map_err(|_| EngineRefusal::disk_hangs(span))?.map_err(|error| match error {
        Unreadable::Stopping => EngineRefusal::Unavailable("it is stopping".into()).into(),
        Unreadable::Away(error) => EngineRefusal::Unavailable(format!("the output cannot be read now: {error}")).into(),
        Unreadable::Io(error) => {
            let detail = format!("the output cannot be read: {error}; see to the storage of the node");
            ProblemResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
        }
    })?;
    let Some(kept) = kept else {
        let detail = "nothing is kept of this attempt: it has not printed anything, or that was too long ago";
        return Err(ProblemResponse::new(StatusCode::NOT_FOUND, "no_output", detail));
    };
    let head = [(CONTENT_TYPE, "application/octet-stream".to_owned()), (SKIPPED, kept.skipped.to_string())];
    Ok((head, kept.data).into_response())
}

fn workflow_of<'a>(view: &'a JobView, name: Option<&str>) -> Result<(u16, &'a WorkflowView), ProblemResponse> {
    let wanted = |workflow: &&WorkflowView| name.is_none_or(|name| workflow.name.as_str() == name);
    let found = (0..).zip(&view.workflows).find(|(_, workflow)| wanted(workflow));
    found.ok_or_else(|| ProblemResponse::from(Refusal::UnknownWorkflow).of_field("workflow"))
}

/// The newest attempt of this number.
fn fence_of(workflow: &WorkflowView, n: &str) -> Result<AttemptFence, ProblemResponse> {
    let known = workflow.ended.iter().map(|ended| (ended.number, ended.fence));
    let running = workflow.running.iter().map(|running| (running.number, running.claim.fence));
    let number: Option<u32> = n.parse().ok();
    let newest = known.chain(running).filter(|(known, _)| Some(*known) == number).map(|(_, fence)| fence).max();
    newest.ok_or_else(|| {
        let detail = format!(
            "workflow `{}` has no attempt {n} that is kept; `GET /v1/jobs/{{id}}` lists those that are, as `n`",
            workflow.name
        );
        ProblemResponse::new(StatusCode::NOT_FOUND, "unknown_attempt", detail)
    })
}
