//! What jobs have in common lies in memory once: most are alike.

use core::hash::{BuildHasher, Hash};
use std::sync::Arc;

use hashbrown::HashTable;

use crate::ids::Name;
use crate::job::{JobSpec, Outline};

use super::Dispatch;

/// Content that jobs share, with its hash.
#[derive(Debug)]
pub(super) struct SharedContent<T> {
    known: HashTable<(u64, Arc<T>)>,
    sweep_at: usize,
}

impl<T: Eq + Hash> SharedContent<T> {
    pub(super) fn new() -> Self {
        Self { known: HashTable::new(), sweep_at: 64 }
    }

    fn find(&self, hash: u64, content: &T) -> Option<&Arc<T>> {
        self.known.find(hash, |(_, known)| **known == *content).map(|(_, known)| known)
    }

    fn insert(&mut self, hash: u64, content: Arc<T>) {
        if self.known.len() >= self.sweep_at {
            // What no job has any more is let go; amortized, one look at each.
            self.known.retain(|(_, known)| Arc::strong_count(known) > 1);
            self.sweep_at = 2 * self.known.len() + 64;
        }
        self.known.insert_unique(hash, (hash, content), |(hash, _)| *hash);
    }
}

impl Dispatch {
    /// Lets a job share with others what they have in common: its policy, and the outlines of its workflows.
    pub fn share(&mut self, spec: &mut JobSpec) {
        let hash = self.hasher.hash_one(&*spec.policy);
        match self.policies.find(hash, &spec.policy) {
            Some(known) => spec.policy.clone_from(known),
            None => self.policies.insert(hash, spec.policy.clone()),
        }
        for workflow in spec.workflows.iter_mut() {
            let hash = self.hasher.hash_one(&*workflow.outline);
            match self.outlines.find(hash, &workflow.outline) {
                Some(known) => workflow.outline.clone_from(known),
                None => {
                    self.share_names(&spec.policy.queue, Arc::make_mut(&mut workflow.outline));
                    self.outlines.insert(hash, workflow.outline.clone());
                }
            }
        }
    }

    fn share_names(&self, queue: &Name, outline: &mut Outline) {
        if let Some(kind) = self.shared_kind(queue, &outline.kind) {
            outline.kind = kind.clone();
        }
        if outline.name == outline.kind {
            outline.name = outline.kind.clone();
        }
    }
}
