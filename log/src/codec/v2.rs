//! Format 2, and format 1, which is the same without tails. The tables below *are* the format: fields in this order,
//! variants under these numbers, and later fields under theirs ([`tail`](super::tail)).
//!
//! Each list is exhaustive: a field or a variant that core gains does not compile until it has its place here.
//!
//! **To add a field:** add it to core's type, and to the braces after the `+` of its record here, under the next number
//! that this record never used, as `ConcurrencyLimit { key, max } + { 1 ordered: critical; }` has it. Its type needs `Default`
//! and `PartialEq`; a field with its default is not written, and rows that lack it read as if they had that.
//! Give it a sample in `tests/samples`, and let `ONWARD_WRITE_GOLDEN=text` write the texts beside the golden files
//! anew: nothing but the new field, with its default, may have come into them.
//!
//! - *critical*: an older program would do the wrong thing without the field, and must refuse the row.
//! - *optional*: an older program may go without. It keeps the field where the record ends in `keep`
//!   ([`CarriedFields`](onward_core::carried::CarriedFields)); elsewhere the field is gone with that program's next snapshot.
//!
//! **To add a variant:** the next number of its list. A program that does not know it refuses the row as written by a
//! newer version. A variant without named fields that needs some becomes another variant.
//!
//! **Never** reorder, remove or reuse a field or a number, nor put a field before the `+`: that changes what old bytes
//! mean, and the golden files say so.

use std::sync::Arc;

use onward_core::event::{
    Event, ExtensionDecided, GateOrigin, HandedOut, JobSubmitted, NextState, RetryOf, ScheduleSet, ScheduledRun,
    StampedEvent, Verb, Via, WorkflowRef,
};
use onward_core::fence::{AttemptFence, GateEpoch, Term};
use onward_core::grant::{Denial, ExtensionReason, MalformedRequest};
use onward_core::ids::{Claim, Incarnation, JobId, Name, WorkerId};
use onward_core::job::end::JobEnd;
use onward_core::job::fingerprint::Fingerprint;
use onward_core::job::spec::{ConcurrencyLimit, Extras, Keys, Workflows};
use onward_core::job::{Ending, JobSpec, OnStuck, Outline, Policy, Retry, Start, TimeoutPolicy, WorkflowSpec};
use onward_core::payload::{self, Digest, Payload};
use onward_core::refusal::RefusalKind;
use onward_core::schedule::{MissedPolicy, Overlap, RecordReason, Timing};
use onward_core::state::SchedulePlan;
use onward_core::time::Wall;
use onward_core::timeout::TimeoutReason;

use super::DecodeError;
use super::bytes::{FieldReader, StoredForm, put_list, put_number, put_slice};

/// Puts events one after another. Their number is in front of them, in the row.
pub(super) fn put_events(events: &[StampedEvent], out: &mut Vec<u8>) {
    events.iter().for_each(|event| event.put(out));
}

pub(super) fn get_events(count: u32, mut from: FieldReader<'_>) -> Result<Vec<StampedEvent>, DecodeError> {
    let events = from.items(u64::from(count))?;
    from.end()?;
    Ok(events)
}

/// Something by itself: a whole job, or a list of records.
pub(super) fn get_whole<T: StoredForm>(mut from: FieldReader<'_>) -> Result<T, DecodeError> {
    let whole = T::get(&mut from)?;
    from.end()?;
    Ok(whole)
}

/// Fields in this order, and a tail.
macro_rules! record {
    ($($type:ident { $($field:ident),* }
       + { $($number:literal $added:ident: $class:ident;)* $(keep $carried:ident)? })*) => {$(
        impl StoredForm for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let Self { $($field,)* $($added,)* $($carried)? } = self;
                $($field.put(out);)*
                put_tail!(out; $($number $added: $class;)* $(keep $carried)?);
            }
            fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
                $(let $field = StoredForm::get(from)?;)*
                $(let mut $added = Default::default();)*
                let _carried = get_tail!(from concat!("a field of ", stringify!($type)); $($number $added),*);
                $(let $carried = _carried;)?
                Ok(Self { $($field,)* $($added,)* $($carried)? })
            }
        }
    )*};
}

/// Fields in this order and none ever more: small parts of records that can grow.
macro_rules! fixed {
    ($($type:ident { $($field:ident),* })*) => {$(
        impl StoredForm for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let Self { $($field),* } = self;
                $($field.put(out);)*
            }
            fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
                $(let $field = StoredForm::get(from)?;)*
                Ok(Self { $($field),* })
            }
        }
    )*};
}

