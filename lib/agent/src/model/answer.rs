//! An answer, put together from its deltas.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Delta, Finish, ModelError, extra};
use crate::budget::{Usage, estimate_tokens};

/// Most bytes of one answer; no model writes that much on purpose.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Most tool calls of one answer.
const MAX_CALLS: usize = 128;

/// A tool call, as the model wrote it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON, or what the model took for it.
    pub arguments: String,
}

/// An answer of a model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ModelAnswer {
    /// The message in the provider's own JSON, to be given back as it is.
    pub message: Value,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
    pub usage: Usage,
    /// The answer reached its longest length before its end.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub truncated: bool,
    /// The reason why the answer was not finished. Its tokens count, and it is not part of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
}

/// Deltas so far.
#[derive(Debug, Default)]
pub(crate) struct AnswerDraft {
    text: String,
    refusal: String,
    calls: BTreeMap<u32, ToolCall>,
    usage: Option<Usage>,
    finish: Option<Finish>,
    whole: Option<Value>,
    /// What is beside the protocol: of the message, and of its calls.
    extra: BTreeMap<Option<u32>, Map<String, Value>>,
    extra_bytes: usize,
    /// Of all that the model wrote, its thoughts included.
    bytes: usize,
    /// The bytes when tokens were last counted.
    counted_bytes: usize,
    lost_tries: u64,
}

impl AnswerDraft {
    /// Whether this delta moves the answer on: by content, or by a part that comes once and has not come yet.
    pub fn is_news(&self, delta: &Delta) -> bool {
        match delta {
            Delta::Usage(_) | Delta::LostTry | Delta::Extra { .. } => false,
            Delta::Finish(_) => self.finish.is_none(),
            Delta::Whole(_) => self.whole.is_none(),
            content => self.has_content(content),
        }
    }

    /// Whether this delta makes the answer longer.
    pub fn has_content(&self, delta: &Delta) -> bool {
        match delta {
            Delta::Text(text) | Delta::Refusal(text) | Delta::Reasoning(text) => !text.is_empty(),
            Delta::ToolCall { index, id, name, arguments } => {
                let is_identified = self.calls.get(index).is_some_and(|call| !call.id.is_empty());
                let says = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
                !arguments.is_empty() || says(name) || (says(id) && !is_identified)
            }
            Delta::Usage(_) | Delta::LostTry | Delta::Extra { .. } | Delta::Finish(_) | Delta::Whole(_) => false,
        }
    }

    pub fn add(&mut self, delta: Delta) -> Result<(), ModelError> {
        let has_content = self.has_content(&delta);
        match delta {
            Delta::Text(text) => {
                self.bytes += text.len();
                self.text.push_str(&text);
            }
            Delta::Reasoning(text) => self.bytes += text.len(),
            // It calls nothing.
            Delta::ToolCall { .. } if !has_content => {}
            Delta::Refusal(text) => {
                self.bytes += text.len();
                self.refusal.push_str(&text);
            }
            Delta::ToolCall { index, id, name, arguments } => {
                if !self.calls.contains_key(&index) && self.calls.len() >= MAX_CALLS {
                    return Err(ModelError::Malformed {
                        why: format!("more than {MAX_CALLS} tool calls in one answer"),
                    });
                }
                self.bytes += arguments.len() + name.as_ref().map_or(0, String::len);
                let empty = || ToolCall { id: String::new(), name: String::new(), arguments: String::new() };
                let call = self.calls.entry(index).or_insert_with(empty);
                if let Some(id) = id.filter(|_| call.id.is_empty()) {
                    self.bytes += id.len();
                    call.id = id;
                }
                call.name.push_str(&name.unwrap_or_default());
                call.arguments.push_str(&arguments);
            }
            Delta::Usage(usage) => (self.usage, self.counted_bytes) = (Some(usage), self.bytes),
            Delta::Finish(finish) => self.finish = self.finish.or(Some(finish)),
            Delta::LostTry => self.lost_tries += 1,
            Delta::Extra { call, fields } => {
                self.extra_bytes += extra::bytes_of(&fields);
                extra::merge_fields(self.extra.entry(call).or_default(), fields);
            }
            Delta::Whole(message) => self.whole = Some(message),
        }
        if self.bytes + self.extra_bytes > MAX_ANSWER_BYTES {
            return Err(ModelError::Endless { limit: MAX_ANSWER_BYTES });
        }
        Ok(())
    }

