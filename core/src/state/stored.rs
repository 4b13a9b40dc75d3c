//! The number of references from jobs held here to each content in the store.

use core::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::payload::{Digest, Payload, StoredContent};

#[derive(Debug, Default)]
pub(crate) struct StoredCounts {
    table: HashTable<(Arc<StoredContent>, u32)>,
}

impl StoredCounts {
    /// Adds a reference. Payloads with the same content share one record of it.
    pub(crate) fn hold(&mut self, payload: &mut Payload) {
        let Payload::Stored(stored) = payload else { return };
        let found = self.table.find_mut(hash(&stored.digest), |(known, _)| known.digest == stored.digest);
        match found {
            Some((known, refs)) => {
                *refs += 1;
                stored.clone_from(known);
            }
            None => {
                self.table.insert_unique(hash(&stored.digest), (stored.clone(), 1), |(known, _)| hash(&known.digest));
            }
        }
    }

    /// Takes off a reference. Gives whether it was the last.
    pub(crate) fn release(&mut self, digest: &Digest) -> bool {
        let found = self.table.find_entry(hash(digest), |(known, _)| known.digest == *digest);
        let mut entry = found.expect("what is released was held");
        let (_, refs) = entry.get_mut();
        *refs -= 1;
        let last = *refs == 0;
        if last {
            entry.remove();
        }
        last
    }

    pub(crate) fn refs(&self, digest: &Digest) -> u32 {
        self.table.find(hash(digest), |(known, _)| known.digest == *digest).map_or(0, |(_, refs)| *refs)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&StoredContent, u32)> {
        self.table.iter().map(|(stored, refs)| (&**stored, *refs))
    }
}

/// A digest is as good as random, but a client may have chosen the content.
fn hash(digest: &Digest) -> u64 {
    FixedState::default().hash_one(digest)
}
