//! The stuck clock of a worker, how its attempts count for it, and what its verdict means for routing.

use std::time::Duration;

use crate::rig::*;
use onward_core::effect::{Answer, ManagerNotice};
use onward_core::health::{ProgressSignal, Verdict};
use onward_core::ids::{Claim, SessionId};
use onward_core::input::{Call, Poll};
use onward_core::job::Draft;
use onward_core::message::{Beat, EndReport, FromWorker};

fn progress_of(rig: &Rig, id: &str) -> (ProgressSignal, &'static str) {
    let judged = rig.worker_view(id).judgement;
    (judged.signals.progress, judged.reason.code())
}

#[test]
fn a_worker_has_the_patience_of_the_jobs_that_it_runs_however_many_there_are_beside_it() {
    for bystanders in [0, 2] {
        let mut rig = Rig::new();
        rig.bystanders(bystanders);
        let session = rig.worker("w", 1, 1, &["k"]);
        let id = rig.submit(Draft { stuck_after: Some(secs(900)), ..job("k") });
        let claim = rig.claim(session);
        rig.progress(session, claim, 1);
        // A unit every five minutes, and a beat every 30 s: well inside what its job allows.
        for unit in 2..=4 {
            for _ in 0..10 {
                rig.advance(secs(30));
                rig.beat(session, Beat::plain(claim)).unwrap();
            }
            assert_eq!(
                progress_of(&rig, "w"),
                (ProgressSignal::Degraded, "no_forward_step"),
                "it is shown all the same"
            );
            rig.progress(session, claim, unit);
        }
        assert_eq!((rig.endings(id), rig.eviction_count()), (vec![], 0), "{bystanders} bystanders");
    }
}

#[test]
fn a_polling_worker_has_the_patience_of_its_jobs_too() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { stuck_after: Some(secs(900)), ..job("k") });
    rig.leases(Poll { lease: secs(1_000), ..Rig::poll_of("h", &["k"], 1, Duration::ZERO) });
    rig.advance(secs(900) - ms(1));
    assert_eq!((rig.endings(id), rig.eviction_count()), (vec![], 0));
    rig.advance(ms(1));
    assert_eq!((rig.endings(id), rig.eviction_count()), (vec!["stuck"], 0));
}

#[test]
fn an_attempt_inside_its_own_patience_keeps_a_worker_that_fails_the_rest() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 2, &["k"]);
    rig.submit(Draft { stuck_after: Some(secs(290)), ..job("k") });
    let silent = rig.claim(session);
    for _ in 0..5 {
        rig.fail_five(session);
        rig.advance(secs(50));
    }
    assert_eq!(progress_of(&rig, "w"), (ProgressSignal::Degraded, "no_forward_step"));
    assert_eq!(rig.eviction_count(), 0, "what its job allows is not taken from it");
    rig.release(session, silent).unwrap();
    assert_eq!(progress_of(&rig, "w"), (ProgressSignal::Stuck, "only_failures"));
}

#[test]
fn stuck_attempts_end_before_their_worker_is_judged_by_them() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 3, &["k"]);
    rig.submit(job("k"));
    rig.advance(secs(59));
    rig.submit(job("k"));
    rig.advance(secs(61));
    assert_eq!(rig.assigned(session).len(), 2);
    rig.watch(secs(60), |rig| assert_ne!(rig.verdict("w"), Verdict::Stuck));
    assert!(!rig.worker_view("w").probation, "two stuck jobs are not yet its fault");
}

