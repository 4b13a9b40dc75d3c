//! Which HTTP a client speaks on a plain connection: found out by its first bytes, within a limit of time. What was
//! read for that is read again by whoever serves the connection.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The first bytes of an HTTP/2 connection.
const HTTP2: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HttpVersion {
    Http1,
    Http2,
}

/// None if the client closed before it said anything that tells.
pub(super) async fn sniff<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<Option<(HttpVersion, SniffedStream<S>)>> {
    let mut first = [0u8; HTTP2.len()];
    let mut length = 0;
    loop {
        let count = stream.read(&mut first[length..]).await?;
        if count == 0 {
            return Ok(None);
        }
        length += count;
        let version = if first[..length] != HTTP2[..length] {
            HttpVersion::Http1
        } else if length == HTTP2.len() {
            HttpVersion::Http2
        } else {
            continue;
        };
        return Ok(Some((version, SniffedStream { first, given: 0, length, stream })));
    }
}

#[derive(Debug)]
pub(super) struct SniffedStream<S> {
    first: [u8; HTTP2.len()],
    given: usize,
    length: usize,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for SniffedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.given < self.length {
            let count = into.remaining().min(self.length - self.given);
            into.put_slice(&self.first[self.given..self.given + count]);
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SniffedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn found(bytes: &'static [u8]) -> Option<(HttpVersion, Vec<u8>)> {
        let (version, mut sniffed) = sniff(bytes).await.unwrap()?;
        let mut all = Vec::new();
        sniffed.read_to_end(&mut all).await.unwrap();
        Some((version, all))
    }

    #[tokio::test]
    async fn the_version_is_told_by_the_first_bytes_and_none_is_lost() {
        for text in ["GET / HTTP/1.1\r\n\r\n", "PRI /x HTTP/1.1\r\n\r\n", "\u{0}"] {
            assert_eq!(found(text.as_bytes()).await, Some((HttpVersion::Http1, text.as_bytes().to_vec())), "{text}");
        }
        let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore";
        assert_eq!(found(http2).await, Some((HttpVersion::Http2, http2.to_vec())));
        assert_eq!(found(b"").await, None);
        assert_eq!(found(&HTTP2[..23]).await, None);
    }
}
