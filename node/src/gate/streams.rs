//! A datacenter's stream, as the engine sees it: what its leader says goes in, what it is told comes out.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use onward_core::gate::message::{Frame, FromDatacenter, ToDatacenter};
use onward_core::ids::{Name, StreamId};
use onward_proto::MAX_FRAME_BYTES;

use super::{Command, GateEngine, GateState};
use crate::backlog::Backlog;
use crate::engine::EngineRefusal;
use crate::engine::content::Contents;
use crate::outbox::{self, Unread};

/// A datacenter that reads nothing while orders pile up is cut off: it may dial again, and is sent what it is owed then.
const MAX_UNREAD: usize = 100_000;
/// Bytes of a datacenter's messages that the machine has not taken: two full frames.
const MAX_BACKLOG_BYTES: usize = 2 * MAX_FRAME_BYTES;
/// Orders that are taken from the machine at once.
const AT_ONCE: usize = 256;

/// The machine has closed the stream, or there is none: the datacenter may dial again.
#[derive(Debug)]
pub struct StreamGone;

/// The stream of one datacenter. Dropping it closes it.
pub struct DatacenterStream {
    id: StreamId,
    engine: GateEngine,
    backlog: Backlog,
}

/// Messages to the datacenter, in order.
pub struct Orders {
    unread: Unread<ToDatacenter>,
    waiting: VecDeque<ToDatacenter>,
}

impl core::fmt::Debug for Orders {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Orders").finish_non_exhaustive()
    }
}

impl core::fmt::Debug for DatacenterStream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DatacenterStream").field("id", &self.id).finish_non_exhaustive()
    }
}

impl GateEngine {
    /// A leader of this datacenter is connected, and has proved to be one.
    pub fn open_stream(&self, datacenter: Name) -> (DatacenterStream, Orders) {
        let id = StreamId(self.0.next.fetch_add(1, Ordering::Relaxed));
        let (outbox, unread) = outbox::channel(MAX_UNREAD);
        self.0.stats.streams_opened.add(1);
        self.0.send(Command::Open { stream: id, datacenter, outbox });
        let backlog = Backlog::of(MAX_BACKLOG_BYTES);
        (DatacenterStream { id, engine: self.clone(), backlog }, Orders { unread, waiting: VecDeque::new() })
    }
}

/// A stream that waits until this gate leads. Until it is dropped, its datacenter counts as one that is reached.
pub(super) struct WaitingStream<'a> {
    engine: &'a GateEngine,
    datacenter: &'a Name,
}

impl GateEngine {
    /// A leader of this datacenter has said hello to a gate that may not lead.
    pub(super) fn wait_with<'a>(&'a self, datacenter: &'a Name) -> WaitingStream<'a> {
        let mut waiting = self.0.waiting.lock().expect("no thread panics while it holds this");
        *waiting.entry(datacenter.clone()).or_default() += 1;
        WaitingStream { engine: self, datacenter }
    }

    /// The number of datacenters with a stream that waits until this gate leads.
    pub fn waiting_datacenters(&self) -> usize {
        self.0.waiting_datacenters()
    }
}

impl GateState {
    pub(super) fn waiting_datacenters(&self) -> usize {
        self.waiting.lock().expect("no thread panics while it holds this").len()
    }
}

impl Drop for WaitingStream<'_> {
    fn drop(&mut self) {
        let mut waiting = self.engine.0.waiting.lock().expect("no thread panics while it holds this");
        if let Some(streams) = waiting.get_mut(self.datacenter) {
            *streams -= 1;
            if *streams == 0 {
                waiting.remove(self.datacenter);
            }
        }
    }
}

impl DatacenterStream {
    /// Returns when the machine is not too far behind to be told more.
    pub async fn room(&self) {
        self.backlog.room().await;
    }

    /// A result comes with its bytes; a large one goes to the store from here. So many `bytes` came over the wire.
    pub fn send_frame(&self, mut frame: Frame, bytes: usize) {
        let mut contents = Contents::default();
        if let FromDatacenter::Final(status) = &mut frame.message
            && let Some(result) = &mut status.result
        {
            contents.replace(result);
        }
        let backlogged = self.backlog.add(bytes);
        self.engine.0.stats.frames.add(1);
        self.engine.0.send(Command::Frame { stream: self.id, frame: Box::new(frame), contents, backlogged });
    }

    /// Adds what the machine does not have: the bytes of payloads. Doing it twice does no harm.
    pub async fn complete(&self, message: &mut ToDatacenter) -> Result<(), EngineRefusal> {
        if let ToDatacenter::Submit(placement) = message {
            let job = placement.job;
            for workflow in &mut placement.draft.workflows {
                self.engine.fetch(job, &mut workflow.payload).await?;
            }
        }
        Ok(())
    }
}

impl Orders {
    /// The first that was not taken out. Nothing is lost if this is given up while it waits.
    pub async fn next(&mut self) -> Result<&mut ToDatacenter, StreamGone> {
        if self.waiting.is_empty() {
            let mut heard = Vec::new();
            self.unread.take(&mut heard, AT_ONCE).await;
            self.waiting.extend(heard);
        }
        self.waiting.front_mut().ok_or(StreamGone)
    }

    pub fn pop(&mut self) -> Option<ToDatacenter> {
        self.waiting.pop_front()
    }

    #[cfg(test)]
    pub(super) fn of(orders: impl IntoIterator<Item = ToDatacenter>) -> Self {
        Self { unread: outbox::channel(1).1, waiting: orders.into_iter().collect() }
    }
}

impl Drop for DatacenterStream {
    fn drop(&mut self) {
        self.engine.0.send(Command::Close { stream: self.id });
    }
}
