//! How long a task that could run waits for an executor.
//!
//! A handler that blocks its thread (a long computation, a lock, a synchronous call) keeps every other task of that
//! thread waiting, and the process answers nothing though it is alive. Whoever measures that must not run on the executor
//! that is measured.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, error::TryRecvError};

/// Measures one executor, by a task that is given to it and says when it ran.
#[derive(Debug)]
pub struct Executor {
    handle: Handle,
    asked: Option<(Instant, oneshot::Receiver<Instant>)>,
}

impl Executor {
    pub fn new(handle: Handle) -> Self {
        Self { handle, asked: None }
    }

    /// The wait of the task that was given to it by an earlier call: until it ran, or until now if it has not. Gives it
    /// the next one if it has. Never waits itself.
    pub fn lag(&mut self) -> Duration {
        let lag = match &mut self.asked {
            None => Some(Duration::ZERO),
            Some((since, ran)) => match ran.try_recv() {
                Ok(at) => Some(at.duration_since(*since)),
                Err(TryRecvError::Empty) => None,
                // The executor is shutting down.
                Err(TryRecvError::Closed) => Some(Duration::ZERO),
            },
        };
        let Some(lag) = lag else {
            return self.asked.as_ref().map_or(Duration::ZERO, |(since, _)| since.elapsed());
        };
        let (ran, asked) = oneshot::channel();
        self.asked = Some((Instant::now(), asked));
        self.handle.spawn(async move {
            // Nobody waits for it once the measuring has ended.
            let _ = ran.send(Instant::now());
        });
        lag
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_blocked_executor_lags_until_it_runs_again() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        let mut executor = Executor::new(runtime.handle().clone());
        assert_eq!(executor.lag(), Duration::ZERO, "nothing is known yet");
        let (block, blocked) = mpsc::channel::<()>();
        let (begun, seen) = mpsc::channel();
        runtime.spawn(async move {
            let _ = begun.send(());
            // The only thread of the runtime stands still here.
            let _ = blocked.recv();
        });
        seen.recv().expect("the task has begun");
        let since = Instant::now();
        executor.lag();
        // It may be that the first task ran before; the one of this round cannot.
        while executor.lag() < Duration::from_millis(20) {
            assert!(since.elapsed() < Duration::from_secs(60), "the executor is blocked, and nobody sees it");
            std::thread::yield_now();
        }
        drop(block);
        let (ran, seen) = mpsc::channel();
        runtime.spawn(async move { ran.send(()) });
        seen.recv().expect("the executor runs again");
        assert!(executor.lag() >= Duration::from_millis(20), "so long did the task wait");
        while executor.lag() >= Duration::from_millis(20) {
            assert!(since.elapsed() < Duration::from_secs(60), "the executor runs, and nobody sees it");
            std::thread::yield_now();
        }
    }
}
