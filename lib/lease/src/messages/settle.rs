//! How a message is settled, and how that is counted.

use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::sleep;

use crate::delivery::Delivery;
use crate::mailbox::{End, MailboxError};

/// Calls to settle one message.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// How the messages of a loop ended so far.
#[derive(Debug, Default)]
pub struct MessageLoopCounts {
    acknowledged: AtomicU64,
    retried: AtomicU64,
    released: AtomicU64,
    dead: AtomicU64,
    lost: AtomicU64,
    refused: AtomicU64,
}

/// [`MessageLoopCounts`] at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MessageCounts {
    pub acknowledged: u64,
    pub retried: u64,
    pub released: u64,
    /// Sent to the dead letters by this loop. Those that were handed out too often are the mailbox's.
    pub dead: u64,
    /// Handlers that were stopped because their lease was lost.
    pub lost: u64,
    /// Ends that the mailbox refused, because the message was no longer held.
    pub refused: u64,
}

impl MessageLoopCounts {
    pub fn get(&self) -> MessageCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        MessageCounts {
            acknowledged: load(&self.acknowledged),
            retried: load(&self.retried),
            released: load(&self.released),
            dead: load(&self.dead),
            lost: load(&self.lost),
            refused: load(&self.refused),
        }
    }

    pub(super) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Says how a message ended, again if the mailbox cannot be reached. A message that cannot be settled comes back
    /// when its lease is over.
    pub(super) async fn settle(&self, delivery: &Delivery, end: End) {
        let mut wait = FIRST_WAIT;
        for left in (0..TRIES).rev() {
            match delivery.mailbox().settle(delivery.receipt().clone(), end.clone()).await {
                Ok(()) => {
                    self.count(&end).fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Err(MailboxError::Stale) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(message = %delivery.id(), ?end, "refused: the message was no longer held");
                    return;
                }
                Err(error) if error.is_passing() && left > 0 => {
                    tracing::warn!(message = %delivery.id(), %error, "could not be settled; trying again");
                    sleep(wait).await;
                    wait *= 2;
                }
                Err(error) => {
                    tracing::error!(message = %delivery.id(), %error, "could not be settled; it is handed out again");
                    return;
                }
            }
        }
    }

    fn count(&self, end: &End) -> &AtomicU64 {
        match end {
            End::Ack { .. } => &self.acknowledged,
            End::Retry { .. } => &self.retried,
            End::Release { .. } => &self.released,
            End::Dead { .. } => &self.dead,
        }
    }
}
