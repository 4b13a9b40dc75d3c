//! The stories of AD-34: leader failure, gate failure, a stale global timeout, and completion against timeout; and what a
//! partition, a withdrawal and a restored backup come to.

use std::time::Duration;

use onward_core::event::Event as ManagerEvent;
use onward_core::fence::Term;
use onward_core::gate::effect::{Answer, GateNotice};
use onward_core::gate::event::{Event, TargetCause};
use onward_core::gate::input::{Call, Input};
use onward_core::gate::message::{Frame, FromDatacenter, Hello, Outcome, StaleToken, ToDatacenter};
use onward_core::gate::{TargetState, WaitReason};
use onward_core::health::{DatacenterClass, DatacenterCounts};
use onward_core::ids::StreamId;
use onward_core::job::{Draft, JobState, TimeoutPolicy};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::timeout::TimeoutReason;

use super::world::{Habit, World, impatient, name, secs, with_policy};

#[test]
fn a_stuck_report_ends_the_job_in_every_datacenter_and_each_confirms() {
    let mut world = World::new(&["a", "b", "c"]);
    let job = world.submit(impatient(&["a", "b", "c"]));
    world.advance(secs(1));
    assert!((0..3).all(|datacenter| world.datacenters[datacenter].holding.len() == 1), "it runs in all of them");
    assert_eq!(world.state(job), JobState::Running);
    world.datacenters[1].habit = Habit::Hang;
    world.advance(secs(110));
    assert_eq!(world.declared(job), None, "not before it is stuck");
    let took = world.until(secs(30), "the job ends everywhere", |world| world.has_ended_everywhere(job));
    assert!(took <= secs(20), "{took:?}");
    assert!((0..3).all(|datacenter| world.datacenters[datacenter].cancelled.len() == 1), "no handler is left");
    world.advance(secs(1));
    let view = world.view(job);
    assert_eq!(view.state, JobState::TimedOut);
    assert!(view.targets.iter().all(|target| target.confirmed && target.state == TargetState::TimedOut));
    assert!(world.notices.contains(&GateNotice::TimeoutDeclared { job, reason: TimeoutReason::Stuck }));
}

#[test]
fn a_new_leader_keeps_the_start_and_raises_the_term() {
    let mut world = World::new(&["a"]);
    let draft = Draft { timeout: Some(secs(300)), ..impatient(&["a"]) };
    let job = world.submit(draft);
    world.advance(secs(100));
    let started = world.datacenters[0].manager.job(job).unwrap().started_at;
    world.disconnect(0);
    world.datacenters[0].crash();
    world.advance(secs(20));
    let now = world.now;
    world.datacenters[0].take_over(now);
    world.advance(secs(5));
    assert_eq!(world.datacenters[0].view(job).unwrap().started_at, started);
    assert_eq!(world.gate().state().datacenter(&name("a")).unwrap().term, Term::new(2));
    assert!(world.notices.contains(&GateNotice::LeaderTransferred { datacenter: name("a"), term: Term::new(2) }));
    assert_eq!(world.state(job), JobState::Running);
    world.until(secs(180), "the overall timeout", |world| world.has_ended_everywhere(job));
    let ended = world.now.mono.as_ms() - 6_000;
    assert!((300_000..302_000).contains(&ended), "the downtime counts: {ended}");
}

#[test]
fn a_gate_that_lost_everything_rebuilds_the_job_from_reports_and_decides() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(impatient(&["a", "b"]));
    world.advance(secs(2));
    world.datacenters[0].habit = Habit::Hang;
    world.advance(secs(60));
    world.lose_gate();
    world.advance(secs(100));
    assert!(world.datacenters[0].runs(job), "the gate is away for less than the fallback");
    world.start_gate();
    world.until(secs(15), "it is decided", |world| world.has_ended_everywhere(job));
    world.advance(secs(2));
    assert_eq!(world.state(job), JobState::TimedOut);
    assert!(world.notices.iter().any(|notice| matches!(notice, GateNotice::JobRebuilt { job: of, .. } if *of == job)));
    // Under an epoch above the one that the datacenters had seen.
    let epochs: Vec<u64> = world
        .datacenters
        .iter()
        .flat_map(|datacenter| datacenter.obeyed())
        .filter_map(|event| match event {
            ManagerEvent::JobTimedOut { epoch, .. } => epoch.map(|epoch| epoch.n),
            _ => None,
        })
        .collect();
    assert!(epochs.len() == 2 && epochs.iter().all(|n| *n >= 2), "{epochs:?}");
}

