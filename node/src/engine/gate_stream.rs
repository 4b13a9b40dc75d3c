//! A stream to a gate, as a manager's engine sees it: what the gate orders goes in, what it is told comes out.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use onward_core::gate::message::{Frame, FromDatacenter, ToDatacenter};
use onward_core::ids::{Name, StreamId};
use onward_core::input::{GateQuestion, Input};
use onward_core::refusal::Refusal;
use onward_proto::MAX_ORDER_BYTES;

use super::content::Contents;
use super::{Command, Engine, EngineRefusal};
use crate::backlog::Backlog;
use crate::outbox::{self, Unread};

/// A gate that reads nothing while reports pile up is cut off: they are repeated when it is back.
const MAX_UNREAD: usize = 100_000;
/// Bytes of a gate's messages that the machine has not taken: one full frame, and one more.
const MAX_BACKLOG_BYTES: usize = MAX_ORDER_BYTES;
/// Messages that are taken from the machine at once.
const AT_ONCE: usize = 256;

/// The outbox for messages to a gate.
pub(super) type GateSender = outbox::BacklogSender<ForGate>;

/// Something that the task of a stream does for the machine.
#[derive(Debug)]
pub enum ForGate {
    Send(Box<Frame>),
    /// A question for the archive, which the machine does not wait for.
    Find(Box<GateQuestion>),
}

/// The machine has closed the stream, or there is none: the gate is dialled again.
#[derive(Debug)]
pub struct GateStreamGone;

/// A stream to one gate. Dropping it closes it.
pub struct GateStream {
    id: StreamId,
    engine: Engine,
    backlog: Backlog,
}

/// Messages to the gate, in order.
pub struct GateReports {
    unread: Unread<ForGate>,
    waiting: VecDeque<ForGate>,
}

impl core::fmt::Debug for GateStream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GateStream").field("id", &self.id).finish_non_exhaustive()
    }
}

impl core::fmt::Debug for GateReports {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GateReports").finish_non_exhaustive()
    }
}

impl Engine {
    /// A gate was reached. The manager speaks to it for this datacenter.
    pub fn open_gate(&self, datacenter: Name) -> (GateStream, GateReports) {
        let id = StreamId(self.0.next.fetch_add(1, Ordering::Relaxed));
        let (outbox, unread) = outbox::channel(MAX_UNREAD);
        self.0.send(Command::OpenGate { stream: id, datacenter, outbox });
        let backlog = Backlog::of(MAX_BACKLOG_BYTES);
        (GateStream { id, engine: self.clone(), backlog }, GateReports { unread, waiting: VecDeque::new() })
    }
}

impl GateStream {
    /// Returns when the machine is not too far behind to be told more.
    pub async fn room(&self) {
        self.backlog.room().await;
    }

    /// The gate has said this, in so many bytes. Payloads come with theirs; the large ones go to the store from here.
    pub fn receive(&self, mut message: ToDatacenter, bytes: usize) {
        let mut contents = Contents::default();
        if let ToDatacenter::Submit(placement) = &mut message {
            placement.draft.workflows.iter_mut().for_each(|workflow| contents.replace(&mut workflow.payload));
        }
        let (stream, message, backlogged) = (self.id, Box::new(message), self.backlog.add(bytes));
        self.engine.0.send(Command::GateMessage { stream, message, contents, backlogged });
    }

    /// Adds what the machine does not have: the bytes of a result. Doing it twice does no harm.
    ///
    /// A result that can never be read is left out, and the error says so: how the job ended is known all the same. The
    /// final would else be the first of every stream to come, and nothing behind it would be said.
    pub async fn complete(&self, frame: &mut Frame) -> Result<(), EngineRefusal> {
        let FromDatacenter::Final(status) = &mut frame.message else { return Ok(()) };
        let Some(result) = &mut status.result else { return Ok(()) };
        let job = status.report.job;
        match self.engine.fetch(job, result).await {
            Err(refused) if refused.is_for_good() || refused == EngineRefusal::ByMachine(Refusal::UnknownJob) => {
                tracing::warn!(%job, why = %refused, "the result of a job cannot be read; the gate is told its end without it");
                let unreadable = format!("its result cannot be read in this datacenter: {refused}");
                status.error = Some(match &status.error {
                    Some(error) => format!("{error}; {unreadable}").into(),
                    None => unreadable.into(),
                });
                status.result = None;
                Ok(())
            }
            fetched => fetched,
        }
    }

    /// Looks the job of a question up in the archive, and tells the machine.
    pub async fn find(&self, question: &GateQuestion) -> Result<(), EngineRefusal> {
        let image = self.engine.archived(question.job()).await?.map(Box::new);
        let question = Box::new(question.clone());
        self.engine.0.send(Command::Input(Input::ArchivedFound { stream: self.id, question, image }));
        Ok(())
    }
}

impl GateReports {
    /// The first that was not taken out. Nothing is lost if this is given up while it waits.
    pub async fn next(&mut self) -> Result<&mut ForGate, GateStreamGone> {
        if self.waiting.is_empty() {
            let mut told = Vec::new();
            self.unread.take(&mut told, AT_ONCE).await;
            self.waiting.extend(told);
        }
        self.waiting.front_mut().ok_or(GateStreamGone)
    }

    pub fn pop(&mut self) -> Option<ForGate> {
        self.waiting.pop_front()
    }
}

impl Drop for GateStream {
    fn drop(&mut self) {
        self.engine.0.send(Command::Input(Input::GateClosed { stream: self.id }));
    }
}
