//! The command line as it is written. Every command says what it does and shows an example.

mod certs;
mod outbox;
mod schedule;
mod submit;
mod work;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use onward::client::Page;
use onward_api::dead_letter::ReplayFromWord;
use serde::de::DeserializeOwned;

use crate::demo::Sabotage;
use crate::span;
pub use certs::{CertsCommand, NodeCertArgs};
pub use outbox::{OutboxCommand, OutboxListArgs, OutboxRowsArgs, OutboxRunArgs, RowsArgs};
pub use schedule::{ScheduleArgs, ScheduleCommand};
pub use submit::{JobArgs, SubmitArgs};
pub use work::{ExecArgs, LogArgs, LogFormat, ProbeArgs, RunArgs, WorkerArgs};

/// Under which heading the options stand that every command takes.
const COMMON: &str = "Common options";

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7400";

#[derive(Debug, Parser)]
#[command(
    name = "onward",
    version,
    about = "A job platform in which health means forward progress",
    after_help = "Examples:\n  onward submit -- ./backup.sh\n  onward list --state running\n  onward explain ID\n\n\
                  Exit codes: 0 done, 1 failed, 2 wrong usage. `onward COMMAND --help` says more.",
    disable_help_subcommand = true,
    propagate_version = true
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: CliCommand,
}

