//! The holder's side of a lease, as a machine that is told the time.
//!
//! ```text
//!              beat, interval over            answered
//!   resting ───────────────────────► asking ───────────► resting, or waiting if a beat came meanwhile
//!      │  beat, interval not over       ▲  │ failed
//!      └──────────► waiting ────────────┘  └───────────► waiting, for a retry
//!
//!   any ── expiry passes, or the backend says the receipt has expired ──► lost, for good
//! ```
//!
//! The holder performs each [`Renew`] off the caller's path and reports its end with exactly one of `renewed` and
//! `failed`, also when it gave up waiting for an answer. It calls `wake` when `next_wakeup` is due.
//!
//! Every renewal is paid for by a beat: one in flight uses up all beats before it, and only a later beat leads to the
//! next. A retry belongs to the renewal that failed, and needs no beat of its own. Two things are exempt: a *quiet section*
//! is declared silence, and counts as a beat for as long as it lasts; and a renewal that was *refused for good* is not
//! tried again, whatever beats, so the lease runs to its end.
//!
//! A backend may bound how long a lease lasts in all. At the end of that *hold* the lease is lost, whatever was granted:
//! the handler is stopped before the backend gives the work to somebody else.

use super::{CheckedLeaseRule, LeaseRule};
use crate::backoff::Backoff;
use crate::time::Mono;
use core::time::Duration;

/// Ask the backend for this much from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a renewal that is not performed must be reported as failed"]
pub struct Renew {
    pub extension: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "it is said once"]
pub enum ExtenderAction {
    Renew(Renew),
    /// Said once per lease. Whatever the policy, the backend will refuse the result.
    Lost {
        why: LossReason,
        policy: LostPolicy,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenewFailure {
    /// Nothing is known about the lease; another try may succeed.
    Transient,
    /// The backend no longer honours the receipt.
    ReceiptExpired,
    /// The backend will never grant it, for want of permission say. The lease lasts for as long as it was granted.
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossReason {
    Expired,
    ReceiptExpired,
    /// The longest hold is over.
    HoldSpent,
}

impl LossReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::ReceiptExpired => "receipt_expired",
            Self::HoldSpent => "hold_spent",
        }
    }
}

/// The fate of the handler when its lease is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LostPolicy {
    #[default]
    Cancel,
    /// The handler may finish; its result is refused all the same.
    Continue,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseState {
    Held { remaining: Duration },
    Lost { why: LossReason },
}

