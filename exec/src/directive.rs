//! Directives: what a command says to Onward in its own output.
//!
//! A line `@onward progress 3/10 note…`, `@onward progress 42` or `@onward quiet 120` on stdout is taken out of the
//! output and understood. Anything else, whatever it looks like, is output and goes through byte for byte.

use std::time::Duration;

use onward_api::span;

const PREFIX: &[u8] = b"@onward ";

/// A longer line is output. It bounds what is held back while its end has not come.
pub const MAX_DIRECTIVE_BYTES: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directive {
    Progress { done: u64, total: Option<u64>, note: Option<String> },
    Quiet(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Output(Vec<u8>),
    Directive(Directive),
}

/// Cuts a stream of bytes into output and directives, in their order.
///
/// A partial line is passed on at once, so that prompts and dots show, unless it may still become a directive.
#[derive(Debug, Default)]
pub struct Splitter {
    /// The start of a line that may become a directive.
    held: Vec<u8>,
    /// The line under way is output for certain.
    is_output: bool,
}

impl Splitter {
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<Piece>) {
        let mut rest = chunk;
        while let Some(&first) = rest.first() {
            let end = rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |at| at + 1);
            if self.is_output || (self.held.is_empty() && first != PREFIX[0]) {
                let (line, after) = rest.split_at(end);
                output(line, out);
                self.is_output = !line.ends_with(b"\n");
                rest = after;
            } else {
                let room = MAX_DIRECTIVE_BYTES + 1 - self.held.len();
                let (line, after) = rest.split_at(end.min(room));
                self.held.extend_from_slice(line);
                self.judge(out);
                rest = after;
            }
        }
    }

    /// The stream is over: what is still held back is a directive without a line end, or output.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        emit(held, out);
        self.is_output = false;
    }

    fn judge(&mut self, out: &mut Vec<Piece>) {
        let is_whole = self.held.ends_with(b"\n");
        let may_become_one = self.held.starts_with(PREFIX) || PREFIX.starts_with(&self.held);
        if may_become_one && !is_whole && self.held.len() <= MAX_DIRECTIVE_BYTES {
            return;
        }
        let line = std::mem::take(&mut self.held);
        if is_whole {
            emit(line, out);
        } else {
            self.is_output = true;
            output(&line, out);
        }
    }
}

fn emit(line: Vec<u8>, out: &mut Vec<Piece>) {
    match parse(&line) {
        Some(directive) => out.push(Piece::Directive(directive)),
        None => output(&line, out),
    }
}

fn output(bytes: &[u8], out: &mut Vec<Piece>) {
    match out.last_mut() {
        _ if bytes.is_empty() => {}
        Some(Piece::Output(last)) => last.extend_from_slice(bytes),
        _ => out.push(Piece::Output(bytes.to_vec())),
    }
}

/// Reads a line, with or without its end.
fn parse(line: &[u8]) -> Option<Directive> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line.strip_prefix(PREFIX)?).ok()?;
    let (verb, rest) = text.split_once(' ')?;
    match verb {
        "progress" => {
            let (count, note) = rest.split_once(' ').unwrap_or((rest, ""));
            let (done, total) = progress(count)?;
            let note = Some(note.trim()).filter(|note| !note.is_empty()).map(str::to_owned);
            Some(Directive::Progress { done, total, note })
        }
        "quiet" => span::parse_or_seconds(rest.trim_end()).ok().map(Directive::Quiet),
        _ => None,
    }
}

