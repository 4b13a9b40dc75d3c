//! A node on its port.
//!
//! [`Node::start`] listens, opens the log and starts the engine; [`Node::shutdown`] drains. Between the two, `accept`
//! takes connections (and finds out by `preface` what they speak), `shed` turns requests away that are too much, `guard`
//! lets the others in, `pages` answers what is not the API's.

mod accept;
mod backup;
mod bodies;
mod config;
mod gate;
mod gate_pages;
mod guard;
mod hosts;
mod metrics;
mod pages;
mod preface;
pub(crate) mod shed;
mod tls;

use core::time::Duration;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::{Router, middleware};
use onward_core::manager::SeatState;
use onward_gossip::Role;
use onward_health::Pulse;
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::api::jobs::follow::Followers;
use crate::api::problem::ProblemResponse;
use crate::api::receipt::{KEY_FILE, Receipts};
use crate::api::{self, App};
use crate::auth::Tokens;
use crate::clock;
use crate::cluster::HandoverError;
use crate::cluster::forward::{self, Forwarder, Member};
use crate::cluster::leader::LeaderView;
use crate::engine::{Engine, EngineStart};
use crate::gossip::GossipHandle;
use crate::gossip::feed::report_health;
use crate::grpc;
use crate::outputs::Outputs;
use crate::storage::{CommitMark, SharedIdentity, Standbys, Storage, StorageChoice};
use crate::traces::Exporter;
use accept::{Acceptor, ConnectionCounts, NodePhase};
pub(crate) use backup::backup_of;
pub use backup::{RestoreError, restore};
use bodies::BodyRooms;
pub use config::{DrainRule, HttpLimits, NodeConfig, ProbeRule, StartError};
pub use gate::{GateConfig, GateNode};
use guard::Guard;
use hosts::Hosts;
pub use onward_log::OnLoss;
use pages::{About, PageState};

const LOOK_AGAIN: Duration = Duration::from_millis(5);
const SERVES_WITHIN: Duration = Duration::from_secs(30);

/// A running node. Dropped without [`Node::shutdown`], it stops at once: what was decided is durable, what is under way
/// is cut.
#[derive(Debug)]
pub struct Node {
    app: App,
    address: SocketAddr,
    tls: bool,
    phase: watch::Sender<NodePhase>,
    draining: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    door: Door,
    places: Arc<Semaphore>,
    connections: u32,
    ready_grace: Duration,
    left_at: OnceLock<Instant>,
    is_leaving: Arc<AtomicBool>,
}

