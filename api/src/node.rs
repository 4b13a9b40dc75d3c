//! Who works here: nodes with their verdicts, and the datacenter as a whole.

use serde::{Deserialize, Serialize};

use crate::word::Word;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Node {
    pub id: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "worker"))]
    pub role: Word,
    pub incarnation: String,
    #[serde(flatten)]
    pub health: Health,
    pub slots: u32,
    pub held: u32,
    pub free: u32,
    pub drained: bool,
    pub evicted: bool,
    /// Set while the worker gets one attempt at a time, until one succeeds.
    pub probation: bool,
    pub connected: bool,
    /// Would be evicted, and is not, because too many would be.
    pub held_by_hold: bool,
    /// The address that other nodes reach this one by. Only for nodes that gossip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datacenter: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gossip: Option<NodeGossip>,
}

/// A node, as gossip knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeGossip {
    /// `alive`, `suspect`, `down` or `left`, as the node that answers sees it.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "alive"))]
    pub state: Word,
    pub state_for_ms: u64,
    /// Time since the node last reported its health; none if it never did, and for the node that answers.
    pub heard_ago_ms: Option<u64>,
    /// Set where the node holds the seat of its datacenter's log.
    pub leads: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "normal"))]
    pub overload: Word,
    pub workers: u32,
    pub throughput: u32,
    pub expected_throughput: u32,
    /// Nodes that take this one for dead, where nodes disagree.
    pub doubted_by: Vec<String>,
    /// Nodes that do not, where nodes disagree.
    pub trusted_by: Vec<String>,
}

/// A verdict, what to do about it, and the three signals that it follows from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// `healthy`, `busy`, `slow`, `degraded`, `stuck` or `suspect`; `away` and `evicted` stand in its place.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "healthy"))]
    pub verdict: Word,
    /// `route`, `drain`, `investigate` or `evict`; `none` for one that is away.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub action: Word,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: Word,
    pub signals: Signals,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Signals {
    pub live: bool,
    pub ready: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub progress: Word,
}

// The answer of `GET /v1/nodes`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeList {
    pub nodes: Vec<Node>,
    pub next_cursor: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Drained))]
pub struct DrainAnswer {
    pub id: String,
    pub drained: bool,
}

// The answer of `GET /v1/datacenters`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DatacenterList {
    pub datacenters: Vec<Datacenter>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Datacenter {
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "local"))]
    pub name: Word,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "healthy"))]
    pub health: Word,
    /// The same word as `health`: routing goes by it.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "healthy"))]
    pub class: Word,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: Word,
    pub managers: u32,
    pub workers: u32,
    pub workers_healthy_or_busy: u32,
    pub free_slots: u64,
    /// Whether the leader is connected, at a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
    /// The term of the leader, at a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// Time since the leader was heard last, at a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_heard_ms: Option<u64>,
    /// Jobs about which the datacenter is owed something, at a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owed: Option<usize>,
    /// Set where there are too many workers to look at all of them.
    pub approximate: bool,
}
