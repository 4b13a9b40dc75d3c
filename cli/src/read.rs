//! What the node answers, as it is printed.

use std::time::Duration;

use jiff::Timestamp;
use onward_api::instant::At;
use serde_json::Value;
use serde_json::value::RawValue;

/// A word, or a dash where there is none.
pub fn word(text: Option<&str>) -> &str {
    text.filter(|text| !text.is_empty()).unwrap_or("-")
}

/// An instant as the node writes it, or a dash where there is none.
pub fn instant(at: Option<At>) -> String {
    at.map_or_else(|| "-".into(), |at| at.to_string())
}

/// The time from `earlier` to `later`; zero if they are the other way round.
pub fn between(earlier: At, later: At) -> Duration {
    Duration::from_millis(later.as_ms().saturating_sub(earlier.as_ms()))
}

pub fn now() -> At {
    At::from_ms(u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0))
}

pub fn is_terminal(state: &str) -> bool {
    onward::JobState::of_word(state).is_terminal()
}

/// The value as one line: text as it is, all else as JSON.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// An answer as far as a [`Value`] can hold it; what it cannot hold is a text in it.
pub fn value(json: &RawValue) -> Value {
    onward::json::read(json.get().as_bytes()).unwrap_or_default()
}

/// A job's id never is.
pub fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}
