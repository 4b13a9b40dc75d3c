//! Calls to a node, sent again where that is safe.

use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Method, Request, StatusCode, header};
use onward_api::cluster::LEADER;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use super::answer::NodeAnswer;
use super::connection::{Busy, Connections, Nodes, Protocol, reason};
use super::error::{CallError, Silence};
use crate::address::NodeAddresses;

const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
const MAX_ANSWER_BYTES: usize = 256 << 20;
const USER_AGENT: &str = concat!("onward/", env!("CARGO_PKG_VERSION"));

/// The repetitions of a call that came to nothing, if it may be made again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retries {
    /// The pause before each repetition.
    pub pauses: Vec<Duration>,
    /// Also where the node could not be reached, or took too long. Without it only a call whose connection was lost is
    /// made again, and one that the node cannot take just now.
    pub unreachable: bool,
}

impl Default for Retries {
    fn default() -> Self {
        Self { pauses: [100, 500, 1_500, 3_000].map(Duration::from_millis).to_vec(), unreachable: true }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Calls {
    nodes: Arc<Nodes>,
    retries: Arc<Retries>,
    /// The prefix of every path.
    prefix: Arc<str>,
    within: Duration,
}

/// Whether the same call once more is the same as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RepeatRule {
    IsSafe,
    Never,
}

/// A question to the node.
#[derive(Clone, Debug)]
pub(super) struct ApiCall {
    method: Method,
    path: String,
    body: Option<Bytes>,
    repeat: RepeatRule,
    /// The time for which the node may hold back its answer.
    wait: Duration,
}

impl ApiCall {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), body: None, repeat: RepeatRule::IsSafe, wait: Duration::ZERO }
    }

    pub(super) fn post(path: impl Into<String>, body: &impl Serialize) -> Result<Self, CallError> {
        Ok(Self { method: Method::POST, body: Some(written(body)?), ..Self::get(path) })
    }

    /// A call with a body that is JSON already.
    pub(super) fn post_text(path: impl Into<String>, body: Vec<u8>) -> Self {
        Self { method: Method::POST, body: Some(body.into()), ..Self::get(path) }
    }

    pub(super) fn put(path: impl Into<String>, body: &impl Serialize) -> Result<Self, CallError> {
        Ok(Self { method: Method::PUT, body: Some(written(body)?), ..Self::get(path) })
    }

    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    pub(super) fn waiting(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    pub(super) fn once(self) -> Self {
        Self { repeat: RepeatRule::Never, ..self }
    }
}

fn written(body: &impl Serialize) -> Result<Bytes, CallError> {
    let text = serde_json::to_vec(body);
    text.map(Bytes::from).map_err(|error| CallError::Unreadable(format!("the request is no JSON: {error}")))
}

impl Calls {
    pub(super) fn new(addresses: NodeAddresses) -> Self {
        Self {
            nodes: Arc::new(Nodes::new(addresses, Protocol::default())),
            retries: Arc::default(),
            prefix: "".into(),
            within: ANSWERED_WITHIN,
        }
    }

    pub(super) fn speaking(self, protocol: Protocol) -> Self {
        Self { nodes: Arc::new(Nodes::new(self.nodes.addresses.clone(), protocol)), ..self }
    }

    pub(super) fn retrying(self, retries: Retries) -> Self {
        Self { retries: Arc::new(retries), ..self }
    }

    pub(super) fn under(self, prefix: &str) -> Self {
        Self { prefix: prefix.trim_end_matches('/').into(), ..self }
    }

    pub(super) fn within(self, within: Duration) -> Self {
        Self { within: within.min(ANSWERED_WITHIN), ..self }
    }

    pub(super) fn authority(&self) -> String {
        self.nodes.addresses.next().authority().to_owned()
    }

    pub(super) async fn ask<T: DeserializeOwned>(&self, call: ApiCall) -> Result<NodeAnswer<T>, CallError> {
        NodeAnswer::read(&self.ask_raw(call).await?.1)
    }

