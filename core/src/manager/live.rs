//! The soft side of running attempts: what beats tell us.

use core::time::Duration;

use crate::beat::{AttemptClock, Motion};
use crate::health::progress::Unmoving;
use crate::state::{AttemptKey, NO_KEY, WorkflowKey};
use crate::table::Table;
use crate::time::Awake;
use crate::wheel::TimerKey;

use super::notes::Notes;
use super::workers::WorkerKey;

/// One running attempt as it is heard of. Lies beside the persisted attempt, under the same key.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub clock: AttemptClock,
    pub workflow: WorkflowKey,
    pub worker: WorkerKey,
    pub lease: Duration,
    pub stuck_after: Duration,
    pub require_progress: bool,
    pub motion: Motion,
    /// When its stuck clock runs out as its worker counts it, if it is unmoving.
    pub counted_stuck_at: Option<Awake>,
    pub timer: TimerKey,
    pub armed: Awake,
    pub marked_at: Awake,
    pub notes: Notes,
    pub note: Option<Box<str>>,
    /// Neighbours among the attempts of the same worker.
    pub prev: AttemptKey,
    pub next: AttemptKey,
}

impl Live {
    /// As one that does not move.
    pub fn unmoving(&self) -> Unmoving {
        Unmoving { stuck_at: self.clock.stuck_at(self.stuck_after), stuck_after: self.stuck_after }
    }
}

/// All running attempts, by their key in the state.
#[derive(Debug)]
pub(super) struct LiveAttempts(Table<Option<Live>>);

impl Default for LiveAttempts {
    fn default() -> Self {
        Self(Table::new(None))
    }
}

impl LiveAttempts {
    pub fn insert(&mut self, key: AttemptKey, live: Live) {
        *self.0.entry(key) = Some(live);
    }

    pub fn take(&mut self, key: AttemptKey) -> Option<Live> {
        self.0.get_mut(key)?.take()
    }

    pub fn get(&self, key: AttemptKey) -> Option<&Live> {
        self.0.get(key)?.as_ref()
    }

    pub fn at(&mut self, key: AttemptKey) -> &mut Live {
        self.0[key].as_mut().expect("every running attempt is live")
    }

    /// Puts an attempt at the head of a worker's list; returns the new head.
    pub fn link(&mut self, key: AttemptKey, head: AttemptKey) -> AttemptKey {
        let live = self.at(key);
        live.prev = NO_KEY;
        live.next = head;
        if head != NO_KEY {
            self.at(head).prev = key;
        }
        key
    }

    /// Takes an attempt, already removed, out of a worker's list; returns the new head.
    pub fn unlink(&mut self, gone: &Live, head: AttemptKey) -> AttemptKey {
        if gone.next != NO_KEY {
            self.at(gone.next).prev = gone.prev;
        }
        if gone.prev == NO_KEY {
            gone.next
        } else {
            self.at(gone.prev).next = gone.next;
            head
        }
    }

    /// The attempts of the worker whose list begins at `head`.
    pub fn from(&self, head: AttemptKey) -> impl Iterator<Item = AttemptKey> + '_ {
        let mut at = head;
        core::iter::from_fn(move || {
            let key = at;
            at = self.get(key)?.next;
            Some(key)
        })
    }
}
