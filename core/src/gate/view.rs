//! Views of the state. Reading changes nothing; what was read must not leave before [`Gate::newest`] is durable.

use core::time::Duration;

use crate::fence::{GateEpoch, Term};
use crate::health::progress::flow;
use crate::health::verdict::{gate_ready, judge};
use crate::health::{DatacenterClass, DatacenterCounts, DatacenterReason, Judgement};
use crate::ids::{JobId, Name};
use crate::job::JobState;
use crate::manager::SeatState;
use crate::refusal::RefusalCounts;
use crate::time::Wall;

use super::Gate;
use super::event::TargetEnd;
use super::message::WorkflowCounts;
use super::state::{Decision, Job};

/// A job as a gate sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct JobView {
    pub job: Job,
    pub state: JobState,
    pub epoch: GateEpoch,
    /// The end of the job's overall time, extensions included.
    pub deadline: Wall,
    pub remaining: Duration,
    pub decided: Option<Decision>,
    /// The reason why the job is in no datacenter.
    pub waits: Option<WaitReason>,
    pub targets: Vec<TargetView>,
}

/// The reason why a job waits at the gate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaitReason {
    /// No datacenter may be routed to.
    NoUsableDatacenter,
}

impl WaitReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoUsableDatacenter => "no_usable_datacenter",
        }
    }
}

/// The state of a job in one datacenter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TargetState {
    /// The datacenter has not said yet that it has the job.
    Submitting,
    Running,
    Succeeded,
    TimedOut,
    Failed,
    Cancelled,
    /// The datacenter was not heard for `silent_after`. That ends nothing.
    Unreachable,
}

impl TargetState {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Submitting => "submitting",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unreachable => "unreachable",
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct TargetView {
    pub datacenter: Name,
    pub state: TargetState,
    /// Set where a decision or a submit was confirmed: the datacenter has said how the job ended there, or that it has
    /// the job.
    pub confirmed: bool,
    /// Why it is as it is: what the datacenter timed it out for, that it was told to stop and has not yet, why it refused
    /// it, why it is not sent.
    pub reason: Option<Box<str>>,
    /// Time since progress, as of the last report; below, the time since that report.
    pub since_progress: Option<Duration>,
    pub since_report: Option<Duration>,
    pub workflows: WorkflowCounts,
    pub attempts: u32,
    pub ended_at: Option<Wall>,
    pub end: Option<TargetEnd>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct DatacenterView {
    pub name: Name,
    pub class: DatacenterClass,
    pub reason: DatacenterReason,
    pub counts: DatacenterCounts,
    /// The term of the newest leader that was heard.
    pub term: Option<Term>,
    pub is_connected: bool,
    pub is_silent: bool,
    pub since_heard: Duration,
    /// Jobs about which it is owed something.
    pub owed: usize,
}

#[derive(Clone, PartialEq, Debug)]
pub struct GateView {
    pub seat: SeatState,
    pub judgement: Judgement,
    pub epoch: GateEpoch,
    pub jobs: usize,
    pub open_jobs: usize,
    pub refusals: RefusalCounts,
}

/// The measures by which a gate is judged from outside. Instants are told as durations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateHealth {
    /// Datacenters that are heard.
    pub datacenters: usize,
    /// Jobs that were forwarded within the progress window.
    pub done: u64,
    /// Jobs that could be forwarded at the moment, and are not.
    pub demand: u64,
    /// The time for which there has been demand without anything forwarded.
    pub unserved_for: Duration,
}

impl Gate {
    pub fn job(&self, id: JobId) -> Option<JobView> {
        let job = self.state.job(id)?;
        let waits = !job.has_ended() && job.targets.is_empty();
        Some(JobView {
            state: self.job_state(job),
            epoch: self.epoch_of(job),
            deadline: job.deadline(),
            remaining: job.deadline().since(self.log_now()),
            decided: job.decided,
            waits: waits.then_some(WaitReason::NoUsableDatacenter),
            targets: (0..job.targets.len()).map(|index| self.target_view(job, index)).collect(),
            job: job.clone(),
        })
    }

    /// The job's state; one that has not begun anywhere is as its datacenters say.
    fn job_state(&self, job: &Job) -> JobState {
        let state = job.state();
        if state != JobState::Running {
            return state;
        }
        let reported = (0..job.targets.len()).filter_map(|index| self.tracks.get(job.id, index)?.state);
        let mut queued = None;
        for state in reported {
            match state {
                JobState::Ready | JobState::Delayed | JobState::Waiting => queued = Some(state),
                _ => return JobState::Running,
            }
        }
        queued.unwrap_or(state)
    }

