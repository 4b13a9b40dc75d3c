//! The binary as a node of its own on a port of its own, killed when dropped; and a client that knows what it got.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod http;
pub mod jobs;
pub mod process;
pub mod terminal;
pub mod worker;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

/// Longer than anything here takes, on a busy computer too; a test that waits for it has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The binary in an environment of its own. Commands that it runs find it by its name.
pub fn onward(args: &[&str]) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_onward"));
    let mut command = in_own_environment(Command::new(binary));
    let mut path = binary.parent().unwrap().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command.env("PATH", path);
    command.args(args);
    command
}

/// The command without the settings of whoever runs the tests.
pub fn in_own_environment(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ONWARD_")) {
        command.env_remove(name);
    }
    // How busy the computer is that these tests run on is not what they are about: nobody is turned away for that.
    for limits in ["RISE", "LATENCY_MS", "RESOURCE_PERCENT"] {
        for (level, far) in [("BUSY", "1000000"), ("STRESSED", "2000000"), ("OVERLOADED", "3000000")] {
            command.env(format!("ONWARD_OVERLOAD_{limits}_{level}"), far);
        }
    }
    command
}

/// An address of this process alone, with any port: on the one that all share, somebody else may get a port in the
/// moment between a node's end and its next start.
pub fn own_loopback() -> String {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    format!("127.{}.{middle}.{low}:0", 64 | high & 63)
}

#[derive(Debug)]
pub struct Node {
    child: Child,
    /// Output that goes on after the line that we wait for, and must not be cut off.
    stdout: BufReader<ChildStdout>,
    pub address: SocketAddr,
    pub url: String,
}

impl Node {
    pub fn start(data: &Path) -> Self {
        Self::start_with(data, &own_loopback(), &[])
    }

    pub fn start_with(data: &Path, listen: &str, more: &[&str]) -> Self {
        let slots: &[&str] = if more.contains(&"--slots") { &[] } else { &["--slots", "0"] };
        let mut command = onward(&["up", "--listen", listen, "--data"]);
        command.arg(data).args(slots).args(more);
        Self::start_as(command)
    }

    /// Any command that runs a node.
    pub fn start_as(mut command: Command) -> Self {
        if !command.get_envs().any(|(name, _)| name == "ONWARD_LOG") {
            command.env("ONWARD_LOG", "error");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (said, hear) = channel();
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let mut line = String::new();
            let read = stdout.read_line(&mut line);
            let _ = said.send((read, line, stdout));
        });
        let Ok((_, line, stdout)) = hear.recv_timeout(PATIENCE) else {
            end(&mut child);
            panic!("the node said nothing within {PATIENCE:?}");
        };
        let Some(url) = line.trim_end().strip_prefix("onward: ready on ").map(str::to_owned) else {
            end(&mut child);
            panic!("the node is not ready, and said {line:?}");
        };
        let address =
            url.trim_start_matches("http://").trim_start_matches("https://").parse().expect("an address is in the url");
        Self { child, stdout, address, url }
    }

    /// The next line that the node prints.
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it goes on printing");
        line
    }

    /// SIGKILL; it is gone when this returns.
    pub fn kill(mut self) {
        end(&mut self.child);
    }

    pub fn signal(&self, what: Signal) {
        process::signal(self.child.id(), what);
    }

    /// Limits the files that it may have open from now on; gives the limit before.
    pub fn set_open_files(&self, most: u64) -> u64 {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        let limit = getrlimit(Resource::Nofile);
        let before = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(most), ..limit }).expect("it is ours");
        before.current.expect("there is a limit")
    }

    /// The exit code, once the node has ended by itself.
    pub async fn ended(&mut self, within: Duration) -> Option<i32> {
        process::ended(&mut self.child, within).await
    }

    /// The command line, talking to this node.
    pub fn call(&self, data: &Path, args: &[&str]) -> Output {
        onward(args).env("ONWARD_SERVER", &self.url).env("ONWARD_DATA", data).output().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// What may pass while something happens at once. That is three seconds; or, on a computer that is slower than that, as
/// long as it now takes to start and end the binary twenty times.
pub fn a_moment() -> Duration {
    let began = Instant::now();
    assert!(onward(&["--version"]).output().expect("the binary is there").status.success());
    Duration::from_secs(3).max(20 * began.elapsed())
}

pub fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// SplitMix64: the same seed, the same choices.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 to just below this.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}
