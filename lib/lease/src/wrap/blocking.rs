//! Work that blocks its thread.

use std::panic::resume_unwind;

use crate::failure::Failure;
use crate::heartbeat::Heartbeat;

impl Heartbeat {
    /// Runs a closure that blocks, on a thread where it keeps nobody waiting. It beats on the heartbeat that it is
    /// given, and has to look at [`is_cancelled`](Self::is_cancelled) or [`check`](Self::check) now and then: a thread
    /// cannot be stopped from outside, and the attempt ends only when the closure has returned.
    ///
    /// ```no_run
    /// # async fn shrink(beats: onward_lease::Heartbeat) -> Result<(), onward_lease::Failure> {
    /// # let files: Vec<String> = vec![];
    /// # fn compress(_: &str) -> std::io::Result<()> { Ok(()) }
    /// beats.blocking(move |beats| {
    ///     for (n, file) in files.iter().enumerate() {
    ///         beats.check()?;
    ///         compress(file)?;
    ///         beats.progress(n as u64 + 1, files.len() as u64);
    ///     }
    ///     Ok(())
    /// })
    /// .await
    /// # }
    /// ```
    pub async fn blocking<T, F>(&self, work: F) -> Result<T, Failure>
    where
        F: FnOnce(&Self) -> Result<T, Failure> + Send + 'static,
        T: Send + 'static,
    {
        let (heartbeat, running) = (self.clone(), Blocking::begin(self));
        let thread = tokio::task::spawn_blocking(move || {
            let _running = running;
            work(&heartbeat)
        });
        match thread.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                // As if it had panicked here: the attempt fails by it.
                Ok(panic) => resume_unwind(panic),
                Err(_) => Err(Failure::retry("the process is shutting down")),
            },
        }
    }
}

/// A closure on a thread, until this is dropped: of a heartbeat and all above it.
#[derive(Debug)]
struct Blocking(Heartbeat);

impl Blocking {
    fn begin(heartbeat: &Heartbeat) -> Self {
        heartbeat.count_blocking(|count| count + 1);
        Self(heartbeat.clone())
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.0.count_blocking(|count| count - 1);
    }
}
