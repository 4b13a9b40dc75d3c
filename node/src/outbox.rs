//! What a machine tells somebody who is connected, on its way to the task that says it.
//!
//! A machine never waits for a reader. Whoever reads nothing while the machine goes on telling is cut off: what is told
//! would grow without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The machine's end. Clones are of the same reader.
pub(crate) struct BacklogSender<M> {
    sender: UnboundedSender<M>,
    reader: Arc<Reader>,
}

/// The reader's end.
pub(crate) struct Unread<M> {
    receiver: UnboundedReceiver<M>,
    reader: Arc<Reader>,
}

struct Reader {
    unread: AtomicUsize,
    max_unread: usize,
    is_cut_off: AtomicBool,
}

/// Whether a reader has taken a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PutResult {
    Taken,
    /// The reader reads too little, or is gone, and must be closed. Said once.
    CutOff,
    CutOffBefore,
}

/// Both ends for one reader, who may be behind by so many messages.
pub(crate) fn channel<M>(max_unread: usize) -> (BacklogSender<M>, Unread<M>) {
    let (sender, receiver) = unbounded_channel();
    let reader = Arc::new(Reader { unread: AtomicUsize::new(0), max_unread, is_cut_off: AtomicBool::new(false) });
    (BacklogSender { sender, reader: reader.clone() }, Unread { receiver, reader })
}

impl<M> Clone for BacklogSender<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), reader: self.reader.clone() }
    }
}

impl<M> BacklogSender<M> {
    pub(crate) fn put(&self, message: M) -> PutResult {
        let Reader { unread, max_unread, is_cut_off } = &*self.reader;
        if unread.fetch_add(1, Ordering::Relaxed) < *max_unread && self.sender.send(message).is_ok() {
            PutResult::Taken
        } else if is_cut_off.swap(true, Ordering::Relaxed) {
            PutResult::CutOffBefore
        } else {
            PutResult::CutOff
        }
    }
}

impl<M> Unread<M> {
    /// The next messages, up to `max` of those that are there; none once the machine has closed the other end. Nothing is
    /// lost if this is given up while it waits.
    pub(crate) async fn take(&mut self, into: &mut Vec<M>, max: usize) -> usize {
        let count = self.receiver.recv_many(into, max).await;
        self.reader.unread.fetch_sub(count, Ordering::Relaxed);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_does_not_read_is_cut_off_once_and_who_does_is_not() {
        let (outbox, mut unread) = channel(2);
        assert_eq!([1, 2, 3, 4].map(|number| outbox.put(number)), {
            use PutResult::{CutOff, CutOffBefore, Taken};
            [Taken, Taken, CutOff, CutOffBefore]
        });
        let mut seen = Vec::new();
        assert_eq!((unread.take(&mut seen, 10).await, seen), (2, vec![1, 2]));
        let (outbox, mut unread) = channel(1);
        for number in 0..3 {
            assert_eq!(outbox.put(number), PutResult::Taken);
            assert_eq!(unread.take(&mut Vec::new(), 1).await, 1);
        }
        drop(unread);
        assert_eq!(outbox.put(3), PutResult::CutOff);
    }
}
