//! Format 1. The tables below *are* the format: fields in this order, variants under these numbers.
//!
//! Each list is exhaustive: a field or a variant that core gains does not compile until it has its place here. Adding
//! a variant under a number of its own keeps the format; everything else (a field more or less, another order, another
//! number) changes what old bytes mean and needs a format 2, with the old tables kept to read format 1.

use std::sync::Arc;

use onward_core::event::{
    Event, ExtensionDecided, HandedOut, JobSubmitted, RetryOf, Stamped, Then, Verb, Via, WorkflowRef,
};
use onward_core::fence::{AttemptFence, GateEpoch, Term};
use onward_core::grant::{Denial, ExtensionReason, Malformed};
use onward_core::ids::{Claim, Incarnation, JobId, Name, Seq, WorkerId};
use onward_core::job::fingerprint::Fingerprint;
use onward_core::job::spec::{ConcurrencyLimit, Extras, Keys, Workflows};
use onward_core::job::{Ending, JobSpec, OnStuck, Outline, Policy, Retry, Start, TimeoutPolicy, WorkflowSpec};
use onward_core::payload::{self, Digest, Payload};
use onward_core::refusal::RefusalKind;
use onward_core::time::Wall;
use onward_core::timeout::TimeoutReason;

use super::DecodeError;
use super::bytes::{Reader, Stored, put_list, put_number, put_slice};
use crate::head::BatchKey;
use crate::{Batch, BatchId};

pub(super) fn put_batch(key: BatchKey, events: &[Stamped], out: &mut Vec<u8>) {
    key.term.put(out);
    put_number(key.id.0, out);
    put_number(key.first.0, out);
    put_number(events.len() as u64, out);
    events.iter().for_each(|event| event.put(out));
}

/// Something by itself: a whole job, or a list of records.
pub(super) fn get_whole<T: Stored>(body: &[u8]) -> Result<T, DecodeError> {
    let mut from = Reader(body);
    let whole = T::get(&mut from)?;
    if !from.0.is_empty() {
        return Err(DecodeError::Corrupt("more bytes than there should be"));
    }
    Ok(whole)
}

pub(super) fn get_batch(body: &[u8]) -> Result<Batch, DecodeError> {
    let mut from = Reader(body);
    let term = Stored::get(&mut from)?;
    let id = BatchId(from.number()?);
    let first = Seq(from.number()?);
    let events = from.list()?;
    if !from.0.is_empty() {
        return Err(DecodeError::Corrupt("more bytes than the batch has"));
    }
    Ok(Batch { term, id, first, events })
}

macro_rules! record {
    ($($type:ident { $($field:ident),* })*) => {$(
        impl Stored for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let Self { $($field),* } = self;
                $($field.put(out);)*
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                $(let $field = Stored::get(from)?;)*
                Ok(Self { $($field),* })
            }
        }
    )*};
}

macro_rules! choice {
    ($($type:ident { $($number:literal $variant:ident $({ $($field:ident),* })? $(( $($item:ident),* ))?;)* })*) => {$(
        impl Stored for $type {
            fn put(&self, out: &mut Vec<u8>) {
                match self {$(
                    Self::$variant $({ $($field),* })? $(( $($item),* ))? => {
                        out.push($number);
                        $($($field.put(out);)*)?
                        $($($item.put(out);)*)?
                    }
                )*}
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match from.byte()? {
                    $($number => {
                        $($(let $field = Stored::get(from)?;)*)?
                        $($(let $item = Stored::get(from)?;)*)?
                        Ok(Self::$variant $({ $($field),* })? $(( $($item),* ))?)
                    })*
                    _ => Err(DecodeError::Corrupt(concat!("no such ", stringify!($type)))),
                }
            }
        }
    )*};
}

mod image;

