//! The same questions to PostgreSQL and to SQLite. Time is not waited for: instants in the table are moved.

mod conformance;
mod postgres;

use core::time::Duration;

use super::*;
use crate::enqueue::enqueue;
use onward_testkit::PostgresServer as Server;
use tokio_postgres::{Client, NoTls};

/// A store with an empty table, and a way to it for whoever writes rows.
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) writer: Writer,
}

pub(crate) enum Writer {
    Postgres { client: Box<Client>, url: String },
    Sqlite { connection: rusqlite::Connection, _folder: tempfile::TempDir },
}

pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl World {
    pub(crate) async fn postgres() -> Self {
        Self::on(Server::shared()).await
    }

    pub(crate) async fn on(server: &Server) -> Self {
        let url = server.database().unwrap();
        let store = Store::Postgres(Box::new(PostgresRows::open(&url, Missing::Make).await.unwrap()));
        Self { store, writer: Writer::Postgres { client: Box::new(client(&url).await), url } }
    }

    pub(crate) async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outbox.db");
        let store = Store::Sqlite(SqliteRows::open(&path, Missing::Make).await.unwrap());
        let connection = rusqlite::Connection::open(&path).unwrap();
        Self { store, writer: Writer::Sqlite { connection, _folder: folder } }
    }

    /// The same table over another connection.
    pub(crate) async fn again(&self) -> Store {
        match &self.writer {
            Writer::Postgres { url, .. } => {
                Store::Postgres(Box::new(PostgresRows::open(url, Missing::Make).await.unwrap()))
            }
            Writer::Sqlite { connection, .. } => {
                Store::Sqlite(SqliteRows::open(connection.path().unwrap().as_ref(), Missing::Make).await.unwrap())
            }
        }
    }

    /// Commits a row for each; their ids.
    pub(crate) async fn write(&mut self, rows: impl IntoIterator<Item = Row>) -> Vec<i64> {
        let mut ids = Vec::new();
        match &mut self.writer {
            Writer::Postgres { client, .. } => {
                let transaction = client.transaction().await.unwrap();
                for row in rows {
                    ids.push(enqueue(&transaction, row).await.unwrap());
                }
                transaction.commit().await.unwrap();
            }
            Writer::Sqlite { connection, .. } => {
                let transaction = connection.transaction().unwrap();
                for row in rows {
                    ids.push(crate::sqlite::enqueue(&transaction, row).unwrap());
                }
                transaction.commit().unwrap();
            }
        }
        ids
    }

    /// Commits rows of these keys, where `-` is none; their ids.
    pub(crate) async fn write_keys(&mut self, keys: &str) -> Vec<i64> {
        let row = |key: &str| match key {
            "-" => Row::new("topic"),
            key => Row::new("topic").key(key),
        };
        let rows: Vec<Row> = keys.split_whitespace().map(row).collect();
        self.write(rows).await
    }

    pub(crate) async fn run(&self, sql: &str) {
        match &self.writer {
            Writer::Postgres { client, .. } => client.batch_execute(sql).await.unwrap(),
            Writer::Sqlite { connection, .. } => connection.execute_batch(sql).unwrap(),
        }
    }

    /// The same table for a role that may do with its rows what a poller does, and does not own it.
    pub(crate) async fn as_a_guest(&self) -> Store {
        let Writer::Postgres { url, .. } = &self.writer else { unreachable!("these tests are PostgreSQL's") };
        let database = url.rsplit('/').next().unwrap();
        let grant = format!(
            "CREATE ROLE guest_of_{database} LOGIN;
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO guest_of_{database}"
        );
        self.run(&grant).await;
        let url = url.replacen("onward@", &format!("guest_of_{database}@"), 1);
        Store::Postgres(Box::new(PostgresRows::open(&url, Missing::Make).await.unwrap()))
    }

    /// Asks PostgreSQL for a number.
    pub(crate) async fn number(&self, question: &str) -> i64 {
        let Writer::Postgres { client, .. } = &self.writer else { unreachable!("these tests are PostgreSQL's") };
        client.query_one(question, &[]).await.unwrap().get(0)
    }

    /// The leases of all claims end.
    pub(crate) async fn end_leases(&self) {
        self.run(match self.writer {
            Writer::Postgres { .. } => {
                "UPDATE onward_outbox SET claimed_until = now() - interval '1 second' WHERE claimed_by IS NOT NULL"
            }
            Writer::Sqlite { .. } => "UPDATE onward_outbox SET claimed_until = 1 WHERE claimed_by IS NOT NULL",
        })
        .await;
    }

    /// All retries are due.
    pub(crate) async fn end_waits(&self) {
        self.run(match self.writer {
            Writer::Postgres { .. } => "UPDATE onward_outbox SET next_at = now() - interval '1 second'",
            Writer::Sqlite { .. } => "UPDATE onward_outbox SET next_at = 1",
        })
        .await;
    }

    pub(crate) async fn claim(&self) -> RowClaim {
        self.store.claim(&RULE).await.unwrap()
    }

    pub(crate) async fn publish(&self, claim: &RowClaim) -> u64 {
        let published = claim.rows.iter().map(|row| row.id).collect();
        self.store
            .settle(claim.token, &ClaimSettlement { published, ..ClaimSettlement::default() }, false)
            .await
            .unwrap()
    }

    /// Refuses the first row of a claim, and gives the others back.
    pub(crate) async fn refuse_first(&self, claim: &RowClaim, park: bool) -> u64 {
        let ids: Vec<i64> = claim.rows.iter().map(|row| row.id).collect();
        let refusal = RowRefusal { id: ids[0], error: "no\0pe".into(), retry_after: Duration::from_secs(900), park };
        let what = ClaimSettlement { published: vec![], given_back: ids[1..].to_vec(), refused: vec![refusal] };
        self.store.settle(claim.token, &what, false).await.unwrap()
    }

    pub(crate) async fn attempts(&self) -> Vec<u32> {
        self.store.list(&RowFilter::default(), 1_000).await.unwrap().iter().map(|row| row.attempts).collect()
    }
}

pub(crate) const RULE: ClaimRule =
    ClaimRule { lease: Duration::from_secs(600), rows: 100, bytes: 1 << 20, max_attempts: 3, hold: true };

pub(crate) fn ids(claim: &RowClaim) -> Vec<i64> {
    claim.rows.iter().map(|row| row.id).collect()
}
