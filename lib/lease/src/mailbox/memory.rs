//! A mailbox in this process: core's machine behind a lock.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use onward_core::mailbox::{
    Handout, HandoutFence, MailboxMachine as Machine, MailboxRule, MessageEnd, MessageNumber, Standing,
};
use onward_core::time::Awake;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{
    Counting, DeadLetter, Depth, DepthCount, End, Groups, LeaseLength, Mailbox, MailboxError, Message, MessageId,
    OneStep, Promises, Receipt, Received, RepeatedEnd, Reply, StaleAck, Want,
};

const MAX_BYTES: usize = 16 << 20;
/// Most mailboxes that one set has.
const MAX_MAILBOXES: usize = 1_024;

/// A mailbox in this process, for tests and for work that need not outlive it. Clones are the same mailbox.
///
/// Its time is tokio's, so a test that pauses tokio's clock decides when leases end. Mailboxes made by
/// [`Memory::sibling`] form a set: each can be the other's `reply_to`, by name, and a reply is sent in the same step as
/// the acknowledgement.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<MemoryState>,
    name: Arc<str>,
}

#[derive(Debug)]
struct MemoryState {
    /// Identity of the set: ids of messages begin anew in each.
    identity: String,
    began: Instant,
    rule: MailboxRule,
    mailboxes: Mutex<BTreeMap<Arc<str>, Machine<Message>>>,
    changed: Notify,
}

/// Made by [`Memory::builder`].
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryBuilder {
    rule: MailboxRule,
}

impl MemoryBuilder {
    /// A message that was handed out this often is dead. Default 5.
    pub fn max_deliveries(mut self, max: u32) -> Self {
        self.rule.max_deliveries = max;
        self
    }

    /// The longest time from a hand-out to the end of its lease. Default: without end.
    pub fn longest_hold(mut self, longest: Duration) -> Self {
        self.rule.longest_hold = Some(longest);
        self
    }

    /// Most messages, dead letters included. Default one million.
    pub fn max_messages(mut self, max: usize) -> Self {
        self.rule.max_messages = max;
        self
    }

    pub fn build(self) -> Memory {
        let shared = MemoryState {
            identity: new_identity(),
            began: Instant::now(),
            rule: self.rule,
            mailboxes: Mutex::default(),
            changed: Notify::new(),
        };
        Memory { shared: Arc::new(shared), name: "main".into() }
    }
}

