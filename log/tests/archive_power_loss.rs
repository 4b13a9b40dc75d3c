//! The archive on a simulated disk that loses power, fails and fills up. Seeds as in `power_loss.rs`.

#![allow(clippy::print_stdout, reason = "the seed of a case that fails must be seen")]
#![allow(dead_code, reason = "the samples and the disk serve several tests")]

#[path = "power_loss/disk.rs"]
mod disk;
#[path = "archive/model.rs"]
mod model;
mod samples;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use onward_log::{EmbeddedArchive, Error, LogChange};

use disk::{Disk, Trouble, Which};
use model::Model;
use samples::Draw;

const DEFAULT_CASES: u64 = 200;
const OPS: u64 = 150;
const ACTS: u64 = 60;

struct World {
    draw: Draw,
    disk: Disk,
    archive: Option<EmbeddedArchive>,
    /// The archive as it was acknowledged, and as it may be too.
    model: Model,
    or: Option<Model>,
    seen: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let (disk, model) = (Disk::new(), Model::default());
        let archive = Some(open(&disk).expect("an honest disk so far"));
        Self { draw: Draw::new(seed), disk, archive, model, or: None, seen: BTreeMap::new() }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// `false`: it failed.
    fn act(&mut self) -> Result<bool, String> {
        let change = self.model.draw(&mut self.draw);
        let mut after = self.model.clone();
        let expected = after.apply(&change);
        match change.carry_out(self.archive.as_ref().expect("it is open")) {
            Ok(removed) if removed == expected => {
                self.model = after;
                self.saw("acknowledged");
                return Ok(true);
            }
            Ok(removed) => return Err(format!("{removed} jobs went, and not {expected}")),
            Err(error) if error.changed() == LogChange::Maybe => {
                self.saw("in doubt");
                self.or = Some(after);
            }
            Err(Error::Full { .. }) => self.saw("full"),
            Err(Error::Io { .. }) => self.saw("failed"),
            Err(error) => return Err(format!("a disk that fails is no reason for this: {error}")),
        }
        Ok(false)
    }

    fn lose_power(&mut self) -> Result<(), String> {
        loop {
            self.archive = None;
            self.disk.lose_power(&mut self.draw);
            match open(&self.disk) {
                Ok(archive) => self.archive = Some(archive),
                Err(_) if self.disk.is_off() => continue,
                Err(error) => return Err(format!("the archive cannot be opened: {error}")),
            }
            return self.check();
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let archive = self.archive.as_ref().expect("it is open");
        let as_before = self.model.compare(archive);
        let Some(or) = self.or.take() else { return as_before };
        if as_before.is_err() {
            or.compare(archive)?;
            self.model = or;
            self.saw("doubt: stored");
        } else {
            self.saw("doubt: not stored");
        }
        Ok(())
    }
}

fn open(disk: &Disk) -> Result<EmbeddedArchive, Error> {
    let disk = disk.clone();
    EmbeddedArchive::on_storage(move || Ok(disk.clone()))
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn every_case(one_in: usize, expected: &[&'static str], case: impl Fn(&mut World) -> Result<(), String>) {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    let seeds: Vec<u64> = match number("ONWARD_POWER_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("ONWARD_SOAK_CASES").unwrap_or(DEFAULT_CASES)).step_by(one_in).collect(),
    };
    for &seed in &seeds {
        println!("seed {seed}");
        let mut world = World::new(seed);
        if let Err(wrong) = case(&mut world) {
            panic!("seed {seed}: {wrong}");
        }
        world.seen.keys().for_each(|what| *seen.entry(what).or_default() += 1);
    }
    let missing: Vec<_> = expected.iter().filter(|what| !seen.contains_key(*what)).collect();
    assert!(seeds.len() < 20 || missing.is_empty(), "never: {missing:?}; {seen:?}");
}

fn lives(world: &mut World) -> Result<(), String> {
    for _ in 0..3 {
        let cut = world.disk.ops() + 1 + world.draw.below(OPS);
        world.disk.set_trouble(Some(Trouble::CutAt(cut)));
        for _ in 0..ACTS {
            if !world.act()? || world.disk.ops() > cut {
                break;
            }
        }
        world.lose_power()?;
    }
    for _ in 0..3 {
        if !world.act()? {
            return Err("it does not go on".to_owned());
        }
    }
    world.check()
}

#[test]
fn what_was_acknowledged_survives_a_loss_of_power() {
    every_case(1, &["acknowledged", "in doubt", "doubt: stored", "doubt: not stored"], lives);
}

/// A lie about syncs is found out, as for the log: if it goes unnoticed, the test above shows nothing.
#[test]
fn a_disk_that_lies_about_syncs_is_found_out() {
    let found_out = (0..50).filter(|&seed| {
        // A file that lacks half of its pages may also make redb itself give up, at the latest when it is closed.
        let life = move || {
            let mut world = World::new(seed);
            world.disk.lie(Which::Redb);
            lives(&mut world)
        };
        catch_unwind(AssertUnwindSafe(life)).map_or(true, |result| result.is_err())
    });
    let found_out = found_out.count();
    assert!(found_out > 45, "loss was seen in {found_out} of 50 cases only");
}

#[test]
fn a_disk_that_fails_loses_nothing_and_recovers() {
    every_case(1, &["acknowledged", "failed", "in doubt"], |world| {
        for _ in 0..3 {
            let at = world.disk.ops() + 1 + world.draw.below(OPS);
            let once = world.draw.chance(2);
            world.disk.set_trouble(Some(if once { Trouble::FailAt(at) } else { Trouble::FailFrom(at) }));
            for _ in 0..ACTS {
                if !world.act()? {
                    break;
                }
            }
            world.disk.set_trouble(None);
            // The same handle goes on.
            world.check()?;
            world.lose_power()?;
        }
        Ok(())
    });
}

#[test]
fn a_full_disk_is_named_loses_nothing_and_recovers_once_there_is_room() {
    every_case(10, &["acknowledged", "full"], |world| {
        world.disk.set_trouble(Some(Trouble::FullAbove(world.disk.size())));
        for _ in 0..100 {
            if !world.act()? {
                break;
            }
        }
        if world.seen.contains_key("failed") {
            return Err("a full disk is said to be full, and not just to fail".to_owned());
        }
        world.disk.set_trouble(None);
        world.check()?;
        world.lose_power()
    });
}
