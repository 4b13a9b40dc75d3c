//! A file that is there while the process is ready, for health checks that look at files.
//!
//! It is written beside its place and renamed, so that nobody reads half of it, and anew every second, so that its age
//! says that somebody still looks: `onward probe --file F --max-age 10s`. A process that was killed leaves its file
//! behind; the next one removes it before anything else. In it stand the process id, and where probes are answered.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use onward_core::health::ReadyFile;
use onward_core::health::probes::ready_file;

const WRITE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct ReadyFileKeeper {
    path: PathBuf,
    beside: PathBuf,
    content: String,
    written: Option<Instant>,
    /// Set once a write has failed, so that a folder that cannot be written is reported once.
    has_failed: bool,
}

impl ReadyFileKeeper {
    /// Removes a file that a predecessor left.
    pub(super) fn start(path: PathBuf, probes: Option<SocketAddr>) -> Self {
        let mut beside = path.clone().into_os_string();
        beside.push(format!(".{}", std::process::id()));
        let probes = probes.map(|address| format!("probes={address}\n")).unwrap_or_default();
        let content = format!("pid={}\n{probes}", std::process::id());
        let mut keeper = Self { path, beside: beside.into(), content, written: None, has_failed: false };
        keeper.apply(true, false);
        keeper
    }

    pub(super) fn keep(&mut self, ready: bool) {
        let is_fresh = ready && self.written.is_some_and(|at| at.elapsed() < WRITE_EVERY);
        if !is_fresh {
            self.apply(false, ready);
        }
    }

    fn apply(&mut self, at_start: bool, ready: bool) {
        let present = self.path.symlink_metadata().is_ok();
        let done = match ready_file(at_start, ready, present) {
            ReadyFile::Write => self.write(),
            ReadyFile::Remove => fs::remove_file(&self.path),
            ReadyFile::Leave => Ok(()),
        };
        self.written = (ready && done.is_ok()).then(Instant::now);
        if let Err(error) = &done
            && !self.has_failed
        {
            tracing::error!(file = %self.path.display(), %error, "the ready file cannot be written or removed");
        }
        self.has_failed = done.is_err();
    }

    fn write(&self) -> io::Result<()> {
        fs::write(&self.beside, &self.content)?;
        fs::rename(&self.beside, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn it_is_there_only_while_ready_and_a_stale_one_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        fs::write(&path, "of a predecessor").unwrap();
        let mut keeper = ReadyFileKeeper::start(path.clone(), None);
        assert!(!path.exists(), "it is not ready yet");
        // ready -> there
        for ready in [false, true, true, false, false, true] {
            keeper.keep(ready);
            assert_eq!(path.exists(), ready);
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("pid={}\n", std::process::id()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn it_is_written_anew_so_that_its_age_tells() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        let mut keeper = ReadyFileKeeper::start(path.clone(), None);
        keeper.keep(true);
        fs::write(&path, "marked").unwrap();
        keeper.keep(true);
        assert_eq!(fs::read_to_string(&path).unwrap(), "marked", "it was written just now");
        keeper.written = keeper.written.map(|at| at - WRITE_EVERY);
        let before = fs::metadata(&path).unwrap().ino();
        keeper.keep(true);
        assert_ne!(fs::read_to_string(&path).unwrap(), "marked");
        assert_ne!(fs::metadata(&path).unwrap().ino(), before, "nobody reads half of it: it is another file");
    }
}