#[test]
fn that_stuck_attempts_end_in_bites_makes_no_difference_to_their_workers() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    rig.worker("many", 1, 20, &["k"]);
    rig.submit_all(vec![job("k"); 20]).unwrap();
    rig.worker("one", 2, 1, &["k"]);
    let id = rig.submit(job("k"));
    rig.advance(secs(120) - ms(1));
    rig.noticed();
    rig.jump(ms(1));
    // A step that was asked for something ends a few of those of the first, and the timers of both are due as well.
    rig.tell(SessionId(900), FromWorker::Capacity { slots: 1, accepting: true });
    rig.advance(Duration::ZERO);
    assert_eq!(rig.endings(id), ["stuck"]);
    let is_stuck = |notice: &ManagerNotice| matches!(notice, ManagerNotice::VerdictChanged { to, .. } if to.verdict == Verdict::Stuck);
    assert!(!rig.noticed().iter().any(is_stuck), "one stuck job is not yet its worker's fault");
    assert!(!rig.worker_view("one").probation);
}

#[test]
fn two_bad_payloads_out_of_three_do_not_make_a_worker_slow() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let mut end = |good: bool| {
        rig.submit(job("k"));
        let claim = rig.claim(session);
        if good { rig.succeed(session, claim) } else { rig.fail_for_good(session, claim) }.unwrap();
        (rig.verdict("w"), progress_of(&rig, "w").1)
    };
    assert_eq!(end(true), (Verdict::Healthy, "rate_as_expected"));
    assert_eq!(end(false), (Verdict::Healthy, "too_few_samples"));
    assert_eq!(end(false), (Verdict::Healthy, "too_few_samples"));
    assert_eq!(end(false), (Verdict::Healthy, "too_few_samples"));
    assert_eq!(end(false), (Verdict::Slow, "rate_far_below_expected"), "four out of five do");
}

#[test]
fn a_cancelled_attempt_that_stays_counts_neither_for_nor_against_its_worker() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.advance(secs(10));
    rig.progress(session, claim, 1);
    rig.cancel(id);
    rig.advance(secs(60) - ms(1));
    assert_eq!(progress_of(&rig, "w").0, ProgressSignal::Normal, "it moved a moment ago");
    rig.watch(secs(200), |rig| assert_ne!(progress_of(rig, "w").0, ProgressSignal::Degraded));
    assert_eq!(progress_of(&rig, "w"), (ProgressSignal::Idle, "nothing_to_count"));
    // One that did not move when it was cancelled stops counting at once.
    let other = rig.submit(job("k"));
    rig.advance(secs(60));
    assert_eq!(progress_of(&rig, "w"), (ProgressSignal::Degraded, "no_forward_step"));
    rig.cancel(other);
    assert_eq!(progress_of(&rig, "w"), (ProgressSignal::Idle, "nothing_to_count"));
}

#[test]
fn a_handler_that_fails_because_it_was_cancelled_is_not_its_workers_failure() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    for _ in 0..5 {
        let id = rig.submit(job("k"));
        let claim = rig.claim(session);
        rig.cancel(id);
        rig.fail(session, claim).unwrap();
    }
    assert_eq!(progress_of(&rig, "w"), (ProgressSignal::Idle, "nothing_to_count"));
}

/// The worker that gets the next job of kind `k`: of those that are routed to alike, the one that waits longest.
fn next_goes_to(rig: &mut Rig, sessions: &[SessionId]) -> SessionId {
    rig.submit(patient("k"));
    let got: Vec<_> = sessions.iter().filter(|session| !rig.assigned(**session).is_empty()).collect();
    assert_eq!(got.len(), 1, "one of them gets it");
    *got[0]
}

/// Two workers with room on which nothing moves: both are routed to last.
fn two_slow_workers(rig: &mut Rig) -> ([SessionId; 2], [Claim; 2]) {
    let sessions = [rig.worker("a", 1, 9, &["k"]), rig.worker("b", 2, 9, &["k"])];
    rig.submit_all(vec![patient("k"); 2]).unwrap();
    let claims = sessions.map(|session| rig.claim(session));
    rig.advance(secs(60));
    assert_eq!((rig.verdict("a"), rig.verdict("b")), (Verdict::Slow, Verdict::Slow));
    (sessions, claims)
}

