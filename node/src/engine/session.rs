//! A worker's connection, as the engine sees it: what it says goes in, what it is told comes out.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use onward_core::ids::SessionId;
use onward_core::input::Input;
use onward_core::message::{FromWorker, ToWorker};
use onward_proto::manager::weight;

use super::content::Contents;
use super::delivery::{DeliveryError, WorkerRoom};
use super::{Command, Engine};
use crate::outbox::{self, Unread};

/// A worker that reads nothing while it goes on talking is cut off here: its answers would grow without end.
/// More than the largest worker may have slots.
const MAX_UNREAD: usize = 200_000;

/// The number of bytes, about, after which what was read from the store is handed on before more is read.
const READ_AT_ONCE: usize = 1 << 20;

/// The outbox for messages to a session.
pub(super) type SessionSender = outbox::BacklogSender<ToWorker>;

#[derive(Debug)]
pub struct SessionGone;

/// Dropping it closes the session.
pub struct WorkerSession {
    id: SessionId,
    engine: Engine,
    unread: Unread<ToWorker>,
    /// Received, and not yet completed by what only the store or the archive knows.
    heard: VecDeque<ToWorker>,
    complete: Vec<ToWorker>,
    fetches_inputs: bool,
}

impl core::fmt::Debug for WorkerSession {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}

impl WorkerSession {
    pub(super) fn open(engine: Engine) -> Self {
        let shared = &engine.0;
        let id = SessionId(shared.next.fetch_add(1, Ordering::Relaxed));
        let (outbox, unread) = outbox::channel(MAX_UNREAD);
        shared.send(Command::Open { session: id, outbox });
        Self { id, engine, unread, heard: VecDeque::new(), complete: Vec::new(), fetches_inputs: false }
    }

    /// Results come with their bytes; the large ones go to the store from here.
    pub fn send(&mut self, mut message: FromWorker) {
        let contents = Contents::of_message(&mut message);
        self.engine.0.send(Command::WorkerMessage { session: self.id, message, contents });
    }

    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The worker fetches inputs: those that are large together come as [`Payload::Stored`].
    ///
    /// [`Payload::Stored`]: onward_core::payload::Payload::Stored
    pub fn fetches_inputs(&mut self, fetches: bool) {
        self.fetches_inputs = fetches;
    }

    /// The next messages for the worker, up to `max` of those that are there; an error once the machine closed the
    /// session. Nothing is lost if this is given up while it waits.
    pub async fn receive(&mut self, into: &mut Vec<ToWorker>, max: usize) -> Result<(), SessionGone> {
        loop {
            if self.heard.is_empty() && self.complete.is_empty() {
                let mut heard = Vec::new();
                if self.unread.take(&mut heard, max).await == 0 {
                    return Err(SessionGone);
                }
                self.heard.extend(heard);
            }
            let delivery = self.engine.0.delivery;
            let inputs = self.fetches_inputs.then_some(delivery.frame_inputs);
            let room = WorkerRoom { inputs, assignment: delivery.assignment };
            let mut read = 0;
            while read < READ_AT_ONCE
                && let Some(message) = self.heard.front_mut()
            {
                let completed = complete(&self.engine, message, room).await;
                let message = match completed {
                    Err(DeliveryError::ForNow(error)) => {
                        // The worker comes again and is told then; half of it would be of no use.
                        tracing::warn!(%error, "the store could not be read; closing the session");
                        return Err(SessionGone);
                    }
                    Ok(()) => self.heard.pop_front().expect("it is the first"),
                    Err(DeliveryError::ForGood(why)) => {
                        let unsent = self.heard.pop_front().expect("it is the first");
                        if let ToWorker::Assign(assignment) = unsent {
                            self.engine.give_up(assignment.claim, &why);
                        }
                        continue;
                    }
                };
                read += weight(&message);
                self.complete.push(message);
            }
            if !self.complete.is_empty() {
                into.append(&mut self.complete);
                return Ok(());
            }
        }
    }
}

/// Adds what the machine does not have: contents, and the answers about jobs that have left memory. Doing it twice does
/// no harm.
async fn complete(engine: &Engine, message: &mut ToWorker, room: WorkerRoom) -> Result<(), DeliveryError> {
    match message {
        ToWorker::Assign(assignment) => engine.complete(assignment, room).await,
        ToWorker::BeatAnswers(answers) => engine.answer_late_beats(answers).await.map_err(DeliveryError::ForNow),
        ToWorker::SettleAnswers(answers) => engine.answer_late_outcomes(answers).await.map_err(DeliveryError::ForNow),
        ToWorker::Welcome { .. }
        | ToWorker::Rejected(_)
        | ToWorker::ExtensionAnswer(_)
        | ToWorker::Probe { .. }
        | ToWorker::Cancel { .. }
        | ToWorker::Refused(_)
        | ToWorker::Goodbye => Ok(()),
    }
}

impl Drop for WorkerSession {
    fn drop(&mut self) {
        self.engine.0.send(Command::Input(Input::SessionClosed { session: self.id }));
    }
}
