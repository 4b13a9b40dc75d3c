//! Doubly linked lists through values that lie elsewhere, each under its key: O(1) to add at either end and to take out
//! anywhere.
//!
//! A list is a ring, in which the first follows the last. So a list is no more than the key of its first member, and one
//! key also leads to the end.

use core::ops::{Index, IndexMut};

use crate::key::Key;

/// The neighbours of one member.
#[derive(Debug)]
pub struct Links<K> {
    prev: Key<K>,
    next: Key<K>,
}

impl<K> Links<K> {
    /// Links of an item that is in no list: nobody reads them before it is put into one.
    pub const UNLINKED: Self = Self { prev: Key::FIRST, next: Key::FIRST };
}

impl<K> Clone for Links<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Links<K> {}

/// Carries the links of the list that it is in.
pub trait ListNode<K> {
    fn links(&self) -> &Links<K>;
    fn links_mut(&mut self) -> &mut Links<K>;
}

/// The first of the members; those lie in a store that every call is given.
#[derive(Debug)]
pub struct List<K> {
    head: Option<Key<K>>,
}

impl<K> Clone for List<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for List<K> {}

impl<K> List<K> {
    pub const EMPTY: Self = Self { head: None };

    #[inline]
    pub const fn head(&self) -> Option<Key<K>> {
        self.head
    }

    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    pub fn last<S>(&self, store: &S) -> Option<Key<K>>
    where
        S: Index<Key<K>>,
        S::Output: ListNode<K>,
    {
        self.head.map(|head| store[head].links().prev)
    }

    #[inline]
    pub fn push_back<S>(&mut self, store: &mut S, key: Key<K>)
    where
        S: IndexMut<Key<K>>,
        S::Output: ListNode<K>,
    {
        let Some(head) = self.head else {
            self.head = Some(key);
            return link(store, key, key);
        };
        let last = store[head].links().prev;
        link(store, last, key);
        link(store, key, head);
    }

    #[inline]
    pub fn push_front<S>(&mut self, store: &mut S, key: Key<K>)
    where
        S: IndexMut<Key<K>>,
        S::Output: ListNode<K>,
    {
        self.push_back(store, key);
        self.head = Some(key);
    }

    /// The first goes behind the last.
    pub fn rotate<S>(&mut self, store: &S)
    where
        S: Index<Key<K>>,
        S::Output: ListNode<K>,
    {
        self.head = self.head.map(|head| store[head].links().next);
    }

    /// Takes a member out.
    #[inline]
    pub fn remove<S>(&mut self, store: &mut S, key: Key<K>)
    where
        S: IndexMut<Key<K>>,
        S::Output: ListNode<K>,
    {
        let Links { prev, next } = *store[key].links();
        if next == key {
            self.head = None;
            return;
        }
        link(store, prev, next);
        if self.head == Some(key) {
            self.head = Some(next);
        }
    }

    pub fn iter<'a, S>(&self, store: &'a S) -> impl Iterator<Item = Key<K>> + use<'a, K, S>
    where
        S: Index<Key<K>>,
        S::Output: ListNode<K>,
    {
        let head = self.head;
        let mut at = head;
        core::iter::from_fn(move || {
            let key = at?;
            at = Some(store[key].links().next).filter(|next| Some(*next) != head);
            Some(key)
        })
    }
}

#[inline]
fn link<K, S>(store: &mut S, prev: Key<K>, next: Key<K>)
where
    S: IndexMut<Key<K>>,
    S::Output: ListNode<K>,
{
    store[prev].links_mut().next = next;
    store[next].links_mut().prev = prev;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pages;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    struct Member(Links<Self>);

    impl ListNode<Self> for Member {
        fn links(&self) -> &Links<Self> {
            &self.0
        }

        fn links_mut(&mut self) -> &mut Links<Self> {
            &mut self.0
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_queue_that_gives_up_any_member(calls in prop::collection::vec((0..5_u8, any::<u8>()), 0..200)) {
            let mut store = Pages::new();
            let mut list = List::EMPTY;
            let mut model = VecDeque::new();
            for (call, arg) in calls {
                let victim = usize::from(arg) % model.len().max(1);
                match call {
                    0 if !model.is_empty() => {
                        let key = model.remove(victim).expect("there is one");
                        list.remove(&mut store, key);
                        store.remove(key);
                    }
                    1 if !model.is_empty() => {
                        list.rotate(&store);
                        model.rotate_left(1);
                    }
                    2 => {
                        let key = store.insert(Member(Links::UNLINKED));
                        list.push_front(&mut store, key);
                        model.push_front(key);
                    }
                    _ => {
                        let key = store.insert(Member(Links::UNLINKED));
                        list.push_back(&mut store, key);
                        model.push_back(key);
                    }
                }
                prop_assert!(list.iter(&store).eq(model.iter().copied()));
                prop_assert_eq!((list.head(), list.last(&store)), (model.front().copied(), model.back().copied()));
                prop_assert_eq!(list.is_empty(), model.is_empty());
            }
        }
    }
}
