//! The same questions to every store. Time is what the test says it is.

use std::sync::Arc;

use onward_core::schedule::RECORDS_KEPT;
use onward_testkit::PostgresServer;
use tempfile::TempDir;

use super::*;
use crate::schedule::{FileStore, PostgresStore, SqliteStore};

/// A store, seen from as many processes as may share it.
struct World {
    seats: Vec<Arc<dyn AnyStore>>,
    _folder: Option<TempDir>,
}

impl World {
    fn of(seats: Vec<Arc<dyn AnyStore>>) -> Self {
        Self { seats, _folder: None }
    }

    async fn memory() -> Self {
        Self::of(vec![Arc::new(MemoryStore::new())])
    }

    async fn file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path().join("schedules.json")).unwrap();
        Self { seats: vec![Arc::new(store)], _folder: Some(folder) }
    }

    async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schedules.db");
        let mut seats: Vec<Arc<dyn AnyStore>> = Vec::new();
        for _ in 0..3 {
            seats.push(Arc::new(SqliteStore::open(&path).await.unwrap()));
        }
        Self { seats, _folder: Some(folder) }
    }

    async fn postgres() -> Self {
        let url = PostgresServer::shared().database().unwrap();
        let opening = (0..3).map(|_| {
            let url = url.clone();
            tokio::spawn(async move { PostgresStore::open(&url).await.unwrap() })
        });
        let opening: Vec<_> = opening.collect();
        let mut seats: Vec<Arc<dyn AnyStore>> = Vec::new();
        for one in opening {
            seats.push(Arc::new(one.await.unwrap()));
        }
        Self::of(seats)
    }

    fn store(&self) -> &dyn AnyStore {
        &*self.seats[0]
    }

    /// Asks from all processes at once, several times each; the answers.
    async fn together<F, R>(&self, ask: F) -> Vec<bool>
    where
        F: Fn(Arc<dyn AnyStore>) -> R,
        R: Future<Output = bool> + Send + 'static,
    {
        let asked: Vec<_> = (0..4).flat_map(|_| &self.seats).map(|seat| tokio::spawn(ask(Arc::clone(seat)))).collect();
        let mut answers = Vec::new();
        for one in asked {
            answers.push(one.await.unwrap());
        }
        answers
    }
}

fn at(ms: u64) -> Wall {
    Wall::from_ms(ms)
}

fn fired(due: u64, until: u64) -> ScheduleEntry {
    ScheduleEntry::Fired { due: at(due), reason: RecordReason::OnTime, claimed_until: at(until) }
}

fn missed(first: u64, last: u64, count: u64) -> ScheduleEntry {
    ScheduleEntry::Passed(PassedInstants { reason: RecordReason::Superseded, first: at(first), last: at(last), count })
}

fn open(due: u64, until: u64) -> OpenRun {
    OpenRun { due: at(due), claimed_until: at(until) }
}

/// Each question as a test of every store.
macro_rules! conformance {
    ($($question:ident),* $(,)?) => {
        conformance!(on_memory memory; $($question)*);
        conformance!(on_a_file file; $($question)*);
        conformance!(on_sqlite sqlite; $($question)*);
        conformance!(on_postgres postgres; $($question)*);
    };
    ($name:ident $world:ident; $($question:ident)*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $question() {
                super::$question(super::World::$world().await).await;
            })*
        }
    };
}

conformance!(
    a_new_job_begins_now_and_an_old_one_where_it_was,
    instants_behind_the_horizon_have_their_record,
    of_many_that_find_an_instant_due_one_adds_it,
    a_claim_that_ran_out_is_taken_over_by_one,
    a_run_that_ended_is_open_no_more,
    the_newest_runs_that_ended_are_known_with_their_ends,
    jobs_do_not_meet,
    however_many_records_there_were_open_runs_are_known,
);

async fn a_new_job_begins_now_and_an_old_one_where_it_was(world: World) {
    for now in [1_800_000_000_100, 1_800_000_000_900] {
        let known = world.store().open("j", at(now)).await.unwrap();
        assert_eq!(known, JobRecords { horizon: at(1_800_000_000_100), open: vec![], ended: vec![] });
    }
}

