//! `onward run` from outside: a progress-aware `timeout(1)` that passes everything through and leaves nothing behind.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::jobs::{attempts, span};
use support::process::{Mark, signal, with_gaps};
use support::{PATIENCE, a_moment, onward};
use tokio::io::AsyncWriteExt;
use tokio::process::Child;
use tokio::time::timeout;

/// Ignores SIGTERM, and so does what it has put into a session of its own.
const STUBBORN: &str = "trap '' TERM; setsid sh -c 'sleep 71; sleep 72' & sleep 73; sleep 74";

#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: Vec<u8>,
    err: String,
    took: Duration,
}

impl Ran {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("text")
    }
}

fn begin(mark: &Mark, args: &[&str], stdin: Stdio) -> Child {
    let mut command = onward(&["run"]);
    mark.put(&mut command).args(args).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    tokio::process::Command::from(command).kill_on_drop(true).spawn().expect("the binary is there")
}

async fn end(child: Child) -> Ran {
    let began = Instant::now();
    let output = timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").expect("its output");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    Ran { code: output.status.code(), out: output.stdout, err, took: began.elapsed() }
}

/// Runs it to its end, after which nothing of it may be left.
async fn run(args: &[&str]) -> Ran {
    let mark = Mark::new();
    let ran = end(begin(&mark, args, Stdio::null())).await;
    assert_eq!(mark.carriers(), [], "{args:?} has left something behind");
    ran
}

async fn sh(options: &[&str], script: &str) -> Ran {
    run(&[options, &["--", "sh", "-c", script]].concat()).await
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the report is there")).expect("the report is JSON")
}

#[tokio::test]
async fn a_command_that_stands_still_is_ended_as_stuck() {
    let ran = sh(&["--stuck-after", "2s"], "echo a; sleep 1000").await;
    assert_eq!((ran.code, ran.text()), (Some(124), "a\n"), "{ran:?}");
    assert!(ran.err.contains("`sh` was stuck: no forward step for 2s"), "{}", ran.err);
    assert!(ran.err.contains("why: it last printed ") && ran.err.contains("--stuck-after"), "{}", ran.err);
}

#[tokio::test]
async fn who_never_moves_is_stuck_when_it_was_said_and_not_much_later() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let options = ["--stuck-after", "3s", "--beats", "output", "--report", file.to_str().unwrap()];
    let (ran, gaps) = with_gaps(sh(&options, "sleep 1000")).await;
    assert_eq!(ran.code, Some(124), "{ran:?}");
    assert!(ran.err.contains("no forward step for 3s"), "{}", ran.err);
    let report = read_json(&file);
    let attempt = &attempts(&report["job"])[0];
    // As it was decided, however long this computer took to start the command and to end it.
    let took = span(attempt.started_at, attempt.ended_at.expect("it has ended"));
    let about = Duration::from_secs(3)..Duration::from_secs(5) + gaps;
    assert!(about.contains(&took), "after {took:?}: {report}");
}

#[tokio::test]
async fn a_command_that_prints_is_not_stuck_however_long_it_takes() {
    // Longer in all than it may stand still, and so often that none is late by that much on a busy computer.
    let ran = sh(&["--stuck-after", "12s"], "for i in $(seq 30); do echo $i; sleep 0.5; done").await;
    assert_eq!((ran.code, ran.text().lines().count()), (Some(0), 30), "{ran:?}");
    assert!(ran.took > Duration::from_secs(14) && ran.err.is_empty(), "{ran:?}");
}

#[tokio::test]
async fn silent_work_counts_unless_only_output_shall() {
    let burn = |span: &str| format!("timeout {span} sh -c 'while :; do :; done'; exit 0");
    let (long_enough, endless) = (burn("18"), burn("1000"));
    let (by_activity, by_output) = tokio::join!(
        sh(&["--stuck-after", "12s"], &long_enough),
        sh(&["--stuck-after", "5s", "--beats", "output"], &endless)
    );
    assert_eq!(by_activity.code, Some(0), "{by_activity:?}");
    assert_eq!(by_output.code, Some(124), "{by_output:?}");
    assert!(by_output.err.contains("it printed nothing"), "{}", by_output.err);
}

