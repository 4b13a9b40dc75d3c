//! What runs goes on under another leader: leases, stuck clocks, quiet sections, checkpoints, grants.

use super::*;

#[test]
fn a_running_attempt_has_its_lease_and_the_seat_ttl_to_be_heard_of() {
    let mut rig = Rig::new();
    rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(Draft { stuck_after: Some(secs(3_600)), ..job("k") });
    rig.advance(secs(50));
    rig.restart(secs(20));
    assert_eq!(running(&rig, id).lease_remaining, secs(300) + SEAT_TTL);
    assert_eq!(running(&rig, id).stuck_in, secs(300) + SEAT_TTL, "unheard of, it ends with its lease and no later");
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
