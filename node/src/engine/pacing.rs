use std::time::Duration;

/// How long the engine leaves a store in peace, and waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pacing {
    /// From one attempt to begin a term to the next, at least.
    pub term_every: Duration,
    /// Before the log is asked again what became of something.
    pub ask_again: Duration,
    /// Between two batches for the archive at most, so that many jobs share a commit and the log has the disk for itself
    /// most of the time; and before one that failed is tried again.
    pub archive_rest: Duration,
    /// A backup that has not gone on for this long is given up. Longer than a slow disk takes for one commit of it.
    pub backup_stall: Duration,
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            term_every: Duration::from_secs(1),
            ask_again: Duration::from_millis(200),
            archive_rest: Duration::from_secs(1),
            backup_stall: Duration::from_secs(30),
        }
    }
}
