//! Loops on threads of their own, which nobody runs here and which are only watched.
//!
//! Such a loop waits for something to do, does it, and waits again. It says so on a [`Pulse`], by one relaxed store at
//! each end of a round, however much the round does. Waiting is healthy: whoever has something to do wakes it. A round
//! that takes too long hangs, one that meets trouble fails, and a loop that has ended is dead.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onward_core::health::{FailureBudget, LoopRule};

use crate::board::{Board, HealthHandle};
use crate::clock::lock;
use crate::eye::{Eye, EyeSettings};
use crate::input::ReadinessInput;

/// The activity of one loop, reported by the loop itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<PulseState>);

#[derive(Debug)]
struct PulseState {
    epoch: Instant,
    /// Milliseconds from `epoch`, plus one; 0 while it waits.
    busy_since: AtomicU64,
    is_gone: AtomicBool,
    trouble: Mutex<Option<String>>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self(Arc::new(PulseState {
            epoch: Instant::now(),
            busy_since: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
            trouble: Mutex::default(),
        }))
    }
}

impl Pulse {
    pub fn begin(&self) {
        self.0.busy_since.store(self.now_ms() + 1, Ordering::Relaxed);
    }

    /// Goes on from its first beginning, if there was one.
    pub fn begin_unless_begun(&self) {
        if self.busy_for().is_none() {
            self.begin();
        }
    }

    pub fn rest(&self) {
        self.0.busy_since.store(0, Ordering::Relaxed);
    }

    /// Rounds fail for this reason, until they are told to be fine again.
    pub fn fail(&self, why: impl ToString) {
        *lock(&self.0.trouble) = Some(why.to_string());
    }

    pub fn recover(&self) {
        lock(&self.0.trouble).take();
    }

    /// The reason why rounds fail, while they do.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.0.trouble).clone()
    }

    /// The loop is gone, and nobody will start it again.
    pub fn die(&self) {
        self.0.is_gone.store(true, Ordering::Relaxed);
    }

    /// The time that the loop has been at the same thing, if it is at something.
    pub fn busy_for(&self) -> Option<Duration> {
        let since = self.0.busy_since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.now_ms().saturating_sub(since)))
    }

    pub(crate) fn reading(&self) -> PulseReading {
        let round = self.0.busy_since.load(Ordering::Relaxed);
        let busy_for = round.checked_sub(1).map(|since| Duration::from_millis(self.now_ms().saturating_sub(since)));
        let is_gone = self.0.is_gone.load(Ordering::Relaxed);
        PulseReading { round, busy_for, is_gone, trouble: lock(&self.0.trouble).clone() }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

/// The reading of a pulse at one instant.
#[derive(Clone, Debug)]
pub(crate) struct PulseReading {
    /// Another number is another round; 0 is none.
    pub(crate) round: u64,
    pub(crate) busy_for: Option<Duration>,
    pub(crate) is_gone: bool,
    pub(crate) trouble: Option<String>,
}

/// Watches loops that others run. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LoopWatch(Arc<Board>);

impl LoopWatch {
    pub fn new(service: &str) -> Self {
        let board = Board::new(service);
        board.runs();
        Self(Arc::new(board))
    }

    /// A loop that the probes depend on. A round of it that takes longer than this hangs.
    pub fn add(&self, name: &str, longest: Duration, pulse: &Pulse) {
        self.0.add_pulse(name, rule(longest, true), pulse.clone());
    }

    /// A loop that is shown only.
    pub fn add_reporting_only(&self, name: &str, longest: Duration, pulse: &Pulse) {
        self.0.add_pulse(name, rule(longest, false), pulse.clone());
    }

    /// Adds an input that readiness depends on beside the loops.
    pub fn add_input(&self, input: impl ReadinessInput) {
        self.0.add_input(Arc::new(input));
    }

    pub fn health(&self) -> HealthHandle {
        HealthHandle(Arc::clone(&self.0))
    }

    /// The process was told to stop.
    pub fn stopping(&self) {
        self.0.stop.stop();
    }

    /// Looks at the loops, and at the executor that this is called on, until it is dropped. Notifies systemd, and answers
    /// probes at `probes`, if there is such an address, on a listener and threads of its own. Settings that contradict each
    /// other, or systemd's, are invalid input.
    pub fn open_eye(&self, executor_lag: Duration, probes: Option<SocketAddr>) -> io::Result<OpenEye> {
        let probes = probes.map(|address| address.to_string());
        let settings =
            EyeSettings { executor_lag: Some(executor_lag), probes, systemd: true, ..EyeSettings::default() };
        settings.check(sd_notify::watchdog_enabled()).map_err(|(problems, table)| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{}\n{table}", problems.join("\n")))
        })?;
        let eye = Eye::open(Arc::clone(&self.0), settings)?;
        self.0.set_probes_address(eye.address());
        Ok(OpenEye(eye))
    }
}

