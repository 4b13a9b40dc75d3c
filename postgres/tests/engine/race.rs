//! Two that believe to lead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use onward_core::ids::Seq;
use onward_log::{Error, Log};

use crate::{append, log_name, patient, read_all, seize, shared_url};

/// Once the seat was taken and the tail was read, nothing of an earlier term is acknowledged behind that tail, and nothing
/// that was acknowledged is missing from it.
#[test]
fn what_an_old_leader_was_promised_is_what_its_successor_reads() {
    let database = patient(shared_url());
    let name = log_name();
    let mut successor = database.log(&name).unwrap();
    let mut next = 1;
    for _ in 0..15 {
        let mut old = database.log(&name).unwrap();
        let term = seize(&mut old).unwrap().term;
        let (is_at_work, is_taken) = (AtomicBool::new(false), AtomicBool::new(false));
        let (acknowledged, tail) = thread::scope(|scope| {
            let (is_at_work, is_taken) = (&is_at_work, &is_taken);
            let appending = scope.spawn(move || {
                for first in next.. {
                    let was_taken = is_taken.load(Ordering::SeqCst);
                    match append(&mut old, term, first) {
                        Ok(()) if was_taken => panic!("it was acknowledged though another held the seat"),
                        Ok(()) => is_at_work.store(true, Ordering::SeqCst),
                        Err(Error::StaleTerm { .. }) => return first - 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                unreachable!("a log has an end")
            });
            while !is_at_work.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let tail = seize(&mut successor).unwrap();
            is_taken.store(true, Ordering::SeqCst);
            (appending.join().unwrap(), tail)
        });
        assert_eq!(tail.last, Seq(acknowledged));
        assert_eq!(successor.tail().unwrap(), tail, "nothing came behind it");
        next = acknowledged + 1;
    }
    assert_eq!(read_all(&mut successor).len() as u64, next - 1);
}

#[test]
fn a_term_is_never_used_twice_also_after_an_old_backup_was_restored() {
    let database = patient(shared_url());
    let name = log_name();
    let mut log = database.log(&name).unwrap();
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let first = seize(&mut log).unwrap().term;
    assert!(first.get() + 2 >= before, "{first} is older than this test");
    let second = seize(&mut log).unwrap().term;
    assert!(second > first);
}

#[test]
fn logs_of_one_database_know_nothing_of_each_other() {
    let database = patient(shared_url());
    let (mut one, mut other) = (database.log(&log_name()).unwrap(), database.log(&log_name()).unwrap());
    let term = seize(&mut one).unwrap().term;
    append(&mut one, term, 1).unwrap();
    assert!(matches!(append(&mut other, term, 2), Err(Error::StaleTerm { .. })));
    let term = seize(&mut other).unwrap().term;
    append(&mut other, term, 1).unwrap();
    assert_eq!((one.tail().unwrap().last, other.tail().unwrap().last), (Seq(1), Seq(1)));
}
