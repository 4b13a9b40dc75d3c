//! Schedules: what starts jobs by the clock.

use std::time::Duration;

use anyhow::Result;
use onward::client::Page;
use onward_api::schedule::{JobTemplate, RecordShown, Schedule, SetSchedule};
use onward_api::submit::SubmitJob;

use crate::answer::harmless;
use crate::args::{ScheduleArgs, ScheduleCommand};
use crate::client::{NodeClient, unique_name};
use crate::failure::CommandFailure;
use crate::jobs::{done, table};
use crate::screen::Screen;
use crate::submit::job_of;
use crate::table::Column;
use crate::work::handler::KIND;
use crate::{read, span};

const COLUMNS: [Column; 6] = [
    Column::whole("name"),
    Column::whole("state"),
    Column::cut("when"),
    Column::whole("next"),
    Column::optional("last"),
    Column::optional("outcome"),
];

const RECORD_COLUMNS: [Column; 6] = [
    Column::whole("due"),
    Column::whole("record"),
    Column::whole("reason"),
    Column::optional("instants"),
    Column::cut("job"),
    Column::whole("outcome"),
];

pub fn run(command: ScheduleCommand, client: &NodeClient, screen: &Screen) -> Result<u8> {
    match command {
        ScheduleCommand::Add(args) => add(*args, client, screen),
        ScheduleCommand::List(page) => {
            let page = page.page();
            let answer = client.ask(async |node| node.schedules(&page).await)?;
            let none = "no schedules; `onward schedule add --help` shows how to make one";
            table(screen, &answer, &COLUMNS, &answer.schedules, row, none, answer.next_cursor.as_deref())
        }
        ScheduleCommand::Show { name, records } => show(&name, records, client, screen),
        ScheduleCommand::Pause { name } => {
            let answer = client.ask(async |node| node.pause_schedule(&name).await)?;
            done(
                screen,
                &answer,
                format!("paused {name}; what runs goes on. `onward schedule resume {name}` starts it again"),
            )
        }
        ScheduleCommand::Resume { name } => {
            let answer = client.ask(async |node| node.resume_schedule(&name).await)?;
            done(screen, &answer, format!("resumed {name}; next at {}", read::instant(answer.next_at)))
        }
        ScheduleCommand::Remove { name } => {
            let answer = client.ask(async |node| node.remove_schedule(&name).await)?;
            done(screen, &answer, format!("removed {name}; what runs goes on"))
        }
        ScheduleCommand::RunNow { name, request_id } => {
            let request_id = request_id.map_or_else(|| unique_name("cli-"), Ok)?;
            let answer = client.ask(async |node| node.run_schedule(&name, &request_id).await)?;
            done(screen, &answer, answer.id.clone())
        }
    }
}

fn add(args: ScheduleArgs, client: &NodeClient, screen: &Screen) -> Result<u8> {
    if args.job.kind.is_none() && args.job.command.is_empty() {
        return Err(CommandFailure::new("there is nothing to run")
            .why("neither a command nor a kind was given")
            .remedy(
                "onward schedule add backup --cron \"0 6 * * *\" -- ./backup.sh\n\
                 onward schedule add sync --every 10m --kind sync",
            )
            .usage()
            .into());
    }
    let name = args.name.clone();
    let plan = plan(args, job_of)?;
    let answer = client.ask(async |node| node.set_schedule(&name, &plan).await)?;
    let next = match answer.paused {
        true => format!("it is paused; `onward schedule resume {name}` starts it"),
        false => format!("next at {}", read::instant(answer.next_at)),
    };
    done(screen, &answer, format!("schedule {name} is set; {next}"))
}

/// A plan from the arguments. Options that were not given are left to the node.
fn plan(
    args: ScheduleArgs,
    job_of: impl FnOnce(crate::args::JobArgs) -> Result<SubmitJob, CommandFailure>,
) -> Result<SetSchedule, CommandFailure> {
    Ok(SetSchedule {
        cron: args.cron,
        zone: args.zone,
        every_s: args.every.map(|span| span.as_secs_f64()),
        job: job_of(args.job)?,
        overlap: args.overlap,
        missed: args.missed,
        jitter_s: args.jitter.map(|span| span.as_secs_f64()),
        critical: args.critical.then_some(true),
        paused: args.paused.then_some(true),
    })
}

fn when(schedule: &Schedule) -> String {
    match (&schedule.cron, schedule.every_s) {
        (Some(cron), _) => format!("{cron} {}", read::word(schedule.zone.as_deref())),
        (None, every_s) => every(every_s),
    }
}

fn every(seconds: Option<f64>) -> String {
    let every = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    format!("every {}", every.map_or_else(|| "-".into(), span::exact))
}