#[test]
fn a_worker_that_gives_back_what_did_not_move_is_routed_to_first_at_once() {
    for one in 0..2 {
        let mut rig = Rig::new();
        let (sessions, claims) = two_slow_workers(&mut rig);
        rig.settle(sessions[one], claims[one], EndReport::Release { delay: Some(secs(1_000)) }).unwrap();
        for _ in 0..3 {
            assert_eq!(next_goes_to(&mut rig, &sessions), sessions[one]);
        }
    }
}

#[test]
fn a_worker_that_gives_back_what_made_up_for_the_rest_is_routed_to_last_at_once() {
    for one in 0..2 {
        let mut rig = Rig::new();
        let sessions = [rig.worker("a", 1, 99, &["k"]), rig.worker("b", 2, 99, &["k"])];
        rig.submit_all(vec![patient("k"); 10]).unwrap();
        let claims = sessions.map(|session| rig.assigned(session));
        rig.advance(secs(60));
        // All but one of ten move, which is as expected on both.
        let moving = |worker: usize| claims[worker].iter().skip(usize::from(worker == one));
        for worker in [0, 1] {
            moving(worker).for_each(|held| rig.progress(sessions[worker], held.claim, 1));
        }
        assert_eq!((rig.verdict("a"), rig.verdict("b")), (Verdict::Healthy, Verdict::Healthy));
        let given_back = moving(one).next().expect("four move").claim;
        rig.settle(sessions[one], given_back, EndReport::Release { delay: Some(secs(1_000)) }).unwrap();
        assert_eq!(rig.verdict(["a", "b"][one]), Verdict::Slow, "three of four");
        for _ in 0..3 {
            assert_eq!(next_goes_to(&mut rig, &sessions), sessions[1 - one]);
        }
    }
}

#[test]
fn a_polling_worker_is_judged_when_its_only_moving_attempt_is_given_back() {
    let mut rig = Rig::new();
    rig.bystanders(1);
    let poll = Rig::poll_of("h", &["k"], 1, Duration::ZERO);
    rig.submit(patient("k"));
    let moving = rig.leases(Poll { lease: secs(3_600), ..poll.clone() }).remove(0).claim;
    for unit in 1..=7 {
        rig.http_beat(Beat::progress(moving, unit)).unwrap();
        for _ in 0..5 {
            rig.submit(job("k"));
            let claim = rig.leases(poll.clone()).remove(0).claim;
            rig.http_settle(claim, EndReport::Fail { error: "no".into(), retryable: false, delay: None }).unwrap();
        }
        rig.advance(secs(20));
    }
    assert_eq!(rig.verdict("h"), Verdict::Degraded, "one thing moves, and everything else fails");
    rig.http_settle(moving, EndReport::Release { delay: Some(secs(100_000)) }).unwrap();
    // Nothing moves any more: stuck 120 s after the last step, evicted 30 s later, if it goes on failing.
    for _ in 0..5 {
        for _ in 0..5 {
            rig.submit(job("k"));
            for lease in rig.leases(poll.clone()) {
                let report = EndReport::Fail { error: "no".into(), retryable: false, delay: None };
                rig.http_settle(lease.claim, report).unwrap();
            }
        }
        rig.advance(secs(20));
    }
    assert_eq!((rig.verdict("h"), rig.eviction_count()), (Verdict::Stuck, 0), "120 s after its last step");
    rig.advance(secs(15));
    assert_eq!(rig.leases(poll), [], "it asks, and gets nothing");
    rig.advance(secs(15));
    assert_eq!(rig.evictions(), ["h"]);
}

#[test]
fn a_success_is_seen_at_once() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 2, &["k"]);
    rig.fail_for_119_s(session);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.advance(secs(2));
    assert_eq!(rig.verdict("w"), Verdict::Stuck);
    rig.submit_all(vec![patient("k"); 2]).unwrap();
    assert!(rig.assigned(session).is_empty());
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.assigned(session).len(), 1, "no longer stuck; on probation, one at a time");
    rig.advance(secs(40));
    assert_eq!(rig.eviction_count(), 0);
}

