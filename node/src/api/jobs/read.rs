//! Looking at jobs, one by one and page by page.

use std::collections::HashSet;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use onward_api::job::{Job, JobList};
use onward_api::ledger::Ledger;
use onward_core::ids::JobId;
use onward_core::input::Filter;
use onward_core::manager::JobView;
use onward_core::payload::Payload;
use onward_core::refusal::Refusal;
use onward_core::state::EndedAttempt;
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::access::ClientConnection;
use super::super::answers::AnswerRoom;
use super::super::json::Json;
use super::super::may::{May, Read};
use super::super::params::{JobPath, Params, bad_cursor, page_size};
use super::super::problem::ProblemResponse;
use super::super::{App, span};
use super::filter::{Conditions, all_too_old};
use super::follow::{Followers, wait_until_ended};
use super::shape::{self, Detail, weight};
use crate::engine::{DamagedContent, Engine, ReadView};
use axum::Extension;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// A state's word.
    state: Option<String>,
    kind: Option<String>,
    queue: Option<String>,
    tag: Option<String>,
    /// Only jobs with an attempt that has made no forward step for this long, and did not announce a silence.
    not_moving_s: Option<f64>,
    /// Only jobs that were submitted within this time.
    since_s: Option<f64>,
    /// From 1 to 1000; 100 unless said.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GetQuery {
    /// Answer when the job has ended, or after this long: 0 to 60.
    wait_s: Option<f64>,
    /// Payload and result of this workflow, however large, and no large ones of others.
    workflow: Option<String>,
}

/// Payloads and results over 4 KiB in one answer, all together. A job of one workflow is shown whole.
const MAX_CONTENT_BYTES: usize = 16 << 20;

const MAX_WAIT: Duration = Duration::from_secs(60);

