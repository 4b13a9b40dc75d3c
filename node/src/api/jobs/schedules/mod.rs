//! Schedules over HTTP. What becomes of each due instant is decided by the core; this is how people set them and see it.
//!
//! Changing a schedule is an operator's affair, and whatever makes jobs also needs what submitting them needs: a
//! schedule that runs commands is set, resumed and run by those who may submit commands.

mod request;
mod shape;
mod template;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Router, extract::DefaultBodyLimit};
use onward_api::command::Nothing;
use onward_api::schedule::{RecordList, RemoveAnswer, RunNow, Schedule, ScheduleList, SetSchedule};
use onward_api::submit::SubmitAnswer;
use onward_core::ids::{JobId, Name};
use onward_core::refusal::Refusal;
use onward_core::schedule::{RECORDS_KEPT, Record};
use onward_core::state::{Schedule as Known, ScheduleTrouble};
use onward_core::time::Wall;
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::App;
use super::super::access::{Access, Scope};
use super::super::json::Json;
use super::super::may::{May, Operate, Read, Submit};
use super::super::params::{Params, SchedulePath};
use super::super::problem::ProblemResponse;
use super::JOB_BYTES;
use super::submit::{EXEC, needs_token_for_exec};
use crate::engine::ReadView;
use request::{request_of, schedule_draft};

pub fn routes() -> Router<App> {
    Router::new()
        .route("/schedules", get(list))
        .route("/schedules/{name}", get(get_one).put(put).delete(remove).layer(DefaultBodyLimit::max(JOB_BYTES)))
        .route("/schedules/{name}/records", get(records))
        .route("/schedules/{name}/pause", post(pause))
        .route("/schedules/{name}/resume", post(resume))
        .route("/schedules/{name}/run-now", post(run_now))
}

/// The description of [`routes`].
#[derive(Debug, utoipa::OpenApi)]
#[openapi(paths(list, get_one, put, remove, records, pause, resume, run_now))]
pub struct SchedulesApi;

/// Schedules of one page.
const PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RecordPage {
    /// At most so many.
    limit: Option<usize>,
    /// Go on where a page ended.
    cursor: Option<String>,
}

impl RecordPage {
    fn limit(&self, usual: usize, most: usize) -> Result<usize, ProblemResponse> {
        match self.limit {
            None => Ok(usual),
            Some(limit) if (1..=most).contains(&limit) => Ok(limit),
            Some(limit) => {
                let detail = format!("`limit` is {limit}; it must be from 1 to {most}");
                Err(ProblemResponse::invalid(detail).of_field("limit"))
            }
        }
    }
}

/// List schedules, by name.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules", params(RecordPage),
    responses((status = 200, body = ScheduleList)))]
pub async fn list(
    _: May<Read>,
    State(app): State<App>,
    Params(page): Params<RecordPage>,
) -> Result<Json<ScheduleList>, ProblemResponse> {
    let limit = page.limit(PAGE, MAX_PAGE)?;
    let after = page.cursor.and_then(Name::new);
    let found = app.engine.read(move |view| {
        use core::ops::Bound::{Excluded, Unbounded};
        let from = after.as_ref().map_or(Unbounded, Excluded);
        let all = view.manager.state().schedules().range::<Name, _>((from, Unbounded));
        all.take(limit + 1).map(|(name, schedule)| (name.clone(), brief(name, schedule, view))).collect::<Vec<_>>()
    });
    let mut found = found.await?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = found.last().filter(|_| has_more).map(|(name, _)| name.to_string());
    let now = crate::clock::now().wall;
    let schedules = found.iter().map(|(name, (known, trouble))| shape::schedule(name, known, *trouble, now)).collect();
    Ok(Json(ScheduleList { schedules, next_cursor }))
}

/// The schedule without all records but the last, which is what is shown, but with the trouble that they tell of.
fn brief(name: &Name, schedule: &Known, view: &ReadView<'_>) -> Brief {
    let now = view.manager.log_time_at(crate::clock::now().mono);
    let trouble = view.manager.schedule_trouble(name, now);
    let last = schedule.last().cloned();
    let mut brief = Known { records: Default::default(), ..schedule.clone() };
    brief.records.list.extend(last);
    (brief, trouble)
}

