//! Ids in the order of a time, many to a row.
//!
//! Jobs end by the dozen in a millisecond where it matters how long archiving takes. A tree with an entry for each would
//! be most of the work; so a row has the ids of up to [`MOST`] jobs of one millisecond, and is found by that and the
//! first of them. Rows of one millisecond may overlap, if they were stored at different times.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use ::redb::{ReadableTable, Table, TableDefinition};

use crate::engines::embedded::fault::StoreFault;
use crate::engines::embedded::rows::corrupt;

/// Rows by a time and the first id: all ids, in their order, as they sort.
pub(crate) type OrderTable = TableDefinition<'static, Entry, &'static [u8]>;

/// Few enough that writing a row anew for one of them costs little.
const MOST: usize = 64;
const ID_BYTES: usize = size_of::<u128>();

/// A time in milliseconds, and an id.
type Entry = (u64, u128);

pub(super) struct Order<'a>(pub(super) Table<'a, Entry, &'static [u8]>);

impl Order<'_> {
    /// None of these may be there.
    pub(super) fn add(&mut self, mut entries: Vec<Entry>) -> Result<(), StoreFault> {
        entries.sort_unstable();
        let mut row = Vec::with_capacity(MOST * ID_BYTES);
        for same_time in entries.chunk_by(|one, next| one.0 == next.0) {
            for entries in same_time.chunks(MOST) {
                row.clear();
                entries.iter().for_each(|(_, id)| row.extend_from_slice(&id.to_be_bytes()));
                self.0.insert(entries[0], &row[..])?;
            }
        }
        Ok(())
    }

    /// All of these must be there.
    pub(super) fn remove(&mut self, mut entries: Vec<Entry>) -> Result<(), StoreFault> {
        entries.sort_unstable();
        let mut is_gone = vec![false; entries.len()];
        for at in 0..entries.len() {
            if is_gone[at] {
                continue;
            }
            let (key, ids) = self.row_of(entries[at])?.ok_or_else(|| corrupt("a job is not where its time is"))?;
            let mut rest = Vec::with_capacity(ids.len());
            for id in &ids {
                match entries.binary_search(&(key.0, *id)) {
                    Ok(found) => is_gone[found] = true,
                    Err(_) => rest.extend_from_slice(&id.to_be_bytes()),
                }
            }
            self.0.remove(key)?;
            if let Some(first) = ids_in(&rest)?.next() {
                self.0.insert((key.0, first), &rest[..])?;
            }
        }
        Ok(())
    }

    fn row_of(&self, (time, id): Entry) -> Result<Option<(Entry, Vec<u128>)>, StoreFault> {
        for row in self.0.range((time, 0)..=(time, id))?.rev() {
            let (key, ids) = row?;
            let ids: Vec<u128> = ids_in(ids.value())?.collect();
            if ids.binary_search(&id).is_ok() {
                return Ok(Some((key.value(), ids)));
            }
        }
        Ok(None)
    }

    /// The ids of the earliest entries, at most `max` of them, as long as `wants` their time.
    pub(super) fn first(&self, max: usize, wants: impl Fn(u64) -> bool) -> Result<Vec<u128>, StoreFault> {
        let mut rows = self.0.iter()?;
        let mut next_row = rows.next().transpose()?;
        let (mut first, mut opened) = (Vec::new(), BinaryHeap::new());
        while first.len() < max {
            // A row may begin before one that was opened earlier ends.
            while let Some((key, ids)) = &next_row
                && opened.peek().is_none_or(|Reverse(earliest)| key.value() < *earliest)
                && wants(key.value().0)
            {
                let time = key.value().0;
                opened.extend(ids_in(ids.value())?.map(|id| Reverse((time, id))));
                next_row = rows.next().transpose()?;
            }
            let Some(Reverse((_, id))) = opened.pop() else { break };
            first.push(id);
        }
        Ok(first)
    }
}

fn ids_in(row: &[u8]) -> Result<impl Iterator<Item = u128>, StoreFault> {
    let (ids, []) = row.as_chunks::<ID_BYTES>() else { return Err(corrupt("a row has a part of an id")) };
    Ok(ids.iter().map(|id| u128::from_be_bytes(*id)))
}
