//! One attempt that the worker holds: what its handler has said that the manager does not know yet, and its lease.

use core::time::Duration;

use onward_core::ids::{Bytes, Claim};
use onward_core::lease::{CheckedLeaseRule, Extender, ExtenderAction, LeaseState, LostPolicy, RenewFailure};
use onward_core::message::{Beat, EndReport};
use onward_core::refusal::RefusalKind;
use onward_core::time::Mono;
use onward_proto::manager::RemoteRefusal;

use super::HandlerReport;

#[derive(Debug)]
pub(super) struct ActiveAttempt {
    claim: Claim,
    pub(super) phase: Phase,
    /// The attempt's place among the machine's timers.
    pub(super) armed: Option<Mono>,
    extender: Extender,
    /// Said by the handler, and not sent. Once it is reported: what the manager has to know before the end.
    pending: Option<HandlerReport>,
    /// Sent, and not answered. At most one, so that answers need no numbers. Always the extender's renewal.
    in_flight: Option<HandlerReport>,
    /// A checkpoint that came too soon after another. It goes with the next beat that has waited.
    too_soon: Option<Bytes>,
    /// The instant to report once more on this session, because the manager could not answer.
    pub(super) repeat_at: Option<Mono>,
    pub(super) refusals: u32,
    /// The report took the place of one that could not be taken.
    pub(super) mended: bool,
}

#[derive(Debug)]
pub(super) enum Phase {
    Running,
    Stopping(StoppedBy),
    Reported(EndReport),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StoppedBy {
    /// The manager, which then only wants to hear that the attempt has stopped.
    Manager,
    /// The lease was lost, as far as is known here.
    LostLease,
    /// The worker does not wait any longer.
    Abandon,
}

pub(super) enum DueMessage {
    Beat(Beat),
    Settle(EndReport),
    Lost,
}

impl ActiveAttempt {
    pub(super) fn new(claim: Claim, rule: CheckedLeaseRule, policy: LostPolicy, now: Mono, lease: Duration) -> Self {
        Self {
            claim,
            phase: Phase::Running,
            armed: None,
            extender: Extender::attach(rule, now, now + lease).with_policy(policy),
            pending: None,
            in_flight: None,
            too_soon: None,
            repeat_at: None,
            refusals: 0,
            mended: false,
        }
    }

    /// The beat to send now, if one is due. A beat that waits takes the later ones with it.
    pub(super) fn handle_report(&mut self, now: Mono, report: HandlerReport) -> Option<Beat> {
        if let Phase::Reported(_) = self.phase {
            return None;
        }
        self.pending = Some(match self.pending.take() {
            Some(earlier) => earlier.then(report),
            None => report,
        });
        match self.extender.beat(now) {
            Some(_renew) => Some(self.send()),
            None => self.urgent(now),
        }
    }

    /// A quiet section must be known before the silence begins. Its beat is the renewal, too: another one would end it.
    pub(super) fn urgent(&mut self, now: Mono) -> Option<Beat> {
        self.pending.as_ref()?.quiet?;
        let _renew = self.extender.hasten(now)?;
        Some(self.send())
    }

    pub(super) fn wake(&mut self, now: Mono) -> Option<DueMessage> {
        if self.repeat_at.is_some_and(|at| at <= now) {
            self.repeat_at = None;
            let Phase::Reported(report) = &self.phase else { return None };
            return Some(DueMessage::Settle(report.clone()));
        }
        match self.extender.wake(now)? {
            ExtenderAction::Renew(_) => {
                if let Some(checkpoint) = self.too_soon.take() {
                    self.pending.get_or_insert_default().checkpoint.get_or_insert(checkpoint);
                }
                Some(DueMessage::Beat(self.send()))
            }
            ExtenderAction::Lost { policy: LostPolicy::Cancel, .. } => Some(DueMessage::Lost),
            ExtenderAction::Lost { policy: LostPolicy::Continue, .. } => None,
        }
    }

    pub(super) fn next_wakeup(&self) -> Option<Mono> {
        self.repeat_at.into_iter().chain(self.extender.next_wakeup()).min()
    }

    fn send(&mut self) -> Beat {
        let report = self.pending.take().unwrap_or_default();
        let beat = report.beat(self.claim);
        self.in_flight = Some(report);
        beat
    }

