//! Sessions as files in a folder.
//!
//! A session is a folder with one file that counts: the history of the highest fence. Nobody locks anything, because a
//! process that is frozen with a lock would keep its successor out:
//!
//! 1. Whoever opens the session makes a mark with its fence first. From then on all who hold a lower one are refused.
//! 2. Then it copies the history of the fence before it, up to its last whole line, under a name of its own, which becomes
//!    `FENCE.jsonl` in one step once it is on the disk. What is written to the older file later is part of no history.
//! 3. It removes what lower fences left, so that a session never has more files than a few, however often it is opened.
//! 4. Whoever appends writes to its own file, syncs it, and then looks for a higher fence. If there is one, the entry is
//!    refused.
//!
//! An entry that was accepted is in every later history: its writer saw no higher mark after it had written, so whoever
//! made a higher mark read the file after that.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Entry, Session, SessionError, Sessions, blocking, check_id, decode, encode};

const HISTORY: &str = "jsonl";
const MARK: &str = "mark";
const COPY: &str = "copy";
/// Far above what the entries of a run come to. A file is read whole by the next attempt.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Sessions in a folder, which several processes may share.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder is made if it is not there, and then it is its owner's alone, as every session in it is.
    pub fn at(path: impl AsRef<Path>) -> io::Result<Self> {
        let root = path.as_ref();
        let above = above_missing(root);
        make_folder(root)?;
        above.iter().try_for_each(|folder| sync(folder))?;
        Ok(Self { root: root.to_owned() })
    }
}

impl Sessions for Folder {
    async fn open(&self, id: &str, fence: u64) -> Result<Session, SessionError> {
        check_id(id)?;
        let (folder, id) = (self.root.join(id), id.to_owned());
        blocking(&id.clone(), move || Files { folder, id }.open(fence)).await
    }

    async fn append(&self, session: &Session, entry: &Entry) -> Result<(), SessionError> {
        check_id(&session.id)?;
        let mut line = encode(entry, &session.id)?;
        line.push('\n');
        let (folder, id, fence) = (self.root.join(&session.id), session.id.clone(), session.fence);
        blocking(&session.id, move || Files { folder, id }.append(fence, &line, || ())).await
    }
}

/// With all that is missing above it. What is in a session may be secret, so nobody else gets in.
fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The folders in which those are that are still missing on the way to this one: their names are durable when those are.
fn above_missing(path: &Path) -> Vec<PathBuf> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let above = path.ancestors().take_while(is_missing).filter_map(Path::parent);
    // A name without a folder is in the current one.
    above.map(|above| if above.as_os_str().is_empty() { ".".into() } else { above.to_owned() }).collect()
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all())
}

fn own_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

struct Files {
    folder: PathBuf,
    id: String,
}

/// A file of a session, by its name.
struct SessionFile {
    fence: u64,
    kind: String,
    path: PathBuf,
}

struct Lines {
    /// Each with its end.
    whole: String,
    /// The last line is not whole.
    is_torn: bool,
}

impl Files {
    fn open(&self, fence: u64) -> Result<Session, SessionError> {
        self.try_to(make_folder(&self.folder))?;
        self.refuse_stale(fence)?;
        let mark = own_file().create(true).truncate(false).open(self.file(fence, MARK));
        self.try_to(mark)?;
        self.sync_folder()?;
        let own = self.file(fence, HISTORY);
        if !self.try_to(own.try_exists())? {
            self.copy_history(fence, &own)?;
        }
        let Lines { whole, is_torn } = self.read_lines(&own)?.ok_or_else(|| self.vanished(fence))?;
        let file = self.try_to(OpenOptions::new().write(true).open(&own))?;
        // A line that was torn off by a kill counts for nothing; what was read counts, and so must be on the disk.
        let cut = if is_torn { file.set_len(whole.len() as u64) } else { Ok(()) };
        self.try_to(cut.and_then(|()| file.sync_all()))?;
        self.refuse_stale(fence)?;
        self.remove_below(fence)?;
        let mut entries = Vec::new();
        for line in whole.lines() {
            entries.push(decode(line, &self.id, entries.len())?);
        }
        Ok(Session { id: self.id.clone(), fence, entries })
    }

