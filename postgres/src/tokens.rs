//! Tokens on PostgreSQL.

use std::sync::{Mutex, PoisonError};

use onward_log::Error;
use tokio_postgres::Row;

use crate::connection::Connection;
use crate::failure::RequestFailure;

const CHANGES: &str = "select coalesce((select number from onward.token_changes where log = $1::text), 0)";
const LIST: &str = "select name, scopes, created_at, hint, sha256 from onward.token where log = $1::text
    order by created_at, name";
const ADD: &str = include_str!("../sql/token_add.sql");
const REVOKE: &str = include_str!("../sql/token_revoke.sql");

/// A token as it is stored: everything but the token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredToken {
    pub name: String,
    /// The words of its scopes.
    pub scopes: Vec<String>,
    pub created_at_ms: u64,
    /// The last characters of the token.
    pub hint: String,
    pub sha256: [u8; 32],
}

/// The fate of a token that was to be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenInsert {
    Stored,
    /// Another token has this name.
    NameTaken,
    /// The table has as many tokens as it may.
    TooMany,
}

/// The tokens that belong to one log, over a connection of their own: whoever looks at them waits for nobody else.
#[derive(Debug)]
pub struct PostgresTokens {
    name: String,
    connection: Mutex<Connection>,
}

impl PostgresTokens {
    pub(crate) fn new(name: &str, connection: Connection) -> Self {
        Self { name: name.to_owned(), connection: Mutex::new(connection) }
    }

    /// Rises with every change.
    pub fn changes(&self) -> Result<i64, Error> {
        let mut connection = self.connection();
        let deadline = connection.deadline(0);
        let rows = connection.look(CHANGES, &[&self.name], deadline).map_err(RequestFailure::of_look)?;
        Ok(rows[0].get(0))
    }

    /// All of them, the oldest first.
    pub fn list(&self) -> Result<Vec<StoredToken>, Error> {
        let mut connection = self.connection();
        let deadline = connection.read_deadline();
        let rows = connection.look(LIST, &[&self.name], deadline).map_err(RequestFailure::of_look)?;
        rows.iter().map(token).collect()
    }

    /// Adds a token. In doubt nobody has its text yet: make another.
    pub fn add(&self, token: &StoredToken, max_tokens: usize) -> Result<TokenInsert, Error> {
        let mut connection = self.connection();
        let deadline = connection.deadline(0);
        let max = i64::try_from(max_tokens).unwrap_or(i64::MAX);
        let created = i64::try_from(token.created_at_ms).unwrap_or(i64::MAX);
        let rows = connection.change(
            ADD,
            &[&self.name, &token.name, &token.scopes, &created, &token.hint, &&token.sha256[..], &max],
            deadline,
        );
        let rows = rows.map_err(RequestFailure::of_change)?;
        Ok(match (rows[0].get::<_, bool>(0), rows[0].get::<_, bool>(1)) {
            (true, _) => TokenInsert::Stored,
            (false, true) => TokenInsert::NameTaken,
            (false, false) => TokenInsert::TooMany,
        })
    }

    /// Removes the token of this name; false if there is none.
    pub fn revoke(&self, token: &str) -> Result<bool, Error> {
        let mut connection = self.connection();
        let deadline = connection.deadline(0);
        let rows = connection.change(REVOKE, &[&self.name, &token], deadline).map_err(RequestFailure::of_change)?;
        Ok(!rows.is_empty())
    }

    fn connection(&self) -> std::sync::MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn token(row: &Row) -> Result<StoredToken, Error> {
    let name: String = row.get(0);
    let wrong = |_| Error::Corrupt { what: format!("the token {name} has no proper digest") };
    let sha256 = row.get::<_, &[u8]>(4).try_into().map_err(wrong)?;
    Ok(StoredToken {
        sha256,
        scopes: row.get(1),
        created_at_ms: row.get::<_, i64>(2).unsigned_abs(),
        hint: row.get(3),
        name,
    })
}
