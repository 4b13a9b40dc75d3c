//! What clients of a gate touch over HTTP: the calls of a manager that make sense for many datacenters, with the same
//! shapes.
//!
//! [`jobs`] submits, shows and commands jobs, [`cancel_where`] many of them, [`follow`] goes along with one; [`shape`] is a job as it is shown, [`explain`]
//! says why it is where it is; [`fleet`] is the datacenters and the gates. What a gate does not serve it says, with where to
//! go instead ([`elsewhere`]).

pub mod cancel_where;
pub mod explain;
mod filter;
pub mod fleet;
pub mod follow;
pub mod jobs;
pub mod shape;

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use tokio::sync::watch;

use super::GateEngine;
use crate::api::answers::AnswerRoom;
use crate::api::jobs::follow::Followers;
use crate::api::problem::ProblemResponse;
use crate::gossip::GossipHandle;

/// Bytes of a job: a few large payloads, or many small ones.
const JOB_BYTES: usize = 8 << 20;
const BATCH_BYTES: usize = 16 << 20;

/// State that every handler can reach. Cheap to clone.
#[derive(Clone, Debug)]
pub struct GateApp {
    pub engine: GateEngine,
    /// The name of this gate.
    pub name: String,
    /// What is seen of other gates, if this one gossips.
    pub gossip: Option<GossipHandle>,
    /// True once the gate drains: whoever waits for something is answered now.
    pub draining: watch::Receiver<bool>,
}

impl GateApp {
    /// Resolves when the gate begins to drain.
    pub async fn drained(&self) {
        // An error means that the gate is gone, which is the end of all waiting too.
        let _ = self.draining.clone().wait_for(|draining| *draining).await;
    }
}

/// Routes under `/v1` besides [`nodes`], with a limit on the callers that may wait for jobs.
pub fn routes_for(followers: Followers) -> Router<GateApp> {
    let served = Router::new()
        .route("/jobs", get(jobs::list).post(jobs::submit).layer(DefaultBodyLimit::max(JOB_BYTES)))
        .route("/jobs/batch", post(jobs::submit_batch).layer(DefaultBodyLimit::max(BATCH_BYTES)))
        .route("/jobs/cancel", post(cancel_where::cancel_where))
        .route("/jobs/{id}", get(jobs::get))
        .route("/jobs/{id}/explain", get(explain::get))
        .route("/jobs/{id}/ledger", get(jobs::ledger))
        .route("/jobs/{id}/events", get(follow::events))
        .route("/jobs/{id}/cancel", post(jobs::cancel))
        .route("/jobs/{id}/extend", post(jobs::extend))
        .route("/datacenters", get(fleet::datacenters))
        .layer(Extension(followers))
        .layer(Extension(AnswerRoom::default()));
    ELSEWHERE.iter().fold(served, |router, path| router.route(path, any(elsewhere)))
}

/// The gates as this one sees them. That each gate answers itself, if it gossips: the leader's view is only one of them.
pub fn nodes() -> Router<GateApp> {
    Router::new().route("/nodes", get(fleet::nodes))
}

/// Paths that only a manager serves.
const ELSEWHERE: [&str; 13] = [
    "/jobs/{id}/retry",
    "/jobs/{id}/attempts/{n}/output",
    "/leases",
    "/leases/{*rest}",
    "/workers/{*rest}",
    "/queues",
    "/queues/{*rest}",
    "/nodes/{*rest}",
    "/schedules",
    "/schedules/{*rest}",
    "/dead-letters",
    "/dead-letters/{*rest}",
    "/stats",
];

/// The call makes sense, and not here.
pub async fn elsewhere(request: Request) -> ProblemResponse {
    let detail = format!(
        "a gate does not serve `/v1{}`: it belongs to one datacenter, so ask a manager there (`GET /v1/jobs/{{id}}` here \
         tells in which datacenters a job runs, under the same id)",
        request.uri().path()
    );
    ProblemResponse::new(StatusCode::NOT_FOUND, "not_at_a_gate", detail)
}

/// The description of [`routes_for`] and [`nodes`].
#[derive(Debug, utoipa::OpenApi)]
#[openapi(paths(
    jobs::submit,
    jobs::submit_batch,
    jobs::list,
    jobs::get,
    explain::get,
    jobs::ledger,
    follow::events,
    jobs::cancel,
    cancel_where::cancel_where,
    jobs::extend,
    fleet::nodes,
    fleet::datacenters
))]
pub struct GateApi;