#[test]
fn a_waiting_poll_is_served_in_turn_again_when_the_failures_of_its_worker_are_a_minute_old() {
    let mut rig = Rig::with(|settings| settings.max_poll_wait = secs(600));
    let poll = Rig::poll_of("h", &["k"], 1, Duration::ZERO);
    for failed in [false, true, true, true, true] {
        rig.submit(job("k"));
        let claim = rig.leases(poll.clone()).remove(0).claim;
        let failure = EndReport::Fail { error: "no".into(), retryable: false, delay: None };
        rig.http_settle(claim, if failed { failure } else { success() }).unwrap();
    }
    let open = rig.call_open(Call::Poll(Poll { wait: secs(600), ..poll }));
    let session = rig.worker("w", 1, 9, &["k"]);
    rig.submit_all(vec![patient("k"); 2]).unwrap();
    let others = rig.assigned(session);
    assert_eq!((rig.verdict("h"), others.len()), (Verdict::Slow, 2), "it is routed to last");
    others.iter().for_each(|held| rig.succeed(session, held.claim).unwrap());
    rig.advance(secs(70));
    rig.submit_all(vec![patient("k"); 2]).unwrap();
    assert_eq!(rig.assigned(session).len(), 1);
    assert!(matches!(rig.reply(open), Some(Ok(Answer::Leases(leases))) if leases.len() == 1));
}

#[test]
fn reconnecting_does_not_restart_the_grace_of_a_stuck_worker() {
    let mut rig = Rig::new();
    rig.bystanders(3);
    let mut session = rig.worker("w", 1, 2, &["k"]);
    rig.fail_for_119_s(session);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.advance(secs(1));
    assert_eq!(rig.verdict("w"), Verdict::Stuck);
    for n in 0..5 {
        rig.advance(secs(5));
        rig.close(session);
        rig.advance(secs(1) - ms(1));
        assert_eq!(rig.verdict("w"), Verdict::Suspect);
        session = rig.hello("w", "1", 10 + n, 2, &["k"], vec![claim]);
        assert_eq!((rig.verdict("w"), rig.eviction_count()), (Verdict::Stuck, 0));
    }
    rig.advance(ms(4));
    assert_eq!(rig.eviction_count(), 0);
    rig.advance(ms(1));
    assert_eq!(rig.evictions(), ["w"], "30 s after it got stuck");
}

#[test]
fn what_failed_before_does_not_count_after_readmission_nor_in_a_new_life() {
    for another_life in [false, true] {
        let mut rig = Rig::with(|settings| settings.eviction.backoff = secs(5));
        rig.bystanders(2);
        let session = rig.worker("w", 1, 1, &["k"]);
        rig.fail_for_119_s(session);
        rig.advance(secs(31));
        assert_eq!(rig.evictions(), ["w"]);
        let session = if another_life {
            rig.hello("w", "2", 2, 1, &["k"], vec![])
        } else {
            rig.advance(secs(5));
            session
        };
        assert_eq!(progress_of(&rig, "w"), (ProgressSignal::Idle, "nothing_to_count"));
        rig.submit(patient("k"));
        assert_eq!(rig.assigned(session).len(), 1, "on probation");
        // Less than it takes by itself.
        rig.advance(secs(59));
        assert_eq!(rig.eviction_count(), 1);
    }
}

#[test]
fn a_new_life_of_a_worker_that_failed_is_judged_by_what_it_does() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.fail_for_119_s(session);
    let session = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    assert_eq!(progress_of(&rig, "w"), (ProgressSignal::Idle, "nothing_to_count"));
    rig.advance(secs(40));
    assert_eq!(rig.eviction_count(), 0);
    rig.tell(session, FromWorker::Capacity { slots: 4, accepting: true });
    rig.submit_all(vec![patient("k"); 4]).unwrap();
    assert_eq!(rig.assigned(session).len(), 4, "it was never stuck, and is not on probation");
}
