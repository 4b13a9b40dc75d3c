//! Whether the threads that everything depends on still move. A thread that hangs or has died is what a restart helps
//! against; one that waits, or meets the same failure again and again, is not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What one of them is at. It says so itself, and says nothing while it waits for something to do.
#[derive(Debug)]
pub(super) struct Pulse {
    epoch: Instant,
    /// Milliseconds from `epoch`, plus one; 0 while it waits.
    busy_since: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { epoch: Instant::now(), busy_since: AtomicU64::new(0) }
    }
}

impl Pulse {
    pub(super) fn begin(&self) {
        self.busy_since.store(self.now_ms() + 1, Ordering::Relaxed);
    }

    /// Goes on from its first beginning, if there was one.
    pub(super) fn begin_unless_begun(&self) {
        if self.busy_for().is_none() {
            self.begin();
        }
    }

    pub(super) fn rest(&self) {
        self.busy_since.store(0, Ordering::Relaxed);
    }

    /// For how long it has been at the same thing, if it is at something.
    pub(super) fn busy_for(&self) -> Option<Duration> {
        let since = self.busy_since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.now_ms().saturating_sub(since)))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

#[derive(Debug, Default)]
pub(super) struct Vitals {
    /// At one round of its loop.
    pub(super) machine: Pulse,
    /// At one call to the log.
    pub(super) log: Pulse,
    /// Between two machines. Reading a long log takes its time, and is no hang.
    pub(super) takeover: Pulse,
    /// At one search for due instants.
    pub(super) schedules: Pulse,
}

impl Vitals {
    /// For how long nothing can have been answered that waits for the log, or for a machine.
    pub(super) fn stalled_for(&self) -> Duration {
        self.log.busy_for().max(self.takeover.busy_for()).unwrap_or_default()
    }

    pub(super) fn hang(&self, after: Duration) -> Option<String> {
        let places =
            [("core", "step", &self.machine), ("log", "call", &self.log), ("schedules", "search", &self.schedules)];
        places.into_iter().find_map(|(place, what, pulse)| {
            let busy = pulse.busy_for().filter(|busy| *busy >= after)?;
            Some(format!("the {place} thread has been blocked in one {what} for {busy:?}; restart the node"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_too_long_is_a_hang() {
        let vitals = Vitals::default();
        assert_eq!(vitals.hang(Duration::ZERO), None, "both wait");
        vitals.log.begin();
        assert_eq!(vitals.hang(Duration::from_secs(3600)), None, "it has only begun");
        let why = vitals.hang(Duration::ZERO).expect("no time at all is allowed");
        assert!(why.starts_with("the log thread has been blocked"), "{why}");
        vitals.machine.begin();
        vitals.log.rest();
        assert!(vitals.hang(Duration::ZERO).unwrap().starts_with("the core thread has been blocked"));
        vitals.machine.rest();
        assert_eq!(vitals.hang(Duration::ZERO), None);
    }
}
