//! The worker's own process is killed, and can do nothing any more.

mod rig;

use std::path::Path;
use std::process::Stdio;

use rig::{ESCAPE, LONG, Life, carriers, kill, mark};
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