impl Node {
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        Self::start_with(config, |_| Router::new()).await
    }

    /// Starts a node with further routes on the same port, such as those of another protocol. Hosts, origins and tokens
    /// are checked for them too; what their bodies are is their own affair.
    pub async fn start_with(config: NodeConfig, more: impl FnOnce(&App) -> Router) -> Result<Self, StartError> {
        config.check()?;
        let tls =
            config.tls.as_ref().map(|(cert, key)| tls::acceptor(cert, key, config.tls_ca.as_deref())).transpose()?;
        let about = |error| StartError::Listen { listen: config.listen, error };
        let listener = match config.listens {
            true => Some(TcpListener::bind(config.listen).await.map_err(about)?),
            false => None,
        };
        let address = match &listener {
            Some(listener) => listener.local_addr().map_err(about)?,
            None => config.listen,
        };
        let gossips = Pulse::default();
        let gossip = match config.gossip.clone().map(|gossip| gossip.on_port(address.port())) {
            Some(gossip) => {
                let started = GossipHandle::start(&gossip, gossips.clone()).await;
                Some(started.map_err(|error| StartError::Gossip { bind: gossip.bind, error })?)
            }
            None => None,
        };
        let is_tls = tls.is_some();
        let identity = identity(&config, address, is_tls);
        let (phase, phase_seen) = watch::channel(NodePhase::Starting);
        let connections = u32::try_from(config.limits.connections).unwrap_or(u32::MAX).min(1 << 28);
        let places = Arc::new(Semaphore::new(connections as usize));
        let counts = Arc::new(ConnectionCounts::default());
        let router = Arc::new(OnceLock::new());
        let accepts = Pulse::default();
        let acceptor = Arc::new(Acceptor {
            starting: pages::starting(),
            router: router.clone(),
            limits: config.limits.clone(),
            places: places.clone(),
            phase: phase_seen.clone(),
            counts: counts.clone(),
            pulse: accepts.clone(),
            tls,
            runtime: Handle::current(),
        });
        let door = Door(acceptor.clone());
        let accepting = match listener {
            Some(listener) => tokio::spawn(acceptor.run(listener)),
            None => tokio::spawn(core::future::ready(())),
        };
        let NodeParts { engine, outputs, receipts, tokens, standbys } = match begin_serving(&config, &identity).await {
            Ok(begun) => begun,
            Err(error) => {
                phase.send_replace(NodePhase::Closing);
                // The port is free when whoever started us learns that it did not work.
                let _ = accepting.await;
                return Err(error);
            }
        };

        if config.listens {
            engine.loops().add("acceptor", config.probes.hang_after, &accepts);
        }
        if let Some(gossip) = gossip.clone() {
            engine.loops().add_reporting_only("gossip", config.probes.hang_after, &gossips);
            let (engine, mut until, phase) = (engine.clone(), phase_seen.clone(), phase_seen.clone());
            let within = config.probes.answer_within;
            tokio::spawn(async move {
                let is_accepting = move || *phase.borrow() == NodePhase::Serving;
                tokio::select! {
                    () = report_health(gossip, engine, within, is_accepting) => {}
                    _ = until.wait_for(|phase| *phase >= NodePhase::Draining) => {}
                }
            });
        }
        let (draining, drained) = watch::channel(false);
        let datacenter = config.datacenter.as_str().into();
        let app = App { engine, receipts, outputs, datacenter, gossip, draining: drained };
        let member = Member { gossip: app.gossip.clone(), ..config.member(address, Role::Manager)? };
        let forwarder = Forwarder::new(member, app.engine.leader_view().subscribe(), app.draining.clone());
        forwarder.keep_reaching(identity.reaches_leader.clone());
        let bodies = BodyRooms::default();
        let about = About {
            datacenter: config.datacenter.clone(),
            forwarder: forwarder.clone(),
            started_at: clock::now().wall,
            listen: address.to_string(),
            data: config.data.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            storage: config.storage.to_string(),
            standbys,
            counts,
            bodies: bodies.clone(),
            phase: phase_seen,
            probes: config.probes.clone(),
        };
        let guard = Arc::new(Guard {
            hosts: Hosts::new(address, is_tls, &own_names(&config)),
            tokens,
            require_tokens: config.require_tokens,
            limits: config.limits.clone(),
            bodies: bodies.clone(),
        });
        tokio::spawn(guard::watch_tokens(Arc::downgrade(&guard)));
        let (engine, outputs) = (app.engine.clone(), app.outputs.clone());
        if let Some(gates) = &config.gates {
            gates.keep(&engine, app.gossip.as_ref(), &app.draining);
        }
        let services = grpc::routes_for(engine, outputs, app.draining.clone(), config.limits.sessions);
        let services = services.layer(middleware::from_fn_with_state(forwarder.under(""), forward::forward));
        let more = more(&app).merge(services);
        let full = self::router(PageState { app: app.clone(), about: Arc::new(about) }, guard, more);
        router.set(full).expect("it is set here only");
        phase.send_replace(NodePhase::Serving);
        tracing::info!(%address, tls = is_tls, "listening");
        let ready_grace = config.effective_ready_grace();
        Ok(Self {
            app,
            address,
            tls: is_tls,
            phase,
            draining,
            accepting,
            door,
            places,
            connections,
            ready_grace,
            left_at: OnceLock::new(),
            is_leaving: identity.is_leaving,
        })
    }

    /// The address that it listens at, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.address)
    }

    /// Opens connections from within this process: what is said there never leaves it.
    pub fn door(&self) -> Door {
        self.door.clone()
    }

    pub fn engine(&self) -> &Engine {
        &self.app.engine
    }

    /// The node's view of other nodes, if it gossips.
    pub fn gossip(&self) -> Option<&GossipHandle> {
        self.app.gossip.as_ref()
    }

    /// `/readyz` says from now on that the node drains, and everything else goes on as before. The graces of
    /// [`Self::shutdown`] count from here.
    pub fn leave(&self) {
        self.left_at.get_or_init(|| {
            self.is_leaving.store(true, Ordering::Relaxed);
            self.phase.send_replace(NodePhase::Leaving);
            self.app.engine.loops().stopping();
            Instant::now()
        });
    }

    /// Leaves, and hands the seat over if another can take it: from then on this node passes on what it is asked.
    pub async fn step_down(&self) {
        self.leave();
        match self.app.engine.hand_over(None).await {
            Ok(heir) => tracing::info!(heir, "the seat was handed over"),
            Err(HandoverError::Alone | HandoverError::NotLeading(_)) => {}
            Err(error) => tracing::warn!(%error, "the seat was not handed over"),
        }
    }

    /// Leaves, if it has not done so, and takes connections until its ready grace is over; then answers open polls, lets
    /// other requests finish, and stops the engine. Requests that are left `grace` after the node began to leave are cut.
    pub async fn shutdown(mut self, grace: Duration) {
        self.leave();
        let left_at = *self.left_at.get().expect("the node has just left");
        let stop_by = left_at + grace;
        sleep_until(stop_by.min(left_at + self.ready_grace)).await;
        self.draining.send_replace(true);
        self.phase.send_replace(NodePhase::Draining);
        if let Err(error) = (&mut self.accepting).await {
            tracing::error!(%error, "the loop that accepts connections failed");
        }
        if timeout_at(stop_by, self.places.acquire_many(self.connections)).await.is_err() {
            tracing::warn!(?grace, "requests that did not finish in time are cut");
            self.phase.send_replace(NodePhase::Closing);
            let _all = self.places.acquire_many(self.connections).await;
        }
        if let Some(gossip) = &self.app.gossip {
            gossip.leave().await;
        }
        let app = self.app.clone();
        spawn_blocking(move || stop(&app.outputs, &app.engine)).await.expect("stopping does not panic");
    }
}

