//! The one task of an extender.

use core::time::Duration;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use onward_core::lease::RenewFailure;
use onward_core::time::Mono;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{ExtenderState, Inbox};
use crate::clock::TokioClock;
use crate::mailbox::{ChangeCertainty, ErasedMailbox, MailboxError, Receipt};

/// The largest number of leases in one call to a mailbox.
const MAX_BATCH: usize = 1_000;

/// Most batches in an interval: what becomes due meanwhile is gathered.
const GATHERINGS: u32 = 300;

/// Renewals for one mailbox.
struct Batch {
    mailbox: Arc<dyn ErasedMailbox>,
    ids: Vec<u64>,
    extensions: Vec<(Receipt, Duration)>,
}

type Answers = Vec<(u64, Result<Duration, MailboxError>)>;

/// Lives as long as the extender, or a lease of it.
pub(super) async fn run(shared: Weak<ExtenderState>, inbox: Arc<Inbox>, clock: TokioClock) {
    let mut in_flight: JoinSet<Answers> = JoinSet::new();
    loop {
        let Some(alive) = shared.upgrade() else { return };
        let within = alive.settings.rule.get().interval;
        let (batches, next) = alive.look(clock.now());
        drop(alive);
        for batch in batches {
            in_flight.spawn(batch.send(within));
        }
        tokio::select! {
            () = inbox.wake.notified() => {}
            () = async { sleep(clock.until(next.expect("guarded"))).await }, if next.is_some() => {}
            Some(answers) = in_flight.join_next() => {
                let Some(alive) = shared.upgrade() else { return };
                // A mailbox that panics answers nothing; its leases run out, as they would without it.
                alive.take_answers(clock.now(), answers.unwrap_or_default());
            }
        }
    }
}

impl ExtenderState {
    /// Collects everything that is new or due. Renewals are sent together, and then not again for a moment.
    fn look(&self, now: Mono) -> (Vec<Batch>, Option<Mono>) {
        let mut leases = self.leases();
        if leases.gather_until > now {
            return (Vec::new(), Some(leases.gather_until));
        }
        let mut batches: Vec<Batch> = Vec::new();
        let mut ids = self.inbox.take();
        while let Some(&(due, id)) = leases.due.first().filter(|(due, _)| *due <= now) {
            leases.due.remove(&(due, id));
            leases.held.get_mut(&id).expect("what is due is held").due = None;
            ids.push(id);
        }
        for id in ids {
            let Some(renew) = leases.look(id, now) else { continue };
            let held = &leases.held[&id];
            let has_room =
                |batch: &&mut Batch| Arc::ptr_eq(&batch.mailbox, &held.mailbox) && batch.ids.len() < MAX_BATCH;
            let batch = match batches.iter_mut().find(has_room) {
                Some(batch) => batch,
                None => {
                    batches.push(Batch { mailbox: held.mailbox.clone(), ids: vec![], extensions: vec![] });
                    batches.last_mut().expect("pushed above")
                }
            };
            batch.ids.push(id);
            batch.extensions.push((held.receipt.clone(), renew.extension));
        }
        if !batches.is_empty() {
            leases.gather_until = now + self.settings.rule.get().interval / GATHERINGS;
        }
        (batches, leases.due.first().map(|(due, _)| *due))
    }

    fn take_answers(&self, now: Mono, answers: Answers) {
        let mut failed = answers.iter().filter_map(|(_, answer)| answer.as_ref().err());
        if let Some(error) = failed.next() {
            tracing::warn!(%error, leases = 1 + failed.count(), "leases were not extended");
        }
        let mut leases = self.leases();
        for (id, answer) in answers {
            if let Err(error) = &answer
                && error.renew_failure() == RenewFailure::Refused
                && !self.refusal_said.swap(true, Ordering::Relaxed)
            {
                tracing::error!(%error, "leases cannot be renewed, and will run out while work goes on");
            }
            leases.answer(id, now, answer.map_err(|error| error.renew_failure()));
        }
    }
}

impl Batch {
    /// An answer that does not come in time is none: nothing is known about these leases then.
    async fn send(self, within: Duration) -> Answers {
        let late = || MailboxError::Unavailable { why: "no answer in time".into(), changed: ChangeCertainty::Unknown };
        match timeout(within, self.mailbox.extend(self.extensions)).await {
            Ok(answers) => self.ids.into_iter().zip(answers).collect(),
            Err(_) => self.ids.into_iter().map(|id| (id, Err(late()))).collect(),
        }
    }
}
