//! All of it in a database. The data folder has only what belongs to this node: the token of its command line, and which
//! life of it held the seat last.

mod away;
mod leader_link;
mod leadership;
mod outputs;

use core::time::Duration;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use onward_core::candidate::{CandidateRule, HolderId};
use onward_log::{Error, Log};
use onward_postgres::{Database, DatabaseOptions, DatabaseUrl};
use uuid::Uuid;

use super::migrate::moved_to;
use super::{OpenError, Storage};
use crate::auth::{FileError, SecretTable, TokenTable, write_secret};
use crate::engine::{Backup, may_pass};
use crate::outputs::{KEEP_BYTES, OutputRules};
use crate::server::StartError;
use away::wait_while_away;
use leadership::{DatabaseLeadership, Membership};
pub(super) use outputs::OutputTable;

/// The file in the data folder whose lock makes a process the only one there.
const LOCK: &str = "node.lock";
/// The file in the data folder with the name under which the last life of this node took the seat.
const HOLDER: &str = "holder";
/// The log in the data folder of a node with embedded storage.
pub(super) const EMBEDDED_LOG: &str = "onward.redb";

/// A database that was opened, and what of it is a node's.
#[derive(Clone, Debug)]
pub struct OpenedDatabase(pub(super) Database);

impl OpenedDatabase {
    pub fn open(url: &DatabaseUrl) -> Result<Self, OpenError> {
        DatabaseOptions::default().open(url.reveal()).map(Self)
    }

    /// The tokens of the nodes that share this log.
    pub fn tokens(&self, log: &str) -> Result<TokenTable, Error> {
        TokenTable::open(self.0.tokens(log)?)
    }
}

/// The identity of a node among those that share its database.
#[derive(Clone, Debug)]
pub struct SharedIdentity {
    /// The log that is shared: one for each datacenter.
    pub log: String,
    /// The node's name, unique among those that share the log.
    pub name: String,
    /// The address by which the others, and their clients, reach it.
    pub address: String,
    /// Set once the node is about to go: it leads no more.
    pub is_leaving: Arc<AtomicBool>,
    /// Cleared while the node that leads does not answer this one.
    pub reaches_leader: Arc<AtomicBool>,
}

impl Storage {
    /// Storage in this database; `folder` has what belongs to this node only. Where another node leads, this one
    /// follows. A database that is away is waited for, until the node is told to leave; one that stores nothing at the
    /// moment is enough for a node that has started on it before.
    pub fn postgres(
        url: &DatabaseUrl,
        folder: &Path,
        outputs: OutputRules,
        seat_ttl: Duration,
        identity: SharedIdentity,
    ) -> Result<Self, StartError> {
        let lock = lock(folder)?;
        if folder.join(EMBEDDED_LOG).exists() && moved_to(folder)?.is_none() {
            return Err(StartError::EmbeddedData { folder: folder.to_owned() });
        }
        let about = |error| StartError::Database { url: url.clone(), error };
        let SharedIdentity { log, name, address, is_leaving, reaches_leader } = identity;
        let (database, tokens) = wait_while_away(&is_leaving, || {
            let OpenedDatabase(database) = OpenedDatabase::open(url).map_err(about)?;
            let database = database.reached_at(&name, &address);
            if database.seat(&log)?.sight.is_importing {
                return Err(StartError::HalfMigrated);
            }
            let tokens = TokenTable::open(database.tokens(&log).map_err(about)?)?;
            Ok((database, tokens))
        })?;
        let is_over = is_leaving.clone();
        let rule = CandidateRule::with_ttl(seat_ttl);
        let membership = Membership::new(database.clone(), &log, rule, is_leaving, reaches_leader);
        match membership.publish_member() {
            Ok(true) => {}
            Ok(false) => return Err(StartError::NameTaken { name }),
            Err(error) if may_pass(&error) => {
                tracing::warn!(%error, "the database stores nothing at the moment; the other managers learn later that this one lives");
            }
            Err(error) => return Err(error.into()),
        }
        membership.say_on().map_err(StartError::Thread)?;
        let leadership =
            DatabaseLeadership::new(membership.clone(), last_holder(folder)?).map_err(StartError::Thread)?;
        let holder = Uuid::from_u128(database.holder().0);
        write_secret(&folder.join(HOLDER), holder.to_string().as_bytes())?;
        let mut made = None;
        wait_while_away(&is_over, || Ok(tokens.ensure_local(folder, &mut made)?))?;
        let output_table = database.outputs(&log, KEEP_BYTES).map_err(about)?;
        Ok(Self {
            archive: Arc::new(database.archive(&log)),
            secrets: Box::new(SecretTable(database.secrets(&log))),
            tokens: Box::new(tokens),
            outputs: Box::new(OutputTable::new(output_table, outputs)),
            leadership: Box::new(leadership),
            heirs: Some(membership.heirs()),
            standbys: Some(Arc::new({
                let database = database.clone();
                move || database.synchronous_standbys()
            })),
            log: Box::new(move || {
                // Held for as long as anything of this storage is.
                let _lock = &lock;
                Ok(Box::new(database.log(&log)?) as Box<dyn Log>)
            }),
            backup: Some(backed_up_elsewhere()),
            is_whole: true,
        })
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
fn last_holder(folder: &Path) -> Result<Option<HolderId>, FileError> {
    let path = folder.join(HOLDER);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().parse::<Uuid>().ok().map(|holder| HolderId(holder.as_u128()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError { path, what: format!("cannot be read: {error}") }),
    }
}
