//! Runs one child command: its output passes through line by line, and its tests are counted on the way.

use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, Result};

/// Tests as the runner's own summary lines report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TestCounts {
    pub passed: u64,
    pub failed: u64,
}

impl TestCounts {
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

pub fn run(mut command: Command) -> Result<(ExitStatus, TestCounts)> {
    if io::stderr().is_terminal() {
        // The child writes into a pipe and would otherwise drop its colours.
        command.env("CARGO_TERM_COLOR", "always");
    }
    let named = format!("{command:?}");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {named}"))?;
    let child_out = child.stdout.take().expect("stdout was piped above");
    let child_err = child.stderr.take().expect("stderr was piped above");
    let (out, err) = thread::scope(|scope| {
        let out = scope.spawn(|| pass_through(child_out, io::stdout()));
        let err = pass_through(child_err, io::stderr());
        (out.join().expect("passing output through does not panic"), err)
    });
    let status = child.wait().with_context(|| format!("cannot wait for {named}"))?;
    let mut counts = out.with_context(|| format!("cannot pass on the output of {named}"))?;
    counts.add(err.with_context(|| format!("cannot pass on the errors of {named}"))?);
    Ok((status, counts))
}

/// The sum of all the summary lines in a text.
pub fn counts(text: &str) -> TestCounts {
    let mut counts = TestCounts::default();
    text.lines().filter_map(summary).for_each(|found| counts.add(found));
    counts
}

fn pass_through(from: impl Read, mut to: impl Write) -> io::Result<TestCounts> {
    let mut from = BufReader::new(from);
    let mut counts = TestCounts::default();
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        if let Some(found) = summary(&String::from_utf8_lossy(&line)) {
            counts.add(found);
        }
        line.clear();
    }
    Ok(counts)
}

/// The counts of a runner's summary line: `test result: …` of `cargo test`, `Summary […] …` of nextest.
///
/// nextest shows the output of a failed test indented, with a `test result: …` of its own that must not count again.
fn summary(line: &str) -> Option<TestCounts> {
    let line = without_colours(line);
    let is_libtest = line.starts_with("test result: ");
    let line = line.trim();
    let is_nextest = line.starts_with("Summary [") && (line.contains(" tests run:") || line.contains(" test run:"));
    (is_libtest || is_nextest)
        .then(|| TestCounts { passed: number_before(line, "passed"), failed: number_before(line, "failed") })
}

/// `3` for `3 passed;` or `3 passed,` and `passed`; 0 where the word has no number.
fn number_before(line: &str, word: &str) -> u64 {
    let words: Vec<&str> = line.split_whitespace().collect();
    words
        .windows(2)
        .filter(|pair| pair[1].trim_end_matches([',', ';']) == word)
        .find_map(|pair| pair[0].parse().ok())
        .unwrap_or(0)
}

fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // A colour is `ESC [ numbers m`.
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lines_of_both_runners_are_counted() {
        let table = [
            ("test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s", 5, 0),
            ("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out", 4, 2),
            ("     Summary [   0.016s] 13 tests run: 13 passed, 0 skipped", 13, 0),
            ("     Summary [   0.016s] 1 test run: 1 passed, 0 skipped", 1, 0),
            ("     Summary [   0.016s] 13/20 tests run: 11 passed (1 slow), 2 failed, 0 skipped", 11, 2),
            ("\u{1b}[32;1m     Summary\u{1b}[0m [   0.016s] 7 tests run: \u{1b}[1m7\u{1b}[0m passed, 0 skipped", 7, 0),
        ];
        for (line, passed, failed) in table {
            assert_eq!(summary(line), Some(TestCounts { passed, failed }), "{line}");
        }
    }

    #[test]
    fn other_lines_count_nothing() {
        const INDENTED: &str = "    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 40 filtered out";
        for line in ["", "running 5 tests", "test lease::never_shrinks ... ok", "Summary of 3 passed things", INDENTED]
        {
            assert_eq!(summary(line), None, "{line}");
        }
    }

    #[test]
    fn output_passes_through_unchanged_and_sums_up() {
        let text = "one\ntest result: ok. 2 passed; 0 failed\n\u{fffd}two\ntest result: ok. 3 passed; 1 failed";
        let mut seen = Vec::new();
        let counts = pass_through(text.as_bytes(), &mut seen).unwrap();
        assert_eq!(seen, text.as_bytes());
        assert_eq!(counts, TestCounts { passed: 5, failed: 1 });
        assert_eq!(super::counts(text), counts);
    }
}
