//! `onward submit`: from options to the body of the call, and the call.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use onward_api::few::FewPairs;
use onward_api::instant::WrittenInstant;
use onward_api::submit::{KeyLimit, RetryPolicy, SubmitJob};
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::answer::Layout;
use crate::args::{JobArgs, SubmitArgs};
use crate::client::{NodeClient, unique_name};
use crate::failure::CommandFailure;
use crate::patience::Patience;
use crate::screen::Screen;
use crate::work::handler::KIND;
use crate::{follow, logs};

pub fn run(args: SubmitArgs, client: &NodeClient, screen: &Screen) -> Result<u8> {
    if let Some(file) = &args.file {
        return from_file(file, client, screen);
    }
    if args.job.kind.is_none() && args.job.command.is_empty() {
        return Err(CommandFailure::new("there is nothing to submit")
            .why("neither a command nor a kind was given")
            .remedy("onward submit -- ./backup.sh\nonward submit --kind transcode --payload '{\"file\": \"a.mov\"}'")
            .usage()
            .into());
    }
    let (wait, with_logs) = (args.wait, args.logs);
    let here = std::env::current_dir().ok();
    let body = body(args, here, payload_text, || unique_name("cli-"))?;
    let answer = client.ask(async |node| node.submit_written(&body).await)?;
    let id = &answer.id;
    if !wait {
        match screen.json {
            true => screen.raw(answer.text(), Layout::Pretty)?,
            false => screen.line(id)?,
        }
        return Ok(0);
    }
    // Who has seen the id may interrupt.
    follow::say_on_interrupt(screen, id)?;
    match screen.json {
        true => screen.raw(answer.text(), Layout::Line)?,
        false => screen.line(id)?,
    }
    let patience = Patience::new(None);
    if with_logs {
        logs::to_the_end(&patience, client, screen, id)?;
    }
    follow::to_the_end(&patience, client, screen, id)
}

/// Jobs of one call: the number that the node takes at once, with room to spare.
const BATCH_JOBS: usize = 1_000;
const BATCH_BYTES: usize = 8 << 20;

/// Each batch is accepted as a whole or not at all.
fn from_file(file: &str, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let text = if file == "-" { from_stdin() } else { std::fs::read_to_string(file) };
    let text = text.map_err(|error| {
        CommandFailure::new(format!("cannot read the jobs from {file}"))
            .why(error)
            .remedy("--file takes a file with one JSON object a line, or - for stdin")
    })?;
    let mut jobs = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let mut job: Fields = serde_json::from_str(line).map_err(|error| {
            CommandFailure::new(format!("line {} of {file} is not a job", at + 1))
                .why(error)
                .remedy("a line is an object as for `POST /v1/jobs`, like {\"kind\": \"k\", \"payload\": 1}")
                .usage()
        })?;
        // Sent again after a lost connection, the call must not make a second job.
        if !job.contains_key("idempotency_key") {
            job.insert("idempotency_key".into(), raw(unique_name("cli-")?));
        }
        jobs.push((at + 1, raw(&job)));
    }
    let mut rest = jobs.as_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |(_, job): &&(usize, Box<RawValue>)| {
            bytes += job.get().len();
            bytes <= BATCH_BYTES
        };
        let count = rest.iter().take(BATCH_JOBS).take_while(fits).count().max(1);
        let (batch, later) = rest.split_at(count);
        submit_batch(batch, jobs.len() - rest.len(), file, client, screen)?;
        rest = later;
    }
    Ok(0)
}

fn submit_batch(
    batch: &[(usize, Box<RawValue>)],
    before: usize,
    file: &str,
    client: &NodeClient,
    screen: &Screen,
) -> Result<()> {
    let all: Vec<&RawValue> = batch.iter().map(|(_, job)| &**job).collect();
    let answer = client.ask(async |node| node.submit_all_written(&all).await).map_err(|failure| {
        let line = failure.job_at_fault().and_then(|index| Some(batch.get(index)?.0));
        let failure = match line {
            Some(line) => failure.and_why(&format!("line {line} of {file}")),
            None => failure,
        };
        let lines = batch.first().zip(batch.last()).map(|(first, last)| (first.0, last.0));
        failure.and_why(&match (before, lines) {
            (1.., Some((first, last))) => format!(
                "the batch is lines {first} to {last}: the {before} jobs of the lines before were submitted, and nothing from line {first} on"
            ),
            _ => "no job was submitted".to_owned(),
        })
    })?;
    for job in &answer.jobs {
        match screen.json {
            true => screen.json_line(&json!(job))?,
            false => screen.line(&job.id)?,
        }
    }
    Ok(())
}

