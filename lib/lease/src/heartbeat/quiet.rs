//! Quiet sections: declared, bounded silence.

use core::future::Future;
use core::time::Duration;

use tokio::time::Instant;

use super::{Beat, Heartbeat};

/// The sections that last, the newest last.
#[derive(Debug, Default)]
pub(super) struct QuietSections(Vec<QuietSection>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QuietSection {
    pub(crate) id: u64,
    pub(crate) max: Duration,
    began: Instant,
}

/// A quiet section, until this is dropped.
#[derive(Debug)]
#[must_use = "a quiet section ends when this is dropped"]
pub struct Quiet {
    heartbeat: Heartbeat,
    id: u64,
    /// The same section of the parent.
    _above: Option<Box<Quiet>>,
}

impl Heartbeat {
    /// Declares silence for at most `max`, for one call that cannot report, such as a completion of a language model or a
    /// long SQL statement. Lease and stuck clock stand still until this is dropped, or `max` or the attempt's quiet
    /// budget is over.
    pub fn quiet(&self, max: Duration) -> Quiet {
        let above = self.node.parent.as_ref().map(|parent| Box::new(parent.quiet(max)));
        let mut rest = self.node.rest();
        rest.next_id += 1;
        let id = rest.next_id;
        rest.quiet.0.push(QuietSection { id, max, began: Instant::now() });
        rest.listeners.tell_quiet();
        let observers = rest.observers.clone();
        drop(rest);
        self.node.show(&observers, Beat::Quiet { max });
        Quiet { heartbeat: self.clone(), id, _above: above }
    }

    /// Waits for `call` in a quiet section of at most `max`, which ends with it.
    pub async fn quietly<T>(&self, max: Duration, call: impl Future<Output = T>) -> T {
        let _quiet = self.quiet(max);
        call.await
    }

    /// What is left of the newest quiet section that lasts.
    pub fn quiet_left(&self) -> Option<Duration> {
        let section = self.quiet_section()?;
        Some(section.max.saturating_sub(section.began.elapsed()))
    }

    pub(crate) fn quiet_section(&self) -> Option<QuietSection> {
        self.node.rest().quiet.0.last().copied()
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let node = &self.heartbeat.node;
        let mut rest = node.rest();
        rest.quiet.0.retain(|section| section.id != self.id);
        rest.listeners.tell_quiet();
        let observers = rest.observers.clone();
        drop(rest);
        node.show(&observers, Beat::QuietOver);
    }
}
