//! One attached lease: core's two machines, told what its heartbeat says.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onward_core::beat::AttemptClock;
use onward_core::lease::{Extender, ExtenderAction, LeaseState, LossReason, LostPolicy, Renew, RenewFailure};
use onward_core::time::Mono;
use onward_health::heartbeat::{Beating, LastBeat};
use rand::Rng;

use super::{AlreadyAttached, ExtenderState, Inbox, Leases, OnStep, Settings};
use crate::clock::awake;
use crate::delivery::Delivery;
use crate::heartbeat::{CancelWhy, Heartbeat, Listener, Listening};
use crate::mailbox::{ErasedMailbox, Receipt};

/// The least part of a mailbox's longest hold that is kept back, so that the handler stops before the message is given
/// away.
const HOLD_MARGIN: Duration = Duration::from_secs(60);

pub(super) struct ActiveLease {
    extender: Extender,
    clock: AttemptClock,
    settings: Settings,
    pub(super) receipt: Receipt,
    pub(super) mailbox: Arc<dyn ErasedMailbox>,
    heartbeat: Heartbeat,
    listening: Listening,
    /// Beats are gathered until then, so that a busy handler does not wake us with every one.
    look_at: Mono,
    /// The instant of the last beat seen, or of the attachment.
    seen_at: Mono,
    quiet: Option<u64>,
    pub(super) due: Option<Mono>,
    on_step: Option<OnStep>,
    extensions: Arc<AtomicU64>,
}

/// Leaves word that there is news of a lease.
pub(super) struct LeaseNews {
    pub(super) inbox: Arc<Inbox>,
    pub(super) id: u64,
}

impl Listener for LeaseNews {
    fn wake(&self) {
        self.inbox.tell(self.id);
    }
}

impl ExtenderState {
    pub(super) fn hold(&self, delivery: &Delivery, heartbeat: &Heartbeat) -> Result<u64, AlreadyAttached> {
        let settings = self.settings;
        let now = self.clock.now();
        let begun = delivery.asked_at().map(|asked| self.clock.at(asked));
        let since = begun.unwrap_or(now);
        let mut extender = Extender::attach(settings.rule, now, since + delivery.lease()).with_policy(settings.policy);
        if let Some(begun) = begun {
            extender = extender.begun_at(begun);
        }
        let limit = delivery.mailbox().promises().longest_hold;
        let longest = limit.map(|longest| {
            let margin = HOLD_MARGIN.max(settings.cancel_grace).min(longest / 10);
            longest.saturating_sub(margin)
        });
        if let Some(longest) = [longest, settings.max_hold].into_iter().flatten().min() {
            extender = extender.with_hold(since + longest, limit.map_or(Mono::MAX, |limit| since + limit));
        }
        let mut leases = self.leases();
        if !leases.receipts.insert(delivery.receipt().clone()) {
            return Err(AlreadyAttached { message: delivery.id().clone() });
        }
        leases.next_id += 1;
        let id = leases.next_id;
        let listening = heartbeat.listen(Arc::new(LeaseNews { inbox: self.inbox.clone(), id }));
        let held = ActiveLease {
            extender,
            clock: AttemptClock::start(awake(now), delivery.lease()),
            settings,
            receipt: delivery.receipt().clone(),
            mailbox: delivery.mailbox().clone(),
            heartbeat: heartbeat.clone(),
            listening,
            look_at: now,
            seen_at: now,
            quiet: None,
            due: None,
            on_step: self.on_step.clone(),
            extensions: delivery.extension_count().clone(),
        };
        leases.held.insert(id, held);
        Ok(id)
    }
}

impl Leases {
    pub(super) fn let_go(&mut self, id: u64) {
        if let Some(held) = self.held.remove(&id) {
            self.receipts.remove(&held.receipt);
            if let Some(due) = held.due {
                self.due.remove(&(due, id));
            }
        }
    }

    /// Looks at a lease, and notes when to look at it again. One that is gone is passed over.
    pub(super) fn look(&mut self, id: u64, now: Mono) -> Option<Renew> {
        let held = self.held.get_mut(&id)?;
        let renew = held.look(now);
        self.note_due(id);
        renew
    }

    pub(super) fn answer(&mut self, id: u64, now: Mono, answer: Result<Duration, RenewFailure>) {
        let draw = self.random.next_u64();
        let Some(held) = self.held.get_mut(&id) else { return };
        match answer {
            Ok(granted) => {
                tracing::debug!(message = %held.receipt.message(), ?granted, "lease extended");
                held.extensions.fetch_add(1, Ordering::Relaxed);
                held.extender.renewed(now, granted);
            }
            Err(failure) => held.extender.failed(now, failure, draw),
        }
        self.note_due(id);
    }

    fn note_due(&mut self, id: u64) {
        let held = self.held.get_mut(&id).expect("the caller has it");
        let due = held.next_look();
        if held.due != due {
            if let Some(before) = held.due {
                self.due.remove(&(before, id));
            }
            held.due = due;
            self.due.extend(due.map(|at| (at, id)));
        }
    }
}

/// The eye of a supervisor sees handlers that are silent though their lease is over: their thread hangs.
impl Beating for ExtenderState {
    fn most_silent(&self) -> Option<LastBeat> {
        let (now, leases) = (self.clock.now(), self.leases());
        let silent = leases.held.values().filter_map(|held| Some((held.silent_for(now)?, held)));
        silent.max_by_key(|(ago, _)| *ago).map(|(ago, held)| held.last_beat(ago))
    }

