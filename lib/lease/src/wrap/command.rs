//! Another program.

use core::future::Future;
use core::panic::Location;
use core::time::Duration;
use std::io;
use std::os::fd::AsFd;
use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::{Instant, sleep_until, timeout};

use super::ProcessTree;
use crate::failure::Failure;
use crate::heartbeat::Heartbeat;

/// Bytes kept of each of the two outputs, the newest ones.
const KEPT_BYTES: usize = 64 << 10;
/// Lines of standard error that the text of the failure shows; below, bytes.
const SHOWN_LINES: usize = 5;
const SHOWN_BYTES: usize = 1_024;
/// The time between the request to stop and the kill.
const STOPS_WITHIN: Duration = Duration::from_secs(5);
/// The variable by which processes of a command are known; its value is another one for every command.
const MARK: &str = "ONWARD_LEASE_COMMAND";
/// The time to read on after the command's end: a process that escaped its tree may hold the outputs open.
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
    /// the work must stop: SIGTERM to the group, and after five seconds SIGKILL to the whole
    /// [tree](crate::wrap::ProcessTree), whatever has left the group. The tree is killed at once when this is dropped, or
    /// when the program has left something behind.
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
        let mark = unique()?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).env(MARK, &mark);
        let mut child =
            command.spawn().map_err(|error| Failure::retry(format!("`{program}` cannot be started: {error}")))?;
        let mut pipes = Pipes::of(&mut child);
        let mut tree = ProcessTree::new(child.id(), format!("{MARK}={mark}"), pipes.files());
        let ended = self.follow(&mut child, &mut pipes, &mut tree, place).await;
        tree.end().await;
        let status = ended.map_err(|error| Failure::retry(format!("`{program}` cannot be followed: {error}")))?;
        // A pipe that stays open is held by what has escaped.
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

    /// Waits until the command has ended, or has had its time to. `None` if it was told to stop.
    async fn follow(
        &self,
        child: &mut Child,
        pipes: &mut Pipes,
        tree: &mut ProcessTree,
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
                    tree.terminate();
                    kill_at = Some(Instant::now() + STOPS_WITHIN);
                }
                () = async { sleep_until(kill_at.expect("guarded")).await }, if kill_at.is_some() => {
                    return Ok(None);
                }
                Some(()) = pipes.read() => self.beat_at(place),
            }
        }
    }
}

/// Another value for every command of every process.
fn unique() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Failure::retry(format!("no randomness: {error}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
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

    fn files(&self) -> [Option<&dyn AsFd>; 2] {
        [self.out.as_ref().map(|pipe| pipe as &dyn AsFd), self.err.as_ref().map(|pipe| pipe as &dyn AsFd)]
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
