//! A manager's frame: packed from what the machine tells a session, and taken apart again by a worker.

use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use onward_core::fence::Term;
use onward_core::grant::Denial;
use onward_core::ids::{Claim, Name};
use onward_core::job::{Outline, WorkflowSpec};
use onward_core::message::{Assignment, BeatAccepted, BeatAnswer, CancelWhy, ExtensionAnswer, SettleAnswer, ToWorker};
use onward_core::payload::{Digest, Payload};
use onward_core::refusal::{Refusal, RefusalKind};

use crate::common::{
    bytes_in, bytes_out, claim_in, claims_in, claims_out, each, name_in, needed, payload_in, payload_out, some_span_in,
    span_in, span_out,
};
use crate::malformed::{FieldProblem, MalformedMessage};
use crate::v1;

/// Puts one more message into a frame.
pub fn put(frame: &mut v1::ManagerFrame, message: ToWorker) {
    match message {
        ToWorker::Welcome { term } => frame.welcome = Some(v1::Welcome { term: term.get() }),
        ToWorker::Rejected(refusal) => frame.rejected = Some(refusal_out(&refusal)),
        ToWorker::Assign(assignment) => frame.assignments.push(assignment_out(assignment)),
        ToWorker::BeatAnswers(answers) => frame.beat_answers.extend(answers.into_iter().map(beat_answer_out)),
        ToWorker::SettleAnswers(answers) => frame.settle_answers.extend(answers.into_iter().map(settle_answer_out)),
        ToWorker::ExtensionAnswer(answer) => frame.extension_answers.push(extension_answer_out(answer)),
        ToWorker::Probe { probe } => frame.probes.push(probe),
        ToWorker::Cancel { claim, why } => {
            frame.cancels.push(v1::Cancel { claim: Some(claim.into()), why: cancel_why_out(why).into() });
        }
        ToWorker::Refused(refusal) => frame.refusals.push(refusal_out(&refusal)),
        ToWorker::Goodbye => frame.goodbye = Some(v1::Goodbye {}),
    }
}

/// About how many bytes a message adds to a frame; exact where it is large.
pub fn weight(message: &ToWorker) -> usize {
    const SMALL: usize = 64;
    match message {
        ToWorker::Assign(assignment) => {
            let carried = |result: &Payload| result.as_inline().map_or(SMALL, |bytes| bytes.len());
            let inputs = assignment.inputs.iter().map(|(name, result)| name.as_str().len() + carried(result));
            let inputs: usize = inputs.sum();
            let headers: usize = assignment.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
            let checkpoint = assignment.checkpoint.as_ref().map_or(0, |bytes| bytes.len());
            4 * SMALL + assignment.workflow.payload.len() + inputs + headers + checkpoint
        }
        ToWorker::BeatAnswers(answers) => answers.len() * SMALL,
        ToWorker::SettleAnswers(answers) => answers.len() * SMALL,
        ToWorker::ExtensionAnswer(answer) => SMALL + answer.claims.len() * SMALL,
        _ => SMALL,
    }
}

pub fn is_empty(frame: &v1::ManagerFrame) -> bool {
    *frame == v1::ManagerFrame::default()
}

/// A message to a worker, as the worker can know it: refusals and denials by their code.
#[derive(Clone, PartialEq, Debug)]
pub enum ManagerMessage {
    Welcome {
        term: Term,
    },
    /// The worker must not come back as this incarnation.
    Rejected(RemoteRefusal),
    /// An assignment without `workflow.after`, which is no worker's business. Inputs that are to be fetched are
    /// `Payload::Stored`.
    Assign(Assignment),
    BeatAnswer {
        claim: Claim,
        answer: Result<BeatAccepted, RemoteRefusal>,
    },
    SettleAnswer {
        claim: Claim,
        answer: Result<(), RemoteRefusal>,
    },
    ExtensionAnswer {
        claims: Vec<Claim>,
        result: Result<Duration, RemoteRefusal>,
        remaining: Duration,
        remaining_extensions: u32,
    },
    Probe {
        probe: u32,
    },
    Cancel {
        claim: Claim,
        why: CancelWhy,
    },
    Refused(RemoteRefusal),
    /// The manager thinks that the worker holds nothing, durably.
    Goodbye,
}

/// A refusal or a denial, as it came over the wire.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text} ({code})")]
pub struct RemoteRefusal {
    pub code: Box<str>,
    pub text: Box<str>,
}

impl RemoteRefusal {
    /// `None` for a code that this version does not know.
    pub fn kind(&self) -> Option<RefusalKind> {
        RefusalKind::ALL.into_iter().find(|kind| kind.code() == &*self.code)
    }
}

impl From<&v1::Refusal> for RemoteRefusal {
    fn from(wire: &v1::Refusal) -> Self {
        Self { code: wire.code.as_str().into(), text: wire.text.as_str().into() }
    }
}

