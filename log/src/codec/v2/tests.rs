//! Growth: what a program of today makes of rows that a newer one wrote, and a newer one of today's.

use core::any::type_name;
use core::fmt::Debug;
use std::collections::BTreeSet;

use onward_core::carried::CarriedFields;
use onward_core::ids::Seq;
use onward_core::manager::SnapshotRecord;
use onward_core::state::{JobImage, LedgerFact};

use super::*;
use crate::codec::{Format, decode, encode};
use crate::{BatchId, BatchKey};

#[path = "../../../tests/samples/mod.rs"]
#[allow(dead_code, reason = "the tests of the whole crate use the rest")]
mod samples;

use samples::Draw;

fn stored<T: StoredForm>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    bytes
}

fn read<T: StoredForm>(bytes: &[u8]) -> Result<T, DecodeError> {
    get_whole(FieldReader { bytes, format: Format::Two })
}

/// Places with a tail: which ones there are, and which of them keep what they do not know.
#[derive(Default)]
struct Places {
    seen: BTreeSet<String>,
    keeping: BTreeSet<String>,
}

impl Places {
    /// Field 100 is not known to any record, and none needs a value of this form.
    fn check<T: StoredForm + PartialEq + Debug>(&mut self, value: &T) {
        let name = type_name::<T>().rsplit("::").next().unwrap_or_default();
        self.check_as(name, value);
    }

    /// Checks as [`Self::check`] does, by the name of the variant.
    fn check_variant<T: StoredForm + PartialEq + Debug>(&mut self, value: &T) {
        let text = format!("{value:?}");
        let variant = text.split([' ', '(']).next().unwrap_or_default();
        let name = type_name::<T>().rsplit("::").next().unwrap_or_default();
        self.check_as(&format!("{name}::{variant}"), value);
    }

    fn check_as<T: StoredForm + PartialEq + Debug>(&mut self, name: &str, value: &T) {
        let mut bytes = stored(value);
        assert_eq!(bytes.pop(), Some(0), "{name} ends in its tail");
        let with = |tag: u64| {
            let mut bytes = bytes.clone();
            put_number(tag, &mut bytes);
            put_slice(b"new", &mut bytes);
            bytes.push(0);
            bytes
        };
        let refused = read::<T>(&with(tag!(100 critical))).expect_err("a critical field is not passed over");
        assert!(matches!(refused, DecodeError::NewerVersion { number: 100, .. }), "{name}: {refused}");
        let newer = with(tag!(100 optional));
        let passed = read::<T>(&newer).expect("an optional field is passed over");
        if stored(&passed) == newer {
            self.keeping.insert(name.to_owned());
        } else {
            assert_eq!(passed, *value, "{name}");
        }
        self.seen.insert(name.to_owned());
    }

    fn check_spec(&mut self, spec: &JobSpec) {
        self.check(spec);
        self.check(&*spec.policy);
        self.check(&spec.policy.retry);
        spec.policy.limits.iter().for_each(|limit| self.check(limit));
        spec.workflows.iter().for_each(|workflow| self.check(workflow));
        spec.keys.iter().for_each(|keys| self.check(&**keys));
        spec.extras.iter().for_each(|extras| self.check(&**extras));
    }

    fn check_image(&mut self, image: &JobImage) {
        self.check(image);
        self.check_spec(&image.spec);
        if let Some(more) = &image.more {
            self.check(&**more);
            self.check(&more.ledger);
            if let Some(tie) = &more.gate {
                self.check(&**tie);
                tie.local.iter().for_each(|local| self.check(local));
            }
            let facts = more.ledger.entries.iter().map(|entry| &entry.what);
            let with_fields =
                |fact: &&LedgerFact| !matches!(fact, LedgerFact::LocalTimeoutOver | LedgerFact::GateAnswered);
            facts.filter(with_fields).for_each(|fact| self.check_variant(fact));
        }
        for workflow in &image.workflows {
            self.check(workflow);
            workflow.attempt.iter().for_each(|attempt| self.check(attempt));
            if let Some(past) = &workflow.past {
                self.check(past);
                past.attempts.iter().for_each(|ended| self.check(ended));
            }
        }
    }

    fn check_plan(&mut self, plan: &SchedulePlan) {
        self.check(plan);
        if matches!(plan.timing, Timing::Cron { .. }) {
            self.check_variant(&plan.timing);
        }
    }