#[derive(Debug, Args)]
pub struct Global {
    /// The node to talk to; several of a cluster, with commas between them, of which any will do
    #[arg(long, global = true, help_heading = COMMON, env = "ONWARD_SERVER", default_value = DEFAULT_SERVER, value_name = "URL")]
    pub server: String,
    /// The token that proves who you are [default: the `token` file in the data folder, for a node on this machine]
    #[arg(long, global = true, help_heading = COMMON, env = "ONWARD_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// The certificate (PEM) that signed the node's, where it is not a public one
    #[arg(long, global = true, help_heading = COMMON, env = "ONWARD_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The data folder of the node on this machine [default: $XDG_DATA_HOME/onward or ~/.local/share/onward]
    #[arg(long, global = true, help_heading = COMMON, env = "ONWARD_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, global = true, help_heading = COMMON)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run a node here until Ctrl-C; a second Ctrl-C stops it at once
    #[command(
        after_help = "Examples:\n  onward up\n  onward up --slots 0 --listen 127.0.0.1:7500 --data /var/lib/onward\n  \
                      onward up --storage postgres://onward@db.internal/onward?sslmode=require"
    )]
    Up(UpArgs),
    /// See five jobs end as they must, two of them stuck and one a zombie, in ten seconds
    #[command(after_help = "Examples:\n  onward demo\n  onward demo --sabotage fence    (and see it go wrong)")]
    Demo {
        /// Take one protection away; the demo must then fail
        #[arg(long, value_name = "PROTECTION")]
        sabotage: Option<Sabotage>,
    },
    /// Run one command as a job, without a server: a timeout that looks at progress
    #[command(after_help = work::RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Run commands for a node elsewhere until Ctrl-C; a second Ctrl-C stops it at once
    #[command(after_help = "Example:\n  onward worker --manager http://10.0.0.5:7400 --slots 8")]
    Worker(WorkerArgs),
    /// Run a manager: a node without a worker of its own, with its settings from a file
    #[command(after_help = "Example:\n  onward manager --config /etc/onward.toml")]
    Manager {
        /// The settings file; `onward config` prints what can be in it
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        log: LogArgs,
        /// Start with what is left, once, if acknowledged events are missing from the log
        #[arg(long)]
        accept_loss: bool,
    },
    /// Run a gate: clients submit to it, and it runs their jobs in one datacenter or in several
    #[command(after_help = "Example:\n  onward gate --config /etc/onward-gate.toml")]
    Gate {
        /// The settings file; `onward config` prints what can be in it
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        log: LogArgs,
        /// Start with what is left, once, if acknowledged events are missing from the log
        #[arg(long)]
        accept_loss: bool,
    },
    /// Submit a job: a command to run, or a kind with its payload
    #[command(after_help = submit::EXAMPLES)]
    Submit(Box<SubmitArgs>),
    /// List jobs, the newest first
    #[command(after_help = "Examples:\n  onward list\n  onward list --state failed --kind transcode\n  \
                            onward list --not-moving 5m --since 1h\n  onward list --state failed --group-by error\n  \
                            onward list --tag nightly --limit 200 --json")]
    List(ListArgs),
    /// Show a job: its state, workflows and attempts
    #[command(after_help = "Example:\n  onward show 0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d10")]
    Show { id: String },
    /// Explain why a job is where it is, what happens next, and what you can do
    #[command(after_help = "Example:\n  onward explain 0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d10")]
    Explain { id: String },
    /// Follow a job and print each change until it ends
    #[command(after_help = "Examples:\n  onward watch 0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d10\n  \
                            onward watch --json ID | jq .state")]
    Watch { id: String },
    /// Wait until a job ends, and exit as it did
    #[command(after_help = concat!("Example:\n  onward wait ID --for 10m && echo done\n\n", submit::exit_codes!()))]
    Wait {
        id: String,
        /// Give up after this long (exit code 1), and go on trying until then if no node answers; the job goes on. Without
        /// it, a node that was there and is away has a minute to start again
        #[arg(long = "for", value_parser = span::parse, value_name = "DURATION")]
        at_most: Option<Duration>,
    },
    /// Print what an attempt of a job has printed: the last 64 KiB of it, byte for byte
    #[command(after_help = "Examples:\n  onward logs ID\n  onward logs ID --follow\n  \
                            onward logs ID --attempt 1 --workflow build | tail -n 20")]
    Logs(LogsArgs),
    /// Print the result of a job that succeeded; inside a job, with JSON: set its own
    #[command(
        after_help = "Of a job with several workflows, every result is printed under the name of its workflow, and\n\
                      {\"base64\": \"…\"} for one that is not JSON.\n\n\
                      Examples:\n  onward result ID > result.json\n  onward result '{\"rows\": 17}'    (inside a job)"
    )]
    Result {
        #[arg(value_name = "ID|JSON", allow_hyphen_values = true)]
        id: String,
    },
    /// Inside a job: report how far it is
    #[command(after_help = "Examples:\n  onward progress 3/10 \"third part done\"\n  onward progress 42")]
    Progress {
        /// Units done, and of how many if that is known
        #[arg(value_name = "DONE[/TOTAL]")]
        units: String,
        /// A word about it, for people
        note: Vec<String>,
    },
    /// Inside a job: announce a silence, for one long step that cannot report
    #[command(after_help = "Example:\n  onward quiet 2m")]
    Quiet {
        /// How long it lasts at most
        #[arg(value_parser = span::parse, value_name = "DURATION")]
        at_most: Duration,
    },
    /// Exit 0 if a heartbeat file is fresh, or an address answers 200; else 1: for health checks of containers
    #[command(after_help = "Examples:\n  onward probe --file /run/app/heartbeat --max-age 30s\n  \
                            onward probe --url http://127.0.0.1:7400/readyz")]
    Probe(ProbeArgs),
    /// Cancel a job, or all that match: a queued job at once, a running one is told to stop
    #[command(after_help = "Examples:\n  onward cancel 0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d10\n  \
                            onward cancel --queue reports --state ready --dry-run\n  \
                            onward cancel --not-moving 10m --yes")]
    Cancel(CancelArgs),
    /// Submit an ended job once more, as a new job; or all that match and did not succeed
    #[command(after_help = "Examples:\n  onward retry 0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d10\n  \
                            onward retry --kind transcode --since 1d --dry-run")]
    Retry(RetryArgs),
    /// Give a job more time before its overall deadline
    #[command(after_help = "Example:\n  onward extend ID --by 30m --reason \"the source is slow today\"")]
    Extend {
        id: String,
        /// How much more
        #[arg(long, value_parser = span::parse, value_name = "DURATION")]
        by: Duration,
        /// Why; it is kept in the job's ledger
        #[arg(long)]
        reason: String,
        /// Repeating the command with the same id extends once [default: a new one each time]
        #[arg(long, value_name = "ID")]
        request_id: Option<String>,
    },
    /// Look at queues, pause and resume them
    #[command(subcommand, after_help = "Example:\n  onward queue pause reports")]
    Queue(QueueCommand),
    /// Start jobs by the clock: add schedules, look at them, pause and remove them
    #[command(
        subcommand,
        after_help = "Example:\n  onward schedule add backup --cron \"0 6 * * *\" --zone Europe/Berlin -- ./backup.sh"
    )]
    Schedule(ScheduleCommand),
    /// Look at nodes: verdict, signals and reason; drain them
    #[command(subcommand, after_help = "Example:\n  onward node list")]
    Node(NodeCommand),
    /// Look at jobs that failed permanently; replay or drop them
    #[command(subcommand, name = "dead-letter", after_help = "Example:\n  onward dead-letter list")]
    DeadLetter(DeadLetterCommand),
    /// Hand the seat over to another manager of the datacenter, by its name or to the one that is furthest
    #[command(
        name = "transfer-leader",
        after_help = "Examples:\n  onward transfer-leader\n  onward transfer-leader manager-2"
    )]
    TransferLeader {
        /// The manager that is to lead [default: the one that is furthest with the log]
        name: Option<String>,
    },
    /// Show node health
    #[command(after_help = "Example:\n  onward status --server http://127.0.0.1:7400")]
    Status,
    /// Watch queues, workers and running jobs, until Ctrl-C
    #[command(after_help = "Examples:\n  onward top\n  onward top --once --json")]
    Top {
        /// How often to look
        #[arg(long, value_parser = span::parse, value_name = "DURATION", default_value = "1s")]
        every: Duration,
        /// Print once, and leave
        #[arg(long)]
        once: bool,
    },
    /// Look at datacenters and their health
    #[command(subcommand, after_help = "Example:\n  onward datacenter list")]
    Datacenter(DatacenterCommand),
    /// Publish what transactions left in an outbox table, and look after what could not be published
    #[command(
        subcommand,
        after_help = "Examples:\n  onward outbox run --database postgres://app@db/shop --to nats:127.0.0.1:4222\n  \
                                        onward outbox list --database postgres://app@db/shop --parked"
    )]
    Outbox(OutboxCommand),
    /// Print every effective setting with its origin: default, file, environment or flag
    #[command(after_help = "Examples:\n  onward config\n  onward config --config /etc/onward.toml --changed")]
    Config(ConfigArgs),
    /// Make, list and revoke the tokens of the node on this machine
    #[command(after_help = "Example:\n  onward token new --scope read,submit --name ci")]
    Token(TokenArgs),
    /// Make certificates for a node that others reach over a network
    #[command(subcommand, after_help = "Example:\n  onward certs new --host onward.internal --out /etc/onward/tls")]
    Certs(CertsCommand),
    /// Print the completion script for a shell
    #[command(after_help = "Example:\n  onward completions bash > ~/.local/share/bash-completion/completions/onward")]
    Completions { shell: Shell },
    /// Write a manual page for each command
    #[command(after_help = "Example:\n  onward man --out ~/.local/share/man/man1")]
    Man {
        /// The folder to put them into
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Have the node write everything it keeps to one new file on its own disk, while it goes on
    #[command(after_help = "Example:\n  onward backup /var/backups/onward.backup")]
    Backup { file: PathBuf },
    /// Make a data folder from a backup; the folder must hold no node's data yet
    #[command(
        after_help = "Example:\n  onward restore /var/backups/onward.backup --data ~/restored\n  onward up --slots 0 --data ~/restored"
    )]
    Restore {
        file: PathBuf,
        /// Restore a backup with damaged payloads or results too; their jobs are there without them
        #[arg(long)]
        accept_loss: bool,
    },
    /// Take everything that a node keeps in its data folder over into a PostgreSQL database
    #[command(
        after_help = "Example:\n  onward migrate --from /var/lib/onward --to postgres://onward@db.internal/onward"
    )]
    Migrate(MigrateArgs),
}

