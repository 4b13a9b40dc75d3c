//! What a gate stores, in the same bytes and under the same rules as a manager's.

use onward_core::gate::SnapshotRecord;
use onward_core::gate::event::StampedEvent;

use super::bytes::{FieldReader, StoredForm as _, put_list};
use super::{DecodeError, Format, unframe, v2};
use crate::row::{StoredRow, framed};

/// Appends the events to `out`: the body of a row.
pub fn encode_events(events: &[StampedEvent], out: &mut Vec<u8>) {
    events.iter().for_each(|event| event.put(out));
}

/// All events of a row.
pub fn decode_events(row: &StoredRow) -> Result<Vec<StampedEvent>, DecodeError> {
    let mut from = FieldReader { bytes: row.body(), format: Format::of(row.format) };
    let events = from.items(u64::from(row.count))?;
    from.end()?;
    Ok(events)
}

/// Some records of a snapshot: what one chunk holds.
pub fn encode_records(records: &[SnapshotRecord], out: &mut Vec<u8>) {
    framed(out, |out| put_list(records, out));
}

pub fn decode_records(chunk: &[u8]) -> Result<Vec<SnapshotRecord>, DecodeError> {
    v2::get_whole(unframe(chunk)?)
}
