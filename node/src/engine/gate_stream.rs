//! A stream to a gate, as a manager's engine sees it: what the gate orders goes in, what it is told comes out.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use onward_core::gate::message::{Frame, FromDatacenter, ToDatacenter};
use onward_core::ids::{Name, StreamId};
use onward_core::input::{GateQuestion, Input};

use super::content::Contents;
use super::{Command, Engine, Refused};
use crate::outbox::{self, Unread};

/// A gate that reads nothing while reports pile up is cut off: they are repeated when it is back.
const MAX_UNREAD: usize = 100_000;
/// Messages that are taken from the machine at once.
const AT_ONCE: usize = 256;

/// Where what a gate is told is put.
pub(super) type Outbox = outbox::Outbox<ForGate>;

/// Something that the task of a stream does for the machine.
#[derive(Debug)]
pub enum ForGate {
    Say(Box<Frame>),
    /// To be looked up in the archive, which the machine does not wait for.
    Find(Box<GateQuestion>),
}

/// The machine has closed the stream, or there is none: the gate is dialled again.
#[derive(Debug)]
pub struct GateStreamGone;

/// A stream to one gate. Dropping it closes it.
pub struct GateStream {
    id: StreamId,
    engine: Engine,
}

/// What the gate is told, in order.
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
        (GateStream { id, engine: self.clone() }, GateReports { unread, waiting: VecDeque::new() })
    }
}

impl GateStream {
    /// The gate has said this. Payloads come with their bytes; the large ones go to the store from here.
    pub fn take(&self, mut message: ToDatacenter) {
        let mut contents = Contents::default();
        if let ToDatacenter::Submit(placement) = &mut message {
            placement.draft.workflows.iter_mut().for_each(|workflow| contents.replace(&mut workflow.payload));
        }
        self.engine.0.send(Command::GateMessage { stream: self.id, message: Box::new(message), contents });
    }

    /// Adds what the machine does not have: the bytes of a result. Doing it twice does no harm.
    pub async fn complete(&self, frame: &mut Frame) -> Result<(), Refused> {
        if let FromDatacenter::Final(status) = &mut frame.message
            && let Some(result) = &mut status.result
        {
            self.engine.fetch(status.report.job, result).await?;
        }
        Ok(())
    }

    /// Looks the job of a question up in the archive, and tells the machine.
    pub async fn find(&self, question: &GateQuestion) -> Result<(), Refused> {
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
