//! Another leader, or the same one after it could not run: what must not change does not, what must wait waits.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::rig::*;
use onward_core::effect::{Answer, Notice};
use onward_core::event::Event;
use onward_core::grant::Denial;
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::input::{Call, Input};
use onward_core::job::{Draft, JobState, OnStuck, Retry};
use onward_core::message::{Beat, Report, ToWorker};
use onward_core::refusal::Refusal;
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
fn whatever_its_stuck_after_a_running_attempt_has_its_lease_to_be_heard_of() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { on_stuck: OnStuck::TimeOut, ..job("k") });
    let claim = rig.claim(session);
    rig.restart(secs(10));
    rig.advance(secs(180));
    assert_eq!(rig.endings(id), [""; 0], "it has 303 s, and is stuck after 120");
    rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.advance(secs(120) - ms(1));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"], "from when its worker was heard of");
}

#[test]
fn the_same_goes_for_a_worker_without_a_session() {
    type Hear = fn(&mut Rig, Claim);
    let ways: [Hear; 2] = [
        |rig, claim| assert!(rig.http_beat(Beat::progress(claim, 0)).is_ok()),
        |rig, _| drop(rig.leases(Rig::poll_of("h", &["other"], 1, Duration::ZERO))),
    ];
    for hear in ways {
        let mut rig = Rig::new();
        let ids = [rig.submit(job("k")), rig.submit(job("k"))];
        let poll = onward_core::input::Poll { lease: secs(600), ..Rig::poll_of("h", &["k"], 2, Duration::ZERO) };
        let claims: Vec<Claim> = rig.leases(poll).iter().map(|lease| lease.claim).collect();
        rig.restart(secs(10));
        rig.advance(secs(200));
        assert_eq!(rig.eviction_count(), 0);
        hear(&mut rig, claims[0]);
        rig.advance(secs(120) - ms(1));
        assert_eq!(ids.map(|id| rig.endings(id)), [[""; 0]; 2]);
        rig.advance(ms(1));
        assert_eq!(ids.map(|id| rig.endings(id)), [["stuck"]; 2], "all that it holds");
    }
}

#[test]
fn a_worker_that_is_gone_after_a_takeover_does_not_make_its_job_stuck() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { on_stuck: OnStuck::TimeOut, ..job("k") });
    rig.restart(secs(1));
    let other = rig.worker("other", 2, 1, &["k"]);
    rig.advance(secs(310));
    assert_eq!(rig.endings(id), ["lease_expired"]);
    assert_eq!(rig.assigned(other).len(), 1);
}

#[test]
fn a_cancel_is_sent_again_to_a_worker_that_comes_back() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.cancel(id);
    rig.restart(secs(1));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    assert_eq!(rig.cancelled(session), [claim]);
    rig.advance(secs(303));
    assert_eq!(rig.state_of(id), JobState::Cancelled, "its lease is over");
}

#[test]
fn a_job_that_ended_and_was_not_archived_is_archived_by_the_next_leader() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let (done, dead) = (rig.submit(job("k")), rig.submit(job("k")));
    let claims = held_out(&mut rig, session);
    rig.succeed(session, claims[0]).unwrap();
    rig.fail_for_good(session, claims[1]).unwrap();
    rig.to_archive.clear();
    rig.restart(secs(1));
    assert_eq!(rig.to_archive, [done], "and the dead letter waits for somebody");
    rig.step(Input::Archived { jobs: vec![done, dead] });
    assert!(rig.manager.job(done).is_none() && rig.manager.job(dead).is_some());
}

