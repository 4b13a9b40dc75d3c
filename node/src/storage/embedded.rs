//! All of it in the data folder.

use std::path::Path;
use std::sync::Arc;

use onward_log::{EmbeddedArchive, EmbeddedLog, Error, Log, OnLoss, OpenedPair};

use super::Storage;
use super::migrate::moved_to;
use crate::auth::{SecretFolder, TokenFile, read_or_make_token};
use crate::cluster::SoleLeader;
use crate::outputs::{self, OutputFolder, OutputRules};
use crate::server::{StartError, backup_of};

impl Storage {
    /// Storage in `folder`, which is ours from the first line on: the log locks it.
    pub fn embedded(folder: &Path, outputs: OutputRules, on_loss: OnLoss) -> Result<Self, StartError> {
        if let Some(to) = moved_to(folder)? {
            return Err(StartError::Moved { folder: folder.to_owned(), to });
        }
        let (log, archive, is_whole) = open_files(folder, on_loss)?;
        read_or_make_token(folder)?;
        let tokens = TokenFile::open(folder)?;
        Ok(Self {
            backup: Some(backup_of(&log, &archive, folder)),
            log: Box::new(move || Ok(Box::new(log.clone()) as Box<dyn Log>)),
            archive: Arc::new(archive),
            secrets: Box::new(SecretFolder(folder.to_owned())),
            tokens: Box::new(tokens),
            outputs: Box::new(OutputFolder::new(folder.join(outputs::FOLDER), outputs)),
            leadership: Box::new(SoleLeader),
            heirs: None,
            standbys: None,
            is_whole,
        })
    }
}

/// Log and archive, and whether they are whole: whether no loss had to be accepted.
fn open_files(folder: &Path, on_loss: OnLoss) -> Result<(EmbeddedLog, EmbeddedArchive, bool), Error> {
    let OpenedPair { log, archive, accepted_absence } = OpenedPair::open(folder, on_loss)?;
    if let Some(what) = accepted_absence {
        tracing::error!("a part of the store is lost, and that was accepted: {what}");
    }
    let loss = log.accepted_loss()?;
    if let Some(loss) = &loss {
        tracing::error!("acknowledged events are lost, and that was accepted: {loss}");
    }
    Ok((log, archive, loss.is_none() && accepted_absence.is_none()))
}
