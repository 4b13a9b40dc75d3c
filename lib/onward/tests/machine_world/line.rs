//! Connections, as TCP has them: in order, delayed, and cut without either end knowing at once.

use std::time::Duration;

use onward_core::message::FromWorker;
use onward_core::time::Mono;
use onward_proto::manager::{ManagerMessage, frame_in};
use onward_proto::v1::{ManagerFrame, WorkerFrame};
use onward_proto::worker;

/// A connection, which is one session.
pub struct Line {
    pub worker: usize,
    /// Set when the line is cut: messages under way are lost, and so are later ones.
    pub is_cut: bool,
    pub worker_knows: bool,
    pub manager_knows: bool,
    up: Mono,
    down: Mono,
}

impl Line {
    pub fn new(worker: usize, now: Mono) -> Self {
        Self { worker, is_cut: false, worker_knows: false, manager_knows: false, up: now, down: now }
    }

    /// The instant when a message to the manager that is sent now arrives: never before one that was sent earlier.
    pub fn arrives_up(&mut self, now: Mono, delay: Duration) -> Mono {
        self.up = self.up.max(now + delay);
        self.up
    }

    pub fn arrives_down(&mut self, now: Mono, delay: Duration) -> Mono {
        self.down = self.down.max(now + delay);
        self.down
    }
}

/// The worker's message, as a manager reads it.
pub fn over_the_wire(message: FromWorker) -> Vec<FromWorker> {
    let mut frame = WorkerFrame::default();
    worker::put(&mut frame, message.clone());
    let parts = worker::frame_in(&frame).expect("a worker says what can be read");
    assert_eq!(parts, [message], "and is understood");
    parts
}

/// The manager's frame, as a worker reads it.
pub fn heard(frame: &ManagerFrame) -> Vec<ManagerMessage> {
    frame_in(frame).expect("a manager says what can be read")
}
