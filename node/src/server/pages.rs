//! What is outside `/v1`: probes, status, the description of the API, and a first page.

use core::time::Duration;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use onward_api::instant::At;
use onward_api::status::{FailingSchedule, LeaderStatus, Load, LoopStatus, ManagerStatus, ProbeAnswer, Status};
use onward_core::fence::Term;
use onward_core::manager::ManagerView;
use onward_core::time::Wall;
use onward_health::LoopReport;
use tokio::sync::watch;
use tokio::time::timeout;
use utoipa::OpenApi;

use super::accept::{ConnectionCounts, NodePhase};
use super::bodies::BodyRooms;
use super::config::ProbeRule;
use crate::api::json::Json;
use crate::api::may::{May, Read};
use crate::api::problem::ProblemResponse;
use crate::api::{self, App};
use crate::cluster::forward::Forwarder;
use crate::cluster::leader::LeaderView;
use crate::storage::Standbys;

#[derive(Clone, Debug)]
pub(super) struct PageState {
    pub(super) app: App,
    pub(super) about: Arc<About>,
}

pub(super) struct About {
    pub(super) datacenter: String,
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

impl core::fmt::Debug for About {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("About").field("listen", &self.listen).field("storage", &self.storage).finish_non_exhaustive()
    }
}

impl About {
    fn is_draining(&self) -> bool {
        *self.phase.borrow() > NodePhase::Serving
    }
}

impl FromRef<PageState> for App {
    fn from_ref(pages: &PageState) -> Self {
        pages.app.clone()
    }
}

pub(super) fn routes() -> Router<PageState> {
    all().into_iter().fold(Router::new(), |router, (path, page)| router.route(path, page))
}

pub(super) fn all() -> [(&'static str, MethodRouter<PageState>); 7] {
    [
        ("/", get(index)),
        ("/livez", get(livez)),
        ("/readyz", get(readyz)),
        ("/startupz", get(startupz)),
        ("/status", get(status)),
        ("/metrics", get(super::metrics::metrics)),
        ("/openapi.json", get(openapi)),
    ]
}

/// Paths for tools; the rest is for people.
#[derive(utoipa::OpenApi)]
#[openapi(paths(livez, readyz, startupz, status, super::metrics::metrics), components(schemas(ProbeAnswer)))]
struct PagesApi;

async fn index() -> Html<&'static str> {
    Html(include_str!("index.html"))
}

async fn openapi() -> Response {
    Json(api::openapi::openapi(PagesApi::openapi())).into_response()
}

pub(super) fn probe(answer: Result<(), String>) -> Response {
    match answer {
        Ok(()) => Json(ProbeAnswer { status: "ok".into(), reason: None }).into_response(),
        Err(why) => {
            let told = ProbeAnswer { status: "unavailable".into(), reason: Some(why) };
            (StatusCode::SERVICE_UNAVAILABLE, Json(told)).into_response()
        }
    }
}

/// Would a restart help? What a full disk or a lost seat needs is something else.
#[utoipa::path(get, path = "/livez",
    responses((status = 200, body = ProbeAnswer), (status = 503, description = "restart the node", body = ProbeAnswer)))]
async fn livez(State(pages): State<PageState>) -> Response {
    probe(pages.app.engine.needs_restart().map_or(Ok(()), Err))
}

/// Does this node accept calls, and store them durably: is every critical loop of it healthy, and does the machine answer,
/// or the node that leads?
#[utoipa::path(get, path = "/readyz",
    responses((status = 200, body = ProbeAnswer), (status = 503, description = "not ready", body = ProbeAnswer)))]
async fn readyz(State(pages): State<PageState>) -> Response {
    if pages.about.is_draining() {
        return probe(Err("the node is draining".into()));
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

/// A node that follows stores nothing itself: it is ready if whoever leads can be reached from it.
pub(super) async fn follows(forwarder: &Forwarder, trouble: Option<String>, within: Duration) -> Option<Response> {
    let LeaderView::Following { term, leader } = forwarder.view() else { return None };
    if let Some(trouble) = trouble {
        return Some(probe(Err(format!("it follows, and cannot read its log: {trouble}"))));
    }
    let Some(leader) = leader else {
        return Some(probe(Err(format!("it follows, and nobody is known to lead after term {}", term.get()))));
    };
    let reached = timeout(within, forwarder.reach(&leader)).await;
    let late = || Err(format!("`{}`, which leads, was not reached within {within:?}", leader.name));
    Some(match reached.unwrap_or_else(|_| late()) {
        Err(why) => probe(Err(why)),
        Ok(()) => {
            let whom = format!("it follows `{}` at {}, term {}", leader.name, leader.address, term.get());
            Json(ProbeAnswer { status: "ok".into(), reason: Some(whom) }).into_response()
        }
    })
}

/// Has the node started: was the log replayed and the seat taken?
#[utoipa::path(get, path = "/startupz",
    responses((status = 200, body = ProbeAnswer), (status = 503, description = "it starts", body = ProbeAnswer)))]
async fn startupz() -> Response {
    probe(Ok(()))
}

/// The answers until the node serves.
pub(super) fn starting() -> Router {
    async fn not_yet() -> Response {
        probe(Err(STARTING.into()))
    }
    async fn alive() -> Response {
        probe(Ok(()))
    }
    async fn refused() -> ProblemResponse {
        ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "no_leader", format!("{STARTING}; try again soon"))
    }
    Router::new()
        .route("/livez", get(alive))
        .route("/readyz", get(not_yet))
        .route("/startupz", get(not_yet))
        .fallback(refused)
}

