//! A primary with a synchronous standby: what is acknowledged is on both, whatever is done to a commit that waits.

use std::thread;
use std::time::{Duration, Instant};

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_log::{Error, Log};
use onward_postgres::{Database, DatabaseOptions, PostgresLog};
use onward_testkit::PostgresServer;

use crate::{PATIENCE, append, is_unknown, patient, read_all, seize, until_known};

/// A primary, its standby, and a log with one batch that both have. Impatient ones are told soon that nothing is known.
struct Pair {
    primary: PostgresServer,
    standby: PostgresServer,
    database: Database,
    log: PostgresLog,
    term: Term,
    url: String,
}

const LOG: &str = "dc1";

const IMPATIENT: Duration = Duration::from_millis(300);

impl Pair {
    fn start() -> Self {
        let primary = PostgresServer::options().fsync().start().unwrap();
        let url = primary.database().unwrap();
        let standby = primary.start_synchronous_standby().unwrap();
        let database = patient(&url);
        let mut log = database.log(LOG).unwrap();
        let term = seize(&mut log).unwrap().term;
        append(&mut log, term, 1).unwrap();
        Self { primary, standby, database, log, term, url }
    }

    /// Appends the second batch while the standby is away, and interrupts its wait.
    fn append_interrupted(&mut self, by: &str) -> Result<(), Error> {
        let (primary, log, term) = (&self.primary, &mut self.log, self.term);
        thread::scope(|scope| {
            let appending = scope.spawn(move || append(log, term, 2));
            interrupt_wait(primary, by);
            appending.join().unwrap()
        })
    }

    /// Kills the primary, and reads what the standby has in its place.
    fn fail_over(self) -> Vec<(u64, Term)> {
        self.primary.server().kill();
        self.standby.server().start_again().unwrap();
        self.standby.promote().unwrap();
        let url = self.url.replace(&format!(":{}/", self.primary.port()), &format!(":{}/", self.standby.port()));
        let mut log = patient(&url).log(LOG).unwrap();
        let tail = seize(&mut log).unwrap();
        let found = read_all(&mut log);
        assert_eq!(tail.last, Seq(found.len() as u64));
        append(&mut log, tail.term, tail.last.0 + 1).unwrap();
        found
    }
}

/// Waits until a backend waits for the standby, and calls a function with its number.
fn interrupt_wait(primary: &PostgresServer, by: &str) {
    let since = Instant::now();
    let interrupt = format!("select {by}(pid) from pg_stat_activity where wait_event = 'SyncRep'");
    while primary.ask(&interrupt).unwrap() != "t" {
        assert!(since.elapsed() < PATIENCE, "nobody waits for the standby");
    }
}

/// A handle that gives up soon.
fn impatient(url: &str) -> PostgresLog {
    let since = Instant::now();
    loop {
        let opened = DatabaseOptions::default().answered_within(IMPATIENT).open(url);
        match opened.map_err(|error| error.to_string()).and_then(|it| it.log(LOG).map_err(|error| error.to_string())) {
            Ok(log) => return log,
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
        }
    }
}

/// The batch is on the primary and nowhere else; nobody was told that it is stored, however often it is asked for; and a
/// standby in the primary's place does not have it.
fn an_interrupted_wait_is_no_success(by: &str) {
    let mut pair = Pair::start();
    pair.standby.server().kill();
    let asked = pair.append_interrupted(by);
    assert!(is_unknown(&asked), "{asked:?}");
    let mut reader = pair.database.log(LOG).unwrap();
    assert_eq!(read_all(&mut reader).len(), 2, "the primary has it");
    // Asked again it is found, and the confirmation waits.
    let again = append(&mut impatient(&pair.url), pair.term, 2);
    assert!(is_unknown(&again), "{again:?}");
    assert_eq!(pair.fail_over().len(), 1, "the standby has what was acknowledged, and no more");
}

#[test]
fn a_cancelled_wait_for_the_standby_is_no_success() {
    an_interrupted_wait_is_no_success("pg_cancel_backend");
}

#[test]
fn a_terminated_wait_for_the_standby_is_no_success() {
    an_interrupted_wait_is_no_success("pg_terminate_backend");
}

/// A frozen standby, as by SIGSTOP: commits wait, and go through once it goes on.
#[test]
fn a_batch_that_waited_for_a_frozen_standby_is_acknowledged_once_it_is_there() {
    let mut pair = Pair::start();
    pair.standby.server().freeze();
    let asked = pair.append_interrupted("pg_cancel_backend");
    assert!(is_unknown(&asked), "{asked:?}");
    let mut log = impatient(&pair.url);
    for _ in 0..3 {
        assert!(is_unknown(&append(&mut log, pair.term, 2)));
    }
    let taken = log.take_seat(pair.term);
    assert!(is_unknown(&taken), "nor can the seat be taken: {taken:?}");
    pair.standby.server().thaw();
    // A request to take the seat was on its way: its term may have begun, and is used by nobody.
    match until_known(|| append(&mut log, pair.term, 2)) {
        Ok(()) | Err(Error::StaleTerm { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    assert_eq!(read_all(&mut pair.log).len(), 2);
    pair.standby.server().kill();
    assert_eq!(pair.fail_over().len(), 2);
}

/// Requests that were given up do not pile up in the database: at most the one that waits for the standby stays.
#[test]
fn requests_that_were_given_up_leave_the_database() {
    let mut pair = Pair::start();
    pair.standby.server().freeze();
    let mut log = impatient(&pair.url);
    for _ in 0..6 {
        assert!(is_unknown(&append(&mut log, pair.term, 2)));
    }
    let since = Instant::now();
    let waiting = "select count(*) from pg_stat_activity where query like '%onward.seat%' and state = 'active' and pid <> pg_backend_pid()";
    while pair.primary.ask(waiting).unwrap() != "1" {
        assert!(since.elapsed() < PATIENCE, "they stay: {}", pair.primary.ask(waiting).unwrap());
    }
    pair.standby.server().thaw();
    until_known(|| append(&mut pair.log, pair.term, 2)).unwrap();
}

#[test]
fn a_log_follows_its_primary_over_several_hosts() {
    let Pair { primary, standby, url, term, .. } = Pair::start();
    let (one, other) = (primary.port(), standby.port());
    // The standby first: it accepts no writes.
    let both = url.replace(&format!("127.0.0.1:{one}"), &format!("127.0.0.1:{other},127.0.0.1:{one}"));
    let mut log = patient(&both).log(LOG).unwrap();
    append(&mut log, term, 2).unwrap();
    primary.server().kill();
    assert!(is_unknown(&append(&mut log, term, 3)), "neither accepts writes");
    standby.promote().unwrap();
    until_known(|| append(&mut log, term, 3)).unwrap();
    assert_eq!(read_all(&mut log).len(), 3);
}
