//! Reads of a gate's state and of its store, and who wants to know when a job changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use onward_core::gate::Gate;
use onward_core::ids::JobId;
use onward_core::payload::Payload;
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Command, Deliver, GateEngine, GateState};
use crate::engine::EngineRefusal;
use crate::engine::watch::Bell;

impl GateEngine {
    /// Runs `work` on the machine's thread. It must be short: everything else waits. The result comes back once all that
    /// it could have seen is durable.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Gate) -> T + Send + 'static,
    ) -> Result<T, EngineRefusal> {
        let _permit = self.0.admit_call()?;
        let (reply, mut answer) = oneshot::channel();
        let work = Box::new(move |gate: &Gate| {
            let value = work(gate);
            // Nobody may be waiting any more, which is fine.
            Box::new(move || drop(reply.send(value))) as Deliver
        });
        self.0.send(Command::Read(work));
        self.0.wait_for(&mut answer).await
    }

    /// Asks the storage something that changes nothing, for no longer than anybody waits for it.
    pub async fn ask_storage<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> Result<T, onward_log::Error> + Send + 'static,
    ) -> Result<T, EngineRefusal> {
        let shared = &self.0;
        let _in_hand = shared.admit_call()?;
        let reading = async {
            let permit = shared.disk_reads.clone().acquire_owned().await.expect("nobody closes it");
            let read = move || {
                // Held for as long as the thread is at it, whether or not somebody still waits.
                let _permit = permit;
                ask()
            };
            spawn_blocking(read).await
        };
        let span = shared.rules.seat_ttl;
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

    /// Puts the bytes of what lies in the store in the place of its digest.
    pub async fn fetch(&self, job: JobId, payload: &mut Payload) -> Result<(), EngineRefusal> {
        let Payload::Stored(stored) = &*payload else { return Ok(()) };
        let digest = stored.digest.0;
        let reader = self.0.blobs.lock().expect("no thread panics while it holds this").clone();
        let Some(reader) = reader else { return Err(self.0.not_known()) };
        match self.ask_storage(move || reader.blob(&digest)).await? {
            Some(bytes) => {
                *payload = Payload::Inline(bytes.into());
                Ok(())
            }
            None => Err(EngineRefusal::Missing(job)),
        }
    }

    /// Rings when something about this job has changed, durably.
    pub fn watch(&self, job: JobId) -> GateJobWatch {
        GateJobWatch::new(self.0.clone(), job)
    }
}

/// Rings after a change; several changes may ring once. Dropping it ends the watch.
pub struct GateJobWatch {
    shared: Arc<GateState>,
    job: JobId,
    id: u64,
    rings: Arc<Notify>,
}

impl core::fmt::Debug for GateJobWatch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("JobWatch").field("job", &self.job).finish_non_exhaustive()
    }
}

impl GateJobWatch {
    fn new(shared: Arc<GateState>, job: JobId) -> Self {
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let rings = Arc::new(Notify::new());
        shared.send(Command::Watch { job, bell: Bell { id, rings: rings.clone() } });
        Self { shared, job, id, rings }
    }

    pub async fn changed(&self) {
        self.rings.notified().await;
    }
}

impl Drop for GateJobWatch {
    fn drop(&mut self) {
        self.shared.send(Command::Unwatch { job: self.job, bell: self.id });
    }
}