    fn check_event(&mut self, event: &Event) {
        self.check_variant(event);
        match event {
            Event::JobSubmitted(submitted) => {
                self.check(submitted);
                self.check_spec(&submitted.spec);
                submitted.scheduled.iter().for_each(|run| self.check(&**run));
                submitted.gate.iter().for_each(|origin| self.check(&**origin));
            }
            Event::ScheduleSet(set) => {
                self.check(&**set);
                self.check_plan(&set.plan);
            }
            Event::HandedOut(handed) => {
                self.check(handed);
                if matches!(handed.via, Via::Http { .. }) {
                    self.check_variant(&handed.via);
                }
            }
            Event::ExtensionDecided(decided) => self.check(&**decided),
            Event::AttemptEnded { ending, then, .. } => {
                use Ending::{Failed, Released, Succeeded};
                if matches!(ending, Succeeded { .. } | Failed { .. } | Released { .. }) {
                    self.check_variant(ending);
                }
                if matches!(then, NextState::Delayed { .. }) {
                    self.check_variant(then);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn every_record_can_grow_and_what_outlives_its_row_keeps_what_it_does_not_know() {
    let mut places = Places::default();
    for seed in 0..40 {
        let mut draw = Draw::new(seed);
        draw.every_event().iter().for_each(|stamped| places.check_event(&stamped.event));
        for record in draw.records() {
            match record {
                SnapshotRecord::Head(head) => {
                    head.workers.iter().for_each(|(_, worker)| places.check(worker));
                    places.check(&*head);
                }
                SnapshotRecord::Job(job) => {
                    places.check(&*job);
                    places.check_image(&job.image);
                }
                SnapshotRecord::Key(key) => places.check(&key),
                SnapshotRecord::Schedule(record) => {
                    places.check(&*record);
                    places.check(&record.schedule);
                    places.check_plan(&record.schedule.plan);
                    places.check(&record.schedule.records);
                    record.schedule.records.list.iter().for_each(|record| places.check(record));
                }
            }
        }
    }
    let records = "AttemptImage ConcurrencyLimit EndedAttempt ExtensionDecided Extras GateOrigin GateTie HandedOut JobImage \
                   JobMore JobRecord JobSpec JobSubmitted KeyExpiry Keys Ledger LocalTimeout PastImage Policy Record Records Retry Schedule \
                   SchedulePlan ScheduleRecord ScheduleSet ScheduledRun SnapshotHead WorkerRecord WorkflowImage WorkflowSpec";
    let seen: Vec<&str> = places.seen.iter().map(String::as_str).filter(|name| !name.contains("::")).collect();
    assert_eq!(seen.join(" "), records);
    for (choice, variants) in
        [("Event", samples::VARIANTS), ("LedgerFact", 12), ("Ending", 3), ("Via", 1), ("NextState", 1), ("Timing", 1)]
    {
        let found = places.seen.iter().filter(|name| name.starts_with(&format!("{choice}::"))).count();
        assert_eq!(found, variants, "{choice}");
    }
    let keeping: Vec<&str> = places.keeping.iter().map(String::as_str).collect();
    assert_eq!(keeping, ["Extras", "JobMore", "Schedule", "WorkerRecord"]);
}

/// Records as a program after this one may have them, beside those of today.
#[derive(Clone, PartialEq, Debug)]
struct NewerLimit {
    key: Name,
    max: u32,
    per_s: Option<u32>,
    ordered_by: Box<str>,
}

/// A limit as programs had it that did not know order.
#[derive(Clone, PartialEq, Debug)]
struct LimitBefore {
    key: Name,
    max: u32,
}

#[derive(Clone, PartialEq, Debug, Default)]
struct NewerExtras {
    tags: Box<[Name]>,
    headers: onward_core::job::spec::Headers,
    retain: Option<core::time::Duration>,
    datacenters: Box<[Name]>,
    timeout_policy: TimeoutPolicy,
    tenant: Option<Name>,
    weight: u32,
    carried: CarriedFields,
}

#[derive(Clone, PartialEq, Debug)]
enum NewerEvent {
    TermBegan { term: Term, gate: Option<Name> },
    ScheduleFired { schedule: Name, due: Wall },
}

record! {
    LimitBefore { key, max } + {}
    NewerLimit { key, max } + { 90 per_s: critical; 91 ordered_by: optional; }
    NewerExtras { tags, headers, retain, datacenters, timeout_policy } + { 90 tenant: optional; 91 weight: optional; keep carried }
}

choice! {
    NewerEvent {
        1 TermBegan { term } + { 90 gate: critical; };
        200 ScheduleFired { schedule, due } + {};
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

#[test]
fn a_newer_program_reads_its_own_fields_and_the_rows_of_today() {
    let limit = NewerLimit { key: name("gpu"), max: 3, per_s: Some(7), ordered_by: "x".repeat(300).into() };
    assert_eq!(read(&stored(&limit)), Ok(limit.clone()));
    let today = ConcurrencyLimit { key: name("gpu"), max: 3, ordered: false };
    let plain = NewerLimit { per_s: None, ordered_by: Box::default(), ..limit };
    assert_eq!(read(&stored(&today)), Ok(plain.clone()), "what is not there has its default");
    assert_eq!(stored(&plain), stored(&today), "and what has its default takes no room");
    let began = NewerEvent::TermBegan { term: Term::new(3), gate: Some(name("east")) };
    assert_eq!(read(&stored(&began)), Ok(began));
}

#[test]
fn a_field_that_must_not_be_passed_over_is_refused_by_name_and_any_other_is_not() {
    let mut limit = NewerLimit { key: name("gpu"), max: 3, per_s: None, ordered_by: "age".into() };
    assert_eq!(read(&stored(&limit)), Ok(ConcurrencyLimit { key: name("gpu"), max: 3, ordered: false }));
    limit.per_s = Some(7);
    let refused = read::<ConcurrencyLimit>(&stored(&limit)).unwrap_err();
    assert_eq!(refused, DecodeError::NewerVersion { what: "a field of ConcurrencyLimit", number: 90 });
    let began = NewerEvent::TermBegan { term: Term::new(3), gate: Some(name("east")) };
    let refused = read::<Event>(&stored(&began)).unwrap_err();
    assert_eq!(refused, DecodeError::NewerVersion { what: "a field of Event::TermBegan", number: 90 });
}

#[test]
fn what_a_newer_program_said_of_a_job_survives_this_one() {
    let newer = NewerExtras { tenant: Some(name("acme")), weight: 4, tags: [name("a")].into(), ..Default::default() };
    let mut today: Extras = read(&stored(&newer)).unwrap();
    assert_ne!(today.carried, CarriedFields::default());
    today.retain = Some(core::time::Duration::from_secs(5));
    let again: NewerExtras = read(&stored(&today)).unwrap();
    assert_eq!(again, NewerExtras { retain: today.retain, ..newer });
}

#[test]
fn a_variant_that_is_not_known_was_written_by_a_newer_version_and_is_not_damage() {
    let fired = NewerEvent::ScheduleFired { schedule: name("nightly"), due: Wall::from_ms(7) };
    let key = BatchKey { term: Term::new(1), id: BatchId(1), first: Seq(1) };
    let event = Event::TermBegan { term: Term::new(1) };
    let mut row = Vec::new();
    encode(key, &[StampedEvent { at: Wall::from_ms(7), event: event.clone() }], &mut row);
    row.truncate(row.len() - stored(&event).len());
    fired.put(&mut row);
    let sealed = |row: &[u8], format: u8| {
        let crc = crc32fast::hash(&row[5..]).to_le_bytes();
        [&[format], &crc[..], &row[5..]].concat()
    };
    let refused = decode(&sealed(&row, 2)).unwrap_err();
    assert_eq!(refused, DecodeError::NewerVersion { what: "Event", number: 200 });
    let said = "written by a newer version, which knows Event number 200; use a newer onward";
    assert_eq!(refused.to_string(), said);
    assert!(crate::Error::from(refused).to_string().starts_with(said), "and so says the log");
    assert_eq!(decode(&sealed(&row, 1)), Err(DecodeError::Corrupt("Event")), "format 1 never grew");
}

#[test]
fn order_on_a_limit_is_written_where_it_is_asked_for_and_missed_by_nobody() {
    let plain = ConcurrencyLimit { key: name("gpu"), max: 1, ordered: false };
    let ordered = ConcurrencyLimit { ordered: true, ..plain.clone() };
    assert_eq!(read(&stored(&ordered)), Ok(ordered.clone()));
    assert_eq!(stored(&plain), [3, b'g', b'p', b'u', 1, 0], "rows from before it was there");
    assert_eq!(read(&stored(&plain)), Ok(plain));
    let refused = read::<LimitBefore>(&stored(&ordered)).unwrap_err();
    assert_eq!(refused, DecodeError::NewerVersion { what: "a field of LimitBefore", number: 1 });
}

#[test]
fn what_a_job_takes_over_is_missed_by_nobody() {
    let mut draw = Draw::new(5);
    let Event::JobSubmitted(mut job) = draw.event(1) else { panic!("that is number 1") };
    // Nothing else in its tail.
    (job.taken_over, job.scheduled, job.gate) = (Arc::default(), None, None);
    let plain = stored(&job);
    job.taken_over = Arc::from([0, 2]);
    let taking = stored(&job);
    assert_eq!(read(&taking), Ok(job));
    // Tag 3 is field 1, critical; then its length, how many, and which.
    assert_eq!(taking, [&plain[..plain.len() - 1], &[3, 3, 2, 0, 2, 0]].concat(), "rows without it are as they were");
}

#[test]
fn a_tail_that_is_none_is_damage() {
    let limit = stored(&ConcurrencyLimit { key: name("gpu"), max: 3, ordered: false });
    let (_, fields) = limit.split_last().unwrap();
    assert!(read::<ConcurrencyLimit>(fields).is_err(), "no end");
    assert!(read::<ConcurrencyLimit>(&[fields, &[200, 1]].concat()).is_err(), "a tag without a length");
    assert!(read::<ConcurrencyLimit>(&[fields, &[200, 1, 9, 1, 0]].concat()).is_err(), "a length past the end");
    assert!(read::<NewerLimit>(&[fields, &[181, 1, 3, 1, 7, 7, 0]].concat()).is_err(), "more than the field has");
    assert!(read::<NewerLimit>(&[fields, &[181, 1, 2, 1, 7, 0]].concat()).is_ok());
}
