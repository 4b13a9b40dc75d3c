//! One line at the end of a terminal that is drawn over and over, and leaves nothing behind.

use std::io::{self, Write};
use std::time::Duration;

use crate::screen::{one_line, size_of};
use crate::span;

const CLEAR: &str = "\r\u{1b}[K";
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];
const BAR: usize = 30;

/// The state of something that goes on.
#[derive(Clone, Default, Debug)]
pub struct LineStatus {
    pub what: String,
    pub done: Option<u64>,
    pub total: Option<u64>,
    pub lasts: Duration,
    /// Further words at the end, if anything is worth saying.
    pub more: String,
}

/// A line on stderr; whoever writes elsewhere on the same terminal clears it first.
#[derive(Debug, Default)]
pub struct StatusLine {
    is_shown: bool,
    turn: usize,
}

impl StatusLine {
    pub fn draw(&mut self, status: &LineStatus) {
        self.turn += 1;
        let columns = size_of(io::stderr()).map_or(80, |size| size.columns);
        let text = line(status, SPINNER[self.turn % SPINNER.len()], columns);
        // A line is only for looking at; nobody can be told that it could not be drawn.
        let _ = write!(io::stderr(), "{CLEAR}{text}");
        self.is_shown = true;
    }

    /// Wipes the line, where there may be one.
    pub fn wipe(may_be_shown: bool) {
        Self { is_shown: may_be_shown, turn: 0 }.clear();
    }

    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(io::stderr(), "{CLEAR}");
        }
    }
}

/// The line, one column shorter than there are: a full one would begin the next on some terminals.
fn line(status: &LineStatus, spinner: char, columns: usize) -> String {
    let mut parts = vec![status.what.clone()];
    match (status.done, status.total.filter(|total| *total > 0)) {
        (Some(done), Some(total)) => {
            let share = (done.min(total) as f64 / total as f64).clamp(0.0, 1.0);
            let filled = (share * BAR as f64) as usize;
            parts.push(format!("[{}{}]", "#".repeat(filled), "-".repeat(BAR - filled)));
            parts.push(format!("{done}/{total} {:.0}%", (share * 100.0).floor()));
        }
        (Some(done), None) => parts.push(format!("{done} done")),
        (None, _) => parts.insert(0, spinner.to_string()),
    }
    parts.push(span::human(Duration::from_secs(status.lasts.as_secs())));
    parts.push(status.more.clone());
    parts.retain(|part| !part.is_empty());
    let text = parts.join(" ");
    let text = one_line(&text).unwrap_or(text);
    text.chars().take(columns.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_known_and_fits() {
        let mut status =
            LineStatus { what: "running".into(), lasts: Duration::from_millis(62_500), ..LineStatus::default() };
        assert_eq!(line(&status, '|', 80), "| running 1m 2s");
        status.done = Some(3);
        assert_eq!(line(&status, '|', 80), "running 3 done 1m 2s");
        status.total = Some(10);
        status.more = "last step 2s ago".into();
        assert_eq!(line(&status, '|', 80), "running [#########---------------------] 3/10 30% 1m 2s last step 2s ago");
        assert_eq!(line(&status, '|', 20), "running [#########-");
        status.done = Some(11);
        assert!(line(&status, '|', 80).contains("] 11/10 100% "), "more than all");
        status.more = "a\u{1b}[2J\nb".into();
        assert!(line(&status, '|', 80).ends_with("a\\u{1b}[2J\\nb"));
    }
}
