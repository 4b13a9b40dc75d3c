//! One HTTP/2 connection for all calls, opened again when it is lost.

use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::info::JobInfo;
use crate::address::NodeAddress;

const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// Pauses before a call is sent again.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(500), Duration::from_millis(1_500), Duration::from_secs(3)];
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The node's answer was no. `code` is the stable word for programs.
    #[error("{detail} ({code})")]
    Refused { status: u16, code: String, detail: String },
    /// Also after several tries. Whether the node has carried it out is not known; calling again is safe.
    #[error("no answer from the node at {authority}: {why}")]
    Unanswered { authority: String, why: String },
    #[error("the node's answer cannot be read: {0}")]
    Unreadable(String),
    #[error("{count} jobs at once; at most {max} go together")]
    TooMany { count: usize, max: usize },
}

impl CallError {
    /// The stable word of a refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Calls {
    place: NodeAddress,
    open: Arc<Mutex<Option<SendRequest<Full<Bytes>>>>>,
}

/// What the node said, and what could be read of it.
#[derive(Debug)]
pub(super) struct Answer {
    text: Bytes,
    value: Value,
}

impl Calls {
    pub(super) fn new(place: NodeAddress) -> Self {
        Self { place, open: Arc::default() }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Answer, CallError> {
        self.get_waiting(path, Duration::ZERO).await
    }

    /// The node may take that long to answer, and a little more.
    pub(super) async fn get_waiting(&self, path: &str, wait: Duration) -> Result<Answer, CallError> {
        Answer::read(self.call(Method::GET, path, None, wait).await?)
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Answer, CallError> {
        Answer::read(self.call(Method::POST, path, Some(body.to_string().into()), Duration::ZERO).await?)
    }

    /// The text of the answer, byte for byte: to `GET`, or with a body to `POST`. The node may take `wait` to answer.
    pub(super) async fn text(&self, path: &str, body: Option<Bytes>, wait: Duration) -> Result<Bytes, CallError> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        self.call(method, path, body, wait).await
    }

    async fn call(&self, method: Method, path: &str, body: Option<Bytes>, wait: Duration) -> Result<Bytes, CallError> {
        let mut pauses = PAUSES.iter();
        loop {
            let tried = timeout(ANSWERED_WITHIN + wait, self.once(method.clone(), path, body.clone())).await;
            let failed = match tried {
                Ok(Ok((status, text))) if status.is_success() => return Ok(text),
                Ok(Ok((status, text))) => refusal(status, &text),
                Ok(Err(error)) => error,
                Err(_) => self.unanswered("it took too long"),
            };
            match pauses.next() {
                Some(pause) if may_pass(&failed) => sleep(*pause).await,
                _ => return Err(failed),
            }
        }
    }

    async fn once(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<(StatusCode, Bytes), CallError> {
        let answer = self.send(method, path, body, None).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                CallError::Unreadable(format!("it has more than {MAX_ANSWER_BYTES} bytes"))
            } else {
                self.unanswered(error)
            }
        })?;
        Ok((status, body.to_bytes()))
    }

    pub(super) async fn stream(&self, path: &str) -> Result<Incoming, CallError> {
        let sending = self.send(Method::GET, path, None, Some("text/event-stream"));
        let answer = timeout(ANSWERED_WITHIN, sending).await.map_err(|_| self.unanswered("it took too long"))??;
        if answer.status().is_success() {
            return Ok(answer.into_body());
        }
        let status = answer.status();
        let body = Limited::new(answer.into_body(), 1 << 20).collect().await.map_err(|error| self.unanswered(error))?;
        Err(refusal(status, &body.to_bytes()))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        accept: Option<&str>,
    ) -> Result<Response<Incoming>, CallError> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.place.authority()));
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(accept) = accept {
            request = request.header(header::ACCEPT, accept);
        }
        if let Some(token) = self.place.token() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| CallError::Unreadable(format!("not a request: {error}")))?;
        let mut sender = self.connection().await?;
        sender.send_request(request).await.map_err(|error| self.unanswered(error))
    }

    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, CallError> {
        let mut open = self.open.lock().await;
        if let Some(sender) = open.as_mut().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let stream = self.place.open().await.map_err(|error| self.unanswered(error))?;
        let (sender, connection) =
            handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(|error| self.unanswered(error))?;
        // It ends with the last sender; what goes wrong with it, whoever calls is told.
        tokio::spawn(async move { drop(connection.await) });
        *open = Some(sender.clone());
        Ok(sender)
    }

    fn unanswered(&self, error: impl std::fmt::Display) -> CallError {
        CallError::Unanswered { authority: self.place.authority().to_owned(), why: error.to_string() }
    }
}

fn may_pass(error: &CallError) -> bool {
    match error {
        CallError::Unanswered { .. } => true,
        CallError::Refused { status, .. } => *status == 503,
        CallError::Unreadable(_) | CallError::TooMany { .. } => false,
    }
}

fn refusal(status: StatusCode, text: &[u8]) -> CallError {
    let problem = crate::json::read(text).unwrap_or_default();
    let field = |name: &str| problem[name].as_str().map(str::to_owned);
    CallError::Refused {
        status: status.as_u16(),
        code: field("code").unwrap_or_else(|| "unknown".into()),
        detail: field("detail").unwrap_or_else(|| format!("the answer was {status}")),
    }
}

impl Answer {
    pub(super) fn read(text: Bytes) -> Result<Self, CallError> {
        let text = if text.is_empty() { Bytes::from_static(b"null") } else { text };
        let value = crate::json::read(&text).map_err(|error| CallError::Unreadable(error.to_string()))?;
        Ok(Self { text, value })
    }

    pub(super) fn field(&self, name: &str) -> Result<&Value, CallError> {
        self.value.get(name).ok_or_else(|| CallError::Unreadable(format!("`{name}` is missing")))
    }

    pub(super) fn text(&self, name: &str) -> Result<String, CallError> {
        let text = self.field(name)?.as_str().map(str::to_owned);
        text.ok_or_else(|| CallError::Unreadable(format!("`{name}` is not a text")))
    }

    pub(super) fn job(self) -> Result<JobInfo, CallError> {
        JobInfo::read(&self.text, self.value).map_err(CallError::Unreadable)
    }

    pub(super) fn into<T: DeserializeOwned>(self) -> Result<T, CallError> {
        serde_json::from_value(self.value).map_err(|error| CallError::Unreadable(error.to_string()))
    }
}
