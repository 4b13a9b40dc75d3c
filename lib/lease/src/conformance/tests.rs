//! The memory mailbox, and that the suite sees a mailbox that lies.

use core::time::Duration;

use super::{Setup, Subject, check, check_against_model, check_documented};
use crate::mailbox::{
    Counting, DeadLetter, Depth, End, Groups, LeaseLength, Mailbox, MailboxError, Memory, Message, MessageId, Promises,
    Receipt, Received, Repeated, Want,
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
}

struct Lying {
    inner: Memory,
    liar: Liar,
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
        Lying { inner: InMemory.open(setup).await, liar: *self }
    }

    async fn open_elsewhere(&self, mailbox: &Lying) -> Lying {
        Lying { inner: mailbox.inner.clone(), liar: *self }
    }

    async fn open_replies(&self, mailbox: &Lying) -> (String, Lying) {
        ("replies".into(), Lying { inner: mailbox.inner.sibling("replies"), liar: *self })
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
        Ok(received)
    }

    async fn extend(&self, batch: Vec<(Receipt, Duration)>) -> Vec<Result<Duration, MailboxError>> {
        let answers = self.inner.extend(batch).await;
        answers.into_iter().map(|answer| answer.map(|granted| self.liar.extends_by.unwrap_or(granted))).collect()
    }

    async fn settle(&self, batch: Vec<(Receipt, End)>) -> Vec<Result<(), MailboxError>> {
        self.inner.settle(batch).await
    }

    async fn depth(&self) -> Result<Depth, MailboxError> {
        self.inner.depth().await
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, MailboxError> {
        self.inner.dead_letters(max).await
    }

    async fn replay(&self, max: usize) -> Result<usize, MailboxError> {
        self.inner.replay(max).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_mailbox_that_does_not_do_as_it_declares_is_seen() {
    let honest = Liar { says: |_| {}, extends_by: None, counts: true };
    check(&honest).await;
    let lies: [(&str, Liar); 9] = [
        ("repeated", Liar { says: |it| it.repeated_ack = Repeated::Stale, ..honest }),
        ("counting", Liar { says: |it| it.counting = Counting::Deliveries, ..honest }),
        ("groups", Liar { says: |it| it.groups = Groups::Refused, ..honest }),
        ("lease", Liar { says: |it| it.lease = LeaseLength::Granted(Duration::from_secs(7)), ..honest }),
        ("extensions", Liar { says: |it| it.lease = LeaseLength::Repeated, ..honest }),
        ("hold", Liar { says: |it| it.longest_hold = Some(Duration::from_secs(60)), ..honest }),
        ("bytes", Liar { says: |it| it.max_bytes = 99, ..honest }),
        ("extension", Liar { extends_by: Some(Duration::from_millis(1)), ..honest }),
        ("deliveries", Liar { counts: false, ..honest }),
    ];
    for (lie, liar) in lies {
        let seen = tokio::spawn(async move { check(&liar).await }).await;
        assert!(seen.is_err(), "a lie about its {lie} passed");
    }
    let seen = tokio::spawn(async move { check_against_model(&Liar { counts: false, ..honest }, 9, 60).await }).await;
    assert!(seen.is_err(), "the model does not see deliveries that are not counted");
}

#[test]
fn a_table_that_says_something_else_is_seen() {
    let report = super::Report { name: "memory", promises: Memory::new().promises() };
    check_documented(DOCUMENT, &report);
    let wrong = DOCUMENT.replacen("| refused |", "| taken |", 1);
    assert!(std::panic::catch_unwind(|| check_documented(&wrong, &report)).is_err());
    let lines: Vec<&str> = DOCUMENT.lines().filter(|line| !line.starts_with("| depth |")).collect();
    let lacking = lines.join("\n");
    assert!(std::panic::catch_unwind(|| check_documented(&lacking, &report)).is_err());
}