#[test]
fn a_restarted_gate_goes_on_from_its_log_and_from_a_snapshot() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(with_policy(TimeoutPolicy::All, impatient(&["a", "b"])));
    world.advance(secs(2));
    world.snapshot_gate();
    world.datacenters.iter_mut().for_each(|datacenter| datacenter.habit = Habit::Hang);
    world.advance(secs(30));
    world.kill_gate();
    world.advance(secs(30));
    world.start_gate();
    assert_eq!(world.state(job), JobState::Running);
    world.until(secs(90), "both are stuck", |world| world.has_ended_everywhere(job));
}

#[test]
fn a_stale_global_timeout_is_refused_corrected_and_decided_again() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(impatient(&["a", "b"]));
    world.advance(secs(2));
    // A leader is replaced, and the gate has not heard of it: it still echoes the old term.
    world.datacenters[1].habit = Habit::Hang;
    let now = world.now;
    world.datacenters[0].crash();
    world.datacenters[0].take_over(now);
    let stale =
        ToDatacenter::GlobalTimeout { job, epoch: world.epoch(1), term: Term::new(1), reason: TimeoutReason::Stuck };
    world.disconnect(0);
    world.advance(secs(1));
    let (stream, now) = (world.stream(0), world.now);
    world.datacenters[0].hear_gate(stream, stale, now);
    assert!(world.datacenters[0].runs(job), "a decision under a stale term is not obeyed");
    assert_eq!(world.datacenters[0].manager.refusals().of(RefusalKind::StaleTerm), 1);
    world.carry(0);
    world.advance(secs(1));
    let corrected = GateNotice::Corrected { job, datacenter: name("a"), stale: StaleToken::Term };
    assert!(world.notices.contains(&corrected));
    assert_eq!(world.state(job), JobState::Running, "nothing had been decided");
    world.until(secs(140), "decided again, under the new term", |world| world.has_ended_everywhere(job));
    assert_eq!(world.datacenters[0].obeyed().count(), 1);
}

/// The gate decides, and before its order arrives the datacenter has another leader.
#[test]
fn an_order_that_comes_after_its_leader_is_corrected_and_obeyed_under_the_new_term() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(impatient(&["a", "b"]));
    world.advance(secs(2));
    world.datacenters[1].habit = Habit::Hang;
    world.deaf = Some(0);
    world.until(secs(140), "it is declared", |world| world.declared(job).is_some());
    let mut to_a = world.sent.iter().filter(|(to, _)| *to == 0).map(|(_, message)| message.clone());
    let is_order = |message: &ToDatacenter| matches!(message, ToDatacenter::GlobalTimeout { .. });
    let late = to_a.rfind(is_order).expect("a is to end it");
    assert!(matches!(late, ToDatacenter::GlobalTimeout { term, .. } if term == Term::new(1)), "{late:?}");
    let started = world.datacenters[0].manager.job(job).unwrap().started_at;
    world.disconnect(0);
    world.datacenters[0].crash();
    let now = world.now;
    world.datacenters[0].take_over(now);
    world.advance(secs(1));
    let (stream, now, sent) = (world.stream(0), world.now, world.sent.len());
    world.datacenters[0].hear_gate(stream, late, now);
    assert!(world.datacenters[0].runs(job), "it is of another leader's reports");
    assert_eq!(world.datacenters[0].manager.refusals().of(RefusalKind::StaleTerm), 1);
    world.deaf = None;
    world.carry(0);
    world.advance(Duration::from_millis(20));
    let corrected = GateNotice::Corrected { job, datacenter: name("a"), stale: StaleToken::Term };
    assert!(world.notices.contains(&corrected));
    let again = &world.sent[sent..];
    let is_new =
        |message: &ToDatacenter| matches!(message, ToDatacenter::GlobalTimeout { term, .. } if term.get() == 2);
    assert!(again.iter().any(|(to, message)| *to == 0 && is_new(message)), "at once, by the correction: {again:?}");
    assert!(!world.datacenters[0].runs(job));
    assert_eq!(world.datacenters[0].view(job).unwrap().started_at, started);
    assert_eq!(world.datacenters[0].obeyed().count(), 1);
    world.until(secs(15), "all have ended", |world| world.gate().job(job).unwrap().job.has_ended());
    assert_eq!(world.state(job), JobState::TimedOut);
}

