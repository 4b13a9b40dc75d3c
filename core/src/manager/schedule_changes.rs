//! Changes of schedules, and runs that somebody asks for.
//!
//! **What has come by the old plan is decided by it**: afterwards nobody would know that it was due. After a takeover, a
//! freeze or a long stop it is not known at once what has come ([`Effect::FindDue`](crate::effect::Effect)), and many
//! instants are decided in bites; so a change *waits* until every instant that has come has its record, and only then is
//! it made and answered. Calls about one schedule are taken in the order in which they came.
//!
//! **How long.** As long as instants are asked for and decided, usually some milliseconds. Without a confirmed seat
//! nothing is decided: what waits is [kept](super::kept) like any other call, and refused after `seat_ttl`. As many wait
//! as there are callers, whom the shell bounds.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::bite::Bite;
use crate::effect::{AcceptedJob, Answer, Effects};
use crate::event::{Event, ScheduleSet, ScheduledRun};
use crate::ids::{Name, RequestId};
use crate::input::{Call, ScheduleDraft};
use crate::job::draft::{DraftProblem, Invalid, check};
use crate::limits::Limit;
use crate::payload::Digest;
use crate::refusal::Refusal;
use crate::schedule::{MAX_JITTER, RecordReason};
use crate::state::SchedulePlan;
use crate::time::Mono;

use super::Manager;
use super::schedules::RunStart;

/// Calls about schedules that could not be carried out yet, those about one schedule in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct WaitingChanges {
    of: BTreeMap<Name, VecDeque<WaitingChange>>,
}

#[derive(Debug)]
struct WaitingChange {
    came_at: Mono,
    request: RequestId,
    call: Call,
}

impl WaitingChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    fn pop_first(&mut self, schedule: &Name) -> Option<WaitingChange> {
        let waiting = self.of.get_mut(schedule)?;
        let first = waiting.pop_front();
        if waiting.is_empty() {
            self.of.remove(schedule);
        }
        first
    }
}

impl Manager {
    /// Takes a call about a schedule: at once, or as soon as what has come by its plan is decided.
    pub(super) fn handle_schedule_call(&mut self, request: RequestId, call: Call, fx: &mut Effects) {
        let schedule = schedule_of(&call).clone();
        let change = WaitingChange { came_at: self.now.mono, request, call };
        self.changes_of_schedules.of.entry(schedule.clone()).or_default().push_back(change);
        let mut bite = Bite::BESIDE_INPUT;
        self.make_changes(&schedule, &mut bite, fx);
    }

    /// Carries out what waits for a schedule, as far as that is possible by now.
    pub(super) fn make_changes(&mut self, schedule: &Name, bite: &mut Bite, fx: &mut Effects) {
        while let Some(change) = self.changes_of_schedules.pop_first(schedule) {
            match self.change_schedule(&change.call, bite, fx).transpose() {
                Some(answer) => self.reply(change.request, answer, fx),
                None => {
                    self.changes_of_schedules.of.entry(schedule.clone()).or_default().push_front(change);
                    return self.agendas.check_again(schedule);
                }
            }
        }
    }

    /// Keeps waiting changes for later while the seat is not confirmed: nothing is decided then, so nothing can be
    /// waited for here.
    pub(super) fn keep_waiting_changes(&mut self) {
        if self.changes_of_schedules.is_empty() || self.serving() {
            return;
        }
        let waiting = core::mem::take(&mut self.changes_of_schedules.of);
        let mut waiting: Vec<WaitingChange> = waiting.into_values().flatten().collect();
        // Those about one schedule stay in their order, and the oldest will stand first.
        waiting.sort_by_key(|change| change.came_at);
        for WaitingChange { came_at, request, call } in waiting.into_iter().rev() {
            self.kept.put_call_back(came_at, request, call);
        }
    }

    /// `None` if it has to wait.
    fn change_schedule(&mut self, call: &Call, bite: &mut Bite, fx: &mut Effects) -> Result<Option<Answer>, Refusal> {
        match call {
            Call::SetSchedule(draft) => self.set_schedule(draft, bite, fx),
            Call::PauseSchedule(schedule) => self.pause_schedule(schedule, true, bite, fx),
            Call::ResumeSchedule(schedule) => self.pause_schedule(schedule, false, bite, fx),
            Call::RemoveSchedule(schedule) => self.remove_schedule(schedule, fx).map(Some),
            Call::RunSchedule { schedule, request } => self.run_schedule(schedule, request.as_ref(), fx).map(Some),
            _ => unreachable!("it is about no schedule"),
        }
    }

