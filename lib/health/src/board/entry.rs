//! The account of one loop.

use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_core::health::{Iteration, LoopHealth, LoopReason, LoopRule, LoopState};
use onward_core::time::Awake;
use tokio::sync::{Notify, watch};

use super::report::LoopReport;
use crate::clock::{ProcessClock, lock};
use crate::supervisor::StopSignal;
use crate::turn::TurnEnd;
use crate::watch::{Pulse, PulseReading};

/// Bytes kept of an error's text; the rest is in the user's own log.
const LONGEST_TEXT: usize = 300;

#[derive(Debug)]
pub(crate) struct LoopEntry {
    name: String,
    critical: bool,
    clock: Arc<ProcessClock>,
    pub(crate) stop: StopSignal,
    account: Mutex<Account>,
    /// The pulse of a loop that somebody else runs.
    pulse: Option<Pulse>,
    wake: Notify,
    /// The number of the last turn that was told to end.
    cancelled: watch::Sender<u64>,
}

#[derive(Debug)]
struct Account {
    health: LoopHealth,
    /// State and reason that were logged last.
    seen: (LoopState, LoopReason),
    turn: u64,
    next_in: Option<Duration>,
    error: Option<String>,
    place: Option<&'static Location<'static>>,
    totals: Totals,
    /// The round of a pulse that was seen last, and its trouble.
    round: u64,
    trouble: Option<String>,
}

/// Totals since the start, for metrics.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Totals {
    pub(crate) units: u64,
    pub(crate) successes: u64,
    pub(crate) skips: u64,
    pub(crate) failures: u64,
    pub(crate) restarts: u64,
    pub(crate) transitions: u64,
    /// Units that steps of the turn under way have counted already.
    stepped: u64,
}

impl LoopEntry {
    pub(super) fn new(name: &str, rule: LoopRule, clock: Arc<ProcessClock>, stop: StopSignal) -> Self {
        let health = LoopHealth::started(rule, clock.now());
        let account = Account {
            health,
            seen: (LoopState::Starting, LoopReason::NoSuccessYet),
            turn: 0,
            next_in: None,
            error: None,
            place: None,
            totals: Totals::default(),
            round: 0,
            trouble: None,
        };
        Self {
            name: name.to_owned(),
            critical: rule.critical,
            clock,
            stop,
            account: Mutex::new(account),
            pulse: None,
            wake: Notify::new(),
            cancelled: watch::Sender::new(0),
        }
    }

    pub(super) fn with_pulse(self, pulse: Pulse) -> Self {
        Self { pulse: Some(pulse), ..self }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn now(&self) -> Awake {
        self.clock.now()
    }

    /// Gone, and not because all was done or because it was told to stop.
    pub(crate) fn is_dead(&self) -> bool {
        lock(&self.account).health.state(self.clock.now()).state == LoopState::Dead
    }

    /// The number of the turn that begins.
    pub(crate) fn begin(&self) -> u64 {
        self.change(|account, now| {
            account.health.begin(now);
            account.turn += 1;
            account.next_in = None;
            account.place = None;
            account.totals.stepped = 0;
            account.turn
        })
    }

    /// `turn`: the one that ends, of which steps may have counted units already; `None` if it never said that it began.
    /// `ended`: `None` if it was the last.
    pub(crate) fn end(&self, turn: Option<u64>, ended: Option<TurnEnd>) {
        self.change(|account, now| {
            if turn.is_some_and(|turn| turn != account.turn) {
                return;
            }
            match ended {
                Some(ended) => account.end(now, ended),
                None => account.health.finished(now),
            }
        });
    }

    pub(crate) fn abandon(&self, turn: u64) {
        self.change(|account, now| {
            if turn == account.turn {
                account.totals.failures += 1;
                account.error = Some("the turn was dropped before it ended".to_owned());
                account.health.abandoned(now);
            }
        });
    }

    pub(crate) fn step(&self, turn: u64, units: u64, place: &'static Location<'static>) {
        self.change(|account, now| {
            if turn == account.turn {
                account.step(now, units, place);
            }
        });
    }

    pub(crate) fn step_any(&self, units: u64, place: &'static Location<'static>) {
        self.change(|account, now| account.step(now, units, place));
    }

    pub(crate) fn beat(&self, turn: u64, place: &'static Location<'static>) {
        self.change(|account, now| {
            if turn == account.turn {
                account.beat(now, place);
            }
        });
    }

    pub(crate) fn beat_any(&self, place: &'static Location<'static>) {
        self.change(|account, now| account.beat(now, place));
    }

    pub(crate) fn next_in(&self, turn: u64, wait: Duration) {
        let mut account = lock(&self.account);
        if turn == account.turn {
            account.next_in = Some(wait);
        }
    }

    pub(crate) fn take_next_in(&self) -> Option<Duration> {
        lock(&self.account).next_in.take()
    }

    /// It succeeded last so long ago, perhaps in another process, and has not failed since.
    pub(crate) fn restore(&self, succeeded_ago: Duration) {
        self.change(|account, now| account.health.restore(now, now - succeeded_ago));
    }

    pub(crate) fn waiting(&self, wait: Duration) {
        self.change(|account, now| account.health.waiting(now, now + wait));
    }

    /// Waits by choice. Ends early if the loop is woken or told to stop.
    pub(crate) async fn wait(&self, wait: Duration) {
        self.waiting(wait);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.wake.notified() => {}
            () = self.stop.stopping() => {}
        }
    }

