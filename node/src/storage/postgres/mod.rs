//! All of it in a database. The data folder has only what belongs to this node: the token of its command line, and which
//! life of it held the seat last.

mod outputs;
mod seat_watch;

use core::time::Duration;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use onward_log::{Error, Log};
use onward_postgres::{Database, DatabaseOptions, DatabaseUrl};
use uuid::Uuid;

use super::migrate::moved_to;
use super::{OpenError, Storage};
use crate::auth::{FileError, SecretTable, TokenTable, write_secret};
use crate::engine::Backup;
use crate::outputs::{KEEP_BYTES, OutputRules};
use crate::server::StartError;
pub(super) use outputs::OutputTable;
use seat_watch::SeatWatch;

/// The log of a node in its database. Several datacenters are to have a log each.
pub(super) const DATABASE_LOG: &str = "default";

/// In the data folder: whoever has it locked is the only process there.
const LOCK: &str = "node.lock";
/// In the data folder: under which name the last life of this node took the seat.
const HOLDER: &str = "holder";
/// In the data folder of a node with embedded storage.
pub(super) const EMBEDDED_LOG: &str = "onward.redb";
/// Between two looks at a seat that may have no holder any more.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A database that was opened, and what of it is a node's.
#[derive(Clone, Debug)]
pub struct OpenedDatabase(pub(super) Database);

impl OpenedDatabase {
    pub fn open(url: &DatabaseUrl) -> Result<Self, OpenError> {
        DatabaseOptions::default().open(url.reveal()).map(Self)
    }

    pub fn tokens(&self) -> Result<TokenTable, Error> {
        TokenTable::open(self.0.tokens(DATABASE_LOG)?)
    }
}

impl Storage {
    /// In this database; `folder` has what belongs to this node only. Where another node lives that holds the seat, that is
    /// seen within `seat_ttl`, and nothing is begun.
    pub fn postgres(
        url: &DatabaseUrl,
        folder: &Path,
        outputs: OutputRules,
        seat_ttl: Duration,
    ) -> Result<Self, StartError> {
        let lock = lock(folder)?;
        if folder.join(EMBEDDED_LOG).exists() && moved_to(folder)?.is_none() {
            return Err(StartError::EmbeddedData { folder: folder.to_owned() });
        }
        let about = |error| StartError::Database { url: url.clone(), error };
        let OpenedDatabase(database) = OpenedDatabase::open(url).map_err(about)?;
        let mut watch = SeatWatch::new(database.holder(), last_holder(folder)?, seat_ttl);
        wait_for_seat(&database, &mut watch)?;
        write_secret(&folder.join(HOLDER), database.holder().to_string().as_bytes())?;
        let tokens = TokenTable::open(database.tokens(DATABASE_LOG).map_err(about)?)?;
        tokens.ensure_local(folder)?;
        let output_table = database.outputs(DATABASE_LOG, KEEP_BYTES).map_err(about)?;
        match database.synchronous_standbys()?.as_str() {
            "" => tracing::warn!(
                "commits wait for no standby (synchronous_standby_names is empty): what the database's computer loses is lost"
            ),
            standbys => tracing::info!(standbys, "commits wait for standbys"),
        }
        Ok(Self {
            log: Box::new({
                let database = database.clone();
                move || {
                    // Held for as long as anything of this storage is.
                    let _lock = &lock;
                    Ok(Box::new(database.log(DATABASE_LOG)?) as Box<dyn Log>)
                }
            }),
            archive: Arc::new(database.archive(DATABASE_LOG)),
            secrets: Box::new(SecretTable(database.secrets(DATABASE_LOG))),
            tokens: Box::new(tokens),
            outputs: Box::new(OutputTable::new(output_table, outputs)),
            may_lead: Box::new({
                let database = database.clone();
                move || may_lead(&database, &mut watch)
            }),
            standbys: Some(Arc::new(move || database.synchronous_standbys())),
            backup: Some(backed_up_elsewhere()),
            is_whole: true,
        })
    }
}

/// Waits until the seat is free, and refuses if somebody moves on it.
fn wait_for_seat(database: &Database, watch: &mut SeatWatch) -> Result<(), StartError> {
    let first = database.seat(DATABASE_LOG)?;
    let mut seen = first;
    loop {
        if seen.is_importing {
            return Err(StartError::HalfMigrated);
        }
        if watch.may_take(&seen, Instant::now()) {
            return Ok(());
        }
        if seen != first {
            return Err(StartError::SeatHeld { term: seen.term.get() });
        }
        thread::sleep(LOOK_EVERY);
        seen = database.seat(DATABASE_LOG)?;
    }
}

/// A database that does not answer says nothing of who leads.
fn may_lead(database: &Database, watch: &mut SeatWatch) -> bool {
    match database.seat(DATABASE_LOG) {
        Ok(seat) => watch.may_take(&seat, Instant::now()),
        Err(error) => {
            tracing::warn!(%error, "the seat cannot be looked at");
            false
        }
    }
}

/// The database's own tools do it, while the node goes on.
fn backed_up_elsewhere() -> Backup {
    Arc::new(|_, _| Err(Error::BackedUpElsewhere))
}

/// Makes the folder if there is none, for its owner only.
fn lock(folder: &Path) -> Result<File, StartError> {
    let failed = |error: std::io::Error| FileError { path: folder.to_owned(), what: error.to_string() };
    if !folder.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    }
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(folder.join(LOCK));
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked { folder: folder.display().to_string() }.into()),
        Err(TryLockError::Error(error)) => Err(failed(error).into()),
    }
}

/// None where there is none, or nothing that can be read: then a seat has to be still before it is taken.
fn last_holder(folder: &Path) -> Result<Option<Uuid>, FileError> {
    let path = folder.join(HOLDER);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().parse().ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError { path, what: format!("cannot be read: {error}") }),
    }
}
