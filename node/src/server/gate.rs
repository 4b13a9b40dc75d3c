//! A gate on its port: as a node is, with the gate's engine, API and streams behind the same guard.

use core::time::Duration;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use onward_core::health::overload::{LoadClass, OverloadLevel, sheds};
use onward_core::manager::SeatState;
use onward_gossip::Role;
use onward_health::Pulse;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::accept::{Acceptor, ConnectionCounts, NodePhase};
use super::bodies::BodyRooms;
use super::config::{NodeConfig, StartError};
use super::gate_pages::{self, GateAbout, GatePages};
use super::guard::{self, Guard};
use super::hosts::Hosts;
use super::{
    LOOK_AGAIN, SERVES_WITHIN, go_on_among_others, identity, open_storage, own_names, pages, shed, tls, unknown_path,
    wrong_method,
};
use crate::api::jobs::follow::Followers;
use crate::api::problem::ProblemResponse;
use crate::auth::{FileError, Tokens, write_secret};
use crate::clock;
use crate::cluster::HandoverError;
use crate::cluster::forward::{self, Forwarder};
use crate::cluster::leader::LeaderView;
use crate::engine::Pacing;
use crate::gate::api::{self, GateApp};
use crate::gate::peers::PeerTrust;
use crate::gate::{GATES_LOG, GateEngine, GateStart, service};
use crate::gossip::GossipHandle;
use crate::gossip::feed::report_gate_health;
use crate::grpc;
use crate::storage::{SharedIdentity, Standbys, Storage};

/// Everything that a gate is started with.
#[derive(Clone, Debug)]
pub struct GateConfig {
    /// The node's own settings, of which a gate has no datacenter, and neither archive nor output.
    pub node: NodeConfig,
    /// Says who may speak for a datacenter. Nobody opens a stream without it.
    pub trust: PeerTrust,
}

/// A running gate. Dropped without [`GateNode::shutdown`], it stops at once: what was decided is durable, what is under way
/// is cut.
#[derive(Debug)]
pub struct GateNode {
    app: GateApp,
    address: SocketAddr,
    is_tls: bool,
    phase: watch::Sender<NodePhase>,
    draining: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    places: Arc<Semaphore>,
    connections: u32,
    ready_grace: Duration,
    left_at: OnceLock<Instant>,
    is_leaving: Arc<AtomicBool>,
}

