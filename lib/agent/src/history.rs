//! A session, read as what it comes to: the conversation, what is spent, what is open.

use core::time::Duration;
use std::collections::VecDeque;

use crate::attempt::NOTE_BYTES;
use crate::budget::{Budget, Spent, Usage};
use crate::model::{ChatMessage, ModelAnswer, ToolCall, given_back};
use crate::novelty::{Novelty, REPEATS_UNTIL_TOLD, Repeat, cut, quoted, shown};
use crate::session::{Entry, SessionEvent};

/// Calls that a note tells of.
const SHOWN_CALLS: usize = 3;
const SHOWN_BYTES: usize = 70;
/// Bytes of a note that say what is done now.
const DOING_BYTES: usize = 100;

#[derive(Debug, Default)]
pub(crate) struct History {
    pub messages: Vec<ChatMessage>,
    /// Size of the conversation as JSON.
    bytes: usize,
    pub spent: Spent,
    pub novelty: Novelty,
    /// Calls of the last answer, while some have no end.
    pub open: Vec<OpenCall>,
    /// The last answer, if it calls no tool and nothing was asked since.
    pub last: Option<ModelAnswer>,
    /// Notices that the model gets with the next question.
    pub notices: Vec<String>,
    /// Answers in a row that were no output.
    pub bad_outputs: u32,
    /// The estimated input of a question that has no answer yet.
    unanswered: Option<u64>,
    recent: VecDeque<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct OpenCall {
    pub call: ToolCall,
    /// The answer with this call was cut at its longest length, so the call is not run.
    pub cut_off: bool,
    pub begun: bool,
    pub ended: Option<String>,
}

/// The meaning of an entry for the progress of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum News {
    None,
    NewCall,
    Repeat(Repeat),
}

impl History {
    /// The history of earlier attempts. A question without an answer was lost with its attempt: the server may have
    /// answered it, so its input is charged, as an estimate.
    pub fn of(entries: &[Entry], budget: &Budget) -> Self {
        let mut history = Self::default();
        for entry in entries {
            history.apply(entry, budget);
        }
        history.charge_unanswered(budget);
        history
    }

    fn charge_unanswered(&mut self, budget: &Budget) {
        if let Some(input_tokens) = self.unanswered.take() {
            self.charge(&Usage { input_tokens, output_tokens: 0, estimated: true }, budget);
        }
    }

    fn charge(&mut self, usage: &Usage, budget: &Budget) {
        self.spent = budget.with_usage(&self.spent, usage);
        self.spent.turns = self.spent.turns.saturating_add(1);
    }

    pub fn apply(&mut self, entry: &Entry, budget: &Budget) -> News {
        self.spent.time = Duration::from_millis(entry.active_ms);
        match &entry.event {
            SessionEvent::Asked { messages, input_tokens } => {
                self.charge_unanswered(budget);
                self.unanswered = Some(*input_tokens);
                if self.last.take().is_some() {
                    self.bad_outputs += 1;
                }
                self.notices.clear();
                for message in messages {
                    self.push(message.clone());
                }
            }
            SessionEvent::Answered(answer) => self.apply_answer(answer, budget),
            SessionEvent::ToolBegun { call, .. } => {
                if let Some(open) = self.open.get_mut(*call as usize)
                    && !open.begun
                {
                    open.begun = true;
                    self.spent.tool_calls += 1;
                }
            }
            SessionEvent::ToolEnded { call, output, polling, .. } => return self.apply_end(*call, output, *polling),
        }
        News::None
    }

    fn apply_answer(&mut self, answer: &ModelAnswer, budget: &Budget) {
        self.unanswered = None;
        // A question that no server took costs nothing.
        if answer.cut.is_none() || answer.usage != Usage::default() {
            self.charge(&answer.usage, budget);
        }
        if answer.cut.is_some() {
            return;
        }
        self.push(ChatMessage::Assistant(answer.message.clone()));
        let cut_off = answer.truncated;
        let open = |call: &ToolCall| OpenCall { call: call.clone(), cut_off, begun: false, ended: None };
        // A model that refuses, or was held back by a filter, has not decided to call anything.
        self.open = if answer.refusal.is_some() { Vec::new() } else { answer.calls.iter().map(open).collect() };
        if self.open.is_empty() {
            self.last = Some(answer.clone());
        } else {
            self.bad_outputs = 0;
        }
    }

    fn apply_end(&mut self, index: u32, output: &str, polling: bool) -> News {
        let Some(open) = self.open.get_mut(index as usize) else { return News::None };
        open.ended = Some(output.to_owned());
        let (name, arguments) = (open.call.name.clone(), open.call.arguments.clone());
        let repeat = self.novelty.observe(&name, &arguments, output, polling);
        let times = repeat.as_ref().map_or(String::new(), |repeat| format!(" again, {} times", repeat.times));
        self.recent.push_back(format!("{}{times}", cut(&shown(&name, &arguments), SHOWN_BYTES)));
        while self.recent.len() > SHOWN_CALLS {
            self.recent.pop_front();
        }
        if let Some(repeat) = repeat.as_ref().filter(|repeat| repeat.times > REPEATS_UNTIL_TOLD) {
            let (call, times) = (quoted(&name, &arguments), repeat.times);
            self.notices.push(format!(
                "You have made the call {call} {times} times, and its result was the same each time. \
                 Do something else, or give your output."
            ));
        }
        if self.open.iter().all(|open| open.ended.is_some()) {
            for open in core::mem::take(&mut self.open) {
                let content = open.ended.expect("each has ended");
                self.push(ChatMessage::Tool { tool_call_id: open.call.id, content });
            }
        }
        repeat.map_or(News::NewCall, News::Repeat)
    }

    fn push(&mut self, message: ChatMessage) {
        self.bytes += bytes_of(&message);
        self.messages.push(message);
    }

    /// The length of the conversation with these messages.
    pub fn bytes_with(&self, messages: &[ChatMessage]) -> usize {
        self.bytes + messages.iter().map(bytes_of).sum::<usize>()
    }

    /// The name of a call that is the same at every try.
    pub fn key(&self, session: &str, call: usize) -> String {
        format!("{session}.{}.{call}", self.spent.turns)
    }

    /// A note for people: the turn, and the last calls.
    pub fn note(&self) -> String {
        self.note_of(self.spent.turns, "")
    }

    /// A note of this turn, and of what is done in it now.
    pub fn note_of(&self, turn: u32, doing: &str) -> String {
        let doing = if doing.is_empty() { String::new() } else { format!(": {}", cut(doing, DOING_BYTES)) };
        let recent: Vec<&str> = self.recent.iter().rev().map(String::as_str).collect();
        let calls = if recent.is_empty() { String::new() } else { format!("; last: {}", recent.join(", ")) };
        cut(&format!("turn {turn}{doing}{calls}"), NOTE_BYTES).to_owned()
    }
}

/// The length of a message as it is sent: not all thoughts are.
fn bytes_of(message: &ChatMessage) -> usize {
    let text = match message {
        ChatMessage::Assistant(answer) => serde_json::to_string(&given_back(answer, false)),
        other => serde_json::to_string(other),
    };
    text.map_or(0, |text| text.len())
}
