//! What an error of the database means: whether something may have changed, and what to do.

use onward_log::Error;
use tokio_postgres::error::{DbError, Severity};

/// The reason why a database cannot be used. Nothing was stored.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the address of the database cannot be used: {0}")]
    Address(String),
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    #[error("the database refused: {0}")]
    Refused(String),
    #[error("the database is PostgreSQL {found}; 15 or newer is needed")]
    TooOld { found: i32 },
    #[error("the database runs with fsync=off, and would lose acknowledged jobs with its power; set fsync=on")]
    NotSynced,
    #[error(
        "the setting {name} is {found:?} and not {wanted:?} on a new connection; something changes what we ask for"
    )]
    NotForced { name: &'static str, found: String, wanted: &'static str },
    #[error(
        "there is a pooler before the database that does not keep a connection's settings ({0}); connect to the \
         database itself"
    )]
    Pooler(String),
    #[error("the tables are of version {found}, and this program knows {known}; use onward {needs} or newer")]
    NewerSchema { found: i32, known: i32, needs: String },
    #[error("this computer cannot run the connection: {0}")]
    Computer(String),
}

/// The fate of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RequestFailure {
    /// Nothing was sent.
    NotConnected(OpenError),
    /// The database says that nothing changed.
    Refused { cause: String },
    /// The same, for want of room.
    Full { cause: String },
    /// The request may have been carried out, or may yet be.
    Unknown { cause: String },
}

impl RequestFailure {
    /// The meaning of a failed request by the database's own answer, or by the lack of one.
    ///
    /// An `ERROR` ends its transaction before it committed. `FATAL` and `PANIC` end the backend, at whichever moment, so they
    /// say nothing of what it did last; neither do errors of the connection, of an operator's hand (class 57) or of the server's
    /// own trouble (58, XX), where an answer may follow a commit.
    pub(crate) fn of(error: &tokio_postgres::Error) -> Self {
        let cause = told(error);
        match error.as_db_error() {
            Some(answer) => Self::of_answer(answer.code().code(), answer.parsed_severity(), cause),
            None => Self::Unknown { cause },
        }
    }

    fn of_answer(code: &str, severity: Option<Severity>, cause: String) -> Self {
        let is_certain = severity == Some(Severity::Error) && !["08", "57", "58", "XX"].contains(&&code[..2]);
        match code {
            _ if !is_certain => Self::Unknown { cause },
            "53100" => Self::Full { cause },
            _ => Self::Refused { cause },
        }
    }

    /// The error for a caller who asked for a change.
    pub(crate) fn of_change(self) -> Error {
        match self {
            Self::Full { cause } => Error::Full { cause },
            Self::Refused { cause } => Error::Io { cause },
            Self::Unknown { cause } => Error::Unknown { cause },
            // What was asked before it may have arrived: whoever asks a second time must not be told that it did not.
            Self::NotConnected(error) => of_opening(error, |cause| Error::Unknown { cause }),
        }
    }

    /// The error for a caller who only looked.
    pub(crate) fn of_look(self) -> Error {
        match self {
            Self::Full { cause } | Self::Refused { cause } | Self::Unknown { cause } => Error::Io { cause },
            Self::NotConnected(error) => of_opening(error, |cause| Error::Io { cause }),
        }
    }
}

fn of_opening(error: OpenError, otherwise: impl FnOnce(String) -> Error) -> Error {
    match &error {
        OpenError::NewerSchema { found, known, .. } => Error::NewerFormat {
            found: u8::try_from(*found).unwrap_or(u8::MAX),
            known: u8::try_from(*known).unwrap_or(u8::MAX),
        },
        _ => otherwise(error.to_string()),
    }
}

impl From<OpenError> for RequestFailure {
    fn from(error: OpenError) -> Self {
        Self::NotConnected(error)
    }
}

/// A look before anything was asked for.
impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        RequestFailure::from(error).of_look()
    }
}

/// Whether a message of the server puts in doubt the answer beside it. Any message that is not surely harmless does.
pub(crate) fn is_warning(notice: &DbError) -> bool {
    use Severity::{Debug, Info, Log, Notice};
    !matches!(notice.parsed_severity(), Some(Debug | Info | Log | Notice))
}

/// An error with its causes, which the driver does not name by itself.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_believed_only_if_it_ended_the_transaction() {
        let is = |code, severity| RequestFailure::of_answer(code, severity, String::new());
        let (refused, full, unknown) = (
            RequestFailure::Refused { cause: String::new() },
            RequestFailure::Full { cause: String::new() },
            RequestFailure::Unknown { cause: String::new() },
        );
        for (code, severity, expected) in [
            ("53100", Severity::Error, &full),
            ("25006", Severity::Error, &refused),
            ("40001", Severity::Error, &refused),
            ("40P01", Severity::Error, &refused),
            ("42501", Severity::Error, &refused),
            ("53100", Severity::Panic, &unknown),
            ("40001", Severity::Fatal, &unknown),
            ("08006", Severity::Error, &unknown),
            ("57P01", Severity::Fatal, &unknown),
            ("57P02", Severity::Fatal, &unknown),
            ("57014", Severity::Error, &unknown),
            ("58030", Severity::Error, &unknown),
            ("XX000", Severity::Error, &unknown),
        ] {
            assert_eq!(&is(code, Some(severity)), expected, "{code}");
        }
        assert_eq!(is("40001", None), unknown, "of a server that does not say how severe it is");
    }
}
