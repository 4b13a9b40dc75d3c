//! JSON in and out. Whatever is wrong with a body is answered as a problem that names it.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::problem::ProblemResponse;

/// A JSON body. Taking one needs `Content-Type: application/json`: without that a browser would send a form, or plain
/// text, to us from any page, and ask nobody.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ProblemResponse;

    async fn from_request(request: Request, state: &S) -> Result<Self, ProblemResponse> {
        let JsonText(body) = JsonText::from_request(request, state).await?;
        parse(&body).map(Self)
    }
}

/// The text of a JSON body, for those who read it themselves.
#[derive(Debug)]
pub struct JsonText(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for JsonText {
    type Rejection = ProblemResponse;

    async fn from_request(request: Request, state: &S) -> Result<Self, ProblemResponse> {
        need_json(request.headers())?;
        let body = Bytes::from_request(request, state).await.map_err(|rejection| {
            let status = rejection.status();
            if status == StatusCode::PAYLOAD_TOO_LARGE {
                let detail = "the body is larger than this call takes; send fewer or smaller things at a time";
                return ProblemResponse::new(status, "too_large", detail);
            }
            ProblemResponse::new(status, "invalid", rejection.body_text())
        })?;
        Ok(Self(body))
    }
}

pub fn need_json(headers: &axum::http::HeaderMap) -> Result<(), ProblemResponse> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media = given.split(';').next().unwrap_or("").trim();
    if media.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let detail = format!("the content type is `{given}`; send `Content-Type: application/json`");
    Err(ProblemResponse::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail))
}

/// An empty body is read as `{}`.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ProblemResponse> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| {
        let problem = ProblemResponse::invalid(format!("invalid request body: {error}"));
        match field_at_fault::<T>(body) {
            Some(field) => problem.of_field(field),
            None => problem,
        }
    })
}

/// The field of a body that was refused, if one is at fault. The body is read once more for it: to know at every moment
/// where one is would cost all the others.
fn field_at_fault<T: DeserializeOwned>(body: &[u8]) -> Option<String> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let error = serde_path_to_error::deserialize::<_, T>(&mut reader).err()?;
    if !error.inner().is_data() {
        return None;
    }
    let path = Some(error.path().to_string()).filter(|path| path != ".");
    // A field that nobody knows, or that is not there, is no place: the path ends before it.
    let text = error.inner().to_string();
    let named = ["unknown field `", "missing field `"].iter().find_map(|words| text.strip_prefix(words));
    match (path, named.and_then(|rest| rest.split_once('`'))) {
        (Some(path), Some((name, _))) if path.split('.').next_back() != Some(name) => Some(format!("{path}.{name}")),
        (None, Some((name, _))) => Some(name.to_owned()),
        (path, _) => path,
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => {
                let detail = format!("the answer could not be written as JSON: {error}");
                ProblemResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail).into_response()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only what is refused is looked at")]
    struct Body {
        kind: String,
        limits: Option<Vec<Limit>>,
        retry: Option<Limit>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only what is refused is looked at")]
    struct Limit {
        max: u32,
    }

    #[test]
    fn the_field_at_fault_is_named() {
        for (body, field) in [
            (r#"{"kind": 7}"#, Some("kind")),
            (r#"{"kind": "k", "retry": {"max": "many"}}"#, Some("retry.max")),
            (r#"{"kind": "k", "limits": [{"max": 1}, {"max": -1}]}"#, Some("limits[1].max")),
            (r#"{"kind": "k", "limits": 1}"#, Some("limits")),
            (r#"{"kind": "k", "limits": [{"max": 1, "min": 0}]}"#, Some("limits[0].min")),
            (r#"{"kind": "k", "limits": [{}]}"#, Some("limits[0].max")),
            (r#"{"kind": "k", "colour": 1}"#, Some("colour")),
            (r#"{}"#, Some("kind")),
            ("", Some("kind")),
            ("[]", None),
            (r#"{"kind": "k""#, None),
            (r#"{"kind": k}"#, None),
        ] {
            let problem = parse::<Body>(body.as_bytes()).unwrap_err();
            assert_eq!(problem.field.as_deref(), field, "{body}: {}", problem.detail);
        }
    }
}