    fn silent(&self, after: Duration) -> Vec<LastBeat> {
        let (now, leases) = (self.clock.now(), self.leases());
        let silent = leases.held.values().filter_map(|held| Some((held.silent_for(now)?, held)));
        silent.filter(|(ago, _)| *ago >= after).map(|(ago, held)| held.last_beat(ago)).collect()
    }

    fn cancel(&self, who: &str) {
        let leases = self.leases();
        let called = leases.held.values().filter(|held| held.receipt.message().as_str() == who);
        called.for_each(|held| held.heartbeat.cancel(CancelWhy::Stuck));
    }
}

impl ActiveLease {
    pub(super) fn state(&self, now: Mono) -> LeaseState {
        self.extender.state(now)
    }

    fn last_beat(&self, ago: Duration) -> LastBeat {
        LastBeat { who: self.receipt.message().to_string(), ago, place: self.heartbeat.last_beat() }
    }

    /// For how long nothing was heard of it, unless it declared its silence. That ends when the time it asked for, or its
    /// budget, is over.
    pub(super) fn silent_for(&self, now: Mono) -> Option<Duration> {
        let is_quiet = self.clock.quiet_until().is_some_and(|until| now < Mono::from_ms(until.as_ms()));
        let section = self.heartbeat.quiet_section().map(|section| section.id);
        let is_heard = self.listening.is_beaten() || section != self.quiet;
        let is_silent_by_right = is_quiet && section.is_some();
        (!is_silent_by_right).then(|| if is_heard { Duration::ZERO } else { now.since(self.seen_at) })
    }

    pub(super) fn follow(&mut self, now: Mono, heartbeat: &Heartbeat, listening: Listening) {
        // A section of the other heartbeat may have the same number.
        self.quiet = None;
        self.end_quiet(now);
        self.extender.end_quiet();
        self.heartbeat = heartbeat.clone();
        self.listening = listening;
    }

    pub(super) fn begin_again(&mut self, now: Mono) {
        self.seen_at = now;
        self.heartbeat.forget_progress();
        self.clock = AttemptClock::start(awake(now), Duration::ZERO);
    }

    fn look(&mut self, now: Mono) -> Option<Renew> {
        let mut renew = self.look_at_quiet(now);
        if now >= self.look_at && self.listening.take_beat() {
            self.look_at = self.next_gathering(now);
            self.seen_at = now;
            let watermark = self.heartbeat.watermark();
            let rose = watermark.is_some_and(|(done, total)| self.clock.progress(awake(now), done, total));
            let stepped = self.clock.beat(awake(now), Duration::ZERO, self.settings.require_progress) || rose;
            if let Some(on_step) = self.on_step.as_ref().filter(|_| stepped) {
                on_step();
            }
            renew = renew.or(self.extender.beat(now));
        }
        while renew.is_none() {
            match self.extender.wake(now) {
                None => break,
                Some(ExtenderAction::Renew(due)) => renew = Some(due),
                Some(ExtenderAction::Lost { why, policy }) => self.lose(why, policy),
            }
        }
        if self.stuck_at().is_some_and(|at| now >= at) {
            let place = self.heartbeat.last_beat().map(tracing::field::display);
            tracing::warn!(message = %self.receipt.message(), last_beat = place, "no forward step in time; cancelled");
            self.heartbeat.cancel(CancelWhy::Stuck);
        }
        renew
    }

    fn look_at_quiet(&mut self, now: Mono) -> Option<Renew> {
        if self.clock.quiet_over(awake(now)) {
            self.end_quiet(now);
        }
        let section = self.heartbeat.quiet_section();
        if section.map(|section| section.id) == self.quiet {
            return None;
        }
        self.quiet = section.map(|section| section.id);
        self.end_quiet(now);
        self.extender.end_quiet();
        match self.clock.begin_quiet(awake(now), section?.max, self.settings.quiet_budget) {
            Ok(allowed) => self.extender.begin_quiet(now, now + allowed),
            Err(_) => {
                tracing::warn!(message = %self.receipt.message(), "the quiet budget is spent; only beats renew the lease");
                None
            }
        }
    }

    /// Silence that was declared is none: it counts from here on.
    fn end_quiet(&mut self, now: Mono) {
        if self.clock.end_quiet(awake(now)).is_some() {
            self.seen_at = now;
        }
    }

    fn lose(&self, why: LossReason, policy: LostPolicy) {
        let place = self.heartbeat.last_beat().map(tracing::field::display);
        tracing::warn!(message = %self.receipt.message(), why = why.code(), last_beat = place, "the lease is lost");
        if policy == LostPolicy::Cancel {
            self.heartbeat.cancel(CancelWhy::LeaseExpired);
        }
    }

    /// The instant until which further beats change nothing: no renewal is sent before, and the stuck clock can wait
    /// that long.
    fn next_gathering(&self, now: Mono) -> Mono {
        let interval = self.settings.rule.get().interval;
        let most = self.settings.stuck_after.map_or(interval, |stuck| (stuck / 60).min(interval));
        let least = interval / 600;
        (now + most).min(self.extender.rested_at()).max(now + least)
    }

    fn stuck_at(&self) -> Option<Mono> {
        let after = self.settings.stuck_after.filter(|_| !self.heartbeat.is_cancelled())?;
        Some(Mono::from_ms(self.clock.stuck_at(after).as_ms()))
    }

    fn next_look(&self) -> Option<Mono> {
        let quiet_over = self.clock.quiet_until().map(|at| Mono::from_ms(at.as_ms()));
        // A beat that came meanwhile has left word already, and is looked at when the gathering is over.
        let gathered = self.listening.is_beaten().then_some(self.look_at);
        [self.extender.next_wakeup(), self.stuck_at(), quiet_over, gathered].into_iter().flatten().min()
    }
}
