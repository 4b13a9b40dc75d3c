mod outage;
mod queue;
mod replicas;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use onward_core::health::{LoopReason, LoopState};
use onward_core::schedule::{DUE_PER_LOT, RecordReason};

use super::*;
use crate::board::LoopReport;
use crate::schedule::FileStore;
use crate::schedule::store::{JobRecords, OpenRun, RunEnd, ScheduleEntry, ScheduleStore, StoreError};
use crate::supervisor::Stopper;

const START_MS: u64 = 1_800_000_000_000;
const DAY: Duration = Duration::from_secs(86_400);

/// A wall clock that goes with tokio's, which a test stops and advances.
fn wall() -> impl Fn() -> Wall + Send + Sync + Clone + 'static {
    let origin = tokio::time::Instant::now();
    move || Wall::from_ms(START_MS) + origin.elapsed()
}

type RunList = Arc<Mutex<Vec<u64>>>;

/// Seconds from the start of the instants that were run, and a job that notes them.
fn noting(seen: &RunList, name: &str, interval: Duration) -> Job {
    let seen = Arc::clone(seen);
    let work = move |run: JobRun| {
        seen.lock().unwrap().push((run.due.as_ms() - START_MS) / 1_000);
        async { Ok::<_, String>(()) }
    };
    Job::every(name, interval, work).unwrap()
}

fn serve(job: Job) -> (crate::HealthHandle, Stopper, tokio::task::JoinHandle<()>) {
    let service = Supervisor::new("test")
        .without_signals()
        .executor_lag(Duration::from_secs(3_600))
        .shutdown_within(Duration::from_secs(3_600));
    service.add(job);
    let (health, stopper) = (service.health(), service.stopper());
    let serving = tokio::spawn(async move { service.run().await.unwrap() });
    (health, stopper, serving)
}

async fn stop(stopper: &Stopper, serving: tokio::task::JoinHandle<()>) {
    stopper.stop();
    serving.await.unwrap();
}

fn of_job(health: &crate::HealthHandle) -> LoopReport {
    health.report().loops[0].clone()
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_at_its_instants_and_is_fresh_by_its_period() {
    let (seen, now) = (RunList::default(), wall());
    let job = noting(&seen, "tick", Duration::from_secs(600)).critical().clock(now);
    assert_eq!(job.freshness(), Duration::from_secs(600 + 3_600 + 120));
    let (health, stopper, serving) = serve(job);
    tokio::time::sleep(Duration::from_secs(1_805)).await;
    assert_eq!(*seen.lock().unwrap(), [600, 1_200, 1_800]);
    assert_eq!(of_job(&health).state, LoopState::Healthy);
    stop(&stopper, serving).await;
}

/// A scheduler whose critical job always fails is not healthy by being alive; and it recovers.
#[tokio::test(start_paused = true)]
async fn a_critical_job_that_always_fails_is_not_ready_and_recovers() {
    let fails = Arc::new(AtomicBool::new(true));
    let works = Arc::clone(&fails);
    let work = move |_: JobRun| {
        let fails = works.load(Ordering::Relaxed);
        async move { if fails { Err("the source is away") } else { Ok(()) } }
    };
    let job = Job::every("import", Duration::from_secs(60), work).unwrap().critical().clock(wall());
    let (health, stopper, serving) = serve(job);
    tokio::time::sleep(Duration::from_secs(61)).await;
    fails.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(of_job(&health).state, LoopState::Healthy, "it has begun");
    fails.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(180)).await;
    let report = health.report();
    assert!(!report.ready, "{report:?}");
    assert!(report.live, "a restart would not help: {report:?}");
    assert_eq!(of_job(&health).state, LoopState::Failing);
    fails.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(health.report().ready);
    stop(&stopper, serving).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_panics_or_does_not_end_has_failed() {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let work = move |_: JobRun| {
        let run = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            match run {
                0 => Ok(()),
                1 => panic!("by mistake"),
                2 => std::future::pending().await,
                _ => Err("no"),
            }
        }
    };
    let job = Job::every("j", Duration::from_secs(60), work).unwrap().critical().clock(wall());
    let (health, stopper, serving) = serve(job.longest_run(Duration::from_secs(50)));
    tokio::time::sleep(Duration::from_secs(235)).await;
    assert_eq!(runs.load(Ordering::Relaxed), 3);
    assert_eq!((of_job(&health).failures, of_job(&health).state), (2, LoopState::Healthy));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(of_job(&health).state, LoopState::Failing);
    stop(&stopper, serving).await;
}

