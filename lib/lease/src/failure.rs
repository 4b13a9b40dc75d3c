//! How a handler says that it did not succeed.

use core::fmt;
use core::time::Duration;

/// A failure with what should become of the attempt.
///
/// Any error turns into one that is retried by the job's policy, so that `?` just works. To say more:
///
/// ```
/// use onward_lease::Failure;
/// use std::time::Duration;
///
/// fn charge(card: &str) -> Result<(), Failure> {
///     match card {
///         "" => Err(Failure::permanent("the card has no number")),
///         "busy" => Err(Failure::retry_after(Duration::from_secs(30), "the bank is busy")),
///         number => {
///             number.parse::<u64>()?;
///             Ok(())
///         }
///     }
/// }
/// assert!(!charge("").unwrap_err().is_retryable());
/// assert!(charge("x").unwrap_err().is_retryable());
/// ```
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    text: String,
}

/// The fate that the attempt should have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// Another try, after this long or by the policy.
    Retry { after: Option<Duration> },
    /// No try can succeed.
    Permanent,
    /// Given back undone.
    Release { after: Option<Duration> },
    /// The handler was told to stop and did.
    Cancelled,
}

impl Failure {
    /// Try again, after the backoff of the retry policy. Counts as an attempt.
    pub fn retry(why: impl fmt::Display) -> Self {
        Self { kind: FailureKind::Retry { after: None }, text: why.to_string() }
    }

    /// Try again after this long, instead of the policy's backoff. Counts as an attempt.
    pub fn retry_after(after: Duration, why: impl fmt::Display) -> Self {
        Self { kind: FailureKind::Retry { after: Some(after) }, text: why.to_string() }
    }

    /// No attempt can succeed: the work fails for good.
    pub fn permanent(why: impl fmt::Display) -> Self {
        Self { kind: FailureKind::Permanent, text: why.to_string() }
    }

    /// Give it back undone, for another worker or a later time. Does not count as an attempt.
    pub fn release(after: Option<Duration>) -> Self {
        Self { kind: FailureKind::Release { after }, text: "released".into() }
    }

    /// [`release`](Self::release) with a reason, for whoever reads the failure.
    pub fn release_because(after: Option<Duration>, why: impl fmt::Display) -> Self {
        Self { kind: FailureKind::Release { after }, text: why.to_string() }
    }

    /// A handler that was told to stop and did. Without a cancel it is a release.
    pub fn cancelled() -> Self {
        Self { kind: FailureKind::Cancelled, text: "cancelled".into() }
    }

    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    pub fn is_retryable(&self) -> bool {
        self.kind != FailureKind::Permanent
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// Not an `Error` itself: that is what lets every error become one.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(deeper) = cause {
            let more = deeper.to_string();
            if !text.contains(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            cause = deeper.source();
        }
        Self { kind: FailureKind::Retry { after: None }, text }
    }
}
