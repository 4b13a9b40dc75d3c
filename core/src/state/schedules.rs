//! Schedules as the log knows them, and applying what was decided about them.
//!
//! A run is started by one event, [`JobSubmitted`](crate::event::JobSubmitted) with its
//! [`ScheduledRun`]: the job and the record of its instant are written together or not at all.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::carried::CarriedFields;
use crate::event::{ScheduleSet, ScheduledRun};
use crate::ids::{JobId, Name, Seq};
use crate::job::{JobSpec, JobState};
use crate::payload::Digest;
use crate::schedule::{
    LATE_AFTER, MissedPolicy, Overlap, PassedInstants, Record, RecordKind, RecordReason, Records, Timing,
};
use crate::time::Wall;

use super::{JobKey, State};

/// The plan of a schedule: the job, and when it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct SchedulePlan {
    pub timing: Timing,
    /// The job that every run is a copy of.
    pub job: JobSpec,
    pub overlap: Overlap,
    pub missed: MissedPolicy,
    pub jitter: Duration,
    /// Set if repeated failure is trouble of the node that people must see.
    pub critical: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    pub plan: Arc<SchedulePlan>,
    pub paused: bool,
    pub created_at: Wall,
    /// The event that gave it its timing: instants that were computed for an older timing are of no use.
    pub revision: Seq,
    /// Every due instant up to here has its record, or waits.
    pub horizon: Wall,
    /// Due instants that wait for their turn, oldest first.
    pub waiting: VecDeque<Wall>,
    /// Runs that have not ended, oldest first.
    pub open: Vec<JobId>,
    pub records: Records,
    /// Counts of instants by their fate.
    pub counts: RecordCounts,
    /// Runs that failed or timed out since the last one that succeeded.
    pub failures: u32,
    /// The end of the first of these.
    pub failing_since: Option<Wall>,
    pub carried: CarriedFields,
}

/// Numbers of due instants by their fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecordCounts {
    pub fired: u64,
    pub skipped: u64,
    pub missed: u64,
}

impl RecordCounts {
    fn add(&mut self, kind: RecordKind, count: u64) {
        match kind {
            RecordKind::Fired => self.fired += count,
            RecordKind::Skipped => self.skipped += count,
            RecordKind::Missed => self.missed += count,
        }
    }
}

/// The number of failures in a row that make a critical schedule a failing one.
pub const FAILURES_TOLERATED: u32 = 3;

/// The longest that a run is waited for, unless the period is longer: a shorter timeout of its job comes first.
const USUAL_RUN: Duration = Duration::from_secs(3_600);
/// The period of a schedule by a calendar of which too little is known.
const USUAL_PERIOD: Duration = Duration::from_secs(86_400);

/// Why somebody has to look at a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScheduleTrouble {
    /// Too many runs in a row have failed.
    RunsFail,
    /// The schedule was due, and has not succeeded since, for longer than one success lasts.
    NotFresh,
    /// As [`Self::NotFresh`], and it never succeeded at all.
    NeverSucceeded,
    /// The timing cannot be searched where it has to be, so that the schedule is never due.
    TimingUnknown,
}

impl ScheduleTrouble {
    pub const fn code(self) -> &'static str {
        match self {
            Self::RunsFail => "runs_fail",
            Self::NotFresh => "not_fresh",
            Self::NeverSucceeded => "never_succeeded",
            Self::TimingUnknown => "timing_unknown",
        }
    }
}

impl Schedule {
    /// Whether the schedule is critical, and has failed so often in a row that somebody has to look.
    pub fn fails_again_and_again(&self) -> bool {
        self.plan.critical && self.failures >= FAILURES_TOLERATED
    }

