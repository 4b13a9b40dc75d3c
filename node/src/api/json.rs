//! JSON in and out. Whatever is wrong with a body is answered as a problem that names it.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// A JSON body. Taking one needs `Content-Type: application/json`: without that a browser would send a form, or plain
/// text, to us from any page, and ask nobody.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let JsonText(body) = JsonText::from_request(request, state).await?;
        parse(&body).map(Self)
    }
}

/// The text of a JSON body, for those who read it themselves.
#[derive(Debug)]
pub struct JsonText(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for JsonText {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        need_json(request.headers())?;
        let body = Bytes::from_request(request, state).await.map_err(|rejection| {
            let status = rejection.status();
            if status == StatusCode::PAYLOAD_TOO_LARGE {
                let detail = "the body is larger than this call takes; send fewer or smaller things at a time";
                return Problem::new(status, "too_large", detail);
            }
            Problem::new(status, "invalid", rejection.body_text())
        })?;
        Ok(Self(body))
    }
}

pub fn need_json(headers: &axum::http::HeaderMap) -> Result<(), Problem> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media = given.split(';').next().unwrap_or("").trim();
    if media.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let detail = format!("the content type is `{given}`; send `Content-Type: application/json`");
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail))
}

/// An empty body is read as `{}`.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| Problem::invalid(format!("invalid request body: {error}")))
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => {
                let detail = format!("the answer could not be written as JSON: {error}");
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail).into_response()
            }
        }
    }
}
