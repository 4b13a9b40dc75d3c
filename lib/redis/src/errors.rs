//! What an error of Redis says about the call that it answers.

use onward_lease::mailbox::{ChangeCertainty, MailboxError};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The error of a call that changes something.
pub fn of_change(error: &RedisError) -> MailboxError {
    let why = error.to_string();
    let unavailable = |changed| MailboxError::Unavailable { why: why.clone(), changed };
    if error.is_connection_refusal() {
        return unavailable(ChangeCertainty::No);
    }
    match error.kind() {
        // The connection broke, or the answer did not come in time.
        ErrorKind::Io => unavailable(ChangeCertainty::Unknown),
        // Redis refuses these before a script's first write, and a script is never ended after it.
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly,
        ) => unavailable(ChangeCertainty::No),
        _ if matches!(error.code(), Some("BUSY" | "OOM" | "MISCONF" | "NOREPLICAS")) => {
            unavailable(ChangeCertainty::No)
        }
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => MailboxError::Refused {
            why: format!("what is stored in Redis is not a mailbox of this version: {why}"),
            remedy: "use another name for the mailbox, or the version that made it".into(),
        },
        _ => MailboxError::Refused { why, remedy: "look into the permissions of this user and its keys".into() },
    }
}

/// The error of a call that only looks.
pub fn of_look(error: &RedisError) -> MailboxError {
    match of_change(error) {
        MailboxError::Unavailable { why, .. } => MailboxError::Unavailable { why, changed: ChangeCertainty::No },
        other => other,
    }
}
