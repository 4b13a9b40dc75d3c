//! The memory mailbox, and that the suite sees a mailbox that lies.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::{Setup, Subject, check, check_against_model, check_documented};
use crate::mailbox::{
    Counting, DeadLetter, Depth, DepthCount, End, Groups, LeaseLength, Mailbox, MailboxError, Memory, Message,
    MessageId, OneStep, Promises, Receipt, Received, RepeatedEnd, Reply, StaleAck, Want,
};

const DOCUMENT: &str = include_str!("../../../../docs/mailboxes.md");

struct InMemory;

impl Subject for InMemory {
    type Mailbox = Memory;

    fn name(&self) -> &'static str {
        "memory"
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn open(&self, setup: Setup) -> Memory {
        Memory::builder().max_deliveries(setup.max_deliveries).build()
    }

    async fn open_elsewhere(&self, mailbox: &Memory) -> Memory {
        mailbox.clone()
    }

    async fn open_replies(&self, mailbox: &Memory) -> (String, Memory) {
        let replies = mailbox.sibling("replies");
        (replies.address().to_owned(), replies)
    }
}

#[tokio::test(start_paused = true)]
async fn memory_does_what_it_declares() {
    let report = check(&InMemory).await;
    report.print();
    check_documented(DOCUMENT, &report);
}

#[tokio::test(start_paused = true)]
async fn memory_is_as_the_model() {
    check_against_model(&InMemory, 60, 60).await;
}

/// A mailbox that does not do as it declares.
#[derive(Clone, Copy)]
struct Liar {
    says: fn(&mut Promises),
    /// Extends by this instead of what was asked.
    extends_by: Option<Duration>,
    counts: bool,
    late: Late,
    /// Tells a depth when it is asked for the next time.
    lags: bool,
}

/// The answer of a lying mailbox to an end that comes late.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Late {
    Refused,
    /// An acknowledgement ends the message under its new holder.
    Acks,
    /// The end is refused, and its reply is sent all the same.
    LeavesReply,
    /// The end is refused, and so many dead letters are left behind.
    LeavesLetters(u32),
    /// The end is refused, and the message is gone all the same, and no letter is there.
    Loses,
}

#[derive(Clone)]
struct Lying {
    inner: Memory,
    liar: Liar,
    newest: Arc<Mutex<HashMap<MessageId, Received>>>,
    depth: Arc<Mutex<Depth>>,
}

impl Lying {
    fn on(inner: Memory, liar: Liar) -> Self {
        Self { inner, liar, newest: Arc::default(), depth: Arc::default() }
    }

    async fn settle_late(&self, receipt: &Receipt, end: End) -> Result<(), MailboxError> {
        let newest = self.newest.lock().unwrap()[receipt.message()].clone();
        match (self.liar.late, end) {
            (Late::Acks, end @ End::Ack { .. }) => {
                return self.inner.settle(vec![(newest.receipt, end)]).await.remove(0);
            }
            (Late::LeavesReply, End::Ack { reply: Some(Reply { to, message }) }) => {
                self.inner.sibling(to).send(vec![message]).await.remove(0)?;
            }
            (Late::LeavesLetters(count), end @ End::Dead { .. }) => {
                for _ in 0..count {
                    self.inner.send(vec![newest.message.clone()]).await.remove(0)?;
                    let want = Want { max: 1, lease: Duration::from_secs(60), wait: Duration::ZERO };
                    let copy = self.inner.receive(want).await?.remove(0);
                    self.inner.settle(vec![(copy.receipt, end.clone())]).await.remove(0)?;
                }
            }
            (Late::Loses, End::Dead { .. }) => {
                let out_of_sight = End::Retry { after: Duration::from_secs(1 << 20) };
                self.inner.settle(vec![(newest.receipt, out_of_sight)]).await.remove(0)?;
            }
            _ => {}
        }
        Err(MailboxError::Stale)
    }
}

impl Subject for Liar {
    type Mailbox = Lying;

    fn name(&self) -> &'static str {
        "memory"
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn open(&self, setup: Setup) -> Lying {
        Lying::on(InMemory.open(setup).await, *self)
    }

    async fn open_elsewhere(&self, mailbox: &Lying) -> Lying {
        mailbox.clone()
    }

    async fn open_replies(&self, mailbox: &Lying) -> (String, Lying) {
        ("replies".into(), Lying::on(mailbox.inner.sibling("replies"), *self))
    }
}

impl Mailbox for Lying {
    fn promises(&self) -> Promises {
        let mut promises = self.inner.promises();
        (self.liar.says)(&mut promises);
        promises
    }

    async fn send(&self, batch: Vec<Message>) -> Vec<Result<MessageId, MailboxError>> {
        self.inner.send(batch).await
    }

    async fn receive(&self, want: Want) -> Result<Vec<Received>, MailboxError> {
        let mut received = self.inner.receive(want).await?;
        received.iter_mut().for_each(|one| one.delivery = if self.liar.counts { one.delivery } else { 1 });
        self.newest.lock().unwrap().extend(received.iter().map(|one| (one.id.clone(), one.clone())));
        Ok(received)
    }

    async fn extend(&self, batch: Vec<(Receipt, Duration)>) -> Vec<Result<Duration, MailboxError>> {
        let answers = self.inner.extend(batch).await;
        answers.into_iter().map(|answer| answer.map(|granted| self.liar.extends_by.unwrap_or(granted))).collect()
    }

