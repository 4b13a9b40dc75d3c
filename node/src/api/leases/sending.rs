//! The answer to a poll, on its way to the worker.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::convert::Infallible;

use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::engine::DeliveryGuard;

/// Small enough that the last frame of a large answer is asked for only when most of the rest is on its way.
const FRAME_BYTES: usize = 64 << 10;

/// A body that tells the machine when the connection has taken all of it. Dropped before that, the leases in it go
/// back uncounted, unless their worker can ask for them again by the id of its poll.
#[derive(Debug)]
pub struct Sending {
    rest: Bytes,
    delivery: DeliveryGuard,
}

impl Sending {
    pub fn new(body: Vec<u8>, delivery: DeliveryGuard) -> Self {
        Self { rest: body.into(), delivery }
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.rest.len().min(FRAME_BYTES);
        let frame = self.rest.split_to(length);
        if self.rest.is_empty() {
            self.delivery.done();
        }
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
