//! Backups on behalf of callers, on threads of their own.
//!
//! A backup takes as long as there is much to copy, so nobody is refused for that. But a disk may not return at all: a
//! backup that has not gone on for `pacing.backup_stall` is given up, and whoever waits for it is told. Its thread stays
//! until the disk returns, removes what was written, and ends; so there is a fixed number of such threads.

use core::ops::ControlFlow;
use core::pin::pin;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onward_log::Damage;
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Engine, EngineRefusal};

/// The number of backups at a time, those that hang included.
pub const MAX_BACKUPS: usize = 4;

/// The reason why there is no backup. Everything that was written of it is gone again.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{0}")]
    Refused(EngineRefusal),
    #[error("{0}")]
    Failed(onward_log::Error),
}

/// A backup that is whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupMade {
    pub bytes: u64,
    /// Parts that could not be read, and are in the backup as they are.
    pub damage: Damage,
}

/// Copies everything to a new file, and says whenever it has gone on.
pub type Backup = Arc<dyn Fn(&Path, &BackupProgress) -> Result<BackupMade, onward_log::Error> + Send + Sync>;

/// Signals between the thread that makes a backup and the task that waits for it.
#[derive(Debug, Default)]
pub struct BackupProgress {
    went_on: Notify,
    is_given_up: AtomicBool,
}

impl BackupProgress {
    /// The backup has gone on. Breaks if it was given up: then it must not get its name.
    pub fn advance(&self) -> ControlFlow<()> {
        self.went_on.notify_one();
        if self.is_given_up.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

pub(super) fn permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_BACKUPS))
}

impl Engine {
    /// Copies everything to a new file, while the node goes on. A caller that goes away does not end it.
    pub async fn backup(&self, to: PathBuf) -> Result<BackupMade, BackupError> {
        let refused = |why: String| Err(BackupError::Refused(EngineRefusal::Unavailable(why)));
        let work = self.0.backup.lock().expect("no thread panics while it holds this").clone();
        let Some(work) = work else { return refused("it keeps nothing that could be backed up".into()) };
        let Ok(permit) = self.0.backups.clone().try_acquire_owned() else {
            return refused(format!("{MAX_BACKUPS} backups are being made already; wait until one of them has ended"));
        };
        let progress = Arc::new(BackupProgress::default());
        let theirs = progress.clone();
        let mut making = pin!(spawn_blocking(move || {
            let _permit = permit;
            work(&to, &theirs)
        }));
        let stall = self.0.pacing.backup_stall;
        loop {
            let went_on = tokio::select! {
                made = making.as_mut() => return match made {
                    Ok(made) => made.map_err(BackupError::Failed),
                    Err(error) => refused(format!("the backup failed: {error}")),
                },
                went_on = timeout(stall, progress.went_on.notified()) => went_on,
            };
            if went_on.is_err() {
                progress.is_given_up.store(true, Ordering::Relaxed);
                return refused(hangs(stall));
            }
        }
    }
}

fn hangs(stall: Duration) -> String {
    format!(
        "its disk, or the one that the backup goes to, has not taken or given anything for {stall:?}, and the backup was \
         given up. See to the disks and make it again; should a file of this name appear after all, it is whole"
    )
}