#[test]
fn a_decision_under_a_stale_epoch_is_refused() {
    let mut world = World::new(&["a"]);
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    world.kill_gate();
    world.start_gate();
    world.advance(secs(2));
    let (stream, now) = (world.stream(0), world.now);
    let (old, term) = (world.epoch(1), Term::new(1));
    let reason = TimeoutReason::Stuck;
    world.datacenters[0].hear_gate(stream, ToDatacenter::GlobalTimeout { job, epoch: old, term, reason }, now);
    world.datacenters[0].hear_gate(stream, ToDatacenter::Cancel { job, epoch: old }, now);
    assert_eq!(world.datacenters[0].manager.refusals().of(RefusalKind::StaleEpoch), 2);
    assert_eq!(world.datacenters[0].state(job), Some(JobState::Running));
    let current = world.epoch(2);
    world.datacenters[0].hear_gate(stream, ToDatacenter::Cancel { job, epoch: current }, now);
    assert!(!world.datacenters[0].runs(job));
}

#[test]
fn a_success_that_was_there_beats_a_timeout_that_comes_later() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(impatient(&["a", "b"]));
    world.advance(secs(2));
    world.datacenters[1].habit = Habit::Hang;
    world.cut(0);
    world.datacenters[0].habit = Habit::Finish;
    world.until(secs(140), "it is declared", |world| world.declared(job).is_some());
    assert_eq!(world.datacenters[0].state(job), Some(JobState::Succeeded));
    world.mend(0);
    world.advance(secs(12));
    assert_eq!(world.target(job, "a"), TargetState::Succeeded, "the gate is corrected");
    assert_eq!(world.target(job, "b"), TargetState::TimedOut);
    assert_eq!(world.state(job), JobState::TimedOut, "the worst of both");
    let end = world.view(job).targets[0].end.clone().unwrap();
    assert_eq!(end.result.unwrap().as_inline().map(|bytes| &bytes[..]), Some(&b"\"ok\""[..]));
}

#[test]
fn after_two_leader_transfers_a_valid_decision_is_obeyed() {
    let mut world = World::new(&["a"]);
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    for _ in 0..2 {
        world.disconnect(0);
        world.datacenters[0].crash();
        let now = world.now;
        world.datacenters[0].take_over(now);
        world.advance(secs(15));
    }
    world.call(Call::Cancel { job }).unwrap();
    world.advance(secs(1));
    assert_eq!(world.state(job), JobState::Cancelled);
    let again = world.submit(impatient(&["a"]));
    world.datacenters[0].habit = Habit::Hang;
    world.until(secs(140), "stuck", |world| world.has_ended_everywhere(again));
    assert_eq!(world.gate().state().datacenter(&name("a")).unwrap().term, Term::new(3));
}

#[test]
fn a_partition_ends_the_others_at_once_and_the_one_that_is_cut_off_on_healing() {
    for by_cancel in [false, true] {
        let mut world = World::new(&["a", "b", "c"]);
        let job = world.submit(impatient(&["a", "b", "c"]));
        world.advance(secs(2));
        world.datacenters[0].habit = Habit::Hang;
        world.advance(secs(100));
        world.cut(2);
        match by_cancel {
            true => assert!(world.call(Call::Cancel { job }).is_ok()),
            false => _ = world.until(secs(40), "a is stuck", |world| world.declared(job).is_some()),
        }
        world.advance(secs(1));
        assert!(!world.datacenters[0].runs(job) && !world.datacenters[1].runs(job));
        assert!(world.datacenters[2].runs(job));
        let confirmed: Vec<bool> = world.view(job).targets.iter().map(|target| target.confirmed).collect();
        assert_eq!(confirmed, [true, true, false], "who has and who has not is shown");
        world.advance(secs(240));
        assert_eq!(world.target(job, "c"), TargetState::Unreachable);
        world.mend(2);
        world.advance(secs(2));
        assert!(world.has_ended_everywhere(job));
        assert_eq!(world.state(job), if by_cancel { JobState::Cancelled } else { JobState::TimedOut });
    }
}

