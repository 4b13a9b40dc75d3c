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

use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::{BatchId, BatchKey, Blob, LogRow, OwnedBlob};

#[derive(Debug)]
pub struct GroupCommit {
    term: Term,
    max_events: usize,
    max_blob_bytes: usize,
    waiting: Load,
    /// Sizes of the pushes, oldest first.
    pushes: VecDeque<Push>,
    under_way: Load,
    /// The first event of the batch under way, or of the next one if there is none.
    first: Seq,
}

/// A group to append: see [`Log::append`](crate::Log::append).
#[derive(Clone, PartialEq, Debug)]
pub struct AppendGroup<'a> {
    pub key: BatchKey,
    pub row: LogRow<'a>,
    pub blobs: Vec<Blob<'a>>,
}

#[derive(Debug, Default)]
struct Load {
    events: usize,
    /// Bytes of the events.
    body: Vec<u8>,
    blobs: Vec<OwnedBlob>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Push {
    events: usize,
    bytes: usize,
    blobs: usize,
    blob_bytes: usize,
}

impl GroupCommit {
    /// A group commit for one term, beginning after `last`. A batch takes pushes until it has `max_events`, or
    /// `max_blob_bytes` of blobs; one push alone may be larger.
    pub fn new(term: Term, last: Seq, max_events: usize, max_blob_bytes: usize) -> Self {
        Self {
            term,
            max_events,
            max_blob_bytes,
            waiting: Load::default(),
            pushes: VecDeque::new(),
            under_way: Load::default(),
            first: Seq(last.0 + 1),
        }
    }

    /// Takes what one step decided: so many events, which `encode` appends to the bytes of those before, and the blobs
    /// that they name, which leave their buffer. Gives the sequence number of the last event.
    ///
    /// # Panics
    /// Blobs without an event that names them have no place in the log; bringing some is a bug.
    pub fn push(&mut self, events: usize, encode: impl FnOnce(&mut Vec<u8>), blobs: &mut Vec<OwnedBlob>) -> Seq {
        assert!(blobs.is_empty() || events > 0, "a blob comes with the event that names it");
        if events > 0 {
            let before = self.waiting.body.len();
            encode(&mut self.waiting.body);
            let bytes = self.waiting.body.len() - before;
            let blob_bytes = blobs.iter().map(|blob| blob.bytes.len()).sum();
            self.pushes.push_back(Push { events, bytes, blobs: blobs.len(), blob_bytes });
            self.waiting.events += events;
            self.waiting.blobs.append(blobs);
        }
        Seq(self.first.0 + (self.under_way.events + self.waiting.events) as u64 - 1)
    }

    /// The batch to append now; `None` while one is under way, or if nothing waits.
    pub fn begin(&mut self) -> Option<AppendGroup<'_>> {
        if self.is_under_way() || self.waiting.events == 0 {
            return None;
        }
        let mut taken = Push::default();
        while let Some(&push) = self.pushes.front() {
            let sum = taken.and(push);
            if taken.events > 0 && (sum.events > self.max_events || sum.blob_bytes > self.max_blob_bytes) {
                break;
            }
            taken = sum;
            self.pushes.pop_front();
        }
        if self.pushes.is_empty() {
            core::mem::swap(&mut self.waiting, &mut self.under_way);
        } else {
            self.waiting.events -= taken.events;
            self.under_way.events = taken.events;
            self.under_way.body.extend(self.waiting.body.drain(..taken.bytes));
            self.under_way.blobs.extend(self.waiting.blobs.drain(..taken.blobs));
        }
        self.again()
    }

    /// The batch under way once more, for an append whose answer was lost.
    pub fn again(&self) -> Option<AppendGroup<'_>> {
        if !self.is_under_way() {
            return None;
        }
        // Within a term a sequence number is used for one batch only, so it names the batch too.
        let key = BatchKey { term: self.term, id: BatchId(self.first.0), first: self.first };
        let count = u32::try_from(self.under_way.events).expect("a batch is bounded, and a push is smaller than that");
        let blobs = self.under_way.blobs.iter().map(OwnedBlob::as_blob).collect();
        Some(AppendGroup { key, row: LogRow { count, body: &self.under_way.body }, blobs })
    }

    /// The batch under way is durable. Gives the sequence number up to which everything is.
    pub fn done(&mut self) -> Seq {
        self.first = Seq(self.first.0 + self.under_way.events as u64);
        self.under_way.events = 0;
        self.under_way.body.clear();
        self.under_way.blobs.clear();
        Seq(self.first.0 - 1)
    }

    pub fn is_under_way(&self) -> bool {
        self.under_way.events > 0
    }

    /// Events that wait for the batch under way to end.
    pub fn waiting(&self) -> usize {
        self.waiting.events
    }

    /// Bytes of blobs that wait with them: memory that whoever takes in payloads must bound.
    pub fn waiting_blob_bytes(&self) -> usize {
        self.pushes.iter().map(|push| push.blob_bytes).sum()
    }
}

