//! The answer of a server, read delta by delta.

use core::time::Duration;
use std::collections::VecDeque;

use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use super::events::Events;
use super::{Delta, Finish, ModelError, extra};
use crate::budget::Usage;
use crate::http::Response;

/// Most of what an answer says beyond the protocol.
const MAX_EXTRA_BYTES: usize = 1 << 20;
/// How long the rest is waited for when an answer has said its end: the count of its tokens comes behind it.
const REST_WITHIN: Duration = Duration::from_secs(5);

/// Types and codes of errors that say that the same question will get the same answer.
const FAULTS_OF_THE_CALLER: [&str; 12] = [
    "BadRequestError",
    "authentication_error",
    "context_length_exceeded",
    "exceed_context_size_error",
    "invalid_api_key",
    "invalid_prompt",
    "invalid_request_error",
    "model_not_found",
    "not_found_error",
    "permission_error",
    "request_too_large",
    "string_above_max_length",
];

/// A stream of chunks. Only content is news: comments, empty deltas, counts of tokens and an end that is said again may come
/// from a timer while the model hangs, and do not make its silence any shorter.
///
/// An answer is whole when it has said its end (`finish_reason`). What should follow is waited for, for a moment, and if
/// that does not come or is broken, the answer is no worse for it.
pub(super) struct Reading {
    response: Response,
    events: Events,
    ready: VecDeque<Delta>,
    /// The calls so far, the newest last.
    calls: Vec<BegunCall>,
    extra_bytes: usize,
    is_finished: bool,
    is_done: bool,
    /// The error behind the deltas that are ready.
    failed: Option<ModelError>,
    /// The longest silence of the model, and the instant since which it is silent.
    patience: Duration,
    heard_at: Instant,
}

/// The parts of a call that some servers repeat with every delta, as far as they are known.
struct BegunCall {
    index: u32,
    id: Option<String>,
    name: Option<String>,
}

impl Reading {
    pub fn new(response: Response, patience: Duration) -> Self {
        Self {
            response,
            events: Events::default(),
            ready: VecDeque::new(),
            calls: Vec::new(),
            extra_bytes: 0,
            is_finished: false,
            is_done: false,
            failed: None,
            patience,
            heard_at: Instant::now(),
        }
    }

    /// Waits for the first delta, and says how long each later one may take. Whether there is one: a count of tokens before
    /// it is kept, as are fields that nobody here knows, and is none.
    pub async fn begin(&mut self, patience: Duration) -> Result<bool, ModelError> {
        while self.ready.iter().all(|delta| matches!(delta, Delta::Usage(_) | Delta::Extra { .. })) {
            if !self.read().await? {
                return Ok(false);
            }
        }
        self.patience = patience;
        Ok(true)
    }