/// A way into a node from its own process, as long as the node runs. Cheap to clone.
#[derive(Clone)]
pub struct Door(Arc<Acceptor>);

impl core::fmt::Debug for Door {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Door")
    }
}

impl Door {
    /// A connection like one to the port, except that it is never encrypted. Tokens are asked for as usual.
    pub fn open(&self) -> std::io::Result<DuplexStream> {
        self.0.clone().inside()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.phase.send_replace(NodePhase::Closing);
        stop(&self.app.outputs, &self.app.engine);
    }
}

async fn begin_serving(config: &NodeConfig, identity: &SharedIdentity) -> Result<NodeParts, StartError> {
    let given_up = LeaveOnDrop(Some(identity.is_leaving.clone()));
    let (opened, identity) = (config.clone(), identity.clone());
    let (opened, is_whole) =
        spawn_blocking(move || open(&opened, &identity)).await.expect("opening a log does not panic")?;
    given_up.disarm();
    if let Err(error) = wait_until_serving(&opened.engine).await.or_else(|error| go_on_among_others(config, error)) {
        spawn_blocking(move || stop(&opened.outputs, &opened.engine)).await.expect("stopping does not panic");
        return Err(error);
    }
    // More than the log must be readable before that is said.
    if config.accept_loss && is_whole {
        tracing::warn!("nothing is lost: start without --accept-loss, or a loss to come goes by without a word");
    }
    Ok(opened)
}

/// Ends the wait for a storage that is away once nobody waits for the node any more.
struct LeaveOnDrop(Option<Arc<AtomicBool>>);

impl LeaveOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for LeaveOnDrop {
    fn drop(&mut self) {
        if let Some(is_leaving) = &self.0 {
            is_leaving.store(true, Ordering::Relaxed);
        }
    }
}

struct NodeParts {
    engine: Engine,
    outputs: Outputs,
    receipts: Receipts,
    tokens: Box<dyn Tokens>,
    standbys: Option<Standbys>,
}

/// The folder is ours until the engine has let go of its log, so that goes last.
fn stop(outputs: &Outputs, engine: &Engine) {
    outputs.stop();
    engine.stop();
}

fn open_storage(config: &NodeConfig, identity: &SharedIdentity) -> Result<Storage, StartError> {
    let outputs = config.outputs.clone();
    match &config.storage {
        StorageChoice::Embedded => {
            let on_loss = if config.accept_loss { OnLoss::Accept } else { OnLoss::Refuse };
            Storage::embedded(&config.data, outputs, on_loss)
        }
        StorageChoice::Postgres(url) => {
            Storage::postgres(url, &config.data, outputs, config.rules.seat_ttl, identity.clone())
        }
    }
}

