//! The messages of a mailbox and the indexes over them: who is ready, who waits for an instant, who is first of a group.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{MailboxDepth, MessageNumber};
use crate::time::Awake;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MessagePlace {
    Ready,
    Delayed { until: Awake },
    Held { since: Awake, until: Awake },
}

#[derive(Clone, Debug)]
pub(super) struct StockEntry<M> {
    pub(super) content: M,
    pub(super) place: MessagePlace,
    /// Counted hand-outs.
    pub(super) deliveries: u32,
    /// The fence of the newest hand-out; 0 before the first, and once that one was settled.
    pub(super) fence: u64,
    group: Option<Arc<str>>,
    /// The order of sending, in which messages go; a replayed message was sent again.
    order: u64,
}

/// A message that no delivery could finish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadMessage<M> {
    pub number: MessageNumber,
    pub content: M,
    pub deliveries: u32,
    pub why: String,
    pub group: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub(super) struct Stock<M> {
    entries: BTreeMap<MessageNumber, StockEntry<M>>,
    /// Ready and first of their group, in the order in which they are handed out.
    ready: BTreeSet<(u64, MessageNumber)>,
    /// Delayed or held, by the instant at which that ends.
    timed: BTreeSet<(Awake, MessageNumber)>,
    groups: BTreeMap<Arc<str>, VecDeque<MessageNumber>>,
    dead: VecDeque<DeadMessage<M>>,
    held: usize,
    next: u64,
}

impl<M> Default for Stock<M> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            ready: BTreeSet::new(),
            timed: BTreeSet::new(),
            groups: BTreeMap::new(),
            dead: VecDeque::new(),
            held: 0,
            next: 1,
        }
    }
}

impl<M> Stock<M> {
    pub(super) fn len(&self) -> usize {
        self.entries.len() + self.dead.len()
    }

    pub(super) fn add(&mut self, content: M, group: Option<Arc<str>>) -> MessageNumber {
        let number = MessageNumber(self.next);
        self.insert(number, content, group);
        number
    }

    fn insert(&mut self, number: MessageNumber, content: M, group: Option<Arc<str>>) {
        let order = self.next;
        self.next += 1;
        if let Some(group) = &group {
            self.groups.entry(group.clone()).or_default().push_back(number);
        }
        self.entries
            .insert(number, StockEntry { content, place: MessagePlace::Ready, deliveries: 0, fence: 0, group, order });
        self.list_if_first(number);
    }

    pub(super) fn get(&self, number: MessageNumber) -> Option<&StockEntry<M>> {
        self.entries.get(&number)
    }

    pub(super) fn first_ready(&self) -> Option<MessageNumber> {
        self.ready.first().map(|(_, number)| *number)
    }

    /// Delays and leases that are over end.
    pub(super) fn advance(&mut self, now: Awake) {
        while let Some(&(until, number)) = self.timed.first() {
            if until > now {
                break;
            }
            self.put(number, MessagePlace::Ready);
        }
    }

    pub(super) fn hand_out(
        &mut self,
        number: MessageNumber,
        fence: u64,
        now: Awake,
        lease: Duration,
    ) -> &StockEntry<M> {
        self.put(number, MessagePlace::Held { since: now, until: now + lease });
        let entry = self.entries.get_mut(&number).expect("put found it");
        entry.fence = fence;
        entry.deliveries += 1;
        entry
    }

    /// Ends the hold of a message that will be handed out again, at once if `until` has come.
    pub(super) fn give_back(&mut self, number: MessageNumber, until: Awake, uncounted: bool) {
        let entry = self.entries.get_mut(&number).expect("the caller found it");
        entry.fence = 0;
        entry.deliveries -= u32::from(uncounted);
        self.put(number, MessagePlace::Delayed { until });
    }

    /// Moves a message to another place, and keeps the indexes true.
    pub(super) fn put(&mut self, number: MessageNumber, place: MessagePlace) {
        self.unlist(number);
        let entry = self.entries.get_mut(&number).expect("it is in stock");
        entry.place = place;
        match place {
            MessagePlace::Held { until, .. } => {
                self.held += 1;
                self.timed.insert((until, number));
            }
            MessagePlace::Delayed { until } => {
                self.timed.insert((until, number));
            }
            MessagePlace::Ready => self.list_if_first(number),
        }
    }

    /// Takes a message out of stock; the next of its group comes forward.
    fn take(&mut self, number: MessageNumber) -> StockEntry<M> {
        self.unlist(number);
        let entry = self.entries.remove(&number).expect("it is in stock");
        if let Some(name) = &entry.group {
            let group = self.groups.get_mut(name).expect("a group lasts as long as its members");
            let first = group.pop_front();
            assert_eq!(first, Some(number), "only the first of a group is handed out");
            match group.front().copied() {
                Some(next) => self.list_if_first(next),
                None => {
                    self.groups.remove(name);
                }
            }
        }
        entry
    }

    pub(super) fn remove(&mut self, number: MessageNumber) {
        self.take(number);
    }

    pub(super) fn bury(&mut self, number: MessageNumber, why: String) {
        let StockEntry { content, deliveries, group, .. } = self.take(number);
        self.dead.push_back(DeadMessage { number, content, deliveries, why, group });
    }

    pub(super) fn replay(&mut self, max: usize) -> usize {
        let count = max.min(self.dead.len());
        for _ in 0..count {
            let letter = self.dead.pop_front().expect("counted");
            self.insert(letter.number, letter.content, letter.group);
        }
        count
    }

    pub(super) fn dead(&self) -> impl Iterator<Item = &DeadMessage<M>> {
        self.dead.iter()
    }

    pub(super) fn depth(&self) -> MailboxDepth {
        MailboxDepth { waiting: self.entries.len() - self.held, held: self.held, dead: self.dead.len() }
    }

    pub(super) fn next_ready(&self) -> Option<Awake> {
        if self.ready.is_empty() { self.timed.first().map(|(until, _)| *until) } else { Some(Awake::ZERO) }
    }

    fn unlist(&mut self, number: MessageNumber) {
        let entry = &self.entries[&number];
        match entry.place {
            // A message that is not the first of its group is not listed.
            MessagePlace::Ready => {
                self.ready.remove(&(entry.order, number));
            }
            MessagePlace::Delayed { until } => {
                self.timed.remove(&(until, number));
            }
            MessagePlace::Held { until, .. } => {
                self.held -= 1;
                self.timed.remove(&(until, number));
            }
        }
    }

    fn list_if_first(&mut self, number: MessageNumber) {
        let entry = &self.entries[&number];
        let is_first = entry.group.as_ref().is_none_or(|group| self.groups[group].front() == Some(&number));
        if is_first && entry.place == MessagePlace::Ready {
            self.ready.insert((entry.order, number));
        }
    }
}
