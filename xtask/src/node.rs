//! A node for the checks that talk to one from outside.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Killed when it is dropped.
pub struct XtaskNode {
    child: Child,
    pub url: String,
}

impl XtaskNode {
    /// Starts a node without a worker.
    pub fn start(program: &Path, data: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["up", "--slots", "0", "--data"]).arg(data);
        Self::start_as(command)
    }

    /// Any command that runs a node.
    pub fn start_as(mut command: Command) -> Result<Self> {
        command.args(["--json", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line)?;
        let url = line.split('"').find(|part| part.starts_with("http")).map(str::to_owned);
        let url = url.with_context(|| format!("the node did not say where it listens, but `{line}`"))?;
        Ok(Self { child, url })
    }

    pub fn still_serves(mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "the node ended meanwhile ({ended:?})");
        Ok(())
    }
}

impl Drop for XtaskNode {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill, and nothing to wait for long.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