    async fn settle(&self, batch: Vec<(Receipt, End)>) -> Vec<Result<(), MailboxError>> {
        let mut answers = Vec::new();
        for (receipt, end) in batch {
            let answer = self.inner.settle(vec![(receipt.clone(), end.clone())]).await.remove(0);
            answers.push(match answer {
                Err(MailboxError::Stale) => self.settle_late(&receipt, end).await,
                answer => answer,
            });
        }
        answers
    }

    async fn depth(&self) -> Result<Depth, MailboxError> {
        let depth = self.inner.depth().await?;
        let before = core::mem::replace(&mut *self.depth.lock().unwrap(), depth);
        Ok(if self.liar.lags { before } else { depth })
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, MailboxError> {
        self.inner.dead_letters(max).await
    }

    async fn replay(&self, max: usize) -> Result<usize, MailboxError> {
        self.inner.replay(max).await
    }
}

fn copies_first(promises: &mut Promises) {
    // A late end may be taken: what is refused may leave nothing.
    (promises.stale_ack, promises.dead_letter) = (StaleAck::MayBeTaken, OneStep::CopyFirst);
}

#[tokio::test(start_paused = true)]
async fn a_mailbox_that_does_not_do_as_it_declares_is_seen() {
    let honest = Liar { says: |_| {}, extends_by: None, counts: true, late: Late::Refused, lags: false };
    check(&honest).await;
    // lie, what the check says that sees it
    let lies: [(&str, &str, Liar); 15] = [
        ("stale acks", "a stale ack was taken", Liar { late: Late::Acks, ..honest }),
        ("replies", "late", Liar { late: Late::LeavesReply, ..honest }),
        ("late dead letters", "what was refused left a dead letter", Liar { late: Late::LeavesLetters(1), ..honest }),
        (
            "dead letters",
            "one step, and the answer was Err(Stale)",
            Liar { says: |it| it.stale_ack = StaleAck::MayBeTaken, late: Late::LeavesLetters(1), ..honest },
        ),
        ("copies", "2 letters of one message", Liar { says: copies_first, late: Late::LeavesLetters(2), ..honest }),
        ("copies", "0 of 1 came", Liar { says: copies_first, late: Late::Loses, ..honest }),
        ("depth", "the depth is", Liar { lags: true, ..honest }),
        ("repeated", "Err(Stale)", Liar { says: |it| it.repeated_ack = RepeatedEnd::Stale, ..honest }),
        ("counting", "declared: Deliveries", Liar { says: |it| it.counting = Counting::Deliveries, ..honest }),
        ("groups", "a group was taken", Liar { says: |it| it.groups = Groups::Refused, ..honest }),
        (
            "lease",
            "the lease is as long as was declared",
            Liar { says: |it| it.lease = LeaseLength::Granted(Duration::from_secs(7)), ..honest },
        ),
        ("extensions", "granted", Liar { says: |it| it.lease = LeaseLength::Repeated, ..honest }),
        ("hold", "of 60s declared", Liar { says: |it| it.longest_hold = Some(Duration::from_secs(60)), ..honest }),
        ("bytes", "TooLarge", Liar { says: |it| it.max_bytes = 99, ..honest }),
        ("extension", "an extension left 1ms", Liar { extends_by: Some(Duration::from_millis(1)), ..honest }),
    ];
    for (lie, says, liar) in lies {
        let seen = tokio::spawn(async move { check(&liar).await }).await;
        let why = seen.expect_err(&format!("a lie about its {lie} passed")).into_panic();
        let why = why.downcast_ref::<String>().map(String::as_str).or_else(|| why.downcast_ref::<&str>().copied());
        let why = why.expect("a text");
        assert!(why.contains(says), "{lie}: {why}");
    }
    let uncounted = Liar { counts: false, ..honest };
    for seen in [
        tokio::spawn(async move { check(&uncounted).await }).await.map(drop),
        tokio::spawn(async move { check_against_model(&uncounted, 9, 60).await }).await,
    ] {
        assert!(seen.is_err(), "deliveries that are not counted passed");
    }
}

/// The same mailboxes, once they declare it.
#[tokio::test(start_paused = true)]
async fn what_is_declared_is_no_lie() {
    let honest = Liar { says: |_| {}, extends_by: None, counts: true, late: Late::Refused, lags: false };
    check(&Liar { says: |it| it.depth = DepthCount::Approximate, lags: true, ..honest }).await;
    check(&Liar { says: |it| it.stale_ack = StaleAck::MayBeTaken, late: Late::Acks, ..honest }).await;
    check(&Liar { says: copies_first, late: Late::LeavesLetters(1), ..honest }).await;
}

#[test]
fn a_table_that_says_something_else_is_seen() {
    let report = super::PromiseReport { name: "memory", promises: Memory::new().promises() };
    check_documented(DOCUMENT, &report);
    let wrong = DOCUMENT.replacen("| refused |", "| taken |", 1);
    assert!(std::panic::catch_unwind(|| check_documented(&wrong, &report)).is_err());
    let lines: Vec<&str> = DOCUMENT.lines().filter(|line| !line.starts_with("| depth |")).collect();
    let lacking = lines.join("\n");
    assert!(std::panic::catch_unwind(|| check_documented(&lacking, &report)).is_err());
}
