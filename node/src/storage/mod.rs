//! What a node keeps, as one bundle, and the one place that says which engines keep it.
//!
//! | part | what is in it | embedded | on PostgreSQL, in the schema `onward` |
//! |---|---|---|---|
//! | log | events, content, snapshots, the seat | `onward.redb`, `onward.journal` | `seat`, `batch`, `blob`, `chunk` |
//! | archive | finished jobs and their content | `archive.redb` | `archive`, `archive_blob`, `archive_count` |
//! | secrets | the key of receipts | `receipt.key` | `secret` |
//! | tokens | digests of tokens, and their scopes | `tokens.json` | `token`, `token_changes` |
//! | outputs | the end of what attempts print | `output/` | `output` |
//!
//! A node that takes over must find all of it: so where several managers share a log, they share the rest as well.

mod commit_mark;
#[cfg(test)]
mod conformance;
mod embedded;
mod migrate;
mod postgres;

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

pub(crate) use commit_mark::CommitMark;
pub use migrate::{MigrateError, MigrationProgress, MigrationSummary, migrate};
use onward_log::{Archive, Error, Log};
pub use onward_postgres::{DatabaseUrl, ImportError, OpenError};
pub use postgres::{OpenedDatabase, SharedIdentity};

use crate::auth::{Secrets, Tokens};
use crate::cluster::{Heirs, Leadership};
use crate::engine::Backup;
use crate::outputs::OutputStore;

/// The datacenter of a node that was not told another, and the log of its managers.
pub const DEFAULT_DATACENTER: &str = "default";

/// The data that outlive the process.
pub struct Storage {
    /// Gives a handle on the log; asked again for every term.
    pub log: Box<dyn FnMut() -> Result<Box<dyn Log>, Error> + Send>,
    pub archive: Arc<dyn Archive>,
    pub secrets: Box<dyn Secrets>,
    pub tokens: Box<dyn Tokens>,
    pub outputs: Box<dyn OutputStore>,
    /// Says when to try for the seat, and to whom it can be handed over.
    pub leadership: Box<dyn Leadership>,
    pub heirs: Option<Heirs>,
    /// Says for whom a commit waits, where there may be somebody.
    pub standbys: Option<Standbys>,
    /// Copies all of it to a file, where the engine has no way of its own for that.
    pub backup: Option<Backup>,
    /// Whether everything that was acknowledged is there.
    pub is_whole: bool,
}

/// Asks which standbys a commit waits for, in the words of the database. It waits for the answer.
pub type Standbys = Arc<dyn Fn() -> Result<String, Error> + Send + Sync>;

/// The engine that keeps the data of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum StorageChoice {
    /// Files in the data folder.
    #[default]
    Embedded,
    Postgres(DatabaseUrl),
}

const EMBEDDED: &str = "embedded";

impl FromStr for StorageChoice {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        if text == EMBEDDED { Ok(Self::Embedded) } else { text.parse().map(Self::Postgres) }
    }
}

/// Shown without a password.
impl fmt::Display for StorageChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str(EMBEDDED),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").finish_non_exhaustive()
    }
}
