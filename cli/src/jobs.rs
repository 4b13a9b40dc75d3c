//! The job verbs, but for `submit`: look at one or many, and act on one.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use onward::{JobInfo, JobState};
use onward_api::instant::At;
use onward_api::job::JobDatacenter;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::answer::{Layout, PrintableAnswer, harmless};
use crate::args::ListArgs;
use crate::client::{NodeClient, unique_name};
use crate::failure::CommandFailure;
use crate::results::{self, Results};
use crate::screen::{Screen, StyledText};
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
const DATACENTER_COLUMNS: [Column; 7] = [
    Column::whole("datacenter"),
    Column::whole("state"),
    Column::whole("confirmed"),
    Column::whole("attempts"),
    Column::optional("no step for"),
    Column::cut("reason"),
    Column::cut("error"),
];

pub fn list(args: &ListArgs, client: &NodeClient, screen: &Screen) -> Result<u8> {
    if let Some(by) = &args.group_by {
        return grouped(by, args, client, screen);
    }
    let (which, page) = (args.which.filter(), args.page.page());
    let answer = client.ask(async |node| node.jobs(&which, &page).await)?;
    let now = read::now();
    table(screen, &answer, &JOB_COLUMNS, &answer.jobs, |job| row(job, now), "no jobs", answer.next_cursor.as_deref())
}

