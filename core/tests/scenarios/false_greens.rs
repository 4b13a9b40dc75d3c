//! What looks busy and gets nothing done is caught: every case here would pass a check that only asks for activity.

use std::time::Duration;

use crate::rig::*;
use onward_core::effect::ManagerNotice;
use onward_core::health::probes::probes;
use onward_core::health::{
    DatacenterCounts, Iteration, LoopHealth, LoopRule, LoopState, NotLive, NotReady, ProgressReason, ProgressSignal,
    Sign, Verdict, VerdictReason,
};
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::job::{Draft, JobState, OnStuck, Retry};
use onward_core::message::{Beat, CancelWhy, ToWorker};
use onward_core::time::Awake;
use onward_core::timeout::TimeoutReason;

/// Retries come after this long at most; how long exactly is drawn.
const BACKOFF: Duration = Duration::from_secs(1);

/// Workers that take nothing of what is tested, so that one failing worker is a minority.
fn bystanders(rig: &mut Rig) {
    rig.worker("bystander-1", 101, 1, &["other"]);
    rig.worker("bystander-2", 102, 1, &["other"]);
}

fn with_flat_backoff(draft: Draft) -> Draft {
    Draft { retry: Some(Retry { max_attempts: 5, base: BACKOFF, max: BACKOFF }), ..draft }
}

fn cancels(rig: &mut Rig, session: SessionId) -> Vec<(Claim, CancelWhy)> {
    let found = rig.sent.iter().filter_map(|(to, message)| match message {
        ToWorker::Cancel { claim, why } if *to == session => Some((*claim, *why)),
        _ => None,
    });
    found.collect()
}

/// The instant at which the last attempt of a job ended, counted from its hand-out.
fn last_attempt_took(rig: &Rig, job: JobId) -> Duration {
    let view = rig.view(job);
    let ended = view.workflows[0].ended.last().expect("an attempt has ended");
    ended.ended_at.since(ended.started_at)
}

/// The handler is told to stop, and whatever it says then comes too late: its last note has to do for a reason.
#[test]
fn the_last_note_of_a_stuck_attempt_is_kept_and_reported() {
    let mut rig = Rig::new();
    bystanders(&mut rig);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(with_flat_backoff(job("k")));
    let claim = rig.claim(session);
    for note in ["turn 1", "the same call again, 3 times"] {
        rig.beat(session, Beat { note: Some(note.into()), ..Beat::progress(claim, 1) }).unwrap();
    }
    rig.advance(secs(120));
    assert_eq!(rig.endings(id), ["stuck"]);
    let kept = |rig: &Rig| rig.view(id).workflows[0].ended[0].note.clone();
    assert_eq!(kept(&rig).as_deref(), Some("the same call again, 3 times"));
    let reported = rig.notices.iter().find_map(|notice| match notice {
        ManagerNotice::AttemptLost { note, .. } => note.clone(),
        _ => None,
    });
    assert_eq!(reported.as_deref(), Some("the same call again, 3 times"));
    // One that its worker ends has the worker's own word.
    rig.advance(BACKOFF);
    let claim = rig.claim(session);
    rig.beat(session, Beat { note: Some("nearly there".into()), ..Beat::plain(claim) }).unwrap();
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.view(id).workflows[0].ended[1].note, None);
}

#[test]
fn a_handler_that_never_beats_is_stuck_after_120_s() {
    let mut rig = Rig::new();
    bystanders(&mut rig);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(with_flat_backoff(job("k")));
    let claim = rig.claim(session);

    rig.advance(ms(119_999));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
    assert_eq!(cancels(&mut rig, session), [(claim, CancelWhy::Stuck)]);
    assert_eq!(rig.counted(id), 1);

    rig.advance(BACKOFF);
    let second = rig.claim(session);
    assert_eq!(second.fence, fence(1, 2), "redelivered after its backoff under a higher fence");
}

