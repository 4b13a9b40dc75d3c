//! Queues, nodes, dead letters, status: what an operator looks at and acts on.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::answer::{Answer, Layout};
use crate::args::{DeadLetterCommand, LettersArgs, NodeCommand, PageArgs, QueueCommand};
use crate::client::{Client, escaped, unique_name};
use crate::failure::Failure;
use crate::jobs::done;
use crate::many::{self, Found, Verb};
use crate::read;
use crate::screen::{Screen, Styled};
use crate::span;
use crate::table::Column;

/// What the node takes at once.
const LETTERS_PER_CALL: usize = 1_000;

const NODE_COLUMNS: [Column; 7] = [
    Column::whole("id"),
    Column::whole("verdict"),
    Column::optional("action"),
    Column::whole("held"),
    Column::whole("slots"),
    Column::cut("note"),
    Column::cut("reason"),
];

pub fn queue(command: QueueCommand, client: &Client, screen: &Screen) -> Result<u8> {
    match command {
        QueueCommand::List => {
            let answer = client.get("/v1/queues")?;
            let row = |queue: &Value| {
                let state = if read::flag(queue, "paused") { "paused" } else { "open" };
                let mut row =
                    vec![read::word(queue, "name").to_owned(), state.into(), read::plain(&queue["ready_workflows"])];
                let count = |field| read::number(&queue["counts"], field).unwrap_or(0).to_string();
                row.extend(["running", "delayed", "waiting", "failed"].map(count));
                row
            };
            let head = [
                Column::whole("name"),
                Column::whole("state"),
                Column::whole("ready"),
                Column::whole("running"),
                Column::optional("delayed"),
                Column::optional("waiting"),
                Column::optional("failed"),
            ];
            table(screen, &answer, &head, row, "no queues in use")
        }
        QueueCommand::Pause { name } => {
            let is_known = knows_queue(client, &name);
            let answer = client.post(&format!("/v1/queues/{}/pause", escaped(&name)), &json!({}))?;
            if !is_known {
                screen.note(format!(
                    "there is no job in queue `{name}`: is the name right? `onward queue list` shows the queues in use"
                ));
            }
            done(
                screen,
                &answer,
                format!("paused {name}; running jobs go on. `onward queue resume {name}` opens it again"),
            )
        }
        QueueCommand::Resume { name } => {
            let answer = client.post(&format!("/v1/queues/{}/resume", escaped(&name)), &json!({}))?;
            done(screen, &answer, format!("resumed {name}"))
        }
    }
}

/// Whether anything is known of it. One that cannot be asked about is not called unknown.
fn knows_queue(client: &Client, name: &str) -> bool {
    let Ok(queues) = client.get("/v1/queues") else { return true };
    read::items(&queues, "queues").iter().any(|queue| read::text(queue, "name") == Some(name))
}

pub fn node(command: NodeCommand, client: &Client, screen: &Screen) -> Result<u8> {
    match command {
        NodeCommand::List(page) => {
            let answer = client.get(&format!("/v1/nodes?{}", query(&page)))?;
            table(screen, &answer, &NODE_COLUMNS, node_row, "no nodes are known")
        }
        NodeCommand::Show { id } => {
            let node = client.get(&format!("/v1/nodes/{}", escaped(&id)))?;
            fields(screen, &node)
        }
        NodeCommand::Drain { id } => {
            let answer = client.post(&format!("/v1/nodes/{}/drain", escaped(&id)), &json!({}))?;
            done(screen, &answer, format!("{id} gets no more work; it may finish what it holds"))
        }
        NodeCommand::Undrain { id } => {
            let answer = client.post(&format!("/v1/nodes/{}/undrain", escaped(&id)), &json!({}))?;
            done(screen, &answer, format!("{id} gets work again"))
        }
    }
}

