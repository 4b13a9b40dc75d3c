//! Cancel by filter, at a gate: job by job, each a decision of its own. As at a manager, nothing of it is remembered, and
//! repeating it cancels the rest.

use axum::extract::State;
use onward_api::command::{CancelWhere, CancelWhereAnswer};
use onward_core::ids::JobId;
use tokio::task::JoinSet;

use super::GateApp;
use super::filter::{Conditions, FilterDraft};
use crate::api::json::Json;
use crate::api::may::{May, Operate};
use crate::api::params::bad_cursor;
use crate::api::problem::ProblemResponse;
use crate::engine::EngineRefusal;
use crate::gate::GateEngine;

/// Jobs that a dry run shows.
const SHOWN: usize = 10;
const MAX_CANCELLED: usize = 100_000;
/// Decisions under way at a time: they share commits.
const AT_A_TIME: usize = 256;

/// Cancel all jobs that match in all their datacenters, the newest first.
#[utoipa::path(post, path = "/v1/jobs/cancel", tag = "jobs", request_body = CancelWhere,
    responses((status = 200, body = CancelWhereAnswer),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn cancel_where(
    _: May<Operate>,
    State(app): State<GateApp>,
    Json(which): Json<CancelWhere>,
) -> Result<Json<CancelWhereAnswer>, ProblemResponse> {
    let CancelWhere { queue, kind, tag, state, not_moving_s, since_s, all, dry_run, limit, cursor } = which;
    let written = FilterDraft { state, kind, queue, tag, datacenter: None, not_moving_s, since_s };
    let conditions = written.check(&app.engine).await?;
    if conditions == Conditions::default() && all != Some(true) {
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
    let mut cursor = cursor.map(|text| JobId::parse(&text).ok_or_else(bad_cursor)).transpose()?;
    let is_dry = dry_run == Some(true);
    let (mut count, mut first) = (0, Vec::new());
    loop {
        let (jobs, next) = find(&app.engine, &conditions, cursor, AT_A_TIME.min(limit - count)).await?;
        let room = SHOWN - first.len();
        first.extend(jobs.iter().take(room).map(JobId::to_string));
        let found = jobs.len();
        if !is_dry {
            cancel(&app.engine, jobs).await.map_err(|refused| said_so_far(refused, count))?;
        }
        count += found;
        if next.is_none() || count == limit {
            let next_cursor = next.map(|job| job.to_string());
            return Ok(Json(CancelWhereAnswer {
                cancelled: if is_dry { 0 } else { count },
                would_cancel: is_dry.then_some(count),
                jobs: is_dry.then_some(first),
                next_cursor,
            }));
        }
        cursor = next;
    }
}

/// Some jobs that match and whose end is not decided, and where to go on; none at the end.
async fn find(
    engine: &GateEngine,
    conditions: &Conditions,
    cursor: Option<JobId>,
    room: usize,
) -> Result<(Vec<JobId>, Option<JobId>), EngineRefusal> {
    let conditions = conditions.clone();
    let (views, next) = engine.read(move |gate| conditions.examine(gate, cursor, room)).await?;
    let open = views.iter().filter(|view| !view.job.has_ended() && view.decided.is_none());
    Ok((open.map(|view| view.job.id).collect(), next))
}

async fn cancel(engine: &GateEngine, jobs: Vec<JobId>) -> Result<(), EngineRefusal> {
    let mut calls = JoinSet::new();
    for job in jobs {
        let engine = engine.clone();
        calls.spawn(async move { engine.cancel(job).await });
    }
    let mut answer = Ok(());
    while let Some(called) = calls.join_next().await {
        answer = answer.and(called.expect("a call does not panic, and nobody aborts it"));
    }
    answer
}

fn said_so_far(refused: EngineRefusal, count: usize) -> ProblemResponse {
    let problem = ProblemResponse::from(refused);
    let detail = format!(
        "{}; at least {count} jobs were cancelled before that, and repeating the request cancels the rest",
        problem.detail
    );
    problem.with_detail(detail)
}
