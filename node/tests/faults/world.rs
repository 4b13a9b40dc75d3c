//! A node on a disk that fails, those who use it, and all that they were told: to the byte.

mod check;
mod draw;
mod facts;
mod operators;
mod oracle;
mod workers;

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use onward_core::ids::{JobId, Name};
use onward_core::input::{Call, Submission};
use onward_core::job::{Draft, Retry};
use onward_core::refusal::Refusal;
use onward_core::settings::Settings;
use onward_log::Log;
use onward_node::engine::{Engine, EngineRefusal, EngineStart, Pacing};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::disk::Disk;
use crate::files::Files;
use facts::Job;

pub use draw::Draw;

/// The time for everything that must happen in the end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause before another look.
const SOON: Duration = Duration::from_millis(1);

type Bytes = Arc<[u8]>;

/// Clones are the same world.
#[derive(Clone)]
pub struct World {
    pub disk: Disk,
    /// In which nothing fails unless it is asked for.
    pub files: Files,
    known: Arc<Mutex<Facts>>,
    /// The rest between two batches.
    archive_rest: Duration,
}

#[derive(Default)]
struct Facts {
    jobs: BTreeMap<JobId, Job>,
    queues: BTreeMap<Name, KnownQueue>,
}

/// Whether a queue is paused, as one client has asked for it.
#[derive(Clone, Default, Debug)]
struct KnownQueue {
    is_paused: bool,
    /// Asked for since, and not answered.
    perhaps: Option<bool>,
}

/// The reason why a life went no further.
#[derive(Debug)]
pub enum Stop {
    /// The node said no, as it may while its disk fails.
    Refused,
    /// Something happened that must never happen.
    Wrong(String),
}

impl From<String> for Stop {
    fn from(wrong: String) -> Self {
        Self::Wrong(wrong)
    }
}

fn may_refuse(refused: EngineRefusal) -> Stop {
    match refused {
        EngineRefusal::Unavailable(_) | EngineRefusal::NotBegun(_) | EngineRefusal::ByMachine(Refusal::NoLeader) => {
            Stop::Refused
        }
        refused => Stop::Wrong(format!("a disk that fails is no reason for this: {refused:?}")),
    }
}

pub async fn answered<T>(call: impl Future<Output = Result<T, EngineRefusal>>) -> Result<T, Stop> {
    decided(call).await?.map_err(|refusal| may_refuse(EngineRefusal::ByMachine(refusal)))
}

/// The same for a call that the machine may refuse, whatever the disk does.
async fn decided<T>(call: impl Future<Output = Result<T, EngineRefusal>>) -> Result<Result<T, Refusal>, Stop> {
    match timeout(PATIENCE, call).await {
        Ok(Ok(answer)) => Ok(Ok(answer)),
        Ok(Err(EngineRefusal::ByMachine(refusal))) if refusal != Refusal::NoLeader => Ok(Err(refusal)),
        Ok(Err(refused)) => Err(may_refuse(refused)),
        Err(_) => Err(Stop::Wrong("a call is never answered".to_owned())),
    }
}

impl World {
    pub fn new() -> Self {
        Self::seeded(0)
    }

    fn seeded(seed: u64) -> Self {
        Self { disk: Disk::formatted(), files: Files::new(seed), known: Arc::default(), archive_rest: SOON }
    }

    /// A world in which the log has time to drop what it was told to be archived before the archive goes on.
    pub fn with_a_slow_archive() -> Self {
        Self { archive_rest: 30 * SOON, ..Self::new() }
    }

    /// One for faults at random.
    pub fn at_random(seed: u64) -> Self {
        let archive_rest = if seed.is_multiple_of(2) { SOON } else { 30 * SOON };
        Self { archive_rest, ..Self::seeded(seed) }
    }

