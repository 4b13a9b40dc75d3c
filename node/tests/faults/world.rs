//! A node on a disk that fails, those who use it, and all that they were told: to the byte.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use onward_core::effect::Answer;
use onward_core::ids::{Claim, JobId, Name};
use onward_core::input::{Call, Submission};
use onward_core::job::{Draft, JobState};
use onward_core::message::{EndReport, Settlement};
use onward_core::payload::Payload;
use onward_core::refusal::Refusal;
use onward_core::settings::Settings;
use onward_core::state::JobImage;
use onward_log::Log;
use onward_node::engine::{Engine, EngineRefusal, EngineStart, Pacing, ReadView};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::disk::Disk;
use crate::files::Files;
use crate::rig::{cancel, poll};

/// The time for everything that must happen in the end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause before another look.
const SOON: Duration = Duration::from_millis(1);

type Bytes = Arc<[u8]>;

#[derive(Debug)]
pub struct Draw(ChaCha8Rng);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    /// Half of them too large to stay in memory.
    pub fn bytes(&mut self) -> Bytes {
        let length = [10, 100, 5_000, 20_000][self.below(4) as usize];
        self.bytes_of(length)
    }

    /// What an attempt prints at a time; with several the beginning is cut off.
    pub fn printed(&mut self) -> Bytes {
        let length = [10, 3_000, 70_000][self.below(3) as usize];
        self.bytes_of(length)
    }

    /// Too large to stay in memory.
    pub fn large(&mut self) -> Bytes {
        self.bytes_of(5_000)
    }

    fn bytes_of(&mut self, at_least: usize) -> Bytes {
        let length = at_least + self.below(90) as usize;
        let mut bytes = vec![0; length];
        self.0.fill_bytes(&mut bytes);
        bytes.into()
    }
}

/// The facts that are known of a job.
#[derive(Clone)]
struct Job {
    payload: Bytes,
    /// Whether it was acknowledged; otherwise it may not be there.
    is_sure: bool,
    result: KnownAnswer<Bytes>,
    cancel: KnownAnswer<()>,
}

/// What was said to the node.
#[derive(Clone, PartialEq)]
enum KnownAnswer<T> {
    Nothing,
    /// And never answered.
    Perhaps(T),
    Sure(T),
}

impl<T> KnownAnswer<T> {
    const fn is_sure(&self) -> bool {
        matches!(self, Self::Sure(_))
    }

    fn maybe(&self) -> Option<&T> {
        match self {
            Self::Nothing => None,
            Self::Perhaps(value) | Self::Sure(value) => Some(value),
        }
    }
}

impl Job {
    fn new(payload: Bytes, is_sure: bool) -> Self {
        Self { payload, is_sure, result: KnownAnswer::Nothing, cancel: KnownAnswer::Nothing }
    }

    fn may_be(&self, state: JobState) -> bool {
        match state {
            JobState::Succeeded => self.result.maybe().is_some(),
            _ if self.result.is_sure() => false,
            // A success that comes late still counts, so somebody may be at it.
            JobState::Cancelled | JobState::Cancelling => self.cancel.maybe().is_some(),
            JobState::Ready | JobState::Running => !self.cancel.is_sure(),
            _ => false,
        }
    }
}

/// Clones are the same world.
#[derive(Clone)]
pub struct World {
    pub disk: Disk,
    /// In which nothing fails unless it is asked for.
    pub files: Files,
    jobs: Arc<Mutex<BTreeMap<JobId, Job>>>,
    /// The rest between two batches.
    archive_rest: Duration,
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
    match timeout(PATIENCE, call).await {
        Ok(answer) => answer.map_err(may_refuse),
        Err(_) => Err(Stop::Wrong("a call is never answered".to_owned())),
    }
}

impl World {
    pub fn new() -> Self {
        Self::seeded(0)
    }

    fn seeded(seed: u64) -> Self {
        Self { disk: Disk::formatted(), files: Files::new(seed), jobs: Arc::default(), archive_rest: SOON }
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

    fn jobs(&self) -> std::sync::MutexGuard<'_, BTreeMap<JobId, Job>> {
        self.jobs.lock().unwrap()
    }

