//! What is known of a process at one instant, and how probes say it.

use std::panic::Location;
use std::time::Duration;

use onward_core::health::{LoopReason, LoopState, Sign};
use serde::Serialize;
use serde::ser::Serializer;

use super::entry::Totals;

/// The health of a process at one instant.
#[derive(Clone, Debug)]
pub struct ProcessReport {
    pub service: String,
    /// No: a restart helps.
    pub live: bool,
    /// No: send it nothing.
    pub ready: bool,
    /// No: a critical loop is inside its grace.
    pub started: bool,
    /// No: its loops have not been started, and nothing speaks for it yet.
    pub running: bool,
    pub stopping: bool,
    pub loops: Vec<LoopReport>,
    pub inputs: Vec<InputReport>,
    pub heartbeats: Vec<HeartbeatReport>,
    /// `None` while nobody measures it.
    pub executor: Option<ExecutorReport>,
}

impl ProcessReport {
    /// The reason why the process is not live, for people.
    pub fn why_not_live(&self) -> Option<String> {
        self.why(Sign::is_live)
    }

    /// The reason why the process is not ready, for people.
    pub fn why_not_ready(&self) -> Option<String> {
        self.why(Sign::is_ready)
    }

    /// The reason why the process has not started, for people.
    pub fn why_not_started(&self) -> Option<String> {
        self.why(|sign| sign != Sign::Loop(LoopState::Starting))
    }

    pub fn loop_called(&self, name: &str) -> Option<&LoopReport> {
        self.loops.iter().find(|one| one.name == name)
    }

    /// The reason, with everything that a restart helps against first: it is the more urgent.
    fn why(&self, is_good: impl Fn(Sign) -> bool) -> Option<String> {
        let mut reasons: Vec<(bool, String)> = Vec::new();
        let mut look = |sign: Sign, text: &dyn Fn() -> String| {
            if !is_good(sign) {
                reasons.push((sign.is_live(), text()));
            }
        };
        if !self.running {
            look(Sign::Loop(LoopState::Starting), &|| "its loops have not been started".to_owned());
        }
        if self.stopping {
            look(Sign::Stopping, &|| "the service was told to stop".to_owned());
        }
        if let Some(executor) = &self.executor {
            let waited = Duration::from_millis(executor.lag_ms);
            let starved = executor.starved;
            look(Sign::Executor { starved }, &|| {
                format!("the executor has run no task for {waited:?}: something blocks its threads")
            });
        }
        for one in self.loops.iter().filter(|one| one.critical) {
            look(Sign::Loop(one.state), &|| one.sentence());
        }
        for one in self.heartbeats.iter().filter(|one| one.critical) {
            look(Sign::Heartbeat { silent: one.silent }, &|| one.sentence());
        }
        for one in self.inputs.iter().filter(|one| one.critical) {
            let problem = one.problem.as_deref().unwrap_or_default();
            look(Sign::Input { good: one.problem.is_none() }, &|| format!("{}: {problem}", one.name));
        }
        reasons.sort_by_key(|(is_live, _)| *is_live);
        let texts: Vec<String> = reasons.into_iter().map(|(_, text)| text).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

/// A loop at one instant.
#[derive(Clone, Debug, Serialize)]
pub struct LoopReport {
    pub name: String,
    pub critical: bool,
    #[serde(serialize_with = "state_code")]
    pub state: LoopState,
    #[serde(serialize_with = "reason_code")]
    pub reason: LoopReason,
    /// Time since the reason holds.
    pub since_ms: u64,
    /// Time since the last success or forward step.
    pub last_success_ms: Option<u64>,
    /// Failures in a row, as far as they count against the loop's budget.
    pub failures: u32,
    /// The text of the last failure, until the next success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip)]
    pub(crate) place: Option<&'static Location<'static>>,
    #[serde(skip)]
    pub(crate) turn: u64,
    #[serde(skip)]
    pub(crate) totals: Totals,
}

impl LoopReport {
    fn sentence(&self) -> String {
        let since = Duration::from_millis(self.since_ms);
        let (state, reason) = (self.state.code(), self.reason.code());
        let error = self.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        format!("loop `{}` is {state} for {since:?} ({reason}){error}", self.name)
    }

    /// The number of times that the loop was started again after a crash.
    pub fn restarts(&self) -> u64 {
        self.totals.restarts
    }

    /// The place where the loop beat or stepped last.
    pub fn last_beat(&self) -> Option<&'static Location<'static>> {
        self.place
    }
}

/// An input at one instant.
#[derive(Clone, Debug, Serialize)]
pub struct InputReport {
    pub name: String,
    pub critical: bool,
    /// The problem; `None` while the input is tolerated.
    pub problem: Option<String>,
    /// Time since the input is not tolerated.
    pub since_ms: Option<u64>,
    pub value: Option<f64>,
}

impl InputReport {
    pub(super) fn bad(name: String, critical: bool, why: String, since_ms: Option<u64>) -> Self {
        Self { name, critical, problem: Some(why), since_ms, value: None }
    }
}

/// The most silent of some heartbeats at one instant.
#[derive(Clone, Debug, Serialize)]
pub struct HeartbeatReport {
    pub name: String,
    pub critical: bool,
    pub silent: bool,
    pub who: String,
    pub silent_ms: u64,
    pub silent_after_ms: u64,
    /// The place of the last beat.
    pub place: Option<String>,
}

impl HeartbeatReport {
    fn sentence(&self) -> String {
        let silent_for = Duration::from_millis(self.silent_ms);
        let place = self.place.as_deref().unwrap_or("nowhere");
        format!("{}: `{}` has been silent for {silent_for:?}; it beat last at {place}", self.name, self.who)
    }
}

/// The executor at one instant.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ExecutorReport {
    /// The time that a task which could run has waited.
    pub lag_ms: u64,
    pub limit_ms: u64,
    pub starved: bool,
}

fn state_code<S: Serializer>(state: &LoopState, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state.code())
}

fn reason_code<S: Serializer>(reason: &LoopReason, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(reason.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_restart_helps_against_comes_first() {
        let silent = HeartbeatReport {
            name: "messages".into(),
            critical: true,
            silent: true,
            who: "message 7".into(),
            silent_ms: 30_000,
            silent_after_ms: 30_000,
            place: None,
        };
        let report = ProcessReport {
            service: "test".into(),
            live: false,
            ready: false,
            started: true,
            running: true,
            stopping: true,
            loops: vec![],
            inputs: vec![],
            heartbeats: vec![silent],
            executor: None,
        };
        let silence = "messages: `message 7` has been silent for 30s; it beat last at nowhere";
        assert_eq!(report.why_not_ready(), Some(format!("{silence}; the service was told to stop")));
        assert_eq!(report.why_not_live().as_deref(), Some(silence), "a stop is no loss");
    }
}
