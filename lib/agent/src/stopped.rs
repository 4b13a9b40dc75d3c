//! How a run ends.

use core::fmt;
use core::time::Duration;

use onward_lease::{CancelWhy, Failure};

use crate::budget::{Limit, Spent};
use crate::model::ModelError;
use crate::session::SessionError;
use crate::tool::Requested;

/// The output of a run, with what it took.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished<T> {
    pub output: T,
    pub spent: Spent,
    /// The name of its session.
    pub session: String,
}

/// Why a run ended without its output. The session has all that happened; a later attempt goes on from there.
///
/// Not an `Error`: so it can say for itself what should become of the job when a handler returns it by `?`.
#[derive(Debug)]
pub enum Stopped {
    /// Something that the budget limits is spent. Another attempt would stop at once: raise the limit.
    Budget {
        limit: Limit,
        spent: Spent,
    },
    /// The deadline of the run or of its job has passed.
    Deadline,
    /// There was no forward step for too long: the call that was repeated, and how often it was made; or the one that
    /// hung, made once. A call is its name and the names of its arguments; what is in them is in the session.
    Stuck {
        call: String,
        times: u32,
    },
    /// A person must approve these calls first; there is one at least. A later attempt asks the policy again.
    Suspended(Vec<Approval>),
    /// It was asked to stop.
    Cancelled,
    /// The work belongs to another attempt by now.
    Lost(CancelWhy),
    /// The model will not do it, and says why.
    Refused(String),
    /// The model was told several times what is wrong with its output, and could not better it.
    Output(String),
    Model(ModelError),
    Session(SessionError),
}

/// What a person is asked.
#[derive(Clone, PartialEq, Debug)]
pub struct Approval {
    pub call: Requested,
    /// What the policy said.
    pub why: String,
}

impl Stopped {
    /// Whether another attempt may have more luck.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Budget { .. } | Self::Deadline | Self::Refused(_) | Self::Output(_) => false,
            Self::Model(error) => error.is_retryable(),
            Self::Session(error) => error.is_retryable(),
            Self::Stuck { .. } | Self::Suspended(_) | Self::Cancelled | Self::Lost(_) => true,
        }
    }
}

impl From<SessionError> for Stopped {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Stale { .. } => Self::Lost(CancelWhy::Stale),
            other => Self::Session(other),
        }
    }
}

/// How long a suspended job is given back for, before the policy is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// What becomes of the job: a suspended one is given back for a minute, which counts as no attempt; what no attempt can
/// better fails for good; the rest is tried again.
impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Self {
        match &stopped {
            Stopped::Suspended(_) => Self::release_because(Some(ASK_AGAIN_AFTER), &stopped),
            Stopped::Cancelled | Stopped::Lost(_) => Self::cancelled(),
            Stopped::Model(ModelError::Unavailable { retry_after: Some(after), .. }) => {
                Self::retry_after(*after, &stopped)
            }
            stopped if stopped.is_retryable() => Self::retry(stopped),
            stopped => Self::permanent(stopped),
        }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Budget { limit, spent } => {
                write!(f, "the agent's budget of {limit} is spent ({spent}); raise it, or ask for less")
            }
            Self::Deadline => f.write_str("the agent's deadline has passed"),
            Self::Stuck { call, times: 1 } => write!(f, "the agent is stuck: {call} does not get on"),
            Self::Stuck { call, times } => {
                write!(f, "the agent is stuck: it made the call {call} {times} times with the same result")
            }
            Self::Suspended(approvals) => {
                let one =
                    |Approval { call, why }: &Approval| format!("{} under the key {} ({why})", call.tool, call.key);
                let all: Vec<String> = approvals.iter().map(one).collect();
                write!(f, "a person must approve {}", all.join(", and "))
            }
            Self::Cancelled => f.write_str("the agent was cancelled"),
            Self::Lost(why) => write!(f, "the agent's work belongs to another attempt by now ({why:?})"),
            Self::Refused(text) => write!(f, "the model refuses: {text}"),
            Self::Output(error) => write!(f, "the model's output does not fit: {error}"),
            Self::Model(error) => error.fmt(f),
            Self::Session(error) => error.fmt(f),
        }
    }
}
