//! The guard: one small process per attempt, between the worker and the command.
//!
//! It exists because only a parent that outlives the worker can end the command's tree when the worker is killed. As
//! the tree's *subreaper* it inherits every process in it that has lost its parent, a daemon that forked twice and
//! called `setsid` included. So the tree is empty exactly when the guard has no children left, and nothing can leave
//! it. One thread, no runtime: it waits in `poll` for the worker's words, for the command's end and for the next look
//! at the tree's activity.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open, set_child_subreaper, setsid, wait};

use crate::activity::Activity;
use crate::tree_kill::{TreeKill, TreeSession};
use crate::wire::{self, ExitStatus, GuardMessage, GuardOrder, Spec};
use crate::{leaf, start};

/// The word that the binary is called with to be a guard, before the path of the socket.
pub const SUBCOMMAND: &str = "exec-guard";

/// Signals that a terminal or an operator sends to a whole group: they are meant for the command, not for its guard.
const NOT_FOR_US: [i32; 4] = [
    signal_hook::consts::SIGINT,
    signal_hook::consts::SIGTERM,
    signal_hook::consts::SIGHUP,
    signal_hook::consts::SIGQUIT,
];

/// The longest wait where the kernel cannot tell us that a process has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Is a guard. `args` is what follows [`SUBCOMMAND`]: the path of the socket.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if let [word, rest @ ..] = args.as_slice()
        && word == leaf::WORD
    {
        return leaf::main(rest);
    }
    let outcome = match args.as_slice() {
        [socket] => serve(socket),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "give the path of the socket, and nothing else")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The command was not started; the worker sees how we ended, and a person sees this.
            let _ = writeln!(io::stderr(), "onward: the guard of an attempt cannot work: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(socket: &OsString) -> io::Result<()> {
    // Handlers, unlike ignored signals, are not handed down to the command.
    let noted = Arc::new(AtomicBool::new(false));
    for signal in NOT_FOR_US {
        signal_hook::flag::register(signal, Arc::clone(&noted))?;
    }
    rustix::thread::set_name(c"onward-guard")?;
    let mut worker = Worker::new(UnixStream::connect(socket)?);
    let Some(spec) = worker.spec()? else { return Ok(()) };
    worker.stream.set_nonblocking(true)?;
    set_child_subreaper(Some(rustix::process::getpid()))?;
    if !spec.foreground {
        setsid()?;
    }
    match start::start(&spec) {
        Ok(pid) => Guard::new(&spec, worker, pid).run(),
        Err(failed) => worker.send(&failed),
    }
    // The worker removes it as well, if it is there. So it may be gone already.
    let _ = std::fs::remove_dir_all(&spec.folder);
    Ok(())
}

struct Guard<'a> {
    spec: &'a Spec,
    worker: Worker,
    main: Pid,
    main_fd: Option<OwnedFd>,
    has_exited: bool,
    activity: Activity,
    before: Option<u64>,
}

impl<'a> Guard<'a> {
    fn new(spec: &'a Spec, mut worker: Worker, main: Pid) -> Self {
        worker.send(&GuardMessage::Started { pid: main.as_raw_nonzero().get() });
        let main_fd = pidfd_open(main, PidfdFlags::empty()).ok();
        Self { spec, worker, main, main_fd, has_exited: false, activity: Activity::default(), before: None }
    }

    fn run(&mut self) {
        let order = self.watch();
        self.end(order);
        self.worker.send_rest();
    }

    /// Waits until the command has ended by itself, or somebody wants it to.
    fn watch(&mut self) -> GuardOrder {
        let every = self.spec.sample_every_ms.map(Duration::from_millis);
        let mut next_look = every.map(|every| Instant::now() + every);
        loop {
            self.reap();
            if self.has_exited {
                return GuardOrder::Stop;
            }
            if let Some(order) = self.worker.order() {
                return order;
            }
            if let (Some(every), Some(at)) = (every, next_look)
                && Instant::now() >= at
            {
                self.report_activity();
                next_look = Some(Instant::now() + every);
            }
            let mut wait_for = next_look.map(|at| at.saturating_duration_since(Instant::now()));
            if self.main_fd.is_none() {
                wait_for = Some(wait_for.map_or(LOOK_AGAIN, |span| span.min(LOOK_AGAIN)));
            }
            self.worker.wait(self.main_fd.as_slice(), wait_for);
        }
    }

