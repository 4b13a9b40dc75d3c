//! Jobs by the clock in real processes: one that always fails, and replicas on one PostgreSQL that are killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onward_health::Supervisor;
use onward_health::schedule::{Job, JobRun, Overlap, PostgresStore};
use onward_testkit::PostgresServer;
use tokio_postgres::{Client, NoTls};

use crate::support::{Program, get, probe, until};

const FROM_KERNEL: &str = "127.0.0.1:0";
const SECOND: Duration = Duration::from_secs(1);

/// A service with one critical job, which fails as long as a file is there.
#[test]
fn program_with_a_job() {
    let Some(folder) = std::env::var_os("JOB_IN").map(PathBuf::from) else { return };
    let (source, file) = (folder.join("source"), folder.join("ready"));
    let import = move |run: JobRun| {
        let source = source.clone();
        async move {
            run.progress(0);
            tokio::fs::read(source).await.map(drop)
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let service = Supervisor::new("importer").probes(FROM_KERNEL).ready_file(file);
        service.add(Job::every("import", SECOND, import).unwrap().critical());
        service.run().await.unwrap();
    });
}

/// The third false green: the scheduler runs, and what it is there for never succeeds.
#[test]
fn a_scheduler_whose_critical_job_always_fails_is_red_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let (source, file) = (folder.path().join("source"), folder.path().join("ready"));
    fs::write(&source, "").unwrap();
    fs::write(&file, "pid=1\nof a predecessor").unwrap();
    let mut program = Program::start("schedules::program_with_a_job", &[("JOB_IN", folder.path())]);
    let address = program.probes(&file);
    assert_eq!((get(address, "/livez").0, get(address, "/readyz").0), (200, 200));
    fs::remove_file(&source).unwrap();
    let body = until("red", || Some(probe(address, "/readyz")).filter(|(code, _)| *code == 503)).1;
    let job = &body["loops"][0];
    assert_eq!((&job["name"], &job["state"]), (&"import".into(), &"failing".into()), "{body}");
    assert_eq!((&job["reason"], &job["failures"]), (&"budget_spent".into(), &3.into()), "{body}");
    let reason = body["reason"].as_str().unwrap();
    assert!(reason.starts_with("loop `import` is failing") && reason.contains("No such file or directory"), "{reason}");
    until("the file is removed", || (!file.exists()).then_some(()));
    assert_eq!(get(address, "/livez").0, 200, "a restart would not help");
    fs::write(&source, "").unwrap();
    until("green", || (get(address, "/readyz").0 == 200).then_some(()));
    until("the file is back", || file.exists().then_some(()));
    assert_eq!(get(address, "/livez").0, 200);
}

/// A replica: it fires every second, and says in a table which instant it ran.
#[test]
fn program_that_is_a_replica() {
    let Ok(url) = std::env::var("REPLICA_OF") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = PostgresStore::open(&url).await.unwrap();
        let note = move |run: JobRun| {
            let url = url.clone();
            async move {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
                tokio::spawn(connection);
                let due = run.due().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                client.execute("INSERT INTO runs VALUES ($1)", &[&(due.as_millis() as i64)]).await.map(drop)
            }
        };
        let service = Supervisor::new("replica");
        service.add(Job::every("tick", SECOND, note).unwrap().critical().overlap(Overlap::Allow).store(store));
        service.run().await.unwrap();
    });
}

async fn horizon(client: &Client) -> i64 {
    let known = client.query_opt("SELECT horizon_ms FROM onward_schedules", &[]).await.unwrap();
    known.map_or(0, |row| row.get(0))
}

/// Waits until the records reach so far.
async fn reaches(client: &Client, ms: i64) {
    let began = std::time::Instant::now();
    while horizon(client).await < ms {
        assert!(began.elapsed() < Duration::from_secs(120), "nobody fires");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn replicas_on_one_postgres_that_are_killed_give_each_instant_one_record() {
    let url = PostgresServer::shared().database().unwrap();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE runs (due_ms bigint)").await.unwrap();
    let _made = PostgresStore::open(&url).await.unwrap();
    let start = || Program::start("schedules::program_that_is_a_replica", &[("REPLICA_OF", Path::new(&url))]);
    let mut replicas: Vec<Program> = (0..3).map(|_| start()).collect();
    reaches(&client, 1).await;
    let first = horizon(&client).await;
    // Each time somebody has fired, one of them dies at once: perhaps the one that did, in the middle of it.
    for kill in 1..=4 {
        reaches(&client, first + kill * 1_000).await;
        drop(replicas.remove(kill as usize % 3));
        replicas.push(start());
    }
    // And then all of them, for longer than a period: what nobody was there for has its record as well.
    let alone = horizon(&client).await;
    replicas.clear();
    tokio::time::sleep(Duration::from_millis(2_300)).await;
    replicas.push(start());
    reaches(&client, alone + 3_000).await;
    replicas.clear();
    let read =
        "SELECT due_ms, last_due_ms, count, record, outcome, (SELECT count(*) FROM runs WHERE runs.due_ms = r.due_ms)
        FROM onward_schedule_records r ORDER BY due_ms";
    let mut next = None;
    let mut fired = 0;
    for row in client.query(read, &[]).await.unwrap() {
        let (due, last, count): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let (record, outcome, runs): (&str, Option<&str>, i64) = (row.get(3), row.get(4), row.get(5));
        assert_eq!(due, next.unwrap_or(due), "no instant is left out, and none has two records");
        assert_eq!(last - due, (count - 1) * 1_000);
        next = Some(last + 1_000);
        match (record, outcome) {
            ("fired", Some(outcome)) => assert_eq!((outcome, runs), ("succeeded", 1), "at {due}"),
            // Killed in the middle of it. Its claim has not run out yet.
            ("fired", None) => assert!(runs <= 1, "at {due}"),
            _ => assert_eq!(runs, 0, "at {due}"),
        }
        fired += i64::from(record == "fired");
    }
    assert!(fired >= 5, "{fired} of them fired");
}
