//! Fields of a provider that the protocol does not have, such as a thought and its signature. Some providers refuse a
//! conversation in which one of them is missing.

use serde_json::{Map, Value};

/// Where deltas are put together to what a message has.
const OF_MESSAGE: [&str; 4] = ["role", "content", "refusal", "tool_calls"];
const OF_CALL: [&str; 3] = ["index", "id", "type"];
const OF_FUNCTION: [&str; 2] = ["name", "arguments"];
/// The beginning of the names of all fields with thoughts.
const THOUGHT: &str = "reasoning";
/// The fields in which thoughts are plain text, which goes on from delta to delta.
const PLAIN_THOUGHTS: [&str; 2] = ["reasoning_content", "reasoning"];
/// Counted for a block besides its text, so that nobody sends empty ones without end.
const EMPTY_BLOCK_BYTES: usize = 8;
/// Thoughts in blocks, some of them signed or sealed.
const THOUGHT_BLOCKS: &str = "reasoning_details";

/// What a delta of a message says beyond the protocol, but for thoughts.
pub(super) fn of_message(delta: &Value) -> Map<String, Value> {
    fields(delta, |name| !OF_MESSAGE.contains(&name) && !name.starts_with(THOUGHT))
}

/// The fields of a delta that hold what the model thinks.
pub(super) fn thoughts(delta: &Value) -> Map<String, Value> {
    fields(delta, |name| name.starts_with(THOUGHT))
}

/// What the model thinks in this delta, as text. Servers differ in the field, and some say it in several.
pub(super) fn thought(delta: &Value) -> Option<String> {
    let plain = PLAIN_THOUGHTS.iter().find_map(|name| delta[name].as_str().filter(|text| !text.is_empty()));
    let blocks = || {
        let all = delta[THOUGHT_BLOCKS].as_array().into_iter().flatten();
        let texts: String = all.filter_map(|block| block["text"].as_str().or(block["summary"].as_str())).collect();
        Some(texts).filter(|text| !text.is_empty())
    };
    plain.map(str::to_owned).or_else(blocks)
}

