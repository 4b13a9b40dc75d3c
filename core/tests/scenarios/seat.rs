//! Whether the leader may act, and time in which it did not listen: frozen, or without a confirmed seat.

use std::time::Duration;

use crate::rig::*;
use onward_core::effect::{Answer, Effect, Effects, ManagerNotice};
use onward_core::event::Event;
use onward_core::fence::Term;
use onward_core::ids::{JobId, Seq};
use onward_core::input::{Call, Input, Poll, Submission};
use onward_core::job::{Draft, JobState, OnStuck};
use onward_core::manager::{SeatState, Why};
use onward_core::message::{Beat, FromWorker, ToWorker};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::time::Wall;

const SEAT_TTL: Duration = Duration::from_secs(3);

/// The input that everything decided is durable by now.
fn durable(rig: &Rig) -> Input {
    Input::Durable { seq: Seq(rig.log.len() as u64) }
}

/// The log goes away and comes back after so long.
fn outage(rig: &mut Rig, span: Duration, mut meanwhile: impl FnMut(&mut Rig)) {
    rig.log_answers = false;
    let mut left = span;
    while !left.is_zero() {
        let some = left.min(secs(10));
        rig.advance(some);
        meanwhile(rig);
        left -= some;
    }
    rig.log_answers = true;
    let durable = durable(rig);
    rig.step(durable);
    let answer = rig.seat_answer();
    rig.step(answer);
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
        [ManagerNotice::GapNoticed { gap }] => gap,
        ref other => panic!("{other:?}"),
    };
    assert!(gap > secs(598) && gap <= secs(600), "{gap:?}");
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed);
    assert_eq!(rig.endings(id), [""; 0]);

    // Nothing is answered before the seat is confirmed, and nothing fires.
    rig.messages(session);
    rig.tell(session, FromWorker::Beats(vec![Beat::plain(claim)]));
    assert_eq!(rig.messages(session), []);
    rig.step(Input::QueueEmptied);
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed, "what was heard without a seat was not taken");

    rig.step(rig.seat_answer());
    assert_eq!(rig.manager.seat_state(), SeatState::Settling);
    assert!(matches!(&rig.messages(session)[..], [ToWorker::BeatAnswers(answers)] if answers[0].answer.is_ok()));
    // Even what would be due by now on any clock waits for what queued up.
    rig.jump(ms(1_900));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.beat(session, Beat::plain(claim)).expect("heard before any timer");
    rig.step(Input::QueueEmptied);
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
    assert!(rig.notices.contains(&ManagerNotice::GapNoticed { gap }));

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
fn a_second_without_a_confirmed_seat_is_not_reported_and_a_longer_time_is_once() {
    for (over, reported) in [(secs(1), vec![]), (ms(1_001), vec![ManagerNotice::GapNoticed { gap: ms(1_001) }])] {
        let mut rig = Rig::new();
        rig.submit(job("nobody"));
        rig.noticed();
        rig.log_answers = false;
        rig.advance(secs(3) + over);
        assert_eq!((rig.manager.seat_state(), rig.noticed()), (SeatState::Unconfirmed, vec![]));
        let answer = rig.seat_answer();
        rig.step(answer);
        assert_eq!((rig.manager.seat_state(), rig.noticed()), (SeatState::Serving, reported));
    }
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
    assert_eq!(rig.noticed(), [ManagerNotice::GapNoticed { gap: ms(1_001) }]);
}

#[test]
fn a_freeze_while_the_log_is_away_counts_once() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.advance(secs(5));
    rig.beat(session, Beat::plain(claim)).unwrap();
    rig.log_answers = false;
    rig.advance(secs(10) + ms(500));
    rig.noticed();
    rig.jump(secs(60));
    rig.step(Input::Wake);
    rig.log_answers = true;
    for input in [durable(&rig), rig.seat_answer(), Input::QueueEmptied] {
        rig.step(input);
    }
    assert_eq!(rig.manager.seat_state(), SeatState::Serving);
    let reported = rig.noticed().into_iter().map(|notice| match notice {
        ManagerNotice::GapNoticed { gap } => gap,
        other => panic!("{other:?}"),
    });
    let reported: Vec<Duration> = reported.collect();
    assert!(reported.len() == 2 && reported.iter().sum::<Duration>() <= ms(67_500), "{reported:?}");
    // The three seconds for which the seat was confirmed count, and nothing else.
    rig.advance(secs(117) - ms(1));
    // Not by its state: a job whose attempt was ended runs again at once.
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
}

