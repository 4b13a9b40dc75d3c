//! Ends a process tree: SIGTERM, a grace, SIGKILL until nothing is left.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::tree::{self, Process};
use crate::wire::GuardOrder;

/// While killing: new processes may have been born between our look and our blow.
const KILL_AGAIN: Duration = Duration::from_millis(10);
/// The longest pause between two blows at a process that does not die (of another user, or stuck in the kernel).
const KILL_SLOWLY: Duration = Duration::from_secs(1);
/// The pause between two looks in the grace, after which an orphan that has ended is reaped.
const REAP_AGAIN: Duration = Duration::from_millis(50);

pub(crate) struct TreeKill {
    root: i32,
    session: TreeSession,
    grace: Duration,
    phase: Phase,
    fds: Vec<OwnedFd>,
    /// Processes that were there when we last killed.
    survivors: HashSet<(i32, u64)>,
    again: Duration,
}

/// The session that the tree is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeSession {
    /// The session of `root`, which has begun it. Whoever is in it, or in one begun by somebody in it, is in the tree.
    Own,
    /// A session of somebody else. Strangers may be in the same group.
    Shared,
}

enum Phase {
    Begin,
    Grace { until: Instant },
    Kill,
}

impl TreeKill {
    /// Kills all descendants of `root`, which must be their subreaper, and reap between one push and the next.
    pub fn new(root: i32, session: TreeSession, order: GuardOrder, grace: Duration) -> Self {
        let phase = if order == GuardOrder::Kill { Phase::Kill } else { Phase::Begin };
        Self { root, session, grace, phase, fds: Vec::new(), survivors: HashSet::new(), again: KILL_AGAIN }
    }

    pub fn kill_now(&mut self) {
        self.phase = Phase::Kill;
    }

    /// Does what is due. Says when to call it again at the latest.
    pub fn poll(&mut self) -> Duration {
        let now = Instant::now();
        match self.phase {
            Phase::Begin => {
                self.terminate();
                self.phase = Phase::Grace { until: now + self.grace };
                self.grace.min(REAP_AGAIN)
            }
            Phase::Grace { until } if now < until => {
                self.fds = self.descendants().iter().filter_map(open).collect();
                (until - now).min(REAP_AGAIN)
            }
            Phase::Grace { .. } | Phase::Kill => {
                self.phase = Phase::Kill;
                self.kill()
            }
        }
    }

    /// Processes whose end is worth waking up for.
    pub fn fds(&self) -> &[OwnedFd] {
        &self.fds
    }

    /// Once, to those that are there: what they start to clean up gets the rest of the grace in peace.
    fn terminate(&mut self) {
        let descendants = self.descendants();
        for process in &descendants {
            // One that may not be signalled is still there afterwards, and is met again.
            let _ = process.signal(Signal::TERM);
            // A stopped process would not hear it.
            let _ = process.signal(Signal::CONT);
        }
        self.fds = descendants.iter().filter_map(open).collect();
    }

    fn kill(&mut self) -> Duration {
        let descendants = self.descendants();
        let others = match self.session {
            TreeSession::Own => tree::read(self.root).into_iter().collect(),
            TreeSession::Shared => tree::all(),
        };
        // A signal to a group is atomic: nothing in it can escape by forking faster than we read /proc.
        for group in own_groups(&others, &descendants) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        for process in &descendants {
            let _ = process.signal(Signal::KILL);
        }
        self.fds = descendants.iter().filter_map(open).collect();
        let survivors = descendants.iter().map(|process| (process.pid, process.started)).collect();
        self.again = if self.survivors == survivors { (self.again * 2).min(KILL_SLOWLY) } else { KILL_AGAIN };
        self.survivors = survivors;
        self.again
    }

    fn descendants(&self) -> Vec<Process> {
        let mut descendants = tree::below(self.root);
        descendants.retain(Process::is_alive);
        descendants
    }
}

/// Process groups that have no member outside the tree. `others` are those that could be, and may be in it.
fn own_groups(others: &[Process], descendants: &[Process]) -> Vec<Pid> {
    let inside: HashSet<i32> = descendants.iter().map(|process| process.pid).collect();
    let mut groups: HashSet<i32> = descendants.iter().map(|process| process.group).collect();
    for process in others.iter().filter(|process| process.is_alive() && !inside.contains(&process.pid)) {
        groups.remove(&process.group);
    }
    // Groups 0 and 1 are not what they seem: the one is our own, the other everybody.
    groups.into_iter().filter(|&group| group > 1).filter_map(Pid::from_raw).collect()
}

fn open(process: &Process) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, group: i32, state: char) -> Process {
        Process { pid, parent: 1, group, session: group, state, started: 0, cpu: 0 }
    }

    #[test]
    fn only_groups_wholly_inside_the_tree_are_signalled() {
        let inside =
            [process(10, 10, 'S'), process(11, 10, 'S'), process(12, 5, 'S'), process(13, 0, 'S'), process(14, 1, 'S')];
        let outside = [process(5, 5, 'S'), process(20, 20, 'S'), process(21, 10, 'Z')];
        let all = [&inside[..], &outside[..]].concat();
        assert_eq!(own_groups(&all, &inside), [Pid::from_raw(10).expect("a pid")]);
    }
}
