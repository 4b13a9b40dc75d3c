//! A model: a request in and a stream of deltas out.

mod answer;
pub mod chat;
mod events;
mod extra;
mod reading;
mod retry_after;

pub(crate) use answer::AnswerDraft;
pub use answer::{ModelAnswer, ToolCall};
pub use chat::ChatCompletions;
pub(crate) use extra::given_back;

use core::pin::Pin;
use core::time::Duration;

use futures_util::Stream;
use onward_lease::Heartbeat;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::budget::{Budget, Spent, Usage};

/// Anything that answers a conversation. The shipped one is [`ChatCompletions`].
///
/// Implementers may repeat a call that failed **before its first delta**; after it they end the stream with an error,
/// because what was said cannot be unsaid. Waits that a server asked for are declared by [`Heartbeat::quiet`].
pub trait Model: Send + Sync + 'static {
    fn complete(&self, ask: Ask<'_>) -> impl Stream<Item = Result<Delta, ModelError>> + Send;

    /// The model's name in spans and metrics.
    fn name(&self) -> &str {
        "model"
    }
}

/// A question to a model.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// The conversation so far.
    pub messages: &'a [ChatMessage],
    pub tools: &'a [ToolSpec],
    /// The JSON schema of the output, if it must have one.
    pub output: Option<&'a Value>,
    /// The name of the session that the conversation is kept in.
    pub session: &'a str,
    /// The budget of the run, and the part of it that is spent.
    pub budget: &'a Budget,
    pub spent: Spent,
    /// The tokens that the budget leaves for the answer.
    pub max_output_tokens: Option<u64>,
    /// The instant at which the run must have ended.
    pub deadline: Option<Instant>,
    /// The heartbeat of this call. The agent beats for every delta; a wait that cannot beat is a quiet section.
    pub heartbeat: &'a Heartbeat,
}

/// A message of a conversation, in the JSON of chat completions. An answer is kept as the provider gave it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum ChatMessage {
    System {
        content: String,
    },
    User {
        content: String,
    },
    Tool {
        tool_call_id: String,
        content: String,
    },
    #[serde(untagged)]
    Assistant(Value),
}

/// The description of a tool for a model.
#[derive(Clone, PartialEq, Debug)]
pub struct ToolSpec {
    pub name: String,
    pub text: String,
    /// The JSON schema of its arguments.
    pub schema: Value,
}

/// A piece of an answer. Only one with something new in it is a beat: an empty one, a count of tokens, or the end of the
/// answer said again, may come from a timer.
#[derive(Clone, PartialEq, Debug)]
pub enum Delta {
    Text(String),
    /// The model thinks aloud. That is paid for and is a sign of work, but no part of the answer.
    Reasoning(String),
    /// The model will not answer, and says why.
    Refusal(String),
    /// A part of a tool call. Parts with the same index belong together; the arguments are put together in order.
    ToolCall {
        index: u32,
        id: Option<String>,
        name: Option<String>,
        arguments: String,
    },
    /// Tokens so far. It is exact if the answer is whole and nothing of it comes behind this; until then the larger of this
    /// and an estimate counts.
    Usage(Usage),
    /// The reason why the answer ended. The first counts.
    Finish(Finish),
    /// A try that may have been paid for ended before its first delta, and the question is about to be asked again. Its
    /// input is charged by an estimate.
    LostTry,
    /// Fields of a message of chat completions, or of its call with this index, that have no delta of their own. They are
    /// put together with those before, stored, and given back as they are; they are no sign of work.
    Extra {
        call: Option<u32>,
        fields: Map<String, Value>,
    },
    /// The whole answer in the JSON of a provider that does not speak chat completions. It is given back as it is.
    Whole(Value),
}

/// The reason why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    Complete,
    /// The answer reached its longest length. Its calls are not run: the last of them may be half of what was meant.
    Length,
    /// A filter of the provider held the rest back.
    Filtered,
}

/// The reason why there is no answer. The session has what was spent; nothing else has changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModelError {
    /// No server took the question: nobody is there, or it is too busy.
    #[error("the model cannot be reached: {why}; a later attempt goes on from the last entry")]
    Unavailable { why: String, retry_after: Option<Duration> },
    #[error("the model's server refuses the request with {status}: {why}; check address, key, model and tools")]
    Refused { status: u16, why: String },
    #[error("the answer broke off: {why}; a later attempt asks again")]
    Cut { why: String },
    #[error("the model said nothing for {0:?}; a later attempt asks again")]
    Silent(Duration),
    #[error("the model's server does not speak the protocol: {why}")]
    Malformed { why: String },
    #[error("the answer is longer than {limit} bytes; set a budget of output tokens")]
    Endless { limit: usize },
}

impl ModelError {
    /// Whether another attempt may have more luck.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::Endless { .. })
    }

    /// Whether a server may have begun to answer. If not, the question costs nothing.
    pub fn was_taken(&self) -> bool {
        !matches!(self, Self::Unavailable { .. } | Self::Refused { .. })
    }
}

pub(crate) type Deltas<'a> = Pin<Box<dyn Stream<Item = Result<Delta, ModelError>> + Send + 'a>>;

/// A [`Model`] behind a pointer.
pub(crate) trait AnyModel: Send + Sync {
    fn ask<'a>(&'a self, ask: Ask<'a>) -> Deltas<'a>;
    fn called(&self) -> &str;
}

impl<M: Model> AnyModel for M {
    fn ask<'a>(&'a self, ask: Ask<'a>) -> Deltas<'a> {
        Box::pin(self.complete(ask))
    }

    fn called(&self) -> &str {
        self.name()
    }
}
