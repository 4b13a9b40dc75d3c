//! Views of the state. Reading changes nothing; what was read must not leave before [`Manager::newest`] is durable.

use core::time::Duration;

use crate::dispatch::{BlockReason, Demand};
use crate::health::{Action, DatacenterCounts, Judgement, Verdict};
use crate::ids::{Claim, Incarnation, JobId, Name, Seq, WorkerId};
use crate::job::{JobSpec, JobState, WorkflowSpec, WorkflowState};
use crate::refusal::RefusalCounts;
use crate::state::{AttemptKey, EndedAttempt, GateTie, JobImage, LedgerEntry, WorkflowImage};
use crate::time::Wall;
use crate::timeout::{ExtensionTotals, TimeoutReason, overall_deadline};

use super::fleet::{FleetWorker, WorkerKey, WorkerTransport};
use super::{Manager, SeatState};

#[derive(Clone, PartialEq, Debug)]
pub struct JobView {
    pub id: JobId,
    pub queue: Name,
    pub spec: JobSpec,
    pub state: JobState,
    pub created_at: Wall,
    pub started_at: Option<Wall>,
    pub ended_at: Option<Wall>,
    pub timed_out: Option<TimeoutReason>,
    /// The latest time at which the job is over, extensions included.
    pub deadline: Option<Wall>,
    pub extensions: Duration,
    pub retry_of: Option<JobId>,
    /// The tie to the gate that decides about the job, if one does.
    pub gate: Option<GateTie>,
    pub dead_letter: bool,
    pub workflows: Vec<WorkflowView>,
    pub ledger: Vec<LedgerEntry>,
    /// Older entries that are not kept.
    pub ledger_dropped: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct WorkflowView {
    pub name: Name,
    pub kind: Name,
    pub state: WorkflowState,
    /// Set if the workflow did not run in this job: its success, and with it `ended`, is that of the job that this one
    /// repeats.
    pub taken_over: bool,
    /// Attempts that count.
    pub counted: u32,
    pub due_at: Option<Wall>,
    /// The reason why the workflow is not running although it could.
    pub blocked: Option<&'static str>,
    /// The key whose limit blocks the workflow.
    pub waits_for_key: Option<KeyWait>,
    pub running: Option<AttemptView>,
    /// The oldest first.
    pub ended: Vec<EndedAttempt>,
}

/// The concurrency key that a ready workflow waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyWait {
    pub key: Name,
    /// The job whose workflow keeps the key until it ends, because it asked for order.
    pub kept_by: Option<JobId>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct AttemptView {
    pub claim: Claim,
    /// The number of the hand-out among those of its workflow.
    pub number: u32,
    pub worker: WorkerId,
    pub started_at: Wall,
    pub watermark: Option<(u64, Option<u64>)>,
    pub note: Option<Box<str>>,
    pub lease_remaining: Duration,
    /// The time until the attempt is ended for want of a forward step. Where its worker was not heard of since a
    /// takeover the stuck clock stands, and this is what its lease still has: if nothing is heard, it ends with that.
    pub stuck_in: Duration,
    pub since_step: Duration,
    pub quiet_remaining: Option<Duration>,
}

/// The state of a worker: judged like every node, unless it is away or evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerState {
    Judged,
    /// Holds nothing, asks for nothing, and is not expected to: judged by nobody, counted nowhere.
    Away(AwayReason),
    /// Taken out of routing. Counts as a worker that is not well.
    Evicted(EvictedReason),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AwayReason {
    Goodbye,
    NoCall,
    /// Nothing was heard of it since a takeover for as long as its leases lasted.
    NeverCame,
}

/// The reason why an evicted worker still waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EvictedReason {
    /// Attempts that were taken from the worker may still run.
    AttemptsUnconfirmed,
    /// The worker's time is not over yet, or it is not there to get work.
    Waiting,
}

#[derive(Clone, PartialEq, Debug)]
pub struct WorkerView {
    pub id: WorkerId,
    pub incarnation: Incarnation,
    pub state: WorkerState,
    /// The last judgement where the state is not `Judged`, or the one that it would be.
    pub judgement: Judgement,
    pub slots: u32,
    pub held: u32,
    pub free: u32,
    pub drained: bool,
    pub evicted: bool,
    pub probation: bool,
    pub connected: bool,
    /// Would be evicted, and is not, because too many would be.
    pub held_by_hold: bool,
}

impl WorkerState {
    /// Words in the place of a verdict, in the order in which they are listed.
    pub const CODES: [&'static str; 2] = ["away", "evicted"];

    fn verdict_code(self, verdict: Verdict) -> &'static str {
        match self {
            Self::Judged => verdict.code(),
            Self::Away(_) => Self::CODES[0],
            Self::Evicted(_) => Self::CODES[1],
        }
    }
}

