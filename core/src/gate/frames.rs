//! What a datacenter says, and from which leader: who is heard at all.

use crate::fence::{GateEpoch, Term};
use crate::ids::{JobId, Name, StreamId};
use crate::limits::Limit;

use super::Gate;
use super::effect::{Effect, Effects, GateNotice};
use super::event::Event;
use super::message::{Frame, FromDatacenter, Hello, ToDatacenter};

/// The standing of the leader that says hello, against the newest that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LeaderStanding {
    Same,
    New,
    /// The datacenter was restored from a backup.
    Restored,
    /// A leader that was replaced.
    Stale,
}

impl Gate {
    pub(super) fn handle_frame(&mut self, stream: StreamId, frame: Frame, fx: &mut Effects) {
        let Some(datacenter) = self.datacenters.of_stream(stream).cloned() else { return };
        let Frame { term, number, message } = frame;
        if let FromDatacenter::Hello(hello) = message {
            return self.handle_hello(stream, &datacenter, (term, number), &hello, fx);
        }
        let is_current = self.state.datacenter(&datacenter).is_some_and(|known| known.term == term)
            && self.datacenters.get(&datacenter).is_some_and(|known| known.stream == Some(stream));
        if !is_current {
            return;
        }
        let is_newest = self.datacenters.note_heard(&datacenter, number, &self.rules.gate, self.awake);
        self.handle_message(&datacenter, message, is_newest, fx);
    }

    fn handle_message(&mut self, datacenter: &Name, message: FromDatacenter, is_newest: bool, fx: &mut Effects) {
        match message {
            FromDatacenter::Hello(_) => unreachable!("a hello was taken before"),
            FromDatacenter::Health(counts) => {
                let was_usable = self.datacenters.is_usable(datacenter, &self.rules.gate, self.awake);
                if let Some(known) = self.datacenters.get_mut(datacenter).filter(|_| is_newest) {
                    known.counts = counts;
                    known.sent = 0;
                    if !was_usable {
                        self.start_resending(datacenter);
                    }
                }
            }
            FromDatacenter::Progress(reports) | FromDatacenter::LeaderTransfer(reports) => {
                for report in &reports {
                    self.handle_job_report(datacenter, report, is_newest, fx);
                }
            }
            FromDatacenter::TimedOut(report) => self.handle_job_report(datacenter, &report, is_newest, fx),
            FromDatacenter::Submitted { job, answer } => self.handle_submitted(datacenter, job, answer, fx),
            FromDatacenter::Withdrawn { job } => self.handle_withdrawn(datacenter, job, fx),
            FromDatacenter::Final(status) => self.handle_final(datacenter, &status, fx),
            FromDatacenter::Correction(correction) => self.handle_correction(datacenter, &correction, is_newest, fx),
            FromDatacenter::Unknown { job } => self.handle_unknown(datacenter, job, fx),
        }
    }

    /// Explicit targets that could not be used may be by now.
    fn start_resending(&mut self, datacenter: &Name) {
        let is_owed = self.agenda.owed_to(datacenter) > 0;
        if let Some(known) = self.datacenters.get_mut(datacenter).filter(|known| is_owed && known.resending.is_none()) {
            known.resending = Some(None);
        }
    }

