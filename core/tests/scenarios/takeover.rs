//! Another leader, or the same one after it could not run: what must not change does not, what must wait waits.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::rig::*;
use onward_core::effect::{Answer, Effect, Effects, Notice};
use onward_core::event::Event;
use onward_core::fence::Term;
use onward_core::grant::Denial;
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::input::{Call, Input};
use onward_core::job::{Draft, JobState, OnStuck, Retry};
use onward_core::manager::SeatState;
use onward_core::message::{Beat, FromWorker, Report, ToWorker};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::time::{Wall, WallStep};
use onward_core::timeout::TimeoutReason;

const SEAT_TTL: Duration = Duration::from_secs(3);

/// A number for every kind of event; a new kind must be given one, and be part of the replay test.
fn kind_of(event: &Event) -> u32 {
    match event {
        Event::TermBegan { .. } => 0,
        Event::JobSubmitted(_) => 1,
        Event::WorkflowDue(_) => 2,
        Event::HandedOut(_) => 3,
        Event::AttemptEnded { .. } => 4,
        Event::CancelAsked { .. } => 5,
        Event::JobTimedOut { .. } => 6,
        Event::QuietBegan { .. } => 7,
        Event::QuietEnded { .. } => 8,
        Event::Checkpointed { .. } => 9,
        Event::ProgressMarked { .. } => 10,
        Event::ExtensionDecided(_) => 11,
        Event::JobExtended { .. } => 12,
        Event::ClaimRefused { .. } => 13,
        Event::WorkerEvicted { .. } => 14,
        Event::ProbationBegan { .. } => 15,
        Event::ProbationEnded { .. } => 16,
        Event::GrantsReset { .. } => 17,
        Event::WorkerDrained { .. } => 18,
        Event::WorkerUndrained { .. } => 19,
        Event::WorkerForgotten { .. } => 20,
        Event::QueuePaused { .. } => 21,
        Event::QueueResumed { .. } => 22,
        Event::DeadLetterDropped { .. } => 23,
        Event::JobsArchived { .. } => 24,
        Event::KeysExpired { .. } => 25,
        Event::IncarnationReplaced { .. } => 26,
    }
}
const KINDS: u32 = 27;

fn done(rig: &mut Rig, call: Call) {
    assert_eq!(rig.call(call), Ok(Answer::Done));
}

fn running(rig: &Rig, job: JobId) -> onward_core::manager::AttemptView {
    rig.view(job).workflows[0].running.clone().expect("an attempt runs")
}

fn held_out(rig: &mut Rig, session: SessionId) -> Vec<Claim> {
    rig.assigned(session).into_iter().map(|assignment| assignment.claim).collect()
}

