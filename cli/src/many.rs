//! Acting on many jobs at once: those that match are found and counted, and nothing happens before somebody said yes.

use std::io::{self, BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::{ConfirmArgs, WhichArgs};
use crate::client::{Client, escaped, unique_name};
use crate::failure::Failure;
use crate::fleet::counted;
use crate::screen::Screen;
use crate::status_line::{Status, StatusLine};
use crate::{read, span};

/// Of one page.
const PAGE: usize = 1_000;
/// Cancels so many with one call: short enough for a bar to move.
const CANCELLED_PER_CALL: u64 = 10_000;
/// Named before somebody says yes.
const SHOWN: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Cancel,
    Retry,
    Replay,
    Drop,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::Replay => "replay",
            Self::Drop => "drop",
        }
    }

    /// As in "two jobs would be …".
    fn done(self) -> &'static str {
        match self {
            Self::Cancel => "cancelled",
            Self::Retry => "submitted once more",
            Self::Replay => "replayed",
            Self::Drop => "dropped",
        }
    }
}

/// The jobs that match: how many, and those of them that are known by name, at least the first few.
#[derive(Clone, Default, Debug)]
pub struct Found {
    count: usize,
    ids: Vec<String>,
}

impl Found {
    pub fn of(ids: Vec<String>) -> Self {
        Self { count: ids.len(), ids }
    }

    pub fn into_ids(self) -> Vec<String> {
        self.ids
    }
}

impl WhichArgs {
    fn is_empty(&self) -> bool {
        self.state.is_none()
            && self.kind.is_none()
            && self.queue.is_none()
            && self.tag.is_none()
            && self.not_moving.is_none()
            && self.since.is_none()
    }

    /// As part of a query: `&kind=k&since_s=3600`.
    pub fn query(&self) -> String {
        let words = [("state", &self.state), ("kind", &self.kind), ("queue", &self.queue), ("tag", &self.tag)];
        let words = words.into_iter().filter_map(|(name, value)| Some(format!("&{name}={}", escaped(value.as_ref()?))));
        let spans = [("not_moving_s", self.not_moving), ("since_s", self.since)];
        let spans = spans.into_iter().filter_map(|(name, span)| Some(format!("&{name}={}", span::seconds(span?))));
        words.chain(spans).collect()
    }

    /// The job that was named, if no others are meant as well.
    pub fn beside<T>(&self, named: Option<T>, confirm: &ConfirmArgs) -> Result<Option<T>, Failure> {
        if named.is_some() && (confirm.all || !self.is_empty()) {
            return Err(Failure::new("a job is named, and others are described")
                .remedy("either name jobs, or give filters (or --all)")
                .usage());
        }
        Ok(named)
    }

    /// Something must be said about which jobs, and it must fit what is done to them.
    fn check(&self, confirm: &ConfirmArgs, verb: Verb) -> Result<(), Failure> {
        if self.is_empty() && !confirm.all {
            let filters = match verb {
                Verb::Cancel => "--state, --kind, --queue, --tag, --not-moving or --since",
                _ => "--state, --kind, --queue, --tag or --since",
            };
            return Err(Failure::new(format!("which jobs to {} was not said", verb.word()))
                .remedy(format!("name a job, or give {filters}; --all means every one"))
                .usage());
        }
        if confirm.all && !self.is_empty() {
            return Err(Failure::new("--all means every job, and a filter means some")
                .remedy("give one of them")
                .usage());
        }
        let unfit = |what: String, why: &str| Err(Failure::new(what).why(why).usage());
        match (verb, &self.state, self.not_moving) {
            (Verb::Cancel, Some(state), _) if read::is_terminal(state) => {
                unfit(format!("nothing that is {state} can be cancelled"), "it has ended")
            }
            (Verb::Retry | Verb::Replay | Verb::Drop, Some(state), _) if !read::is_terminal(state) => {
                unfit(format!("nothing that is {state} fits `{}`", verb.word()), "it has not ended")
            }
            (Verb::Retry | Verb::Replay | Verb::Drop, _, Some(_)) => {
                unfit(format!("--not-moving does not fit `{}`", verb.word()), "what has ended does not run")
            }
            _ => Ok(()),
        }
    }
}

