//! Workers without a session: polls, leases, and liveness by calls.

use crate::rig::*;
use onward_core::health::Verdict;
use onward_core::ids::{Claim, Incarnation, Name, RequestId};
use onward_core::input::{Call, Input, Poll};
use onward_core::job::JobState;
use onward_core::limits::Limit;
use onward_core::manager::{AwayReason, EvictedReason, WorkerState};
use onward_core::message::{Assignment, Beat, EndReport, ExtensionRequest, FromWorker};
use onward_core::refusal::{Refusal, RefusalKind};

use onward_core::effect::Answer;

fn poll(max: u32, wait_s: u64) -> Poll {
    Rig::poll_of("h", &["k"], max, secs(wait_s))
}

fn with_id(poll: Poll, id: &str) -> Poll {
    Poll { id: Name::new(id), ..poll }
}

fn with_lease(poll: Poll, lease_s: u64) -> Poll {
    Poll { lease: secs(lease_s), ..poll }
}

fn answered(rig: &mut Rig, request: RequestId) -> Option<Vec<Assignment>> {
    match rig.reply(request)? {
        Ok(Answer::Leases(leases)) => Some(leases),
        other => panic!("a poll is answered by {other:?}"),
    }
}

fn gone(rig: &mut Rig, request: RequestId, delivered: bool) {
    rig.step(Input::CallGone { request, delivered });
}

#[test]
fn a_poll_is_answered_at_once_when_work_is_there_up_to_its_max() {
    let mut rig = Rig::new();
    rig.submit_all(vec![job("k"); 5]).unwrap();
    let leases = rig.leases(poll(3, 20));
    assert_eq!(leases.len(), 3);
    assert!(leases.iter().all(|lease| lease.lease == secs(30) && lease.attempt == 1));
    let view = rig.worker_view("h");
    assert_eq!((view.held, view.free, view.connected), (3, 0, false));
    assert_eq!(rig.leases(poll(9, 0)).len(), 2);
}

#[test]
fn a_long_poll_is_answered_as_soon_as_there_is_something() {
    let mut rig = Rig::new();
    let open = rig.call_open(Call::Poll(poll(2, 20)));
    rig.advance(secs(7));
    assert_eq!(answered(&mut rig, open), None);
    rig.submit(job("other"));
    assert_eq!(answered(&mut rig, open), None);
    rig.submit_all(vec![job("k"); 3]).unwrap();
    assert_eq!(answered(&mut rig, open).map(|leases| leases.len()), Some(2), "as many as came in one step, up to max");
}

#[test]
fn a_poll_without_work_is_answered_empty_when_its_wait_is_over() {
    let mut rig = Rig::new();
    assert_eq!(rig.leases(poll(1, 0)), []);
    let open = rig.call_open(Call::Poll(poll(1, 20)));
    rig.advance(ms(19_999));
    assert_eq!(answered(&mut rig, open), None);
    rig.advance(ms(1));
    assert_eq!(answered(&mut rig, open), Some(vec![]));
    // What comes later is for the next poll.
    let id = rig.submit(job("k"));
    assert_eq!(rig.state_of(id), JobState::Ready);
}

#[test]
fn the_same_poll_id_gives_the_same_leases() {
    let mut rig = Rig::new();
    rig.submit_all(vec![job("k"); 4]).unwrap();
    let first = rig.leases(with_id(poll(2, 0), "p1"));
    rig.advance(secs(5));
    let again = rig.leases(with_id(poll(2, 20), "p1"));
    let claims = |leases: &[Assignment]| leases.iter().map(|lease| lease.claim).collect::<Vec<_>>();
    assert_eq!(claims(&again), claims(&first));
    assert!(again.iter().all(|lease| lease.lease == secs(25)), "with what is left of them: {again:?}");
    rig.restart(secs(2));
    let after = rig.leases(with_id(poll(2, 20), "p1"));
    assert_eq!(claims(&after), claims(&first), "a takeover knows the poll");
    // What was settled is not given again, and another id gets what is left.
    rig.http_settle(first[0].claim, EndReport::Succeed { result: bytes("1").into() }).unwrap();
    assert_eq!(claims(&rig.leases(with_id(poll(2, 20), "p1"))), [first[1].claim]);
    assert_eq!(rig.leases(with_id(poll(9, 0), "p2")).len(), 2);
}

