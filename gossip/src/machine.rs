//! Gossip as a machine: told the time and one input, it answers with effects, and says when it wants to be woken.
//!
//! **What is trusted, and for how long.** A datagram is believed if it was sealed with the cluster's key, is meant for
//! this life of ours, comes from a node that belongs into the ring, and was not seen before. A node's word about itself
//! holds until it says something else. That a node is down is believed of anybody in the ring, until that node itself
//! says otherwise under a new number.
//!
//! **Time.** Within a step the input is taken before timers fire. Where the process did not run for a while, the time
//! is nobody else's fault: all timers move by as much, and what has queued up meanwhile is taken first. See [`Stretch`]
//! for a process that is merely slow.
//!
//! **Joining** has no end: as long as there is no other member, all peers are announced to again and again; later only
//! those that are missing, so that two halves that started apart find each other.

use core::fmt;
use core::net::SocketAddr;
use core::num::{NonZeroU8, NonZeroUsize};
use core::time::Duration;
use std::collections::BTreeMap;

use bytes::Buf;
use foca::{AccumulatingRuntime, Codec, Foca, Message, OwnedNotification, PeriodicParams, State, Timer};
use onward_core::time::Mono;
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::codec::GossipCodec;
use crate::datagram::{DropCounts, DropReason, MAX_FOCA_BYTES, Seals};
use crate::health::{Block, BlockError, Broadcast, HealthReport, MAX_DOUBTS, NodeHealth, address_hash};
use crate::health_table::SharedHealth;
use crate::identity::{NodeIdentity, Ring};
use crate::key::ClusterKeys;
use crate::replay::Replays;
use crate::stretch::Stretch;
use crate::view::{MemberState, MemberView, RingView, disagreements};

/// The most members that are known, those that are down included. A datagram may go beyond it by the few that it names.
pub const MAX_MEMBERS: usize = 4_096;
/// Members probed on our behalf, or gossiped with at a time.
const FEW: NonZeroUsize = NonZeroUsize::new(3).unwrap();
/// The number of times that one piece of news is passed on.
const TRANSMISSIONS: NonZeroU8 = NonZeroU8::new(12).unwrap();

/// The tempo of a ring; the same for all of its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GossipRule {
    /// The period, in which one member is probed.
    pub probe_every: Duration,
    /// A member that has not answered within this is probed by others too. Well below `probe_every`.
    pub answer_within: Duration,
    /// The time that a suspect has to say that it lives.
    pub suspect_for: Duration,
    /// News are passed on this often.
    pub spread_every: Duration,
    /// The interval at which all peers are announced to while there is no other member.
    pub join_every: Duration,
    /// The interval at which peers that are missing, and members that are down, are announced to otherwise.
    pub look_for_missing_every: Duration,
    /// A member that is down is forgotten after this.
    pub forget_after: Duration,
    /// The delay of a wake-up that shows that this process did not run.
    pub gap_after: Duration,
}

impl Default for GossipRule {
    fn default() -> Self {
        Self {
            probe_every: Duration::from_secs(1),
            answer_within: Duration::from_millis(300),
            suspect_for: Duration::from_secs(3),
            spread_every: Duration::from_millis(200),
            join_every: Duration::from_secs(1),
            look_for_missing_every: Duration::from_secs(10),
            forget_after: Duration::from_secs(3_600),
            gap_after: Duration::from_secs(1),
        }
    }
}

impl GossipRule {
    fn config(&self) -> foca::Config {
        let every = |frequency, num_members| Some(PeriodicParams { frequency, num_members });
        foca::Config {
            probe_period: self.probe_every,
            probe_rtt: self.answer_within,
            num_indirect_probes: FEW,
            max_transmissions: TRANSMISSIONS,
            suspect_to_down_after: self.suspect_for,
            remove_down_after: Some(self.forget_after),
            max_packet_size: NonZeroUsize::new(MAX_FOCA_BYTES).expect("a datagram has room for foca"),
            notify_down_members: true,
            periodic_announce: every(self.look_for_missing_every * 3, NonZeroUsize::MIN),
            periodic_announce_to_down_members: every(self.look_for_missing_every, FEW),
            periodic_gossip: every(self.spread_every, FEW),
        }
    }
}

