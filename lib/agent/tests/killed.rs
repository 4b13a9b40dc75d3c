//! Real processes that are killed and frozen in the middle of a run, and others that go on from there.

mod rig;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};

use futures_util::{StreamExt, stream};
use rig::server::{ModelRequest, Reply, Server, answers, calls, text};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::process::{Child, Command};

const TURNS: usize = 10;
/// Asked, answered, begun, ended; the last turn calls nothing.
const ENTRIES: usize = (TURNS - 1) * 4 + 2;

/// Ten turns: nine calls, every second of them one that must not be made twice, and an output.
fn ten_turns(_: usize, asked: &ModelRequest) -> Reply {
    let turn = answers(asked);
    let arguments = format!("{{\"number\": {turn}}}");
    match turn {
        9 => text("resolved"),
        even if even % 2 == 0 => calls(&[("refund", &arguments)]),
        _ => calls(&[("search", &arguments)]),
    }
}

/// One turn with two calls side by side, of which one must not be made twice, and an output.
fn two_calls(_: usize, asked: &ModelRequest) -> Reply {
    match answers(asked) {
        0 => calls(&[("refund", r#"{"number": 0}"#), ("search", r#"{"number": 1}"#)]),
        _ => text("resolved"),
    }
}

struct Place {
    server: Server,
    folder: tempfile::TempDir,
    sessions: &'static str,
}

impl Place {
    async fn new(sessions: &'static str) -> Self {
        Self::with(sessions, ten_turns).await
    }

    async fn with(sessions: &'static str, script: fn(usize, &ModelRequest) -> Reply) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { server: Server::start(script).await, folder, sessions }
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

/// How often the tool of each turn has done something. It knew each turn by one key, however often it was called.
fn effects(path: &Path) -> BTreeMap<usize, usize> {
    let (mut times, mut keys) = (BTreeMap::new(), BTreeMap::new());
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [tool, turn, key] = words[..] else { panic!("{line}") };
        let turn: usize = turn.parse().unwrap();
        assert_eq!(tool, if turn.is_multiple_of(2) { "refund" } else { "search" });
        assert_eq!(keys.entry(turn).or_insert(key.to_owned()), key, "turn {turn}");
        *times.entry(turn).or_default() += 1;
    }
    assert_eq!(keys.values().collect::<HashSet<_>>().len(), keys.len(), "{keys:?}");
    times
}

/// Once for each turn; or so often in this one, which was interrupted.
fn effects_with(interrupted: Option<(usize, usize)>) -> BTreeMap<usize, usize> {
    let times = |turn| interrupted.filter(|(other, _)| *other == turn).map_or(1, |(_, times)| times);
    (0..TURNS - 1).map(|turn| (turn, times(turn))).filter(|(_, times)| *times > 0).collect()
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

/// Killed there, and resumed by another process under a higher fence. Answers how often the model was asked, and what was
/// spent.
async fn kill_and_resume(sessions: &'static str, fate: &str, interrupted: Option<(usize, usize)>) -> (usize, String) {
    let place = Place::new(sessions).await;
    let killed = place.run(1, fate).await;
    assert!(was_killed(killed.status), "{fate}: {killed:?}");
    let resumed = place.run(2, "").await;
    assert!(resumed.status.success(), "{fate}: {resumed:?}");
    let (output, spent) = said(&resumed);
    assert_eq!(output, "resolved", "{fate}");
    assert_eq!(effects(&place.effects()), effects_with(interrupted), "{fate}");
    place.server.idle().await;
    (place.server.asked().len(), spent)
}

async fn at_entry(sessions: &'static str, when: &str, number: usize) {
    let interrupted = match (when, number % 8) {
        // A refund was begun by its entry, and had not run.
        ("after", 2) => Some((number / 4, 0)),
        // A search had run, and its end was no entry yet.
        ("before", 7) => Some((number / 4, 2)),
        _ => None,
    };
    let (asked, spent) = kill_and_resume(sessions, &format!("{when} {number}"), interrupted).await;
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
    let in_answer = |turn: usize| async move {
        let (asked, spent) = kill_and_resume("sessions", &format!("answer {turn}"), None).await;
        assert_eq!(asked, TURNS + 1, "killed in answer {turn}");
        assert!(spent.starts_with("11 turns") && spent.contains("about"), "killed in answer {turn}: {spent}");
    };
    stream::iter(0..TURNS).for_each_concurrent(8, in_answer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_with_two_calls_side_by_side_it_repeats_the_one_that_may_be_repeated() {
    let at = |when: &'static str, number: usize| async move {
        let place = Place::with("sessions", two_calls).await;
        let killed = place.run(1, &format!("{when} {number}")).await;
        assert!(was_killed(killed.status), "{when} {number}: {killed:?}");
        let resumed = place.run(2, "").await;
        assert_eq!(said(&resumed).0, "resolved", "{when} {number}");
        let in_answer = when == "before" && [1, 7].contains(&number);
        assert_eq!(place.server.asked().len(), 2 + usize::from(in_answer), "{when} {number}");
        let done = effects(&place.effects());
        let times = |call: usize| done.get(&call).copied().unwrap_or_default();
        // From behind the entry that one is begun to before the entry that both have ended.
        let is_open = (when, number) == ("after", 2) || (3..5).contains(&number) || (when, number) == ("before", 5);
        let (refunds, searches) = if is_open { (0..=1, 1..=2) } else { (1..=1, 1..=1) };
        assert!(refunds.contains(&times(0)) && searches.contains(&times(1)), "{when} {number}: {done:?}");
    };
    // Asked, answered, two begun, two ended, asked, answered.
    let all = (0..8).flat_map(|number| [("before", number), ("after", number)]);
    stream::iter(all).for_each_concurrent(8, |(when, number)| at(when, number)).await;
}

async fn frozen_at_entry(sessions: &'static str, entry: usize) {
    let place = Place::new(sessions).await;
    let mut zombie = place.start(1, &format!("freeze {entry}"));
    let pid = Pid::from_raw(i32::try_from(zombie.id().unwrap()).unwrap()).unwrap();
    let frozen = tokio::task::spawn_blocking(move || waitpid(Some(pid), WaitOptions::UNTRACED)).await.unwrap();
    assert!(frozen.unwrap().unwrap().1.stopped(), "{sessions} {entry}");
    let successor = place.run(2, "").await;
    assert_eq!(said(&successor).0, "resolved", "{sessions} {entry}");
    let (asked, done) = (place.server.asked().len(), effects(&place.effects()));
    // Frozen within its answer, the question was lost.
    assert_eq!(asked, TURNS + usize::from(entry % 4 == 1), "{sessions} {entry}");
    // The search that the zombie had made was made again, under the same key.
    let interrupted = (entry % 8 == 7).then_some((entry / 4, 2));
    assert_eq!(done, effects_with(interrupted), "{sessions} {entry}");
    kill_process(pid, Signal::CONT).unwrap();
    let status = zombie.wait().await.unwrap();
    assert_eq!(status.code(), Some(3), "{sessions} {entry}: its append is refused by the fence");
    assert_eq!(place.server.asked().len(), asked, "{sessions} {entry}: it asks nothing more");
    assert_eq!(effects(&place.effects()), done, "{sessions} {entry}: it does nothing more");
    let again = place.run(3, "").await;
    assert_eq!(said(&again).0, "resolved", "{sessions} {entry}: the history is whole");
    assert_eq!(place.server.asked().len(), asked, "{sessions} {entry}: and nothing is paid again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_that_was_frozen_at_any_entry_is_refused_and_begins_nothing() {
    let in_files = (0..ENTRIES).map(|entry| ("sessions", entry));
    // Of each kind one: before the model is asked, before its answer, before a tool is begun, before its end.
    let in_sqlite = (4..8).map(|entry| ("sessions.db", entry));
    let all = in_files.chain(in_sqlite);
    stream::iter(all).for_each_concurrent(8, |(sessions, entry)| frozen_at_entry(sessions, entry)).await;
}
