//! A stream that beats.

use core::pin::Pin;
use core::task::{Context, Poll, ready};

use tokio_stream::Stream;

use super::tally::WorkTally;
use crate::heartbeat::Heartbeat;

/// Made by [`Heartbeat::stream`].
#[derive(Debug)]
pub struct Items<S> {
    inner: S,
    tally: WorkTally,
}

impl Heartbeat {
    /// Wraps a stream so that every item beats. With [`Items::of_total`] it reports how far it is, too.
    #[track_caller]
    pub fn stream<S: Stream + Unpin>(&self, inner: S) -> Items<S> {
        Items { inner, tally: WorkTally::new(self) }
    }
}

impl<S> Items<S> {
    /// Reports the items that came as progress, of this many in all. From then on only they count as forward steps.
    pub fn of_total(mut self, items: u64) -> Self {
        self.tally.total = Some(items);
        self
    }

    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Stream + Unpin> Stream for Items<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.get_mut();
        let item = ready!(Pin::new(&mut this.inner).poll_next(task));
        if item.is_some() {
            this.tally.add(1);
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}