#[test]
fn a_replay_gives_the_same_state_after_every_kind_of_event() {
    let mut rig = Rig::new();
    rig.worker("bystander-1", 101, 1, &["other"]);
    rig.worker("bystander-2", 102, 1, &["other"]);
    let session = rig.worker("w", 1, 4, &["k"]);
    // Beats, marks, checkpoints, quiet sections, grants, an extension by hand, a refusal.
    let long = rig.submit(Draft { idempotency_key: Some("once".into()), ..job("k") });
    let claim = rig.claim(session);
    rig.beat(session, Beat { checkpoint: Some(bytes("half")), ..Beat::progress(claim, 1) }).unwrap();
    rig.beat(session, Beat { quiet: Some(secs(20)), ..Beat::plain(claim) }).unwrap();
    rig.restart(secs(2));
    let session = rig.hello("w", "1", 2, 4, &["k"], vec![claim]);
    rig.beat(session, Beat::progress(claim, 2)).unwrap();
    rig.ask_extension(session, vec![claim], 0.1).result.unwrap();
    let extend = Call::Extend { job: long, by: secs(60), reason: "slow disk".into(), request: name("r1") };
    assert!(rig.call(extend).is_ok());
    rig.restart(secs(2));
    let session = rig.hello("w", "1", 3, 4, &["k"], vec![claim]);
    // A recovery from Suspect resets its grants.
    rig.close(session);
    let session = rig.hello("w", "1", 4, 4, &["k"], vec![claim]);
    rig.succeed(session, claim).unwrap();
    rig.fail(session, claim).unwrap_err();
    // A delay, a cancel, an overall timeout, a dead letter.
    rig.submit(Draft { delay: Some(secs(1)), ..job("k") });
    let cancelled = rig.submit(job("k"));
    rig.cancel(cancelled);
    let timed_out = rig.submit(Draft { timeout: Some(secs(5)), ..job("k") });
    let dead = rig.submit(Draft { retry: Some(Retry { max_attempts: 1, base: ms(1), max: ms(1) }), ..job("k") });
    for claim in held_out(&mut rig, session) {
        if claim.job == dead {
            rig.fail(session, claim).unwrap();
        }
    }
    rig.restart(secs(2));
    rig.advance(secs(20));
    assert_eq!(rig.state_of(timed_out), JobState::TimedOut);
    done(&mut rig, Call::DropDeadLetter { job: dead });
    // Eviction, probation and its end; drain and undrain; pause and resume; forgetting.
    rig.worker("bystander-1", 111, 1, &["other"]);
    rig.worker("bystander-2", 112, 1, &["other"]);
    let session = rig.hello("w", "2", 5, 4, &["k"], vec![]);
    rig.close(session);
    rig.submit(job("k"));
    let session = rig.hello("w", "3", 6, 4, &["k"], vec![]);
    let held = held_out(&mut rig, session);
    assert!(!held.is_empty());
    rig.close(session);
    rig.advance(secs(10));
    assert_eq!(rig.eviction_count(), 1);
    rig.restart(secs(2));
    let session = rig.hello("w", "4", 7, 4, &["k"], vec![]);
    assert!(rig.worker_view("w").probation);
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    done(&mut rig, Call::DrainWorker(worker_id("w")));
    rig.restart(secs(2));
    rig.hello("w", "4", 8, 4, &["k"], vec![]);
    assert!(rig.worker_view("w").drained);
    done(&mut rig, Call::UndrainWorker(worker_id("w")));
    done(&mut rig, Call::PauseQueue(name("default")));
    rig.restart(secs(2));
    done(&mut rig, Call::ResumeQueue(name("default")));
    let archived = std::mem::take(&mut rig.to_archive);
    rig.step(Input::Archived { jobs: archived });
    let session = rig.hello("gone", "1", 9, 1, &["k"], vec![]);
    for claim in held_out(&mut rig, session) {
        rig.ask_extension(session, vec![claim], 0.1).result.unwrap();
    }
    rig.close(session);
    rig.advance(secs(3_600));
    rig.restart(secs(2));
    rig.advance(secs(24 * 3_600));

    let seen: BTreeSet<u32> = rig.log.iter().map(|stamped| kind_of(&stamped.event)).collect();
    let missing: Vec<u32> = (0..KINDS).filter(|kind| !seen.contains(kind)).collect();
    assert_eq!(missing, [0; 0], "kinds of events that this test did not cause");
    rig.restart(secs(1));
    let ordered = rig.log.windows(2).all(|pair| pair[0].at <= pair[1].at);
    assert!(ordered, "log time never runs back, within a term or across terms");
}

#[test]
fn started_at_is_stamped_once_and_downtime_counts_against_the_timeout() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { timeout: Some(secs(100)), ..job("k") });
    let started = rig.view(id).started_at.unwrap();
    rig.advance(secs(10));
    rig.restart(secs(30));
    let session = rig.worker("w", 1, 1, &["k"]);
    assert_eq!(rig.claim(session).job, id);
    assert_eq!(rig.view(id).started_at, Some(started));
    rig.advance(ms(59_999));
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.advance(ms(1));
    let view = rig.view(id);
    assert_eq!((view.state, view.timed_out), (JobState::TimedOut, Some(TimeoutReason::Overall)));
    assert_eq!(view.ended_at, Some(started + secs(100)));
    assert_eq!(view.started_at, Some(started));
}

