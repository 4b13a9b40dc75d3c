//! The hold: no mass eviction.

use std::time::Duration;

use crate::rig::*;
use onward_core::effect::ManagerNotice;
use onward_core::health::Verdict;
use onward_core::ids::SessionId;
use onward_core::input::Poll;
use onward_core::job::JobState;
use onward_core::manager::WorkerState;
use onward_core::message::FromWorker;

fn hold_notices(rig: &Rig) -> Vec<ManagerNotice> {
    let of_hold =
        |notice: &&ManagerNotice| matches!(notice, ManagerNotice::HoldBegan { .. } | ManagerNotice::HoldEnded);
    rig.notices.iter().filter(of_hold).cloned().collect()
}

#[test]
fn more_than_half_are_held_and_half_are_not() {
    for (tracked, failing, held) in [(1, 1, true), (2, 2, true), (2, 1, false), (5, 3, true), (5, 2, false)] {
        let mut rig = Rig::new();
        let sessions: Vec<SessionId> = (0..tracked).map(|n| rig.worker(&format!("w{n}"), n + 1, 1, &["k"])).collect();
        rig.submit_all(vec![patient("k"); sessions.len()]).unwrap();
        for session in &sessions[..failing] {
            rig.close(*session);
        }
        rig.advance(secs(12));
        let (evicted, notices) = (rig.evictions().len(), hold_notices(&rig));
        let row = format!("{failing} of {tracked}");
        if held {
            assert_eq!(
                (evicted, &notices[..]),
                (0, &[ManagerNotice::HoldBegan { failing, tracked: tracked as usize }][..]),
                "{row}"
            );
            assert!(rig.worker_view("w0").held_by_hold && rig.manager.holding_eviction(), "{row}");
        } else {
            assert_eq!((evicted, &notices[..]), (failing, &[][..]), "{row}");
            assert!(!rig.manager.holding_eviction(), "{row}");
        }
    }
}

#[test]
fn a_hold_ends_when_enough_of_them_are_back_and_the_rest_are_evicted() {
    let mut rig = Rig::new();
    let sessions: Vec<SessionId> = (0..5).map(|n| rig.worker(&format!("w{n}"), n + 1, 1, &["k"])).collect();
    rig.submit_all(vec![patient("k"); 5]).unwrap();
    let kept = rig.claim(sessions[0]);
    for session in &sessions[..3] {
        rig.close(*session);
    }
    rig.advance(secs(40));
    assert_eq!(hold_notices(&rig), [ManagerNotice::HoldBegan { failing: 3, tracked: 5 }], "said once");
    rig.hello("w0", "1", 11, 1, &["k"], vec![kept]);
    assert_eq!(hold_notices(&rig), [ManagerNotice::HoldBegan { failing: 3, tracked: 5 }, ManagerNotice::HoldEnded]);
    rig.advance(secs(1));
    assert_eq!(rig.evictions(), ["w1", "w2"], "looked at again every second");
    assert_eq!(rig.worker_view("w0").held, 1);
}

#[test]
fn the_end_of_a_hold_is_said_also_when_nobody_is_left_to_evict() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.close(session);
    rig.advance(secs(30));
    rig.worker("w", 2, 1, &["k"]);
    assert_eq!(hold_notices(&rig), [ManagerNotice::HoldBegan { failing: 1, tracked: 1 }, ManagerNotice::HoldEnded]);
    assert!(!rig.manager.holding_eviction());
}

#[test]
fn under_a_hold_leases_still_run_out() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(patient("k"));
    rig.claim(session);
    rig.close(session);
    rig.advance(secs(300) - ms(1));
    assert_eq!(rig.state_of(id), JobState::Running);
    rig.advance(ms(1));
    assert_eq!((rig.state_of(id), rig.endings(id)), (JobState::Ready, vec!["lease_expired"]));
    assert!(rig.evictions().is_empty());
}