choice! {
    Event {
        1 TermBegan { term };
        2 JobSubmitted(job);
        3 WorkflowDue(workflow);
        4 HandedOut(handed);
        5 AttemptEnded { claim, ending, then };
        6 CancelAsked { job, epoch };
        7 JobTimedOut { job, reason };
        8 QuietBegan { claim, allowed };
        9 QuietEnded { claim, used };
        10 Checkpointed { claim, data };
        11 ProgressMarked { claim, watermark, total };
        12 ExtensionDecided(decided);
        13 JobExtended { job, by, reason, request };
        14 ClaimRefused { claim, verb, refusal };
        15 WorkerEvicted { worker, incarnation, readmit_at };
        16 ProbationBegan { worker };
        17 ProbationEnded { worker };
        18 GrantsReset { worker };
        19 WorkerDrained { worker };
        20 WorkerUndrained { worker };
        21 WorkerForgotten { worker };
        22 QueuePaused { queue };
        23 QueueResumed { queue };
        24 DeadLetterDropped { job };
        25 JobsArchived { jobs };
        26 KeysExpired { keys };
        27 IncarnationReplaced { worker, old };
    }
    Payload {
        1 Inline(bytes);
        2 Stored(stored);
    }
    Via {
        1 Session;
        2 Http { poll };
    }
    Then {
        1 Succeeded;
        2 Ready;
        3 Delayed { until };
        4 Failed;
        5 TimedOut;
        6 Cancelled;
    }
    Verb {
        1 Beat;
        2 Succeed;
        3 Fail;
        4 Release;
        5 RequestExtension;
    }
    Ending {
        1 Succeeded { result };
        2 Failed { error, retryable, delay };
        3 Released { delay };
        4 LeaseExpired;
        5 Stuck;
        6 Evicted;
        7 Crashed;
        8 NeverArrived;
        9 Cancelled;
        10 TimedOut;
    }
    Start {
        1 AtOnce;
        2 After(delay);
        3 At(wall);
    }
    OnStuck {
        1 Retry;
        2 TimeOut;
    }
    TimeoutPolicy {
        1 Any;
        2 Majority;
        3 All;
    }
    TimeoutReason {
        1 Overall;
        2 Stuck;
    }
    ExtensionReason {
        1 LongWorkflow;
        2 GcPause;
        3 ResourceContention;
    }
    Denial {
        1 UnknownWorker;
        2 Malformed(malformed);
        3 StaleAttempt;
        4 WorkerSuspect;
        5 WorkerEvicted;
        6 WorkerGrantsSpent;
        7 AttemptGrantsSpent;
        8 NoProgress;
    }
    Malformed {
        1 ProgressOutOfRange;
        2 UnknownReason;
    }
    RefusalKind {
        1 Invalid;
        2 Limited;
        3 UnknownJob;
        4 UnknownWorkflow;
        5 UnknownAttempt;
        6 UnknownWorker;
        7 StaleAttempt;
        8 AlreadyEnded;
        9 StaleIncarnation;
        10 StaleEpoch;
        11 NotTerminal;
        12 Conflict;
        13 UniqueKeyTaken;
        14 NoLeader;
        15 Overloaded;
        16 TooSoon;
        17 QuietSpent;
        18 NotADeadLetter;
    }
}

record! {
    Stamped { at, event }
    WorkflowRef { job, workflow }
    Claim { job, workflow, fence }
    GateEpoch { n, gate }
    JobSubmitted { id, spec, fingerprint, retry_of }
    RetryOf { job, request }
    HandedOut { workflow, fence, worker, incarnation, lease, via }
    ExtensionDecided { worker, claims, reason, progress, result }
    JobSpec { policy, workflows, keys, extras }
    Policy {
        queue, limits, timeout, stuck_after, max_extension, start, retry, priority, on_stuck, require_progress
    }
    ConcurrencyLimit { key, max }
    Retry { max_attempts, base, max }
    Keys { unique, idempotency }
    Extras { tags, headers, retain, datacenters, timeout_policy }
}

/// Lists that jobs share.
macro_rules! shared_list {
    ($($item:ty),*) => {$(
        impl Stored for Arc<[$item]> {
            fn put(&self, out: &mut Vec<u8>) {
                put_list(self, out);
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let list: Vec<$item> = from.list()?;
                Ok(if list.is_empty() { Self::default() } else { list.into() })
            }
        }
    )*};
}

shared_list!(ConcurrencyLimit, u16, (Name, Box<str>));

/// As one record: what many have in common is written out each time.
impl Stored for WorkflowSpec {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { outline, payload } = self;
        let Outline { name, kind, content_type, after } = &**outline;
        name.put(out);
        kind.put(out);
        payload.put(out);
        content_type.put(out);
        after.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (name, kind) = (Stored::get(from)?, Stored::get(from)?);
        let payload = Stored::get(from)?;
        let (content_type, after) = (Stored::get(from)?, Stored::get(from)?);
        Ok(Self { outline: Arc::new(Outline { name, kind, content_type, after }), payload })
    }
}

/// As a list, however many there are.
impl Stored for Workflows {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self::new(from.list()?))
    }
}

impl Stored for JobId {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.as_u128().to_be_bytes());
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self::from_u128(u128::from_be_bytes(from.array()?)))
    }
}

impl Stored for Digest {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(from.array()?))
    }
}

impl Stored for payload::Stored {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { digest, len } = self;
        digest.put(out);
        len.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { digest: Stored::get(from)?, len: Stored::get(from)? })
    }
}

impl Stored for Fingerprint {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(from.array()?))
    }
}

macro_rules! newtype {
    ($($type:ident: $read:ident, $write:ident;)*) => {$(
        impl Stored for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_number(self.$write(), out);
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(Self::$read(from.number()?))
            }
        }
    )*};
}

newtype! {
    Term: new, get;
    AttemptFence: from_raw, get;
    Wall: from_ms, as_ms;
}

macro_rules! name {
    ($($type:ident),*) => {$(
        impl Stored for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_slice(self.as_str().as_bytes(), out);
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Self::new(from.text()?).ok_or(DecodeError::Corrupt("text that names nothing"))
            }
        }
    )*};
}

name!(Name, WorkerId, Incarnation);
