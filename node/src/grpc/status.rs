//! Refusals as gRPC statuses: `onward-code` has the stable word, `onward-field` the field at fault.

use onward_api::cluster::{CallFate, DONE};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_proto::{MAX_FRAME_BYTES, MalformedMessage, v1};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::api::problem::ProblemResponse;
use crate::engine::EngineRefusal;

pub fn of(code: Code, word: &str, text: impl Into<String>) -> Status {
    let mut status = Status::new(code, text);
    let word = MetadataValue::try_from(word).expect("codes are words of ASCII");
    status.metadata_mut().insert("onward-code", word);
    status
}

/// The status of a call that is to be made again; `done` says whether this time may count.
pub fn unavailable(word: &str, text: impl Into<String>, done: CallFate) -> Status {
    let mut status = of(Code::Unavailable, word, text);
    status.metadata_mut().insert(DONE, MetadataValue::from_static(done.word()));
    status
}

pub fn malformed(error: &MalformedMessage) -> Status {
    invalid(&error.field, error.to_string())
}

pub fn invalid(field: &str, text: String) -> Status {
    with_field(of(Code::InvalidArgument, RefusalKind::Invalid.code(), text), field)
}

/// The status for bytes that are not a frame, or too large for one; or for a broken connection, of which nobody will
/// read.
pub fn undecodable(error: Status) -> Status {
    match error.code() {
        Code::Internal | Code::OutOfRange => {
            invalid("frame", format!("not a frame of at most {MAX_FRAME_BYTES} bytes: {}", error.message()))
        }
        _ => error,
    }
}

/// The status for an answer of HTTP. Problems that are not here are not said to anybody who speaks gRPC.
pub fn problem(problem: &ProblemResponse) -> Status {
    let code = match problem.status {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        503 => return unavailable(&problem.code, problem.detail.clone(), problem.done()),
        _ => Code::Unknown,
    };
    of(code, &problem.code, problem.detail.clone())
}

/// A refusal on a stream that goes on after it.
pub fn in_stream(status: &Status) -> v1::Refusal {
    let word = status.metadata().get("onward-code").and_then(|word| word.to_str().ok());
    v1::Refusal { code: word.unwrap_or("invalid").to_owned(), text: status.message().to_owned() }
}

pub fn refusal(refusal: &Refusal) -> Status {
    if let Refusal::InBatch { cause, .. } = refusal {
        return self::refusal(cause);
    }
    let kind = refusal.kind();
    let status = match code(kind) {
        Code::Unavailable => unavailable(kind.code(), refusal.to_string(), CallFate::No),
        code => of(code, kind.code(), refusal.to_string()),
    };
    match refusal {
        Refusal::Invalid(invalid) => with_field(status, invalid.field),
        _ => status,
    }
}

pub fn refused(refused: &EngineRefusal) -> Status {
    match refused {
        EngineRefusal::ByMachine(by_machine) => refusal(by_machine),
        EngineRefusal::NotBegun(_) => unavailable(RefusalKind::NoLeader.code(), refused.to_string(), CallFate::No),
        EngineRefusal::Unavailable(_) => {
            unavailable(RefusalKind::NoLeader.code(), refused.to_string(), CallFate::Unknown)
        }
        EngineRefusal::Unreadable(_) | EngineRefusal::Missing(_) => of(Code::DataLoss, "damaged", refused.to_string()),
        EngineRefusal::TooManyCalls(_) => {
            unavailable(RefusalKind::Overloaded.code(), refused.to_string(), CallFate::No)
        }
    }
}

fn with_field(mut status: Status, field: &str) -> Status {
    // The names of our fields are ASCII, so there is none that this leaves out.
    if let Ok(field) = MetadataValue::try_from(field) {
        status.metadata_mut().insert("onward-field", field);
    }
    status
}

const fn code(kind: RefusalKind) -> Code {
    match kind {
        RefusalKind::Invalid => Code::InvalidArgument,
        RefusalKind::Limited | RefusalKind::TooSoon | RefusalKind::QuietSpent => Code::ResourceExhausted,
        RefusalKind::UnknownJob
        | RefusalKind::UnknownWorkflow
        | RefusalKind::UnknownAttempt
        | RefusalKind::UnknownWorker
        | RefusalKind::UnknownSchedule => Code::NotFound,
        RefusalKind::StaleAttempt
        | RefusalKind::AlreadyEnded
        | RefusalKind::StaleIncarnation
        | RefusalKind::StaleEpoch
        | RefusalKind::StaleTerm
        | RefusalKind::NotTerminal
        | RefusalKind::NotADeadLetter => Code::FailedPrecondition,
        RefusalKind::Conflict | RefusalKind::UniqueKeyTaken => Code::AlreadyExists,
        RefusalKind::NoLeader | RefusalKind::Overloaded => Code::Unavailable,
    }
}
