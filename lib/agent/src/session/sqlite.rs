//! Sessions in a SQLite file.
//!
//! An append is one transaction that compares the fence and inserts the entry, so it is refused or it is in the history,
//! and nothing in between. A process that is frozen within that transaction keeps others out until it goes on or ends;
//! they are told so after five seconds, as [`SessionError::Unavailable`]. [`Folder`](super::Folder) has no such wait.

use core::time::Duration;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::{Entry, MAX_ENTRIES, Session, SessionError, Sessions, blocking, check_id, decode, encode};

const WAITS_FOR_LOCK: Duration = Duration::from_secs(5);

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS onward_agent_session (id TEXT PRIMARY KEY, fence INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS onward_agent_entry (
  session TEXT NOT NULL, number INTEGER NOT NULL, fence INTEGER NOT NULL, entry TEXT NOT NULL,
  PRIMARY KEY (session, number)) WITHOUT ROWID;
";

/// Sessions in a SQLite file, which several processes of one machine may share.
#[derive(Clone, Debug)]
pub struct Sqlite {
    connection: Arc<Mutex<Connection>>,
}

impl Sqlite {
    /// The file and its tables are made if they are not there, and then they are their owner's alone.
    pub fn at(path: impl AsRef<Path>) -> rusqlite::Result<Self> {
        make_file(path.as_ref());
        let connection = Connection::open(path)?;
        connection.busy_timeout(WAITS_FOR_LOCK)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    async fn call<T: Send + 'static>(
        &self,
        id: &str,
        call: impl FnOnce(&mut Connection, &str) -> Result<T, SqliteFailure> + Send + 'static,
    ) -> Result<T, SessionError> {
        let (connection, id) = (self.connection.clone(), id.to_owned());
        blocking(&id.clone(), move || {
            let mut connection = connection.lock().expect("nothing panics while it is held");
            call(&mut connection, &id).map_err(|failed| match failed {
                SqliteFailure::Session(error) => error,
                SqliteFailure::Sqlite(error) => SessionError::Unavailable { id, why: error.to_string() },
            })
        })
        .await
    }
}

/// What is in a session may be secret, so nobody else reads its file; SQLite gives the files beside it the same permissions.
/// Only a new one is made here: to close one that is in use would end the locks that this process has on it. Why there is
/// none is said by SQLite, which opens it next.
fn make_file(path: &Path) {
    let is_special = |name: &str| name.is_empty() || name == ":memory:" || name.starts_with("file:");
    if !path.to_str().is_some_and(is_special) {
        let _ = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    }
}

enum SqliteFailure {
    Session(SessionError),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for SqliteFailure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// SQLite's integers have a sign; the order of fences stays the same.
fn stored(fence: u64) -> i64 {
    fence.wrapping_sub(1 << 63).cast_signed()
}

fn loaded(fence: i64) -> u64 {
    fence.cast_unsigned().wrapping_add(1 << 63)
}

fn refuse_stale(connection: &Connection, id: &str, fence: u64) -> Result<(), SqliteFailure> {
    let newest = "SELECT fence FROM onward_agent_session WHERE id = ?1";
    let newest: Option<i64> = connection.prepare_cached(newest)?.query_row([id], |row| row.get(0)).optional()?;
    match newest.map(loaded) {
        Some(newer) if newer > fence => {
            Err(SqliteFailure::Session(SessionError::Stale { id: id.to_owned(), fence, newer }))
        }
        _ => Ok(()),
    }
}

impl Sessions for Sqlite {
    async fn open(&self, id: &str, fence: u64) -> Result<Session, SessionError> {
        check_id(id)?;
        self.call(id, move |connection, id| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            refuse_stale(&transaction, id, fence)?;
            let raise = "INSERT INTO onward_agent_session VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET fence = ?2";
            transaction.execute(raise, params![id, stored(fence)])?;
            let mut entries = Vec::new();
            let select = "SELECT entry FROM onward_agent_entry WHERE session = ?1 ORDER BY number";
            for text in transaction.prepare_cached(select)?.query_map([id], |row| row.get::<_, String>(0))? {
                entries.push(decode(&text?, id, entries.len()).map_err(SqliteFailure::Session)?);
            }
            transaction.commit()?;
            Ok(Session { id: id.to_owned(), fence, entries })
        })
        .await
    }

    async fn append(&self, session: &Session, entry: &Entry) -> Result<(), SessionError> {
        let (text, fence) = (encode(entry, &session.id)?, session.fence);
        self.call(&session.id, move |connection, id| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            refuse_stale(&transaction, id, fence)?;
            let count = "SELECT coalesce(max(number) + 1, 0) FROM onward_agent_entry WHERE session = ?1";
            let number: i64 = transaction.prepare_cached(count)?.query_row([id], |row| row.get(0))?;
            if number >= MAX_ENTRIES as i64 {
                return Err(SqliteFailure::Session(SessionError::Full(id.to_owned())));
            }
            let insert = "INSERT INTO onward_agent_entry VALUES (?1, ?2, ?3, ?4)";
            transaction.prepare_cached(insert)?.execute(params![id, number, stored(fence), text])?;
            transaction.commit()?;
            Ok(())
        })
        .await
    }
}
