//! Queues, nodes, dead letters, status: what an operator looks at and acts on.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use onward::JobInfo;
use onward::client::JobFilter;
use onward_api::dead_letter::{DropAnswer, MAX_JOBS as LETTERS_PER_CALL, ReplayAnswer};
use onward_api::node::{Datacenter, Node, NodeGossip};
use onward_api::queue::Queue;
use onward_api::status::LoopStatus;
use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{Layout, PrintableAnswer, harmless};
use crate::args::{DeadLetterCommand, LettersArgs, NodeCommand, QueueCommand};
use crate::client::{NodeClient, unique_name};
use crate::failure::CommandFailure;
use crate::jobs::{done, table};
use crate::many::{self, BulkVerb, MatchingJobs};
use crate::read;
use crate::screen::{Screen, StyledText};
use crate::span;
use crate::table::Column;

const NODE_COLUMNS: [Column; 8] = [
    Column::whole("id"),
    Column::whole("role"),
    Column::whole("verdict"),
    Column::optional("action"),
    Column::whole("held"),
    Column::whole("slots"),
    Column::cut("note"),
    Column::cut("reason"),
];

pub fn queue(command: QueueCommand, client: &NodeClient, screen: &Screen) -> Result<u8> {
    match command {
        QueueCommand::List => {
            let answer = client.ask(async |node| node.queues().await)?;
            let head = [
                Column::whole("name"),
                Column::whole("state"),
                Column::whole("ready"),
                Column::whole("running"),
                Column::optional("delayed"),
                Column::optional("waiting"),
                Column::optional("failed"),
            ];
            let row = |queue: &Queue| queue_row(queue, &["running", "delayed", "waiting", "failed"]);
            table(screen, &answer, &head, &answer.queues, row, "no queues in use", None)
        }
        QueueCommand::Pause { name } => {
            let is_known = knows_queue(client, &name);
            let answer = client.ask(async |node| node.pause_queue(&name).await)?;
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
            let answer = client.ask(async |node| node.resume_queue(&name).await)?;
            done(screen, &answer, format!("resumed {name}"))
        }
    }
}

/// A queue with the counts of some states.
pub fn queue_row(queue: &Queue, states: &[&str]) -> Vec<String> {
    let state = if queue.paused { "paused" } else { "open" };
    let mut row = vec![queue.name.clone(), state.into(), queue.ready_workflows.to_string()];
    row.extend(states.iter().map(|state| queue.count(state).to_string()));
    row
}

/// Whether anything is known of the queue. One that cannot be asked about is not called unknown.
fn knows_queue(client: &NodeClient, name: &str) -> bool {
    let Ok(answer) = client.run(client.node().queues()) else { return true };
    answer.queues.iter().any(|queue| queue.name == name)
}

pub fn node(command: NodeCommand, client: &NodeClient, screen: &Screen) -> Result<u8> {
    match command {
        NodeCommand::List(page) => {
            let page = page.page();
            let answer = client.ask(async |node| node.nodes(&page).await)?;
            let cursor = answer.next_cursor.as_deref();
            table(screen, &answer, &NODE_COLUMNS, &answer.nodes, node_row, "no nodes are known", cursor)
        }
        NodeCommand::Show { id } => fields(screen, &client.ask(async |node| node.node(&id).await)?),
        NodeCommand::Drain { id } => {
            let answer = client.ask(async |node| node.drain_node(&id).await)?;
            done(screen, &answer, format!("{id} gets no more work; it may finish what it holds"))
        }
        NodeCommand::Undrain { id } => {
            let answer = client.ask(async |node| node.undrain_node(&id).await)?;
            done(screen, &answer, format!("{id} gets work again"))
        }
    }
}

