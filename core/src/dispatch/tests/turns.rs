//! Whose turn it is: priorities, age, order, paused queues.

use super::*;

#[test]
fn waiting_raises_priority_by_one_level_per_30_s_and_by_50_at_most() {
    // How long the older one has waited, its priority, the priority of a fresh one, and whether the older goes first.
    let table = [
        (0, 0, 0, true),
        (29, 0, 1, false),
        (30, 0, 1, true),
        (59, 0, 2, false),
        (60, 0, 2, true),
        (60, 2, 0, true),
        (24 * 60 + 59, 0, 50, false),
        (25 * 60, 0, 50, true),
        (25 * 60, 0, 51, false),
        (100_000_000, 0, 51, false),
        (100_000_000, -100, -50, true),
        (100_000_000, -100, -49, false),
        (100_000_000, 100, 100, true),
    ];
    for (waited_s, priority, fresh_priority, older_first) in table {
        for fresh_kind in KINDS {
            let mut world = World::new();
            let older = world.submit(job("mail", "send", priority, &[]));
            world.now = world.now + Duration::from_secs(waited_s);
            let fresh = world.submit(job("mail", fresh_kind, fresh_priority, &[]));
            let group = world.group(&["mail"], &KINDS);
            let expected = if older_first { [older, fresh] } else { [fresh, older] };
            assert_eq!(world.take_all(group), expected, "{priority} after {waited_s} s against {fresh_priority}");
        }
    }
}

#[test]
fn the_best_priority_goes_first_and_then_the_oldest_whatever_the_kind_and_queue() {
    let mut world = World::new();
    let jobs = [("mail", "send", 0), ("bulk", "cut", 7), ("mail", "cut", 0), ("mail", "send", 7), ("bulk", "cut", -3)];
    let [plain, high, other_kind, high_later, low] =
        jobs.map(|(queue, kind, p)| world.submit(job(queue, kind, p, &[])));
    let plain_later = world.submit(job("mail", "send", 0, &[]));
    let group = world.group(&["mail", "bulk"], &KINDS);
    assert_eq!(world.take_all(group), [high, high_later, plain, other_kind, plain_later, low]);
}

#[test]
fn a_group_takes_only_what_it_subscribes_to() {
    let mut world = World::new();
    let jobs = [("mail", "send"), ("mail", "cut"), ("video", "send"), ("video", "cut")];
    let [mail_send, mail_cut, video_send, video_cut] = jobs.map(|(queue, kind)| world.submit(job(queue, kind, 0, &[])));
    let video = world.group(&["video"], &KINDS);
    let cut = world.group(&["mail", "video"], &["cut"]);
    let all = world.group(&["mail", "video"], &KINDS);
    assert_eq!(world.take_all(video), [video_send, video_cut]);
    assert_eq!(world.take_all(cut), [mail_cut]);
    assert_eq!(world.take_all(all), [mail_send]);
}

#[test]
fn what_is_handed_back_keeps_its_turn_and_what_backs_off_gets_a_new_one() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut world = World::new();
        let jobs = [0; 4].map(|_| world.submit(job("mail", "send", 0, &[])));
        let other_kind = world.submit(job("mail", "cut", 0, &[]));
        let last = world.submit(job("mail", "send", 0, &[]));
        let group = world.group(&["mail"], &KINDS);
        for key in jobs {
            assert_eq!(world.pick(group), Some(key));
            world.hand_out(key);
        }
        world.end(jobs[3], How::Backoff);
        assert_eq!(world.pick(group), Some(other_kind), "what backs off is not there");
        world.happen(Event::WorkflowDue(world.reference(jobs[3])));
        for at in order {
            world.end(jobs[at], How::Requeue);
        }
        let expected = [jobs[0], jobs[1], jobs[2], other_kind, last, jobs[3]];
        assert_eq!(world.take_all(group), expected, "handed back in order {order:?}");
    }
}

#[test]
fn pausing_hides_a_queue_and_resuming_shows_it_as_it_was() {
    let mut world = World::new();
    let (mail, group) = (name("mail"), world.group(&["mail", "bulk"], &KINDS));
    let before = world.submit(job("mail", "send", 5, &[]));
    let other = world.submit(job("bulk", "send", 0, &[]));
    world.pause(&mail, true);
    let during = world.submit(job("mail", "send", 5, &[]));
    let new_kind = world.submit(job("mail", "cut", 9, &[]));
    let late_group = world.group(&["mail"], &KINDS);
    assert_eq!(world.pick(late_group), None);
    assert_eq!(world.take_all(group), [other]);
    world.pause(&mail, true);
    assert_eq!(world.pick(group), None, "pausing twice is pausing");
    world.pause(&mail, false);
    assert_eq!(world.pick(late_group), Some(new_kind));
    assert_eq!(world.take_all(group), [new_kind, before, during]);
}