#[test]
fn neither_a_delay_nor_a_retry_stamps_started_at_again() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { delay: Some(secs(5)), timeout: Some(secs(60)), ..job("k") });
    rig.advance(secs(5));
    let started = rig.view(id).created_at + secs(5);
    assert_eq!(rig.view(id).started_at, Some(started));
    let claim = rig.claim(session);
    let later = Report::Fail { error: "later".into(), retryable: true, delay: Some(secs(20)) };
    rig.settle(session, claim, later).unwrap();
    rig.advance(secs(20));
    assert_eq!(rig.claim(session).fence, fence(1, 2));
    assert_eq!(rig.view(id).started_at, Some(started));
    rig.advance(secs(40));
    assert_eq!(rig.view(id).ended_at, Some(started + secs(60)));
}

#[test]
fn an_overall_timeout_that_passed_meanwhile_fires_15_s_after_the_takeover_and_no_earlier() {
    let mut rig = Rig::new();
    let over = rig.submit(Draft { timeout: Some(secs(60)), ..job("k") });
    let nearly = rig.submit(Draft { timeout: Some(secs(3_610)), ..job("k") });
    rig.restart(secs(3_600));
    rig.advance(ms(14_999));
    assert_eq!((rig.state_of(over), rig.state_of(nearly)), (JobState::Ready, JobState::Ready));
    rig.advance(ms(1));
    assert_eq!((rig.state_of(over), rig.state_of(nearly)), (JobState::TimedOut, JobState::TimedOut));
}

#[test]
fn a_result_inside_that_grace_beats_the_timeout() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { timeout: Some(secs(60)), ..job("k") });
    let claim = rig.claim(session);
    rig.restart(secs(600));
    rig.advance(secs(10));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.succeed(session, claim).unwrap();
    assert_eq!(rig.state_of(id), JobState::Succeeded);
    rig.advance(secs(30));
    assert_eq!(rig.state_of(id), JobState::Succeeded);
}

#[test]
fn a_running_attempt_has_its_lease_and_the_seat_ttl_to_be_heard_of() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { stuck_after: Some(secs(3_600)), ..job("k") });
    rig.advance(secs(50));
    rig.restart(secs(20));
    assert_eq!(running(&rig, id).lease_remaining, secs(300) + SEAT_TTL);
    rig.advance(ms(302_999));
    assert_eq!((rig.endings(id), rig.eviction_count()), (vec![], 0), "nobody is blamed before that");
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["lease_expired"]);
}

#[test]
fn an_http_lease_gets_the_same() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    let claim = rig.leases(Rig::poll_of("w", &["k"], 1, Duration::ZERO))[0].claim;
    rig.advance(secs(29));
    rig.restart(secs(500));
    rig.advance(secs(30) + SEAT_TTL - ms(1));
    assert_eq!(rig.http_beat(Beat::plain(claim)).unwrap().lease_remaining, secs(30));
    rig.advance(secs(30));
    assert_eq!(rig.endings(id), ["lease_expired"]);
}

#[test]
fn the_stuck_clock_restarts() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.advance(secs(119));
    rig.restart(secs(60));
    rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.advance(ms(119_999));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
}

#[test]
fn a_handler_that_had_reported_is_still_judged_by_its_reports() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.progress(session, claim, 5);
    rig.restart(secs(1));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    for _ in 0..11 {
        rig.advance(secs(10));
        rig.beat(session, Beat::plain(claim)).unwrap();
        rig.beat(session, Beat::progress(claim, 5)).unwrap();
    }
    rig.advance(secs(10));
    assert_eq!(rig.endings(id), ["stuck"]);
}

#[test]
fn fences_rise_across_terms() {
    let mut rig = Rig::new();
    let mut session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let mut before = rig.claim(session);
    assert_eq!(before.fence, fence(1, 1));
    for term in 2..6 {
        rig.restart(secs(1));
        session = rig.worker("w", u64::from(term), 1, &["k"]);
        let next = rig.claim(session);
        assert_eq!(next.fence, fence(u64::from(term), term), "what never arrived is handed out again");
        assert!(next.fence > before.fence);
        assert_eq!(rig.succeed(session, before), Err(Refusal::StaleAttempt));
        before = next;
    }
    rig.succeed(session, before).unwrap();
    assert_eq!(rig.endings(id), ["never_arrived", "never_arrived", "never_arrived", "never_arrived", "succeeded"]);
}

