//! Stretch: a node that is slow itself gives others more time (the idea of Lifeguard).
//!
//! A process that is starved gets answers late and would blame those who sent them. It can see that it is slow: its own
//! timers fire late. So all of its timers are stretched by one factor, which rises with every late one and falls with
//! every probe that began in time. One factor for all of them, since foca needs the order of the stages of a probe kept.

use core::time::Duration;

/// No timer is stretched by more than this.
pub const MAX_FACTOR: u32 = 8;

/// The factor by which timers are stretched at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    factor: u32,
    late_after: Duration,
}

impl Stretch {
    /// A timer that fires later than `late_after` after its instant shows that this process is slow.
    pub const fn new(late_after: Duration) -> Self {
        Self { factor: 1, late_after }
    }

    pub const fn factor(&self) -> u32 {
        self.factor
    }

    /// A timer fired this late. Being in time counts for the start of a probe only: other timers fire many times in
    /// between, and would take back at once what slowness has taught.
    pub fn fired(&mut self, late: Duration, is_probe: bool) {
        if late > self.late_after {
            self.raise();
        } else if is_probe {
            self.factor = (self.factor - 1).max(1);
        }
    }

    /// The others took this node for dead: it was slower than it noticed.
    pub fn raise(&mut self) {
        self.factor = (self.factor + 1).min(MAX_FACTOR);
    }

    pub fn apply(&self, span: Duration) -> Duration {
        span.saturating_mul(self.factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_follows_lateness_between_one_and_its_maximum() {
        let ms = Duration::from_millis;
        let mut stretch = Stretch::new(ms(150));
        // late by, starts a probe -> factor
        let table = [
            (0, true, 1),
            (150, true, 1),
            (151, true, 2),
            (400, false, 3),
            (10, false, 3),
            (10, true, 2),
            (10, true, 1),
            (10, true, 1),
        ];
        for (late, is_probe, factor) in table {
            stretch.fired(ms(late), is_probe);
            assert_eq!(stretch.factor(), factor, "late by {late}, {is_probe}");
        }
        for _ in 0..20 {
            stretch.raise();
        }
        assert_eq!((stretch.factor(), stretch.apply(ms(100))), (MAX_FACTOR, ms(800)));
    }
}
