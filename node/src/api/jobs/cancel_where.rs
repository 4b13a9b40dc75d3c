//! Cancel by filter, a few jobs at a time: nobody else waits for as long as there are jobs.
//!
//! Nothing of it is remembered between two bites. Each cancels what it cancels for good, and whoever was interrupted asks
//! again: what was cancelled no longer counts, and the rest is found.

use axum::extract::State;
use onward_api::command::{CancelWhere, CancelWhereAnswer};
use onward_core::ids::JobId;
use onward_core::input::Filter;

use super::super::App;
use super::super::json::Json;
use super::super::may::{May, Operate};
use super::super::params::bad_cursor;
use super::super::problem::ProblemResponse;
use super::filter::{Conditions, all_too_old};
use crate::engine::{Engine, EngineRefusal, ReadView};

/// Jobs that a dry run shows.
const SHOWN: usize = 10;
const MAX_CANCELLED: usize = 100_000;
/// Jobs that one read examines: everything else waits for the machine's thread meanwhile.
const EXAMINED_PER_READ: usize = 2_000;
/// Workflows of the jobs that one call to the machine cancels, or one job more.
const CANCELLED_PER_CALL: usize = 500;

/// Cancel all jobs that match, the newest first.
#[utoipa::path(post, path = "/v1/jobs/cancel", tag = "jobs", request_body = CancelWhere,
    responses((status = 200, body = CancelWhereAnswer),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn cancel_where(
    _: May<Operate>,
    State(app): State<App>,
    Json(which): Json<CancelWhere>,
) -> Result<Json<CancelWhereAnswer>, ProblemResponse> {
    let CancelWhere { queue, kind, tag, state, not_moving_s, since_s, all, dry_run, limit, cursor } = which;
    let filter = Conditions { state, kind, queue, tag, not_moving_s, since_s }.check(&app.engine).await?;
    if filter == Filter::default() && all != Some(true) {
        let detail = "this would cancel every job; give `queue`, `kind`, `tag`, `state`, `not_moving_s` or `since_s`, or say `all: true`";
        return Err(ProblemResponse::invalid(detail).of_field("all"));
    }
    let limit = match limit.unwrap_or(MAX_CANCELLED) {
        limit @ 1..=MAX_CANCELLED => limit,
        limit => {
            let detail = format!("`limit` is {limit}; it must be from 1 to {MAX_CANCELLED}");
            return Err(ProblemResponse::invalid(detail).of_field("limit"));
        }
    };
    let cursor = cursor.map(|text| JobId::parse(&text).ok_or_else(bad_cursor)).transpose()?;
    if dry_run == Some(true) {
        return Ok(Json(count(&app.engine, &filter, cursor, limit).await?));
    }
    let mut cancelled = 0;
    match cancel(&app.engine, &filter, cursor, limit, &mut cancelled).await {
        Ok(next) => {
            let next_cursor = next.map(|job| job.to_string());
            Ok(Json(CancelWhereAnswer { cancelled, would_cancel: None, jobs: None, next_cursor }))
        }
        Err(refused) => {
            let problem = ProblemResponse::from(refused);
            let detail = format!(
                "{}; {cancelled} jobs were cancelled before that, and repeating the request cancels the rest",
                problem.detail
            );
            Err(problem.with_detail(detail))
        }
    }
}

/// Goes back from the cursor until nothing is left or enough are cancelled. Says where to go on.
async fn cancel(
    engine: &Engine,
    filter: &Filter,
    mut cursor: Option<JobId>,
    limit: usize,
    cancelled: &mut usize,
) -> Result<Option<JobId>, EngineRefusal> {
    loop {
        let (jobs, next) = find(engine, filter, cursor, limit - *cancelled).await?;
        if !jobs.is_empty() {
            *cancelled += engine.cancel_where(filter.clone(), jobs).await?;
        }
        if next.is_none() || *cancelled == limit {
            return Ok(next);
        }
        cursor = next;
    }
}

/// The same way, and nothing is changed.
async fn count(
    engine: &Engine,
    filter: &Filter,
    mut cursor: Option<JobId>,
    limit: usize,
) -> Result<CancelWhereAnswer, EngineRefusal> {
    let (mut count, mut first) = (0, Vec::new());
    loop {
        let (jobs, next) = find(engine, filter, cursor, limit - count).await?;
        let room = SHOWN - first.len();
        first.extend(jobs.iter().take(room).map(JobId::to_string));
        count += jobs.len();
        if next.is_none() || count == limit {
            let next_cursor = next.map(|job| job.to_string());
            return Ok(CancelWhereAnswer { cancelled: 0, would_cancel: Some(count), jobs: Some(first), next_cursor });
        }
        cursor = next;
    }
}

/// Some jobs that the filter would cancel, and where to go on; none at the end.
async fn find(
    engine: &Engine,
    filter: &Filter,
    cursor: Option<JobId>,
    room: usize,
) -> Result<(Vec<JobId>, Option<JobId>), EngineRefusal> {
    let filter = filter.clone();
    engine.read(move |view| examine(view, &filter, cursor, room)).await
}

/// Examines some jobs in one read.
fn examine(view: &ReadView<'_>, filter: &Filter, cursor: Option<JobId>, room: usize) -> (Vec<JobId>, Option<JobId>) {
    let state = view.manager.state();
    let (mut found, mut examined, mut workflows) = (Vec::new(), 0, 0);
    let mut ids = view.catalog.newest_before(cursor).peekable();
    while let Some(id) = ids.next() {
        let Some(key) = state.find(id) else { continue };
        if all_too_old(filter, state.job(key).created_at) {
            break;
        }
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
