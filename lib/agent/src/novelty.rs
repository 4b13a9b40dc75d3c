//! Progress is novelty: a call counts if its name, arguments and result were not seen together before.
//!
//! An agent that searches for the same thing again and gets the same answer is busy and gets nowhere. Its beats renew the
//! lease all the same, because it is at work; but the watermark stands still, and so the stuck rule ends it in time.

use std::collections::HashMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// The number of repeats after which the model is told that it repeats itself.
pub const REPEATS_UNTIL_TOLD: u32 = 3;
/// Calls that are remembered; later ones count as new. Budgets are far below.
const MAX_CALLS: usize = 100_000;
/// Bytes of a call's arguments that the model is shown when it is told of a repeat.
const QUOTED_BYTES: usize = 120;
/// Bytes of a tool's or an argument's name that people are shown of a call; below, the number of arguments.
const SHOWN_BYTES: usize = 40;
const SHOWN_ARGUMENTS: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Novelty {
    /// The number of times that each was seen.
    seen: HashMap<[u8; 32], u32>,
    /// The name and arguments of calls of which a result was seen twice.
    repeated: HashMap<[u8; 32], u32>,
    worst: Option<Repeat>,
    new_calls: u64,
}

/// A call that gives nothing new.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repeat {
    /// The tool's name and the names of its arguments.
    pub call: String,
    /// The number of times that the call was made, the first included.
    pub times: u32,
}

impl Novelty {
    /// Takes note of a call. Answers with the repeat if it was no news.
    pub fn observe(&mut self, name: &str, arguments: &str, result: &str, polling: bool) -> Option<Repeat> {
        let arguments = canonical(arguments);
        let key = digest(&[name, &arguments, result]);
        if self.seen.len() >= MAX_CALLS && !self.seen.contains_key(&key) {
            self.new_calls += 1;
            return None;
        }
        let times = self.seen.entry(key).or_default();
        *times += 1;
        let times = *times;
        if times == 1 || polling {
            self.new_calls += 1;
            self.worst = None;
            return None;
        }
        *self.repeated.entry(digest(&[name, &arguments])).or_default() += 1;
        let repeat = Repeat { call: shown(name, &arguments), times };
        if self.worst.as_ref().is_none_or(|worst| worst.times <= times) {
            self.worst = Some(repeat.clone());
        }
        Some(repeat)
    }

    /// Whether a call with these arguments has given the same result twice: then what it reports on its way is no news.
    pub fn is_repeated(&self, name: &str, arguments: &str) -> bool {
        self.repeated.contains_key(&digest(&[name, &canonical(arguments)]))
    }

    /// The call that was repeated most since something new was last seen.
    pub fn worst(&self) -> Option<&Repeat> {
        self.worst.as_ref()
    }

    pub fn new_calls(&self) -> u64 {
        self.new_calls
    }
}

/// A call as people read it in notes and reasons: its name and the names of its arguments. What is in them may be secret,
/// and is in the session alone; so is a name that does not look like one.
pub(crate) fn shown(name: &str, arguments: &str) -> String {
    let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let plain = |name: &str| match name.len() <= SHOWN_BYTES && name.bytes().all(is_in_name) {
        true => name.to_owned(),
        false => "…".to_owned(),
    };
    let names = match serde_json::from_str(arguments) {
        Ok(Value::Object(arguments)) => arguments.keys().map(|name| plain(name)).collect(),
        _ => vec!["…".to_owned()],
    };
    let dots = if names.len() > SHOWN_ARGUMENTS { ", …" } else { "" };
    let names: Vec<String> = names.into_iter().take(SHOWN_ARGUMENTS).collect();
    format!("{}({}{dots})", plain(name), names.join(", "))
}

/// A call in the model's own words, for the model.
pub(crate) fn quoted(name: &str, arguments: &str) -> String {
    let arguments = canonical(arguments);
    let cut = cut(&arguments, QUOTED_BYTES);
    let dots = if cut.len() < arguments.len() { "…" } else { "" };
    format!("{name}({cut}{dots})")
}

/// The beginning of a text, at most so many bytes, cut at the border of a character.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The same text for the same arguments, whatever their order and blanks.
fn canonical(arguments: &str) -> String {
    serde_json::from_str::<Value>(arguments).map_or_else(|_| arguments.to_owned(), |value| value.to_string())
}

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_call_with_the_same_result_is_a_repeat() {
        let mut novelty = Novelty::default();
        for (name, arguments, result, polling, times) in [
            ("search", r#"{"q":"a","n":1}"#, "x", false, None),
            // The order of the arguments does not matter.
            ("search", r#"{"n": 1, "q": "a"}"#, "x", false, Some(2)),
            ("search", r#"{"q":"a","n":1}"#, "y", false, None),
            ("search", r#"{"q":"b"}"#, "x", false, None),
            ("other", r#"{"q":"a","n":1}"#, "x", false, None),
            ("search", r#"{"q":"a","n":1}"#, "x", false, Some(3)),
            ("wait", "{}", "busy", true, None),
            ("wait", "{}", "busy", true, None),
            ("bad", "not json", "refused", false, None),
            ("bad", "not json", "refused", false, Some(2)),
        ] {
            let seen = novelty.observe(name, arguments, result, polling).map(|repeat| repeat.times);
            assert_eq!(seen, times, "{name} {arguments} {result}");
        }
        assert_eq!(novelty.new_calls(), 7);
    }

    #[test]
    fn the_worst_repeat_is_forgotten_once_there_is_something_new() {
        let mut novelty = Novelty::default();
        for _ in 0..5 {
            novelty.observe("a", "{}", "x", false);
            novelty.observe("b", "{}", "x", false);
        }
        assert_eq!(novelty.worst(), Some(&Repeat { call: "b()".into(), times: 5 }));
        assert!(novelty.is_repeated("a", " {}"));
        novelty.observe("a", "{}", "new", false);
        assert_eq!(novelty.worst(), None);
    }

    #[test]
    fn long_arguments_are_cut_between_characters() {
        let text = quoted("say", &"ä".repeat(200));
        assert!(text.len() < 140 && text.ends_with("…)"), "{text}");
    }

    #[test]
    fn people_are_shown_names_and_nothing_that_a_model_wrote_into_them() {
        let many: Vec<String> = (0..10).map(|n| format!("\"a{n}\": {n}")).collect();
        for (name, arguments, text) in [
            ("pay", r#"{"to": "secret", "cents": 5, "deep": {"secret": 1}}"#, "pay(cents, deep, to)"),
            ("pay", "{}", "pay()"),
            ("pay", "secret, and not JSON", "pay(…)"),
            ("pay", r#"["secret"]"#, "pay(…)"),
            ("pay", r#"{"the secret": 1, "ok": 2}"#, "pay(ok, …)"),
            ("the secret is 5", "{}", "…()"),
            (&"x".repeat(41), "{}", "…()"),
            ("pay", &format!("{{{}}}", many.join(",")), "pay(a0, a1, a2, a3, a4, a5, a6, a7, …)"),
        ] {
            assert_eq!(shown(name, arguments), text);
        }
    }
}
