//! The suite that every mailbox is held to.
//!
//! [`check`] runs one suite on any mailbox, and [`check_against_model`] random calls against core's machine, which is the
//! model. Both believe nothing: where mailboxes differ, a mailbox declares in its [`Promises`] what it does, and the
//! suite makes it do so. What a broker cannot do is seen to be refused, never passed over.
//!
//! In the tests of a crate with a mailbox, which has this crate with the feature `conformance` among its development
//! dependencies:
//!
//! ```no_run
//! use onward_lease::conformance::{self, Setup, Subject};
//! use onward_lease::mailbox::Memory;
//! use std::time::Duration;
//!
//! struct InMemory;
//!
//! impl Subject for InMemory {
//!     type Mailbox = Memory;
//!     fn name(&self) -> &'static str { "memory" }
//!     fn short_lease(&self) -> Duration { Duration::from_secs(1) }
//!     async fn open(&self, setup: Setup) -> Memory {
//!         Memory::builder().max_deliveries(setup.max_deliveries).build()
//!     }
//!     async fn open_elsewhere(&self, mailbox: &Memory) -> Memory { mailbox.clone() }
//!     async fn open_replies(&self, mailbox: &Memory) -> (String, Memory) {
//!         ("replies".into(), mailbox.sibling("replies"))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let report = conformance::check(&InMemory).await;
//! report.print();
//! conformance::check_documented(include_str!("../../../../docs/mailboxes.md"), &report);
//! conformance::check_against_model(&InMemory, 20, 40).await;
//! # }
//! ```

mod ends;
mod leases;
mod model;
mod outage;
mod table;

pub use model::check_against_model;
pub use outage::{abort_by_message, check_abort, check_outage, run_test};
pub use table::{PromiseReport, check_documented};

use core::future::Future;
use core::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::mailbox::{End, Mailbox, MailboxError, Message, Promises, Receipt, Received, Want};

/// The time that something that must happen may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// A lease that ends in no check.
const LONG: Duration = Duration::from_secs(900);

/// A kind of mailbox, and how to make one for a check.
pub trait Subject: Sync {
    type Mailbox: Mailbox;

    /// The column of this mailbox in `docs/mailboxes.md`.
    fn name(&self) -> &'static str;

    /// The shortest lease that the mailbox keeps. Checks wait for it to end a few times.
    fn short_lease(&self) -> Duration;

    /// A mailbox that is empty, and that nobody else uses.
    fn open(&self, setup: Setup) -> impl Future<Output = Self::Mailbox> + Send;

    /// The same mailbox, as another process has it.
    fn open_elsewhere(&self, mailbox: &Self::Mailbox) -> impl Future<Output = Self::Mailbox> + Send;

    /// A second mailbox that messages of the first can be answered to, and its address.
    fn open_replies(&self, mailbox: &Self::Mailbox) -> impl Future<Output = (String, Self::Mailbox)> + Send;
}

/// Requirements of a check on the mailbox that it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    pub max_deliveries: u32,
    /// The length of leases, for a mailbox whose leases have one length.
    pub lease: Duration,
}

/// Runs the whole suite. Returns what was declared, once it was shown to be so.
///
/// # Panics
/// If a mailbox does not do what every mailbox does, or not what it declared.
pub async fn check<S: Subject>(subject: &S) -> PromiseReport {
    let promises = subject.open(Setup { max_deliveries: 5, lease: LONG }).await.promises();
    let suite = Suite { subject, promises: promises.clone() };
    suite.messages_come_as_they_were_sent().await;
    suite.receive_waits().await;
    suite.what_comes_late_is_as_young_as_any().await;
    suite.a_lease_ends_and_its_receipt_is_stale().await;
    suite.an_extension_is_at_least().await;
    suite.an_extension_lasts().await;
    suite.a_hold_has_an_end().await;
    suite.a_retry_comes_after_its_time().await;
    suite.a_release_is_counted_as_declared().await;
    suite.a_dead_letter_is_kept_and_replayed().await;
    suite.a_late_dead_letter_is_as_declared().await;
    suite.too_many_deliveries_are_the_last().await;
    suite.an_end_may_be_repeated().await;
    suite.a_reply_goes_with_its_ack().await;
    suite.groups_are_as_declared().await;
    suite.batches_are_answered_in_order().await;
    suite.what_is_too_large_is_refused().await;
    PromiseReport { name: subject.name(), promises }
}

struct Suite<'a, S> {
    subject: &'a S,
    promises: Promises,
}