    fn note(&self, id: JobId, change: impl FnOnce(&mut Job)) {
        change(self.jobs().get_mut(&id).expect("it was submitted"));
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
        let id = engine.new_job_id();
        self.jobs().insert(id, Job::new(payload.clone(), false));
        let draft = Draft::of_kind("resize", payload);
        answered(engine.call(Call::Submit(vec![Submission { id, draft }]))).await?;
        self.note(id, |job| job.is_sure = true);
        Ok(id)
    }

    /// Succeeds with a job, if there is one that is ready.
    pub async fn succeed(&self, engine: &Engine, result: Bytes) -> Result<Option<JobId>, Stop> {
        let Some(claim) = self.lease(engine).await? else { return Ok(None) };
        self.settle(engine, claim, result).await?;
        Ok(Some(claim.job))
    }

    pub async fn lease(&self, engine: &Engine) -> Result<Option<Claim>, Stop> {
        let poll = onward_core::input::Poll { wait: Duration::ZERO, ..poll() };
        let (leases, mut delivery) = answered(engine.poll(poll)).await?;
        delivery.done();
        let Some(lease) = leases.first() else { return Ok(None) };
        let given = lease.workflow.payload.as_inline().cloned();
        if given.as_ref() != self.jobs().get(&lease.claim.job).map(|job| &job.payload) {
            return Err(Stop::Wrong(format!("job {} was handed out with another payload", lease.claim.job)));
        }
        Ok(Some(lease.claim))
    }

    pub async fn settle(&self, engine: &Engine, claim: Claim, result: Bytes) -> Result<(), Stop> {
        let id = claim.job;
        self.note(id, |job| job.result = KnownAnswer::Perhaps(result.clone()));
        let report = EndReport::Succeed { result: result.clone().into() };
        let answer = answered(engine.call(Call::Settle(vec![Settlement::new(claim, report)]))).await?;
        match answer {
            Answer::Settled(answers) if answers[0].answer == Ok(()) => {
                self.note(id, |job| (job.is_sure, job.result) = (true, KnownAnswer::Sure(result)));
                Ok(())
            }
            // The hand-out did not count: nobody had heard of it.
            other => Err(Stop::Wrong(format!("the outcome of job {id} was answered with {other:?}"))),
        }
    }

    pub async fn cancel(&self, engine: &Engine, id: JobId) -> Result<(), Stop> {
        self.note(id, |job| job.cancel = KnownAnswer::Perhaps(()));
        answered(engine.call(cancel(id))).await?;
        self.note(id, |job| job.cancel = KnownAnswer::Sure(()));
        Ok(())
    }

    /// A new job like one that has ended.
    pub async fn retry(&self, engine: &Engine, id: JobId, request: u64) -> Result<JobId, Stop> {
        let payload = self.jobs()[&id].payload.clone();
        let request = Name::new(format!("r{request}")).unwrap();
        let (new, _) = answered(engine.retry(id, request)).await?;
        self.jobs().insert(new, Job::new(payload, true));
        Ok(new)
    }

    /// Gives the archive a moment, if it is at work at all.
    pub async fn let_archive(&self, engine: &Engine) {
        let ended = self.jobs().values().filter(|job| job.result.is_sure() || job.cancel.is_sure()).count() as u64;
        for _ in 0..30 {
            if engine.stats().archived.get() >= ended {
                return;
            }
            sleep(SOON).await;
        }
    }

