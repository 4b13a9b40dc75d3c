//! Connections to one leader: few, shared, and bounded in what they carry.
//!
//! Calls share connections, a hundred and more on each. Streams that last, and on which clients send without end, share
//! them in small numbers: HTTP/2 gives a whole connection one window for what is not read yet, and a stream that the
//! leader does not read on holds up its neighbours.

use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::Body;
use hyper::client::conn::http2::SendRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::target::{LeaderTrust, NodeTargetParts};

/// The time for which a failed try is not repeated: many who come at once share one answer.
const FAILURE_HOLDS: Duration = Duration::from_millis(50);

/// The kind of connection that a call needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnectionKind {
    Calls,
    Streams,
}

/// The reason why there is no connection for a call; nothing of it was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NoLink {
    Unreachable(String),
    /// The most calls that may be under way are under way.
    Full,
}

#[derive(Debug)]
pub(super) struct LeaderLinks {
    pub(super) target: NodeTargetParts,
    trust: Option<LeaderTrust>,
    calls: LinksState,
    streams: LinksState,
}

/// A place on a connection, for one call.
#[derive(Debug)]
pub(super) struct CallSlot {
    pub(super) sender: SendRequest<Body>,
    pub(super) place: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct LinksState {
    each: usize,
    connections: usize,
    open: Mutex<Vec<(SendRequest<Body>, Arc<Semaphore>)>>,
    /// The lock of the task that opens a connection, with the error of the last try if that failed.
    opening: tokio::sync::Mutex<Option<(Instant, String)>>,
}

impl LeaderLinks {
    pub(super) fn to(target: NodeTargetParts, trust: Option<LeaderTrust>) -> Self {
        Self { target, trust, calls: LinksState::of(128, 64), streams: LinksState::of(16, 512) }
    }

    /// A place on a connection that is open, or on a new one.
    pub(super) async fn open(&self, lane: ConnectionKind) -> Result<CallSlot, NoLink> {
        let shared = match lane {
            ConnectionKind::Calls => &self.calls,
            ConnectionKind::Streams => &self.streams,
        };
        if let Some(link) = shared.free() {
            return Ok(link);
        }
        let mut failed = shared.opening.lock().await;
        if let Some(link) = shared.free() {
            return Ok(link);
        }
        if shared.count() >= shared.connections {
            return Err(NoLink::Full);
        }
        if let Some((at, why)) = &*failed
            && at.elapsed() < FAILURE_HOLDS
        {
            return Err(NoLink::Unreachable(why.clone()));
        }
        match self.target.connect(self.trust.as_ref(), shared.each).await {
            Ok(sender) => {
                *failed = None;
                Ok(shared.add(sender))
            }
            Err(error) => {
                let why = error.to_string();
                *failed = Some((Instant::now(), why.clone()));
                Err(NoLink::Unreachable(why))
            }
        }
    }
}

impl LinksState {
    fn of(each: usize, connections: usize) -> Self {
        Self { each, connections, open: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    fn free(&self) -> Option<CallSlot> {
        let mut open = self.open.lock().expect("no thread panics while it holds this");
        open.retain(|(sender, _)| !sender.is_closed());
        open.iter().find_map(|(sender, places)| {
            let place = places.clone().try_acquire_owned().ok()?;
            Some(CallSlot { sender: sender.clone(), place })
        })
    }

    fn count(&self) -> usize {
        self.open.lock().expect("no thread panics while it holds this").len()
    }

    fn add(&self, sender: SendRequest<Body>) -> CallSlot {
        let places = Arc::new(Semaphore::new(self.each));
        let place = places.clone().try_acquire_owned().expect("nobody else has it yet");
        self.open.lock().expect("no thread panics while it holds this").push((sender.clone(), places));
        CallSlot { sender, place }
    }
}
