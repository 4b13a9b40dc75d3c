//! Pollers side by side on one PostgreSQL. Each says when it begins with a row and when it has ended, and no two of them are
//! at the same row, or at the same key, at the same time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onward_health::Supervisor;
use onward_outbox::{Outbox, PublishError, Publisher, Row, Supervise};
use onward_testkit::PostgresServer;
use tokio_postgres::NoTls;

const PATIENCE: Duration = Duration::from_secs(120);
const POLLERS: usize = 4;
const ROWS: usize = 1_500;

/// The rows in each poller's hands, and the ones that have been published.
#[derive(Default)]
struct Hands {
    rows: HashMap<i64, usize>,
    keys: HashMap<String, usize>,
    published: HashSet<i64>,
    by: HashSet<usize>,
    violations: Vec<String>,
    calls: u64,
}

#[derive(Clone)]
struct WatchedPoller {
    poller: usize,
    hands: Arc<Mutex<Hands>>,
}

impl WatchedPoller {
    /// Begins a call. Gives whether the publisher is away this time: then rows change hands more often.
    fn begin(&self, rows: &[Row]) -> bool {
        let mut hands = self.hands.lock().unwrap();
        for row in rows {
            let poller = self.poller;
            if let Some(other) = hands.rows.insert(row.id, poller) {
                hands.violations.push(format!("row {} is with {other} and {poller}", row.id));
            }
            if hands.published.contains(&row.id) {
                hands.violations.push(format!("row {} was published before", row.id));
            }
            if let Some(other) = row.key.as_ref().and_then(|key| hands.keys.insert(key.clone(), poller)) {
                hands.violations.push(format!("key {:?} is with {other} and {poller}", row.key));
            }
        }
        hands.calls += 1;
        hands.calls.is_multiple_of(5)
    }

    fn end(&self, rows: &[Row], is_away: bool) {
        let mut hands = self.hands.lock().unwrap();
        hands.by.insert(self.poller);
        for row in rows {
            hands.rows.remove(&row.id);
            row.key.as_ref().map(|key| hands.keys.remove(key));
            if !is_away {
                hands.published.insert(row.id);
            }
        }
    }
}

impl Publisher for WatchedPoller {
    async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
        let is_away = self.begin(rows);
        // Long enough for another to claim the same, if it could.
        tokio::time::sleep(Duration::from_millis(3)).await;
        self.end(rows, is_away);
        match is_away {
            true => vec![Err(PublishError::Unavailable("away".into())); rows.len()],
            false => vec![Ok(()); rows.len()],
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_pollers_are_at_one_row_or_at_one_key() {
    let url = PostgresServer::shared().database().unwrap();
    let hands = Arc::new(Mutex::new(Hands::default()));
    let mut services = Vec::new();
    for poller in 0..POLLERS {
        let outbox = Outbox::postgres(&url).await.unwrap();
        let quick = Duration::from_millis;
        let publisher = WatchedPoller { poller, hands: hands.clone() };
        let poller = outbox.publish_to(publisher).every(quick(2)).backoff(quick(2), quick(4)).batch(25);
        let service = Supervisor::new("shop").without_signals();
        service.outbox(poller);
        services.push((service.stopper(), tokio::spawn(service.run())));
    }
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    // Half of the rows have no key, and only themselves to be held by.
    let fill = "INSERT INTO onward_outbox (topic, key, payload)
        SELECT 'rows', CASE WHEN n % 2 = 0 THEN 'k' || n % 14 END, 'x' FROM generate_series(1, $1::bigint) n";
    let (began, mut written) = (Instant::now(), 0);
    loop {
        let (published, by) = {
            let hands = hands.lock().unwrap();
            (hands.published.len(), hands.by.len())
        };
        if published == written && written >= ROWS && by == POLLERS {
            break;
        }
        // More of them, until everybody had some.
        if published == written {
            client.execute(fill, &[&(ROWS as i64 / 3)]).await.unwrap();
            written += ROWS / 3;
        }
        assert!(began.elapsed() < PATIENCE, "{published} of {written} rows were published, by {by} pollers");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (stopper, running) in services {
        stopper.stop();
        running.await.unwrap().unwrap();
    }
    assert_eq!(hands.lock().unwrap().violations, Vec::<String>::new());
}