#[test]
fn a_job_whose_five_attempts_were_all_stuck_is_timed_out_as_stuck() {
    let mut rig = Rig::new();
    bystanders(&mut rig);
    rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(with_flat_backoff(job("k")));
    rig.advance(5 * secs(120) - ms(1));
    assert_ne!(rig.state_of(id), JobState::TimedOut);
    rig.advance(4 * BACKOFF + ms(1));
    let view = rig.view(id);
    assert_eq!(rig.endings(id), ["stuck"; 5]);
    assert_eq!((view.state, view.timed_out), (JobState::TimedOut, Some(TimeoutReason::Stuck)));
}

#[test]
fn a_job_that_asked_for_it_times_out_with_its_first_stuck_attempt() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { on_stuck: OnStuck::TimeOut, ..job("k") });
    let claim = rig.claim(session);
    rig.advance(secs(120));
    let view = rig.view(id);
    assert_eq!((view.state, view.timed_out), (JobState::TimedOut, Some(TimeoutReason::Stuck)));
    assert_eq!(rig.endings(id), ["stuck"]);
    assert_eq!(cancels(&mut rig, session), [(claim, CancelWhy::Stuck)]);
}

#[test]
fn when_one_stuck_workflow_ends_its_job_the_others_are_cancelled_too() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let mut draft = job("k");
    let mut other = draft.workflows[0].clone();
    draft.workflows[0].name = Some("silent".into());
    other.name = Some("busy".into());
    draft.workflows.push(other);
    let id = rig.submit(Draft { on_stuck: OnStuck::TimeOut, ..draft });
    let claims: Vec<Claim> = rig.assigned(session).iter().map(|assignment| assignment.claim).collect();
    let (silent, busy) = (claims[0], claims[1]);
    for step in 1..=11 {
        rig.advance(secs(10));
        rig.progress(session, busy, step);
    }
    rig.advance(secs(10));
    assert_eq!(rig.state_of(id), JobState::TimedOut);
    let mut told = cancels(&mut rig, session);
    told.sort_by_key(|(claim, _)| claim.workflow);
    assert_eq!(told, [(silent, CancelWhy::Stuck), (busy, CancelWhy::TimedOut)]);
}

#[test]
fn beats_do_not_save_a_handler_that_has_reported_progress_and_stopped() {
    let mut rig = Rig::new();
    bystanders(&mut rig);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.advance(secs(30));
    rig.progress(session, claim, 7);
    for _ in 0..11 {
        rig.advance(secs(10));
        rig.beat(session, Beat::plain(claim)).unwrap();
        rig.beat(session, Beat::progress(claim, 7)).expect("the same mark again is a beat");
    }
    assert_eq!(rig.verdict("w"), Verdict::Degraded, "nothing moves on it, however much it beats");
    rig.advance(ms(9_999));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
    assert_eq!(last_attempt_took(&rig, id), secs(150));
}

#[test]
fn beats_alone_do_not_move_a_job_that_requires_progress() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { require_progress: true, ..job("k") });
    let claim = rig.claim(session);
    for _ in 0..11 {
        rig.advance(secs(10));
        rig.beat(session, Beat::plain(claim)).unwrap();
    }
    rig.advance(ms(9_999));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
}