/// Prints how many jobs share what was asked for, most first.
fn grouped(by: &str, args: &ListArgs, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let mut groups: BTreeMap<String, (u64, String)> = BTreeMap::new();
    many::each_job(client, &args.which.filter(), |job| {
        let shared = match by {
            "error" => read::word(job.last_error()).to_owned(),
            "kind" => kinds(job),
            _ => read::word(job.reason.as_deref()).to_owned(),
        };
        // The newest comes first.
        let newest = || (0, job.id.clone());
        groups.entry(shared).or_insert_with(newest).0 += 1;
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

/// The kind of a job; where its workflows differ in theirs, all of them.
fn kinds(job: &JobInfo) -> String {
    if let Some(kind) = &job.kind {
        return kind.clone();
    }
    let mut kinds: Vec<&str> = Vec::new();
    for workflow in &job.workflows {
        if !kinds.contains(&workflow.kind.as_str()) {
            kinds.push(&workflow.kind);
        }
    }
    if kinds.is_empty() { "-".to_owned() } else { kinds.join(", ") }
}

fn row(job: &JobInfo, now: At) -> Vec<String> {
    let state = job.state.word();
    vec![
        job.id.clone(),
        match &job.command {
            Some(command) => format!("{}: {command}", read::word(job.kind.as_deref())),
            None => kinds(job),
        },
        job.queue.clone(),
        state.to_owned(),
        job.progress.to_string(),
        span::human(read::between(job.created_at, now)),
        beside_state(read::word(job.reason.as_deref()), state).to_owned(),
    ]
}

/// The reason without the state that it repeats: there is little room beside it.
fn beside_state<'a>(reason: &'a str, state: &str) -> &'a str {
    reason.strip_prefix(state).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(reason)
}

pub fn show(id: &str, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let job = client.ask(async |node| node.job(id).await)?;
    if screen.json {
        screen.raw(job.text(), Layout::Pretty)?;
        return Ok(0);
    }
    let now = read::now();
    screen.line(format!("job       {}", job.id))?;
    screen.print(&StyledText::new("state     ").word(screen, job.state.word()))?;
    let fields = [
        ("reason", &job.reason),
        ("kind", &job.kind),
        ("command", &job.command),
        ("queue", &Some(job.queue.clone())),
        ("retry_of", &job.retry_of),
    ];
    for (label, text) in fields {
        if let Some(text) = text {
            screen.line(format!("{label:9} {text}"))?;
        }
    }
    screen.line(format!("progress  {}", job.progress))?;
    for (label, at) in times(&job) {
        screen.line(format!("{label:9} {}", when(at, now)))?;
    }
    if let Some(result) = shown_result(&job)? {
        screen.line(format!("result    {result}"))?;
    }
    let (damaged, left_out): (Vec<_>, Vec<_>) = job.left_out.iter().partition(|left| left.is_damaged());
    for left in damaged {
        screen.line(format!(
            "damaged   the {} of workflow `{}` cannot be read; restore a backup to get it back",
            left.field, left.workflow
        ))?;
    }
    if let Some(first) = left_out.first() {
        let (count, id, name) = (left_out.len(), &job.id, &first.workflow);
        screen.line(format!(
            "left out  {count} large payloads and results; `onward result {id}` prints every result, \
             GET /v1/jobs/{id}?workflow={name} gives those of one workflow"
        ))?;
    }
    let rows = datacenter_rows(&job);
    if !rows.is_empty() {
        screen.line("")?;
        screen.table(&DATACENTER_COLUMNS, rows)?;
    }
    let rows = attempt_rows(&job, now);
    if !rows.is_empty() {
        screen.line("")?;
        screen.table(&ATTEMPT_COLUMNS, rows)?;
    }
    Ok(0)
}

/// The state of a gate's job in each datacenter; none of a manager's job, which is in one.
fn datacenter_rows(job: &JobInfo) -> Vec<Vec<String>> {
    let seen = job.datacenters.iter().filter_map(|datacenter| match datacenter {
        JobDatacenter::Seen(seen) => Some(seen),
        JobDatacenter::Named(_) => None,
    });
    let ago = |ms: Option<u64>| ms.map_or_else(|| "-".into(), |ms| span::human(Duration::from_millis(ms)));
    seen.map(|one| {
        vec![
            one.name.clone(),
            one.state.to_string(),
            if one.confirmed { "yes" } else { "no" }.into(),
            one.attempts.to_string(),
            ago(one.since_progress_ms),
            read::word(one.reason.as_deref()).into(),
            read::word(one.error.as_deref()).into(),
        ]
    })
    .collect()
}

/// The results that an answer has, as one harmless line.
fn shown_result(job: &PrintableAnswer<JobInfo>) -> Result<Option<String>> {
    let exact = job.exact();
    let result = match (results::are_named(exact), &exact.result, &exact.result_base64) {
        (true, ..) => {
            let here = Results::of(exact).map_err(results::unreadable)?.here;
            (!here.is_empty()).then(|| to_raw_value(&here)).transpose()?
        }
        (false, None, Some(encoded)) => Some(results::as_base64(encoded)),
        (false, result, _) => result.as_ref().map(|result| (**result).to_owned()),
    };
    Ok(result.map(|result| harmless(&result)).transpose()?.map(|result| read::plain(&result)))
}

/// The instants in a job's life. It can run for a while before somebody begins, so that is told by its attempts.
fn times(job: &JobInfo) -> Vec<(&'static str, At)> {
    let all = [
        ("created", Some(job.created_at)),
        ("runnable", job.started_at.filter(|at| *at != job.created_at)),
        ("started", job.attempts().map(|attempt| attempt.started_at).min()),
        ("ended", job.ended_at),
        ("deadline", job.deadline_at),
    ];
    all.into_iter().filter_map(|(label, at)| Some((label, at?))).collect()
}

/// The instant, and how far it is from now.
fn when(at: At, now: At) -> String {
    let timestamp = at.timestamp();
    let at_second = timestamp.round(jiff::Unit::Second).unwrap_or(timestamp);
    if at > now {
        format!("{at_second} (in {})", span::human(read::between(now, at)))
    } else {
        format!("{at_second} ({} ago)", span::human(read::between(at, now)))
    }
}

fn attempt_rows(job: &JobInfo, now: At) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for workflow in &job.workflows {
        let about = [workflow.name.as_str(), workflow.kind.as_str(), workflow.state.as_str()].map(str::to_owned);
        if workflow.attempts.is_empty() {
            let taken = workflow.taken_from.as_ref().map(|job| format!("succeeded in {job}"));
            let why = taken.or_else(|| workflow.blocked.as_ref().map(ToString::to_string));
            let [workflow, kind, state] = about.clone();
            let mut row = vec![workflow, kind, state];
            row.extend(std::iter::repeat_n("-".to_owned(), 5));
            row.push(why.unwrap_or_else(|| "-".into()));
            rows.push(row);
        }
        for attempt in &workflow.attempts {
            let took = read::between(attempt.started_at, attempt.ended_at.unwrap_or(now));
            let [workflow, kind, state] = about.clone();
            rows.push(vec![
                workflow,
                kind,
                state,
                attempt.n.to_string(),
                attempt.fence.to_string(),
                attempt.worker.clone(),
                read::word(attempt.outcome.as_deref()).to_owned(),
                span::human(took),
                read::word(attempt.error.as_deref()).to_owned(),
            ]);
        }
    }
    rows
}

pub fn explain_job(id: &str, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let answer = client.ask(async |node| node.explain(id).await)?;
    let page = answer.to_string();
    if !screen.json {
        screen.line(page.trim_end())?;
        return Ok(0);
    }
    let job = client.ask(async |node| node.job(id).await)?;
    let ledger = client.ask(async |node| node.ledger(id).await)?;
    let entries = ledger.field("entries").map_or_else(|| to_raw_value(&[(); 0]), |entries| Ok(entries.to_owned()))?;
    let all = BTreeMap::from([
        ("job", job.text().to_owned()),
        ("ledger", entries),
        ("explanation", to_raw_value(&page)?),
        ("explain", answer.text().to_owned()),
    ]);
    screen.raw(&to_raw_value(&all)?, Layout::Pretty)?;
    Ok(0)
}

