//! Eviction, readmission and probation.

use crate::rig::*;
use onward_core::event::Event;
use onward_core::health::Verdict;
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::job::JobState;
use onward_core::message::{Beat, CancelWhy, EndReport, FromWorker, ToWorker};
use onward_core::refusal::Refusal;

/// A worker that fails all it gets, and holds an attempt that is too young to count, beside workers that do well: it is
/// stuck a second from now and evicted 31 s from now, with its session open all the time.
fn stuck_worker(rig: &mut Rig, slots: u32) -> (SessionId, JobId, Claim) {
    rig.bystanders(2);
    let session = rig.worker("w", 1, slots, &["k"]);
    rig.fail_for_119_s(session);
    let id = rig.submit(patient("k"));
    let claim = rig.claim(session);
    (session, id, claim)
}

/// A worker that was evicted just now, and with it what it held; its session is open, and it answers.
fn evicted_worker(rig: &mut Rig, slots: u32) -> (SessionId, JobId, Claim) {
    rig.bystanders(2);
    let session = rig.worker("w", 1, slots, &["k"]);
    let id = rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.evict(session);
    (session, id, claim)
}

#[test]
fn a_worker_whose_session_closed_is_evicted_ten_seconds_later() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 2, &["k"]);
    let id = rig.submit(job("k"));
    rig.claim(session);
    rig.advance(secs(5));
    rig.close(session);
    rig.advance(ms(9_999));
    assert!(rig.evictions().is_empty());
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.advance(ms(1));
    assert_eq!(rig.evictions(), ["w"]);
    assert_eq!(rig.state_of(id), JobState::Ready);
    assert_eq!(rig.endings(id), ["evicted"]);
    assert_eq!(rig.view(id).workflows[0].counted, 1);
}

#[test]
fn a_lease_that_ends_when_its_worker_is_to_be_evicted_is_an_expired_lease() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(patient("k"));
    rig.advance(secs(290));
    rig.close(session);
    rig.advance(secs(10) - ms(1));
    assert_eq!((rig.verdict("w"), rig.endings(id)), (Verdict::Suspect, vec![]));
    rig.advance(ms(1));
    assert_eq!((rig.endings(id), rig.evictions()), (vec!["lease_expired"], vec![]), "there is nothing left to take");
    assert!(!rig.knows("w"));
}

#[test]
fn a_silent_worker_is_suspect_after_thirty_seconds_and_evicted_after_ten_more() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    rig.claim(session);
    rig.silence(session);
    rig.advance(ms(29_999));
    assert_eq!(rig.verdict("w"), Verdict::Busy);
    rig.advance(ms(1));
    assert_eq!((rig.verdict("w"), rig.worker_view("w").judgement.reason.code()), (Verdict::Suspect, "silent"));
    rig.advance(ms(9_999));
    assert!(rig.evictions().is_empty());
    rig.advance(ms(1));
    assert_eq!(rig.evictions(), ["w"]);
}

#[test]
fn beats_do_not_stand_in_for_answers_to_probes() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.silence(session);
    for watermark in 1..=3 {
        rig.advance(secs(10));
        rig.progress(session, claim, watermark);
    }
    assert_eq!(rig.verdict("w"), Verdict::Suspect);
}

#[test]
fn a_stuck_worker_is_evicted_when_its_grace_is_over() {
    let mut rig = Rig::new();
    let (session, id, claim) = stuck_worker(&mut rig, 2);
    rig.advance(secs(1) - ms(1));
    assert_eq!(rig.verdict("w"), Verdict::Slow, "degraded, with a free slot");
    rig.advance(ms(1));
    assert_eq!((rig.verdict("w"), rig.worker_view("w").judgement.reason.code()), (Verdict::Stuck, "only_failures"));
    rig.advance(secs(30) - ms(1));
    assert!(rig.evictions().is_empty());
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.advance(ms(1));
    assert_eq!(rig.evictions(), ["w"]);
    let cancelled = rig.messages(session);
    assert!(cancelled.contains(&ToWorker::Cancel { claim, why: CancelWhy::Evicted }), "{cancelled:?}");
    assert_eq!(rig.closed, [], "a live session stays open: its end is what we wait for");
}

