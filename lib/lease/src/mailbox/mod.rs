//! A mailbox: a queue whose messages are handed out under leases.
//!
//! Messages are bytes with a few headers. A message is received under a lease, which is extended while work on it goes
//! on, and is settled in the end: acknowledged, to be tried again, given back, or dead. Whoever lets a lease run out
//! loses the message to the next who asks.
//!
//! Brokers differ, and no trait makes them equal. What differs is in [`Promises`], which each mailbox declares, and the
//! conformance suite holds it to them: a program can ask, and a reader can look it up, what an expired acknowledgement
//! does, or for how long a message can be held.

mod erased;
mod error;
mod memory;
mod message;
mod promises;

pub(crate) use erased::ErasedMailbox;
pub use error::{ChangeCertainty, MailboxError};
pub use memory::{Memory, MemoryBuilder};
pub use message::{DeadLetter, End, Message, MessageId, Receipt, Received, Reply, Want};
pub use promises::{Counting, Depth, DepthCount, Groups, LeaseLength, OneStep, Promises, RepeatedEnd, StaleAck};

use core::future::Future;
use core::time::Duration;

/// A queue with leases. Implementers write `async fn`.
///
/// A batch is answered in its order, one answer for each. A call whose future is dropped may or may not have happened.
pub trait Mailbox: Send + Sync + 'static {
    /// The mailbox's answers to the questions in which mailboxes differ.
    fn promises(&self) -> Promises;

    /// An identity that no other mailbox has, in this process or in later ones: an id of a message is unique within
    /// its mailbox only. Empty where nothing does.
    fn identity(&self) -> String {
        String::new()
    }

    /// Stores messages. Durable, as far as the mailbox is, when it answers.
    fn send(&self, batch: Vec<Message>) -> impl Future<Output = Vec<Result<MessageId, MailboxError>>> + Send;

    /// Hands out at most `want.max` messages. Waits for the first one for at most `want.wait`; none is no error.
    /// A message that was handed out `max_deliveries` times goes to the dead letters instead.
    fn receive(&self, want: Want) -> impl Future<Output = Result<Vec<Received>, MailboxError>> + Send;

    /// Makes leases last *at least* so long from now on; never shortens one. Answers with what was granted, counted from
    /// when the call was made.
    fn extend(
        &self,
        batch: Vec<(Receipt, Duration)>,
    ) -> impl Future<Output = Vec<Result<Duration, MailboxError>>> + Send;

    /// Ends leases.
    fn settle(&self, batch: Vec<(Receipt, End)>) -> impl Future<Output = Vec<Result<(), MailboxError>>> + Send;

    /// The number of messages.
    fn depth(&self) -> impl Future<Output = Result<Depth, MailboxError>> + Send;

    /// The oldest dead letters, at most `max`, left where they are.
    fn dead_letters(&self, max: usize) -> impl Future<Output = Result<Vec<DeadLetter>, MailboxError>> + Send;

    /// Moves at most `max` of the oldest dead letters back, each as if it had never been handed out. Answers with how
    /// many were moved.
    fn replay(&self, max: usize) -> impl Future<Output = Result<usize, MailboxError>> + Send;
}