pub fn result(id: &str, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let job = client.ask(async |node| node.job(id).await)?;
    if job.state != JobState::Succeeded {
        let state = job.state.word();
        let failure = CommandFailure::new(format!("job {id} has no result: it is {state}"));
        let failure = match job.reason.as_deref().filter(|reason| *reason != state) {
            Some(reason) => failure.why(reason),
            None => failure,
        };
        let remedy = if job.state.is_terminal() { "explain" } else { "wait" };
        return Err(failure.remedy(format!("onward {remedy} {id}")).into());
    }
    if let Some(left) = job.left_out.iter().find(|left| left.is_damaged() && left.field == "result") {
        let what = format!("the result of job {id} cannot be read");
        let why = format!("that of workflow `{}` is damaged or missing in the node's store", left.workflow);
        return Err(CommandFailure::new(what)
            .why(why)
            .remedy(format!("restore a backup, or onward retry {id}"))
            .into());
    }
    let exact = job.exact();
    if results::are_named(exact) {
        let all = Results::of(exact).map_err(results::unreadable)?.complete(id, client)?;
        let all = if all.is_empty() { RawValue::NULL.to_owned() } else { to_raw_value(&all)? };
        screen.raw(&all, Layout::Pretty)?;
        return Ok(0);
    }
    match (&exact.result, &exact.result_base64) {
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

pub fn cancel(id: &str, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let answer = client.ask(async |node| node.cancel(id).await)?;
    let line = match &answer.state {
        JobState::Cancelled => format!("{id} is cancelled"),
        state if state.is_terminal() => format!("{id} has already ended: it {}", ending(state)),
        _ => format!("{id} is being cancelled: its worker was told to stop"),
    };
    done(screen, &answer, line)
}

pub fn retry(id: &str, request_id: Option<String>, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let request_id = request_id.map_or_else(|| unique_name("cli-"), Ok)?;
    let answer = client.ask(async |node| node.retry_as(id, &request_id).await)?;
    done(screen, &answer, answer.id.clone())
}

pub fn extend(
    id: &str,
    by: Duration,
    reason: &str,
    request_id: Option<String>,
    client: &NodeClient,
    screen: &Screen,
) -> Result<u8> {
    let request_id = request_id.map_or_else(|| unique_name("cli-"), Ok)?;
    let extended = client.ask(async |node| node.extend_as(id, by, reason, &request_id).await);
    let answer = extended.map_err(|failure| match failure.is_refusal("already_ended") {
        true => CommandFailure::new(format!("job {id} has already ended"))
            .why("only a job that has not ended has a deadline to move")
            .remedy(format!("`onward show {id}` says how it ended; `onward retry {id}` submits it once more"))
            .refused("already_ended"),
        false => failure,
    })?;
    let total = span::human(Duration::try_from_secs_f64(answer.extensions_s).unwrap_or_default());
    done(screen, &answer, format!("{id} has {} more; {total} by extensions so far", span::human(by)))
}

/// The state as in "it has failed".
fn ending(state: &JobState) -> &'static str {
    match state {
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::TimedOut => "timed out",
        _ => "was cancelled",
    }
}

/// The node did it: its answer for programs, a line for people.
pub fn done<T>(screen: &Screen, answer: &PrintableAnswer<T>, line: String) -> Result<u8> {
    match screen.json {
        true => screen.raw(answer.text(), Layout::Pretty)?,
        false => screen.line(line)?,
    }
    Ok(0)
}

/// A page of a list: the answer for programs, a table for people.
pub fn table<T, I>(
    screen: &Screen,
    answer: &PrintableAnswer<T>,
    head: &[Column],
    items: &[I],
    row: impl Fn(&I) -> Vec<String>,
    none: &str,
    next_cursor: Option<&str>,
) -> Result<u8> {
    if screen.json {
        screen.raw(answer.text(), Layout::Pretty)?;
    } else if items.is_empty() {
        screen.note(none);
    } else {
        screen.table(head, items.iter().map(row).collect())?;
        if let Some(cursor) = next_cursor {
            screen.note(format!("there are more: --cursor {cursor}"));
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;

    fn labels(job: &JobInfo) -> Vec<&'static str> {
        times(job).into_iter().map(|(label, _)| label).collect()
    }

    #[test]
    fn a_job_that_nobody_took_has_not_started() {
        let at = |minute: u64| At::from_ms(1_800_000_000_000 + minute * 60_000);
        let attempt = |minute| example::attempt(1, at(minute));
        let job = || JobInfo {
            created_at: at(0),
            started_at: Some(at(0)),
            deadline_at: Some(at(59)),
            ..example::job("ready", vec![])
        };
        assert_eq!(labels(&job()), ["created", "deadline"]);
        let cancelled = JobInfo { ended_at: Some(at(1)), ..job() };
        assert_eq!(labels(&cancelled), ["created", "ended", "deadline"], "cancelled before it ran");
        let delayed = JobInfo { started_at: Some(at(5)), ..job() };
        assert_eq!(labels(&delayed), ["created", "runnable", "deadline"], "it was delayed");
        assert_eq!(labels(&JobInfo { started_at: None, deadline_at: None, ..job() }), ["created"], "it is delayed");
        let workflows =
            vec![example::workflow("a", vec![attempt(8), attempt(9)]), example::workflow("b", vec![attempt(7)])];
        let ran = JobInfo { workflows, ..job() };
        assert_eq!(labels(&ran), ["created", "started", "deadline"]);
        assert_eq!(times(&ran)[1].1, at(7), "by the first of all attempts");
    }
}