pub fn datacenters(client: &NodeClient, screen: &Screen) -> Result<u8> {
    let answer = client.ask(async |node| node.datacenters().await)?;
    let head = [
        Column::whole("name"),
        Column::whole("health"),
        Column::whole("workers"),
        Column::whole("free slots"),
        Column::cut("reason"),
    ];
    let row = |one: &Datacenter| {
        let (workers, free) = (one.workers.to_string(), one.free_slots.to_string());
        vec![one.name.to_string(), one.health.to_string(), workers, free, one.reason.to_string()]
    };
    table(screen, &answer, &head, &answer.datacenters, row, "no datacenters are known", None)
}

fn node_row(node: &Node) -> Vec<String> {
    let notes = [("drained", node.drained), ("probation", node.probation), ("held_by_hold", node.held_by_hold)];
    let mut notes: Vec<String> = notes.into_iter().filter(|(_, is_so)| *is_so).map(|(note, _)| note.into()).collect();
    notes.extend(node.gossip.iter().flat_map(gossip_notes));
    vec![
        node.id.clone(),
        node.role.to_string(),
        node.health.verdict.to_string(),
        node.health.action.to_string(),
        node.held.to_string(),
        node.slots.to_string(),
        if notes.is_empty() { "-".into() } else { notes.join(",") },
        node.health.reason.to_string(),
    ]
}

/// Notes on what gossip knows: who leads, who is missing, and who contradicts whom.
fn gossip_notes(gossip: &NodeGossip) -> Vec<String> {
    let mut notes = Vec::new();
    if gossip.leads {
        notes.push("leads".to_owned());
    }
    if &*gossip.state != "alive" {
        notes.push(gossip.state.to_string());
    }
    if !gossip.doubted_by.is_empty() {
        notes.push(format!("doubted by {}, trusted by {}", gossip.doubted_by.join("+"), gossip.trusted_by.join("+")));
    }
    notes
}

pub fn dead_letter(command: DeadLetterCommand, client: &NodeClient, screen: &Screen) -> Result<u8> {
    match command {
        DeadLetterCommand::List(page) => {
            let page = page.page();
            let answer = client.ask(async |node| node.dead_letters(&JobFilter::default(), &page).await)?;
            let row = |job: &JobInfo| {
                let (kind, reason) = (read::word(job.kind.as_deref()), read::word(job.reason.as_deref()));
                vec![job.id.clone(), kind.into(), job.queue.clone(), read::instant(job.ended_at), reason.into()]
            };
            let head = [
                Column::whole("id"),
                Column::cut("kind"),
                Column::optional("queue"),
                Column::optional("ended"),
                Column::cut("reason"),
            ];
            let cursor = answer.next_cursor.as_deref();
            table(screen, &answer, &head, &answer.dead_letters, row, "no dead letters", cursor)
        }
        DeadLetterCommand::Replay(args) => {
            let ids = match letters(&args.letters, BulkVerb::Replay, client, screen)? {
                ControlFlow::Continue(ids) => ids,
                ControlFlow::Break(code) => return Ok(code),
            };
            let request_id = unique_name("cli-")?;
            let line = |one: &ReplayAnswer| match (&one.id, &one.problem) {
                (Some(new), _) => Ok(format!("{} is submitted again as {new}", one.job)),
                (None, problem) => {
                    Err(format!("{}: {}", one.job, read::word(problem.as_ref().map(|problem| &*problem.detail))))
                }
            };
            let mut answers = Vec::new();
            for some in ids.chunks(LETTERS_PER_CALL) {
                let answer = client.ask(async |node| node.replay(some, args.from, &request_id).await)?;
                answers.extend_from_slice(&answer.jobs);
            }
            each(screen, &answers, line, "could not be replayed")
        }
        DeadLetterCommand::Drop(args) => {
            let ids = match letters(&args, BulkVerb::Drop, client, screen)? {
                ControlFlow::Continue(ids) => ids,
                ControlFlow::Break(code) => return Ok(code),
            };
            let line = |one: &DropAnswer| match one.dropped {
                true => Ok(format!("dropped {}", one.job)),
                false => Err(format!("{}: it is no dead letter", one.job)),
            };
            let mut answers = Vec::new();
            for some in ids.chunks(LETTERS_PER_CALL) {
                let answer = client.ask(async |node| node.drop_dead_letters(some).await)?;
                answers.extend_from_slice(&answer.jobs);
            }
            each(screen, &answers, line, "could not be dropped")
        }
    }
}

