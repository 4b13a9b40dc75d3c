//! A reader that beats.

use core::pin::Pin;
use core::task::{Context as Task, Poll, ready};
use std::io;

use tokio::io::{AsyncRead, ReadBuf};

use crate::context::Context;

/// Made by [`Context::reader`].
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    context: Context,
    done: u64,
    total: Option<u64>,
}

impl Context {
    /// Wraps a reader so that every read that gets bytes beats. With [`Reader::of_total`] it reports how far it is, too.
    ///
    /// ```no_run
    /// # async fn copy(ctx: onward::Context) -> Result<(), onward::Failure> {
    /// # let (file, size, mut target) = (tokio::io::empty(), 1, tokio::io::sink());
    /// let mut source = ctx.reader(file).of_total(size);
    /// tokio::io::copy(&mut source, &mut target).await?;
    /// # Ok(()) }
    /// ```
    pub fn reader<R: AsyncRead + Unpin>(&self, inner: R) -> Reader<R> {
        Reader { inner, context: self.clone(), done: 0, total: None }
    }
}

impl<R> Reader<R> {
    /// Reports the bytes that were read as progress, of this many in all. From then on only they count as forward steps.
    pub fn of_total(mut self, bytes: u64) -> Self {
        self.total = Some(bytes);
        self
    }

    pub fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Reader<R> {
    fn poll_read(self: Pin<&mut Self>, task: &mut Task<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(task, buffer))?;
        let got = (buffer.filled().len() - before) as u64;
        if got > 0 {
            this.done += got;
            match this.total {
                Some(total) => this.context.progress(this.done, total),
                None => this.context.beat(),
            }
        }
        Poll::Ready(Ok(()))
    }
}
