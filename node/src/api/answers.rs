//! Answers that are large, from when they are made until they have left this process. All of them together are bounded:
//! those who ask for much and do not read it must not fill the memory.
//!
//! Room is taken before anything is read, for all that making the answer needs, and given back down to its length when it
//! is made. A client that takes nothing of it for a while is cut off.

use core::convert::Infallible;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::access::ClientConnection;
use super::json::Json;
use super::problem::ProblemResponse;
use crate::byte_room::{ByteRoom, TakenRoom};

/// Bytes of all answers together.
const MAX_BYTES: usize = 256 << 20;
/// The number of times that an answer's bytes are in memory while it is made: as content, as the JSON of its parts, in
/// a map by name, and in a text that grows by doubling.
const COPIES: usize = 5;
/// Smaller ones are not counted: their number is bounded by that of connections.
const SMALL_BYTES: usize = 64 << 10;
/// Bytes that are given to the connection at a time.
const PIECE_BYTES: usize = 64 << 10;
/// A client that takes nothing for this long is gone.
const TAKE_WITHIN: Duration = Duration::from_secs(30);

/// The room for large answers. Clones share it.
#[derive(Clone, Debug)]
pub struct AnswerRoom(ByteRoom);

impl Default for AnswerRoom {
    fn default() -> Self {
        Self(ByteRoom::of(MAX_BYTES))
    }
}

impl AnswerRoom {
    /// Room to make an answer of about so many bytes.
    pub fn room(&self, bytes: usize) -> Result<AnswerPermit, ProblemResponse> {
        if bytes <= SMALL_BYTES {
            return Ok(AnswerPermit(None));
        }
        let taken = self.0.take_at_most_all(bytes.saturating_mul(COPIES));
        taken.map(|taken| AnswerPermit(Some(taken))).ok_or_else(|| {
            let detail = "as many large answers as may are on their way to those who asked; ask again later";
            ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
        })
    }
}

/// The right to make one answer.
#[derive(Debug)]
pub struct AnswerPermit(Option<TakenRoom>);

impl AnswerPermit {
    pub fn answer(self, value: &impl Serialize, connection: Option<ClientConnection>) -> Response {
        let Some(mut room) = self.0 else { return Json(value).into_response() };
        let mut text = match serde_json::to_vec(value) {
            Ok(text) => text,
            // It says why.
            Err(_) => return Json(value).into_response(),
        };
        text.shrink_to_fit();
        room.shrink_to(text.len());
        let (lent, mut returned) = oneshot::channel();
        let taken = Arc::new(AtomicUsize::new(0));
        let rest = Bytes::from_owner(AnswerBody { text, _room: room, _until: lent });
        let body = Pieces { rest, taken: taken.clone() };
        tokio::spawn(async move {
            let mut before = None;
            // It ends, with an error, when all of the text was dropped.
            while timeout(TAKE_WITHIN, &mut returned).await.is_err() {
                let now = Some(taken.load(Ordering::Relaxed));
                if now == before {
                    if let Some(connection) = connection {
                        connection.cut();
                    }
                    return;
                }
                before = now;
            }
        });
        ([(CONTENT_TYPE, "application/json")], Body::new(body)).into_response()
    }
}

/// A text on its way to a client.
struct AnswerBody {
    text: Vec<u8>,
    _room: TakenRoom,
    _until: oneshot::Sender<()>,
}

impl AsRef<[u8]> for AnswerBody {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// A body that is given out as fast as it is taken.
struct Pieces {
    rest: Bytes,
    taken: Arc<AtomicUsize>,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(length);
        self.taken.fetch_add(length, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
