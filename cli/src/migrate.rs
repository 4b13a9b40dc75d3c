//! `onward migrate`: an embedded node's data into PostgreSQL. No node runs meanwhile.

use std::time::{Duration, Instant};

use anyhow::Result;
use onward_node::storage::{DatabaseUrl, MigrateError, MigrationProgress, MigrationSummary, migrate};
use serde_json::json;

use crate::args::MigrateArgs;
use crate::failure::CommandFailure;
use crate::screen::Screen;
use crate::status_line::{LineStatus, StatusLine};

/// The interval at which the line is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);

pub fn run(args: &MigrateArgs, screen: &Screen) -> Result<u8> {
    let url: DatabaseUrl = args.to.parse().map_err(|error| {
        let remedy = "write it like postgres://USER:PASSWORD@HOST/DATABASE";
        CommandFailure::new("--to is no address of a database").why(error).remedy(remedy).usage()
    })?;
    let (began, mut drawn, mut line) = (Instant::now(), None::<Instant>, StatusLine::default());
    let moved = migrate(&args.from, &url, &args.datacenter, |MigrationProgress { done, total }| {
        if screen.bars && (done == total || drawn.is_none_or(|at| at.elapsed() >= DRAW_EVERY)) {
            drawn = Some(Instant::now());
            let (done, total) = (Some(done), Some(total));
            line.draw(&LineStatus {
                what: "migrating".into(),
                done,
                total,
                lasts: began.elapsed(),
                more: String::new(),
            });
        }
    });
    line.clear();
    let moved = moved.map_err(|error| not_moved(&error, args))?;
    tell(&moved, &url, args, screen)?;
    Ok(0)
}

fn tell(moved: &MigrationSummary, url: &DatabaseUrl, args: &MigrateArgs, screen: &Screen) -> Result<()> {
    let MigrationSummary { last_event, archived_jobs, outputs, tokens, missing, was_there } = moved;
    if screen.json {
        return screen.json(&json!({
            "to": url.to_string(), "last_event": last_event, "archived_jobs": archived_jobs, "outputs": outputs,
            "tokens": tokens, "missing": missing, "was_there": was_there,
        }));
    }
    match was_there {
        true => screen.line(format!("everything was in {url} already"))?,
        false => screen.line(format!(
            "migrated into {url}: the log up to event {last_event}, {archived_jobs} archived jobs, {outputs} outputs, {tokens} tokens"
        ))?,
    }
    if *missing > 0 {
        screen
            .line(format!("{missing} payloads or results were missing or damaged in the folder, and are so still"))?;
    }
    // The address as it was given has the password in it.
    screen.line(format!("  ONWARD_STORAGE=… onward up --data {}", args.from.display()))
}

fn not_moved(error: &MigrateError, args: &MigrateArgs) -> CommandFailure {
    let failure = CommandFailure::new(format!("{} was not migrated", args.from.display())).why(error);
    failure.remedy(match error {
        MigrateError::NoNode { .. } => "--from DIR names the folder that the node was started with (`--data`)",
        MigrateError::Moved { .. } => {
            "start the node with that storage; to migrate the folder again, remove the file `moved` in it"
        }
        MigrateError::Import(onward_node::storage::ImportError::NotEmpty(_)) => {
            "name a database that no node has used, or drop the schema `onward` in it"
        }
        MigrateError::Folder(_) => "stop the node that uses the folder, and start again; nothing is lost in it",
        _ => "start again: what is in the database now is removed first, and nobody can lead it before all is there",
    })
}