    fn handle_hello(
        &mut self,
        stream: StreamId,
        datacenter: &Name,
        (term, number): (Term, u64),
        hello: &Hello,
        fx: &mut Effects,
    ) {
        let is_new = self.state.datacenter(datacenter).is_none();
        // Those that were heard count, and not what jobs name: a misspelt name must not turn anybody away.
        let heard = self.state.datacenters.len() + usize::from(is_new);
        let met = self.rules.limits.check(Limit::Datacenters, heard).err().filter(|_| is_new);
        if let Some(met) = met {
            self.report(GateNotice::TooManyDatacenters { datacenter: datacenter.clone(), met }, fx);
        }
        if hello.datacenter != *datacenter {
            let (proven, said) = (datacenter.clone(), hello.datacenter.clone());
            self.report(GateNotice::WrongDatacenter { proven, said }, fx);
        }
        let standing = self.standing(datacenter, term, hello.life);
        if hello.datacenter != *datacenter || met.is_some() || standing == LeaderStanding::Stale {
            self.datacenters.close_stream(stream);
            return self.push(Effect::CloseStream { stream }, fx);
        }
        if standing != LeaderStanding::Same {
            let (datacenter, life) = (datacenter.clone(), hello.life);
            self.emit(Event::DatacenterSeen { datacenter: datacenter.clone(), term, life }, fx);
            match standing {
                LeaderStanding::Restored => self.report(GateNotice::DatacenterRestored { datacenter, term }, fx),
                _ if !is_new => self.report(GateNotice::LeaderTransferred { datacenter, term }, fx),
                _ => {}
            }
        }
        self.raise_epoch(hello.epoch, fx);
        let is_new_leader = standing != LeaderStanding::Same;
        let before = self.datacenters.welcome(datacenter, stream, is_new_leader, self.awake);
        if let Some(before) = before {
            self.datacenters.close_stream(before);
            self.push(Effect::CloseStream { stream: before }, fx);
        }
        let ask_at = self.awake + self.rules.gate.progress_every * 2;
        if self.datacenters.note_heard(datacenter, number, &self.rules.gate, self.awake) || is_new_leader {
            let known = self.datacenters.add(datacenter, self.awake);
            known.counts = hello.counts;
            known.sent = 0;
        }
        self.datacenters.add(datacenter, self.awake).ask_at = ask_at;
        let epoch = GateEpoch { n: self.epoch_number(), gate: self.id };
        self.send(stream, ToDatacenter::Welcome { epoch }, fx);
        // A gate that hears a datacenter again looks again at the jobs that it could not decide about.
        self.agenda.to_judge.extend(self.tracks.stuck());
    }

    fn standing(&self, datacenter: &Name, term: Term, life: u64) -> LeaderStanding {
        let Some(known) = self.state.datacenter(datacenter) else { return LeaderStanding::New };
        if term > known.term {
            LeaderStanding::New
        } else if term == known.term {
            if life == known.life { LeaderStanding::Same } else { LeaderStanding::Restored }
        } else {
            let is_gone = self.datacenters.get(datacenter).is_none_or(|known| known.stream.is_none())
                && self.datacenters.since_heard(datacenter, self.awake) >= Some(self.rules.gate.silent_after);
            if is_gone { LeaderStanding::Restored } else { LeaderStanding::Stale }
        }
    }

    /// A datacenter has seen this epoch: ours are above it, or it is one of ours.
    pub(super) fn raise_epoch(&mut self, seen: Option<GateEpoch>, fx: &mut Effects) {
        let own = GateEpoch { n: self.epoch_number(), gate: self.id };
        if let Some(seen) = seen.filter(|seen| *seen > own) {
            self.raise_epoch_above(seen.n, fx);
        }
    }

    /// Raises the epoch above one that was used. None is above the last; then the gate's id alone tells epochs apart.
    pub(super) fn raise_epoch_above(&mut self, used: u64, fx: &mut Effects) {
        let n = used.saturating_add(1);
        if n > self.epoch_number() {
            self.emit(Event::EpochRaised { n }, fx);
        }
    }

    /// Asks datacenters for jobs that they have and do not report: their final status may be lost. A bite of it, and the
    /// rest in the next step.
    pub(super) fn ask(&mut self, fx: &mut Effects) {
        let mut bite = self.bite;
        let asked: Vec<(Name, StreamId, Option<JobId>)> = self
            .datacenters
            .iter()
            .filter_map(|(name, known)| Some((name.clone(), known.stream?, known.asking?)))
            .collect();
        for (name, stream, after) in asked {
            if bite.is_over() {
                return;
            }
            let from = after.map_or(core::ops::Bound::Unbounded, core::ops::Bound::Excluded);
            let mut jobs = Vec::new();
            let mut last = None;
            for (id, tracks) in self.tracks.jobs().range((from, core::ops::Bound::Unbounded)) {
                if bite.is_over() {
                    break;
                }
                bite.spend(1);
                last = Some(*id);
                let Some((index, target)) = self.state.job(*id).and_then(|job| job.target(&name)) else { continue };
                let heard = tracks.get(index).and_then(|track| track.reported_at);
                let is_quiet = heard.is_none_or(|at| self.awake.since(at) > self.rules.gate.heard_within());
                if target.confirmed && target.end.is_none() && is_quiet {
                    jobs.push(*id);
                }
            }
            if let Some(known) = self.datacenters.get_mut(&name) {
                known.asking = last.map(Some);
            }
            if !jobs.is_empty() {
                self.send(stream, ToDatacenter::Ask { jobs }, fx);
            }
        }
    }
}
