//! `onward logs`: what an attempt has printed, byte for byte, and what comes after.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::args::LogsArgs;
use crate::client::{Client, Printed, escaped};
use crate::failure::Failure;
use crate::patience::Patience;
use crate::read;
use crate::screen::Screen;

/// Between two questions while an attempt runs.
const PAUSE: Duration = Duration::from_millis(500);

pub fn run(args: &LogsArgs, client: &Client, screen: &Screen) -> Result<u8> {
    let id = &args.id;
    let mut chosen: Option<Chosen> = None;
    let mut position = None;
    let patience = Patience::new(None);
    loop {
        // Asked before the output: what is read after the end of an attempt is all of it.
        let job = patience.ask(client, screen, || client.get(&format!("/v1/jobs/{}", escaped(id))))?;
        let found = match &chosen {
            Some(known) => known.again(&job),
            None => choose(&job, args)?,
        };
        let Some(found) = found else {
            if !args.follow || read::is_terminal(read::word(&job, "state")) {
                return Err(never_handed_out(&job, args).into());
            }
            thread::sleep(PAUSE);
            continue;
        };
        let printed = patience.ask(client, screen, || client.output(&found.path(id)))?;
        if let Some(printed) = &printed {
            let new = Fresh::of(printed, position);
            if new.missed > 0 {
                screen.note(format!("onward: {} bytes before this are not kept", new.missed));
            }
            tell(screen, &found, &new)?;
            position = Some(new.end());
        }
        if !args.follow || found.is_over {
            if position.is_none() {
                nothing(screen, &found)?;
            }
            return Ok(0);
        }
        chosen = Some(found);
        thread::sleep(PAUSE);
    }
}

