//! The wall clock steps, and timers are exact all the same.

use super::*;

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
        assert_eq!(rig.noticed(), [ManagerNotice::WallClockStepped(WallStep { by_ms })]);
        rig.advance(ms(39_999));
        assert_eq!(rig.state_of(delayed), JobState::Delayed);
        rig.advance(ms(1));
        assert_eq!(rig.state_of(delayed), JobState::Ready);
        rig.advance(ms(49_999));
        assert_eq!(rig.state_of(id), JobState::Ready);
        rig.advance(ms(1));
        assert_eq!(rig.view(id).ended_at, Some(Wall::from_ms(EPOCH_MS) + secs(100)), "in log time");
        assert_eq!(rig.noticed(), [timed_out(id)], "the step was said once");
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
            let asked = EndReport::Fail { error: "later".into(), retryable: true, delay: Some(ms(9_876)) };
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
