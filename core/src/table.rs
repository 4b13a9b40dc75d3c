//! Values by key that grow page by page, for what is kept beside a slab under the slab's keys.
//!
//! A vector of millions is moved when it grows, in one step; a table never is.

use core::ops::{Index, IndexMut};

use prefetch_index::prefetch_index;

const PAGE: usize = 512;

#[derive(Clone, Debug)]
pub struct Table<T> {
    pages: Vec<Box<[T; PAGE]>>,
    /// What lies under a key that nothing was put under.
    blank: T,
}

impl<T: Clone> Table<T> {
    pub const fn new(blank: T) -> Self {
        Self { pages: Vec::new(), blank }
    }

    /// What lies under this key; pages up to it are made where there are none.
    #[inline]
    pub fn entry(&mut self, key: u32) -> &mut T {
        let (page, slot) = split(key);
        while self.pages.len() <= page {
            let page = vec![self.blank.clone(); PAGE].into_boxed_slice();
            let Ok(page) = Box::try_from(page) else { unreachable!("a page was just built to size") };
            self.pages.push(page);
        }
        &mut self.pages[page][slot]
    }
}

impl<T> Table<T> {
    #[inline]
    pub fn get(&self, key: u32) -> Option<&T> {
        let (page, slot) = split(key);
        self.pages.get(page).map(|page| &page[slot])
    }

    #[inline]
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        let (page, slot) = split(key);
        self.pages.get_mut(page).map(|page| &mut page[slot])
    }

    /// Has it brought into the caches, and does not wait for it.
    #[inline]
    pub fn prefetch(&self, key: u32) {
        let (page, slot) = split(key);
        if let Some(page) = self.pages.get(page) {
            prefetch_index(page.as_slice(), slot);
        }
    }

    /// In the order of the keys, blanks included.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flat_map(|page| page.iter())
    }
}

/// Panics on a key beyond all that something was put under.
impl<T> Index<u32> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, key: u32) -> &T {
        let (page, slot) = split(key);
        &self.pages[page][slot]
    }
}

impl<T> IndexMut<u32> for Table<T> {
    #[inline]
    fn index_mut(&mut self, key: u32) -> &mut T {
        let (page, slot) = split(key);
        &mut self.pages[page][slot]
    }
}

#[inline]
const fn split(key: u32) -> (usize, usize) {
    (key as usize / PAGE, key as usize % PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_makes_blanks_and_moves_nothing() {
        let mut table = Table::new(7);
        assert_eq!(table.get(0), None);
        *table.entry(3) = 1;
        let before: *const i32 = &table[3];
        *table.entry(PAGE as u32 * 9) = 2;
        assert_eq!(before, &raw const table[3]);
        assert_eq!((table[3], table[4], table[PAGE as u32 * 9]), (1, 7, 2));
        assert_eq!((table.get(PAGE as u32 * 10 - 1), table.get(PAGE as u32 * 10)), (Some(&7), None));
        table[4] = 5;
        *table.get_mut(5).unwrap() = 6;
        assert_eq!(table.iter().filter(|value| **value != 7).copied().collect::<Vec<_>>(), [1, 5, 6, 2]);
    }
}
