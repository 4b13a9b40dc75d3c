//! Snapshots: what is taken bit by bit while the machine goes on is the state at one event, and a machine made of it
//! is the same machine.

use std::sync::Arc;

use crate::rig::{Rig, job, name, secs, subscription, worker_id};
use crate::twins::{Twins, replayed, restored};
use onward_core::input::{Call, Input, ReplayFrom};
use onward_core::job::{Draft, JobState, LimitDraft, Retry};
use onward_core::manager::{Manager, SnapshotCut, SnapshotRecord};
use onward_core::message::{Beat, FromWorker};
use onward_core::payload::{Digest, Payload};
use onward_core::settings::{Rules, Settings};

fn rules() -> Rules {
    Settings::default().check().expect("valid settings")
}

fn rest(rig: &mut Rig) -> Vec<SnapshotRecord> {
    let mut records = Vec::new();
    loop {
        let part = rig.manager.snapshot_next(2);
        assert!(part.records.len() <= 2);
        records.extend(part.records);
        if part.done {
            return records;
        }
    }
}

pub fn whole(rig: &mut Rig) -> Vec<SnapshotRecord> {
    rig.manager.begin_snapshot();
    rest(rig)
}

fn copy(rig: &Rig, records: &[SnapshotRecord]) -> Manager {
    restored(&rules(), records, &rig.log, 3, rig.now)
}

/// Checks that the restored state is that of the beginning, and with the events since, that of now.
fn check(rig: &Rig, records: &[SnapshotRecord], begun_with: &str) {
    let SnapshotRecord::Head(head) = &records[0] else { panic!("a snapshot begins with its head") };
    let at_begin = restored(&rules(), records, &rig.log[..head.seq.0 as usize], 3, rig.now);
    assert_eq!(at_begin.state().dump(), begun_with, "the records say what was at the beginning");
    assert_eq!(copy(rig, records).state().dump(), rig.manager.state().dump());
    Twins::new(&rules(), records, &rig.log, 5, rig.now).live_alike(&["w", "v"], &["default"], &["k", "other"], 80);
}

/// Begins a snapshot, lets something happen before anything is taken, and compares.
fn beside(rig: &mut Rig, happens: impl FnOnce(&mut Rig)) {
    let before = rig.manager.state().dump();
    rig.manager.begin_snapshot();
    let events = rig.log.len();
    happens(rig);
    assert!(rig.log.len() > events, "something happened");
    let records = rest(rig);
    check(rig, &records, &before);
}

fn archive(rig: &mut Rig) {
    let jobs = std::mem::take(&mut rig.to_archive);
    rig.step(Input::Archived { jobs });
}

#[test]
fn an_empty_state_has_a_snapshot() {
    let mut rig = Rig::new();
    let (before, records) = (rig.manager.state().dump(), whole(&mut rig));
    assert_eq!(records.len(), 1);
    check(&rig, &records, &before);
    assert!(rig.manager.snapshot_next(9).done, "none is under way");
}

#[test]
fn every_change_to_a_job_takes_its_image_first() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let quick = Retry { max_attempts: 2, base: secs(60), max: secs(60) };
    beside(&mut rig, |rig| {
        rig.submit(Draft { retry: Some(quick), ..job("k") });
    });
    let first = rig.assigned(session).remove(0).claim;
    beside(&mut rig, |rig| rig.progress(session, first, 3));
    beside(&mut rig, |rig| drop(rig.beat(session, Beat { quiet: Some(secs(5)), ..Beat::plain(first) })));
    rig.advance(secs(1));
    beside(&mut rig, |rig| drop(rig.beat(session, Beat::plain(first))));
    beside(&mut rig, |rig| drop(rig.beat(session, Beat { checkpoint: Some((*b"c").into()), ..Beat::plain(first) })));
    beside(&mut rig, |rig| drop(rig.ask_extension(session, vec![first], 0.5)));
    beside(&mut rig, |rig| {
        let call = Call::Extend { job: first.job, by: secs(9), reason: "".into(), request: name("e") };
        rig.call(call).unwrap();
    });
    beside(&mut rig, |rig| rig.fail(session, first).unwrap());
    beside(&mut rig, |rig| rig.advance(secs(61)));
    beside(&mut rig, |rig| drop(rig.succeed(session, first)));
    let second = rig.claim(session);
    beside(&mut rig, |rig| rig.fail(session, second).unwrap());
    assert_eq!(rig.manager.state().dead_letter_count(), 1);
    beside(&mut rig, |rig| {
        let new_id = rig.new_id();
        rig.call(Call::ReplayDeadLetter { job: first.job, new_id, request: name("r"), from: ReplayFrom::Failed })
            .unwrap();
    });
    beside(&mut rig, archive);
    let third = rig.claim(session);
    beside(&mut rig, |rig| rig.cancel(third.job));
    beside(&mut rig, |rig| rig.tell(session, FromWorker::Ended(vec![third])));
    let timed = rig.submit(Draft { timeout: Some(secs(2)), ..job("other") });
    beside(&mut rig, |rig| rig.advance(secs(3)));
    assert_eq!(rig.state_of(timed), JobState::TimedOut);
    beside(&mut rig, |rig| {
        let new_id = rig.new_id();
        rig.call(Call::Retry { job: timed, new_id, request: name("again") }).unwrap();
    });
    beside(&mut rig, |rig| {
        rig.call(Call::PauseQueue(name("default"))).unwrap();
        rig.call(Call::DrainWorker(worker_id("w"))).unwrap();
    });
}

