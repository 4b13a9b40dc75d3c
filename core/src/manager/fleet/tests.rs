use core::time::Duration;

use super::*;
use crate::beat::AttemptClock;
use crate::health::{HttpLiveness, ProgressRule};
use crate::list::Links;
use crate::settings::Settings;
use crate::state::WorkflowKey;

const LEASE: Duration = Duration::from_secs(30);

fn at(seconds: u64) -> Awake {
    Awake::from_ms(seconds * 1_000)
}

fn rule() -> ProgressRule {
    Settings::default().check().expect("valid settings").progress
}

fn attempt(number: u32) -> AttemptKey {
    AttemptKey::at(number).expect("from one on")
}

fn live(worker: WorkerKey, now: Awake) -> LiveAttempt {
    LiveAttempt {
        clock: AttemptClock::start(now, LEASE),
        workflow: WorkflowKey::FIRST,
        worker,
        lease: LEASE,
        stuck_after: Duration::from_secs(120),
        is_left_to_gate: false,
        require_progress: false,
        motion: Motion::Young,
        counted_stuck_at: None,
        timer: None,
        armed: Awake::MAX,
        marked_at: now,
        notes: Default::default(),
        note: None,
        links: Links::UNLINKED,
    }
}

fn fleet_of_one(link: WorkerTransport) -> (Fleet, WorkerKey) {
    let mut fleet = Fleet::new(7);
    let id = WorkerId::new("w1").expect("valid");
    let incarnation = Incarnation::new("first").expect("valid");
    let key = fleet.insert(FleetWorker::new(id, incarnation, link, at(0)));
    (fleet, key)
}

fn polling() -> WorkerTransport {
    WorkerTransport::Http { liveness: HttpLiveness::first_called(at(0), Awake::ZERO), poll: None }
}

fn holds_until(fleet: &Fleet, key: WorkerKey) -> Awake {
    let WorkerTransport::Http { liveness, .. } = &fleet.worker(key).link else { panic!("it polls") };
    liveness.holds_until()
}

#[test]
fn what_a_worker_holds_is_counted_and_listed_the_newest_first() {
    let (mut fleet, worker) = fleet_of_one(WorkerTransport::Expected);
    fleet.begin_attempt(attempt(1), live(worker, at(0)), &rule(), at(0));
    fleet.begin_attempt(attempt(2), live(worker, at(1)), &rule(), at(1));
    assert_eq!(fleet.held_by(worker), [attempt(2), attempt(1)]);
    assert_eq!((fleet.worker(worker).held(), fleet.holder(attempt(1))), (2, Some(worker)));
    assert!(fleet.finish_attempt(attempt(2), at(5)).is_some());
    assert!(fleet.finish_attempt(attempt(2), at(5)).is_none(), "it ends once");
    assert_eq!(fleet.held_by(worker), [attempt(1)]);
    assert!(fleet.finish_attempt(attempt(1), at(9)).is_some());
    assert_eq!((fleet.worker(worker).held(), fleet.worker(worker).empty_since()), (0, at(9)));
}

#[test]
fn the_leases_of_a_polling_worker_last_until_the_latest_of_them_ends() {
    let (mut fleet, worker) = fleet_of_one(polling());
    fleet.begin_attempt(attempt(1), live(worker, at(0)), &rule(), at(0));
    fleet.begin_attempt(attempt(2), live(worker, at(10)), &rule(), at(10));
    assert_eq!(holds_until(&fleet, worker), at(40));
    fleet.finish_attempt(attempt(2), at(12));
    assert_eq!(holds_until(&fleet, worker), at(30), "the other's");
    assert_eq!(fleet.pop_touched(), Some(worker), "it lives less long than it would have");
    fleet.finish_attempt(attempt(1), at(13));
    assert_eq!(holds_until(&fleet, worker), at(13));
}

#[test]
fn how_attempts_move_is_counted_by_their_worker() {
    let (mut fleet, worker) = fleet_of_one(polling());
    fleet.begin_attempt(attempt(1), live(worker, at(0)), &rule(), at(0));
    fleet.begin_attempt(attempt(2), live(worker, at(0)), &rule(), at(0));
    let counts = |fleet: &Fleet| {
        let work = fleet.worker(worker).work.as_ref().expect("it holds something");
        (work.moving, work.unmoving.len())
    };
    assert_eq!(counts(&fleet), (0, 0), "young ones say nothing");
    fleet.set_motion(attempt(1), Motion::Moving);
    fleet.set_motion(attempt(2), Motion::Unmoving);
    fleet.set_motion(attempt(2), Motion::Unmoving);
    assert_eq!(counts(&fleet), (1, 1));
    fleet.set_motion(attempt(2), Motion::Moving);
    assert_eq!(counts(&fleet), (2, 0));
    fleet.finish_attempt(attempt(1), at(1));
    assert_eq!(counts(&fleet), (1, 0));
}

#[test]
fn a_worker_is_judged_once_a_step_and_not_when_it_has_gone() {
    let (mut fleet, worker) = fleet_of_one(polling());
    fleet.touch(worker);
    fleet.touch(worker);
    assert_eq!((fleet.pop_touched(), fleet.pop_touched()), (Some(worker), None));
    fleet.touch(worker);
    fleet.remove(worker);
    assert_eq!(fleet.pop_touched(), None);
    fleet.touch(worker);
    assert_eq!(fleet.pop_touched(), None, "nobody is touched who is not there");
}

#[test]
fn workers_are_looked_after_in_the_order_in_which_their_timers_fired() {
    let (mut fleet, first) = fleet_of_one(polling());
    let other = WorkerId::new("w2").expect("valid");
    let incarnation = Incarnation::new("first").expect("valid");
    let second = fleet.insert(FleetWorker::new(other, incarnation, polling(), at(0)));
    fleet.note_timer_fired(second);
    fleet.note_timer_fired(first);
    assert_eq!((fleet.pop_due(), fleet.pop_due(), fleet.pop_due()), (Some(second), Some(first), None));
}

#[test]
fn one_that_has_gone_counts_nowhere() {
    let (mut fleet, worker) = fleet_of_one(polling());
    fleet.set_away(worker, true);
    fleet.set_away(worker, true);
    fleet.recount(worker, HoldStanding::Failing);
    assert_eq!((fleet.len(), fleet.present()), (1, 0));
    assert!(fleet.hold_mut().withhold(at(0)).0, "all that there are fail");
    fleet.remove(worker);
    assert_eq!((fleet.len(), fleet.present()), (0, 0));
    assert!(!fleet.hold().is_on(at(0)));
}

#[test]
#[should_panic(expected = "a worker that holds something is not forgotten")]
fn a_worker_that_holds_something_is_not_taken_out() {
    let (mut fleet, worker) = fleet_of_one(polling());
    fleet.begin_attempt(attempt(1), live(worker, at(0)), &rule(), at(0));
    fleet.remove(worker);
}