#[test]
fn a_held_worker_that_is_gone_and_holds_nothing_is_forgotten_after_fifteen_minutes() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.close(session);
    rig.advance(secs(900) - ms(1));
    assert!(rig.knows("w"));
    rig.advance(ms(1));
    assert!(!rig.knows("w"));
    // While it holds something the time does not run.
    let session = rig.worker("w", 2, 1, &["k"]);
    rig.submit(patient("k"));
    rig.claim(session);
    rig.close(session);
    rig.advance(secs(1200) - ms(1));
    assert!(rig.knows("w"));
    rig.advance(ms(1));
    assert!(!rig.knows("w"), "15 min after its lease ran out");
}

#[test]
fn polling_workers_do_not_count_for_the_hold() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    rig.claim(session);
    for n in 0..5 {
        rig.call_open(onward_core::input::Call::Poll(Rig::poll_of(&format!("h{n}"), &["x"], 1, secs(60))));
    }
    rig.close(session);
    rig.advance(secs(20));
    assert_eq!(hold_notices(&rig), [ManagerNotice::HoldBegan { failing: 1, tracked: 1 }]);
    assert!(rig.evictions().is_empty());
}

#[test]
fn silent_polling_workers_do_not_begin_a_hold() {
    let mut rig = Rig::new();
    rig.bystanders(1);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    rig.claim(session);
    for n in 0..5 {
        rig.leases(Rig::poll_of(&format!("h{n}"), &["x"], 1, secs(0)));
    }
    rig.advance(secs(60));
    assert!(matches!(rig.worker_view("h0").state, WorkerState::Away(_)));
    rig.close(session);
    rig.advance(secs(10));
    assert_eq!(rig.evictions(), ["w"]);
}

#[test]
fn a_failure_that_rolls_through_the_fleet_is_held_at_half_of_it() {
    let mut rig = Rig::new();
    let sessions: Vec<SessionId> = (0..8).map(|n| rig.worker(&format!("w{n}"), n + 1, 1, &["k"])).collect();
    rig.submit_all(vec![patient("k"); 8]).unwrap();
    for (n, session) in sessions[..7].iter().enumerate() {
        rig.close(*session);
        rig.advance(secs(11));
        assert_eq!(rig.evictions().len(), (n + 1).min(4), "those that were evicted still count");
    }
    assert_eq!(hold_notices(&rig), [ManagerNotice::HoldBegan { failing: 5, tracked: 8 }]);
}

#[test]
fn what_was_evicted_counts_for_five_minutes() {
    let mut rig = Rig::new();
    let sessions: Vec<SessionId> = (0..8).map(|n| rig.worker(&format!("w{n}"), n + 1, 1, &["k"])).collect();
    rig.submit_all(vec![patient("k"); 8]).unwrap();
    let claims: Vec<_> = sessions.iter().map(|session| rig.claim(*session)).collect();
    sessions[..2].iter().for_each(|session| rig.close(*session));
    rig.advance(secs(200));
    assert_eq!(rig.evictions(), ["w0", "w1"]);
    for n in 2..5 {
        rig.progress(sessions[n], claims[n], 1);
        rig.close(sessions[n]);
    }
    rig.advance(secs(110) - ms(1));
    assert_eq!(hold_notices(&rig), [ManagerNotice::HoldBegan { failing: 5, tracked: 8 }]);
    rig.advance(secs(1));
    assert_eq!(rig.evictions().len(), 5, "3 of 6 fail, which is half");
}

#[test]
fn an_evicted_worker_that_is_back_no_longer_counts_as_failing() {
    let mut rig = Rig::new();
    let sessions: Vec<SessionId> = (0..4).map(|n| rig.worker(&format!("w{n}"), n + 1, 1, &["k"])).collect();
    rig.submit_all(vec![patient("k"); 4]).unwrap();
    for session in &sessions[..2] {
        rig.close(*session);
    }
    rig.advance(secs(10));
    assert_eq!(rig.evictions(), ["w0", "w1"], "half of them");
    rig.close(sessions[2]);
    rig.advance(secs(20));
    assert_eq!(hold_notices(&rig), [ManagerNotice::HoldBegan { failing: 3, tracked: 4 }]);
    rig.hello("w0", "2", 11, 1, &["k"], vec![]);
    assert_eq!(hold_notices(&rig)[1..], [ManagerNotice::HoldEnded], "a new life of it is well: 2 of 4 fail");
    rig.advance(secs(1));
    assert_eq!(rig.evictions(), ["w0", "w1", "w2"]);
}

