//! Reads of the disk on behalf of callers, on threads of their own.
//!
//! A disk may not return at all. Nobody waits for it longer than `seat_ttl`, and a read that was given up keeps its
//! thread until the disk returns; so there is a fixed number of such threads, and who finds none free waits for one, as
//! part of the same time.

use std::sync::Arc;
use std::time::Duration;

use onward_log::Error;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{EngineRefusal, EngineState};

/// The number of reads at the disk at a time: more than a disk serves at once, and few enough to hang for ever.
pub const MAX_DISK_READS: usize = 64;

pub(super) fn permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_DISK_READS))
}

impl EngineRefusal {
    /// The refusal of a read that changed nothing and was given up after this time.
    pub fn disk_hangs(span: Duration) -> Self {
        Self::Unavailable(format!(
            "its storage has not answered for {span:?}; nothing was changed, and it may be asked again"
        ))
    }
}

impl EngineState {
    /// Runs `read` on a thread that may wait for the disk. It counts as a call in hand, so that not more wait than may.
    pub(super) async fn read_disk<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, EngineRefusal> {
        let _in_hand = self.admit_call()?;
        let reading = async {
            let permit = self.disk_reads.clone().acquire_owned().await.expect("nobody closes it");
            let read = move || {
                // Held for as long as the thread is at it, whether or not somebody still waits.
                let _permit = permit;
                read()
            };
            spawn_blocking(read).await
        };
        let span = self.rules.seat_ttl;
        match timeout(span, reading).await {
            Ok(Ok(Err(error))) if error.is_permanent() => {
                tracing::error!("a read failed for good: {error}");
                Err(EngineRefusal::Unreadable(error))
            }
            Ok(Ok(read)) => read.map_err(|error| EngineRefusal::Unavailable(error.cause())),
            Ok(Err(error)) => Err(EngineRefusal::Unavailable(format!("reading the store failed: {error}"))),
            Err(_) => Err(EngineRefusal::disk_hangs(span)),
        }
    }
}
