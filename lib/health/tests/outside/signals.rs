//! Signals to a real process, and what systemd hears of them.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onward_health::{Loop, Outcome, Supervisor};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Program, get, probe, until};

const FROM_KERNEL: &str = "127.0.0.1:0";

/// A service whose turn does not end when it is told to stop, if that is asked for.
#[test]
fn program_that_is_told() {
    let Some(file) = std::env::var_os("TOLD_WITH").map(PathBuf::from) else { return };
    let is_stubborn = std::env::var_os("STUBBORN").is_some();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let ended = runtime.block_on(async {
        // Longer than the test has patience: what ends it sooner is not the deadline.
        let service = Supervisor::new("told").probes(FROM_KERNEL).ready_file(file).systemd();
        let service = service.shutdown_within(Duration::from_secs(3_600));
        let turn = move |turn: onward_health::Turn| async move {
            turn.progress(1);
            if is_stubborn {
                std::future::pending::<()>().await;
            }
            Ok::<_, std::io::Error>(Outcome::Progress(1))
        };
        service.add(Loop::new("work", turn).every(Duration::from_millis(20)).critical());
        service.run().await
    });
    std::process::exit(if ended.is_ok() { 0 } else { 3 });
}

fn signal(program: &Program, signal: Signal) {
    kill_process(Pid::from_raw(program.id() as i32).unwrap(), signal).unwrap();
}

#[test]
fn either_signal_ends_the_service_and_systemd_hears_of_it() {
    for told in [Signal::TERM, Signal::INT] {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("ready"), folder.path().join("notify"));
        let notified = UnixDatagram::bind(&socket).unwrap();
        let environment =
            [("TOLD_WITH", file.as_path()), ("NOTIFY_SOCKET", &socket), ("WATCHDOG_USEC", Path::new("600000000"))];
        let mut program = Program::start("signals::program_that_is_told", &environment);
        program.probes(&file);
        signal(&program, told);
        assert_eq!(program.ended().code(), Some(0), "{told:?}");
        assert!(!file.exists());
        notified.set_nonblocking(true).unwrap();
        let mut buffer = [0; 1024];
        let mut heard = Vec::new();
        while let Ok(length) = notified.recv(&mut buffer) {
            heard.extend(String::from_utf8_lossy(&buffer[..length]).lines().map(str::to_owned));
        }
        let place = |text: &str| heard.iter().position(|line| line == text);
        assert_eq!(heard.iter().filter(|line| *line == "READY=1").count(), 1, "{heard:?}");
        assert_eq!(heard.iter().filter(|line| *line == "STOPPING=1").count(), 1, "{heard:?}");
        assert!(place("READY=1") < place("WATCHDOG=1") && place("WATCHDOG=1") < place("STOPPING=1"), "{heard:?}");
        assert!(place("READY=1") < place("STATUS=ready"), "{heard:?}");
    }
}

#[test]
fn a_second_signal_does_not_wait_for_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ready");
    let environment = [("TOLD_WITH", file.as_path()), ("STUBBORN", Path::new("yes"))];
    let mut program = Program::start("signals::program_that_is_told", &environment);
    let address = program.probes(&file);
    signal(&program, Signal::TERM);
    let body = until("told to stop", || Some(probe(address, "/readyz")).filter(|(code, _)| *code == 503)).1;
    assert!(body["reason"].as_str().unwrap().starts_with("the service was told to stop"), "{body}");
    assert_eq!(get(address, "/livez").0, 200, "it is on its way");
    signal(&program, Signal::INT);
    assert_eq!(program.ended().code(), Some(3));
}

/// A service that exits as soon as a look finds it not live.
#[test]
fn program_that_is_stopped() {
    let Some(file) = std::env::var_os("STOPPED_WITH").map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let service = Supervisor::new("stopped").probes(FROM_KERNEL).ready_file(file);
        let service = service.executor_lag(Duration::from_millis(3_000)).exit_on_stall(Duration::ZERO);
        let turn = |_| async { Ok::<_, std::io::Error>(Outcome::Progress(1)) };
        let work = Loop::new("work", turn).every(Duration::from_millis(20)).critical();
        service.add(work.longest_turn(Duration::from_millis(3_000)).startup_grace(Duration::from_secs(30)));
        service.run().await.unwrap();
    });
}

/// What a hypervisor does to a computer, and a debugger to a process: its clocks went on, and nothing hangs.
#[test]
fn a_process_that_was_stopped_for_a_while_finds_nothing_late() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ready");
    let mut program = Program::start("signals::program_that_is_stopped", &[("STOPPED_WITH", &file)]);
    let address = program.probes(&file);
    signal(&program, Signal::STOP);
    // Not to wait for something: this is how long it is away.
    let (stopped, away) = (Instant::now(), Duration::from_millis(6_000));
    while let Some(left) = away.checked_sub(stopped.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
    let before = std::fs::metadata(&file).unwrap().ino();
    signal(&program, Signal::CONT);
    until("a look", || (std::fs::metadata(&file).ok()?.ino() != before).then_some(()));
    assert_eq!((get(address, "/livez").0, get(address, "/readyz").0), (200, 200));
}
