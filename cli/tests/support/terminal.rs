//! A terminal of a certain size, and what can be seen on it in the end.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::process::until;
use super::{PATIENCE, end};

pub const LINES: u16 = 60;

/// A program that has a terminal for its input and output.
pub struct Terminal {
    pub child: Child,
    columns: u16,
    written: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
    keyboard: std::fs::File,
}

impl Terminal {
    pub fn start(mut command: Command, columns: u16) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&ours).expect("it is ours");
        unlockpt(&ours).expect("it is ours");
        let size = Winsize { ws_row: LINES, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&ours, size).expect("a size");
        let name = ptsname(&ours, Vec::new()).expect("a name").into_string().expect("text");
        let theirs: OwnedFd =
            std::fs::File::options().read(true).write(true).open(name).expect("the other side").into();
        let again = || theirs.try_clone().expect("a handle");
        let child = command
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(again())
            .stdout(again())
            .stderr(again())
            .spawn()
            .expect("the binary is there");
        // The command keeps what it was given, and while we had one open there would be no end.
        drop((command, theirs));
        let keyboard = std::fs::File::from(ours.try_clone().expect("a handle"));
        let (send, written) = channel();
        std::thread::spawn(move || {
            let mut terminal = std::fs::File::from(ours);
            let mut buffer = [0; 4096];
            loop {
                match terminal.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(count) => {
                        if send.send(buffer[..count].to_vec()).is_err() {
                            return;
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // That is how a terminal says that the other side is closed.
                    Err(_) => return,
                }
            }
        });
        Self { child, columns, written, bytes: Vec::new(), keyboard }
    }

    /// Waits until this can be seen.
    pub async fn shows(&mut self, what: &str) -> ScreenText {
        until(&format!("`{what}` on the terminal"), PATIENCE, async || {
            self.bytes.extend(self.written.try_iter().flatten());
            Some(self.seen()).filter(|seen| seen.text().contains(what))
        })
        .await
    }

    /// The exit code, and the screen at the end.
    pub async fn ended(&mut self) -> (Option<i32>, ScreenText) {
        let code = super::process::ended(&mut self.child, PATIENCE).await;
        // The reader stops at the end, and with it this.
        self.bytes.extend(self.written.iter().flatten());
        (code, self.seen())
    }

    /// Enters text as if somebody typed it.
    pub fn enter(&mut self, text: &str) {
        self.keyboard.write_all(format!("{text}\n").as_bytes()).expect("the terminal is open");
    }

    /// Everything that was written.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn seen(&self) -> ScreenText {
        ScreenText::of(&self.raw(), usize::from(self.columns))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// The picture on a terminal.
#[derive(Clone, Default, Debug)]
pub struct ScreenText {
    pub lines: Vec<String>,
    /// A line was longer than the terminal is wide.
    pub is_wrapped: bool,
    /// A colour was set.
    pub has_colour: bool,
}

impl ScreenText {
    /// Reads as much of a terminal as our own output needs; anything else is a mistake.
    fn of(written: &str, columns: usize) -> Self {
        let mut seen = Self::default();
        let (mut line, mut column) = (0, 0);
        let mut rest = written.chars();
        while let Some(c) = rest.next() {
            match c {
                '\r' => column = 0,
                '\n' => (line, column) = (line + 1, 0),
                '\u{1b}' => {
                    assert_eq!(rest.next(), Some('['), "an escape that we do not use in {written:?}");
                    let (mut code, mut last) = (String::new(), None);
                    for c in rest.by_ref() {
                        match c {
                            '0'..='9' | ';' => code.push(c),
                            other => {
                                last = Some(other);
                                break;
                            }
                        }
                    }
                    match last {
                        Some('m') => seen.has_colour |= code != "0",
                        Some('K') => seen.cut(line, column),
                        Some('H') if code.is_empty() => (line, column) = (0, 0),
                        Some('J') if code.is_empty() => {
                            seen.cut(line, column);
                            seen.lines.truncate(line + 1);
                        }
                        // Part of a sequence that is not all there yet.
                        None => {}
                        other => panic!("ESC [ {code} {other:?} in {written:?}"),
                    }
                }
                c => {
                    if column == columns {
                        seen.is_wrapped = true;
                        (line, column) = (line + 1, 0);
                    }
                    let row = seen.row(line);
                    let mut letters: Vec<char> = row.chars().collect();
                    letters.resize(letters.len().max(column + 1), ' ');
                    letters[column] = c;
                    *row = letters.into_iter().collect();
                    column += 1;
                }
            }
        }
        seen
    }

    /// Columns count letters here: the tests write no wide ones.
    fn row(&mut self, line: usize) -> &mut String {
        if self.lines.len() <= line {
            self.lines.resize(line + 1, String::new());
        }
        &mut self.lines[line]
    }

    fn cut(&mut self, line: usize, column: usize) {
        let row = self.row(line);
        *row = row.chars().take(column).collect();
    }

    pub fn text(&self) -> String {
        self.lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }
}
