//! A server process: start, freeze, thaw, kill, start again, and the end.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use thiserror::Error;

/// The time that a server has until it says that it is ready, on a busy computer too.
const START: Duration = Duration::from_secs(120);

/// The interval at which a starting server's output is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Lines of a server's output that an error shows.
const SHOWN_LINES: usize = 15;

/// The guard process: it starts the server once per line that it reads, and when the lines end, because the
/// test process closed them or died, it ends the server and removes the folder.
const GUARD: &str = r#"
end_by=$1 folder=$2
shift 2
server=
while read -r output; do
    if [ -n "$server" ]; then wait "$server" 2>/dev/null; fi
    setpriv --pdeathsig KILL -- "$@" >"$output" 2>&1 </dev/null &
    server=$!
    echo "$server"
done
if [ -n "$server" ]; then
    kill -CONT "$server" 2>/dev/null
    kill "-$end_by" "$server" 2>/dev/null
    wait "$server" 2>/dev/null
fi
rm -rf "$folder"
"#;

#[derive(Error)]
pub enum ServerProcessError {
    #[error("`{program}` is not installed; `cargo xtask test` installs it, or look into xtask/src/install.rs")]
    Absent { program: String },
    #[error("cannot start {program}: {source}")]
    Start { program: String, source: io::Error },
    #[error("cannot use the folder {}: {source}", folder.display())]
    Files { folder: PathBuf, source: io::Error },
    #[error("{program} {what}; the end of what it said:\n{said}")]
    Broken { program: String, what: String, said: String },
}

/// Shown as `unwrap` shows it: the text, with its lines.
impl fmt::Debug for ServerProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The plan by which a server is started.
pub(crate) struct StartPlan {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub variables: Vec<(&'static str, String)>,
    /// `setpriv` is asked to become this user first.
    pub user: Option<&'static str>,
    /// The line that the server prints when it can be used.
    pub ready: &'static str,
    /// `KILL`, unless that would leave something of the server behind.
    pub end_by: &'static str,
}

/// A server process with a guard process above it. The guard lives in a process group of its own, so that a signal to
/// the group of the tests (Ctrl-C, a runner's timeout) does not end it before it has cleaned up; should it be killed
/// itself, the kernel kills the server.
#[derive(Debug)]
pub struct ServerProcess {
    program: String,
    ready: &'static str,
    folder: PathBuf,
    running: Mutex<Running>,
}

#[derive(Debug)]
struct Running {
    guard: Child,
    lines: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    starts: u32,
    pid: Pid,
}

impl ServerProcess {
    /// Starts a server with its files in the folder, which is removed at the end.
    pub(crate) fn start(plan: &StartPlan, folder: TempDir) -> Result<Self, ServerProcessError> {
        let program = plan.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let failed = |source| ServerProcessError::Start { program: program.clone(), source };
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard", plan.end_by]).arg(folder.path());
        guard.args(as_user(plan.user)).arg(&plan.program).args(&plan.arguments);
        guard.envs(plan.variables.iter().map(|(name, value)| (name, value))).current_dir(folder.path());
        guard.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut guard = guard.spawn().map_err(failed)?;
        let lines = guard.stdin.take();
        let answers = BufReader::new(guard.stdout.take().expect("piped above"));
        // From here on the guard removes it.
        let folder = folder.keep();
        let running = Running { guard, lines, answers, starts: 0, pid: Pid::INIT };
        let server = Self { program, ready: plan.ready, folder, running: Mutex::new(running) };
        server.start_once(&mut server.running())?;
        Ok(server)
    }

    /// Stops the server and its children where they are, as a frozen computer would: connections stay open, and the
    /// kernel goes on to accept new ones that nobody answers. Returns once every thread has stopped.
    pub fn freeze(&self) {
        let running = self.running();
        let stop = |pid: Pid| {
            signal(pid, Signal::STOP);
            while is_alive(pid) && !is_frozen(pid) {
                std::thread::sleep(LOOK);
            }
        };
        // The parent first, so that it makes no child that is missed.
        stop(running.pid);
        descendants(running.pid).into_iter().for_each(stop);
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        let running = self.running();
        descendants(running.pid).into_iter().for_each(|pid| signal(pid, Signal::CONT));
        signal(running.pid, Signal::CONT);
    }

    /// Kills the server and its children, as a lost computer would. Connections break, new ones are refused, and files
    /// stay as they are. Returns once it is dead.
    pub fn kill(&self) {
        let running = self.running();
        let children = descendants(running.pid);
        signal(running.pid, Signal::KILL);
        children.iter().for_each(|pid| signal(*pid, Signal::KILL));
        while is_alive(running.pid) || children.iter().any(|pid| is_alive(*pid)) {
            std::thread::sleep(LOOK);
        }
    }

    /// Starts a killed server again, on the same port and files.
    pub fn start_again(&self) -> Result<(), ServerProcessError> {
        let mut running = self.running();
        assert!(!is_alive(running.pid), "kill {} before it is started again", self.program);
        self.start_once(&mut running)
    }

    /// Asks the server to end, as an operator or a service manager does, and returns once it has; it is killed if it takes
    /// longer than this.
    pub fn stop(&self, patience: Duration) {
        let pid = self.pid();
        signal(pid, Signal::TERM);
        let since = Instant::now();
        while is_alive(pid) && since.elapsed() < patience {
            std::thread::sleep(LOOK);
        }
        self.kill();
    }