/// A job of a file: its fields, whatever they are, as they were written. The node says which of them it does not know.
type Fields = BTreeMap<String, Box<RawValue>>;

fn raw(value: impl Serialize) -> Box<RawValue> {
    to_raw_value(&value).expect("texts, numbers and maps with texts as keys can be written as JSON")
}

/// The body of the call. What was not given is left to the node.
fn body(
    args: SubmitArgs,
    here: Option<PathBuf>,
    payload: impl FnOnce(&str) -> Result<String, CommandFailure>,
    new_key: impl FnOnce() -> Result<String, CommandFailure>,
) -> Result<SubmitJob, CommandFailure> {
    let job = job_body(args.job, here, payload)?;
    let run_at = args.run_at.map(|at| WrittenInstant::Text(at.to_string()));
    // Sent again after a lost connection, the call must not make a second job.
    let key = args.idempotency_key.map_or_else(new_key, Ok)?;
    let datacenters = (!args.datacenters.is_empty()).then(|| args.datacenters.into());
    Ok(SubmitJob { run_at, idempotency_key: Some(key), datacenters, ..job })
}

/// A job from the arguments, which a run of a schedule is, too.
pub fn job_of(args: JobArgs) -> Result<SubmitJob, CommandFailure> {
    job_body(args, std::env::current_dir().ok(), payload_text)
}

fn job_body(
    args: JobArgs,
    here: Option<PathBuf>,
    payload: impl FnOnce(&str) -> Result<String, CommandFailure>,
) -> Result<SubmitJob, CommandFailure> {
    let is_command = args.kind.is_none();
    let (kind, payload) = match args.kind {
        Some(kind) => {
            let given = args.payload.as_ref().map(|source| parsed(&payload(source)?)).transpose()?;
            (kind, given)
        }
        None => {
            let mut exec = json!({ "argv": args.command });
            if !args.env.is_empty() {
                exec["env"] = json!(args.env.into_iter().collect::<BTreeMap<_, _>>());
            }
            if let Some(folder) = absolute(args.cwd, here) {
                exec["cwd"] = json!(text_of(&folder)?);
            }
            (KIND.to_owned(), Some(raw(exec)))
        }
    };
    let limits = args.limits.into_iter().map(|(key, max)| KeyLimit { key, max, ordered: false });
    let ordered = args.ordered.into_iter().map(|key| KeyLimit { key, max: 1, ordered: true });
    let limits: Vec<KeyLimit> = limits.chain(ordered).collect();
    let mut headers = FewPairs::default();
    let has_headers = !args.headers.is_empty();
    args.headers.into_iter().for_each(|(name, value)| headers.set(name, value));
    // A command that fails may have done half of its work; only its author knows whether to repeat it.
    let retries = args.retries.or(is_command.then_some(0));
    let seconds = |span: Duration| span.as_secs_f64();
    Ok(SubmitJob {
        kind: Some(kind),
        payload: payload.map(Into::into),
        queue: args.queue,
        priority: args.priority,
        timeout_s: args.timeout.map(seconds),
        stuck_after_s: args.stuck_after.map(seconds),
        on_stuck: args.on_stuck,
        require_progress: args.require_progress.then_some(true),
        delay_s: args.delay.map(seconds),
        retry: retries.map(|retries| RetryPolicy { max_attempts: Some(retries + 1), ..RetryPolicy::default() }),
        limits: (!limits.is_empty()).then(|| limits.into()),
        unique_key: args.unique_key,
        tags: (!args.tags.is_empty()).then(|| args.tags.into()),
        headers: has_headers.then_some(headers),
        retain_s: args.retain.map(seconds),
        ..SubmitJob::default()
    })
}

fn text_of(folder: &Path) -> Result<&str, CommandFailure> {
    folder.to_str().ok_or_else(|| {
        CommandFailure::new(format!("the command cannot run in {}", folder.display()))
            .why("its path is not UTF-8, as everything in JSON has to be")
            .remedy("--cwd DIR names another folder")
            .usage()
    })
}

