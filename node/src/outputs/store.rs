//! The folder: one file per attempt that printed something. No file stays open.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use onward_core::fence::AttemptFence;
use onward_core::ids::{Claim, JobId};
use onward_log::changes;

use super::UnwrittenOutput;
use super::file::{self, OutputTail, UNFINISHED};
use super::index::Index;
use super::{OutputRules, OutputStats, OutputStore, OutputWriteError};

/// Output in a folder.
#[derive(Debug)]
pub struct OutputFolder {
    folder: PathBuf,
    rules: OutputRules,
    index: Index,
}

impl OutputFolder {
    pub fn new(folder: PathBuf, rules: OutputRules) -> Self {
        Self { folder, rules, index: Index::default() }
    }
}

impl OutputStore for OutputFolder {
    fn scan(&mut self, stats: &OutputStats) -> io::Result<()> {
        self.make_folder()?;
        for (written_at_ms, claim, size) in self.found()? {
            self.index.put(claim, size, written_at_ms);
        }
        self.count(stats);
        Ok(())
    }

    fn write(&mut self, claim: &Claim, printed: &UnwrittenOutput, now_ms: u64) -> Result<(), OutputWriteError> {
        let lost = |(lost, error)| OutputWriteError { lost, later: None, is_superseded: false, error };
        let all = |error| lost((printed.skipped.saturating_add(printed.data.len() as u64), error));
        let path = self.path(claim);
        let appended = match file::append(&path, printed) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.make_folder().map_err(all)?;
                file::append(&path, printed)
            }
            appended => appended,
        };
        let appended = appended.map_err(all)?;
        self.index.put(*claim, appended.size, now_ms);
        appended.lost.map_or(Ok(()), |cut| Err(lost(cut)))
    }

    fn read(&self, claim: &Claim) -> io::Result<Option<OutputTail>> {
        file::read(&self.path(claim))
    }

    fn sweep(&mut self, now_ms: u64, stats: &OutputStats) -> io::Result<()> {
        let mut done = Ok(());
        while let Some(claim) = self.index.due(&self.rules, now_ms) {
            // One that cannot be removed must not hold up the others; it is found again at the next start.
            self.index.remove(&claim);
            match changes::remove_file(&self.path(&claim)) {
                Ok(()) => stats.removed.add(1),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => done = Err(error),
            }
        }
        self.count(stats);
        done
    }
}

impl OutputFolder {
    /// The time of each attempt's last output, and the size of its file, the oldest first: by names and sizes alone.
    /// What was not finished is removed.
    pub(crate) fn found(&self) -> io::Result<Vec<(u64, Claim, u64)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if Path::new(&name).extension().is_some_and(|extension| extension == UNFINISHED) {
                changes::remove_file(&entry.path())?;
                continue;
            }
            // Files that are not ours are left alone.
            let Some(claim) = name.to_str().and_then(claim_of) else { continue };
            let about = entry.metadata()?;
            let since = about.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            found.push((u64::try_from(since.as_millis()).unwrap_or(u64::MAX), claim, about.len()));
        }
        found.sort_unstable();
        Ok(found)
    }

    fn count(&self, stats: &OutputStats) {
        stats.kept_bytes.set(self.index.bytes());
        stats.kept_files.set(self.index.len() as u64);
    }

    fn make_folder(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    fn path(&self, claim: &Claim) -> PathBuf {
        self.folder.join(format!("{}.{}.{}", claim.job, claim.workflow, claim.fence.get()))
    }
}

fn claim_of(name: &str) -> Option<Claim> {
    let mut parts = name.split('.');
    let claim = Claim {
        job: JobId::parse(parts.next()?)?,
        workflow: parts.next()?.parse().ok()?,
        fence: AttemptFence::from_raw(parts.next()?.parse().ok()?),
    };
    parts.next().is_none().then_some(claim)
}
