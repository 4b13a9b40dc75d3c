//! Instants that wait for the end of an earlier run.

use onward_core::schedule::MAX_WAITING;

use super::*;

/// A store that counts how often it is asked, and notes what it took. One that is asked without end falls silent.
#[derive(Clone, Default)]
struct CountingStore {
    store: MemoryStore,
    asked: Arc<AtomicU32>,
    entries: Arc<Mutex<Vec<ScheduleEntry>>>,
}

const TOO_OFTEN: u32 = 5_000;

impl ScheduleStore for CountingStore {
    async fn open(&self, job: &str, now: Wall) -> Result<JobRecords, StoreError> {
        if self.asked.fetch_add(1, Ordering::Relaxed) > TOO_OFTEN {
            std::future::pending::<()>().await;
        }
        ScheduleStore::open(&self.store, job, now).await
    }

    async fn add(&self, job: &str, after: Wall, entries: Vec<ScheduleEntry>) -> Result<bool, StoreError> {
        self.entries.lock().unwrap().extend(entries.clone());
        ScheduleStore::add(&self.store, job, after, entries).await
    }

    async fn reclaim(&self, job: &str, run: OpenRun, until: Wall) -> Result<bool, StoreError> {
        ScheduleStore::reclaim(&self.store, job, run, until).await
    }

    async fn end(&self, job: &str, due: Wall, end: RunEnd) -> Result<(), StoreError> {
        ScheduleStore::end(&self.store, job, due, end).await
    }
}

/// A job of every second, whose first run takes so many of them.
fn job(first_secs: u64, store: &CountingStore) -> Job {
    let runs = Arc::new(AtomicU32::new(0));
    let work = move |_: JobRun| {
        let is_first = runs.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            if is_first {
                tokio::time::sleep(Duration::from_millis(first_secs * 1_000 + 500)).await;
            }
            Ok::<_, String>(())
        }
    };
    let job = Job::every("tick", Duration::from_secs(1), work).unwrap().critical().clock(wall());
    job.overlap(Overlap::Queue).longest_run(Duration::from_secs(20_000)).store(store.clone())
}

#[tokio::test(start_paused = true)]
async fn what_comes_when_all_places_are_taken_is_skipped_and_has_its_record() {
    let store = CountingStore::default();
    let (health, stopper, serving) = serve(job(100, &store));
    tokio::time::sleep(Duration::from_millis(150_500)).await;
    let metrics = health.report().metrics();
    let next_due = START_MS / 1_000 + 151;
    for (figure, value) in [("fired", 114), ("skipped", 36), ("missed", 0), ("next_due_seconds", next_due)] {
        let line = format!("onward_input_value{{service=\"test\",input=\"tick.{figure}\"}} {value}\n");
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
    stop(&stopper, serving).await;
    let second = |at: Wall| (at.as_ms() - START_MS) / 1_000;
    let entries = store.entries.lock().unwrap();
    let (mut next, mut queued, mut full) = (1, 0, 0);
    for entry in entries.iter() {
        match entry {
            ScheduleEntry::Fired { due, reason, .. } => {
                assert_eq!(second(*due), next);
                next += 1;
                queued += usize::from(*reason == RecordReason::Queued);
            }
            ScheduleEntry::Passed(passed) => {
                assert_eq!((passed.reason, second(passed.first)), (RecordReason::QueueFull, next), "{passed:?}");
                next += passed.count;
                full += passed.count;
            }
        }
    }
    assert_eq!(next, 151, "one record for each");
    assert_eq!((queued, full), (MAX_WAITING, 100 - MAX_WAITING as u64));
}

/// More instants have come than are looked at at a time, and nothing can be decided about them.
#[tokio::test(start_paused = true)]
async fn a_backlog_behind_a_run_is_no_reason_to_ask_the_store_without_end() {
    let store = CountingStore::default();
    let (health, _, serving) = serve(job(10_000, &store));
    tokio::time::sleep(Duration::from_secs(DUE_PER_LOT as u64 + 1_000)).await;
    let before = store.asked.load(Ordering::Relaxed);
    assert!(before <= TOO_OFTEN, "it fell silent");
    tokio::time::sleep(Duration::from_secs(600)).await;
    let asked = store.asked.load(Ordering::Relaxed) - before;
    assert!(asked <= 11, "{asked} times in ten minutes");
    assert!(health.report().live);
    serving.abort();
}
