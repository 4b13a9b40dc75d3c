//! Starts the command, or says why it cannot be started.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Pid;

use crate::wire::{FailedKind, Said, Spec};

/// With the guard's own stdin, stdout and stderr.
pub(crate) fn start(spec: &Spec) -> Result<Pid, Said> {
    let failed = |kind, text| Said::Failed { kind, text };
    let [program, args @ ..] = spec.argv.as_slice() else {
        return Err(failed(FailedKind::Other, "there is no program to start: the arguments are empty".to_owned()));
    };
    let mut command = Command::new(program);
    command.args(args).envs(&spec.env);
    for name in &spec.env_remove {
        command.env_remove(name);
    }
    if let Some(cwd) = &spec.cwd {
        // The error of a start does not tell a missing folder from a missing program.
        if !cwd.is_dir() {
            let text =
                format!("cannot work in {}: there is no such folder; create it, or correct `cwd`", cwd.display());
            return Err(failed(FailedKind::Other, text));
        }
        command.current_dir(cwd);
    }
    if !spec.foreground {
        command.process_group(0);
    }
    let child = command.spawn().map_err(|error| explain(program, &error))?;
    Ok(Pid::from_raw(child.id() as i32).expect("a child has a pid"))
}

fn explain(program: &str, error: &io::Error) -> Said {
    let is_there = program.contains('/') && Path::new(program).exists();
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
    Said::Failed { kind, text: format!("cannot start `{program}`: {error}; {advice}") }
}
