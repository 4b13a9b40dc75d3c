//! Which jobs are meant, as it is written in a query or a body.

use std::time::Duration;

use onward_core::ids::Name;
use onward_core::input::Filter;
use onward_core::job::JobState;
use onward_core::job::draft::MAX_SPAN;
use onward_core::time::{Wall, span_ms};

use super::super::problem::ProblemResponse;
use super::super::span;
use crate::engine::Engine;

/// Conditions as they were written; what is not given matches all. Each call has the fields that make sense for it.
#[derive(Debug, Default)]
pub struct Conditions {
    pub state: Option<String>,
    pub kind: Option<String>,
    pub queue: Option<String>,
    pub tag: Option<String>,
    pub not_moving_s: Option<f64>,
    pub since_s: Option<f64>,
}

/// Ids sort by when they were made, which is before the job is submitted: by less than this.
const MADE_BEFORE: Duration = Duration::from_secs(60);

/// Whether this job, and all that have lower ids, were submitted too early for the filter. Ids are not asked: they
/// follow the wall clock, and instants of jobs follow log time.
pub fn all_too_old(filter: &Filter, created_at: Wall) -> bool {
    filter.since.is_some_and(|since| created_at + MADE_BEFORE < since)
}

impl Conditions {
    pub async fn check(self, engine: &Engine) -> Result<Filter, ProblemResponse> {
        let within = |field, span: Option<f64>| {
            span.map(|span| span::from_seconds(field, span, Duration::ZERO..=MAX_SPAN)).transpose()
        };
        let since = within("since_s", self.since_s)?;
        let mut filter = Filter {
            queue: name("queue", self.queue)?,
            kind: name("kind", self.kind)?,
            tag: name("tag", self.tag)?,
            state: self.state.map(|word| state(&word)).transpose()?,
            since: None,
            not_moving: within("not_moving_s", self.not_moving_s)?,
        };
        if let Some(since) = since {
            let now = engine.log_time().await?;
            filter.since = Some(Wall::from_ms(now.as_ms().saturating_sub(span_ms(since))));
        }
        Ok(filter)
    }
}

pub(crate) fn state(word: &str) -> Result<JobState, ProblemResponse> {
    JobState::ALL.into_iter().find(|state| state.word() == word).ok_or_else(|| {
        let words: Vec<_> = JobState::ALL.into_iter().map(JobState::word).collect();
        let detail = format!("`state` is `{word}`; it must be one of {}", words.join(", "));
        ProblemResponse::invalid(detail).of_field("state")
    })
}

pub(crate) fn name(field: &'static str, text: Option<String>) -> Result<Option<Name>, ProblemResponse> {
    let bad = || {
        ProblemResponse::invalid(format!("`{field}` must be 1 to 128 bytes without control characters")).of_field(field)
    };
    text.map(|text| Name::new(text).ok_or_else(bad)).transpose()
}