/// Everything in a frame, in the order in which it is to be taken; or nothing of it.
pub fn frame_in(frame: &v1::ManagerFrame) -> Result<Vec<ManagerMessage>, MalformedMessage> {
    let mut heard = Vec::new();
    heard.extend(frame.welcome.map(|welcome| ManagerMessage::Welcome { term: Term::new(welcome.term) }));
    heard.extend(frame.rejected.as_ref().map(|refusal| ManagerMessage::Rejected(refusal.into())));
    heard.extend(each(&frame.assignments, "assignments", assignment_in)?.into_iter().map(ManagerMessage::Assign));
    heard.extend(each(&frame.beat_answers, "beat_answers", beat_answer_in)?);
    heard.extend(each(&frame.settle_answers, "settle_answers", settle_answer_in)?);
    heard.extend(each(&frame.extension_answers, "extension_answers", extension_answer_in)?);
    heard.extend(frame.probes.iter().map(|probe| ManagerMessage::Probe { probe: *probe }));
    heard.extend(each(&frame.cancels, "cancels", cancel_in)?);
    heard.extend(frame.refusals.iter().map(|refusal| ManagerMessage::Refused(refusal.into())));
    heard.extend(frame.goodbye.map(|v1::Goodbye {}| ManagerMessage::Goodbye));
    Ok(heard)
}

pub fn refusal_out(refusal: &Refusal) -> v1::Refusal {
    v1::Refusal { code: refusal.kind().code().to_owned(), text: refusal.to_string() }
}

fn denial_out(denial: Denial) -> v1::Refusal {
    v1::Refusal { code: denial.code().to_owned(), text: denial.to_string() }
}

fn assignment_out(assignment: Assignment) -> v1::Assignment {
    let text = |name: &Name| name.as_str().to_owned();
    let workflow = assignment.workflow;
    let header = |(name, value): &(Name, Box<str>)| v1::Header { name: text(name), value: String::from(&**value) };
    v1::Assignment {
        claim: Some(assignment.claim.into()),
        attempt: assignment.attempt,
        queue: text(&assignment.queue),
        workflow: text(&workflow.name),
        kind: text(&workflow.kind),
        payload: payload_out(&workflow.payload),
        content_type: workflow.content_type.as_ref().map(text),
        headers: assignment.headers.iter().map(header).collect(),
        inputs: assignment.inputs.iter().map(|(name, result)| input_out(name, result)).collect(),
        checkpoint: assignment.checkpoint.as_ref().map(bytes_out),
        lease_ms: span_out(assignment.lease),
        deadline_remaining_ms: span_out(assignment.deadline_remaining),
    }
}

fn assignment_in(wire: &v1::Assignment) -> Result<Assignment, MalformedMessage> {
    let header = |header: &v1::Header| Ok((name_in(&header.name, "name")?, header.value.as_str().into()));
    Ok(Assignment {
        claim: claim_in(wire.claim.as_ref())?,
        attempt: wire.attempt,
        queue: name_in(&wire.queue, "queue")?,
        workflow: WorkflowSpec {
            outline: Arc::new(Outline {
                name: name_in(&wire.workflow, "workflow")?,
                kind: name_in(&wire.kind, "kind")?,
                content_type: wire.content_type.as_deref().map(|text| name_in(text, "content_type")).transpose()?,
                after: Arc::default(),
            }),
            payload: payload_in(&wire.payload),
        },
        headers: each(&wire.headers, "headers", header)?.into(),
        inputs: each(&wire.inputs, "inputs", input_in)?,
        checkpoint: wire.checkpoint.as_ref().map(bytes_in),
        lease: span_in(wire.lease_ms, "lease_ms")?,
        deadline_remaining: span_in(wire.deadline_remaining_ms, "deadline_remaining_ms")?,
    })
}

/// An input of an assignment; one that is not here goes by reference.
fn input_out(name: &Name, result: &Payload) -> v1::NamedResult {
    let reference = result
        .as_stored()
        .map(|stored| v1::Reference { digest: Bytes::copy_from_slice(&stored.digest.0), length: stored.len });
    v1::NamedResult { workflow: name.as_str().to_owned(), result: payload_out(result), reference }
}

fn input_in(wire: &v1::NamedResult) -> Result<(Name, Payload), MalformedMessage> {
    let result = match &wire.reference {
        None => payload_in(&wire.result),
        Some(v1::Reference { digest, length }) => {
            let wrong = |_| FieldProblem::WrongLength { bytes: digest.len(), expected: 32 };
            let digest = <[u8; 32]>::try_from(&**digest).map_err(wrong);
            let digest = digest.map_err(|problem| MalformedMessage::new("reference.digest", problem))?;
            Payload::stored(Digest(digest), *length)
        }
    };
    Ok((name_in(&wire.workflow, "workflow")?, result))
}

