//! What a gate answers outside `/v1`: probes, status, metrics, and the description of its API.

use core::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::{FromRef, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use onward_api::instant::At;
use onward_api::status::{GateStatus, Load, Status};
use onward_core::fence::Term;
use onward_core::gate::{DatacenterView, GateView};
use onward_core::time::Wall;
use tokio::sync::watch;
use tokio::time::timeout;
use utoipa::OpenApi as _;

use super::accept::{ConnectionCounts, NodePhase};
use super::bodies::BodyRooms;
use super::config::ProbeRule;
use super::metrics::BODY_BYTES;
use super::pages::{follows, leader_status, loop_status, probe};
use crate::api::json::Json;
use crate::api::may::{May, Read};
use crate::cluster::forward::Forwarder;
use crate::cluster::leader::LeaderView;
use crate::gate::api::{GateApi, GateApp};
use crate::storage::Standbys;

#[derive(Clone, Debug)]
pub(super) struct GatePages {
    pub(super) app: GateApp,
    pub(super) about: Arc<GateAbout>,
}

pub(super) struct GateAbout {
    pub(super) forwarder: Forwarder,
    pub(super) started_at: Wall,
    pub(super) listen: String,
    /// The name of the data folder, without the way to it.
    pub(super) data: String,
    /// The storage, without a password.
    pub(super) storage: String,
    pub(super) standbys: Option<Standbys>,
    pub(super) counts: Arc<ConnectionCounts>,
    pub(super) bodies: BodyRooms,
    pub(super) phase: watch::Receiver<NodePhase>,
    pub(super) probes: ProbeRule,
}

impl core::fmt::Debug for GateAbout {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("About").field("listen", &self.listen).field("storage", &self.storage).finish_non_exhaustive()
    }
}

impl GateAbout {
    fn is_draining(&self) -> bool {
        *self.phase.borrow() > NodePhase::Serving
    }
}

impl FromRef<GatePages> for GateApp {
    fn from_ref(pages: &GatePages) -> Self {
        pages.app.clone()
    }
}

pub(super) fn routes() -> Router<GatePages> {
    Router::new()
        .route("/", get(index))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/startupz", get(async || probe(Ok(()))))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
}

async fn index(State(pages): State<GatePages>) -> String {
    format!("{}, a gate of Onward. GET /status, /v1/datacenters, /v1/jobs; /openapi.json lists all.\n", pages.app.name)
}

async fn openapi() -> Response {
    Json(GateApi::openapi()).into_response()
}

/// Would a restart help?
async fn livez(State(pages): State<GatePages>) -> Response {
    probe(pages.app.engine.loops().health().report().why_not_live().map_or(Ok(()), Err))
}

/// Does this gate accept calls, and store them durably? One that follows does by the one that leads.
async fn readyz(State(pages): State<GatePages>) -> Response {
    if pages.about.is_draining() {
        return probe(Err("the gate is draining".into()));
    }
    if let Some(why) = pages.app.engine.loops().health().report().why_not_ready() {
        return probe(Err(why));
    }
    let trouble = pages.app.engine.trouble();
    match follows(&pages.about.forwarder, trouble, pages.about.probes.answer_within).await {
        Some(answer) => answer,
        None => probe(machine(&pages).await.map(drop)),
    }
}

/// The machine's view of itself, or the reason why there is none.
async fn machine(pages: &GatePages) -> Result<(GateView, u64, Vec<DatacenterView>), String> {
    let within = pages.about.probes.answer_within;
    if let Some(trouble) = pages.app.engine.trouble() {
        return Err(trouble);
    }
    match timeout(within, pages.app.engine.read(|gate| (gate.view(), gate.newest().0, gate.datacenters().collect())))
        .await
    {
        Ok(answer) => answer.map_err(|refused| refused.to_string()),
        Err(_) => Err(format!("the machine did not answer within {within:?}")),
    }
}

