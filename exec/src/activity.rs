//! Activity: what a process tree has done, as one number that only rises.
//!
//! The number is CPU time in ticks plus I/O in bytes. Its size means nothing; that it rises means that something ran.
//! `sleep` and a deadlock do not make it rise; a silent computation or copy does. It is measured by the guard, which is
//! above the tree, so that measuring does not count as activity.

use std::collections::{HashMap, HashSet};
use std::fs;

use crate::tree::{self, Process};

#[derive(Debug, Default)]
pub struct Activity {
    /// The work that each process had done when it was last seen. One that is gone needs no place: its part is in the
    /// total.
    seen: HashMap<(i32, u64), u64>,
    total: u64,
}

impl Activity {
    /// The work of the descendants of `root` up to now. Never less than the time before.
    pub fn sample(&mut self, root: i32) -> u64 {
        let mut there = tree::below(root);
        there.extend(self.overlooked(&there));
        self.add(there.iter().map(|process| (name(process), process.cpu + io_bytes(process))))
    }

    /// Processes that were seen before and are still there, but not in `found`: forgotten, they would count as new next
    /// time.
    fn overlooked(&self, found: &[Process]) -> Vec<Process> {
        let found: HashSet<(i32, u64)> = found.iter().map(name).collect();
        let missing = self.seen.keys().filter(|known| !found.contains(known));
        missing.filter_map(|known| tree::read(known.0).filter(|now| name(now) == *known)).collect()
    }

    /// A process that is new counts in full; of one that was there, what it has done since.
    ///
    /// The kernel adds what a child has done to its parent's account when the parent has waited for it. So the work of
    /// processes too short-lived to be seen here is not lost, and that of others may count twice; it did happen.
    fn add(&mut self, now: impl Iterator<Item = ((i32, u64), u64)>) -> u64 {
        let mut next = HashMap::new();
        for (process, done) in now {
            let before = self.seen.get(&process).copied().unwrap_or(0);
            self.total = self.total.saturating_add(done.saturating_sub(before));
            // A process that changes its rights hides a part for a while; that must not count again afterwards.
            next.insert(process, done.max(before));
        }
        self.seen = next;
        self.total
    }
}

fn name(process: &Process) -> (i32, u64) {
    (process.pid, process.started)
}

/// Bytes through system calls, and bytes that reached a disk without one (mapped files).
fn io_bytes(process: &Process) -> u64 {
    // A program with other rights than ours hides this file. Its CPU time still shows.
    let Ok(text) = fs::read_to_string(format!("/proc/{}/io", process.pid)) else { return 0 };
    sum_of_io(&text)
}

fn sum_of_io(text: &str) -> u64 {
    let counted = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        matches!(name, "rchar" | "wchar" | "read_bytes" | "write_bytes").then(|| value.parse::<u64>().ok())?
    };
    text.lines().filter_map(counted).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_rises_by_what_was_done_and_never_falls() {
        let mut activity = Activity::default();
        let (a, b, a_again) = ((1, 10), (2, 20), (1, 99));
        for (now, total) in [
            (vec![(a, 5)], 5),
            (vec![(a, 5)], 5),
            (vec![(a, 7), (b, 100)], 107),
            (vec![(b, 100)], 107),
            (vec![], 107),
            (vec![(a_again, 3)], 110),
            (vec![(a_again, 1)], 110),
            (vec![(a_again, 3)], 110),
            (vec![(a_again, 4)], 111),
        ] {
            assert_eq!(activity.add(now.clone().into_iter()), total, "{now:?}");
        }
    }

    #[test]
    fn one_that_was_overlooked_is_not_new_the_next_time() {
        let me = tree::read(std::process::id() as i32).expect("this process");
        let since = |started: u64| Activity { seen: HashMap::from([((me.pid, started), 5)]), total: 5 };
        let known = since(me.started);
        assert_eq!(known.overlooked(&[]).iter().map(name).collect::<Vec<_>>(), [name(&me)]);
        assert_eq!(known.overlooked(std::slice::from_ref(&me)), []);
        // Another process that had the same number.
        assert_eq!(since(me.started + 1).overlooked(&[]), []);
    }

    #[test]
    fn io_is_read_by_name() {
        let text = "rchar: 1\nwchar: 20\nsyscr: 300\nsyscw: 300\nread_bytes: 4000\nwrite_bytes: 50000\n\
                    cancelled_write_bytes: 600000\n";
        assert_eq!(sum_of_io(text), 54021);
    }
}
