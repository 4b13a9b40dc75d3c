//! Runs programs, and ends whatever they started.
//!
//! A command has a process group of its own, and a mark in its environment that all of its descendants inherit. When it
//! ends, is cancelled, or its call is dropped, the group is killed and then whatever carries the mark or descends from
//! what does, until nothing is left: a process that left the group by `setsid`, or was orphaned by a double fork, is
//! found all the same. What clears its own environment *and* is orphaned escapes.

use core::time::Duration;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use onward_exec::tree;
use rustix::process::{Pid, Signal, kill_process_group};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use crate::tool::{Effect, Tool, ToolContext, ToolError};

const MARK: &str = "ONWARD_TOOL_CALL";
/// Of each of the two outputs, the newest.
const KEPT_BYTES: usize = 30 << 10;
/// Between the request to stop and the kill. The agent waits for two seconds.
const STOPS_WITHIN: Duration = Duration::from_millis(500);
/// What is told to the programs of the environment.
const INHERITED: [&str; 4] = ["PATH", "HOME", "LANG", "TMPDIR"];
const ROUNDS: usize = 500;
const AGAIN: Duration = Duration::from_millis(10);

/// The tool `command`: runs one of the programs that you name. They run as the user of this process, and see of its
/// environment only `PATH`, `HOME`, `LANG` and `TMPDIR`. This is no sandbox.
#[derive(Clone, Debug)]
pub struct Command {
    programs: Vec<String>,
    folder: Option<PathBuf>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    program: String,
    #[serde(default)]
    arguments: Vec<String>,
}

impl Command {
    /// Only these programs are run, and each under exactly this name or path.
    pub fn programs(programs: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { programs: programs.into_iter().map(Into::into).collect(), folder: None }
    }

    /// Where they run.
    pub fn folder(self, folder: impl AsRef<Path>) -> Self {
        Self { folder: Some(folder.as_ref().to_owned()), ..self }
    }

    pub fn tool(self) -> Tool {
        let text = format!(
            "Runs a program to its end, and gives its exit status and output. Programs: {}",
            self.programs.join(", ")
        );
        let own = Arc::new(self);
        let run = move |ctx: ToolContext, arguments: Arguments| {
            let own = own.clone();
            async move { own.run(&ctx, &arguments).await }
        };
        Tool::new("command", &text, run).effect(Effect::Once)
    }

    async fn run(&self, ctx: &ToolContext, arguments: &Arguments) -> Result<String, ToolError> {
        if !self.programs.contains(&arguments.program) {
            return Err(ToolError::new(format!(
                "`{}` is not allowed; use {}",
                arguments.program,
                self.programs.join(", ")
            )));
        }
        let mark = unique(ctx.call_key())?;
        let mut command = tokio::process::Command::new(&arguments.program);
        command.args(&arguments.arguments).env_clear().env(MARK, &mark);
        command.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let mut child = command.spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let tree = Tree { group, mark: format!("{MARK}={mark}").into_bytes(), is_over: false };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut outputs = (Tail::default(), Tail::default());
        let reading = async {
            tokio::join!(outputs.0.read(stdout, ctx), outputs.1.read(stderr, ctx));
        };
        let mut reading = Box::pin(reading);
        let mut is_read = false;
        let status = loop {
            tokio::select! {
                biased;
                status = child.wait() => break status?,
                () = ctx.cancelled() => {
                    tree.signal(Signal::TERM);
                    let _ = timeout(STOPS_WITHIN, child.wait()).await;
                    tree.end().await;
                    return Err(ToolError::new("cancelled"));
                }
                () = &mut reading, if !is_read => is_read = true,
            }
        };
        // What was left behind is ended, and with it whoever holds the outputs open.
        tree.end().await;
        if !is_read {
            let _ = timeout(STOPS_WITHIN, &mut reading).await;
        }
        drop(reading);
        Ok(format!("{status}\n{}{}", outputs.0.show("stdout"), outputs.1.show("stderr")))
    }
}

/// Another name for every run of every process.
fn unique(key: &str) -> Result<String, ToolError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| ToolError::new(format!("no randomness: {error}")))?;
    Ok(format!("{key}.{:016x}", u64::from_ne_bytes(bytes)))
}

/// The processes of one command. None outlives it.
struct Tree {
    group: Option<Pid>,
    mark: Vec<u8>,
    is_over: bool,
}

impl Tree {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // Of a group that has ended there is nobody to tell.
            let _ = kill_process_group(group, signal);
        }
    }

    async fn end(mut self) {
        let Self { group, mark, .. } = &mut self;
        let (group, mark) = (group.take(), core::mem::take(mark));
        // If this future is dropped, the thread goes on.
        let ended = tokio::task::spawn_blocking(move || end_tree(group, &mark)).await;
        self.is_over = ended.is_ok();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self.is_over || self.mark.is_empty() {
            return;
        }
        self.signal(Signal::KILL);
        let (group, mark) = (self.group, core::mem::take(&mut self.mark));
        let rest = std::thread::Builder::new().name("onward-tool-end".into()).spawn(move || end_tree(group, &mark));
        if let Err(error) = rest {
            tracing::warn!(%error, "no thread to look for what a command left behind");
        }
    }
}

fn end_tree(group: Option<Pid>, mark: &[u8]) {
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    for _ in 0..ROUNDS {
        let all = tree::all();
        let carries = |environ: Vec<u8>| environ.split(|&byte| byte == 0).any(|entry| entry == mark);
        let is_marked = |one: &&tree::Process| std::fs::read(format!("/proc/{}/environ", one.pid)).is_ok_and(carries);
        let marked: Vec<&tree::Process> = all.iter().filter(|one| one.is_alive()).filter(is_marked).collect();
        let mut found: Vec<tree::Process> = marked.iter().flat_map(|one| tree::descendants(one.pid, &all)).collect();
        found.extend(marked.into_iter().cloned());
        found.retain(tree::Process::is_alive);
        if found.is_empty() {
            return;
        }
        for process in found {
            // One that may not be killed is met again in the next round.
            let _ = process.signal(Signal::KILL);
        }
        std::thread::sleep(AGAIN);
    }
    tracing::warn!("processes of a command cannot be ended");
}

/// The end of an output.
#[derive(Default)]
struct Tail {
    kept: VecDeque<u8>,
    all: usize,
}

impl Tail {
    async fn read(&mut self, pipe: Option<impl AsyncRead + Unpin>, ctx: &ToolContext) {
        let Some(mut pipe) = pipe else { return };
        let mut buffer = [0; 8 << 10];
        // An output that cannot be read is over.
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            ctx.beat();
            self.all += count;
            self.kept.extend(&buffer[..count]);
            let over = self.kept.len().saturating_sub(KEPT_BYTES);
            self.kept.drain(..over);
        }
    }

    fn show(&mut self, name: &str) -> String {
        if self.all == 0 {
            return String::new();
        }
        let cut = self.all - self.kept.len();
        let cut = if cut > 0 { format!(" (without the first {cut} bytes)") } else { String::new() };
        format!("{name}{cut}:\n{}\n", String::from_utf8_lossy(self.kept.make_contiguous()))
    }
}
