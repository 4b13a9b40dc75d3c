//! How a handler says that it did not succeed.

use core::fmt;
use core::time::Duration;

/// A failure with what should become of the attempt.
///
/// Any error turns into one that is retried by the job's policy, so that `?` just works. To say more:
///
/// ```
/// use onward::Failure;
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
    pub(crate) what: What,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Retry { after: Option<Duration> },
    Permanent,
    Release { after: Option<Duration> },
    Cancelled,
}

impl Failure {
    /// Try again, after the backoff of the job's retry policy. Counts as an attempt.
    pub fn retry(why: impl fmt::Display) -> Self {
        Self { what: What::Retry { after: None }, text: why.to_string() }
    }

    /// Try again after this long, instead of the policy's backoff. Counts as an attempt.
    pub fn retry_after(after: Duration, why: impl fmt::Display) -> Self {
        Self { what: What::Retry { after: Some(after) }, text: why.to_string() }
    }

    /// No attempt can succeed: the workflow fails for good.
    pub fn permanent(why: impl fmt::Display) -> Self {
        Self { what: What::Permanent, text: why.to_string() }
    }

    /// Give it back undone, for another worker or a later time. Does not count as an attempt.
    pub fn release(after: Option<Duration>) -> Self {
        Self { what: What::Release { after }, text: "released".into() }
    }

    /// It was told to stop and did. Without a cancel it is a release.
    pub fn cancelled() -> Self {
        Self { what: What::Cancelled, text: "cancelled".into() }
    }

    pub fn is_retryable(&self) -> bool {
        self.what != What::Permanent
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
        Self { what: What::Retry { after: None }, text }
    }
}