#[test]
fn leases_that_did_not_arrive_go_back_uncounted() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    let open = rig.call_open(Call::Poll(poll(1, 0)));
    let lost = answered(&mut rig, open).unwrap().remove(0);
    gone(&mut rig, open, false);
    assert_eq!(rig.endings(id), ["never_arrived"]);
    let again = rig.leases(poll(1, 0)).remove(0);
    assert_eq!((again.claim.job, again.attempt), (id, 1));
    assert_eq!(rig.http_beat(Beat::plain(lost.claim)), Err(Refusal::StaleAttempt));
}

#[test]
fn leases_that_arrived_stay_when_the_connection_closes() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    let open = rig.call_open(Call::Poll(poll(1, 0)));
    assert_eq!(answered(&mut rig, open).unwrap().len(), 1);
    gone(&mut rig, open, true);
    gone(&mut rig, open, false);
    assert_eq!(rig.state_of(id), JobState::Running);
}

#[test]
fn a_poll_with_an_id_can_be_asked_again_so_nothing_is_released() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    let open = rig.call_open(Call::Poll(with_id(poll(1, 0), "p1")));
    let lease = answered(&mut rig, open).unwrap().remove(0);
    gone(&mut rig, open, false);
    assert_eq!(rig.state_of(id), JobState::Running);
    assert_eq!(rig.leases(with_id(poll(1, 0), "p1"))[0].claim, lease.claim);
}

#[test]
fn a_caller_that_hangs_up_while_it_waits_is_given_nothing() {
    let mut rig = Rig::new();
    let open = rig.call_open(Call::Poll(poll(1, 20)));
    gone(&mut rig, open, false);
    let id = rig.submit(job("k"));
    assert_eq!(rig.state_of(id), JobState::Ready);
    rig.advance(secs(20));
    assert_eq!(answered(&mut rig, open), None);
}

#[test]
fn a_newer_poll_takes_the_place_of_the_older() {
    let mut rig = Rig::new();
    let older = rig.call_open(Call::Poll(poll(1, 20)));
    let newer = rig.call_open(Call::Poll(poll(2, 20)));
    assert_eq!(answered(&mut rig, older), Some(vec![]));
    assert_eq!(rig.worker_view("h").free, 2);
    rig.submit_all(vec![job("k"); 2]).unwrap();
    assert_eq!(answered(&mut rig, newer).unwrap().len(), 2);
}

#[test]
fn a_newer_incarnation_takes_over_the_poll_and_ends_what_was_held() {
    let mut rig = Rig::new();
    let held = rig.submit(job("k"));
    let lease = rig.leases(poll(1, 0)).remove(0);
    let older = rig.call_open(Call::Poll(poll(1, 20)));
    let second = Poll { incarnation: Incarnation::new("2").unwrap(), ..poll(1, 0) };
    let again = rig.leases(second).remove(0);
    assert_eq!(answered(&mut rig, older), Some(vec![]));
    assert_eq!((again.claim.job, again.attempt), (held, 2));
    assert_eq!(rig.endings(held), ["crashed"]);
    assert_eq!(rig.http_beat(Beat::plain(lease.claim)), Err(Refusal::StaleAttempt));
    assert_eq!(rig.call(Call::Poll(poll(1, 0))), Err(Refusal::StaleIncarnation));
}

#[test]
fn one_incarnation_speaks_one_way() {
    let mut rig = Rig::new();
    let session = rig.worker("h", 1, 1, &["k"]);
    assert_eq!(rig.call(Call::Poll(poll(1, 0))), Err(Refusal::Conflict));
    let second = Poll { incarnation: Incarnation::new("2").unwrap(), ..poll(1, 0) };
    assert_eq!(rig.leases(second), []);
    assert_eq!(rig.closed, [session]);
}

#[test]
fn numbers_out_of_range_are_refused_with_field_and_range() {
    let mut rig = Rig::new();
    let rows = [
        (poll(0, 0), "`max` is 0; it must be from 1 to 1000"),
        (poll(1, 61), "`wait_s` is 61s; it must be from 0s to 60s"),
        (with_lease(poll(1, 0), 0), "`lease_s` is 0s; it must be from 1s to 43200s"),
        (with_lease(poll(1, 0), 43_201), "`lease_s` is 43201s; it must be from 1s to 43200s"),
        (Poll { lease: ms(999), ..poll(1, 0) }, "`lease_s` is 0.999s; it must be from 1s to 43200s"),
    ];
    for (bad, text) in rows {
        let refusal = rig.call(Call::Poll(bad)).unwrap_err();
        assert_eq!(refusal.kind(), RefusalKind::Invalid);
        assert_eq!(refusal.to_string(), text);
    }
    match rig.call(Call::Poll(poll(1001, 0))).unwrap_err() {
        Refusal::Limited(met) => assert_eq!(met.limit, Limit::PollLeases),
        other => panic!("{other:?}"),
    }
    assert!(!rig.knows("h"));
    for good in [poll(1000, 60), with_lease(poll(1, 0), 1), with_lease(poll(1, 0), 43_200)] {
        rig.call_open(Call::Poll(good));
    }
    assert_eq!(rig.refused(RefusalKind::Invalid), 5);
}

