//! The log on a real PostgreSQL: opened, raced for, cut off, and failed over.

mod answers;
mod archive;
mod faults;
mod opening;
mod race;
mod standby;

use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_log::conformance::Bed;
use onward_log::conformance::archive::ArchiveBed;
use onward_log::{
    BatchId, BatchKey, Blob, Error, Log, LogChange, LogRow, Tail, archive_conformance_tests, conformance_tests,
};
use onward_postgres::{Database, DatabaseOptions, PostgresArchive, PostgresLog};
use onward_testkit::PostgresServer;

/// Longer than anything here takes, on a busy computer too.
const PATIENCE: Duration = Duration::from_secs(120);

conformance_tests!(in one test: the_log_keeps_what_every_log_promises, PostgresBed);
archive_conformance_tests!(in one test: the_archive_keeps_what_every_archive_promises, PostgresBed);

/// A log of its own in the shared database; another process finds it by its name.
struct PostgresBed {
    database: Database,
    name: String,
}

impl Bed for PostgresBed {
    type Log = PostgresLog;
    fn new() -> Self {
        Self { database: patient(shared_url()), name: log_name() }
    }
    fn handle(&self) -> PostgresLog {
        self.database.log(&self.name).unwrap()
    }
    fn restart(self) -> Self {
        Self { database: patient(shared_url()), name: self.name }
    }
}

impl ArchiveBed for PostgresBed {
    type Archive = PostgresArchive;
    fn new() -> Self {
        Bed::new()
    }
    fn handle(&self) -> PostgresArchive {
        self.database.archive(&self.name)
    }
    fn restart(self) -> Self {
        Bed::restart(self)
    }
}

/// A cluster for all tests that make no outage of it.
fn shared() -> &'static PostgresServer {
    static SHARED: OnceLock<PostgresServer> = OnceLock::new();
    SHARED.get_or_init(|| PostgresServer::options().fsync().start().expect("PostgreSQL starts"))
}

/// A database of that cluster; each test has logs of its own in it.
fn shared_url() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| shared().database().expect("a database is made"))
}

/// A name that no other test uses.
fn log_name() -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    format!("dc{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// Opens a database whose answers may take as long as they take.
fn patient(url: &str) -> Database {
    DatabaseOptions::default().answered_within(PATIENCE).open(url).unwrap()
}

fn key(term: Term, first: u64) -> BatchKey {
    BatchKey { term, id: BatchId(first), first: Seq(first) }
}

/// The row of one event in these tests.
const BODY: LogRow<'static> = LogRow { count: 1, body: b"one event" };

/// Appends one event as the batch of its number.
fn append(log: &mut PostgresLog, term: Term, first: u64) -> Result<(), Error> {
    log.append(key(term, first), BODY, &[])
}

fn append_blob(log: &mut PostgresLog, term: Term, first: u64, digest: u8) -> Result<(), Error> {
    log.append(key(term, first), BODY, &[Blob { digest: [digest; 32], bytes: &[digest; 100] }])
}

/// Takes the seat from whoever has it.
fn seize(log: &mut PostgresLog) -> Result<Tail, Error> {
    let seen = log.tail()?.term;
    log.take_seat(seen)
}

/// Asks the same until it is known what became of it.
fn until_known<T>(mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let since = std::time::Instant::now();
    loop {
        match ask() {
            Err(error) if error.changed() == LogChange::Maybe => {
                assert!(since.elapsed() < PATIENCE, "still not known: {error}");
                std::thread::yield_now();
            }
            known => return known,
        }
    }
}

/// The sequence number and the term of each event: there is no gap, no overlap, and no term that comes back.
fn read_all(log: &mut PostgresLog) -> Vec<(u64, Term)> {
    let rows = log.read(Seq(1), usize::MAX).unwrap();
    let found: Vec<(u64, Term)> = rows.iter().map(|row| (row.key.first.0, row.key.term)).collect();
    assert!(found.iter().map(|(first, _)| *first).eq(1..=found.len() as u64), "{found:?}");
    assert!(found.is_sorted_by_key(|(_, term)| *term), "{found:?}");
    found
}

fn is_unknown<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Unknown { .. }))
}

fn psql(url: &str, command: &str) -> String {
    let output = Command::new("psql").args(["--no-psqlrc", "-qtA", url, "-c", command]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
