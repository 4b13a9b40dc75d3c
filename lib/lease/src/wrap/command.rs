//! Another program.

use core::future::Future;
use core::panic::Location;
use core::time::Duration;
use std::io;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::{Instant, sleep_until, timeout};

use crate::failure::Failure;
use crate::heartbeat::Heartbeat;

/// Bytes kept of each of the two outputs, the newest ones.
const KEPT_BYTES: usize = 64 << 10;
/// Lines of standard error that the text of the failure shows; below, bytes.
const SHOWN_LINES: usize = 5;
const SHOWN_BYTES: usize = 1_024;
/// The time between the request to stop and the kill.
const STOPS_WITHIN: Duration = Duration::from_secs(5);
/// The time to read on after the command's end: a process that has left the group may hold the outputs open.
const READ_ON_FOR: Duration = Duration::from_secs(1);
/// The exit code that means a passing failure, by convention.
const EX_TEMPFAIL: i32 = 75;

/// The output of a command that succeeded: the last 64 KiB of each stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CommandOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Heartbeat {
    /// Runs a program to its end. All that it writes beats. It gets a process group of its own, which is stopped when
    /// the work must stop (SIGTERM, and SIGKILL after five seconds), and killed when this is dropped or the program
    /// has left something behind.
    ///
    /// An exit status other than 0 is a [`Failure`] that is retried, with the last lines of the standard error in its
    /// text; 75 says by convention that it will pass. The standard input is as the command has it: give it
    /// [`Stdio::null`] if the program might read it.
    ///
    /// ```no_run
    /// # async fn convert(beats: onward_lease::Heartbeat) -> Result<(), onward_lease::Failure> {
    /// let mut ffmpeg = tokio::process::Command::new("ffmpeg");
    /// ffmpeg.args(["-nostdin", "-i", "in.mov", "out.mp4"]);
    /// beats.command(ffmpeg).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn command(&self, command: Command) -> impl Future<Output = Result<CommandOutput, Failure>> + Send {
        self.run_command(command, Location::caller())
    }

    /// [`Self::command`] whose beats are said to come from there.
    pub async fn run_command(
        &self,
        mut command: Command,
        place: &'static Location<'static>,
    ) -> Result<CommandOutput, Failure> {
        self.check()?;
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child =
            command.spawn().map_err(|error| Failure::retry(format!("`{program}` cannot be started: {error}")))?;
        let group = Group::of(&child);
        let mut pipes = Pipes::of(&mut child);
        let ended = self.follow(&mut child, &mut pipes, &group, place).await;
        drop(group);
        let status = ended.map_err(|error| Failure::retry(format!("`{program}` cannot be followed: {error}")))?;
        // A pipe that stays open is held by what has left the group.
        let rest = async {
            while pipes.read().await.is_some() {
                self.beat_at(place);
            }
        };
        let _ = timeout(READ_ON_FOR, rest).await;
        let output = pipes.output;
        match status {
            None => Err(Failure::cancelled()),
            Some(status) if status.success() => Ok(output),
            Some(status) => Err(Failure::retry(tell(&program, status, &output.stderr))),
        }
    }

    /// Waits until the command has ended; `None` if it was told to.
    async fn follow(
        &self,
        child: &mut Child,
        pipes: &mut Pipes,
        group: &Group,
        place: &'static Location<'static>,
    ) -> io::Result<Option<ExitStatus>> {
        let mut kill_at = None;
        loop {
            tokio::select! {
                status = child.wait() => {
                    let status = status?;
                    return Ok(if kill_at.is_none() { Some(status) } else { None });
                }
                _ = self.cancelled(), if kill_at.is_none() => {
                    group.signal(Signal::TERM);
                    kill_at = Some(Instant::now() + STOPS_WITHIN);
                }
                () = async { sleep_until(kill_at.expect("guarded")).await }, if kill_at.is_some() => {
                    group.signal(Signal::KILL);
                    child.wait().await?;
                    return Ok(None);
                }
                Some(()) = pipes.read() => self.beat_at(place),
            }
        }
    }
}

/// The processes of a command; none of them outlives this, unless it has left the group.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // A group that has ended has nobody to tell.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Both outputs, read as they come.
struct Pipes {
    out: Option<ChildStdout>,
    err: Option<ChildStderr>,
    output: CommandOutput,
}

impl Pipes {
    fn of(child: &mut Child) -> Self {
        Self { out: child.stdout.take(), err: child.stderr.take(), output: CommandOutput::default() }
    }

    /// `None` once both are closed.
    async fn read(&mut self) -> Option<()> {
        let (mut from_out, mut from_err) = ([0; 8 << 10], [0; 8 << 10]);
        while self.out.is_some() || self.err.is_some() {
            tokio::select! {
                got = read_some(&mut self.out, &mut from_out), if self.out.is_some() => {
                    if keep(got, &from_out, &mut self.output.stdout, &mut self.out) {
                        return Some(());
                    }
                }
                got = read_some(&mut self.err, &mut from_err), if self.err.is_some() => {
                    if keep(got, &from_err, &mut self.output.stderr, &mut self.err) {
                        return Some(());
                    }
                }
            }
        }
        None
    }
}

async fn read_some(pipe: &mut Option<impl AsyncRead + Unpin>, buffer: &mut [u8]) -> usize {
    match pipe {
        // An output that cannot be read is over.
        Some(pipe) => pipe.read(buffer).await.unwrap_or(0),
        None => 0,
    }
}

fn keep<P>(got: usize, buffer: &[u8], kept: &mut Vec<u8>, pipe: &mut Option<P>) -> bool {
    if got == 0 {
        *pipe = None;
        return false;
    }
    kept.extend_from_slice(&buffer[..got]);
    kept.drain(..kept.len().saturating_sub(KEPT_BYTES));
    true
}

fn tell(program: &str, status: ExitStatus, stderr: &[u8]) -> String {
    let passing = if status.code() == Some(EX_TEMPFAIL) { ", which says that it will pass" } else { "" };
    let text = String::from_utf8_lossy(&stderr[stderr.len().saturating_sub(SHOWN_BYTES)..]);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
    let colon = if last.is_empty() { "" } else { ": " };
    format!("`{program}` ended by {status}{passing}{colon}{last}")
}
