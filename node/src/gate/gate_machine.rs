//! A gate as a machine of the run loop: core's gate, and the codec of its log.

use onward_core::fence::Term;
use onward_core::gate::effect::Effects;
use onward_core::gate::event::StampedEvent;
use onward_core::gate::input::Input;
use onward_core::gate::{Gate, SnapshotRecord};
use onward_core::ids::Seq;
use onward_core::payload;
use onward_core::time::{Mono, Now};
use onward_log::codec::{self, DecodeError};
use onward_log::{BlobDigest, Error, StoredRow};

use crate::run_loop::StateMachine;

impl StateMachine for Gate {
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
        self.size()
    }

    fn refers_to(&self, digest: &BlobDigest) -> bool {
        self.refers_to(&payload::Digest(*digest))
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
        self.snapshot_next(max)
    }

    fn abandon_snapshot(&mut self) {
        self.abandon_snapshot();
    }

    fn encode_events(events: &[StampedEvent], out: &mut Vec<u8>) {
        codec::gate::encode_events(events, out);
    }

    fn decode_events(row: &StoredRow) -> Result<Vec<StampedEvent>, DecodeError> {
        codec::gate::decode_events(row)
    }

    fn encode_records(records: &[SnapshotRecord], out: &mut Vec<u8>) {
        codec::gate::encode_records(records, out);
    }

    fn decode_records(chunk: &[u8]) -> Result<Vec<SnapshotRecord>, DecodeError> {
        codec::gate::decode_records(chunk)
    }
}
