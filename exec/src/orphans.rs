//! What to do when a guard itself was killed: find the processes of its attempt by what they carry, and end them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::report::SOCKET_VARIABLE;
use crate::tree::{self, Process};

const AGAIN: Duration = Duration::from_millis(20);
/// A process that we may not kill is left after this; there is nothing more that we could do.
const ROUNDS: usize = 250;

/// The mark by which the processes of one attempt are known without their guard.
#[derive(Debug)]
pub(crate) struct Mark {
    /// The variable in the environment of each that did not clear it. The path is unique.
    variable: Vec<u8>,
    /// The session of those that the guard started in the background and that made none of their own.
    session: Option<i32>,
}

impl Mark {
    pub fn new(report_socket: &Path, guard: Option<u32>) -> Self {
        let variable = [SOCKET_VARIABLE.as_bytes(), b"=", report_socket.as_os_str().as_bytes()].concat();
        Self { variable, session: guard.and_then(|pid| i32::try_from(pid).ok()) }
    }

    /// Kills them and their descendants until none is left. A pid is not reused while we look for seconds.
    pub async fn end(&self) {
        for _ in 0..ROUNDS {
            let found = self.find();
            if found.is_empty() {
                return;
            }
            for process in found {
                // One that may not be killed is met again in the next round.
                let _ = process.signal(Signal::KILL);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn find(&self) -> Vec<Process> {
        let all = tree::all();
        let marked: Vec<&Process> = all.iter().filter(|process| process.is_alive() && self.is_on(process)).collect();
        let mut found: Vec<Process> = marked.iter().flat_map(|one| tree::descendants(one.pid, &all)).collect();
        found.extend(marked.into_iter().cloned());
        found.retain(Process::is_alive);
        found
    }

    fn is_on(&self, process: &Process) -> bool {
        let carries = |environ: Vec<u8>| environ.split(|&byte| byte == 0).any(|entry| entry == self.variable);
        self.session == Some(process.session)
            || std::fs::read(format!("/proc/{}/environ", process.pid)).is_ok_and(carries)
    }
}
