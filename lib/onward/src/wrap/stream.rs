//! A stream that beats.

use core::pin::Pin;
use core::task::{Context as Task, Poll, ready};

use tokio_stream::Stream;

use crate::context::Context;

/// Made by [`Context::stream`].
#[derive(Debug)]
pub struct Items<S> {
    inner: S,
    context: Context,
    done: u64,
    total: Option<u64>,
}

impl Context {
    /// Wraps a stream so that every item beats. With [`Items::of_total`] it reports how far it is, too.
    pub fn stream<S: Stream + Unpin>(&self, inner: S) -> Items<S> {
        Items { inner, context: self.clone(), done: 0, total: None }
    }
}

impl<S> Items<S> {
    /// Reports the items that came as progress, of this many in all. From then on only they count as forward steps.
    pub fn of_total(mut self, items: u64) -> Self {
        self.total = Some(items);
        self
    }

    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Stream + Unpin> Stream for Items<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<S::Item>> {
        let this = self.get_mut();
        let item = ready!(Pin::new(&mut this.inner).poll_next(task));
        if item.is_some() {
            this.done += 1;
            match this.total {
                Some(total) => this.context.progress(this.done, total),
                None => this.context.beat(),
            }
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}
