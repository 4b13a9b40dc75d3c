//! Very much at one instant: it is done in bites, and whoever asks in between is served.

use std::time::Duration;

use onward_core::effect::Answer;
use onward_core::event::Event;
use onward_core::ids::{JobId, Seq, SessionId};
use onward_core::input::{Call, Input};
use onward_core::job::{Draft, JobState, OnStuck, WorkflowDraft};
use onward_core::manager::Why;
use onward_core::message::{Beat, FromWorker, ToWorker};
use onward_core::time::Wall;

use crate::rig::*;

/// The amount that one step may do of one kind: with nothing else to do, and beside something that was asked.
const BITE: usize = 512;
const BESIDE: usize = 8;
/// The number of events that wait for the log before it counts as behind.
const BEHIND: usize = 8_192;

/// A rig whose log says nothing from now on, so that every step is one step.
fn alone(rig: &mut Rig) {
    rig.log_answers = false;
}

/// The number of events that one input leads to.
fn events_of(rig: &mut Rig, input: Input) -> usize {
    let before = rig.log.len();
    rig.step(input);
    rig.log.len() - before
}

/// Wakes the machine as long as it asks for it at once, and gives how many events each step had.
fn wake_until_done(rig: &mut Rig) -> Vec<usize> {
    let mut steps = Vec::new();
    while rig.manager.next_wakeup().is_some_and(|(at, _)| at == rig.now.mono) {
        steps.push(events_of(rig, Input::Wake));
        assert!(steps.len() < 1_000, "it asks again and again, and does nothing: {:?}", rig.manager.next_wakeup());
    }
    steps
}

/// All went in bites, none of them needlessly small.
fn assert_bites(steps: &[usize], total: usize) {
    assert_eq!(steps.iter().sum::<usize>(), total);
    assert!(steps.iter().all(|events| *events <= BITE), "{steps:?}");
    assert!(steps.len() <= 2 * total.div_ceil(BITE) + 4, "{steps:?}");
}

fn submit_many(rig: &mut Rig, count: usize, draft: &Draft) -> Vec<JobId> {
    let accepted = rig.submit_all(vec![draft.clone(); count]).unwrap();
    accepted.into_iter().map(|accepted| accepted.id).collect()
}

fn beat_of(rig: &mut Rig, session: SessionId) -> Input {
    let claim = rig.claim(session);
    Input::Session { session, message: FromWorker::Beats(vec![Beat::plain(claim)]) }
}

fn is_answered(rig: &Rig, session: SessionId) -> bool {
    rig.sent.iter().any(|(to, message)| *to == session && matches!(message, ToWorker::BeatAnswers(_)))
}

#[test]
fn jobs_that_are_due_at_one_instant_come_in_bites_and_a_beat_in_between_is_answered() {
    const JOBS: usize = 3_000;
    let by_delay = Draft { delay: Some(secs(55)), ..job("nobody") };
    let by_wall = Draft { run_at: Some(Wall::from_ms(EPOCH_MS) + secs(55)), ..job("nobody") };
    for draft in [by_delay, by_wall] {
        let mut rig = Rig::new();
        let session = rig.worker("w", 1, 1, &["k"]);
        rig.submit(patient("k"));
        let beat = beat_of(&mut rig, session);
        submit_many(&mut rig, JOBS, &draft);
        rig.advance(secs(55) - ms(1));
        alone(&mut rig);
        rig.jump(ms(1));
        let first = events_of(&mut rig, Input::Wake);
        assert!((1..=BITE).contains(&first), "{first}");
        let beside = events_of(&mut rig, beat);
        assert!(is_answered(&rig, session) && beside <= BESIDE, "{beside}");
        let mut steps = vec![first, beside];
        steps.append(&mut wake_until_done(&mut rig));
        assert_bites(&steps, JOBS);
        assert!(rig.manager.state().jobs().all(|(key, _)| rig.manager.state().job_state(key) != JobState::Delayed));
    }
}

#[test]
fn leases_that_end_at_one_instant_end_in_bites_and_a_success_in_between_is_in_time() {
    const LEASES: u32 = 2_000;
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, LEASES, &["k"]);
    let jobs = submit_many(&mut rig, LEASES as usize, &patient("k"));
    let claims: Vec<_> = rig.assigned(session).into_iter().map(|assignment| assignment.claim).collect();
    // Nobody takes over what ends, so that only ends are counted.
    rig.tell(session, FromWorker::Capacity { slots: 0, accepting: false });
    rig.advance(secs(300) - ms(1));
    alone(&mut rig);
    rig.silence(session);
    rig.jump(ms(1));
    let first = events_of(&mut rig, Input::Wake);
    // And what becomes of their worker.
    assert!((1..=BITE + 1).contains(&first), "{first}");
    let last = *jobs.last().unwrap();
    let claim = *claims.iter().find(|claim| claim.job == last).unwrap();
    rig.succeed(session, claim).expect("its end was not decided yet");
    wake_until_done(&mut rig);
    let expired =
        rig.logged(|event| matches!(event, Event::AttemptEnded { ending, .. } if ending.code() == "lease_expired"));
    assert_eq!((expired, rig.state_of(last)), (LEASES as usize - 1, JobState::Succeeded));
}

