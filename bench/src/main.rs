//! `cargo run --release -p onward-bench`: how fast Onward is, beside other systems and beside what this machine can do.
//!
//! Every line says what was measured, what is wanted, and whether it was reached. Nothing here is a test: a slow
//! machine misses a figure and breaks nothing. What compares two figures compares them within one run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks on its streams")]

mod allocation;
mod beats;
#[cfg(feature = "peers")]
mod cluster;
mod contest;
mod cpu;
mod fixed;
mod gate_machine;
#[cfg(feature = "peers")]
mod gate_world;
mod growth;
mod limits;
mod machine;
#[cfg(feature = "outbox")]
mod outbox;
mod picture;
mod reopen;
mod report;
mod runs;
mod stages;
mod steps;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use contest::ContestError;

const KEEPING: &str = "MIMALLOC_PURGE_DELAY";

#[global_allocator]
static ALLOCATOR: allocation::CountingAllocator = allocation::CountingAllocator;

/// How fast Onward is, beside other systems and beside what this machine can do.
#[derive(Parser)]
#[command(name = "onward-bench")]
struct Args {
    /// Shorter runs: about 2 minutes instead of 10
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Save the figures as JSON, too
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Only this part; may be repeated
    #[arg(long, value_name = "PART", value_parser = parts())]
    only: Vec<String>,
    /// Draw a picture (SVG) of figures that were saved
    #[arg(long, num_args = 2, value_names = ["JSON", "SVG"], conflicts_with_all = ["quick", "json", "save", "only", "strict"])]
    draw: Option<Vec<PathBuf>>,
    /// Fail where a figure misses its goal, or a part could not be measured
    #[arg(long)]
    strict: bool,
    /// Install the systems that it is compared with (Debian and npm packages; needs root), and nothing else
    #[arg(long)]
    install: bool,
    /// Take so many jobs through a node without sockets and disk, the same way each time: for counting instructions
    #[arg(long, value_name = "JOBS", hide = true)]
    fixed: Option<u64>,
    /// Answer what is sent to a socket with the same: the other end of a round trip
    #[arg(long, hide = true)]
    echo: bool,
}

fn parts() -> clap::builder::PossibleValuesParser {
    stages::STAGES.into_iter().chain(stages::EXTRA).collect::<Vec<_>>().into()
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = if args.echo {
        limits::echo().map_err(ContestError::from)
    } else if let Some(jobs) = args.fixed {
        println!("{} bytes", fixed::run(jobs));
        Ok(())
    } else if args.install {
        install()
    } else if let Some([from, to]) = args.draw.as_deref() {
        draw(from, to)
    } else {
        run(args)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onward-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "peers")]
fn install() -> Result<(), ContestError> {
    contest::peers::install::install()
}

#[cfg(not(feature = "peers"))]
fn install() -> Result<(), ContestError> {
    Err("this was built without the feature `peers`, and would not use them".into())
}

fn run(args: Args) -> Result<(), ContestError> {
    keep_memory();
    let report = stages::StageRun { quick: args.quick, only: args.only }.everything()?;
    let json = serde_json::to_string_pretty(&report.json())?;
    if let Some(file) = &args.save {
        std::fs::write(file, format!("{json}\n")).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if args.json {
        println!("{json}");
    } else {
        report.print();
    }
    match report.missed() {
        missed if args.strict && !missed.is_empty() => Err(format!("missed: {}", missed.join("; ")).into()),
        _ => Ok(()),
    }
}

fn draw(from: &Path, to: &Path) -> Result<(), ContestError> {
    let text = std::fs::read_to_string(from).map_err(|error| format!("{}: {error}", from.display()))?;
    let figures = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", from.display()))?;
    std::fs::write(to, picture::of(&figures)?).map_err(|error| format!("{}: {error}", to.display()).into())
}

/// Starts over with an allocator that gives no memory back to the system: what was touched once stays fast, whatever
/// ran before. It reads this setting only when the process starts.
fn keep_memory() {
    if std::env::var_os(KEEPING).is_some() {
        return;
    }
    let again = std::env::current_exe().and_then(|program| {
        std::process::Command::new(program).args(std::env::args_os().skip(1)).env(KEEPING, "-1").status()
    });
    match again {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => eprintln!("onward-bench: {KEEPING} is not set ({error}): figures will vary more"),
    }
}
