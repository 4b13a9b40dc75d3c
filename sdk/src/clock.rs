//! The clock that the machine is told: it goes on while the computer sleeps, because leases do.

use onward_core::time::Mono;
use rustix::time::{ClockId, clock_gettime};

pub(crate) fn mono() -> Mono {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    Mono::from_ms(seconds * 1_000 + nanos / 1_000_000)
}
