//! The latest health of every node, from datagrams and from broadcasts.
//!
//! foca keeps what handles its broadcasts to itself, so the machine and that handler share the table. One thread steps
//! the machine; the lock is never waited for.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onward_core::time::Mono;

use crate::health::{BlockError, Broadcast, HealthReport};
use crate::identity::NodeIdentity;

/// The last report of one node.
#[derive(Clone, Debug)]
pub(crate) struct HealthRow {
    pub(crate) incarnation: u64,
    pub(crate) report: HealthReport,
    pub(crate) at: Mono,
    /// Life and number of the latest broadcast that was passed on. Apart from the report, since datagrams bring that too,
    /// often in front of the very broadcast, which would then be news to nobody.
    passed_on: (u64, u32),
}

#[derive(Debug)]
pub(crate) struct HealthTable {
    /// The instant when the machine was last stepped.
    pub(crate) now: Mono,
    own: SocketAddr,
    max: usize,
    heard: BTreeMap<SocketAddr, HealthRow>,
}

impl HealthTable {
    /// Keeps what a node says about itself, unless something newer is known.
    pub(crate) fn hear(&mut self, from: SocketAddr, incarnation: u64, report: HealthReport) {
        let passed_on = match self.heard.get(&from) {
            Some(known) if (incarnation, report.sequence) < (known.incarnation, known.report.sequence) => return,
            None if self.heard.len() >= self.max => return,
            Some(known) => known.passed_on,
            None => (0, 0),
        };
        self.heard.insert(from, HealthRow { incarnation, report, at: self.now, passed_on });
    }

    /// The same from a broadcast. Whether that is to be passed on: once, and not after a newer one.
    fn hear_broadcast(&mut self, from: SocketAddr, incarnation: u64, report: HealthReport) -> bool {
        let number = (incarnation, report.sequence);
        self.hear(from, incarnation, report);
        let Some(known) = self.heard.get_mut(&from) else { return false };
        let is_news = number > known.passed_on;
        known.passed_on = known.passed_on.max(number);
        is_news
    }

    pub(crate) fn get(&self, of: &NodeIdentity) -> Option<&HealthRow> {
        self.heard.get(&of.address).filter(|heard| heard.incarnation == of.incarnation)
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&SocketAddr) -> bool) {
        self.heard.retain(|address, _| keep(address));
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SharedHealth(Arc<Mutex<HealthTable>>);

impl SharedHealth {
    pub(crate) fn new(own: SocketAddr, max: usize) -> Self {
        let table = HealthTable { now: Mono::ZERO, own, max, heard: BTreeMap::new() };
        Self(Arc::new(Mutex::new(table)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, HealthTable> {
        // A table of which every entry stands for itself is as good after a panic as before.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The node that a broadcast is about: a newer one about it replaces an older one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BroadcastKey(SocketAddr);

impl foca::Invalidates for BroadcastKey {
    fn invalidates(&self, other: &Self) -> bool {
        self == other
    }
}

impl foca::BroadcastHandler<NodeIdentity> for SharedHealth {
    type Key = BroadcastKey;
    type Error = BlockError;

    /// Passed on only if it is news; our own, if we said it.
    fn receive_item(&mut self, data: &[u8], sender: Option<&NodeIdentity>) -> Result<Option<BroadcastKey>, BlockError> {
        let Broadcast { address, incarnation, block } = Broadcast::from_bytes(data)?;
        let mut table = self.lock();
        let is_news = match sender {
            None => address == table.own,
            Some(_) => address != table.own && table.hear_broadcast(address, incarnation, block.report),
        };
        Ok(is_news.then_some(BroadcastKey(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_word_of_the_latest_life_counts_and_a_broadcast_is_passed_on_once() {
        let shared = SharedHealth::new("127.0.0.1:1".parse().unwrap(), 2);
        let mut table = shared.lock();
        let of = |sequence| HealthReport { sequence, ..HealthReport::default() };
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        // from, life, number, passed on if broadcast -> known then
        let rows = [
            (2, 5, 3, None, Some((5, 3))),
            (2, 5, 3, Some(true), Some((5, 3))),
            (2, 5, 3, Some(false), Some((5, 3))),
            (2, 5, 2, None, Some((5, 3))),
            (2, 5, 2, Some(false), Some((5, 3))),
            (2, 6, 1, Some(true), Some((6, 1))),
            (2, 5, 9, None, Some((6, 1))),
            (3, 1, 1, None, Some((1, 1))),
            (4, 1, 1, Some(false), None),
        ];
        for (row, (port, life, number, passed_on, known)) in rows.into_iter().enumerate() {
            match passed_on {
                None => table.hear(at(port), life, of(number)),
                Some(passed_on) => {
                    assert_eq!(table.hear_broadcast(at(port), life, of(number)), passed_on, "row {row}");
                }
            }
            let found = table.heard.get(&at(port)).map(|heard| (heard.incarnation, heard.report.sequence));
            assert_eq!(found, known, "row {row}");
        }
    }
}
