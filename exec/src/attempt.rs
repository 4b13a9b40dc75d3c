//! One attempt: a command under its guard, seen from the worker's process as a stream of events.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::value::RawValue;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::process::Command;
use tokio::sync::{mpsc, watch};

use crate::payload::CommandPayload;
use crate::predecessors::{self, AttemptIdentity};
use crate::report::SOCKET_VARIABLE;
use crate::supervise::AttemptSupervisor;
use crate::wire::{GuardOrder, Spec};
use crate::{guard, orphans};

/// Events that may wait for whoever reads them. When it is full, the command's output waits in its pipe.
const QUEUE: usize = 16;

/// The command to run, and its circumstances.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Variables on top of this process's own environment.
    pub env: BTreeMap<String, String>,
    /// Variables of this process's environment that are not handed down.
    pub env_remove: Vec<String>,
    pub cwd: Option<PathBuf>,
    pub stdin: Stdin,
    /// Put into a file that `ONWARD_PAYLOAD_FILE` names.
    pub payload: Option<Vec<u8>>,
    /// Whether lines like `@onward progress 3/10` on stdout are understood, and taken out.
    pub directives: bool,
    /// The interval at which the activity of the tree is looked at; `None` leaves it to output and reports alone. The
    /// first look is what the second is compared with, so be a few times quicker than whoever waits for a beat.
    pub sample_every: Option<Duration>,
    /// The time from SIGTERM to SIGKILL.
    pub grace: Duration,
    /// Whether the command stays in the foreground of this process's terminal, and gets its Ctrl-C.
    pub foreground: bool,
    pub guard: GuardProgram,
    /// Told to every process of the attempt, so that a successor finds them.
    pub identity: Option<AttemptIdentity>,
    /// The folder in which the attempt's private folder is made: by default, where temporary files are.
    pub folder: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Stdin {
    #[default]
    Null,
    Bytes(Vec<u8>),
    /// The stdin of this process.
    Inherit,
}

/// The command line of a guard: the program, and the words before the path of the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardProgram {
    pub program: PathBuf,
    pub args: Vec<String>,
}

impl Default for GuardProgram {
    /// This very program, even if its file has been replaced since.
    fn default() -> Self {
        Self { program: "/proc/self/exe".into(), args: vec![guard::SUBCOMMAND.to_owned()] }
    }
}

impl Options {
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            env_remove: Vec::new(),
            cwd: None,
            stdin: Stdin::Null,
            payload: None,
            directives: true,
            sample_every: Some(Duration::from_secs(5)),
            grace: Duration::from_secs(10),
            foreground: false,
            guard: GuardProgram::default(),
            identity: None,
            folder: None,
        }
    }
}

impl From<CommandPayload> for Options {
    fn from(payload: CommandPayload) -> Self {
        let stdin = payload.stdin.map_or(Stdin::Null, |text| Stdin::Bytes(text.into_bytes()));
        Self { env: payload.env, cwd: payload.cwd, stdin, ..Self::new(payload.argv) }
    }
}

/// An event of an attempt. [`AttemptEvent::Started`] comes first, unless it could not start; [`AttemptEvent::Ended`] comes last.
#[derive(Debug, Clone)]
pub enum AttemptEvent {
    Started {
        pid: i32,
    },
    Output {
        stream: OutputStream,
        bytes: Vec<u8>,
    },
    /// CPU time or I/O of the tree rose since the last look.
    Activity,
    Progress {
        done: u64,
        total: Option<u64>,
        note: Option<String>,
    },
    /// The command asks to be silent for as long as this.
    Quiet(Duration),
    /// The result of the job. A later one replaces it.
    Result(Box<RawValue>),
    /// The command has ended, nothing of its tree is left, and all of its output has been told.
    Ended(Exit),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// The streams that nobody reads any more.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClosedStreams {
    stdout: bool,
    stderr: bool,
}

impl ClosedStreams {
    pub fn has(self, stream: OutputStream) -> bool {
        match stream {
            OutputStream::Stdout => self.stdout,
            OutputStream::Stderr => self.stderr,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    NotFound {
        why: String,
    },
    NotExecutable {
        why: String,
    },
    /// The command never began, for another reason than the program itself.
    NotStarted {
        why: String,
    },
    /// The command was started, and its guard was killed: nobody knows how it ended. It has been killed as well.
    Lost {
        why: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("cannot make a folder for the attempt in {}: {source}; make it writable, or choose another (TMPDIR)", .base.display())]
    Folder { base: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}; is the disk full?", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot make a socket at {}: {source}; a shorter path for temporary files (TMPDIR) may help", .path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("cannot start the guard {}: {source}", .program.display())]
    Guard { program: PathBuf, source: io::Error },
    #[error("commands cannot be run here: /proc is not mounted; mount it (as root: mount -t proc proc /proc)")]
    NoProc,
}

impl SpawnError {
    /// Why the guard did not start. Where `proc` is not mounted, that is why, whatever else the system says.
    fn of_guard(program: PathBuf, source: io::Error, proc: &Path) -> Self {
        match program.starts_with(proc) && !proc.join("self").exists() {
            true => Self::NoProc,
            false => Self::Guard { program, source },
        }
    }
}

/// An attempt under way. To drop it ends its tree as [`stop`](Self::stop) does.
#[derive(Debug)]
pub struct Running {
    events: mpsc::Receiver<AttemptEvent>,
    order: watch::Sender<Option<GuardOrder>>,
    closed: watch::Sender<ClosedStreams>,
    has_ended: bool,
}

impl Running {
    /// The next event, in order; `None` after [`AttemptEvent::Ended`]. Safe to cancel.
    ///
    /// A caller that does not ask slows the command down: its output waits in its pipe.
    pub async fn next(&mut self) -> Option<AttemptEvent> {
        if self.has_ended {
            return None;
        }
        let event = self.events.recv().await;
        self.has_ended = matches!(event, None | Some(AttemptEvent::Ended(_)));
        event
    }

