//! The processes of one command, and how they are ended.
//!
//! A process tree has no name that one could kill, and this process cannot be the subreaper of one: orphans of other
//! children of the program would be its own too, and could not be told apart. So a process belongs to a command if it
//!
//! - is in its process group,
//! - carries its mark, a variable of the environment that all descendants inherit,
//! - holds one of its outputs open, and is not older than it,
//! - was below it when it was ended, or
//! - descends from such a one.
//!
//! What leaves the group, clears its environment, holds neither output *and* is orphaned escapes.

use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use onward_exec::tree::{self, Process};
use rustix::process::{Pid, Signal, kill_process_group};

const ROUNDS: usize = 500;
const AGAIN: Duration = Duration::from_millis(10);

/// Flags that tell how a file was opened (`O_ACCMODE`) and whether a program that is started keeps it (`O_CLOEXEC`).
const ACCESS: u64 = 0o3;
const CLOSED_ON_EXEC: u64 = 0o2_000_000;

/// The processes of one command. None outlives this.
#[derive(Debug)]
pub struct ProcessTree {
    root: i32,
    /// The signs that the processes are known by; none while they are being ended.
    signs: Option<Signs>,
}

#[derive(Debug)]
struct Signs {
    group: Option<Pid>,
    /// A variable with its value.
    mark: Vec<u8>,
    /// The outputs, as `/proc` names them.
    outputs: Vec<PathBuf>,
    /// The time when the command was started.
    since: u64,
    /// Processes that were below the command at its end.
    below: Vec<Process>,
}

impl ProcessTree {
    /// The tree of a command that leads a process group. `mark` is a variable with its value, `NAME=value`, that the
    /// command has in its environment, and nothing else on this machine.
    pub fn new(leader: Option<u32>, mark: String, outputs: [Option<&dyn AsFd>; 2]) -> Self {
        let root = leader.and_then(|id| i32::try_from(id).ok()).unwrap_or_default();
        let name = |output: &dyn AsFd| {
            let link = format!("/proc/self/fd/{}", output.as_fd().as_raw_fd());
            std::fs::read_link(link).ok()
        };
        let signs = Signs {
            group: Pid::from_raw(root),
            mark: mark.into_bytes(),
            outputs: outputs.into_iter().flatten().filter_map(name).collect(),
            // One that has ended already is as young as anything that is younger than it.
            since: tree::read(root).or_else(|| tree::read(own_pid())).map_or(u64::MAX, |process| process.started),
            below: Vec::new(),
        };
        Self { root, signs: Some(signs) }
    }

    /// Asks the group to stop. Whoever is below the command now may be an orphan afterwards, and is remembered.
    pub fn terminate(&mut self) {
        if let Some(signs) = &mut self.signs {
            signs.below = tree::below(self.root);
            signs.signal(Signal::TERM);
        }
    }

    /// Kills all of them, until nothing is left.
    pub async fn end(mut self) {
        let Some(mut signs) = self.signs.take() else { return };
        signs.below.extend(tree::below(self.root));
        // If this future is dropped, the thread goes on.
        if let Err(error) = tokio::task::spawn_blocking(move || signs.end_all()).await {
            tracing::warn!(%error, "what a command left behind was not looked for");
        }
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        let Some(mut signs) = self.signs.take() else { return };
        signs.below.extend(tree::below(self.root));
        signs.signal(Signal::KILL);
        let rest = std::thread::Builder::new().name("onward-command-end".into()).spawn(move || signs.end_all());
        if let Err(error) = rest {
            tracing::warn!(%error, "no thread to look for what a command left behind");
        }
    }
}

impl Signs {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // A group that has ended has nobody to tell.
            let _ = kill_process_group(group, signal);
        }
    }

    fn end_all(&self) {
        self.signal(Signal::KILL);
        for _ in 0..ROUNDS {
            let found = self.find();
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

    fn find(&self) -> Vec<Process> {
        let all = tree::all();
        let own: Vec<&Process> = all.iter().filter(|one| one.is_alive() && self.is_own(one)).collect();
        let mut found: Vec<Process> = own.iter().flat_map(|one| tree::descendants(one.pid, &all)).collect();
        found.extend(own.into_iter().cloned());
        found.retain(Process::is_alive);
        found
    }

    fn is_own(&self, process: &Process) -> bool {
        let was_below = |one: &Process| (one.pid, one.started) == (process.pid, process.started);
        let carries = |environ: Vec<u8>| environ.split(|&byte| byte == 0).any(|entry| entry == self.mark);
        self.below.iter().any(was_below)
            || std::fs::read(format!("/proc/{}/environ", process.pid)).is_ok_and(carries)
            || self.holds_output(process)
    }

    /// Whether a process writes to one of the outputs. An older one was given it by another process, as the master of a
    /// connection is by its clients. And one of this program's own that is about to be started has it only until then.
    fn holds_output(&self, process: &Process) -> bool {
        if process.started < self.since || process.pid == own_pid() {
            return false;
        }
        let Ok(files) = std::fs::read_dir(format!("/proc/{}/fd", process.pid)) else { return false };
        files.flatten().any(|file| {
            let is_output = std::fs::read_link(file.path()).is_ok_and(|name| self.outputs.contains(&name));
            is_output && is_written(process.pid, &file.file_name().to_string_lossy())
        })
    }
}

fn is_written(pid: i32, file: &str) -> bool {
    let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{file}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u64::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & ACCESS != 0 && flags & CLOSED_ON_EXEC == 0)
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}
