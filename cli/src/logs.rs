//! `onward logs`: what an attempt has printed, byte for byte, and what comes after.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use onward::JobInfo;
use onward::client::AttemptOutput;
use onward_api::job::{Attempt, Workflow};
use serde_json::{Value, json};

use crate::args::LogsArgs;
use crate::client::NodeClient;
use crate::failure::CommandFailure;
use crate::patience::Patience;
use crate::screen::Screen;

/// The pause between two questions while an attempt runs.
const PAUSE: Duration = Duration::from_millis(500);

pub fn run(args: &LogsArgs, client: &NodeClient, screen: &Screen) -> Result<u8> {
    let id = &args.id;
    let mut chosen: Option<ChosenAttempt> = None;
    let mut position = None;
    let patience = Patience::new(None);
    loop {
        // Asked before the output: what is read after the end of an attempt is all of it.
        let job = patience.ask(client, screen, || client.ask(async |node| node.job(id).await))?;
        let found = match &chosen {
            Some(known) => known.again(job.exact()),
            None => choose(job.exact(), args)?,
        };
        let Some(found) = found else {
            if !args.follow || job.state.is_terminal() {
                return Err(never_handed_out(&job, args).into());
            }
            thread::sleep(PAUSE);
            continue;
        };
        let printed = patience.ask(client, screen, || found.output(id, client))?;
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

/// Prints all output of a job's attempts, until it ends: each from its first byte that is kept.
pub fn to_the_end(patience: &Patience, client: &NodeClient, screen: &Screen, id: &str) -> Result<()> {
    let mut told: BTreeMap<(String, u32), u64> = BTreeMap::new();
    let mut over: BTreeSet<(String, u32)> = BTreeSet::new();
    loop {
        // Asked before the output: what is read after the end of an attempt is all of it.
        let job = patience.ask(client, screen, || client.ask(async |node| node.job(id).await))?;
        for workflow in &job.exact().workflows {
            for attempt in &workflow.attempts {
                let key = (workflow.name.clone(), attempt.n);
                if over.contains(&key) {
                    continue;
                }
                let found = ChosenAttempt { workflow: key.0.clone(), attempt: key.1, is_over: is_over(attempt) };
                if let Some(printed) = patience.ask(client, screen, || found.output(id, client))? {
                    let new = Fresh::of(&printed, told.get(&key).copied());
                    tell(screen, &found, &new)?;
                    told.insert(key.clone(), new.end());
                }
                if found.is_over {
                    over.insert(key);
                }
            }
        }
        if job.state.is_terminal() {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
}

/// An attempt to look at.
#[derive(PartialEq, Eq, Debug)]
struct ChosenAttempt {
    workflow: String,
    attempt: u32,
    is_over: bool,
}

impl ChosenAttempt {
    fn output(&self, id: &str, client: &NodeClient) -> Result<Option<AttemptOutput>, CommandFailure> {
        client.run(client.node().output(id, &self.workflow, self.attempt))
    }

    /// The attempt as it is now. One that is no longer listed is over.
    fn again(&self, job: &JobInfo) -> Option<Self> {
        let workflow = job.workflows.iter().find(|one| one.name == self.workflow);
        let attempts = workflow.map_or(&[][..], |workflow| &workflow.attempts);
        let is_over = attempts.iter().rfind(|one| one.n == self.attempt).is_none_or(is_over);
        Some(Self { workflow: self.workflow.clone(), attempt: self.attempt, is_over })
    }
}

fn is_over(attempt: &Attempt) -> bool {
    attempt.ended_at.is_some()
}

/// The attempt that was asked for; none if there is none yet.
fn choose(job: &JobInfo, args: &LogsArgs) -> Result<Option<ChosenAttempt>, CommandFailure> {
    let is_meant = |workflow: &&Workflow| args.workflow.as_ref().is_none_or(|wanted| workflow.name == *wanted);
    let among: Vec<&Workflow> = job.workflows.iter().filter(is_meant).collect();
    if among.is_empty() {
        let names: Vec<&str> = job.workflows.iter().map(|workflow| workflow.name.as_str()).collect();
        return Err(CommandFailure::new(format!("job {} has no such workflow", args.id))
            .remedy(format!("--workflow is one of: {}", names.join(", "))));
    }
    let attempts = among.iter().flat_map(|workflow| workflow.attempts.iter().map(|attempt| (&workflow.name, attempt)));
    let newest = attempts
        .clone()
        .filter(|(_, attempt)| args.attempt.is_none_or(|n| attempt.n == n))
        .max_by_key(|(_, attempt)| (attempt.started_at, attempt.fence));
    match (newest, args.attempt) {
        (Some((workflow, attempt)), _) => {
            Ok(Some(ChosenAttempt { workflow: workflow.clone(), attempt: attempt.n, is_over: is_over(attempt) }))
        }
        (None, Some(n)) if !args.follow && attempts.clone().next().is_some() => {
            let known: Vec<String> = attempts.map(|(_, attempt)| attempt.n.to_string()).collect();
            Err(CommandFailure::new(format!("job {} has no attempt {n}", args.id))
                .remedy(format!("--attempt is one of: {}", known.join(", "))))
        }
        (None, _) => Ok(None),
    }
}

fn never_handed_out(job: &JobInfo, args: &LogsArgs) -> CommandFailure {
    let id = &args.id;
    let which = args.attempt.map_or_else(|| "no attempt".to_owned(), |n| format!("no attempt {n}"));
    let failure = CommandFailure::new(format!("there is {which} of job {id} that could have printed something"));
    let failure = failure.why(format!("the job is {}", job.state));
    match job.state.is_terminal() {
        true => failure.remedy(format!("onward explain {id}")),
        false => failure.remedy(format!("onward logs {id} --follow    (waits for it)\nonward explain {id}")),
    }
}

/// Output that was not told yet.
#[derive(PartialEq, Eq, Debug)]
struct Fresh<'a> {
    /// Bytes that are not kept, between what was told and this.
    missed: u64,
    /// The place where it begins, counted from the first byte that the attempt has printed.
    start: u64,
    bytes: &'a [u8],
}

impl<'a> Fresh<'a> {
    /// `position` is the end of what was told, if anything was.
    fn of(printed: &'a AttemptOutput, position: Option<u64>) -> Self {
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

fn tell(screen: &Screen, chosen: &ChosenAttempt, new: &Fresh<'_>) -> Result<()> {
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

fn nothing(screen: &Screen, chosen: &ChosenAttempt) -> Result<()> {
    if screen.json {
        return screen.json_line(&piece(chosen, &Fresh { missed: 0, start: 0, bytes: &[] }));
    }
    let ChosenAttempt { workflow, attempt, .. } = chosen;
    screen.note(format!("onward: nothing is kept of what attempt {attempt} of {workflow} has printed, if it has"));
    Ok(())
}

fn piece(chosen: &ChosenAttempt, new: &Fresh<'_>) -> Value {
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
    use crate::example;
    use onward_api::instant::At;

    fn printed(skipped: u64, bytes: &[u8]) -> AttemptOutput {
        AttemptOutput { skipped, bytes: bytes.to_vec().into() }
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

    fn job() -> JobInfo {
        let attempt = |n, fence, started: u64, ended: Option<u64>| {
            let ended_at = ended.map(At::from_ms);
            Attempt { fence, ended_at, ..example::attempt(n, At::from_ms(started)) }
        };
        let workflows = vec![
            example::workflow("a", vec![attempt(1, 1, 1, Some(2)), attempt(2, 2, 5, None)]),
            example::workflow("b", vec![attempt(1, 1, 3, Some(4))]),
            example::workflow("c", vec![]),
        ];
        example::job("running", workflows)
    }

    fn chosen(workflow: Option<&str>, attempt: Option<u32>) -> Result<Option<(String, u32, bool)>, String> {
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
