//! How a program writes a row, in the transaction that changes whatever the row is about.

use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use crate::error::EnqueueError;
use crate::row::Row;

/// Writes the row, which is published if, and only if, the transaction commits; the row's id.
///
/// Rows of one key are published in the order of their ids, which is the order of their transactions where those wait for
/// each other: lock, or change, what the key stands for before you enqueue.
pub async fn enqueue(transaction: &Transaction<'_>, row: Row) -> Result<i64, EnqueueError> {
    const INSERT: &str = "INSERT INTO onward_outbox (dedup, topic, key, payload, headers)
        VALUES ($1, $2, $3, $4, $5::text::jsonb) RETURNING id";
    row.check()?;
    let headers = row.headers_json();
    // Without a name: a statement that is prepared by name is lost behind a pooler.
    let id = transaction
        .query_typed(
            INSERT,
            &[
                (&row.dedup, Type::UUID),
                (&row.topic, Type::TEXT),
                (&row.key, Type::TEXT),
                (&row.payload, Type::BYTEA),
                (&headers, Type::TEXT),
            ],
        )
        .await?;
    Ok(id[0].get(0))
}

/// The same for SQLite.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    use rusqlite::{Transaction, params};

    use crate::error::EnqueueError;
    use crate::row::Row;

    /// Writes the row, which is published if, and only if, the transaction commits; the row's id.
    pub fn enqueue(transaction: &Transaction<'_>, row: Row) -> Result<i64, EnqueueError> {
        const INSERT: &str =
            "INSERT INTO onward_outbox (dedup, topic, key, payload, headers) VALUES (?1, ?2, ?3, ?4, ?5) RETURNING id";
        row.check()?;
        let (dedup, headers) = (row.dedup.simple().to_string(), row.headers_json());
        let given = params![dedup, row.topic, row.key, row.payload, headers];
        Ok(transaction.prepare_cached(INSERT)?.query_row(given, |columns| columns.get(0))?)
    }
}
