//! Files below one folder.
//!
//! Every path is resolved by `openat2` with `RESOLVE_BENEATH`: `..`, absolute paths and links that lead out of the folder
//! are refused by the kernel, in the same step in which the file is opened, so nothing can be exchanged in between.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::tool::{Effect, Tool, ToolContext, ToolError};

/// Most bytes of one read or write.
const MAX_BYTES: usize = 64 << 10;
const MAX_NAMES: usize = 1_000;
/// A rename elsewhere in the path may disturb the kernel's look; it asks to be asked again.
const TRIES: usize = 16;

/// The tools `read_file`, `list_files` and, if it is allowed, `write_file`, below one folder.
#[derive(Clone, Debug)]
pub struct Files {
    root: Arc<OwnedFd>,
    writable: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadArguments {
    /// Relative to the folder.
    path: String,
    /// Where to begin, in bytes.
    #[serde(default)]
    offset: u64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListArguments {
    /// Relative to the folder; `.` is the folder itself.
    path: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WriteArguments {
    /// Relative to the folder. Its own folder must exist.
    path: String,
    /// The whole text of the file.
    text: String,
}

impl Files {
    /// Files that can only be read.
    pub fn beneath(root: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, root.as_ref(), flags, Mode::empty())?;
        Ok(Self { root: Arc::new(root), writable: false })
    }

    pub fn writable(self) -> Self {
        Self { writable: true, ..self }
    }

    pub fn tools(self) -> Vec<Tool> {
        let limit = MAX_BYTES + 1_024;
        let files = self.clone();
        let read = move |ctx: ToolContext, arguments: ReadArguments| {
            let files = files.clone();
            at_once(ctx, move || files.read(&arguments.path, arguments.offset))
        };
        let files = self.clone();
        let list = move |ctx: ToolContext, arguments: ListArguments| {
            let files = files.clone();
            at_once(ctx, move || files.list(&arguments.path))
        };
        let mut tools = vec![
            Tool::new("read_file", "Reads at most 64 KiB of a file", read).output_limit(limit),
            Tool::new("list_files", "Lists a folder", list),
        ];
        if self.writable {
            let write = move |ctx: ToolContext, arguments: WriteArguments| {
                let files = self.clone();
                at_once(ctx, move || files.write(&arguments.path, &arguments.text))
            };
            let text = "Writes a file of at most 64 KiB, whatever it was before";
            tools.push(Tool::new("write_file", text, write).effect(Effect::Idempotent));
        }
        tools
    }

    fn read(&self, path: &str, offset: u64) -> Result<String, ToolError> {
        let mut file = self.open(path, OFlags::RDONLY)?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        (&mut file).take(MAX_BYTES as u64).read_to_end(&mut bytes)?;
        let (end, length) = (offset + bytes.len() as u64, file.metadata()?.len());
        let rest = if end < length { format!("\n[bytes {offset} to {end} of {length}]") } else { String::new() };
        Ok(String::from_utf8_lossy(&bytes).into_owned() + &rest)
    }

    fn write(&self, path: &str, text: &str) -> Result<String, ToolError> {
        if text.len() > MAX_BYTES {
            return Err(ToolError::new(format!("{} bytes are too many; at most {MAX_BYTES}", text.len())));
        }
        let mut file = self.open(path, OFlags::WRONLY | OFlags::CREATE)?;
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        Ok(format!("{} bytes written", text.len()))
    }

    fn list(&self, path: &str) -> Result<String, ToolError> {
        let folder = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        let mut is_cut = false;
        for entry in rustix::fs::Dir::new(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "." || name == ".." {
                continue;
            }
            if names.len() == MAX_NAMES {
                is_cut = true;
                break;
            }
            let slash = if entry.file_type() == rustix::fs::FileType::Directory { "/" } else { "" };
            names.push(format!("{name}{slash}"));
        }
        names.sort();
        if is_cut {
            names.push(format!("[cut: {MAX_NAMES} of more]"));
        }
        Ok(names.join("\n"))
    }

    /// An ordinary file: a pipe or a device could hang, or do worse.
    fn open(&self, path: &str, flags: OFlags) -> Result<File, ToolError> {
        let file: File = self.resolve(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?.into();
        if !fs::File::metadata(&file)?.is_file() {
            return Err(ToolError::new("it is not an ordinary file"));
        }
        Ok(file)
    }

    fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, ToolError> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        for _ in 0..TRIES {
            match openat2(&*self.root, path, flags | OFlags::CLOEXEC, mode, resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::XDEV) => return Err(ToolError::new("the path leads out of the folder")),
                other => return Ok(other?),
            }
        }
        Err(ToolError::new("the path changes too fast"))
    }
}

/// Makes the call on a thread beside the executor, because it may block.
async fn at_once(
    ctx: ToolContext,
    call: impl FnOnce() -> Result<String, ToolError> + Send + 'static,
) -> Result<String, ToolError> {
    ctx.check()?;
    tokio::task::spawn_blocking(call).await?
}