#[test]
fn what_is_not_over_is_not_archived_whoever_says_so() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    let events = rig.log.len();
    rig.step(Input::Archived { jobs: vec![id] });
    assert_eq!((rig.state_of(id), rig.log.len()), (JobState::Ready, events));
    rig.restart(secs(1));
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
fn at_most_one_progress_mark_in_ten_seconds_is_logged() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    for unit in 1..=100 {
        rig.advance(ms(300));
        rig.progress(session, claim, unit);
    }
    let marks = rig.logged(|event| matches!(event, Event::ProgressMarked { .. }));
    assert!((3..=4).contains(&marks), "{marks} in 30 s");
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
fn a_takeover_allows_no_more_quiet_than_was_asked_for() {
    let quiet_left = |rig: &Rig, id| rig.view(id).workflows[0].running.as_ref().unwrap().quiet_remaining.unwrap();
    // The second is not covered by what was logged for the first, or by more than it asks for.
    for (first, second) in [(280, 281), (280, 20)] {
        let mut rig = Rig::new();
        let session = rig.worker("w", 1, 1, &["k"]);
        let id = rig.submit(job("k"));
        let claim = rig.claim(session);
        rig.beat(session, Beat { quiet: Some(secs(first)), ..Beat::plain(claim) }).unwrap();
        rig.advance(ms(300));
        rig.beat(session, Beat { quiet: Some(secs(second)), ..Beat::plain(claim) }).unwrap();
        rig.advance(secs(5));
        let before = quiet_left(&rig, id);
        assert!(before < secs(second));
        rig.restart(secs(1));
        let after = quiet_left(&rig, id);
        assert!(after <= before && after + secs(10) > before, "{after:?} of {before:?}");
    }
}

#[test]
fn a_quiet_section_over_a_takeover_holds_the_stuck_clock_once() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.beat(session, Beat { quiet: Some(secs(400)), ..Beat::plain(claim) }).unwrap();
    rig.restart(secs(1));
    rig.advance(secs(199));
    rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    // 400 s of quiet in all, then 120 s.
    rig.advance(secs(200) + secs(120) - ms(1));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
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

// ---- what is heard late

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

// ---- what handlers may have logged

#[test]
fn a_checkpoint_that_comes_too_soon_replaces_the_one_that_waits_and_is_logged_when_a_second_is_over() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    let save = |text: &str| Beat { checkpoint: Some(bytes(text)), ..Beat::plain(claim) };
    let logged = |rig: &Rig| -> Vec<String> {
        let saved = rig.log.iter().filter_map(|stamped| match &stamped.event {
            Event::Checkpointed { data, .. } => Some(String::from_utf8(data.to_vec()).expect("text")),
            _ => None,
        });
        saved.collect()
    };
    rig.beat(session, save("1")).unwrap();
    for text in ["2", "3", "4"] {
        rig.advance(ms(300));
        rig.beat(session, save(text)).expect("nothing is refused");
    }
    assert_eq!(logged(&rig), ["1"]);
    rig.advance(ms(99));
    assert_eq!(logged(&rig), ["1"]);
    rig.advance(ms(1));
    assert_eq!(logged(&rig), ["1", "4"], "the newest, a second after the last");
    rig.advance(secs(1));
    rig.beat(session, save("5")).unwrap();
    assert_eq!(logged(&rig), ["1", "4", "5"], "exactly a second later it need not wait");
    rig.beat(session, save("6")).unwrap();
    rig.fail(session, claim).unwrap();
    assert_eq!(logged(&rig), ["1", "4", "5", "6"], "what waits is not lost with the attempt");
}

#[test]
fn a_failure_and_a_release_may_bring_a_checkpoint() {
    for release in [false, true] {
        let mut rig = Rig::new();
        let session = rig.worker("w", 1, 1, &["k"]);
        rig.submit(Draft { retry: Some(Retry { max_attempts: 5, base: ms(1), max: ms(1) }), ..job("k") });
        let claim = rig.claim(session);
        rig.beat(session, Beat { checkpoint: Some(bytes("old")), ..Beat::plain(claim) }).unwrap();
        rig.beat(session, Beat { checkpoint: Some(bytes("waits")), ..Beat::plain(claim) }).unwrap();
        let report = if release { Report::Release { delay: None } } else { failure() };
        let checkpoint = Some(bytes("page 7"));
        let settlement = onward_core::message::Settlement { claim, report, checkpoint };
        rig.tell(session, onward_core::message::FromWorker::Settle(vec![settlement]));
        rig.advance(ms(1));
        assert_eq!(rig.assigned(session)[0].checkpoint, Some(bytes("page 7")));
    }
}

