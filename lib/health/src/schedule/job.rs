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
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onward_core::health::FailureBudget;
use onward_core::schedule::{LATE_AFTER, MissedPolicy, Overlap, jitter};
use onward_core::time::{Wall, span_ms};

use super::calendar::{Calendar, TimingError};
use super::store::{AnyStore, MemoryStore, ScheduleStore};
use crate::repeat::Loop;
use crate::supervisor::{SupervisedItem, Supervisor};
use crate::turn::Reporter;

/// The wall clock is looked at again after this long at the latest: it may have been stepped.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The longest time for a run unless it is set.
const LONGEST_RUN: Duration = Duration::from_secs(3_600);
/// A claim outlives the longest run by this much: nobody takes over a run that is about to end.
const CLAIM_MARGIN: Duration = Duration::from_secs(60);

mod figures;
mod queue;
mod runs;

use figures::Figures;
use runs::Runs;

type Work = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
type WallClock = Arc<dyn Fn() -> Wall + Send + Sync>;

/// A job with its settings, to be given to [`Supervisor::add`].
pub struct Job {
    name: String,
    calendar: Calendar,
    critical: bool,
    budget: Option<FailureBudget>,
    overlap: Overlap,
    missed: MissedPolicy,
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
            missed: MissedPolicy::default(),
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
    pub fn budget(mut self, budget: FailureBudget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The fate of an instant that comes while an earlier run has not ended.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// The fate of instants that have come together, after a stop for instance.
    pub fn missed(mut self, missed: MissedPolicy) -> Self {
        self.missed = missed;
        self
    }

    /// Start up to this much later; how much depends on the job's name and the instant alone. Less than the time from one
    /// due instant to the next, or the service is refused.
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

impl SupervisedItem for Job {
    fn add_to(self, service: &Supervisor) {
        let (freshness, every) = (self.freshness(), self.gap() + self.jitter + LATE_AFTER);
        let name = self.name.clone();
        if self.jitter >= self.gap() {
            let (jitter, gap) = (self.jitter, self.gap());
            service.refuse(format!(
                "job `{name}`: the jitter ({jitter:?}) is not shorter than the time between two due instants ({gap:?}), so one would start after the next; shorten it"
            ));
        }
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
        let mut runs = Runs::new(self, reporter);
        loop {
            if runs.is_stopping() {
                runs.finish().await;
                return Ok(());
            }
            let wait = runs.look().await;
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

fn wall_now() -> Wall {
    Wall::from_ms(span_ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

#[cfg(test)]
mod tests;
