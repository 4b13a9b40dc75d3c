//! Schedules: which of them is due, and what starts.
//!
//! **Who decides.** The machine that holds the seat, and only while timers may fire, or before a
//! [change](super::schedule_changes) of the plan: a
//! leader that cannot confirm its seat starts nothing, and its successor finds in the log how far it came. The policies are applied by
//! [`crate::schedule`]; here their answers become events. A run and the record of its instant are one event.
//!
//! **On which clock.** The wall clock that comes with every step, as for `run_at`; log time only stamps the events. The
//! horizon of a schedule never goes back, so that no step of a clock and no takeover by a node whose clock is behind
//! makes an instant due twice. It moves by due instants, never by the clock, so that none is left out either: a node
//! whose clock is behind waits until its own clock has reached the next one.
//!
//! **What is computed outside.** Zones and calendars are not known here. For each schedule the machine asks for the
//! instants behind the last that it knows ([`Effect::FindDue`]), up to now and a few more, and keeps them in its
//! *agenda*, which is soft: a takeover begins with empty agendas at the horizons that the log knows. Two nodes with
//! different time zone databases may find different instants; whoever holds the seat is right, and the horizon keeps
//! the order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::bite::Bite;
use crate::effect::{Effect, Effects, ManagerNotice};
use crate::event::{Event, JobSubmitted, ScheduledRun};
use crate::ids::{JobId, Name, Seq};
use crate::input::DueInstants;
use crate::job::JobSpec;
use crate::job::fingerprint::fingerprint;
use crate::job::spec::Keys;
use crate::limits::Limit;
use crate::refusal::Refusal;
use crate::schedule::{InstantDecision, PassedInstants, RecordReason, ScheduleSituation, decide, jitter};
use crate::state::{FAILURES_TOLERATED, Schedule, SchedulePlan, ScheduleTrouble, State};
use crate::time::Wall;

use super::Manager;

/// The number of known instants ahead below which more are asked for.
const KNOWN_AHEAD: usize = 2;
/// Looking at so many instants takes about as long as one event.
const INSTANTS_PER_UNIT: usize = 64;

/// The time at which an instant may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunStart {
    /// Late by the schedule's jitter.
    AfterJitter,
    /// At the instant itself.
    AtOnce,
}

impl RunStart {
    fn of(self, name: &Name, due: Wall, plan: &SchedulePlan) -> Wall {
        match self {
            Self::AfterJitter => due + jitter(name.as_str(), due, plan.jitter),
            Self::AtOnce => due,
        }
    }
}

/// The soft side of all schedules.
#[derive(Debug, Default)]
pub(crate) struct Agendas {
    of: BTreeMap<Name, Agenda>,
    /// The instants at which schedules are looked at next.
    due: BTreeSet<(Wall, Name)>,
    /// Schedules to be looked at as soon as timers may fire.
    to_check: BTreeSet<Name>,
}

/// The due instants of one schedule that are known, all behind its horizon.
#[derive(Debug)]
struct Agenda {
    revision: Seq,
    instants: VecDeque<Wall>,
    /// All up to here are known.
    known_to: Wall,
    is_asked: bool,
    /// Set if there are no instants behind those that are known.
    is_end: bool,
    /// Since when it is known that the timing cannot be searched.
    unsearchable_since: Option<Wall>,
    /// The trouble that was said last.
    trouble: Option<ScheduleTrouble>,
    armed_at: Option<Wall>,
}

impl Agendas {
    pub(super) fn look_at(&mut self, schedule: &Name) {
        self.to_check.insert(schedule.clone());
    }

    /// The next instant to look at a schedule, by the wall clock; zero is at once.
    pub(super) fn next(&self) -> Option<Wall> {
        if self.to_check.is_empty() { self.due.first().map(|(at, _)| *at) } else { Some(Wall::ZERO) }
    }

    /// Looks at the schedule again for a caller who waits for all that has come, unless more must be known first.
    pub(super) fn check_again(&mut self, schedule: &Name) {
        if self.of.get(schedule).is_some_and(|agenda| !agenda.is_asked) {
            self.look_at(schedule);
        }
    }

    fn pop_due(&mut self, now: Wall) -> Option<Name> {
        if let Some(name) = self.to_check.pop_first() {
            return Some(name);
        }
        self.due.first().filter(|(at, _)| *at <= now).map(|(_, name)| name.clone())
    }

