//! The datacenters as a gate hears them, and the gates.

use axum::extract::State;
use onward_api::node::{Datacenter, DatacenterList, Node, NodeList};
use onward_core::gate::DatacenterView;
use onward_core::health::Judgement;
use onward_core::time::span_ms;

use super::GateApp;
use crate::api::jobs::nodes::{gossiped, health};
use crate::api::json::Json;
use crate::api::may::{May, Read};
use crate::api::problem::ProblemResponse;

/// List datacenters: their class, why they have it, and what they have.
#[utoipa::path(get, path = "/v1/datacenters", tag = "nodes", responses((status = 200, body = DatacenterList)))]
pub async fn datacenters(_: May<Read>, State(app): State<GateApp>) -> Result<Json<DatacenterList>, ProblemResponse> {
    let views: Vec<DatacenterView> = app.engine.read(|gate| gate.datacenters().collect()).await?;
    Ok(Json(DatacenterList { datacenters: views.iter().map(datacenter).collect() }))
}

fn datacenter(view: &DatacenterView) -> Datacenter {
    Datacenter {
        name: view.name.to_string().into(),
        health: view.class.code().into(),
        class: view.class.code().into(),
        reason: view.reason.code().into(),
        managers: view.counts.managers,
        workers: view.counts.workers,
        workers_healthy_or_busy: view.counts.workers_healthy_or_busy,
        free_slots: view.counts.free_slots,
        connected: Some(view.is_connected),
        term: view.term.map(onward_core::fence::Term::get),
        since_heard_ms: Some(span_ms(view.since_heard)),
        owed: Some(view.owed),
        approximate: false,
    }
}

/// List nodes: this gate first, then the others, by what each says of itself and whether it answers. Without gossip, the one
/// that leads, as it judges itself.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", responses((status = 200, body = NodeList)))]
pub async fn nodes(_: May<Read>, State(app): State<GateApp>) -> Result<Json<NodeList>, ProblemResponse> {
    if let Some(gossip) = &app.gossip {
        let nodes = gossiped(app.engine.rules(), &gossip.view());
        return Ok(Json(NodeList { nodes, next_cursor: None }));
    }
    let judgement = app.engine.read(|gate| gate.own_judgement()).await?;
    Ok(Json(NodeList { nodes: vec![gate_node(&app.name, &judgement)], next_cursor: None }))
}

fn gate_node(name: &str, judgement: &Judgement) -> Node {
    Node {
        id: name.to_owned(),
        role: "gate".into(),
        incarnation: String::new(),
        health: health(judgement),
        slots: 0,
        held: 0,
        free: 0,
        drained: false,
        evicted: false,
        probation: false,
        connected: true,
        held_by_hold: false,
        address: None,
        datacenter: None,
        gossip: None,
    }
}