/// Dead letters that were named, or those that match and were confirmed; or the exit code if nothing is to be done.
fn letters(
    args: &LettersArgs,
    verb: BulkVerb,
    client: &NodeClient,
    screen: &Screen,
) -> Result<ControlFlow<u8, Vec<String>>> {
    args.which.beside(args.ids.first(), &args.confirm)?;
    let named = whole_ids(client, &args.ids)?;
    let found = match named.is_empty() {
        true => many::dead_letters(&args.which, &args.confirm, verb, client)?,
        false if args.confirm.dry_run => MatchingJobs::of(many::fitting(&named, verb, client)?),
        false => return Ok(ControlFlow::Continue(named)),
    };
    Ok(match many::confirmed(&found, verb, &args.confirm, screen)? {
        ControlFlow::Continue(()) => ControlFlow::Continue(found.into_ids()),
        ControlFlow::Break(code) => ControlFlow::Break(code),
    })
}

fn whole_ids(client: &NodeClient, ids: &[String]) -> Result<Vec<String>, CommandFailure> {
    ids.iter().map(|id| client.whole_id(id)).collect()
}

/// Prints one answer per job; refused jobs are told at the end, and make the command fail.
fn each<T: Serialize>(
    screen: &Screen,
    jobs: &[T],
    line: impl Fn(&T) -> Result<String, String>,
    what: &str,
) -> Result<u8> {
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
    let failure = CommandFailure::new(format!("{} {what}", refused.len())).why(refused.join("\n"));
    Err(failure.remedy("`onward dead-letter list` shows those that are there").into())
}

pub fn status(client: &NodeClient, screen: &Screen) -> Result<u8> {
    let status = client.ask(async |node| node.status().await)?;
    if screen.json {
        screen.raw(status.text(), Layout::Pretty)?;
        return Ok(0);
    }
    let mut lines = vec![("state", StyledText::default().word(screen, status.state()))];
    if let Some(trouble) = &status.trouble {
        lines.push(("trouble", StyledText::new(trouble)));
    }
    let judged = |word: &str, reason: &str| {
        StyledText::default().word(screen, word).text(&format!(" ({})", read::word(Some(reason))))
    };
    if let Some(manager) = &status.manager {
        lines.push(("verdict", judged(&manager.verdict, &manager.reason)));
    }
    lines.push(("load", judged(&status.load.level, &status.load.reason)));
    if let Some(manager) = &status.manager {
        let archived = manager.archived_jobs.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let dead = counted(manager.dead_letters as u64, "dead letter");
        lines.push(("jobs", StyledText::new(&format!("{} open, {archived} archived, {dead}", manager.open_jobs))));
        lines.push(("workers", StyledText::new(&manager.workers.to_string())));
        for schedule in &manager.failing_schedules {
            let (name, failures) = (&schedule.name, schedule.failures);
            let what = match &*schedule.reason {
                "not_fresh" => "has not succeeded in time".to_owned(),
                "never_succeeded" => "was due and has never succeeded".to_owned(),
                "timing_unknown" => "is never due, because the node does not know its timing".to_owned(),
                _ => format!("failed {failures} times in a row"),
            };
            let text = format!("{name} {what}; `onward schedule show {name}` shows its runs");
            lines.push(("schedule", StyledText::new(&text)));
        }
        lines.push(("seat", StyledText::new(&format!("{}, term {}", manager.seat, manager.term))));
    }
    lines.extend(status.loops.iter().map(|one| ("loop", loop_line(one, screen))));
    let since = span::human(read::between(status.started_at, read::now()));
    lines.push(("started", StyledText::new(&format!("{} ({since} ago)", status.started_at))));
    let storage = match status.synchronous_standbys.as_deref() {
        Some("") => format!("{}, without a standby", status.storage),
        Some(standbys) => format!("{}, commits wait for {standbys}", status.storage),
        None => status.storage.clone(),
    };
    let rest = [
        ("listens", status.listen.as_str()),
        ("data", status.data.as_str()),
        ("storage", storage.as_str()),
        ("version", status.version.as_str()),
    ];
    lines.extend(rest.map(|(name, text)| (name, StyledText::new(text))));
    for (name, text) in lines {
        screen.print(&StyledText::new(&format!("{name:8}  ")).styled(&text))?;
    }
    Ok(0)
}