    fn arm(&mut self, name: &Name, at: Option<Wall>) {
        let Some(agenda) = self.of.get_mut(name) else { return };
        if agenda.armed_at == at {
            return;
        }
        if let Some(before) = core::mem::replace(&mut agenda.armed_at, at) {
            self.due.remove(&(before, name.clone()));
        }
        if let Some(at) = at {
            self.due.insert((at, name.clone()));
        }
    }

    fn forget(&mut self, name: &Name) {
        self.arm(name, None);
        self.of.remove(name);
    }

    /// A run has ended: an instant may have waited for that. The schedule goes to `failing` if it has failed once too
    /// often by it.
    pub(super) fn follow_run(&mut self, state: &State, job: JobId, failing: &mut Vec<Name>) {
        let Some(name) = state.schedule_of(job) else { return };
        let Some(schedule) = state.schedule(name) else { return };
        if schedule.fails_again_and_again() && schedule.failures == FAILURES_TOLERATED {
            failing.push(name.clone());
        }
        self.look_at(name);
    }
}

impl Manager {
    /// Instants that were asked for. They change nothing that others could see.
    pub(super) fn handle_due(&mut self, found: DueInstants) {
        let now = self.log_now();
        let Some(agenda) = self.agendas.of.get_mut(&found.schedule) else { return };
        if agenda.revision != found.revision || agenda.known_to != found.after || !agenda.is_asked {
            return;
        }
        agenda.is_asked = false;
        // Whoever finds none, and says that there are more, would be asked for ever.
        agenda.is_end = found.is_end || found.instants.is_empty();
        agenda.unsearchable_since = found.is_unsearchable.then_some(now);
        agenda.known_to = found.instants.last().copied().unwrap_or(found.after);
        agenda.instants.extend(found.instants);
        self.agendas.look_at(&found.schedule);
    }

    /// Looks at the schedules that have something due, as many as a step does.
    pub(super) fn check_schedules(&mut self, fx: &mut Effects) {
        let mut bite = self.bite;
        while !bite.is_over()
            && let Some(name) = self.agendas.pop_due(self.now.wall)
        {
            bite.spend(1);
            self.check_schedule(&name, RunStart::AfterJitter, &mut bite, fx);
            self.make_changes(&name, &mut bite, fx);
        }
    }

    pub(super) fn check_schedule(&mut self, name: &Name, start: RunStart, bite: &mut Bite, fx: &mut Effects) {
        let Some(schedule) = self.state.schedule(name) else { return self.agendas.forget(name) };
        let (revision, known_to) = (schedule.revision, schedule.horizon);
        if self.agendas.of.get(name).is_none_or(|agenda| agenda.revision != revision) {
            let trouble = self.agendas.of.get(name).and_then(|agenda| agenda.trouble);
            self.agendas.forget(name);
            let agenda = Agenda {
                revision,
                instants: VecDeque::new(),
                known_to,
                is_asked: false,
                is_end: false,
                unsearchable_since: None,
                trouble,
                armed_at: None,
            };
            self.agendas.of.insert(name.clone(), agenda);
        }
        self.start_waiting(name, bite, fx);
        self.decide_due(name, start, bite, fx);
        self.ask_for_instants(name, fx);
        self.report_trouble(name, fx);
        self.arm_schedule(name);
    }

    /// Trouble of a schedule at this log time, and since when. One that is never due because of its timing is in trouble
    /// whether or not it is critical.
    pub fn schedule_trouble(&self, name: &Name, now: Wall) -> Option<(ScheduleTrouble, Wall)> {
        let schedule = self.state.schedule(name)?;
        let agenda = self.agendas.of.get(name).filter(|agenda| agenda.revision == schedule.revision);
        let unsearchable_since = agenda.and_then(|agenda| agenda.unsearchable_since).filter(|_| !schedule.paused);
        schedule.trouble(now).or(unsearchable_since.map(|since| (ScheduleTrouble::TimingUnknown, since)))
    }

