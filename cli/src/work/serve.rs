//! The worker for commands, of `onward up` and of `onward worker`.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use onward::{Context, NodeAddresses, Worker};
use onward_exec::OutputStream;

use super::handler::{KIND, Manner, Witness, handler};
use crate::failure::CommandFailure;

/// The time beyond its own grace that a stopped command may take before its worker gives up on it.
const SLACK: Duration = Duration::from_secs(2);

/// Output goes to the node, which keeps the end of it.
struct ToNode;

impl Witness for ToNode {
    async fn output(&self, context: &Context, _stream: OutputStream, bytes: &[u8]) -> io::Result<()> {
        context.output(bytes);
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct Commands {
    pub id: Option<String>,
    pub slots: u32,
    pub queues: Vec<String>,
    pub manner: Manner,
    /// The time that the worker has to end once it should stop.
    pub stop_within: Duration,
}

/// Runs commands until `stop`, and then those that are under way to their end.
pub async fn serve(commands: Commands, place: impl Into<NodeAddresses>, stop: impl Future<Output = ()>) -> Result<()> {
    let grace = commands.manner.grace + SLACK;
    let mut worker = Worker::at(place)
        .slots(commands.slots)
        .cancel_grace(grace)
        .drain_grace(commands.stop_within)
        .stop_within(commands.stop_within)
        .handle_bytes(KIND, handler(commands.manner, Arc::new(ToNode)));
    if let Some(id) = commands.id {
        worker = worker.id(id);
    }
    if !commands.queues.is_empty() {
        worker = worker.queues(commands.queues);
    }
    worker.run_until(stop).await.map_err(|error| CommandFailure::new("the worker has stopped").why(error).into())
}
