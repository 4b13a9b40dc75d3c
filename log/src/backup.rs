//! A copy of everything in one file, made while the log is written, and a data folder made from such a copy.
//!
//! The file is a redb database itself: the tables of the log and of the archive under names of their own, what else
//! the caller gives (its settings, say), and a table that names the format and how many rows each other table has. It
//! is written under a name that no other backup has, `<name>.<number>.unfinished`, synced, and only then given its own;
//! and it says its format last of all. What a crash left of earlier ones in the same folder goes before the next begins.
//!
//! **What it shows.** The log at one moment, then the archive at a later one. A job that moves in between is in both,
//! which is harmless: it is archived again. The other way round it would be in neither.
//!
//! **Content is checked on the way,** each blob against its checksum. A backup takes along what is damaged, as it is,
//! and says so: the rest must not go without one. A restore refuses it, unless told to accept the loss.
//!
//! While a backup is made, the files cannot reuse the room of what is removed; they grow a little.

mod content;
mod copy;

use core::ops::ControlFlow;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::redb::{
    Database, DatabaseError, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition, TableError, TableHandle,
};

use crate::engines::embedded::archive;
use crate::engines::embedded::fault::{StoreFault, found_while_open};
use crate::engines::embedded::folder::{self, ARCHIVE, LOG, Names, RESTORING, about};
use crate::engines::embedded::journal;
use crate::engines::embedded::rows::{self, corrupt, known_format};
use crate::{EmbeddedArchive, EmbeddedLog, Error, OnLoss, changes};

pub use content::Damage;
use copy::{Copy, count};

const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("backup");
const EXTRAS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("extras");
/// The prefix of the names of tables that were copied.
const LOG_PREFIX: &str = "log_";
const ARCHIVE_PREFIX: &str = "archive_";

const FORMAT: &str = "backup_format";
const KNOWN: u8 = 1;
const CACHE_BYTES: usize = 32 << 20;

const UNFINISHED: &str = ".unfinished";
/// Longer than it takes from the last write to a backup until it has its name.
const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(3600);
/// The first bytes of a file of redb.
const REDB: &[u8] = b"redb";

/// Writes a backup to `to`, which must not exist. `progress` is told how many rows of how many are done, and whenever
/// something else has come to its end that the disk may take long for; if it breaks, there will be no backup
/// ([`Error::GivenUp`]). Gives what was found to be damaged, and is so in the backup too.
pub fn backup(
    log: &EmbeddedLog,
    archive: &EmbeddedArchive,
    extra: &[(&str, Vec<u8>)],
    to: &Path,
    progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Damage, Error> {
    backup_and(log, archive, extra, to, progress, || ())
}

/// `between` runs when the log's moment has passed, and the archive's has not come yet.
fn backup_and(
    log: &EmbeddedLog,
    archive: &EmbeddedArchive,
    extra: &[(&str, Vec<u8>)],
    to: &Path,
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    between: impl FnOnce(),
) -> Result<Damage, Error> {
    refuse_existing(to)?;
    remove_left_behind(folder::parent(to));
    let log = log.view()?;
    between();
    let archive = archive.view()?;

    let number = RandomState::new().build_hasher().finish();
    let unfinished = with_suffix(to, &format!(".{number:016x}{UNFINISHED}"));
    let written = write(&log, &archive, extra, &unfinished, &mut progress);
    let named = written.and_then(|damage| give_name(&unfinished, to).map(|()| damage));
    // The rest of an unfinished file has no use, and takes room on what may be a full disk.
    let _ = changes::remove_if_there(&unfinished);
    let damage = named?;
    changes::sync(folder::parent(to))
        .map_err(|error| Error::Unknown { cause: format!("{}: the backup is written, and {error}", to.display()) })?;
    Ok(damage)
}

/// Removes what crashes left of backups in this folder: files that nobody has written to for so long, and that no
/// database has open. If that fails they stay, and the backup may find room all the same.
fn remove_left_behind(folder: &Path) {
    let is_ours = |name: &str| {
        let number = name.strip_suffix(UNFINISHED).and_then(|rest| rest.rsplit_once('.'));
        number.is_some_and(|(_, number)| number.len() == 16 && number.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_ours) && is_left_behind(&entry.path()).unwrap_or(false) {
            let _ = changes::remove_if_there(&entry.path());
        }
    }
}

fn is_left_behind(path: &Path) -> io::Result<bool> {
    let (file, mut begins) = (File::open(path)?, Vec::new());
    let metadata = file.metadata()?;
    let is_old = metadata.modified()?.elapsed().is_ok_and(|age| age >= LEFT_BEHIND_AFTER);
    (&file).take(REDB.len() as u64).read_to_end(&mut begins)?;
    let is_redb = begins.is_empty() || begins == REDB;
    Ok(metadata.is_file() && is_old && is_redb && file.try_lock().is_ok())
}

/// Another backup may have been given this name meanwhile: then that one stays.
fn give_name(unfinished: &Path, to: &Path) -> Result<(), Error> {
    match changes::hard_link(unfinished, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::Exists { path: shown(to) }),
        // Not every file system has links.
        Err(_) => refuse_existing(to).and_then(|()| changes::rename(unfinished, to).map_err(|error| about(to, &error))),
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
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Damage, Error> {
    changes::make_private(to).map_err(|error| about(to, &error))?;
    let opened = Database::builder().set_cache_size(CACHE_BYTES).create(to);
    let database = opened.map_err(|error| found_while_open(error, &shown(to)))?;
    let mut copied = || -> Result<(Damage, u64), StoreFault> {
        let (total, mut done) = (count(log)? + count(archive)?, 0);
        let mut tell = |rows| {
            done += rows;
            progress(done, total)
        };
        stop_if_given_up(tell(0))?;
        let mut of_log = Copy::new(log, &database, ("", LOG_PREFIX), &mut tell);
        of_log.log()?;
        let (log_rows, mut damage) = (of_log.rows, of_log.damage);
        let mut of_archive = Copy::new(archive, &database, ("", ARCHIVE_PREFIX), &mut tell);
        of_archive.archive()?;
        let archive_rows = of_archive.rows;
        damage.add(of_archive.damage);
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
        Ok((damage, total))
    };
    let (damage, total) = copied().map_err(StoreFault::into_error)?;
    drop(database);
    changes::sync(to).map_err(|error| about(to, &error))?;
    // The file is a backup from here on, if that is still wanted.
    stop_if_given_up(progress(total, total)).map_err(StoreFault::into_error)?;
    Ok(damage)
}

fn stop_if_given_up(told: ControlFlow<()>) -> Result<(), StoreFault> {
    match told {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::GivenUp.into()),
    }
}

/// The results of a restore, besides the folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RestoreSummary {
    /// Further files that were put into the backup.
    pub extras: Vec<(String, Vec<u8>)>,
    /// Content that was damaged in the backup, and is so in the folder.
    pub damage: Damage,
}

