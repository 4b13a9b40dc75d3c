//! Starts the command through a [leaf], or says why it cannot be started.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Access, access};
use rustix::process::Pid;

use crate::leaf;
use crate::wire::{FailedKind, GuardMessage, Spec};

/// Starts the command with the guard's own stdin, stdout and stderr.
pub(crate) fn start(spec: &Spec) -> Result<Pid, GuardMessage> {
    let failed = |text| GuardMessage::Failed { kind: FailedKind::Other, text };
    let Some(program) = spec.argv.first() else {
        return Err(failed("there is no program to start: the arguments are empty".to_owned()));
    };
    // The error of a start does not tell a missing folder from a missing program.
    if let Some(cwd) = &spec.cwd
        && let Err(error) = access(cwd.join("."), Access::EXEC_OK)
    {
        let error = io::Error::from(error);
        return Err(failed(format!("cannot work in {}: {error}; create it, or correct `cwd`", cwd.display())));
    }
    match start_leaf(spec) {
        Ok((pid, None)) => Ok(pid),
        Ok((_, Some(errno))) => Err(explain(program, spec, &io::Error::from_raw_os_error(errno))),
        Err(error) => Err(explain(program, spec, &error)),
    }
}

fn start_leaf(spec: &Spec) -> io::Result<(Pid, Option<i32>)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new("/proc/self/exe")
        .args(&spec.guard_args)
        .arg(leaf::WORD)
        .arg(rustix::process::getpid().as_raw_nonzero().to_string())
        .stdin(OwnedFd::from(theirs))
        .spawn()?;
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a child has a pid");
    Ok((pid, leaf::hand_over(&ours, spec)?))
}

fn explain(program: &str, spec: &Spec, error: &io::Error) -> GuardMessage {
    let base = spec.cwd.as_deref().unwrap_or(Path::new(""));
    let is_there = program.contains('/') && base.join(program).exists();
    let (kind, advice) = match error.kind() {
        io::ErrorKind::NotFound if is_there => {
            (FailedKind::NotFound, "the file is there, but the interpreter that its first line names is not")
        }
        io::ErrorKind::NotFound if program.contains('/') => (FailedKind::NotFound, "check the path"),
        io::ErrorKind::NotFound => (FailedKind::NotFound, "install it, or give its full path"),
        io::ErrorKind::PermissionDenied => (FailedKind::NotExecutable, "make it an executable file (chmod +x)"),
        _ if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
            (FailedKind::NotExecutable, "it is neither a program for this machine nor a script with a first line `#!`")
        }
        io::ErrorKind::ArgumentListTooLong => (FailedKind::Other, "shorten its arguments and environment"),
        _ => (FailedKind::Other, "this machine cannot start it now"),
    };
    GuardMessage::Failed { kind, text: format!("cannot start `{program}`: {error}; {advice}") }
}
