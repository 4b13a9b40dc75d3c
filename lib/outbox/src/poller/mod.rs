//! The poller: claims rows, has them published, and says what became of them.
//!
//! A turn claims and publishes until nothing is due, the publisher is unavailable, or it has gone on for long enough. Within
//! a claim, rows of one key go one after the other; the first that fails stops its key, and the rows behind it are given
//! back as if they had not been claimed.

mod counts;
mod publishing;

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::Instant;

use onward_core::backoff::Backoff;
use onward_core::health::outbox::OutboxTurn;
use tracing::{info, warn};

use crate::error::OutboxError;
use crate::outbox::Outbox;
use crate::publisher::AnyPublisher;
use crate::store::{ClaimRule, ClaimSettlement, RowClaim, UnpublishedRows};
pub(crate) use counts::PollerCounts;
use publishing::{ClaimResults, Publishing};

/// A turn that has gone on for this long claims nothing more, and a claim that has gives back what it has not published.
/// Forward steps keep it fresh until then.
const TURN_FOR: Duration = Duration::from_secs(10);
/// The interval at which a busy poller looks at what is left.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Pauses before published rows are marked once more, after the database could not be reached. Unmarked they would be
/// published again.
const SETTLE_AGAIN: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(300), Duration::from_millis(1_000)];

/// The effect of a parked row on the rows of its key that come after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum OnPoison {
    /// Later rows wait until the parked one is replayed or dropped: order before availability.
    #[default]
    Hold,
    /// Later rows go on without it.
    Skip,
}

/// Publishes the rows of an outbox, as a loop of a [`Supervisor`](onward_health::Supervisor). Any number of pollers, in any
/// number of processes, share the work.
pub struct Poller {
    pub(crate) outbox: Outbox,
    pub(crate) publisher: Arc<dyn AnyPublisher>,
    pub(crate) rule: PollerRule,
    pub(crate) counts: Arc<PollerCounts>,
}

impl core::fmt::Debug for Poller {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Poller").field("outbox", &self.outbox).field("rule", &self.rule).finish_non_exhaustive()
    }
}

/// The settings of a poller.
#[derive(Clone, Debug)]
pub(crate) struct PollerRule {
    pub name: String,
    pub critical: bool,
    pub poll: Duration,
    pub rows: u32,
    pub bytes: u64,
    pub lease: Duration,
    pub max_attempts: u32,
    pub retry: Backoff,
    pub outage: Backoff,
    pub on_poison: OnPoison,
    pub oldest: Duration,
    pub max_parked: u64,
    pub keep: Option<Duration>,
    pub listen: Option<String>,
    pub freshness: Duration,
    pub budget: onward_health::Budget,
    /// The number of deleted rows before the table is vacuumed, where that is of use: a claim passes over no more than
    /// these.
    pub vacuum_after: u64,
}

impl Poller {
    pub(crate) fn new(outbox: Outbox, publisher: Arc<dyn AnyPublisher>) -> Self {
        let secs = Duration::from_secs;
        let rule = PollerRule {
            name: "outbox".into(),
            critical: true,
            poll: secs(1),
            rows: 1_000,
            bytes: 8 << 20,
            lease: secs(30),
            max_attempts: 8,
            retry: Backoff { base: secs(1), max: secs(60) },
            outage: Backoff { base: secs(1), max: secs(30) },
            on_poison: OnPoison::Hold,
            oldest: secs(300),
            max_parked: 100,
            keep: None,
            listen: None,
            freshness: secs(60),
            budget: onward_health::Budget::Consecutive(3),
            vacuum_after: 20_000,
        };
        Self { outbox, publisher, rule, counts: Arc::default() }
    }

    /// The name of the loop [default: `outbox`].
    pub fn name(mut self, name: &str) -> Self {
        self.rule.name = name.to_owned();
        self
    }

    /// The loop is shown, and fails no probe.
    pub fn reporting_only(mut self) -> Self {
        self.rule.critical = false;
        self
    }

