//! What a job says through its socket, and what it does without a word.

mod rig;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use onward_exec::{AttemptEvent, CommandReport, Exit, Options, ReportError, Running, report};
use rig::{LONG, Life, line, rest, sh, start};
use serde_json::value::RawValue;

/// An attempt that waits, and its socket.
async fn waiting() -> (Running, PathBuf) {
    let mut running = start(sh("echo $ONWARD_SOCKET; sleep 1000"));
    let socket = line(&mut running).await.into();
    (running, socket)
}

async fn say(socket: &std::path::Path, report: CommandReport) -> Result<(), ReportError> {
    let socket = socket.to_owned();
    tokio::task::spawn_blocking(move || report::send(&socket, &report)).await.expect("no panic")
}

fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).expect("JSON")
}

#[tokio::test]
async fn reports_become_events() {
    let (running, socket) = waiting().await;
    say(&socket, CommandReport::Progress { done: 3, total: Some(10), note: Some("third".to_owned()) })
        .await
        .expect("taken");
    say(&socket, CommandReport::Quiet { for_ms: 2500 }).await.expect("taken");
    say(&socket, CommandReport::Result(json(r#"{"b": 1.10}"#))).await.expect("taken");
    running.stop();
    let seen = rest(running).await;
    assert_eq!(seen.progress, [(3, Some(10), Some("third".to_owned()))]);
    assert_eq!(seen.quiet, [Duration::from_millis(2500)]);
    assert_eq!(seen.results, [r#"{"b": 1.10}"#]);
    let error = say(&socket, CommandReport::Quiet { for_ms: 1 }).await.expect_err("the attempt is over");
    assert!(error.to_string().contains("only inside a job"), "{error}");
}

#[tokio::test]
async fn a_result_too_large_is_refused_on_either_side() {
    let (running, socket) = waiting().await;
    let large = json(&format!("\"{}\"", "x".repeat(report::MAX_RESULT_BYTES)));
    let error = say(&socket, CommandReport::Result(large.clone())).await.expect_err("too large");
    assert!(error.to_string().contains("store it elsewhere"), "{error}");
    let fits = json(&format!("\"{}\"", "x".repeat(report::MAX_RESULT_BYTES - 2)));
    say(&socket, CommandReport::Result(fits)).await.expect("just fits");
    running.stop();
    assert_eq!(rest(running).await.results.len(), 1);
}

/// Says lines as they are, and gives the answers.
async fn raw(socket: &std::path::Path, lines: &'static [u8], answers: usize) -> Vec<String> {
    let socket = socket.to_owned();
    let talk = move || {
        let mut stream = UnixStream::connect(socket).expect("the socket");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        stream.write_all(lines).expect("written");
        BufReader::new(stream).lines().take(answers).map(|line| line.expect("an answer")).collect()
    };
    tokio::task::spawn_blocking(talk).await.expect("no panic")
}

#[tokio::test]
async fn a_job_cannot_speak_as_its_guard_or_to_it() {
    let (mut running, socket) = waiting().await;
    let folder = socket.parent().expect("a folder").to_owned();
    let lines = b"{\"exited\":{\"code\":0}}\n\"stop\"\n\"kill\"\n{\"quiet\":{\"for_ms\":7}}\n";
    let answers = raw(&socket, lines, 4).await;
    assert!(answers[..3].iter().all(|answer| answer.contains("not a report")), "{answers:?}");
    assert_eq!(answers[3], "\"noted\"");
    // Who connects to the guard's own socket is let in by nobody.
    assert!(UnixStream::connect(folder.join("guard")).is_err());
    let next = loop {
        match running.next().await {
            // That the command was at work is no word of anybody.
            Some(AttemptEvent::Activity) => {}
            next => break next,
        }
    };
    assert!(matches!(next, Some(AttemptEvent::Quiet(span)) if span == Duration::from_millis(7)), "{next:?}");
    running.stop();
    assert_eq!(rest(running).await.exit, Exit::Signal(15));
}

/// Counts looks that found something until `enough`, or for as long as the script lasts.
async fn activity(script: &str, sample_every: Option<Duration>, enough: usize) -> usize {
    let mut running = start(Options { sample_every, ..sh(script) });
    let mut seen = 0;
    let count = async {
        while let Some(event) = running.next().await {
            seen += usize::from(matches!(event, AttemptEvent::Activity));
            if seen == enough {
                return;
            }
        }
    };
    tokio::time::timeout(LONG, count).await.expect("activity, or an end");
    seen
}

/// Waits until this process runs the program, and is in this state.
async fn until_it_is(life: Life, program: &str, state: char) {
    let wanted = format!("{} ({program}) {state} ", life.pid);
    let looking = async {
        while !std::fs::read_to_string(format!("/proc/{}/stat", life.pid)).expect("it lives").starts_with(&wanted) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, looking).await.expect("it gets there");
}

/// Some twenty looks in a row find nothing, once what was done before has been told.
async fn rests(running: &mut Running) {
    let looking = async {
        while let Ok(event) = tokio::time::timeout(Duration::from_secs(1), running.next()).await {
            assert!(matches!(event, Some(AttemptEvent::Activity)), "{event:?}");
        }
    };
    tokio::time::timeout(LONG, looking).await.expect("no more activity");
}

const OFTEN: Option<Duration> = Some(Duration::from_millis(50));

#[tokio::test]
async fn silent_work_shows() {
    assert_eq!(activity("while :; do :; done", OFTEN, 3).await, 3, "computing");
    assert_eq!(activity("dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null", OFTEN, 3).await, 3, "copying");
    assert_eq!(activity("sh -c 'while :; do :; done' & wait", OFTEN, 3).await, 3, "a child");
    assert_eq!(activity("setsid sh -c 'while :; do :; done' & exec sleep 1000", OFTEN, 3).await, 3, "an escaped one");
}

#[tokio::test]
async fn to_sleep_is_not_to_work() {
    let mut running = start(Options { sample_every: OFTEN, ..sh("echo $$; exec sleep 1000") });
    let life = Life::of_all(&line(&mut running).await)[0];
    until_it_is(life, "sleep", 'S').await;
    rests(&mut running).await;
    running.stop();
    rest(running).await;
    assert_eq!(activity("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done", None, usize::MAX).await, 0);
}

#[tokio::test]
async fn a_frozen_tree_is_not_at_work() {
    let mut running = start(Options { sample_every: OFTEN, ..sh("echo $$; kill -STOP $$; while :; do :; done") });
    let life = Life::of_all(&line(&mut running).await)[0];
    until_it_is(life, "sh", 'T').await;
    rests(&mut running).await;
    running.kill();
    rest(running).await;
    assert!(life.is_gone());
}