/// List jobs, the newest first.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(ListQuery),
    responses((status = 200, body = JobList),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 503, description = "overloaded", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn list(
    _: May<Read>,
    State(app): State<App>,
    Extension(answers): Extension<AnswerRoom>,
    connection: Option<Extension<ClientConnection>>,
    Params(query): Params<ListQuery>,
) -> Result<Response, ProblemResponse> {
    let limit = page_size(query.limit)?;
    let cursor = query.cursor.as_deref().map(|text| JobId::parse(text).ok_or_else(bad_cursor)).transpose()?;
    let ListQuery { state, kind, queue, tag, not_moving_s, since_s, limit: _, cursor: _ } = query;
    let filter = Conditions { state, kind, queue, tag, not_moving_s, since_s }.check(&app.engine).await?;
    let (views, next) = page(&app.engine, filter, cursor, limit).await?;
    // Contents that are not fetched are weighed and not shown.
    let room = answers.room(views.iter().map(weight).sum::<usize>().min(2 * PAGE_BYTES))?;
    let jobs = views.iter().map(|view| shape::job(view, Detail::Brief)).collect();
    let list = JobList { jobs, next_cursor: next.map(|job| job.to_string()) };
    Ok(room.answer(&list, connection.map(|Extension(connection)| connection)))
}

/// Look at one job; with `wait_s`, when it has ended.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path), GetQuery),
    responses((status = 200, body = Job),
        (status = 404, description = "unknown_job, unknown_workflow", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 500, description = "damaged", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 503, description = "overloaded", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn get(
    May { access, .. }: May<Read>,
    State(app): State<App>,
    Extension(followers): Extension<Followers>,
    Extension(answers): Extension<AnswerRoom>,
    connection: Option<Extension<ClientConnection>>,
    JobPath(job): JobPath,
    Params(query): Params<GetQuery>,
) -> Result<Response, ProblemResponse> {
    let wait = query.wait_s.map(|wait| span::from_seconds("wait_s", wait, Duration::ZERO..=MAX_WAIT)).transpose()?;
    let mut view = match wait {
        Some(wait) if !wait.is_zero() => wait_until_ended(&app, &access, &followers, job, wait).await?,
        _ => without_contents(&app.engine, job).await?,
    };
    let only = match &query.workflow {
        Some(name) => Some(place(&view, name)?),
        // All of its content is that of one.
        None => (view.workflows.len() == 1).then_some(0),
    };
    let room = answers.room(shown_bytes(&view, only))?;
    let damaged = app.engine.fetch_contents(&mut view, only, MAX_CONTENT_BYTES).await?;
    // A caller that names a workflow asks for its content, and for nothing else.
    if query.workflow.is_some()
        && let Some(DamagedContent { refused, .. }) = damaged.first()
    {
        return Err(ProblemResponse::from(refused.clone()).of_field("workflow"));
    }
    let shown = shape::job_with_damage(&view, Detail::Full, &damaged);
    Ok(room.answer(&shown, connection.map(|Extension(connection)| connection)))
}

fn place(view: &JobView, name: &str) -> Result<usize, ProblemResponse> {
    let place = view.workflows.iter().position(|workflow| workflow.name.as_str() == name);
    place.ok_or_else(|| ProblemResponse::from(Refusal::UnknownWorkflow).of_field("workflow"))
}

/// About how many bytes the answer will have.
fn shown_bytes(view: &JobView, only: Option<usize>) -> usize {
    let (mut small, mut large) = (1_024, 0);
    for (n, (workflow, spec)) in view.workflows.iter().zip(view.spec.workflows.iter()).enumerate() {
        small += 512 * (1 + workflow.ended.len());
        for payload in workflow.ended.iter().filter_map(EndedAttempt::result).chain([&spec.payload]) {
            match payload {
                Payload::Inline(bytes) => small += bytes.len(),
                Payload::Stored(stored) if only.is_none_or(|only| only == n) => large += stored.len as usize,
                Payload::Stored(_) => {}
            }
        }
    }
    small + if only.is_some() { large } else { large.min(MAX_CONTENT_BYTES) }
}

/// Every decision about a job's time.
#[utoipa::path(get, path = "/v1/jobs/{id}/ledger", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, body = Ledger),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn ledger(
    _: May<Read>,
    State(app): State<App>,
    JobPath(job): JobPath,
) -> Result<Json<Ledger>, ProblemResponse> {
    Ok(Json(super::ledger::ledger(&without_contents(&app.engine, job).await?)))
}

/// The job without what is large of its payloads and results.
pub async fn without_contents(engine: &Engine, job: JobId) -> Result<JobView, ProblemResponse> {
    match engine.read(move |view| view.manager.job(job)).await? {
        Some(view) => Ok(view),
        None => match engine.archived(job).await? {
            Some(image) => Ok(JobView::of_image(&image)),
            None => Err(Refusal::UnknownJob.into()),
        },
    }
}

/// Jobs that one read examines: everything else waits for the machine's thread meanwhile.
const EXAMINED_PER_READ: usize = 2_000;
const EXAMINED_PER_PAGE: usize = 200_000;
const ARCHIVED_PER_READ: usize = 1_000;
/// Bytes of one page, roughly, when it is written as JSON.
const PAGE_BYTES: usize = 8 << 20;

/// The findings of one read. A workflow counts like a job: looking at it takes as long.
#[derive(Default)]
struct Part {
    jobs: Vec<JobView>,
    bytes: usize,
    examined: usize,
    /// The job to go on from; none at the end.
    next: Option<JobId>,
}

/// Goes back from the cursor in short reads, until the page is full, nothing is left, or enough was looked at. Jobs in
/// memory and jobs of the archive come in one order.
async fn page(
    engine: &Engine,
    filter: Filter,
    mut cursor: Option<JobId>,
    limit: usize,
) -> Result<(Vec<JobView>, Option<JobId>), ProblemResponse> {
    let (mut jobs, mut bytes, mut examined): (Vec<JobView>, _, _) = (Vec::new(), 0, 0);
    loop {
        let (asked, room) = (filter.clone(), limit - jobs.len());
        let part = engine.read(move |view| examine(view, &asked, cursor, room, PAGE_BYTES - bytes)).await?;
        // A job that moves to the archive now is there before it leaves memory: this way round none is missed.
        let (images, more) = match filter.not_moving {
            // An archived job does not run.
            Some(_) => (Vec::new(), false),
            None => engine.archived_before(cursor, ARCHIVED_PER_READ).await?,
        };
        examined += part.examined + images.len();
        let last = images.last().filter(|image| more && !all_too_old(&filter, image.created_at));
        let archived_end = last.map(|image| image.id);
        // Down to here both were looked through.
        let end = part.next.max(archived_end);
        let mut found = part.jobs;
        let known: HashSet<JobId> = found.iter().map(|job| job.id).collect();
        let matching = images.iter().filter(|image| filter.admits_archived(image));
        found.extend(matching.filter(|image| !known.contains(&image.id)).map(JobView::of_image));
        found.retain(|job| end.is_none_or(|end| job.id >= end));
        found.sort_by_key(|job| core::cmp::Reverse(job.id));
        let cut = found.len() > room;
        found.truncate(room);
        bytes += found.iter().map(weight).sum::<usize>();
        jobs.append(&mut found);
        let next = if cut { jobs.last().map(|job| job.id) } else { end };
        let enough = jobs.len() == limit || bytes >= PAGE_BYTES || examined >= EXAMINED_PER_PAGE;
        if enough || next.is_none() {
            return Ok((jobs, next));
        }
        cursor = next;
    }
}

fn examine(view: &ReadView<'_>, filter: &Filter, cursor: Option<JobId>, room: usize, bytes: usize) -> Part {
    let state = view.manager.state();
    let mut part = Part::default();
    let mut ids = view.catalog.newest_before(cursor).peekable();
    while let Some(id) = ids.next() {
        let Some(key) = state.find(id) else { continue };
        if all_too_old(filter, state.job(key).created_at) {
            break;
        }
        part.examined += 1 + state.job(key).workflows.as_slice().len();
        if view.manager.matches(key, filter)
            && let Some(job) = view.manager.job(id)
        {
            part.bytes += weight(&job);
            part.jobs.push(job);
        }
        if part.jobs.len() == room || part.bytes >= bytes || part.examined >= EXAMINED_PER_READ {
            part.next = ids.peek().map(|_| id);
            break;
        }
    }
    part
}
