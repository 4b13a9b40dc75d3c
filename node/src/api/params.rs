//! What stands in the address: ids and names in the path, and the query. Whatever is wrong is answered as a problem.

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use onward_core::ids::{JobId, Name, WorkerId};
use onward_core::refusal::Refusal;
use serde::de::DeserializeOwned;

use super::problem::ProblemResponse;

/// `{id}` of a job. What is no id names no job.
#[derive(Clone, Copy, Debug)]
pub struct JobPath(pub JobId);

impl<S: Send + Sync> FromRequestParts<S> for JobPath {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemResponse> {
        let text = text(parts, state).await;
        text.and_then(|text| JobId::parse(&text)).map(Self).ok_or_else(|| Refusal::UnknownJob.into())
    }
}

/// `{name}` of a queue.
#[derive(Clone, Debug)]
pub struct QueuePath(pub Name);

impl<S: Send + Sync> FromRequestParts<S> for QueuePath {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemResponse> {
        let text = text(parts, state).await;
        text.and_then(Name::new).map(Self).ok_or_else(bad_queue_name)
    }
}

/// `{name}` of a schedule.
#[derive(Clone, Debug)]
pub struct SchedulePath(pub Name);

impl<S: Send + Sync> FromRequestParts<S> for SchedulePath {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemResponse> {
        let text = text(parts, state).await;
        text.and_then(Name::new).map(Self).ok_or_else(|| {
            ProblemResponse::invalid("the name of a schedule is 1 to 128 bytes without control characters")
                .of_field("name")
        })
    }
}

pub fn bad_queue_name() -> ProblemResponse {
    ProblemResponse::invalid("the name of a queue is 1 to 128 bytes without control characters").of_field("name")
}

/// `{id}` of a worker.
#[derive(Clone, Debug)]
pub struct WorkerPath(pub WorkerId);

impl<S: Send + Sync> FromRequestParts<S> for WorkerPath {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemResponse> {
        let text = text(parts, state).await;
        text.and_then(WorkerId::new).map(Self).ok_or_else(unknown_worker)
    }
}

pub fn unknown_worker() -> ProblemResponse {
    let detail = "no such node is known; `GET /v1/nodes` lists those that are";
    ProblemResponse::new(StatusCode::NOT_FOUND, "unknown_worker", detail)
}

async fn text<S: Send + Sync>(parts: &mut Parts, state: &S) -> Option<String> {
    Path::<String>::from_request_parts(parts, state).await.ok().map(|Path(text)| text)
}

/// The query, with unknown and unreadable fields refused by name.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ProblemResponse> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query.map(|Query(query)| Self(query)).map_err(|rejection| ProblemResponse::invalid(rejection.body_text()))
    }
}

pub const DEFAULT_LIMIT: usize = 100;
pub const MAX_LIMIT: usize = 1_000;

/// The number of entries that a page may have.
pub fn page_size(limit: Option<usize>) -> Result<usize, ProblemResponse> {
    match limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        limit => {
            let detail = format!("`limit` is {limit}; it must be from 1 to {MAX_LIMIT}");
            Err(ProblemResponse::invalid(detail).of_field("limit"))
        }
    }
}

pub fn bad_cursor() -> ProblemResponse {
    ProblemResponse::invalid("`cursor` is not one that a list gave; leave it out to begin anew").of_field("cursor")
}
