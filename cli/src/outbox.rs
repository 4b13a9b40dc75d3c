//! `onward outbox`: the outbox for people who do not write Rust.

use std::time::Duration;

use anyhow::Result;
use onward::outbox::{OnPoison, Outbox, OutboxError, Poller, RowFilter, RowInfo, Supervise, store};
use onward::{Client, NodeAddresses};
use onward_health::{RunError, Supervisor};
use serde_json::{Value, json};

use crate::args::{Global, OutboxCommand, OutboxListArgs, OutboxRowsArgs, OutboxRunArgs, RowsArgs};
use crate::failure::CommandFailure;
use crate::fleet::counted;
use crate::screen::Screen;
use crate::table::Column;
use crate::{client, span, up};

pub fn run(command: OutboxCommand, global: &Global, screen: &Screen) -> Result<u8> {
    if let OutboxCommand::Schema { database, notify } = &command {
        return schema(database, *notify, screen);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            OutboxCommand::Run(args) => publish(*args, global, screen).await,
            OutboxCommand::List(args) => list(args, screen).await,
            OutboxCommand::Replay(args) => change(args, Change::Replay, screen).await,
            OutboxCommand::Drop(args) => change(args, Change::Drop, screen).await,
            OutboxCommand::Schema { .. } => unreachable!("it needs no database, and was handled before"),
        }
    })
}

fn schema(database: &str, notify: bool, screen: &Screen) -> Result<u8> {
    let text = match (database, notify) {
        ("sqlite", true) => {
            let failure = CommandFailure::new("SQLite has no notifications")
                .remedy("leave --notify out; pollers look every --poll");
            return Err(failure.usage().into());
        }
        ("sqlite", false) => store::SQLITE_SCHEMA.to_owned(),
        (_, false) => store::POSTGRES_SCHEMA.to_owned(),
        (_, true) => format!("{}\n{}", store::POSTGRES_SCHEMA, store::POSTGRES_NOTIFY),
    };
    screen.exact(text.trim_end())?;
    Ok(0)
}

/// Opens an outbox that should be there: a name that was mistyped makes nothing.
async fn open_existing(url: &str) -> Result<Outbox, CommandFailure> {
    Outbox::open_existing(url).await.map_err(|error| not_opened(url, error))
}

fn not_opened(url: &str, error: OutboxError) -> CommandFailure {
    let failure = CommandFailure::new("the outbox cannot be opened").why(&error);
    match error {
        OutboxError::Url(_) => failure.usage(),
        OutboxError::Missing(_) => failure.remedy("see that --database names the database that your program writes to"),
        _ if url.starts_with("sqlite:") => {
            failure.remedy("see that the folder is there, and that the file is SQLite's and may be written")
        }
        _ => failure.remedy("see that --database names a database that is up, and a user who may make the table"),
    }
}

async fn publish(args: OutboxRunArgs, global: &Global, screen: &Screen) -> Result<u8> {
    up::log_to_stderr(args.log.log_format, screen);
    let url = &args.database.database;
    let outbox = Outbox::open(url).await.map_err(|error| not_opened(url, error))?;
    let poller = configured(destination(&args.to, global, outbox).await?, &args);
    let mut service = Supervisor::new("onward-outbox").systemd();
    if let Some(address) = &args.probes {
        service = service.probes(address);
    }
    if let Some(file) = &args.ready_file {
        service = service.ready_file(file);
    }
    service.outbox(poller);
    let not_run = |error: &dyn std::fmt::Display| CommandFailure::new("the outbox is not published").why(error);
    service.check().map_err(|error| not_run(&error).usage())?;
    screen.note(format!("onward: publishing the outbox to {}; Ctrl-C ends it", args.to));
    service.run().await.map_err(|error| match error {
        RunError::Eye { .. } => {
            not_run(&error).remedy("give --probes an address of this computer and a free port, such as 127.0.0.1:8081")
        }
        _ => not_run(&error),
    })?;
    Ok(0)
}