#[test]
fn whoever_polls_or_is_probed_does_not_wait_for_all_leases_that_end_at_one_instant() {
    const LEASES: u32 = 3_000;
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, LEASES, &["k"]);
    submit_many(&mut rig, LEASES as usize, &patient("k"));
    rig.assigned(session);
    rig.tell(session, FromWorker::Capacity { slots: 0, accepting: false });
    rig.advance(secs(290));
    let poll = rig.call_open(Call::Poll(Rig::poll_of("thin", &["other"], 1, secs(10))));
    rig.advance(secs(10) - ms(1));
    assert_eq!(rig.reply(poll), None);
    alone(&mut rig);
    rig.jump(ms(1));
    assert!(events_of(&mut rig, Input::Wake) >= BITE / 2, "leases end");
    assert_eq!(rig.reply(poll), Some(Ok(Answer::Leases(vec![]))), "and the poll is over in the same step");
    assert_eq!(rig.manager.next_wakeup(), Some((rig.now.mono, Why::Attempt)));
}

#[test]
fn overall_timeouts_at_one_instant_come_in_bites_and_a_large_job_counts_as_many() {
    const JOBS: usize = 2_000;
    let mut rig = Rig::new();
    submit_many(&mut rig, JOBS, &Draft { timeout: Some(secs(3_600)), ..job("nobody") });
    let mut large = Draft { timeout: Some(secs(3_600)), ..job("nobody") };
    let workflow = |n: usize| WorkflowDraft {
        name: Some(format!("{n}").into()),
        kind: "nobody".into(),
        ..WorkflowDraft::default()
    };
    large.workflows = (0..300).map(workflow).collect();
    submit_many(&mut rig, 6, &large);
    rig.advance(secs(3_600) - ms(1));
    alone(&mut rig);
    rig.jump(ms(1));
    let steps = wake_until_done(&mut rig);
    assert_bites(&steps, JOBS + 6);
    assert!(steps.iter().rev().filter(|events| **events > 0).take(2).all(|events| *events <= 3), "{steps:?}");
    assert_eq!(rig.manager.state().open_jobs(), 0);
}

#[test]
fn overall_deadlines_that_come_near_get_their_timers_in_bites() {
    const JOBS: usize = 10_000;
    let mut rig = Rig::new();
    submit_many(&mut rig, JOBS, &Draft { timeout: Some(secs(3_600)), ..job("nobody") });
    let mut at_once = 0;
    rig.watch(secs(3_600) - ms(1), |rig| {
        at_once += usize::from(rig.manager.next_wakeup() == Some((rig.now.mono, Why::Overall)));
    });
    // Sixteen jobs are a batch, which is four units of a bite.
    let bites = JOBS.div_ceil(16).div_ceil(BITE / 4);
    assert!((bites - 1..=bites + 1).contains(&at_once), "{at_once} of {bites}");
}

#[test]
fn stuck_attempts_that_end_large_jobs_come_in_bites_and_a_large_job_counts_as_many() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 6, &["k"]);
    let waiting = |n: usize| WorkflowDraft {
        name: Some(format!("{n}").into()),
        kind: "nobody".into(),
        ..WorkflowDraft::default()
    };
    let mut large = Draft { on_stuck: OnStuck::TimeOut, ..job("k") };
    large.workflows[0].name = Some("0".into());
    large.workflows.extend((1..300).map(waiting));
    submit_many(&mut rig, 6, &large);
    rig.advance(secs(120) - ms(1));
    alone(&mut rig);
    rig.jump(ms(1));
    let steps = wake_until_done(&mut rig);
    assert!(steps.iter().all(|events| *events <= 3), "{steps:?}");
    assert_eq!((steps.iter().sum::<usize>(), rig.manager.state().open_jobs()), (6, 0));
}

#[test]
fn idempotency_keys_that_expire_at_one_instant_are_forgotten_in_bites() {
    const KEYS: usize = 1_500;
    let mut rig = Rig::new();
    let keyed = |n: usize| Draft { idempotency_key: Some(format!("{n}").into()), ..job("k") };
    let jobs = rig.submit_all((0..KEYS).map(keyed).collect()).unwrap();
    for accepted in jobs {
        rig.cancel(accepted.id);
    }
    rig.advance(secs(24 * 3_600) - ms(1));
    alone(&mut rig);
    rig.jump(ms(1));
    assert_eq!(wake_until_done(&mut rig).len(), 3);
    let forgotten: Vec<usize> = rig
        .log
        .iter()
        .filter_map(|stamped| match &stamped.event {
            Event::KeysExpired { keys } => Some(keys.len()),
            _ => None,
        })
        .collect();
    assert_eq!(forgotten, [BITE, BITE, KEYS - 2 * BITE]);
}

