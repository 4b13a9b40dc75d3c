//! The clocks that the machine is told. `Mono` goes on while the computer sleeps, so that a suspension shows as the
//! gap that it is; Rust's `Instant` would hide it.

use onward_core::time::{Mono, Now, Wall};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Both readings, taken at the same moment.
pub fn now() -> Now {
    Now { mono: mono(), wall: Wall::from_ms(ms(clock_gettime(ClockId::Realtime))) }
}

pub fn mono() -> Mono {
    Mono::from_ms(ms(clock_gettime(ClockId::Boottime)))
}

fn ms(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}
