//! Checks JSON against a schema, as far as schemas of Rust types go.
//!
//! Known: `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `minProperties`, `maxProperties`,
//! `items`, `prefixItems`, `uniqueItems`, `minItems`, `maxItems`, `minimum`, `maximum`, `exclusiveMinimum`,
//! `exclusiveMaximum`, `multipleOf`, `minLength`, `maxLength`, `anyOf`, `oneOf`, `allOf`, and `$ref` within the schema.
//!
//! Other words say nothing here, such as `pattern`, `format`, `patternProperties` and `not`; the type that the value is read
//! into has the last word. So of `oneOf` more than one may fit: forms may differ by a word that is not known.

use serde_json::{Map, Value};

/// Schemas may refer to themselves, and values may be nested; neither goes on for ever.
const MAX_DEPTH: usize = 64;

/// Says where and how a value, which is called so, differs from a schema.
pub(crate) fn check(schema: &Value, value: &Value, name: &str) -> Result<(), String> {
    Checker { root: schema }.check(schema, value, name, 0)
}

struct Checker<'a> {
    root: &'a Value,
}

impl Checker<'_> {
    fn check(&self, schema: &Value, value: &Value, at: &str, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("`{at}` is nested too deeply"));
        }
        let schema = match schema {
            Value::Bool(false) => return Err(format!("`{at}` is not allowed")),
            Value::Object(schema) => schema,
            _ => return Ok(()),
        };
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            let found = target.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
            self.check(found.ok_or_else(|| format!("the schema has no `{target}`"))?, value, at, depth + 1)?;
        }
        check_type(schema, value, at)?;
        check_bounds(schema, value, at)?;
        if schema.get("const").is_some_and(|only| only != value) {
            return Err(format!("`{at}` must be {}", schema["const"]));
        }
        if let Some(Value::Array(allowed)) = schema.get("enum")
            && !allowed.contains(value)
        {
            return Err(format!("`{at}` must be one of {}", Value::Array(allowed.clone())));
        }
        self.check_choices(schema, value, at, depth)?;
        match value {
            Value::Object(fields) => self.check_fields(schema, fields, at, depth),
            Value::Array(items) => {
                let first = schema.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let rest = schema.get("items").unwrap_or(&Value::Null);
                let mut items = items.iter().enumerate();
                items.try_for_each(|(n, item)| {
                    self.check(first.get(n).unwrap_or(rest), item, &format!("{at}[{n}]"), depth + 1)
                })
            }
            _ => Ok(()),
        }
    }

    fn check_choices(&self, schema: &Map<String, Value>, value: &Value, at: &str, depth: usize) -> Result<(), String> {
        let choices = |word: &str| schema.get(word).and_then(Value::as_array);
        for all in choices("allOf").into_iter().flatten() {
            self.check(all, value, at, depth + 1)?;
        }
        for word in ["anyOf", "oneOf"] {
            let Some(any) = choices(word) else { continue };
            let mut errors = Vec::new();
            let fits = any.iter().any(|one| self.check(one, value, at, depth + 1).map_err(|e| errors.push(e)).is_ok());
            if !fits {
                return Err(format!("`{at}` fits none of its forms: {}", errors.join("; or ")));
            }
        }
        Ok(())
    }

    fn check_fields(
        &self,
        schema: &Map<String, Value>,
        fields: &Map<String, Value>,
        at: &str,
        depth: usize,
    ) -> Result<(), String> {
        for name in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                return Err(format!("`{at}.{name}` is missing"));
            }
        }
        let known = schema.get("properties").and_then(Value::as_object);
        for (name, value) in fields {
            let named = known.and_then(|known| known.get(name)).or_else(|| schema.get("additionalProperties"));
            if let Some(named) = named {
                self.check(named, value, &format!("{at}.{name}"), depth + 1)?;
            }
        }
        Ok(())
    }
}

fn check_type(schema: &Map<String, Value>, value: &Value, at: &str) -> Result<(), String> {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    let (fits, wanted) = match schema.get("type") {
        Some(Value::String(name)) => (is(name), name.clone()),
        Some(Value::Array(names)) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            (names.iter().any(|name| is(name)), names.join(" or "))
        }
        _ => return Ok(()),
    };
    if fits { Ok(()) } else { Err(format!("`{at}` must be of type {wanted}")) }
}

fn check_bounds(schema: &Map<String, Value>, value: &Value, at: &str) -> Result<(), String> {
    let (size, low, high, what) = match value {
        Value::Number(number) => (number.as_f64(), "minimum", "maximum", "be"),
        Value::String(text) => (Some(text.chars().count() as f64), "minLength", "maxLength", "have a length of"),
        Value::Array(items) => (Some(items.len() as f64), "minItems", "maxItems", "have a length of"),
        Value::Object(fields) => {
            (Some(fields.len() as f64), "minProperties", "maxProperties", "have a number of fields of")
        }
        _ => return Ok(()),
    };
    let bound = |word: &str| schema.get(word).and_then(Value::as_f64);
    if let (Some(size), Some(least)) = (size, bound(low))
        && size < least
    {
        return Err(format!("`{at}` must {what} at least {least}"));
    }
    if let (Some(size), Some(most)) = (size, bound(high))
        && size > most
    {
        return Err(format!("`{at}` must {what} at most {most}"));
    }
    match value {
        Value::Number(number) => check_number(number.as_f64().unwrap_or(0.0), bound, at),
        Value::Array(items) if schema.get("uniqueItems") == Some(&Value::Bool(true)) => {
            let is_new = |n: usize| !items[..n].contains(&items[n]);
            if (0..items.len()).all(is_new) { Ok(()) } else { Err(format!("`{at}` must not have an item twice")) }
        }
        _ => Ok(()),
    }
}

