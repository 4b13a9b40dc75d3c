//! Following a job to its end: a bar where somebody looks, else silence; or a line for every change.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use onward::{JobInfo, JobState};
use onward_api::job::{Attempt, Progress};
use tokio::signal::unix::{SignalKind, signal};

use crate::answer::{Layout, PrintableAnswer};
use crate::client::NodeClient;
use crate::failure::CommandFailure;
use crate::patience::{PAUSE, Patience};
use crate::read;
use crate::screen::Screen;
use crate::span;
use crate::status_line::{LineStatus, StatusLine};
use crate::work::exit;
use crate::work::handler::KIND;

/// The time that the node may take to answer while nothing happens. Short, so that a bar moves.
const WAIT: Duration = Duration::from_secs(1);
/// The last question is asked when the time is over; a node that is there has answered it by then.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const INTERRUPTED: i32 = 130;
/// Asks about the job until it ended or the patience is over; every answer goes to `seen`. Gives the last one.
fn each(
    client: &NodeClient,
    screen: &Screen,
    id: &str,
    patience: &Patience,
    mut seen: impl FnMut(&PrintableAnswer<JobInfo>) -> Result<()>,
) -> Result<PrintableAnswer<JobInfo>> {
    let mut wait = Duration::ZERO;
    loop {
        let asked = Instant::now();
        let job = patience.ask(client, screen, || {
            let wait = patience.left().map_or(wait, |left| wait.min(left));
            let within = patience.left().map_or(Duration::MAX, |left| left.max(ANSWER_WITHIN));
            client.ask(async |node| node.clone().within(within).job_within(id, wait).await)
        })?;
        seen(&job)?;
        if job.state.is_terminal() || patience.is_over() {
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
        // Heard from now on, and not only once the thread runs. Where it cannot be heard, it ends this process as ever.
        let heard = {
            let _inside = runtime.enter();
            signal(SignalKind::interrupt())
        };
        let Ok(mut interrupt) = heard else { return };
        let wait = async move {
            if interrupt.recv().await.is_some() {
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
pub fn wait(client: &NodeClient, screen: &Screen, id: &str, at_most: Option<Duration>) -> Result<u8> {
    let patience = Patience::new(at_most);
    let id = patience.ask(client, screen, || client.whole_id(id))?;
    to_the_end(&patience, client, screen, &id)
}

/// Waits for the end and gives the exit code that goes with it.
pub fn to_the_end(patience: &Patience, client: &NodeClient, screen: &Screen, id: &str) -> Result<u8> {
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
    let state = job.state.word();
    if !job.state.is_terminal() {
        let waited = span::human(patience.at_most().unwrap_or_default());
        return Err(CommandFailure::new(format!("job {id} is still {state} after {waited}"))
            .remedy(format!("`onward explain {id}` says why; `onward wait {id}` waits on"))
            .into());
    }
    if screen.json {
        screen.raw(job.text(), Layout::Line)?;
    } else {
        screen.note(ended(&job));
        if job.kind.as_deref() == Some(KIND)
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

/// The exit code of `onward run`: of a command that failed, its own.
fn exit_code(job: &JobInfo) -> u8 {
    match job.state {
        JobState::Succeeded => 0,
        JobState::TimedOut => exit::TIMED_OUT,
        JobState::Failed => last_error(job).and_then(exit::code_of_words).unwrap_or(1),
        _ => 1,
    }
}

/// A line about how the job ended.
fn ended(job: &JobInfo) -> String {
    let mut line = job.state.word().replace('_', " ");
    if let (Some(from), Some(to)) = (job.started_at, job.ended_at) {
        line += &format!(" after {}", span::human(read::between(from, to)));
    }
    // The reason begins with a word, which for most ends is the state again.
    let reason = job.reason.as_deref().unwrap_or_default();
    let reason = reason.strip_prefix(job.state.word()).unwrap_or(reason).trim_start_matches([':', ' ']);
    if !reason.is_empty() {
        line += &format!(": {reason}");
    }
    if let Some(error) = last_error(job).filter(|error| !reason.contains(error)) {
        line += &format!(" ({error})");
    }
    line
}

/// The error of the last attempt that failed, unless another succeeded after it.
fn last_error(job: &JobInfo) -> Option<&str> {
    job.last_error().filter(|_| job.state != JobState::Succeeded)
}

fn status(job: &JobInfo, lasts: Duration) -> LineStatus {
    let Progress { done, total } = job.progress;
    LineStatus { what: job.state.word().replace('_', " "), done: Some(done), total, lasts, more: String::new() }
}

/// Prints a line for every change, until the end.
pub fn watch(client: &NodeClient, screen: &Screen, id: &str) -> Result<u8> {
    say_on_interrupt(screen, id)?;
    let mut before = None;
    let job = each(client, screen, id, &Patience::new(None), |job| {
        if screen.json {
            if changes(before.as_ref(), job).is_some() {
                screen.raw(job.text(), Layout::Line)?;
            }
        } else {
            for line in changes(before.as_ref(), job).unwrap_or_default() {
                screen.line(line)?;
            }
        }
        before = Some((**job).clone());
        Ok(())
    })?;
    Ok(exit_code(&job))
}

/// The news since `before`; nothing if only clocks moved.
fn changes(before: Option<&JobInfo>, job: &JobInfo) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    for workflow in &job.workflows {
        let known = before.and_then(|before| before.workflows.iter().find(|old| old.name == workflow.name));
        for attempt in &workflow.attempts {
            let old = known.and_then(|old| old.attempts.iter().find(|old| old.fence == attempt.fence));
            lines.extend(attempt_change(&workflow.name, old, attempt));
        }
    }
    let Progress { done, total } = job.progress;
    if before.is_none_or(|before| before.progress != job.progress) && done > 0 {
        let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
        lines.push(format!("progress {done}{of}"));
    }
    if before.is_none_or(|before| before.state != job.state) {
        lines.push(if job.state.is_terminal() { ended(job) } else { job.state.word().replace('_', " ") });
    }
    (!lines.is_empty()).then_some(lines)
}

fn attempt_change(workflow: &str, old: Option<&Attempt>, attempt: &Attempt) -> Option<String> {
    let who = format!("{workflow}: attempt {} (fence {}) on {}", attempt.n, attempt.fence, attempt.worker);
    if let Some(outcome) = &attempt.outcome {
        let known = old.is_some_and(|old| old.outcome.as_ref() == Some(outcome));
        let error = attempt.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        return (!known).then(|| format!("{who} {}{error}", outcome.replace('_', " ")));
    }
    let Some(old) = old else { return Some(format!("{who} began")) };
    let note_of = |attempt: &Attempt| attempt.running.as_ref().and_then(|running| running.note.clone());
    let note = note_of(attempt)?;
    (note_of(old).as_ref() != Some(&note)).then(|| format!("{workflow}: {note}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;
    use onward_api::instant::At;
    use onward_api::job::AttemptClocks;

    fn job(state: &str, done: u64, attempts: Vec<Attempt>) -> JobInfo {
        let progress = Progress { done, total: Some(10) };
        JobInfo { progress, ..example::job(state, vec![example::workflow("main", attempts)]) }
    }

    fn attempt(error: Option<&str>) -> Attempt {
        let outcome = error.map(|_| "failed".into());
        Attempt { outcome, error: error.map(Into::into), ..example::attempt(1, At::from_ms(0)) }
    }

    fn running(lease_remaining_ms: u64, note: Option<&str>) -> Attempt {
        let (stuck_in_ms, since_step_ms, note) = (1, 1, note.map(Into::into));
        let clocks = AttemptClocks {
            lease_remaining_ms,
            stuck_in_ms,
            since_step_ms,
            quiet_remaining_ms: None,
            progress: None,
            note,
        };
        Attempt { running: Some(clocks), ..attempt(None) }
    }

    #[test]
    fn only_what_changed_is_told() {
        let began = job("running", 0, vec![running(9, None)]);
        let beaten = job("running", 0, vec![running(5, None)]);
        let moved = job("running", 3, vec![running(5, Some("part 3"))]);
        let failed = job("failed", 3, vec![attempt(Some("no space"))]);
        let lines = |before: Option<&JobInfo>, now: &JobInfo| changes(before, now).unwrap_or_default();
        assert_eq!(lines(None, &began), ["main: attempt 1 (fence 7) on w began", "running"]);
        assert_eq!(changes(Some(&began), &beaten), None);
        assert_eq!(lines(Some(&beaten), &moved), ["main: part 3", "progress 3 of 10"]);
        let told = ["main: attempt 1 (fence 7) on w failed: no space", "failed (no space)"];
        assert_eq!(lines(Some(&moved), &failed), told);
    }

    #[test]
    fn how_it_ended_is_said_once() {
        let told = |state: &str, reason: &str| {
            let reason = Some(reason.to_owned());
            ended(&JobInfo { reason, ..job(state, 0, vec![attempt(Some("no space"))]) })
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
            assert_eq!(exit_code(&job(state, 0, vec![attempt(Some(error))])), code, "{state} {error}");
        }
    }

    #[test]
    fn the_bar_takes_what_the_node_says() {
        let status = status(&job("timed_out", 4, vec![]), Duration::ZERO);
        assert_eq!((status.done, status.total, &*status.what), (Some(4), Some(10), "timed out"));
    }
}
