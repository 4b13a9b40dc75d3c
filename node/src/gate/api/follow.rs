//! Following a gate's job: by waiting for its end, or as a stream of events.

use core::time::Duration;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use onward_core::gate::JobView;
use onward_core::ids::JobId;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::jobs::{fetch_results, view_of};
use super::{GateApp, shape};
use crate::api::access::{Access, Connection};
use crate::api::may::{May, Read};
use crate::api::params::JobPath;
use crate::api::problem::Problem;

/// The interval at which an open job is looked at: soft changes (reports, clocks) ring no bell.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A comment, so that nobody in between takes a quiet stream for a dead one.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A client that takes nothing for this long is gone.
const SEND_WITHIN: Duration = Duration::from_secs(30);

/// Places for callers that wait for jobs or follow them. Each holds memory and is woken by every change.
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

/// The job when it has ended, or as it is when the time is over; without what is large of it.
pub(super) async fn wait_until_ended(
    app: &GateApp,
    access: &Access,
    followers: &Followers,
    job: JobId,
    wait: Duration,
) -> Result<JobView, Problem> {
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

/// The job now, and again after each change, as server-sent events: `job`, and at last `end`.
#[utoipa::path(get, path = "/v1/jobs/{id}/events", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, description = "events `job` and `end`, each with the job", content_type = "text/event-stream", body = String),
        (status = 404, description = "unknown_job", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "overloaded", body = Problem, content_type = "application/problem+json")))]
pub async fn events(
    May { access, .. }: May<Read>,
    State(app): State<GateApp>,
    Extension(followers): Extension<Followers>,
    connection: Option<Extension<Connection>>,
    JobPath(job): JobPath,
) -> Result<Response, Problem> {
    let place = followers.join()?;
    view_of(&app.engine, job).await?;
    // One piece at a time: what is not taken is not kept here.
    let (sender, receiver) = channel(1);
    tokio::spawn(async move {
        let _place = place;
        let told = tokio::select! {
            biased;
            problem = access.revoked() => say(&sender, "error", &problem).await,
            told = tell(&app, job, &sender) => told,
            () = app.drained() => Ok(()),
        };
        if told == Err(Gone::DoesNotRead)
            && let Some(Extension(connection)) = connection
        {
            connection.cut();
        }
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    let pieces = ReceiverStream::new(receiver).map(Ok::<Bytes, core::convert::Infallible>);
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// The reason why nobody is told any more.
#[derive(PartialEq, Eq, Debug)]
enum Gone {
    /// The client has closed the stream.
    Left,
    DoesNotRead,
}

async fn tell(app: &GateApp, job: JobId, sender: &Sender<Bytes>) -> Result<(), Gone> {
    let bell = app.engine.watch(job);
    let (mut before, mut said_at) = (None, Instant::now());
    loop {
        let looked = async {
            let mut view = view_of(&app.engine, job).await?;
            fetch_results(&app.engine, &mut view).await?;
            Ok::<_, Problem>((view.job.has_ended(), shape::job(&view)))
        };
        match looked.await {
            Err(problem) => return say(sender, "error", &problem).await,
            Ok((true, shown)) => {
                say(sender, "job", &shown).await?;
                return say(sender, "end", &shown).await;
            }
            Ok((false, shown)) if before.as_ref() != Some(&shown) => {
                say(sender, "job", &shown).await?;
                (before, said_at) = (Some(shown), Instant::now());
            }
            Ok((false, _)) if said_at.elapsed() > KEEP_ALIVE => {
                send(sender, Bytes::from_static(b": still here\n\n")).await?;
                said_at = Instant::now();
            }
            Ok((false, _)) => {}
        }
        tokio::select! {
            // Either way it is looked at again.
            _ = timeout(LOOK_EVERY, bell.changed()) => {}
            () = sender.closed() => return Err(Gone::Left),
        }
    }
}

async fn say(sender: &Sender<Bytes>, name: &str, value: &impl serde::Serialize) -> Result<(), Gone> {
    let data = serde_json::to_string(value).expect("jobs and problems are plain data");
    send(sender, format!("event: {name}\ndata: {data}\n\n").into()).await
}

async fn send(sender: &Sender<Bytes>, text: Bytes) -> Result<(), Gone> {
    match timeout(SEND_WITHIN, sender.send(text)).await {
        Ok(sent) => sent.map_err(|_| Gone::Left),
        Err(_) => Err(Gone::DoesNotRead),
    }
}
