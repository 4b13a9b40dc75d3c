use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::backup::Damage;
use crate::engines::embedded::Loss;
use crate::row::DecodeError;

/// The reason why a log did not do what was asked. [`Self::changed`] says whether it may have, all the same.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    #[error("stale term {given}: term {current} holds the seat; stop acting for this datacenter. Nothing was stored")]
    StaleTerm { given: Term, current: Term },
    /// Follow whoever holds it.
    #[error(
        "the seat was taken meanwhile: it was free to take under term {seen}, and term {current} holds it now. Nothing was stored"
    )]
    SeatTaken { seen: Term, current: Term },
    #[error("the next event is {expected:?}, not {given:?}; rebuild the state from the log. Nothing was stored")]
    WrongSequence { given: Seq, expected: Seq },
    #[error("a snapshot out of order: {what}. Nothing was stored")]
    WrongSnapshot { what: &'static str },
    /// Ask for the same again: the same sequence number and batch id, or the same snapshot step.
    #[error("it is not known whether this was stored ({cause}); try the same again")]
    Unknown { cause: String },
    #[error("the disk is full ({cause}); make room and try again. Nothing was stored")]
    Full { cause: String },
    #[error("the storage failed: {cause}. Nothing was stored")]
    Io { cause: String },
    #[error("another process has the data folder ({folder}); stop it, or use another folder. Nothing was changed")]
    Locked { folder: String },
    #[error("written in format {found}, and this program knows {known}; use a newer onward. Nothing was changed")]
    NewerFormat { found: u8, known: u8 },
    /// The data are of a newer format, which is no damage: a newer program reads them.
    #[error("written by a newer version, which knows {what} number {number}; use a newer onward. Nothing was changed")]
    NewerVersion { what: &'static str, number: u64 },
    #[error("the store is damaged: {what}; restore it from a backup. Nothing was changed")]
    Corrupt { what: String },
    /// Acknowledged events are missing.
    #[error(
        "the store is damaged: {0}. Restore a backup (`onward restore`) into another folder, or start once with \
         --accept-loss to go on with what is left. Nothing was changed"
    )]
    Lost(Loss),
    /// A file of the store is missing, and others are there.
    #[error(
        "the store is not whole: {what}. Put it back, restore a backup (`onward restore`) into another folder, or start once \
         with --accept-loss to go on with what is left. Nothing was changed"
    )]
    Gone { what: &'static str },
    /// Load the snapshot and read from the event after it.
    #[error("events before {first:?} were truncated; begin with the snapshot that covers them. Nothing was changed")]
    Truncated { first: Seq },
    #[error("{path} is there already; give a name that is free. Nothing was changed")]
    Exists { path: String },
    #[error(
        "{path} is in the data folder ({folder}), where every name may be one of the node's own; write it to another \
         folder. Nothing was changed"
    )]
    AmongOwnFiles { path: String, folder: String },
    #[error(
        "what this node keeps is in PostgreSQL, which has tools of its own for that, such as pg_basebackup and pg_dump. \
         Nothing was changed"
    )]
    BackedUpElsewhere,
    #[error("the backup was given up before it was whole; make it again. Nothing was changed")]
    GivenUp,
    #[error("{path} is not a backup: {found}. Nothing was changed")]
    NotABackup { path: String, found: String },
    #[error(
        "{path} is damaged: {damage}. Restore another backup, or this one with --accept-loss: then these jobs are there \
         without that content. Nothing was changed"
    )]
    DamagedBackup { path: String, damage: Damage },
    #[error("{folder} holds data already ({found}); restore into an empty folder. Nothing was changed")]
    Occupied { folder: String, found: &'static str },
    /// The files there are not to be believed: parts of a backup at most.
    #[error("a restore into {folder} did not finish; restore again, or use another folder. Nothing was changed")]
    HalfRestored { folder: String },
}

/// The words that continue the text of every error that changed nothing.
const NO_CHANGE: &str = ". Nothing was ";

/// Whether the log may have changed by the call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogChange {
    No,
    Maybe,
}

impl Error {
    pub const fn changed(&self) -> LogChange {
        match self {
            Self::Unknown { .. } => LogChange::Maybe,
            Self::StaleTerm { .. }
            | Self::SeatTaken { .. }
            | Self::WrongSequence { .. }
            | Self::WrongSnapshot { .. }
            | Self::Full { .. }
            | Self::Io { .. }
            | Self::Locked { .. }
            | Self::NewerFormat { .. }
            | Self::NewerVersion { .. }
            | Self::Corrupt { .. }
            | Self::Lost(_)
            | Self::Gone { .. }
            | Self::Truncated { .. }
            | Self::Exists { .. }
            | Self::AmongOwnFiles { .. }
            | Self::BackedUpElsewhere
            | Self::GivenUp
            | Self::NotABackup { .. }
            | Self::DamagedBackup { .. }
            | Self::Occupied { .. }
            | Self::HalfRestored { .. } => LogChange::No,
        }
    }
}

impl Error {
    /// The cause alone, without the fate of the call that met it: for those who hear of it and asked for something
    /// else.
    pub fn cause(&self) -> String {
        match self {
            Self::Unknown { cause } => cause.clone(),
            other => {
                let text = other.to_string();
                text.split_once(NO_CHANGE).map_or(text.as_str(), |(cause, _)| cause).to_owned()
            }
        }
    }

    /// Whether asking again gives the same: the data are stored, and this program cannot read them.
    pub const fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. }
                | Self::Lost(_)
                | Self::Gone { .. }
                | Self::NewerFormat { .. }
                | Self::NewerVersion { .. }
        )
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::NewerFormat { found, known } => Self::NewerFormat { found, known },
            DecodeError::NewerVersion { what, number } => Self::NewerVersion { what, number },
            DecodeError::Corrupt(what) => Self::Corrupt { what: what.to_owned() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_may_have_changed_the_log_says_so_in_words_too() {
        let text = || "x".to_owned();
        let (term, seq) = (Term::new(1), Seq(1));
        for error in [
            Error::StaleTerm { given: term, current: term },
            Error::SeatTaken { seen: term, current: term },
            Error::WrongSequence { given: seq, expected: seq },
            Error::WrongSnapshot { what: "x" },
            Error::Unknown { cause: text() },
            Error::Full { cause: text() },
            Error::Io { cause: text() },
            Error::Locked { folder: text() },
            Error::NewerFormat { found: 2, known: 1 },
            Error::NewerVersion { what: "x", number: 1 },
            Error::Corrupt { what: text() },
            Error::Gone { what: "x" },
            Error::Lost(Loss { what: text(), from: seq, to: None }),
            Error::Truncated { first: seq },
            Error::Exists { path: text() },
            Error::AmongOwnFiles { path: text(), folder: text() },
            Error::BackedUpElsewhere,
            Error::GivenUp,
            Error::NotABackup { path: text(), found: text() },
            Error::DamagedBackup { path: text(), damage: Damage::default() },
            Error::Occupied { folder: text(), found: "x" },
            Error::HalfRestored { folder: text() },
        ] {
            let says_no = error.to_string().contains("Nothing was ");
            assert_eq!(says_no, error.changed() == LogChange::No, "{error}");
            assert!(!error.cause().contains("stored") && !error.cause().contains("Nothing was"), "{}", error.cause());
        }
    }
}