#[test]
fn dead_letters_over_a_limit_that_was_lowered_are_dropped_in_bites() {
    const DEAD: usize = 1_200;
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, DEAD as u32, &["k"]);
    submit_many(&mut rig, DEAD, &job("k"));
    for assignment in rig.assigned(session) {
        rig.fail_for_good(session, assignment.claim).unwrap();
    }
    rig.set_rules(|settings| settings.limits.dead_letters = 10);
    rig.log_answers = false;
    rig.restart(secs(1));
    // Nothing is dropped before the seat is ours.
    assert_eq!(rig.manager.state().dead_letter_count(), DEAD);
    let seq = Seq(rig.log.len() as u64);
    let mut steps = vec![events_of(&mut rig, Input::Durable { seq })];
    steps.append(&mut wake_until_done(&mut rig));
    assert_bites(&steps, DEAD - 10);
    assert_eq!(rig.manager.state().dead_letter_count(), 10);
}

#[test]
fn a_steady_stream_of_inputs_does_not_keep_timers_from_firing() {
    const JOBS: usize = 1_000;
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let beat = beat_of(&mut rig, session);
    submit_many(&mut rig, JOBS, &Draft { delay: Some(secs(5)), ..job("nobody") });
    rig.advance(secs(5) - ms(1));
    alone(&mut rig);
    rig.jump(ms(1));
    for _ in 0..JOBS.div_ceil(BESIDE) + 4 {
        assert!(events_of(&mut rig, beat.clone()) <= BESIDE);
    }
    assert_eq!(rig.logged(|event| matches!(event, Event::WorkflowDue(_))), JOBS);
}

#[test]
fn while_the_log_is_behind_nothing_is_decided_in_bulk() {
    const JOBS: usize = 3 * BEHIND;
    let mut rig = Rig::new();
    for _ in 0..3 {
        submit_many(&mut rig, BEHIND, &Draft { delay: Some(secs(5)), ..job("nobody") });
    }
    rig.advance(secs(5) - ms(1));
    alone(&mut rig);
    rig.jump(ms(1));
    let (durable, mut rounds) = (rig.log.len(), 0);
    while rig.manager.state().jobs().any(|(key, _)| rig.manager.state().job_state(key) == JobState::Delayed) {
        let before = rig.log.len();
        wake_until_done(&mut rig);
        assert!(rig.log.len() - before <= BEHIND + BITE, "every answer waits for what was decided before it");
        assert!(rounds > 0 || rig.manager.log_is_behind());
        if rig.manager.log_is_behind() {
            assert!(events_of(&mut rig, Input::Wake) <= BESIDE, "woken for another reason, it adds little");
        }
        let seq = Seq(rig.log.len() as u64);
        rig.step(Input::Durable { seq });
        rounds += 1;
        assert!(rounds < 10, "it goes on when the log has caught up");
    }
    assert_eq!(rig.log.len() - durable, JOBS);
}

#[test]
fn a_beat_does_not_wait_for_much_that_is_being_handed_out() {
    const JOBS: u32 = 10_000;
    let mut rig = Rig::new();
    let busy = rig.worker("busy", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let beat = beat_of(&mut rig, busy);
    submit_many(&mut rig, JOBS as usize, &patient("many"));
    alone(&mut rig);
    rig.worker("large", 2, JOBS, &["many"]);
    assert_eq!(rig.manager.next_wakeup(), Some((rig.now.mono, Why::Assign)));
    let beside = events_of(&mut rig, beat);
    assert!((1..=64).contains(&beside), "{beside}");
    assert!(is_answered(&rig, busy));
}

#[test]
fn a_restart_in_the_middle_of_it_goes_on_where_it_was() {
    const JOBS: usize = 1_500;
    let mut rig = Rig::new();
    submit_many(&mut rig, JOBS, &Draft { run_at: Some(Wall::from_ms(EPOCH_MS) + secs(5)), ..job("nobody") });
    rig.advance(secs(5) - ms(1));
    alone(&mut rig);
    rig.jump(ms(1));
    assert!(events_of(&mut rig, Input::Wake) <= BITE);
    rig.log_answers = true;
    rig.restart(Duration::ZERO);
    rig.advance(secs(1));
    assert_eq!(rig.logged(|event| matches!(event, Event::WorkflowDue(_))), JOBS);
}
