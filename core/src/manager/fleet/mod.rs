//! The fleet: the workers that we know, what they hold, and how they stand.
//!
//! All of it is soft. The log remembers who was evicted, drained or replaced, and which attempt is whose; what beats,
//! calls and probes tell of them is here. Whatever is counted over workers or over the attempts of one worker is
//! changed here and nowhere else, so that the counts are right after every call:
//!
//! - the attempts of a worker, how many there are, how many move and which do not;
//! - how many workers are away, and how many count for the hold ([`hold`]);
//! - until when the leases of a worker last that has no session;
//! - which workers are to be judged before this step ends, and which have a timer that fired.

mod expiring;
mod hold;
mod live;
mod workers;

use std::collections::VecDeque;

use crate::beat::Motion;
use crate::health::progress::worker as worker_progress;
use crate::health::{ProgressRule, ProgressSignal, ProgressVerdict, UnmovingAttempt, WorkerSample};
use crate::ids::{Claim, Incarnation, SessionId, WorkerId};
use crate::state::AttemptKey;
use crate::time::Awake;
use crate::wheel::TimerKey;

use live::LiveAttempts;
use workers::Workers;

pub(super) use expiring::ExpiringWorkers;
pub(super) use hold::{HoldCounts, HoldStanding, HoldState};
pub(super) use live::LiveAttempt;
pub(crate) use workers::{FleetWorker, WorkerKey};
pub(super) use workers::{UnconfirmedAttempt, WorkerTransport};

/// Workers that have gone, with the incarnation that they were then, where that is known.
pub(super) type DepartedWorkers = ExpiringWorkers<Option<Incarnation>>;

#[derive(Debug)]
pub(crate) struct Fleet {
    workers: Workers,
    live: LiveAttempts,
    hold: HoldState,
    departed: DepartedWorkers,
    /// The number of workers that are away.
    away: usize,
    /// Workers whose signals may have changed in this step.
    to_judge: Vec<WorkerKey>,
    /// Workers whose timer fired in this step, in that order.
    to_check: VecDeque<WorkerKey>,
}

/// The rest of an attempt that has ended.
pub(super) struct FinishedAttempt {
    pub worker: WorkerKey,
    pub timer: Option<TimerKey<AttemptKey>>,
}

impl Fleet {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            workers: Workers::new(seed),
            live: LiveAttempts::default(),
            hold: HoldState::default(),
            departed: DepartedWorkers::default(),
            away: 0,
            to_judge: Vec::new(),
            to_check: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// The number of workers that are not away.
    pub(super) fn present(&self) -> usize {
        self.workers.len() - self.away
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (WorkerKey, &FleetWorker)> {
        self.workers.iter()
    }

    pub(super) fn find(&self, id: &WorkerId) -> Option<WorkerKey> {
        self.workers.find(id)
    }

    pub(super) fn find_session(&self, session: SessionId) -> Option<WorkerKey> {
        self.workers.find_session(session)
    }

    pub(super) fn get(&self, key: WorkerKey) -> Option<&FleetWorker> {
        self.workers.get(key)
    }

    #[inline]
    pub(super) fn worker(&self, key: WorkerKey) -> &FleetWorker {
        self.workers.at(key)
    }

    #[inline]
    pub(super) fn worker_mut(&mut self, key: WorkerKey) -> &mut FleetWorker {
        self.workers.at_mut(key)
    }

    pub(super) fn insert(&mut self, worker: FleetWorker) -> WorkerKey {
        self.workers.insert(worker)
    }

    /// The worker speaks another way from now on. Its old session, if any, no longer finds it.
    pub(super) fn relink(&mut self, key: WorkerKey, link: WorkerTransport) {
        self.workers.relink(key, link);
    }

    /// The session is closed; the worker stays.
    pub(super) fn close_session(&mut self, key: WorkerKey) {
        self.workers.close_session(key);
    }

    /// Takes out a worker that holds nothing. It counts nowhere any more.
    pub(super) fn remove(&mut self, key: WorkerKey) -> FleetWorker {
        self.recount(key, HoldStanding::No);
        self.set_away(key, false);
        let worker = self.workers.remove(key);
        assert_eq!(worker.held, 0, "a worker that holds something is not forgotten");
        worker
    }

    /// The live side of an attempt, if it runs.
    pub(super) fn get_live(&self, key: AttemptKey) -> Option<&LiveAttempt> {
        self.live.get(key)
    }

    #[inline]
    pub(super) fn live(&self, key: AttemptKey) -> &LiveAttempt {
        &self.live[key]
    }

    #[inline]
    pub(super) fn live_mut(&mut self, key: AttemptKey) -> &mut LiveAttempt {
        self.live.at(key)
    }

    /// The worker that holds an attempt, if it runs.
    pub(super) fn holder(&self, key: AttemptKey) -> Option<WorkerKey> {
        self.live.get(key).map(|live| live.worker)
    }

    /// Attempts of a worker, the newest first.
    pub(super) fn attempts(&self, worker: WorkerKey) -> impl Iterator<Item = AttemptKey> + '_ {
        self.workers.at(worker).attempts(&self.live)
    }