#[tokio::test(start_paused = true)]
async fn overlaps_are_skipped_queued_or_allowed() {
    for (overlap, runs) in [
        (Overlap::Skip, &[60, 180, 300][..]),
        (Overlap::Queue, &[60, 120, 180, 240]),
        (Overlap::Allow, &[60, 120, 180, 240, 300, 360]),
    ] {
        let seen = RunList::default();
        let noted = Arc::clone(&seen);
        let work = move |run: JobRun| {
            noted.lock().unwrap().push((run.due.as_ms() - START_MS) / 1_000);
            async {
                tokio::time::sleep(Duration::from_secs(100)).await;
                Ok::<_, String>(())
            }
        };
        let job = Job::every("slow", Duration::from_secs(60), work).unwrap().critical().clock(wall());
        let (_, stopper, serving) = serve(job.overlap(overlap));
        tokio::time::sleep(Duration::from_secs(361)).await;
        assert_eq!(*seen.lock().unwrap(), runs, "{overlap:?}");
        stop(&stopper, serving).await;
    }
}

/// A store as far away as a database: replicas that ask at the same time are told the same.
#[derive(Clone)]
struct DistantStore(MemoryStore);

impl DistantStore {
    async fn travel() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl ScheduleStore for DistantStore {
    async fn open(&self, job: &str, now: Wall) -> Result<JobRecords, StoreError> {
        let answer = ScheduleStore::open(&self.0, job, now).await;
        Self::travel().await;
        answer
    }

    async fn add(&self, job: &str, after: Wall, entries: Vec<ScheduleEntry>) -> Result<bool, StoreError> {
        Self::travel().await;
        ScheduleStore::add(&self.0, job, after, entries).await
    }

    async fn reclaim(&self, job: &str, run: OpenRun, until: Wall) -> Result<bool, StoreError> {
        Self::travel().await;
        ScheduleStore::reclaim(&self.0, job, run, until).await
    }

    async fn end(&self, job: &str, due: Wall, end: RunEnd) -> Result<(), StoreError> {
        Self::travel().await;
        ScheduleStore::end(&self.0, job, due, end).await
    }
}

/// Which of several processes fires is chance; that one does is not.
#[tokio::test(start_paused = true)]
async fn of_several_replicas_one_fires() {
    let (seen, now, store) = (RunList::default(), wall(), DistantStore(MemoryStore::new()));
    let job = || noting(&seen, "tick", Duration::from_secs(60)).critical().clock(now.clone()).store(store.clone());
    let replicas: Vec<_> = (0..5).map(|_| serve(job())).collect();
    tokio::time::sleep(Duration::from_secs(601)).await;
    let expected: Vec<u64> = (1..=10).map(|n| n * 60).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
    for (_, stopper, serving) in replicas {
        stop(&stopper, serving).await;
    }
}

/// A run in any of them is a run of the job: all are ready while it is well, and none is when it fails.
#[tokio::test(start_paused = true)]
async fn replicas_that_do_not_fire_are_as_ready_as_the_one_that_does() {
    let (now, store, fails) = (wall(), DistantStore(MemoryStore::new()), Arc::new(AtomicBool::new(false)));
    let job = || {
        let fails = Arc::clone(&fails);
        let work = move |_: JobRun| {
            let fails = fails.load(Ordering::Relaxed);
            async move { if fails { Err("the source is away") } else { Ok(()) } }
        };
        Job::every("daily", DAY, work).unwrap().critical().clock(now.clone()).store(store.clone())
    };
    let replicas: Vec<_> = (0..3).map(|_| serve(job())).collect();
    let ready = || replicas.iter().map(|(health, ..)| health.report().ready).collect::<Vec<_>>();
    for hour in 0..24 * 7 {
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert_eq!(ready(), [true; 3], "after {hour} hours");
    }
    fails.store(true, Ordering::Relaxed);
    tokio::time::sleep(3 * DAY).await;
    assert_eq!(ready(), [false; 3]);
    assert!(
        replicas.iter().all(|(health, ..)| of_job(health).reason == LoopReason::BudgetSpent && health.report().live)
    );
    fails.store(false, Ordering::Relaxed);
    tokio::time::sleep(DAY).await;
    assert_eq!(ready(), [true; 3]);
    for (_, stopper, serving) in replicas {
        stop(&stopper, serving).await;
    }
}

/// A probe of the start would otherwise kill it for ever: it is due once a day.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_not_due_yet_is_ready() {
    let job = noting(&RunList::default(), "report", DAY).critical().clock(wall());
    let (health, stopper, serving) = serve(job);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let report = health.report();
    assert!(report.ready && report.started, "{report:?}");
    stop(&stopper, serving).await;
}