fn row(schedule: &Schedule) -> Vec<String> {
    let state = match (schedule.paused, schedule.failing) {
        (true, _) => "paused",
        (_, true) => "failing",
        _ => "active",
    };
    let last = schedule.last.as_ref();
    vec![
        schedule.name.clone(),
        state.into(),
        when(schedule),
        read::instant(schedule.next_at),
        read::word(last.map(|last| &*last.record)).to_owned(),
        read::word(last.and_then(|last| last.outcome.as_deref())).to_owned(),
    ]
}

fn show(name: &str, records: u32, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let schedule = client.ask(async |node| node.schedule(name).await)?;
    let page = Page { limit: records as usize, cursor: None };
    let found = client.ask(async |node| node.schedule_records(name, &page).await)?;
    if screen.json {
        let mut both = harmless(schedule.text())?;
        both["records"] = harmless(found.text())?["records"].take();
        screen.json(&both)?;
        return Ok(0);
    }
    let counts = schedule.counts;
    let mut lines = vec![
        ("name", name.to_owned()),
        ("when", when(&schedule)),
        ("next", read::instant(schedule.next_at)),
        ("runs", described(&schedule.job)),
        ("policies", format!("overlap {}, missed {}", schedule.overlap, schedule.missed)),
        ("instants", format!("{} fired, {} skipped, {} missed", counts.fired, counts.skipped, counts.missed)),
    ];
    if schedule.paused {
        lines.push(("paused", format!("nothing starts until `onward schedule resume {name}`")));
    }
    if schedule.failures > 0 {
        lines.push(("failures", format!("{} in a row", schedule.failures)));
    }
    for (label, text) in lines {
        screen.line(format!("{label:<9} {text}"))?;
    }
    let rows: Vec<Vec<String>> = found.records.iter().map(record).collect();
    if !rows.is_empty() {
        screen.line("")?;
        screen.table(&RECORD_COLUMNS, rows)?;
    }
    Ok(0)
}

/// The command, or the kinds.
fn described(job: &JobTemplate) -> String {
    #[derive(serde::Deserialize)]
    struct Exec {
        argv: Vec<String>,
    }
    let payload = job.payload.as_ref().filter(|_| job.kind.as_deref() == Some(KIND));
    if let Some(exec) = payload.and_then(|payload| serde_json::from_str::<Exec>(payload.get()).ok()) {
        return exec.argv.join(" ");
    }
    match (&job.kind, &job.workflows) {
        (Some(kind), _) => kind.clone(),
        (None, workflows) => {
            workflows.iter().flatten().map(|workflow| workflow.kind.as_str()).collect::<Vec<_>>().join(", ")
        }
    }
}

fn record(record: &RecordShown) -> Vec<String> {
    vec![
        record.due_at.to_string(),
        record.record.to_string(),
        record.reason.to_string(),
        record.count.to_string(),
        read::word(record.job_id.as_deref()).to_owned(),
        read::word(record.outcome.as_deref()).to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, CliCommand};
    use clap::Parser;
    use serde_json::{Value, json};

    fn body_of(line: &[&str]) -> Value {
        let cli = Cli::parse_from(["onward", "schedule", "add"].iter().chain(line));
        let CliCommand::Schedule(ScheduleCommand::Add(args)) = cli.command else { panic!("not add") };
        serde_json::to_value(plan(*args, job_of).unwrap()).unwrap()
    }

    #[test]
    fn every_option_reaches_its_field() {
        let body = body_of(&[
            "nightly",
            "--cron=0 6 * * *",
            "--zone=Europe/Berlin",
            "--overlap=queue",
            "--missed=all",
            "--jitter=5m",
            "--critical",
            "--paused",
            "--kind=k",
            "--payload={\"a\":1}",
            "--timeout=1h",
            "--unique-key=u",
        ]);
        let job = json!({ "kind": "k", "payload": {"a": 1}, "timeout_s": 3600.0, "unique_key": "u" });
        let expected = json!({
            "cron": "0 6 * * *", "zone": "Europe/Berlin", "overlap": "queue", "missed": "all", "jitter_s": 300.0,
            "critical": true, "paused": true, "job": job
        });
        assert_eq!(body, expected);
        let body = body_of(&["n", "--every=90s", "--", "ls", "-l"]);
        assert_eq!((&body["every_s"], &body["job"]["payload"]["argv"]), (&json!(90.0), &json!(["ls", "-l"])));
        assert_eq!(body["job"].get("idempotency_key"), None, "every run is a job of its own");
    }

    #[test]
    fn an_interval_is_shown_as_people_write_it() {
        for (seconds, text) in [(Some(3600.0), "every 1h"), (Some(1.5), "every 1s500ms"), (None, "every -")] {
            assert_eq!(every(seconds), text);
        }
    }

    #[test]
    fn a_schedule_without_a_name_is_wrong_usage() {
        let error = Cli::try_parse_from(["onward", "schedule", "remove", ""]).expect_err("there is no such schedule");
        assert!(error.to_string().contains("NAME"), "{error}");
    }
}
