//! The checks that are ours alone.
//!
//! A check is a function from files to findings, in a file of its own, with a test that shows it able to fail.
//! [`source`] gives the checks Rust text without comments and strings, so that prose is never mistaken for code.

mod crates;
mod leftovers;
mod length;
mod links;
mod machine_paths;
mod names;
mod purity;
mod source;
mod type_names;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// A file of the repository, as git lists it.
#[derive(Debug)]
pub struct File {
    /// Relative to the root, with `/` between the parts.
    pub path: String,
    /// Empty if the file is not text.
    pub text: String,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: String,
    /// The number of the line, from 1.
    pub line: usize,
    pub what: String,
    pub remedy: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.what, self.remedy)
    }
}

type Check = fn(&[File]) -> Vec<Finding>;

const CHECKS: &[(&str, &str, Check)] = &[
    ("purity", "core has no clock, I/O, thread, task or randomness of its own", purity::check),
    ("length", "no file is longer than a reader can hold", length::check),
    ("machine paths", "no tracked file names a folder of somebody's machine", machine_paths::check),
    ("names", "public names use the words of the glossary", names::check),
    ("type names", "the name of a type is a noun, and has one meaning in all crates", type_names::check),
    ("leftovers", "nothing unfinished, no ignored test, no test that sleeps", leftovers::check),
    ("links", "every relative link in a Markdown file leads somewhere", links::check),
];

const CRATES_CHECK: (&str, &str) = ("crates", "core's dependencies are on its list, and our crates depend one way");

pub fn run(root: &Path) -> Result<()> {
    let files = files(root)?;
    let mut findings = Vec::new();
    for (_, _, check) in CHECKS {
        findings.extend(check(&files));
    }
    findings.extend(crates::check(&crates::read(root)?));

    for line in length::report(&files) {
        println!("tidy: note: {line}");
    }
    for finding in &findings {
        println!("tidy: {finding}");
    }
    if !findings.is_empty() {
        bail!("tidy found {} to put right", findings.len());
    }
    println!("tidy: {} files, {} checks, nothing to put right", files.len(), CHECKS.len() + 1);
    Ok(())
}

pub fn help() -> String {
    let told = CHECKS.iter().map(|&(name, what, _)| (name, what)).chain([CRATES_CHECK]);
    let lines: Vec<String> = told.map(|(name, what)| format!("  {name:<14} {what}")).collect();
    lines.join("\n")
}

/// Tracked files, and new ones that git does not ignore, so that a finding shows before the commit.
fn files(root: &Path) -> Result<Vec<File>> {
    let list = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    ensure!(
        list.status.success(),
        "`git ls-files` failed, and tidy needs a git checkout: {}",
        String::from_utf8_lossy(&list.stderr).trim()
    );
    let list = String::from_utf8(list.stdout).context("a file's name is not UTF-8")?;
    let mut files = Vec::new();
    for path in list.split('\0').filter(|path| !path.is_empty()) {
        let full = root.join(path);
        // Deleted but not yet committed, or a link to a folder.
        if !full.is_file() {
            continue;
        }
        let bytes = std::fs::read(&full).with_context(|| format!("cannot read {path}"))?;
        files.push(File { path: path.to_owned(), text: String::from_utf8(bytes).unwrap_or_default() });
    }
    Ok(files)
}

/// The Rust files among them.
fn rust(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.path.ends_with(".rs"))
}

#[cfg(test)]
fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_as_place_then_problem_then_remedy() {
        let finding = Finding { path: "a/b.rs".to_owned(), line: 7, what: "`x`".to_owned(), remedy: "do y" };
        assert_eq!(finding.to_string(), "a/b.rs:7: `x`: do y");
    }

    #[test]
    fn help_names_every_check() {
        let help = help();
        assert_eq!(help.lines().count(), CHECKS.len() + 1);
        assert!(help.contains("purity") && help.contains("crates"));
    }
}
