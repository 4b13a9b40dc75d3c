//! Equal values lie in memory once: most jobs are alike.
//!
//! An interner knows the values that were given to it and hands out one of each. It does not keep them alive for ever:
//! what nobody else has any more goes when the interner would grow.

use core::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// A value that is cheap to clone because its clones share what they hold.
pub trait SharedValue: Clone + Eq + Hash {
    /// Whether a clone of the value is held elsewhere.
    fn is_shared(&self) -> bool;
}

impl<T: ?Sized + Eq + Hash> SharedValue for Arc<T> {
    fn is_shared(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

/// Known values, one of each, with its hash.
#[derive(Debug)]
pub struct Interner<T> {
    hasher: FixedState,
    known: HashTable<(u64, T)>,
    sweep_at: usize,
}

/// The number of known values at which values that nobody holds any more are first looked for.
const SWEEP_FROM: usize = 64;

impl<T: SharedValue> Interner<T> {
    /// `seed` decides where values lie; it never shows.
    pub fn new(seed: u64) -> Self {
        Self { hasher: FixedState::with_seed(seed), known: HashTable::new(), sweep_at: SWEEP_FROM }
    }

    /// Puts the known equal value in the place of this one; one that is new is known from now on.
    pub fn intern(&mut self, value: &mut T) {
        match self.find(value) {
            Ok(known) => *value = known.clone(),
            Err(hash) => self.insert(hash, value.clone()),
        }
    }

    /// The known value that is equal to this one, or the hash to insert it with.
    pub fn find(&self, value: &T) -> Result<&T, u64> {
        let hash = self.hasher.hash_one(value);
        self.known.find(hash, |(_, known)| known == value).map(|(_, known)| known).ok_or(hash)
    }

    /// `hash` is what [`Self::find`] gave for an equal value.
    pub fn insert(&mut self, hash: u64, value: T) {
        if self.known.len() >= self.sweep_at {
            // Amortized, one look at each.
            self.known.retain(|(_, known)| known.is_shared());
            self.sweep_at = 2 * self.known.len() + SWEEP_FROM;
        }
        self.known.insert_unique(hash, (hash, value), |(hash, _)| *hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_become_one() {
        let mut interner = Interner::new(7);
        let (mut first, mut second) = (Arc::new(String::from("same")), Arc::new(String::from("same")));
        interner.intern(&mut first);
        interner.intern(&mut second);
        assert!(Arc::ptr_eq(&first, &second));
        let mut other = Arc::new(String::from("other"));
        interner.intern(&mut other);
        assert_eq!((first.as_str(), other.as_str()), ("same", "other"));
    }

    #[test]
    fn what_nobody_has_any_more_is_forgotten_and_the_rest_is_not() {
        let mut interner = Interner::new(7);
        let mut kept = Arc::new(0);
        interner.intern(&mut kept);
        for number in 1..10_000 {
            interner.intern(&mut Arc::new(number));
            assert!(interner.known.len() <= SWEEP_FROM + 3, "{} after {number}", interner.known.len());
        }
        let mut again = Arc::new(0);
        interner.intern(&mut again);
        assert!(Arc::ptr_eq(&kept, &again));
    }
}
