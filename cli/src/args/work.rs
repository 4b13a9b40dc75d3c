//! The options of what runs commands: `run`, `worker`, `up`; and of `probe`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::span;

pub const RUN_EXAMPLES: &str = "\
Examples:
  onward run -- ./import.sh
  onward run --timeout 1h --stuck-after 5m -- pg_dump -f shop.sql shop
  onward run --retries 3 --report report.json -- make test

What counts as a forward step: output, and CPU time or I/O of the command and its child processes. From its first report
on (`onward progress 3/10` inside, or a line `@onward progress 3/10` on its stdout) only a higher number counts.

Exit code: the command's own; 124 timed out or stuck, 125 Onward itself failed, 126 not executable, 127 not found,
128+n ended by signal n.
";

/// How commands are run.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// What counts as a beat of a command: its output alone, or also CPU time and I/O of its process tree
    #[arg(long, value_parser = ["activity", "output"], default_value = "activity")]
    pub beats: String,
    /// Take no directives from what commands print (lines like `@onward progress 3/10`): for output that is not trusted
    #[arg(long)]
    pub no_directives: bool,
    /// From SIGTERM to SIGKILL, when a command must end
    #[arg(long, value_parser = span::parse, value_name = "DURATION", default_value = "10s")]
    pub grace: Duration,
}

impl Default for ExecArgs {
    fn default() -> Self {
        Self { beats: "activity".into(), no_directives: false, grace: Duration::from_secs(10) }
    }
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// End it after this long, whatever it does
    #[arg(long, value_parser = span::parse_limit, value_name = "DURATION")]
    pub timeout: Option<Duration>,
    /// End it when it makes no forward step for this long [default: 2m]
    #[arg(long, value_parser = span::parse_limit, value_name = "DURATION")]
    pub stuck_after: Option<Duration>,
    /// How many more times to try, with growing pauses, if it fails or is stuck
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=999))]
    pub retries: u32,
    /// Write what happened to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub exec: ExecArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub struct LogArgs {
    /// How log lines are written to stderr; `ONWARD_LOG` says from which level on
    #[arg(long, env = "ONWARD_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The node that gives out the work; may be repeated for a cluster, of which any will do [default: --server]
    #[arg(long = "manager", value_name = "URL")]
    pub managers: Vec<String>,
    /// How many commands to run at a time [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub slots: Option<u32>,
    /// From which queue; may be repeated [default: default]
    #[arg(long = "queue", value_name = "QUEUE")]
    pub queues: Vec<String>,
    /// What the worker is called, over restarts [default: the host's name and the process id]
    #[arg(long, value_name = "NAME")]
    pub id: Option<String>,
    /// How long the worker may take to end after Ctrl-C; commands that still run shortly before are stopped and given back
    #[arg(long, value_parser = span::parse, value_name = "DURATION", default_value = "30s")]
    pub drain: Duration,
    #[command(flatten)]
    pub log: LogArgs,
    #[command(flatten)]
    pub exec: ExecArgs,
}

#[derive(Debug, Args)]
#[command(override_usage = "onward probe --file FILE --max-age DURATION\n       onward probe --url URL")]
pub struct ProbeArgs {
    /// A file that its owner touches while all is well
    #[arg(long, value_name = "FILE", requires = "max_age", conflicts_with = "url")]
    pub file: Option<PathBuf>,
    /// How old the file may be
    #[arg(long, value_parser = span::parse, value_name = "DURATION", requires = "file")]
    pub max_age: Option<Duration>,
    /// An address that answers 200 while all is well
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
}
