//! Who is there: joins, deaths, freezes, partitions, restarts, and health on the way.

use core::time::Duration;

use onward_core::health::OverloadLevel;
use onward_gossip::{Effect, Input, MemberState, NodeHealth, NodeLabel, Ring, Role};

use super::world::{World, address, keys, label, manager};

#[test]
fn nodes_that_know_a_few_peers_find_all_and_accuse_nobody() {
    for (seed, nodes) in [(1, 2), (2, 3), (3, 10), (4, 40)] {
        let mut world = World::new(seed, nodes);
        world.run_s(10);
        assert_eq!(world.strangers(), [], "{nodes} nodes");
        world.run_s(120);
        assert_eq!(world.declared_down(), [""; 0]);
        assert_eq!(world.faults(), Vec::<&Effect>::new());
        assert!(world.running().iter().all(|number| world.view(*number).disagreements.is_empty()));
    }
}

#[test]
fn a_tenth_of_all_datagrams_may_be_lost() {
    let mut world = World::new(5, 10);
    world.loss_percent = 10;
    world.run_s(300);
    assert_eq!(world.strangers(), []);
    // A node that lost its indirect probes too may be suspected, and says so in time.
    assert_eq!(world.declared_down(), [""; 0]);
}

#[test]
fn joining_is_tried_until_somebody_is_there() {
    let mut world = World::new(6, 3);
    world.kill(0);
    world.kill(1);
    world.run_s(600);
    assert_eq!(world.view(2).members.len(), 0);
    // It knows nobody: the one that waits has to find it.
    world.start_with_peers(0, Ring::Datacenter, manager(0, 2), &keys(1, None), &[]);
    world.run_s(3);
    assert_eq!(world.strangers(), []);
}

#[test]
fn a_dead_node_is_down_for_all_within_ten_seconds_and_its_next_life_replaces_it() {
    let mut world = World::new(7, 5);
    world.run_s(10);
    world.kill(3);
    world.run_s(10);
    for by in [0, 1, 2, 4] {
        assert_eq!(world.state(by, 3), Some(MemberState::Down), "seen by {by}");
        assert!(world.view(by).disagreements.is_empty(), "all agree");
    }
    world.start(3, 2, &keys(1, None));
    world.run_s(5);
    assert_eq!(world.strangers(), []);
    for by in [0, 1, 2, 4] {
        assert_eq!(world.view(by).member(address(3)).unwrap().identity.incarnation, 2);
    }
}

/// A restart so quick that nobody has noticed.
#[test]
fn a_new_life_replaces_one_that_nobody_missed() {
    let mut world = World::new(8, 4);
    world.run_s(10);
    world.effects.clear();
    world.start(2, 2, &keys(1, None));
    world.run_s(3);
    assert_eq!(world.strangers(), []);
    for by in [0, 1, 3] {
        assert_eq!(world.view(by).member(address(2)).unwrap().identity.incarnation, 2, "seen by {by}");
        let replaced = world.effects.iter().filter(|(_, number, effect)| {
            *number == by && matches!(effect, Effect::Replaced { new, .. } if new.incarnation == 2)
        });
        assert_eq!(replaced.count(), 1, "told to {by}");
    }
}

#[test]
fn who_leaves_is_gone_at_once_and_nobody_calls_it_down() {
    let mut world = World::new(9, 6);
    world.run_s(10);
    world.effects.clear();
    world.leave(4);
    world.kill(4);
    world.run_s(2);
    for by in [0, 1, 2, 3, 5] {
        assert_eq!(world.state(by, 4), Some(MemberState::Left), "seen by {by}");
    }
    let downs = world.declared_down();
    assert_eq!(downs.len(), 5);
    assert!(downs.iter().all(|down| down.contains("left true")), "{downs:?}");
}

#[test]
fn a_frozen_node_is_down_accuses_nobody_when_it_wakes_and_comes_back() {
    let mut world = World::new(10, 5);
    world.run_s(10);
    world.freeze(1);
    world.run_s(30);
    for by in [0, 2, 3, 4] {
        assert_eq!(world.state(by, 1), Some(MemberState::Down), "seen by {by}");
    }
    world.effects.clear();
    world.thaw(1);
    world.run_s(10);
    let accused: Vec<String> = world.declared_down().into_iter().filter(|down| down.starts_with("1 says")).collect();
    assert_eq!(accused, [""; 0], "it was asleep, not they");
    assert_eq!(world.strangers(), []);
    assert!(world.effects.iter().any(|(_, by, effect)| *by == 1 && matches!(effect, Effect::Rejoined { .. })));
    assert_eq!(world.view(1).gaps, 1);
    assert_eq!(world.view(1).own.incarnation, 1, "the same life");
}

#[test]
fn two_halves_see_each_other_down_and_find_each_other_again() {
    let mut world = World::new(11, 6);
    world.run_s(10);
    let (one, other) = ([0, 1, 2], [3, 4, 5]);
    world.cut(&one, &other);
    world.run_s(60);
    for a in one {
        for b in other {
            assert_eq!((world.state(a, b), world.state(b, a)), (Some(MemberState::Down), Some(MemberState::Down)));
        }
    }
    assert_eq!((world.state(0, 1), world.state(3, 4)), (Some(MemberState::Alive), Some(MemberState::Alive)));
    world.heal();
    world.run_s(60);
    assert_eq!(world.strangers(), []);
}

