//! The options of `onward outbox`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::work::LogArgs;
use crate::span;

#[derive(Debug, Subcommand)]
pub enum OutboxCommand {
    /// Publish the rows of an outbox, until Ctrl-C; any number of these share the work
    #[command(after_help = "\
Where to: `nats:127.0.0.1:4222` (JetStream; the topic is the subject), or `onward:http://127.0.0.1:7400` (each row a job; the
topic is its kind). The table onward_outbox is made if there is none.

Examples:
  onward outbox run --database postgres://app@db/shop --to nats:127.0.0.1:4222 --probes 127.0.0.1:8081
  onward outbox run --database sqlite:/var/lib/shop/shop.db --to onward:http://127.0.0.1:7400")]
    Run(Box<OutboxRunArgs>),
    /// List the rows that are not published yet, the oldest first
    #[command(after_help = "Examples:\n  onward outbox list --database postgres://app@db/shop\n  \
                            onward outbox list --database sqlite:shop.db --parked --json")]
    List(OutboxListArgs),
    /// Try parked rows again, with all their attempts
    #[command(after_help = "Examples:\n  onward outbox replay --database postgres://app@db/shop 1731 1740\n  \
                            onward outbox replay --database postgres://app@db/shop --topic orders.paid --yes")]
    Replay(OutboxRowsArgs),
    /// Delete parked rows, unpublished; rows of their keys go on
    #[command(after_help = "Examples:\n  onward outbox drop --database postgres://app@db/shop 1731\n  \
                            onward outbox drop --database postgres://app@db/shop --key order-17 --dry-run")]
    Drop(OutboxRowsArgs),
    /// Print the SQL that makes the table, for your own migrations
    #[command(
        after_help = "Examples:\n  onward outbox schema > migrations/0042_outbox.sql\n  onward outbox schema sqlite"
    )]
    Schema {
        /// For which database
        #[arg(value_name = "DATABASE", value_parser = ["postgres", "sqlite"], default_value = "postgres")]
        database: String,
        /// With the trigger that wakes listening pollers, on PostgreSQL
        #[arg(long)]
        notify: bool,
    },
}

#[derive(Debug, Args)]
pub struct DatabaseArgs {
    /// The database that the outbox is in: `postgres://…`, or `sqlite:` and a file
    #[arg(long, value_name = "URL", env = "ONWARD_DATABASE", hide_env_values = true)]
    pub database: String,
}

#[derive(Debug, Args)]
pub struct OutboxRunArgs {
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// Where rows go: `nats:URL` or `onward:URL`
    #[arg(long, value_name = "WHERE")]
    pub to: String,
    /// How often to look when nothing was due
    #[arg(long, value_parser = poll, value_name = "DURATION", default_value = "1s")]
    pub poll: Duration,
    /// Wake up when rows are committed, by LISTEN on this URL: the database's own, not a pooler's. The table needs the
    /// trigger that `onward outbox schema --notify` prints
    #[arg(long, value_name = "URL", env = "ONWARD_DATABASE_DIRECT", hide_env_values = true)]
    pub listen: Option<String>,
    /// How many rows to claim at a time
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// For how long claimed rows are ours; rows of a process that was killed wait that long. At least 1s
    #[arg(long, value_parser = lease, value_name = "DURATION", default_value = "30s")]
    pub lease: Duration,
    /// How often a row that is refused is tried before it is parked
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub max_attempts: u32,
    /// What a parked row does to later rows of its key: they wait, or go on without it
    #[arg(long, value_parser = ["hold", "skip"], default_value = "hold", value_name = "WHAT")]
    pub on_poison: String,
    /// Keep published rows for this long, in the table onward_outbox_published, instead of deleting them
    #[arg(long, value_parser = span::parse, value_name = "DURATION")]
    pub keep: Option<Duration>,
    /// How old a row may become before this is not ready
    #[arg(long, value_parser = span::parse, value_name = "DURATION", default_value = "5m")]
    pub oldest: Duration,
    /// How many rows may be parked before this is not ready
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub max_parked: u64,
    /// How long one success lasts
    #[arg(long, value_parser = span::parse, value_name = "DURATION", default_value = "60s")]
    pub freshness: Duration,
    /// The longest pause while the publisher or the database is unavailable [default: half of --freshness, 30s at most]
    #[arg(long, value_parser = span::parse, value_name = "DURATION")]
    pub max_backoff: Option<Duration>,
    /// Answer /livez, /readyz, /startupz, /status and /metrics here
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub probes: Option<String>,
    /// A file that is there while this is ready
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    #[command(flatten)]
    pub log: LogArgs,
}

/// A claim that is shorter would end while its rows are on their way.
fn lease(text: &str) -> Result<Duration, String> {
    at_least(Duration::from_secs(1), text)
}

/// Without a wait, an outbox in which nothing is due would be asked without end.
fn poll(text: &str) -> Result<Duration, String> {
    at_least(Duration::from_millis(1), text)
}

fn at_least(least: Duration, text: &str) -> Result<Duration, String> {
    match span::parse(text) {
        Ok(given) if given < least => Err(format!("shorter than {least:?}")),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

/// Which rows; what is not given matches all.
#[derive(Clone, Debug, Args)]
pub struct RowsArgs {
    /// Only rows of this topic
    #[arg(long)]
    pub topic: Option<String>,
    /// Only rows of this key
    #[arg(long)]
    pub key: Option<String>,
}

#[derive(Debug, Args)]
pub struct OutboxListArgs {
    #[command(flatten)]
    pub database: DatabaseArgs,
    #[command(flatten)]
    pub rows: RowsArgs,
    /// Only rows that were given up on
    #[arg(long)]
    pub parked: bool,
    /// How many at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    /// Go on where an earlier list ended
    #[arg(long, value_name = "ID", default_value_t = 0, hide_default_value = true)]
    pub cursor: i64,
}

#[derive(Debug, Args)]
pub struct OutboxRowsArgs {
    /// The rows
    pub ids: Vec<i64>,
    #[command(flatten)]
    pub database: DatabaseArgs,
    #[command(flatten)]
    pub rows: RowsArgs,
    /// Every parked row, where no filter is given
    #[arg(long)]
    pub all: bool,
    /// Change nothing: only say which rows it would be
    #[arg(long)]
    pub dry_run: bool,
    /// Do it; needed where rows are not named one by one
    #[arg(long)]
    pub yes: bool,
}