// ---- the seat

#[test]
fn without_a_confirmed_seat_calls_wait_for_its_ttl_and_no_timer_fires() {
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
    let calls = [
        Call::Submit(vec![Submission { id, draft: job("k") }]),
        Call::Cancel { job: running, epoch: None },
        Call::Poll(Rig::poll_of("h", &["k"], 1, secs(10))),
        Call::Beat(vec![Beat::plain(claim)]),
        Call::PauseQueue(name("default")),
    ];
    let requests = calls.map(|call| rig.call_open(call));
    rig.messages(session);
    rig.tell(session, FromWorker::Beats(vec![Beat::plain(claim)]));
    rig.advance(SEAT_TTL - ms(1));
    assert!(rig.replies.is_empty(), "the seat may still be confirmed in time");
    rig.advance(ms(1));
    for request in requests {
        assert_eq!(rig.reply(request), Some(Err(Refusal::NoLeader)));
    }
    assert_eq!(rig.refused(RefusalKind::NoLeader), requests.len() as u64);
    assert_eq!(rig.messages(session), [], "what workers say is kept");

    rig.advance(secs(1_000));
    assert_eq!(rig.log.len(), events, "nothing was decided");
    let states = [running, delayed, timed, due_at_wall].map(|job| rig.state_of(job));
    assert_eq!(states, [JobState::Running, JobState::Delayed, JobState::Ready, JobState::Delayed]);

    rig.log_answers = true;
    rig.step(rig.seat_answer());
    let states = [running, delayed, timed, due_at_wall].map(|job| rig.state_of(job));
    assert_eq!(states, [JobState::Running, JobState::Ready, JobState::TimedOut, JobState::Ready]);
    assert!(matches!(&rig.messages(session)[..], [ToWorker::BeatAnswers(_)]));
}

#[test]
fn a_refusal_for_want_of_a_seat_waits_for_no_event() {
    let mut rig = Rig::new();
    rig.log_answers = false;
    // Decided, and not durable.
    rig.call_open(Call::PauseQueue(name("q")));
    let mut refused = 0;
    rig.advance(SEAT_TTL + ms(1));
    let mut effects = Effects::default();
    let call = Call::PauseQueue(name("r"));
    rig.manager.step(rig.now, Input::Call { request: onward_core::ids::RequestId(99), call }, &mut effects);
    rig.jump(SEAT_TTL);
    rig.manager.step(rig.now, Input::Wake, &mut effects);
    rig.manager.step(rig.now, Input::SeatLost, &mut effects);
    let message = FromWorker::Beats(vec![]);
    rig.manager.step(rig.now, Input::Session { session: onward_core::ids::SessionId(5), message }, &mut effects);
    for waiting in effects.list {
        if let Effect::Reply { answer: Err(Refusal::NoLeader), .. }
        | Effect::Send { message: ToWorker::Refused(Refusal::NoLeader), .. } = waiting.effect
        {
            assert_eq!(waiting.after, Seq::default());
            refused += 1;
        }
    }
    assert_eq!(refused, 2);
}

#[test]
fn a_call_that_came_without_a_seat_is_answered_when_there_is_one_in_time() {
    let mut rig = Rig::new();
    rig.log_answers = false;
    rig.advance(SEAT_TTL + ms(1));
    let pause = rig.call_open(Call::PauseQueue(name("q")));
    assert_eq!(rig.reply(pause), None);
    rig.advance(secs(2));
    rig.log_answers = true;
    rig.step(rig.seat_answer());
    assert_eq!(rig.reply(pause), Some(Ok(Answer::Done)));
    assert_eq!(rig.refused(RefusalKind::NoLeader), 0);
}

// ---- time without a confirmed seat is a gap

#[test]
fn an_outage_of_the_log_makes_no_handler_stuck() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { on_stuck: OnStuck::TimeOut, ..job("k") });
    let claim = rig.claim(session);
    rig.advance(secs(5));
    rig.beat(session, Beat::plain(claim)).unwrap();
    outage(&mut rig, secs(130), |_| {});
    assert_eq!((rig.state_of(id), rig.endings(id)), (JobState::Running, vec![]), "nothing was asked of it");
    // 3 s of it counted: the seat was confirmed for so long.
    rig.advance(secs(117) - ms(1));
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
}

