//! One claim on its way to the publisher.

use std::any::Any;
use std::collections::HashSet;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use tokio::time::{Instant, timeout};
use tracing::{error, warn};
use uuid::Uuid;

use super::{Poller, TURN_FOR, Watcher};
use crate::publisher::{Answers, AnyPublisher, PublishError};
use crate::row::Row;
use crate::store::{ClaimSettlement, RowRefusal};

/// The results of a claim.
#[derive(Debug, Default)]
pub(super) struct ClaimResults {
    pub(super) settlement: ClaimSettlement,
    /// The publisher could not take these.
    pub(super) unavailable: Option<PublisherFault>,
    /// The publisher panicked with these. They are not settled: when their lease is over, they are claimed again in
    /// smaller groups, and the one that is to blame is parked in the end.
    pub(super) panicked: Option<PublisherFault>,
}

/// Rows with which the publisher came to an end, and why.
#[derive(Debug)]
pub(super) struct PublisherFault {
    pub(super) rows: u64,
    pub(super) why: String,
}

pub(super) struct Publishing<'a> {
    poller: &'a Poller,
    token: Uuid,
    /// Rows that are left, in the order of their ids.
    left: Vec<Row>,
    /// The end of the lease, by a clock that was read before it began.
    ends_at: Instant,
    began: Instant,
    /// A row has failed in this turn: what is published after that is no forward step.
    has_failed: bool,
    done: ClaimResults,
}

impl<'a> Publishing<'a> {
    pub(super) fn new(poller: &'a Poller, token: Uuid, rows: Vec<Row>, claimed_at: Instant, has_failed: bool) -> Self {
        let ends_at = claimed_at + poller.rule.lease;
        Self { poller, token, left: rows, ends_at, began: Instant::now(), has_failed, done: ClaimResults::default() }
    }

    /// Publishes round by round, until nothing is left, the publisher comes to an end, or it is time to settle: a claim of
    /// many rows of one key must neither take for ever nor keep the process from stopping.
    pub(super) async fn run(mut self, watcher: &impl Watcher) -> ClaimResults {
        let mut is_time_over = false;
        while !self.left.is_empty() && !is_time_over && !watcher.is_stopping() {
            watcher.beat();
            if !self.keep_lease().await || self.left.is_empty() {
                break;
            }
            let round = self.next_round();
            let before = self.done.settlement.published.len();
            if !self.publish(round).await {
                break;
            }
            let published = self.done.settlement.published.len() - before;
            self.has_failed |= !self.done.settlement.refused.is_empty();
            if published > 0 && !self.has_failed {
                watcher.published(published as u64);
            }
            is_time_over = self.began.elapsed() >= TURN_FOR;
        }
        self.done.settlement.given_back.extend(self.left.iter().map(|row| row.id));
        self.done
    }

    /// Whether the publisher can be given more.
    async fn publish(&mut self, round: Vec<Row>) -> bool {
        let time = self.ends_at.saturating_duration_since(Instant::now()).mul_f64(0.9);
        match timeout(time, guarded(&*self.poller.publisher, &round)).await {
            Ok(Ok(answers)) => self.take(round, answers),
            Ok(Err(why)) => {
                let (outbox, rows) = (&self.poller.rule.name, round.len() as u64);
                error!(outbox, rows, why, "outbox_publisher_panicked: these rows wait for the end of their lease");
                self.done.panicked = Some(PublisherFault { rows, why });
            }
            Err(_) => {
                let error = PublishError::Unavailable(format!("no answer within {time:?}"));
                let answers = vec![Err(error); round.len()];
                self.take(round, answers);
            }
        }
        self.done.unavailable.is_none() && self.done.panicked.is_none()
    }

    /// Whether the rows are still ours for long enough to begin a call. Past the middle of the lease it is renewed.
    async fn keep_lease(&mut self) -> bool {
        let lease = self.poller.rule.lease;
        if self.ends_at.saturating_duration_since(Instant::now()) > lease / 2 {
            return true;
        }
        let asked_at = Instant::now();
        match self.poller.outbox.store.renew(self.token, lease).await {
            Ok(ids) => {
                let ours: HashSet<i64> = ids.into_iter().collect();
                let before = self.left.len();
                self.left.retain(|row| ours.contains(&row.id));
                self.poller.note_lost((before - self.left.len()) as u64);
                self.ends_at = asked_at + lease;
                true
            }
            Err(error) => {
                warn!(outbox = self.poller.rule.name, %error, "outbox_claim_not_renewed: its rows are given back");
                false
            }
        }
    }

    /// All rows, or the first of each key, as the publisher can take them.
    fn next_round(&mut self) -> Vec<Row> {
        if self.poller.publisher.keeps_order() {
            return std::mem::take(&mut self.left);
        }
        let mut keys = HashSet::new();
        let (round, left) = std::mem::take(&mut self.left)
            .into_iter()
            .partition(|row| row.key.as_ref().is_none_or(|key| keys.insert(key.clone())));
        self.left = left;
        round
    }

    fn take(&mut self, round: Vec<Row>, mut answers: Answers) {
        if answers.len() != round.len() {
            let why = format!("the publisher gave {} answers for {} rows", answers.len(), round.len());
            answers.resize(round.len(), Err(PublishError::Unavailable(why)));
        }
        let mut stopped = HashSet::new();
        for (row, answer) in round.into_iter().zip(answers) {
            let is_behind = row.key.as_ref().is_some_and(|key| stopped.contains(key));
            match answer {
                // Whatever is said of it, it is not to blame for what came before it.
                Err(_) if is_behind => self.done.settlement.given_back.push(row.id),
                Ok(()) => self.done.settlement.published.push(row.id),
                Err(PublishError::Unavailable(why)) => {
                    self.done.settlement.given_back.push(row.id);
                    self.done.unavailable.get_or_insert(PublisherFault { rows: 0, why }).rows += 1;
                    stopped.extend(row.key);
                }
                Err(PublishError::Refused(why)) => {
                    self.refuse(&row, why);
                    stopped.extend(row.key);
                }
            }
        }
        let is_stopped = |row: &Row| row.key.as_ref().is_some_and(|key| stopped.contains(key));
        let (behind, left) = std::mem::take(&mut self.left).into_iter().partition::<Vec<_>, _>(is_stopped);
        self.done.settlement.given_back.extend(behind.iter().map(|row| row.id));
        self.left = left;
    }

    fn refuse(&mut self, row: &Row, error: String) {
        let park = row.attempts >= self.poller.rule.max_attempts;
        if park {
            let outbox = &self.poller.rule.name;
            warn!(outbox, id = row.id, topic = row.topic, key = row.key, error, "outbox_row_parked");
        }
        let retry_after = self.poller.rule.retry.delay(row.attempts, draw());
        self.done.settlement.refused.push(RowRefusal { id: row.id, error, retry_after, park });
    }
}

/// The answers, or the text of a panic.
async fn guarded(publisher: &dyn AnyPublisher, rows: &[Row]) -> Result<Answers, String> {
    let mut call = catch_unwind(AssertUnwindSafe(|| publisher.publish(rows))).map_err(panic_text)?;
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context))) {
        Ok(answers) => answers.map(Ok),
        Err(panic) => Poll::Ready(Err(panic_text(panic))),
    })
    .await
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the publisher panicked: {}", text.unwrap_or("with what is no text"))
}

fn draw() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness, what failed together comes back together; nothing worse.
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(_) => u64::MAX,
    }
}
