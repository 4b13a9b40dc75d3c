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

use crate::board::ProcessReport;

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

    pub(crate) fn notify(&mut self, report: &ProcessReport) {
        self.messages(report, Instant::now()).iter().for_each(Message::send);
    }

    /// The messages that are due, in this order.
    fn messages(&mut self, report: &ProcessReport, now: Instant) -> Vec<Message> {
        let mut messages = Vec::new();
        if report.stopping && !std::mem::replace(&mut self.is_stopping_said, true) {
            messages.push(Message::Stopping);
        }
        if report.ready && !std::mem::replace(&mut self.is_ready_said, true) {
            messages.push(Message::Ready);
        }
        let status = match (report.live, report.ready) {
            (false, _) => report.status_line("not live"),
            (true, false) => report.status_line("not ready"),
            (true, true) => "ready".to_owned(),
        };
        if status != self.status {
            messages.push(Message::Status(status.clone()));
            self.status = status;
        }
        let Some(limit) = self.watchdog.filter(|_| report.live && self.is_ready_said) else { return messages };
        if self.fed_at.is_none_or(|at| now.saturating_duration_since(at) >= limit / 4) {
            self.fed_at = Some(now);
            messages.push(Message::Watchdog);
        }
        messages
    }

    pub(crate) fn stopping(&mut self) {
        if !self.is_stopping_said {
            self.is_stopping_said = true;
            Message::Stopping.send();
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Message {
    Ready,
    Status(String),
    Watchdog,
    Stopping,
}

impl Message {
    fn send(&self) {
        let state = match self {
            Self::Ready => NotifyState::Ready,
            Self::Status(text) => NotifyState::Status(text),
            Self::Watchdog => NotifyState::Watchdog,
            Self::Stopping => NotifyState::Stopping,
        };
        if let Err(error) = sd_notify::notify(&[state]) {
            tracing::warn!(%error, "the service manager cannot be notified");
        }
    }
}

impl ProcessReport {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report(live: bool, ready: bool, stopping: bool) -> ProcessReport {
        ProcessReport {
            service: "test".into(),
            live,
            ready,
            started: true,
            running: true,
            stopping,
            loops: vec![],
            inputs: vec![],
            heartbeats: vec![],
            executor: None,
        }
    }

    #[test]
    fn readiness_is_told_once_and_the_watchdog_is_fed_only_after_it_and_while_live() {
        use Message::*;
        let start = Instant::now();
        let mut notifier = Notifier { watchdog: Some(Duration::from_secs(4)), ..Notifier::start() };
        let status = |text: &str| Status(text.to_owned());
        // at ms; live, ready, stopping -> what is told
        let table = [
            (0, (true, false, false), vec![status("not ready: ")]),
            (900, (true, false, false), vec![]),
            (1_000, (true, true, false), vec![Ready, status("ready"), Watchdog]),
            (1_999, (true, true, false), vec![]),
            (2_000, (true, true, false), vec![Watchdog]),
            (3_000, (true, false, false), vec![status("not ready: "), Watchdog]),
            (4_000, (false, false, false), vec![status("not live: ")]),
            (9_000, (false, false, false), vec![]),
            (9_100, (true, true, false), vec![status("ready"), Watchdog]),
            (9_200, (true, false, true), vec![Stopping, status("not ready: told to stop")]),
            (10_100, (true, false, true), vec![Watchdog]),
        ];
        for (ms, (live, ready, stopping), told) in table {
            let at = start + Duration::from_millis(ms);
            assert_eq!(notifier.messages(&report(live, ready, stopping), at), told, "at {ms} ms");
        }
    }
}