#[tokio::test]
async fn who_reports_is_judged_by_its_reports_alone() {
    let chatter = "while :; do echo still here; sleep 0.5; done";
    let ran = sh(&["--stuck-after", "2s"], &format!("echo '@onward progress 1/10'; {chatter}")).await;
    assert_eq!(ran.code, Some(124), "{ran:?}");
    assert!(ran.err.contains("it reported 1 of 10"), "{}", ran.err);
}

#[tokio::test]
async fn the_exit_code_is_the_commands_own() {
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 75", 75),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
    ] {
        let ran = sh(&[], script).await;
        assert_eq!(ran.code, Some(code), "{script}: {ran:?}");
        assert_eq!(ran.err, "", "{script}");
    }
}

#[tokio::test]
async fn what_cannot_be_run_has_codes_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "#!/bin/sh\necho never\n").unwrap();
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o644)).unwrap();
    let plain = plain.to_str().unwrap();
    for (program, code, words) in [
        ("no-such-program-anywhere", 127, "not found"),
        ("./no/such/path", 127, "not found"),
        (plain, 126, "not executable"),
        (folder.path().to_str().unwrap(), 126, "not executable"),
    ] {
        let ran = run(&["--", program]).await;
        assert_eq!(ran.code, Some(code), "{program}: {ran:?}");
        assert!(ran.err.contains(program) && ran.err.contains(words), "{program}: {}", ran.err);
        assert!(ran.out.is_empty());
    }
}

#[tokio::test]
async fn output_and_input_pass_byte_for_byte() {
    const BYTES: u64 = 1_500_000;
    let folder = tempfile::tempdir().unwrap();
    let mut dice = support::Dice::new(7);
    let mut noise = || (0..BYTES).map(|_| dice.below(256) as u8).collect::<Vec<u8>>();
    let (mut out, err, input) = (noise(), noise(), noise());
    // Nearly directives, and no line end after the last.
    out.extend_from_slice(b"\n@onward progress x/10\n@onward nothing 1\n @onward progress 1\n@onward progress 1/2/3");
    std::fs::write(folder.path().join("out"), &out).unwrap();
    std::fs::write(folder.path().join("err"), &err).unwrap();
    let script = "cd \"$0\"; cat out & cat err >&2 & wait";
    let mut command = onward(&["run", "--", "sh", "-c", script]);
    command.arg(folder.path()).stdin(Stdio::null());
    let ran = tokio::process::Command::from(command).kill_on_drop(true).output();
    let ran = timeout(PATIENCE, ran).await.expect("it ends").unwrap();
    assert_eq!(ran.status.code(), Some(0));
    assert!(ran.stdout == out, "stdout differs: {} bytes for {}", ran.stdout.len(), out.len());
    assert!(ran.stderr == err, "stderr differs: {} bytes for {}", ran.stderr.len(), err.len());

    let mark = Mark::new();
    let mut child = begin(&mark, &["--", "cat"], Stdio::piped());
    let mut stdin = child.stdin.take().unwrap();
    let wrote = {
        let input = input.clone();
        tokio::spawn(async move { stdin.write_all(&input).await })
    };
    let ran = end(child).await;
    wrote.await.unwrap().expect("all of it is read");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out == input, "stdin differs: {} bytes for {}", ran.out.len(), input.len());
}

#[tokio::test]
async fn directives_are_taken_out_unless_the_output_is_not_trusted() {
    let script = r"printf 'a\n@onward progress 1/2\nb\n@onward quiet 5\n@onward progress 2/2 all of it\nc'";
    let taken = sh(&[], script).await;
    assert_eq!((taken.code, taken.text()), (Some(0), "a\nb\nc"), "{taken:?}");
    let kept = sh(&["--no-directives"], script).await;
    let all = "a\n@onward progress 1/2\nb\n@onward quiet 5\n@onward progress 2/2 all of it\nc";
    assert_eq!((kept.code, kept.text()), (Some(0), all), "{kept:?}");
}

