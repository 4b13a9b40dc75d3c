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
use onward_core::ids::JobId;
use onward_core::manager::JobView;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::App;
use super::super::access::{Access, ClientConnection};
use super::super::may::{May, Read};
use super::super::params::JobPath;
use super::super::problem::ProblemResponse;
use super::feed::{Feed, FeedItem, Feeds, Newest, Source};
use super::read::without_contents;

/// A comment, so that nobody in between takes a quiet stream for a dead one.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A client that takes nothing for this long is gone.
const SEND_WITHIN: Duration = Duration::from_secs(30);

/// Places for callers that wait for jobs or follow them. Each holds memory and is woken by every change.
#[derive(Clone, Debug)]
pub struct Followers {
    places: Arc<Semaphore>,
    feeds: Feeds,
}

impl Followers {
    pub fn at_most(count: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(count)), feeds: Feeds::default() }
    }

    pub(crate) fn join(&self) -> Result<OwnedSemaphorePermit, ProblemResponse> {
        self.places.clone().try_acquire_owned().map_err(|_| {
            let detail = "as many as may are waiting for jobs here; ask again later, or without waiting";
            ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
        })
    }
}

/// The job when it has ended, or as it is when the time is over; without what is large of it.
pub async fn wait_until_ended(
    app: &App,
    access: &Access,
    followers: &Followers,
    job: JobId,
    wait: Duration,
) -> Result<JobView, ProblemResponse> {
    let engine = &app.engine;
    let until = Instant::now() + wait;
    let _place = followers.join()?;
    // The bell comes before the look, so that no change falls in between.
    let bell = engine.watch(job);
    loop {
        let view = without_contents(engine, job).await?;
        if !view.state.is_terminal() {
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

/// The job now, and again after each change, as server-sent events: `job`, and at last `end`. Payloads are not among
/// what they tell, and results only of a job that has ended, up to 2 MiB of them.
#[utoipa::path(get, path = "/v1/jobs/{id}/events", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, description = "events `job` and `end`, each with the job", content_type = "text/event-stream", body = String),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 503, description = "overloaded", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn events(
    May { access, .. }: May<Read>,
    State(app): State<App>,
    Extension(followers): Extension<Followers>,
    connection: Option<Extension<ClientConnection>>,
    JobPath(job): JobPath,
) -> Result<Response, ProblemResponse> {
    stream(app, followers, access, connection, job).await
}

/// News of a job as server-sent events.
pub(crate) async fn stream<S: Source>(
    source: S,
    followers: Followers,
    access: Access,
    connection: Option<Extension<ClientConnection>>,
    job: JobId,
) -> Result<Response, ProblemResponse> {
    let place = followers.join()?;
    let feed = followers.feeds.follow(&source, job).await?;
    // One piece at a time: what is not taken is not kept here.
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _place = place;
        let connection = connection.map(|Extension(connection)| connection);
        let stream = Stream { newest: feed.subscribe(), _feed: feed, sender };
        if stream.run(&source, &access).await == Err(FollowEnd::DoesNotRead)
            && let Some(connection) = connection
        {
            connection.cut();
        }
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::new(Frames(receiver))).into_response())
}

struct Stream {
    newest: watch::Receiver<Option<Newest>>,
    /// The feed goes on for as long as somebody has it.
    _feed: Arc<Feed>,
    sender: mpsc::Sender<Bytes>,
}

#[derive(PartialEq, Eq, Debug)]
enum FollowEnd {
    /// The client has closed the stream.
    Left,
    DoesNotRead,
}

impl Stream {
    async fn run(mut self, source: &impl Source, access: &Access) -> Result<(), FollowEnd> {
        let sender = self.sender.clone();
        tokio::select! {
            biased;
            problem = access.revoked() => {
                let data = serde_json::to_vec(&problem).expect("a problem is plain data");
                // The stream may have been in the middle of an event.
                send(&sender, Bytes::from_static(b"\n\n")).await?;
                send_event(&sender, "error", data.into()).await
            }
            told = self.send_changes() => told,
            () = source.drained() => Ok(()),
        }
    }

    async fn send_changes(&mut self) -> Result<(), FollowEnd> {
        loop {
            let changed = tokio::select! {
                changed = timeout(KEEP_ALIVE, self.newest.changed()) => changed,
                () = self.sender.closed() => return Err(FollowEnd::Left),
            };
            match changed {
                Err(_) => send(&self.sender, Bytes::from_static(b": still here\n\n")).await?,
                // It is ours too, so it cannot be gone.
                Ok(Err(_)) => return Ok(()),
                Ok(Ok(())) => {
                    let newest = self.newest.borrow_and_update().as_ref().map(|newest| newest.news.clone());
                    match newest {
                        None => {}
                        Some(FeedItem::Job(job)) => send_event(&self.sender, "job", job).await?,
                        Some(FeedItem::Ended(job)) => {
                            send_event(&self.sender, "job", job.clone()).await?;
                            return send_event(&self.sender, "end", job).await;
                        }
                        Some(FeedItem::Over(name, data)) => return send_event(&self.sender, name, data).await,
                    }
                }
            }
        }
    }
}

/// Returns when all of it has left this process: until then nothing newer is given to this client.
async fn send_event(sender: &mpsc::Sender<Bytes>, name: &str, data: Bytes) -> Result<(), FollowEnd> {
    let (lent, returned) = oneshot::channel();
    send(sender, format!("event: {name}\ndata: ").into()).await?;
    send(sender, Bytes::from_owner(FrameBody { data, _until: lent })).await?;
    send(sender, Bytes::from_static(b"\n\n")).await?;
    // An error is what tells that it was dropped.
    timeout(SEND_WITHIN, returned).await.map(drop).map_err(|_| FollowEnd::DoesNotRead)
}

async fn send(sender: &mpsc::Sender<Bytes>, text: Bytes) -> Result<(), FollowEnd> {
    match timeout(SEND_WITHIN, sender.send(text)).await {
        Ok(sent) => sent.map_err(|_| FollowEnd::Left),
        Err(_) => Err(FollowEnd::DoesNotRead),
    }
}

/// A text on its way to one client.
struct FrameBody {
    data: Bytes,
    _until: oneshot::Sender<()>,
}

impl AsRef<[u8]> for FrameBody {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// Frames of the stream as a body. Dropping it ends the stream.
struct Frames(mpsc::Receiver<Bytes>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|text| text.map(|text| Ok(Frame::data(text))))
    }
}
