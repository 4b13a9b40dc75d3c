//! What clients and operators may ask for besides submitting. All of it is safe to repeat.

use core::time::Duration;
use std::sync::Arc;

use crate::effect::{Answer, Effects, ManagerNotice};
use crate::event::Event;
use crate::fence::GateEpoch;
use crate::ids::{Claim, JobId, Name, WorkerId};
use crate::input::{Filter, ReplayFrom};
use crate::job::Ending;
use crate::job::draft::{DraftProblem, Invalid, MAX_SPAN};
use crate::late::{LateQuestion, LateReport};
use crate::limits::Limit;
use crate::message::CancelWhy;
use crate::refusal::Refusal;
use crate::state::{JobKey, WorkflowKey};

use super::Manager;
use super::fleet::WorkerKey;

impl Manager {
    pub(super) fn cancel(&mut self, job: JobId, epoch: Option<GateEpoch>, fx: &mut Effects) -> Result<Answer, Refusal> {
        let key = self.find_or(job, || LateQuestion::Cancel)?;
        let known = self.state.job(key);
        if epoch.is_some_and(|epoch| known.epoch().is_some_and(|highest| epoch < highest)) {
            return Err(Refusal::StaleEpoch);
        }
        if known.has_ended() || (known.cancel_asked && known.epoch() >= epoch) {
            return Ok(Answer::Done);
        }
        let running = self.attempts_of(key);
        let end = Some(self.end_by_cancel(key));
        self.emit(Event::CancelAsked { job, epoch, end }, fx);
        for (claim, worker) in running {
            self.send_cancel(worker, claim, CancelWhy::Asked, fx);
        }
        Ok(Answer::Done)
    }

    /// Cancels those of these jobs that a filter matches, and says how many. Looking for them is the caller's: it would
    /// grow with the number of jobs, and the order must be that of their ids, wherever they lie.
    pub(super) fn cancel_where(
        &mut self,
        filter: &Filter,
        jobs: &[JobId],
        fx: &mut Effects,
    ) -> Result<Answer, Refusal> {
        self.within(Limit::FrameItems, jobs.len())?;
        let mut cancelled = 0;
        for job in jobs {
            if self.state.find(*job).is_some_and(|key| self.would_cancel(key, filter)) {
                self.cancel(*job, None, fx)?;
                cancelled += 1;
            }
        }
        Ok(Answer::Cancelled { jobs: cancelled })
    }

    /// Whether cancelling by this filter would change anything about a job.
    pub fn would_cancel(&self, key: JobKey, filter: &Filter) -> bool {
        let job = self.state.job(key);
        !job.has_ended() && !job.cancel_asked && self.matches(key, filter)
    }

    /// Whether a job is what a filter asks for.
    pub fn matches(&self, key: JobKey, filter: &Filter) -> bool {
        let job = self.state.job(key);
        filter.admits(
            &job.spec,
            job.created_at,
            || self.state.job_state(key),
            |least| job.workflows.as_slice().iter().any(|workflow| self.stands_still(*workflow, least)),
        )
    }

    fn stands_still(&self, workflow: WorkflowKey, least: Duration) -> bool {
        let workflow = self.state.workflow(workflow);
        workflow.state.is_held()
            && workflow.attempt.and_then(|attempt| self.fleet.get_live(attempt)).is_some_and(|live| {
                live.clock.quiet_until().is_none() && self.awake.since(live.clock.last_step()) >= least
            })
    }

    /// More time by hand, past the cap on what workers earn. The same request again is answered as the first time.
    pub(super) fn extend(
        &mut self,
        job: JobId,
        by: Duration,
        reason: Box<str>,
        request: Name,
        fx: &mut Effects,
    ) -> Result<Answer, Refusal> {
        let key = self.find_or(job, || LateQuestion::Extend { request: request.clone() })?;
        let known = self.state.job(key);
        match known.more.as_ref().and_then(|more| more.extended_by(&request)) {
            Some(earlier) if earlier.by == by => return Ok(Answer::Extended { total: earlier.total }),
            Some(_) => return Err(Refusal::Conflict),
            None => {}
        }
        if known.has_ended() {
            return Err(Refusal::AlreadyEnded);
        }
        if by.is_zero() || by > MAX_SPAN {
            let problem = DraftProblem::SpanOutOfRange { value: by, min: Duration::from_millis(1), max: MAX_SPAN };
            return Err(Refusal::Invalid(Invalid { field: "by_s", problem }));
        }
        self.within(Limit::NoteBytes, reason.len())?;
        // Every request is remembered for as long as the job: forgetting one would let its repetition extend again.
        let given = known.more.as_ref().map_or(0, |more| more.by_hand.len());
        self.within(Limit::ExtensionsPerJob, given + 1)?;
        self.emit(Event::JobExtended { job, by, reason, request }, fx);
        self.end_local_overall_if_extended(key, fx);
        Ok(Answer::Extended { total: self.state.job(key).extensions() })
    }

    pub(super) fn pause_queue(&mut self, queue: Name, fx: &mut Effects) -> Result<Answer, Refusal> {
        if !self.state.is_paused(&queue) {
            self.within(Limit::PausedQueues, self.state.paused().len() + 1)?;
            self.emit(Event::QueuePaused { queue }, fx);
        }
        Ok(Answer::Done)
    }