/// Every job on the pages of a list, the newest first; each is seen once.
pub fn each_job(client: &Client, path: &str, mut seen: impl FnMut(&Value) -> Result<()>) -> Result<()> {
    let mut cursor = String::new();
    loop {
        let page = client.get(&format!("{path}limit={PAGE}{cursor}"))?;
        read::listed(&page).iter().try_for_each(&mut seen)?;
        match read::text(&page, "next_cursor") {
            Some(next) => cursor = format!("&cursor={}", escaped(next)),
            None => return Ok(()),
        }
    }
}

fn ids(client: &Client, path: &str) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    each_job(client, path, |job| {
        ids.extend(read::text(job, "id").map(str::to_owned));
        Ok(())
    })?;
    Ok(ids)
}

/// Cancels the jobs that match. Goes on until the node has looked at every job; interrupted, the same command cancels
/// the rest.
pub fn cancel(which: &WhichArgs, confirm: &ConfirmArgs, client: &Client, screen: &Screen) -> Result<u8> {
    which.check(confirm, Verb::Cancel)?;
    let mut found = Found::default();
    each_cancelled(which, confirm, true, client, |answer| {
        found.count += usize::try_from(read::number(answer, "would_cancel").unwrap_or(0)).unwrap_or(usize::MAX);
        let room = SHOWN - found.ids.len();
        found.ids.extend(read::items(answer, "jobs").iter().filter_map(Value::as_str).take(room).map(str::to_owned));
    })?;
    if let ControlFlow::Break(code) = confirmed(&found, Verb::Cancel, confirm, screen)? {
        return Ok(code);
    }
    let mut line = StatusLine::default();
    let (began, mut cancelled) = (Instant::now(), 0);
    let went = each_cancelled(which, confirm, false, client, |answer| {
        cancelled += read::number(answer, "cancelled").unwrap_or(0);
        if screen.bars {
            let (total, lasts) = (u64::try_from(found.count).ok(), began.elapsed());
            line.draw(&Status { what: "cancelling".into(), done: Some(cancelled), total, lasts, more: String::new() });
        }
    });
    line.clear();
    went?;
    match screen.json {
        true => screen.json(&json!({ "cancelled": cancelled }))?,
        false => screen.line(format!("asked to cancel {}", jobs(cancelled)))?,
    }
    Ok(0)
}

/// Every answer to a cancel by filter, or to what it would do.
fn each_cancelled(
    which: &WhichArgs,
    confirm: &ConfirmArgs,
    dry_run: bool,
    client: &Client,
    mut seen: impl FnMut(&Value),
) -> Result<(), Failure> {
    let WhichArgs { state, kind, queue, tag, not_moving, since } = which;
    let mut cursor = Value::Null;
    loop {
        let answer = client.post(
            "/v1/jobs/cancel",
            &json!({
                "state": state, "kind": kind, "queue": queue, "tag": tag, "all": confirm.all, "dry_run": dry_run,
                "not_moving_s": not_moving.map(span::seconds), "since_s": since.map(span::seconds),
                "limit": CANCELLED_PER_CALL, "cursor": cursor,
            }),
        )?;
        seen(&answer);
        cursor = answer["next_cursor"].clone();
        if cursor.is_null() {
            return Ok(());
        }
    }
}

/// Submits ended jobs that match once more.
pub fn retry(which: &WhichArgs, confirm: &ConfirmArgs, client: &Client, screen: &Screen) -> Result<u8> {
    which.check(confirm, Verb::Retry)?;
    let states = match &which.state {
        Some(state) => vec![state.clone()],
        None => ["failed", "timed_out", "cancelled"].map(str::to_owned).to_vec(),
    };
    let mut found = Vec::new();
    for state in states {
        let which = WhichArgs { state: Some(state), ..which.clone() };
        found.extend(ids(client, &format!("/v1/jobs?{}&", which.query().trim_start_matches('&')))?);
    }
    let found = Found::of(found);
    if let ControlFlow::Break(code) = confirmed(&found, Verb::Retry, confirm, screen)? {
        return Ok(code);
    }
    let request_id = unique_name("cli-")?;
    act(&found.ids, Verb::Retry, screen, |id| {
        let body = json!({ "request_id": request_id });
        let answer = client.post(&format!("/v1/jobs/{}/retry", escaped(id)), &body)?;
        Ok(json!({ "job": id, "id": answer["id"] }))
    })
}

