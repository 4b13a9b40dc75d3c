//! `onward top`: how things are, again and again.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::answer::{Answer, Layout};
use crate::client::Client;
use crate::fleet;
use crate::read;
use crate::screen::{Screen, Styled};
use crate::span;
use crate::table::Column;

/// What fits on a screen.
const JOBS: usize = 15;
const NODES: usize = 15;
/// To the upper left corner.
const HOME: &str = "\u{1b}[H";
/// What was on the line, or on all lines from here on.
const CLEAR_LINE: &str = "\u{1b}[K";
const CLEAR_BELOW: &str = "\u{1b}[J";

const QUEUES: [Column; 6] = [
    Column::whole("queue"),
    Column::whole("state"),
    Column::whole("ready"),
    Column::whole("running"),
    Column::optional("delayed"),
    Column::optional("waiting"),
];
const WORKERS: [Column; 5] = [
    Column::whole("worker"),
    Column::whole("verdict"),
    Column::whole("held"),
    Column::whole("slots"),
    Column::cut("reason"),
];
const RUNNING: [Column; 6] = [
    Column::whole("running job"),
    Column::cut("kind"),
    Column::whole("progress"),
    Column::whole("for"),
    Column::optional("worker"),
    Column::cut("note"),
];

/// On a terminal until Ctrl-C; elsewhere once.
pub fn run(every: Duration, once: bool, client: &Client, screen: &Screen) -> Result<u8> {
    let goes_on = !once && std::io::stdout().is_terminal();
    loop {
        let look = Look::take(client)?;
        if screen.json {
            screen.raw(&look.json()?, Layout::Line)?;
        } else if goes_on {
            // The size may have changed.
            let screen = Screen::detect(false);
            draw(&look.text(&screen), screen.size().map_or(24, |size| size.lines))?;
        } else {
            screen.print(&look.text(screen))?;
        }
        if !goes_on {
            return Ok(0);
        }
        std::thread::sleep(every);
    }
}

/// As many lines as there are on the screen: one more would scroll, and the next picture would begin in the middle.
fn draw(text: &Styled, lines: usize) -> Result<()> {
    let mut picture = HOME.to_owned();
    let shown: Vec<&str> = text.lines().take(lines.saturating_sub(1)).collect();
    for line in shown {
        picture += &format!("{line}{CLEAR_LINE}\r\n");
    }
    picture += CLEAR_BELOW;
    let mut out = std::io::stdout().lock();
    out.write_all(picture.as_bytes())?;
    out.flush()?;
    Ok(())
}

struct Look {
    status: Answer,
    nodes: Answer,
    queues: Answer,
    jobs: Answer,
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

    fn json(&self) -> Result<Box<RawValue>> {
        let list = |answer: &Answer, name: &str| answer.field(name).unwrap_or(RawValue::NULL).to_owned();
        let all = BTreeMap::from([
            ("status", self.status.text().to_owned()),
            ("nodes", list(&self.nodes, "nodes")),
            ("queues", list(&self.queues, "queues")),
            ("running", list(&self.jobs, "jobs")),
        ]);
        Ok(to_raw_value(&all)?)
    }

    fn text(&self, screen: &Screen) -> Styled {
        let state = fleet::state_of(&self.status);
        let load = read::word(&self.status["load"], "level");
        let count = |field, one| match read::number(&self.status["manager"], field) {
            Some(count) => fleet::counted(count, one),
            None => format!("- {one}s"),
        };
        let (open, dead) = (count("open_jobs", "open job"), count("dead_letters", "dead letter"));
        let head = format!("{state}, load {load}, {open}, {dead}; Ctrl-C leaves\n\n");
        let part = |columns: &[Column], rows: Vec<Vec<String>>| match rows.is_empty() {
            true => Styled::new(&format!("no {}s\n\n", columns[0].name())),
            false => screen.table_text(columns, rows).text("\n\n"),
        };
        Styled::new(&head)
            .styled(&part(&QUEUES, rows(&self.queues, queue_row)))
            .styled(&part(&WORKERS, rows(&self.nodes, node_row)))
            .styled(&part(&RUNNING, rows(&self.jobs, job_row)))
    }
}

fn rows(answer: &Value, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    read::listed(answer).iter().map(row).collect()
}

fn queue_row(queue: &Value) -> Vec<String> {
    let state = if read::flag(queue, "paused") { "paused" } else { "open" };
    let count = |field: &str| read::number(&queue["counts"], field).unwrap_or(0).to_string();
    let mut row = vec![read::word(queue, "name").to_owned(), state.into(), read::plain(&queue["ready_workflows"])];
    row.extend(["running", "delayed", "waiting"].map(count));
    row
}

fn node_row(node: &Value) -> Vec<String> {
    ["id", "verdict", "held", "slots", "reason"].map(|field| read::plain(&node[field])).into()
}

fn job_row(job: &Value) -> Vec<String> {
    let attempts = read::items(job, "workflows").iter().flat_map(|workflow| read::items(workflow, "attempts"));
    let last = attempts.last().unwrap_or(&Value::Null);
    let since = read::instant(last, "started_at");
    let since = since.map_or_else(|| "-".into(), |at| span::human(read::between(at, jiff::Timestamp::now())));
    vec![
        read::word(job, "id").to_owned(),
        read::word(job, "kind").to_owned(),
        read::progress(&job["progress"]),
        since,
        read::plain(&last["worker"]),
        read::text(last, "note").unwrap_or("-").to_owned(),
    ]
}
