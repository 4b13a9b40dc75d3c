//! Acting on many jobs at once: those that match are found and counted, and nothing happens before somebody said yes.

use std::io::{self, BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::Result;
use onward::JobInfo;
use onward::client::{JobFilter, Page};
use onward_api::command::{CancelWhere, CancelWhereAnswer};
use serde_json::{Value, json};

use crate::args::{ConfirmArgs, WhichArgs};
use crate::client::{NodeClient, unique_name};
use crate::failure::CommandFailure;
use crate::fleet::counted;
use crate::read;
use crate::screen::Screen;
use crate::status_line::{LineStatus, StatusLine};

/// Jobs of one page.
const PAGE: usize = 1_000;
/// Cancels so many with one call: short enough for a bar to move.
const CANCELLED_PER_CALL: usize = 10_000;
/// Named before somebody says yes.
const SHOWN: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkVerb {
    Cancel,
    Retry,
    Replay,
    Drop,
}

impl BulkVerb {
    fn word(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::Replay => "replay",
            Self::Drop => "drop",
        }
    }

    /// The verb as in "two jobs would be …".
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
pub struct MatchingJobs {
    count: usize,
    ids: Vec<String>,
}

impl MatchingJobs {
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

    pub fn filter(&self) -> JobFilter {
        let Self { state, kind, queue, tag, not_moving, since } = self.clone();
        JobFilter { state, kind, queue, tag, not_moving, since }
    }

    /// The job that was named, if no others are meant as well.
    pub fn beside<T>(&self, named: Option<T>, confirm: &ConfirmArgs) -> Result<Option<T>, CommandFailure> {
        if named.is_some() && (confirm.all || !self.is_empty()) {
            return Err(CommandFailure::new("a job is named, and others are described")
                .remedy("either name jobs, or give filters (or --all)")
                .usage());
        }
        Ok(named)
    }

    /// Something must be said about which jobs, and it must fit what is done to them.
    fn check(&self, confirm: &ConfirmArgs, verb: BulkVerb) -> Result<(), CommandFailure> {
        if self.is_empty() && !confirm.all {
            let filters = match verb {
                BulkVerb::Cancel => "--state, --kind, --queue, --tag, --not-moving or --since",
                _ => "--state, --kind, --queue, --tag or --since",
            };
            return Err(CommandFailure::new(format!("which jobs to {} was not said", verb.word()))
                .remedy(format!("name a job, or give {filters}; --all means every one"))
                .usage());
        }
        if confirm.all && !self.is_empty() {
            return Err(CommandFailure::new("--all means every job, and a filter means some")
                .remedy("give one of them")
                .usage());
        }
        let unfit = |what: String, why: &str| Err(CommandFailure::new(what).why(why).usage());
        match (verb, &self.state, self.not_moving) {
            (BulkVerb::Cancel, Some(state), _) if read::is_terminal(state) => {
                unfit(format!("nothing that is {state} can be cancelled"), "it has ended")
            }
            (BulkVerb::Retry | BulkVerb::Replay | BulkVerb::Drop, Some(state), _) if !read::is_terminal(state) => {
                unfit(format!("nothing that is {state} fits `{}`", verb.word()), "it has not ended")
            }
            (BulkVerb::Retry | BulkVerb::Replay | BulkVerb::Drop, _, Some(_)) => {
                unfit(format!("--not-moving does not fit `{}`", verb.word()), "what has ended does not run")
            }
            _ => Ok(()),
        }
    }
}

/// Every job that matches, the newest first; each is seen once.
pub fn each_job(client: &NodeClient, which: &JobFilter, mut seen: impl FnMut(&JobInfo)) -> Result<(), CommandFailure> {
    let mut page = Page { limit: PAGE, cursor: None };
    loop {
        let answer = client.ask(async |node| node.jobs(which, &page).await)?;
        answer.jobs.iter().for_each(&mut seen);
        match answer.exact().next_cursor.clone() {
            Some(next) => page = page.after(next),
            None => return Ok(()),
        }
    }
}

/// Cancels the jobs that match. Goes on until the node has looked at every job; interrupted, the same command cancels
/// the rest.
pub fn cancel(which: &WhichArgs, confirm: &ConfirmArgs, client: &NodeClient, screen: &Screen) -> Result<u8> {
    which.check(confirm, BulkVerb::Cancel)?;
    let mut found = MatchingJobs::default();
    each_cancelled(which, confirm, true, client, |answer| {
        found.count += answer.would_cancel.unwrap_or(0);
        let room = SHOWN - found.ids.len();
        found.ids.extend(answer.jobs.iter().flatten().take(room).cloned());
    })?;
    if let ControlFlow::Break(code) = confirmed(&found, BulkVerb::Cancel, confirm, screen)? {
        return Ok(code);
    }
    let mut line = StatusLine::default();
    let (began, mut cancelled) = (Instant::now(), 0);
    let went = each_cancelled(which, confirm, false, client, |answer| {
        cancelled += answer.cancelled as u64;
        if screen.bars {
            let (total, lasts) = (u64::try_from(found.count).ok(), began.elapsed());
            line.draw(&LineStatus {
                what: "cancelling".into(),
                done: Some(cancelled),
                total,
                lasts,
                more: String::new(),
            });
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
    client: &NodeClient,
    mut seen: impl FnMut(&CancelWhereAnswer),
) -> Result<(), CommandFailure> {
    let WhichArgs { state, kind, queue, tag, not_moving, since } = which.clone();
    let seconds = |span: Duration| span.as_secs_f64();
    let mut body = CancelWhere {
        state,
        kind,
        queue,
        tag,
        not_moving_s: not_moving.map(seconds),
        since_s: since.map(seconds),
        all: Some(confirm.all),
        dry_run: Some(dry_run),
        limit: Some(CANCELLED_PER_CALL),
        cursor: None,
    };
    loop {
        let answer = client.ask(async |node| node.cancel_where(&body).await)?;
        seen(&answer);
        body.cursor = answer.exact().next_cursor.clone();
        if body.cursor.is_none() {
            return Ok(());
        }
    }
}

/// Submits ended jobs that match once more.
pub fn retry(which: &WhichArgs, confirm: &ConfirmArgs, client: &NodeClient, screen: &Screen) -> Result<u8> {
    which.check(confirm, BulkVerb::Retry)?;
    let states = match &which.state {
        Some(state) => vec![state.clone()],
        None => ["failed", "timed_out", "cancelled"].map(str::to_owned).to_vec(),
    };
    let mut found = Vec::new();
    for state in states {
        let which = WhichArgs { state: Some(state), ..which.clone() };
        each_job(client, &which.filter(), |job| found.push(job.id.clone()))?;
    }
    let found = MatchingJobs::of(found);
    if let ControlFlow::Break(code) = confirmed(&found, BulkVerb::Retry, confirm, screen)? {
        return Ok(code);
    }
    let request_id = unique_name("cli-")?;
    act(&found.ids, BulkVerb::Retry, screen, |id| {
        let answer = client.ask(async |node| node.retry_as(id, &request_id).await)?;
        Ok(json!({ "job": id, "id": answer.id }))
    })
}

/// The dead letters that match.
pub fn dead_letters(
    which: &WhichArgs,
    confirm: &ConfirmArgs,
    verb: BulkVerb,
    client: &NodeClient,
) -> Result<MatchingJobs> {
    which.check(confirm, verb)?;
    let (which, mut page, mut found) = (which.filter(), Page { limit: PAGE, cursor: None }, Vec::new());
    loop {
        let answer = client.run(client.node().dead_letters(&which, &page))?.into_value();
        found.extend(answer.dead_letters.into_iter().map(|job| job.id));
        match answer.next_cursor {
            Some(next) => page = page.after(next),
            None => return Ok(MatchingJobs::of(found)),
        }
    }
}

/// Tells what would happen to a job that was named.
pub fn try_one(id: &str, verb: BulkVerb, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let confirm = ConfirmArgs { dry_run: true, ..ConfirmArgs::default() };
    let found = MatchingJobs::of(fitting(&[client.whole_id(id)?], verb, client)?);
    match confirmed(&found, verb, &confirm, screen)? {
        ControlFlow::Break(code) => Ok(code),
        ControlFlow::Continue(()) => unreachable!("nobody goes on after a dry run"),
    }
}

/// The named jobs that something can be done to. One that is not there is an error.
pub fn fitting(named: &[String], verb: BulkVerb, client: &NodeClient) -> Result<Vec<String>, CommandFailure> {
    let mut fit = Vec::new();
    for id in named {
        let job = client.run(client.node().job(id))?;
        let has_ended = job.state.is_terminal();
        let fits = match verb {
            BulkVerb::Cancel => !has_ended,
            BulkVerb::Retry => has_ended,
            BulkVerb::Replay | BulkVerb::Drop => job.dead_letter,
        };
        fit.extend(fits.then(|| id.clone()));
    }
    Ok(fit)
}

/// Whether to go on: after `--yes`, or a yes at the terminal. Else it breaks off with an exit code.
pub fn confirmed(
    found: &MatchingJobs,
    verb: BulkVerb,
    confirm: &ConfirmArgs,
    screen: &Screen,
) -> Result<ControlFlow<u8>> {
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
            (true, BulkVerb::Cancel) => screen.json(&json!({ "cancelled": 0 }))?,
            (true, _) => screen.json(&json!({ "count": 0, "jobs": [] }))?,
            (false, _) => screen.line("no job matches")?,
        }
        return Ok(ControlFlow::Break(0));
    }
    if confirm.yes {
        return Ok(ControlFlow::Continue(()));
    }
    if screen.json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(CommandFailure::new(would)
            .remedy("say --yes to do it, or --dry-run to only count them")
            .usage()
            .into());
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
fn with_first(sentence: &str, found: &MatchingJobs) -> String {
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

/// Acts on one job after the other. A refusal by the node is told at the end, and makes the command fail; one that
/// cannot be reached ends it.
fn act(
    ids: &[String],
    verb: BulkVerb,
    screen: &Screen,
    mut each: impl FnMut(&str) -> Result<Value, CommandFailure>,
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
    Err(CommandFailure::new(what).why(refused.join("\n")).into())
}
