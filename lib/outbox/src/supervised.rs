//! A poller as a part of a supervised service: the loop that publishes, the inputs beside it, and the one that listens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onward_core::health::Iteration;
use onward_health::{Age, Count, Loop, Outcome, ReadinessInput, Reporter, SupervisedItem, Supervisor, Turn, Waker};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;

use crate::error::OutboxError;
use crate::poller::{Poller, PollerCounts, Watcher};
use crate::store::{NotifyListener, UnpublishedRows};

/// The interval at which an idle connection that listens is asked whether it still does.
const LISTEN_CHECK: Duration = Duration::from_secs(10);

/// The interval of the question whether enough rows were deleted for a vacuum.
const VACUUM_LOOK: Duration = Duration::from_secs(1);
/// The time that a vacuum may take, of a table that has grown very large.
const VACUUM_WITHIN: Duration = Duration::from_secs(240);
/// The rest after a vacuum, as a multiple of the time it took: vacuums are to cost a tenth of the time at most.
const VACUUM_REST: u32 = 9;

/// Adds outboxes to a service.
pub trait Supervise {
    /// Runs the poller as a loop of the service. Beside the loop there are two inputs that fail readiness: `NAME.oldest`, the
    /// age of the oldest row that is neither published nor parked, and `NAME.parked`.
    fn outbox(&self, poller: Poller);
}

impl Supervise for Supervisor {
    fn outbox(&self, poller: Poller) {
        self.add(poller);
    }
}

impl SupervisedItem for Poller {
    fn add_to(self, service: &Supervisor) {
        let rule = self.rule.clone();
        let part = |what: &str| format!("{}.{what}", rule.name);
        let gauges = Arc::new(Gauges {
            oldest: Age::new(&part("oldest"), rule.oldest),
            parked: Count::new(&part("parked"), rule.max_parked),
            depth: Count::new(&part("depth"), u64::MAX).reporting_only(),
        });
        let shown = |age: &Age, count: &Count| match rule.critical {
            true => (age.clone(), count.clone()),
            false => (age.clone().reporting_only(), count.clone().reporting_only()),
        };
        let (oldest, parked) = shown(&gauges.oldest, &gauges.parked);
        service.add(oldest);
        service.add(parked);
        service.add(gauges.depth.clone());
        for (what, read) in TOTALS {
            service.add_input(Total { name: part(what), counts: self.counts.clone(), read });
        }

        // A call to the publisher may take as long as the lease: a longer lease than freshness allows for is refused.
        let longest_turn = rule.lease.max(rule.freshness.saturating_sub(rule.poll));
        let poller = Arc::new(self);
        let published = poller.clone();
        let mut polling = Loop::new(&rule.name, move |turn| {
            let (poller, gauges) = (published.clone(), gauges.clone());
            async move { poller.supervised_turn(turn, &gauges).await }
        })
        .every(rule.poll)
        .freshness(rule.freshness)
        .budget(rule.budget)
        .longest_turn(longest_turn)
        .backoff(rule.outage.base, rule.outage.max);
        if rule.critical {
            polling = polling.critical();
        }
        if let Some(url) = rule.listen {
            let waker = polling.waker();
            let listening = move |reporter| listen(reporter, url.clone(), waker.clone());
            service.add(Loop::running(&part("listen"), listening).every(LISTEN_CHECK));
        }
        if poller.outbox.store.to_vacuum().is_some() {
            service.add(vacuuming(&part("vacuum"), &poller));
        }
        service.add(polling);
    }
}

/// Vacuums the table beside the publishing. PostgreSQL does so by itself as well, so this fails no probe.
fn vacuuming(name: &str, poller: &Arc<Poller>) -> Loop {
    let (poller, vacuumed) = (poller.clone(), Arc::new(AtomicU64::new(0)));
    let turn = move |turn: Turn| {
        let (poller, vacuumed) = (poller.clone(), vacuumed.clone());
        async move { poller.vacuum(&turn, &vacuumed).await }
    };
    Loop::new(name, turn).every(VACUUM_LOOK).freshness(2 * VACUUM_WITHIN).longest_turn(VACUUM_WITHIN)
}

/// Counters of the poller since it started, by the names that metrics have for them.
const TOTALS: [(&str, CountReader); 5] = [
    ("rows_published", |counts| &counts.published),
    ("rows_refused", |counts| &counts.refused),
    ("rows_given_back", |counts| &counts.given_back),
    ("rows_parked", |counts| &counts.parked),
    ("rows_lost", |counts| &counts.lost),
];

