//! `onward run`: one command as a job, on a node that lives as long as the command.

mod watch;

use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use onward::{Client, Job, JobInfo, JobState, NodeAnswer, Worker};
use onward_api::ledger::Ledger;
use onward_exec::Exit;
use onward_node::auth::read_or_make_token;
use onward_node::server::{Node, NodeConfig};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::args::RunArgs;
use crate::failure::CommandFailure;
use crate::screen::Screen;
use crate::work::exit;
use crate::work::handler::{KIND, Manner, handler};
use crate::{read, span};
use watch::{OutputFailure, RunWatch};

/// Longer than anybody waits; the contract allows ten years.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);
const STUCK_AFTER: Duration = Duration::from_secs(120);
/// A lone command on its own node: what it does may be known at once.
const BEAT_EVERY: Duration = Duration::from_millis(200);
const SIGNALLED: u8 = 128;
const SIGPIPE: u8 = 13;
/// The time for the last lines, where stderr does not take them.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

pub fn run(args: RunArgs, screen: &Screen) -> u8 {
    let ended = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let code = runtime.block_on(job(args, screen));
            // Reading stdin for nobody, or a folder that is being removed, is nothing to wait for.
            runtime.shutdown_background();
            code
        });
    match ended {
        Ok(code) => code,
        Err(error) => {
            tell(screen, vec![format!("onward: {error:#}")]);
            exit::OWN_FAILURE
        }
    }
}

async fn job(args: RunArgs, screen: &Screen) -> Result<u8> {
    let began = Instant::now();
    let mut signals = Signals::new()?;
    let folder = tempfile::Builder::new().prefix("onward-run-").tempdir().context("cannot make a temporary folder")?;
    let node = node(folder.path()).await?;
    let place = crate::work::inside(&node, &read_or_make_token(folder.path())?);
    let client = Client::at(place.clone());

    let seen = Arc::new(RunWatch::new(screen));
    let manner = Manner::from(&args.exec);
    let sample_every = manner.sample_every.map(|every| every.min(stuck_after(&args) / 4));
    let manner = Manner { foreground: true, sample_every, ..manner };
    let worker = Worker::at(place)
        .id("run")
        .beat_every(BEAT_EVERY)
        .cancel_grace(args.exec.grace + Duration::from_secs(5))
        .drain_grace(Duration::ZERO)
        .handle_bytes(KIND, handler(manner, seen.clone()));
    let (stop, stopped) = oneshot::channel::<()>();
    let working = tokio::spawn(worker.run_until(async { drop(stopped.await) }));

    let id = client.submit(draft(&args)?).await?;
    let mut asked_by = None;
    let mut waiting = Box::pin(client.wait(&id));
    let ended = loop {
        tokio::select! {
            ended = &mut waiting => break ended?,
            signal = signals.next() => {
                if asked_by.replace(signal).is_some() {
                    // The guard ends the tree when it sees that we are gone.
                    std::process::exit(i32::from(SIGNALLED + signal));
                }
                client.cancel(&id).await?;
            }
            () = seen.tick() => seen.draw(),
        }
    };
    // A job may be over, as timed out, before its command is: nothing of it is left when this returns.
    // One that is over already needs no telling.
    let _ = stop.send(());
    if let Err(error) = working.await? {
        tracing::debug!(%error, "the worker ended");
    }
    seen.clear();
    let last = seen.exit();
    let unwritten = seen.unwritten();
    let code = code(&ended, last.as_ref(), unwritten.as_ref(), asked_by);
    if let Some(file) = &args.report {
        let ledger = client.ledger(&id).await?;
        write_report(file, &report(&args, &ended, &ledger, code, began.elapsed()))?;
    }
    node.shutdown(Duration::ZERO).await;
    tell(screen, verdict(&args, &ended, last.as_ref(), &seen, began.elapsed()));
    Ok(code)
}

async fn node(folder: &Path) -> Result<Node> {
    let mut config = NodeConfig::new(([127, 0, 0, 1], 0).into(), folder);
    config.listens = false;
    Node::start(config).await.map_err(|error| CommandFailure::new("the embedded node did not start").why(error).into())
}

fn draft(args: &RunArgs) -> Result<Job> {
    let mut payload = json!({ "argv": args.command });
    if let Ok(here) = std::env::current_dir() {
        payload["cwd"] = json!(here);
    }
    Ok(Job::new(KIND, payload)?
        .timeout(args.timeout.unwrap_or(NO_TIMEOUT))
        .stuck_after(stuck_after(args))
        .max_attempts(args.retries + 1))
}

