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

use self::http::ProbeListener;
use self::ready_file::ReadyFileKeeper;
use self::systemd::Notifier;
use crate::board::{Board, LoopReport, ProcessReport};
use crate::executor::Executor;
use crate::policy::SettingsTable;

mod http;
mod ready_file;
mod systemd;

/// The interval at which the eye looks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The time that a task may wait for the executor unless it is set.
const EXECUTOR_LAG: Duration = Duration::from_secs(10);

/// A busy machine may keep any thread waiting for a part of this.
const SHORTEST_WATCHDOG: Duration = Duration::from_millis(500);

/// Exit code of a process after a stall: an internal error of the software, in `sysexits.h`.
const STALLED: i32 = 70;

/// Settings of the eye beside looking.
#[derive(Clone, Default, Debug)]
pub(crate) struct EyeSettings {
    /// A task that could run and waits for longer has a starved executor. [`EXECUTOR_LAG`] unless set.
    pub(crate) executor_lag: Option<Duration>,
    /// The time for which liveness may be lost before the process exits; `None` if it never does.
    pub(crate) exit_after: Option<Duration>,
    pub(crate) probes: Option<String>,
    pub(crate) ready_file: Option<PathBuf>,
    pub(crate) systemd: bool,
}

impl EyeSettings {
    fn executor_lag(&self) -> Duration {
        self.executor_lag.unwrap_or(EXECUTOR_LAG)
    }

    /// Often enough to feed a watchdog, which waits for half of its time at most.
    fn look_every(&self, watchdog: Option<Duration>) -> Duration {
        watchdog.filter(|_| self.systemd).map_or(LOOK_EVERY, |limit| LOOK_EVERY.min(limit / 4))
    }

    /// Whether the settings can be kept; if not, those that contradict each other. `watchdog` is systemd's
    /// `WatchdogSec`.
    pub(crate) fn check(&self, watchdog: Option<Duration>) -> Result<(), (Vec<String>, SettingsTable)> {
        let problems = self.problems(watchdog);
        if problems.is_empty() { Ok(()) } else { Err((problems, self.table(watchdog))) }
    }

    fn table(&self, watchdog: Option<Duration>) -> SettingsTable {
        let watchdog = watchdog.filter(|_| self.systemd);
        let or = |span: Option<Duration>, none: &str| span.map_or_else(|| none.to_owned(), |span| format!("{span:?}"));
        SettingsTable(vec![
            ("wait between looks", format!("{:?}", self.look_every(watchdog)), false),
            ("executor's lag", format!("{:?}", self.executor_lag()), self.executor_lag.is_some()),
            ("exit after a stall", or(self.exit_after, "never"), self.exit_after.is_some()),
            ("systemd's WatchdogSec", or(watchdog, "none"), watchdog.is_some()),
        ])
    }