/// All that the attempts of a job print, until it ends: each from its first byte that is kept.
pub fn to_the_end(patience: &Patience, client: &Client, screen: &Screen, id: &str) -> Result<()> {
    let mut told: BTreeMap<(String, u64), u64> = BTreeMap::new();
    let mut over: BTreeSet<(String, u64)> = BTreeSet::new();
    loop {
        // Asked before the output: what is read after the end of an attempt is all of it.
        let job = patience.ask(client, screen, || client.get(&format!("/v1/jobs/{}", escaped(id))))?;
        for workflow in read::items(&job, "workflows") {
            for attempt in read::items(workflow, "attempts") {
                let key = (read::word(workflow, "name").to_owned(), read::number(attempt, "n").unwrap_or(0));
                if over.contains(&key) {
                    continue;
                }
                let found = Chosen { workflow: key.0.clone(), attempt: key.1, is_over: is_over(attempt) };
                if let Some(printed) = patience.ask(client, screen, || client.output(&found.path(id)))? {
                    let new = Fresh::of(&printed, told.get(&key).copied());
                    tell(screen, &found, &new)?;
                    told.insert(key.clone(), new.end());
                }
                if found.is_over {
                    over.insert(key);
                }
            }
        }
        if read::is_terminal(read::word(&job, "state")) {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
}

/// An attempt to look at.
#[derive(PartialEq, Eq, Debug)]
struct Chosen {
    workflow: String,
    attempt: u64,
    is_over: bool,
}

impl Chosen {
    fn path(&self, id: &str) -> String {
        let workflow = escaped(&self.workflow);
        format!("/v1/jobs/{}/attempts/{}/output?workflow={workflow}", escaped(id), self.attempt)
    }

    /// As it is now. One that is no longer listed is over.
    fn again(&self, job: &Value) -> Option<Self> {
        let workflow = read::items(job, "workflows").iter().find(|one| read::word(one, "name") == self.workflow);
        let attempts = workflow.map_or(&[][..], |workflow| read::items(workflow, "attempts"));
        let is_over = attempts.iter().rfind(|one| one["n"] == self.attempt).is_none_or(is_over);
        Some(Self { workflow: self.workflow.clone(), attempt: self.attempt, is_over })
    }
}

fn is_over(attempt: &Value) -> bool {
    !attempt["ended_at"].is_null()
}

/// The attempt that was asked for; none if there is none yet.
fn choose(job: &Value, args: &LogsArgs) -> Result<Option<Chosen>, Failure> {
    let workflows = read::items(job, "workflows");
    let name = |workflow: &Value| read::word(workflow, "name").to_owned();
    let among: Vec<&Value> = match &args.workflow {
        Some(wanted) => workflows.iter().filter(|workflow| name(workflow) == *wanted).collect(),
        None => workflows.iter().collect(),
    };
    if among.is_empty() {
        let names: Vec<String> = workflows.iter().map(name).collect();
        return Err(Failure::new(format!("job {} has no such workflow", args.id))
            .remedy(format!("--workflow is one of: {}", names.join(", "))));
    }
    let attempts = among
        .iter()
        .flat_map(|workflow| read::items(workflow, "attempts").iter().map(|attempt| (name(workflow), attempt)));
    let wanted = |attempt: &Value| args.attempt.is_none_or(|n| attempt["n"] == n);
    let newest = attempts
        .clone()
        .filter(|(_, attempt)| wanted(attempt))
        .max_by_key(|(_, attempt)| (read::instant(attempt, "started_at"), read::number(attempt, "fence")));
    match (newest, args.attempt) {
        (Some((workflow, attempt)), _) => {
            let n = read::number(attempt, "n").unwrap_or(0);
            Ok(Some(Chosen { workflow, attempt: n, is_over: is_over(attempt) }))
        }
        (None, Some(n)) if !args.follow && attempts.clone().next().is_some() => {
            let known: Vec<String> = attempts.map(|(_, attempt)| read::plain(&attempt["n"])).collect();
            Err(Failure::new(format!("job {} has no attempt {n}", args.id))
                .remedy(format!("--attempt is one of: {}", known.join(", "))))
        }
        (None, _) => Ok(None),
    }
}

fn never_handed_out(job: &Value, args: &LogsArgs) -> Failure {
    let (id, state) = (&args.id, read::word(job, "state"));
    let which = args.attempt.map_or_else(|| "no attempt".to_owned(), |n| format!("no attempt {n}"));
    let failure = Failure::new(format!("there is {which} of job {id} that could have printed something"));
    let failure = failure.why(format!("the job is {state}"));
    match read::is_terminal(state) {
        true => failure.remedy(format!("onward explain {id}")),
        false => failure.remedy(format!("onward logs {id} --follow    (waits for it)\nonward explain {id}")),
    }
}

/// What was not told yet.
#[derive(PartialEq, Eq, Debug)]
struct Fresh<'a> {
    /// Bytes that are not kept, between what was told and this.
    missed: u64,
    /// Where it begins, counted from the first byte that the attempt has printed.
    start: u64,
    bytes: &'a [u8],
}

impl<'a> Fresh<'a> {
    /// `position` is the end of what was told, if anything was.
    fn of(printed: &'a Printed, position: Option<u64>) -> Self {
        let (first, end) = (printed.skipped, printed.skipped + printed.bytes.len() as u64);
        // What is kept never gets shorter; if it did, it was removed, and counting began anew.
        let told = position.filter(|told| *told <= end).unwrap_or(0);
        let start = told.max(first);
        let bytes = usize::try_from(start - first).ok().and_then(|from| printed.bytes.get(from..)).unwrap_or_default();
        Self { missed: first.saturating_sub(told), start, bytes }
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

fn tell(screen: &Screen, chosen: &Chosen, new: &Fresh<'_>) -> Result<()> {
    if new.bytes.is_empty() {
        return Ok(());
    }
    if screen.json {
        return screen.json_line(&piece(chosen, new));
    }
    let mut out = io::stdout().lock();
    out.write_all(new.bytes)?;
    out.flush()?;
    Ok(())
}

fn nothing(screen: &Screen, chosen: &Chosen) -> Result<()> {
    if screen.json {
        return screen.json_line(&piece(chosen, &Fresh { missed: 0, start: 0, bytes: &[] }));
    }
    let Chosen { workflow, attempt, .. } = chosen;
    screen.note(format!("onward: nothing is kept of what attempt {attempt} of {workflow} has printed, if it has"));
    Ok(())
}

fn piece(chosen: &Chosen, new: &Fresh<'_>) -> Value {
    let mut piece = json!({ "attempt": chosen.attempt, "workflow": chosen.workflow, "skipped_bytes": new.start });
    match core::str::from_utf8(new.bytes) {
        Ok(text) => piece["text"] = text.into(),
        Err(_) => piece["data_base64"] = STANDARD.encode(new.bytes).into(),
    }
    piece
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(skipped: u64, bytes: &[u8]) -> Printed {
        Printed { skipped, bytes: bytes.to_vec() }
    }

    #[test]
    fn no_byte_is_told_twice_and_what_is_missing_is_said() {
        for (skipped, bytes, position, missed, start, fresh) in [
            (0, &b"abc"[..], None, 0, 0, &b"abc"[..]),
            (7, b"abc", None, 7, 7, b"abc"),
            (0, b"abcdef", Some(3), 0, 3, b"def"),
            (0, b"abc", Some(3), 0, 3, b""),
            (2, b"cdef", Some(3), 0, 3, b"def"),
            (9, b"xyz", Some(3), 6, 9, b"xyz"),
            // Removed meanwhile, and begun anew.
            (0, b"new", Some(100), 0, 0, b"new"),
        ] {
            let kept = printed(skipped, bytes);
            let new = Fresh::of(&kept, position);
            assert_eq!(new, Fresh { missed, start, bytes: fresh }, "{kept:?} after {position:?}");
        }
    }

    fn job() -> Value {
        let at = |second: u8| format!("2026-01-01T00:00:0{second}Z");
        json!({"state": "running", "workflows": [
            {"name": "a", "attempts": [{"n": 1, "fence": 1, "started_at": at(1), "ended_at": at(2)},
                                       {"n": 2, "fence": 2, "started_at": at(5), "ended_at": null}]},
            {"name": "b", "attempts": [{"n": 1, "fence": 1, "started_at": at(3), "ended_at": at(4)}]},
            {"name": "c", "attempts": []},
        ]})
    }

    fn chosen(workflow: Option<&str>, attempt: Option<u32>) -> Result<Option<(String, u64, bool)>, String> {
        let args = LogsArgs { id: "x".into(), attempt, workflow: workflow.map(Into::into), follow: false };
        let chosen = choose(&job(), &args).map_err(|failure| failure.to_string())?;
        Ok(chosen.map(|one| (one.workflow, one.attempt, one.is_over)))
    }

    #[test]
    fn the_newest_attempt_is_meant_unless_another_is_named() {
        assert_eq!(chosen(None, None), Ok(Some(("a".into(), 2, false))));
        assert_eq!(chosen(Some("a"), Some(1)), Ok(Some(("a".into(), 1, true))));
        assert_eq!(chosen(None, Some(1)), Ok(Some(("b".into(), 1, true))));
        assert_eq!(chosen(Some("c"), None), Ok(None));
        assert!(chosen(Some("d"), None).unwrap_err().contains("a, b, c"));
        assert!(chosen(Some("a"), Some(3)).unwrap_err().contains("1, 2"));
    }
}
