//! Concurrency keys. A head whose key is full is parked under it; room in a key lets one workflow per shelf go back.
//!
//! One per shelf, because nobody knows which shelf a free worker will take from; and not more than one, because the
//! room may be gone before the second gets its turn. Whoever was let go and then leaves its shelf (handed out,
//! cancelled, parked under another key) hands the turn on to the next of its shelf.
//!
//! What is parked costs nothing until its key has room. A backlog in which every workflow names the same two keys is
//! the exception: where one key has room and the other is full, all of it moves from the first to the second.
//!
//! Workflows that name one key with different bounds are each judged by their own; behind a parked one with a lower
//! bound they keep their turn, until that one is gone.

use core::hash::BuildHasher;
use std::collections::BTreeMap;

use crate::ids::Name;
use crate::state::{NO_KEY, WorkflowKey};

use super::{Dispatch, Entry, Line, Place};

#[derive(Debug)]
pub(super) struct LimitKey {
    pub(super) name: Name,
    /// Workflows that name it and have not ended.
    members: u32,
    /// How many of them are held by workers.
    pub(super) running: u32,
    /// By shelf.
    pub(super) parked: BTreeMap<u32, Parked>,
}

#[derive(Debug)]
pub(super) struct Parked {
    pub(super) line: Line,
    /// The workflow that was let go and is still on its shelf, or `NO_KEY`. No turn in the line is lower.
    pub(super) let_go: WorkflowKey,
}

impl Dispatch {
    pub(super) fn acquire_key(&mut self, name: &Name) -> u32 {
        let hash = self.hasher.hash_one(name);
        if let Some(key) = self.key_ids.find(hash, |key| self.keys[*key].name == *name) {
            let key = *key;
            self.keys[key].members += 1;
            return key;
        }
        let key = self.keys.insert(LimitKey { name: name.clone(), members: 1, running: 0, parked: BTreeMap::new() });
        let (keys, hasher) = (&self.keys, &self.hasher);
        self.key_ids.insert_unique(hash, key, |key| hasher.hash_one(&keys[*key].name));
        key
    }

    pub(super) fn has_key(&self, name: &Name) -> bool {
        self.key_ids.find(self.hasher.hash_one(name), |key| self.keys[*key].name == *name).is_some()
    }

    pub(super) fn release_key(&mut self, key: u32) {
        let limit = &mut self.keys[key];
        limit.members -= 1;
        if limit.members > 0 {
            return;
        }
        let hash = self.hasher.hash_one(&limit.name);
        let entry = self.key_ids.find_entry(hash, |known| *known == key);
        entry.expect("every key is in the index").remove();
        self.keys.remove(key);
    }

    /// The first of a workflow's keys that has no room for it.
    pub(super) fn full_key(&self, workflow: WorkflowKey) -> Option<u32> {
        let set = self.entries[workflow as usize].limits;
        if set == NO_KEY {
            return None;
        }
        let full = |(key, max): &&(u32, u32)| self.keys[*key].running >= *max;
        self.limit_sets[set].iter().find(full).map(|(key, _)| *key)
    }

    /// Moves the head of a shelf under the key that has no room for it.
    pub(super) fn park(&mut self, workflow: WorkflowKey, key: u32) {
        #[cfg(test)]
        {
            self.parks += 1;
        }
        let Entry { shelf, key: let_go_by, order, .. } = self.entries[workflow as usize];
        let turn = self.unplace(workflow);
        let parked = self.keys[key].parked.entry(shelf).or_insert(Parked { line: Line::EMPTY, let_go: NO_KEY });
        parked.line.insert(&mut self.entries, workflow);
        let entry = &mut self.entries[workflow as usize];
        entry.place = Place::Parked;
        entry.key = key;
        if let_go_by == key {
            parked.let_go = NO_KEY;
            return;
        }
        // Whoever was let go meanwhile goes back behind this one: else it would be woken first.
        let later = parked.let_go;
        if later != NO_KEY && self.entries[later as usize].order > order {
            parked.let_go = NO_KEY;
            parked.line.insert_from(&mut self.shelves[shelf].line, &mut self.entries, later);
            self.entries[later as usize].place = Place::Parked;
            self.reindex(shelf);
        }
        self.offer_next(turn);
    }

    pub(super) fn unpark(&mut self, workflow: WorkflowKey, entry: Entry) {
        let parked = self.keys[entry.key].parked.get_mut(&entry.shelf).expect("a parked workflow is in its key's line");
        parked.line.remove(&mut self.entries, workflow);
        // The next one may have a higher bound.
        self.let_go(entry.key, entry.shelf);
        self.forget_if_idle(entry.key, entry.shelf);
    }

    /// A workflow that `key` had let go has left `shelf`: the next one there may go, if there is room.
    pub(super) fn offer_next(&mut self, turn: Option<(u32, u32)>) {
        let Some((key, shelf)) = turn else { return };
        if let Some(parked) = self.keys[key].parked.get_mut(&shelf) {
            parked.let_go = NO_KEY;
        }
        self.let_go(key, shelf);
        self.forget_if_idle(key, shelf);
    }

    /// The workflow is no longer held: its keys have room for others.
    pub(super) fn give_back_keys(&mut self, workflow: WorkflowKey) {
        let entry = &mut self.entries[workflow as usize];
        if !core::mem::take(&mut entry.holds_keys) || entry.limits == NO_KEY {
            return;
        }
        let set = entry.limits;
        for at in 0..self.limit_sets[set].len() {
            let (key, _) = self.limit_sets[set][at];
            self.keys[key].running -= 1;
            if self.keys[key].parked.is_empty() {
                continue;
            }
            let shelves: Vec<u32> = self.keys[key].parked.keys().copied().collect();
            for shelf in shelves {
                self.let_go(key, shelf);
            }
        }
    }

    /// Puts the first workflow parked for `shelf` back on it, unless one was let go already.
    fn let_go(&mut self, key: u32, shelf: u32) {
        let limit = &mut self.keys[key];
        let Some(parked) = limit.parked.get_mut(&shelf) else { return };
        if parked.let_go != NO_KEY || parked.line.is_empty() {
            return;
        }
        let first = parked.line.head(&self.entries);
        let set = self.entries[first as usize].limits;
        let bound = self.limit_sets[set].iter().find(|(known, _)| *known == key).map(|(_, max)| *max);
        if limit.running >= bound.expect("a workflow is parked under a key of its own") {
            return;
        }
        parked.let_go = first;
        self.shelves[shelf].line.insert_from(&mut parked.line, &mut self.entries, first);
        self.entries[first as usize].place = Place::Shelf;
        self.entries[first as usize].key = key;
        self.reindex(shelf);
    }

    fn forget_if_idle(&mut self, key: u32, shelf: u32) {
        let parked = &mut self.keys[key].parked;
        if parked.get(&shelf).is_some_and(|parked| parked.line.is_empty() && parked.let_go == NO_KEY) {
            parked.remove(&shelf);
        }
    }
}