/// The destination by the word before the first colon.
async fn destination(to: &str, global: &Global, outbox: Outbox) -> Result<Poller, CommandFailure> {
    match to.split_once(':') {
        Some(("nats", place)) if !place.is_empty() => {
            let url = if place.starts_with("//") { to.to_owned() } else { place.to_owned() };
            let publisher = onward::nats::publisher_at(&url).await;
            let unusable = |error| CommandFailure::new(format!("`{to}` cannot be used")).why(error);
            let publisher =
                publisher.map_err(|error| unusable(error).remedy("write it like nats:127.0.0.1:4222").usage())?;
            Ok(outbox.publish_to(publisher))
        }
        Some(("onward", url)) if !url.is_empty() => {
            let unusable = |error: &dyn std::fmt::Display| {
                CommandFailure::new(format!("`{to}` cannot be used")).why(error).usage()
            };
            let place = match &global.ca {
                Some(file) => {
                    let pem = std::fs::read(file).map_err(|error| unusable(&error))?;
                    NodeAddresses::trusting(url, &pem)
                }
                None => NodeAddresses::at(url),
            };
            let mut place = place.map_err(|error| unusable(&error))?;
            if let Some(token) = client::token_for(url, global.token.as_deref(), None) {
                place = place.with_token(&token);
            }
            Ok(outbox.publish_to(onward::outbox::to_node(Client::at(place))))
        }
        _ => Err(CommandFailure::new(format!("`{to}` is no place to publish to"))
            .remedy("write nats:127.0.0.1:4222 or onward:http://127.0.0.1:7400")
            .usage()),
    }
}

fn configured(poller: Poller, args: &OutboxRunArgs) -> Poller {
    let max = args.max_backoff.unwrap_or((args.freshness / 2).min(Duration::from_secs(30)));
    let mut poller = poller
        .every(args.poll)
        .batch(args.batch)
        .lease(args.lease)
        .max_attempts(args.max_attempts)
        .on_poison(if args.on_poison == "skip" { OnPoison::Skip } else { OnPoison::Hold })
        .oldest(args.oldest)
        .max_parked(args.max_parked)
        .freshness(args.freshness)
        .backoff(max.min(Duration::from_secs(1)), max);
    if let Some(kept_for) = args.keep {
        poller = poller.keep(kept_for);
    }
    if let Some(url) = &args.listen {
        poller = poller.listen(url);
    }
    poller
}

impl RowsArgs {
    fn filter(&self, filter: RowFilter) -> RowFilter {
        let filter = self.topic.iter().fold(filter, RowFilter::topic);
        self.key.iter().fold(filter, RowFilter::key)
    }

    fn is_empty(&self) -> bool {
        self.topic.is_none() && self.key.is_none()
    }
}

async fn list(args: OutboxListArgs, screen: &Screen) -> Result<u8> {
    let outbox = open_existing(&args.database.database).await?;
    let mut filter = args.rows.filter(RowFilter::default()).after(args.cursor);
    if args.parked {
        filter = filter.parked();
    }
    let rows = outbox.list(&filter, args.limit).await.map_err(not_answered)?;
    let next = rows.last().filter(|_| rows.len() == args.limit as usize).map(|row| row.id.to_string());
    if screen.json {
        let rows: Vec<Value> = rows.iter().map(row_json).collect();
        screen.json(&json!({ "rows": rows, "next_cursor": next }))?;
        return Ok(0);
    }
    if rows.is_empty() {
        screen.note(match (args.rows.is_empty(), args.parked) {
            (true, true) => "no parked rows",
            (true, false) => "no rows wait",
            (false, _) => "no rows match",
        });
        return Ok(0);
    }
    let columns = [
        Column::whole("id"),
        Column::whole("state"),
        Column::cut("topic"),
        Column::cut("key"),
        Column::whole("attempts"),
        Column::whole("age"),
        Column::optional("bytes"),
        Column::cut("error"),
    ];
    screen.table(&columns, rows.iter().map(row_cells).collect())?;
    if let Some(next) = next {
        screen.note(format!("there are more: --cursor {next}"));
    }
    Ok(0)
}

