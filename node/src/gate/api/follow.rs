//! Following a gate's job: by waiting for its end, or as a stream of events.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use onward_core::gate::JobView;
use onward_core::health::overload::OverloadLevel;
use onward_core::ids::JobId;
use onward_core::job::JobState;
use onward_core::refusal::Refusal;
use tokio::time::{Instant, timeout_at};

use super::jobs::{fetch_results, view_of};
use super::{GateApp, shape};
use crate::api::access::{Access, ClientConnection};
use crate::api::jobs::feed::{Look, MAX_RESULT_BYTES, Source};
use crate::api::jobs::follow::{Followers, stream};
use crate::api::may::{May, Read};
use crate::api::params::JobPath;
use crate::api::problem::ProblemResponse;
use crate::engine::Counter;
use crate::gate::GateJobWatch;

/// The job when it has ended, or as it is when the time is over; without what is large of it.
pub(super) async fn wait_until_ended(
    app: &GateApp,
    access: &Access,
    followers: &Followers,
    job: JobId,
    wait: Duration,
) -> Result<JobView, ProblemResponse> {
    let until = Instant::now() + wait;
    let _place = followers.join()?;
    // The bell comes before the look, so that no change falls in between.
    let bell = app.engine.watch(job);
    loop {
        let view = view_of(&app.engine, job).await?;
        if !view.job.has_ended() {
            tokio::select! {
                biased;
                problem = access.revoked() => return Err(problem),
                changed = timeout_at(until, bell.changed()) => if changed.is_ok() {
                    continue;
                },
                () = app.drained() => {}
            }
        }
        return Ok(view);
    }
}

/// The job now, and again after each change, as server-sent events: `job`, and at last `end`. Results over 4 KiB are told
/// only of a job that has ended, up to 2 MiB of them.
#[utoipa::path(get, path = "/v1/jobs/{id}/events", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, description = "events `job` and `end`, each with the job", content_type = "text/event-stream", body = String),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 503, description = "overloaded", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn events(
    May { access, .. }: May<Read>,
    State(app): State<GateApp>,
    Extension(followers): Extension<Followers>,
    connection: Option<Extension<ClientConnection>>,
    JobPath(job): JobPath,
) -> Result<Response, ProblemResponse> {
    stream(app, followers, access, connection, job).await
}

impl Source for GateApp {
    type Bell = GateJobWatch;

    async fn look(&self, job: JobId, looks: &Arc<AtomicU64>) -> Result<Look, ProblemResponse> {
        let looks = looks.clone();
        let read = self.engine.read(move |gate| (looks.fetch_add(1, Ordering::Relaxed) + 1, gate.job(job)));
        let (number, view) = read.await?;
        let mut view = view.ok_or(Refusal::UnknownJob)?;
        let is_terminal = view.job.has_ended();
        if is_terminal {
            fetch_results(&self.engine, &mut view, MAX_RESULT_BYTES).await?;
        }
        // Reports change it without a bell, wherever it runs.
        let is_running = !is_terminal && view.state == JobState::Running;
        Ok(Look { number, shown: shape::job(&view), is_terminal, is_running })
    }

    fn bell(&self, job: JobId) -> GateJobWatch {
        self.engine.watch(job)
    }

    async fn rung(bell: &GateJobWatch) {
        bell.changed().await;
    }

    fn held_bytes(&self) -> &Counter {
        &self.engine.stats().followed_bytes
    }

    fn load(&self) -> OverloadLevel {
        self.engine.load()
    }

    async fn drained(&self) {
        Self::drained(self).await;
    }
}