impl GateNode {
    pub async fn start(config: GateConfig) -> Result<Self, StartError> {
        let GateConfig { mut node, trust } = config;
        node.check()?;
        node.datacenter = GATES_LOG.into();
        let tls = node.tls.as_ref().map(|(cert, key)| tls::acceptor(cert, key, node.tls_ca.as_deref())).transpose()?;
        let about = |error| StartError::Listen { listen: node.listen, error };
        let listener = TcpListener::bind(node.listen).await.map_err(about)?;
        let address = listener.local_addr().map_err(about)?;
        let gossips = Pulse::default();
        let gossip = match node.gossip.clone().map(|gossip| gossip.on_port(address.port())) {
            Some(gossip) => {
                let started = GossipHandle::start(&gossip, gossips.clone()).await;
                Some(started.map_err(|error| StartError::Gossip { bind: gossip.bind, error })?)
            }
            None => None,
        };
        let is_tls = tls.is_some();
        let identity = identity(&node, address, is_tls);
        let (phase, phase_seen) = watch::channel(NodePhase::Starting);
        let connections = u32::try_from(node.limits.connections).unwrap_or(u32::MAX).min(1 << 28);
        let places = Arc::new(Semaphore::new(connections as usize));
        let counts = Arc::new(ConnectionCounts::default());
        let router = Arc::new(OnceLock::new());
        let accepts = Pulse::default();
        let acceptor = Arc::new(Acceptor {
            starting: pages::starting(),
            router: router.clone(),
            limits: node.limits.clone(),
            places: places.clone(),
            phase: phase_seen.clone(),
            counts: counts.clone(),
            pulse: accepts.clone(),
            tls,
            runtime: Handle::current(),
        });
        let accepting = tokio::spawn(acceptor.run(listener));
        let GateParts { engine, tokens, standbys } = match begin_serving(&node, &identity).await {
            Ok(opened) => opened,
            Err(error) => {
                phase.send_replace(NodePhase::Closing);
                // The port is free when whoever started us learns that it did not work.
                let _ = accepting.await;
                return Err(error);
            }
        };
        engine.loops().add("acceptor", node.probes.hang_after, &accepts);
        if let Some(gossip) = gossip.clone() {
            engine.loops().add_reporting_only("gossip", node.probes.hang_after, &gossips);
            let (engine, mut until, phase) = (engine.clone(), phase_seen.clone(), phase_seen.clone());
            let within = node.probes.answer_within;
            tokio::spawn(async move {
                let is_accepting = move || *phase.borrow() == NodePhase::Serving;
                tokio::select! {
                    () = report_gate_health(gossip, engine, within, is_accepting) => {}
                    _ = until.wait_for(|phase| *phase >= NodePhase::Draining) => {}
                }
            });
        }
        let (draining, drained) = watch::channel(false);
        let app = GateApp { engine, name: identity.name.clone(), gossip, draining: drained };
        let member = node.member(address, Role::Gate)?;
        let forwarder = Forwarder::new(member, app.engine.leader_view().subscribe(), app.draining.clone());
        forwarder.keep_reaching(identity.reaches_leader.clone());
        let bodies = BodyRooms::default();
        let about = GateAbout {
            forwarder,
            started_at: clock::now().wall,
            listen: address.to_string(),
            data: node.data.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            storage: node.storage.to_string(),
            standbys,
            counts,
            bodies: bodies.clone(),
            phase: phase_seen,
            probes: node.probes.clone(),
        };
        let guard = Arc::new(Guard {
            hosts: Hosts::new(address, is_tls, &own_names(&node)),
            tokens,
            require_tokens: node.require_tokens,
            limits: node.limits.clone(),
            bodies: bodies.clone(),
        });
        tokio::spawn(guard::watch_tokens(Arc::downgrade(&guard)));
        let streams = service::routes(app.engine.clone(), trust, app.draining.clone());
        let pages = GatePages { app: app.clone(), about: Arc::new(about) };
        router.set(self::router(pages, guard, streams)).expect("it is set here only");
        phase.send_replace(NodePhase::Serving);
        tracing::info!(%address, tls = is_tls, "listening");
        Ok(Self {
            app,
            address,
            is_tls,
            phase,
            draining,
            accepting,
            places,
            connections,
            ready_grace: node.effective_ready_grace(),
            left_at: OnceLock::new(),
            is_leaving: identity.is_leaving,
        })
    }

    /// The address that it listens at, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("{}://{}", if self.is_tls { "https" } else { "http" }, self.address)
    }

    pub fn engine(&self) -> &GateEngine {
        &self.app.engine
    }

    /// `/readyz` says from now on that the gate drains, and everything else goes on as before.
    pub fn leave(&self) {
        self.left_at.get_or_init(|| {
            self.is_leaving.store(true, Ordering::Relaxed);
            self.phase.send_replace(NodePhase::Leaving);
            self.app.engine.loops().stopping();
            Instant::now()
        });
    }

    /// Leaves, and hands the seat over if another gate can take it: from then on this one passes on what it is asked.
    pub async fn step_down(&self) {
        self.leave();
        match self.app.engine.hand_over().await {
            Ok(heir) => tracing::info!(heir, "the seat was handed over"),
            Err(HandoverError::Alone | HandoverError::NotLeading(_)) => {}
            Err(error) => tracing::warn!(%error, "the seat was not handed over"),
        }
    }

    /// Leaves, if it has not done so, and takes connections until its ready grace is over; then ends the streams, lets
    /// requests finish, and stops the engine. Requests that are left `grace` after the gate began to leave are cut.
    pub async fn shutdown(mut self, grace: Duration) {
        self.leave();
        let left_at = *self.left_at.get().expect("the gate has just left");
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
        let engine = self.app.engine.clone();
        spawn_blocking(move || engine.stop()).await.expect("stopping does not panic");
    }
}

