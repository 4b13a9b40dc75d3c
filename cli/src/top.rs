//! `onward top`: how things are, again and again.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::client::Client;
use crate::read;
use crate::screen::{Screen, safe};
use crate::span;

/// What fits on a screen.
const JOBS: usize = 15;
const NODES: usize = 15;
/// To the upper left corner, and clear from there on.
const AGAIN: &str = "\u{1b}[H\u{1b}[J";

/// On a terminal until Ctrl-C; elsewhere once.
pub fn run(every: Duration, once: bool, client: &Client, screen: &Screen) -> Result<u8> {
    loop {
        let look = Look::take(client)?;
        if screen.json {
            screen.json_line(&look.json())?;
        } else {
            let text = look.text(screen);
            if once || !std::io::stdout().is_terminal() {
                screen.line(text.trim_end())?;
            } else {
                let mut out = std::io::stdout().lock();
                out.write_all(AGAIN.as_bytes())?;
                out.write_all(safe(&text).as_bytes())?;
                out.flush()?;
            }
        }
        if once || !std::io::stdout().is_terminal() {
            return Ok(0);
        }
        std::thread::sleep(every);
    }
}

struct Look {
    status: Value,
    nodes: Value,
    queues: Value,
    jobs: Value,
}

impl Look {
    fn take(client: &Client) -> Result<Self> {
        Ok(Self {
            status: client.get("/status")?,
            nodes: client.get(&format!("/v1/nodes?limit={NODES}"))?,
            queues: client.get("/v1/queues")?,
            jobs: client.get(&format!("/v1/jobs?state=running&limit={JOBS}"))?,
        })
    }

    fn json(&self) -> Value {
        json!({ "status": self.status, "nodes": self.nodes["nodes"], "queues": self.queues["queues"], "running": self.jobs["jobs"] })
    }

    fn text(&self, screen: &Screen) -> String {
        let mut text = String::new();
        let manager = &self.status["manager"];
        let seat = read::text(manager, "seat").unwrap_or("not serving");
        let load = read::word(&self.status["load"], "level");
        let counts = ["open_jobs", "dead_letters"].map(|field| read::plain(&manager[field]));
        let [open, dead] = counts;
        text += &format!("{seat}, load {load}, {open} open jobs, {dead} dead letters; Ctrl-C leaves\n\n");
        text += &screen.table_text(
            &["queue", "state", "ready", "running", "delayed", "waiting"],
            rows(&self.queues, |queue| {
                let state = if read::flag(queue, "paused") { "paused" } else { "open" };
                let count = |field: &str| read::number(&queue["counts"], field).unwrap_or(0).to_string();
                let mut row =
                    vec![read::word(queue, "name").to_owned(), state.into(), read::plain(&queue["ready_workflows"])];
                row.extend(["running", "delayed", "waiting"].map(count));
                row
            }),
        );
        text += &screen.table_text(
            &["worker", "verdict", "held", "slots", "reason"],
            rows(&self.nodes, |node| {
                ["id", "verdict", "held", "slots", "reason"].map(|field| read::plain(&node[field])).into()
            }),
        );
        text += &screen
            .table_text(&["running job", "kind", "progress", "for", "worker", "note"], rows(&self.jobs, job_row));
        text
    }
}

fn rows(answer: &Value, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    read::listed(answer).iter().map(row).collect()
}

fn job_row(job: &Value) -> Vec<String> {
    let attempts = read::items(job, "workflows").iter().flat_map(|workflow| read::items(workflow, "attempts"));
    let last = attempts.last().unwrap_or(&Value::Null);
    let progress = match (read::number(&job["progress"], "done"), read::number(&job["progress"], "total")) {
        (Some(done), Some(total)) => format!("{done}/{total}"),
        (Some(done), None) => done.to_string(),
        _ => "-".into(),
    };
    let since = read::instant(last, "started_at");
    let since = since.map_or_else(|| "-".into(), |at| span::human(read::between(at, jiff::Timestamp::now())));
    vec![
        read::word(job, "id").to_owned(),
        read::word(job, "kind").to_owned(),
        progress,
        since,
        read::plain(&last["worker"]),
        read::text(last, "note").unwrap_or("-").to_owned(),
    ]
}
