//! Workers that call over HTTP and are not there all the time: away is neither full nor silent nor suspect.

use std::time::Duration;

use crate::rig::*;
use onward_core::effect::Answer;
use onward_core::health::datacenter::datacenter;
use onward_core::health::{DatacenterClass, DatacenterCounts, Verdict};
use onward_core::ids::Incarnation;
use onward_core::input::{Call, Input, Poll};
use onward_core::manager::{AwayReason, EvictedReason, WorkerState};
use onward_core::message::{Beat, EndReport};
use onward_core::refusal::Refusal;
use onward_core::time::Wall;

const NO_CALL: WorkerState = WorkerState::Away(AwayReason::NoCall);
const GOODBYE: WorkerState = WorkerState::Away(AwayReason::Goodbye);

fn poll(id: &str, wait_s: u64) -> Poll {
    Rig::poll_of(id, &["k"], 1, secs(wait_s))
}

fn goodbye(rig: &mut Rig, id: &str, incarnation: &str) -> Result<u32, Refusal> {
    let incarnation = Incarnation::new(incarnation).expect("valid");
    match rig.call(Call::Goodbye { worker: worker_id(id), incarnation })? {
        Answer::Left { held } => Ok(held),
        other => panic!("a goodbye is answered by {other:?}"),
    }
}

fn state_of(rig: &Rig, id: &str) -> WorkerState {
    rig.worker_view(id).state
}

fn counts(rig: &Rig) -> DatacenterCounts {
    let own = rig.manager.own_judgement();
    let mut counts = DatacenterCounts {
        managers: 1,
        managers_live: u32::from(own.signals.live),
        managers_ready: u32::from(own.signals.ready),
        managers_stuck: u32::from(own.verdict == Verdict::Stuck),
        ..DatacenterCounts::default()
    };
    rig.manager.workers().for_each(|worker| worker.count(&mut counts));
    counts
}

fn class(rig: &Rig) -> DatacenterClass {
    datacenter(&counts(rig)).0
}

#[test]
fn between_two_polls_a_worker_keeps_its_verdict() {
    let mut rig = Rig::new();
    let open = rig.call_open(Call::Poll(poll("h", 20)));
    assert_eq!(rig.verdict("h"), Verdict::Healthy);
    rig.advance(secs(20));
    assert!(rig.reply(open).is_some());
    rig.watch(secs(30) - ms(1), |rig| {
        assert_eq!((state_of(rig, "h"), rig.verdict("h")), (WorkerState::Judged, Verdict::Healthy), "not full");
    });
    rig.submit(job("k"));
    let claim = rig.leases(poll("h", 0)).remove(0).claim;
    assert_eq!(rig.verdict("h"), Verdict::Busy, "it works, and asks for nothing");
    rig.http_settle(claim, success()).unwrap();
    assert_eq!(rig.verdict("h"), Verdict::Healthy);
}

#[test]
fn a_worker_that_fails_and_pauses_keeps_its_bad_verdict_while_it_is_here() {
    let mut rig = Rig::new();
    rig.http_fail_for_119_s(&poll("h", 0));
    rig.advance(secs(1));
    assert_eq!((state_of(&rig, "h"), rig.verdict("h")), (WorkerState::Judged, Verdict::Stuck));
}

#[test]
fn thirty_seconds_after_its_last_call_it_is_away_and_five_minutes_after_it_is_forgotten() {
    let mut rig = Rig::new();
    for _ in 0..5 {
        rig.leases(poll("h", 0));
        rig.advance(secs(20));
    }
    rig.advance(secs(10) - ms(1));
    assert_eq!(state_of(&rig, "h"), WorkerState::Judged);
    assert_eq!((rig.manager.view().workers, counts(&rig).workers), (1, 1));
    rig.advance(ms(1));
    assert_eq!(state_of(&rig, "h"), NO_CALL);
    let view = rig.worker_view("h");
    assert_eq!((view.verdict_code(), view.action_code(), view.reason_code()), ("away", "none", "no_call"));
    assert_eq!((view.slots, view.judgement.signals.live), (0, false));
    assert_eq!((rig.manager.view().workers, counts(&rig).workers), (0, 0));
    rig.advance(secs(270) - ms(1));
    assert!(rig.knows("h"));
    rig.advance(ms(1));
    assert!(!rig.knows("h"));
    assert_eq!(rig.manager.view().workers, 0);
}

