//! Attempts, and everything that they tell.
#![allow(dead_code, reason = "each test file uses its part")]

use std::time::Duration;

use onward_exec::{AttemptEvent, Exit, GuardProgram, Options, OutputStream, Running, tree};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longer than anything here takes, even on a machine that is busy with something else.
pub const LONG: Duration = Duration::from_secs(120);
/// The grace of commands that heed SIGTERM, which have all the time that they need: only one that ignores it is killed,
/// and needs a grace that ends.
pub const GRACE: Duration = LONG;
pub const SHORT_GRACE: Duration = Duration::from_millis(200);

pub fn options<const N: usize>(argv: [&str; N]) -> Options {
    let guard = GuardProgram { program: env!("CARGO_BIN_EXE_onward-guard").into(), args: vec![] };
    Options { guard, grace: GRACE, ..Options::new(argv) }
}

pub fn sh(script: &str) -> Options {
    options(["sh", "-c", script])
}

/// A command with a short grace, for scripts that ignore SIGTERM.
pub fn stubborn(script: &str) -> Options {
    Options { grace: SHORT_GRACE, ..sh(script) }
}

pub fn start(options: Options) -> Running {
    onward_exec::spawn(options).expect("a guard can be started")
}

/// Everything that an attempt told from its start to its end.
#[derive(Debug)]
pub struct All {
    /// Output on stdout.
    pub output: Vec<u8>,
    pub progress: Vec<(u64, Option<u64>, Option<String>)>,
    pub quiet: Vec<Duration>,
    pub results: Vec<String>,
    pub activity: usize,
    pub exit: Exit,
}

pub async fn all(options: Options) -> All {
    rest(start(options)).await
}

pub async fn rest(mut running: Running) -> All {
    let mut seen = All {
        output: vec![],
        progress: vec![],
        quiet: vec![],
        results: vec![],
        activity: 0,
        exit: Exit::Lost { why: "it told no end".to_owned() },
    };
    let follow = async {
        while let Some(event) = running.next().await {
            match event {
                AttemptEvent::Started { .. } => {}
                AttemptEvent::Output { stream: OutputStream::Stdout, bytes } => seen.output.extend(bytes),
                AttemptEvent::Output { stream: OutputStream::Stderr, .. } => {}
                AttemptEvent::Activity => seen.activity += 1,
                AttemptEvent::Progress { done, total, note } => seen.progress.push((done, total, note)),
                AttemptEvent::Quiet(span) => seen.quiet.push(span),
                AttemptEvent::Result(json) => seen.results.push(json.get().to_owned()),
                AttemptEvent::Ended(exit) => seen.exit = exit,
            }
        }
    };
    tokio::time::timeout(LONG, follow).await.expect("the attempt ends");
    seen
}

/// Output up to the first moment when it ends with a line end.
pub async fn line(running: &mut Running) -> String {
    let mut text = Vec::new();
    let read = async {
        while !text.ends_with(b"\n") {
            match running.next().await {
                Some(AttemptEvent::Output { stream: OutputStream::Stdout, bytes }) => text.extend(bytes),
                Some(AttemptEvent::Ended(exit)) => {
                    panic!("ended with {exit:?} after {:?}", String::from_utf8_lossy(&text))
                }
                Some(_) => {}
                None => panic!("no more events"),
            }
        }
    };
    tokio::time::timeout(LONG, read).await.expect("a line comes");
    String::from_utf8(text).expect("text").trim().to_owned()
}

/// The life of a process, whoever gets its pid later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub pid: i32,
    started: u64,
}

impl Life {
    pub fn of(pid: i32) -> Self {
        let process = tree::read(pid).unwrap_or_else(|| panic!("there is no process {pid}"));
        assert!(process.is_alive(), "{process:?}");
        Self { pid, started: process.started }
    }

    pub fn of_all(pids: &str) -> Vec<Self> {
        pids.split_whitespace().map(|pid| Self::of(pid.parse().expect("a pid"))).collect()
    }

    pub fn is_gone(self) -> bool {
        tree::read(self.pid).is_none_or(|now| now.started != self.started || !now.is_alive())
    }

    pub async fn gone(self) {
        // What is told by this handle is of this very process, even if its number is given out again.
        let pid = rustix::process::Pid::from_raw(self.pid).expect("a pid");
        let Ok(handle) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return };
        if self.is_gone() {
            return;
        }
        let waiting = tokio::task::spawn_blocking(move || {
            let within = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
            poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&within)).expect("the kernel tells")
        });
        assert!(waiting.await.expect("it does not panic") > 0, "{self:?} is still there");
    }
}

/// The variable that every process of the attempt carries in its environment.
pub fn mark(pid: i32) -> Vec<u8> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).expect("its environment");
    let mark = environ.split(|&byte| byte == 0).find(|entry| entry.starts_with(b"ONWARD_SOCKET="));
    mark.expect("the socket is in it").to_vec()
}

/// Processes that carry the mark.
pub fn carriers(mark: &[u8]) -> Vec<i32> {
    let carries = |pid: i32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|&byte| byte == 0).any(|entry| entry == mark)
    };
    tree::all().iter().map(|process| process.pid).filter(|&pid| carries(pid)).collect()
}

/// Two sessions and two forks away from the command: no parent, no group and no session in common with it.
pub const ESCAPE: &str =
    "setsid sh -c 'setsid sh -c \"trap : TERM; echo \\$\\$; while :; do sleep 1000; done\" & exit 0' & wait;";

/// Kills by pid, and only what the test itself has started.
pub fn kill(pid: i32) {
    signal_to(pid, "-KILL");
}

pub fn signal_to(pid: i32, signal: &str) {
    let status =
        std::process::Command::new("sh").args(["-c", "kill $0 $1", signal, &pid.to_string()]).status().expect("sh");
    assert!(status.success());
}

/// Bytes of every value, the same on every call.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    })
    .take(len)
    .collect()
}
