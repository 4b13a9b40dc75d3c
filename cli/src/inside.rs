//! `onward progress`, `quiet` and `result`: said by a job about itself, from any language.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use onward_exec::report::{CommandReport, SOCKET_VARIABLE, send};
use serde_json::value::RawValue;

use crate::failure::CommandFailure;

pub fn progress(units: &str, note: &[String]) -> Result<u8> {
    let (done, total) = parse(units).ok_or_else(|| {
        CommandFailure::new(format!("`{units}` is not progress"))
            .remedy("write the units done, and of how many if you know: `onward progress 3/10`, `onward progress 42`")
            .usage()
    })?;
    let note = (!note.is_empty()).then(|| note.join(" "));
    tell(&CommandReport::Progress { done, total, note })
}

pub fn quiet(at_most: Duration) -> Result<u8> {
    tell(&CommandReport::Quiet { for_ms: u64::try_from(at_most.as_millis()).unwrap_or(u64::MAX) })
}

/// `None` if `text` is no JSON; a job's id never is.
pub fn result(text: &str) -> Option<Result<u8>> {
    let json: Box<RawValue> = serde_json::from_str(text).ok()?;
    Some(tell(&CommandReport::Result(json)))
}

pub fn is_inside() -> bool {
    std::env::var_os(SOCKET_VARIABLE).is_some()
}

fn tell(report: &CommandReport) -> Result<u8> {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else {
        return Err(CommandFailure::new("there is no job to speak for")
            .why(format!("{SOCKET_VARIABLE} is not set: this command works inside a program that Onward runs"))
            .remedy("onward run -- sh -c 'onward progress 1/2; sleep 1; onward progress 2/2'")
            .into());
    };
    send(&PathBuf::from(socket), report).map_err(|error| CommandFailure::new("the report was not taken").why(error))?;
    Ok(0)
}

fn parse(units: &str) -> Option<(u64, Option<u64>)> {
    match units.split_once('/') {
        Some((done, total)) => Some((done.trim().parse().ok()?, Some(total.trim().parse().ok()?))),
        None => Some((units.trim().parse().ok()?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(parse("3/10"), Some((3, Some(10))));
        assert_eq!(parse("42"), Some((42, None)));
        for wrong in ["", "x", "3/", "/3", "-1", "1.5", "3/10/2", "50%"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
