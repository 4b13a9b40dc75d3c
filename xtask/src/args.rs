//! The command line, and every help text.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::soak;
use crate::steps;

#[derive(Debug, PartialEq, Eq)]
pub enum XtaskCommand {
    Help(String),
    Test { may_install: bool },
    Clients,
    Manifests,
    Tidy,
    Cluster { as_json: bool, onward: Option<PathBuf> },
    World { as_json: bool },
    Dist,
    Soak(soak::SoakPlan),
}

/// The command line was not understood. The text ends with where to look.
#[derive(Debug, PartialEq, Eq)]
pub struct UsageError {
    what: String,
    see: &'static str,
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nhint: `{} --help` lists what it takes", self.what, self.see)
    }
}

const XTASK: &str = "cargo xtask";
const TEST: &str = "cargo xtask test";
const CLIENTS: &str = "cargo xtask clients";
const MANIFESTS: &str = "cargo xtask manifests";
const TIDY: &str = "cargo xtask tidy";
const CLUSTER: &str = "cargo xtask cluster";
const WORLD: &str = "cargo xtask world";
const DIST: &str = "cargo xtask dist";
const SOAK: &str = "cargo xtask soak";

pub fn parse(args: impl IntoIterator<Item = String>) -> Result<XtaskCommand, UsageError> {
    let mut args = args.into_iter();
    let Some(first) = args.next() else {
        return Err(UsageError {
            what: "which command? test, clients, manifests, tidy, cluster, world, soak or dist".to_owned(),
            see: XTASK,
        });
    };
    match first.as_str() {
        "-h" | "--help" | "help" => Ok(XtaskCommand::Help(help())),
        "test" => parse_test(args),
        "clients" => parse_plain(args, XtaskCommand::Clients, help_clients, CLIENTS),
        "manifests" => parse_plain(args, XtaskCommand::Manifests, help_manifests, MANIFESTS),
        "tidy" => parse_plain(args, XtaskCommand::Tidy, help_tidy, TIDY),
        "cluster" => parse_cluster(args),
        "world" => parse_world(args),
        "soak" => parse_soak(args),
        "dist" => parse_plain(args, XtaskCommand::Dist, help_dist, DIST),
        other => Err(UsageError {
            what: format!(
                "unknown command `{other}`; the commands are test, clients, manifests, tidy, cluster, world, soak and dist"
            ),
            see: XTASK,
        }),
    }
}

fn parse_test(args: impl Iterator<Item = String>) -> Result<XtaskCommand, UsageError> {
    let mut may_install = true;
    for arg in args {
        match arg.as_str() {
            "-h" | "--help" => return Ok(XtaskCommand::Help(help_test())),
            "--no-install" => may_install = false,
            _ => return Err(unknown(&arg, TEST)),
        }
    }
    Ok(XtaskCommand::Test { may_install })
}

/// A command that takes nothing but `--help`.
fn parse_plain(
    mut args: impl Iterator<Item = String>,
    command: XtaskCommand,
    help: fn() -> String,
    see: &'static str,
) -> Result<XtaskCommand, UsageError> {
    match args.next().as_deref() {
        None => Ok(command),
        Some("-h" | "--help") => Ok(XtaskCommand::Help(help())),
        Some(arg) => Err(unknown(arg, see)),
    }
}

fn parse_cluster(mut args: impl Iterator<Item = String>) -> Result<XtaskCommand, UsageError> {
    let (mut as_json, mut onward) = (false, None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-h" | "--help" => return Ok(XtaskCommand::Help(help_cluster())),
            "--json" => as_json = true,
            "--onward" => match args.next() {
                Some(file) => onward = Some(PathBuf::from(file)),
                None => return Err(UsageError { what: "--onward needs a file".to_owned(), see: CLUSTER }),
            },
            _ => return Err(unknown(&arg, CLUSTER)),
        }
    }
    Ok(XtaskCommand::Cluster { as_json, onward })
}

fn parse_world(args: impl Iterator<Item = String>) -> Result<XtaskCommand, UsageError> {
    let mut as_json = false;
    for arg in args {
        match arg.as_str() {
            "-h" | "--help" => return Ok(XtaskCommand::Help(help_world())),
            "--json" => as_json = true,
            _ => return Err(unknown(&arg, WORLD)),
        }
    }
    Ok(XtaskCommand::World { as_json })
}

