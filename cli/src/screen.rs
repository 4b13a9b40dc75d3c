//! What is printed, and how: tables and JSON on stdout, all else on stderr. Colours only where somebody looks.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use comfy_table::presets::NOTHING;
use comfy_table::{Cell, Color, ContentArrangement, Table};
use serde_json::Value;

/// How to print, by what was asked for and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    pub json: bool,
    colours: bool,
    /// Bars may be drawn on stderr.
    pub bars: bool,
}

impl Screen {
    pub fn detect(json: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            json,
            colours: wanted && !dumb && io::stdout().is_terminal(),
            bars: !json && !dumb && io::stderr().is_terminal(),
        }
    }

    pub fn line(&self, text: impl AsRef<str>) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(safe(text.as_ref()).as_bytes())?;
        out.write_all(b"\n")?;
        out.flush()?;
        Ok(())
    }

    pub fn json(&self, value: &Value) -> Result<()> {
        self.line(serde_json::to_string_pretty(value)?)
    }

    /// One JSON document a line, for what goes on.
    pub fn json_line(&self, value: &Value) -> Result<()> {
        self.line(value.to_string())
    }

    /// For people, on stderr, so that stdout stays for programs.
    pub fn note(&self, text: impl AsRef<str>) {
        // Nobody can be told that stderr is gone.
        let _ = writeln!(io::stderr(), "{}", safe(text.as_ref()));
    }

    pub fn table(&self, head: &[&str], rows: Vec<Vec<String>>) -> Result<()> {
        self.line(self.lines_of(head, rows).join("\n"))
    }

    /// With an empty line after it; `none` where there are no rows.
    pub fn table_text(&self, head: &[&str], rows: Vec<Vec<String>>) -> String {
        if rows.is_empty() {
            return format!("{}  none\n\n", head.first().map(|name| name.to_uppercase()).unwrap_or_default());
        }
        self.lines_of(head, rows).join("\n") + "\n\n"
    }

    fn lines_of(&self, head: &[&str], rows: Vec<Vec<String>>) -> Vec<String> {
        let mut table = Table::new();
        table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(head.iter().map(|name| Cell::new(name.to_uppercase())));
        for row in rows {
            table.add_row(row.into_iter().zip(head).map(|(text, name)| self.cell(text, name)));
        }
        if let Some(first) = table.column_mut(0) {
            first.set_padding((0, 1));
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    fn cell(&self, text: String, column: &str) -> Cell {
        let colour = if matches!(column, "state" | "verdict" | "outcome") { colour_of(&text) } else { None };
        let cell = Cell::new(text);
        match colour {
            Some(colour) if self.colours => cell.fg(colour),
            _ => cell,
        }
    }

    /// The word in the colour of what it means.
    pub fn coloured(&self, word: &str) -> String {
        let code = match colour_of(word) {
            Some(Color::Green) => "32",
            Some(Color::Red) => "31",
            Some(Color::Yellow) => "33",
            Some(Color::Cyan) => "36",
            _ => return word.to_owned(),
        };
        if self.colours { format!("\u{1b}[{code}m{word}\u{1b}[0m") } else { word.to_owned() }
    }
}

fn colour_of(word: &str) -> Option<Color> {
    match word {
        "succeeded" | "healthy" => Some(Color::Green),
        "failed" | "timed_out" | "stuck" | "suspect" | "evicted" => Some(Color::Red),
        "cancelling" | "cancelled" | "delayed" | "slow" | "degraded" | "paused" => Some(Color::Yellow),
        "running" | "busy" => Some(Color::Cyan),
        _ => None,
    }
}

/// Notes and errors come from anywhere: what would steer the terminal is made visible. Colours are ours and stay.
pub fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let is_colour = || {
            let code = text[at + 1..].strip_prefix('[').and_then(|rest| rest.split_once('m'));
            code.is_some_and(|(digits, _)| digits.len() <= 2 && digits.bytes().all(|byte| byte.is_ascii_digit()))
        };
        match c {
            '\n' | '\t' => out.push(c),
            '\u{1b}' if is_colour() => out.push(c),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_made_visible() {
        assert_eq!(safe("a\tb\nü"), "a\tb\nü");
        assert_eq!(safe("\u{1b}[31mred\u{1b}[0m"), "\u{1b}[31mred\u{1b}[0m");
        assert_eq!(safe("\u{1b}]0;title\u{7}\r\u{1b}[2J"), "\\u{1b}]0;title\\u{7}\\r\\u{1b}[2J");
    }
}
