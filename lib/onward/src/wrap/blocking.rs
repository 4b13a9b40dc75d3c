//! Work that blocks its thread.

use std::panic::resume_unwind;

use crate::context::Context;
use crate::failure::Failure;

impl Context {
    /// Runs a closure that blocks, on a thread where it keeps nobody waiting. It speaks through the context that it is
    /// given, and has to look at [`is_cancelled`](Self::is_cancelled) or [`check`](Self::check) now and then: a thread
    /// cannot be stopped from outside, and the attempt ends only when the closure has returned.
    ///
    /// ```no_run
    /// # async fn shrink(ctx: onward::Context) -> Result<(), onward::Failure> {
    /// # let files: Vec<String> = vec![];
    /// # fn compress(_: &str) -> std::io::Result<()> { Ok(()) }
    /// ctx.blocking(move |ctx| {
    ///     for (n, file) in files.iter().enumerate() {
    ///         ctx.check()?;
    ///         compress(file)?;
    ///         ctx.progress(n as u64 + 1, files.len() as u64);
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
        let (context, running) = (self.clone(), self.begin_blocking());
        let thread = tokio::task::spawn_blocking(move || {
            let _running = running;
            work(&context)
        });
        match thread.await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                // As if it had panicked here: the attempt fails by it.
                Ok(panic) => resume_unwind(panic),
                Err(_) => Err(Failure::retry("the worker's process is shutting down")),
            },
        }
    }
}