#[test]
fn a_lease_runs_out_at_its_own_length_and_the_attempt_counts() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    let lease = rig.leases(with_lease(poll(1, 0), 45)).remove(0);
    rig.advance(ms(44_999));
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["lease_expired"]);
    assert_eq!(
        rig.http_settle(lease.claim, EndReport::Succeed { result: bytes("1").into() }),
        Err(Refusal::StaleAttempt)
    );
    assert_eq!(rig.leases(poll(1, 0))[0].attempt, 2);
}

#[test]
fn a_beat_renews_by_the_length_that_the_poll_asked_for() {
    let mut rig = Rig::new();
    rig.submit(job("k"));
    let claim = rig.leases(with_lease(poll(1, 0), 45)).remove(0).claim;
    for _ in 0..5 {
        rig.advance(secs(44));
        assert_eq!(rig.http_beat(Beat::plain(claim)).unwrap().lease_remaining, secs(45));
    }
    rig.restart(secs(1));
    rig.advance(secs(40));
    assert_eq!(rig.http_beat(Beat::plain(claim)).unwrap().lease_remaining, secs(45), "also after a takeover");
    rig.http_settle(claim, EndReport::Succeed { result: bytes("1").into() }).unwrap();
    assert_eq!(rig.http_settle(claim, EndReport::Succeed { result: bytes("1").into() }), Ok(()), "again the same");
    assert_eq!(rig.http_settle(claim, EndReport::Release { delay: None }), Err(Refusal::AlreadyEnded));
}

/// Here until just before `after`, and away from then on.
fn lives_until(rig: &mut Rig, after: std::time::Duration, why: &str) {
    rig.advance(after - ms(1));
    assert_eq!(rig.worker_view("h").state, WorkerState::Judged, "just before: {why}");
    rig.advance(ms(1));
    assert_eq!(rig.worker_view("h").state, WorkerState::Away(AwayReason::NoCall), "then: {why}");
}

#[test]
fn a_polling_worker_lives_by_its_last_call() {
    let mut rig = Rig::new();
    rig.leases(poll(1, 0));
    lives_until(&mut rig, secs(30), "30 s after its first call");
    rig.leases(poll(1, 0));
    lives_until(&mut rig, secs(30), "30 s after it called again");
}

#[test]
fn a_polling_worker_lives_by_its_open_poll() {
    let mut rig = Rig::new();
    rig.call_open(Call::Poll(poll(1, 50)));
    lives_until(&mut rig, secs(80), "30 s after the end of its poll");
    let open = rig.call_open(Call::Poll(poll(1, 50)));
    rig.advance(secs(10));
    gone(&mut rig, open, false);
    lives_until(&mut rig, secs(30), "30 s after it hung up");
}

#[test]
fn a_polling_worker_lives_by_its_leases() {
    let mut rig = Rig::new();
    rig.submit(patient("k"));
    let claim = rig.leases(with_lease(poll(1, 0), 100)).remove(0).claim;
    rig.advance(secs(90));
    rig.http_beat(Beat::plain(claim)).unwrap();
    lives_until(&mut rig, secs(100), "the end of the renewed lease");
}

#[test]
fn the_longest_lease_counts_not_the_last_one() {
    let mut rig = Rig::new();
    rig.submit(patient("k"));
    let long = rig.leases(with_lease(poll(1, 0), 100)).remove(0).claim;
    rig.submit(patient("k"));
    let short = rig.leases(with_lease(poll(1, 0), 5)).remove(0).claim;
    rig.http_beat(Beat::plain(short)).unwrap();
    rig.advance(secs(60));
    assert_eq!(rig.worker_view("h").held, 1, "the short one is over");
    assert_eq!(rig.worker_view("h").state, WorkerState::Judged);
    rig.http_beat(Beat::plain(long)).unwrap();
    lives_until(&mut rig, secs(100), "the end of the longest lease");
}

