//! What a gate stores is read as it was written, and stays what it was.

use core::time::Duration;
use std::sync::Arc;

use onward_core::fence::Term;
use onward_core::gate::event::{
    EndCause, Event, JobRebuilt, JobSubmitted, StampedEvent, TargetCause, TargetEnd, TargetEnded,
};
use onward_core::gate::message::{JobOutline, Outcome};
use onward_core::gate::{DatacenterRecord, Decision, Job, SnapshotHead, SnapshotRecord, Target};
use onward_core::ids::{JobId, Name, Seq};
use onward_core::job::draft::{JobDefaults, check};
use onward_core::job::fingerprint::Fingerprint;
use onward_core::job::{Draft, TimeoutPolicy};
use onward_core::limits::Limits;
use onward_core::payload::{Digest, Payload};
use onward_core::state::{HandExtension, Ledger, LedgerFact};
use onward_core::time::Wall;
use onward_core::timeout::{ExtensionTotals, TimeoutReason};
use onward_log::codec::{DecodeError, gate};
use onward_log::{BatchId, BatchKey, Log, LogRow, MemoryLog};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
const EVENTS: &[u8] = include_bytes!("../golden/gate-v2.bin");
const RECORDS: &[u8] = include_bytes!("../golden/gate-v2-records.bin");
const TEXT: &str = include_str!("../golden/gate-v2.txt");

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn id(number: u128) -> JobId {
    JobId::from_u128(number)
}

fn outline() -> JobOutline {
    JobOutline {
        kind: name("k"),
        queue: name("q"),
        targets: Box::new([name("a"), name("b")]),
        policy: TimeoutPolicy::Majority,
        timeout: Duration::from_millis(1_500),
        max_extension: Duration::from_secs(9),
    }
}

fn end(cause: TargetCause) -> TargetEnd {
    TargetEnd {
        outcome: Outcome::TimedOut,
        cause,
        error: Some("no".into()),
        result: Some(Payload::stored(Digest::of(b"large"), 5_000)),
        attempts: 3,
    }
}

fn totals() -> ExtensionTotals {
    ExtensionTotals { grants: Duration::from_millis(7_500), by_hand: Duration::from_secs(4) }
}

fn events() -> Vec<StampedEvent> {
    let draft = Draft { datacenters: vec!["a".into()], ..Draft::of_kind("k", *b"{}") };
    let spec = Arc::new(check(draft, &Limits::default(), &JobDefaults::default()).expect("valid"));
    let submitted = JobSubmitted {
        id: id(1),
        spec,
        fingerprint: Some(Fingerprint([7; 16])),
        started_at: Wall::from_ms(5),
        targets: Box::new([name("a")]),
    };
    let rebuilt = JobRebuilt { id: id(2), outline: outline(), started_at: Wall::from_ms(6), n: 12, extended: totals() };
    let ended =
        |cause| TargetEnded { job: id(1), datacenter: name("a"), end: end(cause), kept_until: Wall::from_ms(8) };
    let list = [
        Event::TermBegan { term: Term::new(3) },
        Event::EpochRaised { n: 9 },
        Event::DatacenterSeen { datacenter: name("a"), term: Term::new(4), life: u64::MAX },
        Event::JobSubmitted(Box::new(submitted)),
        Event::JobRebuilt(Box::new(rebuilt)),
        Event::JobPlaced { job: id(1), targets: Box::new([name("b")]) },
        Event::TargetConfirmed { job: id(1), datacenter: name("a") },
        Event::TargetEnded(Box::new(ended(TargetCause::TimedOut(TimeoutReason::Stuck)))),
        Event::TargetEnded(Box::new(ended(TargetCause::Reported))),
        Event::TargetEnded(Box::new(ended(TargetCause::Withdrawn))),
        Event::TargetEnded(Box::new(ended(TargetCause::Refused))),
        Event::TargetEnded(Box::new(ended(TargetCause::Lost))),
        Event::ExtensionsSeen { job: id(1), extended: totals() },
        Event::JobExtended { job: id(1), by: Duration::from_secs(3), reason: "slow".into(), request: name("r") },
        Event::EndDecided { job: id(1), why: EndCause::TimedOut(TimeoutReason::Overall), kept_until: Wall::from_ms(9) },
        Event::EndDecided { job: id(1), why: EndCause::Cancelled, kept_until: Wall::ZERO },
        Event::JobsForgotten { jobs: vec![id(1), id(2)] },
    ];
    list.into_iter().zip(100..).map(|(event, ms)| StampedEvent { at: Wall::from_ms(ms), event }).collect()
}