type CountReader = fn(&PollerCounts) -> &AtomicU64;

/// One of these counters, which is shown and fails nothing.
struct Total {
    name: String,
    counts: Arc<PollerCounts>,
    read: CountReader,
}

impl ReadinessInput for Total {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_critical(&self) -> bool {
        false
    }

    fn problem(&self) -> Option<String> {
        None
    }

    fn value(&self) -> Option<f64> {
        Some((self.read)(&self.counts).load(Ordering::Relaxed) as f64)
    }
}

/// Readings of the outbox that are shown.
struct Gauges {
    oldest: Age,
    parked: Count,
    depth: Count,
}

struct TurnWatcher<'a> {
    turn: &'a Turn,
    gauges: &'a Gauges,
}

impl Watcher for TurnWatcher<'_> {
    fn published(&self, rows: u64) {
        self.turn.progress(rows);
    }

    fn beat(&self) {
        self.turn.beat();
    }

    fn seen(&self, backlog: UnpublishedRows) {
        self.gauges.oldest.set(backlog.oldest);
        self.gauges.parked.set(backlog.parked);
        self.gauges.depth.set(backlog.depth);
    }

    fn is_stopping(&self) -> bool {
        self.turn.is_stopping()
    }
}

impl Poller {
    async fn supervised_turn(&self, turn: Turn, gauges: &Gauges) -> Result<Outcome, String> {
        let done = self.turn(&TurnWatcher { turn: &turn, gauges }).await.map_err(|error| error.to_string())?;
        let why = || self.counts.problem().unwrap_or_default();
        match done.iteration() {
            Iteration::Failed { code } => Err(format!("{code}: {}", why())),
            iteration => {
                if matches!(iteration, Iteration::Progress(_)) {
                    // There may be more.
                    turn.next_in(Duration::ZERO);
                }
                if done.given_back + done.crashed > 0 {
                    turn.next_in(self.rule.outage.base);
                }
                if done.is_all_claimed() {
                    turn.refresh();
                }
                Outcome::try_from(iteration).map_err(|code| format!("{code}: {}", why()))
            }
        }
    }
}

impl Poller {
    /// `vacuumed`: how many rows had been published when it was done last.
    async fn vacuum(&self, turn: &Turn, vacuumed: &AtomicU64) -> Result<Outcome, OutboxError> {
        let published = self.counts.published.load(Ordering::Relaxed);
        let deleted = published.saturating_sub(vacuumed.load(Ordering::Relaxed));
        let Some(store) = self.outbox.store.to_vacuum().filter(|_| deleted >= self.rule.vacuum_after) else {
            return Ok(Outcome::Idle);
        };
        let began = Instant::now();
        let is_allowed = tokio::select! {
            done = store.vacuum(VACUUM_WITHIN) => done?,
            // PostgreSQL ends it by itself, and nobody waits for that.
            () = turn.stopping() => return Ok(Outcome::Skipped),
        };
        if !is_allowed {
            warn!(
                outbox = self.rule.name,
                "outbox_not_vacuumed: this role neither owns the table onward_outbox nor has MAINTAIN on it; \
                 autovacuum does it, and claims get slower in between where very many rows are published"
            );
            return Ok(Outcome::Finished);
        }
        vacuumed.store(published, Ordering::Relaxed);
        turn.next_in((began.elapsed() * VACUUM_REST).clamp(VACUUM_LOOK, VACUUM_WITHIN));
        Ok(Outcome::Progress(deleted))
    }
}

/// Wakes the poller when rows are committed. The poller looks by itself as well, so this fails no probe.
async fn listen(reporter: Reporter, url: String, waker: Waker) -> Result<(), String> {
    let committed = Arc::new(Notify::new());
    while !reporter.is_stopping() {
        let wake = committed.clone();
        match NotifyListener::open(&url, move || wake.notify_one()).await {
            Ok(listener) => {
                // Rows may have been committed while nobody listened.
                waker.wake();
                let why = wake_until_lost(&reporter, &listener, &committed, &waker).await;
                let Some(why) = why else { return Ok(()) };
                reporter.record_failure("connection_lost", why);
            }
            Err(error) => reporter.record_failure("not_listening", error),
        }
        reporter.wait(LISTEN_CHECK).await;
    }
    Ok(())
}