#[test]
fn a_worker_that_fails_all_it_gets_is_stuck_and_evicted() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    for second in 0..120 {
        rig.submit(job("k"));
        let claim = rig.claim(session);
        rig.fail_for_good(session, claim).unwrap();
        let expected = if second < 4 { Verdict::Healthy } else { Verdict::Slow };
        assert_eq!(rig.verdict("w"), expected, "after {} failures", second + 1);
        rig.advance(secs(1));
    }
    assert_eq!((rig.verdict("w"), rig.worker_view("w").judgement.reason.code()), (Verdict::Stuck, "only_failures"));
    let left = rig.submit(job("k"));
    rig.advance(secs(30) - ms(1));
    assert!(rig.evictions().is_empty());
    rig.advance(ms(1));
    assert_eq!(rig.evictions(), ["w"]);
    assert_eq!(rig.state_of(left), JobState::Ready);
}

#[test]
fn a_worker_on_which_one_job_fails_over_and_over_is_not_to_blame() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    let retry = onward_core::job::Retry { max_attempts: 1000, base: secs(1), max: secs(1) };
    rig.submit(onward_core::job::Draft { retry: Some(retry), ..job("k") });
    for _ in 0..200 {
        let claim = rig.claim(session);
        rig.fail(session, claim).unwrap();
        rig.advance(secs(1));
        assert_ne!(rig.verdict("w"), Verdict::Stuck);
    }
    assert!(rig.evictions().is_empty());
}

#[test]
fn what_an_evicted_worker_held_is_fenced_and_goes_to_another() {
    let mut rig = Rig::new();
    let (session, id, claim) = evicted_worker(&mut rig, 1);
    assert_eq!(rig.evictions(), ["w"]);
    let other = rig.worker("other", 2, 1, &["k"]);
    let next = rig.assigned(other).remove(0);
    assert_eq!((next.claim.job, next.attempt), (id, 2));
    assert!(next.claim.fence > claim.fence);
    assert_eq!(rig.beat(session, Beat::plain(claim)), Err(Refusal::StaleAttempt));
    assert_eq!(rig.succeed(session, claim), Err(Refusal::StaleAttempt));
    rig.succeed(other, next.claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded);
}

#[test]
fn an_evicted_worker_waits_its_time_and_confirms_the_end_of_what_it_held() {
    // How the old attempt's end is confirmed.
    type Confirm = fn(&mut Rig, SessionId, Claim) -> SessionId;
    let ways: [(&str, Confirm); 3] = [
        ("ended", |rig, session, claim| {
            rig.tell(session, FromWorker::Ended(vec![claim]));
            session
        }),
        ("late outcome", |rig, session, claim| {
            assert_eq!(rig.succeed(session, claim), Err(Refusal::StaleAttempt));
            session
        }),
        ("reconnect without it", |rig, _, _| rig.hello("w", "1", 77, 2, &["k"], vec![])),
    ];
    for (way, confirm) in ways {
        // Time is over first, the confirmation comes later.
        let mut rig = Rig::new();
        let (session, _, claim) = evicted_worker(&mut rig, 2);
        assert_eq!(rig.evictions(), ["w"], "{way}");
        rig.submit(patient("k"));
        rig.advance(secs(100));
        assert!(rig.worker_view("w").evicted && rig.assigned(session).is_empty(), "{way}: not confirmed");
        let session = confirm(&mut rig, session, claim);
        assert!(!rig.worker_view("w").evicted, "{way}: confirmed");
        assert_eq!(rig.assigned(session).len(), 1, "{way}: on probation, one at a time");

        // Confirmed first: the time still has to be over.
        let mut rig = Rig::new();
        let (session, _, claim) = evicted_worker(&mut rig, 2);
        let session = confirm(&mut rig, session, claim);
        rig.advance(secs(60) - ms(1));
        assert!(rig.worker_view("w").evicted && rig.assigned(session).is_empty(), "{way}: not yet");
        rig.advance(ms(1));
        assert!(!rig.worker_view("w").evicted, "{way}: its time is over");
        assert_eq!(rig.assigned(session).len(), 1, "{way}");
    }
}

#[test]
fn a_worker_that_comes_back_with_what_was_taken_from_it_has_not_confirmed_its_end() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.close(session);
    rig.advance(secs(100));
    assert_eq!(rig.evictions(), ["w"], "evicted while it was away");
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    assert_eq!(rig.cancelled(session), [claim]);
    assert!(rig.worker_view("w").evicted && rig.assigned(session).is_empty(), "it still runs the old attempt");
    rig.tell(session, FromWorker::Ended(vec![claim]));
    assert_eq!(rig.assigned(session).len(), 1);
}

#[test]
fn what_it_still_runs_has_ended_with_the_lease_that_it_had() {
    let mut rig = Rig::new();
    let (_, _, claim) = evicted_worker(&mut rig, 1);
    // Handed out 40 s ago for 300 s. It comes back with it, and never says that it has ended.
    rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.advance(secs(260) - ms(1));
    assert!(rig.worker_view("w").evicted);
    rig.advance(ms(1));
    assert!(!rig.worker_view("w").evicted, "coming back with it did not make its lease any longer");
}

