//! Handlers, each watched over to its end.

use core::time::Duration;
use std::collections::BTreeMap;

use onward_core::ids::Claim;
use onward_proto::common::payload_in;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinError;
use tokio::time::sleep;

use super::Handler;
use crate::context::Context;
use crate::failure::{Failure, What};
use crate::link::SessionCommand;
use crate::machine::HandlerOutcome;

/// An error text longer than this is cut: it is kept with the job.
const MAX_ERROR_BYTES: usize = 4_096;
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

/// Runs a handler to its end, whatever that is. One that does not stop when told to is dropped after `grace`.
async fn supervise(handler: Handler, context: Context, grace: Duration) -> HandlerOutcome {
    if context.is_cancelled() {
        // Its executor was busy for so long that the lease is over, or somebody has cancelled it since.
        return HandlerOutcome::Stopped;
    }
    let mut run = tokio::spawn({
        let context = context.clone();
        async move { handler(context).await }
    });
    let cancelled = async {
        context.cancelled().await;
        sleep(grace).await;
    };
    let ended = tokio::select! {
        ended = &mut run => ended,
        () = cancelled => {
            run.abort();
            // An abort takes effect at the next await; only then has it really stopped.
            (&mut run).await
        }
    };
    context.unblocked().await;
    match ended {
        Ok(Ok(result)) if result.len() > MAX_RESULT_BYTES => {
            let error =
                format!("a result of {} bytes is too large to be sent; store it, and return where", result.len());
            HandlerOutcome::Failed { error: error.into(), retryable: false, delay: None }
        }
        Ok(Ok(result)) => HandlerOutcome::Succeeded(payload_in(&result)),
        Ok(Err(failure)) => end_of(&failure, context.is_cancelled()),
        Err(error) => end_of_task(error),
    }
}

fn end_of(failure: &Failure, is_cancelled: bool) -> HandlerOutcome {
    match failure.what {
        What::Cancelled => HandlerOutcome::Stopped,
        // What fails because it was told to stop has stopped.
        What::Retry { .. } | What::Release { .. } if is_cancelled => HandlerOutcome::Stopped,
        What::Retry { after } => {
            HandlerOutcome::Failed { error: cut(failure.to_string()), retryable: true, delay: after }
        }
        What::Permanent => HandlerOutcome::Failed { error: cut(failure.to_string()), retryable: false, delay: None },
        What::Release { after } => HandlerOutcome::Released { delay: after },
    }
}

fn end_of_task(error: JoinError) -> HandlerOutcome {
    let Ok(panic) = error.try_into_panic() else { return HandlerOutcome::Stopped };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into());
    HandlerOutcome::Failed { error: cut(format!("the handler panicked: {text}")), retryable: true, delay: None }
}

fn cut(mut text: String) -> Box<str> {
    const MARK: &str = "…";
    if text.len() > MAX_ERROR_BYTES {
        text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES - MARK.len()));
        text.push_str(MARK);
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onward_core::fence::AttemptFence;
    use onward_core::ids::JobId;
    use onward_core::message::CancelWhy;
    use onward_core::time::Mono;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[test]
    fn an_error_text_is_cut_to_what_is_kept() {
        for (len, kept) in [(4_095, 4_095), (4_096, 4_096), (4_097, 4_096), (9_000, 4_096)] {
            assert_eq!(cut("x".repeat(len)).len(), kept, "{len}");
        }
        let wide = cut("ü".repeat(3_000));
        assert!(wide.len() <= MAX_ERROR_BYTES && wide.ends_with("ü…"), "{}", wide.len());
    }

    #[tokio::test]
    async fn what_was_cancelled_before_it_began_does_not_begin() {
        let claim = Claim { job: JobId::from_u128(1), workflow: 0, fence: AttemptFence::NONE };
        let (commands, _heard) = unbounded_channel();
        let context = Context::new(crate::machine::tests::assignment(claim), commands, Mono::from_ms(0));
        context.cancel(CancelWhy::LeaseExpired);
        let handler: Handler = Arc::new(|_| panic!("it was started"));
        assert_eq!(supervise(handler, context, Duration::ZERO).await, HandlerOutcome::Stopped);
    }

    #[test]
    fn what_fails_because_it_was_told_to_stop_has_stopped() {
        let after = Some(Duration::from_secs(1));
        let failed = |retryable, delay| HandlerOutcome::Failed { error: "no".into(), retryable, delay };
        for (failure, end, when_cancelled) in [
            (Failure::retry("no"), failed(true, None), HandlerOutcome::Stopped),
            (Failure::retry_after(Duration::from_secs(1), "no"), failed(true, after), HandlerOutcome::Stopped),
            (Failure::permanent("no"), failed(false, None), failed(false, None)),
            (Failure::release(after), HandlerOutcome::Released { delay: after }, HandlerOutcome::Stopped),
            (Failure::cancelled(), HandlerOutcome::Stopped, HandlerOutcome::Stopped),
        ] {
            assert_eq!((end_of(&failure, false), end_of(&failure, true)), (end, when_cancelled), "{failure:?}");
        }
    }
}
