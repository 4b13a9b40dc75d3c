//! Bytes of a gate: its events, and the records that its snapshots are made of.

use onward_core::gate::event::{
    EndCause, Event as GateEvent, JobRebuilt, JobSubmitted as GateJobSubmitted, StampedEvent as StampedGateEvent,
    TargetCause, TargetEnd, TargetEnded,
};
use onward_core::gate::message::{JobOutline, Outcome};
use onward_core::gate::{
    DatacenterRecord, Decision, Job as GateJob, SnapshotHead as GateSnapshotHead, SnapshotRecord as GateSnapshotRecord,
    Target,
};
use onward_core::timeout::ExtensionTotals;

use crate::codec::DecodeError;
use crate::codec::bytes::{FieldReader, StoredForm, put_number};

choice! {
    GateEvent {
        1 TermBegan { term } + {};
        2 EpochRaised { n } + {};
        3 DatacenterSeen { datacenter, term, life } + {};
        4 JobSubmitted(submitted);
        5 JobRebuilt(rebuilt);
        6 JobPlaced { job, targets } + {};
        7 TargetConfirmed { job, datacenter } + {};
        8 TargetEnded(ended);
        9 ExtensionsSeen { job, extended } + {};
        10 JobExtended { job, by, reason, request } + {};
        11 EndDecided { job, why, kept_until } + {};
        12 JobsForgotten { jobs } + {};
    }
    EndCause {
        1 TimedOut(reason);
        2 Cancelled;
    }
    TargetCause {
        1 Reported;
        2 TimedOut(reason);
        3 Withdrawn;
        4 Refused;
        5 Lost;
    }
    Outcome {
        1 Succeeded;
        2 Cancelled;
        3 Failed;
        4 TimedOut;
    }
    GateSnapshotRecord {
        1 Head(head);
        2 Job(job);
    }
}

record! {
    GateJobSubmitted { id, spec, fingerprint, started_at, targets } + {}
    JobRebuilt { id, outline, started_at, n, extended } + {}
    JobOutline { kind, queue, targets, policy, timeout, max_extension } + {}
    TargetEnded { job, datacenter, end, kept_until } + {}
    TargetEnd { outcome, cause, error, result, attempts } + {}
    GateSnapshotHead { term, newest, seq, raised, datacenters, jobs } + {}
    GateJob {
        id, outline, spec, fingerprint, created_at, started_at, n, targets, extended, by_hand, decided, ended_at,
        kept_until
    } + { 1 ledger: optional; }
    Target { datacenter, confirmed, ended_at, end } + {}
}

fixed! {
    StampedGateEvent { at, event }
    DatacenterRecord { term, life }
    Decision { at, why }
    ExtensionTotals { grants, by_hand }
}
