//! A mailbox as a machine that is told the time: a queue whose messages are handed out under leases.
//!
//! ```text
//!   send ──► waiting ──receive──► held ──ack──► gone
//!               ▲                  │ ├──retry, release, lease over──► waiting
//!               │                  │ └──dead──► dead letters
//!               └──── replay ◄─────┼────────────────┘
//!                                  └─ a message that was handed out too often dies at its next receive
//! ```
//!
//! **Authority.** A hand-out raises the message's *fence*, and extend and settle name the fence that they act under.
//! A lower one is stale and refused: its holder lost the lease, and somebody else may be at work. A holder whose lease
//! is over while nobody else has the message may still settle it, since no work is done twice by that, but not extend it.
//!
//! **Counting.** A delivery is counted when it is handed out, before the handler runs, so that a message that kills its
//! process cannot loop for ever. A release gives the count back.
//!
//! **Groups.** Messages of a group are handed out one at a time and in the order in which they were sent. The first of a
//! group keeps the others waiting until it is settled for good, also while it waits for its retry.

mod stock;

pub use stock::DeadMessage;

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lease;
use crate::time::Awake;
use stock::{MessagePlace, Stock};

/// The number of settled receipts that are remembered, so that repeating an accepted end answers the same again.
const REMEMBERED_ENDS: usize = 4_096;

/// The settings of a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MailboxRule {
    /// A message that was handed out this often goes to the dead letters instead of being handed out once more.
    pub max_deliveries: u32,
    /// A lease lasts no longer than this after its hand-out, however often it is extended.
    pub longest_hold: Option<Duration>,
    /// Most messages at a time, dead letters included.
    pub max_messages: usize,
}

impl Default for MailboxRule {
    fn default() -> Self {
        Self { max_deliveries: 5, longest_hold: None, max_messages: 1_000_000 }
    }
}

/// A message's number in its mailbox.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageNumber(pub u64);

/// Proof of one hand-out: the message, and the fence that its hand-out raised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HandoutFence {
    pub message: MessageNumber,
    pub fence: u64,
}

/// A hand-out of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handout<M> {
    pub proof: HandoutFence,
    /// Counted hand-outs, this one included.
    pub delivery: u32,
    pub lease: Duration,
    pub content: M,
}

/// The end of a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MessageEnd {
    Ack,
    /// Another try after this long. Counts as a delivery.
    Retry {
        after: Duration,
    },
    /// Given back undone. Does not count.
    Release {
        after: Duration,
    },
    Dead {
        why: String,
    },
}

/// The worth of a proof of a hand-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The newest hand-out of its message, and not settled.
    Newest,
    /// The hand-out was settled, in this very way.
    Settled,
    Stale,
}

/// The fence is not the message's newest, or the message is gone. Nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the receipt is stale: the lease ended, and the message was handed out again or is gone")]
pub struct Stale;

/// Nothing was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the mailbox holds {max} messages, which is its limit")]
pub struct Full {
    pub max: usize,
}

/// Messages by where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MailboxDepth {
    /// Messages to be handed out now or later: those that wait for a retry, or behind another one of their group,
    /// included.
    pub waiting: usize,
    pub held: usize,
    pub dead: usize,
}

#[derive(Clone, Debug)]
pub struct MailboxMachine<M> {
    rule: MailboxRule,
    stock: Stock<M>,
    /// Raised by every hand-out of any message.
    fence: u64,
    /// Ends of the newest settled hand-outs, by fence.
    ended: BTreeMap<u64, (MessageNumber, MessageEnd)>,
}

impl<M: Clone> MailboxMachine<M> {
    pub fn new(rule: MailboxRule) -> Self {
        Self { rule, stock: Stock::default(), fence: 0, ended: BTreeMap::new() }
    }

    pub fn send(&mut self, content: M, group: Option<Arc<str>>) -> Result<MessageNumber, Full> {
        self.has_room()?;
        Ok(self.stock.add(content, group))
    }

    /// Whether one more message can be sent.
    pub fn has_room(&self) -> Result<(), Full> {
        let max = self.rule.max_messages;
        if self.stock.len() < max { Ok(()) } else { Err(Full { max }) }
    }

