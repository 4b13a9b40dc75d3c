//! Handing the seat over to another manager of the datacenter.

use axum::extract::State;
use axum::http::StatusCode;
use onward_api::leader::{TransferAnswer, TransferBody};

use super::App;
use super::json::Json;
use super::may::{May, Operate};
use super::problem::ProblemResponse;
use crate::cluster::HandoverError;

#[derive(Debug, utoipa::OpenApi)]
#[openapi(paths(transfer))]
pub struct LeaderApi;

/// Hand the seat over to another manager of this datacenter.
#[utoipa::path(post, path = "/v1/leader/transfer", tag = "operations", request_body = TransferBody,
    responses((status = 200, body = TransferAnswer),
        (status = 404, description = "unknown_manager", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 409, description = "cannot_transfer: nobody else can lead, or the one that is named cannot now", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 503, description = "no_leader", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn transfer(
    _: May<Operate>,
    State(app): State<App>,
    Json(body): Json<TransferBody>,
) -> Result<Json<TransferAnswer>, ProblemResponse> {
    // Also if whoever asked is gone meanwhile: half a hand-over would be none.
    let engine = app.engine.clone();
    let handed_over = tokio::spawn(async move { engine.hand_over(body.to.as_deref()).await });
    match handed_over.await.expect("a hand-over does not panic") {
        Ok(leader) => Ok(Json(TransferAnswer { leader })),
        Err(error) => Err(problem(&error)),
    }
}

fn problem(error: &HandoverError) -> ProblemResponse {
    let (status, code) = match error {
        HandoverError::UnknownManager { .. } => (StatusCode::NOT_FOUND, "unknown_manager"),
        HandoverError::Alone
        | HandoverError::LeadsAlready { .. }
        | HandoverError::NotReady { .. }
        | HandoverError::UnderWay => (StatusCode::CONFLICT, "cannot_transfer"),
        HandoverError::NotLeading(_) | HandoverError::Storage(_) | HandoverError::TermOver => {
            (StatusCode::SERVICE_UNAVAILABLE, "no_leader")
        }
    };
    ProblemResponse::new(status, code, error.to_string())
}