/// Variants under these numbers. One with named fields ends in a tail; one that wraps something may.
macro_rules! choice {
    ($($type:ident {$(
        $number:literal $variant:ident
        $({ $($field:ident),* } + { $($tag:literal $added:ident: $class:ident;)* })?
        $(( $($item:ident),* ) $(+ $tail:tt)?)?;
    )*})*) => {$(
        impl StoredForm for $type {
            fn put(&self, out: &mut Vec<u8>) {
                match self {$(
                    Self::$variant $({ $($field,)* $($added,)* })? $(( $($item),* ))? => {
                        put_number($number, out);
                        $(
                            $($field.put(out);)*
                            put_tail!(out; $($tag $added: $class;)*);
                        )?
                        $(
                            $($item.put(out);)*
                            $(wrapped_tail!(put out $tail);)?
                        )?
                    }
                )*}
            }
            fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
                match from.number()? {
                    $($number => {
                        $(
                            $(let $field = StoredForm::get(from)?;)*
                            $(let mut $added = Default::default();)*
                            let what = concat!("a field of ", stringify!($type), "::", stringify!($variant));
                            get_tail!(from what; $($tag $added),*);
                        )?
                        $(
                            $(let $item = StoredForm::get(from)?;)*
                            $(wrapped_tail!(get from $variant $tail);)?
                        )?
                        Ok(Self::$variant $({ $($field,)* $($added,)* })? $(( $($item),* ))?)
                    })*
                    number => Err(from.unknown(stringify!($type), number)),
                }
            }
        }
    )*};
}

/// The tail of a variant that wraps something: room for the fields that it may have by name one day.
macro_rules! wrapped_tail {
    (put $out:ident {}) => {
        put_tail!($out;)
    };
    (get $from:ident $variant:ident {}) => {
        get_tail!($from concat!("a field of ", stringify!($variant));)
    };
}

mod gate;
mod image;

