//! How much is looked at. Cost is counted in heads that turned out to be blocked, which is all that a pick may look at in
//! vain.

use super::model::Bounds;
use super::*;

/// Cost is counted in heads that turned out to be blocked, which is all that a pick may look at in vain.
#[test]
fn a_blocked_backlog_is_looked_at_once() {
    const BACKLOG: u64 = 100_000;
    let mut world = World::new();
    let group = world.group(&["mail"], &KINDS);
    let draft = job("mail", "send", 9, &[("db", 1)]);
    let spec = Arc::new(check(draft, &Limits::default(), &JobDefaults::default()).expect("a good job"));
    let mut running = world.submit_spec(&spec);
    for _ in 0..BACKLOG {
        world.submit_spec(&spec);
    }
    assert_eq!(world.take_all(group), [running]);
    assert_eq!(world.dispatch.parks, BACKLOG, "each was seen once");

    for _ in 0..100 {
        let free = world.submit(job("mail", "cut", 0, &[]));
        assert_eq!(world.take_all(group), [free]);
        world.end(free, How::Succeed);
    }
    assert_eq!(world.dispatch.parks, BACKLOG, "nobody looks at what is parked");

    for _ in 0..100 {
        world.end(running, How::Succeed);
        let next = world.take_all(group);
        assert_eq!(next.len(), 1);
        running = next[0];
    }
    assert_eq!(world.dispatch.parks, BACKLOG, "room for one wakes one, and it goes");

    for _ in 0..100 {
        let urgent = world.submit(job("mail", "cut", 100, &[("db", 1)]));
        world.end(running, How::Succeed);
        assert_eq!(world.pick(group), Some(urgent));
        world.hand_out(urgent);
        running = urgent;
    }
    assert_eq!(world.pick(group), None);
    assert_eq!(world.dispatch.parks, BACKLOG + 1, "one was woken in vain, however often there was room");
}

/// As above, with two keys that are full by turns: all that waits for both moves as one.
#[test]
fn a_backlog_behind_two_keys_that_are_full_by_turns_is_moved_as_one() {
    const BACKLOG: usize = 10_000;
    let mut world = World::new();
    let group = world.group(&["mail"], &KINDS);
    let mut holders = ["a", "b"].map(|key| world.submit(job("mail", "send", 9, &[(key, 1)])));
    assert_eq!(world.take_all(group), holders);
    // Two kinds of two priorities are four shelves.
    let shelves = [("send", 0), ("cut", 0), ("send", 1), ("cut", 1)];
    let specs = shelves.map(|(kind, priority)| {
        let draft = job("mail", kind, priority, &[("a", 1), ("b", 1)]);
        Arc::new(check(draft, &Limits::default(), &JobDefaults::default()).expect("a good job"))
    });
    let waiting: Vec<WorkflowKey> = (0..BACKLOG).map(|at| world.submit_spec(&specs[at % 4])).collect();
    assert_eq!(world.pick(group), None);
    assert_eq!(world.dispatch.parks, BACKLOG as u64, "each was seen once");
    assert_eq!(world.dispatch.lanes.len(), shelves.len());

    for round in 0..200 {
        let parks = world.dispatch.parks;
        let (at, name) = [(0, "a"), (1, "b")][round % 2];
        world.end(holders[at], How::Succeed);
        assert_eq!(world.pick(group), None, "the other key is full");
        holders[at] = world.submit(job("mail", "send", 9, &[(name, 1)]));
        assert_eq!(world.take_all(group), [holders[at]]);
        let looked_at = world.dispatch.parks - parks;
        assert!(looked_at <= shelves.len() as u64, "{looked_at} were looked at in round {round}");
    }

    // A lane in which one is cancelled moves on with the rest.
    world.cancel_workflow(waiting[2]);
    for holder in holders {
        world.end(holder, How::Succeed);
    }
    for expected in [3, 6, 7, 10] {
        assert_eq!(world.take_all(group), [waiting[expected]], "in order");
        world.end(waiting[expected], How::Succeed);
    }
    world.check_lanes(Bounds::OnePerKey);
}
