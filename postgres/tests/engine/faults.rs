//! A network that fails, between a log and its database.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use onward_core::fence::Term;
use onward_log::{Error, Log};
use onward_postgres::{DatabaseOptions, PostgresLog};
use onward_testkit::{FaultProxy, PostgresServer, Way};

use crate::{
    PATIENCE, append, append_blob, is_unknown, log_name, patient, read_all, seize, shared, shared_url, until_known,
};

/// A log behind a proxy, with a first batch, and the same log without the proxy.
struct Bed {
    proxy: FaultProxy,
    log: PostgresLog,
    direct: PostgresLog,
    term: Term,
}

fn bed(answered_within: Duration) -> Bed {
    let (url, name) = (shared_url(), log_name());
    let direct = patient(url).log(&name).unwrap();
    let proxy = FaultProxy::start(shared().port()).unwrap();
    let behind = url.replace(&format!(":{}/", shared().port()), &format!(":{}/", proxy.port()));
    assert_ne!(url, behind);
    let database = until_open(|| DatabaseOptions::default().answered_within(answered_within).open(&behind));
    let mut log = until_known_or_read(|| database.log(&name));
    let term = until_known_or_read(|| seize(&mut log)).term;
    until_known(|| append(&mut log, term, 1)).unwrap();
    Bed { proxy, log, direct, term }
}

/// Opens with a deadline that a busy computer may miss.
fn until_open<T>(mut open: impl FnMut() -> Result<T, onward_postgres::OpenError>) -> T {
    let since = std::time::Instant::now();
    loop {
        match open() {
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
            Ok(opened) => return opened,
        }
    }
}

/// The same, for what begins with a look.
fn until_known_or_read<T>(mut ask: impl FnMut() -> Result<T, Error>) -> T {
    let since = std::time::Instant::now();
    loop {
        match ask() {
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
            Ok(answer) => return answer,
        }
    }
}

#[test]
fn a_batch_whose_answer_was_lost_is_stored_once() {
    let Bed { proxy, mut log, mut direct, term } = bed(PATIENCE);
    proxy.lose_next_answer();
    assert!(is_unknown(&append(&mut log, term, 2)));
    assert_eq!(read_all(&mut direct).len(), 2, "it is stored, and nobody knows");
    until_known(|| append(&mut log, term, 2)).unwrap();
    until_known(|| append(&mut log, term, 3)).unwrap();
    assert_eq!(read_all(&mut direct).len(), 3);
}

#[test]
fn a_batch_that_never_arrived_is_stored_when_it_is_asked_for_again() {
    let Bed { proxy, mut log, mut direct, term } = bed(PATIENCE);
    proxy.hold(Way::ToServer, 0);
    let asked = thread::scope(|scope| {
        let asking = scope.spawn(|| append(&mut log, term, 2));
        proxy.wait_until_held();
        proxy.cut();
        asking.join().unwrap()
    });
    assert!(is_unknown(&asked), "{asked:?}");
    assert_eq!(read_all(&mut direct).len(), 1);
    until_known(|| append(&mut log, term, 2)).unwrap();
    assert_eq!(read_all(&mut direct).len(), 2);
}

#[test]
fn a_network_that_is_gone_leaves_nothing_known_until_it_is_back() {
    let Bed { proxy, mut log, mut direct, term } = bed(PATIENCE);
    proxy.refuse(true);
    for _ in 0..3 {
        assert!(is_unknown(&append(&mut log, term, 2)));
    }
    assert!(matches!(log.tail(), Err(Error::Io { .. })), "a look changes nothing");
    proxy.refuse(false);
    until_known(|| append(&mut log, term, 2)).unwrap();
    assert_eq!(read_all(&mut direct).len(), 2);
}

#[test]
fn a_connection_that_was_lost_while_nobody_asked_is_made_anew() {
    let Bed { proxy, mut log, term, .. } = bed(PATIENCE);
    for first in 2..6 {
        proxy.cut();
        until_known(|| append(&mut log, term, first)).unwrap();
    }
    assert_eq!(read_all(&mut log).len(), 5);
}

/// Nothing says that the other side has gone: only the clock does.
#[test]
fn a_half_open_connection_is_given_up_and_what_it_carried_comes_late_without_harm() {
    let Bed { proxy, mut log, mut direct, term } = bed(Duration::from_millis(300));
    proxy.silence(true);
    assert!(is_unknown(&append(&mut log, term, 2)));
    assert!(is_unknown(&append(&mut log, term, 2)));
    proxy.silence(false);
    for first in 2..5 {
        until_known(|| append(&mut log, term, first)).unwrap();
    }
    assert_eq!(read_all(&mut direct).len(), 4);
}

#[test]
fn a_slow_network_is_a_network() {
    let Bed { proxy, mut log, term, .. } = bed(PATIENCE);
    proxy.delay(Duration::from_millis(20));
    append(&mut log, term, 2).unwrap();
    assert_eq!(read_all(&mut log).len(), 2);
}

#[test]
fn a_batch_that_arrives_after_another_took_the_seat_is_refused() {
    let Bed { proxy, mut log, mut direct, term } = bed(PATIENCE);
    proxy.hold(Way::ToServer, 0);
    let (asked, tail) = thread::scope(|scope| {
        let asking = scope.spawn(|| append(&mut log, term, 2));
        proxy.wait_until_held();
        let tail = seize(&mut direct).unwrap();
        proxy.release();
        (asking.join().unwrap(), tail)
    });
    assert_eq!(asked, Err(Error::StaleTerm { given: term, current: tail.term }));
    assert_eq!(direct.tail().unwrap(), tail);
}

/// A request to drop a blob is on its way when its sender gives the connection up. It asks again, the blob goes, and comes back
/// with another batch. Then the first request arrives.
#[test]
fn a_request_to_drop_a_blob_that_arrives_late_drops_nothing() {
    let Bed { proxy, mut log, mut direct, term } = bed(PATIENCE);
    append_blob(&mut log, term, 2, 7).unwrap();
    // From now on a drop is two requests: the look, and the change.
    log.drop_blobs(term, &[[99; 32]]).unwrap();
    proxy.hold(Way::ToServer, 1);
    let asked = thread::scope(|scope| {
        let asking = scope.spawn(|| log.drop_blobs(term, &[[7; 32]]));
        proxy.wait_until_held();
        proxy.abandon();
        asking.join().unwrap()
    });
    assert!(is_unknown(&asked), "{asked:?}");
    until_known(|| log.drop_blobs(term, &[[7; 32]])).unwrap();
    assert_eq!(direct.blob(&[7; 32]).unwrap(), None);
    until_known(|| append_blob(&mut log, term, 3, 7)).unwrap();

    proxy.release();
    assert_eq!(direct.blob(&[7; 32]).unwrap(), Some(vec![7; 100]));
}

#[test]
fn a_database_that_is_killed_has_all_that_was_acknowledged() {
    let server = PostgresServer::options().fsync().start().unwrap();
    let mut log = patient(&server.database().unwrap()).log("dc1").unwrap();
    let term = seize(&mut log).unwrap().term;
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (acknowledged, is_over, log) = (&acknowledged, &is_over, &mut log);
        scope.spawn(move || {
            for first in 1.. {
                until_known(|| append(log, term, first)).unwrap();
                acknowledged.store(first, Ordering::SeqCst);
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        for _ in 0..2 {
            let enough = acknowledged.load(Ordering::SeqCst) + 20;
            while acknowledged.load(Ordering::SeqCst) < enough {
                thread::yield_now();
            }
            server.server().kill();
            server.server().start_again().unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(read_all(&mut log).len() as u64, acknowledged.into_inner());
}