    /// Trouble of a critical schedule at this log time, and since when. A run that waits for a worker, or does not
    /// end, fails nothing: that it does not succeed is seen all the same.
    pub fn trouble(&self, now: Wall) -> Option<(ScheduleTrouble, Wall)> {
        if self.fails_again_and_again() {
            return Some((ScheduleTrouble::RunsFail, self.failing_since.unwrap_or(now)));
        }
        let stale_at = self.stale_at()?;
        let succeeded = |record: &Record| record.outcome == Some(JobState::Succeeded);
        let never = self.records.dropped == 0 && !self.records.list.iter().any(succeeded);
        let why = if never { ScheduleTrouble::NeverSucceeded } else { ScheduleTrouble::NotFresh };
        (now >= stale_at).then_some((why, stale_at))
    }

    /// The time from which a critical schedule is in trouble, unless a run succeeds before.
    pub(crate) fn stale_at(&self) -> Option<Wall> {
        if !self.plan.critical || self.paused {
            return None;
        }
        Some(self.due_since_success()? + self.plan.jitter + self.longest_run() + LATE_AFTER)
    }

    /// The time at which it was first to run after its last success, as far as its records are kept. Where a later instant was taken
    /// instead, that one counts, and where an earlier run had not ended, that run.
    fn due_since_success(&self) -> Option<Wall> {
        let since = self.records.list.iter().rev().take_while(|record| record.outcome != Some(JobState::Succeeded));
        let due = since.filter_map(|record| match record.reason {
            RecordReason::Paused | RecordReason::Superseded | RecordReason::RunNow => None,
            RecordReason::StillRunning | RecordReason::QueueFull | RecordReason::TooManyOpen => None,
            _ if record.kind() == RecordKind::Fired => Some(record.at),
            _ => Some(record.due),
        });
        due.last()
    }

    /// The time that a run may take: its timeout, or as long as the period if that is shorter, but an hour of it in any case.
    fn longest_run(&self) -> Duration {
        self.plan.job.timeout.min(self.period().max(USUAL_RUN))
    }

    /// The longest time from one due instant to the next, of those that have records.
    fn period(&self) -> Duration {
        if let Timing::Every(interval) = self.plan.timing {
            return interval;
        }
        let dues = self.records.list.iter().filter(|record| record.reason != RecordReason::RunNow);
        let gaps = dues.clone().zip(dues.skip(1)).map(|(one, next)| next.due.since(one.last));
        gaps.max().unwrap_or(USUAL_PERIOD)
    }

    /// The record of the newest due instant.
    pub fn last(&self) -> Option<&Record> {
        self.records.list.back()
    }

    fn add_run(&mut self, at: Wall, run: &ScheduledRun, job: JobId) {
        let &ScheduledRun { due, reason, .. } = run;
        self.records.push(Record::fired(due, reason, at, job));
        self.counts.add(RecordKind::Fired, 1);
        self.open.push(job);
        if reason != RecordReason::RunNow {
            self.settle(due);
        }
    }

    /// Settles this instant and all before it.
    fn settle(&mut self, due: Wall) {
        self.waiting.retain(|waiting| *waiting != due);
        self.horizon = self.horizon.max(due);
    }

    fn end_run(&mut self, at: Wall, job: JobId, outcome: JobState) {
        let Some(place) = self.open.iter().position(|open| *open == job) else { return };
        self.open.remove(place);
        self.records.end(job, outcome);
        match outcome {
            JobState::Succeeded => (self.failures, self.failing_since) = (0, None),
            JobState::Failed | JobState::TimedOut => {
                self.failures = self.failures.saturating_add(1);
                self.failing_since.get_or_insert(at);
            }
            _ => {}
        }
    }
}

impl State {
    pub fn schedule(&self, name: &Name) -> Option<&Schedule> {
        self.schedules.get(name)
    }

    /// All of them, by name.
    pub fn schedules(&self) -> &BTreeMap<Name, Schedule> {
        &self.schedules
    }

