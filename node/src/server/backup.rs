//! What goes into a backup besides log and archive: the keys, so that receipts and tokens stay good.

use std::path::Path;
use std::sync::Arc;

use onward_log::{Damage, EmbeddedArchive, EmbeddedLog, Error, OnLoss, RestoreSummary};

use crate::api::receipt::KEY_FILE;
use crate::auth::{FileError, TOKEN_FILE, TOKENS_FILE, write_secret};
use crate::engine::{Backup, BackupMade};
use crate::outputs;

const KEPT: [&str; 2] = [KEY_FILE, TOKENS_FILE];
/// Files that make a folder a node's, besides log and archive.
const OWN: [&str; 4] = [KEY_FILE, TOKENS_FILE, TOKEN_FILE, outputs::FOLDER];

pub(crate) fn backup_of(log: &EmbeddedLog, archive: &EmbeddedArchive, folder: &Path) -> Backup {
    let (log, archive, folder) = (log.clone(), archive.clone(), folder.to_owned());
    Arc::new(move |to, progress| {
        refuse_inside(&folder, to)?;
        let mut extra = Vec::new();
        for name in KEPT {
            match std::fs::read(folder.join(name)) {
                Ok(bytes) => extra.push((name, bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::Io { cause: format!("{name}: {error}") }),
            }
        }
        let damage = onward_log::backup(&log, &archive, &extra, to, |_, _| progress.advance())?;
        if !damage.is_none() {
            tracing::error!(%damage, "content that was backed up is damaged, and so it is in the backup");
        }
        let file = std::fs::metadata(to).map_err(|error| Error::Io { cause: error.to_string() })?;
        Ok(BackupMade { bytes: file.len(), damage })
    })
}

/// Refuses a backup under a name that the node uses: it would keep the node from starting, or be taken for something
/// else.
fn refuse_inside(folder: &Path, to: &Path) -> Result<(), Error> {
    let real =
        |path: &Path| path.canonicalize().map_err(|error| Error::Io { cause: format!("{}: {error}", path.display()) });
    // The file itself is not there yet.
    let Some(into) = to.parent() else { return Ok(()) };
    if real(into)?.starts_with(real(folder)?) {
        return Err(Error::AmongOwnFiles { path: to.display().to_string(), folder: folder.display().to_string() });
    }
    Ok(())
}

/// The reason why a folder could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("{0}")]
    Log(#[from] Error),
    #[error("{0}")]
    File(#[from] FileError),
}

/// Makes `folder` a data folder with what the backup holds. The folder must hold nothing of a node yet. Gives the content
/// that is damaged, if that is accepted.
pub fn restore(backup: &Path, folder: &Path, on_loss: OnLoss) -> Result<Damage, RestoreError> {
    for found in OWN {
        let is_there = folder.join(found).symlink_metadata();
        match is_there {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::Io { cause: format!("{}: {error}", folder.display()) }.into()),
            Ok(_) => return Err(Error::Occupied { folder: folder.display().to_string(), found }.into()),
        }
    }
    let RestoreSummary { extras, damage } = onward_log::restore(backup, folder, on_loss)?;
    for (name, bytes) in extras {
        // Only names that we gave ourselves become paths.
        if KEPT.contains(&name.as_str()) {
            write_secret(&folder.join(name), &bytes)?;
        }
    }
    Ok(damage)
}
