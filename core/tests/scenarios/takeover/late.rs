//! What is heard late.

use super::*;

#[test]
fn what_began_after_a_takeover_has_no_grace() {
    let mut rig = Rig::new();
    let old = rig.submit(Draft { timeout: Some(secs(5)), ..job("k") });
    rig.restart(secs(60));
    let new = rig.submit(Draft { timeout: Some(secs(2)), ..job("k") });
    rig.advance(ms(1_999));
    assert_eq!(rig.state_of(new), JobState::Ready);
    rig.advance(ms(1));
    assert_eq!(rig.state_of(new), JobState::TimedOut);
    assert_eq!(rig.state_of(old), JobState::Ready, "it may still be heard of");
    rig.advance(secs(13));
    assert_eq!(rig.state_of(old), JobState::TimedOut);
}

#[test]
fn a_replaced_incarnation_stays_replaced_over_a_takeover() {
    let mut rig = Rig::new();
    rig.hello("w", "old", 1, 1, &["k"], vec![]);
    let session = rig.hello("w", "new", 2, 1, &["k"], vec![]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.restart(secs(1));
    let zombie = rig.hello("w", "old", 3, 1, &["k"], vec![]);
    assert_eq!(rig.last_sent(zombie), ToWorker::Rejected(Refusal::StaleIncarnation));
    assert_eq!(rig.state_of(id), JobState::Running, "its successor's work is untouched");
    let session = rig.hello("w", "new", 4, 1, &["k"], vec![claim]);
    rig.succeed(session, claim).unwrap();
}

/// The log does not know it by anything that it held.
#[test]
fn who_an_idle_worker_was_is_known_over_a_takeover() {
    let mut rig = Rig::new();
    rig.hello("w", "old", 1, 1, &["k"], vec![]);
    rig.restart(secs(1));
    let session = rig.hello("w", "new", 2, 1, &["k"], vec![]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    let zombie = rig.hello("w", "old", 3, 1, &["k"], vec![]);
    assert_eq!(rig.last_sent(zombie), ToWorker::Rejected(Refusal::StaleIncarnation));
    assert_eq!(rig.state_of(id), JobState::Running, "its successor's work is untouched");
    rig.restart(secs(1));
    let zombie = rig.hello("w", "old", 4, 1, &["k"], vec![]);
    assert_eq!(rig.last_sent(zombie), ToWorker::Rejected(Refusal::StaleIncarnation));
    let session = rig.hello("w", "new", 5, 1, &["k"], vec![claim]);
    rig.succeed(session, claim).unwrap();
}

#[test]
fn a_fleet_that_comes_back_as_who_it_was_writes_nothing() {
    let mut rig = Rig::new();
    let names: Vec<String> = (0..100).map(|n| format!("w{n}")).collect();
    let come = |rig: &mut Rig, first: u64| {
        let before = rig.manager.newest();
        for (n, name) in (first..).zip(&names) {
            rig.hello(name, "1", n, 1, &["k"], vec![]);
        }
        rig.manager.newest().0 - before.0
    };
    assert_eq!(come(&mut rig, 1), 100, "once for each life");
    assert_eq!(come(&mut rig, 1_001), 0);
    rig.restart(secs(1));
    assert_eq!(come(&mut rig, 2_001), 0);
}

#[test]
fn a_worker_that_comes_back_late_after_a_takeover_is_not_stuck_at_once() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { stuck_after: Some(secs(3_600)), ..job("k") });
    let claim = rig.claim(session);
    rig.restart(secs(10));
    rig.advance(secs(200));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    for _ in 0..50 {
        assert_ne!(rig.verdict("w"), onward_core::health::Verdict::Stuck);
        rig.advance(secs(1));
    }
    rig.progress(session, claim, 1);
    assert_eq!(rig.state_of(id), JobState::Running);
}

#[test]
fn one_that_never_came_back_is_away_as_soon_as_it_holds_nothing_and_known_for_five_minutes() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    rig.claim(session);
    rig.restart(secs(1));
    rig.advance(secs(303));
    assert_eq!(rig.manager.own_judgement().reason.code(), "no_worker");
    rig.advance(secs(299));
    assert!(rig.knows("w"), "its time begins when its lease is over");
    rig.advance(secs(1));
    assert!(!rig.knows("w"));
}

#[test]
fn one_whose_last_attempt_ends_by_its_receipt_is_away_at_once() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.restart(secs(1));
    assert_ne!(rig.manager.own_judgement().reason.code(), "no_worker");
    rig.http_settle(claim, success()).unwrap();
    assert_eq!(rig.manager.own_judgement().reason.code(), "no_worker");
}