    /// Waits for the restart after a crash. Ends early if the loop is told to stop.
    pub(crate) async fn pause(&self, wait: Duration) {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.stop.stopping() => {}
        }
    }

    /// A wait that goes on is over, or the next one is.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) fn crash(&self, wait: Option<Duration>, code: &'static str, why: &str) {
        let (loop_name, critical) = (self.name.as_str(), self.critical);
        match wait {
            Some(wait) => tracing::error!(loop_name, critical, code, why, again_in = ?wait, "a loop crashed"),
            None => {
                tracing::error!(loop_name, critical, code, why, "a loop crashed too often; it is not started again")
            }
        }
        self.change(|account, now| {
            account.totals.failures += 1;
            account.error = Some(shortened(why));
            account.health.restarting(now, now + wait.unwrap_or_default(), code);
            match wait {
                Some(_) => account.totals.restarts += 1,
                None => account.health.died(now),
            }
        });
    }

    pub(crate) fn stopping(&self) {
        self.change(|account, now| account.health.stopping(now));
    }

    /// Tells the turn under way to end. It ends where it waits next; one that never waits cannot be ended from outside.
    pub(crate) fn cancel(&self) {
        let turn = lock(&self.account).turn;
        self.cancelled.send_replace(turn);
    }

    /// Returns when the turn is told to end.
    pub(crate) async fn cancelled(&self, turn: u64) {
        // The sender lives as long as this does.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled >= turn).await;
    }

    pub(crate) fn turn(&self) -> u64 {
        lock(&self.account).turn
    }

    pub(crate) fn report(&self, now: Awake) -> LoopReport {
        let reading = self.pulse.as_ref().map(Pulse::reading);
        self.change_at(now, |account, now| {
            if let Some(reading) = reading {
                account.follow(now, reading);
            }
            let status = account.health.state(now);
            let ms_since = |at: Awake| now.since(at).as_millis() as u64;
            let is_well = status.state.is_ready();
            LoopReport {
                name: self.name.clone(),
                critical: self.critical,
                state: status.state,
                reason: status.reason,
                since_ms: ms_since(status.since),
                last_success_ms: account.health.last_success().map(ms_since),
                failures: account.health.failures_in_row(),
                error: if is_well && account.health.failures_in_row() == 0 { None } else { account.error.clone() },
                place: account.place,
                turn: account.turn,
                totals: account.totals,
            }
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Account, Awake) -> T) -> T {
        self.change_at(self.clock.now(), change)
    }

    /// Changes the account, and logs if the loop's state is another by that, or by the time that has passed.
    fn change_at<T>(&self, now: Awake, change: impl FnOnce(&mut Account, Awake) -> T) -> T {
        let (answer, transition) = {
            let mut account = lock(&self.account);
            let answer = change(&mut account, now);
            (answer, account.transition(now))
        };
        if let Some(transition) = transition {
            self.log(&transition);
        }
        answer
    }

    fn log(&self, transition: &Transition) {
        let (loop_name, critical) = (self.name.as_str(), self.critical);
        let (from, to, reason) = (transition.from.code(), transition.to.code(), transition.reason.code());
        let error = transition.error.as_deref().unwrap_or_default();
        match transition.to {
            // Every loop begins so, and nothing is wrong.
            LoopState::Healthy if transition.from == LoopState::Starting => {
                tracing::debug!(loop_name, critical, from, to, reason, "a loop changed its state");
            }
            LoopState::Healthy | LoopState::Finished | LoopState::Starting | LoopState::Stopping => {
                tracing::info!(loop_name, critical, from, to, reason, "a loop changed its state");
            }
            _ => tracing::warn!(loop_name, critical, from, to, reason, error, "a loop changed its state"),
        }
    }
}