#[test]
fn a_polling_worker_that_was_evicted_does_not_count_for_the_hold() {
    let mut rig = Rig::new();
    rig.bystanders(1);
    let session = rig.worker("w", 1, 1, &["other"]);
    rig.submit(patient("other"));
    rig.http_fail_for_119_s(&Rig::poll_of("h", &["k"], 1, Duration::ZERO));
    rig.submit(patient("k"));
    rig.leases(Poll { lease: secs(600), ..Rig::poll_of("h", &["k"], 1, Duration::ZERO) });
    rig.advance(secs(31));
    assert_eq!(rig.evictions(), ["h"]);
    rig.close(session);
    rig.advance(secs(10));
    assert_eq!((rig.evictions(), hold_notices(&rig)), (vec!["h", "w"], vec![]), "one of two");
}

#[test]
fn a_stuck_polling_worker_is_evicted_while_the_others_are_held() {
    let mut rig = Rig::new();
    let session = rig.worker("s", 1, 1, &["other"]);
    rig.submit(patient("other"));
    rig.close(session);
    rig.http_fail_for_119_s(&Rig::poll_of("h", &["k"], 1, Duration::ZERO));
    assert_eq!(rig.verdict("s"), Verdict::Suspect);
    assert!(rig.manager.holding_eviction(), "one of one");
    rig.submit(patient("k"));
    rig.leases(Poll { lease: secs(600), ..Rig::poll_of("h", &["k"], 1, Duration::ZERO) });
    rig.advance(secs(1));
    assert_eq!(rig.verdict("h"), Verdict::Stuck);
    rig.advance(secs(30));
    assert_eq!(rig.evictions(), ["h"], "who cannot be asked does not count, and is not held");
}

#[test]
fn a_rolling_failure_that_begins_with_idle_workers_is_held() {
    let mut rig = Rig::new();
    let kind = |n| if n == 3 { ["k"] } else { ["other"] };
    let sessions: Vec<SessionId> = (0..5).map(|n| rig.worker(&format!("w{n}"), n, 1, &kind(n))).collect();
    let id = rig.submit(patient("k"));
    for session in &sessions[..4] {
        rig.close(*session);
        rig.advance(secs(20));
    }
    assert_eq!((rig.eviction_count(), rig.endings(id)), (0, vec![]), "four of five are gone within 80 s");
}

#[test]
fn idle_workers_that_were_lost_and_are_back_count_once() {
    let mut rig = Rig::new();
    let sessions: Vec<SessionId> = (0..5).map(|n| rig.worker(&format!("w{n}"), n, 1, &["other"])).collect();
    for session in &sessions[..2] {
        rig.close(*session);
        rig.advance(secs(11));
    }
    assert!(!rig.knows("w0") && !rig.knows("w1"), "two of five");
    rig.worker("w0", 10, 1, &["other"]);
    rig.worker("w1", 11, 1, &["other"]);
    for session in &sessions[2..4] {
        rig.close(*session);
        rig.advance(secs(11));
    }
    assert!(!rig.knows("w2") && !rig.knows("w3"), "two of five again");
}

#[test]
fn a_worker_that_takes_nothing_for_now_is_missed_when_its_session_breaks() {
    let mut rig = Rig::new();
    rig.bystanders(3);
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.tell(session, FromWorker::Capacity { slots: 1, accepting: false });
    rig.close(session);
    assert_eq!(rig.verdict("w"), Verdict::Suspect, "it did not say goodbye");
}