#[test]
fn a_quiet_section_goes_on_for_what_was_left_of_it() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.beat(session, Beat { quiet: Some(secs(400)), ..Beat::plain(claim) }).unwrap();
    rig.advance(secs(100));
    rig.restart(secs(50));
    assert_eq!(running(&rig, id).quiet_remaining, Some(secs(250)));
    rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.advance(secs(250) + ms(119_999));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"], "the stuck clock had stood still, and restarted with the takeover");
}

#[test]
fn quiet_time_before_the_takeover_stays_charged() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    let quiet = |seconds| Beat { quiet: Some(secs(seconds)), ..Beat::plain(claim) };
    rig.beat(session, quiet(60)).unwrap();
    rig.advance(secs(10));
    rig.beat(session, Beat::plain(claim)).unwrap();
    rig.beat(session, quiet(500)).unwrap();
    rig.advance(secs(300));
    rig.restart(secs(100));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.advance(secs(20));
    rig.beat(session, Beat::plain(claim)).unwrap();
    // 10 before, and 300 + 100 + 20 of the second one: 170 of 600 s are left.
    assert_eq!(rig.beat(session, quiet(600)).unwrap().quiet, Some(secs(170)));
    rig.restart(secs(400));
    let session = rig.hello("w", "1", 3, 1, &["k"], vec![claim]);
    assert_eq!(rig.beat(session, quiet(1)), Err(Refusal::QuietSpent));
}

#[test]
fn a_checkpoint_reaches_the_next_attempt_under_another_leader() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.beat(session, Beat { checkpoint: Some(bytes("page 7")), ..Beat::plain(claim) }).unwrap();
    rig.restart(secs(1));
    let session = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    assert_eq!(rig.assigned(session)[0].checkpoint, Some(bytes("page 7")));
}

#[test]
fn grants_stay_counted() {
    let mut rig = Rig::new();
    let mut session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    let mut total = Duration::ZERO;
    for (n, granted) in [30_000, 15_000, 7_500, 3_750, 1_875].into_iter().enumerate() {
        let progress = 0.1 * (n + 1) as f64;
        assert_eq!(rig.ask_extension(session, vec![claim], progress).result, Ok(ms(granted)));
        total += ms(granted);
        rig.restart(secs(1));
        session = rig.hello("w", "1", 2 + n as u64, 1, &["k"], vec![claim]);
        assert_eq!(rig.view(id).extensions, total);
        if n == 0 {
            let again = rig.ask_extension(session, vec![claim], progress);
            assert_eq!(again.result, Err(Denial::NoProgress), "how far it was is remembered");
        }
    }
    assert_eq!(total, ms(58_125));
    assert_eq!(rig.ask_extension(session, vec![claim], 0.9).result, Err(Denial::WorkerGrantsSpent));
}

#[test]
fn a_worker_that_comes_back_keeps_what_it_holds_and_the_rest_never_arrived() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let (kept, lost) = (rig.submit(job("k")), rig.submit(job("k")));
    let claims = held_out(&mut rig, session);
    rig.restart(secs(1));
    let session = rig.hello("w", "1", 2, 2, &["k"], vec![claims[0]]);
    assert_eq!(rig.endings(kept), [""; 0]);
    assert_eq!(rig.endings(lost), ["never_arrived"]);
    let again = rig.assigned(session).remove(0);
    assert_eq!((again.claim.job, again.attempt), (lost, 1), "handed out again, uncounted");
    assert_eq!(rig.cancelled(session), []);
    rig.succeed(session, claims[0]).unwrap();
    rig.succeed(session, again.claim).unwrap();
}

#[test]
fn another_incarnation_has_lost_it_all_which_counts() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    rig.restart(secs(1));
    let other = rig.worker("other", 9, 1, &["k"]);
    assert_eq!(rig.assigned(other), []);
    rig.hello("w", "2", 2, 0, &["k"], vec![]);
    assert_eq!(rig.endings(id), ["crashed"]);
    let again = rig.assigned(other).remove(0);
    assert_eq!((again.claim.job, again.attempt), (id, 2), "redelivered at once, and counted");
}

