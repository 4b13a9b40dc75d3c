//! The job verbs, but for `submit`: look at one or many, and act on one.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use onward_api::explanation::Explanation;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::answer::{Answer, Layout};
use crate::args::ListArgs;
use crate::client::{Client, escaped, unique_name};
use crate::failure::Failure;
use crate::results::{self, Results};
use crate::screen::{Screen, Styled};
use crate::table::Column;
use crate::{many, read, span};

const JOB_COLUMNS: [Column; 7] = [
    Column::whole("id"),
    Column::cut("kind"),
    Column::optional("queue"),
    Column::whole("state"),
    Column::optional("progress"),
    Column::whole("age"),
    Column::cut("reason"),
];
const ATTEMPT_COLUMNS: [Column; 9] = [
    Column::cut("workflow"),
    Column::optional("kind"),
    Column::optional("state"),
    Column::whole("attempt"),
    Column::optional("fence"),
    Column::cut("worker"),
    Column::whole("outcome"),
    Column::whole("took"),
    Column::cut("error"),
];

fn path(id: &str, rest: &str) -> String {
    format!("/v1/jobs/{}{rest}", escaped(id))
}

pub fn list(args: &ListArgs, client: &Client, screen: &Screen) -> Result<u8> {
    if let Some(by) = &args.group_by {
        return grouped(by, args, client, screen);
    }
    let cursor = args.page.cursor.as_deref().map(|cursor| format!("&cursor={}", escaped(cursor)));
    let query = format!("limit={}{}{}", args.page.limit, args.which.query(), cursor.unwrap_or_default());
    let answer = client.get(&format!("/v1/jobs?{query}"))?;
    if screen.json {
        screen.raw(answer.text(), Layout::Pretty)?;
        return Ok(0);
    }
    let jobs = read::items(&answer, "jobs");
    if jobs.is_empty() {
        screen.note("no jobs");
        return Ok(0);
    }
    let now = Timestamp::now();
    screen.table(&JOB_COLUMNS, jobs.iter().map(|job| row(job, now)).collect())?;
    if let Some(cursor) = read::text(&answer, "next_cursor") {
        screen.note(format!("there are more: --cursor {cursor}"));
    }
    Ok(0)
}

/// How many jobs share what was asked for, most first.
fn grouped(by: &str, args: &ListArgs, client: &Client, screen: &Screen) -> Result<u8> {
    let mut groups: BTreeMap<String, (u64, String)> = BTreeMap::new();
    many::each_job(client, &format!("/v1/jobs?{}&", args.which.query().trim_start_matches('&')), |job| {
        let shared = match by {
            "error" => last_error(job).unwrap_or("-").to_owned(),
            "kind" => kinds(job),
            field => read::word(job, field).to_owned(),
        };
        // The newest comes first.
        let newest = || (0, read::word(job, "id").to_owned());
        groups.entry(shared).or_insert_with(newest).0 += 1;
        Ok(())
    })?;
    let mut groups: Vec<(String, u64, String)> =
        groups.into_iter().map(|(shared, (count, newest))| (shared, count, newest)).collect();
    groups.sort_by_key(|(_, count, _)| core::cmp::Reverse(*count));
    if screen.json {
        let shown =
            |(shared, count, newest): &(String, u64, String)| json!({ by: shared, "count": count, "newest": newest });
        screen.json(&json!({ "groups": groups.iter().map(shown).collect::<Vec<_>>() }))?;
    } else if groups.is_empty() {
        screen.note("no jobs");
    } else {
        let name = ["error", "kind", "reason"].into_iter().find(|name| *name == by).unwrap_or("group");
        let columns = [Column::whole("count"), Column::cut(name), Column::whole("newest")];
        let row = |(shared, count, newest): (String, u64, String)| vec![count.to_string(), shared, newest];
        screen.table(&columns, groups.into_iter().map(row).collect())?;
    }
    Ok(0)
}

/// What the last attempt that failed has said.
fn last_error(job: &Value) -> Option<&str> {
    let attempts = read::items(job, "workflows").iter().flat_map(|workflow| read::items(workflow, "attempts"));
    attempts.filter_map(|attempt| read::text(attempt, "error")).rfind(|error| !error.is_empty())
}

