//! Copies tables row by row, in commits of a bounded size, and looks at the checksum of each row that has one.

use ::redb::{
    Database, Key, ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition, TableError, TableHandle,
    Value,
};

use crate::redb::fault::Fault;
use crate::redb::rows;
use crate::{archive, codec};

/// What redb may hold back before it is written.
const COMMIT_BYTES: usize = 64 << 20;
const TELL_EVERY: u64 = 1000;

pub(super) struct Copy<'a> {
    pub(super) source: &'a ReadTransaction,
    database: &'a Database,
    /// Of a table's name, in source and copy.
    prefixes: (&'a str, &'a str),
    /// Names without prefix, and how many rows of each were copied.
    pub(super) rows: Vec<(String, u64)>,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> Copy<'a> {
    pub(super) fn new(
        source: &'a ReadTransaction,
        database: &'a Database,
        prefixes: (&'a str, &'a str),
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        Self { source, database, prefixes, rows: Vec::new(), progress }
    }

    pub(super) fn log(&mut self) -> Result<(), Fault> {
        self.table(rows::BATCHES, framed)?;
        self.table(rows::CHUNKS, framed)?;
        self.table(rows::BLOBS, |_| Ok(()))?;
        self.table(rows::PIECES, |_| Ok(()))?;
        self.table(rows::FACTS, |_| Ok(()))
    }

    pub(super) fn archive(&mut self) -> Result<(), Fault> {
        self.table(archive::JOBS, |(_, _, row)| framed(row))?;
        self.table(archive::ENDED, |_| Ok(()))?;
        self.table(archive::EXPIRES, |_| Ok(()))?;
        self.table(archive::ENDED_1, |()| Ok(()))?;
        self.table(archive::EXPIRES_1, |()| Ok(()))?;
        self.table(archive::BLOBS, |_| Ok(()))?;
        self.table(archive::PIECES, |_| Ok(()))?;
        self.table(archive::FACTS, |_| Ok(()))
    }

    /// A table that the source lacks, being older, is left out.
    fn table<K: Key + 'static, V: Value + 'static>(
        &mut self,
        table: TableDefinition<'_, K, V>,
        check: impl for<'v> Fn(V::SelfType<'v>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let (from, to) =
            (format!("{}{}", self.prefixes.0, table.name()), format!("{}{}", self.prefixes.1, table.name()));
        let source = match self.source.open_table(TableDefinition::<K, V>::new(&from)) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            source => source?,
        };
        let (mut rows, mut copied, mut told) = (source.iter()?, 0, 0);
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
                check(value.value())?;
                bytes += K::as_bytes(&key.value()).as_ref().len() + V::as_bytes(&value.value()).as_ref().len();
                target.insert(key.value(), value.value())?;
                copied += 1;
                if copied - told == TELL_EVERY {
                    (self.progress)(copied - told);
                    told = copied;
                }
            }
            drop(target);
            transaction.commit()?;
        }
        (self.progress)(copied - told);
        self.rows.push((table.name().to_owned(), copied));
        Ok(())
    }
}

/// How many rows there are in all tables.
pub(super) fn count(source: &ReadTransaction) -> Result<u64, Fault> {
    let mut rows = 0;
    for table in source.list_tables()? {
        rows += source.open_untyped_table(table)?.len()?;
    }
    Ok(rows)
}

fn framed(row: &[u8]) -> Result<(), Fault> {
    codec::decode_opaque(row)?;
    Ok(())
}
