//! Queues, and the manager's own figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::node::Health;
use crate::word::Word;

// The answer of `GET /v1/queues`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueList {
    pub queues: Vec<Queue>,
    /// Always none: all queues are in one answer.
    pub next_cursor: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Queue {
    pub name: String,
    pub paused: bool,
    /// Workflows that wait for a worker and no full concurrency key: exact.
    pub ready_workflows: u64,
    /// Ready workflows and running jobs: what workers are needed for. Zero, and nobody needs to run.
    pub demand: u64,
    /// The time for which the first workflow of the queue has waited for a worker; 0 if none waits.
    pub oldest_waiting_s: f64,
    /// Jobs in memory by state: exact.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, u64>))]
    pub counts: BTreeMap<Word, u64>,
    /// Always false.
    pub approximate: bool,
}

impl Queue {
    /// The number of its jobs in a state.
    pub fn count(&self, state: &str) -> u64 {
        self.counts.get(state).copied().unwrap_or(0)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Paused))]
pub struct PauseAnswer {
    pub name: String,
    pub paused: bool,
}

// The answer of `GET /v1/stats`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatsShown {
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "serving"))]
    pub seat: Word,
    pub term: u64,
    #[serde(flatten)]
    pub health: Health,
    /// Jobs in memory: open, or ended and not yet archived, or a dead letter.
    pub jobs: usize,
    pub open_jobs: usize,
    /// Ended jobs that have left memory and are kept.
    pub archived_jobs: u64,
    pub dead_letters: usize,
    pub workers: usize,
    /// Refusals that were given, by kind.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, u64>))]
    pub refusals: BTreeMap<Word, u64>,
    /// Counters of this process.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, u64>))]
    pub engine: BTreeMap<Word, u64>,
}
