//! A job that runs by the clock, inside of a process that a [`Supervisor`] looks after.
//!
//! ```
//! use onward_health::schedule::{Job, JobRun, TimingError};
//! use onward_health::Supervisor;
//!
//! async fn report(run: JobRun) -> Result<(), std::io::Error> {
//!     // … for the day before `run.due()`
//!     Ok(())
//! }
//!
//! # fn service() -> Result<(), TimingError> {
//! let service = Supervisor::new("billing");
//! service.add(Job::cron("report", "0 6 * * *", "Europe/Berlin", report)?.critical());
//! # Ok(())
//! # }
//! ```
//!
//! **Health.** Each job has its own budget. How long one success lasts is derived from its period: the longest time
//! from one due instant to the next, and what a run may take. A job that has not been due yet is well, once its store
//! has been asked. One that never ran is red when its first due instant, and what the run may take, is over; and so is
//! one whose runs are skipped because an earlier one does not end.
//!
//! What counts is how the job is, whoever ran it: runs of other processes on the same store count as one's own, and a
//! process that is restarted finds the age of the last success, and the failures since, as they were.
//!
//! A store that is away fails readiness and nothing else: what runs goes on, and its end is written down when the store is
//! back.
//!
//! What becomes of each due instant is decided by [`onward_core::schedule`], by this process's wall clock, and kept by a
//! [`ScheduleStore`].

use std::convert::Infallible;
use std::fmt::{self, Display};
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onward_core::backoff::Backoff;
use onward_core::health::Budget;
use onward_core::schedule::{
    DUE_PER_LOT, Decision, LATE_AFTER, Missed, Overlap, Passed, Reason, RecordKind, Situation, decide, jitter, take_lot,
};
use onward_core::time::{Wall, span_ms};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use super::calendar::{Calendar, TimingError};
use super::store::{AnyStore, EndedRun, Entry, JobRecords, MemoryStore, OpenRun, RunEnd, ScheduleStore, StoreError};
use crate::repeat::Loop;
use crate::supervisor::{Supervised, Supervisor};
use crate::turn::{Outcome, Reporter};

/// The wall clock is looked at again after this long at the latest: it may have been stepped.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The longest time for a run unless it is set.
const LONGEST_RUN: Duration = Duration::from_secs(3_600);
/// A claim outlives the longest run by this much: nobody takes over a run that is about to end.
const CLAIM_MARGIN: Duration = Duration::from_secs(60);
/// A store that has not answered by then is away. The stores of this crate say so earlier.
const STORE_ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Waits of a job whose store is away.
const STORE_AWAY: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(30) };
/// Pauses before the end of a run is written once more by a process that stops.
const SAVE_AGAIN: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(300), Duration::from_millis(1_000)];

mod figures;
mod queue;

use figures::Figures;
use queue::Queue;

type Work = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
type WallClock = Arc<dyn Fn() -> Wall + Send + Sync>;

/// A job with its settings, to be given to [`Supervisor::add`].
pub struct Job {
    name: String,
    calendar: Calendar,
    critical: bool,
    budget: Option<Budget>,
    overlap: Overlap,
    missed: Missed,
    jitter: Duration,
    longest_run: Duration,
    store: Arc<dyn AnyStore>,
    clock: WallClock,
    figures: Arc<Figures>,
    work: Arc<dyn Fn(JobRun) -> Work + Send + Sync>,
}

