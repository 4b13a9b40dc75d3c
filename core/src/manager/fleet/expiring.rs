//! Something about workers that ends by itself: the first to end is at hand, and so is each worker.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::WorkerId;
use crate::time::Awake;

#[derive(Debug)]
pub(in crate::manager) struct ExpiringWorkers<T> {
    ends: BTreeSet<(Awake, WorkerId)>,
    of: BTreeMap<WorkerId, (Awake, T)>,
}

impl<T> Default for ExpiringWorkers<T> {
    fn default() -> Self {
        Self { ends: BTreeSet::new(), of: BTreeMap::new() }
    }
}

impl<T> ExpiringWorkers<T> {
    pub fn len(&self) -> usize {
        self.of.len()
    }

    pub fn contains(&self, id: &WorkerId) -> bool {
        self.of.contains_key(id)
    }

    pub fn next(&self) -> Option<Awake> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// The number of entries that have not ended by now.
    pub fn lasting(&self, now: Awake) -> usize {
        self.len() - self.ends.iter().take_while(|(at, _)| *at <= now).count()
    }

    /// Inserts an entry in the place of the worker's earlier one.
    pub fn insert(&mut self, id: WorkerId, until: Awake, what: T) {
        self.remove(&id);
        self.ends.insert((until, id.clone()));
        self.of.insert(id, (until, what));
    }

    pub fn remove(&mut self, id: &WorkerId) -> Option<T> {
        let (until, what) = self.of.remove(id)?;
        self.ends.remove(&(until, id.clone()));
        Some(what)
    }

    /// The first to end.
    pub fn pop(&mut self) -> Option<WorkerId> {
        let (_, id) = self.ends.pop_first()?;
        self.of.remove(&id);
        Some(id)
    }

    /// Takes out one that has ended by now.
    pub fn pop_ended(&mut self, now: Awake) -> Option<WorkerId> {
        self.next().filter(|at| *at <= now)?;
        self.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str) -> WorkerId {
        WorkerId::new(name).expect("valid")
    }

    #[test]
    fn the_first_to_end_is_taken_out_first_and_not_before_its_time() {
        let mut expiring = ExpiringWorkers::default();
        expiring.insert(worker("late"), Awake::from_ms(30), ());
        expiring.insert(worker("early"), Awake::from_ms(20), ());
        assert_eq!(expiring.pop_ended(Awake::from_ms(19)), None);
        assert_eq!(expiring.lasting(Awake::from_ms(20)), 1);
        assert_eq!(expiring.pop_ended(Awake::from_ms(25)), Some(worker("early")));
        assert_eq!((expiring.next(), expiring.len()), (Some(Awake::from_ms(30)), 1));
    }

    #[test]
    fn what_is_known_of_a_worker_is_known_once() {
        let mut expiring = ExpiringWorkers::default();
        expiring.insert(worker("w"), Awake::from_ms(10), 1);
        expiring.insert(worker("w"), Awake::from_ms(20), 2);
        assert_eq!((expiring.len(), expiring.next()), (1, Some(Awake::from_ms(20))));
        assert!(expiring.contains(&worker("w")));
        assert_eq!(expiring.remove(&worker("w")), Some(2));
        assert_eq!((expiring.next(), expiring.pop()), (None, None));
    }
}