/// The state of the gate.
async fn status(_: May<Read>, State(pages): State<GatePages>) -> Response {
    let (gate, sequence, trouble) = match machine(&pages).await {
        Ok((view, newest, datacenters)) => {
            let gate = GateStatus {
                seat: view.seat.code().into(),
                epoch: view.epoch.n,
                jobs: view.jobs,
                open_jobs: view.open_jobs,
                datacenters: datacenters.len(),
                connected: datacenters.iter().filter(|known| known.is_connected).count(),
                verdict: view.judgement.verdict.code().into(),
                reason: view.judgement.reason.code().into(),
            };
            (Some(gate), newest, None)
        }
        Err(trouble) => (None, 0, Some(trouble)),
    };
    let (about, engine) = (&pages.about, &pages.app.engine);
    let synchronous_standbys = match about.standbys.clone() {
        Some(ask) => engine.ask_storage(move || ask()).await.ok(),
        None => None,
    };
    let view = about.forwarder.view();
    // That another gate leads is none.
    let trouble = trouble.filter(|_| !matches!(view, LeaderView::Following { .. }));
    Json(Status {
        node: pages.app.name.clone(),
        role: view.role().into(),
        leader: leader_status(&about.forwarder, &about.listen),
        term: view.term().map(Term::get),
        datacenter: String::new(),
        sequence,
        lag_ms: None,
        version: env!("CARGO_PKG_VERSION").into(),
        started_at: At(about.started_at),
        listen: about.listen.clone(),
        data: about.data.clone(),
        storage: about.storage.clone(),
        synchronous_standbys,
        draining: about.is_draining(),
        load: Load { level: engine.load().code().into(), reason: engine.load_reason().code().into() },
        manager: None,
        gate,
        loops: engine.loops().health().report().loops.into_iter().map(loop_status).collect(),
        trouble,
    })
    .into_response()
}

/// Metrics for Prometheus, as text.
async fn metrics(_: May<Read>, State(pages): State<GatePages>) -> Response {
    let mut text = String::new();
    let mut put = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        // A string takes everything.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let plain = |value: u64| vec![(String::new(), value as f64)];
    for (name, help, value) in pages.app.engine.stats().described() {
        match name {
            "followed_bytes" => put(&format!("onward_gate_{name}"), "gauge", help, &plain(value)),
            _ => put(&format!("onward_gate_{name}_total"), "counter", help, &plain(value)),
        }
    }
    put("onward_gate_body_bytes", "gauge", BODY_BYTES, &plain(pages.about.bodies.taken_bytes()));
    let ConnectionCounts { accepted, refused, failed } = &*pages.about.counts;
    let connections = [("accepted", accepted), ("refused", refused), ("failed", failed)]
        .map(|(what, count)| (format!("{{what=\"{what}\"}}"), count.load(Ordering::Relaxed) as f64));
    put("onward_connections_total", "counter", "Connections, by what became of them.", &connections);
    if let Ok((view, _, datacenters)) = machine(&pages).await {
        put("onward_gate_jobs", "gauge", "Jobs that are kept.", &plain(view.jobs as u64));
        put("onward_gate_open_jobs", "gauge", "Jobs that have not ended.", &plain(view.open_jobs as u64));
        put("onward_gate_epoch", "gauge", "The epoch of what this gate decides.", &plain(view.epoch.n));
        let of = |known: &DatacenterView| format!("{{datacenter=\"{}\"}}", escaped(known.name.as_str()));
        let rows = |value: &dyn Fn(&DatacenterView) -> f64| -> Vec<(String, f64)> {
            datacenters.iter().map(|known| (of(known), value(known))).collect()
        };
        let connected = rows(&|known| f64::from(u8::from(known.is_connected)));
        put("onward_gate_datacenter_connected", "gauge", "Whether a datacenter's leader is connected.", &connected);
        let owed = rows(&|known| known.owed as f64);
        put("onward_gate_datacenter_owed", "gauge", "Jobs about which a datacenter is owed something.", &owed);
        let free = rows(&|known| known.counts.free_slots as f64);
        put("onward_gate_datacenter_free_slots", "gauge", "Free slots, as reported last.", &free);
        let class: Vec<(String, f64)> = datacenters
            .iter()
            .map(|known| {
                let (name, class) = (escaped(known.name.as_str()), known.class.code());
                (format!("{{datacenter=\"{name}\",class=\"{class}\"}}"), 1.0)
            })
            .collect();
        put("onward_gate_datacenter_class", "gauge", "The class of a datacenter.", &class);
        let refusals: Vec<(String, f64)> = view
            .refusals
            .listed()
            .map(|(kind, count)| (format!("{{code=\"{}\"}}", kind.code()), count as f64))
            .collect();
        put("onward_refusals_total", "counter", "Refusals of the machine, by code.", &refusals);
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// A label's value, as Prometheus reads it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
