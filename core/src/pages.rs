//! A slab that grows page by page.
//!
//! Growth never moves what is already stored, and never needs twice the memory for a moment. Keys are handed out by a
//! rule that depends on nothing but the calls made: the key freed last is used first, then the next one never used. So
//! two runs that make the same calls get the same keys.
//!
//! A key says nothing about *which* value it stood for: after `remove` it will stand for another one. Whoever keeps a
//! key beyond that must carry a fence beside it.

use core::mem;
use core::ops::{Index, IndexMut};

use prefetch_index::prefetch_index;

use crate::key::Key;

const PAGE: usize = 512;

#[derive(Clone, Debug)]
enum Entry<T> {
    Full(T),
    /// The link of the free list lives where the value was.
    Vacant(Option<Key<T>>),
}

type Page<T> = Box<[Entry<T>; PAGE]>;

#[derive(Clone, Debug)]
pub struct Pages<T> {
    pages: Vec<Page<T>>,
    /// The vacant key freed last.
    free: Option<Key<T>>,
    /// Keys from here on were never used; none once all were.
    fresh: Option<Key<T>>,
    len: u32,
}

impl<T> Pages<T> {
    /// Size of one entry, vacant or not. No more than `T` where `T` has a niche beside room for a `u32`.
    pub const ENTRY_BYTES: usize = size_of::<Entry<T>>();

    pub const fn new() -> Self {
        Self { pages: Vec::new(), free: None, fresh: Some(Key::FIRST), len: 0 }
    }

    pub const fn len(&self) -> usize {
        self.len as usize
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key that the next `insert` will use.
    #[inline]
    pub fn next_key(&self) -> Key<T> {
        self.free.or(self.fresh).expect("the slab is out of keys")
    }

    /// Above every key that was ever used.
    #[inline]
    pub fn keys_end(&self) -> Key<T> {
        self.fresh.unwrap_or(Key::LAST)
    }

    pub fn insert(&mut self, value: T) -> Key<T> {
        let key = self.next_key();
        if self.free.is_none() {
            self.grow(key);
        }
        let (page, slot) = split(key);
        match mem::replace(&mut self.pages[page][slot], Entry::Full(value)) {
            Entry::Vacant(next) => self.free = next,
            Entry::Full(_) => unreachable!("the free list and the keys never used hold vacant entries only"),
        }
        self.len += 1;
        key
    }

    /// Panics on a vacant key, and leaves the slab as it was.
    pub fn remove(&mut self, key: Key<T>) -> T {
        assert!(self.get(key).is_some(), "key {key:?} is vacant");
        let (page, slot) = split(key);
        let Entry::Full(value) = mem::replace(&mut self.pages[page][slot], Entry::Vacant(self.free)) else {
            unreachable!("just seen to be full")
        };
        self.free = Some(key);
        self.len -= 1;
        value
    }

    #[inline]
    pub fn get(&self, key: Key<T>) -> Option<&T> {
        let (page, slot) = split(key);
        match self.pages.get(page).map(|page| &page[slot]) {
            Some(Entry::Full(value)) => Some(value),
            _ => None,
        }
    }

    /// Has the beginning of an entry brought into the caches, and does not wait for it.
    #[inline]
    pub fn prefetch(&self, key: Key<T>) {
        let (page, slot) = split(key);
        if let Some(page) = self.pages.get(page) {
            prefetch_index(page.as_slice(), slot);
        }
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let (page, slot) = split(key);
        match self.pages.get_mut(page).map(|page| &mut page[slot]) {
            Some(Entry::Full(value)) => Some(value),
            _ => None,
        }
    }

    /// Entries in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        (0..).zip(self.pages.iter().flat_map(|page| page.iter())).filter_map(|(index, entry)| match entry {
            Entry::Full(value) => Some((Key::at(index)?, value)),
            Entry::Vacant(_) => None,
        })
    }

    /// Takes one more key into use, and a page for it if the last one is spent. The first place of the first page stays
    /// vacant: no key leads there.
    fn grow(&mut self, key: Key<T>) {
        if key.index() >= self.pages.len() * PAGE {
            let page: Box<[Entry<T>]> = (0..PAGE).map(|_| Entry::Vacant(None)).collect();
            let Ok(page) = Page::try_from(page) else { unreachable!("a page was just built to size") };
            self.pages.push(page);
        }
        self.fresh = key.next();
    }
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Index<Key<T>> for Pages<T> {
    type Output = T;

    #[inline]
    fn index(&self, key: Key<T>) -> &T {
        let (page, slot) = split(key);
        match &self.pages[page][slot] {
            Entry::Full(value) => value,
            Entry::Vacant(_) => vacant(key),
        }
    }
}

