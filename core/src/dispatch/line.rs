//! A line: workflows in the order of their turns.
//!
//! Nearly all come with the highest turn of all or the lowest, which costs nothing. A turn in between happens where
//! several are handed back, or where one waited under another key meanwhile; those lie beside the list, sorted.

use std::collections::BTreeSet;

use crate::state::{NO_KEY, WorkflowKey};

use super::{Entry, List};

#[derive(Debug)]
pub(super) struct Line {
    /// By turn.
    list: List,
    between: BTreeSet<(u64, WorkflowKey)>,
}

impl Line {
    pub(super) const EMPTY: Self = Self { list: List::EMPTY, between: BTreeSet::new() };

    /// The lowest turn, or `NO_KEY` if the line is empty.
    #[inline]
    pub(super) fn head(&self, all: &[Entry]) -> WorkflowKey {
        let head = self.list.head();
        match self.between.first() {
            Some((order, key)) if head == NO_KEY || *order < all[head as usize].order => *key,
            _ => head,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len() as usize + self.between.len()
    }

    pub(super) fn insert(&mut self, all: &mut [Entry], key: WorkflowKey) {
        let order = all[key as usize].order;
        if self.list.is_empty() || order > all[self.list.tail() as usize].order {
            self.list.push_back(all, key);
        } else if order < all[self.list.head() as usize].order {
            self.list.push_front(all, key);
        } else {
            self.between.insert((order, key));
        }
    }

    pub(super) fn remove(&mut self, all: &mut [Entry], key: WorkflowKey) {
        if !self.between.remove(&(all[key as usize].order, key)) {
            self.list.remove(all, key);
        }
    }
}
