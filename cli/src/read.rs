//! What the node answers, read leniently: a field that is missing is missing, and a newer node may say more.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use serde_json::value::RawValue;

pub fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value[field].as_str()
}

/// A word, or a dash where there is none.
pub fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    text(value, field).filter(|text| !text.is_empty()).unwrap_or("-")
}

pub fn number(value: &Value, field: &str) -> Option<u64> {
    value[field].as_u64()
}

pub fn flag(value: &Value, field: &str) -> bool {
    value[field].as_bool().unwrap_or(false)
}

pub fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// The only list of an answer, whatever it is called.
pub fn listed(answer: &Value) -> &[Value] {
    if let Some(items) = answer.as_array() {
        return items;
    }
    let lists = answer.as_object().into_iter().flat_map(|fields| fields.values()).filter_map(Value::as_array);
    lists.max_by_key(|list| list.len()).map_or(&[], Vec::as_slice)
}

/// An instant: RFC 3339, or milliseconds since the Unix epoch.
pub fn instant(value: &Value, field: &str) -> Option<Timestamp> {
    match &value[field] {
        Value::String(text) => text.parse().ok(),
        Value::Number(ms) => Timestamp::from_millisecond(ms.as_f64()? as i64).ok(),
        _ => None,
    }
}

/// A span whose field ends in `_ms` or `_s`; `field` is the name without that.
pub fn span(value: &Value, field: &str) -> Option<Duration> {
    let of = |name: String| value[name.as_str()].as_f64();
    let ms = of(format!("{field}_ms")).or_else(|| of(format!("{field}_s")).map(|s| s * 1_000.0))?;
    (ms.is_finite() && ms >= 0.0).then(|| Duration::from_millis(ms.round().min(1e15) as u64))
}

/// From `earlier` to `later`; zero if they are the other way round.
pub fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or(Duration::ZERO)
}

pub fn is_terminal(state: &str) -> bool {
    matches!(state, "succeeded" | "failed" | "timed_out" | "cancelled")
}

/// The value as one line: text as it is, all else as JSON.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// How far it is: `3/10`, `3` where the total is not known.
pub fn progress(progress: &Value) -> String {
    match (number(progress, "done"), number(progress, "total")) {
        (Some(done), Some(total)) => format!("{done}/{total}"),
        (Some(done), None) => done.to_string(),
        (None, _) => "-".into(),
    }
}

/// A job's id never is.
pub fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn instants_are_read_in_both_spellings() {
        let job = json!({"a": "2026-01-02T03:04:05Z", "b": 1_767_323_045_000_u64, "c": null, "d": "yesterday"});
        assert_eq!(instant(&job, "a"), instant(&job, "b"));
        assert!(instant(&job, "a").is_some());
        assert_eq!((instant(&job, "c"), instant(&job, "d"), instant(&job, "e")), (None, None, None));
    }

    #[test]
    fn spans_are_read_in_both_units() {
        let attempt = json!({"lease_remaining_ms": 1500, "by_s": 7.5, "bad_ms": -1});
        assert_eq!(span(&attempt, "lease_remaining"), Some(Duration::from_millis(1500)));
        assert_eq!(span(&attempt, "by"), Some(Duration::from_millis(7500)));
        assert_eq!((span(&attempt, "bad"), span(&attempt, "none")), (None, None));
    }

    #[test]
    fn the_list_of_an_answer_is_found_whatever_its_name() {
        assert_eq!(listed(&json!({"nodes": [1, 2], "next_cursor": null})).len(), 2);
        assert_eq!(listed(&json!([1])).len(), 1);
        assert_eq!(listed(&json!({"error": "none"})).len(), 0);
    }
}