#[test]
fn one_that_is_away_and_polls_again_is_back() {
    let mut rig = Rig::new();
    rig.leases(poll("h", 0));
    rig.advance(secs(100));
    assert_eq!(state_of(&rig, "h"), NO_CALL);
    rig.submit(job("k"));
    assert_eq!(rig.leases(poll("h", 0)).len(), 1);
    assert_eq!((state_of(&rig, "h"), rig.manager.view().workers), (WorkerState::Judged, 1));
}

#[test]
fn whoever_holds_something_is_not_away() {
    let mut rig = Rig::new();
    rig.submit(patient("k"));
    let claim = rig.leases(Poll { lease: secs(120), ..poll("h", 0) }).remove(0).claim;
    rig.watch(secs(119), |rig| assert_eq!(state_of(rig, "h"), WorkerState::Judged));
    rig.http_beat(Beat::plain(claim)).unwrap();
    rig.advance(secs(119));
    assert_eq!(state_of(&rig, "h"), WorkerState::Judged);
    rig.advance(secs(1));
    assert_eq!((state_of(&rig, "h"), rig.worker_view("h").held), (NO_CALL, 0), "its lease ran out");
}

#[test]
fn nobody_is_judged_while_away() {
    let mut rig = Rig::new();
    rig.http_fail_for_119_s(&poll("h", 0));
    assert_eq!(goodbye(&mut rig, "h", "1"), Ok(0));
    rig.watch(secs(200), |rig| assert_eq!(state_of(rig, "h"), GOODBYE));
    assert_eq!(rig.eviction_count(), 0, "it would have been stuck in a second, and evicted");
    assert_eq!(class(&rig), DatacenterClass::Unhealthy, "there is no worker");
}

#[test]
fn a_goodbye_makes_it_away_at_once_and_may_be_repeated() {
    let mut rig = Rig::new();
    let open = rig.call_open(Call::Poll(poll("h", 60)));
    assert_eq!(goodbye(&mut rig, "h", "1"), Ok(0));
    assert_eq!(rig.reply(open), Some(Ok(Answer::Leases(vec![]))), "its open poll is answered");
    assert_eq!((state_of(&rig, "h"), rig.worker_view("h").reason_code()), (GOODBYE, "goodbye"));
    rig.submit(job("k"));
    assert_eq!(goodbye(&mut rig, "h", "1"), Ok(0));
    rig.advance(secs(300));
    assert!(!rig.knows("h"));
    assert_eq!(goodbye(&mut rig, "h", "1"), Ok(0), "also when nobody knows it any more");
    assert_eq!(rig.leases(poll("h", 0)).len(), 1);
    assert_eq!(state_of(&rig, "h"), WorkerState::Judged, "it came back");
}

#[test]
fn one_that_said_goodbye_and_polls_again_is_back() {
    let mut rig = Rig::new();
    rig.leases(poll("h", 0));
    assert_eq!(goodbye(&mut rig, "h", "1"), Ok(0));
    assert_eq!(rig.leases(poll("h", 0)), []);
    assert_eq!((state_of(&rig, "h"), rig.verdict("h")), (WorkerState::Judged, Verdict::Healthy));
}

