//! The clock that leases run on in this process: it goes on while the computer sleeps, because leases do.

use core::time::Duration;

use onward_core::time::{Awake, Mono};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Two readings are not taken at the same moment; only a difference beyond this is sleep.
const LEAST_SLEEP: Duration = Duration::from_secs(1);

/// Tokio's clock, which a test may pause, and what the computer has slept since this was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokioClock {
    began: Instant,
    slept: Duration,
}

impl TokioClock {
    pub(crate) fn start() -> Self {
        Self { began: Instant::now(), slept: slept() }
    }

    pub(crate) fn now(&self) -> Mono {
        self.at(Instant::now())
    }

    /// The instant, on tokio's clock.
    pub(crate) fn at(&self, instant: Instant) -> Mono {
        let slept = slept().saturating_sub(self.slept);
        let slept = if slept < LEAST_SLEEP { Duration::ZERO } else { slept };
        Mono::ZERO + (instant.saturating_duration_since(self.began) + slept)
    }

    /// The wait until that instant.
    pub(crate) fn until(&self, at: Mono) -> Duration {
        at.since(self.now())
    }
}

/// The stuck clock of an attempt is told the same time: we listen as long as we run.
pub(crate) fn awake(now: Mono) -> Awake {
    Awake::from_ms(now.as_ms())
}

/// The time that the computer has slept since it was started.
fn slept() -> Duration {
    let read = |clock| {
        let time = clock_gettime(clock);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    };
    read(ClockId::Boottime).saturating_sub(read(ClockId::Monotonic))
}