    pub(super) fn resume_queue(&mut self, queue: Name, fx: &mut Effects) -> Result<Answer, Refusal> {
        if self.state.is_paused(&queue) {
            self.emit(Event::QueueResumed { queue }, fx);
        }
        Ok(Answer::Done)
    }

    pub(super) fn drain_worker(
        &mut self,
        worker: &WorkerId,
        drained: bool,
        fx: &mut Effects,
    ) -> Result<Answer, Refusal> {
        let key = self.fleet.find(worker);
        let before = self.state.worker(worker).is_some_and(|record| record.drained);
        if key.is_none() && !before {
            return Err(Refusal::UnknownWorker);
        }
        if before != drained {
            let worker = worker.clone();
            self.emit(if drained { Event::WorkerDrained { worker } } else { Event::WorkerUndrained { worker } }, fx);
        }
        if let Some(key) = key {
            self.fleet.worker_mut(key).drained = drained;
            self.offers().update(key);
        } else if !drained {
            self.remember_undrained(worker, fx);
        }
        Ok(Answer::Done)
    }

    /// The new job owns what it takes over: it does not matter when the dead letter is archived, or expires there.
    pub(super) fn replay_dead_letter(
        &mut self,
        job: JobId,
        new_id: JobId,
        request: Name,
        from: ReplayFrom,
        fx: &mut Effects,
    ) -> Result<Answer, Refusal> {
        self.check_replay(job, &request, from)?;
        let key = self.find_or(job, || LateQuestion::Replay { request: request.clone(), from })?;
        let dead = self.state.job(key).dead;
        let taken_over = self.to_take_over(key, from);
        let answer = self.retry(job, new_id, request, taken_over, fx)?;
        if dead {
            self.emit(Event::DeadLetterDropped { job }, fx);
        }
        Ok(answer)
    }

    /// Whether this request may replay the job. One that has done so already may be repeated, with the same words.
    pub fn check_replay(&self, job: JobId, request: &Name, from: ReplayFrom) -> Result<(), Refusal> {
        let key = self.find_or(job, || LateQuestion::Replay { request: request.clone(), from })?;
        let known = self.state.job(key);
        let takes_over = !self.to_take_over(key, from).is_empty();
        match known.more.as_ref().and_then(|more| more.repeated_as(request, takes_over)) {
            Some(repeated) => repeated.map(drop),
            None if known.dead => Ok(()),
            None => Err(Refusal::NotADeadLetter),
        }
    }

    fn to_take_over(&self, key: JobKey, from: ReplayFrom) -> Arc<[u16]> {
        match from {
            ReplayFrom::Failed => self.state.succeeded_workflows(key),
            ReplayFrom::Start => Arc::default(),
        }
    }

    pub(super) fn drop_dead_letter(&mut self, job: JobId, fx: &mut Effects) -> Result<Answer, Refusal> {
        let key = self.find_or(job, || LateQuestion::DropDeadLetter)?;
        if !self.state.job(key).dead {
            return Err(Refusal::NotADeadLetter);
        }
        self.emit(Event::DeadLetterDropped { job }, fx);
        Ok(Answer::Done)
    }

    /// Says of each new dead letter what failed.
    pub(super) fn report_dead_letters(&mut self, fx: &mut Effects) {
        while let Some(id) = self.follow_ups.newly_dead.pop() {
            let job = self.state.job(self.state.find(id).expect("a dead letter stays until it is dropped"));
            let mut died = self.state.workflows_of(job).filter(|(_, workflow)| job.died_by(workflow));
            let (_, workflow) = died.next().expect("a dead letter died by one of its workflows");
            let kind = job.spec.workflows[usize::from(workflow.index)].kind.clone();
            let error = match workflow.past.as_ref().and_then(|past| past.last()).map(|ended| &ended.ending) {
                Some(Ending::Failed { error, .. }) => error.clone(),
                Some(ending) => ending.code().into(),
                None => "".into(),
            };
            self.report(ManagerNotice::DeadLetter { job: id, kind, error }, fx);
        }
    }

    pub(super) fn too_many_dead_letters(&self) -> bool {
        self.state.dead_letter_count() > self.rules.limits.dead_letters
    }

    /// The oldest dead letters make room for new ones; a bite of them, since the limit may have been lowered by much.
    pub(super) fn trim_dead_letters(&mut self, fx: &mut Effects) {
        let mut bite = self.bite;
        while self.may_decide() && self.too_many_dead_letters() && !bite.is_over() {
            bite.spend(1);
            let oldest = self.state.dead_letters().next().expect("there are too many");
            let job = self.state.job(oldest).id;
            self.emit(Event::DeadLetterDropped { job }, fx);
            self.report(ManagerNotice::DeadLetterOverflow { job }, fx);
        }
    }

    /// The job, or the question that only the archive can answer.
    pub(super) fn find_or(&self, job: JobId, question: impl FnOnce() -> LateQuestion) -> Result<JobKey, Refusal> {
        self.state.find(job).ok_or_else(|| LateReport::refusal(job, question()))
    }

    /// The running attempts of a job, with who holds them.
    pub(super) fn attempts_of(&self, key: JobKey) -> Vec<(Claim, WorkerKey)> {
        let job = self.state.job(key);
        let held = self.state.workflows_of(job).filter(|(_, workflow)| workflow.state.is_held());
        let of_attempt = |attempt| (self.state.claim_of(attempt), self.fleet.live(attempt).worker);
        held.map(|(_, workflow)| of_attempt(workflow.running_attempt())).collect()
    }
}
