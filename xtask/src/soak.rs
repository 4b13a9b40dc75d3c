//! The same tests, with much larger numbers.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::api_check;
use crate::instructions;
use crate::steps::short;
use crate::stream::{self, TestCounts};
use crate::takeover;
use crate::workspace;

/// The number of cases for property tests that do not choose one themselves.
pub const PROPTEST_CASES: u64 = 20_000;

#[derive(Debug, PartialEq, Eq)]
pub struct SoakPlan {
    /// Cases of each chaos test in one round.
    pub cases: u64,
    /// Another round begins until this much time has passed; `None` means one round.
    pub at_least_for: Option<Duration>,
}

impl Default for SoakPlan {
    fn default() -> Self {
        Self { cases: 6_000, at_least_for: None }
    }
}

/// A crate's tests. A case of one costs more than a case of another, so each has its share of the number asked for.
struct Part {
    package: &'static str,
    targets: &'static [&'static str],
    /// The share: one case for so many of the plan's.
    share: u64,
    at_most: u64,
    env: &'static [(&'static str, &'static str)],
}

const PARTS: &[Part] = &[
    Part { package: "onward-core", targets: &["--tests"], share: 1, at_most: u64::MAX, env: &[] },
    Part { package: "onward-log", targets: &["--tests"], share: 1, at_most: u64::MAX, env: &[] },
    // Each case is a node on a disk of which an operation fails; with `--lib`, so it is for outputs and tokens.
    Part { package: "onward-node", targets: &["--lib", "--test", "faults"], share: 1, at_most: u64::MAX, env: &[] },
    // Each case kills a node under load.
    Part { package: "onward-cli", targets: &["--test", "kill"], share: 30, at_most: 200, env: &[] },
    // Each case kills a poller of an outbox.
    Part { package: "onward-cli", targets: &["--test", "outbox_kill"], share: 24, at_most: 100, env: &[] },
    // The README word for word, which the ordinary tests do with more patience.
    Part { package: "onward-cli", targets: &["--test", "readme"], share: u64::MAX, at_most: 1, env: &[] },
    // Two minutes of twenty workers that are killed and frozen, whatever the number of cases.
    Part {
        package: "onward-cli",
        targets: &["--test", "fleet"],
        share: u64::MAX,
        at_most: 1,
        env: &[("ONWARD_FLEET", "full")],
    },
    // A thousand sessions on one manager for ten minutes.
    Part {
        package: "onward-cli",
        targets: &["--test", "sessions"],
        share: u64::MAX,
        at_most: 1,
        env: &[("ONWARD_SESSIONS", "full")],
    },
];

pub fn run(root: &Path, plan: &SoakPlan) -> Result<()> {
    println!("onward: soak: building");
    for part in PARTS {
        let (status, _) = stream::run(tests(root, plan, part, &["--no-run"]))?;
        ensure!(status.success(), "soak RED: the build of {} failed ({status})", part.package);
    }

    // The clock starts after the build, so that `--seconds` buys testing.
    let began = Instant::now();
    let mut total = TestCounts::default();
    let mut rounds = 0_u64;
    while rounds == 0 || plan.at_least_for.is_some_and(|least| began.elapsed() < least) {
        rounds += 1;
        for part in PARTS {
            let cases = cases(plan, part);
            println!("onward: soak: round {rounds}: {}, {cases} cases, {PROPTEST_CASES} property cases", part.package);
            total.add(round(root, plan, part)?);
        }
    }
    api_check::run(root)?;
    instructions::run(root)?;
    takeover::run(root)?;
    println!(
        "onward: soak green: {} passed, 0 failed, {rounds} round{} of {} cases ({})",
        total.passed,
        if rounds == 1 { "" } else { "s" },
        plan.cases,
        short(began.elapsed())
    );
    Ok(())
}

fn cases(plan: &SoakPlan, part: &Part) -> u64 {
    (plan.cases / part.share).clamp(1, part.at_most)
}

fn round(root: &Path, plan: &SoakPlan, part: &Part) -> Result<TestCounts> {
    let (status, counts) = stream::run(tests(root, plan, part, &[]))?;
    ensure!(
        status.success() && counts.failed == 0,
        "soak RED: {}: {} passed, {} failed ({status}); the seed or the smallest failing case is in the output above",
        part.package,
        counts.passed,
        counts.failed
    );
    ensure!(counts.passed > 0, "soak RED: not one test was counted, so green would mean nothing");
    Ok(counts)
}

fn tests(root: &Path, plan: &SoakPlan, part: &Part, more: &[&str]) -> Command {
    let mut command = workspace::cargo(root);
    command
        .args(["test", "--release", "--locked", "--package", part.package])
        .args(part.targets)
        .args(more)
        .envs(part.env.iter().copied())
        .env("ONWARD_SOAK_CASES", cases(plan, part).to_string())
        .env("PROPTEST_CASES", PROPTEST_CASES.to_string())
        // Release speed, but a broken internal promise or an overflow must not pass unseen.
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
        // There are many test binaries: what linking each of them whole would gain, its build would lose.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        // Apart from what is built to be run, so that neither throws the other away.
        .env("CARGO_TARGET_DIR", root.join("target/soak"));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_share_of_the_cases() {
        let shares =
            |cases| PARTS.iter().map(|part| super::cases(&SoakPlan { cases, at_least_for: None }, part)).collect();
        let table: [(u64, Vec<u64>); 3] = [
            (6_000, vec![6_000, 6_000, 6_000, 200, 100, 1, 1, 1]),
            (10, vec![10, 10, 10, 1, 1, 1, 1, 1]),
            (9_000_000, vec![9_000_000, 9_000_000, 9_000_000, 200, 100, 1, 1, 1]),
        ];
        for (cases, expected) in table {
            let found: Vec<u64> = shares(cases);
            assert_eq!(found, expected);
        }
    }
}
