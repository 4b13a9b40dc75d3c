//! What an attempt needs, on its way to the worker: in the assignment, or by reference.
//!
//! | the worker | inputs | what becomes of the attempt |
//! |---|---|---|
//! | fetches inputs | small together | all of them are in the assignment |
//! | fetches inputs | more than that | large ones travel by reference, and are fetched by the claim |
//! | does not | fit an assignment | all of them are in it |
//! | does not | do not fit | it cannot be delivered |
//!
//! **What counts.** An attempt that cannot be delivered ends, and counts: handing it out again would change nothing, or
//! only with another worker. So does one whose content is missing or damaged. A store that cannot be read just now says
//! nothing about the attempt: then it never arrived.

use std::sync::Arc;

use onward_core::effect::Answer;
use onward_core::ids::{Claim, JobId, Name, RequestId};
use onward_core::input::{Call, Input, Poll};
use onward_core::message::Assignment;
use onward_core::payload::Payload;
use onward_core::refusal::Refusal;

use super::calls::mismatch;
use super::content::Contents;
use super::{Command, Engine, EngineRefusal, EngineState};
use crate::traces::continue_trace;

/// The limits on what travels in one piece.
#[derive(Clone, Copy, Debug)]
pub struct DeliveryLimits {
    /// Inputs of one attempt in a frame, for a worker that fetches what is more.
    pub frame_inputs: usize,
    /// Inputs in one answer to a poll, likewise.
    pub poll_inputs: usize,
    /// An assignment in all. Every worker must be able to take it.
    pub assignment: usize,
}

impl Default for DeliveryLimits {
    fn default() -> Self {
        Self {
            frame_inputs: onward_proto::MAX_INLINE_INPUTS,
            poll_inputs: 16 << 20,
            assignment: onward_proto::MAX_ASSIGNMENT_BYTES - FRAMING,
        }
    }
}

/// Bytes that a frame has beside the largest assignment.
const FRAMING: usize = 1 << 20;

/// The room that a worker has.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerRoom {
    /// Bytes of inputs, where the worker fetches what is more.
    pub(super) inputs: Option<usize>,
    /// Bytes of one assignment.
    pub(super) assignment: usize,
}

#[derive(PartialEq, Eq, Debug)]
enum DeliveryMode {
    InFull,
    ByReference,
    TooLarge { bytes: usize },
}

impl WorkerRoom {
    /// The way in which the inputs of this assignment travel.
    fn way_for(&self, assignment: &Assignment) -> DeliveryMode {
        let inputs: usize = assignment.inputs.iter().map(|(_, input)| input.len()).sum();
        let names: usize = assignment.inputs.iter().map(|(name, _)| ENTRY + name.as_str().len()).sum();
        let headers: usize = assignment.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        let checkpoint = assignment.checkpoint.as_ref().map_or(0, |bytes| bytes.len());
        let rest = assignment.workflow.payload.len() + names + headers + checkpoint;
        let (way, carried) = match self.inputs {
            Some(room) if inputs > room => (DeliveryMode::ByReference, rest + room),
            _ => (DeliveryMode::InFull, rest + inputs),
        };
        if carried > self.assignment { DeliveryMode::TooLarge { bytes: carried } } else { way }
    }
}

/// Bytes that an input has in an assignment beside its name and its content, the digest included.
const ENTRY: usize = 64;

