//! Three clocks that cannot be mixed up, and log time.
//!
//! - [`Mono`] counts milliseconds of one process. It never leaves it: there is no way to serialize it.
//! - [`Wall`] counts milliseconds since the Unix epoch. It is what gets persisted.
//! - [`Awake`] is `Mono` less the time during which this process did not listen: it could not run (suspended, starved,
//!   frozen), or its seat was not confirmed. Leases, health and stuck clocks run on it, so that our own absence never
//!   counts against a worker.
//!
//! The wire carries durations only: what another host calls "now" means nothing here.
//!
//! **Log time** is the `Wall` that events are stamped with: `base + monotonic elapsed`, where `base` is the later of the
//! newest stamp in the log and our own wall clock when we took the seat. It never goes back, within a term or across
//! terms; a step of the wall clock inside a term is reported by [`LogClock::wall_step`] and not followed.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

macro_rules! instant {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u64);

        impl $name {
            pub const ZERO: Self = Self(0);
            pub const MAX: Self = Self(u64::MAX);

            pub const fn from_ms(ms: u64) -> Self {
                Self(ms)
            }

            pub const fn as_ms(self) -> u64 {
                self.0
            }

            /// Time from `earlier` to `self`; zero if `earlier` is in fact later.
            pub const fn since(self, earlier: Self) -> Duration {
                Duration::from_millis(self.0.saturating_sub(earlier.0))
            }
        }

        impl Add<Duration> for $name {
            type Output = Self;
            fn add(self, span: Duration) -> Self {
                Self(self.0.saturating_add(span_ms(span)))
            }
        }

        impl Sub<Duration> for $name {
            type Output = Self;
            fn sub(self, span: Duration) -> Self {
                Self(self.0.saturating_sub(span_ms(span)))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({}ms)"), self.0)
            }
        }
    };
}

instant! {
    /// Milliseconds of this process's monotonic clock.
    ///
    /// It cannot be mixed with the other clocks:
    /// ```compile_fail
    /// use onward_core::time::{Mono, Wall};
    /// let _ = Mono::from_ms(1) < Wall::from_ms(2);
    /// ```
    Mono
}
instant! {
    /// Milliseconds since the Unix epoch.
    Wall
}
instant! {
    /// Milliseconds of this process's monotonic clock during which it was able to run and to listen.
    Awake
}

/// Whole milliseconds of a duration, saturating. Every rule works in milliseconds.
pub const fn span_ms(span: Duration) -> u64 {
    let ms = span.as_millis();
    if ms > u64::MAX as u128 { u64::MAX } else { ms as u64 }
}

/// The readings that come with every input. The shell takes both at the same moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    pub mono: Mono,
    pub wall: Wall,
}

/// Stamps events with log time, and turns persisted instants back into local ones.
#[derive(Clone, Copy, Debug)]
pub struct LogClock {
    base: Wall,
    origin: Mono,
    /// Wall clock less log time when last looked at; a jump of it is a step of the wall clock.
    offset_ms: i128,
}

/// The wall clock was stepped while we hold the seat. Log time did not follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WallStep {
    pub by_ms: i64,
}

impl LogClock {
    /// `newest_stamp` is the last stamp in the log, `now` is when the seat was taken.
    pub fn start(newest_stamp: Wall, now: Now) -> Self {
        let base = newest_stamp.max(now.wall);
        Self { base, origin: now.mono, offset_ms: i128::from(now.wall.as_ms()) - i128::from(base.as_ms()) }
    }

    pub fn at(&self, mono: Mono) -> Wall {
        self.base + mono.since(self.origin)
    }

    /// The monotonic instant when log time will read `stamp`; the origin if `stamp` lies before it.
    pub fn mono_at(&self, stamp: Wall) -> Mono {
        self.origin + stamp.since(self.base)
    }

    /// Reports a step of the wall clock of more than a second since the last call.
    pub fn wall_step(&mut self, now: Now) -> Option<WallStep> {
        let offset = i128::from(now.wall.as_ms()) - i128::from(self.at(now.mono).as_ms());
        let by = offset - self.offset_ms;
        if by.abs() <= 1000 {
            return None;
        }
        self.offset_ms = offset;
        Some(WallStep { by_ms: i64::try_from(by).unwrap_or(if by < 0 { i64::MIN } else { i64::MAX }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(mono: u64, wall: u64) -> Now {
        Now { mono: Mono::from_ms(mono), wall: Wall::from_ms(wall) }
    }

    #[test]
    fn log_time_starts_at_the_later_of_log_and_wall_clock() {
        // (newest stamp, wall at takeover) -> base
        for (stamp, wall, base) in [(0, 5_000, 5_000), (9_000, 5_000, 9_000), (7_000, 7_000, 7_000)] {
            let clock = LogClock::start(Wall::from_ms(stamp), now(100, wall));
            assert_eq!(clock.at(Mono::from_ms(100)), Wall::from_ms(base));
            assert_eq!(clock.at(Mono::from_ms(350)), Wall::from_ms(base + 250));
        }
    }

    #[test]
    fn a_wall_clock_step_is_reported_once_and_not_followed() {
        let mut clock = LogClock::start(Wall::ZERO, now(0, 10_000));
        assert_eq!(clock.wall_step(now(1_000, 11_000)), None);
        assert_eq!(clock.wall_step(now(2_000, 12_900)), None, "drift below a second is not a step");
        assert_eq!(clock.wall_step(now(3_000, 73_000)), Some(WallStep { by_ms: 60_000 }));
        assert_eq!(clock.at(Mono::from_ms(3_000)), Wall::from_ms(13_000));
        assert_eq!(clock.wall_step(now(4_000, 74_000)), None);
        assert_eq!(clock.wall_step(now(5_000, 15_000)), Some(WallStep { by_ms: -60_000 }));
    }

    #[test]
    fn persisted_instants_map_back_and_the_past_is_due_at_once() {
        let clock = LogClock::start(Wall::from_ms(50_000), now(7, 40_000));
        assert_eq!(clock.mono_at(Wall::from_ms(50_250)), Mono::from_ms(257));
        assert_eq!(clock.mono_at(Wall::from_ms(1)), Mono::from_ms(7));
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Mono::MAX + Duration::from_secs(1), Mono::MAX);
        assert_eq!(Mono::ZERO - Duration::from_secs(1), Mono::ZERO);
        assert_eq!(Mono::ZERO.since(Mono::from_ms(5)), Duration::ZERO);
        assert_eq!(span_ms(Duration::MAX), u64::MAX);
    }
}
