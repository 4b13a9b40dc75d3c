//! The clock that loops are judged by: time during which this process could run.
//!
//! A process that was frozen (stopped by a signal, or by a hypervisor) finds all of its loops late when it comes back,
//! and none of them hangs. So whoever looks at regular intervals, the eye, tells the clock; what passes between two looks
//! beyond [`LONGEST_LOOK`] does not count.
//!
//! Elapsed time is tokio's, which a test can stop and advance; absence is real time, which it cannot.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onward_core::time::Awake;

/// What happened in the hundred years before this process began has an instant, too.
const BEGINNING: Awake = Awake::from_ms(100 * 366 * 86_400_000);

/// More than this between two looks is absence.
pub(crate) const LONGEST_LOOK: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct ProcessClock {
    origin: tokio::time::Instant,
    absence: Mutex<Absence>,
}

#[derive(Debug)]
struct Absence {
    /// `None` until somebody looks: absence is then not known.
    looked_at: Option<Instant>,
    total: Duration,
}

impl ProcessClock {
    pub(crate) fn start() -> Self {
        let absence = Absence { looked_at: None, total: Duration::ZERO };
        Self { origin: tokio::time::Instant::now(), absence: Mutex::new(absence) }
    }

    pub(crate) fn now(&self) -> Awake {
        let absent = lock(&self.absence).at(Instant::now());
        BEGINNING + self.origin.elapsed().saturating_sub(absent)
    }

    /// Called at regular intervals; returns for how long this process could not run since the last call.
    pub(crate) fn look(&self) -> Duration {
        lock(&self.absence).look(Instant::now())
    }
}

impl Absence {
    fn at(&self, now: Instant) -> Duration {
        self.total + self.since_look(now)
    }

    fn look(&mut self, now: Instant) -> Duration {
        let absent = self.since_look(now);
        self.total += absent;
        self.looked_at = Some(now);
        absent
    }

    fn since_look(&self, now: Instant) -> Duration {
        self.looked_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at).saturating_sub(LONGEST_LOOK))
    }
}

/// Nothing that is done under our locks can leave what they guard half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn absence_counts_against_nobody() {
        let clock = ProcessClock::start();
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(clock.now(), BEGINNING + Duration::from_secs(10));
        lock(&clock.absence).total = Duration::from_secs(4);
        assert_eq!(clock.now(), BEGINNING + Duration::from_secs(6));
    }

    #[test]
    fn time_between_two_looks_counts_up_to_a_limit() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut absence = Absence { looked_at: None, total: Duration::ZERO };
        assert_eq!(absence.at(at(60_000)), Duration::ZERO, "nobody looks yet");
        assert_eq!(absence.look(at(60_000)), Duration::ZERO);
        // look at -> absent since the last
        for (look, absent) in [(60_200, 0), (62_200, 0), (162_200, 98_000), (162_400, 0)] {
            let before = absence.at(at(look));
            assert_eq!(absence.look(at(look)), Duration::from_millis(absent), "at {look}");
            assert_eq!(absence.at(at(look)), before, "whoever asks before the look reads the same");
        }
        assert_eq!(absence.total, Duration::from_secs(98));
    }
}
