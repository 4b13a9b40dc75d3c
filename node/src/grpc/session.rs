//! A worker's session: frames in, frames out, until either side closes.
//!
//! **Flow control** is HTTP/2's own, both ways. Out: a frame is packed only when the one before has been taken, from all
//! that has gathered until then; so a slow reader gets fewer and larger frames. In: no frame is read while too much of
//! what was read before waits for the machine, so a worker cannot fill its queue.

use std::sync::Arc;
use std::time::Duration;

use onward_core::ids::ClientId;
use onward_core::message::{FromWorker, ToWorker};
use onward_core::refusal::RefusalKind;
use onward_proto::common::bytes_out;
use onward_proto::v1::worker_service_server::WorkerService;
use onward_proto::v1::{FetchInputAnswer, FetchInputRequest, ManagerFrame, WorkerFrame};
use onward_proto::worker::Output;
use onward_proto::{manager, worker};
use prost::Message as _;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::unanswered::AnswerBacklog;
use super::{access_of, status};
use crate::api::access::Access;
use crate::engine::{Engine, WorkerSession};
use crate::outputs::Outputs;

/// The time for a hello: a caller that connects and says nothing holds a place that another could have.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Messages that are looked at for one frame, at most.
const MAX_MESSAGES: usize = 4_096;
/// A frame is closed when it has this many bytes, about.
const FRAME_BYTES: usize = 1 << 20;
/// The number of assignments that closes a frame, too: the worker begins with these while the next are packed, and what
/// it says of them is committed while it works on those.
const MAX_ASSIGNMENTS: usize = 256;
const SETTLE_AT_ONCE: usize = 32;

type Out = Sender<Result<ManagerFrame, Status>>;

#[derive(Debug)]
pub(super) struct WorkerSessions {
    engine: Engine,
    outputs: Outputs,
    places: Arc<Semaphore>,
    max_sessions: usize,
}

impl WorkerSessions {
    pub(super) fn new(engine: Engine, outputs: Outputs, max_sessions: usize) -> Self {
        Self { engine, outputs, places: Arc::new(Semaphore::new(max_sessions)), max_sessions }
    }
}

#[tonic::async_trait]
impl WorkerService for WorkerSessions {
    type SessionStream = ReceiverStream<Result<ManagerFrame, Status>>;

    async fn session(&self, request: Request<Streaming<WorkerFrame>>) -> Result<Response<Self::SessionStream>, Status> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let text =
                format!("this node has {} sessions and takes no more; try another node, or later", self.max_sessions);
            status::of(Code::ResourceExhausted, RefusalKind::Limited.code(), text)
        })?;
        let access = access_of(&request);
        let (out, frames) = channel(1);
        tokio::spawn(serve(self.engine.clone(), self.outputs.clone(), access, request.into_inner(), out, place));
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn fetch_input(&self, request: Request<FetchInputRequest>) -> Result<Response<FetchInputAnswer>, Status> {
        let (claim, workflow) = worker::fetch_in(&request.into_inner()).map_err(|error| status::malformed(&error))?;
        let content = self.engine.fetch_input(claim, workflow).await.map_err(|refused| status::refused(&refused))?;
        Ok(Response::new(FetchInputAnswer { result: bytes_out(&content) }))
    }
}

async fn serve(
    engine: Engine,
    outputs: Outputs,
    access: Access,
    mut frames: Streaming<WorkerFrame>,
    out: Out,
    _place: OwnedSemaphorePermit,
) {
    let ended = tokio::select! {
        biased;
        // Whatever is under way: nothing more is taken from this worker, and nothing more is given to it.
        problem = access.revoked() => Err(status::problem(&problem)),
        ended = converse(&engine, outputs, access.client(), &mut frames, &out) => ended,
    };
    if let Err(status) = ended {
        // If the worker is gone there is nobody to tell.
        let _ = out.send(Err(status)).await;
    }
}

