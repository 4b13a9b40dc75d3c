//! Concurrency keys: who is parked, and who goes on when a key has room.

use super::*;

#[test]
fn a_bound_of_one_gives_order_also_over_kinds_and_hand_backs() {
    let mut world = World::new();
    let group = world.group(&["mail"], &KINDS);
    let jobs: [WorkflowKey; 6] =
        core::array::from_fn(|at| world.submit(job("mail", KINDS[at % 2], 0, &[("account", 1)])));
    for (at, key) in jobs.into_iter().enumerate() {
        assert_eq!(world.take_all(group), [key], "number {at}");
        world.end(key, How::Requeue);
        assert_eq!(world.take_all(group), [key], "number {at} again");
        world.end(key, How::Succeed);
    }
}

#[test]
fn as_many_run_as_the_bound_says_and_others_pass_by() {
    let mut world = World::new();
    let group = world.group(&["mail"], &KINDS);
    let bounded: Vec<WorkflowKey> = (0..5).map(|_| world.submit(job("mail", "send", 9, &[("db", 2)]))).collect();
    let free = world.submit(job("mail", "send", 0, &[]));
    assert_eq!(world.take_all(group), [bounded[0], bounded[1], free]);
    world.end(bounded[1], How::Succeed);
    assert_eq!(world.take_all(group), [bounded[2]]);
    world.cancel_workflow(bounded[0]);
    assert_eq!(world.pick(group), None, "a cancel that nobody confirmed frees nothing");
    world.end(bounded[0], How::Requeue);
    world.end(bounded[2], How::Backoff);
    assert_eq!(world.take_all(group), [bounded[3], bounded[4]]);
}

#[test]
fn a_workflow_with_two_keys_is_woken_by_the_second_and_hands_its_turn_on() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let [a, b] = ["a", "b"].map(|key| world.submit(job("mail", "send", 9, &[(key, 1)])));
    let both = world.submit(job("mail", "send", 0, &[("a", 1), ("b", 1)]));
    let only_a = world.submit(job("mail", "send", 0, &[("a", 1)]));
    assert_eq!(world.take_all(group), [a, b]);
    world.end(a, How::Succeed);
    assert_eq!(world.take_all(group), [only_a], "the room that the first cannot use goes to the next");
    world.end(b, How::Succeed);
    assert_eq!(world.pick(group), None, "the first of its keys is full again");
    world.end(only_a, How::Succeed);
    assert_eq!(world.take_all(group), [both]);
}

#[test]
fn turns_are_kept_over_different_keys() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let [a, b] = ["a", "b"].map(|key| world.submit(job("mail", "send", 9, &[(key, 1)])));
    let waiting = ["a", "b", "b"].map(|key| world.submit(job("mail", "send", 0, &[(key, 1)])));
    assert_eq!(world.take_all(group), [a, b]);
    world.end(a, How::Succeed);
    world.end(b, How::Succeed);
    assert_eq!(world.pick(group), Some(waiting[0]), "the key that had room last does not matter");
    world.hand_out(waiting[1]);
    world.end(waiting[1], How::Succeed);
    assert_eq!(world.pick(group), Some(waiting[0]), "nor how often the other had room since");
}

#[test]
fn what_comes_back_to_a_full_key_is_woken_before_the_later_one_that_was_let_go() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let first = world.submit(job("mail", "send", 0, &[("a", 1)]));
    let free = world.submit(job("mail", "send", 0, &[]));
    let later = world.submit(job("mail", "send", 0, &[("a", 1)]));
    assert_eq!(world.take_all(group), [first, free]);
    world.end(first, How::Requeue);
    world.end(free, How::Requeue);
    let urgent = world.submit(job("mail", "send", 9, &[("a", 1)]));
    assert_eq!(world.pick(group), Some(urgent));
    world.hand_out(urgent);
    assert_eq!(world.pick(group), Some(free), "which parks the first, and does not look at the later one");
    world.end(urgent, How::Succeed);
    assert_eq!(world.take_all(group), [first, free]);
    world.end(first, How::Succeed);
    assert_eq!(world.take_all(group), [later]);
}