    /// Says when trouble begins and when it is over. That runs fail is said when the last of them does.
    fn report_trouble(&mut self, name: &Name, fx: &mut Effects) {
        let trouble = self.schedule_trouble(name, self.log_now()).map(|(why, _)| why);
        let Some(agenda) = self.agendas.of.get_mut(name) else { return };
        if core::mem::replace(&mut agenda.trouble, trouble) == trouble {
            return;
        }
        let (schedule, failures) = (name.clone(), self.state.schedule(name).map_or(0, |known| known.failures));
        match trouble {
            Some(ScheduleTrouble::RunsFail) => {}
            Some(why) => self.report(ManagerNotice::ScheduleFailing { schedule, why, failures }, fx),
            None => self.report(ManagerNotice::ScheduleRecovered { schedule }, fx),
        }
    }

    /// The instant at which trouble begins if nothing happens before, by the wall clock.
    fn trouble_at(&self, schedule: &Schedule) -> Option<Wall> {
        let (stale_at, now) = (schedule.stale_at()?, self.log_now());
        (stale_at > now).then(|| self.now.wall + stale_at.since(now))
    }

    /// Whether every instant that has come was decided: none is left, and none is still asked for.
    pub(super) fn has_decided_all(&self, name: &Name, start: RunStart) -> bool {
        let Some(schedule) = self.state.schedule(name) else { return true };
        let Some(agenda) = self.agendas.of.get(name) else { return false };
        match agenda.instants.front() {
            Some(due) => start.of(name, *due, &schedule.plan) > self.now.wall,
            None => agenda.is_end,
        }
    }

    /// Instants that have waited for a run to end.
    fn start_waiting(&mut self, name: &Name, bite: &mut Bite, fx: &mut Effects) {
        while let Some(schedule) = self.state.schedule(name)
            && let Some(due) = schedule.waiting.front().copied()
            && schedule.open.is_empty()
            && !schedule.paused
        {
            self.fire(name, due, RecordReason::Queued, bite, fx);
        }
    }

    /// Instants that have come.
    fn decide_due(&mut self, name: &Name, start: RunStart, bite: &mut Bite, fx: &mut Effects) {
        let Some(schedule) = self.state.schedule(name) else { return };
        let agenda = &self.agendas.of[name];
        let (plan, now) = (&schedule.plan, self.now.wall);
        let starts = |due: &Wall| start.of(name, *due, plan) <= now;
        let due: Vec<Wall> = agenda.instants.iter().copied().take_while(starts).collect();
        if due.is_empty() {
            return;
        }
        bite.spend((due.len() / INSTANTS_PER_UNIT) as u32);
        let decisions = decide(&ScheduleSituation {
            now,
            due: &due,
            is_all: due.len() < agenda.instants.len() || agenda.is_end,
            paused: schedule.paused,
            overlap: plan.overlap,
            missed: plan.missed,
            jitter: plan.jitter,
            open: schedule.open.len(),
            waiting: schedule.waiting.len(),
            room: bite.left() as usize,
        });
        for decision in decisions {
            bite.spend(1);
            match decision {
                InstantDecision::Fire { due, reason } => self.fire(name, due, reason, bite, fx),
                InstantDecision::Wait { due } => self.emit(Event::InstantWaits { schedule: name.clone(), due }, fx),
                InstantDecision::Pass(passed) => self.pass_instants(name, passed, fx),
            }
        }
        let horizon = self.state.schedule(name).map_or(Wall::ZERO, |schedule| schedule.horizon);
        if let Some(agenda) = self.agendas.of.get_mut(name) {
            let decided = agenda.instants.partition_point(|due| *due <= horizon);
            agenda.instants.drain(..decided);
        }
    }

    fn pass_instants(&mut self, name: &Name, passed: PassedInstants, fx: &mut Effects) {
        let PassedInstants { reason, first, last, count } = passed;
        self.emit(Event::InstantsPassed { schedule: name.clone(), reason, first, last, count }, fx);
    }

    /// Starts the run of an instant. If the job is not accepted, that is what became of the instant.
    fn fire(&mut self, name: &Name, due: Wall, reason: RecordReason, bite: &mut Bite, fx: &mut Effects) {
        bite.spend(4);
        let run = ScheduledRun { schedule: name.clone(), due, reason };
        if let Err(refusal) = self.start_run(run, None, fx) {
            self.refusals.note(&refusal);
            let reason = RecordReason::Refused(refusal.kind());
            self.pass_instants(name, PassedInstants { reason, first: due, last: due, count: 1 }, fx);
        }
    }

