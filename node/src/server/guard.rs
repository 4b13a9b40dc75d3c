//! What every request passes before a handler sees it: from outermost to innermost, panics are caught, hosts and
//! origins are checked, the caller's access is found, and calls of the API have their bodies read within limits.

use core::pin::pin;
use core::task::Poll;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::bodies::{BodyRooms, Unread};
use super::config::HttpLimits;
use super::hosts::Hosts;
use crate::api::access::Access;
use crate::api::json::need_json;
use crate::api::problem::ProblemResponse;
use crate::auth::{LOOK_EVERY, Tokens};
use crate::grpc;

#[derive(Debug)]
pub(super) struct Guard {
    pub(super) hosts: Hosts,
    pub(super) tokens: Box<dyn Tokens>,
    pub(super) require_tokens: bool,
    pub(super) limits: HttpLimits,
    pub(super) bodies: BodyRooms,
}

/// Paths of probes: an orchestrator may not know our name, and has no token.
pub(super) const PROBES: [&str; 3] = ["/livez", "/readyz", "/startupz"];

/// Logs each request, and answers for a handler that panicked.
pub(super) async fn observe(request: Request, next: Next) -> Response {
    // Not the path itself: that may hold a receipt.
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let began = Instant::now();
    let mut running = pin!(next.run(request));
    let answer = core::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(response)) => Poll::Ready(response),
        Err(_) => {
            tracing::error!(%method, path, "a handler panicked");
            let detail = "something that must not happen happened; the node's log says more. Please report it";
            Poll::Ready(ProblemResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail).into_response())
        }
    })
    .await;
    let took_us = began.elapsed().as_micros();
    tracing::debug!(%method, path, status = answer.status().as_u16(), took_us, "request");
    answer
}

pub(super) async fn admit(
    State(guard): State<Arc<Guard>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ProblemResponse> {
    check_headers(request.headers(), guard.limits.header_bytes)?;
    if PROBES.contains(&request.uri().path()) {
        return Ok(next.run(request).await);
    }
    guard.hosts.check(request.uri(), request.headers())?;
    let found = match Access::find(request.headers(), &*guard.tokens, guard.require_tokens) {
        Err(problem) if grpc::is_call(request.headers()) => return Ok(grpc::refused(&problem)),
        found => found?,
    };
    if let Some(access) = found {
        let access = match request.extensions().get() {
            Some(connection) => access.over(connection),
            None => access,
        };
        request.extensions_mut().insert(access);
    }
    Ok(next.run(request).await)
}

fn check_headers(headers: &HeaderMap, max: u32) -> Result<(), ProblemResponse> {
    const EACH_BYTES: usize = 32;
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + EACH_BYTES).sum();
    if bytes <= max as usize {
        return Ok(());
    }
    let detail = format!("the headers have {bytes} bytes; they may have {max} at most");
    Err(ProblemResponse::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", detail))
}

/// Notices tokens that are revoked while something is open with them, for as long as there is a guard.
pub(super) async fn watch_tokens(guard: Weak<Guard>) {
    const { assert!(2 * LOOK_EVERY.as_millis() <= 1_000, "what is open with a token ends within a second of its end") };
    loop {
        sleep(LOOK_EVERY).await;
        let Some(guard) = guard.upgrade() else { return };
        if let Err(error) = spawn_blocking(move || guard.tokens.look_for_open()).await {
            tracing::error!(%error, "looking at the tokens failed");
        }
    }
}

/// Mutations come as JSON, whole, in time, and not too large.
pub(super) async fn read_body(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Result<Response, ProblemResponse> {
    let (parts, body) = request.into_parts();
    if [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(&parts.method) {
        need_json(&parts.headers)?;
    }
    if body.is_end_stream() {
        return Ok(next.run(Request::from_parts(parts, body)).await);
    }
    let max = guard.limits.body_bytes;
    let told = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if told.is_some_and(|told| told > max) {
        return Err(too_large(max));
    }
    // The access was found by the headers; a body may come long after them.
    let access = parts.extensions.get::<Access>().cloned();
    let revoked = async {
        match &access {
            Some(access) => access.revoked().await,
            None => core::future::pending().await,
        }
    };
    let read = tokio::select! {
        biased;
        problem = revoked => return Err(problem),
        read = timeout(guard.limits.body_read, guard.bodies.read(body, max)) => read,
    };
    match read {
        Ok(Ok((bytes, room))) => {
            let answer = next.run(Request::from_parts(parts, Body::from(bytes))).await;
            // What was made of the body is in memory until then.
            drop(room);
            Ok(answer)
        }
        Ok(Err(Unread::TooLarge)) => Err(too_large(max)),
        Ok(Err(Unread::NoRoom)) => {
            let detail = "as much as may is being sent to this node; send it again later, or less at a time";
            Err(ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail))
        }
        Ok(Err(Unread::Failed(error))) => Err(ProblemResponse::invalid(format!("the body could not be read: {error}"))),
        Err(_) => {
            let detail = format!("the body did not arrive within {:?}; send it faster", guard.limits.body_read);
            Err(ProblemResponse::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", detail))
        }
    }
}

fn too_large(max: usize) -> ProblemResponse {
    let detail = format!("the body is larger than {max} bytes; send less at a time");
    ProblemResponse::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::auth::TokenRights;

    #[derive(Clone, Default, Debug)]
    struct Looks(Arc<AtomicU64>);

    impl Tokens for Looks {
        fn find(&self, _: &str) -> Option<TokenRights> {
            None
        }

        fn look_for_open(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What ends with the next look ends within a second, also where that look comes just after the change.
    #[tokio::test(start_paused = true)]
    async fn tokens_are_looked_at_several_times_a_second_and_no_more_without_a_guard() {
        let looks = Looks::default();
        let guard = Arc::new(Guard {
            hosts: Hosts::new("127.0.0.1:1".parse().unwrap(), false, &[]),
            tokens: Box::new(looks.clone()),
            require_tokens: true,
            limits: HttpLimits::default(),
            bodies: BodyRooms::default(),
        });
        let watching = tokio::spawn(watch_tokens(Arc::downgrade(&guard)));
        let mut before = 0;
        for _ in 0..5 {
            sleep(Duration::from_secs(1)).await;
            let now = looks.0.load(Ordering::Relaxed);
            assert!(now >= before + 2, "{before} looks before, {now} a second later");
            before = now;
        }
        drop(guard);
        watching.await.unwrap();
    }
}
