//! Real processes, probes over a real port, and patience that ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything here takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Asks until there is an answer that is good enough.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "it never came to this: {what}");
        // Those who are waited for need the computer more.
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// The code and the body.
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let text = exchange(address, &format!("GET {path} HTTP/1.1\r\nhost: probes\r\n\r\n"));
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer to {path}: {text:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

pub fn probe(address: SocketAddr, path: &str) -> (u16, Value) {
    let (code, body) = get(address, path);
    (code, serde_json::from_str(&body).unwrap())
}

/// This test binary, started again as a program that runs one of its tests.
pub struct Program(Child);

impl Program {
    pub fn start(test: &str, environment: &[(&str, &Path)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", test, "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC").env_remove("WATCHDOG_PID");
        Self(command.envs(environment.iter().copied()).spawn().unwrap())
    }

    /// The address that answers probes, once the program is ready.
    pub fn probes(&mut self, ready_file: &Path) -> SocketAddr {
        until("the ready file", || {
            assert_eq!(self.0.try_wait().unwrap(), None, "it has ended");
            let text = std::fs::read_to_string(ready_file).ok()?;
            Some(text.lines().find_map(|line| line.strip_prefix("probes="))?.parse().unwrap())
        })
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn write_line(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub fn ended(&mut self) -> ExitStatus {
        until("its end", || self.0.try_wait().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
