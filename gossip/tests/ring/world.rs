//! A network of gossiping nodes in simulated time: it loses, delays, doubles and cuts, all by one seed.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use onward_core::time::Mono;
use onward_gossip::{
    ClusterKey, ClusterKeys, Effect, Gossip, GossipRule, Input, MemberState, NodeHealth, NodeIdentity, NodeLabel, Ring,
    RingView, Role,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub fn keys(first: u8, second: Option<u8>) -> ClusterKeys {
    let key = |byte| ClusterKey::new([byte; 32]);
    ClusterKeys::new(key(first), second.map(key))
}

pub fn label(text: &str) -> NodeLabel {
    NodeLabel::new(text).unwrap()
}

pub fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (number / 250) as u8, (number % 250) as u8], 7400))
}

pub fn manager(number: usize, incarnation: u64) -> NodeIdentity {
    NodeIdentity::new(address(number), Role::Manager, Some(label("dc-a")), label(&format!("m{number}")), incarnation)
}

/// The number of peers that each node is told of.
const PEERS: usize = 3;

struct Host {
    gossip: Option<Gossip>,
    frozen: bool,
    /// Datagrams that have come while the host was frozen.
    inbox: VecDeque<Vec<u8>>,
}

pub struct World {
    pub now: Mono,
    seed: u64,
    random: ChaCha8Rng,
    hosts: Vec<Host>,
    /// Datagrams on the wire by their arrival.
    wire: BTreeMap<(Mono, u64), (usize, usize, Vec<u8>)>,
    sent: u64,
    pub loss_percent: u32,
    cut: BTreeSet<(usize, usize)>,
    pub effects: Vec<(Mono, usize, Effect)>,
    /// Everything that was ever sent, for tests that replay it.
    pub recorded: Vec<(usize, Vec<u8>)>,
    /// A hash over all that has happened, in its order.
    pub trace: u64,
}

impl World {
    pub fn new(seed: u64, nodes: usize) -> Self {
        let hosts = (0..nodes).map(|_| Host { gossip: None, frozen: false, inbox: VecDeque::new() }).collect();
        let mut world = Self {
            now: Mono::from_ms(1_000_000),
            seed,
            random: ChaCha8Rng::seed_from_u64(seed),
            hosts,
            wire: BTreeMap::new(),
            sent: 0,
            loss_percent: 0,
            cut: BTreeSet::new(),
            effects: Vec::new(),
            recorded: Vec::new(),
            trace: 0xcbf2_9ce4_8422_2325,
        };
        (0..nodes).for_each(|number| world.start(number, 1, &keys(1, None)));
        world
    }

    pub fn start(&mut self, number: usize, incarnation: u64, keys: &ClusterKeys) {
        self.start_as(number, Ring::Datacenter, manager(number, incarnation), keys);
    }

    pub fn start_as(&mut self, number: usize, ring: Ring, own: NodeIdentity, keys: &ClusterKeys) {
        let peers: Vec<SocketAddr> = (0..self.hosts.len().min(PEERS)).map(address).collect();
        self.start_with_peers(number, ring, own, keys, &peers);
    }

    pub fn start_with_peers(
        &mut self,
        number: usize,
        ring: Ring,
        own: NodeIdentity,
        keys: &ClusterKeys,
        peers: &[SocketAddr],
    ) {
        let seed = self.seed ^ (number as u64) << 32 ^ own.incarnation;
        let gossip = Gossip::new(ring, GossipRule::default(), own, keys, peers, seed, self.now);
        self.hosts[number] = Host { gossip: Some(gossip), frozen: false, inbox: VecDeque::new() };
    }

    pub fn kill(&mut self, number: usize) {
        self.hosts[number].gossip = None;
    }

    pub fn freeze(&mut self, number: usize) {
        self.hosts[number].frozen = true;
    }

    /// Thaws a node, which reads first what has queued up, as a loop does that drains its socket.
    pub fn thaw(&mut self, number: usize) {
        self.hosts[number].frozen = false;
        for datagram in core::mem::take(&mut self.hosts[number].inbox) {
            self.step(number, Input::Datagram(&datagram));
        }
    }

    pub fn leave(&mut self, number: usize) {
        self.step(number, Input::Leave);
    }