    /// SIGTERM to the whole tree, SIGKILL after the grace. Events go on until [`AttemptEvent::Ended`].
    pub fn stop(&self) {
        self.ask(GuardOrder::Stop);
    }

    /// SIGKILL to the whole tree.
    pub fn kill(&self) {
        self.ask(GuardOrder::Kill);
    }

    /// Takes nothing more from this stream. As with a pipe whose reader is gone, the command gets SIGPIPE when it writes
    /// to it; what it has written before may still come.
    pub fn close(&self, stream: OutputStream) {
        self.closed.send_modify(|closed| match stream {
            OutputStream::Stdout => closed.stdout = true,
            OutputStream::Stderr => closed.stderr = true,
        });
    }

    fn ask(&self, order: GuardOrder) {
        self.order.send_if_modified(|now| {
            let is_more = *now < Some(order);
            *now = (*now).max(Some(order));
            is_more
        });
    }
}

/// Starts an attempt. Must be called inside a tokio runtime; it writes small files and does not wait for anything.
pub fn spawn(options: Options) -> Result<Running, SpawnError> {
    let base = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    // The job gets paths in it, and may work elsewhere.
    let folder = std::path::absolute(&base)
        .and_then(|base| {
            tempfile::Builder::new().prefix("onward-").permissions(Permissions::from_mode(0o700)).tempdir_in(base)
        })
        .map_err(|source| SpawnError::Folder { base, source })?;
    let (guard_path, report_path) = (folder.path().join("guard"), folder.path().join("report"));
    let (guard, reports) = (listen(&guard_path)?, listen(&report_path)?);

    let mut env = options.env;
    env.entry("PYTHONUNBUFFERED".to_owned()).or_insert_with(|| "1".to_owned());
    env.insert(SOCKET_VARIABLE.to_owned(), report_path.display().to_string());
    let mut env_remove = options.env_remove;
    env_remove.push(predecessors::WORKER.to_owned());
    let identity = options.identity.as_ref().map(AttemptIdentity::variables);
    for (name, value) in identity.iter().flatten() {
        env.insert((*name).to_owned(), value.clone());
    }
    if let Some(payload) = &options.payload {
        let path = write(&folder, "payload", payload)?;
        env.insert("ONWARD_PAYLOAD_FILE".to_owned(), path.display().to_string());
    }
    let stdin = match &options.stdin {
        Stdin::Null => Stdio::null(),
        Stdin::Inherit => Stdio::inherit(),
        Stdin::Bytes(bytes) => {
            let path = write(&folder, "stdin", bytes)?;
            std::fs::File::open(&path).map_err(|source| SpawnError::File { path, source })?.into()
        }
    };
    let GuardProgram { program, args } = options.guard;
    let child = Command::new(&program)
        .args(&args)
        .arg(&guard_path)
        .envs(identity.into_iter().flatten())
        .env(predecessors::WORKER, std::process::id().to_string())
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| SpawnError::of_guard(program, source, Path::new("/proc")))?;
    let spec = Spec {
        argv: options.argv,
        env,
        env_remove,
        cwd: options.cwd,
        foreground: options.foreground,
        grace_ms: millis(options.grace),
        sample_every_ms: options.sample_every.map(|every| millis(every).max(1)),
        guard_args: args,
        folder: folder.path().to_owned(),
    };
    let (events, receiver) = mpsc::channel(QUEUE);
    let (order, orders) = watch::channel(None);
    let (closed, is_closed) = watch::channel(ClosedStreams::default());
    let mark = orphans::Mark::new(&report_path, child.id());
    let supervisor = AttemptSupervisor {
        folder,
        child,
        guard: Some(guard),
        reports: Some(reports),
        spec,
        events,
        orders,
        is_closed,
        mark,
        directives: options.directives,
    };
    tokio::spawn(supervisor.run());
    Ok(Running { events: receiver, order, closed, has_ended: false })
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn listen(path: &Path) -> Result<UnixListener, SpawnError> {
    UnixListener::bind(path).map_err(|source| SpawnError::Socket { path: path.to_owned(), source })
}

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> Result<PathBuf, SpawnError> {
    let path = folder.path().join(name);
    match std::fs::write(&path, bytes) {
        Ok(()) => Ok(path),
        Err(source) => Err(SpawnError::File { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_that_cannot_start_because_proc_is_missing_says_so() {
        let place = tempfile::tempdir().expect("a folder");
        let proc = place.path();
        let why = |program: PathBuf| {
            let source = io::Error::from_raw_os_error(2);
            SpawnError::of_guard(program, source, proc).to_string()
        };
        let missing = why(proc.join("self/exe"));
        assert!(missing.contains("/proc is not mounted") && missing.contains("mount -t proc"), "{missing}");
        let elsewhere = why("/opt/onward/guard".into());
        assert!(elsewhere.contains("cannot start the guard /opt/onward/guard"), "{elsewhere}");
        std::fs::create_dir(proc.join("self")).expect("a folder");
        let mounted = why(proc.join("self/exe"));
        assert!(mounted.contains("cannot start the guard"), "{mounted}");
    }
}