/// Returns when the worker has closed, or was rejected or bidden goodbye and knows it.
async fn converse(
    engine: &Engine,
    outputs: Outputs,
    client: ClientId,
    frames: &mut Streaming<WorkerFrame>,
    out: &Out,
) -> Result<(), Status> {
    let first = tokio::select! {
        () = out.closed() => return Ok(()),
        first = tokio::time::timeout(HELLO_WITHIN, frames.message()) => first,
    };
    let late =
        |_| status::of(Code::DeadlineExceeded, RefusalKind::Invalid.code(), "no hello came within 10 s; say it first");
    let Some(first) = first.map_err(late)?.map_err(status::undecodable)? else { return Ok(()) };
    let Some(hello) = &first.hello else {
        return Err(wrong_hello("is missing; the first frame of a session must have one"));
    };
    let fetches_inputs = hello.fetches_inputs;
    let mut first = CheckedFrame::of(first)?;
    for part in &mut first.parts {
        if let FromWorker::Hello(hello) = part {
            hello.client = client;
        }
    }

    let mut session = engine.open_session();
    session.fetches_inputs(fetches_inputs);
    let engine = engine.clone();
    let mut talk =
        WorkerConversation { engine, session, outputs, unanswered: AnswerBacklog::default(), stage: Stage::Greeting };
    talk.handle_frame(first);
    let mut told = Vec::new();
    let mut room = None;
    loop {
        if !told.is_empty()
            && let Some(permit) = room.take()
        {
            let permit: tokio::sync::mpsc::Permit<'_, _> = permit;
            match pack(&mut told) {
                Some(frame) => permit.send(Ok(frame)),
                None => room = Some(permit),
            }
            continue;
        }
        tokio::select! {
            () = out.closed() => return Ok(()),
            permit = out.reserve(), if room.is_none() => match permit {
                Ok(permit) => room = Some(permit),
                Err(_) => return Ok(()),
            },
            heard = talk.session.receive(&mut told, MAX_MESSAGES), if room.is_some() => {
                if heard.is_err() {
                    return talk.closed_by_machine();
                }
                talk.note_answers(&told)?;
            }
            frame = frames.message(), if talk.unanswered.has_room() => {
                let Some(frame) = frame.map_err(status::undecodable)? else { return Ok(()) };
                if frame.hello.is_some() {
                    return Err(wrong_hello("was said already; a session has one, so open another session"));
                }
                talk.handle_frame(CheckedFrame::of(frame)?);
            }
        }
    }
}

/// A frame, taken apart. If anything in it is malformed, nothing of it is taken.
struct CheckedFrame {
    parts: Vec<FromWorker>,
    outputs: Vec<Output>,
    /// Size without the outputs, which do not wait for the machine.
    bytes: usize,
}

impl CheckedFrame {
    fn of(mut frame: WorkerFrame) -> Result<Self, Status> {
        let malformed = |error| status::malformed(&error);
        let parts = worker::frame_in(&frame).map_err(malformed)?;
        let outputs = worker::outputs_in(&frame).map_err(malformed)?;
        frame.outputs.clear();
        Ok(Self { parts, outputs, bytes: frame.encoded_len() })
    }
}

struct WorkerConversation {
    engine: Engine,
    session: WorkerSession,
    outputs: Outputs,
    unanswered: AnswerBacklog,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Welcome,
    /// The worker was rejected, or has said goodbye: the end of the session says nothing new.
    Dismissed,
}

impl WorkerConversation {
    fn handle_frame(&mut self, frame: CheckedFrame) {
        let CheckedFrame { mut parts, outputs, bytes } = frame;
        let is_for_machine = outputs.is_empty() || !parts.is_empty();
        // Before all else: whoever sees that an attempt has ended finds what it printed.
        self.outputs.offer_from_session(&self.engine, self.session.id(), outputs);
        if !is_for_machine {
            return;
        }
        if !parts.iter().any(is_answered) {
            // The answer to no beats at all tells when the machine has come this far; the worker never sees it.
            parts.push(FromWorker::Beats(Vec::new()));
        }
        let parts: Vec<_> = parts.into_iter().flat_map(in_bites).collect();
        self.unanswered.add(parts.iter().filter(|part| is_answered(part)).count(), bytes);
        for part in parts {
            self.session.send(part);
        }
    }

    fn note_answers(&mut self, told: &[ToWorker]) -> Result<(), Status> {
        for message in told {
            match message {
                ToWorker::Welcome { .. } => self.stage = Stage::Welcome,
                ToWorker::Rejected(_) | ToWorker::Goodbye => self.stage = Stage::Dismissed,
                // Without a welcome nothing else will be taken either: the worker has to begin anew.
                ToWorker::Refused(refusal) if self.stage == Stage::Greeting => return Err(status::refusal(refusal)),
                ToWorker::BeatAnswers(_)
                | ToWorker::SettleAnswers(_)
                | ToWorker::ExtensionAnswer(_)
                | ToWorker::Refused(_) => {}
                ToWorker::Assign(_) | ToWorker::Probe { .. } | ToWorker::Cancel { .. } => continue,
            }
            self.unanswered.answered();
        }
        Ok(())
    }

    fn closed_by_machine(&self) -> Result<(), Status> {
        if self.stage == Stage::Dismissed {
            return Ok(());
        }
        let text = "the manager has closed this session; connect again, with what you hold in the hello";
        Err(status::of(Code::Unavailable, "session_closed", text))
    }
}

/// Splits a report about many attempts into several messages, so that the first of it can be committed, and what it
/// makes room for be on its way, while the machine decides on the rest.
fn in_bites(part: FromWorker) -> Vec<FromWorker> {
    match part {
        FromWorker::Settle(mut all) if all.len() > SETTLE_AT_ONCE => {
            let mut bites = Vec::with_capacity(all.len().div_ceil(SETTLE_AT_ONCE));
            while all.len() > SETTLE_AT_ONCE {
                let rest = all.split_off(SETTLE_AT_ONCE);
                bites.push(FromWorker::Settle(core::mem::replace(&mut all, rest)));
            }
            bites.push(FromWorker::Settle(all));
            bites
        }
        part => vec![part],
    }
}