    /// Whether the process is there.
    pub fn is_running(&self) -> bool {
        is_alive(self.pid())
    }

    /// Output of the server since it was last started.
    pub fn said(&self) -> String {
        let starts = self.running().starts;
        text_of(&self.folder.join(format!("{}.{starts}.output", self.program)))
    }

    /// The folder in which the server keeps its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The server's process.
    pub fn pid(&self) -> Pid {
        self.running().pid
    }

    fn start_once(&self, running: &mut Running) -> Result<(), ServerProcessError> {
        let failed = |source| ServerProcessError::Start { program: self.program.clone(), source };
        running.starts += 1;
        let output = self.folder.join(format!("{}.{}.output", self.program, running.starts));
        let lines = running.lines.as_mut().expect("closed only when this is dropped");
        writeln!(lines, "{}", output.display()).map_err(failed)?;
        let mut answer = String::new();
        running.answers.read_line(&mut answer).map_err(failed)?;
        let pid = answer.trim().parse().ok().and_then(Pid::from_raw);
        running.pid = pid.ok_or_else(|| failed(io::Error::other("its guard did not start it")))?;
        self.wait_until_ready(running.pid, &output)
    }

    fn wait_until_ready(&self, pid: Pid, output: &Path) -> Result<(), ServerProcessError> {
        let started = Instant::now();
        let broken = |what: String| {
            let said = end_of(&text_of(output));
            Err(ServerProcessError::Broken { program: self.program.clone(), what, said })
        };
        loop {
            // Asked before the output is read: a server may say its last words in between.
            let alive = is_alive(pid);
            if text_of(output).contains(self.ready) {
                return Ok(());
            }
            if !alive {
                return broken("ended before it was ready".into());
            }
            if started.elapsed() > START {
                return broken(format!("is not ready after {} s", START.as_secs()));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        running.lines = None;
        // Nothing is to be done about a guard that cannot be waited for.
        let _ = running.guard.wait();
    }
}

/// A folder of its own for a server, below the system's folder for temporary files.
pub(crate) fn folder(parent: Option<&Path>) -> Result<TempDir, ServerProcessError> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
    let made = tempfile::Builder::new().prefix("onward-test-").tempdir_in(&parent);
    made.map_err(|source| ServerProcessError::Files { folder: parent, source })
}

/// Looks until it is so, and gives up after a while that only a broken server exceeds.
pub(crate) fn wait_until(
    patience: Duration,
    what: &str,
    mut is_so: impl FnMut() -> Result<bool, ServerProcessError>,
) -> Result<(), ServerProcessError> {
    let since = Instant::now();
    while !is_so()? {
        if since.elapsed() > patience {
            let late = format!("is not there after {} s", patience.as_secs());
            return Err(ServerProcessError::Broken { program: what.to_owned(), what: late, said: String::new() });
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Runs a command that ends by itself.
pub(crate) fn run(command: &mut Command) -> Result<(), ServerProcessError> {
    output_of(command).map(drop)
}

/// Runs a command that ends by itself, and returns what it printed.
pub(crate) fn output_of(command: &mut Command) -> Result<String, ServerProcessError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| ServerProcessError::Start { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(ServerProcessError::Broken { program, what: format!("failed ({})", output.status), said: end_of(&said) })
}

/// Words to put before a command for it to run as this user.
pub(crate) fn as_user(user: Option<&str>) -> Vec<String> {
    let Some(user) = user else { return Vec::new() };
    // The kernel forgets the death signal of a process that changes its user, so it is set again.
    let line = format!("setpriv --reuid={user} --regid={user} --clear-groups --pdeathsig KILL --");
    line.split(' ').map(str::to_owned).collect()
}

fn signal(pid: Pid, signal: Signal) {
    // It may have ended by itself: then there is nothing to signal.
    let _ = kill_process(pid, signal);
}

/// Whether a thread of the process runs or is frozen. A process that ended and was not yet waited for is dead; one
/// whose first thread ended is not, and may still have its sockets.
fn is_alive(pid: Pid) -> bool {
    thread_states(pid).iter().any(|state| !matches!(state, 'Z' | 'X'))
}

fn is_frozen(pid: Pid) -> bool {
    thread_states(pid).iter().all(|state| matches!(state, 'T' | 't'))
}

fn thread_states(pid: Pid) -> Vec<char> {
    let threads = fs::read_dir(process(pid.as_raw_pid()).join("task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| Some(stat(&thread.path())?.0)).collect()
}

fn process(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Children, their children, and so on.
fn descendants(pid: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes: Vec<(i32, i32)> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(&process(pid))?.1)))
        .collect();
    let mut found = vec![pid.as_raw_pid()];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(processes.iter().filter(|(_, above)| *above == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

/// State and parent of a process or thread: the fields after the name, which is in parentheses and may contain some.
fn stat(folder: &Path) -> Option<(char, i32)> {
    let text = fs::read_to_string(folder.join("stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn text_of(output: &Path) -> String {
    String::from_utf8_lossy(&fs::read(output).unwrap_or_default()).into_owned()
}

fn end_of(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}
