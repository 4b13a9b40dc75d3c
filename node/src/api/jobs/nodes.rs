//! Who works here: nodes with their verdicts, and the datacenter as a whole.

use axum::extract::State;
use onward_core::health::{DatacenterCounts, Judgement, Verdict, datacenter::datacenter};
use onward_core::manager::WorkerView;
use onward_core::refusal::Refusal;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::App;
use super::super::json::Json;
use super::super::may::{May, Operate, Read};
use super::super::params::{Params, WorkerPath, bad_cursor, page_size, unknown_worker};
use super::super::problem::Problem;
use super::command::Nothing;
use crate::engine::{Engine, Refused};

#[derive(Debug, Serialize, ToSchema)]
pub struct Node {
    pub id: String,
    #[schema(example = "worker")]
    pub role: &'static str,
    pub incarnation: String,
    #[serde(flatten)]
    pub health: Health,
    pub slots: u32,
    pub held: u32,
    pub free: u32,
    pub drained: bool,
    pub evicted: bool,
    /// One attempt at a time until one succeeds.
    pub probation: bool,
    pub connected: bool,
    /// Would be evicted, and is not, because too many would be.
    pub held_by_hold: bool,
}

/// A verdict, what to do about it, and the three signals that it follows from.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `healthy`, `busy`, `slow`, `degraded`, `stuck` or `suspect`; `away` and `evicted` stand in its place.
    #[schema(example = "healthy")]
    pub verdict: &'static str,
    /// `route`, `drain`, `investigate` or `evict`; `none` for one that is away.
    pub action: &'static str,
    pub reason: &'static str,
    pub signals: Signals,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Signals {
    pub live: bool,
    pub ready: bool,
    pub progress: &'static str,
}

impl Health {
    pub fn of(judgement: &Judgement) -> Self {
        let signals = judgement.signals;
        Self {
            verdict: judgement.verdict.code(),
            action: judgement.verdict.action().code(),
            reason: judgement.reason.code(),
            signals: Signals { live: signals.live, ready: signals.ready, progress: signals.progress.code() },
        }
    }

    /// Of a worker, which may be away or evicted as well.
    fn of_worker(worker: &WorkerView) -> Self {
        Self {
            verdict: worker.verdict_code(),
            action: worker.action_code(),
            reason: worker.reason_code(),
            ..Self::of(&worker.judgement)
        }
    }
}

impl Node {
    fn of(worker: &WorkerView) -> Self {
        Self {
            id: worker.id.to_string(),
            role: "worker",
            incarnation: worker.incarnation.to_string(),
            health: Health::of_worker(worker),
            slots: worker.slots,
            held: worker.held,
            free: worker.free,
            drained: worker.drained,
            evicted: worker.evicted,
            probation: worker.probation,
            connected: worker.connected,
            held_by_hold: worker.held_by_hold,
        }
    }
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NodeQuery {
    /// From 1 to 1000; 100 unless said.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct NodeList {
    pub nodes: Vec<Node>,
    pub next_cursor: Option<String>,
}

/// List nodes.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", params(NodeQuery), responses((status = 200, body = NodeList)))]
pub async fn list(
    _: May<Read>,
    State(app): State<App>,
    Params(query): Params<NodeQuery>,
) -> Result<Json<NodeList>, Problem> {
    let limit = page_size(query.limit)?;
    let place = query.cursor.map_or(Ok(0), |text| text.parse::<u32>().map_err(|_| bad_cursor()))?;
    let (workers, next) = app.engine.read(move |view| view.manager.workers_from(place as usize, limit)).await?;
    let nodes = workers.iter().map(Node::of).collect();
    Ok(Json(NodeList { nodes, next_cursor: next.map(|place| place.to_string()) }))
}

/// Look at one node.
#[utoipa::path(get, path = "/v1/nodes/{id}", tag = "nodes", params(("id" = String, Path)),
    responses((status = 200, body = Node),
        (status = 404, description = "unknown_worker", body = Problem, content_type = "application/problem+json")))]
