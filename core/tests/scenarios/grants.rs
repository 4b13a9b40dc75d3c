//! How long a grant is live, and what it holds off.

use std::time::Duration;

use crate::rig::*;
use onward_core::event::Event;
use onward_core::grant::Denial;
use onward_core::health::Verdict;
use onward_core::ids::Claim;
use onward_core::input::{Call, Poll};
use onward_core::job::Draft;
use onward_core::manager::{Manager, WorkerState};
use onward_core::message::{Beat, EndReport, ExtensionRequest, FromWorker, ToWorker};
use onward_core::settings::Settings;
use onward_core::state::LedgerFact;

#[test]
fn a_polling_workers_grant_counts_from_its_last_call_and_not_from_the_end_of_its_lease() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { stuck_after: Some(secs(20)), ..job("k") });
    let poll = Poll { lease: secs(3_600), ..Rig::poll_of("h", &["k"], 1, Duration::ZERO) };
    let claim = rig.leases(poll).remove(0).claim;
    rig.advance(secs(10));
    let answer = rig.http_ask_extension(claim, 0.0).unwrap();
    assert_eq!((answer.result, answer.remaining), (Ok(secs(30)), secs(60)), "30 s after this call, and 30 s more");
    rig.advance(secs(60) - ms(1));
    assert_eq!(rig.endings(id), [""; 0], "live until the health deadline that it set");
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
}

#[test]
fn a_polling_workers_grant_counts_from_the_end_of_its_open_poll() {
    let mut rig = Rig::new();
    rig.submit(patient("k"));
    let claim = rig.leases(Rig::poll_of("h", &["k"], 1, Duration::ZERO)).remove(0).claim;
    rig.call_open(Call::Poll(Rig::poll_of("h", &["k"], 1, secs(50))));
    let answer = rig.http_ask_extension(claim, 0.0).unwrap();
    assert_eq!((answer.result, answer.remaining), (Ok(secs(30)), secs(50 + 30 + 30)));
}

#[test]
fn grants_to_a_polling_worker_add_up_and_its_calls_take_nothing_back() {
    let mut rig = Rig::new();
    rig.submit(patient("k"));
    let claim = rig.leases(Rig::poll_of("h", &["k"], 1, Duration::ZERO)).remove(0).claim;
    let denied = rig.http_ask_extension(claim, 2.0).unwrap();
    assert!(denied.result.is_err() && denied.remaining == secs(30), "{denied:?}");
    assert_eq!(rig.http_ask_extension(claim, 0.1).unwrap().remaining, secs(60));
    assert_eq!(rig.http_ask_extension(claim, 0.2).unwrap().remaining, secs(75));
    rig.advance(secs(20));
    rig.http_beat(Beat::plain(claim)).unwrap();
    assert_eq!(rig.http_ask_extension(claim, 2.0).unwrap().remaining, secs(55));
    // Its lease of 30 s runs out, and it is not away before the time that it negotiated.
    rig.advance(secs(55) - ms(1));
    assert_eq!((rig.worker_view("h").held, rig.worker_view("h").state), (0, WorkerState::Judged));
    rig.advance(ms(1));
    assert!(matches!(rig.worker_view("h").state, WorkerState::Away(_)));
}

#[test]
fn a_reconnect_does_not_take_a_live_grant_back() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { stuck_after: Some(secs(10)), ..job("k") });
    let claim = rig.claim(session);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).remaining, secs(60));
    rig.advance(secs(1));
    let again = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.silence(again);
    rig.silence(session);
    rig.advance(secs(59) - ms(1));
    assert_ne!(rig.verdict("w"), Verdict::Suspect, "the health deadline was 60 s from the grant");
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!((rig.verdict("w"), rig.endings(id)), (Verdict::Suspect, vec!["stuck"]));
}

#[test]
fn a_polling_worker_that_opens_a_session_keeps_its_live_grant() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    rig.submit(patient("k"));
    let claim = rig.leases(Rig::poll_of("w", &["k"], 1, Duration::ZERO)).remove(0).claim;
    assert_eq!(rig.http_ask_extension(claim, 0.1).unwrap().remaining, secs(60));
    rig.advance(secs(1));
    let session = rig.hello("w", "1", 1, 1, &["k"], vec![claim]);
    rig.silence(session);
    rig.advance(secs(59) - ms(1));
    assert_ne!(rig.verdict("w"), Verdict::Suspect, "the health deadline was 60 s from the grant");
    rig.advance(ms(1));
    assert_eq!(rig.verdict("w"), Verdict::Suspect);
}