    /// Hands out at most `max` messages, the oldest first. A message that was handed out too often becomes a dead letter.
    pub fn receive(&mut self, now: Awake, max: usize, lease: Duration) -> Vec<Handout<M>> {
        self.stock.advance(now);
        let lease = self.rule.longest_hold.map_or(lease, |longest| lease.min(longest));
        let mut handed = Vec::new();
        while handed.len() < max {
            let Some(number) = self.stock.first_ready() else { break };
            let entry = self.stock.get(number).expect("what is ready is in stock");
            if entry.deliveries >= self.rule.max_deliveries {
                let why = format!("handed out {} times without success", entry.deliveries);
                self.stock.bury(number, why);
                continue;
            }
            self.fence += 1;
            let fence = self.fence;
            let entry = self.stock.hand_out(number, fence, now, lease);
            let proof = HandoutFence { message: number, fence };
            handed.push(Handout { proof, delivery: entry.deliveries, lease, content: entry.content.clone() });
        }
        handed
    }

    /// Makes the lease last *at least* so long from now on, up to the longest hold. Returns what is left of it.
    pub fn extend(&mut self, now: Awake, proof: HandoutFence, extension: Duration) -> Result<Duration, Stale> {
        self.stock.advance(now);
        let longest_hold = self.rule.longest_hold;
        let entry = self.stock.get(proof.message).ok_or(Stale)?;
        let MessagePlace::Held { since, until } = entry.place else { return Err(Stale) };
        if entry.fence != proof.fence {
            return Err(Stale);
        }
        let asked = lease::extend(until, now, extension);
        let end = longest_hold.map_or(asked, |longest| asked.min((since + longest).max(until)));
        self.stock.put(proof.message, MessagePlace::Held { since, until: end });
        Ok(end.since(now))
    }

    /// The mailbox's judgement of this end.
    pub fn standing(&self, proof: HandoutFence, end: &MessageEnd) -> Standing {
        if self.ended.get(&proof.fence).is_some_and(|(number, before)| *number == proof.message && before == end) {
            return Standing::Settled;
        }
        // A message that was settled has fence 0 until its next hand-out.
        match self.stock.get(proof.message) {
            Some(entry) if entry.fence == proof.fence && proof.fence != 0 => Standing::Newest,
            _ => Standing::Stale,
        }
    }

    /// Ends the hold. Repeating an end that was accepted is accepted again.
    pub fn settle(&mut self, now: Awake, proof: HandoutFence, end: MessageEnd) -> Result<(), Stale> {
        match self.standing(proof, &end) {
            Standing::Settled => return Ok(()),
            Standing::Stale => return Err(Stale),
            Standing::Newest => {}
        }
        match &end {
            MessageEnd::Ack => self.stock.remove(proof.message),
            MessageEnd::Retry { after } => self.stock.give_back(proof.message, now + *after, false),
            MessageEnd::Release { after } => self.stock.give_back(proof.message, now + *after, true),
            MessageEnd::Dead { why } => self.stock.bury(proof.message, why.clone()),
        }
        self.ended.insert(proof.fence, (proof.message, end));
        if self.ended.len() > REMEMBERED_ENDS {
            self.ended.pop_first();
        }
        Ok(())
    }

    /// The oldest dead letters.
    pub fn dead(&self) -> impl Iterator<Item = &DeadMessage<M>> {
        self.stock.dead()
    }

    /// Puts at most `max` of the oldest dead letters back, each behind all messages, and as if it had never been handed
    /// out. Returns how many.
    pub fn replay(&mut self, max: usize) -> usize {
        self.stock.replay(max)
    }

    pub fn depth(&mut self, now: Awake) -> MailboxDepth {
        self.stock.advance(now);
        self.stock.depth()
    }

    /// The instant when a message may become ready with nothing else happening. A past instant means that one is ready
    /// now.
    pub fn next_ready(&self) -> Option<Awake> {
        self.stock.next_ready()
    }
}

#[cfg(test)]
mod tests;
