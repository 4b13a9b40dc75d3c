//! Server-sent events, as far as models use them: lines of data. What the crates for it lack is a bound on a line.

use super::ModelError;

/// Longest line. A chunk of an answer has a few hundred bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Bytes in, data of events out.
#[derive(Debug, Default)]
pub(crate) struct Events {
    line: Vec<u8>,
    data: Vec<String>,
}

impl Events {
    /// Appends the data of the events that these bytes complete, up to what is wrong in them.
    pub fn feed(&mut self, bytes: &[u8], events: &mut Vec<String>) -> Result<(), ModelError> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.line.len() + part.len() > MAX_LINE_BYTES {
                return Err(ModelError::Malformed { why: format!("a line of more than {MAX_LINE_BYTES} bytes") });
            }
            self.line.extend_from_slice(part);
            if self.line.last() == Some(&b'\n') {
                let line = core::mem::take(&mut self.line);
                self.end_line(line.trim_ascii_end(), events)?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self, line: &[u8], events: &mut Vec<String>) -> Result<(), ModelError> {
        if line.is_empty() {
            if !self.data.is_empty() {
                events.push(core::mem::take(&mut self.data).join("\n"));
            }
            return Ok(());
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            let text = core::str::from_utf8(data.trim_ascii_start());
            let text = text.map_err(|_| ModelError::Malformed { why: "an event is not UTF-8".into() })?;
            self.data.push(text.to_owned());
            let kept: usize = self.data.iter().map(String::len).sum();
            if kept > MAX_LINE_BYTES {
                return Err(ModelError::Malformed { why: format!("an event of more than {MAX_LINE_BYTES} bytes") });
            }
        }
        // Other fields and comments say nothing that is needed here; a comment is a sign of a timer, not of work.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let text = b": ping\r\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:one\ndata: two\n\n\n\ndata: [DONE]\n\ndata: half";
        for cut in 0..text.len() {
            let (mut events, mut all) = (Events::default(), Vec::new());
            events.feed(&text[..cut], &mut all).unwrap();
            events.feed(&text[cut..], &mut all).unwrap();
            assert_eq!(all, ["{\"a\":1}", "one\ntwo", "[DONE]"], "cut at {cut}");
        }
    }

    #[test]
    fn a_line_or_an_event_without_end_is_refused() {
        let (mut events, mut all) = (Events::default(), Vec::new());
        let piece = [b'x'; 64 << 10];
        assert!((0..17).any(|_| events.feed(&piece, &mut all).is_err()));
        let mut events = Events::default();
        let line = [b"data: ".as_slice(), &piece, b"\n"].concat();
        assert!((0..17).any(|_| events.feed(&line, &mut all).is_err()));
        assert!(Events::default().feed(b"data: a\n\ndata: \xff\n", &mut all).is_err());
        assert_eq!(all, ["a"], "what came before it");
    }
}
