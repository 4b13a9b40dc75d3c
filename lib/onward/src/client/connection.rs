//! Connections to a node, opened when they are needed and again when they are lost.

use core::time::Duration;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::HeaderMap;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use onward_api::cluster::{CallFate, DONE};
use tokio::sync::Mutex;

use super::error::{CallError, NoConnection, Silence};
use crate::address::{NodeAddress, NodeAddresses, PING_ANSWERED_WITHIN, PING_EVERY};

/// The protocol of a client. A program that makes many calls at once uses one connection for all of them; a command
/// line makes one after the other, and also through whatever stands in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    #[default]
    Http2,
    Http1,
}

/// Idle connections that are kept. More are only open while more calls are made at once.
const MAX_IDLE: usize = 4;

/// Connections to whichever node is asked.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) addresses: NodeAddresses,
    pub(super) protocol: Protocol,
    current: StdMutex<Arc<Connections>>,
}

impl Nodes {
    pub(super) fn new(addresses: NodeAddresses, protocol: Protocol) -> Self {
        let current = StdMutex::new(Arc::new(Connections::new(addresses.next(), protocol)));
        Self { addresses, protocol, current }
    }

    /// Connections to the node that is to be asked now. Those to another one end with the calls on them.
    pub(super) fn connections(&self) -> Arc<Connections> {
        let next = self.addresses.next();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.address.authority() != next.authority() {
            *current = Arc::new(Connections::new(next, self.protocol));
        }
        current.clone()
    }
}

#[derive(Debug)]
pub(super) struct Connections {
    address: NodeAddress,
    protocol: Protocol,
    shared: Mutex<Option<http2::SendRequest<Full<Bytes>>>>,
    idle: StdMutex<Vec<http1::SendRequest<Full<Bytes>>>>,
}

/// A connection that carries one answer at a time, until that is read.
#[derive(Debug)]
pub(super) struct Busy(Option<http1::SendRequest<Full<Bytes>>>);

impl Connections {
    pub(super) fn new(address: NodeAddress, protocol: Protocol) -> Self {
        Self { address, protocol, shared: Mutex::default(), idle: StdMutex::default() }
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(super) fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// The answer's head, and what to give back once its body is read.
    pub(super) async fn send(&self, request: Request<Full<Bytes>>) -> Result<(Response<Incoming>, Busy), CallError> {
        match self.protocol {
            Protocol::Http2 => {
                let mut sender = self.shared().await?;
                let answer = sender.send_request(request).await.map_err(|error| self.lost(&error))?;
                Ok((answer, Busy(None)))
            }
            Protocol::Http1 => {
                let mut sender = self.lone().await?;
                let answer = sender.send_request(request).await.map_err(|error| self.lost(&error))?;
                Ok((answer, Busy(Some(sender))))
            }
        }
    }

    pub(super) fn give_back(&self, busy: Busy) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = busy.0.filter(|sender| !sender.is_closed() && idle.len() < MAX_IDLE) {
            idle.push(sender);
        }
    }

    async fn shared(&self) -> Result<http2::SendRequest<Full<Bytes>>, CallError> {
        let mut open = self.shared.lock().await;
        if let Some(sender) = open.as_mut().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let stream = self.address.open().await.map_err(|error| self.unreachable(NoConnection::of(&error)))?;
        let opening = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_ANSWERED_WITHIN)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = opening.map_err(|error| self.unreachable(NoConnection::Other(error.to_string())))?;
        // It ends with the last sender; what goes wrong with it, every call is told.
        tokio::spawn(async move { drop(connection.await) });
        *open = Some(sender.clone());
        Ok(sender)
    }

    async fn lone(&self) -> Result<http1::SendRequest<Full<Bytes>>, CallError> {
        // A connection that was closed meanwhile is seen to be so once its own task has run.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut sender) = idle else { break };
            if !sender.is_closed() && sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let stream = self.address.open_http1().await.map_err(|error| self.unreachable(NoConnection::of(&error)))?;
        let opening = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = opening.map_err(|error| self.unreachable(NoConnection::Other(error.to_string())))?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    /// The error of a call whose answer is not HTTP, or did not come.
    fn lost(&self, error: &hyper::Error) -> CallError {
        if error.is_parse() {
            return self.unreachable(match error.to_string().contains("HTTP version") {
                true => NoConnection::OnlyTls,
                false => NoConnection::Other(format!("the answer is not HTTP: {error}")),
            });
        }
        self.unanswered(Silence::Lost(reason(error)))
    }

    pub(super) fn unreachable(&self, why: NoConnection) -> CallError {
        CallError::Unreachable { authority: self.address.authority().to_owned(), why }
    }

    pub(super) fn unanswered(&self, why: Silence) -> CallError {
        CallError::Unanswered { authority: self.address.authority().to_owned(), why }
    }

    /// The error of an answer that is no success; and whether the node has surely done nothing, and another may.
    pub(super) fn refused(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> (CallError, bool) {
        let refused = CallError::refused(status.as_u16(), body);
        let done = headers.get(DONE).and_then(|done| CallFate::of(done.as_bytes()));
        match (done, refused) {
            (Some(CallFate::Unknown), CallError::Refused { status: 503, detail, .. }) => {
                (self.unanswered(Silence::InDoubt(detail)), false)
            }
            (done, refused) => {
                let is_undone = done == Some(CallFate::No) && refused.code() == Some("no_leader");
                (refused, is_undone)
            }
        }
    }

    pub(super) fn too_long(&self, within: Duration) -> CallError {
        self.unanswered(Silence::TooLong(within))
    }
}

/// The error with the cause behind it, which says more.
pub(super) fn reason(error: &(dyn core::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(more) = cause {
        text += &format!(": {more}");
        cause = more.source();
    }
    text
}
