//! Which files there are, in the order in which they were last written to, and which must go.

use std::collections::{BTreeMap, HashMap};

use onward_core::ids::Claim;
use onward_core::time::span_ms;

use super::OutputRules;

/// The least that a file takes up on disk, so that the limit on bytes is one on files too.
const BLOCK_BYTES: u64 = 4 << 10;

#[derive(Default, Debug)]
pub(crate) struct Index {
    files: HashMap<Claim, Entry>,
    by_turn: BTreeMap<u64, Claim>,
    next_turn: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Entry {
    turn: u64,
    bytes: u64,
    written_at_ms: u64,
}

impl Index {
    /// Notes that a file was written to, and its size now.
    pub(crate) fn put(&mut self, claim: Claim, size: u64, written_at_ms: u64) {
        self.remove(&claim);
        let (turn, bytes) = (self.next_turn, size.max(1).next_multiple_of(BLOCK_BYTES));
        self.next_turn += 1;
        self.bytes += bytes;
        self.by_turn.insert(turn, claim);
        self.files.insert(claim, Entry { turn, bytes, written_at_ms });
    }

    pub(crate) fn remove(&mut self, claim: &Claim) {
        if let Some(entry) = self.files.remove(claim) {
            self.by_turn.remove(&entry.turn);
            self.bytes -= entry.bytes;
        }
    }

    /// The next that must go.
    pub(crate) fn due(&self, rules: &OutputRules, now_ms: u64) -> Option<Claim> {
        let (_, claim) = self.by_turn.first_key_value()?;
        let is_old = self.files[claim].written_at_ms.saturating_add(span_ms(rules.retain)) <= now_ms;
        (is_old || self.bytes > rules.max_bytes).then_some(*claim)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }
}
