//! Copies tables row by row, in commits of a bounded size, and looks at the checksum of each row that has one, and of
//! each blob.

use core::ops::ControlFlow;
use std::collections::HashSet;

use ::redb::{
    Database, Key, ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition, TableError,
    TableHandle, Value,
};

use onward_core::ids::JobId;

use crate::engines::embedded::archive;
use crate::engines::embedded::fault::StoreFault;
use crate::engines::embedded::pieces::{BlobLabel, Inspection, PieceKey};
use crate::engines::embedded::rows;
use crate::{BlobDigest, codec};

use super::content::{Damage, jobs_naming};
use super::stop_if_given_up;

/// Bytes that redb may hold back before they are written. Writing them is one piece of progress, on a slow disk too.
const COMMIT_BYTES: usize = 16 << 20;
/// Progress is told after so many rows, or so many bytes of them.
const TELL_ROWS: u64 = 1000;
const TELL_BYTES: usize = 1 << 20;

pub(super) struct Copy<'a> {
    pub(super) source: &'a ReadTransaction,
    database: &'a Database,
    /// Prefixes of a table's name, in source and copy.
    prefixes: (&'a str, &'a str),
    /// Names without prefix, and how many rows of each were copied.
    pub(super) rows: Vec<(String, u64)>,
    /// Copied as it is: what is damaged is for the caller to judge.
    pub(super) damage: Damage,
    progress: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
}

impl<'a> Copy<'a> {
    pub(super) fn new(
        source: &'a ReadTransaction,
        database: &'a Database,
        prefixes: (&'a str, &'a str),
        progress: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Self {
        Self { source, database, prefixes, rows: Vec::new(), damage: Damage::default(), progress }
    }

    pub(super) fn log(&mut self) -> Result<(), StoreFault> {
        self.table(rows::BATCHES, |_, row| framed(row))?;
        self.table(rows::CHUNKS, |_, row| framed(row))?;
        let damaged: HashSet<BlobDigest> = self.blobs(rows::BLOBS, rows::PIECES)?.into_iter().collect();
        if !damaged.is_empty() {
            let jobs = jobs_naming(self.source, self.prefixes.0, &damaged, || stop_if_given_up((self.progress)(0)))?;
            self.damage.add(Damage { blobs: damaged.len() as u64, jobs });
        }
        self.table(rows::FACTS, |_, _| Ok(()))
    }

    pub(super) fn archive(&mut self) -> Result<(), StoreFault> {
        self.table(archive::JOBS, |_, (_, _, row)| framed(row))?;
        self.table(archive::ENDED, |_, _| Ok(()))?;
        self.table(archive::EXPIRES, |_, _| Ok(()))?;
        self.table(archive::ENDED_1, |_, ()| Ok(()))?;
        self.table(archive::EXPIRES_1, |_, ()| Ok(()))?;
        let damaged: Vec<(u128, BlobDigest)> = self.blobs(archive::BLOBS, archive::PIECES)?;
        let jobs = damaged.iter().map(|(job, _)| JobId::from_u128(*job)).collect();
        self.damage.add(Damage { blobs: damaged.len() as u64, jobs });
        self.table(archive::FACTS, |_, _| Ok(()))
    }

    /// Gives those that are not whole.
    fn blobs<P: PieceKey + PartialEq>(
        &mut self,
        labels: TableDefinition<'_, P::Label, BlobLabel>,
        pieces: TableDefinition<'_, P::Piece, &'static [u8]>,
    ) -> Result<Vec<P>, StoreFault> {
        self.table(labels, |_, _| Ok(()))?;
        let (Some(known), Some(content)) = (self.found(&labels)?, self.found(&pieces)?) else { return Ok(Vec::new()) };
        let mut inspection = Inspection::<P, _>::new(&known);
        self.table(pieces, |key, bytes| inspection.piece(P::of_piece(key), bytes))?;
        inspection.finish(&content)
    }

    /// A table of the source; none if that lacks it, being older.
    fn found<K: Key + 'static, V: Value + 'static>(
        &self,
        table: &TableDefinition<'_, K, V>,
    ) -> Result<Option<ReadOnlyTable<K, V>>, StoreFault> {
        let name = format!("{}{}", self.prefixes.0, table.name());
        match self.source.open_table(TableDefinition::<K, V>::new(&name)) {
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// A table that the source lacks is left out.
    fn table<K: Key + 'static, V: Value + 'static>(
        &mut self,
        table: TableDefinition<'_, K, V>,
        mut check: impl for<'v> FnMut(K::SelfType<'v>, V::SelfType<'v>) -> Result<(), StoreFault>,
    ) -> Result<(), StoreFault> {
        let Some(source) = self.found(&table)? else { return Ok(()) };
        let to = format!("{}{}", self.prefixes.1, table.name());
        let (mut rows, mut copied, mut told) = (source.iter()?, 0, (0, 0));
        let mut is_done = false;
        while !is_done {
            let transaction = self.database.begin_write()?;
            let mut target = transaction.open_table(TableDefinition::<K, V>::new(&to))?;
            let mut bytes = 0;
            while bytes < COMMIT_BYTES {
                let Some(row) = rows.next() else {
                    is_done = true;
                    break;
                };
                let (key, value) = row?;
                check(key.value(), value.value())?;
                bytes += K::as_bytes(&key.value()).as_ref().len() + V::as_bytes(&value.value()).as_ref().len();
                target.insert(key.value(), value.value())?;
                copied += 1;
                if copied - told.0 == TELL_ROWS || bytes - told.1 >= TELL_BYTES {
                    stop_if_given_up((self.progress)(copied - told.0))?;
                    told = (copied, bytes);
                }
            }
            drop(target);
            transaction.commit()?;
            stop_if_given_up((self.progress)(copied - told.0))?;
            told = (copied, 0);
        }
        self.rows.push((table.name().to_owned(), copied));
        Ok(())
    }
}

/// The number of rows in all tables.
pub(super) fn count(source: &ReadTransaction) -> Result<u64, StoreFault> {
    let mut rows = 0;
    for table in source.list_tables()? {
        rows += source.open_untyped_table(table)?.len()?;
    }
    Ok(rows)
}

fn framed(row: &[u8]) -> Result<(), StoreFault> {
    codec::decode_opaque(row)?;
    Ok(())
}