/// An input of the machine.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A wake-up that is due, as [`Gossip::next_wakeup`] asked.
    Wake,
    Datagram(&'a [u8]),
    /// The health of this node now.
    Health(NodeHealth),
    /// Other keys from now on.
    Keys(&'a ClusterKeys),
    /// Say goodbye. Nothing is sent after that, and nothing is heard.
    Leave,
}

/// An effect to carry out, or to make known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    Send {
        to: SocketAddr,
        datagram: Vec<u8>,
    },
    Up(NodeIdentity),
    Down {
        node: NodeIdentity,
        left: bool,
    },
    /// A later life of a node, or the same one that had been taken for dead.
    Replaced {
        old: NodeIdentity,
        new: NodeIdentity,
    },
    /// Other members are there.
    Joined,
    /// No other members are there any more.
    Alone,
    /// The others had taken this node for dead; it goes on under a new number.
    Rejoined {
        renewals: u32,
    },
    /// foca was not content with what it was told. Nothing has to be done about it; it should not happen.
    Fault(String),
}

struct Record {
    identity: NodeIdentity,
    state: MemberState,
    since: Mono,
}

/// A node's part in a ring.
pub struct Gossip {
    ring: Ring,
    rule: GossipRule,
    peers: Vec<SocketAddr>,
    foca: Foca<NodeIdentity, GossipCodec, ChaCha8Rng, SharedHealth>,
    runtime: AccumulatingRuntime<NodeIdentity>,
    seals: Seals,
    counter: u64,
    replays: Replays,
    health: SharedHealth,
    own: HealthReport,
    /// Timers by instant, then in the order they were set in.
    timers: BTreeMap<(Mono, u64), Timer<NodeIdentity>>,
    timers_set: u64,
    announce_at: Mono,
    jitter: ChaCha8Rng,
    stretch: Stretch,
    records: BTreeMap<SocketAddr, Record>,
    has_left: bool,
    gaps: u64,
    received: u64,
    drops: DropCounts,
}

impl fmt::Debug for Gossip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gossip").field("own", self.identity()).field("ring", &self.ring).finish_non_exhaustive()
    }
}