fn records() -> Vec<SnapshotRecord> {
    let head = SnapshotHead {
        term: Term::new(3),
        newest: Wall::from_ms(99),
        seq: Seq(12),
        raised: 5,
        datacenters: vec![(name("a"), DatacenterRecord { term: Term::new(4), life: 6 })],
        jobs: 1,
    };
    let target = |confirmed, end| Target { datacenter: name("a"), confirmed, ended_at: Some(Wall::from_ms(3)), end };
    let job = Job {
        id: id(1),
        outline: outline(),
        spec: None,
        fingerprint: None,
        created_at: Wall::from_ms(1),
        started_at: Wall::from_ms(2),
        n: 8,
        targets: vec![target(true, Some(end(TargetCause::Lost))), target(false, None)],
        extended: totals(),
        ledger: None,
        by_hand: vec![HandExtension { request: name("r"), by: Duration::from_secs(1), total: Duration::from_secs(2) }],
        decided: Some(Decision { at: Wall::from_ms(7), why: EndCause::Cancelled }),
        ended_at: None,
        kept_until: Wall::from_ms(11),
    };
    vec![SnapshotRecord::Head(Box::new(head)), SnapshotRecord::Job(Box::new(job))]
}

/// The events after a way through a real log, as a gate's run loop stores them.
fn through_log(body: &[u8], count: usize) -> Result<Vec<StampedEvent>, DecodeError> {
    let mut log = MemoryLog::new();
    let term = log.take_seat(Term::default()).expect("the seat is free").term;
    let key = BatchKey { term, id: BatchId(1), first: Seq(1) };
    log.append(key, LogRow { count: count as u32, body }, &[]).expect("it takes everything");
    gate::decode_events(&log.read(Seq(1), usize::MAX).expect("it is there")[0])
}

/// To write the files anew, because records gained fields, set `ONWARD_WRITE_GOLDEN` to `gate`. Bytes that were released
/// never change.
#[test]
fn what_a_gate_stores_is_what_it_was() {
    let (mut body, mut chunk) = (Vec::new(), Vec::new());
    gate::encode_events(&events(), &mut body);
    gate::encode_records(&records(), &mut chunk);
    let text = format!("{:#?}\n{:#?}\n", events(), records());
    if std::env::var_os("ONWARD_WRITE_GOLDEN").is_some_and(|what| what == "gate") {
        std::fs::write(format!("{FOLDER}/gate-v2.bin"), &body).unwrap();
        std::fs::write(format!("{FOLDER}/gate-v2-records.bin"), &chunk).unwrap();
        std::fs::write(format!("{FOLDER}/gate-v2.txt"), text).unwrap();
        return;
    }
    let (read, read_records) = (through_log(EVENTS, events().len()).unwrap(), gate::decode_records(RECORDS).unwrap());
    assert!(format!("{read:#?}\n{read_records:#?}\n") == TEXT, "the bytes mean something else than they did");
    assert!(body == EVENTS && chunk == RECORDS, "a gate writes other bytes than it did");
    assert_eq!((read, read_records), (events(), records()));
}

#[test]
fn a_gates_ledger_is_read_as_it_was_written() {
    let mut ledger = Ledger { dropped: 3, ..Ledger::default() };
    let ExtensionTotals { grants, by_hand } = totals();
    for (ms, fact) in (1..).zip([
        LedgerFact::ExtendedByHand { by: grants, reason: "slow".into(), request: name("r") },
        LedgerFact::ExtensionsReported { grants, by_hand },
        LedgerFact::TimedOut { reason: TimeoutReason::Overall, epoch: None },
    ]) {
        ledger.push(Wall::from_ms(ms), fact);
    }
    let mut records = records();
    let SnapshotRecord::Job(job) = &mut records[1] else { panic!("a job") };
    job.ledger = Some(Box::new(ledger));
    let mut chunk = Vec::new();
    gate::encode_records(&records, &mut chunk);
    assert_eq!(gate::decode_records(&chunk), Ok(records));
}

#[test]
fn damage_is_an_error_and_never_a_panic() {
    let (mut body, mut chunk) = (Vec::new(), Vec::new());
    gate::encode_events(&events(), &mut body);
    gate::encode_records(&records(), &mut chunk);
    for cut in 0..body.len() {
        assert!(through_log(&body[..cut], events().len()).is_err(), "cut at {cut}");
    }
    for at in 0..body.len() {
        let mut damaged = body.clone();
        damaged[at] ^= 0x55;
        drop(through_log(&damaged, events().len()));
    }
    for bit in 0..chunk.len() * 8 {
        let mut damaged = chunk.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(gate::decode_records(&damaged).is_err(), "bit {bit}");
    }
}