    pub(super) fn start_run(
        &mut self,
        run: ScheduledRun,
        key: Option<Name>,
        fx: &mut Effects,
    ) -> Result<JobId, Refusal> {
        let plan = self.state.schedule(&run.schedule).ok_or(Refusal::UnknownSchedule)?.plan.clone();
        let mut spec = plan.job.clone();
        add_headers(&mut spec, &run);
        self.dispatch.share(&mut spec);
        self.within(Limit::Jobs, self.state.job_count() + 1)?;
        self.check_unique(&spec, None)?;
        self.dispatch.room_for(&self.rules.limits, core::iter::once(&spec)).map_err(Refusal::Limited)?;
        if key.is_some() {
            let unique = spec.unique_key().cloned();
            spec.keys = Some(Box::new(Keys { unique, idempotency: key }));
        }
        let random = (u128::from(self.draw()) << u64::BITS) | u128::from(self.draw());
        let id = JobId::v7(self.log_now(), random);
        let fingerprint = spec.idempotency_key().is_some().then(|| fingerprint(&spec));
        let submitted = JobSubmitted {
            id,
            spec: Arc::new(spec),
            fingerprint,
            retry_of: None,
            taken_over: Arc::default(),
            scheduled: Some(Box::new(run)),
            gate: None,
        };
        self.emit(Event::JobSubmitted(submitted), fx);
        Ok(id)
    }

    fn ask_for_instants(&mut self, name: &Name, fx: &mut Effects) {
        let Some(schedule) = self.state.schedule(name) else { return };
        let Some(agenda) = self.agendas.of.get_mut(name) else { return };
        if agenda.is_asked || agenda.is_end || agenda.instants.len() >= KNOWN_AHEAD {
            return;
        }
        agenda.is_asked = true;
        let effect = Effect::FindDue {
            schedule: name.clone(),
            revision: agenda.revision,
            timing: schedule.plan.timing.clone(),
            after: agenda.known_to,
            until: self.now.wall,
        };
        self.push(effect, fx);
    }

    fn arm_schedule(&mut self, name: &Name) {
        let Some(schedule) = self.state.schedule(name) else { return };
        let Some(agenda) = self.agendas.of.get(name) else { return };
        let first = agenda.instants.front();
        let at = first.map(|due| RunStart::AfterJitter.of(name, *due, &schedule.plan));
        // Instants that have come and were left are looked at again: when more is known if that was asked for, else at
        // once.
        let is_left = at.is_some_and(|at| at <= self.now.wall);
        if is_left && !agenda.is_asked {
            self.agendas.look_at(name);
        }
        let start = at.filter(|_| !is_left);
        self.agendas.arm(name, start.into_iter().chain(self.trouble_at(schedule)).min());
    }

    pub(super) fn report_failing(&mut self, fx: &mut Effects) {
        while let Some(schedule) = self.follow_ups.newly_failing.pop() {
            let failures = self.state.schedule(&schedule).map_or(0, |schedule| schedule.failures);
            self.report(ManagerNotice::ScheduleFailing { schedule, why: ScheduleTrouble::RunsFail, failures }, fx);
        }
    }

    /// Looks at every schedule after a takeover, because agendas are empty.
    pub(super) fn resume_schedules(&mut self) {
        self.agendas.to_check.extend(self.state.schedules().keys().cloned());
    }
}

/// Adds the headers that the handler of a run reads: the schedule, and the instant that it runs for in milliseconds
/// since 1970.
fn add_headers(spec: &mut JobSpec, run: &ScheduledRun) {
    let name = |text| Name::new(text).expect("short, and without control characters");
    let of_run =
        [(name("onward-due-ms"), run.due.as_ms().to_string()), (name("onward-schedule"), run.schedule.to_string())];
    let extras = spec.extras.get_or_insert_default();
    let given = extras.headers.iter().filter(|(header, _)| of_run.iter().all(|(own, _)| own != header)).cloned();
    let mut headers: Vec<(Name, Box<str>)> = given.collect();
    headers.extend(of_run.into_iter().map(|(header, value)| (header, value.into())));
    extras.headers = headers.into();
}