    /// The same, to be changed one by one.
    pub(super) fn held_by(&self, worker: WorkerKey) -> Vec<AttemptKey> {
        self.attempts(worker).collect()
    }

    /// An attempt begins to be heard of.
    pub(super) fn begin_attempt(&mut self, key: AttemptKey, live: LiveAttempt, rule: &ProgressRule, now: Awake) {
        let (worker, lease_end) = (live.worker, live.clock.lease_end());
        self.live.insert(key, live);
        let known = self.workers.at_mut(worker);
        known.held += 1;
        let work = known.work(rule);
        work.empty_since = None;
        work.attempts.push_front(&mut self.live, key);
        self.move_lease(worker, Awake::ZERO, Some(lease_end), now);
    }

    /// An attempt has ended: nothing more is heard of it. None if nothing ever was.
    pub(super) fn finish_attempt(&mut self, key: AttemptKey, now: Awake) -> Option<FinishedAttempt> {
        let worker = self.holder(key)?;
        let known = self.workers.at_mut(worker);
        known.held -= 1;
        let held = known.held;
        let work = known.work.as_mut().expect("it held the attempt");
        work.attempts.remove(&mut self.live, key);
        let mut live = self.live.take(key);
        work.uncount_motion(key, &mut live);
        if held == 0 {
            work.empty_since = Some(now);
        }
        // One that moved made up for others that do not, or fail.
        let made_up =
            live.motion == Motion::Moving && (work.unmoving.len() > 0 || work.tally.first_failure().is_some());
        let never_came = held == 0 && matches!(known.link, WorkerTransport::Expected);
        if live.motion == Motion::Unmoving || made_up || never_came {
            self.touch(worker);
        }
        self.move_lease(worker, live.clock.lease_end(), None, now);
        Some(FinishedAttempt { worker, timer: live.timer })
    }

    /// The attempt counts in another way from now on, if it does.
    pub(super) fn set_motion(&mut self, key: AttemptKey, motion: Motion) {
        let live = self.live.at(key);
        // Whatever moves the instant at which it is stuck makes it move as well, so that it is counted anew.
        if motion == live.motion {
            return;
        }
        let worker = live.worker;
        let work = self.workers.at_mut(worker).work.as_mut().expect("it holds the attempt");
        work.uncount_motion(key, live);
        live.motion = motion;
        work.count_motion(key, live);
        self.touch(worker);
    }

    /// Notes that an attempt of the worker has made a forward step.
    pub(super) fn note_step(&mut self, worker: WorkerKey, now: Awake) {
        if let Some(work) = &mut self.workers.at_mut(worker).work {
            work.last_step = Some(now);
        }
    }

    /// A call about an attempt is a sign of life of a worker that has nothing but calls.
    pub(super) fn note_call(&mut self, worker: WorkerKey, now: Awake) {
        if let WorkerTransport::Http { liveness, .. } = &mut self.workers.at_mut(worker).link {
            liveness.called(now);
        }
    }

    /// The end of a lease moved, or the lease is over (`after` is none): a polling worker lives until the latest end of
    /// those that it holds.
    pub(super) fn move_lease(&mut self, worker: WorkerKey, before: Awake, after: Option<Awake>, now: Awake) {
        let known = self.workers.at(worker);
        let WorkerTransport::Http { liveness, .. } = &known.link else { return };
        let latest = liveness.holds_until();
        let end = match after {
            Some(after) if after >= latest => after,
            _ if before < latest => return,
            _ => {
                let ends = known.attempts(&self.live).map(|key| self.live[key].clock.lease_end());
                ends.max().unwrap_or(now)
            }
        };
        let mut leaving = false;
        if let WorkerTransport::Http { liveness, .. } = &mut self.workers.at_mut(worker).link {
            liveness.leases_end(end);
            leaving = liveness.has_left();
        }
        if end < latest || leaving {
            self.touch(worker);
        }
    }

    /// An attempt of this worker has succeeded.
    pub(super) fn count_success(&mut self, key: WorkerKey, now: Awake) {
        let Some(known) = self.workers.get_mut(key) else { return };
        let work = known.work.as_mut().expect("it held the attempt");
        work.tally.succeeded(now);
        work.last_step = Some(now);
        if !matches!(known.judged.signals.progress, ProgressSignal::Normal | ProgressSignal::Idle) {
            self.touch(key);
        }
    }

    /// An attempt of this worker has failed, and by its fault.
    pub(super) fn count_failure(&mut self, key: WorkerKey, claim: Claim, now: Awake) {
        if let Some(known) = self.workers.get_mut(key)
            && let Some(work) = &mut known.work
        {
            work.tally.failed(now, claim.job.as_u128() as u64);
            self.touch(key);
        }
    }

