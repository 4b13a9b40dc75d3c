//! Earlier attempts of a workflow whose processes may still run on this machine, because their worker was killed.
//!
//! A killed worker leaves its guards behind. Each ends its tree, and has the grace for that; meanwhile the workflow is
//! handed out again. Two attempts must not work side by side, so the successor waits for the guard's end. Every process
//! of an attempt is known by its environment, which also finds processes whose guard was killed together with the
//! worker: nobody else would end those, so the successor does.
//!
//! The attempt of a worker that is alive (a frozen one) is not waited for: nobody has told it to end, and its fence
//! keeps its results out.

use std::time::Duration;

use rustix::process::Signal;

use crate::tree::{self, Process};

const AGAIN: Duration = Duration::from_millis(20);

const JOB: &str = "ONWARD_JOB_ID";
const WORKFLOW: &str = "ONWARD_WORKFLOW";
const FENCE: &str = "ONWARD_FENCE";
/// Only in the environment of a guard: the process that has started it.
pub(crate) const WORKER: &str = "ONWARD_WORKER_PID";

/// The attempt that a command is. Its processes carry it in their environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptIdentity {
    pub job: String,
    pub workflow: String,
    pub fence: u64,
}

impl AttemptIdentity {
    pub(crate) fn variables(&self) -> [(&'static str, String); 3] {
        [(JOB, self.job.clone()), (WORKFLOW, self.workflow.clone()), (FENCE, self.fence.to_string())]
    }

    /// Waits until nothing is left of earlier attempts whose worker is gone. Reads all of `/proc`, so ask only where
    /// there was an earlier attempt.
    pub async fn predecessors_end(&self) {
        while self.has_predecessors().await {
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Whether there are any predecessors. Those that nobody else will end are killed.
    pub async fn has_predecessors(&self) -> bool {
        let identity = self.clone();
        let look = move || {
            let found = identity.find(&tree::all());
            for orphan in found.iter().filter(|one| one.is_orphan) {
                // One that may not be killed is met again.
                let _ = orphan.process.signal(Signal::KILL);
            }
            !found.is_empty()
        };
        // It does not panic, and is cancelled only with the whole runtime.
        tokio::task::spawn_blocking(look).await.unwrap_or(false)
    }

    fn find(&self, all: &[Process]) -> Vec<Predecessor> {
        let carriers: Vec<Carrier<'_>> = all.iter().filter_map(|process| self.carrier(process)).collect();
        let guard_of = |fence: u64| carriers.iter().find(|one| one.fence == fence && one.worker.is_some());
        let mut found = Vec::new();
        for carrier in &carriers {
            match guard_of(carrier.fence) {
                Some(guard) if guard.has_worker(all) => {}
                Some(_) => found.push(Predecessor { process: carrier.process.clone(), is_orphan: false }),
                None => {
                    let tree = tree::descendants(carrier.process.pid, all).into_iter().chain([carrier.process.clone()]);
                    let living = tree.filter(Process::is_alive);
                    found.extend(living.map(|process| Predecessor { process, is_orphan: true }));
                }
            }
        }
        found
    }

    /// The process as a carrier, if it belongs to an earlier attempt of the same workflow.
    fn carrier<'a>(&self, process: &'a Process) -> Option<Carrier<'a>> {
        if !process.is_alive() {
            return None;
        }
        let environ = std::fs::read(format!("/proc/{}/environ", process.pid)).ok()?;
        let value = |name: &str| {
            let mut entries = environ.split(|&byte| byte == 0);
            entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        if value(JOB)? != self.job.as_bytes() || value(WORKFLOW)? != self.workflow.as_bytes() {
            return None;
        }
        let number = |name: &str| std::str::from_utf8(value(name)?).ok()?.parse().ok();
        let fence = number(FENCE).filter(|fence| *fence < self.fence)?;
        Some(Carrier { process, fence, worker: number(WORKER).and_then(|pid| i32::try_from(pid).ok()) })
    }
}

struct Predecessor {
    process: Process,
    /// The guard of the process is gone too.
    is_orphan: bool,
}

struct Carrier<'a> {
    process: &'a Process,
    fence: u64,
    /// The process that has started it, if it is a guard.
    worker: Option<i32>,
}

impl Carrier<'_> {
    /// A process whose parent has ended gets another one.
    fn has_worker(&self, all: &[Process]) -> bool {
        let parent = all.iter().find(|process| process.pid == self.process.parent);
        self.worker == Some(self.process.parent) && parent.is_some_and(Process::is_alive)
    }
}