impl Drop for GateNode {
    fn drop(&mut self) {
        self.phase.send_replace(NodePhase::Closing);
        self.app.engine.stop();
    }
}

struct GateParts {
    engine: GateEngine,
    tokens: Box<dyn Tokens>,
    standbys: Option<Standbys>,
}

async fn begin_serving(config: &NodeConfig, identity: &SharedIdentity) -> Result<GateParts, StartError> {
    let (opened, identity) = (config.clone(), identity.clone());
    let opened = spawn_blocking(move || open(&opened, &identity)).await.expect("opening a log does not panic")?;
    let serving = wait_until_serving(&opened.engine).await;
    if let Err(error) = serving.or_else(|error| go_on_among_others(config, error)) {
        spawn_blocking(move || opened.engine.stop()).await.expect("stopping does not panic");
        return Err(error);
    }
    Ok(opened)
}

/// The file in the data folder that tells whose log is there.
const ROLE: &str = "role";
const GATE: &str = "gate";

/// Refuses a folder with the log of a manager to a gate, and one of a gate to a manager: neither could read it.
pub(super) fn check_role(config: &NodeConfig, is_gate: bool) -> Result<(), StartError> {
    let folder = &config.data;
    let is_used = folder.join("onward.redb").exists();
    let is_of_gate = match std::fs::read_to_string(folder.join(ROLE)) {
        // A crash may have emptied that of an older version. Only gates write one.
        Ok(role) => role.trim() == GATE || role.is_empty(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(FileError::new(&folder.join(ROLE), format!("cannot be read: {error}")).into()),
    };
    match (is_used, is_of_gate) {
        (true, false) if is_gate => Err(StartError::OtherRole { folder: folder.clone(), is: "manager", wanted: GATE }),
        (_, true) if !is_gate => Err(StartError::OtherRole { folder: folder.clone(), is: GATE, wanted: "manager" }),
        _ => Ok(()),
    }
}

/// Opens everything that takes its time before a gate can serve.
fn open(config: &NodeConfig, identity: &SharedIdentity) -> Result<GateParts, StartError> {
    let storage = open_as_gate(config, identity)?;
    let engine = GateEngine::start(GateStart {
        rules: config.rules.clone(),
        id: id_of(&identity.name),
        log: storage.log,
        leadership: storage.leadership,
        heirs: storage.heirs,
        snapshot_every: config.snapshot_every,
        pacing: Pacing::default(),
        hang_after: config.probes.hang_after,
    })?;
    Ok(GateParts { engine, tokens: storage.tokens, standbys: storage.standbys })
}

/// The storage of a gate. Its folder is marked before there is a log in it: one with a log and no mark is a manager's.
fn open_as_gate(config: &NodeConfig, identity: &SharedIdentity) -> Result<Storage, StartError> {
    check_role(config, true)?;
    let role = config.data.join(ROLE);
    if std::fs::read_to_string(&role).is_ok_and(|role| role.trim() == GATE) {
        return open_storage(config, identity);
    }
    onward_log::make_folder(&config.data)?;
    write_secret(&role, GATE.as_bytes())?;
    open_storage(config, identity)
}

/// A gate's place in epochs: the same for the same name.
fn id_of(name: &str) -> u64 {
    let digest = Sha256::digest(name.as_bytes());
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has more than 8 bytes"))
}

/// The seat is taken, but serving begins only once the log has confirmed that; or another has it, and this gate follows.
async fn wait_until_serving(engine: &GateEngine) -> Result<(), StartError> {
    let serving = async {
        loop {
            if matches!(&*engine.leader_view().borrow(), LeaderView::Following { leader: Some(_), .. }) {
                return;
            }
            if let Ok(SeatState::Serving) = engine.read(|gate| gate.seat_state()).await {
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

fn router(pages: GatePages, guard: Arc<Guard>, streams: Router) -> Router {
    let engine = pages.app.engine.clone();
    let (forwarded, answered_here) = match pages.app.gossip {
        Some(_) => (Router::new(), api::nodes()),
        None => (api::nodes(), Router::new()),
    };
    let api = api::routes_for(Followers::at_most(guard.limits.followers))
        .merge(forwarded)
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(pages.about.forwarder.under("/v1"), forward::forward))
        .merge(answered_here)
        .layer(middleware::from_fn_with_state(guard.clone(), guard::read_body))
        .with_state(pages.app.clone());
    Router::new()
        .nest("/v1", api)
        .merge(gate_pages::routes())
        .with_state(pages)
        .merge(streams)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(guard, guard::admit))
        .layer(middleware::from_fn_with_state(engine, shed_at_gate))
        .layer(middleware::from_fn(guard::observe))
}

/// Turns away what a gate under load turns away, as for a manager.
async fn shed_at_gate(State(engine): State<GateEngine>, request: Request, next: Next) -> Response {
    let level = engine.load();
    if level == OverloadLevel::Normal {
        return next.run(request).await;
    }
    let Some(path) = request.extensions().get::<MatchedPath>().cloned() else { return next.run(request).await };
    let class = shed::class_of(request.method(), path.as_str()).unwrap_or(LoadClass::Other);
    if !sheds(level, class) {
        return next.run(request).await;
    }
    engine.stats().shed.add(1);
    let text = shed::refusal(level, engine.load_reason(), class);
    if grpc::is_call(request.headers()) {
        return grpc::overloaded(text);
    }
    ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", text).into_response()
}

#[cfg(test)]
mod tests {
    use onward_log::changes::faults;
    use tempfile::tempdir;

    use super::*;

    #[test]
    fn whichever_change_fails_a_gate_can_be_started_in_its_folder_again_and_no_manager() {
        faults::each(|fault| {
            let folder = tempdir().unwrap();
            let config = NodeConfig::new("127.0.0.1:0".parse().unwrap(), folder.path().join("data"));
            let identity = identity(&config, config.listen, false);
            let opened = open_as_gate(&config, &identity).map(drop);
            faults::healed(|| {
                open_as_gate(&config, &identity).map(drop).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
                if opened.is_ok() {
                    check_role(&config, false).expect_err("it is a gate's");
                }
                check_role(&config, true).expect("it is a gate's");
            });
        });
    }

    #[test]
    fn a_mark_that_a_crash_emptied_is_a_gates_and_one_that_cannot_be_read_is_an_error() {
        let folder = tempdir().unwrap();
        let config = NodeConfig::new("127.0.0.1:0".parse().unwrap(), folder.path());
        let identity = identity(&config, config.listen, false);
        std::fs::write(folder.path().join("onward.redb"), "").unwrap();
        assert!(matches!(check_role(&config, true), Err(StartError::OtherRole { is: "manager", .. })));
        std::fs::write(folder.path().join(ROLE), "").unwrap();
        check_role(&config, true).expect("it is a gate's");
        assert!(matches!(check_role(&config, false), Err(StartError::OtherRole { is: GATE, .. })));
        std::fs::remove_file(folder.path().join("onward.redb")).unwrap();
        drop(open_as_gate(&config, &identity).unwrap());
        assert_eq!(std::fs::read_to_string(folder.path().join(ROLE)).unwrap(), GATE);
        std::fs::remove_file(folder.path().join(ROLE)).unwrap();
        std::fs::create_dir(folder.path().join(ROLE)).unwrap();
        assert!(matches!(check_role(&config, true), Err(StartError::File(_))));
    }
}
