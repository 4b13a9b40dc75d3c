//! The command line of Onward.
//!
//! `args` says what can be written; `submit`, `jobs`, `logs`, `follow` and `fleet` talk to a node through `client`;
//! `config` and `token` work on the files of the node on this machine, which `up` runs.

mod answer;
mod args;
mod certs;
mod client;
mod cluster;
mod config;
mod demo;
#[cfg(test)]
mod example;
mod failure;
mod fleet;
mod folder;
mod follow;
mod gate;
mod inside;
mod jobs;
mod logs;
mod man;
mod many;
mod migrate;
mod outbox;
mod patience;
mod probe;
mod proxy;
mod read;
mod restore;
mod results;
mod run;
mod schedules;
mod screen;
mod service;
mod span;
mod status_line;
mod submit;
mod table;
mod token;
mod top;
mod up;
mod usage;
mod work;
mod worker;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use args::{CancelArgs, CertsCommand, Cli, CliCommand, DatacenterCommand, Global, LogsArgs, RetryArgs, UpArgs};
use client::{NodeClient, NodeTarget};
use failure::CommandFailure;
use many::BulkVerb;
use screen::Screen;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == onward_exec::guard::SUBCOMMAND) {
        return onward_exec::guard::main(words);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::told(&error),
    };
    let json = cli.global.json;
    match run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => told(&error, json),
    }
}

/// Tells an error on stderr; that nobody reads our output any more is no failure.
fn told(error: &anyhow::Error, json: bool) -> ExitCode {
    let broken = error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
    if broken {
        return ExitCode::SUCCESS;
    }
    let unnamed = CommandFailure::new(format!("{error:#}"));
    let failure = error.downcast_ref::<CommandFailure>().unwrap_or(&unnamed);
    let text = match json {
        true => failure.json().to_string(),
        false => format!("onward: {}", screen::several_lines(&failure.to_string())),
    };
    // Nobody can be told that stderr is gone.
    let _ = writeln!(io::stderr(), "{text}");
    ExitCode::from(failure.code())
}

fn run(cli: Cli) -> Result<u8> {
    let Cli { global, command } = cli;
    let screen = &Screen::detect(global.json);
    let data = global.data.clone().unwrap_or_else(|| folder::default_data(|name| std::env::var_os(name)));
    match command {
        CliCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "onward", &mut script);
            io::stdout().lock().write_all(&script)?;
            Ok(0)
        }
        CliCommand::Man { out } => man::write(&out, screen),
        CliCommand::Config(args) => config::run(&args, global.data, screen),
        CliCommand::Token(args) => token::run(args, global.data, screen),
        CliCommand::Up(args) => up::run(args, global.data, screen),
        CliCommand::Restore { file, accept_loss } => restore::run(&file, &data, accept_loss, screen),
        CliCommand::Migrate(args) => migrate::run(&args, screen),
        CliCommand::Certs(CertsCommand::New { hosts, out }) => certs::new(&hosts, &out, screen),
        CliCommand::Certs(CertsCommand::Ca { out }) => certs::ca(&out, screen),
        CliCommand::Certs(CertsCommand::Node(args)) => certs::node(&args, screen),
        CliCommand::Certs(CertsCommand::Key { out }) => certs::key(&out, screen),
        CliCommand::Manager { config, log, accept_loss } => {
            up::run(UpArgs::manager(config, log, accept_loss), global.data, screen)
        }
        CliCommand::Gate { config, log, accept_loss } => {
            gate::run(UpArgs::manager(config, log, accept_loss), global.data, screen)
        }
        CliCommand::Demo { sabotage } => demo::run(sabotage, screen),
        CliCommand::Run(args) => Ok(run::run(*args, screen)),
        CliCommand::Worker(args) => worker::run(args, &global, &data, screen),
        CliCommand::Progress { units, note } => inside::progress(&units, &note),
        CliCommand::Quiet { at_most } => inside::quiet(at_most),
        CliCommand::Result { id } if inside::is_inside() || read::is_json(&id) => match inside::result(&id) {
            Some(told) => told,
            None => {
                let client = client(&global, &data)?;
                jobs::result(&client.whole_id(&id)?, &client, screen)
            }
        },
        CliCommand::Probe(args) => probe::run(&args, screen),
        CliCommand::Outbox(command) => outbox::run(command, &global, screen),
        command => calls(command, &client(&global, &data)?, screen),
    }
}

