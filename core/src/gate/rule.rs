//! The numbers that gates and managers share.

use core::time::Duration;

/// The number of reports in a row that may be missing before a datacenter does not count as heard.
pub const MISSED_REPORTS: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateRule {
    /// The interval at which a manager reports its open jobs to a gate; also that at which either repeats what was not
    /// answered.
    pub progress_every: Duration,
    /// A job that has timed out locally is ended by its manager when no gate has said anything about it for this long.
    pub fallback_after: Duration,
    /// A datacenter that was not heard for this long is unreachable.
    pub silent_after: Duration,
}

impl Default for GateRule {
    fn default() -> Self {
        Self {
            progress_every: Duration::from_secs(10),
            fallback_after: Duration::from_secs(300),
            silent_after: Duration::from_secs(180),
        }
    }
}

impl GateRule {
    /// Within this, a datacenter is heard.
    pub fn heard_within(&self) -> Duration {
        self.progress_every * MISSED_REPORTS
    }
}
