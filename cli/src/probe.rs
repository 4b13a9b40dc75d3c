//! `onward probe`: a health check for containers and compose files.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;

use crate::args::ProbeArgs;
use crate::failure::CommandFailure;
use crate::screen::Screen;
use crate::span;

/// An answer that takes longer is none.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

pub fn run(args: &ProbeArgs, screen: &Screen) -> Result<u8> {
    let well = match (&args.file, args.max_age, &args.url) {
        (Some(file), Some(max_age), _) => fresh(file, max_age)?,
        (_, _, Some(url)) => answers(url)?,
        _ => {
            return Err(CommandFailure::new("nothing to probe")
                .remedy("give --file with --max-age, or --url")
                .usage()
                .into());
        }
    };
    screen.line(well)?;
    Ok(0)
}

fn fresh(file: &Path, max_age: Duration) -> Result<String, CommandFailure> {
    let name = file.display();
    let modified = std::fs::metadata(file).and_then(|about| about.modified());
    let modified = modified.map_err(|error| CommandFailure::new(format!("{name} cannot be looked at")).why(error))?;
    // A file from the future is as fresh as can be: a clock was set back.
    let age = SystemTime::now().duration_since(modified).unwrap_or_default();
    let told = span::human(Duration::from_millis(age.as_millis() as u64));
    if age > max_age {
        let limit = span::human(max_age);
        return Err(
            CommandFailure::new(format!("{name} is stale")).why(format!("it is {told} old, and may be {limit}"))
        );
    }
    Ok(format!("{name} is fresh: {told} old"))
}

fn answers(url: &str) -> Result<String, CommandFailure> {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(ANSWERS_WITHIN)).build();
    let mut answer = ureq::Agent::new_with_config(config)
        .get(url)
        .call()
        .map_err(|error| CommandFailure::new(format!("{url} does not answer")).why(error))?;
    let status = answer.status();
    let body = answer.body_mut().with_config().limit(4_096).read_to_string().unwrap_or_default();
    let body = body.trim();
    if status.as_u16() != 200 {
        return Err(CommandFailure::new(format!("{url} answers {status}")).why(if body.is_empty() {
            "no reason given"
        } else {
            body
        }));
    }
    Ok(format!("{url} answers {status}"))
}