    fn set_schedule(
        &mut self,
        draft: &ScheduleDraft,
        bite: &mut Bite,
        fx: &mut Effects,
    ) -> Result<Option<Answer>, Refusal> {
        let plan = self.check_plan(draft)?;
        let schedule = &draft.schedule;
        let Some(known) = self.state.schedule(schedule) else {
            self.within(Limit::Schedules, self.state.schedules().len() + 1)?;
            let paused = draft.paused.unwrap_or(false);
            self.put_schedule(ScheduleSet { schedule: schedule.clone(), plan, paused, horizon: self.now.wall }, fx);
            return Ok(Some(Answer::ScheduleSet { is_new: true }));
        };
        let paused = draft.paused.unwrap_or(known.paused);
        let is_new = false;
        if known.plan == plan && known.paused == paused {
            return Ok(Some(Answer::ScheduleSet { is_new }));
        }
        // An instant that is delayed by its jitter starts now if no plan knows it afterwards.
        let is_retimed = known.plan.timing != plan.timing;
        let start = if is_retimed { RunStart::AtOnce } else { RunStart::AfterJitter };
        if !self.decide_all(schedule, start, bite, fx) {
            return Ok(None);
        }
        let known = self.state.schedule(schedule).ok_or(Refusal::UnknownSchedule)?;
        let horizon = if is_retimed { known.horizon.max(self.now.wall) } else { known.horizon };
        self.put_schedule(ScheduleSet { schedule: schedule.clone(), plan, paused, horizon }, fx);
        Ok(Some(Answer::ScheduleSet { is_new }))
    }

    fn check_plan(&mut self, draft: &ScheduleDraft) -> Result<Arc<SchedulePlan>, Refusal> {
        let refuse = |field, problem| Err(Refusal::Invalid(Invalid { field, problem }));
        let ScheduleDraft { schedule: _, timing, job, overlap, missed, jitter, critical, paused: _ } = draft.clone();
        if job.idempotency_key.is_some() {
            return refuse("idempotency_key", DraftProblem::NotInSchedule);
        }
        if job.run_at.is_some() {
            return refuse("run_at", DraftProblem::NotInSchedule);
        }
        if jitter > MAX_JITTER {
            let (min, max) = (Duration::ZERO, MAX_JITTER);
            return refuse("jitter_s", DraftProblem::SpanOutOfRange { value: jitter, min, max });
        }
        let mut job = check(job, &self.rules.limits, &self.rules.job).map_err(Refusal::Invalid)?;
        self.dispatch.share(&mut job);
        Ok(Arc::new(SchedulePlan { timing, job, overlap, missed, jitter, critical }))
    }

    fn put_schedule(&mut self, set: ScheduleSet, fx: &mut Effects) {
        self.agendas.look_at(&set.schedule);
        self.emit(Event::ScheduleSet(Box::new(set)), fx);
    }

    fn remove_schedule(&mut self, schedule: &Name, fx: &mut Effects) -> Result<Answer, Refusal> {
        self.state.schedule(schedule).ok_or(Refusal::UnknownSchedule)?;
        self.agendas.look_at(schedule);
        self.emit(Event::ScheduleRemoved { schedule: schedule.clone() }, fx);
        Ok(Answer::Done)
    }

    fn pause_schedule(
        &mut self,
        schedule: &Name,
        paused: bool,
        bite: &mut Bite,
        fx: &mut Effects,
    ) -> Result<Option<Answer>, Refusal> {
        let known = self.state.schedule(schedule).ok_or(Refusal::UnknownSchedule)?;
        if known.paused == paused {
            return Ok(Some(Answer::Done));
        }
        if !self.decide_all(schedule, RunStart::AfterJitter, bite, fx) {
            return Ok(None);
        }
        self.agendas.look_at(schedule);
        let schedule = schedule.clone();
        self.emit(if paused { Event::SchedulePaused { schedule } } else { Event::ScheduleResumed { schedule } }, fx);
        Ok(Some(Answer::Done))
    }

    /// A run besides those that are due, whatever still runs and though the schedule may be paused: somebody wants it.
    fn run_schedule(&mut self, schedule: &Name, request: Option<&Name>, fx: &mut Effects) -> Result<Answer, Refusal> {
        let known = self.state.schedule(schedule).ok_or(Refusal::UnknownSchedule)?;
        let key = request.map(|request| run_key(schedule, request));
        if let Some(earlier) = key.as_ref().and_then(|key| self.state.idempotency(key)) {
            return Ok(Answer::Submitted(vec![AcceptedJob { id: earlier.job, duplicate: true }]));
        }
        self.within(Limit::ScheduleRuns, known.open.len() + 1)?;
        if key.is_some() {
            self.within(Limit::IdempotencyKeys, self.state.idempotency_keys() + 1)?;
        }
        let run = ScheduledRun { schedule: schedule.clone(), due: self.now.wall, reason: RecordReason::RunNow };
        let id = self.start_run(run, key, fx)?;
        Ok(Answer::Submitted(vec![AcceptedJob { id, duplicate: false }]))
    }

    /// Decides what has come, also where other timers may not fire yet. Says whether that is all of it.
    fn decide_all(&mut self, schedule: &Name, start: RunStart, bite: &mut Bite, fx: &mut Effects) -> bool {
        self.check_schedule(schedule, start, bite, fx);
        self.has_decided_all(schedule, start)
    }
}

fn schedule_of(call: &Call) -> &Name {
    match call {
        Call::SetSchedule(draft) => &draft.schedule,
        Call::RemoveSchedule(schedule)
        | Call::PauseSchedule(schedule)
        | Call::ResumeSchedule(schedule)
        | Call::RunSchedule { schedule, .. } => schedule,
        _ => unreachable!("it is about no schedule"),
    }
}

/// The key by which a request for a run at once is remembered.
fn run_key(schedule: &Name, request: &Name) -> Name {
    let both = Digest::of(format!("{schedule}\n{request}").as_bytes()).to_string();
    Name::new(format!("run of a schedule: {}", &both[..32])).expect("short, and without control characters")
}
