//! Schedules: what starts jobs by the clock.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::answer::Layout;
use crate::args::{ScheduleArgs, ScheduleCommand};
use crate::client::{Client, escaped, unique_name};
use crate::failure::Failure;
use crate::fleet::{query, table};
use crate::jobs::done;
use crate::screen::Screen;
use crate::submit::{Body, job_of, raw};
use crate::table::Column;
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

pub fn run(command: ScheduleCommand, client: &Client, screen: &Screen) -> Result<u8> {
    match command {
        ScheduleCommand::Add(args) => add(*args, client, screen),
        ScheduleCommand::List(page) => {
            let answer = client.get(&format!("/v1/schedules?{}", query(&page)))?;
            table(screen, &answer, &COLUMNS, row, "no schedules; `onward schedule add --help` shows how to make one")
        }
        ScheduleCommand::Show { name, records } => show(&name, records, client, screen),
        ScheduleCommand::Pause { name } => {
            let answer = client.post(&format!("{}/pause", path(&name)), &json!({}))?;
            done(
                screen,
                &answer,
                format!("paused {name}; what runs goes on. `onward schedule resume {name}` starts it again"),
            )
        }
        ScheduleCommand::Resume { name } => {
            let answer = client.post(&format!("{}/resume", path(&name)), &json!({}))?;
            done(screen, &answer, format!("resumed {name}; next at {}", read::word(&answer, "next_at")))
        }
        ScheduleCommand::Remove { name } => {
            let answer = client.delete(&path(&name))?;
            done(screen, &answer, format!("removed {name}; what runs goes on"))
        }
        ScheduleCommand::RunNow { name, request_id } => {
            let request_id = request_id.map_or_else(|| unique_name("cli-"), Ok)?;
            let answer = client.post(&format!("{}/run-now", path(&name)), &json!({ "request_id": request_id }))?;
            match screen.json {
                true => screen.raw(answer.text(), Layout::Pretty)?,
                false => screen.line(read::word(&answer, "id"))?,
            }
            Ok(0)
        }
    }
}

fn path(name: &str) -> String {
    format!("/v1/schedules/{}", escaped(name))
}

fn add(args: ScheduleArgs, client: &Client, screen: &Screen) -> Result<u8> {
    if args.job.kind.is_none() && args.job.command.is_empty() {
        return Err(Failure::new("there is nothing to run")
            .why("neither a command nor a kind was given")
            .remedy(
                "onward schedule add backup --cron \"0 6 * * *\" -- ./backup.sh\n\
                 onward schedule add sync --every 10m --kind sync",
            )
            .usage()
            .into());
    }
    let name = args.name.clone();
    let answer = client.put(&path(&name), &body(args, job_of)?)?;
    let next = match read::flag(&answer, "paused") {
        true => format!("it is paused; `onward schedule resume {name}` starts it"),
        false => format!("next at {}", read::word(&answer, "next_at")),
    };
    done(screen, &answer, format!("schedule {name} is set; {next}"))
}

/// The body of the call. What was not given is left to the node.
fn body(
    args: ScheduleArgs,
    job_of: impl FnOnce(crate::args::JobArgs) -> Result<Body, Failure>,
) -> Result<Body, Failure> {
    let mut body = BTreeMap::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), raw(value));
        }
    };
    put("cron", args.cron.map(Value::from));
    put("zone", args.zone.map(Value::from));
    put("every_s", args.every.map(span::seconds));
    put("overlap", args.overlap.map(Value::from));
    put("missed", args.missed.map(Value::from));
    put("jitter_s", args.jitter.map(span::seconds));
    put("critical", args.critical.then_some(true.into()));
    put("paused", args.paused.then_some(true.into()));
    body.insert("job".into(), raw(job_of(args.job)?));
    Ok(body)
}

fn when(schedule: &Value) -> String {
    match read::text(schedule, "cron") {
        Some(cron) => format!("{cron} {}", read::word(schedule, "zone")),
        None => {
            let every = schedule["every_s"].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
            format!("every {}", every.map_or_else(|| "-".into(), span::exact))
        }
    }
}

