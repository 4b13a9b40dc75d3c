//! Cancel by filter, a few jobs at a time: nobody else waits for as long as there are jobs.
//!
//! Nothing of it is remembered between two bites. Each cancels what it cancels for good, and whoever was interrupted asks
//! again: what was cancelled no longer counts, and the rest is found.

use axum::extract::State;
use onward_core::effect::Answer;
use onward_core::ids::JobId;
use onward_core::input::{Call, Filter};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::App;
use super::super::json::Json;
use super::super::may::{May, Operate};
use super::super::params::bad_cursor;
use super::super::problem::Problem;
use super::read::{name, state};
use crate::engine::{Engine, Refused, View};

/// Which jobs; what is not given matches all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelWhere {
    queue: Option<String>,
    kind: Option<String>,
    tag: Option<String>,
    state: Option<String>,
    /// Needed where nothing else is given.
    all: Option<bool>,
    /// How many this call cancels at most: 1 to 100000, which is what it is unless said.
    limit: Option<usize>,
    /// `next_cursor` of the call before, to go on behind it.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Cancelled {
    /// By this call.
    pub cancelled: usize,
    /// There may be more: repeat the call with it as `cursor`. None once all were looked at.
    pub next_cursor: Option<String>,
}

const MAX_CANCELLED: usize = 100_000;
/// Of one read: everything else waits for the machine's thread meanwhile.
const EXAMINED_PER_READ: usize = 2_000;
/// Workflows of the jobs that one call to the machine cancels, or one job more.
const CANCELLED_PER_CALL: usize = 500;

/// Cancel all jobs that match, the newest first.
#[utoipa::path(post, path = "/v1/jobs/cancel", tag = "jobs", request_body = CancelWhere,
    responses((status = 200, body = Cancelled),
        (status = 400, description = "invalid", body = Problem, content_type = "application/problem+json")))]
pub async fn cancel_where(
    _: May<Operate>,
    State(app): State<App>,
    Json(which): Json<CancelWhere>,
) -> Result<Json<Cancelled>, Problem> {
    let filter = Filter {
        queue: name("queue", which.queue)?,
        kind: name("kind", which.kind)?,
        tag: name("tag", which.tag)?,
        state: which.state.map(|word| state(&word)).transpose()?,
    };
    if filter == Filter::default() && which.all != Some(true) {
        let detail = "this would cancel every job; give `queue`, `kind`, `tag` or `state`, or say `all: true`";
        return Err(Problem::invalid(detail).of_field("all"));
    }
    let limit = match which.limit.unwrap_or(MAX_CANCELLED) {
        limit @ 1..=MAX_CANCELLED => limit,
        limit => {
            let detail = format!("`limit` is {limit}; it must be from 1 to {MAX_CANCELLED}");
            return Err(Problem::invalid(detail).of_field("limit"));
        }
    };
    let cursor = which.cursor.map(|text| JobId::parse(&text).ok_or_else(bad_cursor)).transpose()?;
    let mut cancelled = 0;
    match go_through(&app.engine, &filter, cursor, limit, &mut cancelled).await {
        Ok(next) => Ok(Json(Cancelled { cancelled, next_cursor: next.map(|job| job.to_string()) })),
        Err(refused) => {
            let problem = Problem::from(refused);
            let detail = format!(
                "{}; {cancelled} jobs were cancelled before that, and repeating the request cancels the rest",
                problem.detail
            );
            Err(Problem { detail, ..problem })
        }
    }
}

/// Goes back from the cursor until nothing is left or enough are cancelled. Says where to go on.
async fn go_through(
    engine: &Engine,
    filter: &Filter,
    mut cursor: Option<JobId>,
    limit: usize,
    cancelled: &mut usize,
) -> Result<Option<JobId>, Refused> {
    loop {
        let (asked, room) = (filter.clone(), limit - *cancelled);
        let (jobs, next) = engine.read(move |view| find(view, &asked, cursor, room)).await?;
        if !jobs.is_empty() {
            match engine.call(Call::CancelWhere { filter: filter.clone(), jobs }).await? {
                Answer::Cancelled { jobs } => *cancelled += jobs,
                other => unreachable!("a cancel by filter is answered as such, not with {other:?}"),
            }
        }
        if next.is_none() || *cancelled == limit {
            return Ok(next);
        }
        cursor = next;
    }
}

/// Some jobs that the filter would cancel, and where to go on; none at the end.
fn find(view: &View<'_>, filter: &Filter, cursor: Option<JobId>, room: usize) -> (Vec<JobId>, Option<JobId>) {
    let state = view.manager.state();
    let (mut found, mut examined, mut workflows) = (Vec::new(), 0, 0);
    let mut ids = view.catalog.newest_before(cursor).peekable();
    while let Some(id) = ids.next() {
        let Some(key) = state.find(id) else { continue };
        let count = state.job(key).workflows.as_slice().len();
        examined += 1 + count;
        if view.manager.would_cancel(key, filter) {
            workflows += count;
            found.push(id);
        }
        if found.len() == room || workflows >= CANCELLED_PER_CALL || examined >= EXAMINED_PER_READ {
            return (found, ids.peek().map(|_| id));
        }
    }
    (found, None)
}
