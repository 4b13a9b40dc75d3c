//! Group commit: what waits while a commit is under way goes together in the next.
//!
//! A commit costs the same for one event as for a thousand, so under load many decisions share one; and a lone
//! decision finds no commit under way and goes at once. Nothing ever waits for company, and there is no timer.
//!
//! ```text
//!   push ─▶ waiting ── begin ─▶ under way ── appended by the log ─▶ done: durable up to here
//!             ▲  │                  │  ▲
//!             └──┘ one more         └──┘ in doubt: the same batch, under the same key, again
//! ```
//!
//! Events that were decided together are never parted: they are in one row, so after a crash all of them are there or
//! none. Pure: no thread, no clock; whoever owns the log drives it.

use std::collections::VecDeque;

use onward_core::event::Stamped;
use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::{BatchId, BatchKey};

#[derive(Debug)]
pub struct GroupCommit {
    term: Term,
    max_events: usize,
    waiting: Vec<Stamped>,
    /// How many events each push brought, oldest first.
    pushes: VecDeque<usize>,
    under_way: Vec<Stamped>,
    /// Where the batch under way begins, or the next one if there is none.
    first: Seq,
}

impl GroupCommit {
    /// For one term, beginning after `last`. A batch takes pushes until it has `max_events`; one push alone may be larger.
    pub fn new(term: Term, last: Seq, max_events: usize) -> Self {
        Self {
            term,
            max_events,
            waiting: Vec::new(),
            pushes: VecDeque::new(),
            under_way: Vec::new(),
            first: Seq(last.0 + 1),
        }
    }

    /// Takes what one step decided, and leaves the buffer empty. Gives the sequence number of its last event.
    pub fn push(&mut self, events: &mut Vec<Stamped>) -> Seq {
        if !events.is_empty() {
            self.pushes.push_back(events.len());
            self.waiting.append(events);
        }
        Seq(self.first.0 + (self.under_way.len() + self.waiting.len()) as u64 - 1)
    }

    /// The batch to append now; `None` while one is under way, or if nothing waits.
    pub fn begin(&mut self) -> Option<(BatchKey, &[Stamped])> {
        if self.is_under_way() || self.waiting.is_empty() {
            return None;
        }
        let mut count = 0;
        while let Some(&push) = self.pushes.front()
            && (count == 0 || count + push <= self.max_events)
        {
            count += push;
            self.pushes.pop_front();
        }
        if count == self.waiting.len() {
            core::mem::swap(&mut self.waiting, &mut self.under_way);
        } else {
            self.under_way.extend(self.waiting.drain(..count));
        }
        self.again()
    }

    /// The batch under way once more, for an append whose answer was lost.
    pub fn again(&self) -> Option<(BatchKey, &[Stamped])> {
        // Within a term a sequence number is used for one batch only, so it names the batch too.
        let key = BatchKey { term: self.term, id: BatchId(self.first.0), first: self.first };
        self.is_under_way().then_some((key, &self.under_way[..]))
    }

    /// The batch under way is durable. Gives the sequence number up to which everything is.
    pub fn done(&mut self) -> Seq {
        self.first = Seq(self.first.0 + self.under_way.len() as u64);
        self.under_way.clear();
        Seq(self.first.0 - 1)
    }

    pub fn is_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Events that wait for the batch under way to end.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use onward_core::event::Event;
    use onward_core::time::Wall;

    use super::*;

    fn events(stamps: core::ops::Range<u64>) -> Vec<Stamped> {
        let event = |at| Stamped { at: Wall::from_ms(at), event: Event::TermBegan { term: Term::new(at) } };
        stamps.map(event).collect()
    }

    fn begun(group: &mut GroupCommit) -> Option<(Seq, Vec<Stamped>)> {
        group.begin().map(|(key, events)| (key.first, events.to_vec()))
    }

    #[test]
    fn a_lone_push_goes_at_once() {
        let mut group = GroupCommit::new(Term::new(3), Seq(10), 100);
        assert_eq!(begun(&mut group), None, "nothing waits");
        assert_eq!(group.push(&mut events(0..2)), Seq(12));
        assert_eq!(begun(&mut group), Some((Seq(11), events(0..2))));
        assert_eq!(group.done(), Seq(12));
        assert_eq!(begun(&mut group), None);
    }

    #[test]
    fn what_comes_during_a_commit_goes_together_in_the_next() {
        let mut group = GroupCommit::new(Term::new(1), Seq(0), 100);
        let mut buffer = events(0..1);
        group.push(&mut buffer);
        assert!(buffer.is_empty(), "the buffer is free again");
        begun(&mut group).unwrap();
        assert_eq!(group.push(&mut events(1..3)), Seq(3));
        assert_eq!(group.push(&mut events(3..4)), Seq(4));
        assert_eq!(group.push(&mut Vec::new()), Seq(4), "nothing new waits for what came before");
        assert_eq!(begun(&mut group), None, "one at a time");
        assert_eq!(group.waiting(), 3);
        assert_eq!(group.done(), Seq(1));
        assert_eq!(begun(&mut group), Some((Seq(2), events(1..4))));
        assert_eq!(group.done(), Seq(4));
    }

    #[test]
    fn a_batch_has_a_bound_and_never_parts_what_was_decided_together() {
        let mut group = GroupCommit::new(Term::new(1), Seq(0), 4);
        for range in [0..3, 3..4, 4..6, 6..16, 16..17] {
            group.push(&mut events(range));
        }
        for (first, range) in [(1, 0..4), (5, 4..6), (7, 6..16), (17, 16..17)] {
            let count = range.end;
            assert_eq!(begun(&mut group), Some((Seq(first), events(range))));
            assert_eq!(group.done(), Seq(count));
        }
        assert_eq!(begun(&mut group), None);
    }

    #[test]
    fn in_doubt_the_same_batch_comes_again_under_the_same_key() {
        let mut group = GroupCommit::new(Term::new(7), Seq(5), 100);
        assert_eq!(group.again(), None);
        group.push(&mut events(0..2));
        let (key, batch) = group.begin().map(|(key, events)| (key, events.to_vec())).unwrap();
        assert_eq!((key.term, key.first), (Term::new(7), Seq(6)));
        group.push(&mut events(2..3));
        assert_eq!(group.again(), Some((key, &batch[..])));
        group.done();
        assert_eq!(group.again(), None);
        assert_ne!(group.begin().unwrap().0.id, key.id);
    }
}