fn row(schedule: &Value) -> Vec<String> {
    let state = match (read::flag(schedule, "paused"), read::flag(schedule, "failing")) {
        (true, _) => "paused",
        (_, true) => "failing",
        _ => "active",
    };
    let last = &schedule["last"];
    vec![
        read::word(schedule, "name").to_owned(),
        state.into(),
        when(schedule),
        read::word(schedule, "next_at").to_owned(),
        read::word(last, "record").to_owned(),
        read::word(last, "outcome").to_owned(),
    ]
}

fn show(name: &str, records: u32, client: &Client, screen: &Screen) -> Result<u8> {
    let schedule = client.get(&path(name))?;
    let found = client.get(&format!("{}/records?limit={records}", path(name)))?;
    if screen.json {
        let mut both = (*schedule).clone();
        both["records"] = found["records"].clone();
        screen.json(&both)?;
        return Ok(0);
    }
    let counts = &schedule["counts"];
    let count = |field: &str| format!("{} {field}", read::plain(&counts[field]));
    let mut lines = vec![
        ("name", name.to_owned()),
        ("when", when(&schedule)),
        ("next", read::word(&schedule, "next_at").to_owned()),
        ("runs", described(&schedule["job"])),
        (
            "policies",
            format!("overlap {}, missed {}", read::word(&schedule, "overlap"), read::word(&schedule, "missed")),
        ),
        ("instants", ["fired", "skipped", "missed"].map(count).join(", ")),
    ];
    if read::flag(&schedule, "paused") {
        lines.push(("paused", format!("nothing starts until `onward schedule resume {name}`")));
    }
    let failures = read::number(&schedule, "failures").unwrap_or(0);
    if failures > 0 {
        lines.push(("failures", format!("{failures} in a row")));
    }
    for (label, text) in lines {
        screen.line(format!("{label:<9} {text}"))?;
    }
    let rows: Vec<Vec<String>> = read::items(&found, "records").iter().map(record).collect();
    if !rows.is_empty() {
        screen.line("")?;
        screen.table(&RECORD_COLUMNS, rows)?;
    }
    Ok(0)
}

/// The command, or the kinds.
fn described(job: &Value) -> String {
    let argv = job["payload"]["argv"].as_array().filter(|_| job["kind"] == "exec");
    if let Some(argv) = argv {
        return argv.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
    }
    match read::text(job, "kind") {
        Some(kind) => kind.to_owned(),
        None => read::items(job, "workflows").iter().map(|one| read::word(one, "kind")).collect::<Vec<_>>().join(", "),
    }
}

fn record(record: &Value) -> Vec<String> {
    vec![
        read::word(record, "due_at").to_owned(),
        read::word(record, "record").to_owned(),
        read::word(record, "reason").to_owned(),
        read::plain(&record["count"]),
        read::word(record, "job_id").to_owned(),
        read::word(record, "outcome").to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn body_of(line: &[&str]) -> Value {
        let cli = Cli::parse_from(["onward", "schedule", "add"].iter().chain(line));
        let Command::Schedule(ScheduleCommand::Add(args)) = cli.command else { panic!("not add") };
        serde_json::to_value(body(*args, job_of).unwrap()).unwrap()
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
        let job = json!({ "kind": "k", "payload": {"a": 1}, "timeout_s": 3600, "unique_key": "u" });
        let expected = json!({
            "cron": "0 6 * * *", "zone": "Europe/Berlin", "overlap": "queue", "missed": "all", "jitter_s": 300,
            "critical": true, "paused": true, "job": job
        });
        assert_eq!(body, expected);
        let body = body_of(&["n", "--every=90s", "--", "ls", "-l"]);
        assert_eq!((&body["every_s"], &body["job"]["payload"]["argv"]), (&json!(90), &json!(["ls", "-l"])));
        assert_eq!(body["job"].get("idempotency_key"), None, "every run is a job of its own");
    }

    #[test]
    fn an_interval_is_shown_as_people_write_it() {
        for (seconds, text) in [(json!(3600.0), "every 1h"), (json!(1.5), "every 1s500ms"), (json!("?"), "every -")] {
            assert_eq!(when(&json!({ "cron": null, "every_s": seconds })), text);
        }
    }

    #[test]
    fn a_schedule_without_a_name_is_wrong_usage() {
        let error = Cli::try_parse_from(["onward", "schedule", "remove", ""]).expect_err("there is no such schedule");
        assert!(error.to_string().contains("NAME"), "{error}");
    }
}