fn parse_soak(mut args: impl Iterator<Item = String>) -> Result<XtaskCommand, UsageError> {
    let mut plan = soak::SoakPlan::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-h" | "--help" => return Ok(XtaskCommand::Help(help_soak())),
            "--cases" => plan.cases = positive(&arg, args.next())?,
            "--seconds" => plan.at_least_for = Some(Duration::from_secs(positive(&arg, args.next())?)),
            _ => return Err(unknown(&arg, SOAK)),
        }
    }
    Ok(XtaskCommand::Soak(plan))
}

fn unknown(arg: &str, see: &'static str) -> UsageError {
    UsageError { what: format!("unknown argument `{arg}` for `{see}`"), see }
}

fn positive(flag: &str, value: Option<String>) -> Result<u64, UsageError> {
    match value.as_deref().map(str::parse::<u64>) {
        Some(Ok(n)) if n > 0 => Ok(n),
        _ => Err(UsageError {
            what: format!("{flag} needs a whole number from 1 up, and got `{}`", value.as_deref().unwrap_or("nothing")),
            see: SOAK,
        }),
    }
}

fn help() -> String {
    format!(
        "Commands for developers of Onward.

Usage: {XTASK} <command>

  test       install what is missing, then run every check and every test
  clients    generate clients from the node's description of itself, and run them
  manifests  check the files in `deploy` against the schemas of their readers
  tidy       only our own checks: core's purity, names, file lengths, links
  cluster    start three managers, two workers and PostgreSQL with a standby, to try things on
  world      start two gates and three datacenters, to try things on
  dist       make what is handed out: static binary, Debian package, container context, completions, manual pages
  soak       the tests of core, log and node with much larger numbers, in the release profile

`{XTASK} <command> --help` says more about one of them."
    )
}

fn help_test() -> String {
    let mut text = format!(
        "Installs what is missing, then runs every check and every test. Stops at the first red step.

Usage: {TEST} [--no-install]

  --no-install    install nothing: name what is missing, and exit with 1

Steps, in this order; each can be run alone:
"
    );
    for step in steps::ALL {
        text.push_str(&format!("  {:<10} {}\n", step.name, step.alone(true)));
    }
    text.push_str("\nThe tests run under cargo-nextest where it is installed; else the test binaries of cargo run, several at a time.");
    text
}

fn help_manifests() -> String {
    format!(
        "Checks the files in `deploy/` against the schemas of Kubernetes, compose and Prometheus.

Usage: {MANIFESTS}

The validators come from PyPI, into `target/clients`; promtool comes with Prometheus."
    )
}

fn help_clients() -> String {
    format!(
        "Checks the node's description of itself, generates a Python and a TypeScript client from it, compiles both, and
lets each submit a job to a node and read it back. Lets a node send traces to a collector, and looks at them.

Usage: {CLIENTS}

The generators come from PyPI and npm, into `target/clients`."
    )
}

fn help_tidy() -> String {
    format!(
        "Runs our own checks. Each finding names its file and line, and what to do.

Usage: {TIDY}

{}",
        crate::tidy::help()
    )
}

fn help_cluster() -> String {
    format!(
        "Starts a datacenter on this machine: three managers that share a PostgreSQL cluster with a synchronous standby, and two
workers, each on an address of its own. Says how to reach each, and stops all of it on Ctrl-C.

Usage: {CLUSTER} [--json] [--onward FILE]

  --json           once all are ready, print one line:
                   {{nodes: [{{name, role, datacenter, address, pid, data}}], postgres: [{{role, address, port, pid}}], database}}
  --onward FILE    this binary, instead of one that is built of this checkout first"
    )
}

fn help_world() -> String {
    format!(
        "Starts two gates that share a PostgreSQL database, and three datacenters of a manager and a worker each; the last has a
second manager. Says how to reach each, and stops all of it on Ctrl-C.

Usage: {WORLD} [--json]

  --json    once all are ready, print one line: {{nodes: [{{name, role, datacenter, address, pid, data}}], postgres: [...]}}"
    )
}