async fn instants_behind_the_horizon_have_their_record(world: World) {
    world.store().open("j", at(100)).await.unwrap();
    let entries = vec![missed(110, 130, 3), fired(140, 900)];
    assert!(world.store().add("j", at(100), entries.clone()).await.unwrap());
    let known = JobRecords { horizon: at(140), open: vec![open(140, 900)], ended: vec![] };
    assert_eq!(world.store().open("j", at(500)).await.unwrap(), known);
    for after in [100, 139, 141] {
        assert!(!world.store().add("j", at(after), entries.clone()).await.unwrap(), "the horizon is not {after}");
    }
    assert_eq!(world.store().open("j", at(500)).await.unwrap(), known, "who comes too late changes nothing");
    assert!(world.store().add("j", at(140), vec![missed(150, 150, 1)]).await.unwrap());
    let known = JobRecords { horizon: at(150), open: vec![open(140, 900)], ended: vec![] };
    assert_eq!(world.store().open("j", at(500)).await.unwrap(), known);
}

async fn of_many_that_find_an_instant_due_one_adds_it(world: World) {
    world.store().open("j", at(0)).await.unwrap();
    for round in 0..10 {
        let (after, due) = (at(round * 10), round * 10 + 10);
        let added = world
            .together(move |store| async move { store.add("j", after, vec![fired(due, due + 5)]).await.unwrap() })
            .await;
        assert_eq!(added.iter().filter(|added| **added).count(), 1, "round {round}");
    }
    let known = world.store().open("j", at(0)).await.unwrap();
    let runs: Vec<OpenRun> = (1..=10).map(|n| open(n * 10, n * 10 + 5)).collect();
    assert_eq!((known.horizon, known.open), (at(100), runs));
}

async fn a_claim_that_ran_out_is_taken_over_by_one(world: World) {
    world.store().open("j", at(0)).await.unwrap();
    world.store().add("j", at(0), vec![fired(10, 20), fired(11, 21)]).await.unwrap();
    let taken = world.together(|store| async move { store.reclaim("j", open(10, 20), at(40)).await.unwrap() }).await;
    assert_eq!(taken.iter().filter(|taken| **taken).count(), 1);
    assert!(!world.store().reclaim("j", open(10, 21), at(50)).await.unwrap(), "this is no claim of it");
    assert!(!world.store().reclaim("j", open(12, 22), at(50)).await.unwrap(), "there is no such run");
    assert_eq!(world.store().open("j", at(0)).await.unwrap().open, [open(10, 40), open(11, 21)]);
}

async fn a_run_that_ended_is_open_no_more(world: World) {
    world.store().open("j", at(0)).await.unwrap();
    world.store().add("j", at(0), vec![fired(10, 20), fired(11, 21)]).await.unwrap();
    for end in [RunEnd::Succeeded, RunEnd::Failed] {
        world.store().end("j", at(10), end).await.unwrap();
        assert_eq!(world.store().open("j", at(0)).await.unwrap().open, [open(11, 21)]);
    }
    assert!(!world.store().reclaim("j", open(10, 20), at(40)).await.unwrap());
}

async fn the_newest_runs_that_ended_are_known_with_their_ends(world: World) {
    world.store().open("j", at(0)).await.unwrap();
    let last = ENDED_TOLD as u64 + 4;
    let lot = (1..=last).map(|due| fired(due, 900)).chain([missed(last + 1, last + 9, 9)]);
    assert!(world.store().add("j", at(0), lot.collect()).await.unwrap());
    let ended = |due: u64| EndedRun {
        due: at(due),
        end: if due.is_multiple_of(3) { RunEnd::Failed } else { RunEnd::Succeeded },
    };
    // One stays open, and they do not end in order.
    let ends: Vec<u64> = (2..=last).rev().collect();
    for due in &ends {
        world.store().end("j", at(*due), ended(*due).end).await.unwrap();
    }
    for seat in &world.seats {
        let known = seat.open("j", at(0)).await.unwrap();
        assert_eq!((known.horizon, known.open), (at(last + 9), vec![open(1, 900)]));
        assert_eq!(known.ended, (5..=last).map(ended).collect::<Vec<_>>(), "the newest, oldest first");
    }
}

async fn jobs_do_not_meet(world: World) {
    for job in ["a", "b"] {
        world.store().open(job, at(0)).await.unwrap();
    }
    assert!(world.store().add("a", at(0), vec![fired(10, 20)]).await.unwrap());
    assert!(world.store().add("b", at(0), vec![fired(10, 30)]).await.unwrap());
    world.store().end("a", at(10), RunEnd::Succeeded).await.unwrap();
    assert_eq!(world.store().open("b", at(0)).await.unwrap().open, [open(10, 30)]);
}