#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The data folder of the node, which is not running
    #[arg(long, value_name = "DIR")]
    pub from: PathBuf,
    /// The database, which holds no node's data yet
    #[arg(long, value_name = "URL", env = "ONWARD_STORAGE", hide_env_values = true)]
    pub to: String,
    /// The datacenter whose managers share these data from then on
    #[arg(long, value_name = "NAME", env = "ONWARD_DATACENTER", default_value = onward_node::storage::DEFAULT_DATACENTER)]
    pub datacenter: String,
}

/// What is not given here comes from the environment, the settings file, or the default; `onward config` shows which.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Where to listen [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub listen: Option<SocketAddr>,
    /// How many commands to run here at a time; 0: no local worker [default: the number of processors]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// What keeps jobs and all else: `embedded`, in the data folder, or a database; a password is better given by
    /// ONWARD_STORAGE or the settings file, since flags can be read by everybody on this machine [default: embedded]
    #[arg(long, value_name = "embedded|URL")]
    pub storage: Option<String>,
    #[command(flatten)]
    pub exec: ExecArgs,
    #[command(flatten)]
    pub log: LogArgs,
    /// Also run the jobs of `onward demo`, to have something to look at
    #[arg(long)]
    pub demo: bool,
    /// The settings file [default: onward.toml in the data folder]
    #[arg(long, env = "ONWARD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Settings that override the file's, as `onward config` shows them: `--set lease.initial=2m`; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Refuse every call without a token
    #[arg(long)]
    pub require_tokens: bool,
    /// Listen beyond this machine without TLS and tokens all the same
    #[arg(long)]
    pub insecure: bool,
    /// A name that clients may call this node by; may be repeated
    #[arg(long = "host-name", value_name = "NAME")]
    pub host_names: Vec<String>,
    /// The certificates (PEM) to serve TLS with, the node's own first
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key (PEM) of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Start with what is left, once, if acknowledged events are missing from the log
    #[arg(long)]
    pub accept_loss: bool,
    /// A file that holds `1` while a commit is under way, also after a SIGKILL: shows tests where one hit
    #[arg(long, value_name = "FILE", hide = true)]
    pub commit_mark: Option<PathBuf>,
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an IP address and a port, like 127.0.0.1:7400 or [::1]:7400".to_owned())
}