    /// Nothing passes between the two sides any more.
    pub fn cut(&mut self, one: &[usize], other: &[usize]) {
        for a in one {
            for b in other {
                self.cut.extend([(*a, *b), (*b, *a)]);
            }
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    pub fn step(&mut self, number: usize, input: Input<'_>) {
        let Some(gossip) = &mut self.hosts[number].gossip else { return };
        let mut effects = Vec::new();
        gossip.step(self.now, input, &mut effects);
        for effect in effects {
            self.note(&format!("{} {number} {effect:?}", self.now.as_ms()));
            match effect {
                Effect::Send { to, datagram } => self.send(number, to, datagram),
                other => self.effects.push((self.now, number, other)),
            }
        }
    }

    fn note(&mut self, text: &str) {
        self.trace = text.bytes().fold(self.trace, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    }

    fn send(&mut self, from: usize, to: SocketAddr, datagram: Vec<u8>) {
        assert!(datagram.len() <= onward_gossip::MAX_DATAGRAM_BYTES, "{} bytes", datagram.len());
        let Some(number) = (0..self.hosts.len()).find(|number| address(*number) == to) else { return };
        self.recorded.push((number, datagram.clone()));
        if self.random.random_range(0..100) < self.loss_percent {
            return;
        }
        self.sent += 1;
        let delay = Duration::from_millis(self.random.random_range(1..=20));
        self.wire.insert((self.now + delay, self.sent), (from, number, datagram));
    }

    /// Straight into a node, as from anybody who reaches its port.
    pub fn inject(&mut self, number: usize, datagram: &[u8]) {
        self.step(number, Input::Datagram(datagram));
    }

    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let awake = |host: &Host| host.gossip.as_ref().filter(|_| !host.frozen)?.next_wakeup();
            let wake = (0..self.hosts.len()).filter_map(|number| Some((awake(&self.hosts[number])?, number))).min();
            let arrival = self.wire.keys().next().copied();
            let next = wake.map(|(at, _)| at).into_iter().chain(arrival.map(|(at, _)| at)).min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            match arrival.filter(|(arrives, _)| *arrives <= at) {
                Some(first) => {
                    let (from, to, datagram) = self.wire.remove(&first).expect("it was just seen");
                    self.arrive(from, to, datagram);
                }
                None => self.step(wake.expect("somebody wants to be woken").1, Input::Wake),
            }
        }
        self.now = end;
    }

    fn arrive(&mut self, from: usize, to: usize, datagram: Vec<u8>) {
        if self.cut.contains(&(from, to)) {
            return;
        }
        if self.hosts[to].frozen {
            self.hosts[to].inbox.push_back(datagram);
        } else {
            self.step(to, Input::Datagram(&datagram));
        }
    }

    pub fn run_s(&mut self, seconds: u64) {
        self.run(Duration::from_secs(seconds));
    }

    pub fn view(&self, number: usize) -> RingView {
        self.hosts[number].gossip.as_ref().expect("it runs").view(self.now)
    }

    pub fn running(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|number| self.hosts[*number].gossip.is_some()).collect()
    }

    /// The state of `of` as `by` sees it.
    pub fn state(&self, by: usize, of: usize) -> Option<MemberState> {
        Some(self.view(by).member(address(of))?.state)
    }

    /// All pairs of running nodes of which one does not see the other alive.
    pub fn strangers(&self) -> Vec<(usize, usize)> {
        let running = self.running();
        let pairs = running.iter().flat_map(|by| running.iter().map(move |of| (*by, *of)));
        pairs.filter(|(by, of)| by != of && self.state(*by, *of) != Some(MemberState::Alive)).collect()
    }

    /// Members that somebody declared down since the effects were last cleared.
    pub fn declared_down(&self) -> Vec<String> {
        let down = self.effects.iter().filter_map(|(at, by, effect)| match effect {
            Effect::Down { node, left } => Some(format!("{} says {} (left {left}) at {at:?}", by, node.name)),
            _ => None,
        });
        down.collect()
    }

    pub fn health(&mut self, number: usize, health: NodeHealth) {
        self.step(number, Input::Health(health));
    }

    pub fn faults(&self) -> Vec<&Effect> {
        self.effects.iter().map(|(_, _, effect)| effect).filter(|effect| matches!(effect, Effect::Fault(_))).collect()
    }
}
