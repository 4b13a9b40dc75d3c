//! What is remembered of a worker that has gone, and for how long.

use crate::rig::*;
use onward_core::health::Verdict;
use onward_core::ids::{Incarnation, SessionId};
use onward_core::input::{Call, Poll};
use onward_core::message::{FromWorker, ToWorker};
use onward_core::refusal::Refusal;

/// A worker that has waited out its eviction, is on probation, and then leaves without a word.
fn gone_on_probation(rig: &mut Rig, slots: u32) -> SessionId {
    rig.bystanders(2);
    let session = rig.worker("w", 1, slots, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.evict(session);
    rig.call(Call::PauseQueue(name("default"))).unwrap();
    rig.tell(session, FromWorker::Ended(vec![claim]));
    rig.advance(secs(60));
    let view = rig.worker_view("w");
    assert_eq!((view.evicted, view.probation), (false, true));
    rig.close(session);
    session
}

fn is_remembered(rig: &Rig) -> bool {
    rig.manager.state().worker(&worker_id("w")).is_some()
}

#[test]
fn probation_is_not_forgotten_by_a_short_absence() {
    let mut rig = Rig::new();
    gone_on_probation(&mut rig, 4);
    rig.advance(secs(11));
    assert!(!rig.knows("w"));
    let session = rig.hello("w", "1", 2, 4, &["k"], vec![]);
    rig.submit_all(vec![patient("k"); 4]).unwrap();
    rig.call(Call::ResumeQueue(name("default"))).unwrap();
    assert_eq!(rig.assigned(session).len(), 1, "one at a time until one succeeds");
}

#[test]
fn evictions_are_counted_over_a_short_absence() {
    let mut rig = Rig::new();
    gone_on_probation(&mut rig, 1);
    rig.advance(secs(11));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![]);
    rig.call(Call::ResumeQueue(name("default"))).unwrap();
    let claim = rig.claim(session);
    rig.evict(session);
    rig.tell(session, FromWorker::Ended(vec![claim]));
    rig.advance(secs(120) - ms(1));
    assert!(rig.worker_view("w").evicted, "the second eviction is for 120 s");
    rig.advance(ms(1));
    assert!(!rig.worker_view("w").evicted);
}

#[test]
fn a_replaced_incarnation_stays_replaced_when_its_successor_is_away() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    rig.hello("w", "old", 1, 1, &["k"], vec![]);
    let new = rig.hello("w", "new", 2, 1, &["k"], vec![]);
    rig.close(new);
    rig.advance(secs(11));
    assert!(!rig.knows("w"));
    let zombie = rig.hello("w", "old", 3, 1, &["k"], vec![]);
    assert_eq!(rig.last_sent(zombie), ToWorker::Rejected(Refusal::StaleIncarnation));
}

#[test]
fn all_of_it_is_forgotten_an_hour_after_it_has_gone() {
    let mut rig = Rig::new();
    gone_on_probation(&mut rig, 4);
    rig.advance(secs(10));
    assert!(!rig.knows("w"));
    rig.advance(secs(1_800));
    // It comes and goes: the hour begins when it goes.
    let session = rig.hello("w", "1", 2, 4, &["k"], vec![]);
    rig.advance(secs(60));
    rig.close(session);
    rig.advance(secs(10));
    assert!(!rig.knows("w"));
    rig.advance(secs(3_600) - ms(1));
    assert!(is_remembered(&rig));
    rig.advance(ms(1));
    assert!(!is_remembered(&rig));
}

#[test]
fn a_takeover_remembers_those_that_have_gone_for_an_hour_more() {
    let mut rig = Rig::new();
    gone_on_probation(&mut rig, 4);
    rig.advance(secs(1_800));
    rig.restart(secs(1));
    rig.advance(secs(3_600) - ms(1));
    assert!(is_remembered(&rig));
    rig.advance(ms(1));
    assert!(!is_remembered(&rig));
}

#[test]
fn what_a_drained_worker_is_stays_known() {
    let mut rig = Rig::new();
    gone_on_probation(&mut rig, 4);
    rig.call(Call::DrainWorker(worker_id("w"))).unwrap();
    rig.advance(secs(10_000));
    assert!(rig.manager.state().worker(&worker_id("w")).is_some_and(|record| record.drained));
}

#[test]
fn no_more_workers_are_remembered_than_may_be_known() {
    let mut rig = Rig::with(|settings| settings.limits.workers = 3);
    for n in 0..5 {
        let id = format!("w{n}");
        rig.hello(&id, "1", 10 * n, 1, &["k"], vec![]);
        let session = rig.hello(&id, "2", 10 * n + 1, 1, &["k"], vec![]);
        rig.tell(session, FromWorker::Goodbye);
    }
    let remembered: Vec<_> = rig.manager.state().workers().map(|(id, _)| id.as_str()).collect();
    assert_eq!(remembered, ["w2", "w3", "w4"], "the first to go are the first to be forgotten");
}

#[test]
fn grants_that_were_used_do_not_keep_a_worker_in_memory() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.ask_extension(session, vec![claim], 0.1).result.unwrap();
    rig.release(session, claim).unwrap();
    rig.tell(session, FromWorker::Capacity { slots: 1, accepting: false });
    let claim = rig.assigned(session).pop();
    assert!(claim.is_some(), "it got the job again before it wanted no more");
    rig.tell(session, FromWorker::Goodbye);
    assert!(!rig.knows("w"));
    rig.advance(secs(3_600));
    assert!(!is_remembered(&rig));
}