pub fn datacenters(client: &Client, screen: &Screen) -> Result<u8> {
    let answer = client.get("/v1/datacenters")?;
    let fields = ["name", "health", "workers", "free_slots", "reason"];
    let head = [
        Column::whole("name"),
        Column::whole("health"),
        Column::whole("workers"),
        Column::whole("free slots"),
        Column::cut("reason"),
    ];
    let row = |one: &Value| fields.map(|field| read::plain(&one[field])).into();
    table(screen, &answer, &head, row, "no datacenters are known")
}

fn node_row(node: &Value) -> Vec<String> {
    let notes = ["drained", "probation", "held_by_hold"];
    let notes: Vec<&str> = notes.into_iter().filter(|note| read::flag(node, note)).collect();
    vec![
        read::word(node, "id").to_owned(),
        read::word(node, "verdict").to_owned(),
        read::word(node, "action").to_owned(),
        read::plain(&node["held"]),
        read::plain(&node["slots"]),
        if notes.is_empty() { "-".into() } else { notes.join(",") },
        read::word(node, "reason").to_owned(),
    ]
}

pub fn dead_letter(command: DeadLetterCommand, client: &Client, screen: &Screen) -> Result<u8> {
    match command {
        DeadLetterCommand::List(page) => {
            let answer = client.get(&format!("/v1/dead-letters?{}", query(&page)))?;
            let row = |job: &Value| {
                ["id", "kind", "queue", "ended_at", "reason"].map(|field| read::word(job, field).to_owned())
            };
            table(
                screen,
                &answer,
                &[
                    Column::whole("id"),
                    Column::cut("kind"),
                    Column::optional("queue"),
                    Column::optional("ended"),
                    Column::cut("reason"),
                ],
                |job| row(job).into(),
                "no dead letters",
            )
        }
        DeadLetterCommand::Replay(args) => {
            let ids = match letters(&args.letters, Verb::Replay, client, screen)? {
                ControlFlow::Continue(ids) => ids,
                ControlFlow::Break(code) => return Ok(code),
            };
            let request_id = unique_name("cli-")?;
            let line = |one: &Value| match read::text(one, "id") {
                Some(new) => Ok(format!("{} is submitted again as {new}", read::word(one, "job"))),
                None => Err(format!("{}: {}", read::word(one, "job"), read::word(&one["problem"], "detail"))),
            };
            let mut answers = Vec::new();
            for some in ids.chunks(LETTERS_PER_CALL) {
                let body = json!({ "jobs": some, "request_id": request_id, "from": args.from });
                let answer = client.post("/v1/dead-letters/replay", &body)?;
                answers.extend_from_slice(read::items(&answer, "jobs"));
            }
            each(screen, &answers, line, "could not be replayed")
        }
        DeadLetterCommand::Drop(args) => {
            let ids = match letters(&args, Verb::Drop, client, screen)? {
                ControlFlow::Continue(ids) => ids,
                ControlFlow::Break(code) => return Ok(code),
            };
            let line = |one: &Value| match read::flag(one, "dropped") {
                true => Ok(format!("dropped {}", read::word(one, "job"))),
                false => Err(format!("{}: it is no dead letter", read::word(one, "job"))),
            };
            let mut answers = Vec::new();
            for some in ids.chunks(LETTERS_PER_CALL) {
                let answer = client.post("/v1/dead-letters/drop", &json!({ "jobs": some }))?;
                answers.extend_from_slice(read::items(&answer, "jobs"));
            }
            each(screen, &answers, line, "could not be dropped")
        }
    }
}

/// Those that were named, or those that match and were confirmed; or the exit code if nothing is to be done.
fn letters(args: &LettersArgs, verb: Verb, client: &Client, screen: &Screen) -> Result<ControlFlow<u8, Vec<String>>> {
    args.which.beside(args.ids.first(), &args.confirm)?;
    let named = whole_ids(client, &args.ids)?;
    let found = match named.is_empty() {
        true => many::dead_letters(&args.which, &args.confirm, verb, client)?,
        false if args.confirm.dry_run => Found::of(many::fitting(&named, verb, client)?),
        false => return Ok(ControlFlow::Continue(named)),
    };
    Ok(match many::confirmed(&found, verb, &args.confirm, screen)? {
        ControlFlow::Continue(()) => ControlFlow::Continue(found.into_ids()),
        ControlFlow::Break(code) => ControlFlow::Break(code),
    })
}

