//! The table promise × mailbox of `docs/mailboxes.md`: each mailbox prints its column, and checks it.

use core::fmt;
use std::io::{self, Write};

use crate::mailbox::Promises;

/// The declaration of a mailbox, after the suite has shown that it is true.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromiseReport {
    pub name: &'static str,
    pub promises: Promises,
}

impl fmt::Display for PromiseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| promise | {} |\n|---|---|", self.name)?;
        for (promise, value) in self.promises.rows() {
            writeln!(f, "| {promise} | {value} |")?;
        }
        Ok(())
    }
}

impl PromiseReport {
    /// Prints the column beside what the test harness captures, so that it is seen though the test passes.
    ///
    /// # Panics
    /// If standard output is closed.
    pub fn print(&self) {
        writeln!(io::stdout(), "{self}").expect("standard output is open");
    }
}

/// Compares a mailbox with its column of the table in a document. The table begins with `| promise |`.
///
/// # Panics
/// If the table has no such column, lacks a promise, or says something else.
pub fn check_documented(document: &str, report: &PromiseReport) {
    let mut lines = document.lines().skip_while(|line| !line.starts_with("| promise |"));
    let head = lines.next().expect("the document has a table that begins with `| promise |`");
    let column = cells(head).position(|name| name == report.name);
    let column = column.unwrap_or_else(|| panic!("the table has no column `{}`; it would be\n{report}", report.name));
    let rows: Vec<Vec<&str>> =
        lines.skip(1).take_while(|line| line.starts_with('|')).map(|line| cells(line).collect()).collect();
    let promises = report.promises.rows();
    let documented: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    let declared: Vec<&str> = promises.iter().map(|(promise, _)| *promise).collect();
    assert_eq!(documented, declared, "the promises of the table");
    for (row, (promise, value)) in rows.iter().zip(&promises) {
        assert_eq!(row.get(column), Some(&value.as_str()), "`{promise}` of {}; its column is\n{report}", report.name);
    }
}

fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.trim().trim_matches('|').split('|').map(str::trim)
}
