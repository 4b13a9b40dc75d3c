//! Which of a gate's jobs are meant.

use core::time::Duration;

use onward_core::gate::{Gate, JobView, TargetView};
use onward_core::ids::{JobId, Name};
use onward_core::job::JobState;
use onward_core::job::draft::MAX_SPAN;
use onward_core::time::{Wall, span_ms};

use crate::api::jobs::filter::{name, state};
use crate::api::problem::ProblemResponse;
use crate::api::span;
use crate::gate::GateEngine;

/// Jobs that one read examines: everything else waits for the machine's thread meanwhile.
pub(super) const EXAMINED_PER_READ: usize = 2_000;

/// Conditions as they were written; what is not given matches all.
#[derive(Debug, Default)]
pub(super) struct FilterDraft {
    pub state: Option<String>,
    pub kind: Option<String>,
    pub queue: Option<String>,
    pub tag: Option<String>,
    pub datacenter: Option<String>,
    pub not_moving_s: Option<f64>,
    pub since_s: Option<f64>,
}

/// The conditions for jobs that are listed or cancelled.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Conditions {
    state: Option<JobState>,
    kind: Option<Name>,
    queue: Option<Name>,
    tag: Option<Name>,
    datacenter: Option<Name>,
    not_moving: Option<Duration>,
    /// Submitted since then, in log time.
    since: Option<Wall>,
}

impl FilterDraft {
    pub(super) async fn check(self, engine: &GateEngine) -> Result<Conditions, ProblemResponse> {
        let within = |field, span: Option<f64>| {
            span.map(|span| span::from_seconds(field, span, Duration::ZERO..=MAX_SPAN)).transpose()
        };
        let since = within("since_s", self.since_s)?;
        let mut conditions = Conditions {
            state: self.state.map(|word| state(&word)).transpose()?,
            kind: name("kind", self.kind)?,
            queue: name("queue", self.queue)?,
            tag: name("tag", self.tag)?,
            datacenter: name("datacenter", self.datacenter)?,
            not_moving: within("not_moving_s", self.not_moving_s)?,
            since: None,
        };
        if let Some(since) = since {
            let now = engine.read(|gate| gate.log_time()).await?;
            conditions.since = Some(Wall::from_ms(now.as_ms().saturating_sub(span_ms(since))));
        }
        Ok(conditions)
    }
}

impl Conditions {
    pub(super) fn admit(&self, view: &JobView) -> bool {
        let is = |wanted: &Option<Name>, own: &Name| wanted.as_ref().is_none_or(|wanted| wanted == own);
        let job = &view.job;
        let tags = job.spec.as_ref().map_or(&[][..], |spec| spec.tags());
        self.state.is_none_or(|state| state == view.state)
            && is(&self.kind, &job.outline.kind)
            && is(&self.queue, &job.outline.queue)
            && self.tag.as_ref().is_none_or(|tag| tags.contains(tag))
            && self.datacenter.as_ref().is_none_or(|name| job.target(name).is_some())
            && self.since.is_none_or(|since| job.created_at >= since)
            && self.not_moving.is_none_or(|least| view.targets.iter().any(|target| stands_still(target, least)))
    }

    /// The matching ones of the next jobs, and where to go on.
    pub(super) fn examine(&self, gate: &Gate, cursor: Option<JobId>, room: usize) -> (Vec<JobView>, Option<JobId>) {
        let mut found = Vec::new();
        let mut jobs = gate.state().jobs_before(cursor).enumerate().peekable();
        while let Some((place, job)) = jobs.next() {
            found.extend(gate.job(job.id).filter(|view| self.admit(view)));
            if found.len() == room || place + 1 == EXAMINED_PER_READ {
                let next = jobs.peek().map(|_| job.id);
                return (found, next);
            }
        }
        (found, None)
    }
}

/// Whether the job has an attempt there that made no forward step for this long, as far as its datacenter was heard.
fn stands_still(target: &TargetView, least: Duration) -> bool {
    let since = target.since_progress.zip(target.since_report).map(|(progress, report)| progress + report);
    target.end.is_none() && since.is_some_and(|since| since >= least)
}
