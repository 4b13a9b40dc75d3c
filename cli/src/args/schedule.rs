//! The options of `schedule`.

use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use onward_api::schedule::{MissedWord, OverlapWord};

use super::submit::JobArgs;
use super::words;
use crate::span;

const ADD_EXAMPLES: &str = "\
A schedule that is there gets the new plan; whether it is paused stays as it is.

Examples:
  onward schedule add backup --cron \"0 6 * * *\" --zone Europe/Berlin --critical -- ./backup.sh
  onward schedule add sync --every 10m --overlap queue --kind sync --payload '{\"full\": false}'
  onward schedule add report --cron \"0 8 * * MON\" --missed skip --jitter 5m --timeout 1h -- ./report.sh
";

#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// Add a schedule, or give one that is there another plan
    #[command(after_help = ADD_EXAMPLES)]
    Add(Box<ScheduleArgs>),
    /// List the schedules with their next and last run
    #[command(after_help = "Example:\n  onward schedule list")]
    List(super::PageArgs),
    /// Show a schedule: its plan, its next and last run, and what became of its due instants
    #[command(after_help = "Example:\n  onward schedule show backup")]
    Show {
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// How many records at most
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=256))]
        records: u32,
    },
    /// Start nothing until it is resumed; what runs goes on
    #[command(after_help = "Example:\n  onward schedule pause backup")]
    Pause {
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// Start again what is due
    #[command(after_help = "Example:\n  onward schedule resume backup")]
    Resume {
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// Remove a schedule and its records; what runs goes on
    #[command(after_help = "Example:\n  onward schedule remove backup")]
    Remove {
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// Run it at once, besides the runs that are due; prints the id of the job
    #[command(name = "run-now", after_help = "Example:\n  onward wait $(onward schedule run-now backup)")]
    RunNow {
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// Repeating the command with the same id gives the same run [default: a new one each time]
        #[arg(long, value_name = "ID")]
        request_id: Option<String>,
    },
}

#[derive(Debug, Args)]
#[command(
    override_usage = "onward schedule add [OPTIONS] NAME --cron EXPRESSION|--every DURATION -- CMD...\n       onward schedule add [OPTIONS] NAME --cron EXPRESSION|--every DURATION --kind KIND [--payload JSON|@FILE|-]"
)]
pub struct ScheduleArgs {
    /// What to call it
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub name: String,
    /// When: minute, hour, day of month, month, day of week
    #[arg(long, value_name = "EXPRESSION", required_unless_present = "every", conflicts_with = "every")]
    pub cron: Option<String>,
    /// The time zone of --cron, like Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", conflicts_with = "every")]
    pub zone: Option<String>,
    /// At every multiple of this since 1970
    #[arg(long, value_parser = span::parse, value_name = "DURATION")]
    pub every: Option<Duration>,
    /// While an earlier run has not ended: skip the next, queue it, or allow both [default: skip]
    #[arg(long, value_parser = words::<OverlapWord>(&["skip", "queue", "allow"]))]
    pub overlap: Option<OverlapWord>,
    /// After a stop, of runs that were missed: skip them, run once, or run all [default: once]
    #[arg(long, value_parser = words::<MissedWord>(&["skip", "once", "all"]))]
    pub missed: Option<MissedWord>,
    /// Start up to this much later, so that not all start at one instant
    #[arg(long, value_parser = span::parse, value_name = "DURATION")]
    pub jitter: Option<Duration>,
    /// Show its repeated failure in the node's status and metrics
    #[arg(long)]
    pub critical: bool,
    /// Begin paused
    #[arg(long)]
    pub paused: bool,
    #[command(flatten)]
    pub job: JobArgs,
}