/// Three failures, and a process that is started again: it is as it was.
#[tokio::test(start_paused = true)]
async fn a_restart_neither_forgets_failures_nor_the_age_of_the_last_success() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("schedules.json");
    let (now, fails) = (wall(), Arc::new(AtomicBool::new(false)));
    let job = || {
        let fails = Arc::clone(&fails);
        let work = move |_: JobRun| {
            let fails = fails.load(Ordering::Relaxed);
            async move { if fails { Err("the source is away") } else { Ok(()) } }
        };
        let job = Job::every("daily", DAY, work).unwrap().critical().clock(now.clone());
        job.store(FileStore::open(&path).unwrap())
    };
    let (health, stopper, serving) = serve(job());
    tokio::time::sleep(DAY).await;
    assert!(health.report().ready);
    fails.store(true, Ordering::Relaxed);
    tokio::time::sleep(3 * DAY).await;
    stop(&stopper, serving).await;
    let (health, stopper, serving) = serve(job());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let found = of_job(&health);
    assert_eq!((found.state, found.reason, found.failures), (LoopState::Failing, LoopReason::BudgetSpent, 3));
    let ago = Duration::from_millis(found.last_success_ms.unwrap());
    assert!((3 * DAY..4 * DAY).contains(&ago), "{ago:?}");
    fails.store(false, Ordering::Relaxed);
    tokio::time::sleep(DAY).await;
    assert!(health.report().ready);
    stop(&stopper, serving).await;
    let (health, stopper, serving) = serve(job());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(health.report().ready, "{:?}", of_job(&health));
    stop(&stopper, serving).await;
}

