//! Who works here: nodes with their verdicts, and the datacenter as a whole.

use axum::extract::State;
use onward_api::command::Nothing;
use onward_api::node::{Datacenter, DatacenterList, DrainAnswer, Health, Node, NodeGossip, NodeList, Signals};
use onward_core::health::{DatacenterCounts, Judgement, Verdict, datacenter::datacenter};
use onward_core::manager::WorkerView;
use onward_core::refusal::Refusal;
use onward_core::settings::Rules;
use onward_core::time::span_ms;
use onward_gossip::{MemberState, NodeLabel, RingView};
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::App;
use super::super::json::Json;
use super::super::may::{May, Operate, Read};
use super::super::params::{Params, WorkerPath, bad_cursor, page_size, unknown_worker};
use super::super::problem::ProblemResponse;
use crate::engine::{Engine, EngineRefusal};
use crate::gossip::members::{JudgedMember, count_other_managers, judged};

/// A judgement as it is shown.
pub fn health(judgement: &Judgement) -> Health {
    let signals = judgement.signals;
    Health {
        verdict: judgement.verdict.code().into(),
        action: judgement.verdict.action().code().into(),
        reason: judgement.reason.code().into(),
        signals: Signals { live: signals.live, ready: signals.ready, progress: signals.progress.code().into() },
    }
}

/// A worker as it is shown. It may be away or evicted, which its judgement does not say.
fn node(worker: &WorkerView) -> Node {
    Node {
        id: worker.id.to_string(),
        role: "worker".into(),
        incarnation: worker.incarnation.to_string(),
        health: Health {
            verdict: worker.verdict_code().into(),
            action: worker.action_code().into(),
            reason: worker.reason_code().into(),
            ..health(&worker.judgement)
        },
        slots: worker.slots,
        held: worker.held,
        free: worker.free,
        drained: worker.drained,
        evicted: worker.evicted,
        probation: worker.probation,
        connected: worker.connected,
        held_by_hold: worker.held_by_hold,
        address: None,
        datacenter: None,
        gossip: None,
    }
}

/// The nodes of a view, this one first.
pub fn gossiped(rules: &Rules, view: &RingView) -> Vec<Node> {
    judged(rules, view).iter().map(|one| member(one, view)).collect()
}