#[tokio::test]
async fn a_command_that_moves_ends_at_its_timeout_all_the_same() {
    let ran = sh(&["--timeout", "2s", "--stuck-after", "1m"], "while :; do echo tick; sleep 0.2; done").await;
    assert_eq!(ran.code, Some(124), "{ran:?}");
    assert!(ran.err.contains("`sh` timed out: it was not done after 2s"), "{}", ran.err);
    assert!(!ran.err.contains("stuck:"), "{}", ran.err);
}

#[tokio::test]
async fn retries_go_on_until_it_succeeds_or_they_are_spent() {
    let folder = tempfile::tempdir().unwrap();
    for (retries, code, begun) in [("2", 0, 3), ("1", 9, 2)] {
        let counter = folder.path().join(format!("counter-{retries}"));
        let report = folder.path().join(format!("report-{retries}"));
        let counted = counter.display();
        let script = format!(
            "echo $ONWARD_ATTEMPT >> '{counted}'; echo attempt; [ $(wc -l < '{counted}') -ge 3 ] && exit 0; exit 9"
        );
        let ran = sh(&["--retries", retries, "--report", report.to_str().unwrap()], &script).await;
        assert_eq!(ran.code, Some(code), "{retries} retries: {ran:?}");
        let numbers: String = (1..=begun).map(|n| format!("{n}\n")).collect();
        assert_eq!(std::fs::read_to_string(&counter).unwrap(), numbers);
        assert_eq!(ran.text(), "attempt\n".repeat(begun));
        let report = read_json(&report);
        assert_eq!(support::jobs::attempts(&report["job"]).len(), begun, "{report}");
    }
}

#[tokio::test]
async fn the_report_says_what_happened() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let report = ["--report", file.to_str().unwrap()];
    let ran = sh(&report, "echo '@onward progress 2/3 nearly'; exit 3").await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let shown = read_json(&file);
    assert_eq!((&shown["state"], &shown["exit_code"]), (&json!("failed"), &json!(3)), "{shown}");
    assert_eq!(shown["command"][0], "sh");
    assert_eq!(shown["job"]["state"], "failed");
    let attempt = &shown["job"]["workflows"][0]["attempts"][0];
    assert_eq!(attempt["error"], "exited with code 3", "{shown}");
    assert!(shown["ledger"]["entries"].is_array() && shown["took_s"].as_f64() > Some(0.0), "{shown}");

    let ran = sh(&[&report[..], &["--stuck-after", "1s"]].concat(), "sleep 1000").await;
    assert_eq!(ran.code, Some(124), "{ran:?}");
    let shown = read_json(&file);
    assert_eq!((&shown["state"], &shown["exit_code"]), (&json!("timed_out"), &json!(124)), "{shown}");
    let facts = support::jobs::facts(shown["ledger"]["entries"].as_array().unwrap());
    assert!(facts.contains(&"attempt_ended stuck".to_owned()), "{facts:?}");

    let ran = run(&["--report", "/no/such/folder/report", "--", "true"]).await;
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.err.contains("/no/such/folder/report"), "{}", ran.err);
}

