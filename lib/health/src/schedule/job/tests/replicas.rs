//! Replicas that share a store, and are killed again and again.

use super::*;
use crate::schedule::SqliteStore;

/// A store that is away, and a witness to what it took: which instants have a record.
#[derive(Clone)]
struct ReplicaWitness<S> {
    store: S,
    entries: Arc<Mutex<Vec<ScheduleEntry>>>,
}

impl<S: ScheduleStore> ScheduleStore for ReplicaWitness<S> {
    async fn open(&self, job: &str, now: Wall) -> Result<JobRecords, StoreError> {
        let answer = ScheduleStore::open(&self.store, job, now).await;
        DistantStore::travel().await;
        answer
    }

    async fn add(&self, job: &str, after: Wall, entries: Vec<ScheduleEntry>) -> Result<bool, StoreError> {
        DistantStore::travel().await;
        let added = ScheduleStore::add(&self.store, job, after, entries.clone()).await?;
        if added {
            self.entries.lock().unwrap().extend(entries);
        }
        DistantStore::travel().await;
        Ok(added)
    }

    async fn reclaim(&self, job: &str, run: OpenRun, until: Wall) -> Result<bool, StoreError> {
        DistantStore::travel().await;
        ScheduleStore::reclaim(&self.store, job, run, until).await
    }

    async fn end(&self, job: &str, due: Wall, end: RunEnd) -> Result<(), StoreError> {
        DistantStore::travel().await;
        ScheduleStore::end(&self.store, job, due, end).await
    }
}

/// Numbers that look like chance, and are the same on every run.
fn dice(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut n = seed;
    move |below| {
        n += 1;
        (u128::from(below) * jitter("dice", Wall::from_ms(n), Duration::from_secs(4_294_967)).as_millis()
            / 4_294_967_001) as u64
    }
}

/// Replicas that share a store and are killed at any moment: in the middle of a run, of a question, of an answer.
/// `fired` reads the due instants of all that was fired, each time.
async fn kill_replicas<S: ScheduleStore + Clone>(
    store: S,
    kills: usize,
    fired: impl Fn(&ReplicaWitness<S>) -> Vec<u64>,
) {
    const PERIOD: u64 = 120;
    let witness = ReplicaWitness { store, entries: Arc::default() };
    let (seen, now) = (RunList::default(), wall());
    let job = || {
        let seen = Arc::clone(&seen);
        let work = move |run: JobRun| {
            let seen = Arc::clone(&seen);
            async move {
                tokio::time::sleep(Duration::from_secs(5)).await;
                seen.lock().unwrap().push((run.due.as_ms() - START_MS) / 1_000);
                Ok::<_, String>(())
            }
        };
        let job = Job::every("tick", Duration::from_secs(PERIOD), work).unwrap().critical().clock(now.clone());
        let job = job.overlap(Overlap::Allow).missed(MissedPolicy::All).longest_run(Duration::from_secs(30));
        job.store(witness.clone())
    };
    let mut dice = dice(7);
    let mut replicas: Vec<_> = (0..3).map(|_| serve(job())).collect();
    for _ in 0..kills {
        // Often around an instant, where much happens within a few milliseconds.
        let to_next = PERIOD * 1_000 - (now().as_ms() - START_MS) % (PERIOD * 1_000);
        let wait = if dice(3) == 0 { to_next + dice(12) } else { dice(20_000) };
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let (_, _, serving) = replicas.swap_remove(dice(3) as usize);
        serving.abort();
        let _ = serving.await;
        replicas.push(serve(job()));
    }
    // Long enough for every claim of the dead to run out.
    tokio::time::sleep(Duration::from_secs(600)).await;
    let last = (now().as_ms() - START_MS) / 1_000 / PERIOD;
    let mut recorded: Vec<u64> = fired(&witness).iter().map(|due_ms| (due_ms - START_MS) / 1_000).collect();
    recorded.sort_unstable();
    let expected: Vec<u64> = (1..=last).map(|n| n * PERIOD).collect();
    assert_eq!(recorded, expected, "each due instant has exactly one record");
    let mut done = seen.lock().unwrap().clone();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done, expected, "and each was run to its end by somebody");
    assert!(ScheduleStore::open(&witness.store, "tick", now()).await.unwrap().open.is_empty());
    for (_, stopper, serving) in replicas {
        stop(&stopper, serving).await;
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_that_are_killed_a_thousand_times_leave_one_record_for_each_instant() {
    let fired = |witness: &ReplicaWitness<MemoryStore>| {
        let due = |entry: &ScheduleEntry| match entry {
            ScheduleEntry::Fired { due, .. } => due.as_ms(),
            ScheduleEntry::Passed(passed) => panic!("by `all` and `allow` every instant fires: {passed:?}"),
        };
        witness.entries.lock().unwrap().iter().map(due).collect()
    };
    kill_replicas(MemoryStore::new(), 1_000, fired).await;
}

#[tokio::test(start_paused = true)]
async fn and_so_they_do_where_they_share_a_file_of_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = SqliteStore::open(&path).await.unwrap();
    // From the file itself: a replica may be killed between its commit and the answer.
    let fired = |_: &ReplicaWitness<SqliteStore>| {
        let file = rusqlite::Connection::open(&path).unwrap();
        let mut read = file.prepare("SELECT due_ms FROM onward_schedule_records WHERE record = 'fired'").unwrap();
        let due = read.query_map([], |row| row.get::<_, i64>(0)).unwrap();
        due.map(|ms| ms.unwrap() as u64).collect()
    };
    kill_replicas(store, 60, fired).await;
}

#[tokio::test(start_paused = true)]
async fn a_weekly_job_survives_daily_restarts_on_sqlite_as_well() {
    const DAY: u64 = 86_400;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let (seen, now) = (RunList::default(), wall());
    for _ in 0..15 {
        let store = SqliteStore::open(&path).await.unwrap();
        let job = noting(&seen, "weekly", Duration::from_secs(7 * DAY)).critical().clock(now.clone()).store(store);
        let (_, _, serving) = serve(job);
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        serving.abort();
        let _ = serving.await;
        tokio::time::sleep(Duration::from_secs(DAY - 3_600)).await;
    }
    let first = 7 * DAY - (START_MS / 1_000) % (7 * DAY);
    assert_eq!(*seen.lock().unwrap(), [0, 1].map(|week| first + week * 7 * DAY));
}
