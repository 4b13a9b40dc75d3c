//! Workers' machines against a real manager's, over connections that are slow, cut and half open, with a log that stops
//! answering and managers that die. First everything may break and nothing may be wrong; then the world heals and
//! everything must end.
//!
//! What they say to each other passes through the conversions of the wire. `ONWARD_SOAK_CASES` sets the number of cases.
//! A case is its seed: `ONWARD_WORLD_SEED=n` runs one alone.

#![allow(clippy::print_stdout, reason = "the seed of a case that fails must be seen")]

mod handler;
mod line;
mod world;

use std::collections::BTreeMap;

use world::World;

const DEFAULT_CASES: u64 = 300;

/// Events that must occur in at least one case of a hundred; else the world is too kind to prove anything.
const EXPECTED: &[&str] = &[
    "takeover",
    "worker crashed",
    "kept an attempt over a reconnect",
    "lease lost here",
    "outcome refused",
    "outcome repeated",
    "success after a cancel",
    "cancel",
    "hung up",
    "rejected",
    "quiet spent",
    "no leader",
    "extension granted",
    "extension unanswered",
    "drained while working",
    "abandoned",
    "goodbye",
    "left unanswered",
    "starved",
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn nothing_goes_wrong_and_everything_ends() {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    let seeds: Vec<u64> = match number("ONWARD_WORLD_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("ONWARD_SOAK_CASES").unwrap_or(DEFAULT_CASES)).collect(),
    };
    for seed in &seeds {
        // Shown only if the case fails.
        println!("seed {seed}");
        let mut world = World::new(*seed);
        world.break_things();
        world.heal_and_finish();
        for what in world.seen {
            *seen.entry(what).or_default() += 1;
        }
    }
    if seeds.len() < 100 {
        return;
    }
    let rare: Vec<_> = EXPECTED
        .iter()
        .map(|what| (*what, seen.get(what).copied().unwrap_or(0)))
        .filter(|(_, cases)| cases * 100 < seeds.len() as u64)
        .collect();
    assert!(rare.is_empty(), "these occur in less than 1 % of {} cases: {rare:?}", seeds.len());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut world = World::new(seed);
        world.break_things();
        world.heal_and_finish();
        world.trace()
    };
    for seed in 0..3 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
