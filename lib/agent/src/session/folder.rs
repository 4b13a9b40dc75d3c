//! Sessions as files in a folder.
//!
//! A session is a folder with one file for each fence that has opened it. Nobody locks anything, because a process that
//! is frozen with a lock would keep its successor out:
//!
//! 1. Whoever opens the session creates its own file first. From then on it is seen by all who hold a lower fence.
//! 2. Then it reads the files before its own, and writes into the first line how many bytes of the last one count. What
//!    is written there later is part of no history.
//! 3. Whoever appends writes to its own file, syncs it, and then looks for a higher one. If there is one, the entry is
//!    refused.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Entry, Session, SessionError, Sessions, blocking, check_id, decode, encode};

const SUFFIX: &str = ".jsonl";
/// Far above what the entries of a run come to. A file is read whole by the next attempt.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Sessions in a folder, which several processes may share.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

/// The first line of a file.
#[derive(Serialize, Deserialize)]
struct Head {
    /// The fence of the file before this one, and how many bytes of it count.
    after: Option<(u64, u64)>,
}

impl Folder {
    /// The folder is made if it is not there.
    pub fn at(path: impl AsRef<Path>) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        Ok(Self { root: path.as_ref().to_owned() })
    }
}

impl Sessions for Folder {
    async fn open(&self, id: &str, fence: u64) -> Result<Session, SessionError> {
        check_id(id)?;
        let (folder, id) = (self.root.join(id), id.to_owned());
        blocking(&id.clone(), move || {
            let files = Files { folder, id };
            files.open(fence)
        })
        .await
    }

    async fn append(&self, session: &Session, entry: &Entry) -> Result<(), SessionError> {
        check_id(&session.id)?;
        let mut line = encode(entry, &session.id)?;
        line.push('\n');
        let (folder, id, fence) = (self.root.join(&session.id), session.id.clone(), session.fence);
        blocking(&session.id, move || {
            let files = Files { folder, id };
            files.append(fence, &line)
        })
        .await
    }
}

struct Files {
    folder: PathBuf,
    id: String,
}

impl Files {
    fn open(&self, fence: u64) -> Result<Session, SessionError> {
        fs::create_dir_all(&self.folder).map_err(|error| self.failed(&error))?;
        self.refuse_stale(fence)?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(self.file(fence));
        let file = file.map_err(|error| self.failed(&error))?;
        self.sync_folder()?;
        let mut entries = Vec::new();
        let whole = self.read(fence, None, &mut entries)?;
        // What was torn off by a kill counts for nothing.
        let cut = file.set_len(whole);
        let begun = if whole == 0 { self.write_head(fence, &file, &mut entries)? } else { file.sync_all() };
        cut.and(begun).map_err(|error| self.failed(&error))?;
        self.refuse_stale(fence)?;
        Ok(Session { id: self.id.clone(), fence, entries })
    }

    /// Begins a file with what counts of its predecessor: of the last attempt that came as far as to write a head.
    fn write_head(
        &self,
        fence: u64,
        mut file: &File,
        entries: &mut Vec<Entry>,
    ) -> Result<io::Result<()>, SessionError> {
        let mut earlier: Vec<u64> = self.fences()?.into_iter().filter(|&other| other < fence).collect();
        earlier.sort_unstable();
        let mut after = None;
        for &before in earlier.iter().rev() {
            let bytes = self.read(before, None, entries)?;
            if bytes > 0 {
                after = Some((before, bytes));
                break;
            }
        }
        let head = serde_json::to_string(&Head { after }).expect("two numbers are JSON");
        Ok(writeln!(file, "{head}").and_then(|()| file.sync_all()))
    }

    /// Adds the entries of a file, and of those before it, up to `limit` bytes. Answers with the length of its whole lines.
    fn read(&self, fence: u64, limit: Option<u64>, entries: &mut Vec<Entry>) -> Result<u64, SessionError> {
        let mut bytes = fs::read(self.file(fence)).map_err(|error| self.failed(&error))?;
        if let Some(limit) = limit {
            bytes.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let damaged = |entry: usize, why: String| SessionError::Damaged { id: self.id.clone(), entry, why };
        let text = core::str::from_utf8(&bytes[..whole]).map_err(|error| damaged(entries.len(), error.to_string()))?;
        let mut lines = text.lines();
        let Some(head) = lines.next() else {
            return Ok(0);
        };
        let head: Head = serde_json::from_str(head).map_err(|error| damaged(entries.len(), error.to_string()))?;
        if let Some((before, bytes)) = head.after {
            self.read(before, Some(bytes), entries)?;
        }
        for line in lines {
            entries.push(decode(line, &self.id, entries.len())?);
        }
        Ok(whole as u64)
    }

    fn append(&self, fence: u64, line: &str) -> Result<(), SessionError> {
        self.refuse_stale(fence)?;
        let file = OpenOptions::new().append(true).open(self.file(fence)).map_err(|error| self.failed(&error))?;
        if file.metadata().map_err(|error| self.failed(&error))?.len() > MAX_FILE_BYTES {
            return Err(SessionError::Full(self.id.clone()));
        }
        let written = (&file).write_all(line.as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|error| self.failed(&error))?;
        self.refuse_stale(fence)
    }

    fn refuse_stale(&self, fence: u64) -> Result<(), SessionError> {
        match self.fences()?.into_iter().max() {
            Some(newer) if newer > fence => Err(SessionError::Stale { id: self.id.clone(), fence, newer }),
            _ => Ok(()),
        }
    }

    fn fences(&self) -> Result<Vec<u64>, SessionError> {
        let mut fences = Vec::new();
        for file in fs::read_dir(&self.folder).map_err(|error| self.failed(&error))? {
            let name = file.map_err(|error| self.failed(&error))?.file_name();
            let fence = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse::<u64>().ok());
            fences.extend(fence);
        }
        Ok(fences)
    }

    fn file(&self, fence: u64) -> PathBuf {
        self.folder.join(format!("{fence:020}{SUFFIX}"))
    }

    /// A name in a folder is durable when the folder is.
    fn sync_folder(&self) -> Result<(), SessionError> {
        let sync = |path: &Path| File::open(path).and_then(|folder| folder.sync_all());
        let parent = self.folder.parent().map_or(Ok(()), sync);
        parent.and_then(|()| sync(&self.folder)).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> SessionError {
        SessionError::Unavailable { id: self.id.clone(), why: format!("{}: {error}", self.folder.display()) }
    }
}