fn whole_ids(client: &Client, ids: &[String]) -> Result<Vec<String>, Failure> {
    ids.iter().map(|id| client.whole_id(id)).collect()
}

/// One answer per job; those that were refused are told at the end, and make the command fail.
fn each(screen: &Screen, jobs: &[Value], line: impl Fn(&Value) -> Result<String, String>, what: &str) -> Result<u8> {
    let told: Vec<_> = jobs.iter().map(line).collect();
    if screen.json {
        screen.json(&json!({ "jobs": jobs }))?;
    } else {
        for line in told.iter().flatten() {
            screen.line(line)?;
        }
    }
    let refused: Vec<String> = told.into_iter().filter_map(Result::err).collect();
    if refused.is_empty() {
        return Ok(0);
    }
    let failure = Failure::new(format!("{} {what}", refused.len())).why(refused.join("\n"));
    Err(failure.remedy("`onward dead-letter list` shows those that are there").into())
}

pub fn query(page: &PageArgs) -> String {
    let cursor = page.cursor.as_deref().map(|cursor| format!("&cursor={}", escaped(cursor)));
    format!("limit={}{}", page.limit, cursor.unwrap_or_default())
}

pub fn status(client: &Client, screen: &Screen) -> Result<u8> {
    let status = client.get("/status")?;
    if screen.json {
        screen.raw(status.text(), Layout::Pretty)?;
        return Ok(0);
    }
    let manager = &status["manager"];
    let mut lines = vec![("state", Styled::default().word(screen, state_of(&status)))];
    if let Some(trouble) = read::text(&status, "trouble") {
        lines.push(("trouble", Styled::new(trouble)));
    }
    let judged = |one: &Value, field: &str| {
        let word = Styled::default().word(screen, read::word(one, field));
        word.text(&format!(" ({})", read::word(one, "reason")))
    };
    if !manager.is_null() {
        lines.push(("verdict", judged(manager, "verdict")));
    }
    lines.push(("load", judged(&status["load"], "level")));
    if !manager.is_null() {
        let count = |field| read::plain(&manager[field]);
        let jobs = format!(
            "{} open, {} archived, {}",
            count("open_jobs"),
            count("archived_jobs"),
            counted(read::number(manager, "dead_letters").unwrap_or(0), "dead letter"),
        );
        lines.push(("jobs", Styled::new(&jobs)));
        lines.push(("workers", Styled::new(&count("workers"))));
        for schedule in read::items(manager, "failing_schedules") {
            let (name, failures) = (read::word(schedule, "name"), read::plain(&schedule["failures"]));
            let text = format!("{name} failed {failures} times in a row; `onward schedule show {name}` shows its runs");
            lines.push(("schedule", Styled::new(&text)));
        }
        lines.push(("seat", Styled::new(&format!("{}, term {}", read::word(manager, "seat"), count("term")))));
    }
    for one in status["loops"].as_array().into_iter().flatten() {
        lines.push(("loop", loop_line(one, screen)));
    }
    let field = |name| Styled::new(&read::plain(&status[name]));
    let since = read::instant(&status, "started_at").map(|at| span::human(read::between(at, Timestamp::now())));
    lines
        .push(("started", field("started_at").text(&since.map(|since| format!(" ({since} ago)")).unwrap_or_default())));
    lines.extend([("listens", field("listen")), ("data", field("data")), ("version", field("version"))]);
    for (name, text) in lines {
        screen.print(&Styled::new(&format!("{name:8}  ")).styled(&text))?;
    }
    Ok(0)
}