fn is_answered(part: &FromWorker) -> bool {
    match part {
        FromWorker::Hello(_)
        | FromWorker::Beats(_)
        | FromWorker::Settle(_)
        | FromWorker::RequestExtension(_)
        | FromWorker::Goodbye => true,
        FromWorker::Capacity { .. } | FromWorker::ProbeAnswer { .. } | FromWorker::Ended(_) => false,
    }
}

/// The first of `told` that fit into one frame; at least one of them, however large. Nothing, if they said nothing.
fn pack(told: &mut Vec<ToWorker>) -> Option<ManagerFrame> {
    let (mut bytes, mut assigned) = (0, 0);
    let more = told.iter().position(|message| {
        let is_first = bytes == 0;
        bytes += manager::weight(message);
        assigned += usize::from(matches!(message, ToWorker::Assign(_)));
        !is_first && (bytes > FRAME_BYTES || assigned > MAX_ASSIGNMENTS)
    });
    let mut frame = ManagerFrame::default();
    for message in told.drain(..more.unwrap_or(told.len())) {
        manager::put(&mut frame, message);
    }
    (!manager::is_empty(&frame)).then_some(frame)
}

fn wrong_hello(what: &str) -> Status {
    status::invalid("hello", format!("`hello` {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onward_core::fence::AttemptFence;
    use onward_core::ids::{Claim, JobId, Name};
    use onward_core::job::{Outline, WorkflowSpec};
    use onward_core::message::{Assignment, EndReport, SettleAnswer, Settlement};

    fn answers(count: usize) -> ToWorker {
        let claim = Claim { job: JobId::from_u128(1), workflow: 0, fence: AttemptFence::NONE };
        ToWorker::SettleAnswers(vec![SettleAnswer { claim, answer: Ok(()) }; count])
    }

    fn assignment() -> Assignment {
        let name = Name::new("a").expect("a name");
        let outline = Outline { name: name.clone(), kind: name.clone(), content_type: None, after: [].into() };
        let workflow = WorkflowSpec { outline: outline.into(), payload: (*b"1").into() };
        Assignment {
            claim: Claim { job: JobId::from_u128(1), workflow: 0, fence: AttemptFence::NONE },
            attempt: 1,
            queue: name,
            workflow,
            headers: Vec::new().into(),
            inputs: Vec::new(),
            checkpoint: None,
            lease: Duration::ZERO,
            deadline_remaining: Duration::ZERO,
        }
    }

    #[test]
    fn a_frame_is_closed_before_it_is_too_large() {
        let mut told =
            vec![answers(10_000), ToWorker::Probe { probe: 1 }, answers(10_000), ToWorker::Probe { probe: 2 }];
        let first = pack(&mut told).expect("not empty");
        assert_eq!((first.settle_answers.len(), first.probes), (10_000, vec![1]));
        let second = pack(&mut told).expect("not empty");
        assert_eq!((second.settle_answers.len(), second.probes), (10_000, vec![2]));
        assert!(told.is_empty());
    }

    #[test]
    fn one_that_is_too_large_alone_goes_alone() {
        let mut told = vec![answers(100_000), ToWorker::Probe { probe: 1 }];
        assert_eq!(pack(&mut told).map(|frame| frame.settle_answers.len()), Some(100_000));
        assert_eq!(told, [ToWorker::Probe { probe: 1 }]);
    }

    #[test]
    fn a_frame_has_so_many_assignments_and_no_more() {
        let mut told = vec![ToWorker::Assign(assignment()); 600];
        told.insert(300, answers(1));
        let packed: Vec<_> = core::iter::from_fn(|| pack(&mut told))
            .map(|frame| (frame.assignments.len(), frame.settle_answers.len()))
            .collect();
        assert_eq!(packed, [(256, 0), (256, 1), (88, 0)]);
    }

    #[test]
    fn many_outcomes_are_said_in_bites_and_none_is_lost() {
        let settlement = |job| {
            let claim = Claim { job: JobId::from_u128(job), workflow: 0, fence: AttemptFence::NONE };
            Settlement::new(claim, EndReport::Release { delay: None })
        };
        for count in [0, 1, SETTLE_AT_ONCE, SETTLE_AT_ONCE + 1, 5 * SETTLE_AT_ONCE] {
            let all: Vec<_> = (0..count as u128).map(settlement).collect();
            let bites = in_bites(FromWorker::Settle(all.clone()));
            assert_eq!(bites.len(), count.div_ceil(SETTLE_AT_ONCE).max(1), "{count}");
            let said = bites.into_iter().flat_map(|bite| match bite {
                FromWorker::Settle(some) if some.len() <= SETTLE_AT_ONCE => some,
                other => panic!("{other:?}"),
            });
            assert_eq!(said.collect::<Vec<_>>(), all);
        }
        assert_eq!(in_bites(FromWorker::Goodbye), [FromWorker::Goodbye]);
    }

    #[test]
    fn answers_to_nothing_make_no_frame() {
        assert_eq!(pack(&mut vec![ToWorker::BeatAnswers(Vec::new())]), None);
    }
}