#[test]
fn a_gate_that_is_away_for_longer_than_the_fallback_agrees_when_it_returns() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(impatient(&["a", "b"]));
    world.advance(secs(2));
    world.kill_gate();
    world.datacenters.iter_mut().for_each(|datacenter| datacenter.habit = Habit::Hang);
    world.advance(secs(130));
    let late = world.now;
    // Leaders that come and go do not postpone it.
    for _ in 0..5 {
        world.advance(secs(50));
        let now = world.now;
        assert!(world.datacenters[0].runs(job), "not before the fallback");
        world.datacenters[0].crash();
        world.datacenters[0].take_over(now);
    }
    world.until(secs(60), "they end on their own", |world| world.has_ended_everywhere(job));
    assert!(world.now.mono.since(late.mono) <= secs(300), "five minutes from the logged stamp");
    world.start_gate();
    world.advance(secs(15));
    assert_eq!(world.state(job), JobState::TimedOut);
    let causes: Vec<TargetCause> =
        world.view(job).targets.iter().map(|target| target.end.as_ref().unwrap().cause).collect();
    assert_eq!(causes, [TargetCause::TimedOut(TimeoutReason::Stuck); 2]);
}

#[test]
fn four_minutes_of_partition_leave_a_job_that_moves_alive_and_an_isolated_gate_kills_nothing() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(impatient(&["a", "b"]));
    world.advance(secs(2));
    world.cut(1);
    world.advance(secs(240));
    assert_eq!((world.state(job), world.target(job, "b")), (JobState::Running, TargetState::Unreachable));
    world.cut(0);
    world.advance(secs(600));
    assert_eq!(world.declared(job), None);
    world.mend(0);
    world.mend(1);
    world.advance(secs(15));
    assert_eq!((world.state(job), world.declared(job)), (JobState::Running, None));
}

#[test]
fn a_stuck_report_before_an_isolation_does_not_make_the_silence_of_the_others_count() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(with_policy(TimeoutPolicy::All, impatient(&["a", "b"])));
    world.advance(secs(2));
    world.datacenters[0].habit = Habit::Hang;
    world.advance(secs(135));
    assert_eq!(world.view(job).targets[0].reason.as_deref(), Some("stuck"));
    assert_eq!(world.declared(job), None, "the policy wants both");
    world.cut(1);
    world.advance(secs(5));
    world.cut(0);
    world.advance(secs(250));
    assert_eq!(world.declared(job), None, "it hears nobody");
    world.mend(0);
    world.advance(secs(100));
    assert_eq!(world.declared(job), None, "the other gets its time anew");
    world.until(secs(120), "one is stuck, the other silent", |world| world.declared(job).is_some());
}

#[test]
fn an_overall_report_is_answered_with_the_time_that_remains_elsewhere() {
    let mut world = World::new(&["a", "b"]);
    let job = world.submit(Draft { timeout: Some(secs(60)), ..impatient(&["a", "b"]) });
    world.advance(secs(30));
    let now = world.now;
    world.datacenters[1].request_extension(0.5, now);
    world.carry(1);
    world.advance(secs(40));
    assert_eq!(world.declared(job), None, "b has earned thirty seconds");
    assert!(world.datacenters[0].runs(job) && world.datacenters[1].runs(job));
    assert!(
        world.sent.iter().any(|(to, message)| *to == 0 && matches!(message, ToDatacenter::Remaining { .. })),
        "a was told that there is more time"
    );
    world.until(secs(30), "timeout and extensions are over", |world| world.declared(job).is_some());
    let after = world.now.mono.as_ms() - 6_000;
    assert!((90_000..91_000).contains(&after), "not before 90 s, and right after: {after}");
    world.advance(secs(1));
    assert!(world.has_ended_everywhere(job));
}

