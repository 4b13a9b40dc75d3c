//! The test command: every step in order, until one is red.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::stream::{self, TestCounts};
use crate::{binaries, clients, install, manifests, tidy, workspace};

#[derive(Debug)]
pub struct Step {
    pub name: &'static str,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Cargo(Cargo),
    /// Counted. Benchmarks are left out: one without a test harness would run in full.
    Tests {
        with_nextest: Cargo,
        without: Cargo,
    },
    /// Counted.
    DocTests(Cargo),
    Clients,
    Manifests,
    Tidy,
}

#[derive(Debug)]
struct Cargo {
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

const fn cargo(args: &'static [&'static str]) -> Cargo {
    Cargo { args, env: &[] }
}

const TESTS: &str = "tests";

pub const ALL: &[Step] = &[
    Step { name: "fmt", work: Work::Cargo(cargo(&["fmt", "--all", "--check"])) },
    Step {
        name: "clippy",
        work: Work::Cargo(cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])),
    },
    Step {
        name: TESTS,
        work: Work::Tests {
            // Without the clients of the systems that the benchmarks compare with, which take long to build.
            with_nextest: cargo(&["nextest", "run", "--workspace", "--no-default-features", "--locked"]),
            without: cargo(&["test", "--workspace", "--no-default-features", "--locked", "--tests"]),
        },
    },
    Step {
        name: "doc tests",
        work: Work::DocTests(cargo(&["test", "--doc", "--workspace", "--no-default-features", "--locked"])),
    },
    Step { name: "clients", work: Work::Clients },
    Step { name: "manifests", work: Work::Manifests },
    Step { name: "tidy", work: Work::Tidy },
    Step {
        name: "docs",
        work: Work::Cargo(Cargo {
            args: &["doc", "--no-deps", "--workspace", "--locked"],
            env: &[("RUSTDOCFLAGS", "-D warnings")],
        }),
    },
];

impl Step {
    /// The command that runs this step by itself.
    pub fn alone(&self, has_nextest: bool) -> String {
        let Some(cargo) = self.cargo(has_nextest) else { return format!("cargo xtask {}", self.name) };
        let set: String = cargo.env.iter().map(|(name, value)| format!("{name}=\"{value}\" ")).collect();
        format!("{set}cargo {}", cargo.args.join(" "))
    }

    /// Runs the step. Gives its counts, if it counts; an error if it is red.
    fn run(&self, root: &Path, has_nextest: bool) -> Result<Option<TestCounts>> {
        let Some(cargo) = self.cargo(has_nextest) else {
            let check = match self.work {
                Work::Clients => clients::check,
                Work::Manifests => manifests::check,
                _ => tidy::run,
            };
            return check(root).map(|()| None);
        };
        if !has_nextest && matches!(self.work, Work::Tests { .. }) {
            return binaries::run(root, cargo.args).map(Some);
        }
        let mut command = workspace::cargo(root);
        command.args(cargo.args).envs(cargo.env.iter().copied());
        let (status, counts) = stream::run(command)?;
        if !status.success() || counts.failed > 0 {
            if counts != TestCounts::default() {
                println!("{} passed, {} failed", counts.passed, counts.failed);
            }
            bail!("{status}");
        }
        Ok(matches!(self.work, Work::Tests { .. } | Work::DocTests(_)).then_some(counts))
    }

    fn cargo(&self, has_nextest: bool) -> Option<&Cargo> {
        match &self.work {
            Work::Cargo(cargo) | Work::DocTests(cargo) => Some(cargo),
            Work::Tests { with_nextest, without } => Some(if has_nextest { with_nextest } else { without }),
            Work::Clients | Work::Manifests | Work::Tidy => None,
        }
    }
}

pub fn test(root: &Path, may_install: bool) -> Result<()> {
    install::ensure_present(root, may_install)?;
    let has_nextest = install::has_cargo_command(root, "nextest");
    let began = Instant::now();
    let mut passed = Vec::new();
    let mut total = TestCounts::default();
    for step in ALL {
        let alone = step.alone(has_nextest);
        println!("onward: {}: {alone}", step.name);
        let step_began = Instant::now();
        let counts = step.run(root, has_nextest).map_err(|error| {
            let after = short(step_began.elapsed());
            anyhow!("RED: {} failed after {after} ({error:#})\nonward: to run it alone: {alone}", step.name)
        })?;
        println!("onward: {}: ok ({})", step.name, short(step_began.elapsed()));
        if step.name == TESTS && counts.is_none_or(|counts| counts.passed == 0) {
            bail!(
                "RED: not one test was counted, so green would mean nothing; has the runner changed its summary line?"
            );
        }
        total.add(counts.unwrap_or_default());
        passed.push(told(step.name, counts));
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    println!("{}", all_green(&passed, began.elapsed()));
    Ok(())
}

fn told(step: &str, counts: Option<TestCounts>) -> String {
    match counts {
        Some(counts) if counts.passed == 1 => format!("1 {}", step.trim_end_matches('s')),
        Some(counts) => format!("{} {step}", counts.passed),
        None => step.to_owned(),
    }
}

fn all_green(passed: &[String], took: Duration) -> String {
    format!("onward: all green: {} ({})", passed.join(", "), short(took))
}

/// `0.4s`, `42s`, `3m12s`.
pub fn short(took: Duration) -> String {
    match took.as_secs() {
        0..10 => format!("{:.1}s", took.as_secs_f64()),
        secs @ 10..60 => format!("{secs}s"),
        secs => format!("{}m{:02}s", secs / 60, secs % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let table = [(400, "0.4s"), (9_940, "9.9s"), (42_900, "42s"), (60_000, "1m00s"), (192_000, "3m12s")];
        for (ms, text) in table {
            assert_eq!(short(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn the_last_line_says_what_passed() {
        let counted = |passed| Some(TestCounts { passed, failed: 0 });
        let passed = [told("fmt", None), told("tests", counted(312)), told("doc tests", counted(1))];
        let line = all_green(&passed, Duration::from_secs(192));
        assert_eq!(line, "onward: all green: fmt, 312 tests, 1 doc test (3m12s)");
    }

    #[test]
    fn every_step_says_how_to_run_it_alone() {
        let alone: Vec<String> = ALL.iter().map(|step| step.alone(true)).collect();
        assert_eq!(alone[0], "cargo fmt --all --check");
        assert_eq!(alone[4..6], ["cargo xtask clients", "cargo xtask manifests"]);
        assert_eq!(alone[7], "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps --workspace --locked");
        assert!(alone.iter().all(|line| line.contains("cargo ")));
        assert_eq!(alone[2], "cargo nextest run --workspace --no-default-features --locked");
        assert_eq!(ALL[2].alone(false), "cargo test --workspace --no-default-features --locked --tests");
    }
}
