//! Following a job to its end: a bar where somebody looks, else silence; or a line for every change.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::answer::{Answer, Layout};
use crate::client::{Client, escaped};
use crate::failure::Failure;
use crate::patience::{PAUSE, Patience};
use crate::read;
use crate::screen::Screen;
use crate::span;
use crate::status_line::{Status, StatusLine};
use crate::work::exit;
use crate::work::handler::KIND;

/// How long the node may take to answer while nothing happens. Short, so that a bar moves.
const WAIT: Duration = Duration::from_secs(1);
/// The last question is asked when the time is over; a node that is there has answered it by then.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const INTERRUPTED: i32 = 130;
/// Asks about the job until it ended or the patience is over; every answer goes to `seen`. Gives the last one.
fn each(
    client: &Client,
    screen: &Screen,
    id: &str,
    patience: &Patience,
    mut seen: impl FnMut(&Answer) -> Result<()>,
) -> Result<Answer> {
    let mut wait = Duration::ZERO;
    loop {
        let asked = Instant::now();
        let job = patience.ask(client, screen, || {
            let wait = patience.left().map_or(wait, |left| wait.min(left));
            let path = format!("/v1/jobs/{}?wait_s={}", escaped(id), span::seconds(wait));
            client.get_waiting(&path, wait, patience.left().map_or(Duration::MAX, |left| left.max(ANSWER_WITHIN)))
        })?;
        seen(&job)?;
        if read::text(&job, "state").is_some_and(read::is_terminal) || patience.is_over() {
            return Ok(job);
        }
        if wait > Duration::ZERO {
            thread::sleep(PAUSE.saturating_sub(asked.elapsed()));
        }
        wait = patience.left().map_or(WAIT, |left| WAIT.min(left));
    }
}

/// Ctrl-C ends the waiting and not the job, which is said. From the first call on, for the rest of this process.
pub fn say_on_interrupt(screen: &Screen, id: &str) -> Result<()> {
    static ONCE: std::sync::Once = std::sync::Once::new();
    let (screen, id) = (*screen, id.to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    ONCE.call_once(|| {
        let wait = async move {
            // Where the signal cannot be heard, it ends this process as ever.
            if tokio::signal::ctrl_c().await.is_ok() {
                StatusLine::wipe(screen.bars);
                screen.note(format!(
                    "onward: job {id} goes on; `onward wait {id}` waits again, `onward cancel {id}` stops it"
                ));
                std::process::exit(INTERRUPTED);
            }
        };
        thread::spawn(move || runtime.block_on(wait));
    });
    Ok(())
}

/// Waits for the end of the job whose id begins so, and gives the exit code that goes with it.
pub fn wait(client: &Client, screen: &Screen, id: &str, at_most: Option<Duration>) -> Result<u8> {
    let patience = Patience::new(at_most);
    let id = patience.ask(client, screen, || client.whole_id(id))?;
    to_the_end(&patience, client, screen, &id)
}

/// Waits for the end and gives the exit code that goes with it.
pub fn to_the_end(patience: &Patience, client: &Client, screen: &Screen, id: &str) -> Result<u8> {
    say_on_interrupt(screen, id)?;
    let (mut line, began) = (StatusLine::default(), patience.began());
    let job = each(client, screen, id, patience, |job| {
        if screen.bars {
            line.draw(&status(job, began.elapsed()));
        }
        Ok(())
    });
    line.clear();
    let job = job?;
    let state = read::word(&job, "state");
    if !read::is_terminal(state) {
        let waited = span::human(patience.at_most().unwrap_or_default());
        return Err(Failure::new(format!("job {id} is still {state} after {waited}"))
            .remedy(format!("`onward explain {id}` says why; `onward wait {id}` waits on"))
            .into());
    }
    if screen.json {
        screen.raw(job.text(), Layout::Line)?;
    } else {
        screen.note(ended(&job));
        if state != "succeeded"
            && read::text(&job, "kind") == Some(KIND)
            && let Some(error) = last_error(&job)
        {
            screen.note(match exit::is_of_no_start(error) {
                // It has printed nothing.
                true => format!("`onward explain {id}` says more"),
                false => format!("`onward logs {id}` shows what it printed; `onward explain {id}` says more"),
            });
        }
    }
    Ok(exit_code(&job))
}

/// As `onward run` would exit: of a command that failed, its own code.
fn exit_code(job: &Value) -> u8 {
    match read::word(job, "state") {
        "succeeded" => 0,
        "timed_out" => exit::TIMED_OUT,
        "failed" => last_error(job).and_then(exit::code_of_words).unwrap_or(1),
        _ => 1,
    }
}

/// One line about how it ended.
fn ended(job: &Value) -> String {
    let mut line = read::word(job, "state").replace('_', " ");
    if let (Some(from), Some(to)) = (read::instant(job, "started_at"), read::instant(job, "ended_at")) {
        line += &format!(" after {}", span::human(read::between(from, to)));
    }
    // The reason begins with a word, which for most ends is the state again.
    let reason = read::text(job, "reason").unwrap_or_default();
    let reason = reason.strip_prefix(read::word(job, "state")).unwrap_or(reason).trim_start_matches([':', ' ']);
    if !reason.is_empty() {
        line += &format!(": {reason}");
    }
    if let Some(error) = last_error(job).filter(|error| !reason.contains(error)) {
        line += &format!(" ({error})");
    }
    line
}

fn last_error(job: &Value) -> Option<&str> {
    if read::text(job, "state") == Some("succeeded") {
        return None;
    }
    let attempts = read::items(job, "workflows").iter().flat_map(|workflow| read::items(workflow, "attempts"));
    attempts.filter_map(|attempt| read::text(attempt, "error")).rfind(|error| !error.is_empty())
}

fn status(job: &Value, lasts: Duration) -> Status {
    let number = |field| read::number(&job["progress"], field);
    let what = read::word(job, "state").replace('_', " ");
    Status { what, done: number("done"), total: number("total"), lasts, more: String::new() }
}

/// Prints a line for every change, until the end.
pub fn watch(client: &Client, screen: &Screen, id: &str) -> Result<u8> {
    say_on_interrupt(screen, id)?;
    let mut before = Value::Null;
    let job = each(client, screen, id, &Patience::new(None), |job| {
        if screen.json {
            if changes(&before, job).is_some() {
                screen.raw(job.text(), Layout::Line)?;
            }
        } else {
            for line in changes(&before, job).unwrap_or_default() {
                screen.line(line)?;
            }
        }
        before = (**job).clone();
        Ok(())
    })?;
    Ok(exit_code(&job))
}

/// What is new since `before`; nothing if only clocks moved.
fn changes(before: &Value, job: &Value) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    for workflow in read::items(job, "workflows") {
        let name = read::word(workflow, "name");
        let known = read::items(before, "workflows").iter().find(|old| old["name"] == workflow["name"]);
        for attempt in read::items(workflow, "attempts") {
            let old =
                known.and_then(|old| read::items(old, "attempts").iter().find(|old| old["fence"] == attempt["fence"]));
            lines.extend(attempt_change(name, old, attempt));
        }
    }
    let progress = &job["progress"];
    if *progress != before["progress"]
        && let Some(done) = read::number(progress, "done").filter(|done| *done > 0)
    {
        let of = read::number(progress, "total").map(|total| format!(" of {total}")).unwrap_or_default();
        lines.push(format!("progress {done}{of}"));
    }
    if job["state"] != before["state"] {
        let state = read::word(job, "state");
        lines.push(if read::is_terminal(state) { ended(job) } else { state.replace('_', " ") });
    }
    (!lines.is_empty()).then_some(lines)
}

