//! What may be asked about a job besides submitting it. All of it is safe to repeat.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use onward_api::command::{CancelAnswer, Extend, ExtendAnswer, Nothing, RetryRequest};
use onward_api::submit::SubmitAnswer;
use onward_core::ids::Name;
use onward_core::job::draft::MAX_SPAN;

use super::super::json::Json;
use super::super::may::{May, Operate, Submit};
use super::super::params::JobPath;
use super::super::problem::ProblemResponse;
use super::super::{App, span};
use super::submit::check_exec_again;

pub fn request_id(text: String) -> Result<Name, ProblemResponse> {
    let bad = || {
        ProblemResponse::invalid("`request_id` must be 1 to 128 bytes without control characters")
            .of_field("request_id")
    };
    Name::new(text).ok_or_else(bad)
}

/// Cancel a job. One that has ended stays as it is.
#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", tag = "jobs", params(("id" = String, Path)), request_body = Nothing,
    responses((status = 200, body = CancelAnswer),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn cancel(
    _: May<Submit>,
    State(app): State<App>,
    JobPath(job): JobPath,
    _: Json<Nothing>,
) -> Result<Json<CancelAnswer>, ProblemResponse> {
    app.engine.cancel(job).await?;
    let state = super::read::without_contents(&app.engine, job).await?.state.into();
    Ok(Json(CancelAnswer { id: job.to_string(), state }))
}

/// Submit an ended job again, as a new one.
#[utoipa::path(post, path = "/v1/jobs/{id}/retry", tag = "jobs", params(("id" = String, Path)), request_body = RetryRequest,
    responses((status = 201, body = SubmitAnswer),
        (status = 200, description = "known: this request was answered before", body = SubmitAnswer),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 409, description = "not_terminal, unique_key_taken", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn retry(
    May { access, .. }: May<Submit>,
    State(app): State<App>,
    JobPath(job): JobPath,
    Json(retry): Json<RetryRequest>,
) -> Result<(StatusCode, Json<SubmitAnswer>), ProblemResponse> {
    let request = request_id(retry.request_id)?;
    check_exec_again(&app, &access, vec![job]).await?;
    let (job, new) = app.engine.retry(job, request).await?;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(SubmitAnswer { id: job.to_string() })))
}

/// Give a job more time by hand.
#[utoipa::path(post, path = "/v1/jobs/{id}/extend", tag = "jobs", params(("id" = String, Path)), request_body = Extend,
    responses((status = 200, body = ExtendAnswer),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 409, description = "already_ended, conflict", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn extend(
    _: May<Operate>,
    State(app): State<App>,
    JobPath(job): JobPath,
    Json(extend): Json<Extend>,
) -> Result<Json<ExtendAnswer>, ProblemResponse> {
    let by = span::from_seconds("by_s", extend.by_s, Duration::from_millis(1)..=MAX_SPAN)?;
    let request = request_id(extend.request_id)?;
    let total = app.engine.extend(job, by, extend.reason.into(), request).await?;
    Ok(Json(ExtendAnswer { extensions_s: total.as_secs_f64() }))
}
