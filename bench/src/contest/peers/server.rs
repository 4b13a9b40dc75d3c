//! Starting and ending another system's server.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use thiserror::Error;
use tokio::net::TcpStream;

use super::super::ContestError;
use super::install;

/// The time that a server has until it accepts connections.
const START: Duration = Duration::from_secs(60);

/// The time that a server has to end before it is killed.
const END: Duration = Duration::from_secs(10);

/// Lines of a server's output that an error shows.
const SHOWN_LINES: usize = 15;

#[derive(Debug, Error)]
pub enum PeerServerError {
    #[error("cannot start {program}: {source}")]
    Start { program: String, source: io::Error },
    #[error("{program} {what}; the end of what it said:\n{said}")]
    Broken { program: String, what: String, said: String },
}

/// A server process that ends when this is dropped.
#[derive(Debug)]
pub struct PeerServer {
    program: String,
    child: Child,
    output: PathBuf,
    end_by: Signal,
}

impl PeerServer {
    /// Starts the command. What it says goes to a file in the folder, to be shown if it fails.
    pub fn start(mut command: Command, folder: &Path) -> Result<Self, PeerServerError> {
        let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
        let program = program.to_string_lossy().into_owned();
        let failed = |source| PeerServerError::Start { program: program.clone(), source };
        let output = folder.join(format!("{program}.output"));
        let file = File::create(&output).map_err(failed)?;
        command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
        let child = command.spawn().map_err(failed)?;
        Ok(Self { program, child, output, end_by: Signal::KILL })
    }

    /// Ends it by this signal, where killing it would leave something of it behind.
    pub fn end_by(mut self, signal: Signal) -> Self {
        self.end_by = signal;
        self
    }

    /// Waits until it accepts connections.
    pub async fn accepts(&mut self, port: u16) -> Result<(), PeerServerError> {
        let started = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.broken(format!("ended ({status}) before it accepted connections")));
            }
            if started.elapsed() > START {
                return Err(self.broken(format!("accepts no connections after {} s", START.as_secs())));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn broken(&self, what: String) -> PeerServerError {
        PeerServerError::Broken { program: self.program.clone(), what, said: end_of(&self.output) }
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        // It may have ended by itself: then there is nothing to end.
        let _ = kill_process(pid, self.end_by);
        let asked = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if asked.elapsed() > END {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The last lines of a file that a process wrote its output to.
pub fn end_of(output: &Path) -> String {
    let said = std::fs::read(output).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

/// A port on loopback that was free a moment ago.
pub fn free_port() -> Result<u16, ContestError> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Runs a command that ends by itself.
pub fn run(mut command: Command) -> Result<(), ContestError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot start {program}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} failed ({}): {}", output.status, said.trim()).into());
    }
    Ok(())
}

/// The path of a program: in our own folder, in the search path, or where Debian puts what a search path often lacks.
pub fn program(name: &str) -> Option<PathBuf> {
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = vec![install::cache().join("bin")];
    folders.extend(std::env::split_paths(&searched));
    folders.extend(["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"].map(PathBuf::from));
    folders.extend(postgres_folders());
    folders.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Debian keeps every version of PostgreSQL beside the others: the newest first.
fn postgres_folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort_by(|one, other| other.cmp(one));
    versions.into_iter().map(|(_, folder)| folder).collect()
}

/// The path of that program, or a remedy for its absence.
pub fn needed(name: &str) -> Result<PathBuf, ContestError> {
    program(name).ok_or_else(|| format!("`{name}` is not installed; `onward-bench --install` installs it").into())
}

/// The programs of these that are not installed.
pub fn missing(names: &[&str]) -> Option<String> {
    let absent = names.iter().filter(|name| program(name).is_none());
    let absent: Vec<&str> = absent.filter_map(|name| name.rsplit('/').next()).collect();
    (!absent.is_empty()).then(|| absent.join(", "))
}