/// A loop's name, its state, why it is in it and for how long.
fn loop_line(one: &Value, screen: &Screen) -> Styled {
    let since = span::human(Duration::from_millis(read::number(one, "since_ms").unwrap_or(0)));
    let error = read::text(one, "error").map(|error| format!(": {error}")).unwrap_or_default();
    let about = format!(" ({}) for {since}{error}", read::word(one, "reason"));
    let name = format!("{:10} ", read::word(one, "name"));
    Styled::new(&name).styled(&Styled::default().word(screen, read::word(one, "state"))).text(&about)
}

/// What the node does, in a word. One that drains still holds its seat.
pub fn state_of(status: &Value) -> &str {
    if read::flag(status, "draining") {
        return "draining";
    }
    read::text(&status["manager"], "seat").unwrap_or("not serving")
}

/// `1 dead letter`, `2 dead letters`.
pub fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// The node writes the file on its own disk; a relative path would mean another place there.
pub fn backup(file: &Path, client: &Client, screen: &Screen) -> Result<u8> {
    let file = std::path::absolute(file)?;
    let path = file.to_str().ok_or_else(|| {
        Failure::new(format!("{} cannot be the path of a backup", file.display()))
            .why("it is not UTF-8, as everything in JSON has to be")
            .remedy("name a file whose path is, like /backups/monday.backup")
            .usage()
    })?;
    let answer = client.post("/v1/backup", &json!({ "path": path }))?;
    let count = |field| read::plain(&answer[field]);
    let line = format!("wrote {} ({} bytes) on the node's disk", count("path"), count("bytes"));
    let damaged = &answer["damaged"];
    if let Some(contents) = damaged["contents"].as_u64() {
        const NAMED: usize = 10;
        let jobs: Vec<_> = read::items(damaged, "jobs").iter().filter_map(Value::as_str).take(NAMED).collect();
        let more = match damaged["jobs_total"].as_u64().unwrap_or(0).saturating_sub(jobs.len() as u64) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        screen.note(format!(
            "onward: {contents} payloads or results over 4 KiB cannot be read on the node, nor from this backup; jobs: \
             {}{more}. The rest is whole; `onward restore` wants --accept-loss for it",
            jobs.join(", ")
        ));
    }
    done(screen, &answer, line)
}

pub fn table(
    screen: &Screen,
    answer: &Answer,
    head: &[Column],
    row: impl Fn(&Value) -> Vec<String>,
    none: &str,
) -> Result<u8> {
    let items = read::listed(answer);
    if screen.json {
        screen.raw(answer.text(), Layout::Pretty)?;
    } else if items.is_empty() {
        screen.note(none);
    } else {
        screen.table(head, items.iter().map(row).collect())?;
        if let Some(cursor) = read::text(answer, "next_cursor") {
            screen.note(format!("there are more: --cursor {cursor}"));
        }
    }
    Ok(0)
}

/// Every field with its value, one a line, nested names joined by dots.
fn fields(screen: &Screen, value: &Answer) -> Result<u8> {
    if screen.json {
        screen.raw(value.text(), Layout::Pretty)?;
        return Ok(0);
    }
    let mut all = Vec::new();
    flatten("", value, &mut all);
    let width = all.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, text) in all {
        screen.print(&Styled::new(&format!("{name:width$}  ")).word(screen, &text))?;
    }
    Ok(0)
}

fn flatten(name: &str, value: &Value, all: &mut Vec<(String, String)>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, all);
            }
        }
        other => all.push((name.to_owned(), read::plain(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_fields_get_dotted_names() {
        let mut all = Vec::new();
        flatten("", &json!({"a": {"b": 1, "c": null}, "d": "x"}), &mut all);
        let all: Vec<String> = all.into_iter().map(|(name, text)| format!("{name}={text}")).collect();
        assert_eq!(all, ["a.b=1", "a.c=-", "d=x"]);
    }
}
