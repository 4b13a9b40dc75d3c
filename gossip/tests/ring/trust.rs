//! Who is believed: keys and their rotation, replays, forgeries, garbage.

use onward_gossip::{DropReason, Input, MemberState};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::world::{World, address, keys};

#[test]
fn a_node_with_another_key_cannot_join_and_is_counted() {
    let mut world = World::new(21, 4);
    world.start(3, 1, &keys(9, None));
    world.run_s(60);
    for by in [0, 1, 2] {
        assert_eq!(world.state(by, 3), None, "seen by {by}");
        assert!(world.view(by).drops.of(DropReason::WrongKey) > 10);
    }
    assert_eq!(world.view(3).members.len(), 0);
}

#[test]
fn keys_are_rotated_without_losing_a_member() {
    let mut world = World::new(22, 5);
    world.run_s(10);
    // Known to all, used by all, alone: one node after the other, in every round.
    for next in [keys(1, Some(2)), keys(2, Some(1)), keys(2, None)] {
        for number in 0..5 {
            world.step(number, Input::Keys(&next));
            world.run_s(2);
        }
    }
    world.run_s(10);
    assert_eq!((world.strangers(), world.declared_down()), (vec![], vec![]));
    assert!((0..5).all(|number| world.view(number).drops.of(DropReason::WrongKey) == 0));
    // Whoever still has the old key alone is out.
    world.start(4, 2, &keys(1, None));
    world.run_s(20);
    assert_eq!(world.state(0, 4), Some(MemberState::Down));
}

#[test]
fn replays_change_nothing_and_are_counted() {
    let mut world = World::new(23, 3);
    world.run_s(20);
    let recorded: Vec<(usize, Vec<u8>)> = world.recorded.clone();
    let before: Vec<u64> = (0..3).map(|number| world.view(number).drops.of(DropReason::Replayed)).collect();
    assert_eq!(before, [0, 0, 0], "nothing is taken for a replay that is none");
    world.effects.clear();
    for (to, datagram) in &recorded {
        world.inject(*to, datagram);
        // And to those whom it was not meant for.
        world.inject((*to + 1) % 3, datagram);
    }
    let counts: Vec<(u64, u64)> = (0..3)
        .map(|number| {
            let drops = world.view(number).drops;
            (drops.of(DropReason::Replayed), drops.of(DropReason::Misdirected) + drops.of(DropReason::OwnAddress))
        })
        .collect();
    let replayed: u64 = counts.iter().map(|(replayed, _)| replayed).sum();
    let elsewhere: u64 = counts.iter().map(|(_, elsewhere)| elsewhere).sum();
    assert_eq!((replayed, elsewhere), (recorded.len() as u64, recorded.len() as u64));
    assert!(world.effects.is_empty(), "{:?}", world.effects);
}

/// Messages of a dead node cannot make it rise again, and neither can those of its former life.
#[test]
fn the_dead_are_not_raised_by_what_they_said() {
    let mut world = World::new(24, 3);
    world.run_s(10);
    world.kill(2);
    world.run_s(20);
    assert_eq!(world.state(0, 2), Some(MemberState::Down));
    let recorded = world.recorded.clone();
    for (to, datagram) in recorded.iter().filter(|(to, _)| *to != 2) {
        world.inject(*to, datagram);
    }
    assert_eq!((world.state(0, 2), world.state(1, 2)), (Some(MemberState::Down), Some(MemberState::Down)));
    world.start(2, 2, &keys(1, None));
    world.run_s(5);
    for (to, datagram) in recorded.iter().filter(|(to, _)| *to != 2) {
        world.inject(*to, datagram);
    }
    world.run_s(5);
    assert_eq!(world.view(0).member(address(2)).unwrap().identity.incarnation, 2);
    assert_eq!(world.strangers(), []);
}

#[test]
fn garbage_forgeries_and_giants_change_nothing_and_are_counted() {
    let mut world = World::new(25, 3);
    world.run_s(10);
    let recorded = world.recorded.clone();
    world.effects.clear();
    let before = world.view(0).drops;
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let (mut short, mut forged, mut giant) = (0, 0, 0);
    for round in 0..3_000usize {
        let datagram = match round % 3 {
            0 => {
                let mut altered = recorded[round % recorded.len()].1.clone();
                let at = random.random_range(0..altered.len());
                altered[at] ^= 1 << random.random_range(0..8);
                altered
            }
            1 => (0..random.random_range(0..1_300)).map(|_| random.random()).collect(),
            _ => vec![random.random(); random.random_range(1_301..3_000)],
        };
        match datagram.len() {
            0..=25 => short += 1,
            26..=1_300 => forged += 1,
            _ => giant += 1,
        }
        world.inject(0, &datagram);
    }
    let drops = world.view(0).drops;
    let more = |reason| drops.of(reason) - before.of(reason);
    assert_eq!(
        (more(DropReason::Garbage), more(DropReason::WrongKey), more(DropReason::Oversized)),
        (short, forged, giant)
    );
    assert!(world.effects.is_empty(), "{:?}", world.effects);
    assert_eq!(world.strangers(), []);
}

/// A sender inside has the key and sends nonsense, or a version that is not known yet.
#[test]
fn what_is_sealed_well_and_says_nonsense_is_dropped_too() {
    let mut world = World::new(26, 2);
    world.run_s(5);
    let seals = onward_gossip::datagram::Seals::new(&keys(1, None));
    let before = world.view(0).drops;
    let mut random = ChaCha8Rng::seed_from_u64(8);
    for counter in 0..2_000 {
        let length = random.random_range(1..600);
        let body: Vec<u8> = (0..length).map(|_| random.random_range(0..8)).collect();
        world.inject(0, &seals.seal(counter, |bytes| bytes.extend_from_slice(&body)));
    }
    let drops = world.view(0).drops;
    let more = |reason| drops.of(reason) - before.of(reason);
    assert_eq!(more(DropReason::Garbage) + more(DropReason::UnknownVersion) + more(DropReason::OtherRing), 2_000);
    assert!(more(DropReason::UnknownVersion) > 500 && more(DropReason::Garbage) > 100, "{drops:?}");
}