choice! {
    Event {
        1 TermBegan { term } + {};
        2 JobSubmitted(job);
        3 WorkflowDue(workflow) + {};
        4 HandedOut(handed);
        5 AttemptEnded { claim, ending, then } + { 1 end: optional; 2 note: optional; };
        6 CancelAsked { job, epoch } + { 1 end: optional; };
        7 JobTimedOut { job, reason } + { 1 end: optional; 2 epoch: optional; };
        8 QuietBegan { claim, allowed } + {};
        9 QuietEnded { claim, used } + {};
        10 Checkpointed { claim, data } + {};
        11 ProgressMarked { claim, watermark, total } + {};
        12 ExtensionDecided(decided);
        13 JobExtended { job, by, reason, request } + {};
        14 ClaimRefused { claim, verb, refusal } + {};
        15 WorkerEvicted { worker, incarnation, readmit_at } + { 1 taken_until: optional; 2 without_session: optional; };
        16 ProbationBegan { worker } + {};
        17 ProbationEnded { worker } + {};
        18 GrantsReset { worker } + {};
        19 WorkerDrained { worker } + {};
        20 WorkerUndrained { worker } + {};
        21 WorkerForgotten { worker } + {};
        22 QueuePaused { queue } + {};
        23 QueueResumed { queue } + {};
        24 DeadLetterDropped { job } + {};
        25 JobsArchived { jobs } + {};
        26 KeysExpired { keys } + {};
        27 IncarnationReplaced { worker, old } + {};
        28 IncarnationSeen { worker, incarnation } + {};
        29 ScheduleSet(set);
        30 ScheduleRemoved { schedule } + {};
        31 SchedulePaused { schedule } + {};
        32 ScheduleResumed { schedule } + {};
        33 InstantsPassed { schedule, reason, first, last, count } + {};
        34 InstantWaits { schedule, due } + {};
        35 LocallyTimedOut { job, reason, stuck } + {};
        36 LocalTimeoutOver { job } + {};
        37 GateAnswered { job } + {};
        38 TimeGiven { job, until } + {};
        39 JobWithdrawn { job, key_until } + {};
    }
    Payload {
        1 Inline(bytes);
        2 Stored(stored);
    }
    Via {
        1 Session;
        2 Http { poll } + {};
    }
    NextState {
        1 Succeeded;
        2 Ready;
        3 Delayed { until } + {};
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
        1 Succeeded { result } + {};
        2 Failed { error, retryable, delay } + {};
        3 Released { delay } + {};
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
    MalformedRequest {
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
        19 UnknownSchedule;
        20 StaleTerm;
    }
    Timing {
        1 Cron { expression, zone } + {};
        2 Every(interval);
    }
    Overlap {
        1 Skip;
        2 Queue;
        3 Allow;
    }
    MissedPolicy {
        1 Skip;
        2 Once;
        3 All;
    }
    RecordReason {
        1 OnTime;
        2 CaughtUp;
        3 Queued;
        4 RunNow;
        5 StillRunning;
        6 QueueFull;
        7 TooManyOpen;
        8 Paused;
        9 Refused(kind);
        10 Superseded;
        11 Late;
    }
}

record! {
    JobSubmitted { id, spec, fingerprint, retry_of } + { 1 taken_over: critical; 2 scheduled: critical; 3 gate: critical; }
    GateOrigin { epoch, waited } + {}
    ScheduledRun { schedule, due, reason } + {}
    JobEnd { dead, key_until } + {}
    ScheduleSet { schedule, plan, paused, horizon } + {}
    SchedulePlan { timing, job, overlap, missed, jitter, critical } + {}
    HandedOut { workflow, fence, worker, incarnation, lease, via } + {}
    ExtensionDecided { worker, claims, reason, progress, result }
        + { 1 live_until: optional; 2 repeats: optional; 3 incarnation: optional; }
    JobSpec { policy, workflows, keys, extras } + {}
    Policy {
        queue, limits, timeout, stuck_after, max_extension, start, retry, priority, on_stuck, require_progress
    } + {}
    ConcurrencyLimit { key, max } + { 1 ordered: critical; }
    Retry { max_attempts, base, max } + {}
    Keys { unique, idempotency } + {}
    Extras { tags, headers, retain, datacenters, timeout_policy } + { keep carried }
}

fixed! {
    StampedEvent { at, event }
    WorkflowRef { job, workflow }
    Claim { job, workflow, fence }
    GateEpoch { n, gate }
    RetryOf { job, request }
}

/// Lists that jobs share.
macro_rules! shared_list {
    ($($item:ty),*) => {$(
        impl StoredForm for Arc<[$item]> {
            fn put(&self, out: &mut Vec<u8>) {
                put_list(self, out);
            }
            fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
                let list: Vec<$item> = from.list()?;
                Ok(if list.is_empty() { Self::default() } else { list.into() })
            }
        }
    )*};
}

shared_list!(ConcurrencyLimit, u16, (Name, Box<str>));

/// Stored as one record: what many have in common is written out each time.
impl StoredForm for WorkflowSpec {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { outline, payload } = self;
        let Outline { name, kind, content_type, after } = &**outline;
        name.put(out);
        kind.put(out);
        payload.put(out);
        content_type.put(out);
        after.put(out);
        put_tail!(out;);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (name, kind) = (StoredForm::get(from)?, StoredForm::get(from)?);
        let payload = StoredForm::get(from)?;
        let (content_type, after) = (StoredForm::get(from)?, StoredForm::get(from)?);
        get_tail!(from "a field of WorkflowSpec";);
        Ok(Self { outline: Arc::new(Outline { name, kind, content_type, after }), payload })
    }
}

/// Stored as a list, however many there are.
impl StoredForm for Workflows {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self::new(from.list()?))
    }
}

impl StoredForm for JobId {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.as_u128().to_be_bytes());
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self::from_u128(u128::from_be_bytes(from.array()?)))
    }
}

impl StoredForm for Digest {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(from.array()?))
    }
}

impl StoredForm for payload::StoredContent {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { digest, len } = self;
        digest.put(out);
        len.put(out);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { digest: StoredForm::get(from)?, len: StoredForm::get(from)? })
    }
}

impl StoredForm for Fingerprint {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(from.array()?))
    }
}

macro_rules! newtype {
    ($($type:ident: $read:ident, $write:ident;)*) => {$(
        impl StoredForm for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_number(self.$write(), out);
            }
            fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
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
        impl StoredForm for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_slice(self.as_str().as_bytes(), out);
            }
            fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
                Self::new(from.text()?).ok_or(DecodeError::Corrupt("text that names nothing"))
            }
        }
    )*};
}

name!(Name, WorkerId, Incarnation);

#[cfg(test)]
mod tests;
