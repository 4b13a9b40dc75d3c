//! The eye: a thread of its own that sees what a process cannot see from inside its executor, and answers for it.
//!
//! Several times a second it looks: at how long a task waits for the executor, at loops that hang, at heartbeats that are
//! silent. A stall is logged with where the last beat was, what hangs is cancelled, and if liveness stays lost the
//! process exits, where that was asked for. What was seen goes to whoever restarts and routes:
//!
//! - [`http`] answers probes over a listener of its own, so that a starved executor can neither fake nor block them;
//! - [`ready_file`] keeps a file while the process is ready;
//! - [`systemd`] notifies a service manager. Its watchdog is fed from a look, never by a timer alone.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use onward_core::health::{LoopReason, LoopState};
use tokio::runtime::Handle;

use self::http::Listener;
use self::ready_file::ReadyFileKeeper;
use self::systemd::Notifier;
use crate::board::{Board, LoopReport, Report};
use crate::executor::Executor;

mod http;
mod ready_file;
mod systemd;

/// How often the eye looks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A busy machine may keep any thread waiting for a part of this.
const SHORTEST_WATCHDOG: Duration = Duration::from_millis(500);

/// What a process exits with after a stall: an internal error of the software, in `sysexits.h`.
const STALLED: i32 = 70;

/// What the eye is to do beside looking.
#[derive(Clone, Debug)]
pub(crate) struct EyeSettings {
    /// A task that could run and waits for longer has a starved executor.
    pub(crate) executor_lag: Duration,
    /// For how long liveness may be lost before the process exits; `None` if it never does.
    pub(crate) exit_after: Option<Duration>,
    pub(crate) probes: Option<String>,
    pub(crate) ready_file: Option<PathBuf>,
    pub(crate) systemd: bool,
}

impl Default for EyeSettings {
    fn default() -> Self {
        Self { executor_lag: Duration::from_secs(10), exit_after: None, probes: None, ready_file: None, systemd: false }
    }
}

impl EyeSettings {
    /// Which of them contradict each other. `watchdog` is systemd's `WatchdogSec`.
    pub(crate) fn problems(&self, watchdog: Option<Duration>) -> Vec<String> {
        let mut problems = Vec::new();
        if self.executor_lag < 2 * LOOK_EVERY {
            let lag = self.executor_lag;
            problems
                .push(format!("an executor's lag of {lag:?} cannot be seen by looks every {LOOK_EVERY:?}; allow more"));
        }
        let Some(watchdog) = watchdog.filter(|_| self.systemd) else { return problems };
        if watchdog < SHORTEST_WATCHDOG {
            problems.push(format!(
                "systemd's WatchdogSec ({watchdog:?}) leaves no time to look; set it to {SHORTEST_WATCHDOG:?} or more"
            ));
        }
        if let Some(after) = self.exit_after.filter(|after| *after >= watchdog) {
            problems.push(format!(
                "the exit {after:?} after a stall would come later than systemd's WatchdogSec ({watchdog:?}) kills; exit earlier, or lengthen WatchdogSec"
            ));
        }
        problems
    }
}

/// The thread, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Eye {
    /// Dropped to end the thread.
    open: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    listener: Option<Listener>,
}

impl Eye {
    /// Looks at the board, and at the executor that this is called on.
    pub(crate) fn open(board: Arc<Board>, settings: EyeSettings) -> io::Result<Self> {
        let handle = Handle::current();
        let listener = match &settings.probes {
            Some(address) => Some(Listener::open(address, Arc::clone(&board), handle.clone())?),
            None => None,
        };
        let address = listener.as_ref().map(Listener::address);
        let (open, closed) = mpsc::channel();
        // Often enough to feed a watchdog, which waits for half of its time at most.
        let watchdog = sd_notify::watchdog_enabled().filter(|_| settings.systemd);
        let look_every = watchdog.map_or(LOOK_EVERY, |limit| LOOK_EVERY.min(limit / 4));
        let looking = move || {
            // Within it, time is the runtime's: a test may have stopped it.
            let _guard = handle.enter();
            let mut sight = Sight::new(board, settings, address, handle.clone());
            loop {
                sight.look();
                if closed.recv_timeout(look_every) == Err(RecvTimeoutError::Disconnected) {
                    return sight.close();
                }
            }
        };
        let thread = thread::Builder::new().name("onward-eye".into()).spawn(looking)?;
        Ok(Self { open: Some(open), thread: Some(thread), listener })
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().map(Listener::address)
    }
}

impl Drop for Eye {
    fn drop(&mut self) {
        self.open.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the eye's thread panicked");
        }
    }
}

struct Sight {
    board: Arc<Board>,
    handle: Handle,
    executor: Executor,
    executor_lag: Duration,
    exit_after: Option<Duration>,
    file: Option<ReadyFileKeeper>,
    notifier: Option<Notifier>,
    /// Loops that are stalled, and the turn that was cancelled because of it.
    stalls: HashMap<String, u64>,
    loss: Loss,
}

