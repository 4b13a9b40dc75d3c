//! Reports from inside a job: `onward progress`, `onward quiet` and `onward result` say them to the attempt's socket.
//!
//! One JSON line per report, one line in answer, so that the command can tell its caller what was wrong. Any process of
//! the job may connect, as often as it likes. The guard has a connection of its own that a job cannot reach.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::wire;

/// The variable that tells a job where its socket is.
pub const SOCKET_VARIABLE: &str = "ONWARD_SOCKET";

/// The largest result.
pub const MAX_RESULT_BYTES: usize = 1024 * 1024;

/// A result with room for what is around it.
pub(crate) const MAX_LINE_BYTES: usize = MAX_RESULT_BYTES + 4096;

/// An attempt answers at once, unless whoever reads its events is far behind.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CommandReport {
    Progress { done: u64, total: Option<u64>, note: Option<String> },
    Quiet { for_ms: u64 },
    Result(Box<RawValue>),
}

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("cannot reach the attempt at {}: {source}; reports work only inside a job, while it runs", .path.display())]
    Unreachable { path: PathBuf, source: io::Error },
    #[error("the attempt did not answer: {0}; it may have ended")]
    NoAnswer(io::Error),
    #[error("{0}")]
    Refused(String),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReportAnswer {
    Noted,
    Refused(String),
}

/// Says one thing to the attempt and waits until it has taken it.
pub fn send(socket: &Path, report: &CommandReport) -> Result<(), ReportError> {
    report.check().map_err(ReportError::Refused)?;
    let mut stream =
        UnixStream::connect(socket).map_err(|source| ReportError::Unreachable { path: socket.to_owned(), source })?;
    match ask(&mut stream, report).map_err(ReportError::NoAnswer)? {
        ReportAnswer::Noted => Ok(()),
        ReportAnswer::Refused(why) => Err(ReportError::Refused(why)),
    }
}

fn ask(stream: &mut UnixStream, report: &CommandReport) -> io::Result<ReportAnswer> {
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(&wire::encode_line(report)?)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&answer)?)
}

impl CommandReport {
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let report: Self = serde_json::from_slice(line).map_err(|error| format!("this is not a report: {error}"))?;
        report.check()?;
        Ok(report)
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Result(json) if json.get().len() > MAX_RESULT_BYTES => Err(format!(
                "the result has {} bytes, and {MAX_RESULT_BYTES} is the most; store it elsewhere and give its address",
                json.get().len()
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_they_are_written() {
        for line in [
            r#"{"progress":{"done":3,"total":10,"note":"half"}}"#,
            r#"{"progress":{"done":3,"total":null,"note":null}}"#,
            r#"{"quiet":{"for_ms":2000}}"#,
            r#"{"result":{"b": 1,  "a":[1.10]}}"#,
        ] {
            let report = CommandReport::parse(line.as_bytes()).expect(line);
            assert_eq!(serde_json::to_string(&report).expect("json"), line);
        }
        for line in [r#"{"progress":{"done":3,"totl":10}}"#, r#"{"quiet":{"for_ms":-1}}"#, "", "stop", r#"{"kill":1}"#]
        {
            CommandReport::parse(line.as_bytes()).expect_err(line);
        }
    }

    #[test]
    fn a_result_is_bounded() {
        let result = |bytes: usize| format!(r#"{{"result":"{}"}}"#, "x".repeat(bytes - 2));
        CommandReport::parse(result(MAX_RESULT_BYTES).as_bytes()).expect("just fits");
        let text = CommandReport::parse(result(MAX_RESULT_BYTES + 1).as_bytes()).expect_err("one too many");
        assert!(text.contains("1048577"), "{text}");
    }
}
