//! Submitting, one by one and by the thousand.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use onward_api::few::Few;
use onward_api::submit::{BatchAnswer, BatchSubmitted, MAX_BATCH, SubmitAnswer, SubmitBatch, SubmitJob};
use onward_core::ids::JobId;
use onward_core::input::Submission;
use onward_core::job::Draft;
use onward_core::refusal::Refusal;
use onward_core::state::JobImage;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::App;
use super::super::access::Access;
use super::super::json::{self, Json, JsonText};
use super::super::may::{May, Submit};
use super::super::problem::ProblemResponse;
use super::request::{add_idempotency_key, add_trace, draft};
use crate::engine::EngineRefusal;

/// The kind that runs a command on the worker's computer.
pub const EXEC: &str = "exec";

pub fn needs_token_for_exec() -> ProblemResponse {
    let detail = "a job of kind `exec` runs a command, so submitting one needs a token: send `Authorization: Bearer <token>` \
                  with the one in the node's data folder (the command line finds it, or set ONWARD_TOKEN)";
    ProblemResponse::new(StatusCode::FORBIDDEN, "exec_needs_token", detail)
}

pub(crate) fn check_exec(access: &Access, draft: &Draft) -> Result<(), ProblemResponse> {
    if !access.may_exec() && draft.workflows.iter().any(|workflow| &*workflow.kind == EXEC) {
        return Err(needs_token_for_exec());
    }
    Ok(())
}

/// Submit a job.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = SubmitJob,
    params(("Idempotency-Key" = Option<String>, Header, description = "the same submission again gives the same job")),
    responses(
        (status = 201, description = "stored", body = SubmitAnswer),
        (status = 200, description = "known: the same key with the same body came before", body = SubmitAnswer),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 403, description = "forbidden, exec_needs_token", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 409, description = "conflict, unique_key_taken", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 429, description = "limited", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 503, description = "no_leader, overloaded", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn submit(
    May { access, .. }: May<Submit>,
    State(app): State<App>,
    headers: HeaderMap,
    Json(mut job): Json<SubmitJob>,
) -> Result<(StatusCode, Json<SubmitAnswer>), ProblemResponse> {
    add_idempotency_key(&mut job, &headers)?;
    let mut draft = draft(job, app.engine.rules())?;
    add_trace(&mut draft, &headers);
    check_exec(&access, &draft)?;
    let submission = Submission { id: app.engine.new_job_id(), draft };
    let accepted = app.engine.submit(vec![submission]).await?[0];
    let status = if accepted.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(SubmitAnswer { id: accepted.id.to_string() })))
}

/// Submit many jobs, all or nothing.
#[utoipa::path(post, path = "/v1/jobs/batch", tag = "jobs", request_body = SubmitBatch,
    responses(
        (status = 201, description = "all are stored", body = BatchSubmitted),
        (status = 200, description = "all were known", body = BatchSubmitted),
        (status = 400, description = "invalid; `field` begins with the index of the job at fault", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 403, description = "forbidden, exec_needs_token", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 409, description = "conflict, unique_key_taken", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 429, description = "limited", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn submit_batch(
    May { access, .. }: May<Submit>,
    State(app): State<App>,
    headers: HeaderMap,
    JsonText(body): JsonText,
) -> Result<(StatusCode, Json<BatchSubmitted>), ProblemResponse> {
    if headers.contains_key("idempotency-key") {
        let detail = "a batch takes no header `Idempotency-Key`; give each job its own `idempotency_key`";
        return Err(ProblemResponse::invalid(detail).of_field("idempotency_key"));
    }
    let jobs = parse_batch(&body)?.jobs.take("jobs")?;
    let rules = app.engine.rules();
    let mut submissions = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.into_iter().enumerate() {
        let mut draft = draft(job, rules).map_err(|problem| at_index(index, problem))?;
        add_trace(&mut draft, &headers);
        check_exec(&access, &draft).map_err(|problem| at_index(index, problem))?;
        submissions.push(Submission { id: app.engine.new_job_id(), draft });
    }
    let accepted = match app.engine.submit(submissions).await {
        Err(EngineRefusal::ByMachine(Refusal::InBatch { index, cause })) => {
            return Err(at_index(index, ProblemResponse::from(*cause)));
        }
        other => other?,
    };
    let status = if accepted.iter().any(|job| !job.duplicate) { StatusCode::CREATED } else { StatusCode::OK };
    let jobs = accepted.iter().map(|job| BatchAnswer { id: job.id.to_string(), duplicate: job.duplicate }).collect();
    Ok((status, Json(BatchSubmitted { jobs })))
}

/// Reads a batch. An error of the body as JSON is told without the job that it is in. Then each is read for itself.
pub(crate) fn parse_batch(body: &[u8]) -> Result<SubmitBatch, ProblemResponse> {
    #[derive(Deserialize)]
    struct Texts<'a> {
        #[serde(borrow)]
        jobs: Few<&'a RawValue, MAX_BATCH>,
    }
    json::parse(body).map_err(|problem| {
        let texts = serde_json::from_slice::<Texts<'_>>(body).ok().and_then(|texts| texts.jobs.take("jobs").ok());
        let wrong = |text: &RawValue| json::parse::<SubmitJob>(text.get().as_bytes()).err();
        let first = texts.into_iter().flatten().enumerate().find_map(|(index, text)| Some((index, wrong(text)?)));
        first.map_or(problem, |(index, problem)| at_index(index, problem))
    })
}

pub(crate) fn at_index(index: usize, problem: ProblemResponse) -> ProblemResponse {
    let field =
        problem.field.as_ref().map_or_else(|| format!("jobs[{index}]"), |field| format!("jobs[{index}].{field}"));
    let detail = format!("jobs[{index}]: {}; none of this batch was stored", problem.detail);
    problem.with_detail(detail).of_field(field)
}

/// Whether one of these jobs runs a command. Making a job like it again is submitting it.
pub async fn check_exec_again(app: &App, access: &Access, jobs: Vec<JobId>) -> Result<(), ProblemResponse> {
    if access.may_exec() {
        return Ok(());
    }
    for job in jobs {
        let kept = app.engine.read(move |view| view.manager.image(job)).await?;
        let image = match kept {
            Some(image) => Some(image),
            None => app.engine.archived(job).await?,
        };
        let is_command = |image: &JobImage| image.spec.workflows.iter().any(|workflow| workflow.kind.as_str() == EXEC);
        if image.as_ref().is_some_and(is_command) {
            return Err(needs_token_for_exec());
        }
    }
    Ok(())
}
