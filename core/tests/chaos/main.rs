//! A manager in a hostile world: random inputs, messages that are lost, doubled and late, a log that stops answering,
//! freezes, crashes and takeovers. First everything may break and nothing may be wrong; then the world heals and
//! everything must end.
//!
//! `ONWARD_SOAK_CASES` sets the number of cases. A case is its seed: `ONWARD_CHAOS_SEED=n` runs one alone.

#![allow(clippy::print_stdout, reason = "the seed of a case that fails must be seen")]

mod checks;
#[path = "../coverage/mod.rs"]
mod coverage;
#[path = "../due/mod.rs"]
mod due;
#[path = "../twins/mod.rs"]
mod twins;
mod world;

use std::collections::BTreeMap;

use world::World;

/// Seeds that failed once.
const REGRESSIONS: &[u64] = &[];

const DEFAULT_CASES: u64 = 300;
const STEPS: u32 = 160;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.act();
    }
    world.heal_and_finish();
    world
}

#[test]
fn nothing_goes_wrong_and_everything_ends() {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    let seeds: Vec<u64> = match number("ONWARD_CHAOS_SEED") {
        Some(seed) => vec![seed],
        None => REGRESSIONS.iter().copied().chain(0..number("ONWARD_SOAK_CASES").unwrap_or(DEFAULT_CASES)).collect(),
    };
    for seed in &seeds {
        // Shown only if the case fails.
        println!("seed {seed}");
        for what in run(*seed).seen {
            *seen.entry(what).or_default() += 1;
        }
    }
    if seeds.len() < 100 {
        return;
    }
    let rare: Vec<_> = world::expected()
        .map(|what| (what, seen.get(what).copied().unwrap_or(0)))
        .filter(|(_, cases)| cases * 100 < seeds.len() as u64)
        .collect();
    assert!(rare.is_empty(), "these occur in less than 1 % of {} cases: {rare:?}", seeds.len());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..5 {
        let (first, second) = (run(seed), run(seed));
        assert_eq!(first.trace(), second.trace(), "seed {seed}");
    }
}
