//! The node itself: what probes answer, and its status page.

use serde::{Deserialize, Serialize};

use crate::instant::At;
use crate::word::Word;

// The answer of `/livez`, `/readyz` and `/startupz`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProbeAnswer {
    /// `ok` or `unavailable`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub status: Word,
    /// The reason why it is unavailable; or the node that a follower follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

// The answer of `/status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    /// The node's name.
    #[serde(default)]
    pub node: String,
    /// `leader`, `follower`, `starting`, or `cut_off`: it led, and its storage does not answer, so that another may lead.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub role: Word,
    /// The leader, where it is known.
    #[serde(default)]
    pub leader: Option<LeaderStatus>,
    /// The newest term that the node knows of.
    #[serde(default)]
    pub term: Option<u64>,
    /// The datacenter that it is of.
    #[serde(default)]
    pub datacenter: String,
    /// The newest event that it has decided, or has read of its leader's.
    #[serde(default)]
    pub sequence: u64,
    /// Time since a node that follows has read its log to the end; null for one that leads.
    #[serde(default)]
    pub lag_ms: Option<u64>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub version: Word,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub started_at: At,
    pub listen: String,
    pub data: String,
    /// The place of the node's data: `embedded`, or the address of a database, without the password.
    #[serde(default)]
    pub storage: String,
    /// The standbys that a commit waits for, in the words of the database; empty if there are none, null where storage is
    /// embedded or does not answer.
    #[serde(default)]
    pub synchronous_standbys: Option<String>,
    pub draining: bool,
    pub load: Load,
    /// Null while no machine answers.
    pub manager: Option<ManagerStatus>,
    /// The gate's state, in the place of a manager's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateStatus>,
    /// The loops of this node; it is ready only while every critical one is healthy.
    pub loops: Vec<LoopStatus>,
    pub trouble: Option<String>,
}

impl Status {
    /// The state of the node in a word. One that drains still holds its seat.
    pub fn state(&self) -> &str {
        match (&self.manager, &self.gate) {
            _ if self.draining => "draining",
            _ if &*self.role == "follower" => "follows",
            (Some(manager), _) => &manager.seat,
            (None, Some(gate)) => &gate.seat,
            (None, None) => "not serving",
        }
    }
}

/// The manager that leads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaderStatus {
    pub name: String,
    pub address: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoopStatus {
    pub name: String,
    /// The probes depend on it.
    pub critical: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub state: Word,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: Word,
    /// The time for which the reason has held.
    pub since_ms: u64,
    /// Time since the loop was last seen to do, or to wait for, its work.
    pub last_success_ms: Option<u64>,
    /// Failures in a row.
    pub failures: u32,
    pub error: Option<String>,
}

/// The load of the node: how much more it can take on, and the measure that says so.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Load {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub level: Word,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: Word,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ManagerStatus {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub seat: Word,
    pub term: u64,
    /// Jobs in memory: open, or ended and not yet archived, or a dead letter.
    pub jobs: usize,
    pub open_jobs: usize,
    /// Ended jobs that have left memory and are kept; null if the archive cannot be read.
    pub archived_jobs: Option<u64>,
    pub dead_letters: usize,
    /// Workers without those that are away.
    pub workers: usize,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub verdict: Word,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: Word,
    pub schedules: usize,
    /// Critical schedules of which three or more runs in a row have failed, or none has succeeded in time; at most 100.
    pub failing_schedules: Vec<FailingSchedule>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GateStatus {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub seat: Word,
    /// The epoch of the gate's decisions.
    pub epoch: u64,
    pub jobs: usize,
    pub open_jobs: usize,
    /// Datacenters that it knows, and those of them that are connected.
    pub datacenters: usize,
    pub connected: usize,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub verdict: Word,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: Word,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailingSchedule {
    pub name: String,
    /// `runs_fail`, `not_fresh`, `never_succeeded` or `timing_unknown`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: Word,
    pub failures: u32,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub since_at: Option<At>,
}
