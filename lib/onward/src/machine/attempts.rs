//! Events in the life of the attempts that the worker holds.

use core::time::Duration;

use onward_core::ids::Claim;
use onward_core::lease::{CheckedLeaseRule, LeaseRule, LostPolicy};
use onward_core::message::{
    Assignment, Beat, BeatAccepted, CancelWhy, EndReport, ExtensionRequest, FromWorker, Settlement,
};
use onward_core::time::Mono;
use onward_proto::manager::RemoteRefusal;
use rand_chacha::rand_core::Rng;

use super::held::{self, ActiveAttempt, DueMessage, Phase, StoppedBy};
use super::{Effect, HandlerOutcome, HandlerReport, Session, SessionMachine, Stage};

impl SessionMachine {
    pub(super) fn assigned(&mut self, now: Mono, assignment: Assignment, out: &mut Vec<Effect>) {
        let claim = assignment.claim;
        if self.held.contains_key(&claim) {
            return;
        }
        let interval = self.config.beat_every.min(assignment.lease / 3).max(Duration::from_millis(1));
        let rule = LeaseRule { initial: assignment.lease, extension: assignment.lease, interval, enabled: true };
        let rule: CheckedLeaseRule = match rule.validate() {
            Ok(rule) => rule,
            // A lease of no length is over before anything can begin.
            Err(_) => return out.push(Effect::Send(FromWorker::Ended(vec![claim]))),
        };
        let held = ActiveAttempt::new(claim, rule, self.config.on_lost, now, assignment.lease);
        Self::rearm(&mut self.timers, claim, self.held.entry(claim).or_insert(held));
        if self.stage == Stage::Draining {
            // It was on its way when the manager heard that nothing more is taken.
            return self.handle_finished(claim, HandlerOutcome::Released { delay: None }, out);
        }
        out.push(Effect::Lease { claim, until: now + assignment.lease });
        out.push(Effect::Start(assignment));
    }

    pub(super) fn handle_report(&mut self, now: Mono, claim: Claim, report: HandlerReport, out: &mut Vec<Effect>) {
        let Some(held) = self.held.get_mut(&claim) else { return };
        let beat = held.handle_report(now, report);
        self.send_beat(now, claim, beat, out);
    }

    /// Sends a beat, if there is one. Without a session it is as if it had been sent and lost.
    fn send_beat(&mut self, now: Mono, claim: Claim, beat: Option<Beat>, out: &mut Vec<Effect>) {
        let Some(held) = self.held.get_mut(&claim) else { return };
        if self.session != Session::Talking {
            held.session_lost(now, self.rng.next_u64());
        } else if let Some(beat) = beat {
            out.push(Effect::Send(FromWorker::Beats(vec![beat])));
        }
        Self::rearm(&mut self.timers, claim, held);
    }

    pub(super) fn beat_answered(
        &mut self,
        now: Mono,
        claim: Claim,
        answer: Result<BeatAccepted, RemoteRefusal>,
        out: &mut Vec<Effect>,
    ) {
        let Some(held) = self.held.get_mut(&claim) else { return };
        match answer {
            Ok(accepted) => {
                let until = held.accepted(now, accepted.lease_remaining);
                out.push(Effect::Lease { claim, until });
                let next = held.urgent(now);
                self.send_beat(now, claim, next, out);
                if accepted.cancel {
                    self.cancel(claim, CancelWhy::Asked, out);
                }
            }
            Err(refused) if held::is_final(&refused) => {
                held.lost();
                Self::rearm(&mut self.timers, claim, held);
                if self.config.on_lost == LostPolicy::Cancel {
                    self.cancel(claim, CancelWhy::Stale, out);
                }
            }
            Err(refused) => {
                let next = held.refused(now, &refused, self.rng.next_u64());
                self.send_beat(now, claim, next, out);
                out.push(Effect::Noted(refused));
            }
        }
    }

    /// The manager says that an attempt is over. Where that is because its lease was lost, the worker's policy decides
    /// whether its handler stops.
    pub(super) fn handle_cancel(&mut self, claim: Claim, why: CancelWhy, out: &mut Vec<Effect>) {
        let is_lost = matches!(why, CancelWhy::LeaseExpired | CancelWhy::Stale);
        match self.held.get_mut(&claim) {
            Some(held @ ActiveAttempt { phase: Phase::Running, .. })
                if is_lost && self.config.on_lost == LostPolicy::Continue =>
            {
                held.lost();
                Self::rearm(&mut self.timers, claim, held);
            }
            _ => self.cancel(claim, why, out),
        }
    }

    pub(super) fn cancel(&mut self, claim: Claim, why: CancelWhy, out: &mut Vec<Effect>) {
        match self.held.get_mut(&claim) {
            Some(ActiveAttempt { phase: phase @ Phase::Running, .. }) => {
                *phase = Phase::Stopping(StoppedBy::Manager);
                out.push(Effect::Cancel { claim, why });
            }
            Some(ActiveAttempt { phase: Phase::Stopping(by), .. }) => *by = StoppedBy::Manager,
            // Its answer is on the way.
            Some(ActiveAttempt { phase: Phase::Reported(_), .. }) => {}
            None => out.push(Effect::Send(FromWorker::Ended(vec![claim]))),
        }
    }

