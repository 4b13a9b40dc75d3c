//! Fields of a provider that the protocol does not have, such as the signature of a thought. Some providers refuse a
//! conversation in which one of them is missing.

use serde_json::{Map, Value};

/// Where deltas are put together to what a message has.
const OF_MESSAGE: [&str; 4] = ["role", "content", "refusal", "tool_calls"];
const OF_CALL: [&str; 3] = ["index", "id", "type"];
const OF_FUNCTION: [&str; 2] = ["name", "arguments"];

/// What a delta of a message says beyond the protocol. What the model thought is not said to it again.
pub(super) fn of_message(delta: &Value) -> Map<String, Value> {
    let is_extra = |name: &str| !OF_MESSAGE.contains(&name) && !name.starts_with("reasoning");
    fields(delta, is_extra)
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

pub(super) fn merge_fields(into: &mut Map<String, Value>, part: Map<String, Value>) {
    for (name, value) in part {
        merge(into.entry(name).or_insert(Value::Null), value);
    }
}

/// About as long as it is in JSON.
pub(super) fn bytes_of(fields: &Map<String, Value>) -> usize {
    serde_json::to_string(fields).map_or(0, |text| text.len())
}
