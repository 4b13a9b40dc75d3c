//! Acting on many jobs at once: those that match are found and counted, and nothing happens before somebody said yes.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::args::{ConfirmArgs, WhichArgs};
use crate::client::{Client, escaped, unique_name};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::{read, span};

/// Of one page.
const PAGE: usize = 1_000;

impl WhichArgs {
    pub fn is_empty(&self) -> bool {
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

    /// For lists that the node does not filter.
    fn admits(&self, job: &Value, now: Timestamp) -> bool {
        let is = |field: &str, wanted: &Option<String>| wanted.as_deref().is_none_or(|text| job[field] == text);
        let has_tag = |tag: &String| read::items(job, "tags").iter().any(|one| one == tag);
        let is_new = |since| read::instant(job, "created_at").is_some_and(|at| read::between(at, now) <= since);
        is("state", &self.state)
            && is("kind", &self.kind)
            && is("queue", &self.queue)
            && self.tag.as_ref().is_none_or(has_tag)
            && self.since.is_none_or(is_new)
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

fn ids(client: &Client, path: &str, wanted: impl Fn(&Value) -> bool) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    each_job(client, path, |job| {
        ids.extend(read::text(job, "id").filter(|_| wanted(job)).map(str::to_owned));
        Ok(())
    })?;
    Ok(ids)
}

/// Submits ended jobs that match once more.
pub fn retry(which: &WhichArgs, confirm: &ConfirmArgs, client: &Client, screen: &Screen) -> Result<u8> {
    some_filter(which, confirm, "retry")?;
    let states = match &which.state {
        Some(state) => vec![state.clone()],
        None => ["failed", "timed_out", "cancelled"].map(str::to_owned).to_vec(),
    };
    let mut found = Vec::new();
    for state in states {
        let which = WhichArgs { state: Some(state), ..which.clone() };
        let path = format!("/v1/jobs?{}&", which.query().trim_start_matches('&'));
        found.extend(ids(client, &path, |job| read::is_terminal(read::word(job, "state")))?);
    }
    if !confirmed(&found, "submitted once more", confirm, screen)? {
        return Ok(0);
    }
    let request_id = unique_name("cli-")?;
    act(&found, "submitted once more", screen, |id| {
        let body = json!({ "request_id": request_id });
        let answer = client.post(&format!("/v1/jobs/{}/retry", escaped(id)), &body)?;
        Ok(json!({ "job": id, "id": answer["id"] }))
    })
}

/// Which dead letters match.
pub fn dead_letters(which: &WhichArgs, confirm: &ConfirmArgs, verb: &str, client: &Client) -> Result<Vec<String>> {
    some_filter(which, confirm, verb)?;
    let now = Timestamp::now();
    ids(client, "/v1/dead-letters?", |job| which.admits(job, now))
}

/// All of them must be meant, and not just nothing said.
fn some_filter(which: &WhichArgs, confirm: &ConfirmArgs, verb: &str) -> Result<(), Failure> {
    if which.is_empty() && !confirm.all {
        return Err(Failure::new(format!("which jobs to {verb} was not said"))
            .remedy("name a job, or give --state, --kind, --queue, --tag or --since; --all means every one")
            .usage());
    }
    Ok(())
}

/// Whether to go on: after `--yes`, or a yes at the terminal.
pub fn confirmed(found: &[String], what: &str, confirm: &ConfirmArgs, screen: &Screen) -> Result<bool> {
    let jobs = count(found.len());
    if confirm.dry_run {
        match screen.json {
            true => screen.json(&json!({ "count": found.len(), "jobs": found }))?,
            false => screen.line(format!("{jobs} would be {what}"))?,
        }
        return Ok(false);
    }
    if found.is_empty() {
        match screen.json {
            true => screen.json(&json!({ "count": 0, "jobs": [] }))?,
            false => screen.line("no job matches")?,
        }
        return Ok(false);
    }
    if confirm.yes {
        return Ok(true);
    }
    if screen.json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::new(format!("{jobs} would be {what}"))
            .remedy("say --yes to do it, or --dry-run to only count them")
            .usage()
            .into());
    }
    // A question that cannot be shown is answered with no.
    let _ = write!(io::stderr(), "{jobs} would be {what}. Go on? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn count(jobs: usize) -> String {
    if jobs == 1 { "1 job".into() } else { format!("{jobs} jobs") }
}

/// One after the other; what is refused is told at the end, and makes the command fail.
pub fn act(
    ids: &[String],
    what: &str,
    screen: &Screen,
    mut each: impl FnMut(&str) -> Result<Value, Failure>,
) -> Result<u8> {
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for id in ids {
        match each(id) {
            Ok(answer) => done.push(answer),
            Err(failure) => refused.push(format!("{id}: {failure}")),
        }
    }
    match screen.json {
        true => screen.json(&json!({ "count": done.len(), "jobs": done }))?,
        false => screen.line(format!("{} {what}", count(done.len())))?,
    }
    if refused.is_empty() {
        return Ok(0);
    }
    refused.truncate(10);
    Err(Failure::new(format!("{} not {what}", count(ids.len() - done.len()))).why(refused.join("\n")).into())
}