/// Another one for every set of mailboxes; none where there is no randomness.
fn new_identity() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_or_else(|_| String::new(), |()| format!("memory:{:032x}", u128::from_ne_bytes(bytes)))
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    pub fn new() -> Self {
        Self::builder().build()
    }

    pub fn builder() -> MemoryBuilder {
        MemoryBuilder::default()
    }

    /// The mailbox of this name in the same set, under the same rule.
    pub fn sibling(&self, name: impl Into<Arc<str>>) -> Self {
        Self { shared: self.shared.clone(), name: name.into() }
    }

    /// The address that messages name as their `reply_to` to be answered here.
    pub fn address(&self) -> &str {
        &self.name
    }

    fn now(&self) -> Awake {
        Awake::from_ms(u64::try_from(self.shared.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn with<T>(&self, what: impl FnOnce(&mut Machine<Message>, Awake) -> T) -> T {
        let now = self.now();
        let mut all = self.shared.mailboxes.lock().expect("nothing panics while it is held");
        let machine = all.entry(self.name.clone()).or_insert_with(|| Machine::new(self.shared.rule));
        what(machine, now)
    }

    fn settle_one(&self, receipt: &Receipt, end: End) -> Result<(), MailboxError> {
        let proof = proof_of(receipt)?;
        let (end, reply) = match end {
            End::Ack { reply } => (MessageEnd::Ack, reply),
            End::Retry { after } => (MessageEnd::Retry { after }, None),
            End::Release { after } => (MessageEnd::Release { after }, None),
            End::Dead { why } => (MessageEnd::Dead { why }, None),
        };
        let now = self.now();
        let mut all = self.shared.mailboxes.lock().expect("nothing panics while it is held");
        let machine = all.get_mut(&self.name).ok_or(MailboxError::Stale)?;
        match machine.standing(proof, &end) {
            Standing::Newest => {}
            Standing::Settled => return Ok(()),
            Standing::Stale => return Err(MailboxError::Stale),
        }
        if let Some(Reply { to, message }) = reply {
            message.check(MAX_BYTES)?;
            let to: Arc<str> = to.into();
            if all.len() >= MAX_MAILBOXES && !all.contains_key(&to) {
                let remedy = "answer to fewer addresses, or drop the set and make another".into();
                return Err(MailboxError::Refused { why: format!("the set has {MAX_MAILBOXES} mailboxes"), remedy });
            }
            let target = all.entry(to).or_insert_with(|| Machine::new(self.shared.rule));
            let group = message.group.as_deref().map(Arc::from);
            target.send(message, group).map_err(|full| MailboxError::Full { max: full.max })?;
        }
        let machine = all.get_mut(&self.name).expect("it was there above");
        machine.settle(now, proof, end).expect("its standing was looked at");
        Ok(())
    }
}

impl Mailbox for Memory {
    fn promises(&self) -> Promises {
        Promises {
            stale_ack: StaleAck::Refused,
            repeated_ack: RepeatedEnd::Accepted,
            reply_with_ack: OneStep::Yes,
            dead_letter: OneStep::Yes,
            lease: LeaseLength::Asked,
            longest_hold: self.shared.rule.longest_hold,
            counting: Counting::Attempts,
            groups: Groups::Ordered,
            depth: DepthCount::Exact,
            max_bytes: MAX_BYTES,
        }
    }

    fn identity(&self) -> String {
        if self.shared.identity.is_empty() { String::new() } else { format!("{}/{}", self.shared.identity, self.name) }
    }

    async fn send(&self, batch: Vec<Message>) -> Vec<Result<MessageId, MailboxError>> {
        let store = |message: Message| {
            message.check(MAX_BYTES)?;
            let group = message.group.as_deref().map(Arc::from);
            let sent = self.with(|machine, _| machine.send(message, group));
            sent.map(id_of).map_err(|full| MailboxError::Full { max: full.max })
        };
        let answers = batch.into_iter().map(store).collect();
        self.shared.changed.notify_waiters();
        answers
    }

    async fn receive(&self, want: Want) -> Result<Vec<Received>, MailboxError> {
        let asked = Instant::now();
        let until = asked + want.wait;
        loop {
            // Listens before it looks, so that nothing is missed between.
            let mut changed = core::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            let (handed, next) =
                self.with(|machine, now| (machine.receive(now, want.max, want.lease), machine.next_ready()));
            if !handed.is_empty() || Instant::now() >= until {
                return Ok(handed.into_iter().map(|one| received(one, asked.elapsed())).collect());
            }
            let next = next.map(|at| self.shared.began + at.since(Awake::ZERO));
            tokio::select! {
                () = changed => {}
                () = sleep_until(next.map_or(until, |next| next.min(until))) => {}
            }
        }
    }

    async fn extend(&self, batch: Vec<(Receipt, Duration)>) -> Vec<Result<Duration, MailboxError>> {
        let extend = |(receipt, by): (Receipt, Duration)| {
            let proof = proof_of(&receipt)?;
            self.with(|machine, now| machine.extend(now, proof, by)).map_err(|_| MailboxError::Stale)
        };
        batch.into_iter().map(extend).collect()
    }

    async fn settle(&self, batch: Vec<(Receipt, End)>) -> Vec<Result<(), MailboxError>> {
        let answers = batch.into_iter().map(|(receipt, end)| self.settle_one(&receipt, end)).collect();
        self.shared.changed.notify_waiters();
        answers
    }

    async fn depth(&self) -> Result<Depth, MailboxError> {
        let depth = self.with(|machine, now| machine.depth(now));
        Ok(Depth { waiting: depth.waiting as u64, held: depth.held as u64, dead: depth.dead as u64 })
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, MailboxError> {
        Ok(self.with(|machine, _| {
            let letters = machine.dead().take(max).map(|letter| DeadLetter {
                id: id_of(letter.number),
                message: letter.content.clone(),
                why: letter.why.clone(),
                deliveries: letter.deliveries,
            });
            letters.collect()
        }))
    }

    async fn replay(&self, max: usize) -> Result<usize, MailboxError> {
        let count = self.with(|machine, _| machine.replay(max));
        self.shared.changed.notify_waiters();
        Ok(count)
    }
}

fn id_of(number: MessageNumber) -> MessageId {
    MessageId::new(number.0.to_string())
}

fn received(handed: Handout<Message>, waited: Duration) -> Received {
    let id = id_of(handed.proof.message);
    let receipt = Receipt::new(id.clone(), handed.proof.fence.to_string());
    let (fence, delivery) = (handed.proof.fence, handed.delivery);
    Received { id, receipt, message: handed.content, delivery, fence, lease: waited + handed.lease }
}

/// A receipt that we did not make is of no message.
fn proof_of(receipt: &Receipt) -> Result<HandoutFence, MailboxError> {
    let number = |text: &str| text.parse().map_err(|_| MailboxError::Stale);
    let message = MessageNumber(number(receipt.message().as_str())?);
    Ok(HandoutFence { message, fence: number(receipt.token())? })
}