/// `3/10` or `42`: units done, and how many there are if that is known.
pub fn progress(text: &str) -> Option<(u64, Option<u64>)> {
    let number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?;
    match text.split_once('/') {
        Some((done, total)) => Some((number(done)?, Some(number(total)?))),
        None => Some((number(text)?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn split(chunks: &[&[u8]]) -> Vec<Piece> {
        let (mut splitter, mut out) = (Splitter::default(), Vec::new());
        for chunk in chunks {
            splitter.push(chunk, &mut out);
        }
        splitter.finish(&mut out);
        out
    }

    fn step(done: u64, total: Option<u64>, note: Option<&str>) -> Piece {
        Piece::Directive(Directive::Progress { done, total, note: note.map(str::to_owned) })
    }

    fn quiet(ms: u64) -> Piece {
        Piece::Directive(Directive::Quiet(Duration::from_millis(ms)))
    }

    #[test]
    fn well_formed_lines_are_directives() {
        for (line, directive) in [
            ("@onward progress 3/10 half of it\n", step(3, Some(10), Some("half of it"))),
            ("@onward progress 42\n", step(42, None, None)),
            ("@onward progress 42 left\r\n", step(42, None, Some("left"))),
            ("@onward progress 18446744073709551615", step(u64::MAX, None, None)),
            ("@onward quiet 120\n", quiet(120_000)),
            ("@onward quiet 0.25\n", quiet(250)),
            ("@onward quiet 2m\n", quiet(120_000)),
        ] {
            assert_eq!(split(&[line.as_bytes()]), [directive], "{line:?}");
        }
    }

    #[test]
    fn all_else_is_output() {
        let long = format!("@onward progress 1 {}\n", "x".repeat(MAX_DIRECTIVE_BYTES));
        for line in [
            "@onward\n",
            "@onward \n",
            "@onward progress\n",
            "@onward progress x\n",
            "@onward progress +3\n",
            "@onward progress -3\n",
            "@onward progress 3/\n",
            "@onward progress /3\n",
            "@onward progress 3/4/5\n",
            "@onward progress 18446744073709551616\n",
            "@onward quiet\n",
            "@onward quiet soon\n",
            "@onward quiet -1\n",
            "@onward quiet inf\n",
            "@onward result {}\n",
            "@onwards progress 1\n",
            " @onward progress 1\n",
            "x@onward progress 1\n",
            "@onward  progress 1\n",
            long.as_str(),
        ] {
            assert_eq!(split(&[line.as_bytes()]), [Piece::Output(line.as_bytes().to_vec())], "{line:?}");
        }
        let not_text = b"@onward progress 1 \xff\n";
        assert_eq!(split(&[not_text]), [Piece::Output(not_text.to_vec())]);
    }

    #[test]
    fn order_is_kept_and_a_directive_takes_its_line_end_along() {
        let pieces = split(&[b"a\n@onward progress 1\nb\n@onward progress 2\n@onward progress 3\n@on"]);
        let output = |bytes: &[u8]| Piece::Output(bytes.to_vec());
        let expected = [output(b"a\n"), step(1, None, None), output(b"b\n"), step(2, None, None), step(3, None, None)];
        assert_eq!(pieces[..5], expected);
        assert_eq!(pieces[5..], [output(b"@on")]);
    }

    #[test]
    fn a_partial_line_is_not_held_back_unless_it_may_become_a_directive() {
        let (mut splitter, mut out) = (Splitter::default(), Vec::new());
        for (chunk, passed) in [
            ("Name: ", "Name: "),
            ("@onward ", "Name: @onward "),
            ("\n", "Name: @onward \n"),
            ("@onw", ""),
            ("!", "@onw!"),
        ] {
            if chunk == "@onw" {
                out.clear();
            }
            splitter.push(chunk.as_bytes(), &mut out);
            let seen: Vec<u8> = out
                .iter()
                .flat_map(|piece| match piece {
                    Piece::Output(bytes) => bytes.clone(),
                    Piece::Directive(_) => panic!("no directive in here"),
                })
                .collect();
            assert_eq!(String::from_utf8_lossy(&seen), passed);
        }
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        let (mut splitter, mut out) = (Splitter::default(), Vec::new());
        splitter.push(b"@onward progress 1 ", &mut out);
        for _ in 0..10 * MAX_DIRECTIVE_BYTES {
            splitter.push(b"x", &mut out);
            assert!(splitter.held.len() <= MAX_DIRECTIVE_BYTES);
        }
        assert_eq!(out.len(), 1);
    }

    /// Text in which directives, near misses and binary are all likely.
    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"@onward ".to_vec()),
            Just(b"@onward progress 3/10\n".to_vec()),
            Just(b"@onward quiet 1.5\n".to_vec()),
            Just(b"@onward progress ".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"@".to_vec()),
            Just(vec![b'y'; MAX_DIRECTIVE_BYTES]),
            vec(any::<u8>(), 0..20),
        ];
        vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn chunking_does_not_change_the_result(bytes in stream(), cuts in vec(any::<prop::sample::Index>(), 0..20)) {
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let chunks: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(split(&chunks), split(&[&bytes]));
        }

        #[test]
        fn without_directives_output_is_input(bytes in vec(any::<u8>(), 0..4000)) {
            let expected = if bytes.is_empty() { vec![] } else { vec![Piece::Output(bytes.clone())] };
            prop_assert_eq!(split(&[&bytes]), expected);
        }

        #[test]
        fn only_directive_lines_are_missing_from_the_output(bytes in stream()) {
            let rest: Vec<u8> = bytes
                .split_inclusive(|&byte| byte == b'\n')
                .filter(|line| line.len() > MAX_DIRECTIVE_BYTES + 1 || parse(line).is_none())
                .flatten()
                .copied()
                .collect();
            let out: Vec<u8> = split(&[&bytes])
                .into_iter()
                .flat_map(|piece| if let Piece::Output(bytes) = piece { bytes } else { vec![] })
                .collect();
            prop_assert_eq!(out, rest);
        }
    }
}
