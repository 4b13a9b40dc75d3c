//! A service with an outbox on a real PostgreSQL that publishes to a real NATS server, and is asked from outside.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use onward_health::{HealthHandle, RunError, Stopper, Supervisor};
use onward_outbox::{Outbox, Poller, PublishError, Publisher, Row, RowFilter, Supervise, enqueue};
use onward_testkit::{NatsServer, PostgresServer};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

/// Longer than anything here takes, on a busy computer too.
const PATIENCE: Duration = Duration::from_secs(120);
const FRESHNESS: Duration = Duration::from_secs(20);

struct Service {
    health: HealthHandle,
    stopper: Stopper,
    running: JoinHandle<Result<(), RunError>>,
}

impl Service {
    fn start(poller: Poller, ready_file: &Path) -> Self {
        let quick = Duration::from_millis;
        let poller = poller.every(quick(20)).backoff(quick(20), quick(100)).freshness(FRESHNESS).lease(quick(5_000));
        let service = Supervisor::new("shop").probes("127.0.0.1:0").ready_file(ready_file).without_signals();
        service.outbox(poller);
        let (health, stopper) = (service.health(), service.stopper());
        Self { health, stopper, running: tokio::spawn(service.run()) }
    }

    async fn address(&self) -> SocketAddr {
        until("it listens", async || self.health.probes_address()).await
    }