type Brief = (Known, Option<(ScheduleTrouble, Wall)>);

async fn find(app: &App, name: &Name) -> Result<Brief, ProblemResponse> {
    let wanted = name.clone();
    let read =
        move |view: &ReadView<'_>| view.manager.state().schedule(&wanted).map(|known| brief(&wanted, known, view));
    let found = app.engine.read(read).await?;
    found.ok_or_else(|| Refusal::UnknownSchedule.into())
}

async fn shown(app: &App, name: &Name) -> Result<Schedule, ProblemResponse> {
    let (mut known, trouble) = find(app, name).await?;
    template::fetch(&app.engine, &mut known).await?;
    Ok(shape::schedule(name, &known, trouble, crate::clock::now().wall))
}

/// Get a schedule: its plan, its next and its last run.
#[utoipa::path(get, path = "/v1/schedules/{name}", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = Schedule),
        (status = 404, description = "unknown_schedule", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn get_one(
    _: May<Read>,
    State(app): State<App>,
    SchedulePath(name): SchedulePath,
) -> Result<Json<Schedule>, ProblemResponse> {
    Ok(Json(shown(&app, &name).await?))
}

/// Set a schedule: a new one, or another plan for one that is there.
#[utoipa::path(put, path = "/v1/schedules/{name}", tag = "schedules", params(("name" = String, Path)),
    request_body = SetSchedule, responses(
        (status = 201, description = "a new one", body = Schedule),
        (status = 200, description = "another plan, or the same", body = Schedule),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 403, description = "forbidden, exec_needs_token", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 429, description = "limited", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn put(
    May { access, .. }: May<Operate>,
    State(app): State<App>,
    SchedulePath(name): SchedulePath,
    Json(body): Json<SetSchedule>,
) -> Result<(StatusCode, Json<Schedule>), ProblemResponse> {
    access.need(Scope::Submit)?;
    let draft = schedule_draft(body, name.clone(), app.engine.rules())?;
    if !access.may_exec() && draft.job.workflows.iter().any(|workflow| &*workflow.kind == EXEC) {
        return Err(needs_token_for_exec());
    }
    let is_new = app.engine.set_schedule(Box::new(draft)).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(shown(&app, &name).await?)))
}