    /// Forgets the worker's past work, which no longer speaks for it or against it. It holds nothing.
    pub(super) fn forget_work(&mut self, key: WorkerKey) {
        let worker = self.workers.at_mut(key);
        debug_assert_eq!(worker.held, 0, "what is held is not forgotten");
        worker.work = None;
    }

    /// Forgets the worker's past work if that is so long ago that it says nothing any more, and the worker holds
    /// nothing.
    pub(super) fn forget_old_work(&mut self, key: WorkerKey, now: Awake) {
        let worker = self.workers.at_mut(key);
        if worker.held == 0 && worker.work.as_ref().is_some_and(|work| work.tally.is_empty(now)) {
            worker.work = None;
        }
    }

    /// Progress as of now. Nothing is to be said of a worker that has not been heard of since the takeover: its leases
    /// wait for it.
    pub(super) fn progress(&self, worker: &FleetWorker, rule: &ProgressRule, now: Awake) -> ProgressVerdict {
        let (Some(work), false) = (&worker.work, matches!(worker.link, WorkerTransport::Expected)) else {
            return worker_progress(rule, now, &WorkerSample::default());
        };
        let (succeeded, failed, failed_jobs) = work.tally.counts(now);
        let mut sample = WorkerSample {
            succeeded,
            failed,
            failed_jobs,
            moving: work.moving,
            unmoving: work.unmoving.len(),
            last_step: work.last_step,
            oldest_unmoving: None,
            first_failure: work.tally.first_failure(),
        };
        // Only where nothing moves does it matter since when. An attempt whose clock is over ends by that, in this step
        // or, where very many do, in one of the next: its worker is no longer judged by it, whichever it is.
        if sample.unmoving > 0 && work.moving == 0 && succeeded == 0 {
            sample.oldest_unmoving = sample.first_of(work.unmoving.first_of_each_patience(now));
            let one_by_one = || WorkerSample { oldest_unmoving: sample.first_of(self.unmoving(worker, now)), ..sample };
            debug_assert_eq!(worker_progress(rule, now, &sample), worker_progress(rule, now, &one_by_one()));
        }
        worker_progress(rule, now, &sample)
    }

    /// The instants when the worker's progress may change though nothing happens, as far as that depends on its past
    /// work.
    pub(super) fn next_progress_change(
        &self,
        worker: &FleetWorker,
        rule: &ProgressRule,
        now: Awake,
    ) -> [Option<Awake>; 2] {
        match &worker.work {
            Some(work) => [self.progress(worker, rule, now).changes_at, work.tally.next_decay(now)],
            None => [None; 2],
        }
    }

    /// Each of those that do not move, one by one: what [`workers::HeldWork::unmoving`] has in order.
    fn unmoving<'a>(&'a self, worker: &'a FleetWorker, now: Awake) -> impl Iterator<Item = UnmovingAttempt> + 'a {
        let held = worker.attempts(&self.live).map(|key| &self.live[key]);
        held.filter(|live| live.motion == Motion::Unmoving)
            .map(LiveAttempt::unmoving)
            .filter(move |unmoving| unmoving.stuck_at > now)
    }

    /// A signal of this worker may have changed: it is judged before this step ends, unless it has gone.
    pub(super) fn touch(&mut self, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(key) else { return };
        if !worker.touched {
            worker.touched = true;
            self.to_judge.push(key);
        }
    }

    /// A worker that is to be judged.
    pub(super) fn pop_touched(&mut self) -> Option<WorkerKey> {
        while let Some(key) = self.to_judge.pop() {
            // A worker may have been forgotten since; its key may even be another's by now, which does no harm.
            if let Some(worker) = self.workers.get_mut(key)
                && core::mem::take(&mut worker.touched)
            {
                return Some(key);
            }
        }
        None
    }

    /// The worker's timer has fired.
    pub(super) fn note_timer_fired(&mut self, key: WorkerKey) {
        self.workers.at_mut(key).timer = None;
        self.to_check.push_back(key);
    }

    /// A worker whose timer has fired.
    pub(super) fn pop_due(&mut self) -> Option<WorkerKey> {
        self.to_check.pop_front()
    }

    /// Keeps the count of those that are away.
    pub(super) fn set_away(&mut self, key: WorkerKey, is_away: bool) {
        let before = core::mem::replace(&mut self.workers.at_mut(key).away, is_away);
        self.away = self.away + usize::from(is_away) - usize::from(before);
    }

    /// Keeps the hold's counts.
    pub(super) fn recount(&mut self, key: WorkerKey, counted: HoldStanding) {
        let before = core::mem::replace(&mut self.workers.at_mut(key).counted, counted);
        self.hold.recount(before, counted);
    }

    pub(super) fn hold(&self) -> &HoldState {
        &self.hold
    }

    pub(super) fn hold_mut(&mut self) -> &mut HoldState {
        &mut self.hold
    }

    pub(super) fn departed(&self) -> &DepartedWorkers {
        &self.departed
    }

    pub(super) fn departed_mut(&mut self) -> &mut DepartedWorkers {
        &mut self.departed
    }
}

#[cfg(test)]
mod tests;
