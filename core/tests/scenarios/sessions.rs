//! Workers with a session: who they are, what they are given, and what they keep.

use crate::rig::*;
use onward_core::health::Verdict;
use onward_core::ids::{Claim, ClientId, Incarnation, SessionId};
use onward_core::input::{Call, Input};
use onward_core::job::JobState;
use onward_core::limits::Limit;
use onward_core::message::{Beat, CancelWhy, EndReport, FromWorker, Hello, ToWorker};
use onward_core::refusal::{Refusal, RefusalKind};

fn jobs(rig: &mut Rig, kind: &str, count: usize) {
    rig.submit_all(vec![job(kind); count]).expect("accepted");
}

fn hello(id: &str, slots: u32) -> Hello {
    Hello {
        worker: worker_id(id),
        incarnation: Incarnation::new("1").expect("valid"),
        subscription: subscription(&["default"], &["k"]),
        slots,
        holding: vec![],
        client: ClientId::default(),
    }
}

#[test]
fn a_hello_is_welcomed_with_the_term_before_anything_is_assigned() {
    let mut rig = Rig::new();
    rig.submit(job("k"));
    let session = rig.worker("w", 1, 2, &["k"]);
    let messages = rig.messages(session);
    assert!(matches!(messages[0], ToWorker::Welcome { term } if term.get() == 1), "{messages:?}");
    assert!(matches!(messages[1], ToWorker::Assign(_)), "{messages:?}");
    let view = rig.worker_view("w");
    assert_eq!((view.slots, view.held, view.free, view.connected), (2, 1, 1, true));
}

#[test]
fn a_worker_gets_only_the_queues_and_kinds_that_it_subscribed_to() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 10, &["a", "b"]);
    let (a, b) = (rig.submit(job("a")), rig.submit(job("b")));
    let other_kind = rig.submit(job("c"));
    let other_queue = rig.submit(onward_core::job::Draft { queue: Some("slow".into()), ..job("a") });
    let given: Vec<_> = rig.assigned(session).iter().map(|assignment| assignment.claim.job).collect();
    assert_eq!(given, [a, b]);
    for left in [other_kind, other_queue] {
        assert_eq!(rig.view(left).workflows[0].blocked, Some("no_capable_worker"));
    }
}

#[test]
fn nobody_is_assigned_more_than_it_has_slots() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 3, &["k"]);
    jobs(&mut rig, "k", 10);
    let mut held: Vec<Claim> = rig.assigned(session).iter().map(|assignment| assignment.claim).collect();
    assert_eq!(held.len(), 3);
    for done in 1..=7 {
        let claim = held.remove(0);
        rig.succeed(session, claim).unwrap();
        held.push(rig.claim(session));
        let view = rig.worker_view("w");
        assert_eq!((view.held, view.free, view.judgement.verdict), (3, 0, Verdict::Busy), "after {done}");
    }
}

#[test]
fn more_slots_are_filled_at_once_and_fewer_take_nothing_away() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    jobs(&mut rig, "k", 6);
    let mut held = vec![rig.claim(session)];
    rig.tell(session, FromWorker::Capacity { slots: 3, accepting: true });
    held.extend(rig.assigned(session).iter().map(|assignment| assignment.claim));
    assert_eq!(held.len(), 3);
    rig.tell(session, FromWorker::Capacity { slots: 1, accepting: true });
    assert!(rig.cancelled(session).is_empty());
    for claim in &held[..2] {
        rig.succeed(session, *claim).unwrap();
        assert!(rig.assigned(session).is_empty(), "it holds as many as it has slots, or more");
    }
    rig.succeed(session, held[2]).unwrap();
    assert_eq!(rig.assigned(session).len(), 1);
}

#[test]
fn a_worker_that_stops_accepting_finishes_what_it_has_and_gets_nothing_new() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    jobs(&mut rig, "k", 3);
    let held = rig.assigned(session);
    rig.tell(session, FromWorker::Capacity { slots: 2, accepting: false });
    assert_eq!(rig.verdict("w"), Verdict::Busy);
    assert_eq!(rig.worker_view("w").judgement.reason.code(), "not_accepting");
    rig.succeed(session, held[0].claim).unwrap();
    assert!(rig.assigned(session).is_empty());
    rig.tell(session, FromWorker::Capacity { slots: 2, accepting: true });
    assert_eq!(rig.assigned(session).len(), 1);
}

