//! What a node answered: the text itself for programs, and a reading of it for people.
//!
//! The text is passed on as it came, since payloads and results in it are other people's and need not fit into any type
//! of ours. The reading is made of the same text with everything in it that could steer a terminal made visible, so that
//! whatever is printed of it is one harmless line.

use std::collections::BTreeMap;
use std::ops::Deref;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::screen::one_line;

/// An answer of which every text is harmless to print.
#[derive(Clone, Debug)]
pub struct PrintableAnswer<T> {
    text: Box<RawValue>,
    exact: T,
    reading: T,
}

impl<T: DeserializeOwned> PrintableAnswer<T> {
    pub fn of(answer: onward::NodeAnswer<T>) -> Result<Self, serde_json::Error> {
        let (exact, text) = answer.into_parts();
        let reading = serde_json::from_value(harmless(&text)?)?;
        Ok(Self { text, exact, reading })
    }
}

impl<T> PrintableAnswer<T> {
    /// The text of the answer as it came.
    pub fn text(&self) -> &RawValue {
        &self.text
    }

    /// The answer as it came too, with names that can be sent back to the node, and other people's JSON to the digit.
    pub fn exact(&self) -> &T {
        &self.exact
    }

    /// A field as it came; none if it is not there or `null`.
    pub fn field(&self, name: &str) -> Option<&RawValue> {
        // Names of our own are always readable; an answer with others in it has no such field.
        let fields: BTreeMap<&str, &RawValue> = serde_json::from_str(self.text.get()).ok()?;
        fields.get(name).copied().filter(|field| field.get() != "null")
    }
}

impl<T> Deref for PrintableAnswer<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.reading
    }
}

/// JSON with every text in it made harmless to print.
pub fn harmless(json: &RawValue) -> Result<Value, serde_json::Error> {
    let mut value = onward::json::read(json.get().as_bytes())?;
    make_harmless(&mut value);
    Ok(value)
}

/// Every text in it becomes one line without control characters.
fn make_harmless(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(harmless) = one_line(text) {
                *text = harmless;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_harmless),
        Value::Object(fields) => {
            let steering: Vec<(String, String)> =
                fields.keys().filter_map(|name| Some((name.clone(), one_line(name)?))).collect();
            for (name, harmless) in steering {
                if let Some(value) = fields.remove(&name) {
                    fields.insert(harmless, value);
                }
            }
            fields.values_mut().for_each(make_harmless);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The layout of JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// No space between tokens: one document is one line.
    Line,
    /// Indented by two spaces.
    Pretty,
}

/// What is nested deeper stays on one line: indenting it would take more room than it has itself, without bound.
const DEEPEST_INDENTED: usize = 64;

/// The same tokens with other spaces between them.
pub fn laid_out(json: &RawValue, layout: Layout) -> String {
    let text = json.get();
    let mut out = String::with_capacity(text.len() * 2);
    let (mut depth, mut in_text, mut is_escaped, mut is_empty) = (0_usize, false, false, false);
    let new_line = |out: &mut String, depth: usize| {
        if layout == Layout::Pretty && depth <= DEEPEST_INDENTED {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth));
        }
    };
    for c in text.chars() {
        if in_text {
            out.push(c);
            in_text = c != '"' || is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            continue;
        }
        if c.is_ascii_whitespace() {
            continue;
        }
        if matches!(c, '}' | ']') {
            depth = depth.saturating_sub(1);
            if !is_empty {
                new_line(&mut out, depth);
            }
        } else if is_empty {
            new_line(&mut out, depth);
        }
        is_empty = matches!(c, '{' | '[');
        out.push(c);
        match c {
            '{' | '[' => depth += 1,
            ',' => new_line(&mut out, depth),
            ':' if layout == Layout::Pretty => out.push(' '),
            '"' => in_text = true,
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_read_is_harmless() {
        let text = r#"{"note": "a\u001b[31m\nb\u0085", "n\n": [1e999], "state": "ready"}"#;
        let json: Box<RawValue> = serde_json::from_str(text).unwrap();
        let value = harmless(&json).unwrap();
        assert_eq!(value, json!({"note": "a\\u{1b}[31m\\nb\\u{85}", "n\\n": ["1e999"], "state": "ready"}));
    }

    #[test]
    fn a_field_is_given_as_it_was_written() {
        let text: Box<RawValue> =
            serde_json::from_str(r#"{"result": {"b": 1.10,  "a": 1e999}, "other": null}"#).unwrap();
        let answer = PrintableAnswer { text, exact: (), reading: () };
        assert_eq!(answer.field("result").unwrap().get(), r#"{"b": 1.10,  "a": 1e999}"#);
        assert!(answer.field("other").is_none() && answer.field("none").is_none());
    }

    #[test]
    fn json_is_laid_out_without_being_understood() {
        let text = r#" {"a":[ ],"b" : {},"c":[1,{"d\\\"{":"e, f:\ud800"}], "g":1e999} "#;
        let json: Box<RawValue> = serde_json::from_str(text).unwrap();
        let pretty = "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    {\n      \"d\\\\\\\"{\": \"e, f:\\ud800\"\n    }\n  ],\n  \"g\": 1e999\n}";
        assert_eq!(laid_out(&json, Layout::Pretty), pretty);
        assert_eq!(laid_out(&json, Layout::Line), r#"{"a":[],"b":{},"c":[1,{"d\\\"{":"e, f:\ud800"}],"g":1e999}"#);
        let json = json!({"a": [1, {"b": "x\ty"}], "c": [], "d": {}});
        let raw = serde_json::value::to_raw_value(&json).unwrap();
        assert_eq!(laid_out(&raw, Layout::Pretty), serde_json::to_string_pretty(&json).unwrap());
        assert_eq!(laid_out(&raw, Layout::Line), json.to_string());
    }

    #[test]
    fn what_is_nested_very_deep_is_not_indented_without_bound() {
        let depth = 20_000;
        let text = "[".repeat(depth) + &"]".repeat(depth);
        let json: Box<RawValue> = serde_json::from_str(&text).unwrap();
        let pretty = laid_out(&json, Layout::Pretty);
        assert!(pretty.len() < 2 * depth + 10_000, "{}", pretty.len());
        assert_eq!(pretty.replace(['\n', ' '], ""), text);
    }
}