fn client(global: &Global, data: &std::path::Path) -> Result<NodeClient, CommandFailure> {
    let token_file = data.join("token");
    NodeClient::new(&NodeTarget {
        server: &global.server,
        token: global.token.as_deref(),
        token_file: Some(&token_file),
        ca: global.ca.as_deref(),
    })
}

/// The commands that ask a node.
fn calls(command: CliCommand, client: &NodeClient, screen: &Screen) -> Result<u8> {
    match command {
        CliCommand::Submit(args) => submit::run(*args, client, screen),
        CliCommand::List(args) => jobs::list(&args, client, screen),
        CliCommand::Show { id } => jobs::show(&client.whole_id(&id)?, client, screen),
        CliCommand::Explain { id } => jobs::explain_job(&client.whole_id(&id)?, client, screen),
        CliCommand::Watch { id } => follow::watch(client, screen, &client.whole_id(&id)?),
        CliCommand::Wait { id, at_most } => follow::wait(client, screen, &id, at_most),
        CliCommand::Logs(args) => logs::run(&LogsArgs { id: client.whole_id(&args.id)?, ..args }, client, screen),
        CliCommand::Result { id } => jobs::result(&client.whole_id(&id)?, client, screen),
        CliCommand::Cancel(CancelArgs { id, which, confirm }) => match which.beside(id, &confirm)? {
            Some(id) if confirm.dry_run => many::try_one(&id, BulkVerb::Cancel, client, screen),
            Some(id) => jobs::cancel(&client.whole_id(&id)?, client, screen),
            None => many::cancel(&which, &confirm, client, screen),
        },
        CliCommand::Retry(RetryArgs { id, request_id, which, confirm }) => match which.beside(id, &confirm)? {
            Some(id) if confirm.dry_run => many::try_one(&id, BulkVerb::Retry, client, screen),
            Some(id) => jobs::retry(&client.whole_id(&id)?, request_id, client, screen),
            None => many::retry(&which, &confirm, client, screen),
        },
        CliCommand::Extend { id, by, reason, request_id } => {
            jobs::extend(&client.whole_id(&id)?, by, &reason, request_id, client, screen)
        }
        CliCommand::Queue(command) => fleet::queue(command, client, screen),
        CliCommand::Schedule(command) => schedules::run(command, client, screen),
        CliCommand::Node(command) => fleet::node(command, client, screen),
        CliCommand::DeadLetter(command) => fleet::dead_letter(command, client, screen),
        CliCommand::Status => fleet::status(client, screen),
        CliCommand::Top { every, once } => top::run(every, once, client, screen),
        CliCommand::Datacenter(DatacenterCommand::List) => fleet::datacenters(client, screen),
        CliCommand::Backup { file } => fleet::backup(&file, client, screen),
        CliCommand::TransferLeader { name } => fleet::transfer_leader(name.as_deref(), client, screen),
        CliCommand::Completions { .. }
        | CliCommand::Man { .. }
        | CliCommand::Config(_)
        | CliCommand::Token(_)
        | CliCommand::Up(_)
        | CliCommand::Certs(_)
        | CliCommand::Manager { .. }
        | CliCommand::Gate { .. }
        | CliCommand::Demo { .. }
        | CliCommand::Run(_)
        | CliCommand::Worker(_)
        | CliCommand::Progress { .. }
        | CliCommand::Quiet { .. }
        | CliCommand::Probe(_)
        | CliCommand::Outbox(_)
        | CliCommand::Restore { .. }
        | CliCommand::Migrate(_) => {
            unreachable!("these ask no node, and were handled before")
        }
    }
}
