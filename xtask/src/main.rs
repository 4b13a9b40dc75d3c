//! `cargo xtask …`: the commands that developers of Onward run.
//!
//! - [`args`] reads the command line and holds every help text;
//! - [`install`] finds out what this machine lacks, and gets it;
//! - [`steps`] is the test command: which steps, in which order, and what the last line says;
//! - [`binaries`] runs the test binaries where there is no nextest;
//! - [`stream`] runs one child command, passes its output through and counts its tests;
//! - [`clients`] generates clients from the node's description of itself, and runs them against a [`node`];
//! - [`manifests`] checks what is deployed against the schemas of its readers;
//! - [`tidy`] holds the checks that are ours alone;
//! - [`cluster`] starts a datacenter on this machine, to try things on;
//! - [`world`] starts gates and datacenters;
//! - [`dist`] builds the binary to hand out;
//! - [`soak`] runs core's tests with much larger numbers.
//!
//! Exit codes: 0 all green, 1 something is red, 2 the command line was not understood.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks on stdout and stderr")]

mod api_check;
mod args;
mod binaries;
mod clients;
mod cluster;
mod dist;
mod install;
mod instructions;
mod manifests;
mod node;
mod soak;
mod steps;
mod stream;
mod takeover;
mod tidy;
mod workspace;
mod world;

use std::process::ExitCode;

use args::XtaskCommand;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(usage) => {
            eprintln!("xtask: {usage}");
            return ExitCode::from(2);
        }
    };
    let done = match command {
        XtaskCommand::Help(text) => {
            println!("{text}");
            Ok(())
        }
        XtaskCommand::Test { may_install } => workspace::root().and_then(|root| steps::test(&root, may_install)),
        XtaskCommand::Clients => workspace::root().and_then(|root| clients::run(&root)),
        XtaskCommand::Manifests => workspace::root().and_then(|root| manifests::check(&root)),
        XtaskCommand::Tidy => workspace::root().and_then(|root| tidy::run(&root)),
        XtaskCommand::Cluster { as_json, onward } => {
            workspace::root().and_then(|root| cluster::run(&root, as_json, onward))
        }
        XtaskCommand::World { as_json } => workspace::root().and_then(|root| world::run(&root, as_json)),
        XtaskCommand::Dist => workspace::root().and_then(|root| dist::run(&root)),
        XtaskCommand::Soak(plan) => workspace::root().and_then(|root| soak::run(&root, &plan)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onward: {error:#}");
            ExitCode::FAILURE
        }
    }
}
