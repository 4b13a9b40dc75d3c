//! The error of a mailbox that cannot do what it was asked.

use core::fmt;

use onward_core::lease::RenewFailure;

/// Whether a call that failed changed anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeCertainty {
    No,
    /// The call was carried out in part: the error says what was done.
    Yes,
    /// The call was sent and its answer did not come.
    Unknown,
}

impl fmt::Display for ChangeCertainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::No => "nothing was changed",
            Self::Yes => "a part was done",
            Self::Unknown => "whether it was done is not known",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MailboxError {
    /// Passing: the same call may succeed later.
    #[error("the mailbox cannot be reached: {why}; {changed}; try again later")]
    Unavailable { why: String, changed: ChangeCertainty },
    /// The lease of this receipt has ended.
    #[error(
        "the receipt is stale: its lease ended, and the message was handed out again or is gone; nothing was changed"
    )]
    Stale,
    /// The same call will never succeed.
    #[error("the mailbox refused: {why}; nothing was changed; {remedy}")]
    Refused { why: String, remedy: String },
    #[error(
        "a body of {bytes} bytes is too large; nothing was changed; send at most {max} bytes, or a reference to where they lie"
    )]
    TooLarge { bytes: usize, max: usize },
    #[error("the mailbox is full, at {max} messages; nothing was changed; receive some, or raise its limit")]
    Full { max: usize },
    /// A step of several was done and the next one was not.
    #[error("{done}, but then: {why}; repeat the call, the part that was done may happen twice")]
    Cut { done: &'static str, why: String },
}

impl MailboxError {
    pub const fn changed(&self) -> ChangeCertainty {
        match self {
            Self::Unavailable { changed, .. } => *changed,
            Self::Cut { .. } => ChangeCertainty::Yes,
            Self::Stale | Self::Refused { .. } | Self::TooLarge { .. } | Self::Full { .. } => ChangeCertainty::No,
        }
    }

    /// Whether the same call may succeed later.
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Full { .. } | Self::Cut { .. })
    }

    /// The meaning of this error for a lease whose extension it answers.
    pub const fn renew_failure(&self) -> RenewFailure {
        match self {
            Self::Stale => RenewFailure::ReceiptExpired,
            Self::Refused { .. } | Self::TooLarge { .. } => RenewFailure::Refused,
            Self::Unavailable { .. } | Self::Full { .. } | Self::Cut { .. } => RenewFailure::Transient,
        }
    }
}