#[test]
fn a_new_incarnation_of_an_evicted_worker_need_not_wait() {
    let mut rig = Rig::new();
    let (_, _, claim) = evicted_worker(&mut rig, 2);
    rig.submit(patient("k"));
    assert_eq!(rig.evictions(), ["w"]);
    let session = rig.hello("w", "2", 2, 2, &["k"], vec![claim]);
    let view = rig.worker_view("w");
    assert_eq!((view.evicted, view.probation), (false, true));
    assert_eq!(rig.assigned(session).len(), 1, "on probation");
}

#[test]
fn each_eviction_doubles_the_time() {
    let mut rig = Rig::new();
    let (session, _, mut claim) = evicted_worker(&mut rig, 1);
    for (round, wait_s) in [60, 120, 240].into_iter().enumerate() {
        assert_eq!(rig.evictions().len(), round + 1);
        rig.tell(session, FromWorker::Ended(vec![claim]));
        rig.advance(secs(wait_s) - ms(1));
        assert!(rig.worker_view("w").evicted, "round {round}");
        rig.advance(ms(1));
        assert!(!rig.worker_view("w").evicted, "round {round}");
        claim = rig.claim(session);
        rig.evict(session);
    }
}

#[test]
fn on_probation_a_worker_gets_one_attempt_at_a_time_until_one_succeeds() {
    let mut rig = Rig::new();
    let (_, _, _) = evicted_worker(&mut rig, 5);
    rig.submit_all(vec![patient("k"); 6]).unwrap();
    assert_eq!(rig.evictions(), ["w"]);
    let session = rig.hello("w", "2", 2, 5, &["k"], vec![]);
    let claim = rig.claim(session);
    rig.fail_for_good(session, claim).unwrap();
    let claim = rig.claim(session);
    rig.settle(session, claim, EndReport::Release { delay: Some(secs(100)) }).unwrap();
    let claim = rig.claim(session);
    assert!(rig.worker_view("w").probation, "neither a failure nor a release ends it");
    rig.succeed(session, claim).unwrap();
    assert!(!rig.worker_view("w").probation);
    assert!(rig.assigned(session).len() >= 3);
}

#[test]
fn a_worker_that_was_stuck_and_moves_again_is_on_probation() {
    let mut rig = Rig::new();
    let (session, _, claim) = stuck_worker(&mut rig, 3);
    rig.advance(secs(11));
    assert_eq!(rig.verdict("w"), Verdict::Stuck);
    rig.submit_all(vec![patient("k"); 3]).unwrap();
    rig.progress(session, claim, 1);
    let view = rig.worker_view("w");
    assert_eq!((view.probation, view.free), (true, 0));
    assert!(rig.assigned(session).is_empty(), "it holds one already");
    rig.advance(secs(30));
    assert!(rig.evictions().is_empty());
    rig.succeed(session, claim).unwrap();
    assert!(!rig.worker_view("w").probation);
    assert_eq!(rig.assigned(session).len(), 3);
}

#[test]
fn eviction_and_its_time_survive_a_restart() {
    let mut rig = Rig::new();
    let (_, _, claim) = evicted_worker(&mut rig, 1);
    assert_eq!(rig.evictions(), ["w"]);
    rig.restart(secs(10));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    assert!(rig.worker_view("w").evicted);
    rig.advance(secs(60));
    assert!(rig.worker_view("w").evicted, "it has not confirmed the end of what it held");
    rig.tell(session, FromWorker::Ended(vec![claim]));
    assert_eq!(rig.assigned(session).len(), 1);
    assert!(rig.worker_view("w").probation);
}

#[test]
fn probation_survives_a_restart() {
    let mut rig = Rig::new();
    let (session, _, claim) = stuck_worker(&mut rig, 3);
    rig.advance(secs(11));
    rig.progress(session, claim, 1);
    rig.submit_all(vec![patient("k"); 3]).unwrap();
    rig.restart(secs(1));
    let session = rig.hello("w", "1", 2, 3, &["k"], vec![claim]);
    assert!(rig.worker_view("w").probation && rig.assigned(session).is_empty());
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.assigned(session).len(), 3);
}

#[test]
fn a_worker_evicted_on_probation_is_readmitted_for_good_also_after_a_restart() {
    let mut rig = Rig::new();
    let (_, _, _) = evicted_worker(&mut rig, 1);
    let session = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    rig.claim(session);
    rig.evict(session);
    assert_eq!(rig.evictions(), ["w", "w"]);
    rig.restart(secs(200));
    let session = rig.hello("w", "2", 3, 1, &["k"], vec![]);
    assert_eq!(rig.assigned(session).len(), 1, "its time is over");
    let record = rig.manager.state().worker(&worker_id("w")).expect("remembered");
    assert_eq!((&record.evicted, record.probation, record.evictions), (&None, true, 2));
}

