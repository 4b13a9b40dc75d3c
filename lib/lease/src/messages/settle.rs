//! How a message is settled, and how that is counted.

use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::{Instant, sleep};

use crate::delivery::Delivery;
use crate::heartbeat::Heartbeat;
use crate::mailbox::{End, MailboxError};

/// Waits between calls to settle one message: they double.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// The time for which a message is settled at least, though its lease is over or the loop must end.
const LEAST: Duration = Duration::from_secs(3);

/// Counts of a loop's messages by how they ended so far.
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

    /// Says how a message ended, and returns the end that the mailbox took. Where it is not known whether that was heard,
    /// it is said again while the lease `lasts`, but when the loop's heartbeat is cancelled only once more. A message that
    /// cannot be settled comes back when its lease is over.
    pub(super) async fn settle(
        &self,
        delivery: &Delivery,
        end: End,
        lasts: Duration,
        of_loop: &Heartbeat,
    ) -> Result<End, MailboxError> {
        let (began, mut end, mut wait) = (Instant::now(), end, FIRST_WAIT);
        loop {
            match delivery.mailbox().settle(delivery.receipt().clone(), end.clone()).await {
                Ok(()) => {
                    self.count(&end).fetch_add(1, Ordering::Relaxed);
                    return Ok(end);
                }
                Err(MailboxError::Stale) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(message = %delivery.id(), ?end, "refused: the message was no longer held");
                    return Err(MailboxError::Stale);
                }
                Err(error) if error.is_passing() => {
                    let is_over = of_loop.is_cancelled();
                    if began.elapsed() + wait > if is_over { LEAST } else { lasts.max(LEAST) } {
                        tracing::error!(message = %delivery.id(), %error, "could not be settled; it is handed out again");
                        return Err(error);
                    }
                    tracing::warn!(message = %delivery.id(), %error, "could not be settled; trying again");
                    tokio::select! {
                        () = sleep(wait) => {}
                        _ = of_loop.cancelled(), if !is_over => {}
                    }
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                Err(error) => {
                    tracing::error!(message = %delivery.id(), %error, "refused for good");
                    let End::Ack { reply: Some(_) } = end else { return Err(error) };
                    // Another try would do the same work and end in the same way.
                    end = End::Dead { why: format!("the reply could not be sent: {error}") };
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