const STARTING: &str = "the node is starting: it reads its log";

struct MachineSummary {
    view: ManagerView,
    term: u64,
    /// The newest event.
    newest: u64,
    schedules: usize,
    failing: Vec<FailingSchedule>,
}

/// The machine's view of itself, or the reason why there is none.
async fn machine(pages: &PageState) -> Result<MachineSummary, String> {
    let accepting = !pages.about.is_draining();
    let (app, within) = (&pages.app, pages.about.probes.answer_within);
    if let Some(trouble) = app.engine.trouble() {
        return Err(trouble);
    }
    let read = app.engine.read(move |view| {
        let judgement = view.manager.own_judgement_while(accepting);
        let state = view.manager.state();
        let now = view.manager.log_time_at(crate::clock::now().mono);
        let failing = state
            .schedules()
            .iter()
            .filter_map(|(name, schedule)| Some((name, schedule, view.manager.schedule_trouble(name, now)?)));
        MachineSummary {
            view: ManagerView { judgement, ..view.manager.view() },
            term: state.term().get(),
            newest: view.manager.newest().0,
            schedules: state.schedules().len(),
            failing: failing
                .take(MAX_FAILING)
                .map(|(name, schedule, (why, since))| FailingSchedule {
                    name: name.to_string(),
                    reason: why.code().into(),
                    failures: schedule.failures,
                    since_at: Some(At(since)),
                })
                .collect(),
        }
    });
    match timeout(within, read).await {
        Ok(answer) => answer.map_err(|refused| refused.to_string()),
        Err(_) => Err(format!("the machine did not answer within {within:?}")),
    }
}

pub(super) fn loop_status(report: LoopReport) -> LoopStatus {
    LoopStatus {
        state: report.state.code().into(),
        reason: report.reason.code().into(),
        name: report.name,
        critical: report.critical,
        since_ms: report.since_ms,
        last_success_ms: report.last_success_ms,
        failures: report.failures,
        error: report.error,
    }
}

/// The leader, as this node, which listens there, knows it.
pub(super) fn leader_status(forwarder: &Forwarder, listen: &str) -> Option<LeaderStatus> {
    let member = forwarder.member();
    match forwarder.view() {
        LeaderView::Leading { .. } => {
            let address = member.address.clone().unwrap_or_else(|| listen.to_owned());
            Some(LeaderStatus { name: member.name.clone(), address })
        }
        LeaderView::Following { leader: Some(leader), .. } => {
            Some(LeaderStatus { name: leader.name, address: leader.address })
        }
        LeaderView::Starting | LeaderView::CutOff { .. } | LeaderView::Following { leader: None, .. } => None,
    }
}

/// More are counted by metrics, and not listed.
const MAX_FAILING: usize = 100;

/// The state of the node.
#[utoipa::path(get, path = "/status", responses((status = 200, body = Status)))]
async fn status(_: May<Read>, State(pages): State<PageState>) -> Response {
    let (manager, trouble) = match machine(&pages).await {
        Ok(MachineSummary { view, term, newest, schedules, failing }) => (
            Some((
                ManagerStatus {
                    seat: view.seat.code().into(),
                    term,
                    jobs: view.jobs,
                    open_jobs: view.open_jobs,
                    archived_jobs: pages.app.engine.archived_count().await.ok(),
                    dead_letters: view.dead_letters,
                    workers: view.workers,
                    verdict: view.judgement.verdict.code().into(),
                    reason: view.judgement.reason.code().into(),
                    schedules,
                    failing_schedules: failing,
                },
                newest,
            )),
            None,
        ),
        Err(trouble) => (None, Some(trouble)),
    };
    let about = &pages.about;
    let (view, member) = (about.forwarder.view(), about.forwarder.member());
    // That another node leads is none.
    let is_following = matches!(view, LeaderView::Following { .. });
    let trouble = if is_following { pages.app.engine.trouble() } else { trouble };
    let (applied, lag) = pages.app.engine.followed();
    let sequence = manager.as_ref().map_or(applied.0, |(_, sequence)| *sequence);
    let manager = manager.map(|(manager, _)| manager);
    let leader = leader_status(&about.forwarder, &about.listen);
    let synchronous_standbys = match about.standbys.clone() {
        Some(ask) => pages.app.engine.ask_storage(move || ask()).await.ok(),
        None => None,
    };
    Json(Status {
        node: member.name.clone(),
        role: view.role().into(),
        leader,
        term: view.term().map(Term::get),
        datacenter: about.datacenter.clone(),
        sequence,
        lag_ms: is_following.then(|| u64::try_from(lag.as_millis()).unwrap_or(u64::MAX)),
        version: env!("CARGO_PKG_VERSION").into(),
        started_at: At(about.started_at),
        listen: about.listen.clone(),
        data: about.data.clone(),
        storage: about.storage.clone(),
        synchronous_standbys,
        draining: about.is_draining(),
        load: Load {
            level: pages.app.engine.load().code().into(),
            reason: pages.app.engine.load_reason().code().into(),
        },
        manager,
        gate: None,
        loops: pages.app.engine.loops().health().report().loops.into_iter().map(loop_status).collect(),
        trouble,
    })
    .into_response()
}
