//! Runs programs, and ends what they started when they end, are cancelled, or their call is dropped. A process that left
//! their group by `setsid`, or was orphaned by a double fork, is found all the same: see the [tree](ProcessTree).

use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use onward_lease::wrap::ProcessTree;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use crate::tool::{Effect, Tool, ToolContext, ToolError};

const MARK: &str = "ONWARD_TOOL_CALL";
/// Bytes kept of each of the two outputs, the newest ones.
const KEPT_BYTES: usize = 30 << 10;
/// The time between the request to stop and the kill. The agent waits for two seconds.
const STOPS_WITHIN: Duration = Duration::from_millis(500);
/// Variables of the environment that programs are given.
const INHERITED: [&str; 4] = ["PATH", "HOME", "LANG", "TMPDIR"];

/// The tool `command`: runs one of the programs that you name. They run as the user of this process, and see of its
/// environment only `PATH`, `HOME`, `LANG` and `TMPDIR`. This is no sandbox.
#[derive(Clone, Debug)]
pub struct CommandTool {
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

impl CommandTool {
    /// Only these programs are run, and each under exactly this name or path.
    pub fn programs(programs: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { programs: programs.into_iter().map(Into::into).collect(), folder: None }
    }

    /// The folder that the programs run in.
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
        adopt_orphans(&mut command);
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let pipes = [stdout.as_ref().map(|pipe| pipe as &dyn AsFd), stderr.as_ref().map(|pipe| pipe as &dyn AsFd)];
        let mut tree = ProcessTree::new(child.id(), format!("{MARK}={mark}"), pipes);
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
                    tree.terminate();
                    let _ = timeout(STOPS_WITHIN, child.wait()).await;
                    tree.end().await;
                    return Err(ToolError::new("cancelled"));
                }
                () = &mut reading, if !is_read => is_read = true,
            }
        };
        // Processes that were left behind are ended, and with them whoever holds the outputs open.
        tree.end().await;
        if !is_read {
            let _ = timeout(STOPS_WITHIN, &mut reading).await;
        }
        drop(reading);
        Ok(format!("{status}\n{}{}", outputs.0.show("stdout"), outputs.1.show("stderr")))
    }
}

/// Processes that lose their parent stay below the program while it runs, so that the [tree](ProcessTree) has all of them.
fn adopt_orphans(command: &mut tokio::process::Command) {
    let adopt = || rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(Into::into);
    #[expect(unsafe_code, reason = "between fork and exec it makes two system calls and touches no memory")]
    // SAFETY: both calls are safe in a child of a process with several threads: they allocate nothing and take no lock.
    unsafe {
        command.pre_exec(adopt);
    }
}

/// Another name for every run of every process.
fn unique(key: &str) -> Result<String, ToolError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| ToolError::new(format!("no randomness: {error}")))?;
    Ok(format!("{key}.{:016x}", u64::from_ne_bytes(bytes)))
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
