//! Bytes of users (payloads, results, checkpoints) on their way between JSON and the core, which does not look inside.
//!
//! What came as JSON is kept as it was written and given back so, to the digit. What is no JSON travels as base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use onward_core::ids::Bytes;
use onward_core::payload::Payload;
use serde_json::value::RawValue;

use super::problem::ProblemResponse;

/// One of two fields, `<name>` with JSON or `<name>_base64` with anything. None is nothing: no bytes at all.
pub fn from_fields(
    name: &str,
    json: Option<&RawValue>,
    base64: Option<&str>,
    max: usize,
) -> Result<Bytes, ProblemResponse> {
    let bytes = match (json, base64) {
        (Some(_), Some(_)) => {
            let detail = format!("`{name}` and `{name}_base64` exclude each other; give one of them");
            return Err(ProblemResponse::invalid(detail).of_field(name));
        }
        (Some(json), None) => json.get().as_bytes().to_vec(),
        (None, Some(text)) => {
            let field = format!("{name}_base64");
            STANDARD.decode(text).map_err(|error| {
                ProblemResponse::invalid(format!("`{field}` is not base64: {error}")).of_field(field.as_str())
            })?
        }
        (None, None) => Vec::new(),
    };
    at_most(name, bytes.len(), max)?;
    Ok(bytes.into())
}

pub fn at_most(field: &str, bytes: usize, max: usize) -> Result<(), ProblemResponse> {
    if bytes <= max {
        return Ok(());
    }
    let detail = format!("`{field}` has {bytes} bytes; it may have {max} at most");
    Err(ProblemResponse::new(axum::http::StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail).of_field(field))
}

/// A payload as it is shown.
#[derive(Debug)]
pub enum PayloadView<'a> {
    Json(&'a RawValue),
    Base64(String),
}

/// Shows a payload as [`show`] does. One that lies in the store and was not fetched is shown as `null`: lists do
/// without it.
pub fn show_payload<'a>(payload: &'a Payload, content_type: Option<&str>) -> PayloadView<'a> {
    show(payload.as_inline().map_or(&[], |bytes| bytes), content_type)
}

/// No bytes are shown as `null`. A content type that is not JSON is believed; without one, the bytes are looked at.
pub fn show<'a>(bytes: &'a [u8], content_type: Option<&str>) -> PayloadView<'a> {
    if bytes.is_empty() {
        return PayloadView::Json(RawValue::NULL);
    }
    let may_be_json = content_type.is_none_or(|given| {
        let media = given.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        media == "application/json" || media.ends_with("+json")
    });
    match serde_json::from_slice::<&RawValue>(bytes) {
        Ok(json) if may_be_json => PayloadView::Json(json),
        _ => PayloadView::Base64(STANDARD.encode(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8], content_type: Option<&str>) -> String {
        match show(bytes, content_type) {
            PayloadView::Json(json) => format!("json {json}"),
            PayloadView::Base64(text) => format!("base64 {text}"),
        }
    }

    #[test]
    fn json_is_shown_as_it_was_written_and_all_else_as_base64() {
        assert_eq!(shown(b"", None), "json null");
        assert_eq!(
            shown(b"{\"n\":123456789012345678901234567890}", None),
            "json {\"n\":123456789012345678901234567890}"
        );
        assert_eq!(shown(b"1.10", Some("application/json; charset=utf-8")), "json 1.10");
        assert_eq!(shown(b"1", Some("application/geo+json")), "json 1");
        assert_eq!(shown(b"1", Some("text/plain")), "base64 MQ==");
        assert_eq!(shown(&[0xff], None), "base64 /w==");
        assert_eq!(shown(b"{} {}", None), "base64 e30ge30=");
    }

    #[test]
    fn a_value_comes_in_one_way_and_within_its_limit() {
        let json: Box<RawValue> = serde_json::from_str("[1, 2]").unwrap();
        assert_eq!(from_fields("result", Some(&json), None, 6).unwrap(), Bytes::from(*b"[1, 2]"));
        assert_eq!(from_fields("result", None, Some("/w=="), 6).unwrap(), Bytes::from([0xff]));
        assert_eq!(from_fields("result", None, None, 6).unwrap(), Bytes::default());
        assert_eq!(from_fields("result", Some(&json), Some(""), 6).unwrap_err().code, "invalid");
        assert_eq!(from_fields("result", None, Some("?"), 6).unwrap_err().field.as_deref(), Some("result_base64"));
        assert_eq!(from_fields("result", Some(&json), None, 5).unwrap_err().status, 413);
    }
}