/// Which dead letters match.
pub fn dead_letters(which: &WhichArgs, confirm: &ConfirmArgs, verb: Verb, client: &Client) -> Result<Found> {
    which.check(confirm, verb)?;
    Ok(Found::of(ids(client, &format!("/v1/dead-letters?{}&", which.query().trim_start_matches('&')))?))
}

/// What would happen to a job that was named.
pub fn try_one(id: &str, verb: Verb, client: &Client, screen: &Screen) -> Result<u8> {
    let confirm = ConfirmArgs { dry_run: true, ..ConfirmArgs::default() };
    let found = Found::of(fitting(&[client.whole_id(id)?], verb, client)?);
    match confirmed(&found, verb, &confirm, screen)? {
        ControlFlow::Break(code) => Ok(code),
        ControlFlow::Continue(()) => unreachable!("nobody goes on after a dry run"),
    }
}

/// Those of the named jobs that something can be done to. One that is not there is an error.
pub fn fitting(named: &[String], verb: Verb, client: &Client) -> Result<Vec<String>, Failure> {
    let mut fit = Vec::new();
    for id in named {
        let job = client.get(&format!("/v1/jobs/{}", escaped(id)))?;
        let has_ended = read::is_terminal(read::word(&job, "state"));
        let fits = match verb {
            Verb::Cancel => !has_ended,
            Verb::Retry => has_ended,
            Verb::Replay | Verb::Drop => read::flag(&job, "dead_letter"),
        };
        fit.extend(fits.then(|| id.clone()));
    }
    Ok(fit)
}

/// Whether to go on: after `--yes`, or a yes at the terminal. Else it breaks off with an exit code.
pub fn confirmed(found: &Found, verb: Verb, confirm: &ConfirmArgs, screen: &Screen) -> Result<ControlFlow<u8>> {
    let would = format!("{} would be {}", jobs(found.count as u64), verb.done());
    if confirm.dry_run {
        match screen.json {
            true => screen.json(&json!({ "count": found.count, "jobs": found.ids }))?,
            false => screen.line(with_first(&would, found))?,
        }
        return Ok(ControlFlow::Break(0));
    }
    if found.count == 0 {
        match (screen.json, verb) {
            (true, Verb::Cancel) => screen.json(&json!({ "cancelled": 0 }))?,
            (true, _) => screen.json(&json!({ "count": 0, "jobs": [] }))?,
            (false, _) => screen.line("no job matches")?,
        }
        return Ok(ControlFlow::Break(0));
    }
    if confirm.yes {
        return Ok(ControlFlow::Continue(()));
    }
    if screen.json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::new(would).remedy("say --yes to do it, or --dry-run to only count them").usage().into());
    }
    screen.note(with_first(&would, found));
    // A question that cannot be shown is answered with no.
    let _ = write!(io::stderr(), "Go on? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(ControlFlow::Continue(()));
    }
    screen.note("nothing was changed");
    Ok(ControlFlow::Break(1))
}

/// The sentence, and under it the first of those that it is about.
fn with_first(sentence: &str, found: &Found) -> String {
    let shown = &found.ids[..found.ids.len().min(SHOWN)];
    let mut text = sentence.to_owned();
    for id in shown {
        text += &format!("\n  {id}");
    }
    match found.count - shown.len() {
        0 => text,
        _ if shown.is_empty() => text,
        more => text + &format!("\n  and {more} more"),
    }
}

fn jobs(count: u64) -> String {
    counted(count, "job")
}

/// One after the other. What the node refuses is told at the end, and makes the command fail; one that cannot be reached
/// ends it.
fn act(
    ids: &[String],
    verb: Verb,
    screen: &Screen,
    mut each: impl FnMut(&str) -> Result<Value, Failure>,
) -> Result<u8> {
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for id in ids {
        match each(id) {
            Ok(answer) => done.push(answer),
            Err(failure) => {
                let goes_on = failure.was_refused();
                refused.push(format!("{id}: {failure}"));
                if !goes_on {
                    break;
                }
            }
        }
    }
    match screen.json {
        true => screen.json(&json!({ "count": done.len(), "jobs": done }))?,
        false => screen.line(format!("{} {}", jobs(done.len() as u64), verb.done()))?,
    }
    if refused.is_empty() {
        return Ok(0);
    }
    refused.truncate(10);
    let what = format!("{} not {}", jobs((ids.len() - done.len()) as u64), verb.done());
    Err(Failure::new(what).why(refused.join("\n")).into())
}
