//! Real processes that are killed and frozen in the middle of a run, and others that go on from there.

mod rig;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};

use futures_util::{StreamExt, stream};
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

    fn command(&self, fence: u64, fate: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onward-agent-victim"));
        command
            .env("OPENAI_BASE_URL", &self.server.url)
            .env("OPENAI_MODEL", "m")
            .env("OPENAI_API_KEY", " sk-secret\n")
            .env("SESSIONS", self.folder.path().join(self.sessions))
            .env("EFFECTS", self.effects())
            .env("FENCE", fence.to_string())
            .env("FATE", fate)
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    fn start(&self, fence: u64, fate: &str) -> Child {
        self.command(fence, fate).spawn().unwrap()
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

/// The output and what was spent, as a process says it at its end.
fn said(output: &Output) -> (String, String) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let (output, spent) = text.trim().split_once('\n').unwrap_or((text.trim(), ""));
    (output.to_owned(), spent.to_owned())
}

/// Every refund was made exactly once, but one that was begun by a process that was killed before it made it.
fn refunds(unmade: Option<usize>) -> HashMap<String, usize> {
    (0..TURNS - 1).step_by(2).filter(|turn| Some(*turn) != unmade).map(|turn| (turn.to_string(), 1)).collect()
}

/// Killed there, and resumed by another process under a higher fence. Answers how often the model was asked, and what was
/// spent.
async fn kill_and_resume(sessions: &'static str, fate: &str, unmade: Option<usize>) -> (usize, String) {
    let place = Place::new(sessions).await;
    let killed = place.run(1, fate).await;
    assert!(was_killed(killed.status), "{fate}: {killed:?}");
    let resumed = place.run(2, "").await;
    assert!(resumed.status.success(), "{fate}: {resumed:?}");
    let (output, spent) = said(&resumed);
    assert_eq!(output, "resolved", "{fate}");
    assert_eq!(effects(&place.effects()), refunds(unmade), "{fate}");
    place.server.idle().await;
    (place.server.asked().len(), spent)
}

async fn at_entry(sessions: &'static str, when: &str, number: usize) {
    // Killed when a tool was begun by its entry, and had not run.
    let unmade = (when == "after" && number % 8 == 2).then_some(number / 4);
    let (asked, spent) = kill_and_resume(sessions, &format!("{when} {number}"), unmade).await;
    // Killed when the answer was there and its entry was not, which is within the answer.
    let in_answer = when == "before" && number % 4 == 1;
    assert_eq!(asked, TURNS + usize::from(in_answer), "killed {when} entry {number}");
    // A question without an answer is charged by an estimate, for it may have been asked.
    let is_lost = in_answer || (when == "after" && number.is_multiple_of(4));
    let turns = TURNS + usize::from(is_lost);
    assert!(spent.starts_with(&format!("{turns} turns")), "killed {when} entry {number}: {spent}");
    assert_eq!(spent.contains("about"), is_lost, "killed {when} entry {number}: {spent}");
}

/// Some at a time: they mostly wait for the disk.
async fn at_every_entry(sessions: &'static str) {
    let all = (0..ENTRIES).flat_map(|number| [("before", number), ("after", number)]);
    stream::iter(all).for_each_concurrent(8, |(when, number)| at_entry(sessions, when, number)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_entry_it_goes_on_without_paying_again() {
    at_every_entry("sessions").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address_model_and_key_come_from_the_environment() {
    let place = Place::new("sessions").await;
    let ended = place.run(1, "").await;
    assert_eq!(said(&ended).0, "resolved");
    let first = &place.server.asked()[0];
    assert!(first.head.to_lowercase().contains("authorization: bearer sk-secret\r\n"), "{}", first.head);
    assert_eq!(first.body["model"], "m");
    for (name, value, said) in [
        ("OPENAI_API_KEY", "", "OPENAI_API_KEY is not set"),
        ("OPENAI_MODEL", " ", "OPENAI_MODEL is not set"),
        ("OPENAI_BASE_URL", "http://user:secret@127.0.0.1/v1", "is not the address of a model's server"),
    ] {
        let output = place.command(1, "").env(name, value).output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(said) && !text.contains("secret"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_does_with_sessions_in_sqlite() {
    at_every_entry("sessions.db").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_mid_answer_it_asks_once_more() {
    for turn in [0, 4, TURNS - 1] {
        let (asked, spent) = kill_and_resume("sessions", &format!("answer {turn}"), None).await;
        assert_eq!(asked, TURNS + 1);
        assert!(spent.starts_with("11 turns") && spent.contains("about"), "{spent}");
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
        assert_eq!(said(&successor).0, "resolved", "{sessions} {entry}");
        let (asked, done) = (place.server.asked().len(), effects(&place.effects()));
        kill_process(pid, Signal::CONT).unwrap();
        let status = zombie.wait().await.unwrap();
        assert_eq!(status.code(), Some(3), "{sessions} {entry}: its append is refused by the fence");
        assert_eq!(place.server.asked().len(), asked, "{sessions} {entry}: it asks nothing more");
        assert_eq!(effects(&place.effects()), done, "{sessions} {entry}: it does nothing more");
        assert_eq!(done, refunds(None), "{sessions} {entry}");
        let again = place.run(3, "").await;
        assert_eq!(said(&again).0, "resolved", "{sessions} {entry}: the history is whole");
        assert_eq!(place.server.asked().len(), asked, "{sessions} {entry}: and nothing is paid again");
    }
}
