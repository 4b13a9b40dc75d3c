//! A copy of everything in one file, made while the log is written, and a data folder made from such a copy.
//!
//! The file is a redb database itself: the tables of the log and of the archive under names of their own, what else
//! the caller gives (its settings, say), and a table that names the format and how many rows each other table has. It
//! is written under a name that no other backup has, `<name>.<number>.unfinished`, synced, and only then given its own;
//! and it says its format last of all.
//!
//! **What it shows.** The log at one moment, then the archive at a later one. A job that moves in between is in both,
//! which is harmless: it is archived again. The other way round it would be in neither.
//!
//! While a backup is made, the files cannot reuse the room of what is removed; they grow a little.

mod copy;

use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use ::redb::{
    Database, DatabaseError, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition, TableError, TableHandle,
};

use crate::redb::fault::{Fault, found_while_open};
use crate::redb::folder::{self, ARCHIVE, LOG, Names, RESTORING, about};
use crate::redb::journal;
use crate::redb::rows::{self, corrupt, known_format};
use crate::{Archive, Error, RedbLog, archive};

use copy::{Copy, count};

const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("backup");
const EXTRAS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("extras");
/// In front of the names of the tables that were copied.
const LOG_PREFIX: &str = "log_";
const ARCHIVE_PREFIX: &str = "archive_";

const FORMAT: &str = "backup_format";
const KNOWN: u8 = 1;
const CACHE_BYTES: usize = 32 << 20;

/// Writes a backup to `to`, which must not exist. `progress` is told how many rows of how many are done.
pub fn backup(
    log: &RedbLog,
    archive: &Archive,
    extra: &[(&str, Vec<u8>)],
    to: &Path,
    progress: impl FnMut(u64, u64),
) -> Result<(), Error> {
    backup_and(log, archive, extra, to, progress, || ())
}

/// `between` runs when the log's moment has passed, and the archive's has not come yet.
fn backup_and(
    log: &RedbLog,
    archive: &Archive,
    extra: &[(&str, Vec<u8>)],
    to: &Path,
    mut progress: impl FnMut(u64, u64),
    between: impl FnOnce(),
) -> Result<(), Error> {
    refuse_existing(to)?;
    let log = log.view()?;
    between();
    let archive = archive.view()?;

    let number = RandomState::new().build_hasher().finish();
    let unfinished = with_suffix(to, &format!(".{number:016x}.unfinished"));
    let written = write(&log, &archive, extra, &unfinished, &mut progress);
    let named = written.and_then(|()| give_name(&unfinished, to));
    // What is left of it has no use, and takes room on what may be a full disk.
    let _ = folder::remove_if_there(&unfinished);
    named?;
    folder::sync_folder(folder::parent(to))
        .map_err(|error| Error::Unknown { cause: format!("{}: the backup is written, and {error}", to.display()) })
}

/// Another backup may have been given this name meanwhile: then that one stays.
fn give_name(unfinished: &Path, to: &Path) -> Result<(), Error> {
    match fs::hard_link(unfinished, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::Exists { path: shown(to) }),
        // Not every file system has links.
        Err(_) => refuse_existing(to).and_then(|()| fs::rename(unfinished, to).map_err(|error| about(to, &error))),
        Ok(()) => Ok(()),
    }
}

fn refuse_existing(path: &Path) -> Result<(), Error> {
    if path.exists() { Err(Error::Exists { path: shown(path) }) } else { Ok(()) }
}

fn write(
    log: &ReadTransaction,
    archive: &ReadTransaction,
    extra: &[(&str, Vec<u8>)],
    to: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    folder::make_private(to).map_err(|error| about(to, &error))?;
    let opened = Database::builder().set_cache_size(CACHE_BYTES).create(to);
    let database = opened.map_err(|error| found_while_open(error, &shown(to)))?;
    let mut copied = || -> Result<(), Fault> {
        let (total, mut done) = (count(log)? + count(archive)?, 0);
        let mut tell = |rows| {
            done += rows;
            progress(done, total);
        };
        tell(0);
        let mut of_log = Copy::new(log, &database, ("", LOG_PREFIX), &mut tell);
        of_log.log()?;
        let log_rows = of_log.rows;
        let mut of_archive = Copy::new(archive, &database, ("", ARCHIVE_PREFIX), &mut tell);
        of_archive.archive()?;
        let archive_rows = of_archive.rows;
        let transaction = database.begin_write()?;
        let mut extras = transaction.open_table(EXTRAS)?;
        for (name, bytes) in extra {
            extras.insert(*name, &bytes[..])?;
        }
        drop(extras);
        let mut facts = transaction.open_table(FACTS)?;
        for (prefix, rows) in [(LOG_PREFIX, log_rows), (ARCHIVE_PREFIX, archive_rows)] {
            for (name, count) in rows {
                facts.insert(&*format!("{prefix}{name}"), count)?;
            }
        }
        facts.insert(FORMAT, u64::from(KNOWN))?;
        drop(facts);
        transaction.commit()?;
        Ok(())
    };
    copied().map_err(Fault::into_error)?;
    drop(database);
    File::open(to).and_then(|file| file.sync_all()).map_err(|error| about(to, &error))
}

