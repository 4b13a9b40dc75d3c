//! The real redb on a simulated disk that loses power, fails and fills up.
//!
//! `ONWARD_SOAK_CASES` sets the number of cases. A case is its seed: `ONWARD_POWER_SEED=n` runs one alone.

#![allow(clippy::print_stdout, reason = "the seed of a case that fails must be seen")]
#![allow(dead_code, reason = "the samples serve several tests")]

#[path = "power_loss/disk.rs"]
mod disk;
mod samples;
#[path = "power_loss/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use disk::{Trouble, Which};
use world::{World, Wrong};

const DEFAULT_CASES: u64 = 600;
/// A life is cut short within this many writes and syncs.
const OPS: u64 = 120;
const LIVES: u64 = 3;
const ACTS: u64 = 40;

/// Seeds that found something: a chunk that was sent again and believed to be stored, though the disk had the first one.
const FAILED_ONCE: [u64; 1] = [1949];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs the case of every seed, or of fewer where a case takes long, and shows how often each thing occurred.
fn every_case(one_in: usize, case: impl Fn(&mut World) -> Result<(), Wrong>) -> (u64, BTreeMap<&'static str, u64>) {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    let seeds: Vec<u64> = match number("ONWARD_POWER_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("ONWARD_SOAK_CASES").unwrap_or(DEFAULT_CASES)).step_by(one_in).chain(FAILED_ONCE).collect(),
    };
    for &seed in &seeds {
        // Shown only if the case fails.
        println!("seed {seed}");
        let mut world = World::new(seed);
        if let Err(wrong) = case(&mut world) {
            panic!("seed {seed}: {wrong}");
        }
        for what in world.seen.keys() {
            *seen.entry(what).or_default() += 1;
        }
    }
    (seeds.len() as u64, seen)
}

fn occurred(cases: u64, seen: &BTreeMap<&'static str, u64>, expected: &[&'static str]) {
    let rare: Vec<_> = expected.iter().filter(|what| seen.get(*what).copied().unwrap_or(0) * 100 < cases).collect();
    assert!(cases < 20 || rare.is_empty(), "in less than 1 % of {cases} cases: {rare:?}; {seen:?}");
}

/// Lives that end by a loss of power at a random write or sync.
fn lives(world: &mut World) -> Result<(), Wrong> {
    for _ in 0..LIVES {
        let cut = world.disk.ops() + 1 + world.draw.below(OPS);
        world.disk.set_trouble(Some(Trouble::CutAt(cut)));
        // A cut may also come while the log is opened: then this life is over already.
        for _ in 0..ACTS {
            if !world.act()? || world.disk.ops() > cut {
                break;
            }
        }
        world.lose_power()?;
    }
    world.goes_on()
}

#[test]
fn what_was_acknowledged_survives_a_loss_of_power() {
    let (cases, seen) = every_case(1, lives);
    let expected = [
        "acknowledged",
        "in doubt",
        "doubt: stored",
        "doubt: not stored",
        "snapshot",
        "truncated",
        "blobs",
        "blobs dropped",
        "cut while opening",
        "opened again",
        "journalled",
        "first half begun again",
        "second half begun",
        "moved for room",
        "with blobs",
        "too large for a half",
    ];
    occurred(cases, &seen, &expected);
}

/// The same on a disk of which nothing is known but that a byte is written or not.
#[test]
fn what_was_acknowledged_survives_a_loss_of_power_that_tears_writes_anywhere() {
    let (cases, seen) = every_case(2, |world| {
        world.disk.tear_anywhere();
        lives(world)
    });
    occurred(cases, &seen, &["acknowledged", "doubt: not stored", "first half begun again", "second half begun"]);
}

/// The same on a disk that answers a sync without doing it. If that goes unnoticed, the test above shows nothing.
#[test]
fn a_disk_that_lies_about_syncs_is_found_out() {
    // What is in redb survives without the journal's syncs.
    for (which, per_cent) in [(Which::Redb, 90), (Which::Journal, 60)] {
        let cases = 50;
        let found_out = (0..cases).filter(|&seed| {
            let mut world = World::new(seed);
            world.disk.lie(which);
            // A file that lacks half of its pages may also make redb itself give up, then or when it is closed.
            let lived = catch_unwind(AssertUnwindSafe(|| lives(&mut world))).map_or(true, |result| result.is_err());
            catch_unwind(AssertUnwindSafe(|| drop(world))).is_err() || lived
        });
        let found_out = found_out.count();
        assert!(
            found_out * 100 > cases as usize * per_cent,
            "{which:?}: loss was seen in {found_out} of {cases} cases"
        );
    }
}

/// Lives on a disk that fails at a random operation, or from then on.
fn failing_lives(world: &mut World) -> Result<(), Wrong> {
    // As Linux does: what a sync failed to write is shown from the cache, and the next sync succeeds.
    for which in [Which::Redb, Which::Journal] {
        world.disk.forget_failed_syncs(which);
    }
    for _ in 0..LIVES {
        let at = world.disk.ops() + 1 + world.draw.below(OPS);
        let once = world.draw.chance(2);
        world.disk.set_trouble(Some(if once { Trouble::FailAt(at) } else { Trouble::FailFrom(at) }));
        for _ in 0..ACTS {
            if !world.act()? {
                break;
            }
        }
        world.ask_again()?;
        // The disk is well again. The same handle goes on, and what it says then survives a loss of power.
        world.disk.set_trouble(None);
        if world.draw.chance(2) {
            world.ask_again()?;
        }
        // Or another process does, which knows nothing of what failed.
        if world.draw.chance(2) {
            world.reopen()?
        } else {
            world.check()?
        }
        // It goes on for a while, or fails again before the power is lost.
        if world.draw.chance(2) {
            for _ in 0..ACTS {
                if !world.act()? {
                    return Err("a disk that is well does not fail".into());
                }
            }
            continue;
        }
        world.lose_power()?;
    }
    world.goes_on()
}

#[test]
fn a_disk_that_fails_and_tears_writes_anywhere_loses_nothing_and_recovers() {
    let (cases, seen) = every_case(2, |world| {
        world.disk.tear_anywhere();
        failing_lives(world)
    });
    occurred(cases, &seen, &["acknowledged", "failed", "in doubt", "moved for room"]);
}

#[test]
fn a_disk_that_fails_loses_nothing_and_recovers() {
    let (cases, seen) = every_case(1, failing_lives);
    occurred(
        cases,
        &seen,
        &["acknowledged", "failed", "in doubt", "asked again: stored", "asked again: still in doubt", "moved for room"],
    );
}

#[test]
fn a_full_disk_is_named_loses_nothing_and_recovers_once_there_is_room() {
    let (cases, seen) = every_case(20, |world| {
        world.disk.set_trouble(Some(Trouble::FullAbove(world.disk.size())));
        for _ in 0..400 {
            if !world.act()? {
                break;
            }
        }
        world.disk.set_trouble(None);
        world.check()?;
        world.lose_power()?;
        world.goes_on()
    });
    occurred(cases, &seen, &["acknowledged", "full"]);
    assert_eq!(seen.get("failed"), None, "a full disk is said to be full, and not just to fail");
}