    async fn stop(self) {
        self.stopper.stop();
        self.running.await.unwrap().unwrap();
    }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The status of an answer, and its body.
fn ask(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{answer}"));
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

async fn database() -> (String, Client) {
    let url = PostgresServer::shared().database().unwrap();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    (url, client)
}

async fn write(client: &mut Client, rows: impl IntoIterator<Item = Row>) {
    let transaction = client.transaction().await.unwrap();
    for row in rows {
        enqueue(&transaction, row).await.unwrap();
    }
    transaction.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_nats_is_red_and_parks_nothing_and_its_end_is_green() {
    let nats = NatsServer::start().unwrap();
    let (url, mut client) = database().await;
    let connected = async_nats::ConnectOptions::new().retry_on_initial_connect().connect(nats.url()).await.unwrap();
    let context = jetstream::new(connected.clone());
    let config =
        jetstream::stream::Config { name: "ORDERS".into(), subjects: vec!["orders.>".into()], ..Default::default() };
    until("JetStream is up", async || context.get_or_create_stream(config.clone()).await.ok()).await;

    let folder = tempfile::tempdir().unwrap();
    let ready_file = folder.path().join("ready");
    let outbox = Outbox::postgres(&url).await.unwrap();
    let poller = outbox.clone().publish_to(onward_nats::publisher(connected)).max_attempts(3);
    let service = Service::start(poller, &ready_file);
    let address = service.address().await;
    until("an idle outbox is ready", async || (ask(address, "/readyz").0 == 200).then_some(())).await;
    until("the file is there", async || ready_file.exists().then_some(())).await;
    let row = |n: u32| Row::new("orders.paid").key(n % 7).payload(n.to_string());
    write(&mut client, (0..50).map(row)).await;
    let published = async || context.get_stream("ORDERS").await.ok().map(|stream| stream.cached_info().state.messages);
    until("rows are published", async || (published().await == Some(50)).then_some(())).await;

    nats.server().kill();
    let began = Instant::now();
    let mut written = 50;
    let reason = until("it is red", async || {
        write(&mut client, [row(written)]).await;
        written += 1;
        assert_eq!(ask(address, "/livez").0, 200, "a restart would not bring NATS back");
        let (status, body) = ask(address, "/readyz");
        (status == 503).then_some(body)
    })
    .await;
    assert!(began.elapsed() < FRESHNESS, "the budget was spent only after {:?}", began.elapsed());
    assert!(reason.contains("budget_spent") && reason.contains("outbox"), "{reason}");
    until("the file is gone", async || (!ready_file.exists()).then_some(())).await;

    // Far more turns than a row has attempts.
    let failures = async || {
        let status: Value = serde_json::from_str(&ask(address, "/status").1).unwrap();
        let outbox = status["loops"].as_array().unwrap().iter().find(|one| one["name"] == "outbox").unwrap().clone();
        outbox["failures"].as_u64().unwrap()
    };
    until("it goes on to try", async || {
        assert_eq!((ask(address, "/livez").0, ask(address, "/readyz").0, ready_file.exists()), (200, 503, false));
        (failures().await >= 20).then_some(())
    })
    .await;
    assert_eq!(outbox.list(&RowFilter::default().parked(), 10).await.unwrap(), [], "an outage parks no row");
    let waiting = outbox.list(&RowFilter::default(), 1_000).await.unwrap();
    assert_eq!(waiting.len() as u32, written - 50);

    nats.server().start_again().unwrap();
    until("it is green again", async || {
        assert_eq!(ask(address, "/livez").0, 200);
        (ask(address, "/readyz").0 == 200).then_some(())
    })
    .await;
    until("the file is back", async || ready_file.exists().then_some(())).await;
    until("all is published", async || (published().await == Some(u64::from(written))).then_some(())).await;
    assert_eq!(outbox.backlog().await.unwrap().parked, 0);
    service.stop().await;
    assert!(!ready_file.exists(), "it is gone with the service");
}

/// Refuses one row, and takes the others.
struct OneRefused {
    refusals: Arc<AtomicU32>,
}

impl Publisher for OneRefused {
    async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
        let answer = |row: &Row| match row.topic.as_str() {
            "poison" => {
                self.refusals.fetch_add(1, Ordering::Relaxed);
                Err(PublishError::Refused("poison".into()))
            }
            _ => Ok(()),
        };
        rows.iter().map(answer).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_row_whose_key_waits_while_others_move_is_no_false_red() {
    let (url, mut client) = database().await;
    let folder = tempfile::tempdir().unwrap();
    let ready_file = folder.path().join("ready");
    let refusals = Arc::new(AtomicU32::new(0));
    let outbox = Outbox::postgres(&url).await.unwrap();
    let poller = outbox.clone().publish_to(OneRefused { refusals: refusals.clone() }).max_attempts(1);
    let service = Service::start(poller.oldest(Duration::from_millis(1_500)), &ready_file);
    let address = service.address().await;
    until("it is ready", async || (ask(address, "/readyz").0 == 200).then_some(())).await;
    write(&mut client, [Row::new("poison").key("a"), Row::new("fine").key("a"), Row::new("fine").key("b")]).await;
    until("the row is parked", async || (outbox.backlog().await.unwrap().parked == 1).then_some(())).await;
    let began = Instant::now();
    // Past the age that is tolerated: what waits behind a parked row is the parked row's business.
    while began.elapsed() < Duration::from_secs(3) {
        write(&mut client, [Row::new("fine").key("b")]).await;
        let (status, body) = ask(address, "/readyz");
        assert_eq!(status, 200, "{body}");
        assert_eq!(ask(address, "/livez").0, 200);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(ready_file.exists());
    assert_eq!(refusals.load(Ordering::Relaxed), 1, "a parked row is not tried again");
    until("others are published", async || (outbox.backlog().await.unwrap().depth == 1).then_some(())).await;
    outbox.drop_parked(&RowFilter::default()).await.unwrap();
    until("its key goes on", async || (outbox.backlog().await.unwrap().depth == 0).then_some(())).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_parked_rows_fail_readiness_and_not_liveness() {
    let (url, mut client) = database().await;
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::postgres(&url).await.unwrap();
    let poller = outbox.clone().publish_to(OneRefused { refusals: Arc::default() }).max_attempts(1).max_parked(1);
    let service = Service::start(poller, &folder.path().join("ready"));
    let address = service.address().await;
    until("it is ready", async || (ask(address, "/readyz").0 == 200).then_some(())).await;
    write(&mut client, [Row::new("poison"), Row::new("poison"), Row::new("fine")]).await;
    let reason = until("it is not ready", async || {
        let (status, body) = ask(address, "/readyz");
        (status == 503 && body.contains("outbox.parked")).then_some(body)
    })
    .await;
    assert!(reason.contains("there are 2, 1 are tolerated"), "{reason}");
    assert_eq!(ask(address, "/livez").0, 200);
    let metrics = ask(address, "/metrics").1;
    assert!(metrics.contains("outbox.parked") && metrics.contains("outbox.oldest"), "{metrics}");
    outbox.drop_parked(&RowFilter::default()).await.unwrap();
    until("it is ready again", async || (ask(address, "/readyz").0 == 200).then_some(())).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_contradict_each_other_are_refused_before_the_start() {
    let (url, _client) = database().await;
    let outbox = Outbox::postgres(&url).await.unwrap();
    let noop = || OneRefused { refusals: Arc::default() };
    let secs = Duration::from_secs;
    for (poller, named) in [
        (outbox.clone().publish_to(noop()).backoff(secs(1), secs(60)), "backoff"),
        (outbox.clone().publish_to(noop()).lease(secs(120)), "longest turn"),
        (outbox.clone().publish_to(noop()).every(secs(60)), "wait between turns"),
    ] {
        let service = Supervisor::new("shop");
        service.outbox(poller);
        let error = service.check().unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
    let service = Supervisor::new("shop");
    service.outbox(outbox.publish_to(noop()));
    service.check().unwrap();
}
