//! The runs of a job in this process: what has come is decided, what is due is started, and what has ended is written
//! down.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use onward_core::backoff::Backoff;
use onward_core::schedule::{
    DUE_PER_LOT, InstantDecision, Overlap, PassedInstants, RecordKind, RecordReason, ScheduleSituation, decide,
    take_lot,
};
use onward_core::time::{Wall, span_ms};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use super::queue::InstantQueue;
use super::{CLAIM_MARGIN, Job, JobRun, LOOK_AGAIN};
use crate::schedule::store::{EndedRun, JobRecords, OpenRun, RunEnd, ScheduleEntry, StoreError};
use crate::turn::{Outcome, Reporter};

/// A store that has not answered by then is away. The stores of this crate say so earlier.
const STORE_ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Waits of a job whose store is away.
const STORE_AWAY: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(30) };
/// Pauses before the end of a run is written once more by a process that stops.
const SAVE_AGAIN: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(300), Duration::from_millis(1_000)];

/// The runs of a job in this process.
pub(super) struct Runs {
    job: Arc<Job>,
    reporter: Reporter,
    tasks: JoinSet<(Wall, Result<(), String>)>,
    /// Instants whose runs are under way here, or have ended without the store knowing it, with their tasks.
    own: Vec<(Wall, tokio::task::Id)>,
    /// Runs that have ended here, and of which the store does not know it yet.
    ended: Vec<LocalRunEnd>,
    /// Instants whose runs have ended, here or elsewhere, and are in the account. `None` before the store was asked, and
    /// while it is away.
    told: Option<Vec<Wall>>,
    queue: InstantQueue,
    /// Questions in a row that the store did not answer.
    refusals: u32,
    draws: RandomState,
}

/// A run that has ended here.
struct LocalRunEnd {
    due: Wall,
    /// The code of a failure, and the reason for people.
    result: Result<(), (&'static str, String)>,
}

impl Runs {
    pub(super) fn new(job: Arc<Job>, reporter: Reporter) -> Self {
        Self {
            job,
            reporter,
            tasks: JoinSet::new(),
            own: Vec::new(),
            ended: Vec::new(),
            told: None,
            queue: InstantQueue::default(),
            refusals: 0,
            draws: RandomState::new(),
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.reporter.is_stopping()
    }

    /// Writes down what has ended, decides what has come, and says for how long there is nothing to do.
    pub(super) async fn look(&mut self) -> Duration {
        match self.ask().await {
            Ok(wait) => {
                self.refusals = 0;
                wait
            }
            Err(error) => self.note_away(&error),
        }
    }

    async fn ask(&mut self) -> Result<Duration, StoreError> {
        self.save_ends().await?;
        let now = self.job.now();
        let known = answered(self.job.store.open(&self.job.name, now)).await?;
        let wait = self.go_on(&known, now).await?;
        // Not before the store has answered everything: one that can be read but not written to is away.
        self.account_for(&known, now);
        Ok(wait)
    }

    /// Decides what has come.
    async fn go_on(&mut self, known: &JobRecords, now: Wall) -> Result<Duration, StoreError> {
        let job = Arc::clone(&self.job);
        self.take_over(&known.open, now).await?;
        let (lot, is_end) = take_lot(job.calendar.after(known.horizon), now);
        let due: Vec<Wall> = lot.iter().copied().take_while(|due| job.starts_at(*due) <= now).collect();
        job.figures.set_next_due(lot.get(due.len()).copied());
        if due.is_empty() {
            let next = lot.first().map_or(LOOK_AGAIN, |due| job.starts_at(*due).since(now));
            return Ok(next.min(LOOK_AGAIN));
        }
        let is_all = due.len() < lot.len() || is_end;
        let elsewhere = known.open.iter().filter(|run| !self.is_own(run.due) && run.claimed_until > now).count();
        let open = elsewhere + self.own.len();
        let decisions = match job.overlap {
            Overlap::Queue => self.decide_queued(&due, is_all, open, now),
            _ => decide(&self.situation(&due, is_all, open, now)),
        };
        if decisions.is_empty() {
            // The run that is under way must end; the next instant has to find its place behind it.
            let next = lot.get(due.len()).map_or(LOOK_AGAIN, |due| job.starts_at(*due).since(now));
            return Ok(next.min(LOOK_AGAIN));
        }
        self.carry_out(known.horizon, decisions, now).await?;
        Ok(if due.len() >= DUE_PER_LOT { Duration::ZERO } else { Duration::from_millis(1) })
    }

    /// The store is away, for how long to wait before it is asked again.
    fn note_away(&mut self, error: &StoreError) -> Duration {
        self.refusals = self.refusals.saturating_add(1);
        // How the job is will be in the records, once they can be read.
        self.told = None;
        self.reporter.record_failure("store_unavailable", error);
        let draw = self.draws.hash_one((self.job.now(), self.refusals));
        STORE_AWAY.delay(self.refusals, draw).max(STORE_AWAY.base / 2)
    }

    /// Brings the account to what the store has: at first to how the job was, and from then on by what others have run.
    fn account_for(&mut self, known: &JobRecords, now: Wall) {
        let dues = known.ended.iter().map(|run| run.due).collect();
        let news: Vec<EndedRun> = match self.told.replace(dues) {
            Some(told) => known.ended.iter().filter(|run| !told.contains(&run.due)).copied().collect(),
            None => {
                let success = known.ended.iter().rposition(|run| run.end == RunEnd::Succeeded);
                self.reporter.restore(self.succeeded_ago(
                    success.map(|place| known.ended[place].due),
                    known.horizon,
                    now,
                ));
                known.ended[success.map_or(0, |place| place + 1)..].to_vec()
            }
        };
        for run in news {
            match run.end {
                RunEnd::Succeeded => self.reporter.record(Outcome::Idle),
                RunEnd::Failed => self.reporter.record_failure("failed", "a run in another process failed"),
            }
        }
    }

    /// How old the last success is. A job that has none yet counts as if it had run one period before the first instant
    /// that has no record, so that it is fresh until the run for that is late. Time in which nobody was there to run
    /// it does not count.
    fn succeeded_ago(&self, success: Option<Wall>, horizon: Wall, now: Wall) -> Duration {
        let gap = self.job.gap();
        let next = self.job.calendar.after(horizon).next().unwrap_or(now);
        let before = Wall::from_ms(next.as_ms().saturating_sub(span_ms(gap)));
        next.min(now).since(success.unwrap_or(before))
    }

    fn situation<'a>(&self, due: &'a [Wall], is_all: bool, open: usize, now: Wall) -> ScheduleSituation<'a> {
        let job = &self.job;
        ScheduleSituation {
            now,
            due,
            is_all,
            paused: false,
            overlap: job.overlap,
            missed: job.missed,
            jitter: job.jitter,
            open,
            waiting: 0,
            room: usize::MAX,
        }
    }

