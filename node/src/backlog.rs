//! How much of what came in over a stream between a datacenter and a gate waits for the machine. While that is too much,
//! nothing more is read, and the other side finds that out by HTTP/2's own flow control.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Messages of one stream that may wait at a time.
const MAX_MESSAGES: usize = 1_024;

/// Messages of one stream that wait. There is one reader.
#[derive(Debug)]
pub(crate) struct Backlog(Arc<Waiting>);

#[derive(Debug)]
struct Waiting {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    max_bytes: usize,
    less: Notify,
}

/// A message that waits; dropped when the machine takes it, or nobody will.
#[derive(Debug)]
pub(crate) struct BacklogItem {
    waiting: Arc<Waiting>,
    bytes: usize,
}

impl Backlog {
    /// The message that goes beyond `max_bytes` is the last that is read.
    pub(crate) fn of(max_bytes: usize) -> Self {
        let (messages, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self(Arc::new(Waiting { messages, bytes, max_bytes, less: Notify::new() }))
    }

    pub(crate) fn add(&self, bytes: usize) -> BacklogItem {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        BacklogItem { waiting: self.0.clone(), bytes }
    }

    /// Returns when there is room for one more. May be given up at any time, and begun again.
    pub(crate) async fn room(&self) {
        while !self.has_room() {
            // A message that comes between the look and this is kept for it.
            self.0.less.notified().await;
        }
    }

    fn has_room(&self) -> bool {
        self.0.messages.load(Ordering::Relaxed) < MAX_MESSAGES
            && self.0.bytes.load(Ordering::Relaxed) < self.0.max_bytes
    }
}

impl Drop for BacklogItem {
    fn drop(&mut self) {
        self.waiting.messages.fetch_sub(1, Ordering::Relaxed);
        self.waiting.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.waiting.less.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn room_comes_back_with_what_is_taken() {
        let backlog = Backlog::of(100);
        let small = backlog.add(99);
        backlog.room().await;
        let large = backlog.add(1_000);
        assert!(!backlog.has_room(), "too many bytes");
        drop(small);
        assert!(!backlog.has_room(), "still too many");
        let taken = async { drop(large) };
        tokio::join!(backlog.room(), taken);
        let mut many: Vec<_> = (0..MAX_MESSAGES).map(|_| backlog.add(0)).collect();
        assert!(!backlog.has_room(), "too many messages");
        many.pop();
        backlog.room().await;
    }
}
