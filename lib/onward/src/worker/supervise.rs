//! Handlers, each watched over to its end.

use core::time::Duration;
use std::collections::BTreeMap;

use onward_core::ids::Claim;
use onward_lease::{HandlerEnd, watch};
use onward_proto::common::payload_in;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;

use super::Handler;
use crate::context::Context;
use crate::link::SessionCommand;
use crate::machine::HandlerOutcome;

/// More would not fit into a frame, and no session would survive it. What the manager takes is less.
const MAX_RESULT_BYTES: usize = onward_proto::MAX_FRAME_BYTES / 2;

/// Runs handlers where the worker's caller runs.
pub(super) struct Starter {
    pub(super) handlers: BTreeMap<String, Handler>,
    pub(super) executor: Handle,
    pub(super) commands: UnboundedSender<SessionCommand>,
    pub(super) cancel_grace: Duration,
}

impl Starter {
    pub(super) fn start(&self, context: Context) {
        let Some(handler) = self.handlers.get(context.kind()).cloned() else {
            // The manager gives only what was subscribed to; giving it back is all that can be done.
            let outcome = HandlerOutcome::Released { delay: None };
            return drop(self.commands.send(SessionCommand::Finished { claim: context.claim(), outcome }));
        };
        let grace = self.cancel_grace;
        let mut finish =
            Finish { commands: self.commands.clone(), claim: context.claim(), outcome: HandlerOutcome::Stopped };
        self.executor.spawn(async move { finish.by(supervise(handler, context, grace).await) });
    }
}

/// Tells how a handler ended, also if its executor goes away under it.
struct Finish {
    commands: UnboundedSender<SessionCommand>,
    claim: Claim,
    outcome: HandlerOutcome,
}

impl Finish {
    fn by(&mut self, outcome: HandlerOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        let outcome = core::mem::replace(&mut self.outcome, HandlerOutcome::Stopped);
        // If the link is gone there is nobody to tell; the manager sees that by itself.
        let _ = self.commands.send(SessionCommand::Finished { claim: self.claim, outcome });
    }
}

async fn supervise(handler: Handler, context: Context, grace: Duration) -> HandlerOutcome {
    let heartbeat = context.heartbeat().clone();
    match watch(&heartbeat, grace, move || handler(context)).await {
        HandlerEnd::Succeeded(result) if result.len() > MAX_RESULT_BYTES => {
            let error =
                format!("a result of {} bytes is too large to be sent; store it, and return where", result.len());
            HandlerOutcome::Failed { error: error.into(), retryable: false, delay: None }
        }
        HandlerEnd::Succeeded(result) => HandlerOutcome::Succeeded(payload_in(&result)),
        HandlerEnd::Failed { error, retryable, after } => HandlerOutcome::Failed { error, retryable, delay: after },
        HandlerEnd::Released { after } => HandlerOutcome::Released { delay: after },
        HandlerEnd::Stopped => HandlerOutcome::Stopped,
    }
}
