//! What the database answers, and what is made of it.

use onward_core::ids::Seq;
use onward_log::{Error, Log};

use crate::{append, log_name, patient, psql, read_all, seize, shared_url};

/// A trigger that speaks when the transaction commits: after the statement itself was reported as done.
fn speak_at_commit(log: &str, statement: &str) {
    psql(
        shared_url(),
        &format!(
            "create or replace function {log}() returns trigger language plpgsql as $$ begin {statement}; return null; end $$;
             drop trigger if exists {log} on onward.batch;
             create constraint trigger {log} after insert on onward.batch deferrable initially deferred
             for each row when (new.log = '{log}') execute function {log}()"
        ),
    );
}

#[test]
fn an_error_that_comes_with_the_commit_is_no_success() {
    let name = log_name();
    let mut log = patient(shared_url()).log(&name).unwrap();
    let term = seize(&mut log).unwrap().term;
    append(&mut log, term, 1).unwrap();
    for (code, expected) in [
        ("53100", "full"),
        ("25006", "refused"),
        ("40001", "refused"),
        ("40P01", "refused"),
        ("57P01", "unknown"),
        // From now on the batch is in doubt: that this try stored nothing says nothing of the one before.
        ("40001", "unknown"),
    ] {
        speak_at_commit(&name, &format!("raise exception 'no' using errcode = '{code}'"));
        let answer = append(&mut log, term, 2).unwrap_err();
        let found = match answer {
            Error::Full { .. } => "full",
            Error::Io { .. } => "refused",
            Error::Unknown { .. } => "unknown",
            other => panic!("{code}: {other}"),
        };
        assert_eq!(found, expected, "{code}");
        assert_eq!(log.tail().unwrap().last, Seq(1));
    }
    speak_at_commit(&name, "null");
    append(&mut log, term, 2).unwrap();
    assert_eq!(read_all(&mut log).len(), 2);
}

#[test]
fn a_warning_beside_a_success_leaves_it_in_doubt_and_a_notice_does_not() {
    let name = log_name();
    let mut log = patient(shared_url()).log(&name).unwrap();
    let term = seize(&mut log).unwrap().term;
    speak_at_commit(&name, "raise notice 'harmless'");
    append(&mut log, term, 1).unwrap();
    speak_at_commit(&name, "raise warning 'it may not last'");
    let answer = append(&mut log, term, 2);
    assert_eq!(answer, Err(Error::Unknown { cause: "it may not last".into() }));
    append(&mut log, term, 2).expect("it is found, and confirmed by a write that brings no warning");
    assert_eq!(read_all(&mut log).len(), 2);
}