#[tokio::test(start_paused = true)]
async fn a_weekly_job_on_a_process_that_is_restarted_every_day_still_runs() {
    const DAY: u64 = 86_400;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("schedules.json");
    let (seen, now) = (RunList::default(), wall());
    for _ in 0..29 {
        let store = FileStore::open(&path).unwrap();
        let job = noting(&seen, "weekly", Duration::from_secs(7 * DAY)).critical().clock(now.clone()).store(store);
        let (_, stopper, serving) = serve(job);
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        stop(&stopper, serving).await;
        // Nobody is there for the rest of the day.
        tokio::time::sleep(Duration::from_secs(DAY - 3_600)).await;
    }
    let first = 7 * DAY - (START_MS / 1_000) % (7 * DAY);
    assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3].map(|week| first + week * 7 * DAY));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_interrupted_begins_again_and_what_was_missed_is_caught_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("schedules.json");
    let (seen, now) = (RunList::default(), wall());
    let noted = Arc::clone(&seen);
    let hang = move |run: JobRun| {
        noted.lock().unwrap().push((run.due.as_ms() - START_MS) / 1_000);
        std::future::pending::<Result<(), String>>()
    };
    let job = Job::every("j", Duration::from_secs(60), hang).unwrap().critical().clock(now.clone());
    let (_, _, serving) = serve(job.store(FileStore::open(&path).unwrap()));
    tokio::time::sleep(Duration::from_secs(61)).await;
    // The process dies.
    serving.abort();
    assert!(serving.await.is_err());
    tokio::time::sleep(Duration::from_secs(600)).await;
    // Beside the run that begins again; by `skip` there would be none.
    let job = noting(&seen, "j", Duration::from_secs(60)).critical().clock(now).overlap(Overlap::Allow);
    let (_, stopper, serving) = serve(job.store(FileStore::open(&path).unwrap()));
    tokio::time::sleep(Duration::from_secs(10)).await;
    // The first again, and once for the ten minutes.
    let mut again = seen.lock().unwrap()[1..].to_vec();
    again.sort_unstable();
    assert_eq!(again, [60, 660]);
    stop(&stopper, serving).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_is_later_by_the_jitter_of_its_instant() {
    let (now, most) = (wall(), Duration::from_secs(50));
    let late = Arc::new(Mutex::new(Vec::new()));
    let (noted, clock) = (Arc::clone(&late), now.clone());
    let work = move |run: JobRun| {
        noted.lock().unwrap().push((run.due, clock().since(run.due)));
        async { Ok::<_, String>(()) }
    };
    let job = Job::every("spread", Duration::from_secs(60), work).unwrap().critical().clock(now).jitter(most);
    let (_, stopper, serving) = serve(job);
    tokio::time::sleep(Duration::from_secs(601)).await;
    stop(&stopper, serving).await;
    let late = late.lock().unwrap();
    assert!(late.len() >= 9, "{late:?}");
    for (due, late) in late.iter() {
        let drawn = jitter("spread", *due, most);
        assert!(*late >= drawn && *late <= drawn + Duration::from_millis(20), "{due:?}: {late:?} and not {drawn:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_jitter_as_long_as_the_period_is_refused() {
    let minute = Duration::from_secs(60);
    for (jitter, problems) in [(Duration::from_secs(59), 0), (minute, 1)] {
        let service = Supervisor::new("test");
        service.add(noting(&RunList::default(), "tick", minute).critical().clock(wall()).jitter(jitter));
        let found = service.check().err();
        let found: Vec<&str> = found.iter().flat_map(|error| error.problems()).collect();
        assert_eq!(found.len(), problems, "{found:?}");
        assert!(found.iter().all(|problem| problem.starts_with("job `tick`: the jitter (60s)")), "{found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_run_under_way() {
    let seen = RunList::default();
    let noted = Arc::clone(&seen);
    let work = move |run: JobRun| {
        let noted = Arc::clone(&noted);
        async move {
            tokio::time::sleep(Duration::from_secs(30)).await;
            noted.lock().unwrap().push((run.due.as_ms() - START_MS) / 1_000);
            Ok::<_, String>(())
        }
    };
    let store = MemoryStore::new();
    let job = Job::every("slow", Duration::from_secs(60), work).unwrap().critical().clock(wall()).store(store.clone());
    let (_, stopper, serving) = serve(job);
    tokio::time::sleep(Duration::from_secs(65)).await;
    stop(&stopper, serving).await;
    assert_eq!(*seen.lock().unwrap(), [60]);
    assert!(ScheduleStore::open(&store, "slow", Wall::ZERO).await.unwrap().open.is_empty(), "its end is written down");
}

/// Nothing fails here, and nothing is ever done: another process began a run, and does not end it.
#[tokio::test(start_paused = true)]
async fn a_critical_job_that_never_ran_is_not_ready_once_its_time_is_over() {
    let (seen, now, store) = (RunList::default(), wall(), MemoryStore::new());
    ScheduleStore::open(&store, "tick", Wall::from_ms(START_MS - 1)).await.unwrap();
    let claimed_until = Wall::from_ms(u64::MAX / 2);
    let entry = ScheduleEntry::Fired { due: Wall::from_ms(START_MS), reason: RecordReason::OnTime, claimed_until };
    ScheduleStore::add(&store, "tick", Wall::from_ms(START_MS - 1), vec![entry]).await.unwrap();
    let (again, kept) = (now.clone(), store.clone());
    let job = noting(&seen, "tick", Duration::from_secs(60)).critical().clock(now).store(store);
    let freshness = job.freshness();
    let (health, stopper, serving) = serve(job);
    tokio::time::sleep(freshness - Duration::from_secs(10)).await;
    assert_eq!(of_job(&health).state, LoopState::Healthy, "it has not been late yet");
    tokio::time::sleep(Duration::from_secs(11)).await;
    let report = health.report();
    assert!(!report.ready && report.live, "{report:?}");
    assert_eq!(of_job(&health).reason, LoopReason::NotFresh);
    assert!(seen.lock().unwrap().is_empty());
    stop(&stopper, serving).await;
    // And a restart makes no success of it.
    let job = noting(&seen, "tick", Duration::from_secs(60)).critical().clock(again).store(kept);
    let (health, stopper, serving) = serve(job);
    tokio::time::sleep(freshness + Duration::from_secs(1)).await;
    assert_eq!(of_job(&health).reason, LoopReason::NotFresh);
    stop(&stopper, serving).await;
}