/// Leaves what is in memory where it is while there is room, and references in place of all else.
fn refer(inputs: &mut [(Name, Payload)], mut room: usize) {
    for (_, input) in inputs {
        let Payload::Inline(bytes) = &*input else { continue };
        match room.checked_sub(bytes.len()) {
            Some(left) => room = left,
            None => *input = Payload::stored(input.digest(), u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        }
    }
}

/// The reason why an assignment cannot be sent.
pub(super) enum DeliveryError {
    /// Nothing is wrong with the attempt.
    ForNow(EngineRefusal),
    ForGood(String),
}

impl From<EngineRefusal> for DeliveryError {
    fn from(refused: EngineRefusal) -> Self {
        if refused.is_for_good() { Self::ForGood(refused.to_string()) } else { Self::ForNow(refused) }
    }
}

impl Engine {
    /// Asks for work. The leases count as delivered when [`DeliveryGuard::done`] is called; without it they go back.
    pub async fn poll(&self, poll: Poll) -> Result<(Vec<Assignment>, DeliveryGuard), EngineRefusal> {
        self.poll_with_room(poll, None).await
    }

    /// The same for a worker that fetches inputs: those that are large together come as [`Payload::Stored`].
    ///
    /// [`Payload::Stored`]: onward_core::payload::Payload::Stored
    pub async fn poll_by_reference(&self, poll: Poll) -> Result<(Vec<Assignment>, DeliveryGuard), EngineRefusal> {
        self.poll_with_room(poll, Some(self.0.delivery.poll_inputs)).await
    }

    async fn poll_with_room(
        &self,
        poll: Poll,
        inputs: Option<usize>,
    ) -> Result<(Vec<Assignment>, DeliveryGuard), EngineRefusal> {
        let (answer, request) = self.0.begin(Call::Poll(poll), Contents::default())?.answer().await?;
        let Answer::Leases(mut leases) = answer else { mismatch("poll", &answer) };
        let delivery = DeliveryGuard { request, shared: self.0.clone(), done: false };
        self.complete_all(&mut leases, WorkerRoom { inputs, assignment: self.0.delivery.assignment }).await?;
        Ok((leases, delivery))
    }

    /// Puts what a handler needs into its assignment: bytes or references, and the trace that it continues. Doing it
    /// twice does no harm.
    pub(super) async fn complete(&self, assignment: &mut Assignment, room: WorkerRoom) -> Result<(), DeliveryError> {
        let job = assignment.claim.job;
        if self.0.exporter.is_some() {
            continue_trace(assignment);
        }
        match room.way_for(assignment) {
            DeliveryMode::TooLarge { bytes } => return Err(DeliveryError::ForGood(too_large(bytes, room))),
            DeliveryMode::ByReference => refer(&mut assignment.inputs, room.inputs.unwrap_or(0)),
            DeliveryMode::InFull => {
                for (_, input) in &mut assignment.inputs {
                    self.fetch(job, input).await?;
                }
            }
        }
        Ok(self.fetch(job, &mut assignment.workflow.payload).await?)
    }

    /// Ends an attempt that its worker cannot be given.
    pub(super) fn give_up(&self, claim: Claim, why: &str) {
        tracing::warn!(job = %claim.job, workflow = claim.workflow, why, "an attempt cannot be given to its worker");
        let why: Arc<str> = format!("the attempt could not be given to its worker: {why}").into();
        self.0.send(Command::Input(Input::Undeliverable { claim, why }));
    }

    /// Completes the leases of one answer. Those that cannot be delivered end, and are not in it.
    pub(super) async fn complete_all(
        &self,
        leases: &mut Vec<Assignment>,
        mut room: WorkerRoom,
    ) -> Result<(), EngineRefusal> {
        let mut complete = Vec::with_capacity(leases.len());
        for mut lease in leases.drain(..) {
            match self.complete(&mut lease, room).await {
                Ok(()) => {
                    let carried = lease.inputs.iter().filter_map(|(_, input)| input.as_inline());
                    let carried: usize = carried.map(|bytes| bytes.len()).sum();
                    room.inputs = room.inputs.map(|left| left.saturating_sub(carried));
                    complete.push(lease);
                }
                Err(DeliveryError::ForGood(why)) => self.give_up(lease.claim, &why),
                Err(DeliveryError::ForNow(refused)) => return Err(refused),
            }
        }
        *leases = complete;
        Ok(())
    }

    /// The bytes of an input that travelled by reference, for the holder of the attempt.
    pub async fn fetch_input(&self, claim: Claim, workflow: Name) -> Result<Arc<[u8]>, EngineRefusal> {
        let input = self.find_input(claim, workflow).await?;
        let content = self.content(claim.job, &input).await;
        if let Err(refused) = &content
            && refused.is_for_good()
        {
            self.give_up(claim, &refused.to_string());
        }
        content
    }

    /// The reason why the content of this job is not there.
    pub(super) async fn missing(&self, job: JobId) -> EngineRefusal {
        let is_open = match self.read(move |view| view.manager.state().find(job).is_some()).await {
            Ok(is_open) => is_open,
            Err(refused) => return refused,
        };
        match if is_open { Ok(true) } else { self.archived(job).await.map(|image| image.is_some()) } {
            Ok(true) => EngineRefusal::Missing(job),
            // The job expired while we looked.
            Ok(false) => EngineRefusal::ByMachine(Refusal::UnknownJob),
            Err(refused) => refused,
        }
    }
}

fn too_large(bytes: usize, room: WorkerRoom) -> String {
    let most = room.assignment;
    let remedy = match room.inputs {
        None => {
            "use a worker that fetches inputs (`fetches_inputs` in its hello, `inputs_by_reference` in its poll), or \
             return where a large result lies instead of the result"
        }
        Some(_) => "submit where a large payload lies instead of the payload",
    };
    format!(
        "payload, inputs, headers and checkpoint have {bytes} bytes together, and this worker takes {most}; {remedy}"
    )
}

/// Says what became of leases that were answered: sent in full, or lost with the connection.
pub struct DeliveryGuard {
    request: RequestId,
    shared: Arc<EngineState>,
    done: bool,
}

impl DeliveryGuard {
    pub fn done(&mut self) {
        self.done = true;
    }
}

impl core::fmt::Debug for DeliveryGuard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Delivery").field("request", &self.request).field("done", &self.done).finish()
    }
}

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        self.shared.send(Command::Input(Input::CallGone { request: self.request, delivered: self.done }));
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use onward_core::fence::AttemptFence;
    use onward_core::job::{Outline, WorkflowSpec};
    use onward_core::payload::Digest;

    use super::*;

    fn assignment(payload: usize, inputs: &[Payload]) -> Assignment {
        let name = |text: &str| Name::new(text).expect("a name");
        let outline = Outline { name: name("a"), kind: name("a"), content_type: None, after: [].into() };
        Assignment {
            claim: Claim { job: JobId::from_u128(1), workflow: 0, fence: AttemptFence::NONE },
            attempt: 1,
            queue: name("q"),
            workflow: WorkflowSpec { outline: outline.into(), payload: stored(payload) },
            headers: Vec::new().into(),
            inputs: inputs.iter().map(|input| (name("in"), input.clone())).collect(),
            checkpoint: None,
            lease: Duration::ZERO,
            deadline_remaining: Duration::ZERO,
        }
    }

    fn stored(bytes: usize) -> Payload {
        Payload::stored(Digest::of(&[]), bytes as u32)
    }

    fn inline(bytes: usize) -> Payload {
        vec![7; bytes].into()
    }

    #[test]
    fn how_inputs_travel() {
        const NAME: usize = ENTRY + 2;
        let too_large = |bytes| DeliveryMode::TooLarge { bytes };
        for (fetches, payload, inputs, way) in [
            (true, 0, vec![], DeliveryMode::InFull),
            (true, 0, vec![stored(1_000), stored(1_000)], DeliveryMode::InFull),
            (true, 0, vec![stored(1_000), stored(1_001)], DeliveryMode::ByReference),
            (true, 0, vec![inline(3_000)], DeliveryMode::ByReference),
            (true, 0, vec![stored(900_000)], DeliveryMode::ByReference),
            (true, 9_000, vec![], DeliveryMode::InFull),
            (true, 10_001, vec![], too_large(10_001)),
            (true, 9_000, vec![stored(5_000)], too_large(9_000 + 2_000 + NAME)),
            (false, 0, vec![stored(2_001)], DeliveryMode::InFull),
            (false, 0, vec![stored(10_000 - NAME)], DeliveryMode::InFull),
            (false, 0, vec![stored(10_001 - NAME)], too_large(10_001)),
            (false, 5_000, vec![inline(4_000), stored(1_000)], too_large(10_000 + 2 * NAME)),
        ] {
            let room = WorkerRoom { inputs: fetches.then_some(2_000), assignment: 10_000 };
            assert_eq!(room.way_for(&assignment(payload, &inputs)), way, "{fetches} {payload} {inputs:?}");
        }
    }

    #[test]
    fn what_is_in_memory_goes_along_while_there_is_room() {
        let mut inputs = assignment(0, &[inline(60), stored(5_000), inline(50), inline(40)]).inputs;
        let before = inputs.clone();
        refer(&mut inputs, 100);
        let goes: Vec<bool> = inputs.iter().map(|(_, input)| input.as_inline().is_some()).collect();
        assert_eq!(goes, [true, false, false, true]);
        assert_eq!(inputs, before, "a reference is to the same content");
        refer(&mut inputs, 100);
        let again: Vec<bool> = inputs.iter().map(|(_, input)| input.as_inline().is_some()).collect();
        assert_eq!(again, goes);
    }
}
