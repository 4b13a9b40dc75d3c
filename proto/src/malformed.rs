//! The error of a malformed message: what is wrong, and where.

use core::time::Duration;

use onward_core::ids::MAX_NAME_BYTES;

/// A message that cannot be taken. Nothing of it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{field}` {problem}")]
pub struct MalformedMessage {
    /// The path from the message down, such as `beats[3].claim.job_id`.
    pub field: String,
    pub problem: FieldProblem,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FieldProblem {
    #[error("is missing; it must be set")]
    Missing,
    #[error("must be 1 to {MAX_NAME_BYTES} bytes without control characters")]
    NotAName,
    #[error("has {bytes} bytes; it must have {expected}")]
    WrongLength { bytes: usize, expected: usize },
    #[error("is {value}; it must be at most {max}")]
    TooLarge { value: u64, max: u64 },
    #[error("is {} days; it must be at most {}", .value.as_secs() / 86_400, .max.as_secs() / 86_400)]
    TooLong { value: Duration, max: Duration },
    #[error("is {0}, which means nothing here; use a number that the protocol names")]
    UnknownNumber(i32),
    #[error("has {count} entries; at most {max} are allowed, so send several")]
    TooMany { count: usize, max: usize },
}

impl MalformedMessage {
    pub fn new(field: &str, problem: FieldProblem) -> Self {
        Self { field: field.to_owned(), problem }
    }

    /// The same, seen from the message that holds this one as `field`.
    pub fn under(mut self, field: &str) -> Self {
        self.field = format!("{field}.{}", self.field);
        self
    }

    /// The same, where `field` is one of several.
    pub fn at(self, field: &str, index: usize) -> Self {
        self.under(&format!("{field}[{index}]"))
    }
}
