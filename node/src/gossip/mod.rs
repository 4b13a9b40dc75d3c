//! Gossip on a socket: the machine of `onward-gossip` with a clock, a UDP port and somebody to read its view.
//!
//! The port has the number of the node's TCP port. What comes in is stepped at once; views are published when somebody
//! comes or goes, and else a few times a second. Nothing waits for gossip, and gossip decides nothing: it says how the
//! others are ([`members`]), and to a manager that cannot see the seat, who says that it leads.

pub(crate) mod feed;
pub mod members;

use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use onward_core::time::Mono;
use onward_gossip::{
    ClusterKeys, Effect, Gossip, GossipRule, Input, MAX_DATAGRAM_BYTES, NodeHealth, NodeIdentity, NodeLabel, Ring,
    RingView, Role,
};
use onward_health::Pulse;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::auth::{FileError, write_secret};
use crate::clock;

const PUBLISH_EVERY: Duration = Duration::from_millis(250);
/// The pause after a failure of the socket.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// The number of datagrams that are read before anything else gets its turn.
const AT_A_TIME: usize = 64;
/// The time that a goodbye may take.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);
const COMMANDS: usize = 16;

/// A node's part in the gossip of its ring.
#[derive(Clone, Debug)]
pub struct GossipConfig {
    pub keys: ClusterKeys,
    /// Port 0 stands for that of the node's TCP port.
    pub bind: SocketAddr,
    /// The address by which others reach the node. Port 0 as for `bind`.
    pub advertise: SocketAddr,
    pub name: NodeLabel,
    pub role: Role,
    /// A gate has none.
    pub datacenter: Option<NodeLabel>,
    /// Higher than in any life before: see [`next_incarnation`].
    pub incarnation: u64,
    /// Addresses that others of the ring advertise; any of them will do.
    pub peers: Vec<SocketAddr>,
    pub rule: GossipRule,
}

impl GossipConfig {
    /// The configuration with ports that were left open filled in.
    #[must_use]
    pub fn on_port(mut self, port: u16) -> Self {
        for address in [&mut self.bind, &mut self.advertise] {
            if address.port() == 0 {
                address.set_port(port);
            }
        }
        self
    }

    fn ring(&self) -> Ring {
        match self.role {
            Role::Gate => Ring::Global,
            Role::Manager | Role::Worker => Ring::Datacenter,
        }
    }
}

/// The number of the life that begins now: the wall clock's, and higher than that of the life before, also where the
/// clock was set back in between. It is kept in `folder`.
pub fn next_incarnation(folder: &Path) -> Result<u64, FileError> {
    let path = folder.join("incarnation");
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().unwrap_or(0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(FileError { path, what: format!("cannot be read: {error}") }),
    };
    let next = clock::now().wall.as_ms().max(before + 1);
    write_secret(&path, next.to_string().as_bytes())?;
    Ok(next)
}

/// The keys in a file of one or two lines.
pub fn read_keys(path: &Path) -> Result<ClusterKeys, FileError> {
    let about = |what: String| FileError { path: path.to_owned(), what };
    let text = std::fs::read_to_string(path).map_err(|error| about(format!("cannot be read: {error}")))?;
    ClusterKeys::parse(&text).map_err(|error| about(error.to_string()))
}

enum Command {
    Health(NodeHealth),
    Keys(ClusterKeys),
    Leave(oneshot::Sender<()>),
}

/// A running part of a ring. Cheap to clone; the last one to be dropped ends it, without a goodbye.
#[derive(Clone, Debug)]
pub struct GossipHandle(Arc<Running>);

