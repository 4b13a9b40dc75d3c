//! `onward top`: how things are, again and again.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use onward::JobInfo;
use onward::client::{JobFilter, JobList, Page};
use onward_api::node::{Node, NodeList};
use onward_api::queue::{Queue, QueueList};
use onward_api::status::Status;
use serde_json::value::{RawValue, to_raw_value};

use crate::answer::{Layout, PrintableAnswer};
use crate::client::NodeClient;
use crate::fleet;
use crate::read;
use crate::screen::{Screen, StyledText};
use crate::span;
use crate::table::Column;

/// The number of jobs that fit on a screen.
const JOBS: usize = 15;
const NODES: usize = 15;
/// Moves to the upper left corner.
const HOME: &str = "\u{1b}[H";
/// Clears the rest of the line; below, all lines from here on.
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

/// Shows the node: on a terminal until Ctrl-C; elsewhere once.
pub fn run(every: Duration, once: bool, client: &NodeClient, screen: &Screen) -> Result<u8> {
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

/// Draws as many lines as there are on the screen: one more would scroll, and the next picture would begin in the
/// middle.
fn draw(text: &StyledText, lines: usize) -> Result<()> {
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
    status: PrintableAnswer<Status>,
    nodes: PrintableAnswer<NodeList>,
    queues: PrintableAnswer<QueueList>,
    jobs: PrintableAnswer<JobList>,
}

impl Look {
    fn take(client: &NodeClient) -> Result<Self> {
        let first = |limit| Page { limit, cursor: None };
        let running = JobFilter { state: Some("running".into()), ..JobFilter::default() };
        Ok(Self {
            status: client.ask(async |node| node.status().await)?,
            nodes: client.ask(async |node| node.nodes(&first(NODES)).await)?,
            queues: client.ask(async |node| node.queues().await)?,
            jobs: client.ask(async |node| node.jobs(&running, &first(JOBS)).await)?,
        })
    }

    fn json(&self) -> Result<Box<RawValue>> {
        fn list<T>(answer: &PrintableAnswer<T>, name: &str) -> Box<RawValue> {
            answer.field(name).unwrap_or(RawValue::NULL).to_owned()
        }
        let all = BTreeMap::from([
            ("status", self.status.text().to_owned()),
            ("nodes", list(&self.nodes, "nodes")),
            ("queues", list(&self.queues, "queues")),
            ("running", list(&self.jobs, "jobs")),
        ]);
        Ok(to_raw_value(&all)?)
    }

    fn text(&self, screen: &Screen) -> StyledText {
        let (state, load) = (self.status.state(), &self.status.load.level);
        let manager = self.status.manager.as_ref();
        let count = |count: Option<usize>, one| match count {
            Some(count) => fleet::counted(count as u64, one),
            None => format!("- {one}s"),
        };
        let open = count(manager.map(|manager| manager.open_jobs), "open job");
        let dead = count(manager.map(|manager| manager.dead_letters), "dead letter");
        let head = format!("{state}, load {load}, {open}, {dead}; Ctrl-C leaves\n\n");
        let part = |columns: &[Column], rows: Vec<Vec<String>>| match rows.is_empty() {
            true => StyledText::new(&format!("no {}s\n\n", columns[0].name())),
            false => screen.table_text(columns, rows).text("\n\n"),
        };
        StyledText::new(&head)
            .styled(&part(&QUEUES, self.queues.queues.iter().map(queue_row).collect()))
            .styled(&part(&WORKERS, self.nodes.nodes.iter().map(node_row).collect()))
            .styled(&part(&RUNNING, self.jobs.jobs.iter().map(job_row).collect()))
    }
}

fn queue_row(queue: &Queue) -> Vec<String> {
    fleet::queue_row(queue, &["running", "delayed", "waiting"])
}

fn node_row(node: &Node) -> Vec<String> {
    let (held, slots) = (node.held.to_string(), node.slots.to_string());
    vec![node.id.clone(), node.health.verdict.to_string(), held, slots, node.health.reason.to_string()]
}

fn job_row(job: &JobInfo) -> Vec<String> {
    let last = job.attempts().last();
    let since = last.map(|last| span::human(read::between(last.started_at, read::now())));
    let note = last.and_then(|last| last.running.as_ref()?.note.as_deref());
    vec![
        job.id.clone(),
        read::word(job.kind.as_deref()).to_owned(),
        job.progress.to_string(),
        since.unwrap_or_else(|| "-".into()),
        read::word(last.map(|last| &*last.worker)).to_owned(),
        note.unwrap_or("-").to_owned(),
    ]
}
