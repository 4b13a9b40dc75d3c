//! The last step before the command: the guard's child, which makes itself what the command needs to be and then
//! becomes it.
//!
//! It is a process of its own program because only it can ask to be killed with its parent, and only before the command
//! takes its place. Its stdin is a line to the guard, over which it gets the command with its stdin, and says what went
//! wrong. That line closes by itself when the command has taken over.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};

use crate::wire::Spec;

/// The word that a guard is called with to be a leaf instead.
pub(crate) const WORD: &str = "--leaf";

/// The exit code of `sh` for a command that it cannot start. Nobody looks at it: the guard was told why.
const NOT_STARTED: u8 = 126;

/// Starts the command in this process. `args` is the pid of the guard. Comes back only if that failed.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let line = match io::stdin().as_fd().try_clone_to_owned() {
        Ok(stdin) => UnixStream::from(stdin),
        Err(_) => return ExitCode::from(NOT_STARTED),
    };
    let error = match prepare(&line, args) {
        Ok(mut command) => command.exec(),
        Err(error) => error,
    };
    // Only an error of our own has no number: a NUL byte, or a spec that is none.
    let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
    // A guard that is gone has taken us with it.
    let _ = (&line).write_all(errno.to_string().as_bytes());
    ExitCode::from(NOT_STARTED)
}

fn prepare(line: &UnixStream, args: &[OsString]) -> io::Result<Command> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the guard was gone before we asked for it, nothing would kill us.
    let parent = getppid().map(|pid| OsString::from(pid.as_raw_nonzero().to_string()));
    if parent.as_ref() != args.first() {
        return Err(Errno::SRCH.into());
    }
    let stdin = receive(line)?;
    let mut spec = Vec::new();
    (&*line).read_to_end(&mut spec)?;
    let spec: Spec = serde_json::from_slice(&spec)?;
    if !spec.foreground {
        setsid()?;
    }
    rustix::stdio::dup2_stdin(stdin)?;
    let [program, args @ ..] = spec.argv.as_slice() else { return Err(Errno::INVAL.into()) };
    let mut command = Command::new(program);
    for name in spec.env_remove {
        command.env_remove(name);
    }
    // What is given wins over what is not handed down.
    command.args(args).envs(spec.env);
    if let Some(cwd) = spec.cwd {
        command.current_dir(cwd);
    }
    Ok(command)
}

/// Gives a leaf its command, and waits until it has become it: `None`, or the number of the error.
pub(crate) fn hand_over(mut line: &UnixStream, spec: &Spec) -> io::Result<Option<i32>> {
    send(line, &io::stdin())?;
    line.write_all(&serde_json::to_vec(spec)?)?;
    line.shutdown(Shutdown::Write)?;
    let mut errno = String::new();
    line.take(16).read_to_string(&mut errno)?;
    Ok(errno.parse().ok())
}

fn send(line: &UnixStream, stdin: &io::Stdin) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [stdin.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "there is space for one");
    sendmsg(line, &[IoSlice::new(b".")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(line: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(line, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    fds.find_map(|mut fds| fds.next()).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
