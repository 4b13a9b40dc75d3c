//! Submitting to a gate, looking at its jobs, and commanding them. All of it is safe to repeat.

use core::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use onward_api::command::{CancelAnswer, Extend, ExtendAnswer, Nothing};
use onward_api::job::{Job, JobList};
use onward_api::ledger::Ledger;
use onward_api::submit::{BatchAnswer, BatchSubmitted, SubmitAnswer, SubmitBatch, SubmitJob};
use onward_core::gate::{JobView, TargetView};
use onward_core::ids::JobId;
use onward_core::input::Submission;
use onward_core::job::Draft;
use onward_core::job::draft::MAX_SPAN;
use onward_core::payload::Payload;
use onward_core::refusal::Refusal;
use onward_proto::MAX_ORDER_BYTES;
use onward_proto::gate::submit_bytes;
use serde::Deserialize;
use utoipa::IntoParams;

use super::filter::{EXAMINED_PER_READ, FilterDraft};
use super::follow::wait_until_ended;
use super::{GateApp, shape};
use crate::api::access::ClientConnection;
use crate::api::answers::AnswerRoom;
use crate::api::jobs::command::request_id;
use crate::api::jobs::follow::Followers;
use crate::api::jobs::request::{add_idempotency_key, add_trace, draft};
use crate::api::jobs::submit::{at_index, check_exec, parse_batch};
use crate::api::json::{Json, JsonText};
use crate::api::may::{May, Operate, Read, Submit};
use crate::api::params::{JobPath, Params, bad_cursor, page_size};
use crate::api::problem::ProblemResponse;
use crate::api::span;
use crate::engine::EngineRefusal;
use crate::gate::GateEngine;

const MAX_WAIT: Duration = Duration::from_secs(60);
const EXAMINED_PER_PAGE: usize = 200_000;
/// Results over 4 KiB in one answer, all together.
const MAX_CONTENT_BYTES: usize = 16 << 20;

/// Submit a job, to run in one datacenter or in those that it names.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = SubmitJob,
    params(("Idempotency-Key" = Option<String>, Header, description = "the same submission again gives the same job")),
    responses(
        (status = 201, description = "stored", body = SubmitAnswer),
        (status = 200, description = "known: the same key with the same body came before", body = SubmitAnswer),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 409, description = "conflict, unique_key_taken", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 503, description = "no_leader, overloaded", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn submit(
    May { access, .. }: May<Submit>,
    State(app): State<GateApp>,
    headers: HeaderMap,
    Json(mut job): Json<SubmitJob>,
) -> Result<(StatusCode, Json<SubmitAnswer>), ProblemResponse> {
    add_idempotency_key(&mut job, &headers)?;
    let mut draft = draft(job, app.engine.rules())?;
    add_trace(&mut draft, &headers);
    check_exec(&access, &draft)?;
    check_size(&draft)?;
    let submission = Submission { id: app.engine.new_job_id(), draft };
    let accepted = app.engine.submit(vec![submission]).await?[0];
    let status = if accepted.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(SubmitAnswer { id: accepted.id.to_string() })))
}

/// A job goes to a datacenter whole: one that is larger than an order may be would never get there.
fn check_size(draft: &Draft) -> Result<(), ProblemResponse> {
    /// Room for the names of the datacenters that will be chosen.
    const ROOM: usize = 1 << 20;
    let (bytes, most) = (submit_bytes(draft), MAX_ORDER_BYTES - ROOM);
    if bytes <= most {
        return Ok(());
    }
    let detail = format!(
        "this job has {bytes} bytes, and a gate takes {most} in one; put large inputs where the workers can read them, and \
         their addresses into the payloads"
    );
    Err(ProblemResponse::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail))
}