#[test]
fn a_delay_ends_on_time_whoever_leads() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { delay: Some(secs(100)), ..job("k") });
    let over = rig.submit(Draft { delay: Some(secs(40)), ..job("k") });
    let submitted = rig.view(id).created_at;
    rig.advance(secs(10));
    rig.restart(secs(50));
    assert_eq!(rig.state_of(over), JobState::Ready, "what became due meanwhile is due");
    rig.advance(ms(39_999));
    assert_eq!(rig.state_of(id), JobState::Delayed);
    rig.advance(ms(1));
    assert_eq!(rig.view(id).started_at, Some(submitted + secs(100)));
}

// ---- gaps of our own

#[test]
fn after_a_gap_the_seat_is_confirmed_then_what_queued_up_is_heard_and_only_then_timers_fire() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { on_stuck: OnStuck::TimeOut, ..job("k") });
    let claim = rig.claim(session);
    rig.advance(secs(119));
    rig.noticed();
    rig.log_answers = false;
    rig.jump(secs(600));
    rig.step(Input::Wake);
    let noticed = rig.noticed();
    let gap = match noticed[..] {
        [Notice::GapNoticed { gap }] => gap,
        ref other => panic!("{other:?}"),
    };
    assert!(gap > secs(598) && gap <= secs(600), "{gap:?}");
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed);
    assert_eq!(rig.endings(id), [""; 0]);

    // Nothing is answered before the seat is confirmed, and nothing fires.
    rig.tell(session, FromWorker::Beats(vec![Beat::plain(claim)]));
    assert_eq!(rig.last_sent(session), ToWorker::Refused(Refusal::NoLeader));
    rig.step(Input::Drained);
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed, "what was heard without a seat was not heard");

    rig.step(rig.seat_answer());
    assert_eq!(rig.manager.seat_state(), SeatState::Settling);
    // Even what would be due by now on any clock waits for what queued up.
    rig.jump(ms(1_900));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.beat(session, Beat::plain(claim)).expect("heard before any timer");
    rig.step(Input::Drained);
    assert_eq!(rig.manager.seat_state(), SeatState::Serving);
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.log_answers = true;
    rig.advance(ms(119_999));
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
}

#[test]
fn a_gap_moves_leases_stuck_clocks_and_health_and_no_overall_timeout() {
    let mut rig = Rig::new();
    rig.worker("bystander-1", 101, 1, &["other"]);
    rig.worker("bystander-2", 102, 1, &["other"]);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.answering.remove(&session);
    let stuck = rig.submit(job("k"));
    let leased = rig.submit(job("http"));
    rig.leases(Rig::poll_of("h", &["http"], 1, Duration::ZERO));
    let overall = rig.submit(Draft { timeout: Some(secs(100)), ..job("nobody") });
    rig.advance(secs(5));
    let promised = rig.manager.next_wakeup().unwrap().0;
    rig.jump(secs(60));
    rig.step(Input::Wake);
    let gap = rig.now.mono.since(promised);
    assert!(rig.notices.contains(&Notice::GapNoticed { gap }));

    let began = Wall::from_ms(EPOCH_MS);
    rig.advance(secs(200));
    let ended = |job| rig.view(job).workflows[0].ended[0].ended_at;
    // Without an answer it was live for 30 s and had 10 s of grace.
    assert_eq!((rig.endings(stuck)[0], ended(stuck)), ("evicted", began + secs(40) + gap));
    assert_eq!((rig.endings(leased)[0], ended(leased)), ("lease_expired", began + secs(30) + gap));
    assert_eq!(rig.view(overall).ended_at, Some(began + secs(100)));
    rig.restart(secs(1));
}

#[test]
fn a_gap_moves_the_stuck_clock() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    rig.advance(secs(5));
    let promised = rig.manager.next_wakeup().unwrap().0;
    rig.jump(secs(60));
    rig.step(Input::Wake);
    let gap = rig.now.mono.since(promised);
    rig.advance(secs(130));
    let view = rig.view(id);
    assert_eq!(rig.endings(id)[0], "stuck");
    assert_eq!(view.workflows[0].ended[0].ended_at, Wall::from_ms(EPOCH_MS) + secs(120) + gap);
}

