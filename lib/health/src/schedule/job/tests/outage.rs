//! Outages of the store.

use super::*;

/// A store that can be away: it answers nothing, or takes nothing.
#[derive(Clone, Default)]
struct Away {
    store: MemoryStore,
    gone: Arc<AtomicBool>,
    read_only: Arc<AtomicBool>,
    /// Questions are not even refused.
    silent: Arc<AtomicBool>,
}

impl Away {
    async fn asked(&self, writes: bool) -> Result<(), StoreError> {
        if self.silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let is_away = self.gone.load(Ordering::Relaxed) || writes && self.read_only.load(Ordering::Relaxed);
        if is_away { Err(StoreError("away".into())) } else { Ok(()) }
    }

    async fn records(&self, job: &str) -> JobRecords {
        ScheduleStore::open(&self.store, job, Wall::ZERO).await.unwrap()
    }
}

impl ScheduleStore for Away {
    async fn open(&self, job: &str, now: Wall) -> Result<JobRecords, StoreError> {
        self.asked(false).await?;
        ScheduleStore::open(&self.store, job, now).await
    }

    async fn add(&self, job: &str, after: Wall, entries: Vec<ScheduleEntry>) -> Result<bool, StoreError> {
        self.asked(true).await?;
        ScheduleStore::add(&self.store, job, after, entries).await
    }

    async fn reclaim(&self, job: &str, run: OpenRun, until: Wall) -> Result<bool, StoreError> {
        self.asked(true).await?;
        ScheduleStore::reclaim(&self.store, job, run, until).await
    }

    async fn end(&self, job: &str, due: Wall, end: RunEnd) -> Result<(), StoreError> {
        self.asked(true).await?;
        ScheduleStore::end(&self.store, job, due, end).await
    }
}

/// A store that is away and comes back leaves the job as it was, and not red until its next run.
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_is_over_when_the_store_is_back() {
    let store = Away::default();
    let job = noting(&RunList::default(), "daily", DAY).critical().clock(wall()).store(store.clone());
    let (health, stopper, serving) = serve(job);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(health.report().ready);
    store.gone.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(65)).await;
    assert!(!health.report().ready && health.report().live, "{:?}", of_job(&health));
    store.gone.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert!(health.report().ready, "{:?}", of_job(&health));
    stop(&stopper, serving).await;
}

/// The first ten minutes of an outage, with a run under way, which ends inside of them.
async fn survive(away: fn(&Away) -> &AtomicBool) {
    let (store, ended) = (Away::default(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&ended);
    let work = move |_: JobRun| {
        let ended = Arc::clone(&counted);
        async move {
            tokio::time::sleep(Duration::from_secs(300)).await;
            ended.fetch_add(1, Ordering::Relaxed);
            Ok::<_, String>(())
        }
    };
    let job = Job::every("hourly", Duration::from_secs(3_600), work).unwrap().critical().clock(wall());
    let (health, stopper, serving) = serve(job.store(store.clone()));
    let start = Duration::from_millis(3_600_000 - START_MS % 3_600_000);
    tokio::time::sleep(start + Duration::from_secs(60)).await;
    assert!(health.report().ready);
    assert_eq!(store.records("hourly").await.open.len(), 1);
    away(&store).store(true, Ordering::Relaxed);
    for second in 0..600 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let report = health.report();
        assert!(report.live, "after {second} s: {report:?}");
        assert_eq!(of_job(&health).restarts(), 0);
        if second > 400 {
            assert!(!report.ready, "after {second} s: {report:?}");
        }
    }
    assert_eq!(of_job(&health).reason, LoopReason::BudgetSpent);
    assert_eq!(ended.load(Ordering::Relaxed), 1, "the run went on");
    away(&store).store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(51)).await;
    assert!(health.report().ready, "{:?}", of_job(&health));
    let records = store.records("hourly").await;
    assert!(records.open.is_empty());
    assert_eq!(records.ended.iter().map(|run| run.end).collect::<Vec<_>>(), [RunEnd::Succeeded]);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!((ended.load(Ordering::Relaxed), health.report().ready), (2, true), "it comes back");
    stop(&stopper, serving).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_is_no_loss_of_liveness_and_aborts_no_run() {
    survive(|store| &store.gone).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_gives_no_answer_is_away() {
    survive(|store| &store.silent).await;
}

/// Nothing fails that is only read, and a due instant cannot have its record.
#[tokio::test(start_paused = true)]
async fn a_store_that_takes_nothing_is_away() {
    let (store, seen) = (Away::default(), RunList::default());
    let job = noting(&seen, "tick", Duration::from_secs(600)).critical().clock(wall()).store(store.clone());
    let (health, stopper, serving) = serve(job);
    store.read_only.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(610)).await;
    let report = health.report();
    assert_eq!((report.ready, report.live, of_job(&health).reason), (false, true, LoopReason::BudgetSpent));
    store.read_only.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!((health.report().ready, seen.lock().unwrap().clone()), (true, vec![600]));
    stop(&stopper, serving).await;
}

/// It is repeated by the next process, which is better than a stop that never ends.
#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_store_that_is_away() {
    let store = Away::default();
    let work = |_: JobRun| async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        Ok::<_, String>(())
    };
    let job = Job::every("slow", Duration::from_secs(60), work).unwrap().critical().clock(wall()).store(store.clone());
    let (_, stopper, serving) = serve(job);
    tokio::time::sleep(Duration::from_secs(65)).await;
    store.gone.store(true, Ordering::Relaxed);
    let began = tokio::time::Instant::now();
    stop(&stopper, serving).await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(store.records("slow").await.open.len(), 1);
}