#[test]
fn a_worker_that_fails_everything_is_degraded_then_stuck_then_evicted() {
    let mut rig = Rig::new();
    bystanders(&mut rig);
    let session = rig.worker("w", 1, 2, &["k"]);
    let one_try = Retry { max_attempts: 1, base: BACKOFF, max: BACKOFF };
    let mut failed_at = 0;
    let mut first_failure = 0;
    let mut degraded_after = None;
    let mut failures = 0;
    while rig.verdict("w") != Verdict::Stuck {
        assert!(failures < 60, "never found out");
        rig.submit(Draft { retry: Some(one_try), ..job("k") });
        let claim = rig.claim(session);
        rig.fail(session, claim).unwrap();
        failures += 1;
        failed_at = rig.now.mono.as_ms();
        if failures == 1 {
            first_failure = failed_at;
        }
        match rig.verdict("w") {
            Verdict::Healthy => assert!(failures < 5, "five failures over five jobs are enough"),
            Verdict::Slow => {
                degraded_after.get_or_insert(failures);
                assert_eq!(rig.worker_view("w").judgement.signals.progress, ProgressSignal::Degraded);
            }
            Verdict::Stuck => {}
            other => panic!("it has room, answers and fails: {other:?}"),
        }
        rig.advance(secs(5));
    }
    assert_eq!(degraded_after, Some(5));
    assert_eq!(failed_at - first_failure, 115_000, "found out in the pause that ended 120 s after the first failure");
    assert_eq!(rig.worker_view("w").judgement.reason, VerdictReason::Progress(ProgressReason::OnlyFailures));

    let waiting = rig.submit(job("k"));
    assert_eq!(rig.assigned(session), [], "a stuck worker is drained");
    rig.advance(ms(29_999));
    assert_eq!(rig.eviction_count(), 0);
    rig.advance(ms(1));
    assert_eq!(rig.eviction_count(), 1);
    assert!(rig.worker_view("w").evicted);
    assert!(rig.notices.contains(&ManagerNotice::WorkerEvicted { worker: worker_id("w") }));
    assert_eq!(rig.state_of(waiting), JobState::Ready);
}

#[test]
fn eight_failures_over_two_jobs_do_not_yet_blame_the_worker() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 3, &["k"]);
    for _ in 0..2 {
        rig.submit(with_flat_backoff(job("k")));
    }
    for _ in 0..4 {
        for assignment in rig.assigned(session) {
            rig.fail(session, assignment.claim).unwrap();
        }
        rig.advance(BACKOFF);
    }
    assert_eq!(rig.verdict("w"), Verdict::Healthy);
    assert_eq!(rig.worker_view("w").judgement.reason, VerdictReason::Progress(ProgressReason::TooFewFailures));
}

#[test]
fn a_critical_loop_that_only_fails_turns_readiness_red_and_keeps_liveness() {
    let at = |seconds: u64| Awake::from_ms(seconds * 1000);
    let mut health = LoopHealth::started(LoopRule::default(), at(0));
    health.begin(at(0));
    health.end(at(1), Iteration::Progress(1));
    assert!(probes([Sign::Loop(health.state(at(1)).state)]).ready);
    for second in 2..300 {
        // It catches every error, sleeps a second and goes on.
        health.begin(at(second));
        health.end(at(second), Iteration::Failed { code: "refused" });
        let seen = probes([Sign::Loop(health.state(at(second)).state)]);
        assert_eq!((seen.live, seen.ready), (true, second < 4), "after {second} s");
    }
    assert_eq!(health.state(at(299)).state, LoopState::Failing);
}

#[test]
fn a_manager_whose_hand_outs_never_become_durable_is_degraded_then_stuck_and_never_idle() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    rig.advance(secs(10));
    assert_eq!(rig.manager.own_judgement().signals.progress, ProgressSignal::Idle);
    rig.log_answers = false;
    rig.submit(job("k"));
    let began = rig.now.mono;
    rig.watch(secs(600), |rig| {
        let judged = rig.manager.own_judgement();
        let expected =
            if rig.now.mono.since(began) < secs(120) { ProgressSignal::Degraded } else { ProgressSignal::Stuck };
        assert_eq!(judged.signals.progress, expected, "after {:?}", rig.now.mono.since(began));
        assert_eq!(judged.reason, VerdictReason::Progress(ProgressReason::DemandNotServed));
    });
    let judged = rig.manager.own_judgement();
    assert_eq!((judged.verdict, judged.signals.ready), (Verdict::Stuck, false));
}

#[test]
fn a_manager_that_loses_its_log_with_a_backlog_before_it_is_never_idle() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    for _ in 0..3 {
        rig.submit(job("k"));
    }
    let claim = rig.claim(session);
    rig.advance(secs(61));
    rig.log_answers = false;
    // The slot is freed and filled; that never becomes durable.
    rig.succeed(session, claim).unwrap();
    rig.watch(secs(300), |rig| {
        let progress = rig.manager.own_judgement().signals.progress;
        assert!(matches!(progress, ProgressSignal::Degraded | ProgressSignal::Stuck), "{progress:?}");
    });
    assert_eq!(rig.manager.own_judgement().verdict, Verdict::Stuck);
}