#[test]
fn a_wake_up_a_second_late_is_no_gap() {
    let mut rig = Rig::new();
    rig.advance(secs(5));
    let promised = rig.manager.next_wakeup().unwrap().0;
    rig.jump(promised.since(rig.now.mono) + secs(1));
    rig.step(Input::Wake);
    assert_eq!(rig.noticed(), []);
    let promised = rig.manager.next_wakeup().unwrap().0;
    rig.jump(promised.since(rig.now.mono) + ms(1_001));
    rig.step(Input::Wake);
    assert_eq!(rig.noticed(), [Notice::GapNoticed { gap: ms(1_001) }]);
}

// ---- the seat

#[test]
fn without_a_confirmed_seat_everything_is_refused_and_no_timer_fires() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let running = rig.submit(job("k"));
    let claim = rig.claim(session);
    let delayed = rig.submit(Draft { delay: Some(secs(10)), ..job("other") });
    let timed = rig.submit(Draft { timeout: Some(secs(20)), ..job("other") });
    let due_at_wall = rig.submit(Draft { run_at: Some(rig.now.wall + secs(10)), ..job("other") });
    rig.log_answers = false;
    rig.advance(SEAT_TTL);
    assert_eq!(rig.manager.seat_state(), SeatState::Serving, "for exactly as long as it was confirmed for");
    rig.advance(ms(1));
    rig.step(Input::Wake);
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed);

    let events = rig.log.len();
    let id = rig.new_id();
    let submission = onward_core::input::Submission { id, draft: job("k") };
    let calls = [
        Call::Submit(vec![submission]),
        Call::Cancel { job: running, epoch: None },
        Call::Poll(Rig::poll_of("h", &["k"], 1, secs(10))),
        Call::Beat(vec![Beat::plain(claim)]),
        Call::PauseQueue(name("default")),
    ];
    let refused_calls = calls.len() as u64;
    for call in calls {
        assert_eq!(rig.call(call), Err(Refusal::NoLeader));
    }
    rig.tell(session, FromWorker::Beats(vec![Beat::plain(claim)]));
    assert_eq!(rig.last_sent(session), ToWorker::Refused(Refusal::NoLeader));
    assert_eq!(rig.refused(RefusalKind::NoLeader), refused_calls + 1);

    rig.advance(secs(1_000));
    assert_eq!(rig.log.len(), events, "nothing was decided");
    let states = [running, delayed, timed, due_at_wall].map(|job| rig.state_of(job));
    assert_eq!(states, [JobState::Running, JobState::Delayed, JobState::Ready, JobState::Delayed]);

    rig.log_answers = true;
    rig.step(rig.seat_answer());
    let states = [running, delayed, timed, due_at_wall].map(|job| rig.state_of(job));
    assert_eq!(states[1..], [JobState::Ready, JobState::TimedOut, JobState::Ready]);
}

#[test]
fn a_seat_that_was_lost_stays_lost() {
    let losses = [
        Input::SeatLost,
        Input::SeatConfirmed { term: Term::new(2), question: 1 },
        Input::SeatTaken { term: Term::new(3) },
    ];
    for loss in losses {
        let mut rig = Rig::new();
        let session = rig.worker("w", 1, 1, &["k"]);
        rig.submit(job("k"));
        let claim = rig.claim(session);
        let events = rig.log.len();
        rig.step(loss);
        assert_eq!(rig.manager.seat_state(), SeatState::Lost);
        assert_eq!(rig.manager.next_wakeup(), None);
        rig.step(rig.seat_answer());
        rig.step(Input::Durable { seq: onward_core::ids::Seq(rig.log.len() as u64) });
        rig.jump(secs(1_000));
        rig.step(Input::Wake);
        assert_eq!(rig.manager.seat_state(), SeatState::Lost);
        assert_eq!(rig.call(Call::PauseQueue(name("q"))), Err(Refusal::NoLeader));
        rig.tell(session, FromWorker::Beats(vec![Beat::plain(claim)]));
        assert_eq!(rig.last_sent(session), ToWorker::Refused(Refusal::NoLeader));
        assert_eq!(rig.log.len(), events);
    }
}

