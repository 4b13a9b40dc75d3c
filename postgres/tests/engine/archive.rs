//! The archive of a log, and who may change it.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use onward_log::{Archive, ArchivedJob, Blob, Error, Log};

use crate::{PATIENCE, append, log_name, patient, psql, seize, shared_url};

const JOB: ArchivedJob<'_> = ArchivedJob { id: 1, ended_at_ms: 10, expires_at_ms: Some(20), row: b"job", blobs: &[] };
const LATER: ArchivedJob<'_> = ArchivedJob { id: 2, ..JOB };

#[test]
fn whoever_has_lost_the_seat_changes_nothing_in_the_archive() {
    let (database, name) = (patient(shared_url()), log_name());
    let (mut old, mut new) = (database.log(&name).unwrap(), database.log(&name).unwrap());
    let archive = database.archive(&name);
    let given = seize(&mut old).unwrap().term;
    let by_old = archive.under(given);
    by_old.put(&[JOB]).unwrap();
    let content = [Blob { digest: [7; 32], bytes: b"content" }];
    by_old.put_blobs(1, &content).unwrap();
    assert_eq!(by_old.expire(0, 9, 9), Ok(0));
    let current = seize(&mut new).unwrap().term;
    let stale = Error::StaleTerm { given, current };
    let other = [Blob { digest: [8; 32], bytes: b"content" }];
    assert_eq!(by_old.put(&[LATER, ArchivedJob { row: b"changed", blobs: &other, ..JOB }]), Err(stale.clone()));
    assert_eq!(by_old.put_blobs(1, &other), Err(stale.clone()));
    assert_eq!(by_old.expire(30, 0, 9), Err(stale));
    assert_eq!((archive.count(), archive.get(1), archive.get(2)), (Ok(1), Ok(Some(b"job".to_vec())), Ok(None)));
    assert_eq!((archive.blob(1, &[7; 32]), archive.blob(1, &[8; 32])), (Ok(Some(b"content".to_vec())), Ok(None)));
    let by_new = archive.under(current);
    by_new.put(&[LATER]).unwrap();
    assert_eq!((by_new.expire(30, 0, 9), archive.count()), (Ok(2), Ok(0)));
}

/// A change of the archive that is not over yet: it holds the seat's row as the statements of the archive do.
struct UnderWay(Child);

impl UnderWay {
    fn begin(log: &str) -> Self {
        let mut child = Command::new("psql")
            .args(["--no-psqlrc", "-qtA", "-v", "ON_ERROR_STOP=1", shared_url()])
            .env("PGAPPNAME", log)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let change = include_str!("../../sql/archive_put.sql");
        let lock = change.split("with seat as materialized (").nth(1).unwrap().split(')').next().unwrap();
        let lock = lock.replace("$1::text", &format!("'{log}'")).replace("$9::bigint", "term");
        writeln!(child.stdin.as_mut().unwrap(), "begin \\; {lock};").unwrap();
        let begun = format!(
            "select count(*) from pg_stat_activity where state = 'idle in transaction' and application_name = '{log}'"
        );
        let since = Instant::now();
        while psql(shared_url(), &begun) == "0" {
            assert!(child.try_wait().unwrap().is_none() && since.elapsed() < PATIENCE, "it has not begun");
        }
        Self(child)
    }

    fn end(mut self) {
        writeln!(self.0.stdin.as_mut().unwrap(), "commit;").unwrap();
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

#[test]
fn a_change_of_the_archive_holds_up_who_takes_the_seat_and_no_append() {
    let (database, name) = (patient(shared_url()), log_name());
    let mut leader = database.log(&name).unwrap();
    let term = seize(&mut leader).unwrap().term;
    let change = UnderWay::begin(&name);
    append(&mut leader, term, 1).unwrap();
    leader.confirm(term).unwrap();
    let (taken, is_taken) = channel();
    let mut successor = database.log(&name).unwrap();
    let taking = thread::spawn(move || taken.send(successor.take_seat(term)));
    assert!(matches!(is_taken.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout)));
    change.end();
    assert!(is_taken.recv_timeout(PATIENCE).unwrap().unwrap().term > term);
    taking.join().unwrap().unwrap();
}