#[test]
fn a_manager_whose_log_answers_again_is_no_longer_stuck() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.log_answers = false;
    rig.submit(job("k"));
    rig.advance(secs(200));
    assert_eq!(rig.manager.own_judgement().verdict, Verdict::Stuck);
    rig.log_answers = true;
    rig.step(onward_core::input::Input::Durable { seq: onward_core::ids::Seq(rig.log.len() as u64) });
    assert_eq!(rig.manager.own_judgement().signals.progress, ProgressSignal::Normal);
    assert_eq!(rig.assigned(session).len(), 1);
}

#[test]
fn a_manager_without_a_confirmed_seat_is_not_ready() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    assert!(rig.manager.own_judgement().signals.ready);
    rig.log_answers = false;
    rig.advance(secs(6));
    let judged = rig.manager.own_judgement();
    assert_eq!(judged.verdict, Verdict::Busy);
    assert_eq!(judged.reason, VerdictReason::NotReady(NotReady::NoQuorum));
}

#[test]
fn a_kind_that_no_worker_takes_is_named_and_is_not_a_stuck_manager() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["other"]);
    let id = rig.submit(job("k"));
    rig.watch(secs(600), |rig| {
        assert_eq!(rig.view(id).workflows[0].blocked, Some("no_capable_worker"));
        let judged = rig.manager.own_judgement();
        assert_eq!((judged.verdict, judged.signals.progress), (Verdict::Healthy, ProgressSignal::Idle));
    });
    let session = rig.worker("late", 2, 1, &["k"]);
    assert_eq!(rig.claim(session).job, id);
}

#[test]
fn a_worker_that_answers_every_probe_while_nothing_it_holds_moves_is_degraded_until_its_attempt_is_stuck() {
    let mut rig = Rig::new();
    bystanders(&mut rig);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { stuck_after: Some(secs(200)), ..with_flat_backoff(job("k")) });
    let claim = rig.claim(session);
    let began = rig.now.mono;
    rig.watch(ms(199_999), |rig| {
        let expected = match rig.now.mono.since(began).as_secs() {
            0..60 => Verdict::Busy,
            _ => Verdict::Degraded,
        };
        assert_eq!(rig.verdict("w"), expected, "after {:?}", rig.now.mono.since(began));
        assert!(rig.worker_view("w").judgement.signals.live, "it answers every probe");
    });
    rig.advance(ms(1));
    assert_eq!((rig.eviction_count(), rig.endings(id)), (0, vec!["stuck"]));
    assert_eq!(cancels(&mut rig, session), [(claim, CancelWhy::Stuck)]);
}

#[test]
fn a_worker_on_which_everything_gets_stuck_is_evicted() {
    let mut rig = Rig::new();
    bystanders(&mut rig);
    let session = rig.worker("w", 1, 5, &["k"]);
    let began = rig.now.mono;
    // Five at a time; what gets stuck is a failure like any other.
    for patience in [30, 30, 30, 40].map(secs) {
        rig.submit_all(vec![Draft { stuck_after: Some(patience), on_stuck: OnStuck::TimeOut, ..job("k") }; 5]).unwrap();
        assert_eq!(rig.assigned(session).len(), 5);
        rig.advance(patience);
    }
    rig.advance(secs(20));
    assert_eq!(rig.now.mono.since(began), secs(150), "120 s after the first of them");
    assert_eq!((rig.verdict("w"), rig.worker_view("w").judgement.reason.code()), (Verdict::Stuck, "only_failures"));
    rig.advance(secs(30));
    assert_eq!(rig.eviction_count(), 1);
}

