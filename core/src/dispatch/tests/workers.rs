//! Workers, their groups, and who is asked.

use super::*;

#[test]
fn workers_are_asked_in_turn_and_slow_ones_apart() {
    let mut world = World::new();
    let group = world.group(&["mail"], &KINDS);
    let dispatch = &mut world.dispatch;
    assert_eq!((dispatch.next_worker(group, Tier::Route), dispatch.has_worker(group, Tier::Route)), (None, false));
    for (worker, tier) in [(4, Tier::Route), (2, Tier::Investigate), (7, Tier::Route), (1, Tier::Route)] {
        dispatch.offer(worker_key(worker), group, tier);
    }
    let turns = |dispatch: &mut Dispatch, tier, count| -> Vec<usize> {
        (0..count).map(|_| dispatch.next_worker(group, tier).expect("the ring has workers").index()).collect()
    };
    assert_eq!(turns(dispatch, Tier::Route, 4), [4, 7, 1, 4]);
    assert_eq!(turns(dispatch, Tier::Investigate, 2), [2, 2]);
    dispatch.offer(worker_key(7), group, Tier::Route);
    assert_eq!(turns(dispatch, Tier::Route, 1), [7], "offering again does not change the turn");
    dispatch.withdraw(worker_key(1));
    dispatch.withdraw(worker_key(1));
    assert_eq!(turns(dispatch, Tier::Route, 3), [4, 7, 4]);
    dispatch.offer(worker_key(7), group, Tier::Investigate);
    assert_eq!(turns(dispatch, Tier::Investigate, 3), [2, 7, 2]);
    assert_eq!(turns(dispatch, Tier::Route, 2), [4, 4]);
    dispatch.withdraw(worker_key(4));
    assert!(!dispatch.has_worker(group, Tier::Route) && dispatch.has_worker(group, Tier::Investigate));
    dispatch.withdraw(worker_key(99));
    assert!(Tier::Route < Tier::Investigate, "whom to ask first");
}

#[test]
fn a_group_is_dirty_when_work_and_a_worker_may_have_met() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let bystander = world.group(&["bulk"], &["send"]);
    world.dispatch.offer(worker_key(2), bystander, Tier::Route);
    assert_eq!(world.dispatch.pop_dirty(), Some(bystander));

    let first = world.submit(job("mail", "send", 0, &[("db", 1)]));
    assert_eq!(world.dispatch.pop_dirty(), None, "there is no worker");
    world.dispatch.offer(worker_key(1), group, Tier::Investigate);
    assert_eq!((world.dispatch.pop_dirty(), world.dispatch.pop_dirty()), (Some(group), None), "a worker has come");
    world.dispatch.offer(worker_key(1), group, Tier::Investigate);
    assert_eq!(world.dispatch.pop_dirty(), None, "it was there before");
    assert_eq!(world.take_all(group), [first]);
    assert_eq!(world.dispatch.pop_dirty(), None, "taking work brings none");

    let second = world.submit(job("mail", "send", 0, &[("db", 1)]));
    assert_eq!((world.dispatch.pop_dirty(), world.dispatch.pop_dirty()), (Some(group), None), "work has come");
    assert_eq!(world.pick(group), None);
    world.submit(job("mail", "cut", 0, &[]));
    assert_eq!(world.dispatch.pop_dirty(), None, "nobody takes that kind");
    world.end(first, How::Succeed);
    assert_eq!((world.dispatch.pop_dirty(), world.dispatch.pop_dirty()), (Some(group), None), "a key has room");

    world.pause(&name("mail"), true);
    assert_eq!(world.dispatch.pop_dirty(), None);
    world.pause(&name("mail"), false);
    assert_eq!((world.dispatch.pop_dirty(), world.dispatch.pop_dirty()), (Some(group), None), "resumed");
    world.dispatch.withdraw(worker_key(1));
    world.cancel_workflow(second);
    world.submit(job("mail", "send", 0, &[]));
    assert_eq!(world.dispatch.pop_dirty(), None, "the worker has no room any more");
}

#[test]
fn a_group_lives_as_long_as_its_workers() {
    let mut world = World::new();
    let one = world.join(subscription(&["mail"], &KINDS), 1);
    let two = world.join(subscription(&["mail"], &KINDS), 1);
    let group = world.workers[&one].group;
    assert_eq!(world.workers[&two].group, group, "the same subscription is the same group");
    let key = world.submit(job("mail", "send", 0, &[]));
    world.freed(Some(two));
    world.leave(one);
    assert_eq!(world.pick(group), Some(key));
    world.leave(two);
    assert_eq!(world.dispatch.pop_dirty(), None, "nobody is left to be asked");
    assert_eq!(world.dispatch.blocked(key), Some(BlockReason::NoCapableWorker));
    let group = world.group(&["mail"], &["send"]);
    assert_eq!(world.take_all(group), [key]);
}

#[test]
fn a_subscription_over_the_limit_is_refused_and_leaves_nothing() {
    let mut world = World::new();
    let wide = subscription(&QUEUES, &KINDS);
    let limits = Limits { subscription_pairs: 5, ..Limits::default() };
    let met = world.dispatch.join(&wide, ClientId::default(), &limits, |_| false).expect_err("six queue_kinds");
    assert_eq!(met.limit, Limit::SubscriptionPairs);
    let limits = Limits { subscriptions: 0, ..Limits::default() };
    let met = world.dispatch.join(&wide, ClientId::default(), &limits, |_| false).expect_err("no group may be");
    assert_eq!(met.limit, Limit::Subscriptions);
    assert_eq!((world.dispatch.queue_kinds.len(), world.dispatch.groups.len()), (0, 0));
}

#[test]
fn room_is_asked_for_what_is_new() {
    let world = World::new();
    let spec = |draft| check(draft, &Limits::default(), &JobDefaults::default()).expect("a good job");
    let two = [spec(job("mail", KINDS[0], 0, &[("a", 1)])), spec(job("mail", KINDS[1], 0, &[("b", 1)]))];
    let room = |shelves, limit_keys| {
        world
            .dispatch
            .room_for(&Limits { shelves, limit_keys, ..Limits::default() }, two.iter())
            .map_err(|met| met.limit)
    };
    assert_eq!(room(2, 2), Ok(()));
    assert_eq!(room(1, 2), Err(Limit::Shelves));
    assert_eq!(room(2, 1), Err(Limit::LimitKeys));
    let same = [two[0].clone(), two[0].clone()];
    assert!(world.dispatch.room_for(&Limits { shelves: 1, limit_keys: 1, ..Limits::default() }, same.iter()).is_ok());
}