#[test]
fn extensions_are_capped_and_those_by_hand_are_not() {
    let mut world = World::new(&["a"]);
    let draft = Draft { timeout: Some(secs(60)), max_extension: Some(secs(10)), ..impatient(&["a"]) };
    let job = world.submit(draft);
    world.advance(secs(30));
    let now = world.now;
    world.datacenters[0].request_extension(0.5, now);
    let extend = Call::Extend { job, by: secs(20), reason: "slow".into(), request: name("r") };
    let answer = world.call(extend.clone());
    assert!(matches!(answer, Ok(Answer::Extended { .. })));
    assert_eq!(world.call(extend), answer, "the same request is answered the same");
    world.until(secs(100), "the end", |world| world.declared(job).is_some());
    let after = world.now.mono.as_ms() - 6_000;
    assert!((90_000..91_000).contains(&after), "60 + 10 + 20: {after}");
}

#[test]
fn a_submit_whose_answer_was_lost_is_withdrawn_for_good() {
    let mut world = World::new(&["a"]);
    world.weather.drops = 100;
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(1));
    let lost = world.sent.iter().find_map(|(_, message)| match message {
        ToDatacenter::Submit(placement) => Some(ToDatacenter::Submit(placement.clone())),
        _ => None,
    });
    world.call(Call::Cancel { job }).unwrap();
    world.weather.drops = 0;
    world.advance(secs(12));
    assert_eq!(world.state(job), JobState::Cancelled);
    assert_eq!(world.view(job).targets[0].end.as_ref().unwrap().cause, TargetCause::Withdrawn);
    // The submit comes after all.
    let (stream, now) = (world.stream(0), world.now);
    world.datacenters[0].hear_gate(stream, lost.expect("it was sent"), now);
    assert!(!world.datacenters[0].runs(job), "the tombstone refuses it");
}

#[test]
fn the_final_status_of_an_archived_job_is_answered_with_its_outcome() {
    let mut world = World::new(&["a"]);
    world.datacenters[0].habit = Habit::Finish;
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(1));
    assert_eq!(world.state(job), JobState::Running);
    world.cut(0);
    world.advance(secs(10));
    assert_eq!(world.datacenters[0].manager.job(job), None, "it has left memory");
    let now = world.now;
    world.datacenters[0].crash();
    world.datacenters[0].take_over(now);
    world.mend(0);
    world.advance(secs(60));
    assert_eq!(world.state(job), JobState::Succeeded, "the gate asked for it");
}

#[test]
fn reports_under_an_older_term_change_nothing() {
    let mut world = World::new(&["a"]);
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    let now = world.now;
    let old_stream = world.stream(0);
    world.disconnect(0);
    world.datacenters[0].crash();
    world.datacenters[0].take_over(now);
    world.advance(secs(2));
    let events = world.gate_log.len();
    // The old leader opens a stream, and speaks under its term.
    let stream = StreamId(9_999);
    world.step_gate(Input::StreamOpened { stream, datacenter: name("a") });
    let hello = Hello { datacenter: name("a"), life: 1, epoch: None, counts: DatacenterCounts::default() };
    let frame = |term, message| Frame { term: Term::new(term), number: 1_000_000, message };
    world.step_gate(Input::Datacenter { stream, frame: frame(1, FromDatacenter::Hello(hello)) });
    world.step_gate(Input::Datacenter { stream, frame: frame(1, FromDatacenter::Unknown { job }) });
    let stream = world.stream(0);
    world.step_gate(Input::Datacenter { stream, frame: frame(1, FromDatacenter::Unknown { job }) });
    world.step_gate(Input::Datacenter { stream: old_stream, frame: frame(2, FromDatacenter::Unknown { job }) });
    assert_eq!(world.gate_log.len(), events, "nothing was decided by it");
    assert_eq!(world.state(job), JobState::Running);
    world.step_gate(Input::Datacenter { stream, frame: frame(2, FromDatacenter::Unknown { job }) });
    assert_eq!(world.state(job), JobState::Failed, "the current one is believed");
}

