//! What is printed, and how: tables and JSON on stdout, all else on stderr. Colours only where somebody looks.
//!
//! Names, notes and errors come from anywhere. They are made harmless *before* they get a colour, so that whatever
//! steers the terminal is ours; JSON is for programs and is not touched.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use rustix::fd::AsFd;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::answer::{Layout, laid_out};
use crate::table::{Column, TextTable};

/// The way to print, by what was asked for and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    pub json: bool,
    colours: bool,
    /// Bars may be drawn on stderr.
    pub bars: bool,
    /// The size of the terminal that stdout is, if it is one.
    size: Option<Size>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    pub columns: usize,
    pub lines: usize,
}

impl Screen {
    pub fn detect(json: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            json,
            colours: wanted && !dumb && io::stdout().is_terminal(),
            bars: !json && !dumb && io::stderr().is_terminal(),
            size: size_of(io::stdout()),
        }
    }

    pub fn size(&self) -> Option<Size> {
        self.size
    }

    pub fn line(&self, text: impl AsRef<str>) -> Result<()> {
        self.print(&StyledText::new(text.as_ref()))
    }

    /// Prints the text and the end of its line.
    pub fn print(&self, text: &StyledText) -> Result<()> {
        write_line(&text.0)
    }

    /// A text of somebody else's, to the byte, unless that would steer a terminal.
    pub fn exact(&self, text: &str) -> Result<()> {
        match io::stdout().is_terminal() {
            true => self.line(text),
            false => write_line(text),
        }
    }

    /// Prints what we have made ourselves, as JSON.
    pub fn json(&self, value: &Value) -> Result<()> {
        write_line(&serde_json::to_string_pretty(value)?)
    }

    /// Prints one JSON document a line, for events that go on.
    pub fn json_line(&self, value: &Value) -> Result<()> {
        write_line(&value.to_string())
    }

    /// JSON that may hold more than we could read of it.
    pub fn raw(&self, json: &RawValue, layout: Layout) -> Result<()> {
        write_line(&laid_out(json, layout))
    }

    /// Prints a note for people, on stderr, so that stdout stays for programs. Programs that read stderr as well get
    /// JSON there too.
    pub fn note(&self, text: impl AsRef<str>) {
        let text = match self.json {
            true => json!({ "note": text.as_ref() }).to_string(),
            false => several_lines(text.as_ref()),
        };
        // Nobody can be told that stderr is gone.
        let _ = writeln!(io::stderr(), "{text}");
    }

    pub fn table(&self, columns: &[Column], rows: Vec<Vec<String>>) -> Result<()> {
        self.print(&self.table_text(columns, rows))
    }

    /// The table without the end of its last line.
    pub fn table_text(&self, columns: &[Column], rows: Vec<Vec<String>>) -> StyledText {
        let table = TextTable::new(columns, rows, self.size.map(|size| size.columns));
        let mut text = StyledText::default();
        for (at, line) in table.lines().enumerate() {
            if at > 0 {
                text.0.push('\n');
            }
            for cell in line {
                text = match (cell.has_colour, cell.text.trim_end()) {
                    (true, word) => text.word(self, word).text(&cell.text[word.len()..]),
                    (false, _) => text.text(&cell.text),
                };
            }
        }
        text
    }
}

fn write_line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// None if it is no terminal, or one that does not know.
pub fn size_of(stream: impl AsFd) -> Option<Size> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    let size = Size { columns: size.ws_col.into(), lines: size.ws_row.into() };
    (size.columns > 0 && size.lines > 0).then_some(size)
}

/// Text that may be printed as it is: only what we have put into it ourselves steers the terminal.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct StyledText(String);

impl StyledText {
    pub fn new(text: &str) -> Self {
        Self(several_lines(text))
    }

    /// Adds a text.
    pub fn text(mut self, text: &str) -> Self {
        self.0 += &several_lines(text);
        self
    }

    pub fn styled(mut self, more: &Self) -> Self {
        self.0 += &more.0;
        self
    }

    /// Adds a word in the colour of its meaning.
    pub fn word(self, screen: &Screen, word: &str) -> Self {
        let Some(colour) = colour_of(word).filter(|_| screen.colours) else { return self.text(word) };
        Self(format!("{}\u{1b}[{colour}m", self.0)).text(word).end_of_colour()
    }

    fn end_of_colour(mut self) -> Self {
        self.0 += "\u{1b}[0m";
        self
    }

    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.lines()
    }
}

/// The colour's number.
fn colour_of(word: &str) -> Option<u8> {
    const RED: u8 = 31;
    const GREEN: u8 = 32;
    const YELLOW: u8 = 33;
    const CYAN: u8 = 36;
    match word {
        "succeeded" | "healthy" => Some(GREEN),
        "failed" | "timed_out" | "stuck" | "suspect" | "evicted" => Some(RED),
        "cancelling" | "cancelled" | "delayed" | "slow" | "degraded" | "paused" | "draining" => Some(YELLOW),
        "running" | "busy" => Some(CYAN),
        _ => None,
    }
}

/// Controls of a terminal, and what makes text run backwards or begins a line without being one.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with characters made visible that would steer the terminal; lines stay lines.
pub fn several_lines(text: &str) -> String {
    made_visible(text, |c| steers(c) && !matches!(c, '\n' | '\t'))
}

/// The text on one line, with all that would steer the terminal or begin another line made visible; none if there is
/// nothing of the kind in it.
pub fn one_line(text: &str) -> Option<String> {
    text.chars().any(steers).then(|| made_visible(text, steers))
}

fn made_visible(text: &str, which: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match which(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(colours: bool) -> Screen {
        Screen { json: false, colours, bars: false, size: None }
    }

    #[test]
    fn what_steers_a_terminal_is_made_visible() {
        assert_eq!(several_lines("a\tb\nü"), "a\tb\nü");
        assert_eq!(several_lines("\u{1b}[31mred\u{1b}[0m"), "\\u{1b}[31mred\\u{1b}[0m");
        assert_eq!(several_lines("\u{1b}]0;title\u{7}\r\u{9b}2J"), "\\u{1b}]0;title\\u{7}\\r\\u{9b}2J");
        assert_eq!(several_lines("abc\u{202e}cba"), "abc\\u{202e}cba");
    }

    #[test]
    fn one_line_is_one_line() {
        assert_eq!(one_line("plain ü"), None);
        assert_eq!(one_line("a\nb\tc\u{2028}d").unwrap(), "a\\nb\\tc\\u{2028}d");
    }

    #[test]
    fn only_our_own_colours_reach_the_terminal() {
        let text = StyledText::new("state \u{1b}[7m").word(&screen(true), "failed").text(" \u{1b}[7m");
        assert_eq!(text.0, "state \\u{1b}[7m\u{1b}[31mfailed\u{1b}[0m \\u{1b}[7m");
        assert_eq!(StyledText::default().word(&screen(false), "failed").0, "failed");
        assert_eq!(StyledText::default().word(&screen(true), "\u{1b}[1m").0, "\\u{1b}[1m");
    }

    #[test]
    fn a_table_colours_words_and_pads_without_them() {
        let columns = [Column::whole("state"), Column::whole("n")];
        let rows = vec![vec!["failed".into(), "1".into()], vec!["succeeded".into(), "2".into()]];
        let text = screen(true).table_text(&columns, rows);
        assert_eq!(text.0, "STATE      N\n\u{1b}[31mfailed\u{1b}[0m     1\n\u{1b}[32msucceeded\u{1b}[0m  2");
    }
}