fn beat_answer_out(answer: BeatAnswer) -> v1::BeatAnswer {
    use v1::beat_answer::Answer;
    let claim = Some(answer.claim.into());
    let answer = match answer.answer {
        Ok(BeatAccepted { lease_remaining, cancel, quiet }) => Answer::Accepted(v1::BeatAccepted {
            lease_remaining_ms: span_out(lease_remaining),
            cancel,
            quiet_ms: quiet.map(span_out),
        }),
        Err(refusal) => Answer::Refused(refusal_out(&refusal)),
    };
    v1::BeatAnswer { claim, answer: Some(answer) }
}

fn beat_answer_in(wire: &v1::BeatAnswer) -> Result<ManagerMessage, MalformedMessage> {
    use v1::beat_answer::Answer;
    let answer = match needed(wire.answer.as_ref(), "answer")? {
        Answer::Accepted(accepted) => Ok(BeatAccepted {
            lease_remaining: span_in(accepted.lease_remaining_ms, "accepted.lease_remaining_ms")?,
            cancel: accepted.cancel,
            quiet: some_span_in(accepted.quiet_ms, "accepted.quiet_ms")?,
        }),
        Answer::Refused(refusal) => Err(refusal.into()),
    };
    Ok(ManagerMessage::BeatAnswer { claim: claim_in(wire.claim.as_ref())?, answer })
}

fn settle_answer_out(answer: SettleAnswer) -> v1::SettleAnswer {
    let refused = answer.answer.err().map(|refusal| refusal_out(&refusal));
    v1::SettleAnswer { claim: Some(answer.claim.into()), refused }
}

fn settle_answer_in(wire: &v1::SettleAnswer) -> Result<ManagerMessage, MalformedMessage> {
    let answer = wire.refused.as_ref().map_or(Ok(()), |refusal| Err(refusal.into()));
    Ok(ManagerMessage::SettleAnswer { claim: claim_in(wire.claim.as_ref())?, answer })
}

fn extension_answer_out(answer: ExtensionAnswer) -> v1::ExtensionAnswer {
    use v1::extension_answer::Result as Wire;
    v1::ExtensionAnswer {
        claims: claims_out(answer.claims),
        result: Some(match answer.result {
            Ok(granted) => Wire::GrantedMs(span_out(granted)),
            Err(denial) => Wire::Denied(denial_out(denial)),
        }),
        remaining_ms: span_out(answer.remaining),
        remaining_extensions: answer.remaining_extensions,
    }
}

fn extension_answer_in(wire: &v1::ExtensionAnswer) -> Result<ManagerMessage, MalformedMessage> {
    use v1::extension_answer::Result as Wire;
    let result = match needed(wire.result.as_ref(), "result")? {
        Wire::GrantedMs(ms) => Ok(span_in(*ms, "granted_ms")?),
        Wire::Denied(denial) => Err(denial.into()),
    };
    Ok(ManagerMessage::ExtensionAnswer {
        claims: claims_in(&wire.claims, "claims")?,
        result,
        remaining: span_in(wire.remaining_ms, "remaining_ms")?,
        remaining_extensions: wire.remaining_extensions,
    })
}

fn cancel_why_out(why: CancelWhy) -> v1::CancelWhy {
    match why {
        CancelWhy::Asked => v1::CancelWhy::Asked,
        CancelWhy::TimedOut => v1::CancelWhy::TimedOut,
        CancelWhy::Stuck => v1::CancelWhy::Stuck,
        CancelWhy::LeaseExpired => v1::CancelWhy::LeaseExpired,
        CancelWhy::Evicted => v1::CancelWhy::Evicted,
        CancelWhy::Stale => v1::CancelWhy::Stale,
    }
}

fn cancel_in(wire: &v1::Cancel) -> Result<ManagerMessage, MalformedMessage> {
    let why = match v1::CancelWhy::try_from(wire.why) {
        Ok(v1::CancelWhy::Asked) => CancelWhy::Asked,
        Ok(v1::CancelWhy::TimedOut) => CancelWhy::TimedOut,
        Ok(v1::CancelWhy::Stuck) => CancelWhy::Stuck,
        Ok(v1::CancelWhy::LeaseExpired) => CancelWhy::LeaseExpired,
        Ok(v1::CancelWhy::Evicted) => CancelWhy::Evicted,
        Ok(v1::CancelWhy::Stale) => CancelWhy::Stale,
        Ok(v1::CancelWhy::Unspecified) | Err(_) => {
            return Err(MalformedMessage::new("why", FieldProblem::UnknownNumber(wire.why)));
        }
    };
    Ok(ManagerMessage::Cancel { claim: claim_in(wire.claim.as_ref())?, why })
}