#[test]
fn a_lease_that_was_given_back_proves_nothing() {
    let mut rig = Rig::new();
    rig.submit_all(vec![patient("k"); 2]).unwrap();
    let claims: Vec<_> = rig.leases(with_lease(poll(2, 0), 3600)).iter().map(|lease| lease.claim).collect();
    rig.advance(secs(5));
    rig.http_settle(claims[0], EndReport::Succeed { result: bytes("1").into() }).unwrap();
    rig.advance(secs(60));
    assert_eq!(rig.worker_view("h").state, WorkerState::Judged, "it holds the other one");
    rig.http_settle(claims[1], EndReport::Succeed { result: bytes("1").into() }).unwrap();
    lives_until(&mut rig, secs(30), "30 s after its last call");
    rig.advance(secs(270) - ms(1));
    assert!(rig.knows("h"));
    rig.advance(ms(1));
    assert!(!rig.knows("h"), "forgotten 5 min after its last call");
}

#[test]
fn asking_for_more_time_is_a_sign_of_life() {
    let mut rig = Rig::new();
    rig.submit(job("k"));
    let claim = rig.leases(with_lease(poll(1, 0), 20)).remove(0).claim;
    rig.advance(secs(19));
    let asked =
        ExtensionRequest { claims: vec![claim], reason: "gc_pause".into(), progress: 0.5, estimated_remaining: None };
    assert_eq!(rig.http_extension(asked).result, Ok(secs(30)));
    rig.advance(secs(29));
    assert_eq!(rig.worker_view("h").state, WorkerState::Judged);
}

#[test]
fn a_polling_worker_is_forgotten_after_five_idle_minutes() {
    let mut rig = Rig::new();
    rig.leases(poll(1, 0));
    rig.advance(secs(100));
    rig.leases(poll(1, 0));
    rig.advance(secs(300) - ms(1));
    assert!(rig.knows("h"));
    rig.advance(ms(1));
    assert!(!rig.knows("h"));
    // Not while a poll of it is open, nor while it holds something.
    rig.submit(patient("k"));
    let claim = rig.leases(with_lease(poll(1, 0), 400)).remove(0).claim;
    for _ in 0..4 {
        rig.advance(secs(95));
        rig.http_beat(Beat::plain(claim)).unwrap();
    }
    assert!(rig.knows("h"));
    rig.http_settle(claim, EndReport::Succeed { result: bytes("1").into() }).unwrap();
    rig.advance(secs(299));
    assert!(rig.knows("h"));
    rig.advance(secs(1));
    assert!(!rig.knows("h"));
}

/// A polling worker that was evicted just now, with what it held; its lease would go on for another 69 s.
fn evicted_polling_worker(rig: &mut Rig) -> Claim {
    rig.http_fail_for_119_s(&poll(1, 0));
    rig.submit_all(vec![patient("k"); 3]).unwrap();
    let claim = rig.leases(with_lease(poll(1, 0), 100)).remove(0).claim;
    rig.advance(secs(1));
    assert_eq!(rig.verdict("h"), Verdict::Stuck);
    assert_eq!(rig.leases(poll(1, 0)), [], "a stuck worker gets nothing");
    rig.advance(secs(30));
    assert_eq!(rig.evictions(), ["h"]);
    claim
}

#[test]
fn an_evicted_polling_worker_gets_nothing_until_its_time_is_over_and_then_one_at_a_time() {
    let mut rig = Rig::new();
    let claim = evicted_polling_worker(&mut rig);
    assert_eq!(rig.http_beat(Beat::plain(claim)), Err(Refusal::StaleAttempt));
    assert_eq!(rig.http_settle(claim, EndReport::Release { delay: None }), Err(Refusal::StaleAttempt));
    assert_eq!(rig.leases(poll(2, 0)), [], "it has confirmed its end, and still has to wait");
    rig.advance(secs(60) - ms(1));
    assert_eq!(rig.leases(poll(2, 0)), []);
    rig.advance(ms(1));
    let leases = rig.leases(poll(2, 0));
    assert_eq!(leases.len(), 1, "on probation");
    assert_eq!(rig.leases(poll(2, 0)), []);
    rig.http_settle(leases[0].claim, EndReport::Succeed { result: bytes("1").into() }).unwrap();
    assert_eq!(rig.leases(poll(2, 0)).len(), 2);
}