    fn problems(&self, watchdog: Option<Duration>) -> Vec<String> {
        let mut problems = Vec::new();
        let lag = self.executor_lag();
        if lag < 2 * LOOK_EVERY {
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
    listener: Option<ProbeListener>,
}

impl Eye {
    /// Looks at the board, and at the executor that this is called on.
    pub(crate) fn open(board: Arc<Board>, settings: EyeSettings) -> io::Result<Self> {
        let handle = Handle::current();
        let listener = match &settings.probes {
            Some(address) => Some(ProbeListener::open(address, Arc::clone(&board), handle.clone())?),
            None => None,
        };
        let address = listener.as_ref().map(ProbeListener::address);
        let (open, closed) = mpsc::channel();
        let look_every = settings.look_every(sd_notify::watchdog_enabled());
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
        self.listener.as_ref().map(ProbeListener::address)
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
    /// Notes whether liveness is lost now, and gives the time since it was lost.
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
            executor_lag: settings.executor_lag(),
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
    fn cancel_stalled(&mut self, report: &ProcessReport) {
        let stalled: Vec<_> = report.loops.iter().filter(|one| one.state == LoopState::Stalled).collect();
        self.stalls.retain(|name, _| stalled.iter().any(|one| one.name == *name));
        for one in stalled {
            if self.stalls.insert(one.name.clone(), one.turn) == Some(one.turn) {
                continue;
            }
            log_stall(one);
            if is_cancelled(one) {
                self.board.cancel(&one.name);
            }
        }
    }

    fn exit_if_lost(&mut self, report: &ProcessReport) {
        let why = report.why_not_live();
        let is_news = self.loss.0.is_none();
        let now = Instant::now();
        if let (None, Some(since)) = (&why, self.loss.0) {
            tracing::info!(lost_for = ?now.saturating_duration_since(since), "liveness is back");
        }
        let lost_for = self.loss.note(why.is_some(), now);
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

/// A turn that hangs is told to end; a loop of which no turn comes has none.
fn is_cancelled(one: &LoopReport) -> bool {
    one.reason == LoopReason::IterationTooLong
}

fn log_stall(one: &LoopReport) {
    let (loop_name, critical, reason) = (one.name.as_str(), one.critical, one.reason.code());
    let last_beat = one.last_beat().map_or_else(|| "nowhere in this turn".to_owned(), ToString::to_string);
    if is_cancelled(one) {
        tracing::error!(loop_name, critical, reason, last_beat, "a loop is stalled; its turn is cancelled");
    } else {
        tracing::error!(loop_name, critical, reason, last_beat, "a loop is stalled: no turn comes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logged::logged;
    use crate::policy::SettingsError;

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
            let (executor_lag, exit_after) = (Some(ms(lag)), exit.map(ms));
            let settings = EyeSettings { executor_lag, exit_after, systemd, ..EyeSettings::default() };
            let problems = settings.check(watchdog.map(ms)).map_or_else(|(problems, _)| problems, |()| Vec::new());
            assert_eq!(problems.len(), usize::from(expected.is_some()), "{settings:?} {watchdog:?}: {problems:?}");
            assert!(problems.iter().zip(expected).all(|(said, start)| said.starts_with(start)), "{problems:?}");
        }
    }
    #[test]
    fn settings_that_systemd_would_overrule_are_refused_with_the_table_of_what_they_come_to() {
        let exit_after = Some(Duration::from_secs(30));
        let settings = EyeSettings { exit_after, systemd: true, ..EyeSettings::default() };
        let (problems, table) = settings.check(Some(Duration::from_millis(600))).expect_err("it exits too late");
        let mut error = SettingsError::default();
        error.of_service("billing", problems, Some(table));
        let text = error.to_string();
        for part in [
            "service `billing`: the exit 30s after a stall would come later than systemd's WatchdogSec (600ms)",
            "wait between looks       150ms                    derived",
            "executor's lag           10s                      derived",
            "exit after a stall       30s                      set",
            "systemd's WatchdogSec    600ms                    set",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    /// A part that panics when it is asked, and the file that says so.
    #[tokio::test]
    async fn the_ready_file_is_removed_when_an_input_panics() {
        #[derive(Clone, Default)]
        struct Bug(Arc<std::sync::atomic::AtomicBool>);
        impl crate::input::ReadinessInput for Bug {
            fn name(&self) -> &str {
                "stock"
            }
            fn problem(&self) -> Option<String> {
                assert!(!self.0.load(std::sync::atomic::Ordering::Relaxed), "a bug");
                None
            }
        }
        let (folder, board, bug) = (tempfile::tempdir().unwrap(), Arc::new(Board::new("test")), Bug::default());
        let path = folder.path().join("ready");
        board.add_input(Arc::new(bug.clone()));
        board.runs();
        let settings = EyeSettings { ready_file: Some(path.clone()), ..EyeSettings::default() };
        let mut sight = Sight::new(board, settings, None, Handle::current());
        for panics in [false, true, false] {
            bug.0.store(panics, std::sync::atomic::Ordering::Relaxed);
            sight.look();
            assert_eq!(path.exists(), !panics);
        }
    }

    #[tokio::test]
    async fn the_loss_of_liveness_and_its_return_are_logged_once() {
        let board = Arc::new(Board::new("test"));
        let lag = Duration::from_secs(3_600);
        let mut sight = Sight::new(Arc::clone(&board), EyeSettings::default(), None, Handle::current());
        // executor's lag -> level and start of what is said
        for (lagging, said) in [
            (Duration::ZERO, None),
            (lag, Some("ERROR liveness is lost")),
            (lag, None),
            (Duration::ZERO, Some("INFO liveness is back")),
            (Duration::ZERO, None),
        ] {
            board.set_executor(lagging, lag);
            let report = board.report();
            let lines = logged(|| sight.exit_if_lost(&report));
            assert_eq!(lines.len(), usize::from(said.is_some()), "{lines:?}");
            assert!(lines.iter().zip(said).all(|(line, start)| line.starts_with(start)), "{lines:?}");
        }
    }

    #[test]
    fn a_stall_is_logged_with_where_the_last_beat_was() {
        let place = std::panic::Location::caller();
        let (somewhere, nowhere) = (place.to_string(), "nowhere in this turn".to_owned());
        let (hangs, rests) = (LoopReason::IterationTooLong, LoopReason::NotTurning);
        for (place, last_beat, reason, message) in [
            (Some(place), &somewhere, hangs, "a loop is stalled; its turn is cancelled"),
            (None, &nowhere, hangs, "a loop is stalled; its turn is cancelled"),
            (Some(place), &somewhere, rests, "a loop is stalled: no turn comes"),
        ] {
            let stalled = LoopReport {
                name: "invoices".into(),
                critical: true,
                state: LoopState::Stalled,
                reason,
                since_ms: 7,
                last_success_ms: None,
                failures: 0,
                error: None,
                place,
                turn: 3,
                totals: Default::default(),
            };
            let said = logged(|| log_stall(&stalled));
            let reason = reason.code();
            let expected = format!(
                "ERROR {message} loop_name=\"invoices\" critical=true reason={reason:?} last_beat={last_beat:?}"
            );
            assert_eq!(said, [expected]);
        }
    }
}