/// A change of a loop's state, for the log.
struct Transition {
    from: LoopState,
    to: LoopState,
    reason: LoopReason,
    error: Option<String>,
}

impl Account {
    fn end(&mut self, now: Awake, ended: TurnEnd) {
        match ended.iteration {
            Iteration::Progress(units @ 1..) => {
                self.totals.units += units.saturating_sub(self.totals.stepped);
                self.totals.successes += 1;
            }
            Iteration::Idle => self.totals.successes += 1,
            Iteration::Progress(0) | Iteration::Skipped => self.totals.skips += 1,
            Iteration::Degraded { ok, failed } => {
                self.totals.units += ok.saturating_sub(self.totals.stepped);
                self.totals.failures += 1;
                self.error = Some(format!("{failed} of {} failed", ok.saturating_add(failed)));
            }
            Iteration::Failed { .. } => self.totals.failures += 1,
        }
        if let Some(text) = ended.text {
            self.error = Some(shortened(&text));
        }
        self.totals.stepped = 0;
        self.health.end(now, ended.iteration);
    }

    /// Brings the account to what a pulse says. Whatever it was at when last seen has ended, if it is at something else.
    /// Trouble is one failure for as long as nothing has been tried since, however often somebody looks.
    fn follow(&mut self, now: Awake, reading: PulseReading) {
        if reading.is_gone {
            return self.health.died(now);
        }
        if reading.round == self.round && reading.round != 0 {
            return;
        }
        let is_known = reading.round == self.round && reading.trouble.is_some() && reading.trouble == self.trouble;
        if is_known {
            return self.health.beat(now);
        }
        self.round = reading.round;
        self.trouble.clone_from(&reading.trouble);
        let iteration = match reading.trouble {
            Some(why) => {
                self.error = Some(shortened(&why));
                Iteration::Failed { code: "failed" }
            }
            None => Iteration::Idle,
        };
        self.health.end(now, iteration);
        if let Some(busy_for) = reading.busy_for {
            self.health.begin(now - busy_for);
        }
    }

    fn step(&mut self, now: Awake, units: u64, place: &'static Location<'static>) {
        self.totals.units += units;
        self.totals.stepped += units;
        self.place = Some(place);
        self.health.step(now);
    }

    fn beat(&mut self, now: Awake, place: &'static Location<'static>) {
        self.place = Some(place);
        self.health.beat(now);
    }

    fn transition(&mut self, now: Awake) -> Option<Transition> {
        let status = self.health.state(now);
        let (from, why) = std::mem::replace(&mut self.seen, (status.state, status.reason));
        if (from, why) == self.seen {
            return None;
        }
        self.totals.transitions += 1;
        Some(Transition { from, to: status.state, reason: status.reason, error: self.error.clone() })
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use onward_core::health::FailureBudget;

    use super::*;
    use crate::logged::logged;

    #[tokio::test(start_paused = true)]
    async fn a_change_of_state_is_logged_once_and_as_loudly_as_it_is_bad() {
        let minute = Duration::from_secs(60);
        let rule = LoopRule {
            critical: true,
            budget: FailureBudget::Consecutive(2),
            freshness: minute,
            recovery: 1,
            startup_grace: minute,
            max_iteration: minute,
        };
        let entry = LoopEntry::new("invoices", rule, Arc::new(ProcessClock::start()), StopSignal::default());
        let turn = |iteration, text: Option<&str>| {
            let turn = entry.begin();
            entry.end(Some(turn), Some(TurnEnd { iteration, text: text.map(str::to_owned) }));
        };
        let fail = || turn(Iteration::Failed { code: "away" }, Some("the source is away"));
        let line = |level: &str, from: &str, to: &str, reason: &str, error: &str| {
            format!(
                "{level} a loop changed its state loop_name=\"invoices\" critical=true from={from:?} to={to:?} reason={reason:?}{error}"
            )
        };
        let nothing: [String; 0] = [];
        let began = logged(|| turn(Iteration::Progress(1), None));
        assert_eq!(began, [line("DEBUG", "starting", "healthy", "within_budget_and_fresh", "")]);
        assert_eq!(logged(|| turn(Iteration::Idle, None)), nothing, "it is as it was");
        assert_eq!(logged(fail), nothing, "its budget is not spent");
        let error = " error=\"the source is away\"";
        assert_eq!(logged(fail), [line("WARN", "healthy", "failing", "budget_spent", error)]);
        assert_eq!(logged(fail), nothing);
        let again = logged(|| turn(Iteration::Progress(1), None));
        assert_eq!(again, [line("INFO", "failing", "healthy", "within_budget_and_fresh", "")]);
    }
}
