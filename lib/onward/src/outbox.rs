//! An outbox that publishes to an Onward node, or to anything else: what `onward-outbox` has, and [`to_node`].

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
pub use onward_outbox::*;
use serde_json::Value;

use crate::client::{CallError, Client, Job};

/// The number of rows in one call: well below the limit of a node.
const MAX_CALL_ROWS: usize = 1_000;
const MAX_CALL_BYTES: usize = 4 << 20;

/// Publishes each row as a job of a node. Its topic is the kind, its `dedup` the idempotency key, so that a row that is
/// published twice is one job; jobs of a key run one after the other, in the order of their rows.
pub fn to_node(client: Client) -> NodePublisher {
    NodePublisher { client, queue: None }
}

/// See [`to_node`].
#[derive(Clone, Debug)]
pub struct NodePublisher {
    client: Client,
    queue: Option<String>,
}

impl NodePublisher {
    /// The queue that the jobs go to [default: the node's].
    pub fn queue(mut self, queue: &str) -> Self {
        self.queue = Some(queue.to_owned());
        self
    }

    fn job(&self, row: &Row) -> Job {
        let mut job = Job::of_kind(&row.topic).idempotency_key(&row.dedup.to_string());
        job = match serde_json::from_slice::<Value>(&row.payload) {
            Ok(json) => job.set("payload", json),
            Err(_) => {
                job.set("payload_base64", STANDARD.encode(&row.payload)).set("content_type", "application/octet-stream")
            }
        };
        if let Some(key) = &row.key {
            job = job.ordered(key);
        }
        if let Some(queue) = &self.queue {
            job = job.queue(queue);
        }
        row.headers.iter().fold(job, |job, (name, value)| job.header(name, value))
    }

    /// All of them by one call, or one by one where the node refuses one of them.
    async fn submit(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
        match self.client.submit_all(rows.iter().map(|row| self.job(row))).await.map_err(blamed) {
            Ok(_) => vec![Ok(()); rows.len()],
            Err(unavailable @ PublishError::Unavailable(_)) => vec![Err(unavailable); rows.len()],
            Err(refused) if rows.len() == 1 => vec![Err(refused)],
            Err(_) => self.submit_each(rows).await,
        }
    }

    async fn submit_each(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
        let mut stopped = HashSet::new();
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows {
            if row.key.as_ref().is_some_and(|key| stopped.contains(key)) {
                answers.push(Err(PublishError::Unavailable("an earlier row of its key was not published".into())));
                continue;
            }
            let answer = self.client.submit(self.job(row)).await.map(drop).map_err(blamed);
            if answer.is_err() {
                stopped.extend(&row.key);
            }
            answers.push(answer);
        }
        answers
    }
}

impl Publisher for NodePublisher {
    async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
        let mut answers = Vec::with_capacity(rows.len());
        let mut left = rows;
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = |row: &&Row| {
                bytes += row.payload.len();
                bytes <= MAX_CALL_BYTES
            };
            let count = left.iter().take(MAX_CALL_ROWS).take_while(fits).count().max(1);
            let (now, later) = left.split_at(count);
            answers.extend(self.submit(now).await);
            left = later;
            if answers.iter().any(Result::is_err) {
                // Rows that are left may be of the same keys.
                answers.resize(rows.len(), Err(PublishError::Unavailable("an earlier call failed".into())));
                break;
            }
        }
        answers
    }

    /// A call is taken whole or not at all; and one by one, a row that fails stops its key.
    fn keeps_order(&self) -> bool {
        true
    }
}

/// The error with its blame: a node that is away, busy, or does not know us refuses any row.
fn blamed(error: CallError) -> PublishError {
    match &error {
        CallError::Refused { status: 400 | 409 | 413 | 422, .. } => PublishError::Refused(error.to_string()),
        _ => PublishError::Unavailable(error.to_string()),
    }
}