#[test]
fn a_job_that_took_the_place_of_another_is_left_out() {
    let mut rig = Rig::new();
    let gone = rig.submit(job("k"));
    rig.cancel(gone);
    beside(&mut rig, |rig| {
        archive(rig);
        let new = rig.submit(job("k"));
        assert_ne!(gone, new);
    });
    let records = whole(&mut rig);
    assert_eq!(records.len(), 2, "the head and one job");
    // A place that was empty when the snapshot began.
    let gone = rig.submit(job("k"));
    rig.submit(job("k"));
    rig.cancel(gone);
    archive(&mut rig);
    beside(&mut rig, |rig| {
        rig.submit(job("k"));
    });
}

#[test]
fn keys_of_jobs_that_are_gone_are_kept_and_expire_in_order() {
    let mut rig = Rig::new();
    let keyed = |key: &str| Draft { idempotency_key: Some(key.into()), ..job("k") };
    for key in ["b", "a", "d", "c"] {
        let id = rig.submit(keyed(key));
        rig.cancel(id);
        if key != "d" {
            archive(&mut rig);
        }
        rig.advance(secs(3600));
    }
    rig.submit(keyed("open"));
    let before = rig.manager.state().dump();
    rig.manager.begin_snapshot();
    let mut records = rig.manager.snapshot_next(3).records;
    // Two of four expire before they were taken; one of these keys is used anew.
    rig.advance(secs(21 * 3600 + 60));
    assert_eq!(rig.manager.state().idempotency_keys(), 3);
    rig.submit(Draft { idempotency_key: Some("b".into()), ..job("other") });
    records.extend(rest(&mut rig));
    check(&rig, &records, &before);
}

#[test]
fn a_snapshot_that_is_cut_off_is_refused() {
    let mut rig = Rig::new();
    rig.submit(job("k"));
    rig.submit(job("k"));
    let records = whole(&mut rig);
    let mut machine = Manager::new(rules(), 1, rig.now);
    records[..2].iter().for_each(|record| machine.restore(record.clone()));
    assert_eq!(machine.finish_restore(), Err(SnapshotCut { found: 2, expected: 3 }));
    let mut nothing = Manager::new(rules(), 1, rig.now);
    assert!(nothing.finish_restore().is_err());
}

#[test]
fn one_that_is_given_up_costs_nothing_and_the_next_one_is_whole() {
    let mut rig = Rig::new();
    for _ in 0..5 {
        rig.submit(job("k"));
    }
    rig.manager.begin_snapshot();
    rig.manager.snapshot_next(3);
    rig.submit(job("k"));
    let (before, records) = (rig.manager.state().dump(), whole(&mut rig));
    check(&rig, &records, &before);
    rig.manager.begin_snapshot();
    rig.manager.abandon_snapshot();
    assert!(rig.manager.snapshot_next(9).records.is_empty());
}

/// Jobs lie in other places after a restore. Equal ones still take their turns.
#[test]
fn turns_do_not_depend_on_where_jobs_lie() {
    let mut rig = Rig::new();
    let early: Vec<_> = (0..6).map(|_| rig.submit(job("k"))).collect();
    for gone in [4, 1, 3] {
        rig.cancel(early[gone]);
        archive(&mut rig);
    }
    // These take the places of the three, in an order of their own, all within the same millisecond.
    let late: Vec<_> = (0..3).map(|_| rig.submit(job("k"))).collect();
    let wanted: Vec<_> = [early[0], early[2], early[5]].into_iter().chain(late).collect();
    let records = whole(&mut rig);
    let machine = copy(&rig, &records);
    let before = rig.manager.state().dump();
    check(&rig, &records, &before);
    rig.manager = machine;
    let now = rig.now;
    let mut fx = onward_core::effect::Effects::default();
    rig.manager.step(now, Input::SeatTaken { term: onward_core::fence::Term::new(2) }, &mut fx);
    let handed = hand_out_all(&mut rig.manager, now, rig.log.len() as u64 + 1, 6);
    assert_eq!(handed, wanted);
}

