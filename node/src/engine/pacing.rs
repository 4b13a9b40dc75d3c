use std::time::Duration;

/// The pauses in which the engine leaves a store in peace, and waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pacing {
    /// The least time from one attempt to begin a term to the next.
    pub term_every: Duration,
    /// The pause before the log is asked again what became of something.
    pub ask_again: Duration,
    /// The longest pause between two batches for the archive, so that many jobs share a commit and the log has the disk
    /// for itself most of the time; and before one that failed is tried again.
    pub archive_rest: Duration,
    /// A backup that has not gone on for this long is given up. Longer than a slow disk takes for one commit of it.
    pub backup_stall: Duration,
    /// The interval between two looks for what is too old for the archive.
    pub expire_every: Duration,
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            term_every: Duration::from_secs(1),
            ask_again: Duration::from_millis(200),
            archive_rest: Duration::from_secs(1),
            backup_stall: Duration::from_secs(30),
            expire_every: Duration::from_secs(10),
        }
    }
}