impl Job {
    /// Due by a cron expression in a zone of the IANA time zone database.
    pub fn cron<F, R, E>(name: &str, expression: &str, zone: &str, work: F) -> Result<Self, TimingError>
    where
        F: Fn(JobRun) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        Ok(Self::new(name, Calendar::cron(expression, zone)?, work))
    }

    /// Due at every multiple of this interval since 1970.
    pub fn every<F, R, E>(name: &str, interval: Duration, work: F) -> Result<Self, TimingError>
    where
        F: Fn(JobRun) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        Ok(Self::new(name, Calendar::every(interval)?, work))
    }

    fn new<F, R, E>(name: &str, calendar: Calendar, work: F) -> Self
    where
        F: Fn(JobRun) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        let work = move |run| -> Work {
            let done = work(run);
            Box::pin(async move { done.await.map_err(|error| error.to_string()) })
        };
        Self {
            name: name.to_owned(),
            calendar,
            critical: false,
            budget: None,
            overlap: Overlap::default(),
            missed: Missed::default(),
            jitter: Duration::ZERO,
            longest_run: LONGEST_RUN,
            store: Arc::new(MemoryStore::new()),
            clock: Arc::new(wall_now),
            figures: Arc::default(),
            work: Arc::new(work),
        }
    }

    /// The probes depend on it.
    pub fn critical(mut self) -> Self {
        self.critical = true;
        self
    }

    /// Failures that are tolerated; three in a row unless it is set.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The fate of an instant that comes while an earlier run has not ended.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// The fate of instants that have come together, after a stop for instance.
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Start up to this much later; how much depends on the job's name and the instant alone.
    pub fn jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// A run that takes longer is ended, and has failed. An hour unless it is set.
    pub fn longest_run(mut self, longest: Duration) -> Self {
        self.longest_run = longest;
        self
    }

    /// The store that keeps the records. With a store that several processes share, one of them fires.
    pub fn store(mut self, store: impl ScheduleStore) -> Self {
        self.store = Arc::new(store);
        self
    }

    #[cfg(test)]
    pub(super) fn clock(mut self, clock: impl Fn() -> Wall + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The time for which one success counts: until the run after it is late.
    pub(super) fn freshness(&self) -> Duration {
        let gap = self.gap();
        gap + self.jitter + self.longest_run + LATE_AFTER + CLAIM_MARGIN
    }

    fn gap(&self) -> Duration {
        self.calendar.longest_gap((self.clock)()).unwrap_or(LOOK_AGAIN)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("name", &self.name).field("calendar", &self.calendar).finish_non_exhaustive()
    }
}

impl Supervised for Job {
    fn add_to(self, service: &Supervisor) {
        let (freshness, every) = (self.freshness(), self.gap() + self.jitter + LATE_AFTER);
        let name = self.name.clone();
        let (critical, budget, longest) = (self.critical, self.budget, self.longest_run);
        self.figures.show(&name, service);
        let job = Arc::new(self);
        let mut supervised = Loop::running(&name, move |reporter| Arc::clone(&job).run(reporter))
            .every(every)
            .freshness(freshness)
            .startup_grace(longest + CLAIM_MARGIN)
            // Runs are limited by themselves; this is for the questions between them.
            .longest_turn(longest + CLAIM_MARGIN)
            .recovery(1);
        if let Some(budget) = budget {
            supervised = supervised.budget(budget);
        }
        service.add(if critical { supervised.critical() } else { supervised });
    }
}

/// A run of a job.
#[derive(Clone, Debug)]
pub struct JobRun {
    due: Wall,
    reporter: Reporter,
}

impl JobRun {
    /// The instant that this run is for. It may be started later.
    pub fn due(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.due.as_ms())
    }

    /// `count` more things are done. That is a forward step: a long run stays fresh by it.
    #[track_caller]
    pub fn progress(&self, count: u64) {
        self.reporter.progress(count);
    }

    /// The process was told to stop; there is a deadline to it.
    pub fn is_stopping(&self) -> bool {
        self.reporter.is_stopping()
    }
}

impl Job {
    async fn run(self: Arc<Self>, reporter: Reporter) -> Result<(), Infallible> {
        let mut runs = Runs {
            job: self,
            reporter,
            tasks: JoinSet::new(),
            own: Vec::new(),
            ended: Vec::new(),
            told: None,
            queue: Queue::default(),
            refusals: 0,
            draws: RandomState::new(),
        };
        loop {
            if runs.reporter.is_stopping() {
                runs.finish().await;
                return Ok(());
            }
            let wait = match runs.look().await {
                Ok(wait) => {
                    runs.refusals = 0;
                    wait
                }
                Err(error) => runs.note_away(&error),
            };
            runs.wait(wait).await;
        }
    }