    /// The head and the body of an answer that is a success.
    pub(super) async fn ask_raw(&self, call: ApiCall) -> Result<(HeaderMap, Bytes), CallError> {
        let mut pauses = self.retries.pauses.iter();
        let mut was_lost = false;
        let mut tried = 0;
        let within = self.within.saturating_add(call.wait);
        loop {
            let connections = self.nodes.connections();
            let (failed, is_undone) = match timeout(within, self.exchange(&connections, &call)).await {
                Ok(Ok((status, headers, body))) if status.is_success() => return Ok((headers, body)),
                Ok(Ok((status, headers, body))) => connections.refused(status, &headers, &body),
                Ok(Err(error)) => {
                    let is_undone = matches!(error, CallError::Unreachable { .. });
                    (error, is_undone)
                }
                Err(_) => (connections.too_long(within), false),
            };
            let is_unanswered = matches!(failed, CallError::Unanswered { .. });
            if is_undone || is_unanswered {
                self.nodes.addresses.leave(connections.address());
            }
            tried += 1;
            if is_undone && tried < self.nodes.addresses.round() {
                continue;
            }
            was_lost |= matches!(failed, CallError::Unanswered { why: Silence::Lost(_) | Silence::InDoubt(_), .. });
            let may_pass = match &failed {
                CallError::Refused { status, code, .. } => *status == 503 && code != "internal",
                CallError::Unanswered { .. } if call.repeat == RepeatRule::Never => false,
                CallError::Unreachable { .. } | CallError::Unanswered { .. } => was_lost || self.retries.unreachable,
                _ => false,
            };
            match pauses.next() {
                Some(pause) if may_pass => sleep(*pause).await,
                _ => return Err(failed),
            }
            tried = 0;
        }
    }

    async fn exchange(
        &self,
        connections: &Connections,
        call: &ApiCall,
    ) -> Result<(StatusCode, HeaderMap, Bytes), CallError> {
        let (answer, busy) = connections.send(self.request(connections, call, None)?).await?;
        let (head, body) = answer.into_parts();
        self.learn(&head.headers);
        let body = read(connections, body, MAX_ANSWER_BYTES).await?;
        connections.give_back(busy);
        Ok((head.status, head.headers, body))
    }

    fn learn(&self, headers: &HeaderMap) {
        // Behind something that serves more than a node, the leader is not reached by its own address.
        if let Some(Ok(hint)) = headers.get(LEADER).filter(|_| self.prefix.is_empty()).map(|hint| hint.to_str()) {
            self.nodes.addresses.learn(hint);
        }
    }

    /// An answer that goes on, and what carries it.
    pub(super) async fn stream(&self, path: &str) -> Result<(Incoming, Busy), CallError> {
        let connections = self.nodes.connections();
        let request = self.request(&connections, &ApiCall::get(path), Some("text/event-stream"))?;
        let failed = match timeout(self.within, connections.send(request)).await {
            Ok(Ok((answer, busy))) if answer.status().is_success() => {
                self.learn(answer.headers());
                return Ok((answer.into_body(), busy));
            }
            Ok(Ok((answer, _))) => {
                let (head, body) = answer.into_parts();
                let text = read(&connections, body, 1 << 20).await?;
                let (failed, is_undone) = connections.refused(head.status, &head.headers, &text);
                if !is_undone && matches!(failed, CallError::Refused { .. }) {
                    return Err(failed);
                }
                failed
            }
            Ok(Err(error)) => error,
            Err(_) => connections.too_long(self.within),
        };
        self.nodes.addresses.leave(connections.address());
        Err(failed)
    }

    fn request(
        &self,
        connections: &Connections,
        call: &ApiCall,
        accept: Option<&str>,
    ) -> Result<Request<Full<Bytes>>, CallError> {
        let address = connections.address();
        let uri = match connections.protocol() {
            Protocol::Http2 => format!("http://{}{}{}", address.authority(), self.prefix, call.path),
            Protocol::Http1 => format!("{}{}", self.prefix, call.path),
        };
        let mut request =
            Request::builder().method(call.method.clone()).uri(uri).header(header::USER_AGENT, USER_AGENT);
        if connections.protocol() == Protocol::Http1 {
            request = request.header(header::HOST, address.authority());
        }
        if call.method != Method::GET {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(accept) = accept {
            request = request.header(header::ACCEPT, accept);
        }
        if let Some(token) = address.token() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request
            .body(Full::new(call.body.clone().unwrap_or_default()))
            .map_err(|error| CallError::Unreadable(format!("not a request: {error}")))
    }
}

async fn read(connections: &Connections, body: Incoming, most: usize) -> Result<Bytes, CallError> {
    let read = Limited::new(body, most).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            CallError::Unreadable(format!("it has more than {most} bytes"))
        } else {
            connections.unanswered(Silence::Lost(reason(&*error)))
        }
    })?;
    Ok(read.to_bytes())
}
