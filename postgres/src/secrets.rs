//! Keys that are made once, on PostgreSQL.

use std::sync::Arc;

use onward_log::{Error, LogChange};

use crate::connection::Pool;
use crate::failure::RequestFailure;

const GET: &str = "select key from onward.secret where log = $1::text and name = $2::text";
const PUT: &str =
    "insert into onward.secret (log, name, key) values ($1::text, $2::text, $3::bytea) on conflict do nothing";

/// The number of times that a key is looked for before it is said that nothing is known of it.
const TRIES: usize = 3;

/// The keys that belong to one log.
#[derive(Clone, Debug)]
pub struct PostgresSecrets {
    name: String,
    pool: Arc<Pool>,
}

impl PostgresSecrets {
    pub(crate) fn new(name: &str, pool: Arc<Pool>) -> Self {
        Self { name: name.to_owned(), pool }
    }

    /// The key of this name; if there is none yet, `made` is it from now on, unless another was quicker.
    pub fn key(&self, name: &str, made: [u8; 32]) -> Result<[u8; 32], Error> {
        let mut doubt = None;
        for _ in 0..TRIES {
            let found = self.pool.look(GET, &[&self.name, &name]).map_err(RequestFailure::of_look)?;
            if let Some(row) = found.first() {
                let wrong = |_| Error::Corrupt { what: format!("the secret {name} is no key of 32 bytes") };
                return row.get::<_, &[u8]>(0).try_into().map_err(wrong);
            }
            // Whatever became of it, the next look shows which key it is.
            match self.pool.change(PUT, &[&self.name, &name, &&made[..]], 0).map_err(RequestFailure::of_change) {
                Err(error) if error.changed() == LogChange::Maybe => doubt = Some(error),
                stored => drop(stored?),
            }
        }
        Err(doubt.unwrap_or_else(|| Error::Io { cause: format!("the secret {name} cannot be stored") }))
    }
}
