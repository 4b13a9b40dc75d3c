//! What an error of NATS says about the call that it answers.

use std::error::Error;

use async_nats::client::{RequestError, RequestErrorKind};
use async_nats::jetstream::Error as Answer;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use onward_lease::mailbox::{ChangeCertainty, MailboxError};

pub fn unavailable(error: impl ToString, changed: ChangeCertainty) -> MailboxError {
    MailboxError::Unavailable { why: error.to_string(), changed }
}

/// The error of a call that only looks, or that was not sent.
pub fn of_look(error: impl ToString) -> MailboxError {
    unavailable(error, ChangeCertainty::No)
}

pub fn refused(why: impl Into<String>, remedy: impl Into<String>) -> MailboxError {
    MailboxError::Refused { why: why.into(), remedy: remedy.into() }
}

pub fn of_publish(error: &PublishError) -> MailboxError {
    let answered = error.source().is_some_and(|source| source.is::<Answer>());
    match error.kind() {
        PublishErrorKind::StreamNotFound => {
            refused("no stream takes this subject", "create the mailbox that is meant before messages go to it")
        }
        PublishErrorKind::MaxPayloadExceeded => {
            refused("the message is larger than the server takes", "send less, or raise max_payload of the server")
        }
        PublishErrorKind::MaxAckPending => unavailable(error, ChangeCertainty::No),
        _ if answered => unavailable(error, ChangeCertainty::No),
        _ => unavailable(error, ChangeCertainty::Unknown),
    }
}

pub fn of_request(error: &RequestError) -> MailboxError {
    match error.kind() {
        // The server, or its stream, is not up yet.
        RequestErrorKind::NoResponders => unavailable(error, ChangeCertainty::No),
        RequestErrorKind::InvalidSubject => MailboxError::Stale,
        _ => unavailable(error, ChangeCertainty::Unknown),
    }
}
