//! Processes, as `/proc` shows them, and which of them descend from one.
//!
//! Every attempt has a guard, and a machine may run a thousand of them. So a guard does not read all of `/proc`, but
//! goes down from itself; only a kernel that does not tell a process's children makes it read everything.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// The part that we need of one line of `/proc/PID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    pub state: char,
    /// Ticks since boot. Together with the pid it names one process for good.
    pub started: u64,
    /// User and system time in ticks, that of children already waited for included.
    pub cpu: u64,
}

impl Process {
    /// A zombie does nothing and holds nothing; it only waits for its parent.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Signals this very process, not one that has got its pid since. One that is gone already is no error.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(()) };
        let sent = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(_) if read(self.pid).is_none_or(|now| now.started != self.started) => Ok(()),
            Ok(fd) => pidfd_send_signal(fd, signal),
            Err(Errno::NOSYS) => kill_process(pid, signal),
            Err(error) => Err(error),
        };
        sent.or_else(|error| if error == Errno::SRCH { Ok(()) } else { Err(error) })
    }
}

/// The process with this pid, if it is there.
pub fn read(pid: i32) -> Option<Process> {
    parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// All processes that this one may see. A process that ends meanwhile may be missing.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The descendants of `root` that are there now, without itself.
///
/// This is no snapshot: one whose parent or sibling ends meanwhile may be missing this time.
pub fn below(root: i32) -> Vec<Process> {
    if !kernel_lists_children() {
        return descendants(root, &all());
    }
    // A process that has changed its parent meanwhile may be met twice.
    let mut seen = HashSet::from([root]);
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        for pid in children(parent) {
            if seen.insert(pid)
                && let Some(process) = read(pid)
            {
                found.push(process);
                open.push(pid);
            }
        }
    }
    found
}

/// Whether the kernel lists the children of a thread: not every kernel is built with that.
fn kernel_lists_children() -> bool {
    static TOLD: OnceLock<bool> = OnceLock::new();
    *TOLD.get_or_init(|| fs::exists("/proc/thread-self/children").unwrap_or(false))
}

/// Each thread has children of its own.
fn children(parent: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let told = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    threads.flatten().map(told).flat_map(|pids| numbers(&pids)).collect()
}

fn numbers(text: &str) -> Vec<i32> {
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Processes of `all` that descend from `root`, without itself.
pub fn descendants(root: i32, all: &[Process]) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    // The passes over `/proc` are no snapshot: with a reused pid in it, two could look like each other's parents.
    let mut seen = HashSet::from([root]);
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            if seen.insert(child.pid) {
                found.push((*child).clone());
                open.push(child.pid);
            }
        }
    }
    found
}

fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    // The name of the program stands in parentheses and may itself contain any byte.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let fields: Vec<&str> = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let id = |at: usize| fields.get(at)?.parse::<i32>().ok();
    Some(Process {
        pid,
        state: fields.first()?.chars().next()?,
        parent: id(1)?,
        group: id(2)?,
        session: id(3)?,
        cpu: number(11)? + number(12)? + number(13)? + number(14)?,
        started: number(19)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        Process { pid, parent, group: pid, session: pid, state: 'S', started: 0, cpu: 0 }
    }

    #[test]
    fn a_line_with_a_hostile_name_is_read() {
        let line = b"42 (a) S 1 (\xff\n) R 7 8 9 34816 8 4194304 1 2 3 4 10 20 3 4 20 0 1 0 5555 1000 200 18446744073709551615";
        let expected = Process { pid: 42, parent: 7, group: 8, session: 9, state: 'R', started: 5555, cpu: 37 };
        assert_eq!(parse(42, line), Some(expected));
        assert_eq!(parse(42, b"42 (a) S 1"), None);
        assert_eq!(parse(42, b""), None);
    }

    #[test]
    fn we_are_there_ourselves() {
        let own = std::process::id() as i32;
        let me = all().into_iter().find(|process| process.pid == own).expect("this process");
        assert!(me.is_alive());
        assert_eq!(me.parent, std::os::unix::process::parent_id() as i32);
    }

    #[test]
    fn descendants_are_found_through_every_generation() {
        let all = [process(5, 4), process(2, 1), process(3, 2), process(4, 3), process(9, 8), process(8, 1)];
        let mut found: Vec<i32> = descendants(2, &all).iter().map(|process| process.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [3, 4, 5]);
        assert_eq!(descendants(5, &all), []);
    }

    #[test]
    fn those_below_are_found_in_every_generation_and_of_every_thread() {
        let own = std::process::id() as i32;
        // A child of another thread than the first, with children of its own; all end with the pipe.
        let mut shell_of_a_thread = std::process::Command::new("sh");
        shell_of_a_thread.args(["-c", "cat | cat"]).stdin(std::process::Stdio::piped());
        let (started, child) = std::sync::mpsc::channel();
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            started.send(shell_of_a_thread.spawn().expect("a shell")).expect("somebody waits");
            // The children of a thread that has ended are another's.
            let _ = is_over.recv();
        });
        let mut child = child.recv().expect("it starts");
        let shell = child.id() as i32;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let found = loop {
            let found: Vec<Process> =
                below(own).into_iter().filter(|one| one.pid == shell || one.parent == shell).collect();
            if found.len() == 3 {
                break found;
            }
            assert!(std::time::Instant::now() < deadline, "{found:?}");
            std::thread::yield_now();
        };
        let mut all: Vec<i32> = descendants(shell, &all()).iter().map(|process| process.pid).collect();
        all.push(shell);
        all.sort_unstable();
        let mut pids: Vec<i32> = found.iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, all);
        drop(over);
        thread.join().expect("it only waits");
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(below(own).iter().all(|process| process.pid != shell));
    }

    #[test]
    fn a_circle_ends() {
        assert_eq!(descendants(1, &[process(2, 1), process(1, 2)]).len(), 1);
        assert_eq!(descendants(1, &[process(2, 3), process(3, 2)]).len(), 0);
    }
}