#[test]
fn a_term_that_is_not_newer_than_the_log_cannot_be_taken() {
    let rig = Rig::new();
    let mut next = onward_core::manager::Manager::new(rig.manager.rules().clone(), 1, rig.now);
    for stamped in &rig.log {
        next.apply(stamped);
    }
    let mut effects = Effects::default();
    next.step(rig.now, Input::SeatTaken { term: Term::new(1) }, &mut effects);
    assert_eq!(next.seat_state(), SeatState::Lost);
    assert_eq!((effects.events.len(), effects.list.len()), (0, 0));
}

#[test]
fn a_new_leader_serves_nobody_before_its_term_is_durable() {
    let mut rig = Rig::new();
    rig.log_answers = false;
    rig.restart(secs(1));
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed);
    rig.step(rig.seat_answer());
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed, "its first event is not there yet");
    assert_eq!(rig.call(Call::PauseQueue(name("q"))), Err(Refusal::NoLeader));
    rig.step(Input::Durable { seq: onward_core::ids::Seq(rig.log.len() as u64) });
    assert_eq!(rig.manager.seat_state(), SeatState::Serving);
}

#[test]
fn the_seat_is_confirmed_three_times_in_its_lifetime() {
    let mut rig = Rig::new();
    let mut effects = Effects::default();
    let mut asked = 0;
    for _ in 0..6 {
        let at = rig.manager.next_wakeup().unwrap().0;
        rig.jump(at.since(rig.now.mono));
        rig.manager.step(rig.now, Input::Wake, &mut effects);
        asked += effects.list.iter().filter(|waiting| matches!(waiting.effect, Effect::ConfirmSeat { .. })).count();
        effects.clear();
    }
    assert_eq!((asked, rig.now.mono.as_ms()), (6, 5_000 + 2 * 3_000));
}

// ---- the wall clock

#[test]
fn a_step_of_the_wall_clock_is_reported_and_not_followed() {
    for by_ms in [3_600_000_i64, -3_600_000] {
        let mut rig = Rig::new();
        let id = rig.submit(Draft { timeout: Some(secs(100)), ..job("k") });
        let delayed = rig.submit(Draft { delay: Some(secs(50)), ..job("k") });
        rig.advance(secs(10));
        rig.noticed();
        rig.set_wall(Wall::from_ms(rig.now.wall.as_ms().checked_add_signed(by_ms).unwrap()));
        rig.step(Input::Wake);
        assert_eq!(rig.noticed(), [Notice::WallClockStepped(WallStep { by_ms })]);
        rig.advance(ms(39_999));
        assert_eq!(rig.state_of(delayed), JobState::Delayed);
        rig.advance(ms(1));
        assert_eq!(rig.state_of(delayed), JobState::Ready);
        rig.advance(ms(49_999));
        assert_eq!(rig.state_of(id), JobState::Ready);
        rig.advance(ms(1));
        assert_eq!(rig.view(id).ended_at, Some(Wall::from_ms(EPOCH_MS) + secs(100)), "in log time");
        assert_eq!(rig.noticed(), [Notice::JobTimedOut { job: id }], "the step was said once");
    }
}

#[test]
fn run_at_follows_the_wall_clock() {
    let mut rig = Rig::new();
    let at = rig.now.wall + secs(3_600);
    let id = rig.submit(Draft { run_at: Some(at), ..job("k") });
    rig.advance(secs(10));
    rig.set_wall(at);
    rig.advance(secs(1));
    assert_eq!(rig.state_of(id), JobState::Ready, "stepped forward: it runs within a second");

    let at = rig.now.wall + secs(100);
    let id = rig.submit(Draft { run_at: Some(at), ..job("k") });
    rig.advance(secs(50));
    rig.set_wall(at - secs(150));
    rig.advance(ms(149_999));
    assert_eq!(rig.state_of(id), JobState::Delayed, "stepped back: it waits");
    rig.advance(ms(1));
    assert_eq!(rig.state_of(id), JobState::Ready);
    rig.restart(secs(1));
}