/// Opens everything that takes its time before a node can serve, and gives whether the log was whole.
fn open(config: &NodeConfig, identity: &SharedIdentity) -> Result<(NodeParts, bool), StartError> {
    gate::check_role(config, false)?;
    let storage = open_storage(config, identity)?;
    let receipts = Receipts::new(&storage.secrets.key(KEY_FILE)?);
    let mut log = storage.log;
    if let Some(path) = &config.commit_mark {
        let (mark, mut unmarked) = (CommitMark::make(path)?, log);
        log = Box::new(move || Ok(mark.on(unmarked()?)));
    }
    let engine = Engine::start(EngineStart {
        backup: storage.backup,
        archive: Some(storage.archive),
        leadership: storage.leadership,
        heirs: storage.heirs,
        archive_rules: config.archive.clone(),
        snapshot_every: config.snapshot_every,
        hang_after: config.probes.hang_after,
        exporter: config.traces.clone().map(Exporter::start).transpose().map_err(StartError::Thread)?,
        ..EngineStart::new(config.rules.clone(), log)
    })?;
    let leader = engine.clone();
    let outputs = Outputs::start_among_others(storage.outputs, move || leader.serves());
    let outputs = outputs.map_err(StartError::Thread).inspect_err(|_| engine.stop())?;
    let (tokens, standbys) = (storage.tokens, storage.standbys);
    Ok((NodeParts { engine, outputs, receipts, tokens, standbys }, storage.is_whole))
}

/// The names that clients may call this node by. What others are told to dial is one of them.
fn own_names(config: &NodeConfig) -> Vec<String> {
    let advertised =
        config.advertise.iter().map(|address| address.split_once("://").map_or(address.as_str(), |(_, host)| host));
    config.host_names.iter().map(String::as_str).chain(advertised).map(str::to_owned).collect()
}

/// The identity of this node to those that share its storage.
fn identity(config: &NodeConfig, address: SocketAddr, is_tls: bool) -> SharedIdentity {
    let scheme = if is_tls { "https" } else { "http" };
    let advertised = config.advertise.clone().unwrap_or_else(|| address.to_string());
    SharedIdentity {
        log: config.datacenter.clone(),
        name: config.name.clone().unwrap_or_else(|| address.to_string()),
        address: if advertised.contains("://") { advertised } else { format!("{scheme}://{advertised}") },
        is_leaving: Arc::default(),
        reaches_leader: Arc::new(AtomicBool::new(true)),
    }
}

/// The seat is taken, but serving begins only once the log has confirmed that; or another has it, and this node follows.
async fn wait_until_serving(engine: &Engine) -> Result<(), StartError> {
    let serving = async {
        loop {
            if matches!(&*engine.leader_view().borrow(), LeaderView::Following { leader: Some(_), .. }) {
                return;
            }
            if let Ok(SeatState::Serving) = engine.read(|view| view.manager.seat_state()).await {
                return;
            }
            sleep(LOOK_AGAIN).await;
        }
    };
    timeout(SERVES_WITHIN, serving).await.map_err(|_| StartError::NotServing {
        within: SERVES_WITHIN,
        why: engine.trouble().unwrap_or_else(|| "the log did not confirm the seat".into()),
    })
}

/// Goes on without a leader where the database is shared: such a node waits for the database, or for a leader, however
/// long that takes, since a restart would not help. Until then it is alive and not ready.
fn go_on_among_others(config: &NodeConfig, error: StartError) -> Result<(), StartError> {
    match (&config.storage, error) {
        (StorageChoice::Postgres(_), error @ StartError::NotServing { .. }) => {
            tracing::warn!(%error, "starting all the same: this node is not ready until that is over");
            Ok(())
        }
        (_, error) => Err(error),
    }
}

fn router(pages: PageState, guard: Arc<Guard>, more: Router) -> Router {
    let engine = pages.app.engine.clone();
    let api = api::routes_for(Followers::at_most(guard.limits.followers))
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(pages.about.forwarder.under("/v1"), forward::forward))
        .layer(middleware::from_fn_with_state(guard.clone(), guard::read_body))
        .with_state(pages.app.clone());
    Router::new()
        .nest("/v1", api)
        .merge(pages::routes())
        .with_state(pages)
        .merge(more)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(guard, guard::admit))
        .layer(middleware::from_fn_with_state(engine, shed::shed))
        .layer(middleware::from_fn(guard::observe))
}

async fn unknown_path(request: Request) -> ProblemResponse {
    let detail = format!("there is no `{}`; `GET /openapi.json` lists what there is", request.uri().path());
    ProblemResponse::new(StatusCode::NOT_FOUND, "unknown_path", detail)
}

async fn wrong_method(request: Request) -> ProblemResponse {
    let detail = format!("`{}` does not take {}; see `GET /openapi.json`", request.uri().path(), request.method());
    ProblemResponse::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", detail)
}