    /// The next delta; `None` when the answer is whole.
    pub async fn next(&mut self) -> Result<Option<Delta>, ModelError> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Ok(Some(delta));
            }
            match self.read().await {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(_) if self.is_finished => {
                    tracing::debug!("the stream broke behind the end of the answer");
                    self.is_done = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads some more. `false` at the end of the answer.
    async fn read(&mut self) -> Result<bool, ModelError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.is_done {
            return Ok(false);
        }
        let patience = if self.is_finished { self.patience.min(REST_WITHIN) } else { self.patience };
        let silent = ModelError::Silent(patience);
        let chunk = match self.heard_at.checked_add(patience) {
            // There may always be something to read, and never anything new.
            Some(silent_at) if Instant::now() >= silent_at => return Err(silent),
            Some(silent_at) => timeout_at(silent_at, self.response.chunk()).await.map_err(|_| silent)?,
            None => self.response.chunk().await,
        };
        match chunk {
            Ok(Some(bytes)) => {
                let mut events = Vec::new();
                let fed = self.events.feed(&bytes, &mut events);
                self.failed = events.iter().try_for_each(|data| self.take(data)).and(fed).err();
                Ok(true)
            }
            // Some servers just close the connection after the reason why they finished.
            Ok(None) if self.is_finished => Ok(false),
            Ok(None) => Err(ModelError::Cut { why: "the stream ended without its end".into() }),
            Err(error) => Err(ModelError::Cut { why: error.to_string() }),
        }
    }

    /// Keeps a delta that says something.
    fn push(&mut self, delta: Delta) {
        if !self.is_finished {
            self.heard_at = Instant::now();
        }
        self.ready.push_back(delta);
    }

    fn take(&mut self, data: &str) -> Result<(), ModelError> {
        if data == "[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        let malformed = |why: &str| ModelError::Malformed { why: format!("{why}: {data}") };
        let chunk: Value = serde_json::from_str(data).map_err(|_| malformed("a chunk that is not JSON"))?;
        if !chunk["error"].is_null() {
            return Err(reported(&chunk["error"]));
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        let thoughts = extra::thoughts(delta);
        match extra::thought(delta) {
            // As long as they are text they are bounded with the answer.
            Some(thought) => {
                self.push(Delta::Reasoning(thought));
                self.ready.push_back(Delta::Extra { call: None, fields: thoughts });
            }
            None => self.take_extra(None, thoughts)?,
        }
        if let Some(content) = text(&delta["content"]) {
            self.push(Delta::Text(content));
        }
        if let Some(refusal) = text(&delta["refusal"]) {
            self.push(Delta::Refusal(refusal));
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = self.take_call(call).ok_or_else(|| malformed("a call with an index that is too large"))?;
            self.take_extra(Some(index), extra::of_call(call))?;
        }
        self.take_extra(None, extra::of_message(delta))?;
        if let Some(reason) = text(&choice["finish_reason"]).filter(|_| !self.is_finished) {
            let finish = match reason.as_str() {
                "length" => Finish::Length,
                "content_filter" => Finish::Filtered,
                _ => Finish::Complete,
            };
            self.push(Delta::Finish(finish));
            self.is_finished = true;
        }
        let tokens = |name: &str| chunk["usage"][name].as_u64();
        if let Some((input_tokens, output_tokens)) = tokens("prompt_tokens").zip(tokens("completion_tokens")) {
            // A later count takes the place of one that nobody has read.
            self.ready.pop_back_if(|last| matches!(last, Delta::Usage(_)));
            self.ready.push_back(Delta::Usage(Usage { input_tokens, output_tokens, estimated: false }));
        }
        Ok(())
    }

    /// What nobody here knows is kept, and says nothing of whether the model is at work.
    fn take_extra(&mut self, call: Option<u32>, fields: Map<String, Value>) -> Result<(), ModelError> {
        if fields.is_empty() {
            return Ok(());
        }
        self.extra_bytes += extra::bytes_of(&fields);
        if self.extra_bytes > MAX_EXTRA_BYTES {
            return Err(ModelError::Malformed { why: format!("more than {MAX_EXTRA_BYTES} bytes of unknown fields") });
        }
        self.ready.push_back(Delta::Extra { call, fields });
        Ok(())
    }

    /// A part of a call, by the index that is answered. `None` if no call can have its index.
    fn take_call(&mut self, call: &Value) -> Option<u32> {
        let (id, name) = (text(&call["id"]), text(&call["function"]["name"]));
        let arguments = text(&call["function"]["arguments"]).unwrap_or_default();
        let index = match &call["index"] {
            Value::Null => self.index_without_number(id.as_deref(), name.is_some())?,
            number => u32::try_from(number.as_u64()?).ok()?,
        };
        let (id, name) = match self.calls.iter_mut().find(|known| known.index == index) {
            Some(known) => {
                let new_id = id.filter(|_| known.id.is_none());
                let new_name = name.filter(|name| known.name.as_ref() != Some(name));
                known.id = known.id.take().or_else(|| new_id.clone());
                known.name = known.name.take().or_else(|| new_name.clone());
                (new_id, new_name)
            }
            None => {
                self.calls.push(BegunCall { index, id: id.clone(), name: name.clone() });
                (id, name)
            }
        };
        if id.is_some() || name.is_some() || !arguments.is_empty() {
            self.push(Delta::ToolCall { index, id, name, arguments });
        }
        Some(index)
    }

    /// Some servers do not number their calls: an id or a name that is new begins one, and the rest belongs to the last.
    fn index_without_number(&self, id: Option<&str>, has_name: bool) -> Option<u32> {
        let last = self.calls.last().map(|call| call.index);
        let known = id.and_then(|id| self.calls.iter().find(|call| call.id.as_deref() == Some(id)));
        match (known, last) {
            (Some(call), _) => Some(call.index),
            (None, Some(last)) if id.is_none() && !has_name => Some(last),
            (None, Some(_)) => self.calls.iter().map(|call| call.index).max()?.checked_add(1),
            (None, None) => Some(0),
        }
    }
}

/// The error that a server reports where an answer should be. One that is the question's own fault comes again with the
/// same question.
fn reported(error: &Value) -> ModelError {
    let why = format!("the server reports {error}");
    let (code, kind) = (error["code"].as_u64(), [&error["type"], &error["code"]]);
    let is_named = kind.iter().filter_map(|name| name.as_str()).any(|name| FAULTS_OF_THE_CALLER.contains(&name));
    match code.and_then(|code| u16::try_from(code).ok()) {
        Some(408 | 409 | 429) => ModelError::Cut { why },
        Some(status @ 400..=499) => ModelError::Refused { status, why },
        None if is_named => ModelError::Refused { status: 400, why },
        _ => ModelError::Cut { why },
    }
}

/// A text that says something.
fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}
