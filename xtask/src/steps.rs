//! The test command: every step in order, until one is red.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::stream::{self, Counts};
use crate::{install, tidy, workspace};

#[derive(Debug)]
pub struct Step {
    pub name: &'static str,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Cargo {
        args: &'static [&'static str],
        env: &'static [(&'static str, &'static str)],
    },
    /// Counted. Benchmarks are left out: one without a test harness would run in full.
    Tests {
        with_nextest: &'static [&'static str],
        without: &'static [&'static str],
    },
    DocTests {
        args: &'static [&'static str],
    },
    Tidy,
}

pub const ALL: &[Step] = &[
    Step { name: "fmt", work: Work::Cargo { args: &["fmt", "--all", "--check"], env: &[] } },
    Step {
        name: "clippy",
        work: Work::Cargo {
            args: &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
            env: &[],
        },
    },
    Step {
        name: "tests",
        work: Work::Tests {
            with_nextest: &["nextest", "run", "--workspace", "--locked"],
            without: &["test", "--workspace", "--locked", "--tests"],
        },
    },
    Step { name: "doc tests", work: Work::DocTests { args: &["test", "--doc", "--workspace", "--locked"] } },
    Step { name: "tidy", work: Work::Tidy },
    Step {
        name: "docs",
        work: Work::Cargo {
            args: &["doc", "--no-deps", "--workspace", "--locked"],
            env: &[("RUSTDOCFLAGS", "-D warnings")],
        },
    },
];

impl Step {
    /// The command that runs this step by itself.
    pub fn alone(&self) -> String {
        match self.work {
            Work::Cargo { args, env } => {
                let set: String = env.iter().map(|(name, value)| format!("{name}=\"{value}\" ")).collect();
                format!("{set}cargo {}", args.join(" "))
            }
            Work::Tests { with_nextest: args, .. } | Work::DocTests { args } => format!("cargo {}", args.join(" ")),
            Work::Tidy => "cargo xtask tidy".to_owned(),
        }
    }

    /// What the step has counted, if it counts; an error if it is red.
    fn run(&self, root: &Path) -> Result<Option<Counts>> {
        let (args, env, counts_tests): (_, &[(&str, &str)], _) = match self.work {
            Work::Tidy => return tidy::run(root).map(|()| None),
            Work::Cargo { args, env } => (args, env, false),
            Work::Tests { with_nextest, .. } if install::has_cargo_command(root, "nextest") => {
                (with_nextest, &[], true)
            }
            Work::Tests { without: args, .. } | Work::DocTests { args } => (args, &[], true),
        };
        let mut command = workspace::cargo(root);
        command.args(args).envs(env.iter().copied());
        let (status, counts) = stream::run(command)?;
        if !status.success() || counts.failed > 0 {
            if counts != Counts::default() {
                println!("{} passed, {} failed", counts.passed, counts.failed);
            }
            bail!("{status}");
        }
        Ok(counts_tests.then_some(counts))
    }
}

pub fn test(root: &Path, may_install: bool) -> Result<()> {
    install::ensure_present(root, may_install)?;
    let began = Instant::now();
    let mut passed = Vec::new();
    let mut total = Counts::default();
    for step in ALL {
        println!("onward: {}: {}", step.name, step.alone());
        let step_began = Instant::now();
        let counts = match step.run(root) {
            Ok(counts) => counts,
            Err(error) => bail!(
                "RED: {} failed after {}: {error:#}\nonward: to run it alone: {}",
                step.name,
                short(step_began.elapsed()),
                step.alone()
            ),
        };
        println!("onward: {}: ok ({})", step.name, short(step_began.elapsed()));
        total.add(counts.unwrap_or_default());
        passed.push(told(step.name, counts));
    }
    if total.passed == 0 {
        bail!("RED: not one test was counted, so green would mean nothing; has a runner changed its summary line?");
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    println!("{}", all_green(&passed, began.elapsed()));
    Ok(())
}

fn told(step: &str, counts: Option<Counts>) -> String {
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
        let counted = |passed| Some(Counts { passed, failed: 0 });
        let passed = [told("fmt", None), told("tests", counted(312)), told("doc tests", counted(1))];
        let line = all_green(&passed, Duration::from_secs(192));
        assert_eq!(line, "onward: all green: fmt, 312 tests, 1 doc test (3m12s)");
    }

    #[test]
    fn every_step_says_how_to_run_it_alone() {
        let alone: Vec<String> = ALL.iter().map(Step::alone).collect();
        assert_eq!(alone[0], "cargo fmt --all --check");
        assert_eq!(alone[5], "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps --workspace --locked");
        assert!(alone.iter().all(|line| line.contains("cargo ")));
    }
}