#[test]
fn a_drained_worker_gets_nothing_until_it_is_undrained_also_after_a_restart() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    rig.call(Call::DrainWorker(worker_id("w"))).unwrap();
    rig.call(Call::DrainWorker(worker_id("w"))).unwrap();
    let id = rig.submit(job("k"));
    assert!(rig.assigned(session).is_empty());
    assert!(rig.worker_view("w").drained);
    rig.restart(secs(2));
    let session = rig.worker("w", 2, 2, &["k"]);
    assert!(rig.worker_view("w").drained);
    assert!(rig.assigned(session).is_empty());
    // Nor does a new incarnation get around it, or being away.
    rig.tell(session, FromWorker::Goodbye);
    assert!(!rig.knows("w"));
    let session = rig.hello("w", "2", 3, 2, &["k"], vec![]);
    assert!(rig.assigned(session).is_empty());
    rig.call(Call::UndrainWorker(worker_id("w"))).unwrap();
    assert_eq!(rig.claim(session).job, id);
    assert_eq!(rig.call(Call::DrainWorker(worker_id("nobody"))), Err(Refusal::UnknownWorker));
}

#[test]
fn two_equal_workers_are_asked_in_turn() {
    let mut rig = Rig::new();
    let (left, right) = (rig.worker("l", 1, 100, &["k"]), rig.worker("r", 2, 100, &["k"]));
    for round in 0..10 {
        rig.submit(job("k"));
        let given = (rig.assigned(left).len(), rig.assigned(right).len());
        assert_eq!(given, if round % 2 == 0 { (1, 0) } else { (0, 1) }, "round {round}");
    }
    jobs(&mut rig, "k", 40);
    assert_eq!((rig.assigned(left).len(), rig.assigned(right).len()), (20, 20));
}

/// Three successes and three failures inside the window: a rate of a half.
fn make_slow(rig: &mut Rig, session: SessionId, kind: &str) {
    for _ in 0..3 {
        rig.submit(job(kind));
        let claim = rig.claim(session);
        rig.succeed(session, claim).unwrap();
        rig.submit(job(kind));
        let claim = rig.claim(session);
        rig.fail_for_good(session, claim).unwrap();
    }
}

#[test]
fn a_slow_worker_is_asked_last_and_only_for_what_nobody_else_has_room_for() {
    let mut rig = Rig::new();
    let slow = rig.worker("slow", 1, 5, &["k", "own"]);
    make_slow(&mut rig, slow, "own");
    assert_eq!(rig.verdict("slow"), Verdict::Slow);
    let good = rig.hello("good", "1", 2, 3, &["k", "own"], vec![]);
    jobs(&mut rig, "k", 3);
    assert_eq!((rig.assigned(slow).len(), rig.assigned(good).len()), (0, 3));
    jobs(&mut rig, "k", 2);
    assert_eq!((rig.assigned(slow).len(), rig.assigned(good).len()), (2, 0));
}

#[test]
fn a_slow_worker_of_another_subscription_is_asked_last_too() {
    for slow_came_first in [true, false] {
        let mut rig = Rig::new();
        let (slow, good) = if slow_came_first {
            (rig.worker("slow", 1, 5, &["k", "own"]), rig.worker("good", 2, 3, &["k"]))
        } else {
            let good = rig.worker("good", 2, 3, &["k"]);
            (rig.worker("slow", 1, 5, &["k", "own"]), good)
        };
        make_slow(&mut rig, slow, "own");
        jobs(&mut rig, "k", 3);
        assert_eq!((rig.assigned(slow).len(), rig.assigned(good).len()), (0, 3), "{slow_came_first}");
        jobs(&mut rig, "k", 1);
        assert_eq!(rig.assigned(slow).len(), 1);
    }
}

#[test]
fn stuck_suspect_and_evicted_workers_are_never_asked() {
    let mut rig = Rig::new();
    rig.bystanders(4);
    let stuck = rig.worker("stuck", 1, 9, &["k"]);
    rig.fail_for_119_s(stuck);
    let suspect = rig.worker("suspect", 2, 9, &["b"]);
    rig.silence(suspect);
    rig.advance(secs(1));
    assert_eq!(rig.verdict("stuck"), Verdict::Stuck);
    let of_stuck = rig.submit(job("k"));
    rig.advance(secs(29));
    assert_eq!(rig.verdict("suspect"), Verdict::Suspect);
    let of_suspect = rig.submit(job("b"));
    assert_eq!(rig.state_of(of_suspect), JobState::Ready);
    assert_eq!(rig.state_of(of_stuck), JobState::Ready);
    rig.advance(secs(10));
    assert_eq!(rig.evictions(), ["stuck", "suspect"]);
    assert!(rig.assigned(stuck).is_empty() && rig.assigned(suspect).is_empty());
    assert_eq!((rig.state_of(of_stuck), rig.state_of(of_suspect)), (JobState::Ready, JobState::Ready));
}

