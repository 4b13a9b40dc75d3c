//! The time until the next manager hands out work when the leader of a datacenter with a million jobs is killed.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::workspace;

/// The part of the benchmark that measures it, and knows the goal.
const PART: &str = "takeover-large";

pub fn run(root: &Path) -> Result<()> {
    println!("onward: soak: leaders with a million jobs are killed");
    let mut bench = workspace::cargo(root);
    bench.args(["run", "--release", "--locked", "--quiet", "--package", "onward-bench", "--"]);
    let measured = bench.args(["--only", PART, "--strict"]).status()?;
    ensure!(measured.success(), "soak RED: {PART} misses its goal ({measured}); the figures are above");
    Ok(())
}