impl<S: Subject> Suite<'_, S> {
    /// A mailbox of which no lease ends during a check.
    async fn calm(&self) -> S::Mailbox {
        self.subject.open(Setup { max_deliveries: 5, lease: LONG }).await
    }

    /// A mailbox whose leases end soon, where they have one length.
    async fn hasty(&self) -> S::Mailbox {
        self.subject.open(Setup { max_deliveries: 5, lease: self.subject.short_lease() }).await
    }

    async fn messages_come_as_they_were_sent(&self) {
        let mailbox = self.calm().await;
        let bodies: [&[u8]; 4] = [b"text", b"", b"\x00\xff\xfe not UTF-8", "\u{1F600} \u{7f} \u{fffe}".as_bytes()];
        let batch = bodies.map(|body| Message::new(Bytes::copy_from_slice(body)).header("trace-id", "a b\u{fc}"));
        let sent = mailbox.send(batch.clone().into()).await;
        let mut ids: Vec<_> = sent.into_iter().map(|id| id.expect("it is sent")).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), batch.len(), "ids are of one message each");
        let received = take(&mailbox, batch.len(), LONG).await;
        for message in &batch {
            let same = received.iter().filter(|one| one.message == *message).count();
            assert_eq!(same, 1, "{message:?} came {same} times in {received:?}");
        }
        assert!(received.iter().all(|one| one.delivery == 1 && ids.contains(&one.id)), "{received:?}");
        assert!(received.iter().all(|one| one.lease > Duration::ZERO), "{received:?}");
        assert_eq!(take_now(&mailbox).await, [], "what is held is not handed out");
        self.depth_is(&mailbox, 0, 4, 0).await;
        for one in received {
            settle(&mailbox, &one.receipt, End::ACK).await.expect("a holder acknowledges");
        }
        self.depth_is(&mailbox, 0, 0, 0).await;
    }

    async fn receive_waits(&self) {
        let mailbox = self.calm().await;
        let wait = self.subject.short_lease();
        let asked = Instant::now();
        let want = Want { max: 1, lease: LONG, wait };
        assert_eq!(mailbox.receive(want).await, Ok(Vec::new()), "an empty mailbox gives nothing");
        assert!(asked.elapsed() >= wait, "it answered after {:?} and not {wait:?}", asked.elapsed());
        let waiting = take(&mailbox, 1, LONG);
        let sending = send(&mailbox, "later");
        let (received, ()) = tokio::join!(waiting, sending);
        assert_eq!(received[0].message.body, "later");
    }

    /// A lease counts from when the mailbox was asked, and is not over before its message came.
    async fn what_comes_late_is_as_young_as_any(&self) {
        let (mailbox, lease) = (self.hasty().await, self.subject.short_lease());
        let late = 3 * lease;
        let sending = async {
            tokio::time::sleep(late).await;
            send(&mailbox, "late").await;
        };
        let (received, ()) = tokio::join!(mailbox.receive(Want { max: 1, lease, wait: PATIENCE }), sending);
        let received = received.expect("an answer").remove(0);
        assert!(received.lease >= late, "came after {late:?}, under a lease of {:?} from before", received.lease);
    }

    /// The mailbox has so many messages, at once if it counts exactly, else before long.
    async fn depth_is(&self, mailbox: &S::Mailbox, waiting: u64, held: u64, dead: u64) {
        use crate::mailbox::{Depth, DepthCount};
        let expected = Depth { waiting, held, dead };
        let until = Instant::now() + PATIENCE;
        loop {
            let depth = mailbox.depth().await.expect("a depth");
            if depth == expected {
                return;
            }
            let is_final = self.promises.depth == DepthCount::Exact || Instant::now() >= until;
            assert!(!is_final, "the depth is {depth:?} and not {expected:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn send(mailbox: &impl Mailbox, body: &'static str) {
    for sent in mailbox.send(vec![Message::new(body)]).await {
        sent.expect("it is sent");
    }
}

/// Receives so many, or panics.
async fn take(mailbox: &impl Mailbox, count: usize, lease: Duration) -> Vec<Received> {
    let until = Instant::now() + PATIENCE;
    let mut received = Vec::new();
    while received.len() < count {
        assert!(Instant::now() < until, "{} of {count} came: {received:?}", received.len());
        let want = Want { max: count - received.len(), lease, wait: Duration::from_secs(1) };
        received.extend(mailbox.receive(want).await.expect("an answer"));
    }
    assert_eq!(received.len(), count, "more than were asked for: {received:?}");
    received
}

async fn take_one(mailbox: &impl Mailbox, lease: Duration) -> Received {
    take(mailbox, 1, lease).await.remove(0)
}

/// Receives all messages that can be had at this moment.
async fn take_now(mailbox: &impl Mailbox) -> Vec<Received> {
    mailbox.receive(Want { max: 10, lease: LONG, wait: Duration::ZERO }).await.expect("an answer")
}

async fn settle(mailbox: &impl Mailbox, receipt: &Receipt, end: End) -> Result<(), MailboxError> {
    let mut answers = mailbox.settle(vec![(receipt.clone(), end)]).await;
    assert_eq!(answers.len(), 1, "one answer for one");
    answers.remove(0)
}

async fn extend(mailbox: &impl Mailbox, receipt: &Receipt, by: Duration) -> Result<Duration, MailboxError> {
    let mut answers = mailbox.extend(vec![(receipt.clone(), by)]).await;
    assert_eq!(answers.len(), 1, "one answer for one");
    answers.remove(0)
}

#[cfg(test)]
mod tests;
