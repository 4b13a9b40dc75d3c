//! Whole jobs, and the records that a snapshot is made of.

use onward_core::grant::Fraction;
use onward_core::ids::Seq;
use onward_core::job::{EndingKind, WorkflowState};
use onward_core::manager::{JobRecord, KeyExpiry, ScheduleRecord, SnapshotHead, SnapshotRecord};
use onward_core::schedule::{Record, Records};
use onward_core::state::{
    AttemptImage, EndedAttempt, GateTie, HandExtension, JobImage, JobMore, KeyRecord, Ledger, LedgerEntry, LedgerFact,
    LocalTimeout, PastImage, RecordCounts, Schedule, WorkerRecord, WorkflowImage,
};

use crate::codec::DecodeError;
use crate::codec::bytes::{FieldReader, StoredForm, put_number};

record! {
    JobImage {
        id, spec, created_at, started_at, ended_at, cancel_asked, timed_out, more, fingerprint, workflows
    } + {}
    JobMore { extensions, epoch, retry_of, retried_as, ledger, died } + { 1 by_hand: optional; 2 took_over: optional; 3 scheduled: optional; 4 gate: critical; keep carried }
    GateTie { waited, local, answered_at, until } + {}
    LocalTimeout { reason, at, stuck } + {}
    Ledger { entries, dropped } + {}
    WorkflowImage {
        state, counted, handouts, last_fence, ready_at, due_at, wall_due, predecessors_left, past, attempt
    } + {}
    PastImage { attempts, dropped, checkpoint } + {}
    EndedAttempt { number, fence, worker, started_at, ended_at, ending, refused } + { 1 note: optional; }
    AttemptImage {
        worker, incarnation, via, handed_at, lease, grants, last_grant_progress, quiet, quiet_used, mark
    } + { 1 granted_until: optional; }
    SnapshotHead { term, newest, seq, turn, jobs, keys, workers, paused } + { 1 schedules: critical; }
    ScheduleRecord { name, schedule } + {}
    Schedule {
        plan, paused, created_at, revision, horizon, waiting, open, records, counts, failures, failing_since
    } + { keep carried }
    Records { list, dropped } + {}
    Record { due, last, count, reason, at, job, outcome } + {}
    WorkerRecord { grants, evictions, evicted, probation, drained, replaced } + { 1 taken_until: optional; 2 granted: optional; 3 incarnation: optional; 4 evicted_without_session: optional; keep carried }
    JobRecord { image, turns } + {}
    KeyExpiry { expires_at, key, record } + {}
}

fixed! {
    HandExtension { request, by, total }
    LedgerEntry { at, what, times }
    KeyRecord { job, fingerprint }
    RecordCounts { fired, skipped, missed }
}

choice! {
    SnapshotRecord {
        1 Head(head);
        2 Job(job);
        3 Key(key);
        4 Schedule(schedule);
    }
    WorkflowState {
        1 Waiting;
        2 Delayed;
        3 Ready;
        4 Running;
        5 Cancelling;
        6 Succeeded;
        7 Failed;
        8 Cancelled;
        9 TimedOut;
    }
    EndingKind {
        1 Succeeded;
        2 Failed;
        3 Released;
        4 LeaseExpired;
        5 Stuck;
        6 Evicted;
        7 Crashed;
        8 NeverArrived;
        9 Cancelled;
        10 TimedOut;
    }
    LedgerFact {
        1 Granted { worker, by, reason, progress } + {};
        2 Denied { worker, denial, reason, progress } + {};
        3 ExtendedByHand { by, reason, request } + {};
        4 QuietBegan { workflow, allowed } + {};
        5 QuietEnded { workflow, used } + {};
        6 AttemptEnded { workflow, fence, ending } + {};
        7 TimedOut { reason } + { 1 epoch: optional; };
        8 CancelAsked { epoch } + {};
        9 Refused { workflow, fence, verb, refusal } + {};
        10 LocallyTimedOut { reason } + {};
        11 LocalTimeoutOver;
        12 GateAnswered;
        13 TimeGiven { until } + {};
        14 ExtensionsReported { grants, by_hand } + {};
    }
}

impl StoredForm for Seq {
    fn put(&self, out: &mut Vec<u8>) {
        put_number(self.0, out);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(from.number()?))
    }
}

impl StoredForm for Fraction {
    fn put(&self, out: &mut Vec<u8>) {
        self.get().put(out);
    }
    fn get(from: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Self::new(f64::get(from)?).ok_or(DecodeError::Corrupt("a fraction that is none"))
    }
}