#[tokio::test]
async fn a_job_speaks_for_itself_from_inside() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let script = "set -e; onward progress 1/2 half of it; onward quiet 1m; sleep 14; onward progress 2/2
        onward result '{\"rows\": 17}'; echo $ONWARD_WORKFLOW $ONWARD_ATTEMPT; [ $ONWARD_FENCE -gt 0 ]
        grep -q argv \"$ONWARD_PAYLOAD_FILE\"; [ \"$PYTHONUNBUFFERED\" = 1 ]";
    let ran = sh(&["--stuck-after", "12s", "--report", file.to_str().unwrap()], script).await;
    assert_eq!((ran.code, ran.text()), (Some(0), "exec 1\n"), "{ran:?}");
    let shown = read_json(&file);
    assert_eq!(shown["job"]["result"], json!({ "rows": 17 }), "{shown}");
    let facts = support::jobs::facts(shown["ledger"]["entries"].as_array().unwrap());
    assert!(facts.contains(&"quiet_began".to_owned()), "{facts:?}");

    for args in [&["progress", "1/2"][..], &["quiet", "1s"]] {
        let outside = onward(args).output().unwrap();
        assert_eq!(outside.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&outside.stderr).contains("no job to speak for"), "{outside:?}");
    }
}

#[tokio::test]
async fn a_signal_to_it_ends_the_whole_tree() {
    for (what, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mark = Mark::new();
        let child = begin(&mark, &["--grace", "300ms", "--", "sh", "-c", STUBBORN], Stdio::null());
        mark.runs("sleep", 2).await;
        signal(child.id().unwrap(), what);
        let ran = end(child).await;
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert_eq!(mark.carriers(), [], "after {what:?}");
    }
}

#[tokio::test]
async fn a_command_that_cleans_up_has_its_grace() {
    let mark = Mark::new();
    let script = "trap 'echo cleaned; exit 0' TERM; sleep 1000 & wait";
    let child = begin(&mark, &["--grace", "1h", "--", "sh", "-c", script], Stdio::null());
    mark.runs("sleep", 1).await;
    signal(child.id().unwrap(), Signal::TERM);
    // It does not wait for a grace that nobody needs.
    let ran = end(child).await;
    assert_eq!(ran.text(), "cleaned\n", "{ran:?}");
}

#[tokio::test]
async fn nothing_survives_its_sudden_end() {
    let mark = Mark::new();
    let child = begin(&mark, &["--grace", "300ms", "--", "sh", "-c", STUBBORN], Stdio::null());
    mark.runs("sleep", 2).await;
    signal(child.id().unwrap(), Signal::KILL);
    assert_eq!(end(child).await.code, None);
    mark.gone(PATIENCE).await;
}

#[tokio::test]
async fn a_second_signal_stops_at_once_and_leaves_nothing() {
    let mark = Mark::new();
    let child = begin(&mark, &["--grace", "20s", "--", "sh", "-c", STUBBORN], Stdio::null());
    mark.runs("sleep", 2).await;
    let pid = child.id().unwrap();
    let (moment, asked) = (a_moment(), Instant::now());
    signal(pid, Signal::INT);
    signal(pid, Signal::TERM);
    let (ran, gaps) = with_gaps(end(child)).await;
    assert!(matches!(ran.code, Some(130 | 143)), "{ran:?}");
    let took = asked.elapsed();
    assert!(took < moment.max(a_moment()) + gaps, "it took {took:?}: {ran:?}");
    // What it ran has its grace, and is ended by its guard.
    mark.gone(PATIENCE).await;
}

#[tokio::test]
async fn wrong_usage_exits_with_2() {
    for (args, hint) in [
        (&[][..], "COMMAND"),
        (&["--"], "COMMAND"),
        (&["--stuck-after", "5", "--", "true"], "1h30m"),
        (&["--stuck-after", "0s", "--", "true"], "'--stuck-after <DURATION>'"),
        (&["--timeout", "0s", "--", "true"], "'--timeout <DURATION>'"),
        (&["--timeout", "367d", "--", "true"], "366d at most"),
        (&["--retries", "many", "--", "true"], "--retries"),
        (&["--beats", "pulse", "--", "true"], "activity"),
        (&["--timeout", "--", "true"], "--timeout"),
        (&["--no-such-option", "--", "true"], "--no-such-option"),
        (&["--stuck-aftr", "5s", "true"], "--stuck-after"),
    ] {
        let ran = run(args).await;
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.err.contains(hint) && ran.out.is_empty(), "{args:?}: {}", ran.err);
    }
}
