//! Quiet sections: declared, bounded silence.

use core::future::Future;
use core::time::Duration;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::{Beat, Heartbeat};

/// The sections that last, the newest last, each with the same section of the parent.
#[derive(Debug, Default)]
pub(super) struct QuietSections(Vec<(QuietSection, Option<Quiet>)>);

impl QuietSections {
    /// The sections of the parent, which end when they are dropped. Not while the lock is held: that of the parent is
    /// taken by it.
    pub(super) fn take_above(&mut self) -> Vec<Quiet> {
        self.0.iter_mut().filter_map(|(_, above)| above.take()).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QuietSection {
    pub(crate) id: u64,
    pub(crate) max: Duration,
    began: Instant,
}

impl QuietSection {
    fn left(&self) -> Duration {
        self.max.saturating_sub(self.began.elapsed())
    }
}

/// A quiet section, until this is dropped.
#[derive(Debug)]
#[must_use = "a quiet section ends when this is dropped"]
pub struct Quiet {
    heartbeat: Heartbeat,
    id: u64,
}

impl Heartbeat {
    /// Declares silence for at most `max`, for one call that cannot report, such as a completion of a language model or a
    /// long SQL statement. Lease and stuck clock stand still until this is dropped, or `max` or the attempt's quiet
    /// budget is over.
    pub fn quiet(&self, max: Duration) -> Quiet {
        let is_heard = || !self.node.is_detached.load(Ordering::SeqCst);
        let mut above = self.node.parent.as_ref().filter(|_| is_heard()).map(|parent| parent.quiet(max));
        let mut rest = self.node.rest();
        rest.next_id += 1;
        let id = rest.next_id;
        let section = QuietSection { id, max, began: Instant::now() };
        rest.quiet.0.push((section, above.take_if(|_| is_heard())));
        rest.listeners.tell_quiet(Some(max));
        let observers = rest.observers.clone();
        drop(rest);
        self.node.show(&observers, Beat::Quiet { max });
        Quiet { heartbeat: self.clone(), id }
    }

    /// Waits for `call` in a quiet section of at most `max`, which ends with it.
    pub async fn quietly<T>(&self, max: Duration, call: impl Future<Output = T>) -> T {
        let _quiet = self.quiet(max);
        call.await
    }

    /// The time left of the newest quiet section that lasts.
    pub fn quiet_left(&self) -> Option<Duration> {
        self.quiet_section().map(|section| section.left())
    }

    pub(crate) fn quiet_section(&self) -> Option<QuietSection> {
        self.node.rest().quiet.0.last().map(|(section, _)| *section)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let node = &self.heartbeat.node;
        let mut rest = node.rest();
        let place = rest.quiet.0.iter().position(|(section, _)| section.id == self.id);
        let ended = place.map(|place| rest.quiet.0.remove(place));
        rest.listeners.tell_quiet(rest.quiet.0.last().map(|(section, _)| section.left()));
        let observers = rest.observers.clone();
        drop(rest);
        node.show(&observers, Beat::QuietOver);
        // The parent's ends last, without this one's lock.
        drop(ended);
    }
}