    /// Checks with a disk that is whole again: it serves, and everything is as it was said; also once all is archived,
    /// and after a restart.
    pub async fn check(&self, engine: Option<Engine>) -> Result<(), String> {
        self.disk.heal();
        self.files.faults().heal();
        let engine = match engine {
            Some(engine) => engine,
            None => self.start().await.map_err(|why| format!("it does not open again: {why:?}"))?,
        };
        self.until_it_serves(&engine).await?;
        self.compare(&engine).await?;
        self.until_all_is_archived(&engine).await?;
        self.compare(&engine).await?;
        self.stop(engine).await.map_err(|why| format!("{why:?}"))?;
        let engine = self.start().await.map_err(|why| format!("it does not open again: {why:?}"))?;
        self.until_it_serves(&engine).await?;
        self.compare(&engine).await?;
        self.stop(engine).await.map_err(|why| format!("{why:?}"))
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

    /// And whatever else was handed to the archive: it takes one batch after the other, so with a job that ends now all
    /// that came before is done.
    async fn until_all_is_archived(&self, engine: &Engine) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let last = self.until_it_serves(engine).await?;
            match self.cancel(engine, last).await {
                Ok(()) => break,
                Err(Stop::Wrong(wrong)) => return Err(wrong),
                Err(Stop::Refused) if began.elapsed() > PATIENCE => return Err("it ends no job".to_owned()),
                Err(Stop::Refused) => {}
            }
        }
        let all: Vec<JobId> = self.jobs().keys().copied().collect();
        loop {
            let asked = all.clone();
            let has_ended = |state| matches!(state, JobState::Succeeded | JobState::Cancelled);
            let find = move |view: &ReadView<'_>| {
                asked.into_iter().find(|id| view.manager.job(*id).is_some_and(|job| has_ended(job.state)))
            };
            let left = engine.read(find).await;
            if left == Ok(None) {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("ended jobs do not leave memory: {left:?}"));
            }
            sleep(SOON).await;
        }
    }

    async fn compare(&self, engine: &Engine) -> Result<(), String> {
        let jobs = self.jobs().clone();
        for (id, job) in jobs {
            let found = self.find(engine, id).await?;
            let Some(image) = found else {
                if job.is_sure {
                    return Err(format!("job {id} was acknowledged, and is gone"));
                }
                continue;
            };
            self.compare_job(engine, &job, &image).await.map_err(|wrong| format!("job {id}: {wrong:?}"))?;
        }
        self.files.compare().await
    }

    async fn find(&self, engine: &Engine, id: JobId) -> Result<Option<JobImage>, String> {
        let began = Instant::now();
        loop {
            match image(engine, id).await {
                Ok(found) => return Ok(found),
                // On a busy computer it may have lost its seat for a moment.
                Err(refused) if began.elapsed() > PATIENCE => return Err(format!("it cannot be read: {refused}")),
                Err(_) => sleep(SOON).await,
            }
        }
    }

    async fn compare_job(&self, engine: &Engine, job: &Job, image: &JobImage) -> Result<(), Stop> {
        let state = image.state();
        if !job.may_be(state) {
            let (result, cancel) = (job.result.is_sure(), job.cancel.is_sure());
            let wrong = format!("it is {state:?}; its success was acknowledged: {result}, and its end: {cancel}");
            return Err(Stop::Wrong(wrong));
        }
        compare_content(engine, image.id, &image.spec.workflows[0].payload, &job.payload).await?;
        let attempts = image.workflows[0].past.iter().flat_map(|past| &past.attempts);
        match (attempts.filter_map(|ended| ended.result()).next(), job.result.maybe()) {
            (Some(result), Some(expected)) => compare_content(engine, image.id, result, expected).await,
            (None, _) if state != JobState::Succeeded => Ok(()),
            (result, _) => Err(Stop::Wrong(format!("its result is {result:?}"))),
        }
    }
}

/// The job as it is in memory or in the archive.
async fn image(engine: &Engine, id: JobId) -> Result<Option<JobImage>, EngineRefusal> {
    match engine.read(move |view| view.manager.image(id)).await {
        Ok(None) => engine.archived(id).await,
        found => found,
    }
}

async fn compare_content(engine: &Engine, id: JobId, payload: &Payload, expected: &[u8]) -> Result<(), Stop> {
    let found = answered(engine.content(id, payload)).await?;
    if *found == *expected { Ok(()) } else { Err(Stop::Wrong("its content is another".to_owned())) }
}
