//! The ends of a run.

use core::fmt;
use core::time::Duration;

use onward_lease::{CancelWhy, Failure};

use crate::budget::{BudgetPart, Spent};
use crate::model::ModelError;
use crate::session::SessionError;
use crate::tool::CallRequest;

/// The output of a run, with what it took.
#[derive(Clone, PartialEq, Debug)]
pub struct AgentOutput<T> {
    pub output: T,
    pub spent: Spent,
    /// The name of its session.
    pub session: String,
}

/// The reason why a run ended without its output. The session has all that happened; a later attempt goes on from
/// there.
///
/// Not an `Error`: so it can say for itself what should become of the job when a handler returns it by `?`.
#[derive(Debug)]
pub enum Stopped {
    /// Something that the budget limits is spent. Another attempt would stop at once: raise the limit.
    Budget {
        limit: BudgetPart,
        spent: Spent,
    },
    /// The deadline of the run or of its job has passed.
    Deadline,
    /// No forward step was made for too long: the call that was repeated, and how often it was made; or the one that
    /// hung, made once. A call is its name and the names of its arguments; what is in them is in the session.
    Stuck {
        call: String,
        times: u32,
    },
    /// A person must approve these calls first; there is one at least. A later attempt asks the policy again, after this
    /// long.
    Suspended {
        approvals: Vec<Approval>,
        ask_again_after: Duration,
    },
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

/// The question that a person is asked.
#[derive(Clone, PartialEq, Debug)]
pub struct Approval {
    pub call: CallRequest,
    /// The reason that the policy gave.
    pub why: String,
}

impl Stopped {
    /// Whether another attempt may have more luck.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Budget { .. } | Self::Deadline | Self::Refused(_) | Self::Output(_) => false,
            Self::Model(error) => error.is_retryable(),
            Self::Session(error) => error.is_retryable(),
            Self::Stuck { .. } | Self::Suspended { .. } | Self::Cancelled | Self::Lost(_) => true,
        }
    }

    /// As it is displayed, but for the words of a model or its server: they may quote the prompt, and why a handler failed
    /// is logged, and kept with its job.
    fn without_quotes(&self) -> String {
        let model = |what: &str| format!("{what}; what its server said is in the session");
        match self {
            Self::Refused(_) => "the model refuses; its words are in the session".into(),
            Self::Output(_) => "the model's output does not fit; it is in the session".into(),
            Self::Model(ModelError::Unavailable { .. }) => model("the model cannot be reached"),
            Self::Model(ModelError::Refused { status, .. }) => model(&format!(
                "the model's server refuses the request with {status}; check address, key, model and tools"
            )),
            Self::Model(ModelError::Cut { .. }) => model("the model's answer broke off"),
            Self::Model(ModelError::Malformed { .. }) => model("the model's server does not speak the protocol"),
            Self::Session(SessionError::Damaged { id, entry, .. }) => {
                format!("session `{id}` is damaged at entry {entry}; move it away to begin anew")
            }
            other => other.to_string(),
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

/// What becomes of the job: a suspended one is given back, until the policy is asked again; what no attempt can better
/// fails for good; the rest is tried again. The text has no words of the model or its server: those are in the `Stopped`
/// itself, and in the session.
impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Self {
        let why = stopped.without_quotes();
        match &stopped {
            Stopped::Suspended { ask_again_after, .. } => Self::release_because(Some(*ask_again_after), why),
            Stopped::Cancelled | Stopped::Lost(_) => Self::cancelled(),
            Stopped::Model(ModelError::Unavailable { retry_after: Some(after), .. }) => Self::retry_after(*after, why),
            stopped if stopped.is_retryable() => Self::retry(why),
            _ => Self::permanent(why),
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
            Self::Suspended { approvals, .. } => {
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