#[test]
fn a_pair_that_first_appears_while_its_queue_is_paused_is_paused() {
    let mut world = World::new();
    world.pause(&name("mail"), true);
    let by_job = world.submit(job("mail", "send", 0, &[]));
    let group = world.group(&["mail"], &KINDS);
    let by_worker = world.submit(job("mail", "cut", 0, &[]));
    assert_eq!(world.pick(group), None);
    world.pause(&name("mail"), false);
    assert_eq!(world.take_all(group), [by_job, by_worker]);
}

#[test]
fn a_ready_workflow_says_what_it_waits_for() {
    let mut world = World::new();
    let first = world.submit(job("mail", "send", 0, &[("db", 1)]));
    let second = world.submit(job("mail", "send", 0, &[("db", 1)]));
    assert_eq!(world.dispatch.blocked(second), Some(BlockReason::NoCapableWorker));
    let elsewhere = world.group(&["bulk"], &KINDS);
    assert_eq!(world.pick(elsewhere), None);
    assert_eq!(world.dispatch.blocked(second), Some(BlockReason::NoCapableWorker));
    let group = world.group(&["mail"], &["send"]);
    assert_eq!(world.dispatch.blocked(first), None, "a worker may take it");
    assert_eq!(world.take_all(group), [first]);
    assert_eq!(world.dispatch.blocked(first), None, "it waits for nothing");
    let db = name("db");
    assert_eq!(world.dispatch.blocked(second), Some(BlockReason::Limit { key: &db, running: 1, keeper: None }));
    world.pause(&name("mail"), true);
    assert_eq!(world.dispatch.blocked(second), Some(BlockReason::QueuePaused));
    world.pause(&name("mail"), false);
    world.end(first, How::Succeed);
    assert_eq!(world.dispatch.blocked(second), None);
}

#[test]
fn demand_counts_what_is_ready_and_not_parked() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send", "cut"]);
    for _ in 0..3 {
        world.submit(job("mail", "send", 0, &[("db", 1)]));
    }
    world.submit(job("video", "cut", 1, &[]));
    world.submit(job("video", "cut", 2, &[]));
    world.pause(&name("video"), true);
    world.take_all(group);
    let shown = |demand: Demand<'_>| (demand.queue.to_string(), demand.kind.to_string(), demand.ready, demand.capable);
    let demand: BTreeSet<_> = world.dispatch.demand().map(shown).collect();
    let row = |queue: &str, kind: &str, ready, capable| (queue.to_owned(), kind.to_owned(), ready, capable);
    let expected = [row("mail", "cut", 0, true), row("mail", "send", 0, true), row("video", "cut", 2, false)];
    assert_eq!(demand, BTreeSet::from(expected));
    assert!(world.dispatch.demand().all(|demand| demand.paused == (demand.queue.as_str() == "video")));
    assert_eq!(world.dispatch.groups_of(&name("mail"), &name("cut")), [group]);
    assert!(world.dispatch.groups_of(&name("video"), &name("cut")).is_empty());
    assert!(world.dispatch.groups_of(&name("unheard"), &name("of")).is_empty());
}

#[test]
fn a_pick_stops_where_its_budget_ends_and_the_next_goes_on_from_there() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let first = world.submit(job("mail", "send", 9, &[("a", 1)]));
    assert_eq!(world.take_all(group), [first]);
    for _ in 0..5 {
        world.submit(job("mail", "send", 0, &[("a", 1)]));
    }
    let free = world.submit(job("mail", "send", 0, &[]));
    for (mut budget, left, picked) in [(3, 0, None), (2, 0, None), (2, 2, Some(free)), (0, 0, None)] {
        let given = budget;
        assert_eq!(world.dispatch.pick(group, &world.state, world.now, &mut budget), picked, "with {given}");
        assert_eq!(budget, left, "of {given}");
    }
}

#[test]
fn who_comes_next_is_known_for_a_single_shelf_for_many_and_for_a_lane() {
    let mut world = World::new();
    let group = world.group(&["q"], &["a", "b", "c"]);
    let alone: Vec<_> = (0..6).map(|_| world.submit(job("q", "a", 0, &[]))).collect();
    assert_eq!(world.pick(group), Some(alone[0]));
    let behind = |world: &World, picked| world.dispatch.behind(group, picked, 4);
    assert_eq!(behind(&world, alone[0]), Some(alone[5]));
    world.hand_out(alone[0]);
    assert_eq!(behind(&world, alone[1]), None);

    // Three shelves that take turns: the second of this one comes after four others.
    let others = ["b", "c"].map(|kind| [(); 3].map(|()| world.submit(job("q", kind, 0, &[]))));
    assert_eq!(behind(&world, alone[1]), Some(alone[3]));
    assert_eq!(behind(&world, others[0][0]), Some(others[0][2]));

    let mut world = World::new();
    let group = world.group(&["q"], &["a"]);
    let lane: Vec<_> = (0..8).map(|_| world.submit(job("q", "a", 0, &[("k", 1)]))).collect();
    assert_eq!(world.take_all(group), [lane[0]]);
    world.end(lane[0], How::Succeed);
    assert_eq!(world.pick(group), Some(lane[1]));
    assert_eq!(world.dispatch.behind(group, lane[1], 4), Some(lane[7]), "behind the head of its lane");
}
