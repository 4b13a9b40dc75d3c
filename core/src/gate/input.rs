//! Inputs of a gate machine. A closed list: nothing else changes it.

use core::time::Duration;

use crate::fence::Term;
use crate::health::overload::OverloadLevel;
use crate::ids::{JobId, Name, RequestId, Seq, StreamId};
use crate::input::Submission;

use super::message::Frame;

#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// Nothing happened but time.
    Wake,
    /// The seat of the gates' log was taken under this term; always the first input.
    SeatTaken {
        term: Term,
    },
    /// The term of the log was read after this question was asked.
    SeatConfirmed {
        term: Term,
        question: u64,
    },
    /// Another term was seen. This machine is to be dropped.
    SeatLost,
    /// Everything that was queued during a gap of ours has been fed in.
    Drained,
    /// Everything up to this event is durable.
    Durable {
        seq: Seq,
    },
    /// The overload detector changed its mind.
    Load(OverloadLevel),
    /// A call that waits for one answer.
    Call {
        request: RequestId,
        call: Call,
    },
    /// A stream was opened by somebody who proved to be a manager of this datacenter.
    StreamOpened {
        stream: StreamId,
        datacenter: Name,
    },
    Datacenter {
        stream: StreamId,
        frame: Frame,
    },
    StreamClosed {
        stream: StreamId,
    },
}

#[derive(Clone, PartialEq, Debug)]
pub enum Call {
    /// All or nothing.
    Submit(Vec<Submission>),
    Cancel {
        job: JobId,
    },
    Extend {
        job: JobId,
        by: Duration,
        reason: Box<str>,
        request: Name,
    },
}
