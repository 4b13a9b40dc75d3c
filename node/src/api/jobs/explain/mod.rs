//! Why a job is where it is, as a colleague would answer: what is the case, who decided it under which fence, which
//! clocks run and what they read, what happens next and when, and what can be done.
//!
//! Pure: the job and log time go in, the explanation comes out.

mod clocks;
mod history;
mod situation;

use axum::Json;
use axum::extract::State;
use onward_api::explanation::{Explanation, Remedy};
use onward_api::instant::At;
use onward_core::fence::AttemptFence;
use onward_core::job::WorkflowState;
use onward_core::manager::{AttemptView, JobView, WorkflowView};
use onward_core::state::{EndedAttempt, LedgerEntry};
use onward_core::time::Wall;

use super::super::App;
use super::super::may::{May, Read};
use super::super::params::JobPath;
use super::super::problem::ProblemResponse;
use super::read::without_contents;
use super::submit::EXEC;
pub(crate) use history::fact;
use situation::Situation;

/// Why a job is where it is, and what can be done about it.
#[utoipa::path(get, path = "/v1/jobs/{id}/explain", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, body = Explanation),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn get(
    _: May<Read>,
    State(app): State<App>,
    JobPath(job): JobPath,
) -> Result<Json<Explanation>, ProblemResponse> {
    let view = without_contents(&app.engine, job).await?;
    Ok(Json(explain(&view, app.engine.log_time().await?)))
}

pub fn explain(job: &JobView, now: Wall) -> Explanation {
    let facts = Facts { job, workflow: focus(job), now };
    let situation = Situation::of(&facts);
    let mut can_do = situation.remedies(&facts);
    if facts.workflow.kind.as_str() == EXEC && facts.attempts().next().is_some() {
        can_do.push(Remedy::command(format!("onward logs {}", job.id), "see what it printed"));
    }
    Explanation {
        code: situation.code().into(),
        summary: situation.headline(&facts),
        so_far: history::lines(&facts),
        clocks: clocks::clocks(&facts),
        next: situation.next(&facts),
        can_do,
    }
}

/// The known facts, and the workflow that decides where the job is.
struct Facts<'a> {
    job: &'a JobView,
    workflow: &'a WorkflowView,
    now: Wall,
}

impl<'a> Facts<'a> {
    /// The name of a workflow before a line about it, where there are several.
    fn prefix(&self, workflow: Option<&str>) -> String {
        match workflow {
            Some(name) if self.job.workflows.len() > 1 => format!("{name}: "),
            _ => String::new(),
        }
    }

    fn attempts(&self) -> impl DoubleEndedIterator<Item = Attempt<'a>> {
        attempts(self.workflow)
    }

    /// The attempt that holds the lease.
    fn running(&self) -> Option<&'a AttemptView> {
        self.workflow.running.as_ref()
    }

    /// The newest attempt that ended.
    fn ended(&self) -> Option<&'a EndedAttempt> {
        self.workflow.ended.last().filter(|_| !self.workflow.taken_over)
    }

    fn ledger(&self) -> &'a [LedgerEntry] {
        &self.job.ledger
    }
}

#[derive(Clone, Copy)]
enum Attempt<'a> {
    Ended(&'a EndedAttempt),
    Running(&'a AttemptView),
}

/// Attempts of this job; those of a workflow that was taken over were another's.
fn attempts(workflow: &WorkflowView) -> impl DoubleEndedIterator<Item = Attempt<'_>> + ExactSizeIterator {
    let ended = if workflow.taken_over { &[] } else { &workflow.ended[..] };
    let all: Vec<Attempt<'_>> =
        ended.iter().map(Attempt::Ended).chain(workflow.running.iter().map(Attempt::Running)).collect();
    all.into_iter()
}

/// The workflow that the job's state is due to: one that is in that state, or else one that has not ended.
fn focus(job: &JobView) -> &WorkflowView {
    let find = |wanted: &dyn Fn(WorkflowState) -> bool| job.workflows.iter().find(|workflow| wanted(workflow.state));
    let found = find(&|state| state == job.state).or_else(|| find(&|state| !state.is_terminal()));
    found.or(job.workflows.last()).expect("a job has a workflow")
}

/// A fence as people compare it: the whole number, and what it is made of.
fn fence(fence: AttemptFence) -> String {
    let fence = fence.get();
    format!("fence {fence} (term {}, hand-out {})", fence >> 20, fence & 0xF_FFFF)
}

/// An instant without a fraction that says nothing.
fn instant(at: Wall) -> String {
    At(at).to_string().replace(".000Z", "Z")
}

#[cfg(test)]
mod tests;
