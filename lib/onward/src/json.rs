//! JSON of other people: valid, and perhaps more than a Rust program can hold.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

/// Depth to which parts are looked for that a [`Value`] cannot hold; deeper ones belong to the text above them.
const MAX_DEPTH: usize = 16;

/// Reads JSON of which a part may be beyond a [`Value`]: a number like `1e999`, half of a surrogate pair, arrays nested
/// more than 127 deep. Such a part becomes a text that holds its JSON. Only what is not JSON at all is an error.
pub fn read(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(text).or_else(|_| Ok(part(serde_json::from_slice::<&RawValue>(text)?, MAX_DEPTH)))
}

fn part(json: &RawValue, depth: usize) -> Value {
    let text = json.get();
    let as_text = || Value::String(text.to_owned());
    if let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    if depth == 0 {
        return as_text();
    }
    if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) {
        return items.into_iter().map(|item| part(item, depth - 1)).collect();
    }
    match serde_json::from_str::<BTreeMap<String, &RawValue>>(text) {
        Ok(fields) => fields.into_iter().map(|(name, field)| (name, part(field, depth - 1))).collect(),
        Err(_) => as_text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        read(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_a_value_can_hold_is_read_as_ever() {
        assert_eq!(value(r#"{"a": [1, 2.5, "x", null]}"#), json!({"a": [1, 2.5, "x", null]}));
    }

    #[test]
    fn what_it_cannot_hold_becomes_a_text_and_the_rest_is_read() {
        assert_eq!(value(r#"{"state": "ended", "result": 1e999}"#), json!({"state": "ended", "result": "1e999"}));
        assert_eq!(value(r#"["\ud800", {"b": [-1e400, 7]}]"#), json!([r#""\ud800""#, {"b": ["-1e400", 7]}]));
        assert_eq!(value(r#"{"\ud800": 1}"#), json!(r#"{"\ud800": 1}"#));
        let deep = "[".repeat(200) + &"]".repeat(200);
        let read = value(&format!(r#"{{"state": "ended", "payload": {deep}}}"#));
        assert_eq!(read["state"], "ended");
        let mut inner = &read["payload"];
        let mut depth = 0;
        while let Some(items) = inner.as_array() {
            (inner, depth) = (&items[0], depth + 1);
        }
        assert_eq!(depth + inner.as_str().unwrap().len() / 2, 200);
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        for text in ["", "{", "<html>", "{} {}", "[1,]", "\u{0}"] {
            assert!(read(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(read(b"\"\xff\"").is_err());
    }
}