#[test]
fn a_takeover_does_not_take_a_live_grant_back() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { stuck_after: Some(secs(10)), ..job("k") });
    let claim = rig.claim(session);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).remaining, secs(60));
    rig.advance(secs(5));
    rig.restart(secs(1));
    rig.bystanders(2);
    let again = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.silence(again);
    rig.advance(secs(54) - ms(1));
    assert_ne!(rig.verdict("w"), Verdict::Suspect, "60 s after the grant, the downtime included");
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!((rig.verdict("w"), rig.endings(id)), (Verdict::Suspect, vec!["stuck"]));
}

#[test]
fn nor_one_whose_attempt_has_ended() {
    for by_snapshot in [false, true] {
        let mut rig = Rig::new();
        rig.bystanders(2);
        let session = rig.worker("w", 1, 1, &["k"]);
        rig.submit(job("k"));
        let claim = rig.claim(session);
        assert_eq!(rig.ask_extension(session, vec![claim], 0.1).remaining, secs(60));
        rig.succeed(session, claim).unwrap();
        rig.advance(secs(5));
        if by_snapshot {
            let records = crate::snapshot::whole(&mut rig);
            rig.restart_from(&records, secs(1));
        } else {
            rig.restart(secs(1));
        }
        rig.bystanders(2);
        let again = rig.hello("w", "1", 2, 1, &["k"], vec![]);
        rig.silence(again);
        rig.advance(secs(54) - ms(1));
        assert_ne!(rig.verdict("w"), Verdict::Suspect, "60 s after the grant, the downtime included");
        rig.advance(ms(1));
        assert_eq!(rig.verdict("w"), Verdict::Suspect);
    }
}

#[test]
fn another_incarnation_has_no_part_in_it() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    assert_eq!(rig.ask_extension(session, vec![], 0.1).remaining, secs(60));
    rig.restart(secs(1));
    rig.bystanders(2);
    let again = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    rig.silence(again);
    rig.advance(secs(30));
    assert_eq!(rig.verdict("w"), Verdict::Suspect);
}

#[test]
fn nor_that_of_a_polling_worker_also_from_a_snapshot() {
    for by_snapshot in [false, true] {
        let mut rig = Rig::new();
        let id = rig.submit(Draft { stuck_after: Some(secs(10)), ..job("k") });
        let poll = Poll { lease: secs(300), ..Rig::poll_of("h", &["k"], 1, Duration::ZERO) };
        let claim = rig.leases(poll).remove(0).claim;
        assert_eq!(rig.http_ask_extension(claim, 0.1).unwrap().remaining, secs(60));
        rig.advance(secs(5));
        if by_snapshot {
            let records = crate::snapshot::whole(&mut rig);
            rig.restart_from(&records, secs(1));
        } else {
            rig.restart(secs(1));
        }
        rig.http_beat(Beat::progress(claim, 0)).unwrap();
        assert_eq!(rig.http_ask_extension(claim, 2.0).unwrap().remaining, secs(54));
        rig.advance(secs(54) - ms(1));
        assert_eq!(rig.endings(id), [""; 0]);
        rig.advance(ms(1));
        assert_eq!(rig.endings(id), ["stuck"]);
    }
}

#[test]
fn a_new_life_has_no_grant() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.ask_extension(session, vec![claim], 0.1).result.unwrap();
    let new = rig.hello("w", "2", 2, 1, &["k"], vec![]);
    rig.silence(new);
    rig.silence(session);
    rig.advance(secs(30));
    assert_eq!(rig.verdict("w"), Verdict::Suspect);
}

#[test]
fn grants_start_anew_for_a_worker_that_recovers_from_suspect_while_it_is_evicted() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    for n in 1..=5 {
        rig.ask_extension(session, vec![claim], 0.1 * f64::from(n)).result.unwrap();
    }
    rig.silence(session);
    rig.advance(secs(60) + ms(58_125));
    assert_eq!(rig.evictions(), ["w"]);
    rig.answering.insert(session);
    rig.tell(session, FromWorker::Ended(vec![claim]));
    rig.advance(secs(100));
    let claim = rig.claim(session);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).result, Ok(secs(30)));
}

#[test]
fn one_that_came_back_while_the_seat_was_unconfirmed_is_not_suspect_when_it_asks() {
    let mut rig = Rig::new();
    rig.bystanders(3);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.close(session);
    assert_eq!(rig.verdict("w"), Verdict::Suspect);
    rig.advance(secs(1));
    rig.log_answers = false;
    rig.advance(secs(5));
    let again = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    let asked =
        ExtensionRequest { claims: vec![claim], reason: "gc_pause".into(), progress: 0.5, estimated_remaining: None };
    rig.tell(again, FromWorker::RequestExtension(asked));
    rig.log_answers = true;
    rig.advance(secs(2));
    let answer = |message| match message {
        ToWorker::ExtensionAnswer(answer) => Some(answer.result),
        _ => None,
    };
    let answers: Vec<_> = rig.messages(again).into_iter().filter_map(answer).collect();
    assert_eq!(answers, [Ok(secs(30))], "both were taken in one step, in their order");
}