/// An answer as it is given back to its server. Thoughts in blocks go back, for they may be signed; plain ones only
/// with the calls that they led to, and once: a server that has both fields for them knows the first. Some servers refuse
/// a conversation without them, and others one with them, which is what `forget_thoughts` is for.
pub(crate) fn given_back(message: &Value, forget_thoughts: bool) -> Value {
    let Value::Object(fields) = message else { return message.clone() };
    let has_calls = fields.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    let is_kept = |name: &str| match name {
        thought if thought.starts_with(THOUGHT) && forget_thoughts => false,
        "reasoning" => false,
        "reasoning_content" => has_calls,
        _ => true,
    };
    let kept = fields.iter().filter(|(name, _)| is_kept(name));
    Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// What a part of a call says beyond the protocol.
pub(super) fn of_call(call: &Value) -> Map<String, Value> {
    let mut extra = fields(call, |name| !OF_CALL.contains(&name) && name != "function");
    let function = fields(&call["function"], |name| !OF_FUNCTION.contains(&name));
    if !function.is_empty() {
        extra.insert("function".into(), function.into());
    }
    extra
}

fn fields(value: &Value, is_extra: impl Fn(&str) -> bool) -> Map<String, Value> {
    let all = value.as_object().into_iter().flatten();
    let said = all.filter(|(name, value)| is_extra(name) && !value.is_null());
    said.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Puts the parts of a value together: a text goes on, unless it is said again as it is; a list gets longer; of anything
/// else the last counts.
pub(super) fn merge(into: &mut Value, part: Value) {
    match (into, part) {
        (_, Value::Null) => {}
        (Value::Object(into), Value::Object(part)) => merge_fields(into, part),
        (Value::Array(into), Value::Array(part)) => into.extend(part),
        (Value::String(into), Value::String(part)) if *into != part => into.push_str(&part),
        (into, part) => *into = part,
    }
}

/// Puts the fields of a message or a call together. Of thoughts it is known how they go on.
pub(super) fn merge_fields(into: &mut Map<String, Value>, part: Map<String, Value>) {
    for (name, value) in part {
        let known = into.entry(&name).or_insert(Value::Null);
        match (known, value) {
            // The same word may come twice.
            (Value::String(known), Value::String(more)) if PLAIN_THOUGHTS.contains(&name.as_str()) => {
                known.push_str(&more);
            }
            (Value::Array(known), Value::Array(blocks)) if name == THOUGHT_BLOCKS => {
                blocks.into_iter().for_each(|block| merge_block(known, block));
            }
            (known, value) => merge(known, value),
        }
    }
}

/// A block of thoughts is streamed in parts: a part that has the kind and the place of the last block goes on with it,
/// until that is signed.
fn merge_block(blocks: &mut Vec<Value>, part: Value) {
    let goes_on = |last: &Value| {
        let is_text = part["text"].is_string() || part["summary"].is_string() || part["signature"].is_string();
        let is_same = ["type", "index"].iter().all(|name| last[name] == part[name]);
        let has_same_id = last["id"].is_null() || part["id"].is_null() || last["id"] == part["id"];
        is_text && is_same && has_same_id && last["signature"].is_null()
    };
    let Some(last) = blocks.last_mut().filter(|last| goes_on(last)) else { return blocks.push(part) };
    let (Value::Object(last), Value::Object(part)) = (last, part) else { return };
    for (name, value) in part {
        match (last.entry(&name).or_insert(Value::Null), value) {
            (_, Value::Null) => {}
            (Value::String(known), Value::String(more)) if name == "text" || name == "summary" => known.push_str(&more),
            (known, value) => *known = value,
        }
    }
}

/// About as long as it is in JSON. Of thoughts only the text counts: they come word by word, and most of the JSON of each part
/// is gone when it is put together.
pub(super) fn bytes_of(fields: &Map<String, Value>) -> usize {
    let json = |value: &Value| serde_json::to_string(value).map_or(0, |text| text.len());
    let block = |block: &Value| match block {
        Value::Object(fields) => {
            let texts = ["text", "summary", "data", "signature"].iter();
            EMPTY_BLOCK_BYTES + texts.map(|name| length(fields.get(*name))).sum::<usize>()
        }
        other => json(other),
    };
    let one = |(name, value): (&String, &Value)| match value {
        Value::String(text) if PLAIN_THOUGHTS.contains(&name.as_str()) => text.len(),
        Value::Array(blocks) if name == THOUGHT_BLOCKS => blocks.iter().map(block).sum(),
        value => name.len() + json(value),
    };
    fields.iter().map(one).sum()
}

fn length(text: Option<&Value>) -> usize {
    text.and_then(Value::as_str).map_or(0, str::len)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(parts: &[Value]) -> Value {
        let mut all = Map::new();
        parts.iter().for_each(|part| merge_fields(&mut all, thoughts(part)));
        all.into()
    }

    #[test]
    fn thoughts_go_on_from_part_to_part() {
        let ha = json!({ "content": "x", "reasoning_content": "ha" });
        assert_eq!(merged(&[ha.clone(), ha]), json!({ "reasoning_content": "haha" }));
        let block = |block: Value| json!({ "reasoning_details": [block] });
        let text = |text: &str, index: u32| block(json!({ "type": "reasoning.text", "index": index, "text": text }));
        let signed = block(json!({ "type": "reasoning.text", "index": 0, "signature": "s", "text": null }));
        let sealed = |data: &str| block(json!({ "type": "reasoning.encrypted", "index": 2, "data": data }));
        assert_eq!(
            merged(&[text("a", 0), text("a", 0), signed, text("b", 0), text("c", 1), sealed("x"), sealed("y")]),
            json!({ "reasoning_details": [
                { "type": "reasoning.text", "index": 0, "text": "aa", "signature": "s" },
                { "type": "reasoning.text", "index": 0, "text": "b" },
                { "type": "reasoning.text", "index": 1, "text": "c" },
                { "type": "reasoning.encrypted", "index": 2, "data": "x" },
                { "type": "reasoning.encrypted", "index": 2, "data": "y" },
            ] })
        );
    }

    #[test]
    fn of_a_thought_the_text_counts_and_of_anything_else_all_of_it() {
        for (fields, bytes) in [
            (json!({ "reasoning_content": "1234", "reasoning": "12" }), 6),
            (
                json!({ "reasoning_details": [{ "type": "reasoning.text", "text": "1234" }, { "data": "12" }] }),
                6 + 2 * 8,
            ),
            (json!({ "vendor": "1234" }), 6 + 6),
        ] {
            assert_eq!(bytes_of(fields.as_object().unwrap()), bytes, "{fields}");
        }
    }

    #[test]
    fn a_thought_is_said_once() {
        for (delta, said) in [
            (json!({ "reasoning": "a", "reasoning_content": "b" }), Some("b")),
            (json!({ "reasoning": "a", "reasoning_details": [{ "text": "b" }] }), Some("a")),
            (json!({ "reasoning": "", "reasoning_details": [{ "text": "b" }, { "summary": "c" }] }), Some("bc")),
            (json!({ "reasoning_details": [{ "data": "sealed" }] }), None),
            (json!({ "content": "a" }), None),
        ] {
            assert_eq!(thought(&delta).as_deref(), said, "{delta}");
        }
    }
}
