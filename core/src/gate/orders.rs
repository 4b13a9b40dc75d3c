//! What a datacenter is owed about a job: one rule, from what is known of the target. It is sent at once when it arises,
//! again every `progress_every`, when the datacenter comes back, and when it reports that the job is still open there.
//!
//! | has the job | decided | owed |
//! |---|---|---|
//! | not that we know | no | submit |
//! | not that we know | yes | withdraw: a submit may be on its way; nothing where nobody was ever heard |
//! | yes | no | nothing |
//! | yes | cancelled | cancel |
//! | yes | timed out | global timeout, with the term of its newest leader |
//! | it has ended | | nothing |
//!
//! **A placed job is not moved.** Once a datacenter was chosen, a submit may be on its way to it for ever; so the target
//! stays, and the submit is repeated until it is answered.

use core::time::Duration;

use crate::ids::{JobId, Name, StreamId};
use crate::job::Start;
use crate::timeout::TimeoutReason;

use super::Gate;
use super::effect::{Effects, GateNotice};
use super::event::{EndCause, Event, TargetCause};
use super::message::{Placement, ToDatacenter};
use super::placement::draft_for;
use super::state::{Job, Target};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DueOrder {
    Submit,
    Withdraw,
    Cancel,
    GlobalTimeout(TimeoutReason),
}

pub(super) fn owed(job: &Job, target: &Target) -> Option<DueOrder> {
    match (&target.end, job.decided.map(|decision| decision.why), target.confirmed) {
        (Some(_), _, _) | (None, None, true) => None,
        (None, None, false) => Some(DueOrder::Submit),
        (None, Some(_), false) => Some(DueOrder::Withdraw),
        (None, Some(why), true) => Some(order_of(why)),
    }
}

const fn order_of(why: EndCause) -> DueOrder {
    match why {
        EndCause::Cancelled => DueOrder::Cancel,
        EndCause::TimedOut(reason) => DueOrder::GlobalTimeout(reason),
    }
}

impl Gate {
    /// The job ends in every datacenter that has not finished.
    pub(super) fn decide_end(&mut self, id: JobId, why: EndCause, fx: &mut Effects) {
        let Some(job) = self.state.job(id) else { return };
        let kept_until = self.kept_until(job);
        self.emit(Event::EndDecided { job: id, why, kept_until }, fx);
        if let EndCause::TimedOut(reason) = why {
            self.report(GateNotice::TimeoutDeclared { job: id, reason }, fx);
        }
        self.end_where_nobody_was_heard(id, why, fx);
        self.send_owed(id, fx);
    }

    /// A datacenter that was never heard was sent nothing: there is nothing to withdraw, and may be nobody to say so.
    fn end_where_nobody_was_heard(&mut self, id: JobId, why: EndCause, fx: &mut Effects) {
        let Some(job) = self.state.job(id) else { return };
        let open = job.targets.iter().filter(|target| !target.confirmed && target.end.is_none());
        let never_heard = open.map(|target| &target.datacenter).filter(|name| self.state.datacenter(name).is_none());
        for name in never_heard.cloned().collect::<Vec<_>>() {
            let text = "no datacenter of this name was ever heard";
            self.end_unrun(id, &name, (why.outcome(), TargetCause::Withdrawn), text, fx);
        }
    }

    /// Sends everything that any datacenter is owed about this job.
    pub(super) fn send_owed(&mut self, id: JobId, fx: &mut Effects) {
        let names: Vec<Name> = self
            .state
            .job(id)
            .into_iter()
            .flat_map(|job| job.targets.iter().map(|target| target.datacenter.clone()))
            .collect();
        for name in names {
            self.send_owed_to(id, &name, fx);
        }
    }

    /// Sends everything that this datacenter is owed about this job, if it is there to take it.
    pub(super) fn send_owed_to(&mut self, id: JobId, datacenter: &Name, fx: &mut Effects) {
        let Some(stream) = self.datacenters.get(datacenter).and_then(|known| known.stream) else { return };
        let Some(job) = self.state.job(id) else { return };
        let Some((index, target)) = job.target(datacenter) else { return };
        match owed(job, target) {
            Some(DueOrder::Submit) => self.send_submit(id, index, datacenter, stream, fx),
            Some(order) => self.send_order(id, datacenter, stream, order, fx),
            None => {}
        }
    }

    /// The datacenter runs a job of which we know that it has ended there, or is placed elsewhere: it was restored from a
    /// backup, or we were. It ends there, once more or at last.
    pub(super) fn end_again(&mut self, id: JobId, datacenter: &Name, fx: &mut Effects) {
        let Some(stream) = self.datacenters.get(datacenter).and_then(|known| known.stream) else { return };
        let Some(job) = self.state.job(id) else { return };
        let order = job.decided.map_or(DueOrder::Cancel, |decision| order_of(decision.why));
        self.send_order(id, datacenter, stream, order, fx);
    }