#[test]
fn denials_are_counted_for_each_attempt_by_itself() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let jobs = [rig.submit(patient("k")), rig.submit(patient("k"))];
    let claims: Vec<Claim> = rig.assigned(session).into_iter().map(|assigned| assigned.claim).collect();
    let asked = |rig: &mut Rig, claims: &[Claim]| {
        rig.ask_extension(session, claims.to_vec(), 7.0).result.expect_err("it is malformed");
    };
    (0..15).for_each(|_| asked(&mut rig, &claims[1..]));
    // The sixteenth of the one, and the first of the other.
    asked(&mut rig, &claims);
    let times = |rig: &Rig| jobs.map(|id| rig.view(id).ledger.iter().map(|entry| entry.times).collect::<Vec<_>>());
    assert_eq!(times(&rig), [vec![1], vec![16]]);
    // The second and third of the one, and the seventeenth and eighteenth of the other.
    (0..2).for_each(|_| asked(&mut rig, &claims));
    // The fourth of the one: it stands for the two before it.
    asked(&mut rig, &claims[..1]);
    (0..46).for_each(|_| asked(&mut rig, &claims[1..]));
    assert_eq!(times(&rig), [vec![4], vec![64]]);
}

#[test]
fn one_that_is_asked_for_before_the_worker_is_heard_of_again_takes_no_live_one_back() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { stuck_after: Some(secs(10)), ..job("k") });
    let claim = rig.claim(session);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).remaining, secs(60));
    rig.restart(secs(1));
    // By its claim, while its session is not back.
    let answer = rig.http_ask_extension(claim, 0.2).unwrap();
    assert_eq!((answer.result, answer.remaining), (Ok(secs(15)), secs(59 + 15)));
    rig.restart(secs(1));
    rig.bystanders(2);
    let again = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    rig.silence(again);
    rig.advance(secs(73) - ms(1));
    assert_ne!(rig.verdict("w"), Verdict::Suspect, "the health deadline was moved by both");
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!((rig.verdict("w"), rig.endings(id)), (Verdict::Suspect, vec!["stuck"]));
}

/// Logs from before say until when an attempt is covered, and not to which incarnation it was granted.
#[test]
fn what_an_older_log_says_of_a_live_grant_is_taken_back_by_no_newer_one() {
    let mut rig = Rig::new();
    rig.bystanders(2);
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { stuck_after: Some(secs(10)), ..job("k") });
    let claim = rig.claim(session);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.1).remaining, secs(60));
    let mut older = Manager::new(Settings::default().check().expect("valid settings"), 7, rig.now);
    for stamped in &mut rig.log {
        if let Event::ExtensionDecided(decided) = &mut stamped.event {
            decided.incarnation = None;
        }
        older.apply(stamped);
    }
    rig.manager = older;
    rig.restart(secs(1));
    rig.bystanders(2);
    let session = rig.hello("w", "1", 2, 1, &["k"], vec![claim]);
    assert_eq!(rig.ask_extension(session, vec![claim], 0.2).remaining, secs(30 + 15), "less than was granted before");
    rig.restart(secs(1));
    rig.bystanders(2);
    rig.hello("w", "1", 3, 1, &["k"], vec![claim]);
    rig.advance(secs(58) - ms(1));
    assert_eq!(rig.endings(id), [""; 0]);
    rig.advance(ms(1));
    assert_eq!(rig.endings(id), ["stuck"]);
}

#[test]
fn denials_of_two_attempts_that_are_over_are_two_entries() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(patient("k"));
    for _ in 0..2 {
        let claim = rig.claim(session);
        let report = EndReport::Fail { error: "no".into(), retryable: true, delay: Some(secs(60)) };
        rig.settle(session, claim, report).unwrap();
        assert_eq!(rig.ask_extension(session, vec![claim], 0.5).result, Err(Denial::StaleAttempt));
        rig.advance(secs(60));
    }
    let ledger = rig.view(id).ledger;
    let denied = ledger.iter().filter(|entry| matches!(entry.what, LedgerFact::Denied { .. }));
    assert_eq!(denied.map(|entry| entry.times).collect::<Vec<_>>(), [1, 1]);
}