fn attempt_change(workflow: &str, old: Option<&Value>, attempt: &Value) -> Option<String> {
    let (n, fence) = (read::plain(&attempt["n"]), read::plain(&attempt["fence"]));
    let who = format!("{workflow}: attempt {n} (fence {fence}) on {}", read::word(attempt, "worker"));
    let outcome = read::text(attempt, "outcome").filter(|outcome| *outcome != "running");
    if let Some(outcome) = outcome {
        let known = old.and_then(|old| read::text(old, "outcome")) == Some(outcome);
        let error = read::text(attempt, "error").map(|error| format!(": {error}")).unwrap_or_default();
        return (!known).then(|| format!("{who} {}{error}", outcome.replace('_', " ")));
    }
    if old.is_none() {
        return Some(format!("{who} began"));
    }
    let note = read::text(attempt, "note")?;
    (old.and_then(|old| read::text(old, "note")) != Some(note)).then(|| format!("{workflow}: {note}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(state: &str, done: u64, attempts: Value) -> Value {
        json!({"state": state, "progress": {"done": done, "total": 10}, "workflows": [{"name": "main", "attempts": attempts}]})
    }

    #[test]
    fn only_what_changed_is_told() {
        let began = job("running", 0, json!([{"n": 1, "fence": 7, "worker": "w", "lease_remaining_ms": 9}]));
        let beaten = job("running", 0, json!([{"n": 1, "fence": 7, "worker": "w", "lease_remaining_ms": 5}]));
        let moved = job("running", 3, json!([{"n": 1, "fence": 7, "worker": "w", "note": "part 3"}]));
        let failed = job(
            "failed",
            3,
            json!([{"n": 1, "fence": 7, "worker": "w", "outcome": "failed", "error": "no space", "note": "part 3"}]),
        );
        let lines = |before: &Value, now: &Value| changes(before, now).unwrap_or_default();
        assert_eq!(lines(&Value::Null, &began), ["main: attempt 1 (fence 7) on w began", "running"]);
        assert_eq!(changes(&began, &beaten), None);
        assert_eq!(lines(&beaten, &moved), ["main: part 3", "progress 3 of 10"]);
        assert_eq!(lines(&moved, &failed), ["main: attempt 1 (fence 7) on w failed: no space", "failed (no space)"]);
    }

    #[test]
    fn how_it_ended_is_said_once() {
        let attempts = json!([{"n": 1, "fence": 7, "worker": "w", "outcome": "failed", "error": "no space"}]);
        let told = |state: &str, reason: &str| {
            let mut job = job(state, 0, attempts.clone());
            job["reason"] = reason.into();
            ended(&job)
        };
        assert_eq!(told("failed", "failed: no space"), "failed: no space");
        assert_eq!(told("cancelled", "cancelled"), "cancelled (no space)");
        assert_eq!(told("timed_out", "stuck"), "timed out: stuck (no space)");
        assert_eq!(told("succeeded", ""), "succeeded");
    }

    #[test]
    fn the_exit_code_says_how_it_ended() {
        for (state, error, code) in [
            ("succeeded", "", 0),
            ("timed_out", "exited with code 3", 124),
            ("failed", "no space", 1),
            ("failed", "exited with code 3", 3),
            ("failed", "killed by signal 9", 137),
            ("cancelled", "", 1),
        ] {
            let attempts = json!([{"n": 1, "fence": 7, "worker": "w", "error": error}]);
            assert_eq!(exit_code(&job(state, 0, attempts)), code, "{state} {error}");
        }
    }

    #[test]
    fn the_bar_takes_what_the_node_says() {
        let status = status(&job("timed_out", 4, json!([])), Duration::ZERO);
        assert_eq!((status.done, status.total, &*status.what), (Some(4), Some(10), "timed out"));
    }
}
