//! The leader's answer on its way to a client: each piece is passed on as it comes, and the next is asked for only once
//! the client has taken it.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Response, response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;

use super::call::remove_of_connection;
use crate::api::access::ClientConnection;

/// A client that takes nothing of an answer for this long is gone. The leader waits longer before it cuts the whole
/// connection, which is one of many clients.
const TAKE_WITHIN: Duration = Duration::from_secs(20);
/// Smaller answers fit into what is kept for a client anyway.
const SMALL_BYTES: u64 = 64 << 10;

/// Resolves when the node drains: answers that have no end of their own end then.
pub(super) type DrainFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The leader's answer for a client, over the client's own connection. `place` is what it takes up on the connection to
/// the leader.
pub(super) fn relay(
    answer: Response<Incoming>,
    place: OwnedSemaphorePermit,
    connection: Option<ClientConnection>,
    drained: DrainFuture,
) -> Response<Body> {
    let (head, body) = answer.into_parts();
    let kind = head.headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let (is_feed, is_grpc) = (kind.starts_with(b"text/event-stream"), kind.starts_with(b"application/grpc"));
    let is_small = http_body::Body::size_hint(&body).exact().is_some_and(|bytes| bytes <= SMALL_BYTES);
    let taken = Arc::new(AtomicU64::new(0));
    // The leader ends sessions by itself, and lets whoever does not read wait.
    let watched = connection.filter(|_| !is_small && !is_grpc).map(|connection| {
        let (lent, returned) = oneshot::channel();
        tokio::spawn(cut_if_not_taken(connection, taken.clone(), returned));
        lent
    });
    let drained = is_feed.then_some(drained);
    let mut response = Response::new(Body::new(Relay { body, taken, drained, _watched: watched, _place: place }));
    let response::Parts { status, mut headers, .. } = head;
    remove_of_connection(&mut headers);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

struct Relay {
    body: Incoming,
    /// The number of pieces taken; odd while the next one is waited for.
    taken: Arc<AtomicU64>,
    drained: Option<DrainFuture>,
    _watched: Option<oneshot::Sender<()>>,
    _place: OwnedSemaphorePermit,
}

impl http_body::Body for Relay {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(drained) = &mut self.drained
            && drained.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(None);
        }
        let asked = self.taken.load(Ordering::Relaxed) | 1;
        self.taken.store(asked, Ordering::Relaxed);
        let frame = core::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.taken.store(asked + 1, Ordering::Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn cut_if_not_taken(connection: ClientConnection, taken: Arc<AtomicU64>, mut returned: oneshot::Receiver<()>) {
    let mut before = None;
    // It ends, with an error, when the answer was dropped.
    while timeout(TAKE_WITHIN, &mut returned).await.is_err() {
        let now = taken.load(Ordering::Relaxed);
        let is_asked_for = now % 2 == 1;
        if before == Some(now) && !is_asked_for {
            return connection.cut();
        }
        before = Some(now);
    }
}