    /// Tokens so far: an estimate, or what was counted if that is more; with those of lost tries. `input_tokens` are those
    /// of what the model was asked, by an estimate.
    pub fn usage(&self, input_tokens: u64) -> Usage {
        let counted = self.usage.unwrap_or_default();
        let usage = Usage {
            input_tokens: counted.input_tokens.max(input_tokens),
            output_tokens: counted.output_tokens.max(estimate_tokens(self.bytes)),
            estimated: true,
        };
        self.with_lost_tries(usage, input_tokens)
    }

    /// Tokens of an answer that is whole: what was counted, if nothing of the answer came behind the count.
    fn final_usage(&self, input_tokens: u64) -> Usage {
        match self.usage.filter(|_| self.counted_bytes == self.bytes) {
            Some(counted) => self.with_lost_tries(counted, input_tokens),
            None => self.usage(input_tokens),
        }
    }

    fn with_lost_tries(&self, usage: Usage, input_tokens: u64) -> Usage {
        let lost = input_tokens.saturating_mul(self.lost_tries);
        let estimated = usage.estimated || self.lost_tries > 0;
        Usage { input_tokens: usage.input_tokens.saturating_add(lost), estimated, ..usage }
    }

    /// Whether no delta came yet.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.usage.is_none()
    }

    /// Whether the model has said how it ended: then what is counted behind that is spent, and the answer may as well be kept.
    pub fn is_ending(&self) -> bool {
        self.finish.is_some()
    }

    /// The answer. `turn` makes up ids of calls that have none.
    pub fn finish(mut self, input_tokens: u64, turn: u32) -> ModelAnswer {
        let usage = self.final_usage(input_tokens);
        let (indexes, mut calls): (Vec<u32>, Vec<ToolCall>) = core::mem::take(&mut self.calls).into_iter().unzip();
        for (n, call) in calls.iter_mut().enumerate() {
            if call.id.is_empty() {
                call.id = format!("call_{turn}_{n}");
            }
            // A tool that takes no arguments may be called without any.
            if call.arguments.trim().is_empty() {
                call.arguments = "{}".into();
            }
        }
        let filtered = (self.finish == Some(Finish::Filtered)).then(|| "a filter held the answer back".to_owned());
        let refusal = Some(self.refusal).filter(|text| !text.is_empty()).or(filtered);
        let message = self.whole.unwrap_or_else(|| {
            let mut message = chat_message(&self.text, refusal.as_deref(), &calls);
            let mut add = |place: &str, of: Option<u32>| {
                if let (Some(place), Some(fields)) = (message.pointer_mut(place), self.extra.remove(&of)) {
                    extra::merge(place, fields.into());
                }
            };
            add("", None);
            indexes.iter().enumerate().for_each(|(n, index)| add(&format!("/tool_calls/{n}"), Some(*index)));
            message
        });
        let truncated = self.finish == Some(Finish::Length);
        ModelAnswer { message, text: self.text, refusal, calls, usage, truncated, cut: None }
    }

    /// The charge for an answer that was not finished: of a question that no server took, only the tries before it.
    pub fn cut(self, input_tokens: u64, why: &str, was_taken: bool) -> ModelAnswer {
        let usage = match was_taken || !self.is_empty() {
            true => self.usage(input_tokens),
            false => self.with_lost_tries(Usage::default(), input_tokens),
        };
        let (text, calls) = (String::new(), Vec::new());
        let cut = Some(why.into());
        ModelAnswer { message: Value::Null, text, refusal: None, calls, usage, truncated: false, cut }
    }
}

fn chat_message(text: &str, refusal: Option<&str>, calls: &[ToolCall]) -> Value {
    let mut message = json!({ "role": "assistant", "content": if text.is_empty() { None } else { Some(text) } });
    if let Some(refusal) = refusal {
        message["refusal"] = refusal.into();
    }
    if !calls.is_empty() {
        let shape = |call: &ToolCall| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": call.id, "type": "function", "function": function })
        };
        message["tool_calls"] = calls.iter().map(shape).collect();
    }
    message
}