    /// The wait when nothing was due [default: 1 s].
    pub fn every(mut self, poll: Duration) -> Self {
        self.rule.poll = poll;
        self
    }

    /// The most rows that a claim takes [default: 1,000].
    pub fn batch(mut self, rows: u32) -> Self {
        self.rule.rows = rows.clamp(1, 10_000);
        self
    }

    /// The time for which claimed rows are a poller's own [default: 30 s]. As long as that, rows of a poller that was
    /// killed wait for another; a call to the publisher has no more time than that either. At least one second.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.rule.lease = lease.max(Duration::from_secs(1));
        self
    }

    /// The number of times that a row is tried before it is parked [default: 8].
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.rule.max_attempts = attempts.clamp(1, 1_000);
        self
    }

    /// The wait of a refused row: from `base`, doubling, up to `max`, with full jitter [default: 1 s to 60 s].
    pub fn retry(mut self, base: Duration, max: Duration) -> Self {
        self.rule.retry = Backoff { base, max };
        self
    }

    /// The wait of the poller while the publisher or the database is unavailable: from `base`, doubling, up to `max`,
    /// with full jitter [default: 1 s to 30 s].
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        self.rule.outage = Backoff { base, max };
        self
    }

    /// The effect of a parked row on its key [default: it holds it].
    pub fn on_poison(mut self, on_poison: OnPoison) -> Self {
        self.rule.on_poison = on_poison;
        self
    }

    /// The age that a row may reach before the process is not ready [default: 5 min].
    pub fn oldest(mut self, oldest: Duration) -> Self {
        self.rule.oldest = oldest;
        self
    }

    /// The number of rows that may be parked before the process is not ready [default: 100].
    pub fn max_parked(mut self, rows: u64) -> Self {
        self.rule.max_parked = rows;
        self
    }

    /// Moves published rows to `onward_outbox_published` instead of deleting them, and deletes them there after this long.
    pub fn keep(mut self, kept_for: Duration) -> Self {
        self.rule.keep = Some(kept_for);
        self
    }

    /// Wakes up when rows are committed, by PostgreSQL's LISTEN over a connection of its own. The table needs the trigger of
    /// [`POSTGRES_NOTIFY`](crate::store::POSTGRES_NOTIFY), and the URL must be the database's own: a pooler passes no
    /// notifications on. Polling goes on beside it.
    pub fn listen(mut self, direct_url: &str) -> Self {
        self.rule.listen = Some(direct_url.to_owned());
        self
    }

    /// The time for which one success counts [default: 60 s].
    pub fn freshness(mut self, window: Duration) -> Self {
        self.rule.freshness = window;
        self
    }

    /// The failed turns that are tolerated [default: two in a row; the third is too many].
    pub fn budget(mut self, budget: onward_health::Budget) -> Self {
        self.rule.budget = budget;
        self
    }

    fn hold(&self) -> bool {
        self.rule.on_poison == OnPoison::Hold
    }

    fn claim_rule(&self) -> ClaimRule {
        ClaimRule {
            lease: self.rule.lease,
            rows: self.rule.rows,
            bytes: self.rule.bytes,
            max_attempts: self.rule.max_attempts,
            hold: self.hold(),
        }
    }
}

/// An observer of a turn.
pub(crate) trait Watcher: Sync {
    /// More rows were published, this many, and none has failed in this turn: a forward step.
    fn published(&self, rows: u64);
    /// The turn goes on.
    fn beat(&self);
    /// The outbox was just seen in this state.
    fn seen(&self, backlog: UnpublishedRows);
    fn is_stopping(&self) -> bool;
}