/// Remove a schedule, and what is known of its instants. Its runs go on.
#[utoipa::path(delete, path = "/v1/schedules/{name}", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = RemoveAnswer),
        (status = 404, description = "unknown_schedule", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn remove(
    _: May<Operate>,
    State(app): State<App>,
    SchedulePath(name): SchedulePath,
) -> Result<Json<RemoveAnswer>, ProblemResponse> {
    app.engine.remove_schedule(name.clone()).await?;
    Ok(Json(RemoveAnswer { name: name.to_string(), removed: true }))
}

/// Start nothing that is due until it is resumed.
#[utoipa::path(post, path = "/v1/schedules/{name}/pause", tag = "schedules", params(("name" = String, Path)),
    request_body = Nothing, responses((status = 200, body = Schedule),
        (status = 404, description = "unknown_schedule", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn pause(
    _: May<Operate>,
    State(app): State<App>,
    SchedulePath(name): SchedulePath,
    _: Json<Nothing>,
) -> Result<Json<Schedule>, ProblemResponse> {
    app.engine.pause_schedule(name.clone()).await?;
    Ok(Json(shown(&app, &name).await?))
}

/// Start again what is due.
#[utoipa::path(post, path = "/v1/schedules/{name}/resume", tag = "schedules", params(("name" = String, Path)),
    request_body = Nothing, responses((status = 200, body = Schedule),
        (status = 403, description = "exec_needs_token", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 404, description = "unknown_schedule", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn resume(
    May { access, .. }: May<Operate>,
    State(app): State<App>,
    SchedulePath(name): SchedulePath,
    _: Json<Nothing>,
) -> Result<Json<Schedule>, ProblemResponse> {
    check_exec(&app, &access, &name).await?;
    app.engine.resume_schedule(name.clone()).await?;
    Ok(Json(shown(&app, &name).await?))
}

/// Run it at once, besides the runs that are due.
#[utoipa::path(post, path = "/v1/schedules/{name}/run-now", tag = "schedules", params(("name" = String, Path)),
    request_body = RunNow, responses(
        (status = 201, description = "a run was started", body = SubmitAnswer),
        (status = 200, description = "known: the run of the same request", body = SubmitAnswer),
        (status = 403, description = "exec_needs_token", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 404, description = "unknown_schedule", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 409, description = "unique_key_taken", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 429, description = "limited", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn run_now(
    May { access, .. }: May<Submit>,
    State(app): State<App>,
    SchedulePath(schedule): SchedulePath,
    Json(body): Json<RunNow>,
) -> Result<(StatusCode, Json<SubmitAnswer>), ProblemResponse> {
    check_exec(&app, &access, &schedule).await?;
    let request = request_of(body)?;
    let run = app.engine.run_schedule(schedule, request).await?;
    let status = if run.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(SubmitAnswer { id: run.id.to_string() })))
}

/// Making jobs that run commands needs what submitting one does.
async fn check_exec(app: &App, access: &Access, name: &Name) -> Result<(), ProblemResponse> {
    if access.may_exec() {
        return Ok(());
    }
    let (known, _) = find(app, name).await?;
    if known.plan.job.workflows.iter().any(|workflow| workflow.kind.as_str() == EXEC) {
        return Err(needs_token_for_exec());
    }
    Ok(())
}

/// What became of due instants, the newest first. The last 256 records are kept.
#[utoipa::path(get, path = "/v1/schedules/{name}/records", tag = "schedules", params(("name" = String, Path), RecordPage),
    responses((status = 200, body = RecordList),
        (status = 404, description = "unknown_schedule", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn records(
    _: May<Read>,
    State(app): State<App>,
    SchedulePath(name): SchedulePath,
    Params(page): Params<RecordPage>,
) -> Result<Json<RecordList>, ProblemResponse> {
    let limit = page.limit(PAGE, RECORDS_KEPT)?;
    let before = match &page.cursor {
        None => None,
        Some(text) => Some(parse_record_cursor(text).ok_or_else(|| {
            ProblemResponse::invalid("`cursor` is not one that a page of records gave").of_field("cursor")
        })?),
    };
    let found = app.engine.read(move |view| {
        let schedule = view.manager.state().schedule(&name)?;
        let newest_first = schedule.records.list.iter().rev();
        let rest = newest_first.skip_while(|record| before.is_some_and(|before| (record.due, record.job) != before));
        let page = rest.skip(usize::from(before.is_some())).take(limit + 1);
        Some((page.cloned().collect::<Vec<_>>(), schedule.records.dropped))
    });
    let (mut found, dropped) = found.await?.ok_or(Refusal::UnknownSchedule)?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = found.last().filter(|_| has_more).map(record_cursor);
    Ok(Json(RecordList { records: found.iter().map(shape::record).collect(), next_cursor, dropped }))
}

/// A cursor that tells a record from all others of its schedule. Several runs may be asked for in one millisecond.
fn record_cursor(record: &Record) -> String {
    let due = record.due.as_ms();
    record.job.map_or_else(|| due.to_string(), |job| format!("{due}.{job}"))
}

fn parse_record_cursor(text: &str) -> Option<(Wall, Option<JobId>)> {
    let (due, job) = match text.split_once('.') {
        Some((due, job)) => (due, Some(JobId::parse(job)?)),
        None => (text, None),
    };
    Some((Wall::from_ms(due.parse().ok()?), job))
}

#[cfg(test)]
mod tests {
    use onward_core::schedule::RecordReason;

    use super::*;

    #[test]
    fn records_of_one_millisecond_have_cursors_of_their_own() {
        let due = Wall::from_ms(1_800_000_000_000);
        let runs = [1, 2].map(|n| Record::fired(due, RecordReason::RunNow, due, JobId::from_u128(n)));
        let passed = Record { job: None, reason: RecordReason::StillRunning, ..runs[0].clone() };
        for record in runs.iter().chain([&passed]) {
            assert_eq!(parse_record_cursor(&record_cursor(record)), Some((record.due, record.job)));
        }
        assert_ne!(record_cursor(&runs[0]), record_cursor(&runs[1]));
        for text in ["", "x", "1.", "1.x", ".", "-1"] {
            assert_eq!(parse_record_cursor(text), None, "{text:?}");
        }
    }
}