async fn however_many_records_there_were_open_runs_are_known(world: World) {
    world.store().open("j", at(0)).await.unwrap();
    world.store().add("j", at(0), vec![fired(1, 20)]).await.unwrap();
    let mut horizon = 1;
    for _ in 0..20 {
        let lot: Vec<ScheduleEntry> = (1..=50).map(|n| missed(horizon + n, horizon + n, 1)).collect();
        assert!(world.store().add("j", at(horizon), lot).await.unwrap());
        horizon += 50;
    }
    let known = world.store().open("j", at(0)).await.unwrap();
    assert_eq!((known.horizon, known.open), (at(1_001), vec![open(1, 20)]));
}

#[tokio::test]
async fn tables_hold_the_newest_records_and_what_became_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("schedules.db");
    let sqlite = SqliteStore::open(&path).await.unwrap();
    let in_sqlite = rusqlite::Connection::open(&path).unwrap();
    let url = PostgresServer::shared().database().unwrap();
    let postgres = PostgresStore::open(&url).await.unwrap();
    let (in_postgres, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let stores: [&dyn AnyStore; 2] = [&sqlite, &postgres];
    for store in stores {
        store.open("j", at(0)).await.unwrap();
        store.add("j", at(0), vec![missed(10, 30, 3), fired(40, 90), fired(50, 90)]).await.unwrap();
        store.end("j", at(40), RunEnd::Failed).await.unwrap();
    }
    let read = "SELECT due_ms, last_due_ms, count, record, reason, claimed_until_ms, outcome
        FROM onward_schedule_records ORDER BY due_ms";
    type ReadResult = (i64, i64, i64, String, String, Option<i64>, Option<String>);
    let words = |record: &str, reason: &str| (record.to_owned(), reason.to_owned());
    let (gone, ran) = (words("missed", "superseded"), words("fired", "on_time"));
    let expected: [ReadResult; 3] = [
        (10, 30, 3, gone.0, gone.1, None, None),
        (40, 40, 1, ran.0.clone(), ran.1.clone(), None, Some("failed".into())),
        (50, 50, 1, ran.0, ran.1, Some(90), None),
    ];
    let mut found = in_sqlite.prepare(read).unwrap();
    let found = found.query_map([], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
    });
    assert_eq!(found.unwrap().collect::<Result<Vec<ReadResult>, _>>().unwrap(), expected);
    let found = in_postgres.query(read, &[]).await.unwrap();
    let found =
        found.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5), row.get(6)));
    assert_eq!(found.collect::<Vec<ReadResult>>(), expected);
    for store in stores {
        for n in 50..=50 + 2 * RECORDS_KEPT as u64 {
            assert!(store.add("j", at(n), vec![missed(n + 1, n + 1, 1)]).await.unwrap());
        }
    }
    let count = "SELECT count(*) FROM onward_schedule_records";
    // The newest, the one that was just added, and the run that is open.
    let kept = RECORDS_KEPT as i64 + 2;
    assert!(in_sqlite.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap() <= kept);
    assert!(in_postgres.query_one(count, &[]).await.unwrap().get::<_, i64>(0) <= kept);
    let again = in_postgres
        .batch_execute("INSERT INTO onward_schedule_records SELECT * FROM onward_schedule_records LIMIT 1")
        .await;
    assert_eq!(again.unwrap_err().code(), Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION));
}

#[tokio::test]
async fn what_cannot_be_opened_is_said() {
    let error = PostgresStore::open("postgres://nobody@127.0.0.1:1/shop").await.unwrap_err().to_string();
    assert!(error.starts_with("the store of schedules: no connection to the database"), "{error}");
    let error = PostgresStore::open("mysql:secret").await.unwrap_err().to_string();
    assert!(error.contains("write postgres://user@host/database") && !error.contains("secret"), "{error}");
    let error = SqliteStore::open("/proc/none/schedules.db").await.unwrap_err().to_string();
    assert!(error.starts_with("the store of schedules: cannot open /proc/none/schedules.db: "), "{error}");
    let url = PostgresServer::shared().database().unwrap();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
        .batch_execute("CREATE TABLE onward_schedules (job int); CREATE TABLE onward_schedule_records ()")
        .await
        .unwrap();
    let error = PostgresStore::open(&url).await.unwrap_err().to_string();
    assert!(error.contains("horizon_ms"), "{error}");
}
