//! What goes into a backup besides log and archive: the keys, so that receipts and tokens stay good.

use std::path::Path;
use std::sync::Arc;

use onward_log::{Archive, Damage, Error, OnLoss, RedbLog, Restored};

use crate::api::receipt::KEY_FILE;
use crate::auth::{FileError, TOKENS_FILE, write_secret};
use crate::engine::{Backup, BackupMade};

const KEPT: [&str; 2] = [KEY_FILE, TOKENS_FILE];

pub(super) fn backup_of(log: &RedbLog, archive: &Archive, folder: &Path) -> Backup {
    let (log, archive, folder) = (log.clone(), archive.clone(), folder.to_owned());
    Arc::new(move |to| {
        let mut extra = Vec::new();
        for name in KEPT {
            match std::fs::read(folder.join(name)) {
                Ok(bytes) => extra.push((name, bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::Io { cause: format!("{name}: {error}") }),
            }
        }
        let damage = onward_log::backup(&log, &archive, &extra, to, |_, _| ())?;
        if !damage.is_none() {
            tracing::error!(%damage, "content that was backed up is damaged, and so it is in the backup");
        }
        let file = std::fs::metadata(to).map_err(|error| Error::Io { cause: error.to_string() })?;
        Ok(BackupMade { bytes: file.len(), damage })
    })
}

/// Why a folder could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("{0}")]
    Log(#[from] Error),
    #[error("{0}")]
    File(#[from] FileError),
}

/// Makes `folder` a data folder with what the backup holds. The folder must hold no log yet. Gives the content that is
/// damaged, if that is accepted.
pub fn restore(backup: &Path, folder: &Path, on_loss: OnLoss) -> Result<Damage, RestoreError> {
    let Restored { extras, damage } = onward_log::restore(backup, folder, on_loss)?;
    for (name, bytes) in extras {
        // Only names that we gave ourselves become paths.
        if KEPT.contains(&name.as_str()) {
            write_secret(&folder.join(name), &bytes)?;
        }
    }
    Ok(damage)
}