#[test]
fn a_fleet_that_starves_and_breaks_off_is_held() {
    let mut rig = Rig::new();
    let sessions: Vec<SessionId> = (0..4).map(|n| rig.worker(&format!("w{n}"), n, 1, &["k"])).collect();
    for session in &sessions {
        rig.tell(*session, FromWorker::Capacity { slots: 1, accepting: false });
    }
    sessions.iter().for_each(|session| rig.close(*session));
    rig.advance(secs(30));
    assert_eq!((rig.manager.workers().count(), rig.manager.holding_eviction()), (4, true), "four of four");
}

#[test]
fn a_rolling_failure_is_held_over_a_takeover() {
    let mut rig = Rig::new();
    let sessions: Vec<SessionId> = (0..5).map(|n| rig.worker(&format!("w{n}"), n, 1, &["k"])).collect();
    for session in &sessions[..2] {
        rig.silence(*session);
        rig.advance(secs(41));
    }
    assert_eq!(rig.eviction_count(), 2, "two of five");
    rig.restart(secs(1));
    let sessions: Vec<SessionId> = (2..5).map(|n| rig.worker(&format!("w{n}"), 20 + n, 1, &["k"])).collect();
    rig.silence(sessions[0]);
    rig.advance(secs(60));
    assert_eq!(rig.eviction_count(), 2, "three of five");
    rig.advance(secs(200));
    assert_eq!(rig.eviction_count(), 3, "five minutes after the first it is two of four");
}

#[test]
fn an_evicted_worker_that_has_no_session_any_more_counts_no_longer() {
    let mut rig = Rig::new();
    rig.bystanders(1);
    let sessions = [rig.worker("a", 1, 1, &["k"]), rig.worker("b", 2, 1, &["k"])];
    rig.submit_all(vec![patient("k"); 2]).unwrap();
    rig.evict(sessions[0]);
    rig.close(sessions[0]);
    // It is evicted still, and polls: of those with a session one of two is about to be evicted.
    rig.leases(Rig::poll_of("a", &["k"], 1, ms(0)));
    assert!(rig.worker_view("a").evicted);
    rig.close(sessions[1]);
    rig.advance(secs(10));
    assert_eq!(rig.evictions(), ["a", "b"]);
}

#[test]
fn one_that_was_evicted_long_before_a_takeover_counts_no_longer() {
    let mut rig = Rig::new();
    rig.bystanders(1);
    let sessions = [rig.worker("a", 1, 1, &["k"]), rig.worker("b", 2, 1, &["k"])];
    rig.submit_all(vec![patient("k"); 2]).unwrap();
    let held = rig.claim(sessions[1]);
    rig.evict(sessions[0]);
    rig.close(sessions[0]);
    rig.advance(secs(240));
    rig.restart(secs(61));
    rig.bystanders(1);
    let b = rig.hello("b", "1", 3, 1, &["k"], vec![held]);
    rig.close(b);
    rig.advance(secs(10));
    assert_eq!(rig.evictions(), ["a", "b"]);
}

#[test]
fn one_without_a_session_that_was_evicted_before_a_takeover_does_not_count() {
    for by_snapshot in [false, true] {
        let mut rig = Rig::new();
        let poll = Rig::poll_of("h", &["k"], 1, ms(0));
        rig.http_fail_for_119_s(&poll);
        rig.submit(patient("k"));
        assert_eq!(rig.leases(Poll { lease: secs(60), ..poll }).len(), 1);
        rig.advance(secs(31));
        assert_eq!(rig.evictions(), ["h"]);
        if by_snapshot {
            let records = crate::snapshot::whole(&mut rig);
            rig.restart_from(&records, secs(1));
        } else {
            rig.restart(secs(1));
        }
        rig.bystanders(1);
        let b = rig.worker("b", 3, 1, &["b"]);
        rig.submit(patient("b"));
        rig.close(b);
        rig.advance(secs(10));
        assert_eq!(rig.evictions(), ["h", "b"], "one of two");
    }
}