impl Push {
    const fn and(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            bytes: self.bytes + other.bytes,
            blobs: self.blobs + other.blobs,
            blob_bytes: self.blob_bytes + other.blob_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes as many events as there are names, each of one byte.
    fn push(group: &mut GroupCommit, names: core::ops::Range<u8>) -> Seq {
        push_with(group, names, &mut Vec::new())
    }

    fn push_with(group: &mut GroupCommit, names: core::ops::Range<u8>, blobs: &mut Vec<OwnedBlob>) -> Seq {
        group.push(names.len(), |out| out.extend(names), blobs)
    }

    fn begun(group: &mut GroupCommit) -> Option<(Seq, Vec<u8>)> {
        let group = group.begin()?;
        assert_eq!(group.row.count as usize, group.row.body.len());
        Some((group.key.first, group.row.body.to_vec()))
    }

    fn names(names: core::ops::Range<u8>) -> Vec<u8> {
        names.collect()
    }

    #[test]
    fn a_lone_push_goes_at_once() {
        let mut group = GroupCommit::new(Term::new(3), Seq(10), 100, 1000);
        assert_eq!(begun(&mut group), None, "nothing waits");
        assert_eq!(push(&mut group, 0..2), Seq(12));
        assert_eq!(begun(&mut group), Some((Seq(11), names(0..2))));
        assert_eq!(group.done(), Seq(12));
        assert_eq!(begun(&mut group), None);
    }

    #[test]
    fn what_comes_during_a_commit_goes_together_in_the_next() {
        let mut group = GroupCommit::new(Term::new(1), Seq(0), 100, 1000);
        push(&mut group, 0..1);
        begun(&mut group).unwrap();
        assert_eq!(push(&mut group, 1..3), Seq(3));
        assert_eq!(push(&mut group, 3..4), Seq(4));
        assert_eq!(push(&mut group, 4..4), Seq(4), "nothing new waits for what came before");
        assert_eq!(begun(&mut group), None, "one at a time");
        assert_eq!(group.waiting(), 3);
        assert_eq!(group.done(), Seq(1));
        assert_eq!(begun(&mut group), Some((Seq(2), names(1..4))));
        assert_eq!(group.done(), Seq(4));
    }

    #[test]
    fn a_batch_has_a_bound_and_never_parts_what_was_decided_together() {
        let mut group = GroupCommit::new(Term::new(1), Seq(0), 4, 1000);
        for range in [0..3, 3..4, 4..6, 6..16, 16..17] {
            push(&mut group, range);
        }
        for (first, range) in [(1, 0..4), (5, 4..6), (7, 6..16), (17, 16..17)] {
            let count = range.end;
            assert_eq!(begun(&mut group), Some((Seq(first), names(range))));
            assert_eq!(group.done(), Seq(count.into()));
        }
        assert_eq!(begun(&mut group), None);
    }

    #[test]
    fn in_doubt_the_same_batch_comes_again_under_the_same_key() {
        let mut group = GroupCommit::new(Term::new(7), Seq(5), 100, 1000);
        assert_eq!(group.again(), None);
        push(&mut group, 0..2);
        let key = group.begin().unwrap().key;
        assert_eq!((key.term, key.first), (Term::new(7), Seq(6)));
        push(&mut group, 2..3);
        let row = LogRow { count: 2, body: &names(0..2) };
        assert_eq!(group.again(), Some(AppendGroup { key, row, blobs: Vec::new() }));
        group.done();
        assert_eq!(group.again(), None);
        assert_ne!(group.begin().unwrap().key.id, key.id);
    }

    fn blob(name: u8, bytes: usize) -> OwnedBlob {
        OwnedBlob { digest: [name; 32], bytes: vec![name; bytes].into() }
    }

    fn digests(group: Option<AppendGroup<'_>>) -> (u32, Vec<u8>) {
        let group = group.unwrap();
        (group.row.count, group.blobs.iter().map(|blob| blob.digest[0]).collect())
    }

    #[test]
    fn blobs_go_with_the_events_that_name_them_and_bound_a_batch_too() {
        let mut group = GroupCommit::new(Term::new(1), Seq(0), 100, 1000);
        for (name, bytes) in [(1, 600), (2, 400), (3, 1), (4, 5000), (5, 0)] {
            let mut blobs = vec![blob(name, bytes)];
            push_with(&mut group, 0..2, &mut blobs);
            assert!(blobs.is_empty(), "the buffer is free again");
        }
        push(&mut group, 0..1);
        assert_eq!(group.waiting_blob_bytes(), 6001);
        for (count, expected) in [(4, vec![1, 2]), (2, vec![3]), (2, vec![4]), (3, vec![5])] {
            assert_eq!(digests(group.begin()), (count, expected.clone()));
            assert_eq!(digests(group.again()), (count, expected), "in doubt, the same blobs come again");
            group.done();
        }
        assert_eq!(group.waiting_blob_bytes(), 0);
        assert_eq!(group.begin(), None);
    }
}