#[test]
fn the_same_incarnation_on_a_new_session_keeps_what_it_holds() {
    let mut rig = Rig::new();
    let old = rig.worker("w", 1, 2, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(old);
    let new = rig.hello("w", "1", 2, 2, &["k"], vec![claim]);
    assert_eq!(rig.closed, [old]);
    assert!(rig.cancelled(new).is_empty() && rig.assigned(new).is_empty());
    assert_eq!(rig.worker_view("w").held, 1);
    // The late end of the old session does not touch the new one.
    rig.close(old);
    assert_eq!(rig.verdict("w"), Verdict::Healthy);
    rig.succeed(new, claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded);
}

#[test]
fn what_a_returning_worker_does_not_hold_never_arrived_and_is_not_counted() {
    let mut rig = Rig::new();
    let old = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let lost = rig.claim(old);
    let new = rig.hello("w", "1", 2, 1, &["k"], vec![]);
    let again = rig.assigned(new).remove(0);
    assert_eq!((again.claim.job, again.attempt), (id, 1));
    assert!(again.claim.fence > lost.fence);
    assert_eq!(rig.endings(id), ["never_arrived"]);
}

#[test]
fn what_a_returning_worker_holds_and_may_not_keep_is_cancelled_as_stale() {
    let mut rig = Rig::new();
    let first = rig.worker("first", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(first);
    let thief = rig.hello("thief", "1", 2, 1, &["other"], vec![claim]);
    let cancels: Vec<_> = rig
        .messages(thief)
        .into_iter()
        .filter_map(|message| match message {
            ToWorker::Cancel { claim, why } => Some((claim, why)),
            _ => None,
        })
        .collect();
    assert_eq!(cancels, [(claim, CancelWhy::Stale)]);
    assert_eq!(rig.succeed(thief, claim), Err(Refusal::StaleAttempt));
    rig.succeed(first, claim).unwrap();
}

#[test]
fn a_new_incarnation_ends_its_predecessors_attempts_at_once_and_they_count() {
    let mut rig = Rig::new();
    let old = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let lost = rig.claim(old);
    // Claiming to hold it does not revive it.
    let new = rig.hello("w", "2", 2, 1, &["k"], vec![lost]);
    assert_eq!(rig.closed, [old]);
    assert_eq!(rig.endings(id), ["crashed"]);
    assert_eq!(rig.cancelled(new), [lost]);
    let again = rig.assigned(new).remove(0);
    assert_eq!((again.claim.job, again.attempt), (id, 2));
    assert_eq!(rig.succeed(new, lost), Err(Refusal::StaleAttempt));
    rig.succeed(new, again.claim).unwrap();
}

#[test]
fn an_incarnation_that_was_replaced_is_turned_away() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    let new = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    let zombie = rig.hello("w", "1", 3, 1, &["k"], vec![]);
    assert_eq!(rig.messages(zombie), [ToWorker::Rejected(Refusal::StaleIncarnation)]);
    assert_eq!(rig.closed, [SessionId(1), zombie]);
    assert_eq!(rig.refused(RefusalKind::StaleIncarnation), 1);
    rig.submit(job("k"));
    assert_eq!(rig.assigned(new).len(), 1);
}

#[test]
fn a_closed_session_makes_its_worker_suspect_at_once_and_coming_back_in_time_keeps_its_work() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let old = rig.worker("w", 1, 2, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(old);
    rig.advance(secs(3));
    rig.close(old);
    assert_eq!(rig.verdict("w"), Verdict::Suspect);
    assert_eq!(rig.worker_view("w").judgement.reason.code(), "session_closed");
    rig.submit(job("k"));
    rig.advance(ms(9_999));
    assert_eq!(rig.evictions().len(), 0);
    let new = rig.hello("w", "1", 2, 2, &["k"], vec![claim]);
    assert_eq!(rig.verdict("w"), Verdict::Busy);
    assert_eq!(rig.assigned(new).len(), 1, "and gets work again");
    rig.advance(secs(30));
    assert!(rig.evictions().is_empty());
    rig.succeed(new, claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded);
}

#[test]
fn a_worker_that_drained_itself_and_left_is_forgotten_at_once() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.tell(session, FromWorker::Capacity { slots: 2, accepting: false });
    rig.succeed(session, claim).unwrap();
    rig.tell(session, FromWorker::Goodbye);
    assert!(!rig.knows("w"));
    // One that still holds something, or that never said goodbye, is not.
    let holder = rig.worker("holder", 2, 1, &["k"]);
    rig.submit(job("k"));
    rig.claim(holder);
    rig.tell(holder, FromWorker::Capacity { slots: 1, accepting: false });
    let silent = rig.worker("silent", 3, 1, &["k"]);
    rig.close(holder);
    rig.close(silent);
    assert_eq!((rig.verdict("holder"), rig.verdict("silent")), (Verdict::Suspect, Verdict::Suspect));
}