fn help_dist() -> String {
    format!(
        "Makes what is handed out, in `dist/`:

  onward              the binary, static and stripped, to copy anywhere
  onward_*.deb        a Debian package with systemd units, manual pages and completions
  container/          `docker build -t onward dist/container` makes an image that holds nothing else
  completions/, man/  for bash, zsh and fish; for `man`

Usage: {DIST}

The binary is built against musl where the toolchain has that target and `musl-gcc` is there, else against glibc."
    )
}

fn help_soak() -> String {
    let plan = soak::SoakPlan::default();
    format!(
        "Runs the tests of core and log, kills nodes under load and workers of a fleet, keeps a thousand sessions open, and does the README word for word, in the release profile, assertions on, with much larger numbers. Then counts the instructions of a job, and kills leaders with a million jobs.

Usage: {SOAK} [--cases N] [--seconds S]

  --cases N      cases of each chaos test of core in one round, as ONWARD_SOAK_CASES (default {});
                 so many of log, too, and for every 30 a node is killed, up to 200 times;
                 the README is done word for word, the fleet takes two minutes and a thousand sessions take ten,
                 once a round, whatever the number
  --seconds S    start another round until S seconds have passed (default: one round)

Property tests without a number of their own run {} cases (PROPTEST_CASES).",
        plan.cases,
        soak::PROPTEST_CASES
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<XtaskCommand, UsageError> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn commands_and_flags_are_read() {
        assert_eq!(parsed("test"), Ok(XtaskCommand::Test { may_install: true }));
        assert_eq!(parsed("test --no-install"), Ok(XtaskCommand::Test { may_install: false }));
        assert_eq!(parsed("clients"), Ok(XtaskCommand::Clients));
        assert_eq!(parsed("manifests"), Ok(XtaskCommand::Manifests));
        assert_eq!(parsed("tidy"), Ok(XtaskCommand::Tidy));
        assert_eq!(parsed("cluster"), Ok(XtaskCommand::Cluster { as_json: false, onward: None }));
        let of_file = XtaskCommand::Cluster { as_json: true, onward: Some("a/b".into()) };
        assert_eq!(parsed("cluster --json --onward a/b"), Ok(of_file));
        assert_eq!(parsed("world --json"), Ok(XtaskCommand::World { as_json: true }));
        assert_eq!(parsed("dist"), Ok(XtaskCommand::Dist));
        assert_eq!(parsed("soak"), Ok(XtaskCommand::Soak(soak::SoakPlan { cases: 6_000, at_least_for: None })));
        assert_eq!(
            parsed("soak --seconds 60 --cases 7"),
            Ok(XtaskCommand::Soak(soak::SoakPlan { cases: 7, at_least_for: Some(Duration::from_secs(60)) }))
        );
    }

    #[test]
    fn what_is_not_understood_is_refused_with_a_hint() {
        for (line, named) in [
            ("", "which command"),
            ("tets", "`tets`"),
            ("test --fast", "`--fast`"),
            ("tidy now", "`now`"),
            ("dist now", "`now`"),
            ("cluster now", "`now`"),
            ("world now", "`now`"),
            ("soak --rounds 3", "`--rounds`"),
            ("soak --cases", "`nothing`"),
            ("soak --cases many", "`many`"),
            ("soak --seconds 0", "`0`"),
        ] {
            let usage = parsed(line).expect_err(line).to_string();
            assert!(usage.contains(named), "{line}: {usage}");
            assert!(usage.contains("--help`"), "{line}: {usage}");
        }
    }

    #[test]
    fn every_command_has_help_that_names_its_usage() {
        for (line, usage) in [
            ("--help", "cargo xtask <command>"),
            ("test --help", "cargo xtask test [--no-install]"),
            ("clients -h", "cargo xtask clients"),
            ("manifests -h", "cargo xtask manifests"),
            ("tidy -h", "cargo xtask tidy"),
            ("dist --help", "cargo xtask dist"),
            ("soak --cases 3 --help", "cargo xtask soak [--cases N] [--seconds S]"),
        ] {
            let Ok(XtaskCommand::Help(text)) = parsed(line) else { panic!("{line} gave no help") };
            assert!(text.contains(&format!("Usage: {usage}\n")), "{line}: {text}");
        }
    }
}