#[test]
fn an_outage_of_the_log_expires_no_lease_that_could_not_be_renewed() {
    let mut rig = Rig::new();
    let id = rig.submit(patient("k"));
    let claim = rig.leases(Rig::poll_of("h", &["k"], 1, Duration::ZERO))[0].claim; // 30 s
    outage(&mut rig, secs(40), |rig| {
        rig.call_open(Call::Beat(vec![Beat::plain(claim)]));
    });
    assert_eq!(rig.endings(id), [""; 0]);
    rig.http_beat(Beat::plain(claim)).unwrap();
    rig.advance(secs(30));
    assert_eq!(rig.endings(id), ["lease_expired"]);
}

#[test]
fn an_outage_of_the_log_resets_no_grants_and_evicts_nobody() {
    let mut rig = Rig::new();
    let sessions: Vec<_> = (0..4).map(|n| rig.worker(&format!("w{n}"), n + 1, 1, &["k"])).collect();
    rig.submit_all(vec![patient("k"); 4]).unwrap();
    let claim = rig.claim(sessions[0]);
    rig.ask_extension(sessions[0], vec![claim], 0.1).result.unwrap();
    rig.advance(secs(60));
    outage(&mut rig, secs(100), |_| {});
    rig.advance(secs(15));
    assert_eq!(rig.evictions().len(), 0);
    assert_eq!(rig.logged(|event| matches!(event, Event::GrantsReset { .. })), 0, "nobody failed to answer");
}

#[test]
fn an_outage_of_the_log_is_not_added_to_overall_timeouts() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { timeout: Some(secs(60)), ..job("nobody") });
    let submitted = rig.view(id).created_at;
    outage(&mut rig, secs(50), |_| {});
    rig.advance(secs(20));
    assert_eq!(rig.view(id).ended_at, Some(submitted + secs(60)));
}

#[test]
fn an_outage_that_was_long_is_reported_once_when_it_is_over() {
    let mut rig = Rig::new();
    rig.advance(secs(5));
    rig.noticed();
    outage(&mut rig, secs(30), |rig| assert_eq!(rig.noticed(), []));
    let noticed = rig.noticed();
    assert!(
        matches!(noticed[..], [ManagerNotice::GapNoticed { gap }] if gap >= secs(26) && gap <= secs(28)),
        "{noticed:?}"
    );
    rig.advance(secs(10));
    assert_eq!(rig.noticed(), []);
}

#[test]
fn what_was_reported_without_a_seat_is_taken_in_order_before_timers_fire() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let (done, timed) = (rig.submit(job("k")), rig.submit(Draft { timeout: Some(secs(20)), ..job("k") }));
    let claims: Vec<_> = rig.assigned(session).into_iter().map(|assignment| assignment.claim).collect();
    rig.log_answers = false;
    rig.advance(secs(10));
    rig.tell(session, FromWorker::Beats(vec![Beat::progress(claims[0], 7)]));
    for claim in &claims {
        let settled = onward_core::message::Settlement::new(*claim, success());
        rig.tell(session, FromWorker::Settle(vec![settled]));
    }
    rig.close(session);
    rig.advance(secs(20));
    assert_eq!((rig.state_of(done), rig.state_of(timed)), (JobState::Running, JobState::Running));
    rig.log_answers = true;
    rig.step(rig.seat_answer());
    assert_eq!(rig.state_of(done), JobState::Succeeded);
    assert_eq!(
        rig.state_of(timed),
        JobState::Succeeded,
        "a success that was there beats a timeout that was not decided"
    );
    assert!(!rig.worker_view("w").connected, "what it said last was heard last");
}

#[test]
fn what_was_archived_without_a_seat_leaves_memory_with_one() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    rig.log_answers = false;
    rig.advance(secs(4));
    rig.step(Input::Archived { jobs: vec![id] });
    assert!(rig.manager.job(id).is_some());
    rig.log_answers = true;
    rig.step(rig.seat_answer());
    assert!(rig.manager.job(id).is_none());
}

#[test]
fn leases_whose_caller_left_during_a_gap_go_back_uncounted() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    let poll = Poll { lease: secs(3_600), ..Rig::poll_of("h", &["k"], 1, Duration::ZERO) };
    let request = rig.call_open(Call::Poll(poll));
    assert!(matches!(rig.reply(request), Some(Ok(Answer::Leases(leases))) if leases.len() == 1));
    // The node freezes while the answer is on its way, and the client gives up.
    rig.log_answers = false;
    rig.jump(secs(60));
    rig.step(Input::CallGone { request, delivered: false });
    rig.log_answers = true;
    rig.step(rig.seat_answer());
    rig.step(Input::QueueEmptied);
    assert_eq!((rig.endings(id), rig.counted(id)), (vec!["never_arrived"], 0));
}