    fn send_order(&mut self, id: JobId, datacenter: &Name, stream: StreamId, order: DueOrder, fx: &mut Effects) {
        let Some(job) = self.state.job(id) else { return };
        let epoch = self.epoch_of(job);
        let message = match order {
            DueOrder::Withdraw => ToDatacenter::Withdraw { job: id, epoch },
            DueOrder::Cancel => ToDatacenter::Cancel { job: id, epoch },
            DueOrder::GlobalTimeout(reason) => {
                let Some(known) = self.state.datacenter(datacenter) else { return };
                ToDatacenter::GlobalTimeout { job: id, epoch, term: known.term, reason }
            }
            DueOrder::Submit => unreachable!("a submit is sent by itself"),
        };
        self.send(stream, message, fx);
    }

    fn send_submit(&mut self, id: JobId, index: usize, datacenter: &Name, stream: StreamId, fx: &mut Effects) {
        let Some(job) = self.state.job(id) else { return };
        let Some(spec) = &job.spec else { return };
        let was_sent = self.tracks.was_sent(id, index);
        if !was_sent && !self.datacenters.is_usable(datacenter, &self.rules.gate, self.awake) {
            return;
        }
        let now = self.log_now();
        let delay = match spec.start {
            Start::After(_) => job.started_at.since(now),
            Start::AtOnce | Start::At(_) => Duration::ZERO,
        };
        let waited = match spec.start {
            // Told by the wall clock, which every datacenter reads itself.
            Start::At(_) => Duration::ZERO,
            Start::AtOnce | Start::After(_) => now.since(job.started_at),
        };
        let placement = Placement {
            job: id,
            epoch: self.epoch_of(job),
            // The orders that an earlier leader has sent are not known.
            again: was_sent || job.created_at < self.seat.taken_at(),
            waited,
            draft: draft_for(spec, &job.outline.targets, delay),
        };
        self.tracks.note_sent(id, index);
        self.send(stream, ToDatacenter::Submit(Box::new(placement)), fx);
    }

    /// Sends again what datacenters are owed: a bite of it, and the rest in the next step.
    pub(super) fn resend(&mut self, fx: &mut Effects) {
        let mut bite = self.bite;
        let names: Vec<Name> = self
            .datacenters
            .iter()
            .filter(|(_, known)| known.resending.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            while !bite.is_over() {
                let Some(after) = self.datacenters.get(&name).and_then(|known| known.resending) else { break };
                let next = self.agenda.next_owed(&name, after);
                if let Some(known) = self.datacenters.get_mut(&name) {
                    known.resending = next.map(Some);
                }
                let Some(job) = next else { break };
                bite.spend(1);
                self.send_owed_to(job, &name, fx);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::event::TargetEnd;
    use crate::gate::message::{JobOutline, Outcome};
    use crate::gate::state::Decision;
    use crate::job::TimeoutPolicy;
    use crate::time::Wall;
    use crate::timeout::ExtensionTotals;

    fn job(decided: Option<EndCause>) -> Job {
        let name = |text| Name::new(text).expect("valid");
        Job {
            id: JobId::from_u128(1),
            outline: JobOutline {
                kind: name("k"),
                queue: name("q"),
                targets: Box::default(),
                policy: TimeoutPolicy::Any,
                timeout: Duration::ZERO,
                max_extension: Duration::ZERO,
            },
            spec: None,
            fingerprint: None,
            created_at: Wall::ZERO,
            started_at: Wall::ZERO,
            n: 0,
            targets: Vec::new(),
            extended: ExtensionTotals::default(),
            by_hand: Vec::new(),
            ledger: None,
            decided: decided.map(|why| Decision { at: Wall::ZERO, why }),
            ended_at: None,
            kept_until: Wall::ZERO,
        }
    }

    fn target(confirmed: bool, ended: bool) -> Target {
        let end = TargetEnd {
            outcome: Outcome::Succeeded,
            cause: TargetCause::Reported,
            error: None,
            result: None,
            attempts: 1,
        };
        let datacenter = Name::new("dc").expect("valid");
        Target { datacenter, confirmed, ended_at: None, end: ended.then_some(end) }
    }

    #[test]
    fn the_table() {
        let timeout = EndCause::TimedOut(TimeoutReason::Stuck);
        let table = [
            (false, None, Some(DueOrder::Submit)),
            (false, Some(EndCause::Cancelled), Some(DueOrder::Withdraw)),
            (false, Some(timeout), Some(DueOrder::Withdraw)),
            (true, None, None),
            (true, Some(EndCause::Cancelled), Some(DueOrder::Cancel)),
            (true, Some(timeout), Some(DueOrder::GlobalTimeout(TimeoutReason::Stuck))),
        ];
        for (confirmed, decided, expected) in table {
            assert_eq!(owed(&job(decided), &target(confirmed, false)), expected, "{confirmed} {decided:?}");
            assert_eq!(owed(&job(decided), &target(confirmed, true)), None, "it has ended");
        }
    }
}