#[test]
fn run_at_follows_the_wall_clock_of_the_next_leader() {
    let mut rig = Rig::new();
    let at = rig.now.wall + secs(3_600);
    let id = rig.submit(Draft { run_at: Some(at), ..job("k") });
    rig.advance(secs(10));
    rig.restart(secs(20));
    rig.advance(secs(3_600 - 30) - ms(1));
    assert_eq!(rig.state_of(id), JobState::Delayed);
    rig.advance(ms(1));
    assert_eq!(rig.state_of(id), JobState::Ready);
}

// ---- exact timers

#[test]
fn every_timer_fires_at_its_instant_to_the_millisecond() {
    let mut rig = Rig::new();
    rig.advance(ms(137));
    let began = rig.now.wall;
    let overall = rig.submit(Draft { timeout: Some(ms(7_777)), ..job("nobody") });
    let delayed = rig.submit(Draft { delay: Some(ms(12_345)), ..job("nobody") });
    let at_wall = rig.submit(Draft { run_at: Some(began + ms(23_456)), ..job("nobody") });
    let leased = rig.submit(job("http"));
    rig.leases(Rig::poll_of("h", &["http"], 1, Duration::ZERO));
    rig.worker("bystander", 101, 1, &["other"]);
    let session = rig.worker("w", 1, 2, &["k"]);
    let stuck = rig.submit(Draft { stuck_after: Some(ms(34_567)), ..job("k") });
    let retried = rig.submit(job("k"));
    for claim in held_out(&mut rig, session) {
        if claim.job == retried {
            let asked = Report::Fail { error: "later".into(), retryable: true, delay: Some(ms(9_876)) };
            rig.settle(session, claim, asked).unwrap();
        }
    }
    let poll = rig.call_open(Call::Poll(Rig::poll_of("h2", &["none"], 1, ms(4_321))));
    rig.advance(ms(4_320));
    assert_eq!(rig.reply(poll), None);
    rig.advance(ms(1));
    assert_eq!(rig.reply(poll), Some(Ok(Answer::Leases(vec![]))));
    rig.advance(secs(60));

    let ended = |job| rig.view(job).workflows[0].ended[0].ended_at.since(began);
    assert_eq!(rig.view(overall).ended_at.unwrap().since(began), ms(7_777));
    assert_eq!(rig.view(delayed).started_at.unwrap().since(began), ms(12_345));
    assert_eq!(rig.view(at_wall).started_at.unwrap().since(began), ms(23_456));
    assert_eq!(ended(leased), ms(30_000));
    assert_eq!(ended(stuck), ms(34_567));
    let second = rig.log.iter().find_map(|stamped| match &stamped.event {
        Event::HandedOut(handed) if handed.workflow.job == retried && handed.fence == fence(1, 2) => Some(stamped.at),
        _ => None,
    });
    assert_eq!(second.unwrap().since(began), ms(9_876));
}

// ---- what must not be believed

#[test]
fn an_answer_from_before_a_gap_does_not_confirm_the_seat() {
    let mut rig = Rig::new();
    rig.log_answers = false;
    rig.advance(secs(1));
    let (question, term) = (rig.question, Term::new(1));
    assert!(question > 0, "the seat was asked for");
    // An event and a question are under way when the process freezes for longer than the seat lives.
    rig.call_open(Call::PauseQueue(name("q")));
    rig.jump(secs(60));
    rig.step(Input::Wake);
    rig.step(Input::Durable { seq: onward_core::ids::Seq(rig.log.len() as u64) });
    rig.step(Input::SeatConfirmed { term, question });
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed, "both are from before");
    assert!(rig.question > question, "it was asked for again");
    rig.step(rig.seat_answer());
    assert_eq!(rig.manager.seat_state(), SeatState::Settling);
}

#[test]
fn a_confirmation_counts_from_its_question() {
    let mut rig = Rig::new();
    rig.log_answers = false;
    rig.advance(secs(1));
    let answer = rig.seat_answer();
    rig.advance(ms(1_500));
    rig.step(answer);
    rig.advance(ms(1_400));
    assert_eq!(rig.manager.seat_state(), SeatState::Serving);
    rig.advance(ms(200));
    rig.step(Input::Wake);
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed, "three seconds after it was asked, not answered");
}

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