#[test]
fn leases_whose_caller_left_while_a_commit_stalled_go_back_uncounted() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    rig.log_answers = false;
    let poll = Poll { lease: secs(600), ..Rig::poll_of("h", &["k"], 1, secs(5)) };
    let request = rig.call_open(Call::Poll(poll));
    rig.advance(secs(10));
    rig.step(Input::CallGone { request, delivered: false });
    rig.log_answers = true;
    rig.step(durable(&rig));
    rig.step(rig.seat_answer());
    assert_eq!((rig.endings(id), rig.counted(id)), (vec!["never_arrived"], 0));
}

#[test]
fn a_poll_that_came_and_went_without_a_seat_is_handed_nothing() {
    let mut rig = Rig::new();
    let id = rig.submit(job("k"));
    rig.log_answers = false;
    rig.advance(secs(4));
    let request = rig.call_open(Call::Poll(Rig::poll_of("h", &["k"], 1, secs(10))));
    rig.step(Input::CallGone { request, delivered: false });
    rig.log_answers = true;
    rig.step(rig.seat_answer());
    assert_eq!((rig.state_of(id), rig.endings(id)), (JobState::Ready, vec![]));
}

#[test]
fn an_open_poll_whose_wait_is_over_is_refused_without_a_seat() {
    let mut rig = Rig::new();
    let short = rig.call_open(Call::Poll(Rig::poll_of("h", &["k"], 1, secs(10))));
    let long = rig.call_open(Call::Poll(Rig::poll_of("h2", &["k"], 1, secs(60))));
    rig.log_answers = false;
    rig.advance(secs(10) - ms(1));
    assert_eq!(rig.reply(short), None);
    rig.advance(secs(1));
    assert_eq!(rig.reply(short), Some(Err(Refusal::NoLeader)), "within a second of its end");
    rig.log_answers = true;
    rig.step(rig.seat_answer());
    assert_eq!(rig.reply(long), None, "it waits on");
    let id = rig.submit(job("k"));
    assert!(matches!(rig.reply(long), Some(Ok(Answer::Leases(leases))) if leases[0].claim.job == id));
}

#[test]
fn many_kept_inputs_are_taken_in_bites_and_nothing_overtakes_them() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.log_answers = false;
    rig.advance(secs(4));
    rig.messages(session);
    for unit in 1..=600 {
        rig.tell(session, FromWorker::Beats(vec![Beat::progress(claim, unit)]));
    }
    rig.step(rig.seat_answer());
    assert_eq!(rig.manager.seat_state(), SeatState::Settling);
    assert_eq!(rig.manager.next_wakeup().map(|(_, why)| why), Some(Why::Kept));
    let settled = onward_core::message::Settlement::new(claim, success());
    rig.tell(session, FromWorker::Settle(vec![settled]));
    assert_eq!(rig.state_of(id), JobState::Running, "it has said more before");
    rig.log_answers = true;
    rig.advance(Duration::ZERO);
    assert_eq!((rig.state_of(id), rig.manager.seat_state()), (JobState::Succeeded, SeatState::Serving));
    let answers = rig.messages(session).into_iter().map(|message| match message {
        ToWorker::BeatAnswers(answers) => answers.len(),
        ToWorker::SettleAnswers(_) => 1_000,
        other => panic!("{other:?}"),
    });
    let answers: Vec<usize> = answers.collect();
    assert_eq!((answers.len(), answers.last()), (601, Some(&1_000)), "all were answered, the outcome last");
}

#[test]
fn what_is_kept_is_bounded_and_the_rest_is_refused_at_once() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.log_answers = false;
    rig.advance(secs(4));
    rig.messages(session);
    let large = Beat { checkpoint: Some(vec![0; 64 << 10].into()), ..Beat::plain(claim) };
    for _ in 0..1_200 {
        rig.tell(session, FromWorker::Beats(vec![large.clone()]));
    }
    let refused = rig.messages(session).len();
    assert!((150..250).contains(&refused), "of 75 MiB, 64 are kept: {refused} were refused");
    let pause = rig.call_open(Call::PauseQueue(name("q")));
    let small = Call::Settle(vec![onward_core::message::Settlement::new(claim, success()); 1_000]);
    let settle = rig.call_open(small);
    assert_eq!(rig.reply(settle), Some(Err(Refusal::NoLeader)));
    assert_eq!(rig.reply(pause), None, "there is room for a small one");
    rig.step(Input::SeatLost);
    assert_eq!(rig.reply(pause), Some(Err(Refusal::NoLeader)), "nothing waits for a seat that is lost");
    assert_eq!(rig.manager.kept_inputs(), 0);
}

