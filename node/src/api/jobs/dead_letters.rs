//! Dead letters: jobs with a workflow that failed for good, until somebody replays or drops them.

use axum::extract::State;
use onward_api::dead_letter::{
    DeadLetterList, DropAnswer, DropAnswers, DropLetters, MAX_JOBS, Replay, ReplayAnswer, ReplayAnswers, ReplayFromWord,
};
use onward_api::few::Few;
use onward_core::ids::JobId;
use onward_core::input::{Filter, ReplayFrom};
use onward_core::manager::JobView;
use onward_core::refusal::Refusal;
use onward_core::state::JobKey;
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::App;
use super::super::json::Json;
use super::super::may::{May, Operate, Read};
use super::super::params::{Params, bad_cursor, page_size};
use super::super::problem::ProblemResponse;
use super::command::request_id;
use super::filter::Conditions;
use super::shape::{self, Detail, weight};
use super::submit::check_exec_again;
use crate::engine::{EngineRefusal, ReadView, ResultFault};

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeadLetterQuery {
    /// A state's word: `failed` or `timed_out`.
    state: Option<String>,
    kind: Option<String>,
    queue: Option<String>,
    tag: Option<String>,
    /// Only jobs that were submitted within this time.
    since_s: Option<f64>,
    /// From 1 to 1000; 100 unless said.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List dead letters.
#[utoipa::path(get, path = "/v1/dead-letters", tag = "dead letters", params(DeadLetterQuery),
    responses((status = 200, body = DeadLetterList),
        (status = 400, description = "invalid", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn list(
    _: May<Read>,
    State(app): State<App>,
    Params(query): Params<DeadLetterQuery>,
) -> Result<Json<DeadLetterList>, ProblemResponse> {
    let limit = page_size(query.limit)?;
    let after = query.cursor.map(|text| text.parse::<u64>().map_err(|_| bad_cursor())).transpose()?;
    let DeadLetterQuery { state, kind, queue, tag, since_s, .. } = query;
    let filter = Conditions { state, kind, queue, tag, since_s, ..Conditions::default() }.check(&app.engine).await?;
    let (views, next) = app.engine.read(move |view| page(view, &filter, after, limit)).await?;
    let dead_letters = views.iter().map(|view| shape::job(view, Detail::Brief)).collect();
    Ok(Json(DeadLetterList { dead_letters, next_cursor: next.map(|seq| seq.to_string()) }))
}

const PAGE_BYTES: usize = 8 << 20;
/// Jobs that one read examines: everything else waits for the machine's thread meanwhile.
const EXAMINED_PER_PAGE: usize = 2_000;

/// The cursor is when the last one died, so that it stays right when others are dropped.
fn page(view: &ReadView<'_>, filter: &Filter, after: Option<u64>, limit: usize) -> (Vec<JobView>, Option<u64>) {
    let state = view.manager.state();
    let died = |key: JobKey| state.job(key).more.as_ref().and_then(|more| more.died).map_or(0, |seq| seq.0);
    let keys: Vec<JobKey> = state.dead_letters().collect();
    let begin = after.map_or(0, |after| keys.partition_point(|key| died(*key) <= after));
    let mut jobs = Vec::new();
    let (mut bytes, mut examined) = (0, 0);
    for (at, key) in keys.iter().enumerate().skip(begin) {
        if jobs.len() == limit || bytes >= PAGE_BYTES || examined >= EXAMINED_PER_PAGE {
            return (jobs, Some(died(keys[at - 1])));
        }
        examined += state.job(*key).workflows.as_slice().len();
        if view.manager.matches(*key, filter) {
            let job = view.manager.job(state.job(*key).id).expect("a dead letter is a job");
            bytes += weight(&job);
            jobs.push(job);
        }
    }
    (jobs, None)
}

/// Submit the jobs of dead letters again, as new ones: from the failed workflow on, or from the start.
#[utoipa::path(post, path = "/v1/dead-letters/replay", tag = "dead letters", request_body = Replay,
    responses((status = 200, body = ReplayAnswers),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json"),
        (status = 409, description = "not_a_dead_letter, conflict", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn replay(
    May { access, .. }: May<Operate>,
    State(app): State<App>,
    Json(replay): Json<Replay>,
) -> Result<Json<ReplayAnswers>, ProblemResponse> {
    let request = request_id(replay.request_id)?;
    let jobs = ids(replay.jobs)?;
    check_exec_again(&app, &access, jobs.clone()).await?;
    let from = match replay.from {
        ReplayFromWord::Failed => ReplayFrom::Failed,
        ReplayFromWord::Start => ReplayFrom::Start,
    };
    if let Some((index, refusal)) = app.engine.replay_fault(jobs.clone(), request.clone(), from).await? {
        return Err(ProblemResponse::from(refusal).of_field(format!("jobs[{index}]")));
    }
    if from == ReplayFrom::Failed
        && let Some(fault) = app.engine.result_fault(&jobs).await?
    {
        return Err(unreadable(fault));
    }
    let mut answers = Vec::with_capacity(jobs.len());
    for job in jobs {
        let new_id = app.engine.new_job_id();
        let (id, problem) = match app.engine.replay_dead_letter(job, new_id, request.clone(), from).await {
            Ok(job) => (Some(job.to_string()), None),
            Err(EngineRefusal::ByMachine(refusal)) => (None, Some(ProblemResponse::from(refusal).into_body())),
            Err(refused) => return Err(interrupted(refused, answers.len())),
        };
        answers.push(ReplayAnswer { job: job.to_string(), id, problem });
    }
    Ok(Json(ReplayAnswers { jobs: answers }))
}

/// Forget dead letters. The jobs themselves stay until they are archived.
#[utoipa::path(post, path = "/v1/dead-letters/drop", tag = "dead letters", request_body = DropLetters,
    responses((status = 200, body = DropAnswers),
        (status = 404, description = "unknown_job", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn drop_letters(
    _: May<Operate>,
    State(app): State<App>,
    Json(drop): Json<DropLetters>,
) -> Result<Json<DropAnswers>, ProblemResponse> {
    let jobs = ids(drop.jobs)?;
    if let Some(index) = app.engine.first_unknown(jobs.clone()).await? {
        return Err(ProblemResponse::from(Refusal::UnknownJob).of_field(format!("jobs[{index}]")));
    }
    let mut answers = Vec::with_capacity(jobs.len());
    for job in jobs {
        let dropped = match app.engine.drop_dead_letter(job).await {
            Ok(()) => true,
            Err(EngineRefusal::ByMachine(Refusal::NotADeadLetter | Refusal::UnknownJob)) => false,
            Err(refused) => return Err(interrupted(refused, answers.len())),
        };
        answers.push(DropAnswer { job: job.to_string(), dropped });
    }
    Ok(Json(DropAnswers { jobs: answers }))
}

/// The problem for a result that cannot be read, which is not taken for empty: the caller decides whether to run
/// everything again.
fn unreadable(fault: ResultFault) -> ProblemResponse {
    let ResultFault { index, workflow, refused } = fault;
    let problem = ProblemResponse::from(refused);
    let detail = format!(
        "the result of workflow `{workflow}` cannot be taken over: {}; nothing was replayed: repeat it, or replay from \
         `start`, which runs every workflow again",
        problem.detail
    );
    problem.with_detail(detail).of_field(format!("jobs[{index}]"))
}

fn interrupted(refused: EngineRefusal, done: usize) -> ProblemResponse {
    let problem = ProblemResponse::from(refused);
    let detail = format!("{}; {done} of the jobs were done, and repeating the whole request is safe", problem.detail);
    problem.with_detail(detail)
}

fn ids(jobs: Few<String, MAX_JOBS>) -> Result<Vec<JobId>, ProblemResponse> {
    let jobs = jobs.take("jobs")?;
    if jobs.is_empty() {
        return Err(ProblemResponse::invalid("`jobs` is empty; name at least one job").of_field("jobs"));
    }
    let unknown = |index: usize| ProblemResponse::from(Refusal::UnknownJob).of_field(format!("jobs[{index}]"));
    jobs.iter().enumerate().map(|(index, text)| JobId::parse(text).ok_or_else(|| unknown(index))).collect()
}
