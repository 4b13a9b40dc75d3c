//! The worker's own process is killed, and can do nothing any more.

mod rig;

use std::path::Path;
use std::process::Stdio;

use onward_exec::AttemptIdentity;
use rig::{ESCAPE, LONG, Life, carriers, kill, mark, signal_to};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

/// A worker in its own process, and the pids that its command has written.
async fn worker(
    folder: &Path,
    grace_ms: &str,
    script: &str,
    pids: usize,
) -> (Child, BufReader<ChildStdout>, Vec<Life>) {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_onward-exec-worker"))
        .arg(env!("CARGO_BIN_EXE_onward-guard"))
        .arg(folder)
        .arg(grace_ms)
        .arg(script)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a worker");
    let mut output = BufReader::new(worker.stdout.take().expect("piped"));
    let mut lives = Vec::new();
    while lives.len() < pids {
        let mut line = String::new();
        let read = output.read_line(&mut line);
        tokio::time::timeout(LONG, read).await.expect("a line in time").expect("a line");
        assert!(!line.is_empty(), "the worker ended early");
        lives.extend(Life::of_all(&line));
    }
    (worker, output, lives)
}

#[tokio::test]
async fn nothing_survives_a_killed_worker() {
    let scripts = [
        "sleep 1000 & echo $$ $!; wait",
        "trap '' TERM; sleep 1000 & echo $$ $!; while :; do wait; done",
        &format!("{ESCAPE} echo $$; sleep 1000"),
    ];
    for script in scripts {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut worker, _output, lives) = worker(folder.path(), "200", script, 2).await;
        let mark = mark(lives[0].pid);
        kill(worker.id().expect("running") as i32);
        worker.wait().await.expect("its end");
        for life in lives {
            life.gone().await;
        }
        let gone = async {
            while !carriers(&mark).is_empty() || std::fs::read_dir(folder.path()).expect("the folder").count() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, gone).await.expect("no process and no folder is left");
    }
}

#[tokio::test]
async fn the_command_dies_with_worker_and_guard() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut worker, _output, lives) =
        worker(folder.path(), "1000000", "trap '' TERM; echo $$; while :; do :; done", 1).await;
    let guard = Life::of(onward_exec::tree::read(lives[0].pid).expect("the command").parent);
    assert_ne!(guard.pid as u32, worker.id().expect("running"));
    kill(worker.id().expect("running") as i32);
    worker.wait().await.expect("its end");
    assert!(!guard.is_gone() && !lives[0].is_gone(), "the grace is long");
    kill(guard.pid);
    guard.gone().await;
    lives[0].gone().await;
}

fn successor(folder: &Path) -> AttemptIdentity {
    AttemptIdentity { job: folder.display().to_string(), workflow: "main".into(), fence: 2 }
}

#[tokio::test]
async fn a_successor_waits_for_what_a_killed_worker_left_to_its_guard() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "trap '' TERM; sleep 1000 & echo $$ $!; while :; do wait; done";
    let (mut worker, _output, lives) = worker(folder.path(), "200", script, 2).await;
    let successor = successor(folder.path());
    // Whoever follows a worker that is alive, but does not answer, would wait for ever.
    assert!(!successor.has_predecessors().await, "its worker is there");
    signal_to(worker.id().expect("running") as i32, "-STOP");
    assert!(!successor.has_predecessors().await, "its worker is there, though frozen");

    kill(worker.id().expect("running") as i32);
    worker.wait().await.expect("its end");
    tokio::time::timeout(LONG, successor.predecessors_end()).await.expect("an end");
    assert!(lives.iter().all(|life| life.is_gone()), "{lives:?}");
}

#[tokio::test]
async fn only_earlier_attempts_of_the_same_workflow_are_predecessors() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut worker, _output, lives) =
        worker(folder.path(), "1000000", "trap '' TERM; echo $$; while :; do :; done", 1).await;
    let guard = Life::of(onward_exec::tree::read(lives[0].pid).expect("the command").parent);
    kill(worker.id().expect("running") as i32);
    worker.wait().await.expect("its end");
    let successor = successor(folder.path());
    assert!(successor.has_predecessors().await);
    for other in [
        AttemptIdentity { fence: 1, ..successor.clone() },
        AttemptIdentity { workflow: "other".into(), ..successor.clone() },
        AttemptIdentity { job: "other".into(), ..successor.clone() },
    ] {
        assert!(!other.has_predecessors().await, "{other:?}");
    }
    assert!(!lives[0].is_gone(), "its guard has the time that it was given");
    kill(guard.pid);
}

#[tokio::test]
async fn a_successor_ends_what_lost_its_worker_and_its_guard() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut worker, _output, lives) =
        worker(folder.path(), "1000000", &format!("{ESCAPE} echo $$; sleep 1000"), 2).await;
    let command = lives.iter().find(|life| parent_is_guard(life.pid)).expect("the command");
    let guard = Life::of(onward_exec::tree::read(command.pid).expect("the command").parent);
    // One after the other could give the guard the time to begin its work.
    signal_to(guard.pid, "-STOP");
    kill(worker.id().expect("running") as i32);
    worker.wait().await.expect("its end");
    kill(guard.pid);
    guard.gone().await;
    tokio::time::timeout(LONG, successor(folder.path()).predecessors_end()).await.expect("an end");
    assert!(lives.iter().all(|life| life.is_gone()), "{lives:?}");
}

fn parent_is_guard(pid: i32) -> bool {
    let parent = onward_exec::tree::read(pid).expect("the process").parent;
    std::fs::read_to_string(format!("/proc/{parent}/comm")).is_ok_and(|name| name.trim() == "onward-guard")
}
