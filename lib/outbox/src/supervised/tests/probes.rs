//! What probes say of a poller, over minutes that pass in an instant. The table's own clock goes on as it does.

use std::sync::Mutex;

use onward_health::{LoopReason, Stopper};
use tokio::task::JoinHandle;

use super::*;

const FRESHNESS: Duration = Duration::from_secs(60);

/// Takes its time for each call.
#[derive(Clone, Default)]
struct Slow {
    takes: Duration,
    given: Arc<Mutex<Vec<i64>>>,
}

impl Publisher for Slow {
    async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
        assert!(rows.iter().all(|row| row.topic != "bomb"), "a bomb");
        self.given.lock().unwrap().extend(rows.iter().map(|row| row.id));
        tokio::time::sleep(self.takes).await;
        vec![Ok(()); rows.len()]
    }
}

fn slow(secs: u64) -> Slow {
    Slow { takes: Duration::from_secs(secs), ..Slow::default() }
}

struct Service {
    health: HealthHandle,
    stopper: Stopper,
    running: JoinHandle<()>,
}

impl Service {
    async fn start(world: &World, publisher: impl Publisher) -> Self {
        let poller = Outbox { store: Arc::new(world.again().await) }.publish_to(publisher).freshness(FRESHNESS);
        let day = Duration::from_secs(86_400);
        let service = Supervisor::new("shop").without_signals().executor_lag(day);
        service.outbox(poller);
        let (health, stopper) = (service.health(), service.stopper());
        Self { health, stopper, running: tokio::spawn(async move { service.run().await.unwrap() }) }
    }

    fn is_ready(&self) -> bool {
        let report = self.health.report();
        assert!(report.live, "{report:?}");
        report.ready
    }

    fn reason(&self) -> LoopReason {
        self.health.report().loop_called("outbox").unwrap().reason
    }

    async fn stop(self) {
        self.stopper.stop();
        self.running.await.unwrap();
    }
}

async fn second() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

async fn until_ready(services: &[Service]) {
    while !services.iter().all(Service::is_ready) {
        second().await;
    }
}

/// Three windows, and ready throughout.
async fn stay_ready(services: &[Service]) {
    for at in 0..3 * FRESHNESS.as_secs() {
        let reasons = || services.iter().map(Service::reason).collect::<Vec<_>>();
        assert!(services.iter().all(Service::is_ready), "after {at} s: {:?}", reasons());
        second().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_outbox_stays_ready() {
    let world = World::sqlite().await;
    let service = [Service::start(&world, slow(0)).await];
    until_ready(&service).await;
    stay_ready(&service).await;
    let [service] = service;
    service.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_long_claim_of_one_key_stays_fresh_by_what_it_publishes() {
    let mut world = World::sqlite().await;
    let publisher = slow(2);
    world.write_keys(&"a ".repeat(500)).await;
    let service = [Service::start(&world, publisher.clone()).await];
    until_ready(&service).await;
    stay_ready(&service).await;
    let given = publisher.given.lock().unwrap().len();
    assert!((85..=95).contains(&given), "{given} rows in three minutes");
    let [service] = service;
    service.stop().await;
    // A stop comes in the middle of a claim, and what was published is marked.
    let left = world.store.look(true).await.unwrap();
    let given = publisher.given.lock().unwrap().len();
    assert_eq!((left.depth, left.claimed), (500 - given as u64, false));
}

/// Another holds all that there is for minutes, and may well publish it.
#[tokio::test(start_paused = true)]
async fn a_replica_that_is_left_nothing_stays_ready() {
    let mut world = World::sqlite().await;
    world.write_keys("a a").await;
    let service = [Service::start(&world, slow(0)).await];
    until_ready(&service).await;
    world.write_keys("b b").await;
    let claim = loop {
        let claim = world.claim().await;
        if !claim.rows.is_empty() {
            break claim;
        }
        world.write_keys("b b").await;
    };
    stay_ready(&service).await;
    world.publish(&claim).await;
    let [service] = service;
    service.stop().await;
}

/// While one of them holds the rows and waits for an answer, the other finds nothing to do; and then the other way round.
/// Were that idle, neither would ever fail three times in a row.
#[tokio::test(start_paused = true)]
async fn pollers_that_take_turns_at_a_publisher_that_hangs_are_both_red() {
    let mut world = World::sqlite().await;
    let hangs = slow(86_400);
    let services = [Service::start(&world, hangs.clone()).await, Service::start(&world, hangs).await];
    until_ready(&services).await;
    world.write_keys("a b a").await;
    // A call is given up after most of its lease, and three failures each are too many.
    for _ in 0..8 * 30 {
        second().await;
    }
    for service in services {
        assert_eq!((service.is_ready(), service.reason()), (false, LoopReason::BudgetSpent));
        service.running.abort();
    }
}

/// It would not get better by a restart, and the row is parked in the end.
#[tokio::test(start_paused = true)]
async fn a_publisher_that_panics_fails_readiness_and_never_liveness() {
    let mut world = World::sqlite().await;
    let service = [Service::start(&world, slow(0)).await];
    until_ready(&service).await;
    world.write([Row::new("bomb")]).await;
    let mut was_ready = true;
    while world.store.look(true).await.unwrap().parked == 0 {
        second().await;
        was_ready &= service[0].is_ready();
        world.end_leases().await;
    }
    assert!(!was_ready);
    until_ready(&service).await;
    assert_eq!(service[0].health.report().loop_called("outbox").unwrap().restarts(), 0);
    let [service] = service;
    service.stop().await;
}