/// The node's working folder is another one, so that a relative path would mean something else there.
fn absolute(given: Option<PathBuf>, here: Option<PathBuf>) -> Option<PathBuf> {
    match (given, here) {
        (Some(given), Some(here)) => Some(here.join(given)),
        (given, here) => given.or(here),
    }
}

fn payload_text(source: &str) -> Result<String, CommandFailure> {
    let unreadable = |error: std::io::Error| {
        CommandFailure::new(format!("cannot read the payload from {source}"))
            .why(error)
            .remedy("--payload takes JSON, @FILE, or - for stdin")
    };
    if source == "-" {
        return from_stdin().map_err(unreadable);
    }
    match source.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).map_err(unreadable),
        None => Ok(source.to_owned()),
    }
}

fn from_stdin() -> std::io::Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}

fn parsed(text: &str) -> Result<Box<RawValue>, CommandFailure> {
    serde_json::from_str(text).map_err(|error| {
        CommandFailure::new("the payload is not JSON")
            .why(error)
            .remedy(
                "quote it for the shell: --payload '{\"file\": \"a.mov\"}', or read it from a file: --payload @FILE",
            )
            .usage()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, CliCommand};
    use clap::Parser;
    use serde_json::Value;

    fn body_of(line: &[&str]) -> Result<Value, CommandFailure> {
        let cli = Cli::parse_from(["onward", "submit"].iter().chain(line));
        let CliCommand::Submit(args) = cli.command else { panic!("not submit") };
        let body = body(*args, Some("/here".into()), |source| Ok(source.to_owned()), || Ok("made".into()))?;
        Ok(serde_json::to_value(body).unwrap())
    }

    #[test]
    fn a_command_becomes_an_exec_job_that_runs_here() {
        let body = body_of(&["--env", "A=1", "--", "ls", "-l"]).unwrap();
        let exec = json!({"argv": ["ls", "-l"], "env": {"A": "1"}, "cwd": "/here"});
        let once = json!({"max_attempts": 1});
        assert_eq!(body, json!({"kind": "exec", "payload": exec, "retry": once, "idempotency_key": "made"}));
        assert_eq!(body_of(&["--retries=2", "--", "ls"]).unwrap()["retry"]["max_attempts"], 3);
        assert_eq!(body_of(&["--kind=k"]).unwrap()["retry"], Value::Null, "a kind has the node's policy");
        assert_eq!(body_of(&["--cwd", "sub", "--", "ls"]).unwrap()["payload"]["cwd"], "/here/sub");
        assert_eq!(body_of(&["--cwd", "/abs", "--", "ls"]).unwrap()["payload"]["cwd"], "/abs");
    }

    #[test]
    fn every_option_reaches_its_field() {
        let body = body_of(&[
            "--kind=k",
            "--payload={\"a\":1}",
            "--queue=q",
            "--priority=-5",
            "--timeout=1h30m",
            "--stuck-after=250ms",
            "--on-stuck=time_out",
            "--require-progress",
            "--delay=2m",
            "--retries=3",
            "--limit=gpu=2",
            "--ordered=account=1",
            "--unique-key=u",
            "--idempotency-key=i",
            "--datacenter=dc-a",
            "--datacenter=dc-b",
            "--tag=a",
            "--tag=b",
            "--header=x=y",
            "--retain=1d",
        ]);
        let expected = json!({
            "kind": "k", "payload": {"a": 1}, "queue": "q", "priority": -5, "timeout_s": 5400.0, "stuck_after_s": 0.25,
            "on_stuck": "time_out", "require_progress": true, "delay_s": 120.0, "retry": {"max_attempts": 4},
            "limits": [{"key": "gpu", "max": 2}, {"key": "account=1", "max": 1, "ordered": true}], "unique_key": "u", "idempotency_key": "i", "tags": ["a", "b"],
            "headers": {"x": "y"}, "retain_s": 86400.0, "datacenters": ["dc-a", "dc-b"]
        });
        assert_eq!(body.unwrap(), expected);
        let at = body_of(&["--kind=k", "--run-at=2026-11-16T10:00:00+02:00"]).unwrap();
        assert_eq!(at["run_at"], "2026-11-16T08:00:00Z");
    }

    #[test]
    fn a_payload_that_is_not_json_is_wrong_usage() {
        let failure = body_of(&["--kind=k", "--payload={a:1}"]).unwrap_err();
        assert_eq!(failure.code(), 2);
    }
}