    /// The report in flight, if any, was lost with its session.
    pub(super) fn session_lost(&mut self, now: Mono, draw: u64) {
        self.repeat_at = None;
        let Some(report) = self.in_flight.take() else { return };
        self.pending = Some(match self.pending.take() {
            Some(later) => report.then(later),
            None => report,
        });
        self.extender.failed(now, RenewFailure::Transient, draw);
    }

    /// Notes that the report in flight was taken, and gives the instant until which the lease holds at least.
    pub(super) fn accepted(&mut self, now: Mono, remaining: Duration) -> Mono {
        if self.in_flight.take().is_some() {
            self.extender.renewed(now, remaining);
        }
        match self.extender.state(now) {
            LeaseState::Held { remaining } => now + remaining,
            LeaseState::Lost { .. } => now,
        }
    }

    /// A report was not taken, and nothing was changed: repeats it without the offending part. A quiet section still
    /// cannot wait.
    pub(super) fn refused(&mut self, now: Mono, refused: &RemoteRefusal, draw: u64) -> Option<Beat> {
        let report = self.in_flight.as_mut()?;
        let is_mended = match refused.kind() {
            Some(RefusalKind::TooSoon) => {
                let checkpoint = report.checkpoint.take();
                let is_mended = checkpoint.is_some();
                self.too_soon = checkpoint.or(self.too_soon.take());
                is_mended
            }
            Some(RefusalKind::QuietSpent) => report.quiet.take().is_some(),
            // The number cannot be wrong, and it is what the attempt is judged by.
            Some(RefusalKind::Invalid | RefusalKind::Limited) => {
                *report = HandlerReport { progress: report.progress, ..HandlerReport::default() };
                false
            }
            Some(_) | None => false,
        };
        self.session_lost(now, draw);
        if is_mended { self.urgent(now) } else { None }
    }

    /// The manager no longer honours the claim.
    pub(super) fn lost(&mut self) {
        self.in_flight = None;
        self.pending = None;
        self.too_soon = None;
        self.extender.detach();
    }

    /// The beats that go before the report.
    pub(super) fn finish(&mut self, report: EndReport) -> Vec<Beat> {
        if let Some(checkpoint) = self.too_soon.take() {
            self.pending.get_or_insert_default().checkpoint.get_or_insert(checkpoint);
        }
        let unsent = self.last_words();
        // Should the session be lost, it is not known whether what is in flight arrived.
        self.pending = match (self.in_flight.take(), self.pending.take()) {
            (Some(sent), Some(later)) => Some(sent.then(later)),
            (sent, later) => sent.or(later),
        };
        self.extender.detach();
        self.phase = Phase::Reported(report);
        unsent
    }

    /// The last progress and the checkpoint, in beats apart, because a checkpoint may come too soon.
    pub(super) fn last_words(&self) -> Vec<Beat> {
        let Some(report) = &self.pending else { return Vec::new() };
        let progress = report.progress.map(|_| HandlerReport { quiet: None, checkpoint: None, ..report.clone() });
        let checkpoint = report
            .checkpoint
            .as_ref()
            .map(|bytes| HandlerReport { checkpoint: Some(bytes.clone()), ..HandlerReport::default() });
        progress.into_iter().chain(checkpoint).map(|report| report.beat(self.claim)).collect()
    }
}

/// The claim does not stand, and never will again.
pub(super) fn is_final(refused: &RemoteRefusal) -> bool {
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
pub(super) fn is_passing(refused: &RemoteRefusal) -> bool {
    matches!(refused.kind(), Some(RefusalKind::NoLeader | RefusalKind::Overloaded))
}

/// Whether a report cannot be taken as it is: it is too long, or out of range.
pub(super) fn is_of_form(refused: &RemoteRefusal) -> bool {
    matches!(refused.kind(), Some(RefusalKind::Invalid | RefusalKind::Limited))
}

/// A report in place of one that was not taken for its form.
pub(super) fn mend(report: &EndReport, refused: &RemoteRefusal) -> EndReport {
    let error = format!("the manager did not take the outcome of this attempt: {}", refused.text).into();
    match report {
        // Another attempt would give the same.
        EndReport::Succeed { .. } => EndReport::Fail { error, retryable: false, delay: None },
        EndReport::Fail { retryable, .. } => EndReport::Fail { error, retryable: *retryable, delay: None },
        EndReport::Release { .. } => EndReport::Release { delay: None },
    }
}

impl HandlerReport {
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