    /// Decides about due instants. One that comes while a run is under way waits, in order, until that run has ended, if
    /// there is a place for it.
    fn decide_queued(&mut self, due: &[Wall], is_all: bool, open: usize, now: Wall) -> Vec<InstantDecision> {
        let job = Arc::clone(&self.job);
        let starts_at = |due| job.starts_at(due);
        if open > 0 || !self.queue.is_empty() {
            self.queue.admit(due, now, starts_at);
        }
        if let Some(passed) = self.queue.refused(due, starts_at) {
            return vec![InstantDecision::Pass(passed)];
        }
        if open > 0 {
            return Vec::new();
        }
        match self.queue.take(due) {
            Some(first) => vec![InstantDecision::Fire { due: first, reason: RecordReason::Queued }],
            None => {
                let situation = self.situation(due, is_all, open, now);
                let waits = |decision: &InstantDecision| matches!(decision, InstantDecision::Wait { .. });
                decide(&situation).into_iter().take_while(|decision| !waits(decision)).collect()
            }
        }
    }

    async fn carry_out(&mut self, after: Wall, decisions: Vec<InstantDecision>, now: Wall) -> Result<(), StoreError> {
        let claimed_until = now + self.job.longest_run + CLAIM_MARGIN;
        let entries: Vec<ScheduleEntry> = decisions
            .iter()
            .filter_map(|decision| match *decision {
                InstantDecision::Fire { due, reason } => Some(ScheduleEntry::Fired { due, reason, claimed_until }),
                InstantDecision::Pass(passed) => Some(ScheduleEntry::Passed(passed)),
                InstantDecision::Wait { .. } => None,
            })
            .collect();
        if !answered(self.job.store.add(&self.job.name, after, entries.clone())).await? {
            // Another process was quicker.
            return Ok(());
        }
        for entry in entries {
            match entry {
                ScheduleEntry::Fired { due, .. } => {
                    self.job.figures.add(RecordKind::Fired, 1);
                    self.start(due);
                }
                ScheduleEntry::Passed(passed) => self.report_passed(&passed),
            }
        }
        Ok(())
    }