/// An eye that looks for as long as this lives.
#[derive(Debug)]
pub struct OpenEye(Eye);

impl OpenEye {
    /// The address that answers probes, with the real port.
    pub fn probes_address(&self) -> Option<SocketAddr> {
        self.0.address()
    }
}

/// A failure is seen at once, and so is its end: the loop itself decides how often it tries before it says so.
fn rule(longest: Duration, critical: bool) -> LoopRule {
    LoopRule {
        critical,
        budget: FailureBudget::Consecutive(1),
        // It hangs long before that, or it waits and is fresh.
        freshness: longest.saturating_mul(2).saturating_add(Duration::from_secs(60)),
        recovery: 1,
        startup_grace: Duration::ZERO,
        max_iteration: longest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onward_core::health::LoopState;

    fn state(watch: &LoopWatch) -> LoopState {
        watch.health().report().loops[0].state
    }

    #[test]
    fn only_what_takes_too_long_is_a_hang_and_waiting_is_healthy() {
        let (strict, patient, pulse) = (LoopWatch::new("strict"), LoopWatch::new("patient"), Pulse::default());
        strict.add("log", Duration::ZERO, &pulse);
        patient.add("log", Duration::from_secs(3600), &pulse);
        assert_eq!((state(&strict), state(&patient)), (LoopState::Healthy, LoopState::Healthy), "it waits");
        pulse.begin();
        assert_eq!((state(&strict), state(&patient)), (LoopState::Stalled, LoopState::Healthy), "it has only begun");
        assert!(!strict.health().report().live && patient.health().report().live);
        pulse.rest();
        assert_eq!((state(&strict), state(&patient)), (LoopState::Healthy, LoopState::Healthy));
    }

    #[test]
    fn trouble_fails_readiness_only_and_death_both() {
        let (watch, pulse) = (LoopWatch::new("node"), Pulse::default());
        watch.add("log", Duration::from_secs(3600), &pulse);
        pulse.fail("the disk is full");
        let report = watch.health().report();
        assert_eq!((report.live, report.ready, report.loops[0].state), (true, false, LoopState::Failing));
        assert!(report.why_not_ready().unwrap().ends_with(": the disk is full"));
        for _ in 0..10 {
            assert_eq!(watch.health().report().loops[0].failures, 1, "it was tried once, and looked at often");
        }
        pulse.fail("the disk is gone");
        assert_eq!(watch.health().report().loops[0].failures, 2);
        pulse.recover();
        assert!(watch.health().report().ready);
        pulse.die();
        let report = watch.health().report();
        assert_eq!((report.live, report.ready, report.loops[0].state), (false, false, LoopState::Dead));
    }

    #[tokio::test]
    async fn an_eye_whose_settings_cannot_be_kept_is_not_opened() {
        let watch = LoopWatch::new("node");
        let error = watch.open_eye(Duration::from_millis(399), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with("an executor's lag of 399ms"), "{error}");
        watch.open_eye(Duration::from_millis(400), None).unwrap();
    }

    #[test]
    fn a_loop_that_is_shown_only_fails_no_probe() {
        let (watch, pulse) = (LoopWatch::new("node"), Pulse::default());
        watch.add_reporting_only("archive", Duration::ZERO, &pulse);
        pulse.begin();
        let report = watch.health().report();
        assert_eq!((report.live, report.ready, report.loops[0].state), (true, true, LoopState::Stalled));
    }
}
