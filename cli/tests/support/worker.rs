//! `onward worker` as a process of its own.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::process::{self, Mark};
use super::{end, onward};

#[derive(Debug)]
pub struct Worker {
    child: Child,
    /// The mark of the worker, its guards and its commands.
    pub mark: Mark,
}

impl Worker {
    /// `data` is the node's folder, where its token is.
    pub fn start(url: &str, data: &Path, id: &str, more: &[&str]) -> Self {
        Self::start_logging(url, data, id, more, ("off", Stdio::null()))
    }

    /// With what it logs from this level on, and where that goes.
    pub fn start_logging(url: &str, data: &Path, id: &str, more: &[&str], (level, log): (&str, Stdio)) -> Self {
        let mark = Mark::new();
        let grace: &[&str] = if more.contains(&"--grace") { &[] } else { &["--grace", "500ms"] };
        let mut command = onward(&["worker", "--manager", url, "--id", id]);
        command.args(grace).args(more).env("ONWARD_DATA", data).env("ONWARD_LOG", level).stderr(log);
        let child = mark.put(&mut command).spawn().expect("the worker starts");
        Self { child, mark }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, what: Signal) {
        process::signal(self.child.id(), what);
    }

    /// SIGKILL; the worker is gone when this returns, and what it ran soon after.
    pub fn kill(&mut self) {
        end(&mut self.child);
    }

    /// Waits until nothing but the worker itself is left of what it ran.
    pub async fn is_alone(&self, within: Duration) {
        self.mark.gone_but(Some(self.child.id()), within).await;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