/// Since when liveness is lost, if it is. What came back counts anew when it is lost again.
#[derive(Default)]
struct Loss(Option<Instant>);

impl Loss {
    /// For how long it has been lost.
    fn note(&mut self, is_lost: bool, now: Instant) -> Option<Duration> {
        self.0 = is_lost.then(|| self.0.unwrap_or(now));
        self.0.map(|since| now.saturating_duration_since(since))
    }
}

impl Sight {
    fn new(board: Arc<Board>, settings: EyeSettings, probes: Option<SocketAddr>, handle: Handle) -> Self {
        Self {
            board,
            executor: Executor::new(handle.clone()),
            handle,
            executor_lag: settings.executor_lag,
            exit_after: settings.exit_after,
            file: settings.ready_file.map(|path| ReadyFileKeeper::start(path, probes)),
            notifier: settings.systemd.then(Notifier::start),
            stalls: HashMap::new(),
            loss: Loss::default(),
        }
    }

    fn look(&mut self) {
        let absent = self.board.clock.look();
        if !absent.is_zero() {
            tracing::warn!(?absent, "this process could not run; nothing is late by that");
            // A task that was given to it before could not run either.
            self.executor = Executor::new(self.handle.clone());
        }
        self.board.set_executor(self.executor.lag(), self.executor_lag);
        let report = self.board.report();
        self.cancel_stalled(&report);
        if let Some(file) = &mut self.file {
            file.keep(report.ready);
        }
        if let Some(notifier) = &mut self.notifier {
            notifier.notify(&report);
        }
        self.exit_if_lost(&report);
    }

    /// Each turn that hangs is logged and cancelled once.
    fn cancel_stalled(&mut self, report: &Report) {
        let stalled: Vec<_> = report.loops.iter().filter(|one| one.state == LoopState::Stalled).collect();
        self.stalls.retain(|name, _| stalled.iter().any(|one| one.name == *name));
        for one in stalled {
            if self.stalls.insert(one.name.clone(), one.turn) == Some(one.turn) {
                continue;
            }
            log_stall(one);
            if one.reason == LoopReason::IterationTooLong {
                self.board.cancel(&one.name);
            }
        }
    }

    fn exit_if_lost(&mut self, report: &Report) {
        let why = report.why_not_live();
        let is_news = self.loss.0.is_none();
        let lost_for = self.loss.note(why.is_some(), Instant::now());
        let (Some(why), Some(lost_for)) = (why, lost_for) else { return };
        if is_news {
            tracing::error!(why, exits_after = ?self.exit_after, "liveness is lost");
        }
        if self.exit_after.is_some_and(|after| lost_for >= after) {
            tracing::error!(why, ?lost_for, "liveness did not come back; this process exits");
            if let Some(file) = &mut self.file {
                file.keep(false);
            }
            std::process::exit(STALLED);
        }
    }

    fn close(mut self) {
        if let Some(file) = &mut self.file {
            file.keep(false);
        }
        if let Some(notifier) = &mut self.notifier {
            notifier.stopping();
        }
    }
}

fn log_stall(one: &LoopReport) {
    let (loop_name, critical, reason) = (one.name.as_str(), one.critical, one.reason.code());
    let last_beat = one.last_beat().map_or_else(|| "nowhere in this turn".to_owned(), ToString::to_string);
    tracing::error!(loop_name, critical, reason, last_beat, "a loop is stalled; its turn is cancelled");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liveness_that_came_back_counts_anew() {
        let start = Instant::now();
        let mut loss = Loss::default();
        // at second, lost -> lost for
        for (at, is_lost, lost_for) in [
            (0, false, None),
            (1, true, Some(0)),
            (5, true, Some(4)),
            (6, false, None),
            (7, true, Some(0)),
            (9, true, Some(2)),
        ] {
            let found = loss.note(is_lost, start + Duration::from_secs(at));
            assert_eq!(found, lost_for.map(Duration::from_secs), "at {at} s");
        }
    }

    #[test]
    fn settings_that_systemd_would_overrule_are_refused() {
        let ms = Duration::from_millis;
        // executor's lag, exit after, WatchdogSec, under systemd -> what is said
        let table = [
            (10_000, None, None, true, None),
            (10_000, Some(5_000), Some(30_000), true, None),
            (10_000, Some(30_000), Some(30_000), true, Some("the exit 30s after a stall")),
            (10_000, Some(30_000), Some(30_000), false, None),
            (10_000, None, Some(400), true, Some("systemd's WatchdogSec (400ms)")),
            (399, None, None, false, Some("an executor's lag of 399ms")),
        ];
        for (lag, exit, watchdog, systemd, expected) in table {
            let settings =
                EyeSettings { executor_lag: ms(lag), exit_after: exit.map(ms), systemd, ..EyeSettings::default() };
            let problems = settings.problems(watchdog.map(ms));
            assert_eq!(problems.len(), usize::from(expected.is_some()), "{settings:?} {watchdog:?}: {problems:?}");
            assert!(problems.iter().zip(expected).all(|(said, start)| said.starts_with(start)), "{problems:?}");
        }
    }
}
