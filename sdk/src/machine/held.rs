//! One attempt that the worker holds: what its handler has said that the manager does not know yet, and its lease.

use core::time::Duration;

use onward_core::ids::Claim;
use onward_core::lease::{CheckedLeaseRule, Extender, ExtenderAction, LeaseState, LostPolicy, RenewFailure};
use onward_core::message::{Beat, Report};
use onward_core::refusal::RefusalKind;
use onward_core::time::Mono;
use onward_proto::manager::Refused;

use super::Said;

#[derive(Debug)]
pub(super) struct Held {
    claim: Claim,
    pub(super) phase: Phase,
    /// Where it stands among the machine's timers.
    pub(super) armed: Option<Mono>,
    extender: Extender,
    /// Said by the handler, and not sent.
    pending: Option<Said>,
    /// Sent, and not answered. At most one, so that answers need no numbers.
    in_flight: Option<InFlight>,
}

#[derive(Debug)]
pub(super) enum Phase {
    Running,
    /// By the manager, who then only wants to hear that it has stopped; or because the lease is lost here.
    Stopping {
        by_manager: bool,
    },
    Reported(Report),
}

#[derive(Debug)]
struct InFlight {
    said: Said,
    at: Mono,
    /// The extender asked for it. Otherwise it went out because it could not wait.
    is_renewal: bool,
}

pub(super) enum Due {
    Beat(Beat),
    Lost,
}

impl Held {
    pub(super) fn new(claim: Claim, rule: CheckedLeaseRule, policy: LostPolicy, now: Mono, lease: Duration) -> Self {
        Self {
            claim,
            phase: Phase::Running,
            armed: None,
            extender: Extender::attach(rule, now, now + lease).with_policy(policy),
            pending: None,
            in_flight: None,
        }
    }

    /// The beat to send now, if one is due. A beat that waits takes the later ones with it.
    pub(super) fn said(&mut self, now: Mono, what: Said) -> Option<Beat> {
        if let Phase::Reported(_) = self.phase {
            return None;
        }
        self.pending = Some(match self.pending.take() {
            Some(earlier) => earlier.then(what),
            None => what,
        });
        match self.extender.beat(now) {
            Some(_renew) => self.renew(now),
            None => self.urgent(now),
        }
    }

    /// A quiet section must be known before the silence begins.
    pub(super) fn urgent(&mut self, now: Mono) -> Option<Beat> {
        let waits = self.pending.as_ref().is_some_and(|said| said.quiet.is_some());
        (waits && self.in_flight.is_none()).then(|| self.send(now, false))
    }

    pub(super) fn wake(&mut self, now: Mono) -> Option<Due> {
        match self.extender.wake(now)? {
            ExtenderAction::Renew(_) => self.renew(now).map(Due::Beat),
            ExtenderAction::Lost { policy: LostPolicy::Cancel, .. } => Some(Due::Lost),
            ExtenderAction::Lost { policy: LostPolicy::Continue, .. } => None,
        }
    }

    pub(super) fn next_wakeup(&self) -> Option<Mono> {
        self.extender.next_wakeup()
    }

    /// An urgent beat that is under way goes first: its answer would be taken for this one's.
    fn renew(&mut self, now: Mono) -> Option<Beat> {
        if self.in_flight.is_some() {
            self.extender.failed(now, RenewFailure::Transient, u64::MAX);
            return None;
        }
        Some(self.send(now, true))
    }

    fn send(&mut self, now: Mono, is_renewal: bool) -> Beat {
        let said = self.pending.take().unwrap_or_default();
        let beat = said.beat(self.claim);
        self.in_flight = Some(InFlight { said, at: now, is_renewal });
        beat
    }

    /// What was sent, if anything, was lost with its session.
    pub(super) fn session_lost(&mut self, now: Mono, draw: u64) {
        let Some(InFlight { said, is_renewal, .. }) = self.in_flight.take() else { return };
        self.pending = Some(match self.pending.take() {
            Some(later) => said.then(later),
            None => said,
        });
        if is_renewal {
            self.extender.failed(now, RenewFailure::Transient, draw);
        }
    }

    /// Until when the lease holds, at least.
    pub(super) fn accepted(&mut self, now: Mono, remaining: Duration) -> Mono {
        if let Some(InFlight { at, is_renewal, .. }) = self.in_flight.take() {
            if is_renewal {
                self.extender.renewed(now, remaining);
            } else {
                self.extender.told(now, at, remaining);
            }
        }
        match self.extender.state(now) {
            LeaseState::Held { remaining } => now + remaining,
            LeaseState::Lost { .. } => now,
        }
    }

    /// Not taken, and nothing was changed: once more, without what was in the way.
    pub(super) fn refused(&mut self, now: Mono, refused: &Refused, draw: u64) {
        if let Some(in_flight) = &mut self.in_flight {
            match refused.kind() {
                Some(RefusalKind::QuietSpent) => in_flight.said.quiet = None,
                Some(RefusalKind::Invalid | RefusalKind::Limited) => in_flight.said = Said::default(),
                // A checkpoint that came too soon goes with the next beat, unless a newer one has taken its place.
                Some(_) | None => {}
            }
        }
        self.session_lost(now, draw);
    }

    /// The manager no longer honours the claim.
    pub(super) fn lost(&mut self) {
        self.in_flight = None;
        self.pending = None;
        self.extender.detach();
    }

    /// What the handler said last, if the manager has to know it before the end.
    pub(super) fn finish(&mut self, report: Report) -> Option<Beat> {
        let last = self.pending.take().filter(|said| said.progress.is_some() || said.checkpoint.is_some());
        self.in_flight = None;
        self.extender.detach();
        self.phase = Phase::Reported(report);
        last.map(|said| Said { quiet: None, ..said }.beat(self.claim))
    }
}

/// The claim does not stand, and never will again.
pub(super) fn is_final(refused: &Refused) -> bool {
    matches!(
        refused.kind(),
        Some(
            RefusalKind::StaleAttempt
                | RefusalKind::AlreadyEnded
                | RefusalKind::UnknownJob
                | RefusalKind::UnknownWorkflow
                | RefusalKind::UnknownAttempt
                | RefusalKind::StaleIncarnation
        )
    )
}

/// The manager could not answer; it may be able to later.
pub(super) fn is_passing(refused: &Refused) -> bool {
    matches!(refused.kind(), Some(RefusalKind::NoLeader | RefusalKind::Overloaded))
}

impl Said {
    /// The later one wins where both say something; a later word ends an earlier quiet section.
    pub(crate) fn then(self, later: Self) -> Self {
        Self {
            progress: match (self.progress, later.progress) {
                (Some(before), Some(after)) => Some(if after.0 >= before.0 { after } else { before }),
                (before, after) => after.or(before),
            },
            note: later.note.or(self.note),
            quiet: later.quiet,
            checkpoint: later.checkpoint.or(self.checkpoint),
        }
    }

    fn beat(&self, claim: Claim) -> Beat {
        Beat {
            watermark: self.progress.map(|(done, _)| done),
            total: self.progress.and_then(|(_, total)| total),
            note: self.note.clone(),
            quiet: self.quiet,
            checkpoint: self.checkpoint.clone(),
            ..Beat::plain(claim)
        }
    }
}
