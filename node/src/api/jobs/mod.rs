//! Jobs over HTTP, and what operators need around them: queues, nodes, dead letters.
//!
//! [`request`] is a submission as it is written, [`submit`] takes it. [`shape`] is a job as it is shown ([`reason`] and
//! [`ledger`] say why it is where it is); [`read`] gives one or a page of them, [`follow`] goes along with one.
//! [`command`] is everything else that is asked about jobs.
//!
//! Whatever looks at many jobs does so in short reads, since the machine's thread does nothing else meanwhile.

pub mod command;
pub mod dead_letters;
pub mod follow;
pub mod ledger;
pub mod nodes;
pub mod queues;
pub mod read;
pub mod reason;
pub mod request;
pub mod shape;
pub mod submit;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use axum::{Extension, Router};

use super::App;
use follow::Followers;

/// Of a job: a few large payloads, or many small ones.
const JOB_BYTES: usize = 8 << 20;
const BATCH_BYTES: usize = 32 << 20;

pub fn routes() -> Router<App> {
    routes_for(Followers::default())
}

/// With a limit of one's own on how many may wait for jobs.
pub fn routes_for(followers: Followers) -> Router<App> {
    Router::new()
        .route("/v1/jobs", get(read::list).post(submit::submit).layer(DefaultBodyLimit::max(JOB_BYTES)))
        .route("/v1/jobs/batch", post(submit::submit_batch).layer(DefaultBodyLimit::max(BATCH_BYTES)))
        .route("/v1/jobs/cancel", post(command::cancel_where))
        .route("/v1/jobs/{id}", get(read::get))
        .route("/v1/jobs/{id}/ledger", get(read::ledger))
        .route("/v1/jobs/{id}/events", get(follow::events))
        .route("/v1/jobs/{id}/cancel", post(command::cancel))
        .route("/v1/jobs/{id}/retry", post(command::retry))
        .route("/v1/jobs/{id}/extend", post(command::extend))
        .route("/v1/queues", get(queues::list))
        .route("/v1/queues/{name}/pause", post(queues::pause))
        .route("/v1/queues/{name}/resume", post(queues::resume))
        .route("/v1/nodes", get(nodes::list))
        .route("/v1/nodes/{id}", get(nodes::get))
        .route("/v1/nodes/{id}/drain", post(nodes::drain))
        .route("/v1/nodes/{id}/undrain", post(nodes::undrain))
        .route("/v1/datacenters", get(nodes::datacenters))
        .route("/v1/stats", get(queues::stats))
        .route("/v1/dead-letters", get(dead_letters::list))
        .route("/v1/dead-letters/replay", post(dead_letters::replay))
        .route("/v1/dead-letters/drop", post(dead_letters::drop_letters))
        .layer(Extension(followers))
}

/// The description of [`routes`].
#[derive(Debug, utoipa::OpenApi)]
#[openapi(paths(
    submit::submit,
    submit::submit_batch,
    read::list,
    read::get,
    read::ledger,
    follow::events,
    command::cancel,
    command::cancel_where,
    command::retry,
    command::extend,
    queues::list,
    queues::pause,
    queues::resume,
    queues::stats,
    nodes::list,
    nodes::get,
    nodes::drain,
    nodes::undrain,
    nodes::datacenters,
    dead_letters::list,
    dead_letters::replay,
    dead_letters::drop_letters
))]
pub struct JobsApi;
