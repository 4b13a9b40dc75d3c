//! One hand-out of a message, as its handler sees it.

use core::fmt;
use core::ops::Deref;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::time::Instant;

use crate::heartbeat::Heartbeat;
use crate::mailbox::{ErasedMailbox, Mailbox, MessageId, Receipt, Received};

/// A message that was handed out, and the [`Heartbeat`] of the work on it. Cheap to clone; clones are the same delivery.
///
/// It is also a heartbeat: `delivery.progress(1, 3)`, `delivery.command(…)`, `delivery.check()?`.
#[derive(Clone)]
pub struct Delivery {
    inner: Arc<Inner>,
}

struct Inner {
    received: Received,
    asked_at: Option<Instant>,
    mailbox: Arc<dyn ErasedMailbox>,
    heartbeat: Heartbeat,
    extensions: Arc<AtomicU64>,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("received", &self.inner.received).finish_non_exhaustive()
    }
}

impl Deref for Delivery {
    type Target = Heartbeat;

    fn deref(&self) -> &Heartbeat {
        &self.inner.heartbeat
    }
}

impl Delivery {
    /// A message that `mailbox` handed out. `asked_at` is when it was asked, from which its lease counts; `None` where
    /// that is not known, and then the first beat renews at once. Deliveries that share one `Arc` of their mailbox are
    /// renewed together.
    pub fn new(mailbox: Arc<impl Mailbox>, received: Received, asked_at: Option<Instant>) -> Self {
        Self::under(Heartbeat::new(), mailbox, received, asked_at)
    }

    pub(crate) fn under(
        heartbeat: Heartbeat,
        mailbox: Arc<dyn ErasedMailbox>,
        received: Received,
        asked_at: Option<Instant>,
    ) -> Self {
        Self { inner: Arc::new(Inner { received, asked_at, mailbox, heartbeat, extensions: Arc::default() }) }
    }

    /// The same hand-out for another try, on a heartbeat of its own.
    pub(crate) fn again(&self, heartbeat: Heartbeat) -> Self {
        let Inner { received, asked_at, mailbox, extensions, .. } = &*self.inner;
        let (received, mailbox, extensions) = (received.clone(), mailbox.clone(), extensions.clone());
        Self { inner: Arc::new(Inner { received, asked_at: *asked_at, mailbox, heartbeat, extensions }) }
    }

    pub fn heartbeat(&self) -> &Heartbeat {
        &self.inner.heartbeat
    }

    /// Identity of the mailbox that handed the message out; see [`Mailbox::identity`].
    pub fn mailbox_identity(&self) -> String {
        self.inner.mailbox.identity()
    }

    pub fn id(&self) -> &MessageId {
        &self.inner.received.id
    }

    pub fn body(&self) -> &Bytes {
        &self.inner.received.message.body
    }

    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.inner.received.message.headers
    }

    pub fn group(&self) -> Option<&str> {
        self.inner.received.message.group.as_deref()
    }

    pub fn reply_to(&self) -> Option<&str> {
        self.inner.received.message.reply_to.as_deref()
    }

    /// Hand-outs so far, this one included.
    pub fn delivery(&self) -> u32 {
        self.inner.received.delivery
    }

    /// Rises from one hand-out of the message to the next; see [`Received::fence`].
    pub fn fence(&self) -> u64 {
        self.inner.received.fence
    }

    /// The number of times that the lease was extended so far.
    pub fn extensions(&self) -> u64 {
        self.inner.extensions.load(Ordering::Relaxed)
    }

    pub fn receipt(&self) -> &Receipt {
        &self.inner.received.receipt
    }

    /// The lease that was granted at the hand-out.
    pub(crate) fn lease(&self) -> Duration {
        self.inner.received.lease
    }

    pub(crate) fn asked_at(&self) -> Option<Instant> {
        self.inner.asked_at
    }

    pub(crate) fn extension_count(&self) -> &Arc<AtomicU64> {
        &self.inner.extensions
    }

    pub(crate) fn mailbox(&self) -> &Arc<dyn ErasedMailbox> {
        &self.inner.mailbox
    }
}