#[test]
fn a_worker_evicted_on_probation_is_on_probation_anew_when_its_time_is_over() {
    let mut rig = Rig::new();
    evicted_worker(&mut rig, 1);
    let session = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    let claim = rig.claim(session);
    rig.evict(session);
    rig.tell(session, FromWorker::Ended(vec![claim]));
    rig.advance(secs(120));
    assert_eq!(rig.assigned(session).len(), 1);
    let record = rig.manager.state().worker(&worker_id("w")).expect("remembered");
    assert_eq!((&record.evicted, record.probation, record.evictions), (&None, true, 2), "the log knows it");
}

#[test]
fn an_evicted_worker_that_stays_away_is_forgotten() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    rig.claim(session);
    rig.close(session);
    rig.advance(secs(11));
    assert_eq!(rig.evictions(), ["w"]);
    rig.advance(secs(1000));
    assert!(!rig.knows("w"));
    // One that held nothing is not evicted but forgotten: nothing was taken from it.
    let idle = rig.worker("idle", 3, 1, &["k2"]);
    rig.close(idle);
    rig.advance(secs(10));
    assert!(!rig.knows("idle"));
}

#[test]
fn a_stuck_worker_that_was_suspect_in_between_is_on_probation_all_the_same() {
    let mut rig = Rig::new();
    let (session, id, claim) = stuck_worker(&mut rig, 2);
    rig.advance(secs(1));
    assert_eq!(rig.verdict("w"), Verdict::Stuck);
    rig.close(session);
    assert_eq!(rig.verdict("w"), Verdict::Suspect);
    let session = rig.hello("w", "1", 2, 2, &["k"], vec![claim]);
    rig.beat(session, Beat::plain(claim)).unwrap();
    assert_eq!((rig.verdict("w"), rig.worker_view("w").probation), (Verdict::Degraded, true));
    assert_eq!(rig.state_of(id), JobState::Running);
}

#[test]
fn a_stuck_worker_that_is_gone_for_a_moment_is_on_probation_only_once_it_moves() {
    let mut rig = Rig::new();
    let (session, _, claim) = stuck_worker(&mut rig, 2);
    rig.advance(secs(1));
    assert_eq!(rig.verdict("w"), Verdict::Stuck);
    rig.close(session);
    assert_eq!((rig.verdict("w"), rig.worker_view("w").probation), (Verdict::Suspect, false));
    let session = rig.hello("w", "1", 2, 2, &["k"], vec![claim]);
    assert_eq!((rig.verdict("w"), rig.worker_view("w").probation), (Verdict::Stuck, false), "it is still stuck");
    let begun = |rig: &Rig| rig.logged(|event| matches!(event, Event::ProbationBegan { .. }));
    assert_eq!(begun(&rig), 0);
    rig.beat(session, Beat::plain(claim)).unwrap();
    assert_eq!((begun(&rig), rig.worker_view("w").probation), (1, true));
}

#[test]
fn a_stuck_worker_whose_session_closes_has_its_ten_seconds_to_come_back() {
    let mut rig = Rig::new();
    let (session, ..) = stuck_worker(&mut rig, 2);
    rig.advance(secs(16));
    assert_eq!(rig.verdict("w"), Verdict::Stuck);
    rig.close(session);
    rig.advance(secs(10) - ms(1));
    assert_eq!((rig.verdict("w"), rig.eviction_count()), (Verdict::Suspect, 0), "suspect for less than ten seconds");
    rig.advance(ms(1));
    assert_eq!(rig.evictions(), ["w"]);
}

#[test]
fn one_that_was_evicted_as_stuck_and_forgotten_is_still_evicted_while_it_runs_what_was_taken() {
    let mut rig = Rig::new();
    let (session, _, claim) = stuck_worker(&mut rig, 1);
    rig.advance(secs(31));
    assert_eq!(rig.evictions(), ["w"]);
    rig.close(session);
    rig.advance(secs(1_000));
    assert!(!rig.knows("w"));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    assert!(rig.worker_view("w").evicted && rig.assigned(session).is_empty(), "it still runs the old attempt");
    rig.tell(session, FromWorker::Ended(vec![claim]));
    assert!(!rig.worker_view("w").evicted && rig.worker_view("w").probation);
    assert_eq!(rig.assigned(session).len(), 1);
}
