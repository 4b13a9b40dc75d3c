//! Typed keys into the slabs of this process.
//!
//! A key of a job is not a key of a workflow, and the compiler says so. Numbers begin at 1: zero is what tells a missing
//! key from one that is there, so that an `Option` of a key takes no more room than the key.

use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;
use core::num::NonZeroU32;

/// The place of a `T` in its slab. It is local to one process and says nothing about *which* value lies there: see
/// [`crate::pages`].
pub struct Key<T> {
    number: NonZeroU32,
    of: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    pub const FIRST: Self = Self::of_number(NonZeroU32::MIN);
    pub const LAST: Self = Self::of_number(NonZeroU32::MAX);

    const fn of_number(number: NonZeroU32) -> Self {
        Self { number, of: PhantomData }
    }

    /// The key of this place, or none for place zero, where nothing ever lies.
    #[inline]
    pub const fn at(index: u32) -> Option<Self> {
        match NonZeroU32::new(index) {
            Some(number) => Some(Self::of_number(number)),
            None => None,
        }
    }

    /// The index of the key's place in whatever is kept by key.
    #[inline]
    pub const fn index(self) -> usize {
        self.number.get() as usize
    }

    /// The key behind this one; none behind the last.
    #[inline]
    pub const fn next(self) -> Option<Self> {
        match self.number.checked_add(1) {
            Some(number) => Some(Self::of_number(number)),
            None => None,
        }
    }
}

impl<T> Clone for Key<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Key<T> {}

impl<T> PartialOrd for Key<T> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Key<T> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number)
    }
}

impl<T> Hash for Key<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.number.hash(hasher);
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_key_takes_no_room() {
        assert_eq!(size_of::<Key<String>>(), 4);
        assert_eq!(size_of::<Option<Key<String>>>(), 4);
    }

    #[test]
    fn keys_are_counted_from_one_in_order() {
        assert_eq!((Key::<()>::at(0), Key::<()>::at(1)), (None, Some(Key::FIRST)));
        assert_eq!(Key::<()>::at(u32::MAX), Some(Key::LAST));
        assert_eq!((Key::<()>::FIRST.next().map(Key::index), Key::<()>::LAST.next()), (Some(2), None));
        assert!(Key::<()>::FIRST < Key::LAST);
    }
}
