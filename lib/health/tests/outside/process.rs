//! Real processes with real probes, a real file, real signals and a real notify socket.
//!
//! A program is a test of this binary that does nothing unless it is started as one.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onward_health::{Budget, Loop, Outcome, Supervisor, Turn};
use rustix::process::{Pid, Signal, kill_process};

use crate::service;
use crate::support::{Program, get, probe, until};

const FROM_KERNEL: &str = "127.0.0.1:0";

#[test]
fn the_page_shows_this_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("../../docs/health.md")).unwrap();
    let block = page.split("```rust,no_run\n").nth(1).expect("there is a block").split("```\n").next().unwrap();
    let example = fs::read_to_string(root.join("examples/service.rs")).unwrap();
    let (_, example) = example.split_once('\n').unwrap();
    let example = example.replace("onward_health::", "onward::health::").replace("pub async fn main", "async fn main");
    assert_eq!(block, example);
    assert!(block.lines().count() <= 60);
}

#[test]
fn program_of_the_page() {
    if std::env::var_os("INVOICES").is_some() {
        service::main().unwrap();
    }
}

/// A loop that only fails, catches it and sleeps is what a check of the process would call healthy.
#[test]
fn the_example_turns_red_when_every_turn_fails_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let (due, sent, file) = (folder.path().join("due"), folder.path().join("sent"), folder.path().join("ready"));
    fs::create_dir(&due).unwrap();
    fs::create_dir(&sent).unwrap();
    fs::write(due.join("1"), "").unwrap();
    fs::write(&file, "pid=1\nof a predecessor").unwrap();
    let mut program = Program::start(
        "process::program_of_the_page",
        &[("INVOICES", folder.path()), ("PROBES", Path::new(FROM_KERNEL))],
    );
    let address = program.probes(&file);
    for path in ["/livez", "/readyz", "/startupz"] {
        let (code, body) = probe(address, path);
        assert_eq!((code, &body["status"]), (200, &"ok".into()), "{path}: {body}");
    }
    assert!(sent.join("1").exists());
    // Nothing is there to be read any more: each turn fails, and the loop goes on.
    fs::rename(&due, folder.path().join("away")).unwrap();
    let body = until("red", || Some(probe(address, "/readyz")).filter(|(code, _)| *code == 503)).1;
    assert_eq!(body["loops"][0]["state"], "failing");
    assert_eq!(body["loops"][0]["reason"], "budget_spent");
    assert!(body["reason"].as_str().unwrap().contains("No such file or directory"), "{body}");
    until("the file is removed", || (!file.exists()).then_some(()));
    assert_eq!(get(address, "/livez").0, 200, "a restart would not help");
    fs::rename(folder.path().join("away"), &due).unwrap();
    until("green", || (get(address, "/readyz").0 == 200).then_some(()));
    until("the file is back", || file.exists().then_some(()));
    let pid = Pid::from_raw(program.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(program.ended().success());
    assert!(!file.exists());
}

#[test]
fn program_that_catches_everything() {
    let Some(folder) = std::env::var_os("CATCHES_IN").map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let service = Supervisor::new("swallows").probes(FROM_KERNEL).ready_file(folder.join("ready"));
        let turn = move |way: Outcome| {
            let source = folder.join("source");
            move |_: Turn| {
                let asked = std::fs::read(&source);
                // What went wrong is caught here, and no supervisor hears of it.
                std::future::ready(Ok::<_, std::io::Error>(if asked.is_ok() { Outcome::Idle } else { way }))
            }
        };
        let ways = [
            ("skips", Outcome::Skipped),
            ("counts_none", Outcome::Progress(0)),
            ("degrades", Outcome::Degraded { ok: 0, failed: 1 }),
        ];
        for (name, way) in ways {
            let one = Loop::new(name, turn(way)).every(Duration::from_millis(20)).critical();
            service.add(one.freshness(Duration::from_secs(5)).budget(Budget::Consecutive(3)));
        }
        service.run().await.unwrap();
    });
}