#[test]
fn a_datacenter_that_was_restored_from_a_backup_is_heard_again() {
    let mut world = World::new(&["a"]);
    for _ in 0..3 {
        world.disconnect(0);
        world.datacenters[0].crash();
        let now = world.now;
        world.datacenters[0].take_over(now);
        world.advance(secs(2));
    }
    assert_eq!(world.gate().state().datacenter(&name("a")).unwrap().term, Term::new(4));
    world.disconnect(0);
    let now = world.now;
    world.datacenters[0].restore_backup(1, 2, now);
    world.links[0] = true;
    world.advance(secs(100));
    assert_eq!(world.gate().state().datacenter(&name("a")).unwrap().term, Term::new(4), "it may be an old leader");
    world.advance(secs(100));
    assert_eq!(world.gate().state().datacenter(&name("a")).unwrap().term, Term::new(2));
    let job = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    assert_eq!(world.state(job), JobState::Running);
    // Under the very same term it is told by its life, and heard at once.
    world.disconnect(0);
    let now = world.now;
    world.datacenters[0].restore_backup(1, 2, now);
    world.advance(secs(2));
    let again = world.submit(impatient(&["a"]));
    world.advance(secs(2));
    assert_eq!(world.state(again), JobState::Running);
    world.advance(secs(60));
    assert_eq!(world.state(job), JobState::Failed, "what the backup did not have is lost there");
}

#[test]
fn a_manager_cannot_speak_for_another_datacenter() {
    let mut world = World::new(&["a", "b"]);
    let stream = StreamId(9_999);
    world.step_gate(Input::StreamOpened { stream, datacenter: name("b") });
    let hello = Hello { datacenter: name("a"), life: 1, epoch: None, counts: DatacenterCounts::default() };
    let frame = Frame { term: Term::new(99), number: 1, message: FromDatacenter::Hello(hello) };
    world.step_gate(Input::Datacenter { stream, frame });
    assert!(world.notices.contains(&GateNotice::WrongDatacenter { proven: name("b"), said: name("a") }));
    for datacenter in ["a", "b"] {
        let known = world.gate().state().datacenter(&name(datacenter)).unwrap();
        assert_eq!(known.term, Term::new(1), "{datacenter}: nothing was taken from it");
    }
}

#[test]
fn an_epoch_below_the_one_that_placed_a_job_is_stale_whoever_leads() {
    let mut world = World::new(&["a"]);
    let (stream, now) = (world.stream(0), world.now);
    let job = onward_core::ids::JobId::from_u128(42);
    let placement = onward_core::gate::message::Placement {
        job,
        epoch: world.epoch(5),
        again: false,
        waited: secs(0),
        draft: impatient(&["a"]),
    };
    world.datacenters[0].hear_gate(stream, ToDatacenter::Submit(Box::new(placement)), now);
    assert_eq!(world.datacenters[0].state(job), Some(JobState::Running));
    // The gate that leads has said that its epoch is 1.
    let (stale, current) = (world.epoch(4), world.epoch(5));
    world.datacenters[0].hear_gate(stream, ToDatacenter::Cancel { job, epoch: stale }, now);
    assert_eq!(world.datacenters[0].state(job), Some(JobState::Running));
    assert_eq!(world.datacenters[0].manager.refusals().of(RefusalKind::StaleEpoch), 1);
    world.datacenters[0].hear_gate(stream, ToDatacenter::Cancel { job, epoch: current }, now);
    assert!(!world.datacenters[0].runs(job));
}