#[derive(Debug)]
struct Running {
    address: SocketAddr,
    view: watch::Receiver<Arc<RingView>>,
    commands: mpsc::Sender<Command>,
    running: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl GossipHandle {
    /// Begins to gossip. `pulse` is what the loop is watched by.
    pub async fn start(config: &GossipConfig, pulse: Pulse) -> io::Result<Self> {
        let socket = UdpSocket::bind(config.bind).await?;
        let config = config.clone().on_port(socket.local_addr()?.port());
        let own = NodeIdentity::new(
            config.advertise,
            config.role,
            config.datacenter.clone(),
            config.name.clone(),
            config.incarnation,
        );
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let (now, seed) = (clock::mono(), u64::from_ne_bytes(seed));
        let machine = Gossip::new(config.ring(), config.rule, own, &config.keys, &config.peers, seed, now);
        let (publish, view) = watch::channel(Arc::new(machine.view(now)));
        let (commands, received) = mpsc::channel(COMMANDS);
        let gossiping = Gossiping { socket, machine, effects: Vec::new(), publish, publish_at: Instant::now(), pulse };
        let running = tokio::spawn(gossiping.run(received));
        let address = config.advertise;
        Ok(Self(Arc::new(Running { address, view, commands, running })))
    }

    /// The address by which others reach the node.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The last view of the ring.
    pub fn view(&self) -> Arc<RingView> {
        self.0.view.borrow().clone()
    }

    /// Views as they come.
    pub fn views(&self) -> watch::Receiver<Arc<RingView>> {
        self.0.view.clone()
    }

    /// Reports the health of this node. Reports that come too fast are left out: the next one says it all again.
    pub fn report(&self, health: NodeHealth) {
        let _ = self.0.commands.try_send(Command::Health(health));
    }

    /// Other keys from now on.
    pub async fn use_keys(&self, keys: ClusterKeys) {
        let _ = self.0.commands.send(Command::Keys(keys)).await;
    }

    /// Says goodbye, and waits until that is on its way.
    pub async fn leave(&self) {
        let (said, heard) = oneshot::channel();
        if self.0.commands.send(Command::Leave(said)).await.is_ok() {
            // Nobody dies of a goodbye that was not said.
            let _ = timeout(LEAVES_WITHIN, heard).await;
        }
    }
}

struct Gossiping {
    socket: UdpSocket,
    machine: Gossip,
    effects: Vec<Effect>,
    publish: watch::Sender<Arc<RingView>>,
    publish_at: Instant,
    pulse: Pulse,
}

/// A loop that panics is seen to be dead.
struct DieOnPanic(Pulse);

impl Drop for DieOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.die();
        }
    }
}

impl Gossiping {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let _dies = DieOnPanic(self.pulse.clone());
        let mut buffer = [0; MAX_DATAGRAM_BYTES + 1];
        loop {
            let wake = self.machine.next_wakeup().map_or(PUBLISH_EVERY, |at| at.since(clock::mono()));
            let wake = (Instant::now() + wake).min(self.publish_at);
            tokio::select! {
                received = self.socket.recv_from(&mut buffer) => {
                    self.pulse.begin();
                    match received {
                        Ok((length, _)) => self.receive(&mut buffer, length),
                        Err(error) => self.failed(&error).await,
                    }
                }
                command = commands.recv() => {
                    self.pulse.begin();
                    match command {
                        Some(Command::Health(health)) => self.step(Input::Health(health)),
                        Some(Command::Keys(keys)) => self.step(Input::Keys(&keys)),
                        Some(Command::Leave(said)) => {
                            self.step(Input::Leave);
                            self.publish(clock::mono());
                            self.pulse.rest();
                            let _ = said.send(());
                            return;
                        }
                        None => return,
                    }
                }
                () = sleep_until(wake) => {
                    self.pulse.begin();
                    self.step(Input::Wake);
                }
            }
            if Instant::now() >= self.publish_at {
                self.publish(clock::mono());
            }
            self.pulse.rest();
        }
    }

    /// Takes in this datagram and those behind it.
    fn receive(&mut self, buffer: &mut [u8], first: usize) {
        self.step(Input::Datagram(&buffer[..first]));
        for _ in 1..AT_A_TIME {
            let Ok((length, _)) = self.socket.try_recv_from(buffer) else { break };
            self.step(Input::Datagram(&buffer[..length]));
        }
        self.pulse.recover();
    }

    async fn failed(&self, error: &io::Error) {
        self.pulse.fail(error);
        tracing::warn!(%error, "gossip cannot be received");
        sleep(TRY_AGAIN).await;
    }

    fn step(&mut self, input: Input<'_>) {
        let now = clock::mono();
        let mut effects = core::mem::take(&mut self.effects);
        self.machine.step(now, input, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(now, effect);
        }
        self.effects = effects;
    }

    fn carry_out(&mut self, now: Mono, effect: Effect) {
        match effect {
            // One that cannot be sent is one that is lost: gossip is made for that.
            Effect::Send { to, datagram } => {
                if let Err(error) = self.socket.try_send_to(&datagram, to) {
                    tracing::debug!(%to, %error, "a datagram could not be sent");
                }
                return;
            }
            Effect::Up(node) => tracing::info!(node = %node.name, role = %node.role, "a node is there"),
            Effect::Down { node, left } => {
                tracing::info!(node = %node.name, role = %node.role, left, "a node is gone");
            }
            Effect::Replaced { old, new } => {
                if !old.is_same_life(&new) {
                    tracing::info!(node = %new.name, "a node has begun a new life");
                }
            }
            Effect::Joined => tracing::info!("gossip has found others"),
            Effect::Alone => tracing::warn!("gossip reaches nobody"),
            Effect::Rejoined { renewals } => tracing::warn!(renewals, "the others had taken this node for dead"),
            Effect::Fault(error) => tracing::warn!(error, "gossip was not content with itself"),
        }
        self.publish(now);
    }

    fn publish(&mut self, now: Mono) {
        self.publish.send_replace(Arc::new(self.machine.view(now)));
        self.publish_at = Instant::now() + PUBLISH_EVERY;
    }
}

#[cfg(test)]
mod tests;