    /// Makes the file of a fence from the history before it. Whoever holds the same fence may be faster.
    fn copy_history(&self, fence: u64, own: &Path) -> Result<(), SessionError> {
        let older = self.files()?.into_iter().filter(|file| file.kind == HISTORY && file.fence < fence);
        let lines = match older.max_by_key(|file| file.fence) {
            None => String::new(),
            Some(older) => match self.read_lines(&older.path)? {
                Some(lines) => lines.whole,
                // Whoever removed it holds a higher fence, or the same one and has made the file.
                None if self.try_to(own.try_exists())? => return Ok(()),
                None => return Err(self.vanished(fence)),
            },
        };
        let mut random = [0; 8];
        let drawn = getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()));
        self.try_to(drawn)?;
        let copy = self.file(fence, &format!("{:016x}.{COPY}", u64::from_ne_bytes(random)));
        let written = own_file().create_new(true).open(&copy).and_then(|mut file| {
            file.write_all(lines.as_bytes())?;
            file.sync_all()
        });
        let named = written.and_then(|()| match fs::hard_link(&copy, own) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        });
        // Whatever became of it, the copy is not needed any more; a later attempt removes one that stays.
        let _ = fs::remove_file(&copy);
        self.try_to(named)?;
        self.sync_folder()
    }

    /// The lines of a file; `None` if it is not there.
    fn read_lines(&self, path: &Path) -> Result<Option<Lines>, SessionError> {
        let mut bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => self.try_to(other)?,
        };
        let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let is_torn = end < bytes.len();
        bytes.truncate(end);
        let whole = String::from_utf8(bytes).map_err(|error| {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let entry = before.iter().filter(|&&byte| byte == b'\n').count();
            SessionError::Damaged { id: self.id.clone(), entry, why: error.to_string() }
        })?;
        Ok(Some(Lines { whole, is_torn }))
    }

    /// `written` is called between the write and the last look.
    fn append(&self, fence: u64, line: &str, written: impl FnOnce()) -> Result<(), SessionError> {
        self.refuse_stale(fence)?;
        let path = self.file(fence, HISTORY);
        let file = match OpenOptions::new().append(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.vanished(fence)),
            other => self.try_to(other)?,
        };
        if self.try_to(file.metadata())?.len() > MAX_FILE_BYTES {
            return Err(SessionError::Full(self.id.clone()));
        }
        self.try_to((&file).write_all(line.as_bytes()).and_then(|()| file.sync_data()))?;
        written();
        self.refuse_stale(fence)
    }

    fn refuse_stale(&self, fence: u64) -> Result<(), SessionError> {
        match self.files()?.iter().map(|file| file.fence).max() {
            Some(newer) if newer > fence => Err(SessionError::Stale { id: self.id.clone(), fence, newer }),
            _ => Ok(()),
        }
    }

    /// Removes the files of lower fences. Two that do so at a time find some of them gone.
    fn remove_below(&self, fence: u64) -> Result<(), SessionError> {
        for file in self.files()?.into_iter().filter(|file| file.fence < fence) {
            match fs::remove_file(&file.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.failed(&error)),
                _ => {}
            }
        }
        Ok(())
    }

    fn files(&self) -> Result<Vec<SessionFile>, SessionError> {
        let mut files = Vec::new();
        for file in self.try_to(fs::read_dir(&self.folder))? {
            let path = self.try_to(file)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('.'));
            if let Some((Ok(fence), kind)) = name.map(|(fence, kind)| (fence.parse(), kind.to_owned())) {
                files.push(SessionFile { fence, kind, path });
            }
        }
        Ok(files)
    }

    fn file(&self, fence: u64, kind: &str) -> PathBuf {
        self.folder.join(format!("{fence:020}.{kind}"))
    }

    /// A name in a folder is durable when the folder is.
    fn sync_folder(&self) -> Result<(), SessionError> {
        let parent = self.folder.parent().map_or(Ok(()), sync);
        self.try_to(parent.and_then(|()| sync(&self.folder)))
    }

    fn try_to<T>(&self, done: io::Result<T>) -> Result<T, SessionError> {
        done.map_err(|error| self.failed(&error))
    }

    /// The reason why a history is gone: a later attempt has removed it, or else somebody who had no right to.
    fn vanished(&self, fence: u64) -> SessionError {
        let why = || SessionError::Unavailable { id: self.id.clone(), why: "its history was removed".into() };
        self.refuse_stale(fence).err().unwrap_or_else(why)
    }

    fn failed(&self, error: &io::Error) -> SessionError {
        SessionError::Unavailable { id: self.id.clone(), why: format!("{}: {error}", self.folder.display()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::SessionEvent;

    #[test]
    fn all_folders_with_a_new_name_in_them_are_synced() {
        let root = tempfile::tempdir().unwrap();
        let new = root.path().join("a/b/c");
        assert_eq!(above_missing(&new), ["a/b", "a", ""].map(|path| root.path().join(path)));
        Folder::at(&new).unwrap();
        assert!(above_missing(&new).is_empty());
        assert_eq!(above_missing(Path::new("no-such-folder/inner")), ["no-such-folder", "."].map(PathBuf::from));
    }

    #[test]
    fn an_entry_that_was_written_while_a_successor_came_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let files = Files { folder: root.path().join("s"), id: "s".into() };
        files.open(1).unwrap();
        let entry = Entry { at_ms: 1, active_ms: 1, event: SessionEvent::ToolBegun { call: 0, key: "k".into() } };
        let line = encode(&entry, "s").unwrap() + "\n";
        let mut seen = None;
        let ended = files.append(1, &line, || seen = Some(files.open(2).unwrap().entries));
        assert!(matches!(ended, Err(SessionError::Stale { fence: 1, newer: 2, .. })), "{ended:?}");
        // It was there when the successor read; then it stays, in every later history.
        assert_eq!((seen.unwrap(), files.open(3).unwrap().entries), (vec![entry.clone()], vec![entry]));
    }
}