pub async fn get(_: May<Read>, State(app): State<App>, WorkerPath(id): WorkerPath) -> Result<Json<Node>, Problem> {
    let worker = app.engine.read(move |view| view.manager.worker(&id)).await?;
    worker.map(|worker| Json(Node::of(&worker))).ok_or_else(unknown_worker)
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Drained {
    pub id: String,
    pub drained: bool,
}

/// Give a node no new work; what it holds may end.
#[utoipa::path(post, path = "/v1/nodes/{id}/drain", tag = "nodes", params(("id" = String, Path)), request_body = Nothing,
    responses((status = 200, body = Drained),
        (status = 404, description = "unknown_worker", body = Problem, content_type = "application/problem+json")))]
pub async fn drain(
    _: May<Operate>,
    State(app): State<App>,
    WorkerPath(id): WorkerPath,
    _: Json<Nothing>,
) -> Result<Json<Drained>, Problem> {
    known(app.engine.drain_worker(id.clone()).await)?;
    Ok(Json(Drained { id: id.to_string(), drained: true }))
}

/// Give a node work again.
#[utoipa::path(post, path = "/v1/nodes/{id}/undrain", tag = "nodes", params(("id" = String, Path)), request_body = Nothing,
    responses((status = 200, body = Drained),
        (status = 404, description = "unknown_worker", body = Problem, content_type = "application/problem+json")))]
pub async fn undrain(
    _: May<Operate>,
    State(app): State<App>,
    WorkerPath(id): WorkerPath,
    _: Json<Nothing>,
) -> Result<Json<Drained>, Problem> {
    known(app.engine.undrain_worker(id.clone()).await)?;
    Ok(Json(Drained { id: id.to_string(), drained: false }))
}

fn known<T>(answer: Result<T, Refused>) -> Result<T, Problem> {
    answer.map_err(|refused| match refused {
        Refused::ByMachine(Refusal::UnknownWorker) => unknown_worker(),
        other => other.into(),
    })
}

#[derive(Debug, Serialize, ToSchema)]
pub struct DatacenterList {
    pub datacenters: Vec<Datacenter>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Datacenter {
    #[schema(example = "local")]
    pub name: &'static str,
    #[schema(example = "healthy")]
    pub health: &'static str,
    pub reason: &'static str,
    pub managers: u32,
    pub workers: u32,
    pub workers_healthy_or_busy: u32,
    pub free_slots: u64,
    /// There are too many workers to look at all of them.
    pub approximate: bool,
}

const WORKERS_PER_READ: usize = 1_000;
const MAX_WORKERS: usize = 100_000;

/// List datacenters: this one.
#[utoipa::path(get, path = "/v1/datacenters", tag = "nodes", responses((status = 200, body = DatacenterList)))]
pub async fn datacenters(_: May<Read>, State(app): State<App>) -> Result<Json<DatacenterList>, Problem> {
    let (counts, approximate) = count(&app.engine).await?;
    let (class, reason) = datacenter(&counts);
    let this = Datacenter {
        name: "local",
        health: class.code(),
        reason: reason.code(),
        managers: counts.managers,
        workers: counts.workers,
        workers_healthy_or_busy: counts.workers_healthy_or_busy,
        free_slots: counts.free_slots,
        approximate,
    };
    Ok(Json(DatacenterList { datacenters: vec![this] }))
}

/// Workers are counted in short reads. One that takes nothing because it was drained counts as a worker that is well.
async fn count(engine: &Engine) -> Result<(DatacenterCounts, bool), Problem> {
    let own = engine.read(|view| view.manager.own_judgement()).await?;
    let mut counts = DatacenterCounts {
        managers: 1,
        managers_live: u32::from(own.signals.live),
        managers_ready: u32::from(own.signals.live && own.signals.ready),
        managers_stuck: u32::from(own.verdict == Verdict::Stuck),
        ..DatacenterCounts::default()
    };
    let mut place = 0;
    loop {
        let (workers, next) = engine.read(move |view| view.manager.workers_from(place, WORKERS_PER_READ)).await?;
        workers.iter().for_each(|worker| worker.count(&mut counts));
        match next {
            Some(next) if next < MAX_WORKERS => place = next,
            next => return Ok((counts, next.is_some())),
        }
    }
}