/// A loop's name, its state, why it is in it and for how long.
fn loop_line(one: &LoopStatus, screen: &Screen) -> StyledText {
    let since = span::human(Duration::from_millis(one.since_ms));
    let error = one.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    let about = format!(" ({}) for {since}{error}", one.reason);
    let name = format!("{:10} ", one.name);
    StyledText::new(&name).styled(&StyledText::default().word(screen, &one.state)).text(&about)
}

/// `1 dead letter`, `2 dead letters`.
pub fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

pub fn transfer_leader(to: Option<&str>, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let answer = client.ask(async |node| node.transfer_leader(to).await)?;
    let line = format!("`{}` leads from now on", answer.leader);
    done(screen, &answer, line)
}

/// The node writes the file on its own disk; a relative path would mean another place there.
pub fn backup(file: &Path, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let file = std::path::absolute(file)?;
    let path = file.to_str().ok_or_else(|| {
        CommandFailure::new(format!("{} cannot be the path of a backup", file.display()))
            .why("it is not UTF-8, as everything in JSON has to be")
            .remedy("name a file whose path is, like /backups/monday.backup")
            .usage()
    })?;
    let answer = client.ask(async |node| node.back_up(path).await)?;
    if let Some(damaged) = &answer.damaged {
        const NAMED: usize = 10;
        let jobs: Vec<&str> = damaged.jobs.iter().take(NAMED).map(String::as_str).collect();
        let more = match damaged.jobs_total.saturating_sub(jobs.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        screen.note(format!(
            "onward: {} payloads or results over 4 KiB cannot be read on the node, nor from this backup; jobs: \
             {}{more}. The rest is whole; `onward restore` wants --accept-loss for it",
            damaged.contents,
            jobs.join(", ")
        ));
    }
    let line = format!("wrote {} ({} bytes) on the node's disk", answer.path, answer.bytes);
    done(screen, &answer, line)
}

/// Every field with its value, one a line, nested names joined by dots.
fn fields<T>(screen: &Screen, answer: &PrintableAnswer<T>) -> Result<u8> {
    if screen.json {
        screen.raw(answer.text(), Layout::Pretty)?;
        return Ok(0);
    }
    let mut all = Vec::new();
    flatten("", &harmless(answer.text())?, &mut all);
    let width = all.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, text) in all {
        screen.print(&StyledText::new(&format!("{name:width$}  ")).word(screen, &text))?;
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

    #[test]
    fn notes_say_who_leads_who_is_missing_and_who_contradicts_whom() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        /// State, whether it leads, who doubts and who trusts it, and the notes.
        type Row = (&'static str, bool, &'static [&'static str], &'static [&'static str], &'static str);
        let table: [Row; 5] = [
            ("alive", false, &[], &[], ""),
            ("alive", true, &[], &[], "leads"),
            ("down", false, &[], &[], "down"),
            ("down", true, &[], &[], "leads,down"),
            ("suspect", false, &["m1", "m2"], &["m3"], "suspect,doubted by m1+m2, trusted by m3"),
        ];
        for (state, leads, doubted_by, trusted_by, notes) in table {
            let gossip = NodeGossip {
                state: state.into(),
                state_for_ms: 0,
                heard_ago_ms: None,
                leads,
                overload: "normal".into(),
                workers: 0,
                throughput: 0,
                expected_throughput: 0,
                doubted_by: names(doubted_by),
                trusted_by: names(trusted_by),
            };
            assert_eq!(gossip_notes(&gossip).join(","), notes);
        }
    }
}
