//! A reader that beats.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;

use tokio::io::{AsyncRead, ReadBuf};

use super::tally::WorkTally;
use crate::heartbeat::Heartbeat;

/// Made by [`Heartbeat::reader`].
#[derive(Debug)]
pub struct BeatingReader<R> {
    inner: R,
    tally: WorkTally,
}

impl Heartbeat {
    /// Wraps a reader so that every read that gets bytes beats. With [`BeatingReader::of_total`] it reports how far it is, too.
    ///
    /// ```no_run
    /// # async fn copy(beats: onward_lease::Heartbeat) -> Result<(), onward_lease::Failure> {
    /// # let (file, size, mut target) = (tokio::io::empty(), 1, tokio::io::sink());
    /// let mut source = beats.reader(file).of_total(size);
    /// tokio::io::copy(&mut source, &mut target).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn reader<R: AsyncRead + Unpin>(&self, inner: R) -> BeatingReader<R> {
        BeatingReader { inner, tally: WorkTally::new(self) }
    }
}

impl<R> BeatingReader<R> {
    /// Reports the bytes that were read as progress, of this many in all. From then on only they count as forward steps.
    pub fn of_total(mut self, bytes: u64) -> Self {
        self.tally.total = Some(bytes);
        self
    }

    pub fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for BeatingReader<R> {
    fn poll_read(self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(task, buffer))?;
        let got = (buffer.filled().len() - before) as u64;
        if got > 0 {
            this.tally.add(got);
        }
        Poll::Ready(Ok(()))
    }
}