    fn known(&self) -> MutexGuard<'_, Facts> {
        self.known.lock().unwrap()
    }

    fn note<T>(&self, id: JobId, change: impl FnOnce(&mut Job) -> T) -> T {
        change(self.known().jobs.get_mut(&id).expect("it was submitted"))
    }

    /// A job as it is known, for a look at it.
    fn job(&self, id: JobId) -> Job {
        self.note(id, |job| job.clone())
    }

    /// A node as on the day after, with everything read from the disk.
    pub async fn start(&self) -> Result<Engine, Stop> {
        let (disk, archive_rest) = (self.disk.clone(), self.archive_rest);
        let started = spawn_blocking(move || {
            let (log, archive) = (disk.log()?, disk.archive()?);
            let (seat_ttl, gap_after) = (Duration::from_millis(200), Duration::from_millis(190));
            let rules = Settings { seat_ttl, gap_after, ..Settings::default() }.check().unwrap();
            let mut start = EngineStart::new(rules, move || Ok(Box::new(log.clone()) as Box<dyn Log>));
            start.archive = Some(Arc::new(archive));
            start.snapshot_every = 12;
            start.pacing = Pacing { term_every: SOON, ask_again: SOON, archive_rest, ..Pacing::default() };
            Engine::start(start)
        });
        match started.await {
            Ok(Err(error)) if error.is_permanent() => {
                Err(Stop::Wrong(format!("a disk that fails is no damage: {error}")))
            }
            Ok(Err(_)) => Err(Stop::Refused),
            Ok(Ok(engine)) => {
                self.files.start();
                Ok(engine)
            }
            Err(error) => Err(Stop::Wrong(format!("opening it panics: {error}"))),
        }
    }

    pub async fn stop(&self, engine: Engine) -> Result<(), Stop> {
        let stopped = timeout(PATIENCE, spawn_blocking(move || engine.stop())).await;
        stopped.map_err(|_| "it does not stop".to_owned())?.map_err(|error| format!("stopping panics: {error}"))?;
        self.files.stop();
        Ok(())
    }

    pub async fn submit(&self, engine: &Engine, payload: Bytes) -> Result<JobId, Stop> {
        self.submit_to(engine, onward_core::job::draft::DEFAULT_QUEUE, payload).await
    }

    async fn submit_to(&self, engine: &Engine, queue: &str, payload: Bytes) -> Result<JobId, Stop> {
        let id = engine.new_job_id();
        self.known().jobs.insert(id, Job::new(payload.clone(), false));
        // No job fails for good by failing often.
        let retry = Some(Retry { max_attempts: 1_000, ..Retry::default() });
        let draft = Draft { queue: Some(queue.into()), retry, ..Draft::of_kind("resize", payload) };
        answered(engine.call(Call::Submit(vec![Submission { id, draft }]))).await?;
        self.note(id, |job| job.is_sure = true);
        Ok(id)
    }

    /// Gives a job that it has taken.
    pub async fn until_it_serves(&self, engine: &Engine) -> Result<JobId, String> {
        let began = Instant::now();
        loop {
            match self.submit(engine, Arc::new(*b"do you hear me?")).await {
                Ok(job) => return Ok(job),
                Err(Stop::Wrong(wrong)) => return Err(wrong),
                Err(Stop::Refused) if began.elapsed() > PATIENCE => {
                    return Err(format!("it does not serve again: {:?}", engine.trouble()));
                }
                Err(Stop::Refused) => sleep(SOON).await,
            }
        }
    }

    /// Gives the archive a moment, if it is at work at all.
    pub async fn let_archive(&self, engine: &Engine) {
        let leaves = |job: &&Job| job.has_surely_ended() && (!job.has_died || job.is_released);
        let ended = self.known().jobs.values().filter(leaves).count() as u64;
        for _ in 0..30 {
            if engine.stats().archived.get() >= ended {
                return;
            }
            sleep(SOON).await;
        }
    }
}

/// Asks until it is answered, where nothing fails any more: on a busy computer a node may lose its seat for a moment.
async fn patiently<T, F: Future<Output = Result<T, Stop>>>(ask: impl Fn() -> F) -> Result<T, String> {
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(Stop::Wrong(wrong)) => return Err(wrong),
            Err(Stop::Refused) if began.elapsed() > PATIENCE => return Err("it is refused for ever".to_owned()),
            Err(Stop::Refused) => sleep(SOON).await,
        }
    }
}
