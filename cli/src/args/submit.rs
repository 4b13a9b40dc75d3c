//! The options of `submit`: one for every field of the contract.

use std::time::Duration;

use clap::Args;
use onward_api::submit::OnStuckWord;

use super::words;
use crate::span;

pub const EXAMPLES: &str = "\
Examples:
  onward submit -- pg_dump -f /backups/db.sql shop
  onward submit --wait --timeout 1h --stuck-after 2m -- ./import.sh
  onward submit --kind transcode --payload '{\"file\": \"a.mov\"}' --queue media --limit gpu=2
  onward submit --kind report --payload @report.json --delay 10m --idempotency-key 2026-11
  onward submit --file jobs.jsonl
";

/// Every option but `--file`: each would be about one job, and a file has many.
const NOT_WITH_A_FILE: [&str; 24] = [
    "kind",
    "payload",
    "queue",
    "priority",
    "timeout",
    "stuck_after",
    "on_stuck",
    "require_progress",
    "delay",
    "run_at",
    "retries",
    "limits",
    "ordered",
    "unique_key",
    "idempotency_key",
    "datacenters",
    "tags",
    "headers",
    "retain",
    "env",
    "cwd",
    "logs",
    "wait",
    "command",
];

/// Of what waits for a job.
macro_rules! exit_codes {
    () => {
        "Exit code: 0 succeeded, 124 timed out or stuck; of a command that failed its own, 126 not executable, 127 not found,\n\
         128+n ended by signal n; 1 for anything else."
    };
}
pub(super) use exit_codes;

/// What a job is: of `submit`, and of the runs of a schedule.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// The kind of handler that runs it; leave it out to run a command
    #[arg(long, conflicts_with = "command")]
    pub kind: Option<String>,
    /// What the handler gets: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON|@FILE|-", conflicts_with = "command", allow_hyphen_values = true)]
    pub payload: Option<String>,
    /// The queue [default: default]
    #[arg(long)]
    pub queue: Option<String>,
    /// From -100 to 100; higher goes first
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-100..=100))]
    pub priority: Option<i32>,
    /// The whole job ends after this long, wherever it is; queueing counts
    #[arg(long, value_parser = span::parse_limit, value_name = "DURATION")]
    pub timeout: Option<Duration>,
    /// An attempt without a forward step for this long is stuck
    #[arg(long, value_parser = span::parse_limit, value_name = "DURATION")]
    pub stuck_after: Option<Duration>,
    /// What follows a stuck attempt: another one, or the end of the job
    #[arg(long, value_parser = words::<OnStuckWord>(&["retry", "time_out"]))]
    pub on_stuck: Option<OnStuckWord>,
    /// Only reported progress counts as a forward step; a beat alone does not
    #[arg(long)]
    pub require_progress: bool,
    /// Wait this long before running
    #[arg(long, value_parser = span::parse, value_name = "DURATION")]
    pub delay: Option<Duration>,
    /// How many more attempts if one fails [default: 0 for a command; for a kind, the node's retry policy]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=999))]
    pub retries: Option<u32>,
    /// Run at most MAX workflows with this KEY at a time; may be repeated
    #[arg(long = "limit", value_name = "KEY=MAX", value_parser = limit)]
    pub limits: Vec<(String, u32)>,
    /// Run workflows with this KEY one at a time: one that has begun keeps KEY until it has ended, also while it waits
    /// for its next attempt, so that none overtakes it; may be repeated
    #[arg(long, value_name = "KEY")]
    pub ordered: Vec<String>,
    /// Refuse while another job with this key has not ended
    #[arg(long, value_name = "KEY")]
    pub unique_key: Option<String>,
    /// A tag to find it by; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// A header that travels with the job; may be repeated
    #[arg(long = "header", value_name = "KEY=VALUE", value_parser = pair)]
    pub headers: Vec<(String, String)>,
    /// Keep it this long after its end
    #[arg(long, value_parser = span::parse, value_name = "DURATION")]
    pub retain: Option<Duration>,
    /// A variable for the command; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair, conflicts_with = "kind")]
    pub env: Vec<(String, String)>,
    /// Where the command runs [default: here]
    #[arg(long, value_name = "DIR", conflicts_with = "kind")]
    pub cwd: Option<std::path::PathBuf>,
    /// The command to run, after `--`
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "onward submit [OPTIONS] -- CMD...\n       onward submit [OPTIONS] --kind KIND [--payload JSON|@FILE|-]\n       onward submit --file FILE"
)]
pub struct SubmitArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// Wait until this instant before running, like 2026-11-16T08:00:00Z
    #[arg(long, value_name = "INSTANT", conflicts_with = "delay")]
    pub run_at: Option<jiff::Timestamp>,
    /// The same key and job again give the same id [default: a new one each time]
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// At a gate: a datacenter to run it in; may be repeated [default: one that the gate chooses]
    #[arg(long = "datacenter", value_name = "NAME")]
    pub datacenters: Vec<String>,
    /// Submit every job in a file, one JSON object a line as for `POST /v1/jobs`, or - for stdin; prints an id for each.
    /// A line says all about its job: no other option of `submit` goes with this one
    #[arg(long, value_name = "FILE|-", conflicts_with_all = NOT_WITH_A_FILE)]
    pub file: Option<String>,
    /// Print what its attempts print while waiting
    #[arg(long, requires = "wait")]
    pub logs: bool,
    /// Follow it, and exit as it ended; `onward wait --help` lists the exit codes
    #[arg(long)]
    pub wait: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".into()),
    }
}

fn limit(text: &str) -> Result<(String, u32), String> {
    let wrong = || "write it as KEY=MAX with MAX at least 1, like gpu=2".to_owned();
    let (key, max) = text.rsplit_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(wrong)?;
    match max.parse() {
        Ok(max) if max > 0 => Ok((key.to_owned(), max)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_option_goes_with_a_file() {
        let submit = SubmitArgs::augment_args(clap::Command::new("submit"));
        let mut others: Vec<&str> =
            submit.get_arguments().map(|arg| arg.get_id().as_str()).filter(|id| *id != "file").collect();
        let mut refused = NOT_WITH_A_FILE.to_vec();
        others.sort_unstable();
        refused.sort_unstable();
        assert_eq!(others, refused);
    }

    #[test]
    fn limits_and_pairs_are_read_or_refused() {
        assert_eq!(limit("gpu=2"), Ok(("gpu".into(), 2)));
        assert_eq!(limit("tenant=a=3"), Ok(("tenant=a".into(), 3)));
        for wrong in ["gpu", "gpu=", "gpu=0", "=2", "gpu=-1"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(pair("a="), Ok(("a".into(), String::new())));
        assert!(pair("=b").is_err() && pair("a").is_err());
    }
}
