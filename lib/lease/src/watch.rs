//! A handler, watched over to its end.

use core::future::Future;
use core::time::Duration;

use tokio::task::JoinError;
use tokio::time::sleep;

use crate::failure::{Failure, FailureKind};
use crate::heartbeat::Heartbeat;

/// An error text longer than this is cut: it is kept with what failed.
const MAX_ERROR_BYTES: usize = 4_096;

/// The end of a handler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HandlerEnd<T> {
    Succeeded(T),
    /// The handler failed, or panicked.
    Failed {
        error: Box<str>,
        retryable: bool,
        after: Option<Duration>,
    },
    /// The handler gave its work back.
    Released {
        after: Option<Duration>,
    },
    /// The handler was told to stop and did, or was dropped when its grace was over.
    Stopped,
}

/// Runs a handler to its end, whatever that is, in a task of its own. One that does not stop when its heartbeat is
/// cancelled is dropped after `grace`; closures on threads are waited for. One whose heartbeat is cancelled already does
/// not begin.
pub async fn watch<T, Run>(heartbeat: &Heartbeat, grace: Duration, handler: impl FnOnce() -> Run) -> HandlerEnd<T>
where
    Run: Future<Output = Result<T, Failure>> + Send + 'static,
    T: Send + 'static,
{
    if heartbeat.is_cancelled() {
        return HandlerEnd::Stopped;
    }
    // Dropped with this future: nothing runs on unwatched.
    let mut run = AbortOnDrop(tokio::spawn(handler()));
    let cancelled = async {
        heartbeat.cancelled().await;
        sleep(grace).await;
    };
    let ended = tokio::select! {
        ended = &mut run.0 => ended,
        () = cancelled => {
            run.0.abort();
            // An abort takes effect at the next await; only then has it really stopped.
            (&mut run.0).await
        }
    };
    heartbeat.unblocked().await;
    match ended {
        Ok(Ok(result)) => HandlerEnd::Succeeded(result),
        Ok(Err(failure)) => end_of(&failure, heartbeat.is_cancelled()),
        Err(error) => end_of_task(error),
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn end_of<T>(failure: &Failure, is_cancelled: bool) -> HandlerEnd<T> {
    let failed = |retryable, after| HandlerEnd::Failed { error: cut(failure.to_string()), retryable, after };
    match failure.kind() {
        FailureKind::Cancelled => HandlerEnd::Stopped,
        // A handler that fails because it was told to stop has stopped.
        FailureKind::Retry { .. } | FailureKind::Release { .. } if is_cancelled => HandlerEnd::Stopped,
        FailureKind::Retry { after } => failed(true, after),
        FailureKind::Permanent => failed(false, None),
        FailureKind::Release { after } => HandlerEnd::Released { after },
    }
}

fn end_of_task<T>(error: JoinError) -> HandlerEnd<T> {
    let Ok(panic) = error.try_into_panic() else { return HandlerEnd::Stopped };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into());
    HandlerEnd::Failed { error: cut(format!("the handler panicked: {text}")), retryable: true, after: None }
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
    use super::*;
    use crate::heartbeat::CancelWhy;

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
        let heartbeat = Heartbeat::new();
        heartbeat.cancel(CancelWhy::LeaseExpired);
        let handler = || -> core::future::Ready<Result<(), Failure>> { panic!("it was started") };
        assert_eq!(watch(&heartbeat, Duration::ZERO, handler).await, HandlerEnd::Stopped);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_does_not_stop_is_dropped_after_its_grace() {
        let heartbeat = Heartbeat::new();
        heartbeat.child();
        let (began, grace) = (tokio::time::Instant::now(), Duration::from_secs(10));
        let handler = || core::future::pending::<Result<(), Failure>>();
        let cancel = async {
            sleep(Duration::from_secs(1)).await;
            heartbeat.cancel(CancelWhy::Stuck);
        };
        let (ended, ()) = tokio::join!(watch(&heartbeat, grace, handler), cancel);
        assert_eq!((ended, began.elapsed()), (HandlerEnd::Stopped, Duration::from_secs(11)));
    }

    #[test]
    fn what_fails_because_it_was_told_to_stop_has_stopped() {
        let after = Some(Duration::from_secs(1));
        let failed = |retryable, after| HandlerEnd::<()>::Failed { error: "no".into(), retryable, after };
        for (failure, end, when_cancelled) in [
            (Failure::retry("no"), failed(true, None), HandlerEnd::Stopped),
            (Failure::retry_after(Duration::from_secs(1), "no"), failed(true, after), HandlerEnd::Stopped),
            (Failure::permanent("no"), failed(false, None), failed(false, None)),
            (Failure::release(after), HandlerEnd::Released { after }, HandlerEnd::Stopped),
            (Failure::cancelled(), HandlerEnd::Stopped, HandlerEnd::Stopped),
        ] {
            assert_eq!((end_of(&failure, false), end_of(&failure, true)), (end, when_cancelled), "{failure:?}");
        }
    }
}
