//! How many instructions a job takes, compared with what is written down: a guard against getting slower that does
//! not depend on how fast this machine is, or who else uses it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::workspace;

/// The file with the number that is expected. Change it there, on purpose, with the change that explains it.
const EXPECTED: &str = "bench/instructions.json";
/// The same run with few and with many jobs: what they share, such as starting, is not counted.
const FEW: u64 = 2_048;
const MANY: u64 = 8_192;

pub fn run(root: &Path) -> Result<()> {
    ensure!(is_there("valgrind"), "soak RED: valgrind is needed to count instructions: apt-get install valgrind");
    println!("onward: soak: instructions of a job, counted by valgrind");
    let built =
        workspace::cargo(root).args(["build", "--release", "--locked", "--package", "onward-bench"]).status()?;
    ensure!(built.success(), "soak RED: the build of onward-bench failed ({built})");
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    let program = folder.join("release/onward-bench");
    let (few, many) = (count(&program, FEW)?, count(&program, MANY)?);
    let found = many.saturating_sub(few) / (MANY - FEW);
    let text = fs::read_to_string(root.join(EXPECTED)).with_context(|| format!("{EXPECTED} cannot be read"))?;
    let told = judge(found, &text)?;
    println!("onward: soak: {told}");
    Ok(())
}

/// The verdict on so many instructions for a job; an error if they are too many, or so few that the book is wrong.
fn judge(found: u64, expected: &str) -> Result<String> {
    let expected: Value = serde_json::from_str(expected).with_context(|| format!("{EXPECTED} is not JSON"))?;
    let number = |name: &str| expected[name].as_f64().with_context(|| format!("{EXPECTED}: `{name}` is not a number"));
    let (per_job, tolerance) = (number("per_job")?, number("tolerance")?);
    let ratio = found as f64 / per_job;
    let told = format!("{found} instructions a job, {per_job:.0} are written down ({:+.1} %)", (ratio - 1.0) * 100.0);
    if ratio > 1.0 + tolerance {
        bail!("soak RED: {told}: that is slower; find out why, or say why it must be and change {EXPECTED}");
    }
    if ratio < 1.0 - tolerance {
        bail!("soak RED: {told}: that is faster, well done; write it into {EXPECTED} so that it stays");
    }
    Ok(told)
}

fn count(program: &Path, jobs: u64) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--fixed", &jobs.to_string()])
        .output()
        .context("valgrind did not run")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "soak RED: the fixed run failed ({}): {said}", output.status);
    collected(&said).with_context(|| format!("valgrind did not say how many instructions it saw: {said}"))
}

/// Reads a line such as `==1== Collected : 123456`.
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_more_and_fewer_than_written_down_are_red() {
        let book = r#"{"per_job": 1000, "tolerance": 0.05}"#;
        for (found, is_green) in [(1_000, true), (1_050, true), (1_051, false), (950, true), (949, false)] {
            assert_eq!(judge(found, book).is_ok(), is_green, "{found}");
        }
        assert!(judge(1_000, "{}").is_err());
    }

    #[test]
    fn the_count_is_found_in_what_valgrind_says() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 987654\n"), Some(987_654));
        assert_eq!(collected("==7== nothing"), None);
    }
}