#[test]
fn one_that_was_cut_off_from_all_comes_back() {
    let mut world = World::new(12, 3);
    world.run_s(10);
    world.cut(&[2], &[0, 1]);
    world.run_s(60);
    assert!(world.effects.iter().any(|(_, by, effect)| *by == 2 && *effect == Effect::Alone));
    world.heal();
    world.run_s(15);
    assert_eq!(world.strangers(), []);
}

/// Two nodes cannot reach each other and others reach both: by SWIM's indirect probes nobody is called dead.
#[test]
fn a_broken_path_between_two_is_no_death() {
    let mut world = World::new(13, 5);
    world.run_s(10);
    world.effects.clear();
    world.cut(&[1], &[2]);
    world.run_s(120);
    assert_eq!(world.declared_down(), [""; 0]);
    assert_eq!(world.strangers(), []);
}

#[test]
fn who_calls_whom_dead_is_seen_by_the_others() {
    let mut world = World::new(14, 4);
    world.run_s(10);
    world.kill(3);
    let mut seen = Vec::new();
    for _ in 0..200 {
        world.run(Duration::from_millis(50));
        for by in world.running() {
            let found = world.view(by).disagreements;
            seen.extend(found.into_iter().map(|one| (by, one.about.name, one.doubted_by, one.trusted_by)));
        }
    }
    assert!(world.running().iter().all(|by| world.view(*by).disagreements.is_empty()), "in the end all agree");
    assert!(seen.iter().all(|(_, about, ..)| *about == label("m3")), "{seen:?}");
    let others = |by: &usize, names: &[NodeLabel]| names.iter().any(|name| *name != label(&format!("m{by}")));
    assert!(seen.iter().any(|(by, _, doubted, _)| others(by, doubted)), "the doubt of another is seen: {seen:?}");
    assert!(seen.iter().any(|(by, _, _, trusted)| others(by, trusted)), "the trust of another is seen: {seen:?}");
}

#[test]
fn health_reaches_all_and_a_change_of_class_at_once() {
    let mut world = World::new(15, 8);
    let plain = NodeHealth { accepting: true, has_quorum: true, workers: 3, capacity: 12, ..NodeHealth::default() };
    (0..8).for_each(|number| world.health(number, plain));
    world.run_s(30);
    let known = |world: &World, by: usize, of: usize| {
        let report = world.view(by).member(address(of)).and_then(|member| member.report.clone());
        report.map(|report| report.health)
    };
    for by in 1..8 {
        assert_eq!(known(&world, by, 0), Some(plain), "seen by {by}");
    }
    let strained = NodeHealth { overload: OverloadLevel::Overloaded, capacity: 0, ..plain };
    world.health(0, strained);
    world.run_s(1);
    for by in 1..8 {
        assert_eq!(known(&world, by, 0), Some(strained), "seen by {by}");
    }
}

#[test]
fn a_node_that_is_woken_late_gives_others_more_time() {
    let mut world = World::new(16, 3);
    world.run_s(10);
    assert_eq!(world.view(0).stretch, 1);
    for _ in 0..20 {
        world.freeze(0);
        world.run(Duration::from_millis(700));
        world.thaw(0);
        world.run(Duration::from_millis(300));
    }
    assert!(world.view(0).stretch > 2, "{}", world.view(0).stretch);
    let accused: Vec<String> = world.declared_down().into_iter().filter(|down| down.starts_with("0 says")).collect();
    assert_eq!(accused, [""; 0]);
    world.run_s(60);
    assert_eq!((world.view(0).stretch, world.strangers()), (1, vec![]));
}

#[test]
fn rings_and_datacenters_do_not_mix() {
    let mut world = World::new(17, 5);
    let mut foreign = manager(3, 1);
    foreign.datacenter = Some(label("dc-b"));
    world.start_as(3, Ring::Datacenter, foreign, &keys(1, None));
    let mut gate = manager(4, 1);
    (gate.role, gate.datacenter) = (Role::Gate, None);
    world.start_as(4, Ring::Global, gate, &keys(1, None));
    world.run_s(30);
    for by in [0, 1, 2] {
        let view = world.view(by);
        let names: Vec<&str> = view.members.iter().map(|member| member.identity.name.as_str()).collect();
        assert_eq!(names.len(), 2, "{names:?} seen by {by}");
        assert!(view.drops.of(onward_gossip::DropReason::Foreign) > 0);
        assert!(view.drops.of(onward_gossip::DropReason::OtherRing) > 0);
    }
    assert_eq!((world.view(3).members.len(), world.view(4).members.len()), (0, 0));
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let mut world = World::new(seed, 7);
        world.loss_percent = 10;
        world.run_s(20);
        world.freeze(2);
        world.cut(&[0, 1], &[5, 6]);
        world.run_s(20);
        world.thaw(2);
        world.heal();
        world.kill(3);
        world.run_s(5);
        world.start(3, 2, &keys(1, None));
        world.run_s(20);
        world.step(0, Input::Leave);
        world.run_s(5);
        world.trace
    };
    assert_eq!(run(18), run(18));
    assert_ne!(run(18), run(19));
}