#[test]
fn cancelling_what_was_let_go_or_is_parked_wakes_the_next() {
    for at in 0..2 {
        let mut world = World::new();
        let group = world.group(&["mail"], &["send"]);
        let jobs = [0; 4].map(|_| world.submit(job("mail", "send", 0, &[("a", 1)])));
        assert_eq!(world.take_all(group), [jobs[0]]);
        if at == 0 {
            world.end(jobs[0], How::Succeed);
            world.cancel_workflow(jobs[1]);
        } else {
            world.cancel_workflow(jobs[1]);
            world.end(jobs[0], How::Succeed);
        }
        assert_eq!(world.take_all(group), [jobs[2]]);
        world.end(jobs[2], How::Succeed);
        assert_eq!(world.take_all(group), [jobs[3]]);
    }
}

#[test]
fn behind_a_lower_bound_a_higher_one_keeps_its_turn_until_the_lower_is_gone() {
    for cancelled in [false, true] {
        let mut world = World::new();
        let group = world.group(&["mail"], &["send"]);
        let running = [0; 3].map(|_| world.submit(job("mail", "send", 0, &[("db", 3)])));
        let low = world.submit(job("mail", "send", 0, &[("db", 1)]));
        let high = world.submit(job("mail", "send", 0, &[("db", 3)]));
        assert_eq!(world.take_all(group), running);
        world.end(running[0], How::Succeed);
        assert_eq!(world.pick(group), None, "the higher bound has room, and it is not its turn");
        if cancelled {
            world.cancel_workflow(low);
            assert_eq!(world.pick(group), Some(high), "the one in front is gone");
        } else {
            world.end(running[1], How::Succeed);
            world.end(running[2], How::Succeed);
            assert_eq!(world.take_all(group), [low], "beside it nobody else may hold the key");
            world.end(low, How::Succeed);
            assert_eq!(world.take_all(group), [high]);
        }
    }
}

#[test]
fn a_lane_that_moves_to_another_key_no_longer_keeps_others_waiting() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let running = [("a", 3), ("a", 3), ("a", 3), ("b", 1)].map(|limit| world.submit(job("mail", "send", 9, &[limit])));
    let low = world.submit(job("mail", "send", 0, &[("a", 1), ("b", 1)]));
    let high = world.submit(job("mail", "send", 0, &[("a", 3)]));
    assert_eq!(world.take_all(group), running);
    world.end(running[0], How::Succeed);
    assert_eq!(world.pick(group), None, "the higher bound has room, and it is not its turn");
    world.end(running[1], How::Succeed);
    world.end(running[2], How::Succeed);
    assert_eq!(world.take_all(group), [high], "what is in front waits for another key");
    world.end(running[3], How::Succeed);
    world.end(high, How::Succeed);
    assert_eq!(world.take_all(group), [low]);
}

#[test]
fn another_of_the_same_limits_takes_its_lane_along() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let running = [("a", 3), ("a", 3), ("a", 3)].map(|limit| world.submit(job("mail", "send", 9, &[limit])));
    let low = world.submit(job("mail", "send", 0, &[("b", 1), ("a", 1)]));
    let high = world.submit(job("mail", "send", 0, &[("a", 3)]));
    assert_eq!(world.take_all(group), running, "which parks both under the one key");
    let other = world.submit(job("mail", "send", 9, &[("b", 1)]));
    assert_eq!(world.take_all(group), [other]);
    world.end(running[0], How::Succeed);
    assert_eq!(world.pick(group), None, "the higher bound has room, and it is not its turn");
    let second = world.submit(job("mail", "send", 0, &[("b", 1), ("a", 1)]));
    assert_eq!(world.take_all(group), [high], "the lower one is found to wait for the other key");
    let b = name("b");
    for key in [low, second] {
        assert_eq!(world.dispatch.blocked(key), Some(BlockReason::Limit { key: &b, running: 1, keeper: None }));
    }
    for key in [running[1], running[2], high, other] {
        world.end(key, How::Succeed);
    }
    assert_eq!(world.take_all(group), [low]);
    world.end(low, How::Succeed);
    assert_eq!(world.take_all(group), [second]);
}
