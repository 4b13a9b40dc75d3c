//! Sessions: the append-only history of a run, from which a later attempt goes on.
//!
//! ```text
//!   asked ──▶ answered ──▶ tool begun ──▶ tool ended ──▶ asked ──▶ …
//!     │           │            │
//!     │           │            └ killed here: the tool is run again, unless it may be run once only
//!     │           └ killed here: nothing is lost
//!     └ killed here: the model is asked again, and the lost question is charged by an estimate
//! ```
//!
//! An entry is durable when `append` returns, and only then does what it says happen. A session belongs to the attempt
//! with the highest *fence* that has opened it: what a lower one appends is refused, so that an attempt that was frozen
//! and comes back can neither write into the history nor begin another tool.

#[cfg(test)]
mod conformance;
mod folder;
mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use folder::Folder;
pub use memory::MemorySessions;
#[cfg(feature = "sqlite")]
pub use sqlite::Sqlite;

use core::future::Future;
use core::pin::Pin;

use serde::{Deserialize, Serialize};

use crate::model::{ChatMessage, ModelAnswer};

/// Longest entry.
pub const MAX_ENTRY_BYTES: usize = 16 << 20;
/// Most entries of a session, where they are counted.
const MAX_ENTRIES: usize = 100_000;
/// Longest name of a session.
const MAX_ID_BYTES: usize = 200;

/// The place where sessions are kept. Implementers write `async fn`.
pub trait Sessions: Send + Sync + 'static {
    /// The session with all of its entries; an empty one if there was none. From now on lower fences are refused, as this
    /// one is if a higher one has opened the session.
    fn open(&self, id: &str, fence: u64) -> impl Future<Output = Result<Session, SessionError>> + Send;

    /// Appends an entry, durably. If a higher fence has opened the session, it is refused as [`SessionError::Stale`]; one
    /// that was under way when that happened may have become part of the history all the same.
    fn append(&self, session: &Session, entry: &Entry) -> impl Future<Output = Result<(), SessionError>> + Send;
}

/// A session, as it was when it was opened.
#[derive(Clone, PartialEq, Debug)]
pub struct Session {
    pub id: String,
    pub fence: u64,
    pub entries: Vec<Entry>,
}

/// An event of a session, with its time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Milliseconds since the Unix epoch, for people.
    pub at_ms: u64,
    /// The time that all attempts together have worked so far.
    pub active_ms: u64,
    #[serde(flatten)]
    pub event: SessionEvent,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum SessionEvent {
    /// The model is about to be asked; `messages` are those that no other entry has. The estimated input of the whole
    /// question is charged if no answer to it follows.
    Asked {
        messages: Vec<ChatMessage>,
        input_tokens: u64,
    },
    Answered(ModelAnswer),
    /// A call of the last answer, by its place in it, is about to be run.
    ToolBegun {
        call: u32,
        key: String,
    },
    /// The result of a call, as the model will be told.
    ToolEnded {
        call: u32,
        output: String,
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        failed: bool,
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        polling: bool,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("session `{id}` belongs to a later attempt (fence {newer}, this is {fence}); stop: nothing was begun")]
    Stale { id: String, fence: u64, newer: u64 },
    #[error("`{0}` cannot name a session; use 1 to 200 of a-z, A-Z, 0-9, `-`, `_` and `.`, not beginning with `.`")]
    NotAName(String),
    #[error("session `{0}` is under way already, by another run of this attempt; give each run a name of its own")]
    UnderWay(String),
    #[error(
        "an entry of {bytes} bytes is more than a session takes ({MAX_ENTRY_BYTES}); lower the tools' output limits"
    )]
    TooLarge { bytes: usize },
    #[error("session `{0}` is full, and takes no more entries; give the agent a budget")]
    Full(String),
    #[error("session `{id}` is damaged at entry {entry}: {why}; move it away to begin anew")]
    Damaged { id: String, entry: usize, why: String },
    #[error("session `{id}` cannot be stored: {why}; a later attempt goes on from its last entry")]
    Unavailable { id: String, why: String },
}

impl SessionError {
    /// Whether another attempt may have more luck.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Stale { .. } | Self::UnderWay(_) | Self::Unavailable { .. })
    }
}

/// Names are file names too, and so must be harmless ones.
pub(crate) fn check_id(id: &str) -> Result<(), SessionError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if id.is_empty() || id.len() > MAX_ID_BYTES || id.starts_with('.') || !id.bytes().all(is_plain) {
        return Err(SessionError::NotAName(id.chars().take(MAX_ID_BYTES).collect()));
    }
    Ok(())
}

/// An entry as it is stored.
fn encode(entry: &Entry, id: &str) -> Result<String, SessionError> {
    let text = serde_json::to_string(entry);
    let text = text.map_err(|error| SessionError::Unavailable { id: id.into(), why: error.to_string() })?;
    if text.len() > MAX_ENTRY_BYTES {
        return Err(SessionError::TooLarge { bytes: text.len() });
    }
    Ok(text)
}

fn decode(text: &str, id: &str, entry: usize) -> Result<Entry, SessionError> {
    serde_json::from_str(text).map_err(|error| SessionError::Damaged { id: id.into(), entry, why: error.to_string() })
}

/// Runs what blocks beside the executor.
async fn blocking<T: Send + 'static>(
    id: &str,
    call: impl FnOnce() -> Result<T, SessionError> + Send + 'static,
) -> Result<T, SessionError> {
    let ended = tokio::task::spawn_blocking(call).await;
    ended.map_err(|error| SessionError::Unavailable { id: id.to_owned(), why: error.to_string() })?
}

type SessionFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SessionError>> + Send + 'a>>;

/// [`Sessions`] behind a pointer.
pub(crate) trait AnySessions: Send + Sync {
    fn open_any<'a>(&'a self, id: &'a str, fence: u64) -> SessionFuture<'a, Session>;
    fn append_any<'a>(&'a self, session: &'a Session, entry: &'a Entry) -> SessionFuture<'a, ()>;
}

impl<S: Sessions> AnySessions for S {
    fn open_any<'a>(&'a self, id: &'a str, fence: u64) -> SessionFuture<'a, Session> {
        Box::pin(self.open(id, fence))
    }

    fn append_any<'a>(&'a self, session: &'a Session, entry: &'a Entry) -> SessionFuture<'a, ()> {
        Box::pin(self.append(session, entry))
    }
}