#[test]
fn what_was_on_its_way_to_a_worker_that_says_goodbye_goes_to_another_at_once() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let (first, second) = (rig.submit(job("k")), rig.submit(job("k")));
    let cancelled = rig.assigned(session)[0].claim;
    rig.cancel(first);
    rig.messages(session);
    // It has neither heard of the one nor of the other.
    rig.tell(session, FromWorker::Goodbye);
    assert_eq!(rig.messages(session), [ToWorker::Goodbye]);
    assert_eq!((rig.closed.clone(), rig.knows("w")), (vec![session], false));
    assert_eq!((rig.state_of(first), rig.state_of(second)), (JobState::Cancelled, JobState::Ready));
    assert_eq!((rig.endings(second), rig.counted(second)), (vec!["never_arrived"], 0));
    // The shell reports the end of a session that it was told to close.
    rig.step(Input::SessionClosed { session });
    let other = rig.worker("other", 2, 1, &["k"]);
    let claim = rig.claim(other);
    assert_eq!(claim.job, second);
    // Whoever has left and speaks all the same is nobody.
    rig.tell(session, FromWorker::Ended(vec![cancelled]));
    assert_eq!(rig.messages(session), [ToWorker::Refused(Refusal::UnknownWorker)]);
    rig.succeed(other, claim).unwrap();
    rig.advance(secs(60));
    assert!(rig.evictions().is_empty());
}

#[test]
fn an_eviction_is_not_undone_by_a_goodbye() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 9, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.silence(session);
    rig.advance(secs(45));
    assert_eq!(rig.evictions(), ["w"]);
    rig.tell(session, FromWorker::Goodbye);
    let again = rig.hello("w", "1", 10, 1, &["k"], vec![claim]);
    assert_eq!(rig.assigned(again).len(), 0, "it has come back as the same incarnation, and too soon");
    assert_eq!(rig.cancelled(again), [claim]);
}

#[test]
fn before_its_hello_a_session_is_refused_whatever_it_says() {
    let mut rig = Rig::new();
    let worker = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(worker);
    let stranger = SessionId(9);
    let before = rig.manager.state().dump();
    let messages = [
        FromWorker::Capacity { slots: 1, accepting: true },
        FromWorker::Beats(vec![Beat::plain(claim)]),
        FromWorker::Settle(vec![onward_core::message::Settlement::new(
            claim,
            EndReport::Succeed { result: bytes("1").into() },
        )]),
        FromWorker::ProbeAnswer { probe: 1 },
        FromWorker::RequestExtension(onward_core::message::ExtensionRequest {
            claims: vec![claim],
            reason: "gc_pause".into(),
            progress: 0.5,
            estimated_remaining: None,
        }),
        FromWorker::Ended(vec![claim]),
        FromWorker::Goodbye,
    ];
    let count = messages.len();
    for message in messages {
        rig.tell(stranger, message);
    }
    assert_eq!(rig.messages(stranger), vec![ToWorker::Refused(Refusal::UnknownWorker); count]);
    assert_eq!(rig.refused(RefusalKind::UnknownWorker), count as u64);
    assert_eq!(rig.manager.state().dump(), before);
    rig.step(Input::SessionClosed { session: stranger });
    rig.succeed(worker, claim).unwrap();
}

#[test]
fn one_session_cannot_speak_for_two_workers() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.messages(session);
    rig.tell(session, FromWorker::Hello(hello("other", 1)));
    assert_eq!(rig.messages(session), [ToWorker::Rejected(Refusal::Conflict)]);
    assert_eq!(rig.closed, [session]);
    assert!(!rig.knows("other"));
    assert_eq!(rig.worker_view("w").id.as_str(), "w");
}

