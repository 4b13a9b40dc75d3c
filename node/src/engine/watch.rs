//! Watchers that want to know when a job changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onward_core::ids::JobId;
use tokio::sync::Notify;

use super::{Command, EngineState};

pub(crate) struct Bell {
    pub(crate) id: u64,
    pub(crate) rings: Arc<Notify>,
}

/// Rings after a change; several changes may ring once. Dropping it ends the watch.
pub struct ManagerJobWatch {
    shared: Arc<EngineState>,
    job: JobId,
    id: u64,
    rings: Arc<Notify>,
}

impl core::fmt::Debug for ManagerJobWatch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Watch").field("job", &self.job).finish_non_exhaustive()
    }
}

impl ManagerJobWatch {
    pub(super) fn new(shared: Arc<EngineState>, job: JobId) -> Self {
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let rings = Arc::new(Notify::new());
        shared.send(Command::Watch { job, bell: Bell { id, rings: rings.clone() } });
        Self { shared, job, id, rings }
    }

    pub async fn changed(&self) {
        self.rings.notified().await;
    }
}

impl Drop for ManagerJobWatch {
    fn drop(&mut self) {
        self.shared.send(Command::Unwatch { job: self.job, bell: self.id });
    }
}

/// All bells, by job.
#[derive(Default)]
pub(crate) struct Watchers(HashMap<JobId, Vec<Bell>>);

impl Watchers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, job: JobId, bell: Bell) {
        self.0.entry(job).or_default().push(bell);
    }

    pub(crate) fn remove(&mut self, job: JobId, bell: u64) {
        if let Some(bells) = self.0.get_mut(&job) {
            bells.retain(|known| known.id != bell);
            if bells.is_empty() {
                self.0.remove(&job);
            }
        }
    }

    pub(crate) fn bells(&self, job: JobId) -> impl Iterator<Item = Arc<Notify>> + '_ {
        self.0.get(&job).into_iter().flatten().map(|bell| bell.rings.clone())
    }

    /// A new term began: whatever they saw may be different now.
    pub(crate) fn ring_all(&self) {
        self.0.values().flatten().for_each(|bell| bell.rings.notify_one());
    }
}
