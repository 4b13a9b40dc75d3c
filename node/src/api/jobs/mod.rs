//! Jobs over HTTP, and what operators need around them: queues, nodes, dead letters.
//!
//! [`request`] is a submission as it is written, [`submit`] takes it. [`shape`] is a job as it is shown ([`reason`] and
//! [`ledger`] say why it is where it is, [`explain`] tells it to people); [`read`] gives one or a page of them, [`follow`] goes along with one,
//! [`output`] gives what its attempts have printed.
//! [`schedules`] is what starts jobs by the clock.
//! `filter` is which jobs are meant, [`cancel_where`] cancels them, [`command`] is everything else that is asked about
//! jobs.
//!
//! Whatever looks at many jobs does so in short reads, since the machine's thread does nothing else meanwhile.

pub mod cancel_where;
pub mod command;
pub mod dead_letters;
pub mod explain;
pub(crate) mod feed;
pub(crate) mod filter;
pub mod follow;
pub mod ledger;
pub mod nodes;
pub mod output;
pub mod queues;
pub mod read;
pub mod reason;
pub mod request;
pub mod schedules;
pub mod shape;
pub mod submit;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use axum::{Extension, Router};

use super::App;
use super::answers::AnswerRoom;
use follow::Followers;

/// Bytes of a job: a few large payloads, or many small ones.
const JOB_BYTES: usize = 8 << 20;
const BATCH_BYTES: usize = 16 << 20;

/// Routes of jobs, with a limit on the callers that may wait for jobs.
pub fn routes_for(followers: Followers) -> Router<App> {
    Router::new()
        .route("/jobs", get(read::list).post(submit::submit).layer(DefaultBodyLimit::max(JOB_BYTES)))
        .route("/jobs/batch", post(submit::submit_batch).layer(DefaultBodyLimit::max(BATCH_BYTES)))
        .route("/jobs/cancel", post(cancel_where::cancel_where))
        .route("/jobs/{id}", get(read::get))
        .route("/jobs/{id}/ledger", get(read::ledger))
        .route("/jobs/{id}/explain", get(explain::get))
        .route("/jobs/{id}/events", get(follow::events))
        .route("/jobs/{id}/attempts/{n}/output", get(output::output))
        .route("/jobs/{id}/cancel", post(command::cancel))
        .route("/jobs/{id}/retry", post(command::retry))
        .route("/jobs/{id}/extend", post(command::extend))
        .route("/queues", get(queues::list))
        .route("/queues/{name}/pause", post(queues::pause))
        .route("/queues/{name}/resume", post(queues::resume))
        .route("/nodes", get(nodes::list))
        .route("/nodes/{id}", get(nodes::get))
        .route("/nodes/{id}/drain", post(nodes::drain))
        .route("/nodes/{id}/undrain", post(nodes::undrain))
        .route("/datacenters", get(nodes::datacenters))
        .route("/stats", get(queues::stats))
        .route("/dead-letters", get(dead_letters::list))
        .route("/dead-letters/replay", post(dead_letters::replay))
        .route("/dead-letters/drop", post(dead_letters::drop_letters))
        .merge(schedules::routes())
        .layer(Extension(followers))
        .layer(Extension(AnswerRoom::default()))
}

/// The description of [`routes_for`].
#[derive(Debug, utoipa::OpenApi)]
#[openapi(paths(
    submit::submit,
    submit::submit_batch,
    read::list,
    read::get,
    read::ledger,
    explain::get,
    follow::events,
    output::output,
    command::cancel,
    cancel_where::cancel_where,
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
