//! What a service manager is told over `sd_notify`. Without `NOTIFY_SOCKET` nothing is sent.
//!
//! | message | when |
//! |---|---|
//! | READY | the process is ready for the first time |
//! | STATUS | why it is not live or not ready, whenever that changes |
//! | WATCHDOG | a look found the process live, after READY; half of `WatchdogSec` has passed at most |
//! | STOPPING | it was told to stop |

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::board::Report;

#[derive(Debug)]
pub(crate) struct Notifier {
    /// `None` if nobody waits for it.
    watchdog: Option<Duration>,
    fed_at: Option<Instant>,
    is_ready_said: bool,
    is_stopping_said: bool,
    status: String,
}

impl Notifier {
    pub(crate) fn start() -> Self {
        Self {
            watchdog: sd_notify::watchdog_enabled(),
            fed_at: None,
            is_ready_said: false,
            is_stopping_said: false,
            status: String::new(),
        }
    }

    pub(crate) fn notify(&mut self, report: &Report) {
        if report.stopping {
            self.stopping();
        }
        if report.ready && !self.is_ready_said {
            self.is_ready_said = true;
            send(&[NotifyState::Ready]);
        }
        let status = match (report.live, report.ready) {
            (false, _) => report.status_line("not live"),
            (true, false) => report.status_line("not ready"),
            (true, true) => "ready".to_owned(),
        };
        if status != self.status {
            send(&[NotifyState::Status(&status)]);
            self.status = status;
        }
        let Some(limit) = self.watchdog.filter(|_| report.live && self.is_ready_said) else { return };
        if self.fed_at.is_none_or(|at| at.elapsed() >= limit / 4) {
            self.fed_at = Some(Instant::now());
            send(&[NotifyState::Watchdog]);
        }
    }

    pub(crate) fn stopping(&mut self) {
        if !self.is_stopping_said {
            self.is_stopping_said = true;
            send(&[NotifyState::Stopping]);
        }
    }
}

impl Report {
    /// States and reasons without figures, which would make every look's line another.
    fn status_line(&self, verdict: &str) -> String {
        let loops = self.loops.iter().filter(|one| one.critical && !one.state.is_ready());
        let loops = loops.map(|one| format!("loop `{}` is {} ({})", one.name, one.state.code(), one.reason.code()));
        let inputs = self.inputs.iter().filter(|one| one.critical && one.problem.is_some());
        let inputs = inputs.map(|one| format!("input `{}` is not tolerated", one.name));
        let heartbeats = self.heartbeats.iter().filter(|one| one.critical && one.silent);
        let heartbeats = heartbeats.map(|one| format!("`{}` is silent", one.who));
        let starved = self.executor.iter().filter(|one| one.starved).map(|_| "the executor is starved".to_owned());
        let stopping = self.stopping.then(|| "told to stop".to_owned());
        let reasons: Vec<String> = starved.chain(loops).chain(heartbeats).chain(inputs).chain(stopping).collect();
        format!("{verdict}: {}", reasons.join("; "))
    }
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
}