fn stuck_after(args: &RunArgs) -> Duration {
    args.stuck_after.unwrap_or(STUCK_AFTER)
}

/// Tells lines on stderr, which may be a pipe that is full and that nobody reads: the end of a command does not wait
/// for that.
fn tell(screen: &Screen, lines: Vec<String>) {
    let (screen, (told, is_told)) = (*screen, mpsc::channel());
    thread::spawn(move || {
        lines.iter().for_each(|line| screen.note(line));
        // Nobody listens after a while.
        let _ = told.send(());
    });
    let _ = is_told.recv_timeout(TOLD_WITHIN);
}

fn code(ended: &JobInfo, last: Option<&Exit>, unwritten: Option<&OutputFailure>, asked_by: Option<u8>) -> u8 {
    match (&ended.state, asked_by) {
        (JobState::TimedOut, _) => exit::TIMED_OUT,
        (_, Some(signal)) if ended.state != JobState::Succeeded => SIGNALLED + signal,
        _ => match unwritten {
            Some(OutputFailure::Failed(_)) => exit::OWN_FAILURE,
            // Its last words were for somebody who was gone: alone, it would have met the end of the pipe itself.
            Some(OutputFailure::NoReader) if ended.state == JobState::Succeeded => SIGNALLED + SIGPIPE,
            _ if ended.state == JobState::Succeeded => 0,
            _ => last.map_or(exit::OWN_FAILURE, exit::code),
        },
    }
}

/// The verdict at the end; nothing where the command's own exit code says it all.
fn verdict(args: &RunArgs, ended: &JobInfo, last: Option<&Exit>, seen: &RunWatch, took: Duration) -> Vec<String> {
    let name = args.command.first().map_or("", String::as_str);
    let took = span::human(took);
    if let (JobState::Failed, Some(OutputFailure::Failed(error))) = (&ended.state, seen.unwritten()) {
        return vec![
            format!("onward: the output of `{name}` cannot be written, and it was ended"),
            format!("  why: {error}"),
            "  try: make room where it goes, or send it elsewhere".to_owned(),
        ];
    }
    match (&ended.state, last) {
        (JobState::TimedOut, _) if ended.reason.as_deref().is_some_and(|reason| reason.contains("stuck")) => {
            let limit = span::human(stuck_after(args));
            vec![
                format!("onward: `{name}` was stuck: no forward step for {limit}; it was ended after {took}"),
                format!("  why: {}", seen.last_words()),
                "  try: report progress with `onward progress 3/10` or a line `@onward progress 3/10`; say `onward quiet 2m` \
                 before a long silence; or allow more with --stuck-after"
                    .to_owned(),
            ]
        }
        (JobState::TimedOut, _) => {
            let limit = span::human(args.timeout.unwrap_or(NO_TIMEOUT));
            vec![
                format!("onward: `{name}` timed out: it was not done after {limit}, and was ended"),
                format!("  why: {}", seen.last_words()),
                "  try: allow more with --timeout".to_owned(),
            ]
        }
        // The command has said by its exit code how it ended; these have none.
        (
            _,
            Some(
                exit @ (Exit::NotFound { .. }
                | Exit::NotExecutable { .. }
                | Exit::NotStarted { .. }
                | Exit::Lost { .. }),
            ),
        ) => vec![format!("onward: `{name}` {}", exit::words(exit))],
        (JobState::Failed, None) => vec![format!("onward: {}", ended.reason.as_deref().unwrap_or("failed"))],
        _ => Vec::new(),
    }
}

fn report(args: &RunArgs, ended: &NodeAnswer<JobInfo>, ledger: &NodeAnswer<Ledger>, code: u8, took: Duration) -> Value {
    json!({
        "command": args.command,
        "state": ended.state.to_string(),
        "reason": ended.reason,
        "exit_code": code,
        "took_s": took.as_secs_f64(),
        "job": read::value(ended.text()),
        "ledger": read::value(ledger.text()),
    })
}

fn write_report(file: &Path, report: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(file, text).map_err(|error| {
        CommandFailure::new(format!("cannot write the report to {}", file.display())).why(error).into()
    })
}

struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> u8 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hang_up.recv() => SignalKind::hangup(),
        };
        kind.as_raw_value() as u8
    }
}