    fn target_view(&self, job: &Job, index: usize) -> TargetView {
        let target = &job.targets[index];
        let track = self.tracks.get(job.id, index).cloned().unwrap_or_default();
        let name = &target.datacenter;
        let is_silent = self.datacenters.is_silent(name, &self.rules.gate, self.awake);
        let state = match (&target.end, target.confirmed) {
            (Some(end), _) => match end.outcome.state() {
                JobState::Succeeded => TargetState::Succeeded,
                JobState::Failed => TargetState::Failed,
                JobState::TimedOut => TargetState::TimedOut,
                _ => TargetState::Cancelled,
            },
            (None, _) if is_silent => TargetState::Unreachable,
            (None, true) => TargetState::Running,
            (None, false) => TargetState::Submitting,
        };
        let reason = match (&target.end, track.timed_out) {
            (Some(end), _) => Some(end.cause.code().into()),
            (None, _) if track.state == Some(JobState::Cancelling) => Some("cancelling".into()),
            (None, Some(reason)) => Some(reason.code().into()),
            (None, None) if !target.confirmed => track.refused.or_else(|| {
                let (class, reason) = self.datacenters.class(name, &self.rules.gate, self.awake);
                (class == DatacenterClass::Unhealthy).then(|| reason.code().into())
            }),
            (None, None) => None,
        };
        TargetView {
            datacenter: name.clone(),
            state,
            confirmed: if job.decided.is_some() { target.end.is_some() } else { target.confirmed },
            reason,
            since_progress: track.since_progress,
            since_report: track.reported_at.map(|at| self.awake.since(at)),
            workflows: track.workflows,
            attempts: target.end.as_ref().map_or(track.attempts, |end| end.attempts),
            ended_at: target.ended_at,
            end: target.end.clone(),
        }
    }

    pub fn datacenters(&self) -> impl Iterator<Item = DatacenterView> + '_ {
        self.datacenters.iter().map(|(name, known)| {
            let (class, reason) = self.datacenters.class(name, &self.rules.gate, self.awake);
            DatacenterView {
                name: name.clone(),
                class,
                reason,
                counts: known.counts,
                term: self.state.datacenter(name).map(|record| record.term),
                is_connected: known.stream.is_some(),
                is_silent: self.datacenters.is_silent(name, &self.rules.gate, self.awake),
                since_heard: self.datacenters.since_heard(name, self.awake).unwrap_or_default(),
                owed: self.agenda.owed_to(name),
            }
        })
    }

    /// Submits that could be answered, and are not. Other orders are no demand: how long a handler takes to stop is not
    /// this gate's doing.
    pub(super) fn demand(&self) -> u64 {
        let usable =
            self.datacenters.iter().filter(|(name, _)| self.datacenters.is_usable(name, &self.rules.gate, self.awake));
        usable.map(|(name, _)| self.agenda.submits_to(name) as u64).sum()
    }

    /// The measures by which other gates judge this one.
    pub fn own_health(&self) -> GateHealth {
        let now = self.own_awake();
        let sample = self.flow.sample(now, self.demand());
        let unserved_since = if sample.demand > 0 { sample.last_done.max(sample.demand_since) } else { None };
        GateHealth {
            datacenters: self.datacenters.heard_count(&self.rules.gate, self.awake),
            done: sample.done,
            demand: sample.demand,
            unserved_for: unserved_since.map_or(Duration::ZERO, |since| now.since(since)),
        }
    }

    /// This gate as its peers judge it: its forwarded jobs against those it could forward.
    pub fn own_judgement(&self) -> Judgement {
        let now = self.own_awake();
        let progress = flow(&self.rules.progress, now, &self.flow.sample(now, self.demand()));
        let reachable = self.datacenters.heard_count(&self.rules.gate, self.awake);
        judge(Ok(()), gate_ready(reachable, self.load), &progress)
    }

    pub fn view(&self) -> GateView {
        GateView {
            seat: self.seat_state(),
            judgement: self.own_judgement(),
            epoch: GateEpoch { n: self.epoch_number(), gate: self.id },
            jobs: self.state.job_count(),
            open_jobs: self.state.open_jobs(),
            refusals: self.refusals.clone(),
        }
    }

    /// Log time at this moment: what the instants of jobs are measured by.
    pub fn log_time(&self) -> Wall {
        self.log_now()
    }
}