impl<T> IndexMut<Key<T>> for Pages<T> {
    #[inline]
    fn index_mut(&mut self, key: Key<T>) -> &mut T {
        let (page, slot) = split(key);
        match &mut self.pages[page][slot] {
            Entry::Full(value) => value,
            Entry::Vacant(_) => vacant(key),
        }
    }
}

#[inline]
const fn split<T>(key: Key<T>) -> (usize, usize) {
    (key.index() / PAGE, key.index() % PAGE)
}

#[cold]
#[inline(never)]
fn vacant<T>(key: Key<T>) -> ! {
    panic!("key {key:?} is vacant")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn key<T>(index: u32) -> Key<T> {
        Key::at(index).expect("keys begin at 1")
    }

    #[test]
    fn the_key_freed_last_is_used_first() {
        let mut slab = Pages::new();
        assert_eq!(['a', 'b', 'c', 'd'].map(|c| slab.insert(c)), [1, 2, 3, 4].map(key));
        assert_eq!((slab.remove(key(2)), slab.remove(key(4)), slab.remove(key(1))), ('b', 'd', 'a'));
        assert_eq!(['e', 'f', 'g', 'h'].map(|c| slab.insert(c)), [1, 4, 2, 5].map(key));
        assert_eq!(
            slab.iter().map(|(k, c)| (k.index(), *c)).collect::<Vec<_>>(),
            [(1, 'e'), (2, 'g'), (3, 'c'), (4, 'f'), (5, 'h')]
        );
    }

    #[test]
    fn growth_does_not_move_what_is_there() {
        let mut slab = Pages::new();
        let first = slab.insert(1_usize);
        let before: *const usize = &slab[first];
        for n in 2..=PAGE * 5 {
            slab.insert(n);
        }
        assert_eq!(before, &raw const slab[first]);
        assert_eq!(slab.len(), PAGE * 5);
        assert!(slab.iter().all(|(key, n)| key.index() == *n));
    }

    #[test]
    fn a_vacant_key_is_a_bug_that_changes_nothing() {
        let mut slab = Pages::new();
        slab.insert('a');
        slab.insert('b');
        slab.remove(key(1));
        for key in [key(1), key(3), key(PAGE as u32), Key::LAST] {
            assert!(slab.get(key).is_none() && slab.get_mut(key).is_none());
            assert!(catch_unwind(AssertUnwindSafe(|| slab.remove(key))).is_err(), "remove {key:?}");
            assert!(catch_unwind(AssertUnwindSafe(|| slab[key])).is_err(), "index {key:?}");
            assert!(catch_unwind(AssertUnwindSafe(|| slab[key] = 'x')).is_err(), "assign {key:?}");
        }
        assert_eq!((slab.len(), slab.insert('c'), slab.insert('d'), slab[key(2)]), (1, key(1), key(3), 'b'));
    }

    #[test]
    fn the_free_list_costs_nothing_where_the_value_has_a_niche() {
        assert_eq!(Pages::<(u64, core::num::NonZeroU32, u32)>::ENTRY_BYTES, 16);
        assert_eq!(Pages::<u64>::ENTRY_BYTES, 16, "no niche, so a tag is needed");
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_with_the_same_keys_for_the_same_calls(
            calls in prop::collection::vec((0..5_u8, any::<u16>()), 0..3_000)
        ) {
            let (mut slab, mut twin) = (Pages::new(), Pages::new());
            let mut model = BTreeMap::new();
            for (call, arg) in calls {
                let victim = model.keys().nth(usize::from(arg) % model.len().max(1)).copied();
                match (call, victim) {
                    (3, Some(key)) => {
                        prop_assert_eq!(Some(slab.remove(key)), model.remove(&key));
                        twin.remove(key);
                    }
                    (4, Some(key)) => {
                        slab[key] = u32::from(arg) + 70_000;
                        *twin.get_mut(key).expect("the model holds it") = u32::from(arg) + 70_000;
                        model.insert(key, u32::from(arg) + 70_000);
                    }
                    _ => {
                        let announced = slab.next_key();
                        let key = slab.insert(u32::from(arg));
                        prop_assert_eq!(announced, key);
                        prop_assert_eq!(twin.insert(u32::from(arg)), key);
                        prop_assert_eq!(model.insert(key, u32::from(arg)), None);
                    }
                }
                prop_assert_eq!(slab.len(), model.len());
                prop_assert_eq!(slab.is_empty(), model.is_empty());
                if let Some(key) = victim {
                    prop_assert_eq!(slab.get(key), model.get(&key));
                }
            }
            prop_assert!(slab.iter().eq(model.iter().map(|(key, value)| (*key, value))));
            prop_assert!(twin.iter().eq(slab.iter()));
        }
    }
}