#[test]
fn one_that_was_idle_when_it_went_does_not_replace_its_successor() {
    let mut rig = Rig::new();
    rig.bystanders(3);
    let first = rig.hello("w", "old", 1, 1, &["k"], vec![]);
    rig.close(first);
    rig.advance(secs(11));
    assert!(!rig.knows("w"));
    let second = rig.hello("w", "new", 2, 1, &["k"], vec![]);
    let id = rig.submit(job("k"));
    let _claim = rig.claim(second);
    let zombie = rig.hello("w", "old", 3, 1, &["k"], vec![]);
    assert_eq!(rig.last_sent(zombie), ToWorker::Rejected(Refusal::StaleIncarnation));
    assert_eq!(rig.endings(id), [""; 0], "its successor's attempt goes on");
    rig.restart(secs(1));
    let zombie = rig.hello("w", "old", 4, 1, &["k"], vec![]);
    assert_eq!(rig.last_sent(zombie), ToWorker::Rejected(Refusal::StaleIncarnation), "also after a takeover");
}

#[test]
fn one_that_goes_and_comes_back_is_nobodys_predecessor() {
    let mut rig = Rig::new();
    rig.bystanders(3);
    for n in 1..4 {
        let session = rig.hello("w", "same", n, 1, &["k"], vec![]);
        assert!(matches!(rig.last_sent(session), ToWorker::Welcome { .. }), "time {n}");
        rig.close(session);
        rig.advance(secs(11));
        assert!(!rig.knows("w"));
    }
    let known = rig.manager.state().worker(&worker_id("w")).expect("who it was is known for an hour");
    assert!(known.replaced.is_empty(), "{known:?}");
    rig.advance(secs(3_600));
    assert!(!is_remembered(&rig), "nothing was decided about it");
}

#[test]
fn one_without_a_session_that_was_forgotten_does_not_replace_its_successor() {
    let mut rig = Rig::new();
    let poll = |incarnation: &str| Poll {
        incarnation: Incarnation::new(incarnation).unwrap(),
        lease: secs(600),
        ..Rig::poll_of("h", &["k"], 1, ms(0))
    };
    rig.leases(poll("old"));
    rig.advance(secs(400));
    assert!(!rig.knows("h"));
    let id = rig.submit(patient("k"));
    assert_eq!(rig.leases(poll("new")).len(), 1);
    assert_eq!(rig.call(Call::Poll(poll("old"))), Err(Refusal::StaleIncarnation));
    assert_eq!(rig.endings(id), [""; 0], "its successor's attempt goes on");
}

#[test]
fn ten_short_lives_in_a_row_are_all_remembered() {
    let mut rig = Rig::new();
    for life in 0..10 {
        rig.hello("w", &format!("life {life}"), 10 + life, 1, &["k"], vec![]);
        rig.advance(secs(20));
    }
    for life in 0..9 {
        let zombie = rig.hello("w", &format!("life {life}"), 30 + life, 1, &["k"], vec![]);
        assert_eq!(rig.last_sent(zombie), ToWorker::Rejected(Refusal::StaleIncarnation), "life {life}");
    }
}

#[test]
fn one_that_was_stuck_when_it_went_is_on_probation_when_it_comes_back() {
    type Leave = fn(&mut Rig, SessionId);
    let ways: [(&str, Leave); 2] = [
        ("without a word", |rig, session| {
            rig.close(session);
            rig.advance(secs(11));
        }),
        ("with a goodbye", |rig, session| rig.tell(session, FromWorker::Goodbye)),
    ];
    for (way, leave) in ways {
        let mut rig = Rig::new();
        rig.bystanders(2);
        let session = rig.worker("w", 1, 4, &["k"]);
        rig.fail_for_119_s(session);
        rig.advance(secs(1));
        assert_eq!(rig.verdict("w"), Verdict::Stuck, "{way}");
        leave(&mut rig, session);
        assert!(!rig.knows("w"), "{way}");
        rig.restart(secs(1));
        let session = rig.hello("w", "1", 2, 4, &["k"], vec![]);
        rig.submit_all(vec![patient("k"); 4]).unwrap();
        assert_eq!(rig.assigned(session).len(), 1, "{way}: one at a time until one succeeds");
    }
}

#[test]
fn a_worker_that_was_drained_for_a_while_is_forgotten_an_hour_after_it_has_gone() {
    let mut rig = Rig::new();
    gone_on_probation(&mut rig, 4);
    rig.call(Call::DrainWorker(worker_id("w"))).unwrap();
    rig.advance(secs(10 + 1_800));
    rig.call(Call::UndrainWorker(worker_id("w"))).unwrap();
    rig.advance(secs(1_800) - ms(1));
    assert!(is_remembered(&rig));
    rig.advance(ms(1));
    assert!(!is_remembered(&rig));
}

#[test]
fn a_worker_that_is_no_longer_drained_is_forgotten_an_hour_later() {
    let mut rig = Rig::new();
    gone_on_probation(&mut rig, 4);
    rig.call(Call::DrainWorker(worker_id("w"))).unwrap();
    rig.advance(secs(10_000));
    rig.call(Call::UndrainWorker(worker_id("w"))).unwrap();
    rig.advance(secs(3_600) - ms(1));
    assert!(is_remembered(&rig));
    rig.advance(ms(1));
    assert!(!is_remembered(&rig));
}

#[test]
fn grants_are_not_those_of_whoever_comes_next() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).result, Ok(secs(30)));
    rig.tell(session, FromWorker::Goodbye);
    let session = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    let claim = rig.claim(session);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).result, Ok(secs(30)));
}

#[test]
fn a_grant_that_is_over_and_was_made_up_for_leaves_nothing() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.ask_extension(session, vec![claim], 0.1).result.unwrap();
    rig.advance(secs(100));
    let granted = |rig: &Rig| rig.manager.state().worker(&worker_id("w")).is_some_and(|known| known.granted.is_some());
    assert!(granted(&rig));
    rig.succeed(session, claim).unwrap();
    assert!(!granted(&rig));
}
