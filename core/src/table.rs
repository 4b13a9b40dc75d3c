//! Values by key that grow page by page, for what is kept beside a slab under the slab's keys.
//!
//! A vector of millions is moved when it grows, in one step; a table never is.

use core::marker::PhantomData;
use core::ops::{Index, IndexMut};

use prefetch_index::prefetch_index;

use crate::key::Key;

const PAGE: usize = 512;

/// A `T` under each key of a `K`.
#[derive(Clone, Debug)]
pub struct Table<K, T> {
    pages: Vec<Box<[T; PAGE]>>,
    /// The value under a key that nothing was put under.
    blank: T,
    by: PhantomData<fn(K)>,
}

impl<K, T: Clone> Table<K, T> {
    pub const fn new(blank: T) -> Self {
        Self { pages: Vec::new(), blank, by: PhantomData }
    }

    /// The value under this key; pages up to it are made where there are none.
    #[inline]
    pub fn entry(&mut self, key: Key<K>) -> &mut T {
        let (page, slot) = split(key);
        while self.pages.len() <= page {
            let page = vec![self.blank.clone(); PAGE].into_boxed_slice();
            let Ok(page) = Box::try_from(page) else { unreachable!("a page was just built to size") };
            self.pages.push(page);
        }
        &mut self.pages[page][slot]
    }
}

impl<K, T> Table<K, T> {
    #[inline]
    pub fn get(&self, key: Key<K>) -> Option<&T> {
        let (page, slot) = split(key);
        self.pages.get(page).map(|page| &page[slot])
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key<K>) -> Option<&mut T> {
        let (page, slot) = split(key);
        self.pages.get_mut(page).map(|page| &mut page[slot])
    }

    /// Has it brought into the caches, and does not wait for it.
    #[inline]
    pub fn prefetch(&self, key: Key<K>) {
        let (page, slot) = split(key);
        if let Some(page) = self.pages.get(page) {
            prefetch_index(page.as_slice(), slot);
        }
    }

    /// Values in the order of the keys, blanks included.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flat_map(|page| page.iter())
    }
}

/// Panics on a key beyond all that something was put under.
impl<K, T> Index<Key<K>> for Table<K, T> {
    type Output = T;

    #[inline]
    fn index(&self, key: Key<K>) -> &T {
        let (page, slot) = split(key);
        &self.pages[page][slot]
    }
}

impl<K, T> IndexMut<Key<K>> for Table<K, T> {
    #[inline]
    fn index_mut(&mut self, key: Key<K>) -> &mut T {
        let (page, slot) = split(key);
        &mut self.pages[page][slot]
    }
}

#[inline]
const fn split<K>(key: Key<K>) -> (usize, usize) {
    (key.index() / PAGE, key.index() % PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_makes_blanks_and_moves_nothing() {
        let mut table = Table::<(), i32>::new(7);
        let page = PAGE as u32;
        let [third, fourth, fifth, far] = [3, 4, 5, 9 * page].map(|index| Key::at(index).unwrap());
        assert_eq!(table.get(third), None);
        *table.entry(third) = 1;
        let before: *const i32 = &table[third];
        *table.entry(far) = 2;
        assert_eq!(before, &raw const table[third]);
        assert_eq!((table[third], table[fourth], table[far]), (1, 7, 2));
        let [last, beyond] = [10 * page - 1, 10 * page].map(|index| Key::at(index).unwrap());
        assert_eq!((table.get(last), table.get(beyond)), (Some(&7), None));
        table[fourth] = 5;
        *table.get_mut(fifth).unwrap() = 6;
        assert_eq!(table.iter().filter(|value| **value != 7).copied().collect::<Vec<_>>(), [1, 5, 6, 2]);
    }
}