/// Hands out to a worker with so many slots, and gives its jobs in order.
fn hand_out_all(
    manager: &mut Manager,
    now: onward_core::time::Now,
    seq: u64,
    slots: u32,
) -> Vec<onward_core::ids::JobId> {
    use onward_core::event::Event;
    use onward_core::ids::{ClientId, Incarnation, Seq, SessionId};
    use onward_core::message::Hello;
    let mut fx = onward_core::effect::Effects::default();
    manager.step(now, Input::Durable { seq: Seq(seq) }, &mut fx);
    fx.clear();
    let hello = Hello {
        worker: worker_id("w"),
        incarnation: Incarnation::new("1").unwrap(),
        subscription: subscription(&["default"], &["k"]),
        slots,
        holding: vec![],
        client: ClientId::default(),
    };
    manager.step(now, Input::Session { session: SessionId(1), message: FromWorker::Hello(hello) }, &mut fx);
    let handed = fx.events.iter().filter_map(|stamped| match &stamped.event {
        Event::HandedOut(handed) => Some(handed.workflow.job),
        _ => None,
    });
    handed.collect()
}

/// Jobs from stored bytes have names and policies of their own; alike jobs share them all the same.
#[test]
fn alike_jobs_share_after_a_restart_what_they_shared_before() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let limited = || Draft { limits: vec![LimitDraft::new("tenant", 5)], ..Draft::of_kind("k", *b"payload") };
    let content = Payload::stored(Digest::of(b"large"), 9_000);
    let first = rig.submit(limited());
    let second = rig.submit(limited());
    let large: Vec<_> = (0..2).map(|_| rig.submit(Draft::of_kind("k", content.clone()))).collect();
    for claim in rig.assigned(session) {
        rig.succeed(session, claim.claim).unwrap();
    }
    let new_id = rig.new_id();
    rig.call(Call::Retry { job: first, new_id, request: name("r") }).unwrap();
    let records: Vec<SnapshotRecord> = whole(&mut rig).iter().map(unshared).collect();
    let log: Vec<_> = rig.log.iter().map(unshared_event).collect();
    for machine in [restored(&rules(), &records, &log, 3, rig.now), replayed(&rules(), &log, 3, rig.now)] {
        let state = machine.state();
        let of = |id| state.job(state.find(id).unwrap());
        let (one, other, again) = (of(first), of(second), of(new_id));
        assert!(Arc::ptr_eq(&one.spec.policy, &other.spec.policy), "policies");
        let kinds = [one, other, again].map(|job| job.spec.workflows[0].kind.as_str().as_ptr());
        assert!(kinds.iter().all(|kind| *kind == kinds[0]), "kinds");
        let names = [one, other].map(|job| job.spec.workflows[0].name.as_str().as_ptr());
        assert!(names.iter().all(|name| *name == kinds[0]), "names that are those of the kind");
        let bytes = [one, again].map(|job| job.spec.workflows[0].payload.as_inline().unwrap().as_ptr());
        assert_eq!(bytes[0], bytes[1], "the payload of a repeated job");
        let stored = [large[0], large[1]].map(|id| of(id).spec.workflows[0].payload.as_stored().unwrap().clone());
        assert!(Arc::ptr_eq(&stored[0], &stored[1]), "records of stored content");
        let past = |id| {
            let (_, workflow) = state.workflows_of(of(id)).next().unwrap();
            workflow.past.as_ref().unwrap().last().unwrap().worker.as_str().as_ptr()
        };
        assert_eq!(past(first), past(second), "workers");
    }
}

fn own_name(name: &onward_core::ids::Name) -> onward_core::ids::Name {
    onward_core::ids::Name::new(name.as_str()).unwrap()
}

fn unshared_spec(spec: &onward_core::job::JobSpec) -> onward_core::job::JobSpec {
    let mut spec = spec.clone();
    let mut policy = (*spec.policy).clone();
    policy.queue = own_name(&policy.queue);
    policy.limits = policy.limits.to_vec().into();
    spec.policy = Arc::new(policy);
    for workflow in spec.workflows.iter_mut() {
        let mut outline = (*workflow.outline).clone();
        outline.kind = own_name(&outline.kind);
        outline.name = own_name(&outline.name);
        workflow.outline = Arc::new(outline);
        workflow.payload = match &workflow.payload {
            Payload::Inline(bytes) => bytes.to_vec().into(),
            Payload::Stored(stored) => Payload::stored(stored.digest, stored.len),
        };
    }
    spec
}

fn unshared(record: &SnapshotRecord) -> SnapshotRecord {
    let mut record = record.clone();
    if let SnapshotRecord::Job(job) = &mut record {
        job.image.spec = unshared_spec(&job.image.spec);
        for past in job.image.workflows.iter_mut().filter_map(|workflow| workflow.past.as_mut()) {
            past.attempts.iter_mut().for_each(|ended| ended.worker = worker_id(ended.worker.as_str()));
        }
    }
    record
}

fn unshared_event(stamped: &onward_core::event::StampedEvent) -> onward_core::event::StampedEvent {
    use onward_core::event::Event;
    let mut stamped = stamped.clone();
    match &mut stamped.event {
        Event::JobSubmitted(submitted) => submitted.spec = Arc::new(unshared_spec(&submitted.spec)),
        Event::HandedOut(handed) => handed.worker = worker_id(handed.worker.as_str()),
        _ => {}
    }
    stamped
}