fn row_cells(row: &RowInfo) -> Vec<String> {
    vec![
        row.id.to_string(),
        row.state.code().to_owned(),
        row.topic.clone(),
        row.key.clone().unwrap_or_else(|| "-".into()),
        row.attempts.to_string(),
        span::human(row.age),
        row.payload_bytes.to_string(),
        row.last_error.clone().unwrap_or_else(|| "-".into()),
    ]
}

fn row_json(row: &RowInfo) -> Value {
    json!({
        "id": row.id, "dedup": row.dedup.to_string(), "topic": row.topic, "key": row.key, "state": row.state.code(),
        "attempts": row.attempts, "age_s": span::seconds(row.age), "payload_bytes": row.payload_bytes,
        "last_error": row.last_error,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Replay,
    Drop,
}

async fn change(args: OutboxRowsArgs, what: Change, screen: &Screen) -> Result<u8> {
    let (word, done) = match what {
        Change::Replay => ("replay", "replayed"),
        Change::Drop => ("drop", "dropped"),
    };
    match (args.ids.is_empty(), args.rows.is_empty(), args.all) {
        (true, true, false) => {
            return Err(CommandFailure::new(format!("which rows to {word} was not said"))
                .remedy("name rows, or give --topic or --key; --all means every parked one")
                .usage()
                .into());
        }
        (true, _, _) | (false, true, false) if !args.all || args.rows.is_empty() => {}
        _ => {
            return Err(CommandFailure::new("rows are named, or meant all, and others are described")
                .remedy("either name rows, or give --topic or --key, or --all")
                .usage()
                .into());
        }
    }
    let filter = args.rows.filter(RowFilter::ids(args.ids.clone())).parked();
    let outbox = open_existing(&args.database.database).await?;
    if args.dry_run || (args.ids.is_empty() && !args.yes) {
        let found = outbox.list(&filter, onward::outbox::MAX_LISTED).await.map_err(not_answered)?;
        let ids: Vec<i64> = found.iter().map(|row| row.id).collect();
        let more = if ids.len() == onward::outbox::MAX_LISTED as usize { " or more" } else { "" };
        let would = format!("{}{more} would be {done}", counted(ids.len() as u64, "row"));
        if !args.dry_run {
            return Err(CommandFailure::new(would)
                .remedy("say --yes to do it, or --dry-run to only see them")
                .usage()
                .into());
        }
        match screen.json {
            true => screen.json(&json!({ "count": ids.len(), "rows": ids }))?,
            false => screen.line(ids.iter().fold(would, |text, id| text + &format!("\n  {id}")))?,
        }
        return Ok(0);
    }
    let changed = match what {
        Change::Replay => outbox.replay(&filter).await,
        Change::Drop => outbox.drop_parked(&filter).await,
    }
    .map_err(not_answered)?;
    match screen.json {
        true => screen.json(&json!({ "count": changed.len(), "rows": changed }))?,
        false => screen.line(format!("{} {done}", counted(changed.len() as u64, "row")))?,
    }
    let missed: Vec<String> = args.ids.iter().filter(|id| !changed.contains(id)).map(i64::to_string).collect();
    if missed.is_empty() {
        return Ok(0);
    }
    Err(CommandFailure::new(format!("{} not {done}: {}", counted(missed.len() as u64, "row"), missed.join(", ")))
        .why("only a parked row can be; the others were published, are on their way, or were never there")
        .remedy("`onward outbox list --parked` shows those that are there")
        .into())
}

fn not_answered(error: OutboxError) -> CommandFailure {
    CommandFailure::new("the outbox did not answer").why(error)
}
