//! Why a job is where it is: sentences for people, and the same as data for programs.

use core::fmt;

use serde::{Deserialize, Serialize};

/// The answer of `GET /v1/jobs/{id}/explain`. Its [`Display`](fmt::Display) is the page that `onward explain` prints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The situation in a stable word.
    #[cfg_attr(feature = "openapi", schema(example = "no_worker"))]
    pub code: String,
    /// The situation in a sentence or two.
    pub summary: String,
    /// Decisions so far, by whom and under which fence; the oldest first.
    pub so_far: Vec<String>,
    /// The clocks that run over the job.
    pub clocks: Vec<Clock>,
    /// Events to come, and when.
    pub next: Vec<String>,
    /// Remedies for people.
    pub can_do: Vec<Remedy>,
}

/// A clock, what it reads, and what sets it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Clock {
    #[cfg_attr(feature = "openapi", schema(example = "stuck clock"))]
    pub name: String,
    pub text: String,
    /// The time until the clock runs out; 0 where it has, none where it does not run yet.
    pub remaining_ms: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Remedy {
    /// A command line to copy; none where no command does it.
    #[cfg_attr(feature = "openapi", schema(example = "onward queue resume media"))]
    pub command: Option<String>,
    pub why: String,
}

impl Remedy {
    pub fn command(command: impl Into<String>, why: impl Into<String>) -> Self {
        Self { command: Some(command.into()), why: why.into() }
    }

    pub fn advice(why: impl Into<String>) -> Self {
        Self { command: None, why: why.into() }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.command {
            Some(command) => write!(f, "{command}    {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<13}  {}", self.name, self.text)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary)?;
        section(f, "So far", &self.so_far)?;
        section(f, "Clocks", &self.clocks)?;
        section(f, "What happens next", &self.next)?;
        section(f, "What you can do", &self.can_do)
    }
}

fn section(f: &mut fmt::Formatter<'_>, title: &str, lines: &[impl fmt::Display]) -> fmt::Result {
    if !lines.is_empty() {
        writeln!(f, "\n{title}")?;
    }
    lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
}