impl Poller {
    /// Runs a turn. An error is the database's.
    pub(crate) async fn turn(&self, watcher: &impl Watcher) -> Result<OutboxTurn, OutboxError> {
        let mut turn = OutboxTurn::default();
        let began = Instant::now();
        let mut looked = began;
        loop {
            let claimed_at = Instant::now();
            let claim = self.outbox.store.claim(&self.claim_rule()).await?;
            self.note_parked_by_crash(claim.parked);
            if claim.rows.is_empty() {
                let backlog = self.look(watcher).await?;
                turn.waiting = u64::from(backlog.waiting);
                turn.claimed = u64::from(backlog.claimed);
                return Ok(turn);
            }
            watcher.beat();
            let has_failed = turn.refused > 0;
            let done = self.publish(claim, claimed_at, has_failed, watcher).await?;
            turn.published += done.published;
            turn.refused += done.refused;
            turn.given_back += done.given_back;
            turn.crashed += done.crashed;
            if done.given_back + done.crashed > 0 || watcher.is_stopping() || began.elapsed() >= TURN_FOR {
                self.look(watcher).await?;
                return Ok(turn);
            }
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.look(watcher).await?;
            }
        }
    }

    async fn look(&self, watcher: &impl Watcher) -> Result<UnpublishedRows, OutboxError> {
        let backlog = self.outbox.store.look(self.hold()).await?;
        if let Some(kept_for) = self.rule.keep {
            self.outbox.store.prune(kept_for).await?;
        }
        watcher.seen(backlog);
        Ok(backlog)
    }

    async fn publish(
        &self,
        claim: RowClaim,
        claimed_at: Instant,
        has_failed: bool,
        watcher: &impl Watcher,
    ) -> Result<OutboxTurn, OutboxError> {
        let RowClaim { token, rows, .. } = claim;
        let publishing = Publishing::new(self, token, rows, claimed_at, has_failed);
        let ClaimResults { settlement, unavailable, panicked } = publishing.run(watcher).await;
        watcher.beat();
        self.settle(token, &settlement).await?;
        let turn = OutboxTurn {
            published: settlement.published.len() as u64,
            refused: settlement.refused.len() as u64,
            given_back: unavailable.as_ref().map_or(0, |one| one.rows),
            crashed: panicked.as_ref().map_or(0, |one| one.rows),
            ..OutboxTurn::default()
        };
        self.counts.add(&turn);
        self.counts.parked.fetch_add(settlement.refused.iter().filter(|one| one.park).count() as u64, Relaxed);
        let problem = panicked
            .as_ref()
            .or(unavailable.as_ref())
            .map(|one| &one.why)
            .or(settlement.refused.last().map(|one| &one.error));
        self.counts.set_problem(problem.cloned());
        self.note_availability(unavailable.map(|one| one.why), turn.published > 0);
        Ok(turn)
    }

    async fn settle(&self, token: uuid::Uuid, what: &ClaimSettlement) -> Result<(), OutboxError> {
        let mut pauses = SETTLE_AGAIN.into_iter();
        let settled = loop {
            match self.outbox.store.settle(token, what, self.rule.keep.is_some()).await {
                Ok(settled) => break settled,
                Err(error) => match pauses.next() {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(error),
                },
            }
        };
        self.note_lost((what.len() as u64).saturating_sub(settled));
        Ok(())
    }

    fn note_lost(&self, rows: u64) {
        if rows > 0 {
            self.counts.lost.fetch_add(rows, Relaxed);
            warn!(outbox = self.rule.name, rows, "outbox_claim_lost: another poller has these rows now");
        }
    }

    fn note_parked_by_crash(&self, parked: u64) {
        if parked > 0 {
            self.counts.parked.fetch_add(parked, Relaxed);
            warn!(outbox = self.rule.name, rows = parked, "outbox_rows_parked: no holder of these rows came back");
        }
    }

    /// Says it when it changes, and not at every turn of an outage.
    fn note_availability(&self, unavailable: Option<String>, published: bool) {
        let outbox = &self.rule.name;
        match unavailable {
            Some(why) if !self.counts.unavailable.swap(true, Relaxed) => {
                warn!(outbox, why, "outbox_publisher_unavailable: rows are given back, and wait");
            }
            None if published && self.counts.unavailable.swap(false, Relaxed) => {
                info!(outbox, "outbox_publisher_available");
            }
            _ => {}
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