#[test]
fn a_stuck_worker_that_says_goodbye_is_not_evicted() {
    let mut rig = Rig::new();
    rig.http_fail_for_119_s(&poll("h", 0));
    rig.advance(secs(1));
    assert_eq!(rig.verdict("h"), Verdict::Stuck);
    assert_eq!(goodbye(&mut rig, "h", "1"), Ok(0));
    rig.watch(secs(299), |rig| assert_eq!(state_of(rig, "h"), GOODBYE));
    assert_eq!(rig.eviction_count(), 0);
}

#[test]
fn a_goodbye_takes_nothing_from_it_and_says_what_it_holds() {
    let mut rig = Rig::new();
    let ids = rig.submit_all(vec![patient("k"); 2]).unwrap();
    let leases = rig.leases(Rig::poll_of("h", &["k"], 2, Duration::ZERO));
    assert_eq!(goodbye(&mut rig, "h", "1"), Ok(2));
    assert_eq!((state_of(&rig, "h"), rig.worker_view("h").held), (WorkerState::Judged, 2));
    rig.http_beat(Beat::plain(leases[0].claim)).unwrap();
    rig.http_settle(leases[0].claim, success()).unwrap();
    assert_eq!(goodbye(&mut rig, "h", "1"), Ok(1));
    rig.http_settle(leases[1].claim, EndReport::Release { delay: None }).unwrap();
    assert_eq!((state_of(&rig, "h"), rig.manager.view().workers), (GOODBYE, 0), "away as soon as it holds nothing");
    assert_eq!(rig.endings(ids[1].id), ["released"]);
}

#[test]
fn one_that_said_goodbye_and_let_its_lease_run_out_is_away_from_then_on() {
    let mut rig = Rig::new();
    let id = rig.submit(patient("k"));
    rig.leases(Poll { lease: secs(10), ..poll("h", 0) });
    assert_eq!(goodbye(&mut rig, "h", "1"), Ok(1));
    rig.advance(secs(10));
    assert_eq!((rig.endings(id), state_of(&rig, "h")), (vec!["lease_expired"], GOODBYE));
    assert_eq!(rig.manager.view().workers, 0);
}

#[test]
fn one_that_said_goodbye_and_never_stopped_what_was_cancelled_is_away_with_its_lease() {
    let mut rig = Rig::new();
    let id = rig.submit(patient("k"));
    rig.leases(Poll { lease: secs(10), ..poll("h", 0) });
    rig.cancel(id);
    assert_eq!(goodbye(&mut rig, "h", "1"), Ok(1));
    rig.advance(secs(10));
    assert_eq!((state_of(&rig, "h"), rig.manager.view().workers), (GOODBYE, 0));
}

#[test]
fn a_goodbye_of_an_older_life_or_of_one_with_a_session_is_refused() {
    let mut rig = Rig::new();
    rig.leases(poll("h", 0));
    let newer = Incarnation::new("2").expect("valid");
    rig.leases(Poll { incarnation: newer, ..poll("h", 0) });
    assert_eq!(goodbye(&mut rig, "h", "1"), Err(Refusal::StaleIncarnation));
    assert_eq!(goodbye(&mut rig, "h", "3"), Err(Refusal::StaleIncarnation), "nor of one that never was here");
    assert_eq!(state_of(&rig, "h"), WorkerState::Judged);
    rig.worker("w", 1, 1, &["k"]);
    assert_eq!(goodbye(&mut rig, "w", "1"), Err(Refusal::Conflict), "one life speaks one way");
}