/// Makes `folder` a data folder with what the backup `from` holds. The seat is
/// nobody's: the term is one higher than that of whoever held it when the backup was made. `on_loss` is about payloads
/// and results that are damaged: a job without them is still a job. Nothing else may be damaged.
///
/// A crash before the end leaves a folder that neither log nor archive opens ([`Error::HalfRestored`]) and that can be
/// restored into again.
pub fn restore(from: &Path, folder: &Path, on_loss: OnLoss) -> Result<RestoreSummary, Error> {
    let database = opened(from)?;
    let source = database.begin_read().map_err(|error| StoreFault::from(error).into_error())?;
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
        changes::make_mark(&marker).map_err(failed)?;
        changes::sync(folder).map_err(failed)?;
    }
    let filled = || -> Result<Damage, Error> {
        let mut damage = fill(&source, folder, ARCHIVE, |copy| copy.archive(), ARCHIVE_PREFIX)?;
        damage.add(fill(&source, folder, LOG, |copy| copy.log(), LOG_PREFIX)?);
        if !damage.is_none() && on_loss == OnLoss::Refuse {
            return Err(Error::DamagedBackup { path: shown(from), damage });
        }
        changes::sync(folder).map_err(failed)?;
        Ok(damage)
    };
    let damage = match filled() {
        Ok(damage) => damage,
        Err(error) => {
            // As it was before. If that fails too, the marker says what this is.
            let _ = emptied(folder);
            return Err(error);
        }
    };
    let done = changes::remove_if_there(&marker).and_then(|()| changes::sync(folder));
    done.map_err(|error| Error::Unknown { cause: format!("{}: {error}", folder.display()) })?;
    Ok(RestoreSummary { extras, damage })
}

fn emptied(folder: &Path) -> io::Result<()> {
    for names in [LOG, ARCHIVE] {
        changes::remove_if_there(&folder.join(names.unfinished))?;
        changes::remove_if_there(&folder.join(names.file))?;
    }
    changes::sync(folder)?;
    changes::remove_if_there(&folder.join(RESTORING))
}

/// Writes one of the two files under another name, and renames it.
fn fill(
    source: &ReadTransaction,
    folder: &Path,
    names: Names,
    tables: impl FnOnce(&mut Copy<'_>) -> Result<(), StoreFault>,
    prefix: &str,
) -> Result<Damage, Error> {
    let failed = |error| about(folder, &error);
    let (file, unfinished) = (folder.join(names.file), folder.join(names.unfinished));
    // Left by a restore that did not finish.
    changes::remove_if_there(&file).map_err(failed)?;
    changes::remove_if_there(&unfinished).map_err(failed)?;
    changes::make_private(&unfinished).map_err(failed)?;
    let made = Database::builder().set_cache_size(CACHE_BYTES).create(&unfinished);
    let database = made.map_err(|error| found_while_open(error, &shown(folder)))?;
    let copied = || -> Result<Damage, StoreFault> {
        let mut quiet = |_| ControlFlow::Continue(());
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
        Ok(copy.damage)
    };
    let damage = copied().map_err(StoreFault::into_error)?;
    drop(database);
    changes::rename(&unfinished, &file).map_err(failed)?;
    Ok(damage)
}

/// Leaves the seat: its holder in the log that was copied does not hold that of the copy, and its journal stays where
/// it was.
fn leave_the_seat(database: &Database) -> Result<(), StoreFault> {
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
        Err(error) => return Err(StoreFault::from(error).into_error()),
    };
    let read = || -> Result<Vec<(String, Vec<u8>)>, StoreFault> {
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
    read().map_err(StoreFault::into_error)
}

fn what_it_is(source: &ReadTransaction) -> Result<String, Error> {
    let tables = source.list_tables().map_err(|error| StoreFault::from(error).into_error())?;
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
#[path = "backup/fault_tests.rs"]
mod fault_tests;
#[cfg(test)]
#[path = "backup/tests.rs"]
mod tests;
