//! The soft side of running attempts: what beats tell us.

use core::ops::{Index, IndexMut};
use core::time::Duration;

use crate::beat::{AttemptClock, Motion};
use crate::health::progress::UnmovingAttempt;
use crate::list::{Links, ListNode};
use crate::state::{Attempt, AttemptKey, WorkflowKey};
use crate::table::Table;
use crate::time::Awake;
use crate::wheel::TimerKey;

use super::super::notes::Notes;
use super::workers::WorkerKey;

/// A running attempt as it is heard of. Lies beside the persisted attempt, under the same key.
#[derive(Clone, Debug)]
pub(crate) struct LiveAttempt {
    pub clock: AttemptClock,
    pub workflow: WorkflowKey,
    pub worker: WorkerKey,
    pub lease: Duration,
    pub stuck_after: Duration,
    pub require_progress: bool,
    /// Set if the attempt is stuck, and a gate decides about it: its stuck clock is not looked at until it moves again.
    pub is_left_to_gate: bool,
    pub motion: Motion,
    /// The end of its stuck clock as its worker counts it, if the attempt is unmoving.
    pub counted_stuck_at: Option<Awake>,
    pub timer: Option<TimerKey<AttemptKey>>,
    pub armed: Awake,
    pub marked_at: Awake,
    pub notes: Notes,
    pub note: Option<Box<str>>,
    /// Links among the attempts of the same worker.
    pub links: Links<Attempt>,
}

impl ListNode<Attempt> for LiveAttempt {
    #[inline]
    fn links(&self) -> &Links<Attempt> {
        &self.links
    }

    #[inline]
    fn links_mut(&mut self) -> &mut Links<Attempt> {
        &mut self.links
    }
}

impl LiveAttempt {
    /// The attempt as one that does not move.
    pub fn unmoving(&self) -> UnmovingAttempt {
        UnmovingAttempt { stuck_at: self.clock.stuck_at(self.stuck_after), stuck_after: self.stuck_after }
    }
}

/// All running attempts, by their key in the state.
#[derive(Debug)]
pub(crate) struct LiveAttempts(Table<Attempt, Option<LiveAttempt>>);

impl Default for LiveAttempts {
    fn default() -> Self {
        Self(Table::new(None))
    }
}

impl LiveAttempts {
    pub fn insert(&mut self, key: AttemptKey, live: LiveAttempt) {
        *self.0.entry(key) = Some(live);
    }

    /// Takes an attempt out that is in no worker's list any more.
    pub fn take(&mut self, key: AttemptKey) -> LiveAttempt {
        self.0[key].take().expect("every running attempt is live")
    }

    pub fn get(&self, key: AttemptKey) -> Option<&LiveAttempt> {
        self.0.get(key)?.as_ref()
    }

    pub fn at(&mut self, key: AttemptKey) -> &mut LiveAttempt {
        &mut self[key]
    }
}

impl Index<AttemptKey> for LiveAttempts {
    type Output = LiveAttempt;

    #[inline]
    fn index(&self, key: AttemptKey) -> &LiveAttempt {
        self.0[key].as_ref().expect("every running attempt is live")
    }
}

impl IndexMut<AttemptKey> for LiveAttempts {
    #[inline]
    fn index_mut(&mut self, key: AttemptKey) -> &mut LiveAttempt {
        self.0[key].as_mut().expect("every running attempt is live")
    }
}