/// The kind of a job; where its workflows differ in theirs, all of them.
fn kinds(job: &Value) -> String {
    if let Some(kind) = read::text(job, "kind") {
        return kind.to_owned();
    }
    let mut kinds: Vec<&str> = Vec::new();
    for kind in read::items(job, "workflows").iter().filter_map(|workflow| read::text(workflow, "kind")) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    if kinds.is_empty() { "-".to_owned() } else { kinds.join(", ") }
}

fn row(job: &Value, now: Timestamp) -> Vec<String> {
    let word = |field| read::word(job, field).to_owned();
    let age = read::instant(job, "created_at").map(|at| span::human(read::between(at, now)));
    vec![
        word("id"),
        match read::text(job, "command") {
            Some(command) => format!("{}: {command}", read::word(job, "kind")),
            None => kinds(job),
        },
        word("queue"),
        word("state"),
        read::progress(&job["progress"]),
        age.unwrap_or_else(|| "-".into()),
        beside_state(read::word(job, "reason"), read::word(job, "state")).to_owned(),
    ]
}

/// The reason without the state that it repeats: there is little room beside it.
fn beside_state<'a>(reason: &'a str, state: &str) -> &'a str {
    reason.strip_prefix(state).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(reason)
}

pub fn show(id: &str, client: &Client, screen: &Screen) -> Result<u8> {
    let job = client.get(&path(id, ""))?;
    if screen.json {
        screen.raw(job.text(), Layout::Pretty)?;
        return Ok(0);
    }
    let now = Timestamp::now();
    screen.line(format!("job       {}", read::word(&job, "id")))?;
    screen.print(&Styled::new("state     ").word(screen, read::word(&job, "state")))?;
    for field in ["reason", "kind", "command", "queue", "retry_of"] {
        if let Some(text) = read::text(&job, field) {
            screen.line(format!("{field:9} {text}"))?;
        }
    }
    screen.line(format!("progress  {}", read::progress(&job["progress"])))?;
    for (label, at) in times(&job) {
        screen.line(format!("{label:9} {}", when(at, now)))?;
    }
    if let Some(result) = shown_result(&job)? {
        screen.line(format!("result    {result}"))?;
    }
    let (damaged, left_out): (Vec<_>, Vec<_>) = read::items(&job, "left_out").iter().partition(|left| is_damaged(left));
    for left in damaged {
        let (field, name) = (read::word(left, "field"), read::word(left, "workflow"));
        screen.line(format!(
            "damaged   the {field} of workflow `{name}` cannot be read; restore a backup to get it back"
        ))?;
    }
    if let Some(first) = left_out.first() {
        let (count, id, name) = (left_out.len(), read::word(&job, "id"), read::word(first, "workflow"));
        screen.line(format!(
            "left out  {count} large payloads and results; `onward result {id}` prints every result, \
             GET /v1/jobs/{id}?workflow={name} gives those of one workflow"
        ))?;
    }
    let rows = attempt_rows(&job, now);
    if !rows.is_empty() {
        screen.line("")?;
        screen.table(&ATTEMPT_COLUMNS, rows)?;
    }
    Ok(0)
}

fn is_damaged(left_out: &Value) -> bool {
    read::text(left_out, "why") == Some("damaged")
}

/// The results that an answer has, as one harmless line.
fn shown_result(job: &Answer) -> Result<Option<String>> {
    let result = match (results::are_named(job), job.field("result"), job.field("result_base64")) {
        (true, ..) => {
            let here = Results::of(job).map_err(results::unreadable)?.here;
            (!here.is_empty()).then(|| to_raw_value(&here)).transpose()?
        }
        (false, None, Some(encoded)) => Some(results::as_base64(encoded)),
        (false, result, _) => result.map(ToOwned::to_owned),
    };
    Ok(match result {
        Some(result) => Some(read::plain(&*Answer::of(result.get().as_bytes())?)),
        None => None,
    })
}

/// When what happened to a job. It can run for a while before somebody begins, so that is told by its attempts.
fn times(job: &Value) -> Vec<(&'static str, Timestamp)> {
    let (created, runnable) = (read::instant(job, "created_at"), read::instant(job, "started_at"));
    let began = read::items(job, "workflows").iter().flat_map(|workflow| read::items(workflow, "attempts"));
    let began = began.filter_map(|attempt| read::instant(attempt, "started_at")).min();
    let all = [
        ("created", created),
        ("runnable", runnable.filter(|at| Some(*at) != created)),
        ("started", began),
        ("ended", read::instant(job, "ended_at")),
        ("deadline", read::instant(job, "deadline_at")),
    ];
    all.into_iter().filter_map(|(label, at)| Some((label, at?))).collect()
}