/// A node that gossips as it is shown.
fn member(one: &JudgedMember, view: &RingView) -> Node {
    let identity = &one.identity;
    let said = one.health.unwrap_or_default();
    let disagreement = view.disagreements.iter().find(|found| found.about.address == identity.address);
    let names = |labels: &[NodeLabel]| labels.iter().map(NodeLabel::to_string).collect();
    let verdict = if one.evicted { "evicted".into() } else { one.judgement.verdict.code().into() };
    Node {
        id: identity.name.to_string(),
        role: identity.role.code().into(),
        incarnation: identity.incarnation.to_string(),
        health: Health { verdict, ..health(&one.judgement) },
        slots: 0,
        held: 0,
        free: said.capacity,
        drained: false,
        evicted: one.evicted,
        probation: false,
        connected: one.state.is_none_or(MemberState::is_live),
        held_by_hold: one.held_by_hold,
        address: Some(identity.address.to_string()),
        datacenter: identity.datacenter.as_ref().map(NodeLabel::to_string),
        gossip: Some(NodeGossip {
            state: one.state.unwrap_or(MemberState::Alive).code().into(),
            state_for_ms: span_ms(one.state_for),
            heard_ago_ms: one.heard_ago.map(span_ms),
            leads: said.leads,
            overload: said.overload.code().into(),
            workers: said.workers,
            throughput: said.throughput,
            expected_throughput: said.expected_throughput,
            doubted_by: disagreement.map_or_else(Vec::new, |found| names(&found.doubted_by)),
            trusted_by: disagreement.map_or_else(Vec::new, |found| names(&found.trusted_by)),
        }),
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

/// List nodes.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", params(NodeQuery), responses((status = 200, body = NodeList)))]
pub async fn list(
    _: May<Read>,
    State(app): State<App>,
    Params(query): Params<NodeQuery>,
) -> Result<Json<NodeList>, ProblemResponse> {
    let limit = page_size(query.limit)?;
    let place = query.cursor.map_or(Ok(0), |text| text.parse::<u32>().map_err(|_| bad_cursor()))?;
    let (workers, next) = app.engine.read(move |view| view.manager.workers_from(place as usize, limit)).await?;
    // Managers and gates stand before the first worker, whatever the limit: there are few of them.
    let mut nodes = match (&app.gossip, place) {
        (Some(gossip), 0) => gossiped(app.engine.rules(), &gossip.view()),
        _ => Vec::new(),
    };
    nodes.extend(workers.iter().map(node));
    Ok(Json(NodeList { nodes, next_cursor: next.map(|place| place.to_string()) }))
}

/// Look at one node.
#[utoipa::path(get, path = "/v1/nodes/{id}", tag = "nodes", params(("id" = String, Path)),
    responses((status = 200, body = Node),
        (status = 404, description = "unknown_worker", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn get(
    _: May<Read>,
    State(app): State<App>,
    WorkerPath(id): WorkerPath,
) -> Result<Json<Node>, ProblemResponse> {
    let wanted = id.clone();
    let worker = app.engine.read(move |view| view.manager.worker(&id)).await?;
    let gossiped = || {
        let gossip = app.gossip.as_ref()?;
        gossiped(app.engine.rules(), &gossip.view()).into_iter().find(|node| node.id == wanted.as_str())
    };
    worker.map(|worker| node(&worker)).or_else(gossiped).map(Json).ok_or_else(unknown_worker)
}

/// Give a node no new work; what it holds may end.
#[utoipa::path(post, path = "/v1/nodes/{id}/drain", tag = "nodes", params(("id" = String, Path)), request_body = Nothing,
    responses((status = 200, body = DrainAnswer),
        (status = 404, description = "unknown_worker", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn drain(
    _: May<Operate>,
    State(app): State<App>,
    WorkerPath(id): WorkerPath,
    _: Json<Nothing>,
) -> Result<Json<DrainAnswer>, ProblemResponse> {
    known(app.engine.drain_worker(id.clone()).await)?;
    Ok(Json(DrainAnswer { id: id.to_string(), drained: true }))
}

/// Give a node work again.
#[utoipa::path(post, path = "/v1/nodes/{id}/undrain", tag = "nodes", params(("id" = String, Path)), request_body = Nothing,
    responses((status = 200, body = DrainAnswer),
        (status = 404, description = "unknown_worker", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn undrain(
    _: May<Operate>,
    State(app): State<App>,
    WorkerPath(id): WorkerPath,
    _: Json<Nothing>,
) -> Result<Json<DrainAnswer>, ProblemResponse> {
    known(app.engine.undrain_worker(id.clone()).await)?;
    Ok(Json(DrainAnswer { id: id.to_string(), drained: false }))
}

fn known<T>(answer: Result<T, EngineRefusal>) -> Result<T, ProblemResponse> {
    answer.map_err(|refused| match refused {
        EngineRefusal::ByMachine(Refusal::UnknownWorker) => unknown_worker(),
        other => other.into(),
    })
}

const WORKERS_PER_READ: usize = 1_000;
const MAX_WORKERS: usize = 100_000;

/// List datacenters: this one.
#[utoipa::path(get, path = "/v1/datacenters", tag = "nodes", responses((status = 200, body = DatacenterList)))]
pub async fn datacenters(_: May<Read>, State(app): State<App>) -> Result<Json<DatacenterList>, ProblemResponse> {
    let (mut counts, approximate) = count(&app.engine).await?;
    if let Some(gossip) = &app.gossip {
        count_other_managers(app.engine.rules(), &gossip.view(), &mut counts);
    }
    let (class, reason) = datacenter(&counts);
    let this = Datacenter {
        name: app.datacenter.to_string().into(),
        health: class.code().into(),
        class: class.code().into(),
        reason: reason.code().into(),
        managers: counts.managers,
        workers: counts.workers,
        workers_healthy_or_busy: counts.workers_healthy_or_busy,
        free_slots: counts.free_slots,
        connected: None,
        term: None,
        since_heard_ms: None,
        owed: None,
        approximate,
    };
    Ok(Json(DatacenterList { datacenters: vec![this] }))
}

/// Workers are counted in short reads. One that takes nothing because it was drained counts as a worker that is well.
async fn count(engine: &Engine) -> Result<(DatacenterCounts, bool), ProblemResponse> {
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