#[test]
fn jobs_are_routed_by_class_and_room_and_wait_where_none_is_usable() {
    let mut world = World::new(&["a", "b"]);
    let jobs: Vec<_> = (0..6).map(|_| world.submit(impatient(&[]))).collect();
    let count = |world: &World, name: &str| {
        let of = |job: &&onward_core::ids::JobId| world.view(**job).targets[0].datacenter.as_str() == name;
        jobs.iter().filter(of).count()
    };
    assert_eq!((count(&world, "a"), count(&world, "b")), (3, 3), "spread by free slots");
    world.advance(secs(15));
    let full: Vec<_> = (0..2).map(|_| world.submit(impatient(&["a"]))).collect();
    world.advance(secs(15));
    let class = |world: &World| world.gate().datacenters().next().unwrap().class;
    assert_eq!(class(&world), DatacenterClass::Busy, "full is Busy");
    world.cut(1);
    world.advance(secs(40));
    let routed = world.submit(impatient(&[]));
    assert_eq!(world.view(routed).targets[0].datacenter, name("a"), "and still routed to");
    assert!(full.iter().all(|job| world.target(*job, "a") == TargetState::Running));
    world.cut(0);
    world.advance(secs(40));
    let waits = world.submit(impatient(&[]));
    let view = world.view(waits);
    assert_eq!((view.state, view.waits), (JobState::Waiting, Some(WaitReason::NoUsableDatacenter)));
    world.mend(1);
    world.advance(secs(2));
    assert_eq!(world.target(waits, "b"), TargetState::Running);
    // A job that names its datacenter waits for that one.
    let named = world.submit(impatient(&["a"]));
    world.advance(secs(5));
    assert_eq!(world.view(named).targets[0].reason.as_deref(), Some("no_live_manager"));
    world.mend(0);
    world.advance(secs(2));
    assert_eq!(world.target(named, "a"), TargetState::Running);
}

#[test]
fn keys_are_held_at_the_gate() {
    let mut world = World::new(&["a"]);
    let draft = Draft { idempotency_key: Some("i".into()), unique_key: Some("u".into()), ..impatient(&["a"]) };
    let job = world.submit(draft.clone());
    assert_eq!(world.submit(draft.clone()), job, "the same submission again");
    let other = Draft { idempotency_key: None, ..draft.clone() };
    let id = onward_core::ids::JobId::from_u128(5);
    let submit = |draft: &Draft| Call::Submit(vec![onward_core::input::Submission { id, draft: draft.clone() }]);
    let taken = Refusal::InBatch { index: 0, cause: Box::new(Refusal::UniqueKeyTaken(job)) };
    assert_eq!(world.call(submit(&other)), Err(taken));
    let conflict = Refusal::InBatch { index: 0, cause: Box::new(Refusal::Conflict) };
    assert_eq!(world.call(submit(&Draft { priority: 3, ..draft })), Err(conflict));
    world.kill_gate();
    world.start_gate();
    world.advance(secs(2));
    world.call(Call::Cancel { job }).unwrap();
    world.advance(secs(2));
    assert!(world.call(submit(&other)).is_ok(), "the unique key is free again");
}

#[test]
fn the_outcome_of_a_job_is_the_worst_of_its_targets() {
    let mut world = World::new(&["a", "b"]);
    world.datacenters[0].habit = Habit::Finish;
    world.datacenters[1].habit = Habit::Fail;
    let job = world.submit(impatient(&["a", "b"]));
    world.advance(secs(10));
    assert_eq!(world.state(job), JobState::Failed);
    world.datacenters[1].habit = Habit::Finish;
    let job = world.submit(impatient(&["a", "b"]));
    world.advance(secs(10));
    assert_eq!(world.state(job), JobState::Succeeded);
    assert!(world.gate().state().job(job).unwrap().targets.iter().all(|target| {
        target.end.as_ref().is_some_and(|end| end.outcome == Outcome::Succeeded && end.result.is_some())
    }));
    world.advance(secs(24 * 3600 + 5));
    assert_eq!(world.gate().state().job_count(), 0, "ended jobs are forgotten after a day");
    assert!(world.gate_log.iter().any(|stamped| matches!(stamped.event, Event::JobsForgotten { .. })));
}

#[test]
fn a_datacenter_that_was_restored_under_the_same_term_is_told_by_its_life() {
    let mut world = World::new(&["a"]);
    world.advance(secs(2_000));
    world.disconnect(0);
    let now = world.now;
    world.datacenters[0].restore_backup(0, 1, now);
    world.advance(secs(2));
    assert!(world.notices.contains(&GateNotice::DatacenterRestored { datacenter: name("a"), term: Term::new(1) }));
    // What it says counts at once, though its numbers begin anew.
    let job = world.submit(impatient(&["a"]));
    world.datacenters[0].habit = Habit::Hang;
    world.until(secs(140), "it is declared", |world| world.declared(job).is_some());
}