/// Makes `folder` a data folder with what the backup `from` holds, and gives what else was put into it. The seat is
/// nobody's: the term is one higher than that of whoever held it when the backup was made.
///
/// A crash before the end leaves a folder that neither log nor archive opens ([`Error::HalfRestored`]) and that can be
/// restored into again.
pub fn restore(from: &Path, folder: &Path) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let database = opened(from)?;
    let source = database.begin_read().map_err(|error| Fault::from(error).into_error())?;
    let extras = checked(&source, from)?;

    let _locks = (LOG.lock(folder)?, ARCHIVE.lock(folder)?);
    let marker = folder.join(RESTORING);
    let failed = |error| about(folder, &error);
    if !marker.try_exists().map_err(failed)? {
        for names in [LOG, ARCHIVE] {
            if folder.join(names.file).try_exists().map_err(failed)? {
                return Err(Error::Occupied { folder: shown(folder), found: names.file });
            }
        }
        // Its rows are those of another log.
        if folder.join(journal::NAME).try_exists().map_err(failed)? {
            return Err(Error::Occupied { folder: shown(folder), found: journal::NAME });
        }
        File::create(&marker).and_then(|file| file.sync_all()).map_err(failed)?;
        folder::sync_folder(folder).map_err(failed)?;
    }
    let filled = fill(&source, folder, ARCHIVE, |copy| copy.archive(), ARCHIVE_PREFIX)
        .and_then(|()| fill(&source, folder, LOG, |copy| copy.log(), LOG_PREFIX))
        .and_then(|()| folder::sync_folder(folder).map_err(failed));
    if let Err(error) = filled {
        // As it was before. If that fails too, the marker says what this is.
        let _ = emptied(folder);
        return Err(error);
    }
    let done = fs::remove_file(&marker).and_then(|()| folder::sync_folder(folder));
    done.map_err(|error| Error::Unknown { cause: format!("{}: {error}", folder.display()) })?;
    Ok(extras)
}

fn emptied(folder: &Path) -> io::Result<()> {
    for names in [LOG, ARCHIVE] {
        folder::remove_if_there(&folder.join(names.unfinished))?;
        folder::remove_if_there(&folder.join(names.file))?;
    }
    folder::sync_folder(folder)?;
    folder::remove_if_there(&folder.join(RESTORING))
}

/// Writes one of the two files under another name, and renames it.
fn fill(
    source: &ReadTransaction,
    folder: &Path,
    names: Names,
    tables: impl FnOnce(&mut Copy<'_>) -> Result<(), Fault>,
    prefix: &str,
) -> Result<(), Error> {
    let failed = |error| about(folder, &error);
    let (file, unfinished) = (folder.join(names.file), folder.join(names.unfinished));
    // Of a restore that did not finish.
    folder::remove_if_there(&file).map_err(failed)?;
    folder::remove_if_there(&unfinished).map_err(failed)?;
    folder::make_private(&unfinished).map_err(failed)?;
    let made = Database::builder().set_cache_size(CACHE_BYTES).create(&unfinished);
    let database = made.map_err(|error| found_while_open(error, &shown(folder)))?;
    let copied = || -> Result<(), Fault> {
        let mut quiet = |_| ();
        let mut copy = Copy::new(source, &database, (prefix, ""), &mut quiet);
        tables(&mut copy)?;
        for fact in source.open_table(FACTS)?.iter()? {
            let (name, count) = fact?;
            let Some(name) = name.value().strip_prefix(prefix).map(str::to_owned) else { continue };
            if !copy.rows.contains(&(name, count.value())) {
                return Err(corrupt("rows are missing in the backup"));
            }
        }
        if prefix == LOG_PREFIX {
            leave_the_seat(&database)?;
        }
        Ok(())
    };
    copied().map_err(Fault::into_error)?;
    drop(database);
    fs::rename(&unfinished, &file).map_err(failed)
}

/// Whoever held the seat of the log that was copied does not hold that of the copy, and its journal stays where it was.
fn leave_the_seat(database: &Database) -> Result<(), Fault> {
    let transaction = database.begin_write()?;
    let mut facts = transaction.open_table(rows::FACTS)?;
    let term = facts.get(rows::TERM)?.map_or(0, |term| term.value());
    facts.insert(rows::TERM, term + 1)?;
    facts.remove(rows::JOURNAL)?;
    drop(facts);
    transaction.commit()?;
    Ok(())
}

fn opened(from: &Path) -> Result<ReadOnlyDatabase, Error> {
    let not_a_backup = |found: &str| Error::NotABackup { path: shown(from), found: found.to_owned() };
    let about_file = fs::metadata(from).map_err(|error| about(from, &error))?;
    if about_file.is_dir() {
        return Err(not_a_backup("it is a folder"));
    }
    if about_file.len() == 0 {
        return Err(not_a_backup("it is empty"));
    }
    ReadOnlyDatabase::open(from).map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => not_a_backup("it is a file that a program is writing"),
        DatabaseError::RepairAborted => not_a_backup("it was never finished"),
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            not_a_backup("it is a file of some other kind")
        }
        DatabaseError::Storage(StorageError::Io(error)) => about(from, &error),
        error => not_a_backup(&error.to_string()),
    })
}