/// Submit many jobs, all or nothing.
#[utoipa::path(post, path = "/v1/jobs/batch", tag = "jobs", request_body = SubmitBatch,
    responses(
        (status = 201, description = "all are stored", body = BatchSubmitted),
        (status = 200, description = "all were known", body = BatchSubmitted),
        (status = 400, description = "invalid; `field` begins with the index of the job at fault", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn submit_batch(
    May { access, .. }: May<Submit>,
    State(app): State<GateApp>,
    headers: HeaderMap,
    JsonText(body): JsonText,
) -> Result<(StatusCode, Json<BatchSubmitted>), ProblemResponse> {
    if headers.contains_key("idempotency-key") {
        let detail = "a batch takes no header `Idempotency-Key`; give each job its own `idempotency_key`";
        return Err(ProblemResponse::invalid(detail).of_field("idempotency_key"));
    }
    let jobs = parse_batch(&body)?.jobs.take("jobs")?;
    let mut submissions = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.into_iter().enumerate() {
        let mut draft = draft(job, app.engine.rules()).map_err(|problem| at_index(index, problem))?;
        add_trace(&mut draft, &headers);
        check_exec(&access, &draft).map_err(|problem| at_index(index, problem))?;
        check_size(&draft).map_err(|problem| at_index(index, problem))?;
        submissions.push(Submission { id: app.engine.new_job_id(), draft });
    }
    let accepted = match app.engine.submit(submissions).await {
        Err(EngineRefusal::ByMachine(Refusal::InBatch { index, cause })) => {
            return Err(at_index(index, ProblemResponse::from(*cause)));
        }
        other => other?,
    };
    let status = if accepted.iter().any(|job| !job.duplicate) { StatusCode::CREATED } else { StatusCode::OK };
    let jobs = accepted.iter().map(|job| BatchAnswer { id: job.id.to_string(), duplicate: job.duplicate }).collect();
    Ok((status, Json(BatchSubmitted { jobs })))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// A state's word.
    state: Option<String>,
    kind: Option<String>,
    queue: Option<String>,
    tag: Option<String>,
    /// Only jobs that run, or are to run, in this datacenter.
    datacenter: Option<String>,
    /// Only jobs that have made no forward step for this long in a datacenter where they have not ended.
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
}

/// List jobs, the newest first.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(ListQuery),
    responses((status = 200, body = JobList),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 503, description = "overloaded", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn list(
    _: May<Read>,
    State(app): State<GateApp>,
    Extension(answers): Extension<AnswerRoom>,
    connection: Option<Extension<ClientConnection>>,
    Params(query): Params<ListQuery>,
) -> Result<Response, ProblemResponse> {
    let limit = page_size(query.limit)?;
    let mut cursor = query.cursor.as_deref().map(|text| JobId::parse(text).ok_or_else(bad_cursor)).transpose()?;
    let ListQuery { state, kind, queue, tag, datacenter, not_moving_s, since_s, limit: _, cursor: _ } = query;
    let written = FilterDraft { state, kind, queue, tag, datacenter, not_moving_s, since_s };
    let conditions = written.check(&app.engine).await?;
    let (mut jobs, mut examined) = (Vec::new(), 0);
    loop {
        let (asked, room) = (conditions.clone(), limit - jobs.len());
        let (mut found, next) = app.engine.read(move |gate| asked.examine(gate, cursor, room)).await?;
        jobs.append(&mut found);
        examined += EXAMINED_PER_READ;
        if jobs.len() == limit || examined >= EXAMINED_PER_PAGE || next.is_none() {
            let room = answers.room(jobs.iter().map(weight).sum())?;
            let jobs = jobs.iter().map(shape::job).collect();
            let list = JobList { jobs, next_cursor: next.map(|job| job.to_string()) };
            return Ok(room.answer(&list, connection.map(|Extension(connection)| connection)));
        }
        cursor = next;
    }
}

/// About how many bytes a job in a list has, without results that lie in the store.
fn weight(view: &JobView) -> usize {
    /// A result is shown for its datacenter, and among the results.
    const SHOWN: usize = 2;
    let of_target = |target: &TargetView| {
        let result = target.end.as_ref().and_then(|end| end.result.as_ref());
        256 + result.filter(|result| result.as_stored().is_none()).map_or(0, |result| SHOWN * result.len())
    };
    1_024 + view.targets.iter().map(of_target).sum::<usize>()
}

/// Look at one job; with `wait_s`, when it has ended.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path), GetQuery),
    responses((status = 200, body = Job),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn get(
    May { access, .. }: May<Read>,
    State(app): State<GateApp>,
    Extension(followers): Extension<Followers>,
    Extension(answers): Extension<AnswerRoom>,
    connection: Option<Extension<ClientConnection>>,
    JobPath(job): JobPath,
    Params(query): Params<GetQuery>,
) -> Result<Response, ProblemResponse> {
    let wait = query.wait_s.map(|wait| span::from_seconds("wait_s", wait, Duration::ZERO..=MAX_WAIT)).transpose()?;
    let mut view = match wait {
        Some(wait) if !wait.is_zero() => wait_until_ended(&app, &access, &followers, job, wait).await?,
        _ => view_of(&app.engine, job).await?,
    };
    let room = answers.room(4_096 + result_bytes(&view).min(MAX_CONTENT_BYTES))?;
    fetch_results(&app.engine, &mut view, MAX_CONTENT_BYTES).await?;
    Ok(room.answer(&shape::job(&view), connection.map(|Extension(connection)| connection)))
}

fn result_bytes(view: &JobView) -> usize {
    let ends = view.targets.iter().filter_map(|target| target.end.as_ref()?.result.as_ref());
    ends.map(Payload::len).sum()
}

/// Puts the bytes of results into the view, if all of them together are at most so many.
pub(super) async fn fetch_results(engine: &GateEngine, view: &mut JobView, max: usize) -> Result<(), ProblemResponse> {
    if result_bytes(view) > max {
        return Ok(());
    }
    let job = view.job.id;
    for target in &mut view.targets {
        if let Some(result) = target.end.as_mut().and_then(|end| end.result.as_mut()) {
            engine.fetch(job, result).await?;
        }
    }
    Ok(())
}

/// The job, without what is large of its results.
pub(super) async fn view_of(engine: &GateEngine, job: JobId) -> Result<JobView, ProblemResponse> {
    engine.read(move |gate| gate.job(job)).await?.ok_or_else(|| Refusal::UnknownJob.into())
}

/// Every decision of the gates about a job's time. What a datacenter decided is in the ledger there.
#[utoipa::path(get, path = "/v1/jobs/{id}/ledger", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, body = Ledger),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn ledger(
    _: May<Read>,
    State(app): State<GateApp>,
    JobPath(job): JobPath,
) -> Result<Json<Ledger>, ProblemResponse> {
    Ok(Json(shape::ledger(&view_of(&app.engine, job).await?)))
}

/// Cancel a job in all its datacenters. One that has ended stays as it is.
#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", tag = "jobs", params(("id" = String, Path)), request_body = Nothing,
    responses((status = 200, body = CancelAnswer),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn cancel(
    _: May<Submit>,
    State(app): State<GateApp>,
    JobPath(job): JobPath,
    _: Json<Nothing>,
) -> Result<Json<CancelAnswer>, ProblemResponse> {
    app.engine.cancel(job).await?;
    let state = view_of(&app.engine, job).await?.state.into();
    Ok(Json(CancelAnswer { id: job.to_string(), state }))
}

/// Give a job more time by hand, in all its datacenters.
#[utoipa::path(post, path = "/v1/jobs/{id}/extend", tag = "jobs", params(("id" = String, Path)), request_body = Extend,
    responses((status = 200, body = ExtendAnswer),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 409, description = "already_ended, conflict", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn extend(
    _: May<Operate>,
    State(app): State<GateApp>,
    JobPath(job): JobPath,
    Json(extend): Json<Extend>,
) -> Result<Json<ExtendAnswer>, ProblemResponse> {
    let by = span::from_seconds("by_s", extend.by_s, Duration::from_millis(1)..=MAX_SPAN)?;
    let request = request_id(extend.request_id)?;
    let total = app.engine.extend(job, by, extend.reason.into(), request).await?;
    Ok(Json(ExtendAnswer { extensions_s: total.as_secs_f64() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onward_core::job::draft::WorkflowDraft;

    #[test]
    fn a_job_that_no_datacenter_could_be_sent_is_refused() {
        let draft = |workflows| {
            let payload = Payload::Inline(vec![b'1'; 1 << 20].into());
            let workflow = WorkflowDraft { kind: "k".into(), payload, ..WorkflowDraft::default() };
            Draft { workflows: vec![workflow; workflows], ..Draft::default() }
        };
        assert!(check_size(&draft(30)).is_ok());
        let problem = check_size(&draft(31)).expect_err("it is too large").into_body();
        assert_eq!((problem.status, &*problem.code), (413, "too_large"), "{}", problem.detail);
    }
}
