//! A manager as a machine of the run loop: core's manager, and the codec of its log. While it follows, with the catalog
//! of its jobs.

use onward_core::effect::Effects;
use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::input::Input;
use onward_core::manager::{Manager, SnapshotRecord};
use onward_core::payload;
use onward_core::time::{Mono, Now};
use onward_log::codec::{self, DecodeError};
use onward_log::{BlobDigest, Error, StoredRow};

use crate::catalog::Catalog;
use crate::run_loop::StateMachine;

impl StateMachine for Manager {
    type Input = Input;
    type Effects = Effects;
    type Event = StampedEvent;
    type Record = SnapshotRecord;

    fn step(&mut self, now: Now, input: Input, out: &mut Effects) {
        self.step(now, input, out);
    }

    fn seat_taken(term: Term) -> Input {
        Input::SeatTaken { term }
    }

    fn next_wakeup(&self) -> Option<Mono> {
        self.next_wakeup().map(|(at, _)| at)
    }

    fn apply(&mut self, event: &StampedEvent) {
        self.apply(event);
    }

    fn newest(&self) -> Seq {
        self.newest()
    }

    fn size(&self) -> u64 {
        self.state().job_count() as u64
    }

    fn refers_to(&self, digest: &BlobDigest) -> bool {
        self.state().stored_refs(&payload::Digest(*digest)) > 0
    }

    fn restore(&mut self, record: SnapshotRecord) {
        self.restore(record);
    }

    fn finish_restore(&mut self) -> Result<Seq, Error> {
        self.finish_restore().map_err(|cut| Error::Corrupt { what: cut.to_string() })
    }

    fn begin_snapshot(&mut self) -> Seq {
        self.begin_snapshot()
    }

    fn next_records(&mut self, max: usize) -> (Vec<SnapshotRecord>, bool) {
        let part = self.snapshot_next(max);
        (part.records, part.done)
    }

    fn abandon_snapshot(&mut self) {
        self.abandon_snapshot();
    }

    fn encode_events(events: &[StampedEvent], out: &mut Vec<u8>) {
        codec::encode_events(events, out);
    }

    fn decode_events(row: &StoredRow) -> Result<Vec<StampedEvent>, DecodeError> {
        Ok(codec::decode_row(row)?.events)
    }

    fn encode_records(records: &[SnapshotRecord], out: &mut Vec<u8>) {
        codec::encode_records(records, out);
    }

    fn decode_records(chunk: &[u8]) -> Result<Vec<SnapshotRecord>, DecodeError> {
        codec::decode_records(chunk)
    }
}

/// A manager that follows. Its catalog grows with each event: to build it of all jobs takes its time, and a takeover is
/// when nobody has any.
#[derive(Debug)]
pub(super) struct ManagerWithCatalog {
    pub(super) manager: Manager,
    pub(super) catalog: Catalog,
}

impl ManagerWithCatalog {
    pub(super) fn new(manager: Manager) -> Self {
        Self { manager, catalog: Catalog::default() }
    }
}

impl StateMachine for ManagerWithCatalog {
    type Input = Input;
    type Effects = Effects;
    type Event = StampedEvent;
    type Record = SnapshotRecord;

    fn step(&mut self, now: Now, input: Input, out: &mut Effects) {
        StateMachine::step(&mut self.manager, now, input, out);
    }

    fn seat_taken(term: Term) -> Input {
        <Manager as StateMachine>::seat_taken(term)
    }

    fn next_wakeup(&self) -> Option<Mono> {
        StateMachine::next_wakeup(&self.manager)
    }

    fn apply(&mut self, event: &StampedEvent) {
        self.manager.apply(event);
        self.catalog.follow(&event.event);
    }

    fn newest(&self) -> Seq {
        self.manager.newest()
    }

    fn size(&self) -> u64 {
        StateMachine::size(&self.manager)
    }

    fn refers_to(&self, digest: &BlobDigest) -> bool {
        StateMachine::refers_to(&self.manager, digest)
    }

    fn restore(&mut self, record: SnapshotRecord) {
        self.manager.restore(record);
    }

    fn finish_restore(&mut self) -> Result<Seq, Error> {
        let reached = StateMachine::finish_restore(&mut self.manager)?;
        self.catalog = Catalog::of(self.manager.state());
        Ok(reached)
    }

    fn begin_snapshot(&mut self) -> Seq {
        self.manager.begin_snapshot()
    }

    fn next_records(&mut self, max: usize) -> (Vec<SnapshotRecord>, bool) {
        StateMachine::next_records(&mut self.manager, max)
    }

    fn abandon_snapshot(&mut self) {
        self.manager.abandon_snapshot();
    }

    fn encode_events(events: &[StampedEvent], out: &mut Vec<u8>) {
        <Manager as StateMachine>::encode_events(events, out);
    }

    fn decode_events(row: &StoredRow) -> Result<Vec<StampedEvent>, DecodeError> {
        <Manager as StateMachine>::decode_events(row)
    }

    fn encode_records(records: &[SnapshotRecord], out: &mut Vec<u8>) {
        <Manager as StateMachine>::encode_records(records, out);
    }

    fn decode_records(chunk: &[u8]) -> Result<Vec<SnapshotRecord>, DecodeError> {
        <Manager as StateMachine>::decode_records(chunk)
    }
}