    pub(super) fn handle_finished(&mut self, claim: Claim, outcome: HandlerOutcome, out: &mut Vec<Effect>) {
        let Some(held) = self.held.get_mut(&claim) else { return };
        let report = match (outcome, &held.phase) {
            (_, Phase::Reported(_)) => return,
            (HandlerOutcome::Succeeded(result), _) => EndReport::Succeed { result },
            (HandlerOutcome::Failed { error, retryable, delay }, _) => {
                EndReport::Fail { error: error.into(), retryable, delay }
            }
            (HandlerOutcome::Released { delay }, _) => EndReport::Release { delay },
            (HandlerOutcome::Stopped, Phase::Stopping(StoppedBy::Manager)) => {
                self.forget(claim);
                // Without a session the next hello tells: it will not be among what is held. And if the hello is on its
                // way, the manager says again that it must stop.
                if self.session == Session::Talking {
                    out.push(Effect::Send(FromWorker::Ended(vec![claim])));
                }
                return;
            }
            // As the expiry would count, were the manager to see it first.
            (HandlerOutcome::Stopped, Phase::Stopping(StoppedBy::LostLease)) => EndReport::Fail {
                error: "the lease could not be renewed in time, and the handler was stopped".into(),
                retryable: true,
                delay: None,
            },
            (HandlerOutcome::Stopped, Phase::Stopping(StoppedBy::Abandon) | Phase::Running) => {
                EndReport::Release { delay: None }
            }
        };
        let last = held.finish(report.clone());
        Self::rearm(&mut self.timers, claim, held);
        if self.session == Session::Talking {
            if !last.is_empty() {
                out.push(Effect::Send(FromWorker::Beats(last)));
            }
            out.push(Effect::Send(FromWorker::Settle(vec![Settlement::new(claim, report)])));
        }
    }

    pub(super) fn settle_answered(
        &mut self,
        now: Mono,
        claim: Claim,
        answer: Result<(), RemoteRefusal>,
        out: &mut Vec<Effect>,
    ) {
        let Some(held) = self.held.get_mut(&claim) else { return };
        let Phase::Reported(report) = &mut held.phase else { return };
        match &answer {
            Err(refused) if held::is_passing(refused) => {
                held.refusals += 1;
                let failures = held.refusals;
                let pause = self.pause(failures);
                if let Some(held) = self.held.get_mut(&claim) {
                    held.repeat_at = Some(now + pause);
                    Self::rearm(&mut self.timers, claim, held);
                }
                out.push(Effect::Noted(refused.clone()));
            }
            Err(refused) if held::is_of_form(refused) && !held.mended => {
                // Else it would end by its lease, and the next attempt just so.
                held.mended = true;
                *report = held::mend(report, refused);
                let settlement = Settlement::new(claim, report.clone());
                out.push(Effect::Noted(refused.clone()));
                out.push(Effect::Send(FromWorker::Settle(vec![settlement])));
            }
            _ => {
                self.forget(claim);
                out.push(Effect::Settled { claim, answer });
            }
        }
    }

    pub(super) fn ask_extension(
        &mut self,
        claim: Claim,
        reason: Box<str>,
        progress: f64,
        estimated_remaining: Option<Duration>,
        out: &mut Vec<Effect>,
    ) {
        let runs = matches!(self.held.get(&claim), Some(ActiveAttempt { phase: Phase::Running, .. }));
        if self.session != Session::Talking || !runs {
            let (code, text) = if runs {
                ("no_session", "the worker is not connected to its manager just now; ask again later")
            } else {
                ("stale_attempt", "this attempt does not run any more")
            };
            let answer = Err(RemoteRefusal { code: code.into(), text: text.into() });
            return out.push(Effect::ExtensionAnswered { claim, answer });
        }
        self.asked.push(claim);
        let request = ExtensionRequest { claims: vec![claim], reason, progress, estimated_remaining };
        out.push(Effect::Send(FromWorker::RequestExtension(request)));
    }

    pub(super) fn abandon(&mut self, out: &mut Vec<Effect>) {
        for (claim, held) in &mut self.held {
            if let Phase::Running = held.phase {
                held.phase = Phase::Stopping(StoppedBy::Abandon);
                out.push(Effect::Cancel { claim: *claim, why: CancelWhy::Asked });
            }
        }
    }

    pub(super) fn timers_due(&mut self, now: Mono, out: &mut Vec<Effect>) {
        while let Some(&(at, claim)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(held) = self.held.get_mut(&claim) else { continue };
            held.armed = None;
            match held.wake(now) {
                Some(DueMessage::Beat(beat)) => self.send_beat(now, claim, Some(beat), out),
                Some(DueMessage::Settle(report)) => {
                    Self::rearm(&mut self.timers, claim, held);
                    out.push(Effect::Send(FromWorker::Settle(vec![Settlement::new(claim, report)])));
                }
                Some(DueMessage::Lost) => {
                    if let Phase::Running = held.phase {
                        held.phase = Phase::Stopping(StoppedBy::LostLease);
                        out.push(Effect::Cancel { claim, why: CancelWhy::LeaseExpired });
                    }
                    Self::rearm(&mut self.timers, claim, held);
                }
                None => Self::rearm(&mut self.timers, claim, held),
            }
        }
    }

    fn forget(&mut self, claim: Claim) {
        if let Some(ActiveAttempt { armed: Some(at), .. }) = self.held.remove(&claim) {
            self.timers.remove(&(at, claim));
        }
    }
}
