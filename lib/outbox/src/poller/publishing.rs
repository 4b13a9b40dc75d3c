//! One claim on its way to the publisher.

use std::collections::HashSet;
use tokio::time::Instant;

use tokio::time::timeout;
use tracing::warn;
use uuid::Uuid;

use super::{Poller, Watcher};
use crate::publisher::{Answers, PublishError};
use crate::row::Row;
use crate::store::{Refusal, Settlement};

/// Rows that the publisher could not take, and why not.
#[derive(Debug)]
pub(super) struct Unavailable {
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
    settlement: Settlement,
    unavailable: Option<Unavailable>,
}

impl<'a> Publishing<'a> {
    pub(super) fn new(poller: &'a Poller, token: Uuid, rows: Vec<Row>, claimed_at: Instant) -> Self {
        let ends_at = claimed_at + poller.rule.lease;
        Self { poller, token, left: rows, ends_at, settlement: Settlement::default(), unavailable: None }
    }

    pub(super) async fn run(mut self, watcher: &impl Watcher) -> (Settlement, Option<Unavailable>) {
        while !self.left.is_empty() && self.unavailable.is_none() {
            watcher.beat();
            if !self.keep_lease().await || self.left.is_empty() {
                break;
            }
            let round = self.next_round();
            let time = self.ends_at.saturating_duration_since(Instant::now()).mul_f64(0.9);
            let answers = match timeout(time, self.poller.publisher.publish(&round)).await {
                Ok(answers) => answers,
                Err(_) => vec![Err(PublishError::Unavailable(format!("no answer within {time:?}"))); round.len()],
            };
            self.take(round, answers);
        }
        self.settlement.given_back.extend(self.left.iter().map(|row| row.id));
        (self.settlement, self.unavailable)
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
                Err(_) if is_behind => self.settlement.given_back.push(row.id),
                Ok(()) => self.settlement.published.push(row.id),
                Err(PublishError::Unavailable(why)) => {
                    self.settlement.given_back.push(row.id);
                    self.unavailable.get_or_insert(Unavailable { rows: 0, why }).rows += 1;
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
        self.settlement.given_back.extend(behind.iter().map(|row| row.id));
        self.left = left;
    }

    fn refuse(&mut self, row: &Row, error: String) {
        let park = row.attempts >= self.poller.rule.max_attempts;
        if park {
            let outbox = &self.poller.rule.name;
            warn!(outbox, id = row.id, topic = row.topic, key = row.key, error, "outbox_row_parked");
        }
        let retry_after = self.poller.rule.retry.delay(row.attempts, draw());
        self.settlement.refused.push(Refusal { id: row.id, error, retry_after, park });
    }
}

fn draw() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness, what failed together comes back together; nothing worse.
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(_) => u64::MAX,
    }
}