#[derive(Debug, Args)]
pub struct CancelArgs {
    /// The job
    pub id: Option<String>,
    #[command(flatten)]
    pub which: WhichArgs,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Debug, Args)]
pub struct RetryArgs {
    /// The job
    pub id: Option<String>,
    /// Repeating the command with the same id gives the same job [default: a new one each time]
    #[arg(long, value_name = "ID", requires = "id")]
    pub request_id: Option<String>,
    #[command(flatten)]
    pub which: WhichArgs,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// Count the jobs that match by what they share, instead of listing them
    #[arg(long, value_parser = ["error", "kind", "reason"], conflicts_with_all = ["limit", "cursor"])]
    pub group_by: Option<String>,
    #[command(flatten)]
    pub page: PageArgs,
}

/// Which jobs; what is not given matches all.
#[derive(Clone, Debug, Default, Args)]
pub struct WhichArgs {
    /// Only jobs in this state
    #[arg(long, value_parser = ["waiting", "ready", "delayed", "running", "cancelling", "succeeded", "failed", "timed_out", "cancelled"])]
    pub state: Option<String>,
    /// Only jobs of this kind
    #[arg(long)]
    pub kind: Option<String>,
    /// Only jobs in this queue
    #[arg(long)]
    pub queue: Option<String>,
    /// Only jobs with this tag
    #[arg(long)]
    pub tag: Option<String>,
    /// Only jobs with an attempt that has made no forward step for this long
    #[arg(long, value_parser = span::parse, value_name = "DURATION")]
    pub not_moving: Option<Duration>,
    /// Only jobs submitted within this time
    #[arg(long, value_parser = span::parse, value_name = "DURATION")]
    pub since: Option<Duration>,
}

/// Before many jobs are changed.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfirmArgs {
    /// Every job, where no filter is given
    #[arg(long)]
    pub all: bool,
    /// Change nothing: only say how many jobs it would be, and name the first
    #[arg(long)]
    pub dry_run: bool,
    /// Do it without asking; needed where there is no terminal to ask at
    #[arg(long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    pub id: String,
    /// Which attempt, as `onward show` numbers them [default: the newest]
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Which workflow of the job [default: the one that was handed out last]
    #[arg(long, value_name = "NAME")]
    pub workflow: Option<String>,
    /// Go on until the attempt ends
    #[arg(long, short)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub struct PageArgs {
    /// How many at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    /// Go on where an earlier list ended
    #[arg(long)]
    pub cursor: Option<String>,
}

