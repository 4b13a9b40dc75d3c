//! Processes: signals to them, and whether anything is left of what a test has started.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep, timeout};

use super::PATIENCE;

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A tick that is later than this was kept from coming.
const GAP_AFTER: Duration = Duration::from_millis(500);

/// Asks again and again until there is an answer.
pub async fn until<T>(what: &str, within: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        sleep(LOOK_EVERY).await;
    }
}

/// Waits for it, and says for how long this process could not run meanwhile: stopped or starved, it sees its own ticks
/// come late.
pub async fn with_gaps<T>(what: impl Future<Output = T>) -> (T, Duration) {
    let mut what = std::pin::pin!(what);
    let (mut gaps, mut before) = (Duration::ZERO, Instant::now());
    loop {
        if let Ok(done) = timeout(LOOK_EVERY, &mut what).await {
            return (done, gaps);
        }
        let late = before.elapsed().saturating_sub(LOOK_EVERY);
        gaps += if late > GAP_AFTER { late } else { Duration::ZERO };
        before = Instant::now();
    }
}

/// Signals a process that the test has started and not yet waited for: the pid is still its own.
pub fn signal(pid: u32, what: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, what).expect("the process is there");
}

pub async fn ended(child: &mut Child, within: Duration) -> Option<i32> {
    until("the process ends", within, async || child.try_wait().expect("it is our child")).await.code()
}

/// A variable in the environment of a process, and so of all that it starts, wherever that goes.
#[derive(Debug)]
pub struct Mark(String);

const VARIABLE: &str = "TEST_MARK";

impl Mark {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // With the time, since pids are given out again.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_nanos();
        Self(format!("{}-{}-{now}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    pub fn put<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(VARIABLE, &self.0)
    }

    /// The mark for the environment of a job's payload.
    pub fn variable(&self) -> (&'static str, &str) {
        (VARIABLE, &self.0)
    }

    /// Pids with the names of their programs. A zombie has no environment any more.
    pub fn carriers(&self) -> Vec<(i32, String)> {
        let wanted = format!("{VARIABLE}={}", self.0);
        let carries = |pid: i32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
        };
        let pids = std::fs::read_dir("/proc").expect("there is /proc").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let name = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        pids.filter(|pid| carries(*pid)).map(|pid| (pid, name(pid).trim().to_owned())).collect()
    }

    /// Waits until so many of the marked processes run this program.
    pub async fn runs(&self, program: &str, count: usize) {
        until(&format!("{count} × {program} of {self:?}"), PATIENCE, async || {
            (self.carriers().iter().filter(|(_, name)| name == program).count() >= count).then_some(())
        })
        .await;
    }

    /// Waits until nobody carries the mark.
    pub async fn gone(&self, within: Duration) {
        self.gone_but(None, within).await;
    }

    /// Waits until nobody but this process carries the mark.
    pub async fn gone_but(&self, pid: Option<u32>, within: Duration) {
        let spared = pid.map(|pid| pid as i32);
        let deadline = Instant::now() + within;
        loop {
            let left: Vec<_> = self.carriers().into_iter().filter(|(pid, _)| Some(*pid) != spared).collect();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "still there after {within:?}: {left:?}");
            sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Mark {
    /// Kills what a failed test leaves behind.
    fn drop(&mut self) {
        for (pid, _) in self.carriers() {
            if let Some(pid) = Pid::from_raw(pid) {
                // It may have ended in between.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
