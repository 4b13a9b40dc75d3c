//! Inputs that came by reference, fetched before the handler begins.
//!
//! One task for each attempt, a few inputs at a time over all attempts of a session, on the connection that the session
//! has just then. **Each input that has come is a beat**: fetching is work, and the stuck clock runs from the hand-out.
//!
//! What is refused for good ends the attempt: it is another's by now, or the node has ended it. A node that cannot read
//! its store is asked a few times; then the attempt is given back, which does not count. While there is no session
//! nothing is tried, and the lease says for how long.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use onward_core::backoff::Backoff;
use onward_core::ids::{Claim, Name};
use onward_core::message::Assignment;
use onward_core::payload::{Digest, Payload};
use onward_core::refusal::RefusalKind;
use onward_core::time::Mono;
use onward_proto::common::payload_in;
use onward_proto::worker::fetch_out;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;
use tonic::Status;

use super::SessionCommand;
use super::dial::Service;
use crate::machine::HandlerOutcome;

/// Inputs that are on their way at a time, of all attempts of a session: each may be as large as a result.
const AT_ONCE: usize = 4;
/// The number of times in a row that a node is asked while it does not answer for itself.
const TRIES: u32 = 5;
const PAUSE: Backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(1) };
/// The time for which an attempt is left alone whose inputs could not be read.
const GIVEN_BACK_FOR: Duration = Duration::from_secs(1);

/// Attempts whose inputs are on their way.
pub(super) struct Fetches {
    of: HashMap<Claim, Fetching>,
    /// The service of the session that is open.
    service: watch::Sender<Option<Service>>,
    turns: Arc<Semaphore>,
}

/// An attempt whose inputs are being fetched, before it has a context.
pub(super) struct Fetching {
    pub(super) assigned_at: Mono,
    pub(super) lease_until: Mono,
    task: AbortHandle,
}

pub(super) fn is_needed(assignment: &Assignment) -> bool {
    assignment.inputs.iter().any(|(_, input)| input.as_stored().is_some())
}

impl Fetches {
    pub(super) fn new() -> Self {
        Self { of: HashMap::new(), service: watch::Sender::new(None), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    pub(super) fn use_service(&self, service: Option<Service>) {
        self.service.send_replace(service);
    }

    /// Says `Fetching` for each input that has come, and `Fetched` or `Finished` at the end.
    pub(super) fn begin(&mut self, assignment: Assignment, now: Mono, commands: UnboundedSender<SessionCommand>) {
        let (claim, lease_until) = (assignment.claim, now + assignment.lease);
        let line = Line { claim, service: self.service.subscribe(), turns: self.turns.clone(), commands };
        let task = tokio::spawn(fetch_all(assignment, line)).abort_handle();
        self.of.insert(claim, Fetching { assigned_at: now, lease_until, task });
    }

    pub(super) fn get_mut(&mut self, claim: &Claim) -> Option<&mut Fetching> {
        self.of.get_mut(claim)
    }

    /// Nothing more is fetched for it.
    pub(super) fn remove(&mut self, claim: &Claim) -> Option<Fetching> {
        let fetching = self.of.remove(claim)?;
        fetching.task.abort();
        Some(fetching)
    }
}

/// The access by which a task fetches the inputs of one attempt.
#[derive(Clone)]
struct Line {
    claim: Claim,
    service: watch::Receiver<Option<Service>>,
    turns: Arc<Semaphore>,
    commands: UnboundedSender<SessionCommand>,
}

async fn fetch_all(mut assignment: Assignment, line: Line) {
    let (claim, commands) = (line.claim, line.commands.clone());
    let mut fetches = JoinSet::new();
    let mut wanted: HashMap<Digest, Name> = HashMap::new();
    for (name, input) in &assignment.inputs {
        if let Some(stored) = input.as_stored() {
            wanted.insert(stored.digest, name.clone());
        }
    }
    for (digest, name) in wanted {
        let line = line.clone();
        fetches.spawn(async move { line.fetch(&name).await.map(|content| (digest, content)) });
    }
    while let Some(fetched) = fetches.join_next().await {
        match fetched.unwrap_or(Err(HandlerOutcome::Released { delay: None })) {
            Ok((digest, content)) => {
                let is_it = |input: &Payload| input.as_stored().is_some_and(|stored| stored.digest == digest);
                for (_, input) in assignment.inputs.iter_mut().filter(|(_, input)| is_it(input)) {
                    *input = content.clone();
                }
                // The link holds the other end, and outlives this.
                let _ = commands.send(SessionCommand::Fetching(claim));
            }
            Err(outcome) => {
                let _ = commands.send(SessionCommand::Finished { claim, outcome });
                return;
            }
        }
    }
    let _ = commands.send(SessionCommand::Fetched(assignment));
}

impl Line {
    /// Fetches an input, or gives the end of the attempt without it.
    async fn fetch(mut self, name: &Name) -> Result<Payload, HandlerOutcome> {
        let mut failures = 0;
        loop {
            let status = match self.try_fetch(name).await {
                Ok(content) => return Ok(content),
                Err(status) => status,
            };
            tracing::warn!(workflow = name.as_str(), %status, "an input could not be fetched");
            if is_final(&status) {
                // The node has ended the attempt, or has given it to another: it refuses this, and counts that.
                return Err(HandlerOutcome::Released { delay: None });
            }
            failures += 1;
            if failures == TRIES {
                return Err(HandlerOutcome::Released { delay: Some(GIVEN_BACK_FOR) });
            }
            sleep(PAUSE.ceiling(failures)).await;
        }
    }

    async fn try_fetch(&mut self, name: &Name) -> Result<Payload, Status> {
        let _turn = self.turns.acquire().await.expect("nobody closes it");
        let gone = |_| Status::unavailable("the worker has stopped");
        let service = self.service.wait_for(Option::is_some).await.map_err(gone)?.clone();
        let mut service = service.expect("waited for");
        let answer = service.fetch_input(fetch_out(self.claim, name)).await?;
        Ok(payload_in(&answer.result))
    }
}

/// The node has understood and said no, and will say so again. A connection that breaks has no word of ours.
fn is_final(status: &Status) -> bool {
    let passing = [RefusalKind::NoLeader.code(), RefusalKind::Overloaded.code()];
    let word = status.metadata().get("onward-code").and_then(|word| word.to_str().ok());
    word.is_some_and(|word| !passing.contains(&word))
}
