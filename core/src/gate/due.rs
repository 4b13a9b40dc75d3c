//! The work of a gate when timers fire, and its next wake-up.

use crate::ids::Name;
use crate::limits::Limit;
use crate::manager::SeatState;
use crate::time::{Mono, Wall};
use crate::timeout::fires_at;

use super::Gate;
use super::effect::Effects;
use super::event::Event;
use super::input::Input;
use super::state::Job;

/// The reason why the gate wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// The seat wants to be confirmed.
    Seat,
    /// More was kept than one step takes, or a call has waited for the seat as long as it may.
    Kept,
    /// A job's overall deadline.
    Overall,
    /// A datacenter becomes silent.
    Silence,
    /// Something is owed to a datacenter, or a datacenter is to be asked.
    Resend,
    /// Jobs are to be judged or placed.
    Judge,
    /// An ended job may be forgotten.
    Forget,
}

/// The number of reporting intervals between two rounds of asking for jobs that are not reported.
const ASK_EVERY: u32 = 6;

impl Gate {
    /// The next instant to step if nothing happens, and the reason. Never in the past.
    pub fn next_wakeup(&self) -> Option<(Mono, Why)> {
        if self.replaying || self.seat_state() == SeatState::Lost {
            return None;
        }
        let mut first = (self.seat.pulse(self.rules.seat_ttl), Why::Seat);
        let mut consider = |at: Mono, why| {
            if at < first.0 {
                first = (at, why);
            }
        };
        if self.seat_state() == SeatState::Unconfirmed {
            let calls = self.kept.iter().filter(|(_, input)| matches!(input, Input::Call { .. }));
            if let Some(at) = calls.map(|(came_at, _)| *came_at).min() {
                consider(at + self.rules.seat_ttl, Why::Kept);
            }
        } else if !self.kept.is_empty() {
            consider(self.now.mono, Why::Kept);
        } else if self.may_decide() && !self.log_is_behind() {
            self.consider_timers(&mut consider);
        }
        Some((first.0.max(self.now.mono), first.1))
    }

    fn consider_timers(&self, consider: &mut impl FnMut(Mono, Why)) {
        let now = self.now.mono;
        let rule = &self.rules.gate;
        if !self.agenda.to_judge.is_empty() || self.has_room_for_waiting() {
            consider(now, Why::Judge);
        }
        consider(self.agenda.resend_at, Why::Resend);
        for (name, known) in self.datacenters.iter() {
            if known.resending.is_some() || known.asking.is_some() {
                consider(now, Why::Resend);
            }
            if known.stream.is_some() {
                consider(self.seat.mono_of(known.ask_at), Why::Resend);
            }
            if !known.was_silent {
                consider(self.seat.mono_of(self.datacenters.silent_at(name, rule)), Why::Silence);
            }
        }
        if let Some((at, _)) = self.agenda.first_deadline() {
            consider(self.seat.clock().mono_at(at), Why::Overall);
        }
        if let Some((at, _)) = self.state.first_ended() {
            let at = if self.has_too_many_ended() { now } else { self.seat.clock().mono_at(at) };
            consider(at, Why::Forget);
        }
    }

    pub(super) fn fire_due(&mut self, fx: &mut Effects) {
        if !self.may_decide() {
            return;
        }
        self.note_silence();
        let mut bite = self.bite;
        while let Some((at, id)) = self.agenda.first_deadline()
            && at <= self.log_now()
            && !bite.is_over()
        {
            bite.spend(1);
            self.judge(id, fx);
        }
        let mut bite = self.bite;
        while !bite.is_over()
            && let Some(id) = self.agenda.to_judge.pop_first()
        {
            bite.spend(1);
            self.judge(id, fx);
        }
        self.place_waiting(fx);
        if self.agenda.resend_at <= self.now.mono {
            self.agenda.resend_at = self.now.mono + self.rules.gate.progress_every;
            self.datacenters
                .iter_mut()
                .filter(|(_, known)| known.stream.is_some() && known.resending.is_none())
                .for_each(|(_, known)| known.resending = Some(None));
        }
        let (now, every) = (self.awake, self.rules.gate.progress_every * ASK_EVERY);
        for (_, known) in self.datacenters.iter_mut().filter(|(_, known)| known.stream.is_some()) {
            if known.ask_at <= now {
                known.ask_at = now + every;
                known.asking.get_or_insert(None);
            }
        }
        self.resend(fx);
        self.ask(fx);
        self.forget_ended(fx);
    }

    /// Datacenters that have become silent: what is stuck elsewhere is judged anew.
    fn note_silence(&mut self) {
        let (rule, now) = (self.rules.gate, self.awake);
        let silent: Vec<Name> = self
            .datacenters
            .iter()
            .filter(|(name, known)| !known.was_silent && self.datacenters.is_silent(name, &rule, now))
            .map(|(name, _)| name.clone())
            .collect();
        if silent.is_empty() {
            return;
        }
        for name in &silent {
            if let Some(known) = self.datacenters.get_mut(name) {
                known.was_silent = true;
            }
        }
        self.agenda.to_judge.extend(self.tracks.stuck());
    }

    /// The end of a job's overall time, as far as this leader may decide it.
    pub(super) fn overall_fires_at(&self, job: &Job) -> Wall {
        fires_at(job.deadline(), job.started_at, self.seat.taken_at(), self.rules.takeover_grace)
    }

    fn has_too_many_ended(&self) -> bool {
        self.rules.limits.check(Limit::FinishedJobs, self.state.ended_jobs()).is_err()
    }

    /// Ended jobs whose time is over, and the oldest of those that are too many.
    fn forget_ended(&mut self, fx: &mut Effects) {
        let (now, most) = (self.log_now(), self.bite.left() as usize);
        let excess = self.state.ended_jobs().saturating_sub(self.rules.limits.finished_jobs);
        let jobs: Vec<_> = self
            .state
            .ended_in_order()
            .take(most)
            .enumerate()
            .take_while(|(place, (until, _))| *until <= now || *place < excess)
            .map(|(_, (_, id))| id)
            .collect();
        if !jobs.is_empty() {
            self.emit(Event::JobsForgotten { jobs }, fx);
        }
    }
}