impl WorkerView {
    /// The verdict on it, or what it is instead.
    pub fn verdict_code(&self) -> &'static str {
        self.state.verdict_code(self.judgement.verdict)
    }

    /// The action that is taken about the worker.
    pub fn action_code(&self) -> &'static str {
        match self.state {
            WorkerState::Judged => self.judgement.verdict.action().code(),
            WorkerState::Away(_) => "none",
            WorkerState::Evicted(_) => Action::Evict.code(),
        }
    }

    pub fn reason_code(&self) -> &'static str {
        match self.state {
            WorkerState::Judged => self.judgement.reason.code(),
            WorkerState::Away(AwayReason::Goodbye) => "goodbye",
            WorkerState::Away(AwayReason::NoCall) => "no_call",
            WorkerState::Away(AwayReason::NeverCame) => "never_came",
            WorkerState::Evicted(EvictedReason::AttemptsUnconfirmed) => "attempts_unconfirmed",
            WorkerState::Evicted(EvictedReason::Waiting) => "waiting",
        }
    }

    /// Counts it for its datacenter.
    pub fn count(&self, counts: &mut DatacenterCounts) {
        if matches!(self.state, WorkerState::Away(_)) {
            return;
        }
        let well = matches!(self.judgement.verdict, Verdict::Healthy | Verdict::Busy);
        counts.workers += 1;
        counts.workers_healthy_or_busy += u32::from(well && self.state == WorkerState::Judged);
        counts.free_slots += u64::from(self.free);
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct ManagerView {
    pub seat: SeatState,
    pub judgement: Judgement,
    pub jobs: usize,
    pub open_jobs: usize,
    pub dead_letters: usize,
    /// Workers, without those that are away.
    pub workers: usize,
    /// Attempts that somebody holds.
    pub leases: usize,
    pub refusals: RefusalCounts,
}

impl JobView {
    /// Everything that can be said without the machine: no clock of a running attempt, and not why something waits.
    pub fn of_image(image: &JobImage) -> Self {
        let extensions = image.more.as_ref().map_or(Duration::ZERO, |more| more.extensions);
        let extended = image.more.as_ref().map_or(ExtensionTotals::default(), |more| more.extended());
        let tie = image.more.as_ref().and_then(|more| more.gate.as_ref());
        let deadline = |started| {
            let deadline = overall_deadline(started, image.spec.timeout, extended, image.spec.max_extension);
            tie.map_or(deadline, |tie| tie.deadline(deadline))
        };
        let workflow = |(spec, workflow): (&WorkflowSpec, &WorkflowImage)| WorkflowView {
            name: spec.name.clone(),
            kind: spec.kind.clone(),
            state: workflow.state,
            taken_over: workflow.state == WorkflowState::Succeeded && workflow.handouts == 0,
            counted: workflow.counted,
            due_at: (workflow.state == WorkflowState::Delayed).then_some(workflow.due_at),
            blocked: None,
            waits_for_key: None,
            running: None,
            ended: workflow.past.as_ref().map_or(Vec::new(), |past| past.attempts.clone()),
        };
        Self {
            id: image.id,
            queue: image.spec.queue.clone(),
            spec: image.spec.clone(),
            state: image.state(),
            created_at: image.created_at,
            started_at: image.started_at,
            ended_at: image.ended_at,
            timed_out: image.timed_out,
            deadline: image.started_at.map(deadline),
            extensions,
            retry_of: image.more.as_ref().and_then(|more| more.retry_of),
            gate: tie.map(|tie| (**tie).clone()),
            dead_letter: image.died().is_some(),
            workflows: image.spec.workflows.iter().zip(&image.workflows).map(workflow).collect(),
            ledger: image.more.as_ref().map_or(Vec::new(), |more| more.ledger.entries.clone()),
            ledger_dropped: image.more.as_ref().map_or(0, |more| more.ledger.dropped),
        }
    }
}

impl Manager {
    /// The newest event that anything read now could have seen.
    pub fn newest(&self) -> Seq {
        self.state.seq()
    }

    /// The whole job as a record of its own: what goes to the archive.
    pub fn image(&self, id: JobId) -> Option<JobImage> {
        self.state.find(id).map(|key| self.state.image(key))
    }

    pub fn job(&self, id: JobId) -> Option<JobView> {
        let key = self.state.find(id)?;
        let mut view = JobView::of_image(&self.state.image(key));
        for (shown, workflow) in view.workflows.iter_mut().zip(self.state.job(key).workflows.as_slice()) {
            if shown.state == WorkflowState::Ready {
                let blocked = self.dispatch.blocked(*workflow);
                shown.blocked = blocked.map(|blocked| match blocked {
                    BlockReason::QueuePaused => "queue_paused",
                    BlockReason::Limit { .. } => "limit",
                    BlockReason::NoCapableWorker => "no_capable_worker",
                });
                if let Some(BlockReason::Limit { key, keeper, .. }) = blocked {
                    let kept_by = keeper.map(|keeper| self.state.job(self.state.workflow(keeper).job).id);
                    shown.waits_for_key = Some(KeyWait { key: key.clone(), kept_by });
                }
            }
            if shown.state.is_held() {
                shown.running = self.state.workflow(*workflow).attempt.and_then(|attempt| self.attempt_view(attempt));
            }
        }
        Some(view)
    }

    fn attempt_view(&self, key: AttemptKey) -> Option<AttemptView> {
        let live = self.fleet.get_live(key)?;
        let attempt = self.state.attempt(key);
        let lease_remaining = live.clock.lease_end().since(self.awake);
        let stuck_in = match live.clock.is_unheard() {
            true => lease_remaining,
            false => live.clock.stuck_at(live.stuck_after).since(self.awake),
        };
        Some(AttemptView {
            claim: self.state.claim_of(key),
            number: self.state.workflow(attempt.workflow).handouts,
            worker: attempt.worker.clone(),
            started_at: attempt.handed_at,
            watermark: live.clock.watermark(),
            note: live.note.clone(),
            lease_remaining,
            stuck_in,
            since_step: self.awake.since(live.clock.last_step()),
            quiet_remaining: live.clock.quiet_until().map(|until| until.since(self.awake)),
        })
    }

    pub fn worker(&self, id: &WorkerId) -> Option<WorkerView> {
        self.fleet.find(id).map(|key| self.worker_view(key))
    }

    pub fn workers(&self) -> impl Iterator<Item = WorkerView> + '_ {
        self.fleet.iter().map(|(key, _)| self.worker_view(key))
    }

    /// Workers from this place on, at most `max`; and the place to go on from, if there are more.
    pub fn workers_from(&self, place: usize, max: usize) -> (Vec<WorkerView>, Option<usize>) {
        let mut keys = self.fleet.iter().map(|(key, _)| key).skip(place);
        let page: Vec<_> = keys.by_ref().take(max).map(|key| self.worker_view(key)).collect();
        let more = keys.next().is_some();
        let next = more.then_some(place + page.len());
        (page, next)
    }

    /// The verdict on each worker, or what it is instead.
    pub fn verdict_codes(&self) -> impl Iterator<Item = &'static str> + '_ {
        let workers = self.fleet.iter();
        workers.map(|(key, worker)| self.worker_state(worker).verdict_code(self.judgement(key).verdict))
    }

    /// Every queue and kind in use, and how much of it waits for a worker.
    pub fn demand_by_kind(&self) -> impl Iterator<Item = Demand<'_>> {
        self.dispatch.demand()
    }

    /// The time for which the head of each queue and kind waits for a worker, those that wait for a concurrency key
    /// included.
    pub fn longest_waits(&self) -> impl Iterator<Item = (&Name, Duration)> {
        let now = self.log_now();
        self.dispatch.heads().map(move |(queue, head)| (queue, now.since(self.state.workflow(head).ready_at)))
    }

    fn worker_view(&self, key: WorkerKey) -> WorkerView {
        let worker = self.fleet.worker(key);
        let judgement = self.judgement(key);
        let failing = matches!(judgement.verdict, Verdict::Suspect | Verdict::Stuck);
        let free = self.free_slots(key);
        WorkerView {
            id: worker.id.clone(),
            incarnation: worker.incarnation.clone(),
            state: self.worker_state(worker),
            judgement,
            // One without a session offers what its open poll asks for.
            slots: if worker.is_session() { worker.slots } else { worker.held() + free },
            held: worker.held(),
            free,
            drained: worker.drained,
            evicted: worker.evicted,
            probation: worker.probation,
            connected: worker.session().is_some(),
            held_by_hold: failing && worker.is_session() && self.holding_eviction(),
        }
    }

    fn worker_state(&self, worker: &FleetWorker) -> WorkerState {
        if worker.evicted {
            let open = worker.eviction.as_ref().is_some_and(|eviction| {
                eviction.taken_until > self.awake || eviction.unconfirmed.iter().any(|open| open.until > self.awake)
            });
            let reason = if open { EvictedReason::AttemptsUnconfirmed } else { EvictedReason::Waiting };
            return WorkerState::Evicted(reason);
        }
        match &worker.link {
            _ if !worker.is_absent(&self.rules.liveness, self.awake) => WorkerState::Judged,
            WorkerTransport::Http { liveness, .. } if liveness.has_left() => WorkerState::Away(AwayReason::Goodbye),
            WorkerTransport::Expected => WorkerState::Away(AwayReason::NeverCame),
            _ => WorkerState::Away(AwayReason::NoCall),
        }
    }

    pub fn view(&self) -> ManagerView {
        ManagerView {
            seat: self.seat_state(),
            judgement: self.own_judgement(),
            jobs: self.state.job_count(),
            open_jobs: self.state.open_jobs(),
            dead_letters: self.state.dead_letter_count(),
            workers: self.fleet.present(),
            leases: self.state.attempt_count(),
            refusals: self.refusals.clone(),
        }
    }
}
