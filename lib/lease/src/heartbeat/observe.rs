//! Observers: those who want to see every beat.

use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use core::time::Duration;

use super::{Heartbeat, Node, OBSERVED};

/// A report on a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Beat {
    Beat,
    /// Progress as it was reported; [`Heartbeat::watermark`] is the highest.
    Progress {
        done: u64,
        total: Option<u64>,
    },
    /// A quiet section of at most so long has begun.
    Quiet {
        max: Duration,
    },
    QuietOver,
}

type BeatCallback = Arc<dyn Fn(Beat) + Send + Sync>;

/// Shared, so that they are called without the lock.
#[derive(Clone)]
pub(super) struct Observers(Arc<[(u64, BeatCallback)]>);

impl Default for Observers {
    fn default() -> Self {
        Self(Arc::from([]))
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

/// An observer, until this is dropped. Several may be dropped in any order.
#[derive(Debug)]
#[must_use = "an observer that is dropped sees nothing"]
pub struct Observer {
    node: Weak<Node>,
    id: u64,
}

impl Heartbeat {
    /// Calls `seen` for every beat from now on, on the thread that beats: it must be quick, and not block. An observer
    /// makes beats dearer. One that panics is logged and detached; the beat, and all other observers, go on.
    pub fn observe(&self, seen: impl Fn(Beat) + Send + Sync + 'static) -> Observer {
        let mut rest = self.node.rest();
        rest.next_id += 1;
        let id = rest.next_id;
        let all = rest.observers.0.iter().cloned().chain([(id, Arc::new(seen) as BeatCallback)]).collect();
        rest.observers = Observers(all);
        self.node.state.fetch_or(OBSERVED, Ordering::SeqCst);
        Observer { node: Arc::downgrade(&self.node), id }
    }
}

impl Node {
    pub(super) fn show(&self, observers: &Observers, beat: Beat) {
        for (id, seen) in observers.0.iter() {
            if catch_unwind(AssertUnwindSafe(|| seen(beat))).is_err() {
                tracing::error!("an observer of a heartbeat panicked, and sees no more beats");
                self.detach(*id);
            }
        }
    }

    fn detach(&self, id: u64) {
        let mut rest = self.rest();
        rest.observers = Observers(rest.observers.0.iter().filter(|(other, _)| *other != id).cloned().collect());
        if rest.observers.0.is_empty() {
            self.state.fetch_and(!OBSERVED, Ordering::SeqCst);
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        if let Some(node) = self.node.upgrade() {
            node.detach(self.id);
        }
    }
}