#[test]
fn an_evicted_polling_worker_confirms_the_end_of_what_it_held_or_waits_for_the_end_of_its_lease() {
    let reports = [
        EndReport::Succeed { result: bytes("1").into() },
        EndReport::Fail { error: "no".into(), retryable: true, delay: None },
        EndReport::Release { delay: None },
    ];
    for report in reports {
        let mut rig = Rig::new();
        let claim = evicted_polling_worker(&mut rig);
        rig.advance(secs(65));
        let waits_for = rig.worker_view("h").state;
        assert_eq!(waits_for, WorkerState::Evicted(EvictedReason::AttemptsUnconfirmed), "its time is over");
        assert_eq!(rig.leases(poll(1, 0)), [], "nobody said that the old attempt has ended");
        assert_eq!(rig.http_settle(claim, report.clone()), Err(Refusal::StaleAttempt));
        assert_eq!(rig.leases(poll(1, 0)).len(), 1, "{report:?}");
    }
    let mut rig = Rig::new();
    evicted_polling_worker(&mut rig);
    rig.advance(secs(69) - ms(1));
    assert_eq!(rig.leases(poll(1, 0)), []);
    rig.advance(ms(1));
    assert_eq!(rig.leases(poll(1, 0)).len(), 1, "the whole length of its lease is over");
}

#[test]
fn a_takeover_remembers_until_when_the_attempts_of_an_evicted_polling_worker_may_run() {
    let mut rig = Rig::new();
    evicted_polling_worker(&mut rig);
    rig.restart(secs(1));
    assert_eq!(rig.leases(poll(1, 0)), [], "neither is its time over");
    rig.advance(secs(68) - ms(1));
    assert_eq!(rig.worker_view("h").state, WorkerState::Evicted(EvictedReason::AttemptsUnconfirmed));
    assert_eq!(rig.leases(poll(1, 0)), []);
    rig.advance(ms(1));
    assert_eq!(rig.leases(poll(1, 0)).len(), 1);
}

#[test]
fn a_waiting_poll_is_served_when_the_eviction_is_over() {
    let mut rig = Rig::new();
    let claim = evicted_polling_worker(&mut rig);
    rig.http_settle(claim, EndReport::Release { delay: None }).unwrap_err();
    rig.advance(secs(20));
    let open = rig.call_open(Call::Poll(poll(1, 60)));
    rig.advance(secs(40) - ms(1));
    assert_eq!(answered(&mut rig, open), None);
    rig.advance(ms(1));
    assert_eq!(answered(&mut rig, open).unwrap().len(), 1);
}

#[test]
fn a_settlement_of_many_answers_each() {
    let mut rig = Rig::new();
    rig.submit_all(vec![job("k"); 2]).unwrap();
    let leases = rig.leases(poll(2, 0));
    let stranger = onward_core::ids::Claim { job: rig.new_id(), workflow: 0, fence: fence(1, 1) };
    let never = onward_core::ids::Claim { fence: fence(1, 9), ..leases[1].claim };
    let no_workflow = onward_core::ids::Claim { workflow: 3, ..leases[1].claim };
    let list = [leases[0].claim, stranger, never, no_workflow, leases[1].claim]
        .map(|claim| onward_core::message::Settlement::new(claim, EndReport::Succeed { result: bytes("1").into() }));
    let Ok(Answer::Settled(answers)) = rig.call(Call::Settle(list.to_vec())) else { panic!("answered") };
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.answer).collect();
    assert_eq!(
        answers,
        [Ok(()), Err(Refusal::UnknownJob), Err(Refusal::UnknownAttempt), Err(Refusal::UnknownWorkflow), Ok(())]
    );
}

#[test]
fn a_poll_is_not_answered_for_another_that_was_given_up() {
    let mut rig = Rig::new();
    rig.log_answers = false;
    rig.advance(secs(5));
    let first = rig.call_open(Call::Poll(Rig::poll_of("a", &["k"], 1, ms(0))));
    rig.step(Input::CallGone { request: first, delivered: false });
    let second = rig.call_open(Call::Poll(Rig::poll_of("b", &["k"], 1, secs(30))));
    rig.log_answers = true;
    rig.advance(secs(2));
    assert_eq!(rig.reply(second), None, "it waits for 30 s");
}

#[test]
fn a_poll_may_be_open_for_longer_than_its_worker_is_known() {
    let mut rig = Rig::new();
    let open = rig.call_open(Call::Poll(Rig::poll_of("w", &["k"], 1, secs(30))));
    let session = rig.hello("w", "2", 1, 1, &["k"], vec![]);
    rig.tell(session, FromWorker::Goodbye);
    assert!(!rig.knows("w"), "it said goodbye and holds nothing");
    rig.step(Input::CallGone { request: open, delivered: false });
    assert_eq!(rig.reply(open), None, "nobody waits for the answer");
}
