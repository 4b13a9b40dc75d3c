//! Queues: what is in them, and whether they are paused. And how the manager is doing.

use std::collections::BTreeMap;

use axum::extract::State;
use onward_core::ids::{JobId, Name};
use onward_core::input::Call;
use onward_core::manager::SeatState;
use serde::Serialize;
use utoipa::ToSchema;

use super::super::App;
use super::super::json::Json;
use super::super::may::{May, Operate, Read};
use super::super::params::QueuePath;
use super::super::problem::Problem;
use super::command::Nothing;
use super::nodes::Health;
use crate::engine::{Engine, View};

#[derive(Debug, Serialize, ToSchema)]
pub struct QueueList {
    pub queues: Vec<Queue>,
    /// Always none: all queues are in one answer.
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Queue {
    pub name: String,
    pub paused: bool,
    /// Workflows that wait for a worker and no full concurrency key: exact.
    pub ready_workflows: u64,
    /// Jobs by state.
    pub counts: BTreeMap<&'static str, u64>,
    /// `counts` are of the newest jobs only, since there are too many to count.
    pub approximate: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Paused {
    pub name: String,
    pub paused: bool,
}

const JOBS_PER_READ: usize = 2_000;
const MAX_JOBS: usize = 200_000;
/// More queues than this are not listed.
const MAX_QUEUES: usize = 10_000;

#[derive(Default)]
struct Counted {
    paused: bool,
    ready: u64,
    by_state: BTreeMap<&'static str, u64>,
}

/// List queues.
#[utoipa::path(get, path = "/v1/queues", tag = "queues", responses((status = 200, body = QueueList)))]
pub async fn list(_: May<Read>, State(app): State<App>) -> Result<Json<QueueList>, Problem> {
    let mut queues = app.engine.read(known).await?;
    let approximate = count_jobs(&app.engine, &mut queues).await?;
    let shown = |(name, counted): (Name, Counted)| Queue {
        name: name.to_string(),
        paused: counted.paused,
        ready_workflows: counted.ready,
        counts: counted.by_state,
        approximate,
    };
    Ok(Json(QueueList { queues: queues.into_iter().map(shown).collect(), next_cursor: None }))
}

/// What dispatch and the state know without looking at jobs.
fn known(view: &View<'_>) -> BTreeMap<Name, Counted> {
    let mut queues: BTreeMap<Name, Counted> = BTreeMap::new();
    for queue in view.manager.state().paused().iter().take(MAX_QUEUES) {
        queues.entry(queue.clone()).or_default().paused = true;
    }
    for demand in view.manager.demand_by_kind() {
        if let Some(known) = queues.get_mut(demand.queue) {
            known.ready += demand.ready;
        } else if queues.len() < MAX_QUEUES {
            queues.insert(demand.queue.clone(), Counted { ready: demand.ready, ..Counted::default() });
        }
    }
    queues
}

/// Goes through the newest jobs in short reads; true if some were left out.
async fn count_jobs(engine: &Engine, queues: &mut BTreeMap<Name, Counted>) -> Result<bool, Problem> {
    let (mut cursor, mut seen) = (None, 0);
    loop {
        let (found, examined, next) = engine.read(move |view| look(view, cursor)).await?;
        seen += examined;
        for (queue, state) in found {
            if queues.len() < MAX_QUEUES || queues.contains_key(&queue) {
                *queues.entry(queue).or_default().by_state.entry(state).or_default() += 1;
            }
        }
        if next.is_none() || seen >= MAX_JOBS {
            return Ok(next.is_some());
        }
        cursor = next;
    }
}

type Looked = (Vec<(Name, &'static str)>, usize, Option<JobId>);

fn look(view: &View<'_>, cursor: Option<JobId>) -> Looked {
    let state = view.manager.state();
    let mut found = Vec::new();
    let mut examined = 0;
    let mut ids = view.catalog.newest_before(cursor).peekable();
    while let Some(id) = ids.next() {
        let Some(key) = state.find(id) else { continue };
        let job = state.job(key);
        found.push((job.spec.queue.clone(), state.job_state(key).word()));
        // Telling a job's state takes as long as it has workflows.
        examined += 1 + job.workflows.as_slice().len();
        if examined >= JOBS_PER_READ {
            let next = ids.peek().map(|_| id);
            return (found, examined, next);
        }
    }
    (found, examined, None)
}

/// Hand out nothing of a queue.
#[utoipa::path(post, path = "/v1/queues/{name}/pause", tag = "queues", params(("name" = String, Path)),
    request_body = Nothing, responses((status = 200, body = Paused),
        (status = 429, description = "limited", body = Problem, content_type = "application/problem+json")))]
pub async fn pause(
    _: May<Operate>,
    State(app): State<App>,
    QueuePath(queue): QueuePath,
    _: Json<Nothing>,
) -> Result<Json<Paused>, Problem> {
    app.engine.call(Call::PauseQueue(queue.clone())).await?;
    Ok(Json(Paused { name: queue.to_string(), paused: true }))
}

/// Hand out what is in a queue again.
#[utoipa::path(post, path = "/v1/queues/{name}/resume", tag = "queues", params(("name" = String, Path)),
    request_body = Nothing, responses((status = 200, body = Paused)))]
pub async fn resume(
    _: May<Operate>,
    State(app): State<App>,
    QueuePath(queue): QueuePath,
    _: Json<Nothing>,
) -> Result<Json<Paused>, Problem> {
    app.engine.call(Call::ResumeQueue(queue.clone())).await?;
    Ok(Json(Paused { name: queue.to_string(), paused: false }))
}

#[derive(Debug, Serialize, ToSchema)]
pub struct StatsShown {
    #[schema(example = "serving")]
    pub seat: &'static str,
    pub term: u64,
    #[serde(flatten)]
    pub health: Health,
    /// In memory: open, or ended and not yet archived.
    pub jobs: usize,
    pub open_jobs: usize,
    pub dead_letters: usize,
    pub workers: usize,
    /// How often each kind of refusal was given.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Counters of this process.
    pub engine: BTreeMap<&'static str, u64>,
}

/// How the manager is doing.
#[utoipa::path(get, path = "/v1/stats", tag = "nodes", responses((status = 200, body = StatsShown)))]
pub async fn stats(_: May<Read>, State(app): State<App>) -> Result<Json<StatsShown>, Problem> {
    let (view, term) = app.engine.read(|view| (view.manager.view(), view.manager.state().term())).await?;
    Ok(Json(StatsShown {
        seat: match view.seat {
            SeatState::Serving => "serving",
            _ => "settling",
        },
        term: term.get(),
        health: Health::of(&view.judgement),
        jobs: view.jobs,
        open_jobs: view.open_jobs,
        dead_letters: view.dead_letters,
        workers: view.workers,
        refusals: view.refusals.listed().map(|(kind, count)| (kind.code(), count)).collect(),
        engine: app.engine.stats().listed().collect(),
    }))
}
