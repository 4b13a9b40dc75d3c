//! The answer of a server, read delta by delta.

use core::time::Duration;
use std::collections::VecDeque;

use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::events::Events;
use super::{Delta, Finish, ModelError};
use crate::budget::Usage;
use crate::http::Response;

/// A stream of chunks. Only content is news: comments, empty deltas and counts of tokens may come from a timer while the
/// model hangs, and do not make its silence any shorter.
pub(super) struct Reading {
    response: Response,
    events: Events,
    ready: VecDeque<Delta>,
    /// Index and id of the calls so far, the newest last.
    calls: Vec<(u32, Option<String>)>,
    is_finished: bool,
    is_done: bool,
    /// How long the model may be silent, and since when it is.
    patience: Duration,
    heard_at: Instant,
}

impl Reading {
    pub fn new(response: Response, patience: Duration) -> Self {
        Self {
            response,
            events: Events::default(),
            ready: VecDeque::new(),
            calls: Vec::new(),
            is_finished: false,
            is_done: false,
            patience,
            heard_at: Instant::now(),
        }
    }

    /// Gives a delta back, to be read again, and says how long the next one may take.
    pub fn unread(&mut self, delta: Delta, patience: Duration) {
        self.ready.push_front(delta);
        self.patience = patience;
    }

    /// The next delta; `None` when the answer is whole.
    pub async fn next(&mut self) -> Result<Option<Delta>, ModelError> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                if delta.is_news() {
                    self.heard_at = Instant::now();
                }
                return Ok(Some(delta));
            }
            if self.is_done {
                return Ok(None);
            }
            let chunk = match self.heard_at.checked_add(self.patience) {
                Some(silent_at) => timeout_at(silent_at, self.response.chunk()).await,
                None => Ok(self.response.chunk().await),
            };
            match chunk.map_err(|_| ModelError::Silent(self.patience))? {
                Ok(Some(bytes)) => {
                    for data in self.events.feed(&bytes)? {
                        self.take(&data)?;
                    }
                }
                // Some servers just close the connection after the reason why they finished.
                Ok(None) if self.is_finished => return Ok(None),
                Ok(None) => return Err(ModelError::Cut { why: "the stream ended without its end".into() }),
                Err(error) => return Err(ModelError::Cut { why: error.to_string() }),
            }
        }
    }

    fn take(&mut self, data: &str) -> Result<(), ModelError> {
        if data == "[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        let malformed = |why: &str| ModelError::Malformed { why: format!("{why}: {data}") };
        let chunk: Value = serde_json::from_str(data).map_err(|_| malformed("a chunk that is not JSON"))?;
        if !chunk["error"].is_null() {
            return Err(ModelError::Cut { why: format!("the server reports {}", chunk["error"]) });
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        if let Some(content) = text(&delta["content"]) {
            self.ready.push_back(Delta::Text(content));
        }
        if let Some(refusal) = text(&delta["refusal"]) {
            self.ready.push_back(Delta::Refusal(refusal));
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.take_call(call).ok_or_else(|| malformed("a call with an index that is too large"))?;
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.is_finished = true;
            let finish = match reason {
                "length" => Finish::Length,
                "content_filter" => Finish::Filtered,
                _ => Finish::Complete,
            };
            self.ready.push_back(Delta::Finish(finish));
        }
        if let Some(tokens) = chunk["usage"]["prompt_tokens"].as_u64() {
            let output_tokens = chunk["usage"]["completion_tokens"].as_u64().unwrap_or_default();
            self.ready.push_back(Delta::Usage(Usage { input_tokens: tokens, output_tokens, estimated: false }));
        }
        Ok(())
    }

    /// A part of a call. `None` if no call can have its index.
    fn take_call(&mut self, call: &Value) -> Option<()> {
        let (id, name) = (text(&call["id"]), text(&call["function"]["name"]));
        let arguments = text(&call["function"]["arguments"]).unwrap_or_default();
        let index = match &call["index"] {
            Value::Null => self.index_without_number(id.as_deref(), name.is_some())?,
            number => u32::try_from(number.as_u64()?).ok()?,
        };
        // Some servers say the id with every part.
        let id = match self.calls.iter_mut().find(|(known, _)| *known == index) {
            Some((_, Some(_))) => None,
            Some((_, known)) => {
                known.clone_from(&id);
                id
            }
            None => {
                self.calls.push((index, id.clone()));
                id
            }
        };
        let delta = Delta::ToolCall { index, id, name, arguments };
        if delta.is_news() {
            self.ready.push_back(delta);
        }
        Some(())
    }

    /// Some servers do not number their calls: an id or a name that is new begins one, and the rest belongs to the last.
    fn index_without_number(&self, id: Option<&str>, has_name: bool) -> Option<u32> {
        let last = self.calls.last().map(|(index, _)| *index);
        let known = id.and_then(|id| self.calls.iter().find(|(_, known)| known.as_deref() == Some(id)));
        match (known, last) {
            (Some((index, _)), _) => Some(*index),
            (None, Some(last)) if id.is_none() && !has_name => Some(last),
            (None, Some(_)) => self.calls.iter().map(|(index, _)| *index).max()?.checked_add(1),
            (None, None) => Some(0),
        }
    }
}

/// A text that says something.
fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}