#[test]
fn a_second_hello_on_the_same_session_changes_the_subscription() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["a"]);
    rig.submit(job("b"));
    rig.hello("w", "1", 1, 2, &["b"], vec![]);
    assert_eq!(rig.closed, []);
    assert_eq!(rig.assigned(session).len(), 1);
    rig.submit(job("a"));
    assert!(rig.assigned(session).is_empty());
}

#[test]
fn a_claim_on_another_workers_session_is_stale() {
    let mut rig = Rig::new();
    let owner = rig.worker("owner", 1, 1, &["k"]);
    let other = rig.worker("other", 2, 1, &["x"]);
    rig.submit(job("k"));
    let claim = rig.claim(owner);
    assert_eq!(rig.beat(other, Beat::plain(claim)), Err(Refusal::StaleAttempt));
    assert_eq!(rig.succeed(other, claim), Err(Refusal::StaleAttempt));
    rig.tell(other, FromWorker::Ended(vec![claim]));
    assert_eq!(rig.worker_view("owner").held, 1);
    rig.succeed(owner, claim).unwrap();
}

#[test]
fn a_worker_that_ends_what_nobody_cancelled_gives_it_back_uncounted() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.tell(session, FromWorker::Ended(vec![claim]));
    assert_eq!(rig.endings(id), ["released"]);
    assert_eq!(rig.assigned(session)[0].attempt, 1);
}

#[test]
fn a_hello_beyond_a_limit_is_rejected_and_closed() {
    let mut rig = Rig::with(|settings| {
        settings.limits.worker_slots = 4;
        settings.limits.workers = 2;
        settings.limits.frame_items = 2;
        settings.limits.subscription_pairs = 3;
        settings.limits.subscriptions = 2;
    });
    rig.worker("a", 1, 4, &["k"]);
    let claim = Claim { job: rig.new_id(), workflow: 0, fence: fence(1, 1) };
    let mut rows = vec![
        (Limit::WorkerSlots, hello("b", 5)),
        (Limit::FrameItems, Hello { holding: vec![claim; 3], ..hello("b", 1) }),
        (Limit::SubscriptionPairs, Hello { subscription: subscription(&["q", "r"], &["k", "l"]), ..hello("b", 1) }),
    ];
    let mut session = 10;
    let mut refuse = |rig: &mut Rig, limit: Limit, hello: Hello| {
        session += 1;
        let before = rig.manager.state().dump();
        rig.tell(SessionId(session), FromWorker::Hello(hello));
        match rig.messages(SessionId(session)).as_slice() {
            [ToWorker::Rejected(Refusal::Limited(met))] => assert_eq!(met.limit, limit),
            other => panic!("{limit:?}: {other:?}"),
        }
        assert_eq!(rig.closed.last(), Some(&SessionId(session)));
        assert_eq!(rig.manager.state().dump(), before);
    };
    for (limit, hello) in rows.drain(..) {
        refuse(&mut rig, limit, hello);
        assert!(!rig.knows("b"));
    }
    rig.worker("b", 2, 1, &["k", "l"]);
    refuse(&mut rig, Limit::Workers, hello("c", 1));
    refuse(&mut rig, Limit::Subscriptions, Hello { subscription: subscription(&["q"], &["z"]), ..hello("a", 1) });
    assert_eq!(rig.refused(RefusalKind::Limited), 5);
}

#[test]
fn a_capacity_beyond_the_limit_is_refused_and_changes_nothing() {
    let mut rig = Rig::with(|settings| settings.limits.worker_slots = 4);
    let session = rig.worker("w", 1, 2, &["k"]);
    rig.messages(session);
    rig.tell(session, FromWorker::Capacity { slots: 5, accepting: false });
    assert!(matches!(rig.messages(session)[..], [ToWorker::Refused(Refusal::Limited(_))]));
    let view = rig.worker_view("w");
    assert_eq!((view.slots, view.free), (2, 2));
}

#[test]
fn after_a_restart_a_worker_comes_back_to_what_it_held() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let (kept, lost) = (rig.submit(job("k")), rig.submit(job("k")));
    let held: Vec<_> = rig.assigned(session).iter().map(|assignment| assignment.claim).collect();
    rig.restart(secs(20));
    assert_eq!(rig.worker_view("w").held, 2);
    let session = rig.hello("w", "1", 2, 2, &["k"], vec![held[0]]);
    let again = rig.claim(session);
    assert_eq!(again.job, lost);
    assert_eq!(again.fence, fence(2, 2));
    rig.succeed(session, held[0]).unwrap();
    assert_eq!(rig.state_of(kept), JobState::Succeeded);
}
