//! Real processes that are killed and frozen in the middle of a run, and others that go on from there.

mod rig;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};

use rig::server::{Asked, Reply, Server, answers, calls, text};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::process::{Child, Command};

const TURNS: usize = 10;
/// Asked, answered, begun, ended; the last turn calls nothing.
const ENTRIES: usize = (TURNS - 1) * 4 + 2;

/// Ten turns: nine calls, every second of them one that must not be made twice, and an output.
fn ten_turns(_: usize, asked: &Asked) -> Reply {
    let turn = answers(asked);
    let arguments = format!("{{\"number\": {turn}}}");
    match turn {
        9 => text("resolved"),
        even if even % 2 == 0 => calls(&[("refund", &arguments)]),
        _ => calls(&[("search", &arguments)]),
    }
}

struct Place {
    server: Server,
    folder: tempfile::TempDir,
    sessions: &'static str,
}

impl Place {
    async fn new(sessions: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { server: Server::start(ten_turns).await, folder, sessions }
    }

    fn effects(&self) -> PathBuf {
        self.folder.path().join("effects")
    }

    fn start(&self, fence: u64, fate: &str) -> Child {
        Command::new(env!("CARGO_BIN_EXE_onward-agent-victim"))
            .env("MODEL_URL", &self.server.url)
            .env("SESSIONS", self.folder.path().join(self.sessions))
            .env("EFFECTS", self.effects())
            .env("FENCE", fence.to_string())
            .env("FATE", fate)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    async fn run(&self, fence: u64, fate: &str) -> Output {
        self.start(fence, fate).wait_with_output().await.unwrap()
    }
}

fn effects(path: &Path) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        *counts.entry(line.split(' ').next().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

fn was_killed(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(Signal::KILL.as_raw())
}

/// Killed there, and resumed by another process under a higher fence. Answers how often the model was asked.
async fn kill_and_resume(sessions: &'static str, fate: &str) -> usize {
    let place = Place::new(sessions).await;
    let killed = place.run(1, fate).await;
    assert!(was_killed(killed.status), "{fate}: {killed:?}");
    let resumed = place.run(2, "").await;
    assert!(resumed.status.success(), "{fate}: {resumed:?}");
    assert_eq!(resumed.stdout, b"resolved\n", "{fate}");
    let effects = effects(&place.effects());
    assert!(effects.values().all(|&times| times == 1), "{fate}: a call was made twice: {effects:?}");
    place.server.idle().await;
    place.server.asked().len()
}

async fn at_every_entry(sessions: &'static str, step: usize) {
    for number in (0..ENTRIES).step_by(step) {
        for when in ["before", "after"] {
            let asked = kill_and_resume(sessions, &format!("{when} {number}")).await;
            // Killed when the answer was there and its entry was not, which is within the answer.
            let in_answer = when == "before" && number % 4 == 1;
            assert_eq!(asked, TURNS + usize::from(in_answer), "killed {when} entry {number}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_entry_it_goes_on_without_paying_again() {
    at_every_entry("sessions", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_does_with_sessions_in_sqlite() {
    // Every kind of entry, and both halves of the run.
    at_every_entry("sessions.db", 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_mid_answer_it_asks_once_more() {
    for turn in [0, 4, TURNS - 1] {
        assert_eq!(kill_and_resume("sessions", &format!("answer {turn}")).await, TURNS + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_that_was_frozen_is_refused_and_begins_nothing() {
    // Before a tool is begun, before its end is stored, before the model is asked, before its answer is stored.
    for (sessions, entry) in [("sessions", 2), ("sessions", 3), ("sessions", 4), ("sessions.db", 5)] {
        let place = Place::new(sessions).await;
        let mut zombie = place.start(1, &format!("freeze {entry}"));
        let pid = Pid::from_raw(i32::try_from(zombie.id().unwrap()).unwrap()).unwrap();
        let frozen = tokio::task::spawn_blocking(move || waitpid(Some(pid), WaitOptions::UNTRACED)).await.unwrap();
        assert!(frozen.unwrap().unwrap().1.stopped(), "{sessions} {entry}");
        let successor = place.run(2, "").await;
        assert_eq!(successor.stdout, b"resolved\n", "{sessions} {entry}");
        let (asked, done) = (place.server.asked().len(), effects(&place.effects()));
        kill_process(pid, Signal::CONT).unwrap();
        let status = zombie.wait().await.unwrap();
        assert_eq!(status.code(), Some(3), "{sessions} {entry}: its append is refused by the fence");
        assert_eq!(place.server.asked().len(), asked, "{sessions} {entry}: it asks nothing more");
        assert_eq!(effects(&place.effects()), done, "{sessions} {entry}: it does nothing more");
        assert!(done.values().all(|&times| times == 1), "{sessions} {entry}: {done:?}");
        let again = place.run(3, "").await;
        assert_eq!(again.stdout, b"resolved\n", "{sessions} {entry}: the history is whole");
        assert_eq!(place.server.asked().len(), asked, "{sessions} {entry}: and nothing is paid again");
    }
}