/// No turn returns an error: a loop that caught its own has nothing to show for its turns, and that is seen.
#[test]
fn loops_that_catch_everything_and_sleep_turn_red_though_no_turn_fails_and_recover() {
    let folder = tempfile::tempdir().unwrap();
    let (source, file) = (folder.path().join("source"), folder.path().join("ready"));
    fs::write(&source, "").unwrap();
    let mut program = Program::start("process::program_that_catches_everything", &[("CATCHES_IN", folder.path())]);
    let address = program.probes(&file);
    fs::remove_file(&source).unwrap();
    let body = until("all are red", || {
        let (code, body) = probe(address, "/readyz");
        let all = body["loops"].as_array().unwrap().iter().all(|one| one["state"] != "healthy");
        (code == 503 && all && body["loops"][0]["reason"] == "not_fresh").then_some(body)
    });
    let shown =
        |of: usize| (body["loops"][of]["name"].as_str().unwrap(), body["loops"][of]["reason"].as_str().unwrap());
    assert_eq!(
        [0, 1, 2].map(shown),
        [("skips", "not_fresh"), ("counts_none", "not_fresh"), ("degrades", "budget_spent")]
    );
    until("the file is removed", || (!file.exists()).then_some(()));
    assert_eq!(get(address, "/livez").0, 200, "a restart would not help");
    fs::write(&source, "").unwrap();
    until("green", || (get(address, "/readyz").0 == 200).then_some(()));
    until("the file is back", || file.exists().then_some(()));
    kill_process(Pid::from_raw(program.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert!(program.ended().success());
}

#[test]
fn program_that_freezes() {
    let Some(file) = std::env::var_os("FREEZES_WITH") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (freeze, frozen) = tokio::sync::watch::channel(false);
    std::thread::spawn(move || {
        let read = std::io::stdin().read(&mut [0]);
        freeze.send_replace(read.is_ok());
        std::thread::park();
    });
    runtime.block_on(async move {
        let service = Supervisor::new("frozen").probes(FROM_KERNEL).ready_file(PathBuf::from(file)).systemd();
        let service = service.executor_lag(Duration::from_secs(2)).exit_on_stall(Duration::from_secs(1));
        for name in ["first", "second"] {
            let mut frozen = frozen.clone();
            let turn = move |_| {
                let is_frozen = *frozen.borrow_and_update();
                async move {
                    // This blocks a thread of the executor for ever, and the other loop does so to the other.
                    if is_frozen {
                        loop {
                            std::thread::park();
                        }
                    }
                    Ok::<_, std::io::Error>(Outcome::Progress(1))
                }
            };
            service.add(Loop::new(name, turn).every(Duration::from_millis(20)).critical());
        }
        service.run().await.unwrap();
    });
}

#[test]
fn a_frozen_executor_is_seen_from_outside_and_the_watchdog_is_not_fed() {
    let folder = tempfile::tempdir().unwrap();
    let (file, socket) = (folder.path().join("ready"), folder.path().join("notify"));
    let notified = UnixDatagram::bind(&socket).unwrap();
    notified.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut program = Program::start(
        "process::program_that_freezes",
        &[("FREEZES_WITH", &file), ("NOTIFY_SOCKET", &socket), ("WATCHDOG_USEC", Path::new("3000000"))],
    );
    let address = program.probes(&file);
    let mut heard = Vec::new();
    let mut hear_until = |start: &str| {
        let mut buffer = [0; 1024];
        loop {
            let length = notified.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..length]).trim_end().to_owned();
            let is_it = text.starts_with(start);
            heard.push(text);
            if is_it {
                return heard.clone();
            }
        }
    };
    hear_until("READY=1");
    hear_until("WATCHDOG=1");
    assert_eq!(get(address, "/livez").0, 200);
    program.write_line();
    let body = until("red", || Some(probe(address, "/livez")).filter(|(code, _)| *code == 503)).1;
    let reason = body["reason"].as_str().unwrap();
    assert!(reason.starts_with("the executor has run no task for "), "{reason}");
    assert!(reason.ends_with("something blocks its threads"), "{reason}");
    assert_eq!(body["executor"]["limit_ms"], 2000);
    assert_eq!(get(address, "/readyz").0, 503);
    hear_until("STATUS=not live: the executor is starved");
    assert_eq!(program.ended().code(), Some(70));
    assert!(!file.exists());
    // It has exited, so what it ever sent is here.
    notified.set_nonblocking(true).unwrap();
    let mut buffer = [0; 1024];
    while let Ok(length) = notified.recv(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(!text.contains("WATCHDOG=1"), "fed after it was found not live");
    }
}
