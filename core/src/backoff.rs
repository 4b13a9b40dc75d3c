//! The wait after a failure: exponential, with full jitter.
//!
//! The wait is drawn from all of `0..=ceiling`, so that a crowd that failed together does not come back together. The
//! draw is given by the caller, who owns the seeded generator: the same draw, the same wait.

use crate::time::span_ms;
use core::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    pub base: Duration,
    pub max: Duration,
}

impl Backoff {
    /// The longest wait after that many failures in a row, counted from 1 (0 is taken for 1): doubles with each, up to
    /// `max`.
    pub fn ceiling(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(u64::BITS);
        let ms = (u128::from(span_ms(self.base)) << doublings).min(u128::from(span_ms(self.max)));
        Duration::from_millis(ms as u64)
    }

    /// Uniform in `0..=ceiling`, in whole milliseconds, if `draw` is uniform over all of `u64`.
    pub fn delay(&self, failures: u32, draw: u64) -> Duration {
        let choices = u128::from(span_ms(self.ceiling(failures))) + 1;
        Duration::from_millis(((choices * u128::from(draw)) >> u64::BITS) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_ceiling_doubles_up_to_the_maximum() {
        let usual = Backoff { base: ms(1_000), max: ms(60_000) };
        let endless = Backoff { base: ms(1), max: Duration::MAX };
        for (backoff, failures, ceiling_ms) in [
            (usual, 0, 1_000),
            (usual, 1, 1_000),
            (usual, 2, 2_000),
            (usual, 3, 4_000),
            (usual, 6, 32_000),
            (usual, 7, 60_000),
            (usual, u32::MAX, 60_000),
            (endless, 64, 1 << 63),
            (endless, 65, u64::MAX),
            (endless, u32::MAX, u64::MAX),
            (Backoff { base: ms(90), max: ms(50) }, 1, 50),
            (Backoff { base: ms(0), max: ms(50) }, 9, 0),
        ] {
            assert_eq!(backoff.ceiling(failures), ms(ceiling_ms), "{backoff:?} after {failures}");
        }
    }

    #[test]
    fn equal_shares_of_the_draws_go_to_every_millisecond_up_to_the_ceiling() {
        let backoff = Backoff { base: ms(3), max: ms(3) };
        let quarter = 1_u64 << 62;
        for (draw, wait_ms) in [
            (0, 0),
            (quarter - 1, 0),
            (quarter, 1),
            (2 * quarter - 1, 1),
            (2 * quarter, 2),
            (3 * quarter - 1, 2),
            (3 * quarter, 3),
            (u64::MAX, 3),
        ] {
            assert_eq!(backoff.delay(1, draw), ms(wait_ms), "draw {draw:#x}");
        }
    }

    proptest! {
        #[test]
        fn a_wait_stays_in_its_range_and_grows_with_draw_and_failures(
            base in any::<u64>(), max in any::<u64>(), failures in 0..200_u32, low in any::<u64>(), high in any::<u64>(),
        ) {
            let backoff = Backoff { base: ms(base >> 20), max: ms(max >> 10) };
            let (low, high) = (low.min(high), low.max(high));
            prop_assert!(backoff.delay(failures, low) <= backoff.delay(failures, high));
            prop_assert!(backoff.delay(failures, high) <= backoff.delay(failures, u64::MAX));
            prop_assert_eq!(backoff.delay(failures, u64::MAX), backoff.ceiling(failures));
            prop_assert_eq!(backoff.delay(failures, 0), Duration::ZERO);
            prop_assert!(backoff.ceiling(failures) <= backoff.max);
            prop_assert!(backoff.ceiling(failures) <= backoff.ceiling(failures + 1));
        }
    }
}