#[test]
fn denied_extensions_fill_neither_log_nor_ledger_and_are_counted() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.ask_extension(session, vec![claim], 0.5).result.unwrap();
    let before = rig.log.len();
    for n in 0..1_024_u32 {
        rig.ask_extension(session, vec![claim], 0.5 - f64::from(n) / 10_000.0).result.unwrap_err();
    }
    assert!(rig.log.len() - before < 10, "{} events", rig.log.len() - before);
    let denied = |rig: &Rig| -> Vec<u32> {
        let entries = rig.view(id).ledger;
        let denied = entries.iter().filter(|entry| matches!(entry.what, onward_core::state::LedgerFact::Denied { .. }));
        denied.map(|entry| entry.times).collect()
    };
    assert_eq!(denied(&rig), [1_024], "in one entry");
    rig.restart(secs(1));
    assert_eq!(denied(&rig), [1_024]);
}

#[test]
fn quiet_sections_of_no_length_fill_neither_log_nor_ledger() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(patient("k"));
    let claim = rig.claim(session);
    let before = rig.log.len();
    for n in 0..1_000 {
        let quiet = (n % 3 > 0).then(|| ms(1_000 + n));
        rig.beat(session, Beat { quiet, ..Beat::plain(claim) }).unwrap();
    }
    assert!(rig.log.len() - before < 10, "{} events", rig.log.len() - before);
    rig.beat(session, Beat::plain(claim)).unwrap();
    rig.advance(secs(1));
    let open = rig.manager.state().attempts().next().unwrap().1.quiet;
    assert_eq!(open, None, "the end is logged within a second");
    // In ordinary use: many calls of some seconds each.
    for _ in 0..130 {
        rig.beat(session, Beat { quiet: Some(secs(4)), ..Beat::plain(claim) }).unwrap();
        rig.advance(secs(4));
    }
    let view = rig.view(id);
    assert!(view.ledger.len() <= 2 && view.ledger_dropped == 0, "{:?}", view.ledger);
    assert!(view.ledger.iter().all(|entry| entry.times >= 130));
    let used = rig.manager.state().attempts().next().unwrap().1.quiet_used;
    assert!(used >= secs(516) && used <= secs(521), "{used:?}");
    rig.restart(secs(1));
}

#[test]
fn a_section_that_was_not_logged_by_itself_is_covered_by_what_was() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    for seconds in [10, 5, 30, 31, 200, 400] {
        rig.advance(ms(10));
        rig.beat(session, Beat { quiet: Some(secs(seconds)), ..Beat::plain(claim) }).unwrap();
        let (began, allowed) = rig.manager.state().attempts().next().unwrap().1.quiet.unwrap();
        assert!(began + allowed >= rig.now.wall + secs(seconds), "{seconds} s are not covered");
    }
    rig.advance(ms(10));
    rig.beat(session, Beat { quiet: Some(secs(500)), ..Beat::plain(claim) }).unwrap();
    let (_, allowed) = rig.manager.state().attempts().next().unwrap().1.quiet.unwrap();
    assert!((secs(500)..=secs(600)).contains(&allowed), "{allowed:?}: twice as long would be more than its budget");
}

#[test]
fn a_section_that_follows_one_from_before_a_takeover_is_charged_apart_from_it() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    let quiet = |seconds| Beat { quiet: Some(secs(seconds)), ..Beat::plain(claim) };
    rig.beat(session, quiet(300)).unwrap();
    rig.advance(secs(100));
    rig.restart(secs(1));
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.advance(secs(99));
    rig.beat(session, quiet(300)).unwrap();
    rig.advance(secs(50));
    rig.restart(secs(1));
    let session = rig.hello("w", "1", 3, 1, &["k"], vec![claim]);
    // 200 s of the first and 51 s of the second are gone.
    assert_eq!(rig.beat(session, quiet(600)).unwrap().quiet, Some(secs(349)));
}
