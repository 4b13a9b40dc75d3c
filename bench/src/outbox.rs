//! An outbox on a real PostgreSQL that syncs its commits, with a publisher that takes everything; and beside it, in the same
//! run, the loop that people write by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onward::outbox::{Outbox, PublishError, Publisher, Row, Supervise};
use onward_health::Supervisor;
use onward_testkit::PostgresServer;
use tokio::sync::Notify;
use tokio_postgres::{Client, NoTls};

use crate::contest::ContestError;
use crate::report::Figure;
use crate::runs::median;

const BATCH: i64 = 1_000;

/// Rows of 200 bytes under 5,000 keys.
const FILL: &str = "INSERT INTO onward_outbox (topic, key, payload)
    SELECT 'bench', 'key-' || (n * 7919) % 5000, decode(repeat('ab', 200), 'hex') FROM generate_series(1, $1::bigint) n";

const PLAIN: &str =
    "CREATE TABLE plain (id bigserial PRIMARY KEY, topic text, key text, payload bytea, published_at timestamptz);
    CREATE INDEX plain_waiting ON plain (id) WHERE published_at IS NULL";
const FILL_PLAIN: &str = "INSERT INTO plain (topic, key, payload)
    SELECT 'bench', 'key-' || (n * 7919) % 5000, decode(repeat('ab', 200), 'hex') FROM generate_series(1, $1::bigint) n";
const TAKE_PLAIN: &str = "SELECT id, topic, key, payload FROM plain WHERE published_at IS NULL ORDER BY id LIMIT $1
    FOR UPDATE SKIP LOCKED";
const MARK_PLAIN: &str = "UPDATE plain SET published_at = now() WHERE id = ANY($1)";

/// Counts rows, and says when there were enough.
struct RowCounter {
    published: AtomicU64,
    wanted: AtomicU64,
    enough: Notify,
}

struct TakesAll(Arc<RowCounter>);

impl Publisher for TakesAll {
    async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
        let before = self.0.published.fetch_add(rows.len() as u64, Ordering::SeqCst);
        if before + rows.len() as u64 >= self.0.wanted.load(Ordering::SeqCst) {
            self.0.enough.notify_one();
        }
        vec![Ok(()); rows.len()]
    }
}

/// Each of so many slices of rows is written, and then published.
pub async fn run(slices: u64, rows: u64) -> Result<Vec<Figure>, ContestError> {
    let server = PostgresServer::options().fsync().start()?;
    let url = server.database()?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(PLAIN).await?;
    let counted =
        Arc::new(RowCounter { published: AtomicU64::new(0), wanted: AtomicU64::new(u64::MAX), enough: Notify::new() });
    let outbox = Outbox::postgres(&url).await?;
    let poller = outbox.clone().publish_to(TakesAll(counted.clone())).every(Duration::from_millis(5));
    let service = Supervisor::new("bench").without_signals();
    service.outbox(poller);
    let stopper = service.stopper();
    let running = tokio::spawn(service.run());
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for slice in 1..=slices {
        ours.push(drain(&client, &counted, slice * rows, rows).await?);
        plain.push(drain_plainly(&mut client, rows).await?);
    }
    stopper.stop();
    running.await??;
    let growth = ours[0] / ours[ours.len() - 1];
    let (rate, spread) = median(ours);
    let (plain, plain_spread) = median(plain);
    let thousands = |(low, high): (f64, f64)| (low / 1e3, high / 1e3);
    Ok(vec![
        Figure {
            what: "outbox on PostgreSQL, to a publisher that does nothing".into(),
            value: rate / 1e3,
            unit: "k rows/s",
            wanted: Some(20.0),
            more: true,
            spread: spread.map(thousands),
        },
        Figure {
            what: "a plain loop of SELECT and UPDATE over one table".into(),
            value: plain / 1e3,
            unit: "k rows/s",
            wanted: None,
            more: true,
            spread: plain_spread.map(thousands),
        },
        Figure {
            what: format!("outbox: cost of a row after {}k published over the first's", (slices - 1) * rows / 1_000),
            value: growth,
            unit: "×",
            wanted: Some(1.3),
            more: false,
            spread: None,
        },
    ])
}

/// Rows a second, from the commit of all of them to the publication of the last.
async fn drain(client: &Client, counted: &RowCounter, total: u64, rows: u64) -> Result<f64, ContestError> {
    counted.wanted.store(total, Ordering::SeqCst);
    client.execute(FILL, &[&(rows as i64)]).await?;
    let began = Instant::now();
    counted.enough.notified().await;
    Ok(rows as f64 / began.elapsed().as_secs_f64())
}

async fn drain_plainly(client: &mut Client, rows: u64) -> Result<f64, ContestError> {
    client.execute(FILL_PLAIN, &[&(rows as i64)]).await?;
    let (take, mark) = (client.prepare(TAKE_PLAIN).await?, client.prepare(MARK_PLAIN).await?);
    let began = Instant::now();
    loop {
        let transaction = client.transaction().await?;
        let found = transaction.query(&take, &[&BATCH]).await?;
        if found.is_empty() {
            return Ok(rows as f64 / began.elapsed().as_secs_f64());
        }
        let ids: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
        transaction.execute(&mark, &[&ids]).await?;
        transaction.commit().await?;
    }
}