fn check_number(number: f64, bound: impl Fn(&str) -> Option<f64>, at: &str) -> Result<(), String> {
    if let Some(least) = bound("exclusiveMinimum").filter(|least| number <= *least) {
        return Err(format!("`{at}` must be more than {least}"));
    }
    if let Some(most) = bound("exclusiveMaximum").filter(|most| number >= *most) {
        return Err(format!("`{at}` must be less than {most}"));
    }
    // A fraction such as 0.1 is not exact.
    let is_multiple = |of: f64| of <= 0.0 || ((number / of) - (number / of).round()).abs() < 1e-9;
    match bound("multipleOf").filter(|of| !is_multiple(*of)) {
        Some(of) => Err(format!("`{at}` must be a multiple of {of}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemars::JsonSchema;
    use serde_json::json;

    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only its schema is of interest")]
    #[schemars(deny_unknown_fields)]
    struct Order {
        id: u32,
        kind: Kind,
        #[schemars(length(max = 3))]
        parts: Vec<Part>,
        note: Option<String>,
    }

    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only its schema is of interest")]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Small,
        Large,
        Special { size: f64 },
    }

    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only its schema is of interest")]
    struct Part {
        #[schemars(range(min = 1, max = 10))]
        count: i64,
        inner: Option<Box<Part>>,
    }

    #[test]
    fn values_are_held_against_the_schema_of_a_type() {
        let schema = schemars::schema_for!(Order).to_value();
        let part = json!({ "count": 1, "inner": { "count": 2, "inner": null } });
        let good = json!({ "id": 1, "kind": "small", "parts": [part], "note": null });
        assert_eq!(check(&schema, &good, "output"), Ok(()));
        let with = |pointer: &str, value: Value| {
            let mut changed = good.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            changed
        };
        assert_eq!(check(&schema, &with("/kind", json!({ "special": { "size": 1.5 } })), "output"), Ok(()));
        for (value, said) in [
            (json!([]), "`output` must be of type object"),
            (json!({ "id": 1 }), "is missing"),
            (with("/id", json!(-1)), "`output.id` must be at least 0"),
            (with("/id", json!("1")), "`output.id` must be of type integer"),
            (with("/id", json!(1.5)), "`output.id` must be of type integer"),
            (with("/kind", json!("medium")), "`output.kind` fits none of its forms"),
            (with("/kind", json!({ "special": {} })), "`output.kind.special.size` is missing"),
            (with("/parts/0/count", json!(11)), "`output.parts[0].count` must be at most 10"),
            (with("/parts/0/inner/count", json!(0)), "must be at least 1"),
            (with("/parts", json!([part, part, part, part])), "`output.parts` must have a length of at most 3"),
            (with("/note", json!(3)), "`output.note` must be of type string or null"),
            (json!({ "id": 1, "kind": "small", "parts": [], "more": 1 }), "`output.more` is not allowed"),
        ] {
            let error = check(&schema, &value, "output").expect_err(&value.to_string());
            assert!(error.contains(said), "{value}: {error}");
        }
    }

    #[test]
    fn words_that_no_rust_type_needs_are_checked_too() {
        for (schema, good, bad, said) in [
            (json!({ "exclusiveMinimum": 1 }), json!(1.1), json!(1), "must be more than 1"),
            (json!({ "exclusiveMaximum": 1 }), json!(0.9), json!(1), "must be less than 1"),
            (json!({ "multipleOf": 5 }), json!(-10), json!(7), "must be a multiple of 5"),
            (json!({ "multipleOf": 0.1 }), json!(0.3), json!(0.35), "must be a multiple of 0.1"),
            (json!({ "uniqueItems": true }), json!([1, "1"]), json!([1, 2, 1]), "must not have an item twice"),
            (json!({ "uniqueItems": false }), json!([1, 1]), Value::Null, ""),
            (json!({ "minProperties": 1 }), json!({ "a": 1 }), json!({}), "a number of fields of at least 1"),
            (json!({ "maxProperties": 1 }), json!({}), json!({ "a": 1, "b": 2 }), "a number of fields of at most 1"),
            (
                json!({ "prefixItems": [{ "type": "string" }], "items": { "type": "integer" } }),
                json!(["a", 1, 2]),
                json!([1, 1]),
                "`output[0]` must be of type string",
            ),
            (
                json!({ "prefixItems": [{ "type": "string" }], "items": { "type": "integer" } }),
                json!([]),
                json!(["a", "b"]),
                "`output[1]` must be of type integer",
            ),
            // Not known, so that neither form is told from the other.
            (json!({ "oneOf": [{ "format": "date" }, { "pattern": "x" }] }), json!("y"), Value::Null, ""),
        ] {
            assert_eq!(check(&schema, &good, "output"), Ok(()), "{schema}");
            if !said.is_empty() {
                let error = check(&schema, &bad, "output").expect_err(&schema.to_string());
                assert!(error.contains(said), "{schema}: {error}");
            }
        }
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({ "$ref": "#" });
        assert!(check(&schema, &json!(1), "output").unwrap_err().contains("too deeply"));
        assert!(
            check(&json!({ "$ref": "#/$defs/None" }), &json!(1), "output").unwrap_err().contains("no `#/$defs/None`")
        );
    }
}