    fn now(&self) -> Wall {
        (self.clock)()
    }

    fn starts_at(&self, due: Wall) -> Wall {
        due + jitter(&self.name, due, self.jitter)
    }
}

/// The runs of a job in this process.
struct Runs {
    job: Arc<Job>,
    reporter: Reporter,
    tasks: JoinSet<(Wall, Result<(), String>)>,
    /// Instants whose runs are under way here, or have ended without the store knowing it, with their tasks.
    own: Vec<(Wall, tokio::task::Id)>,
    /// Runs that have ended here, and of which the store does not know it yet.
    ended: Vec<Ended>,
    /// Instants whose runs have ended, here or elsewhere, and are in the account. `None` before the store was asked, and
    /// while it is away.
    told: Option<Vec<Wall>>,
    queue: Queue,
    /// Questions in a row that the store did not answer.
    refusals: u32,
    draws: RandomState,
}

/// A run that has ended here.
struct Ended {
    due: Wall,
    /// The code of a failure, and the reason for people.
    result: Result<(), (&'static str, String)>,
}

impl Runs {
    /// Writes down what has ended, decides what has come, and says for how long there is nothing to do.
    async fn look(&mut self) -> Result<Duration, StoreError> {
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

    fn situation<'a>(&self, due: &'a [Wall], is_all: bool, open: usize, now: Wall) -> Situation<'a> {
        let job = &self.job;
        Situation {
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
    fn decide_queued(&mut self, due: &[Wall], is_all: bool, open: usize, now: Wall) -> Vec<Decision> {
        let job = Arc::clone(&self.job);
        let starts_at = |due| job.starts_at(due);
        if open > 0 || !self.queue.is_empty() {
            self.queue.admit(due, now, starts_at);
        }
        if let Some(passed) = self.queue.refused(due, starts_at) {
            return vec![Decision::Pass(passed)];
        }
        if open > 0 {
            return Vec::new();
        }
        match self.queue.take(due) {
            Some(first) => vec![Decision::Fire { due: first, reason: Reason::Queued }],
            None => {
                let situation = self.situation(due, is_all, open, now);
                let waits = |decision: &Decision| matches!(decision, Decision::Wait { .. });
                decide(&situation).into_iter().take_while(|decision| !waits(decision)).collect()
            }
        }
    }

    async fn carry_out(&mut self, after: Wall, decisions: Vec<Decision>, now: Wall) -> Result<(), StoreError> {
        let claimed_until = now + self.job.longest_run + CLAIM_MARGIN;
        let entries: Vec<Entry> = decisions
            .iter()
            .filter_map(|decision| match *decision {
                Decision::Fire { due, reason } => Some(Entry::Fired { due, reason, claimed_until }),
                Decision::Pass(passed) => Some(Entry::Passed(passed)),
                Decision::Wait { .. } => None,
            })
            .collect();
        if !answered(self.job.store.add(&self.job.name, after, entries.clone())).await? {
            // Another process was quicker.
            return Ok(());
        }
        for entry in entries {
            match entry {
                Entry::Fired { due, .. } => {
                    self.job.figures.add(RecordKind::Fired, 1);
                    self.start(due);
                }
                Entry::Passed(passed) => self.report_passed(&passed),
            }
        }
        Ok(())
    }

    fn report_passed(&self, passed: &Passed) {
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
    async fn wait(&mut self, wait: Duration) {
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
    async fn finish(&mut self) {
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
            Ok((due, result)) => Ended { due, result: result.map_err(|why| ("failed", why)) },
            Err(error) => {
                let run = self.own.iter().find(|(_, task)| *task == error.id());
                let (due, _) = *run.expect("a task is noted when it is started");
                Ended { due, result: Err(("panicked", error.to_string())) }
            }
        });
    }

    /// Writes down what has ended, and then counts it: until then the store, and so the job, is in trouble.
    async fn save_ends(&mut self) -> Result<(), StoreError> {
        while let Some(Ended { due, result }) = self.ended.first() {
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

fn wall_now() -> Wall {
    Wall::from_ms(span_ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

#[cfg(test)]
mod tests;