#[derive(Clone, Debug)]
pub struct Extender {
    rule: LeaseRule,
    policy: LostPolicy,
    expires: Mono,
    /// End of the longest hold.
    hold_until: Mono,
    /// The backend gives nothing beyond.
    hold_limit: Mono,
    /// End of the interval that the last renewal began.
    rested: Mono,
    /// Silence is permitted until then.
    quiet_until: Option<Mono>,
    /// The backend will grant no more.
    refused: bool,
    phase: Phase,
    /// Failures of the renewal that is being tried.
    failures: u32,
    lost: Option<LeaseLoss>,
    detached: bool,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Resting,
    /// A beat or a failed renewal made another one due.
    Waiting {
        due: Mono,
    },
    /// `beaten`: a beat came since it was asked.
    Asking {
        since: Mono,
        beaten: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct LeaseLoss {
    at: Mono,
    why: LossReason,
    said: bool,
}

impl Extender {
    /// `expires` is reckoned by the holder: when it asked for the lease, plus the length it was told.
    pub fn attach(rule: CheckedLeaseRule, now: Mono, expires: Mono) -> Self {
        Self {
            rule: *rule.get(),
            policy: LostPolicy::default(),
            expires,
            hold_until: Mono::MAX,
            hold_limit: Mono::MAX,
            rested: now,
            quiet_until: None,
            refused: false,
            phase: Phase::Resting,
            failures: 0,
            lost: None,
            detached: false,
        }
    }

    pub const fn with_policy(mut self, policy: LostPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The lease is known to have begun then: the first beat renews when it is an interval old, or a third of itself if
    /// that is sooner, so that work that is done sooner costs no renewal.
    pub fn begun_at(mut self, begun: Mono) -> Self {
        self.rested = begun + self.rule.interval.min(self.expires.since(begun) / 3);
        self
    }

    /// A beat before this leads to no renewal before it.
    pub const fn rested_at(&self) -> Mono {
        self.rested
    }

    /// The lease is lost at `until`, whatever is granted. No renewal asks for more than the backend can give, which ends
    /// at `limit`: a while after, so that the handler has stopped before the backend gives the work to somebody else.
    pub const fn with_hold(mut self, until: Mono, limit: Mono) -> Self {
        self.hold_until = until;
        self.hold_limit = limit;
        self
    }

    /// The handler is active. The first beat renews at once, unless the lease is known to be young; one inside the
    /// interval leads to one renewal at its end.
    pub fn beat(&mut self, now: Mono) -> Option<Renew> {
        self.notice_expiry(now);
        if self.lost.is_some() || self.detached || self.refused || !self.rule.enabled {
            return None;
        }
        match &mut self.phase {
            Phase::Resting => self.phase = Phase::Waiting { due: self.rested },
            Phase::Waiting { .. } => {}
            Phase::Asking { beaten, .. } => *beaten = true,
        }
        self.ask_if_due(now)
    }

    /// A beat that cannot wait for the interval, nor for a retry: what it says must be known at once. The renewal uses up
    /// all beats before it, as any does. While another one is in flight it is an ordinary beat.
    pub fn hasten(&mut self, now: Mono) -> Option<Renew> {
        let renew = self.beat(now);
        match &mut self.phase {
            Phase::Waiting { due } if renew.is_none() => {
                *due = now;
                self.ask_if_due(now)
            }
            _ => renew,
        }
    }

    /// Silence is permitted until then: the lease is renewed without beats. Ends the section before.
    pub fn begin_quiet(&mut self, now: Mono, until: Mono) -> Option<Renew> {
        self.quiet_until = Some(until);
        self.beat(now)
    }

    /// Ends the quiet section: from here on, only beats renew.
    pub fn end_quiet(&mut self) {
        self.quiet_until = None;
    }

    /// Moves on what is due. To be called when `next_wakeup` is due, and harmless at any other time.
    pub fn wake(&mut self, now: Mono) -> Option<ExtenderAction> {
        self.notice_expiry(now);
        if self.detached {
            return None;
        }
        match &mut self.lost {
            Some(LeaseLoss { said: true, .. }) => None,
            Some(lost) => {
                lost.said = true;
                Some(ExtenderAction::Lost { why: lost.why, policy: self.policy })
            }
            None => self.ask_if_due(now).map(ExtenderAction::Renew),
        }
    }

    /// May lie in the past, which means at once.
    pub fn next_wakeup(&self) -> Option<Mono> {
        match (self.lost, self.phase) {
            _ if self.detached => None,
            (Some(lost), _) => (!lost.said).then_some(lost.at),
            (None, Phase::Waiting { due }) => Some(due.min(self.end())),
            (None, Phase::Resting | Phase::Asking { .. }) => Some(self.end()),
        }
    }

    /// The backend answered with what it granted. That never shrinks what is held, and revives nothing that is lost.
    pub fn renewed(&mut self, now: Mono, granted: Duration) {
        self.notice_expiry(now);
        let Phase::Asking { since, beaten } = self.phase else { return };
        self.expires = self.expires.max(since + granted);
        self.failures = 0;
        // A backend that grants less than it was asked for is asked more often, so that beats can keep the lease.
        self.rested = self.rested.min(since + (granted / 3).max(self.least_retry()));
        let is_quiet = self.quiet_until.is_some_and(|until| self.rested < until);
        self.phase = if beaten || is_quiet { Phase::Waiting { due: self.rested } } else { Phase::Resting };
    }

    /// The renewal in flight came to nothing. `draw` is 64 random bits.
    pub fn failed(&mut self, now: Mono, failure: RenewFailure, draw: u64) {
        self.notice_expiry(now);
        match (self.phase, failure) {
            (Phase::Resting | Phase::Waiting { .. }, _) => {}
            (Phase::Asking { .. }, RenewFailure::ReceiptExpired) => self.lose(now, LossReason::ReceiptExpired),
            (Phase::Asking { .. }, RenewFailure::Refused) => {
                self.refused = true;
                self.phase = Phase::Resting;
            }
            (Phase::Asking { .. }, RenewFailure::Transient) => {
                self.failures = self.failures.saturating_add(1);
                self.phase = Phase::Waiting { due: now + self.retry_in(now, draw) };
            }
        }
    }

    pub fn state(&self, now: Mono) -> LeaseState {
        match self.lost {
            Some(lost) => LeaseState::Lost { why: lost.why },
            None if now >= self.end() => LeaseState::Lost { why: self.end_reason() },
            None => LeaseState::Held { remaining: self.end().since(now) },
        }
    }

    /// Whether something prefetched under this lease may begin to run.
    pub fn may_start(&self, now: Mono) -> bool {
        matches!(self.state(now), LeaseState::Held { .. })
    }

    /// The handler is done. Nothing is renewed or said from here on; `state` goes on telling whether the lease holds.
    pub fn detach(&mut self) {
        self.detached = true;
    }

    fn ask_if_due(&mut self, now: Mono) -> Option<Renew> {
        match self.phase {
            Phase::Waiting { due } if due <= now => {
                self.phase = Phase::Asking { since: now, beaten: false };
                self.rested = now + self.rule.interval;
                Some(Renew { extension: self.rule.extension.min(self.hold_limit.since(now)) })
            }
            _ => None,
        }
    }

    fn notice_expiry(&mut self, now: Mono) {
        if self.lost.is_none() && now >= self.end() {
            self.lose(self.end(), self.end_reason());
        }
    }

    /// The instant when the lease is lost if nothing more is granted.
    fn end(&self) -> Mono {
        self.expires.min(self.hold_until)
    }

    fn end_reason(&self) -> LossReason {
        if self.hold_until < self.expires { LossReason::HoldSpent } else { LossReason::Expired }
    }

    fn lose(&mut self, at: Mono, why: LossReason) {
        self.lost = Some(LeaseLoss { at, why, said: false });
        self.phase = Phase::Resting;
    }

    /// The wait before the next try. With the default interval: a second at first, then two, four and so on up to the
    /// interval, but never more than a quarter of what is left of the lease, and never less than a tenth of a second.
    fn retry_in(&self, now: Mono, draw: u64) -> Duration {
        let left = self.end().since(now) / 4;
        let backoff = Backoff { base: self.first_retry(), max: left.min(self.rule.interval) };
        backoff.delay(self.failures, draw).max(self.least_retry())
    }

    fn first_retry(&self) -> Duration {
        (self.rule.interval / 60).max(Duration::from_millis(1))
    }

    fn least_retry(&self) -> Duration {
        (self.rule.interval / 600).max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests;