impl Gossip {
    /// `peers` are announced to until there is somebody; it wants to be woken at once.
    pub fn new(
        ring: Ring,
        rule: GossipRule,
        own: NodeIdentity,
        keys: &ClusterKeys,
        peers: &[SocketAddr],
        seed: u64,
        now: Mono,
    ) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let health = SharedHealth::new(own.address, MAX_MEMBERS);
        let peers = peers.iter().copied().filter(|peer| *peer != own.address).collect();
        let jitter = ChaCha8Rng::from_rng(&mut random);
        Self {
            ring,
            rule,
            peers,
            foca: Foca::with_custom_broadcast(own, rule.config(), random, GossipCodec, health.clone()),
            runtime: AccumulatingRuntime::new(),
            seals: Seals::new(keys),
            counter: 0,
            replays: Replays::new(2 * MAX_MEMBERS),
            health,
            own: HealthReport::default(),
            timers: BTreeMap::new(),
            timers_set: 0,
            announce_at: now,
            jitter,
            stretch: Stretch::new(rule.answer_within / 2),
            records: BTreeMap::new(),
            has_left: false,
            gaps: 0,
            received: 0,
            drops: DropCounts::default(),
        }
    }

    pub fn identity(&self) -> &NodeIdentity {
        self.foca.identity()
    }

    /// The instant when the machine wants to be woken; none after it has left.
    pub fn next_wakeup(&self) -> Option<Mono> {
        if self.has_left {
            return None;
        }
        let timer = self.timers.first_key_value().map_or(Mono::MAX, |((at, _), _)| *at);
        Some(timer.min(self.announce_at))
    }

    pub fn step(&mut self, now: Mono, input: Input<'_>, effects: &mut Vec<Effect>) {
        if self.has_left {
            return;
        }
        self.notice_gap(now);
        self.health.lock().now = now;
        match input {
            Input::Wake => {}
            Input::Datagram(bytes) => {
                self.received += 1;
                if let Err(reason) = self.receive(bytes) {
                    self.drops.add(reason);
                }
            }
            Input::Health(health) => self.report_health(health, effects),
            Input::Keys(keys) => self.seals = Seals::new(keys),
            Input::Leave => {
                self.leave(now, effects);
                return;
            }
        }
        self.carry_out(now, effects);
        self.fire_due(now, effects);
        self.announce_due(now, effects);
    }

    /// Time in which this process did not run counts against nobody.
    fn notice_gap(&mut self, now: Mono) {
        let late = self.next_wakeup().map_or(Duration::ZERO, |due| now.since(due));
        if late <= self.rule.gap_after {
            return;
        }
        // What has come in meanwhile lies in the socket: it is given as long as an answer may take to be read.
        let by = late + self.rule.answer_within;
        self.timers =
            core::mem::take(&mut self.timers).into_iter().map(|((at, n), timer)| ((at + by, n), timer)).collect();
        self.announce_at = self.announce_at + by;
        self.gaps += 1;
        self.stretch.raise();
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), DropReason> {
        let opened = self.seals.open(bytes)?;
        let mut body = opened.body;
        let block = Block::get(&mut body).map_err(|error| match error {
            BlockError::UnknownVersion(_) => DropReason::UnknownVersion,
            BlockError::Malformed => DropReason::Garbage,
        })?;
        if block.ring != self.ring {
            return Err(DropReason::OtherRing);
        }
        let mut behind = body;
        let header = GossipCodec.decode_header(&mut behind).map_err(|_| DropReason::Garbage)?;
        let (own, from) = (self.foca.identity(), &header.src);
        if from.address == own.address {
            return Err(DropReason::OwnAddress);
        }
        let announces_to_us = header.message == Message::Announce && header.dst.address == own.address;
        if header.dst != *own && !announces_to_us {
            return Err(DropReason::Misdirected);
        }
        if !self.ring.admits(own, from) {
            return Err(DropReason::Foreign);
        }
        if !self.replays.admit(from.address, from.incarnation, opened.counter) {
            return Err(DropReason::Replayed);
        }
        if self.is_full() && self.names_a_stranger(from, &header.message, behind) {
            return Err(DropReason::Crowded);
        }
        self.health.lock().hear(from.address, from.incarnation, block.report);
        // Whatever foca refuses of an authentic datagram, it could not read to its end.
        self.foca.handle_data(body, &mut self.runtime).map_err(|_| DropReason::Garbage)
    }

    fn is_full(&self) -> bool {
        self.records.len() >= MAX_MEMBERS
    }

    /// Whether a datagram would add a member. `behind` is the part behind its header.
    fn names_a_stranger(&self, from: &NodeIdentity, message: &Message<NodeIdentity>, mut behind: &[u8]) -> bool {
        let is_stranger = |node: &NodeIdentity| !self.records.contains_key(&node.address);
        if is_stranger(from) {
            return true;
        }
        if *message == Message::Broadcast || behind.remaining() < 2 {
            return false;
        }
        let count = behind.get_u16();
        (0..count).map_while(|_| GossipCodec.decode_member(&mut behind).ok()).any(|member| is_stranger(member.id()))
    }

    /// Every datagram carries it from now on. What others route by goes out at once.
    fn report_health(&mut self, health: NodeHealth, effects: &mut Vec<Effect>) {
        let is_news = health.is_other_class(&self.own.health);
        self.own.health = health;
        self.own.sequence = self.own.sequence.saturating_add(1);
        if is_news {
            self.broadcast_health(effects);
        }
    }

    fn broadcast_health(&mut self, effects: &mut Vec<Effect>) {
        let NodeIdentity { address, incarnation, .. } = *self.identity();
        let block = Block { ring: self.ring, report: self.own.clone() };
        let bytes = Broadcast { address, incarnation, block }.to_bytes();
        let added = self.foca.add_broadcast(&bytes).and_then(|_| self.foca.gossip(&mut self.runtime));
        note_fault(added, effects);
    }

    fn leave(&mut self, now: Mono, effects: &mut Vec<Effect>) {
        self.own.leaving = true;
        self.own.sequence = self.own.sequence.saturating_add(1);
        self.broadcast_health(effects);
        let left = self.foca.leave_cluster(&mut self.runtime);
        note_fault(left, effects);
        self.carry_out(now, effects);
        self.has_left = true;
        self.timers.clear();
    }

    fn fire_due(&mut self, now: Mono, effects: &mut Vec<Effect>) {
        let mut has_fired = false;
        while let Some(first) = self.timers.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), timer) = first.remove_entry();
            self.stretch.fired(now.since(at), matches!(timer, Timer::ProbeRandomMember(_)));
            let handled = self.foca.handle_timer(timer, &mut self.runtime);
            note_fault(handled, effects);
            self.carry_out(now, effects);
            has_fired = true;
        }
        if has_fired {
            self.look_at_members(now);
        }
    }

    fn announce_due(&mut self, now: Mono, effects: &mut Vec<Effect>) {
        if self.announce_at > now {
            return;
        }
        let is_alone = self.foca.num_members() == 0;
        let is_active = |peer: &SocketAddr| self.foca.iter_members().any(|member| member.id().address == *peer);
        let missing: Vec<SocketAddr> = self.peers.iter().copied().filter(|peer| !is_active(peer)).collect();
        for peer in missing {
            let announced = self.foca.announce(NodeIdentity::unknown_at(peer), &mut self.runtime);
            note_fault(announced, effects);
        }
        let wait = self.jittered(if is_alone { self.rule.join_every } else { self.rule.look_for_missing_every });
        self.announce_at = now + self.stretch.apply(wait);
        self.carry_out(now, effects);
    }

    /// A span between three and five quarters of this one, so that nodes that started together do not stay together.
    fn jittered(&mut self, span: Duration) -> Duration {
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(4);
        Duration::from_millis(ms - ms / 4 + self.jitter.random_range(0..=ms / 2))
    }

    /// Turns what foca wants into timers and effects.
    fn carry_out(&mut self, now: Mono, effects: &mut Vec<Effect>) {
        let mut has_changed = false;
        while let Some(notice) = self.runtime.to_notify() {
            has_changed = true;
            self.notified(now, notice, effects);
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.timers_set += 1;
            self.timers.insert((now + self.stretch.apply(after), self.timers_set), timer);
        }
        if has_changed {
            self.look_at_members(now);
        }
        while let Some((to, foca)) = self.runtime.to_send() {
            self.counter += 1;
            let block = Block { ring: self.ring, report: self.own.clone() };
            let datagram = self.seals.seal(self.counter, |bytes| {
                block.put(bytes);
                bytes.extend_from_slice(&foca);
            });
            effects.push(Effect::Send { to: to.address, datagram });
        }
    }

    fn notified(&mut self, now: Mono, notice: OwnedNotification<NodeIdentity>, effects: &mut Vec<Effect>) {
        effects.push(match notice {
            OwnedNotification::MemberUp(node) => Effect::Up(node),
            OwnedNotification::MemberDown(node) => {
                let left = self.said_goodbye(&node);
                Effect::Down { node, left }
            }
            OwnedNotification::Rename(old, new) => Effect::Replaced { old, new },
            OwnedNotification::Active => Effect::Joined,
            OwnedNotification::Idle => {
                self.announce_at = self.announce_at.min(now + self.rule.join_every);
                Effect::Alone
            }
            OwnedNotification::Rejoin(own) => {
                self.stretch.raise();
                Effect::Rejoined { renewals: own.renewals }
            }
            // Only by leaving: a node that is declared down renews itself.
            OwnedNotification::Defunct => return,
        });
    }

    fn said_goodbye(&self, node: &NodeIdentity) -> bool {
        self.health.lock().get(node).is_some_and(|heard| heard.report.leaving)
    }

    /// Notes since when each member is what it is, and whom this node takes for dead.
    fn look_at_members(&mut self, now: Mono) {
        let mut records = core::mem::take(&mut self.records);
        for member in self.foca.iter_membership_state() {
            let identity = member.id();
            let state = match member.state() {
                State::Alive => MemberState::Alive,
                State::Suspect => MemberState::Suspect,
                State::Down if self.said_goodbye(identity) => MemberState::Left,
                State::Down => MemberState::Down,
            };
            let since = match records.remove(&identity.address) {
                Some(known) if known.state == state && known.identity.is_same_life(identity) => known.since,
                _ => now,
            };
            self.records.insert(identity.address, Record { identity: identity.clone(), state, since });
        }
        if !records.is_empty() {
            let records = &self.records;
            self.health.lock().retain(|address| records.contains_key(address));
        }
        let mut doubts: Vec<&Record> = self.records.values().filter(|record| record.state.is_doubted()).collect();
        self.own.doubts_in_all = u8::try_from(doubts.len()).unwrap_or(u8::MAX);
        doubts.sort_by_key(|record| core::cmp::Reverse(record.since));
        let listed = doubts.iter().take(MAX_DOUBTS).map(|record| address_hash(&record.identity.address));
        self.own.doubts = listed.collect();
    }

    /// The ring as this node sees it at the moment.
    pub fn view(&self, now: Mono) -> RingView {
        let table = self.health.lock();
        let member = |record: &Record| {
            let heard = table.get(&record.identity);
            MemberView {
                identity: record.identity.clone(),
                state: record.state,
                state_for: now.since(record.since),
                report: heard.map(|heard| heard.report.clone()),
                heard_ago: heard.map(|heard| now.since(heard.at)),
            }
        };
        let mut members: Vec<MemberView> = self.records.values().map(member).collect();
        members.sort_by(|one, other| one.identity.name.cmp(&other.identity.name));
        RingView {
            ring: self.ring,
            own: self.identity().clone(),
            own_health: self.own.health,
            disagreements: disagreements(self.identity(), &members),
            members,
            stretch: self.stretch.factor(),
            gaps: self.gaps,
            received: self.received,
            sent: self.counter,
            drops: self.drops,
        }
    }
}

fn note_fault<T>(result: Result<T, foca::Error>, effects: &mut Vec<Effect>) {
    if let Err(error) = result {
        effects.push(Effect::Fault(error.to_string()));
    }
}