#[test]
fn workers_that_connect_in_vain_leave_nothing_behind() {
    let mut rig = Rig::new();
    rig.log_answers = false;
    rig.advance(secs(4));
    for session in 10..1_000 {
        let session = rig.worker("w", session, 1, &["k"]);
        rig.close(session);
    }
    assert_eq!(rig.manager.kept_inputs(), 0);
    let session = rig.worker("w", 1_000, 1, &["k"]);
    rig.log_answers = true;
    rig.step(rig.seat_answer());
    assert!(matches!(&rig.messages(session)[..], [ToWorker::Welcome { .. }]));
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
        rig.step(Input::Durable { seq: Seq(rig.log.len() as u64) });
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
    let call = rig.call_open(Call::PauseQueue(name("q")));
    assert_eq!(rig.reply(call), None);
    rig.step(durable(&rig));
    assert_eq!(rig.manager.seat_state(), SeatState::Serving);
    assert_eq!(rig.reply(call), Some(Ok(Answer::Done)));
}

#[test]
fn an_answer_of_the_log_confirms_no_term_that_is_not_durable() {
    let mut rig = Rig::new();
    rig.log_answers = false;
    rig.restart(secs(1));
    rig.question = 0;
    rig.advance(secs(1));
    rig.step(Input::Wake);
    assert!(rig.question > 0, "the seat was asked for");
    rig.step(rig.seat_answer());
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed);
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
    rig.step(Input::Durable { seq: Seq(rig.log.len() as u64) });
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
fn an_append_from_before_a_short_gap_does_not_confirm_the_seat() {
    let mut rig = Rig::new();
    rig.advance(secs(5));
    rig.log_answers = false;
    rig.call_open(Call::PauseQueue(name("q")));
    // Longer than what is late, and shorter than the seat lives.
    let promised = rig.manager.next_wakeup().unwrap().0;
    rig.jump(promised.since(rig.now.mono) + ms(1_100));
    rig.step(Input::Wake);
    rig.step(durable(&rig));
    assert_eq!(rig.manager.seat_state(), SeatState::Unconfirmed);
}

// ---- a freeze, and what lies in the inbox after it

#[test]
fn a_report_that_queued_up_during_a_freeze_is_heard() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    let claim = rig.claim(session);
    rig.advance(ms(119_500));
    rig.log_answers = false;
    rig.jump(secs(60));
    // The first that the machine hears is what lay in the inbox; the log's answer can only come behind it.
    rig.step(Input::Session { session, message: FromWorker::Beats(vec![Beat::progress(claim, 1)]) });
    rig.log_answers = true;
    rig.step(rig.seat_answer());
    rig.step(Input::QueueEmptied);
    rig.advance(secs(5));
    assert_eq!(rig.endings(id), [""; 0], "its report had been in our inbox for a minute");
}

#[test]
fn nothing_is_handed_out_before_what_queued_up_was_taken() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.log_answers = false;
    rig.jump(secs(60));
    rig.step(Input::Wake);
    rig.step(rig.seat_answer());
    let submission = Submission { id: JobId::from_u128(5), draft: job("k") };
    let submitted = rig.call_open(Call::Submit(vec![submission]));
    assert!(rig.reply(submitted).is_some());
    assert_eq!((rig.manager.seat_state(), rig.assigned(session).len()), (SeatState::Settling, 0));
    rig.step(Input::QueueEmptied);
    assert_eq!(rig.assigned(session).len(), 1);
}

// ---- inputs before timers

#[test]
fn an_outcome_in_a_step_that_is_late_is_taken_before_timers_fire() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { timeout: Some(secs(60)), ..job("k") });
    let claim = rig.claim(session);
    rig.advance(ms(59_900));
    rig.jump(ms(900));
    assert_eq!((rig.succeed(session, claim), rig.state_of(id)), (Ok(()), JobState::Succeeded));
}
