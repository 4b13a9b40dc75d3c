//! The reasons why a call came to nothing.

use core::fmt;
use core::time::Duration;
use std::io;

use onward_api::problem::Problem;
use tokio_rustls::rustls::{self, CertificateError, InvalidMessage};

/// Each says whether the node may have carried the call out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The node's answer was no, and nothing was changed. `code` is the stable word for programs, and `unknown` where it
    /// gave none; `field` names what of the request is at fault, and `detail` what to do.
    #[error("{detail} ({code})")]
    Refused { status: u16, code: String, detail: String, field: Option<String> },
    /// No connection, so the node has carried out nothing.
    #[error("cannot reach the node at {authority}: {why}")]
    Unreachable { authority: String, why: NoConnection },
    /// The call was sent, and whether the node has carried it out is not known. Calls of this client's own may be made
    /// again safely.
    #[error("no answer from the node at {authority}: {why}")]
    Unanswered { authority: String, why: Silence },
    #[error("the node's answer cannot be read: {0}")]
    Unreadable(String),
    #[error("{count} jobs at once; at most {max} go together")]
    TooMany { count: usize, max: usize },
}

impl CallError {
    /// The stable word of a refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    pub(super) fn refused(status: u16, answer: &[u8]) -> Self {
        let problem = serde_json::from_slice::<Problem>(answer).ok().filter(|problem| !problem.code.is_empty());
        let (code, detail, field) = match problem {
            Some(problem) if problem.detail.is_empty() => (problem.code, problem.title.to_string(), problem.field),
            Some(problem) => (problem.code, problem.detail, problem.field),
            None => ("unknown".into(), format!("the answer was {status}"), None),
        };
        Self::Refused { status, code: code.to_string(), detail, field }
    }
}

/// The reason why an answer did not come.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Silence {
    /// The connection ended before the answer.
    #[error("{0}")]
    Lost(String),
    /// The node lost its place, or its storage, before it could say what became of the call.
    #[error("{0}")]
    InDoubt(String),
    #[error("it took more than {}", onward_api::span::human(*.0))]
    TooLong(Duration),
}

/// The reason why there is no connection.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NoConnection {
    /// The port refuses connections.
    Refused,
    /// The certificate of the node is signed by an authority that is not trusted here.
    UnknownIssuer,
    /// The certificate is for another name.
    OtherName(String),
    /// TLS was tried with somebody who does not speak it.
    NoTls,
    /// TLS was not tried with somebody who speaks nothing else, as it seems.
    OnlyTls,
    Other(String),
}

impl NoConnection {
    pub(crate) fn of(error: &io::Error) -> Self {
        let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match of_tls {
            Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => return Self::UnknownIssuer,
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => return Self::NoTls,
            Some(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => return Self::OtherName(error.to_string()),
            _ => {}
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            _ => Self::Other(error.to_string()),
        }
    }
}

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("connection refused: nothing listens there"),
            Self::UnknownIssuer => f.write_str("its certificate is signed by an authority that is not trusted here"),
            Self::NoTls => f.write_str("what listens there does not speak TLS"),
            Self::OnlyTls => f.write_str("the answer is not HTTP; a node that serves TLS answers so"),
            Self::OtherName(why) | Self::Other(why) => f.write_str(why),
        }
    }
}
