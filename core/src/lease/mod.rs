//! Leases: for how long somebody may work on something, and how that is made to last while work goes on.
//!
//! Authority lies with the *backend* that gave the lease (a manager, a mailbox). It decides by its own awake clock, and
//! whatever its holder believes, results of an expired lease are refused by fence. The *holder* keeps an [`Extender`],
//! which runs on the holder's own clock and trusts a lease for no longer than the backend can possibly honour it: a
//! grant counts from the moment it was asked for, not from when the answer came.
//!
//! A lease is renewed by beats, that is by work, and never by a timer. A handler that hangs stops beating, its lease
//! runs out, and the work is handed out again under a higher fence. That is the purpose, not a failure.

mod extender;

pub use extender::{Extender, ExtenderAction, LeaseState, LossReason, LostPolicy, Renew, RenewFailure};

use crate::time::{Awake, span_ms};
use core::fmt;
use core::time::Duration;

/// The backend's rule: an extension is *at least*, and never shrinks a lease.
pub fn extend(current: Awake, now: Awake, extension: Duration) -> Awake {
    current.max(now + extension)
}

/// A rule as configured; [`LeaseRule::validate`] turns it into the one that is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseRule {
    /// Length of a lease when it is handed out.
    pub initial: Duration,
    /// The time that a renewal asks for, counted from then.
    pub extension: Duration,
    /// Least time between two renewals, however often the handler beats.
    pub interval: Duration,
    /// Off: beats renew nothing, and a lease lasts for `initial`.
    pub enabled: bool,
}

impl Default for LeaseRule {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(300),
            extension: Duration::from_secs(300),
            interval: Duration::from_secs(60),
            enabled: true,
        }
    }
}

impl LeaseRule {
    /// The interval must leave room for two renewals to fail before a lease runs out.
    pub fn validate(self) -> Result<CheckedLeaseRule, LeaseRuleError> {
        let error = |field, value, allowed| Err(LeaseRuleError { field, value, allowed });
        let fields = [("initial", self.initial), ("extension", self.extension), ("interval", self.interval)];
        for (field, value) in fields {
            if span_ms(value) == 0 {
                return error(field, value, AllowedRange::AtLeast(Duration::from_millis(1)));
            }
        }
        let most = self.initial.min(self.extension) / 3;
        if self.interval > most {
            return error("interval", self.interval, AllowedRange::AThirdOfTheLease(most));
        }
        Ok(CheckedLeaseRule(self))
    }
}

/// A rule that passed [`LeaseRule::validate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckedLeaseRule(LeaseRule);

impl CheckedLeaseRule {
    pub const fn get(&self) -> &LeaseRule {
        &self.0
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("lease.{field} is {value:?}; allowed: {allowed}")]
pub struct LeaseRuleError {
    pub field: &'static str,
    pub value: Duration,
    pub allowed: AllowedRange,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllowedRange {
    AtLeast(Duration),
    AThirdOfTheLease(Duration),
}

impl fmt::Display for AllowedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least:?}"),
            Self::AThirdOfTheLease(most) => {
                write!(f, "at most {most:?}, a third of the shorter of lease.initial and lease.extension")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_rule_is_checked_field_by_field() {
        let secs = Duration::from_secs;
        let rule = |initial, extension, interval| LeaseRule { initial, extension, interval, enabled: true };
        let tiny = Duration::from_micros(999);
        for (rule, error) in [
            (LeaseRule::default(), None),
            (rule(secs(300), secs(300), secs(100)), None),
            (rule(secs(3), secs(900), secs(1)), None),
            (rule(secs(0), secs(300), secs(0)), Some("lease.initial is 0ns; allowed: at least 1ms")),
            (rule(secs(300), secs(0), secs(0)), Some("lease.extension is 0ns; allowed: at least 1ms")),
            (rule(secs(300), secs(300), tiny), Some("lease.interval is 999µs; allowed: at least 1ms")),
            (
                rule(secs(300), secs(600), Duration::from_millis(100_001)),
                Some(
                    "lease.interval is 100.001s; allowed: at most 100s, a third of the shorter of lease.initial and \
                     lease.extension",
                ),
            ),
            (
                rule(secs(600), secs(300), secs(150)),
                Some(
                    "lease.interval is 150s; allowed: at most 100s, a third of the shorter of lease.initial and \
                     lease.extension",
                ),
            ),
        ] {
            let answer = rule.validate().map_err(|error| error.to_string());
            match error {
                None => assert_eq!(answer.as_ref().map(CheckedLeaseRule::get), Ok(&rule)),
                Some(text) => assert_eq!(answer, Err(text.to_owned())),
            }
        }
    }

    #[test]
    fn an_extension_is_at_least_and_never_shrinks() {
        for (current, now, extension_ms, expires) in [
            (300_000, 10_000, 300_000, 310_000),
            (300_000, 10_000, 60_000, 300_000),
            (300_000, 10_000, 290_000, 300_000),
            (300_000, 400_000, 1_000, 401_000),
            (5, u64::MAX, 1, u64::MAX),
        ] {
            let answer = extend(Awake::from_ms(current), Awake::from_ms(now), Duration::from_millis(extension_ms));
            assert_eq!(answer, Awake::from_ms(expires), "{current} extended at {now} by {extension_ms}");
        }
    }

    proptest! {
        #[test]
        fn a_lease_covers_both_what_it_was_and_what_was_asked(
            current in any::<u64>(), now in any::<u64>(), extension in any::<u64>(),
        ) {
            let (current, now) = (Awake::from_ms(current), Awake::from_ms(now));
            let asked = now + Duration::from_millis(extension);
            let expires = extend(current, now, Duration::from_millis(extension));
            prop_assert!(expires >= current && expires >= asked);
            prop_assert!(expires == current || expires == asked);
        }
    }
}
