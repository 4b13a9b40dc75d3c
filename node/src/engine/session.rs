//! A worker's connection, as the engine sees it: what it says goes in, what it is told comes out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onward_core::ids::SessionId;
use onward_core::input::Input;
use onward_core::message::{FromWorker, ToWorker};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::content::Contents;
use super::{Ask, Engine};

/// A worker that reads nothing while it goes on talking is cut off here: its answers would grow without end.
/// More than the largest worker may have slots.
const MAX_UNREAD: usize = 200_000;

/// Where the machine puts what a session is told.
pub(super) struct Outbox {
    sender: UnboundedSender<ToWorker>,
    unread: Arc<AtomicUsize>,
}

#[derive(Debug)]
pub struct SessionGone;

impl Outbox {
    /// False if the session must be closed.
    pub(super) fn put(&self, message: ToWorker) -> bool {
        self.unread.fetch_add(1, Ordering::Relaxed) < MAX_UNREAD && self.sender.send(message).is_ok()
    }
}

/// Dropping it closes the session.
pub struct Session {
    id: SessionId,
    engine: Engine,
    inbox: UnboundedReceiver<ToWorker>,
    /// Received, and not yet given out: contents are being fetched.
    heard: Vec<ToWorker>,
    unread: Arc<AtomicUsize>,
}

impl core::fmt::Debug for Session {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn open(engine: Engine) -> Self {
        let shared = &engine.0;
        let id = SessionId(shared.next.fetch_add(1, Ordering::Relaxed));
        let (sender, inbox) = unbounded_channel();
        let unread = Arc::new(AtomicUsize::new(0));
        shared.ask(Ask::Open { session: id, outbox: Outbox { sender, unread: unread.clone() } });
        Self { id, engine, inbox, heard: Vec::new(), unread }
    }

    /// Results come with their bytes; the large ones go to the store from here.
    pub fn say(&self, mut message: FromWorker) {
        let contents = Contents::of_message(&mut message);
        self.engine.0.ask(Ask::Said { session: self.id, message, contents });
    }

    /// The next messages for the worker, up to `max` of those that are there; an error once the machine closed the
    /// session. Nothing is lost if this is given up while it waits.
    pub async fn hear(&mut self, into: &mut Vec<ToWorker>, max: usize) -> Result<(), SessionGone> {
        if self.heard.is_empty() {
            let count = self.inbox.recv_many(&mut self.heard, max).await;
            self.unread.fetch_sub(count, Ordering::Relaxed);
            if count == 0 {
                return Err(SessionGone);
            }
        }
        for message in &mut self.heard {
            if let ToWorker::Assign(assignment) = message
                && let Err(error) = self.engine.fetch_inputs(assignment).await
            {
                // The worker comes again and is given it then; without its payload it is of no use.
                tracing::warn!(%error, "a payload could not be read; closing the session");
                return Err(SessionGone);
            }
        }
        into.append(&mut self.heard);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.0.ask(Ask::Input(Input::SessionClosed { session: self.id }));
    }
}
