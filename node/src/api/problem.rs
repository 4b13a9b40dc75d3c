//! Errors as RFC 9457 problems: a stable `code`, what is wrong, and what to do.

use core::ops::Deref;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use onward_api::cluster::{CODE, CallFate, DONE};
use onward_api::few::TooMany;
use onward_api::problem::Problem as Body;
use onward_core::refusal::{Refusal, RefusalKind};
use serde::Serialize;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use crate::engine::EngineRefusal;

/// An answer that is not a success.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(transparent)]
pub struct ProblemResponse {
    body: Body,
    /// Said in a header where it matters: with 503, after which the same is asked again.
    #[serde(skip)]
    done: CallFate,
}

impl ProblemResponse {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("error").into();
        let body = Body { code: code.into(), title, status: status.as_u16(), detail: detail.into(), field: None };
        Self { body, done: CallFate::No }
    }

    pub fn into_body(self) -> Body {
        self.body
    }

    /// Adds whether the request may have been carried out all the same.
    pub fn with_done(mut self, done: CallFate) -> Self {
        self.done = done;
        self
    }

    pub const fn done(&self) -> CallFate {
        self.done
    }

    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    pub fn of_field(mut self, field: impl Into<String>) -> Self {
        self.body.field = Some(field.into());
        self
    }

    /// The same, told in other words.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.body.detail = detail.into();
        self
    }
}

impl Deref for ProblemResponse {
    type Target = Body;

    fn deref(&self) -> &Body {
        &self.body
    }
}

impl utoipa::PartialSchema for ProblemResponse {
    fn schema() -> RefOr<Schema> {
        Body::schema()
    }
}

impl utoipa::ToSchema for ProblemResponse {
    fn name() -> std::borrow::Cow<'static, str> {
        "Problem".into()
    }
}

impl From<TooMany> for ProblemResponse {
    fn from(error: TooMany) -> Self {
        Self::invalid(error.to_string()).of_field(error.field)
    }
}

impl From<Refusal> for ProblemResponse {
    fn from(refusal: Refusal) -> Self {
        let refusal = refusal.of_single();
        let kind = refusal.kind();
        let problem = Self::new(status_of(kind), kind.code(), refusal.to_string());
        match refusal {
            Refusal::Invalid(invalid) => problem.of_field(invalid.field),
            _ => problem,
        }
    }
}

impl From<EngineRefusal> for ProblemResponse {
    fn from(refused: EngineRefusal) -> Self {
        match refused {
            EngineRefusal::ByMachine(refusal) => refusal.into(),
            EngineRefusal::NotBegun(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_leader", refused.to_string()),
            EngineRefusal::Unavailable(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_leader", refused.to_string())
                    .with_done(CallFate::Unknown)
            }
            EngineRefusal::Unreadable(_) | EngineRefusal::Missing(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", refused.to_string())
            }
            EngineRefusal::TooManyCalls(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", refused.to_string())
            }
        }
    }
}

/// The status that goes with each refusal.
pub const fn status_of(kind: RefusalKind) -> StatusCode {
    match kind {
        RefusalKind::Invalid => StatusCode::BAD_REQUEST,
        RefusalKind::Limited | RefusalKind::TooSoon | RefusalKind::QuietSpent => StatusCode::TOO_MANY_REQUESTS,
        RefusalKind::UnknownJob
        | RefusalKind::UnknownWorkflow
        | RefusalKind::UnknownAttempt
        | RefusalKind::UnknownWorker
        | RefusalKind::UnknownSchedule => StatusCode::NOT_FOUND,
        RefusalKind::StaleAttempt
        | RefusalKind::AlreadyEnded
        | RefusalKind::StaleIncarnation
        | RefusalKind::StaleEpoch
        | RefusalKind::StaleTerm
        | RefusalKind::NotTerminal
        | RefusalKind::Conflict
        | RefusalKind::UniqueKeyTaken
        | RefusalKind::NotADeadLetter => StatusCode::CONFLICT,
        RefusalKind::NoLeader | RefusalKind::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl IntoResponse for ProblemResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).expect("a problem is plain data");
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(DONE, HeaderValue::from_static(self.done.word()));
            headers.insert(CODE, HeaderValue::from_str(&self.code).expect("codes are words of ASCII"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