    fn report_passed(&self, passed: &PassedInstants) {
        let (job, kind, reason, count) = (&self.job.name, passed.reason.kind(), passed.reason.code(), passed.count);
        tracing::warn!(job, record = kind.word(), reason, count, "due instants without a run");
        self.job.figures.add(kind, count);
        self.reporter.record(Outcome::Skipped);
    }

    /// Runs that were begun by a process that is no more.
    async fn take_over(&mut self, open: &[OpenRun], now: Wall) -> Result<(), StoreError> {
        for run in open.iter().filter(|run| run.claimed_until <= now) {
            if self.is_own(run.due) {
                continue;
            }
            let until = now + self.job.longest_run + CLAIM_MARGIN;
            if answered(self.job.store.reclaim(&self.job.name, *run, until)).await? {
                tracing::warn!(job = self.job.name, due_ms = run.due.as_ms(), "a run was interrupted; it begins again");
                self.start(run.due);
            }
        }
        Ok(())
    }

    fn start(&mut self, due: Wall) {
        let run = (self.job.work)(JobRun { due, reporter: self.reporter.clone() });
        let longest = self.job.longest_run;
        let task = self.tasks.spawn(async move {
            let ended = timeout(longest, run).await;
            (due, ended.unwrap_or_else(|_| Err(format!("it did not end within {longest:?}"))))
        });
        self.own.push((due, task.id()));
    }

    fn is_own(&self, due: Wall) -> bool {
        self.own.iter().any(|(own, _)| *own == due)
    }

    /// Waits until a run ends, the time is over, or the process is told to stop.
    pub(super) async fn wait(&mut self, wait: Duration) {
        if self.tasks.is_empty() {
            return self.reporter.wait(wait).await;
        }
        // How long a run may take is limited apart from this.
        self.reporter.waiting(wait);
        let ended = tokio::select! {
            ended = self.tasks.join_next() => ended,
            () = tokio::time::sleep(wait) => None,
            () = self.reporter.stopping() => None,
        };
        if let Some(ended) = ended {
            self.note_end(ended);
        }
    }

    /// Ends the runs that are under way. A store that is away is not waited for: what it does not know to have ended is run
    /// again, once its claim is over.
    pub(super) async fn finish(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            self.note_end(ended);
            // The others may take long, and the process may be killed before they end.
            if let Err(error) = self.save_ends().await {
                self.reporter.record_failure("store_unavailable", error);
            }
        }
        let mut pauses = SAVE_AGAIN.into_iter();
        while let Err(error) = self.save_ends().await {
            let Some(pause) = pauses.next() else {
                let (job, runs) = (&self.job.name, self.ended.len());
                tracing::error!(job, runs, %error, "the ends of runs are not written down; the runs are repeated");
                return;
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn note_end(&mut self, ended: Result<(Wall, Result<(), String>), JoinError>) {
        self.ended.push(match ended {
            Ok((due, result)) => LocalRunEnd { due, result: result.map_err(|why| ("failed", why)) },
            Err(error) => {
                let run = self.own.iter().find(|(_, task)| *task == error.id());
                let (due, _) = *run.expect("a task is noted when it is started");
                LocalRunEnd { due, result: Err(("panicked", error.to_string())) }
            }
        });
    }

    /// Writes down what has ended, and then counts it: until then the store, and so the job, is in trouble.
    async fn save_ends(&mut self) -> Result<(), StoreError> {
        while let Some(LocalRunEnd { due, result }) = self.ended.first() {
            let (due, end) = (*due, if result.is_ok() { RunEnd::Succeeded } else { RunEnd::Failed });
            answered(self.job.store.end(&self.job.name, due, end)).await?;
            match self.ended.remove(0).result {
                Ok(()) => self.reporter.record(Outcome::Progress(1)),
                Err((code, why)) => self.reporter.record_failure(code, why),
            }
            self.own.retain(|(own, _)| *own != due);
            if let Some(told) = &mut self.told {
                told.push(due);
            }
        }
        Ok(())
    }
}

async fn answered<T>(question: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = || StoreError(format!("no answer within {STORE_ANSWERS_WITHIN:?}"));
    timeout(STORE_ANSWERS_WITHIN, question).await.unwrap_or_else(|_| Err(late()))
}