/// One of a few words, read as the node reads it.
fn words<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words.iter().copied())
        .map(|word| serde_json::from_value(word.into()).expect("each of these is a word of the contract"))
}

impl PageArgs {
    pub fn page(&self) -> Page {
        Page { limit: self.limit as usize, cursor: self.cursor.clone() }
    }
}

#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// List the queues and how much waits in each
    #[command(after_help = "Example:\n  onward queue list --json")]
    List,
    /// Hand out no more jobs of a queue; running jobs go on
    #[command(after_help = "Example:\n  onward queue pause reports")]
    Pause { name: String },
    /// Hand out from a paused queue again
    #[command(after_help = "Example:\n  onward queue resume reports")]
    Resume { name: String },
}

impl UpArgs {
    /// All else is as the file says.
    pub fn manager(config: PathBuf, log: LogArgs, accept_loss: bool) -> Self {
        Self {
            listen: None,
            slots: Some(0),
            storage: None,
            exec: ExecArgs::default(),
            log,
            demo: false,
            config: Some(config),
            set: Vec::new(),
            require_tokens: false,
            insecure: false,
            host_names: Vec::new(),
            tls_cert: None,
            tls_key: None,
            accept_loss,
            commit_mark: None,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum DatacenterCommand {
    /// List the datacenters with their health and the reason for it
    #[command(after_help = "Example:\n  onward datacenter list")]
    List,
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes with verdict, slots and reason
    #[command(after_help = "Example:\n  onward node list")]
    List(PageArgs),
    /// Show all that is known of one node
    #[command(after_help = "Example:\n  onward node show worker-7")]
    Show { id: String },
    /// Give a node no more work; it may finish what it holds
    #[command(after_help = "Example:\n  onward node drain worker-7")]
    Drain { id: String },
    /// Give a drained node work again
    #[command(after_help = "Example:\n  onward node undrain worker-7")]
    Undrain { id: String },
}

#[derive(Debug, Subcommand)]
pub enum DeadLetterCommand {
    /// List the jobs that failed permanently, and why
    #[command(after_help = "Example:\n  onward dead-letter list")]
    List(PageArgs),
    /// Submit dead letters once more, each as a new job
    #[command(
        after_help = "Examples:\n  onward dead-letter replay ID ID\n  onward dead-letter replay --kind transcode --yes\n  onward dead-letter replay ID --from start"
    )]
    Replay(ReplayArgs),
    /// Forget dead letters; their jobs stay failed
    #[command(after_help = "Examples:\n  onward dead-letter drop ID\n  onward dead-letter drop --queue old --dry-run")]
    Drop(LettersArgs),
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    pub letters: LettersArgs,
    /// Where a job with several workflows begins: at those that have not succeeded, with the results of the others; or at
    /// the start
    #[arg(long, value_name = "WHERE", value_parser = words::<ReplayFromWord>(&["failed", "start"]), default_value = "failed")]
    pub from: ReplayFromWord,
}

#[derive(Debug, Args)]
pub struct LettersArgs {
    /// The jobs
    pub ids: Vec<String>,
    #[command(flatten)]
    pub which: WhichArgs,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The node's settings file, which says where its tokens are kept [default: onward.toml in the data folder]
    #[arg(long, global = true, env = "ONWARD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token and print it, once; only its hash is kept
    #[command(after_help = "Example:\n  onward token new --scope read,submit --name ci")]
    New {
        /// What it allows: read, submit, work, operate
        #[arg(long = "scope", required = true, value_delimiter = ',', value_parser = crate::token::SCOPES)]
        scopes: Vec<String>,
        /// What to call it, for `list` and `revoke`
        #[arg(long)]
        name: String,
    },
    /// List the tokens: name, scopes, when each was made and how it ends
    #[command(after_help = "Example:\n  onward token list")]
    List,
    /// Revoke a token
    #[command(after_help = "Example:\n  onward token revoke ci")]
    Revoke { name: String },
}

#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// The settings file [default: onward.toml in the data folder]
    #[arg(long, env = "ONWARD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Settings that override the file's, written as in it: `--set lease.initial=2m`
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Only what is not the default
    #[arg(long)]
    pub changed: bool,
}
