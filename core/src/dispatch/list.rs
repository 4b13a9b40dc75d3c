//! Doubly linked lists through entries that live elsewhere: O(1) to add at the end and to take out anywhere.

use crate::state::NO_KEY;

#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    pub(super) const NONE: Self = Self { prev: NO_KEY, next: NO_KEY };
}

/// Something that carries links.
pub(super) trait Linked {
    fn links(&mut self) -> &mut Links;
    fn next(&self) -> u32;
}

impl Linked for super::groups::Seat {
    #[inline]
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn next(&self) -> u32 {
        self.links.next
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { head: NO_KEY, tail: NO_KEY, len: 0 };

    /// `NO_KEY` if empty.
    #[inline]
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn iter<'a, T: Linked>(&self, all: &'a [T]) -> impl Iterator<Item = u32> + use<'a, T> {
        let mut at = self.head;
        core::iter::from_fn(move || {
            let key = at;
            at = all.get(key as usize)?.next();
            Some(key)
        })
    }

    pub(super) fn push_back<T: Linked>(&mut self, all: &mut [T], key: u32) {
        *all[key as usize].links() = Links { prev: self.tail, next: NO_KEY };
        match self.tail {
            NO_KEY => self.head = key,
            tail => all[tail as usize].links().next = key,
        }
        self.tail = key;
        self.len += 1;
    }

    pub(super) fn remove<T: Linked>(&mut self, all: &mut [T], key: u32) {
        let Links { prev, next } = core::mem::replace(all[key as usize].links(), Links::NONE);
        match prev {
            NO_KEY => self.head = next,
            prev => all[prev as usize].links().next = next,
        }
        match next {
            NO_KEY => self.tail = prev,
            next => all[next as usize].links().prev = prev,
        }
        self.len -= 1;
    }
}
