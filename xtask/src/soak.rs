//! The same tests of core, with much larger numbers.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::steps::short;
use crate::stream::{self, Counts};
use crate::workspace;

/// For property tests that do not choose a number of cases themselves.
pub const PROPTEST_CASES: u64 = 20_000;

#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// Cases of each chaos test in one round.
    pub cases: u64,
    /// Another round begins until this much time has passed; `None` means one round.
    pub at_least_for: Option<Duration>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { cases: 200_000, at_least_for: None }
    }
}

pub fn run(root: &Path, plan: &Plan) -> Result<()> {
    println!("onward: soak: building");
    let (status, _) = stream::run(core_tests(root, plan, &["--no-run"]))?;
    ensure!(status.success(), "soak RED: the build failed ({status})");

    // The clock starts after the build, so that `--seconds` buys testing.
    let began = Instant::now();
    let mut total = Counts::default();
    let mut rounds = 0_u64;
    while rounds == 0 || plan.at_least_for.is_some_and(|least| began.elapsed() < least) {
        rounds += 1;
        println!("onward: soak: round {rounds}, {} chaos cases, {PROPTEST_CASES} property cases", plan.cases);
        total.add(round(root, plan)?);
    }
    println!(
        "onward: soak green: {} passed, 0 failed, {rounds} round{} of {} cases ({})",
        total.passed,
        if rounds == 1 { "" } else { "s" },
        plan.cases,
        short(began.elapsed())
    );
    Ok(())
}

fn round(root: &Path, plan: &Plan) -> Result<Counts> {
    let (status, counts) = stream::run(core_tests(root, plan, &[]))?;
    ensure!(
        status.success() && counts.failed == 0,
        "soak RED: {} passed, {} failed ({status}); the seed or the smallest failing case is in the output above",
        counts.passed,
        counts.failed
    );
    ensure!(counts.passed > 0, "soak RED: not one test was counted, so green would mean nothing");
    Ok(counts)
}

fn core_tests(root: &Path, plan: &Plan, more: &[&str]) -> Command {
    let mut command = workspace::cargo(root);
    command
        .args(["test", "--release", "--locked", "--package", "onward-core", "--tests"])
        .args(more)
        .env("ONWARD_SOAK_CASES", plan.cases.to_string())
        .env("PROPTEST_CASES", PROPTEST_CASES.to_string())
        // Release speed, but a broken internal promise or an overflow must not pass unseen.
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");
    command
}