    /// The first look is what the others are compared with: that a command starts is no news.
    fn report_activity(&mut self) {
        let now = self.activity.sample(own_pid());
        if self.before.is_some_and(|before| now > before) {
            self.worker.send(&GuardMessage::Activity(true));
        }
        self.before = Some(now);
    }

    /// Ends what is left of the tree, and comes back when nothing is.
    fn end(&mut self, order: GuardOrder) {
        let session = if self.spec.foreground { TreeSession::Shared } else { TreeSession::Own };
        let mut ending = TreeKill::new(own_pid(), session, order, Duration::from_millis(self.spec.grace_ms));
        while self.reap() {
            let wait_for = ending.poll();
            let fds = ending.fds();
            self.worker.wait(fds, Some(wait_for));
            if self.worker.order() == Some(GuardOrder::Kill) {
                ending.kill_now();
            }
        }
    }

    /// Collects the processes that have ended. Says whether there are others.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main && !self.has_exited => self.exited(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                // No children: as their subreaper we would have inherited any that were left.
                Err(_) => return false,
            }
        }
    }

    fn exited(&mut self, status: WaitStatus) {
        let how = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => ExitStatus::Code(code),
            (None, Some(signal)) => ExitStatus::Signal(signal),
            (None, None) => return,
        };
        self.has_exited = true;
        self.main_fd = None;
        self.worker.send(&GuardMessage::Exited(how));
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The connection to the worker's process.
struct Worker {
    stream: UnixStream,
    input: Vec<u8>,
    /// A message that did not fit and must not be lost.
    unsaid: Option<Vec<u8>>,
    is_gone: bool,
}

impl Worker {
    fn new(stream: UnixStream) -> Self {
        Self { stream, input: Vec::new(), unsaid: None, is_gone: false }
    }

    /// Blocks for it. None if the worker changed its mind or is gone.
    fn spec(&mut self) -> io::Result<Option<Spec>> {
        loop {
            if let Some(line) = self.next_line() {
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.is_gone {
                return Ok(None);
            }
            self.read();
        }
    }

    /// The latest order of the worker. A worker that is gone wants it to stop.
    fn order(&mut self) -> Option<GuardOrder> {
        let mut wanted = None;
        if !self.is_gone {
            self.read();
        }
        while let Some(line) = self.next_line() {
            // What we cannot read comes from something that is not the worker we know: as if it were gone.
            wanted = wanted.max(Some(serde_json::from_slice(&line).unwrap_or(GuardOrder::Stop)));
        }
        wanted.or(self.is_gone.then_some(GuardOrder::Stop))
    }

    /// Never blocks: a worker that does not listen (a frozen one) must not keep us from our duty.
    fn send(&mut self, said: &GuardMessage) {
        if self.is_gone {
            return;
        }
        let line = wire::encode_line(said).expect("our own messages are JSON");
        match self.stream.write(&line) {
            Ok(written) if written == line.len() => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !matches!(said, GuardMessage::Activity(_)) {
                    self.unsaid = Some(line);
                }
            }
            // Half a line would be read as nonsense, and nobody hears us otherwise.
            Ok(_) | Err(_) => self.is_gone = true,
        }
    }

    /// Waits for a worker that did not listen. There is nothing left to do meanwhile.
    fn send_rest(&mut self) {
        let Some(line) = self.unsaid.take() else { return };
        // It can only fail because the worker is gone, and then there is nobody to tell.
        let _ = self.stream.set_nonblocking(false).and_then(|()| self.stream.write_all(&line));
    }

    /// Waits until the worker says something, one of the processes ends, or the time is over.
    fn wait(&self, processes: &[OwnedFd], at_most: Option<Duration>) {
        let mut fds: Vec<PollFd<'_>> = processes.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        if !self.is_gone {
            fds.push(PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN));
        }
        let at_most = at_most.and_then(|span| Timespec::try_from(span).ok());
        // An interruption is as good a reason to look around as any.
        let _ = poll(&mut fds, at_most.as_ref());
    }

    fn read(&mut self) {
        use io::Read;
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_gone = true,
                Ok(read) => {
                    self.input.extend_from_slice(&buffer[..read]);
                    if !buffer[..read].contains(&b'\n') {
                        continue;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.is_gone = true,
            }
            return;
        }
    }

    fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = self.input.iter().position(|&byte| byte == b'\n')?;
        let rest = self.input.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.input, rest);
        line.pop();
        Some(line)
    }
}