#[test]
fn a_rolling_deploy_of_thin_workers_stays_green() {
    let mut rig = Rig::new();
    let incarnation = |life: u64| Incarnation::new(life.to_string()).expect("valid");
    // Four workers that poll, work and poll again, replaced one after another by new ones under new names. One in two
    // says goodbye; the other is just no longer there.
    let mut fleet: Vec<(String, u64)> = (0..4).map(|n| (format!("pod-{n}"), 1)).collect();
    for deploy in 0..16 {
        let (old, life) = fleet.remove(0);
        if deploy % 2 == 0 {
            let worker = worker_id(&old);
            rig.call(Call::Goodbye { worker, incarnation: incarnation(life) }).unwrap();
        }
        fleet.push((format!("pod-{}", deploy + 4), 1));
        for _ in 0..4 {
            for (id, life) in &fleet {
                rig.submit(job("k"));
                let asked = Poll { incarnation: incarnation(*life), ..poll(id, 0) };
                for lease in rig.leases(asked) {
                    rig.http_settle(lease.claim, success()).unwrap();
                }
            }
            rig.watch(secs(5), |rig| {
                let seen = class(rig);
                assert!(matches!(seen, DatacenterClass::Healthy | DatacenterClass::Busy), "{seen:?} {:?}", counts(rig));
                for worker in rig.manager.workers() {
                    let shown = worker.verdict_code();
                    assert!(matches!(shown, "healthy" | "away"), "{} is {shown}", worker.id);
                }
            });
        }
    }
    assert_eq!(rig.eviction_count(), 0);
}

#[test]
fn an_evicted_worker_is_shown_as_evicted_and_is_not_well() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w0", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    assert_eq!(counts(&rig).workers_healthy_or_busy, 3);
    rig.evict(session);
    rig.advance(secs(10));
    let view = rig.worker_view("w0");
    assert!(view.judgement.signals.live, "it answers again");
    assert_eq!(view.state, WorkerState::Evicted(EvictedReason::AttemptsUnconfirmed));
    assert_eq!(
        (view.verdict_code(), view.action_code(), view.reason_code()),
        ("evicted", "evict", "attempts_unconfirmed")
    );
    assert_eq!((counts(&rig).workers, counts(&rig).workers_healthy_or_busy), (3, 2));
    rig.tell(session, onward_core::message::FromWorker::Ended(vec![claim]));
    assert_eq!(rig.worker_view("w0").reason_code(), "waiting");
    rig.advance(secs(60));
    assert_eq!((state_of(&rig, "w0"), counts(&rig).workers_healthy_or_busy), (WorkerState::Judged, 3));
}

#[test]
fn a_poll_that_is_hung_up_leaves_thirty_seconds() {
    let mut rig = Rig::new();
    let open = rig.call_open(Call::Poll(poll("h", 60)));
    rig.advance(secs(5));
    rig.step(Input::CallGone { request: open, delivered: false });
    rig.advance(secs(30) - ms(1));
    assert_eq!((state_of(&rig, "h"), rig.manager.view().workers), (WorkerState::Judged, 1));
    rig.advance(ms(1));
    assert_eq!((state_of(&rig, "h"), rig.manager.view().workers), (NO_CALL, 0));
}

#[test]
fn one_that_was_evicted_is_shown_as_that_until_it_may_come_back() {
    let mut rig = Rig::new();
    let poll = Poll { lease: secs(3_600), ..Rig::poll_of("h", &["k"], 1, ms(0)) };
    rig.http_fail_for_119_s(&poll);
    rig.submit(patient("k"));
    assert_eq!(rig.leases(poll.clone()).len(), 1);
    rig.advance(secs(31));
    assert_eq!(rig.evictions(), ["h"]);
    rig.advance(secs(3_500));
    assert!(rig.worker_view("h").evicted, "what it held may run until the end of its lease");
    let again = rig.leases(poll.clone());
    assert!(again.is_empty() && rig.worker_view("h").evicted);
    // Its time is over while it is away: it is trusted again when it asks, and not before.
    rig.advance(secs(200));
    assert!(rig.worker_view("h").evicted);
    let record = |rig: &Rig| rig.manager.state().worker(&worker_id("h")).cloned().expect("it is remembered");
    assert_ne!(record(&rig).taken_until, Wall::ZERO);
    assert_eq!(rig.leases(poll).len(), 1);
    assert!(!rig.worker_view("h").evicted && rig.worker_view("h").probation);
    assert_eq!(record(&rig).taken_until, Wall::ZERO);
}
