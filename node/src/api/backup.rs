//! Copying everything into one file, while the node goes on.

use std::path::PathBuf;

use axum::extract::State;
use axum::http::StatusCode;
use onward_api::backup::{BackupAnswer, BackupBody, DamagedShown};
use onward_core::ids::JobId;
use onward_log::Damage;

use super::App;
use super::json::Json;
use super::may::{May, Operate};
use super::problem::ProblemResponse;
use crate::engine::{BackupError, BackupMade, EngineRefusal};

fn damage(damage: &Damage) -> Option<DamagedShown> {
    const NAMED: usize = 100;
    let jobs = damage.jobs.iter().take(NAMED).map(JobId::to_string).collect();
    (!damage.is_none()).then_some(DamagedShown { contents: damage.blobs, jobs, jobs_total: damage.jobs.len() })
}

#[derive(Debug, utoipa::OpenApi)]
#[openapi(paths(backup))]
pub struct BackupApi;

/// Back up log, archive and keys into one file on the node's disk.
#[utoipa::path(post, path = "/v1/backup", tag = "operations", request_body = BackupBody,
    responses((status = 200, body = BackupAnswer),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 403, description = "forbidden, backup_needs_token", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 409, description = "exists", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 503, description = "no_leader: no disk did anything for long, or too many are being made", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn backup(
    May { access, .. }: May<Operate>,
    State(app): State<App>,
    Json(body): Json<BackupBody>,
) -> Result<Json<BackupAnswer>, ProblemResponse> {
    // Whoever only reaches the port must not choose where this process writes.
    if !access.by_token() {
        let detail = "a backup writes a file, so it needs a token: send `Authorization: Bearer <token>` with the one in \
                      the node's data folder (the command line finds it, or set ONWARD_TOKEN)";
        return Err(ProblemResponse::new(StatusCode::FORBIDDEN, "backup_needs_token", detail));
    }
    let path = PathBuf::from(&body.path);
    if !path.is_absolute() {
        let detail = format!("`path` is `{}`; it must be absolute, on the node's own disk", body.path);
        return Err(ProblemResponse::invalid(detail).of_field("path"));
    }
    if body.path.contains('\0') {
        let detail = "`path` has a NUL byte in it, which no name of a file can have; leave it out";
        return Err(ProblemResponse::invalid(detail).of_field("path"));
    }
    match app.engine.backup(path).await {
        Ok(BackupMade { bytes, damage: found }) => {
            Ok(Json(BackupAnswer { path: body.path, bytes, damaged: damage(&found) }))
        }
        Err(BackupError::Refused(refused)) => Err(EngineRefusal::into(refused)),
        Err(BackupError::Failed(error @ onward_log::Error::Exists { .. })) => {
            Err(ProblemResponse::new(StatusCode::CONFLICT, "exists", error.to_string()).of_field("path"))
        }
        Err(BackupError::Failed(error @ onward_log::Error::AmongOwnFiles { .. })) => {
            Err(ProblemResponse::invalid(error.to_string()).of_field("path"))
        }
        Err(BackupError::Failed(error @ onward_log::Error::BackedUpElsewhere)) => {
            Err(ProblemResponse::invalid(error.to_string()))
        }
        Err(BackupError::Failed(error)) => {
            Err(ProblemResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "backup_failed", error.to_string()))
        }
    }
}