/// The instant, and how far it is from now.
fn when(at: Timestamp, now: Timestamp) -> String {
    let at_second = at.round(jiff::Unit::Second).unwrap_or(at);
    if at > now {
        format!("{at_second} (in {})", span::human(read::between(now, at)))
    } else {
        format!("{at_second} ({} ago)", span::human(read::between(at, now)))
    }
}

fn attempt_rows(job: &Value, now: Timestamp) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for workflow in read::items(job, "workflows") {
        let word = |field| read::word(workflow, field).to_owned();
        let blank = || "-".to_owned();
        let attempts = read::items(workflow, "attempts");
        if attempts.is_empty() {
            let taken = read::text(workflow, "taken_from").map(|job| format!("succeeded in {job}"));
            let why = taken.or_else(|| read::text(workflow, "blocked").map(str::to_owned)).unwrap_or_else(blank);
            rows.push(vec![
                word("name"),
                word("kind"),
                word("state"),
                blank(),
                blank(),
                blank(),
                blank(),
                blank(),
                why,
            ]);
        }
        for attempt in attempts {
            let end = read::instant(attempt, "ended_at").unwrap_or(now);
            let took = read::instant(attempt, "started_at").map(|at| span::human(read::between(at, end)));
            rows.push(vec![
                word("name"),
                word("kind"),
                word("state"),
                read::plain(&attempt["n"]),
                read::plain(&attempt["fence"]),
                read::word(attempt, "worker").to_owned(),
                read::word(attempt, "outcome").to_owned(),
                took.unwrap_or_else(blank),
                read::word(attempt, "error").to_owned(),
            ]);
        }
    }
    rows
}

pub fn explain_job(id: &str, client: &Client, screen: &Screen) -> Result<u8> {
    let answer = client.get(&path(id, "/explain"))?;
    let explanation: Explanation = serde_json::from_value((*answer).clone())?;
    match screen.json {
        true => {
            let (job, ledger) = (client.get(&path(id, ""))?, client.get(&path(id, "/ledger"))?);
            let entries =
                ledger.field("entries").map_or_else(|| to_raw_value(&[(); 0]), |entries| Ok(entries.to_owned()))?;
            let all = BTreeMap::from([
                ("job", job.text().to_owned()),
                ("ledger", entries),
                ("explanation", to_raw_value(&explanation.to_string())?),
                ("explain", answer.text().to_owned()),
            ]);
            screen.raw(&to_raw_value(&all)?, Layout::Pretty)?;
        }
        false => screen.line(explanation.to_string().trim_end())?,
    }
    Ok(0)
}

pub fn result(id: &str, client: &Client, screen: &Screen) -> Result<u8> {
    let job = client.get(&path(id, ""))?;
    let state = read::word(&job, "state");
    if state != "succeeded" {
        let failure = Failure::new(format!("job {id} has no result: it is {state}"));
        let failure = match read::text(&job, "reason").filter(|reason| *reason != state) {
            Some(reason) => failure.why(reason),
            None => failure,
        };
        let remedy = if read::is_terminal(state) { "explain" } else { "wait" };
        return Err(failure.remedy(format!("onward {remedy} {id}")).into());
    }
    let damaged = read::items(&job, "left_out").iter().find(|left| is_damaged(left) && left["field"] == "result");
    if let Some(left) = damaged {
        let what = format!("the result of job {id} cannot be read");
        let why =
            format!("that of workflow `{}` is damaged or missing in the node's store", read::word(left, "workflow"));
        return Err(Failure::new(what).why(why).remedy(format!("restore a backup, or onward retry {id}")).into());
    }
    if results::are_named(&job) {
        let all = Results::of(&job).map_err(results::unreadable)?.complete(id, client)?;
        let all = if all.is_empty() { RawValue::NULL.to_owned() } else { to_raw_value(&all)? };
        screen.raw(&all, Layout::Pretty)?;
        return Ok(0);
    }
    match (job.field("result"), job.field("result_base64")) {
        (None, Some(encoded)) if !screen.json && encoded.get().starts_with('"') => {
            let encoded: String = serde_json::from_str(encoded.get())?;
            let bytes = STANDARD.decode(encoded).context("the node's result is not base64")?;
            std::io::stdout().lock().write_all(&bytes)?;
        }
        (None, Some(encoded)) => screen.raw(encoded, Layout::Pretty)?,
        (None, None) => screen.raw(RawValue::NULL, Layout::Pretty)?,
        (Some(result), _) => match serde_json::from_str::<String>(result.get()) {
            Ok(text) if !screen.json => screen.exact(&text)?,
            _ => screen.raw(result, Layout::Pretty)?,
        },
    }
    Ok(0)
}