/// Wakes the loop until the connection is lost, and gives the reason; none if the loop is told to stop.
async fn wake_until_lost(
    reporter: &Reporter,
    listener: &NotifyListener,
    committed: &Notify,
    waker: &Waker,
) -> Option<String> {
    loop {
        reporter.waiting(LISTEN_CHECK);
        tokio::select! {
            () = reporter.stopping() => return None,
            () = committed.notified() => {
                waker.wake();
                reporter.record(Outcome::Progress(1));
            }
            () = tokio::time::sleep(LISTEN_CHECK) => match listener.check().await {
                Ok(()) => reporter.record(Outcome::Idle),
                Err(error) => return Some(error.to_string()),
            }
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    mod probes;

    use onward_health::{HealthHandle, LoopState};

    use super::*;
    use crate::outbox::Outbox;
    use crate::publisher::{PublishError, Publisher};
    use crate::row::Row;
    use crate::store::tests::{World, Writer};

    struct TakesAll;

    impl Publisher for TakesAll {
        async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
            vec![Ok(()); rows.len()]
        }
    }

    /// Publishes all rows of a table with a vacuum after every hundred, until the loop that vacuums is in this state.
    async fn publish_until(world: &World, outbox: Outbox, state: LoopState) -> HealthHandle {
        world.run("INSERT INTO onward_outbox (topic, payload) SELECT 't', 'x' FROM generate_series(1, 250)").await;
        let mut poller = outbox.publish_to(TakesAll).every(Duration::from_millis(10));
        poller.rule.vacuum_after = 100;
        let service = Supervisor::new("shop").without_signals();
        service.outbox(poller);
        let (health, stopper) = (service.health(), service.stopper());
        let running = tokio::spawn(service.run());
        let began = Instant::now();
        let is_reached = || {
            let report = health.report();
            let vacuum = report.loop_called("outbox.vacuum").map(|one| one.state);
            let metrics = report.metrics();
            let has_vacuumed = !metrics.contains("onward_loop_units_total{service=\"shop\",loop=\"outbox.vacuum\"} 0");
            vacuum == Some(state) && (state == LoopState::Finished || has_vacuumed)
        };
        while !is_reached() {
            assert!(began.elapsed() < Duration::from_secs(120), "{:?}", health.report().loops);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(health.report().live);
        stopper.stop();
        running.await.unwrap().unwrap();
        health
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_is_vacuumed_after_so_many_rows() {
        let world = World::postgres().await;
        let outbox = Outbox { store: Arc::new(world.again().await) };
        publish_until(&world, outbox, LoopState::Healthy).await;
        let count = "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'onward_outbox'";
        let began = Instant::now();
        while world.number(count).await == 0 {
            assert!(began.elapsed() < Duration::from_secs(120), "nobody vacuumed it");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A poller by itself would look once an hour.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_wakes_a_poller_that_listens() {
        let world = World::postgres().await;
        world.run(crate::store::POSTGRES_NOTIFY).await;
        let Writer::Postgres { url, .. } = &world.writer else { unreachable!("it is on PostgreSQL") };
        let hour = Duration::from_secs(3_600);
        let poller = Outbox { store: Arc::new(world.again().await) }.publish_to(TakesAll);
        let poller = poller.every(hour).freshness(3 * hour).listen(url);
        let counts = poller.counts.clone();
        let service = Supervisor::new("shop").without_signals();
        service.outbox(poller);
        let (health, stopper) = (service.health(), service.stopper());
        let running = tokio::spawn(service.run());
        let began = Instant::now();
        let patient = async || {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", health.report().loops);
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        while world.number("SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN onward_outbox'").await == 0 {
            patient().await;
        }
        // When it begins to listen it looks once, which may be in time for the first.
        for round in 1..=3 {
            world.run("INSERT INTO onward_outbox (topic, payload) VALUES ('t', 'x')").await;
            while counts.published.load(Ordering::Relaxed) < round {
                patient().await;
            }
        }
        stopper.stop();
        running.await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_may_not_vacuum_publishes_all_the_same() {
        let world = World::postgres().await;
        let outbox = Outbox { store: Arc::new(world.as_a_guest().await) };
        publish_until(&world, outbox, LoopState::Finished).await;
        assert_eq!(world.store.to_vacuum().unwrap().vacuum(VACUUM_WITHIN).await, Ok(true), "its owner may");
    }
}