/// Refuses what is no backup, or one that is too new, in whatever part; and reads what is not copied.
fn checked(source: &ReadTransaction, from: &Path) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let facts = match source.open_table(FACTS) {
        Ok(facts) => facts,
        Err(TableError::TableDoesNotExist(_) | TableError::TableTypeMismatch { .. }) => {
            return Err(Error::NotABackup { path: shown(from), found: what_it_is(source)? });
        }
        Err(error) => return Err(Fault::from(error).into_error()),
    };
    let read = || -> Result<Vec<(String, Vec<u8>)>, Fault> {
        known_format(facts.get(FORMAT)?.map(|format| format.value()), KNOWN)?;
        for (prefix, name, known) in
            [(LOG_PREFIX, rows::FORMAT, rows::KNOWN), (ARCHIVE_PREFIX, archive::FORMAT, archive::KNOWN)]
        {
            let table = format!("{prefix}{}", rows::FACTS.name());
            let facts = source.open_table(TableDefinition::<&str, u64>::new(&table))?;
            known_format(facts.get(name)?.map(|format| format.value()), known)?;
        }
        let extras = source.open_table(EXTRAS)?;
        let mut found = Vec::new();
        for row in extras.iter()? {
            let (name, bytes) = row?;
            found.push((name.value().to_owned(), bytes.value().to_vec()));
        }
        Ok(found)
    };
    read().map_err(Fault::into_error)
}

fn what_it_is(source: &ReadTransaction) -> Result<String, Error> {
    let tables = source.list_tables().map_err(|error| Fault::from(error).into_error())?;
    let names: Vec<String> = tables.map(|table| table.name().to_owned()).collect();
    let has = |name: &str| names.iter().any(|found| found == name);
    Ok(if has(rows::BATCHES.name()) {
        "it is the log of a data folder".to_owned()
    } else if has(archive::JOBS.name()) {
        "it is the archive of a data folder".to_owned()
    } else {
        format!("it is a database with the tables {names:?}")
    })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use onward_core::event::{Event, Stamped};
    use onward_core::ids::Seq;
    use onward_core::time::Wall;

    use crate::{ArchivedJob, BatchId, BatchKey, Log};

    use super::*;

    /// A job is copied to the archive, and only then does the log say that it moved. Here both happen while a backup
    /// is made, at the worst moment.
    #[test]
    fn a_job_that_moves_meanwhile_is_never_in_neither() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = RedbLog::open(folder.path().join("old")).unwrap();
        let archive = Archive::open(folder.path().join("old")).unwrap();
        let term = log.take_seat().unwrap().term;
        let moved = [Stamped { at: Wall::from_ms(1), event: Event::TermBegan { term } }];
        let (file, new) = (folder.path().join("copy"), folder.path().join("new"));
        let same = (log.clone(), archive.clone());
        let between = || {
            archive.put(&[ArchivedJob { id: 1, ended_at_ms: 1, expires_at_ms: None, row: b"", blobs: &[] }]).unwrap();
            log.append(BatchKey { term, id: BatchId(1), first: Seq(1) }, &moved, &[]).unwrap();
        };
        backup_and(&same.0, &same.1, &[], &file, |_, _| (), between).unwrap();
        restore(&file, &new).unwrap();
        let says_moved = RedbLog::open(&new).unwrap().tail().unwrap().last > Seq(0);
        let is_archived = Archive::open(&new).unwrap().get(1).unwrap().is_some();
        assert_eq!((says_moved, is_archived), (false, true), "in the log as before, and in the archive");
    }
}