pub fn cancel(id: &str, client: &Client, screen: &Screen) -> Result<u8> {
    let answer = client.post(&path(id, "/cancel"), &json!({}))?;
    let line = match read::word(&answer, "state") {
        "cancelled" => format!("{id} is cancelled"),
        state if read::is_terminal(state) => format!("{id} has already ended: it {}", ending(state)),
        _ => format!("{id} is being cancelled: its worker was told to stop"),
    };
    done(screen, &answer, line)
}

pub fn retry(id: &str, request_id: Option<String>, client: &Client, screen: &Screen) -> Result<u8> {
    let request_id = request_id.map_or_else(|| unique_name("cli-"), Ok)?;
    let answer = client.post(&path(id, "/retry"), &json!({ "request_id": request_id }))?;
    let new = read::text(&answer, "id").unwrap_or("-").to_owned();
    done(screen, &answer, new)
}

pub fn extend(
    id: &str,
    by: Duration,
    reason: &str,
    request_id: Option<String>,
    client: &Client,
    screen: &Screen,
) -> Result<u8> {
    let request_id = request_id.map_or_else(|| unique_name("cli-"), Ok)?;
    let body = json!({ "by_s": span::seconds(by), "reason": reason, "request_id": request_id });
    let answer =
        client.post(&path(id, "/extend"), &body).map_err(|failure| match failure.is_refusal("already_ended") {
            true => Failure::new(format!("job {id} has already ended"))
                .why("only a job that has not ended has a deadline to move")
                .remedy(format!("`onward show {id}` says how it ended; `onward retry {id}` submits it once more"))
                .refused("already_ended"),
            false => failure,
        })?;
    let total = read::span(&answer, "extensions").map(|total| format!("; {} by extensions so far", span::human(total)));
    done(screen, &answer, format!("{id} has {} more{}", span::human(by), total.unwrap_or_default()))
}

/// As in "it has failed".
fn ending(state: &str) -> &'static str {
    match state {
        "succeeded" => "succeeded",
        "failed" => "failed",
        "timed_out" => "timed out",
        _ => "was cancelled",
    }
}

/// The node did it: its answer for programs, a line for people.
pub fn done(screen: &Screen, answer: &Answer, line: String) -> Result<u8> {
    match screen.json {
        true => screen.raw(answer.text(), Layout::Pretty)?,
        false => screen.line(line)?,
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(job: &Value) -> Vec<&'static str> {
        times(job).into_iter().map(|(label, _)| label).collect()
    }

    #[test]
    fn a_job_that_nobody_took_has_not_started() {
        let at = |minute: u8| format!("2026-11-17T10:{minute:02}:00Z");
        let attempt = |minute| json!({"started_at": at(minute)});
        let job = |more: Value| {
            let mut job = json!({"created_at": at(0), "started_at": at(0), "deadline_at": at(59), "workflows": []});
            job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            job
        };
        assert_eq!(labels(&job(json!({}))), ["created", "deadline"]);
        assert_eq!(
            labels(&job(json!({"ended_at": at(1)}))),
            ["created", "ended", "deadline"],
            "cancelled before it ran"
        );
        assert_eq!(labels(&job(json!({"started_at": at(5)}))), ["created", "runnable", "deadline"], "it was delayed");
        assert_eq!(labels(&job(json!({"started_at": null, "deadline_at": null}))), ["created"], "it is delayed");
        let ran = job(json!({"workflows": [{"attempts": [attempt(8), attempt(9)]}, {"attempts": [attempt(7)]}]}));
        assert_eq!(labels(&ran), ["created", "started", "deadline"]);
        assert_eq!(times(&ran)[1].1.to_string(), at(7), "by the first of all attempts");
    }
}