    pub(super) fn set_schedule(&mut self, at: Wall, set: &ScheduleSet, unreferenced: &mut Vec<Digest>) {
        let mut plan = (*set.plan).clone();
        plan.job.workflows.iter_mut().for_each(|workflow| self.stored.hold(&mut workflow.payload));
        let plan = Arc::new(plan);
        let revision = self.seq;
        match self.schedules.get_mut(&set.schedule) {
            Some(known) => {
                if known.plan.timing != plan.timing {
                    known.revision = revision;
                }
                known.paused = set.paused;
                known.horizon = known.horizon.max(set.horizon);
                let before = core::mem::replace(&mut known.plan, plan);
                self.release_plan(&before, unreferenced);
            }
            None => {
                let schedule = Schedule {
                    plan,
                    paused: set.paused,
                    created_at: at,
                    revision,
                    horizon: set.horizon,
                    waiting: VecDeque::new(),
                    open: Vec::new(),
                    records: Records::default(),
                    counts: RecordCounts::default(),
                    failures: 0,
                    failing_since: None,
                    carried: CarriedFields::default(),
                };
                self.schedules.insert(set.schedule.clone(), schedule);
            }
        }
    }

    pub(super) fn pause_schedule(&mut self, name: &Name, paused: bool) {
        self.schedules.get_mut(name).expect("an event names a schedule that is there").paused = paused;
    }

    pub(super) fn remove_schedule(&mut self, name: &Name, unreferenced: &mut Vec<Digest>) {
        let gone = self.schedules.remove(name).expect("an event names a schedule that is there");
        self.release_plan(&gone.plan, unreferenced);
    }

    pub(super) fn pass_instants(&mut self, at: Wall, name: &Name, passed: &PassedInstants) {
        let schedule = self.schedules.get_mut(name).expect("an event names a schedule that is there");
        let waiting = &schedule.waiting;
        let is_any_between = |after: Wall, before: Wall| waiting.iter().any(|due| after < *due && *due < before);
        schedule.records.pass(at, passed, is_any_between);
        schedule.counts.add(passed.reason.kind(), passed.count);
        schedule.settle(passed.last);
    }

    pub(super) fn await_turn(&mut self, name: &Name, due: Wall) {
        let schedule = self.schedules.get_mut(name).expect("an event names a schedule that is there");
        schedule.waiting.push_back(due);
        schedule.horizon = schedule.horizon.max(due);
    }

    pub(super) fn start_run(&mut self, at: Wall, job: JobKey, id: JobId, run: &ScheduledRun) {
        let schedule = self.schedules.get_mut(&run.schedule).expect("a run is that of a schedule that is there");
        schedule.add_run(at, run, id);
        self.more(job).scheduled = Some(Box::new(run.clone()));
    }

    /// A job has ended. If a schedule started it, and is still there, that learns how.
    pub(super) fn end_run(&mut self, at: Wall, key: JobKey) {
        let job = &self.jobs[key];
        let Some(run) = job.more.as_ref().and_then(|more| more.scheduled.as_ref()) else { return };
        let outcome = super::job_state(self.workflows_of(job).map(|(_, workflow)| workflow.state));
        if let Some(schedule) = self.schedules.get_mut(&run.schedule) {
            schedule.end_run(at, job.id, outcome);
        }
    }

    /// The schedule that started this job.
    pub(crate) fn schedule_of(&self, job: JobId) -> Option<&Name> {
        let job = &self.jobs[self.find(job)?];
        Some(&job.more.as_ref()?.scheduled.as_ref()?.schedule)
    }

    /// The first schedule behind this name.
    pub(crate) fn schedule_after(&self, name: Option<&Name>) -> Option<(&Name, &Schedule)> {
        use core::ops::Bound::{Excluded, Unbounded};
        self.schedules.range::<Name, _>((name.map_or(Unbounded, Excluded), Unbounded)).next()
    }

    pub(crate) fn restore_schedule(&mut self, name: Name, mut schedule: Schedule) {
        let plan = Arc::make_mut(&mut schedule.plan);
        plan.job.workflows.iter_mut().for_each(|workflow| self.stored.hold(&mut workflow.payload));
        self.schedules.insert(name, schedule);
    }

    fn release_plan(&mut self, plan: &SchedulePlan, unreferenced: &mut Vec<Digest>) {
        for stored in plan.job.workflows.iter().filter_map(|workflow| workflow.payload.as_stored()) {
            if self.stored.release(&stored.digest) {
                unreferenced.push(stored.digest);
            }
        }
    }
}