#[test]
fn a_silent_worker_is_suspect_after_30_s_and_evicted_10_s_later() {
    let mut rig = Rig::new();
    bystanders(&mut rig);
    let silent = rig.worker("silent", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(silent);
    rig.answering.remove(&silent);
    let other = rig.worker("other", 2, 1, &["k"]);

    rig.advance(ms(29_999));
    assert_eq!(rig.verdict("silent"), Verdict::Busy);
    rig.advance(ms(1));
    assert_eq!(rig.verdict("silent"), Verdict::Suspect);
    assert_eq!(rig.worker_view("silent").judgement.reason, VerdictReason::NotLive(NotLive::Silent));
    rig.advance(ms(9_999));
    assert_eq!(rig.eviction_count(), 0);
    rig.advance(ms(1));
    assert_eq!((rig.eviction_count(), rig.endings(id)), (1, vec!["evicted"]));
    assert_eq!(cancels(&mut rig, silent), [(claim, CancelWhy::Evicted)]);

    let second = rig.assigned(other).remove(0);
    assert_eq!((second.claim.fence, second.attempt), (fence(1, 2), 2), "an eviction counts");
}

#[test]
fn a_worker_that_beats_and_answers_no_probe_is_suspect_all_the_same() {
    let mut rig = Rig::new();
    bystanders(&mut rig);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.answering.remove(&session);
    for step in 1..=3 {
        rig.advance(secs(10));
        rig.progress(session, claim, step);
    }
    assert_eq!(rig.verdict("w"), Verdict::Suspect, "only an answer to our question is an answer");
}

#[test]
fn a_closed_session_makes_its_worker_suspect_at_once() {
    let mut rig = Rig::new();
    bystanders(&mut rig);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    rig.close(session);
    assert_eq!(rig.verdict("w"), Verdict::Suspect);
    rig.advance(ms(9_999));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["evicted"]);
}

#[test]
fn a_lease_that_ends_with_the_stuck_clock_is_an_expired_lease() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { on_stuck: OnStuck::TimeOut, ..job("k") });
    let poll = onward_core::input::Poll { lease: secs(120), ..Rig::poll_of("h", &["k"], 1, Duration::ZERO) };
    rig.leases(poll);
    rig.advance(secs(120));
    assert_eq!(rig.endings(id), ["lease_expired"]);
}

#[test]
fn a_cancelled_attempt_does_not_move_for_the_rest_of_its_quiet_section() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.beat(session, Beat { quiet: Some(secs(600)), ..Beat::plain(claim) }).unwrap();
    rig.cancel(id);
    rig.advance(secs(59));
    assert_eq!(rig.worker_view("w").judgement.signals.progress, ProgressSignal::Normal, "it made a step just before");
    rig.advance(secs(2));
    assert_eq!(rig.worker_view("w").judgement.signals.progress, ProgressSignal::Idle, "told to stop, and silent since");
}

#[test]
fn a_worker_that_never_came_after_a_takeover_is_no_worker() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let _claim = rig.claim(session);
    rig.restart(secs(1));
    rig.advance(secs(300));
    assert_eq!(rig.manager.view().workers, 1, "its lease waits for it");
    rig.advance(secs(4));
    let mut counts = DatacenterCounts::default();
    rig.manager.workers().for_each(|worker| worker.count(&mut counts));
    assert_eq!((counts.workers, rig.manager.view().workers), (0, 0));
    assert_eq!(rig.worker_view("w").reason_code(), "never_came");
}

#[test]
fn a_quiet_section_that_was_broken_off_moves_no_longer() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.progress(session, claim, 1);
    rig.advance(secs(100));
    assert_eq!(rig.verdict("w"), Verdict::Slow);
    rig.beat(session, Beat { quiet: Some(secs(500)), ..Beat::plain(claim) }).unwrap();
    assert_eq!(rig.verdict("w"), Verdict::Healthy);
    rig.advance(secs(10));
    rig.beat(session, Beat::plain(claim)).unwrap();
    assert_eq!(rig.verdict("w"), Verdict::Slow, "a beat of a handler that reports is no step");
}
