//! Following a job: by waiting for its end, or as a stream of events.

use core::convert::Infallible;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use onward_core::health::overload::{LoadClass, sheds};
use onward_core::ids::JobId;
use onward_core::manager::JobView;
use onward_core::refusal::Refusal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::super::App;
use super::super::may::{May, Read};
use super::super::params::JobPath;
use super::super::problem::Problem;
use super::read::one;
use super::shape::{Detail, Job};
use crate::engine::Watch;

/// What is soft (beats, progress, clocks) rings no bell, so a running job is looked at this often, if there is time.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A comment, so that nobody in between takes a quiet stream for a dead one.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A client that takes nothing for this long is gone.
const SEND_WITHIN: Duration = Duration::from_secs(30);

/// Who waits for jobs or follows them. Each holds memory and is woken by every change.
#[derive(Clone, Debug)]
pub struct Followers(Arc<Semaphore>);

impl Followers {
    pub fn at_most(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count)))
    }

    fn join(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.0.clone().try_acquire_owned().map_err(|_| {
            let detail = "as many as may are waiting for jobs here; ask again later, or without waiting";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
        })
    }
}

/// The job when it has ended, or as it is when the time is over.
pub async fn wait_until_ended(
    app: &App,
    followers: &Followers,
    job: JobId,
    wait: Duration,
) -> Result<JobView, Problem> {
    let engine = &app.engine;
    let until = Instant::now() + wait;
    let _place = followers.join()?;
    // The bell comes before the look, so that no change falls in between.
    let bell = engine.watch(job);
    loop {
        let view = one(engine, job).await?;
        if view.state.is_terminal() {
            return Ok(view);
        }
        tokio::select! {
            changed = timeout_at(until, bell.changed()) => {
                if changed.is_err() {
                    return Ok(view);
                }
            }
            () = app.drained() => return Ok(view),
        }
    }
}

/// The job now, and again after each change, as server-sent events: `job`, and at last `end`.
#[utoipa::path(get, path = "/v1/jobs/{id}/events", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, description = "events `job` and `end`, each with the job", content_type = "text/event-stream", body = String),
        (status = 404, description = "unknown_job", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "overloaded", body = Problem, content_type = "application/problem+json")))]
pub async fn events(
    _: May<Read>,
    State(app): State<App>,
    Extension(followers): Extension<Followers>,
    JobPath(job): JobPath,
) -> Result<Response, Problem> {
    let place = followers.join()?;
    let bell = app.engine.watch(job);
    let first = one(&app.engine, job).await?;
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let _place = place;
        let stream = Stream { app, job, bell, sender };
        // An error is a client that went away.
        let _ = stream.run(first).await;
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::new(Frames(receiver))).into_response())
}

struct Stream {
    app: App,
    job: JobId,
    bell: Watch,
    sender: mpsc::Sender<Bytes>,
}

struct Gone;

impl Stream {
    async fn run(&self, first: JobView) -> Result<(), Gone> {
        let mut view = first;
        let mut said: Option<JobView> = None;
        let mut said_at = Instant::now();
        loop {
            if said.as_ref() != Some(&view) {
                self.send(event("job", &view)).await?;
                said_at = Instant::now();
            } else if said_at.elapsed() >= KEEP_ALIVE {
                self.send(": still here\n\n".into()).await?;
                said_at = Instant::now();
            }
            if view.state.is_terminal() {
                return self.send(event("end", &view)).await;
            }
            let running = view.workflows.iter().any(|workflow| workflow.state.is_held());
            let look = running && !sheds(self.app.engine.load(), LoadClass::Telemetry);
            said = Some(view);
            tokio::select! {
                () = self.bell.changed() => {}
                () = sleep(if look { LOOK_EVERY } else { KEEP_ALIVE }) => {}
                () = self.sender.closed() => return Err(Gone),
                () = self.app.drained() => return Ok(()),
            }
            view = match one(&self.app.engine, self.job).await {
                Ok(view) => view,
                Err(problem) => {
                    let data = serde_json::to_string(&problem).expect("a problem is plain data");
                    // It may have been archived since it ended, or this node does not serve: both end the stream.
                    let name = if problem.code == Refusal::UnknownJob.kind().code() { "end" } else { "error" };
                    return self.send(format!("event: {name}\ndata: {data}\n\n").into()).await;
                }
            };
        }
    }

    async fn send(&self, text: Bytes) -> Result<(), Gone> {
        match timeout(SEND_WITHIN, self.sender.send(text)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }
}

fn event(name: &str, view: &JobView) -> Bytes {
    let job = Job::of(view, Detail::Brief);
    let data = serde_json::to_string(&job).expect("a job is plain data");
    // A result is shown as it was written, line breaks included; inside JSON those are mere space.
    let data = data.replace(['\r', '\n'], " ");
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// What the stream says, as a body. Dropping it ends the stream.
struct Frames(mpsc::Receiver<Bytes>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|text| text.map(|text| Ok(Frame::data(text))))
    }
}
