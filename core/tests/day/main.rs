//! A day in the life of a manager, under injected time: jobs of every sort, workers of every temper, operators, an
//! archive. Every quarter of an hour a snapshot is taken beside the work, and a machine made of it must be the same.
//!
//! It lasts 25 hours, so that idempotency keys expire. `ONWARD_SOAK_CASES` sets the number of days.

mod clients;
#[path = "../coverage/mod.rs"]
mod coverage;
#[path = "../due/mod.rs"]
mod due;
#[path = "../rig/mod.rs"]
mod rig;
#[path = "../twins/mod.rs"]
mod twins;
mod workers;

use std::collections::{BTreeMap, BTreeSet};

use coverage::{EVENTS, NEXT_STATES, event_name, is_of_gates, next_state_name};
use due::DueWitness;
use onward_core::effect::Answer;
use onward_core::event::{Event, Via};
use onward_core::ids::{Claim, ClientId, JobId, RequestId, SessionId};
use onward_core::input::{Call, Filter, Input, ReplayFrom, ScheduleDraft};
use onward_core::job::{Draft, EndingKind, JobState, LimitDraft, OnStuck, Retry, Start, WorkflowDraft};
use onward_core::manager::SnapshotRecord;
use onward_core::message::{Assignment, Beat, EndReport, ExtensionRequest, FromWorker, Hello, Settlement, ToWorker};
use onward_core::payload::{Digest, Payload};
use onward_core::schedule::{MissedPolicy, Overlap, Timing};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rig::{Rig, name, secs, subscription, worker_id};
use twins::{Twins, check_begin, restored};
use workers::{Handler, Mood, Worker};

const TICK_S: u64 = 5;
const TICKS: u64 = 25 * 3600 / TICK_S;
const SNAPSHOT_EVERY: u64 = 900 / TICK_S;
const KINDS: [&str; 4] = ["mail", "resize", "report", "rare"];
const QUEUES: [&str; 2] = ["default", "bulk"];
const WORKERS: [&str; 5] = ["w0", "w1", "w2", "w3", "w4"];

struct Day {
    rig: Rig,
    rng: ChaCha8Rng,
    tick: u64,
    workers: Vec<Worker>,
    by_http: Vec<Handler>,
    open_poll: Option<RequestId>,
    recent: Vec<JobId>,
    paused: BTreeMap<&'static str, u64>,
    drained: Option<(&'static str, u64)>,
    sessions: u64,
    snapshot: Option<Vec<SnapshotRecord>>,
    begun_with: String,
    /// The newest whole one.
    whole: Vec<SnapshotRecord>,
    seen: BTreeMap<String, u64>,
}

impl Day {
    fn new(seed: u64) -> Self {
        let rig = Rig::with(|settings| {
            settings.limits.dead_letters = 60;
            settings.eviction.remember_for = secs(20);
        });
        let mut day = Self {
            rig,
            rng: ChaCha8Rng::seed_from_u64(seed),
            tick: 0,
            workers: Vec::new(),
            by_http: Vec::new(),
            open_poll: None,
            recent: Vec::new(),
            paused: BTreeMap::new(),
            drained: None,
            sessions: 0,
            snapshot: None,
            begun_with: String::new(),
            whole: Vec::new(),
            seen: BTreeMap::new(),
        };
        for id in WORKERS {
            let worker =
                Worker { id, incarnation: 1, session: SessionId(0), handlers: Vec::new(), mood: Mood::Away(0, false) };
            day.workers.push(worker);
        }
        day
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn saw(&mut self, what: &str) {
        *self.seen.entry(what.to_owned()).or_default() += 1;
    }

    fn pass(&mut self) {
        self.tick += 1;
        self.rig.advance(secs(TICK_S));
        self.read_messages();
        for at in 0..self.workers.len() {
            self.worker(at);
        }
        self.http_worker();
        self.client();
        self.operator();
        self.scheduler();
        if self.one_in(6) {
            let jobs = std::mem::take(&mut self.rig.to_archive);
            self.rig.step(Input::Archived { jobs });
        }
        self.snapshot();
        match self.tick * TICK_S {
            28_800 => self.restart(false),
            57_600 => self.restart(true),
            _ => {}
        }
    }

    fn snapshot(&mut self) {
        if self.snapshot.is_none() && self.tick.is_multiple_of(SNAPSHOT_EVERY) {
            self.rig.manager.begin_snapshot();
            self.begun_with = self.rig.manager.state().dump();
            self.snapshot = Some(Vec::new());
        }
        let Some(mut records) = self.snapshot.take() else { return };
        let most = 3 + self.below(80) as usize;
        let part = self.rig.manager.snapshot_next(most);
        records.extend(part.records);
        if !part.done {
            if records.len() <= most {
                self.saw("beside steps");
            }
            self.snapshot = Some(records);
            return;
        }
        self.rig.manager.state().check();
        let (rules, seed) = (self.rig.manager.rules().clone(), self.tick);
        check_begin(&rules, &records, &self.begun_with, self.rig.now);
        let copy = restored(&rules, &records, &self.rig.log, seed, self.rig.now);
        assert!(copy.state().dump() == self.rig.manager.state().dump(), "tick {}: restored is not live", self.tick);
        self.saw("snapshot");
        if self.seen["snapshot"].is_multiple_of(10) {
            let mut twins = Twins::new(&rules, &records, &self.rig.log, seed, self.rig.now);
            twins.live_alike(&WORKERS, &QUEUES, &KINDS, 150);
            self.saw("twins");
        }
        self.whole = records;
    }

    fn restart(&mut self, from_snapshot: bool) {
        match from_snapshot {
            true => self.rig.restart_from(&self.whole, secs(7)),
            false => self.rig.restart(secs(7)),
        }
        self.snapshot = None;
        self.open_poll = None;
        for worker in &mut self.workers {
            worker.mood = Mood::Away(self.tick + 1, false);
        }
        self.saw(if from_snapshot { "restarted from a snapshot" } else { "restarted" });
    }

    fn count_log(&mut self) {
        let mut specs = BTreeMap::new();
        let mut witness = DueWitness::default();
        self.rig.log.iter().for_each(|stamped| witness.note(stamped));
        assert!(witness.recorded > 1_000, "{} due instants", witness.recorded);
        for stamped in std::mem::take(&mut self.rig.log) {
            self.saw(event_name(&stamped.event));
            match stamped.event {
                Event::JobSubmitted(submitted) => {
                    let (spec, retry) = (&submitted.spec, submitted.retry_of.is_some());
                    let options = [
                        ("priority", spec.priority != 0),
                        ("limits", spec.limits.len() == 1),
                        ("two limits", spec.limits.len() == 2),
                        ("ordered", spec.limits.iter().any(|limit| limit.ordered)),
                        ("unique key", spec.unique_key().is_some()),
                        ("idempotency key", spec.idempotency_key().is_some()),
                        ("delay", matches!(spec.start, Start::After(_))),
                        ("run_at", matches!(spec.start, Start::At(_))),
                        ("require_progress", spec.require_progress),
                        ("on_stuck: time out", spec.on_stuck == OnStuck::TimeOut),
                        ("on_stuck: retry", spec.on_stuck == OnStuck::Retry),
                        ("dag", spec.workflows.len() > 1),
                        ("stored payload", spec.workflows[0].payload.as_stored().is_some()),
                        ("another queue", spec.queue.as_str() == "bulk"),
                        ("retry of an ended job", retry),
                        ("run of a schedule", submitted.scheduled.is_some()),
                    ];
                    options.iter().filter(|(_, given)| *given).for_each(|(what, _)| self.saw(what));
                    specs.insert(submitted.id, submitted.spec);
                }
                Event::HandedOut(handed) if matches!(handed.via, Via::Http { .. }) => self.saw("handed to a poll"),
                Event::AttemptEnded { claim, ending, then, .. } => {
                    self.saw(ending.code());
                    self.saw(next_state_name(&then));
                    if specs.get(&claim.job).is_some_and(|spec| spec.require_progress) {
                        self.saw("ended with require_progress");
                    }
                }
                Event::ExtensionDecided(decided) => {
                    self.saw(if decided.result.is_ok() { "granted" } else { "denied" });
                }
                _ => {}
            }
        }
    }
}

/// Every option of a job, and every way to begin anew.
const HAPPENINGS: &[&str] = &[
    "priority",
    "limits",
    "two limits",
    "ordered",
    "unique key",
    "idempotency key",
    "delay",
    "run_at",
    "require_progress",
    "ended with require_progress",
    "on_stuck: time out",
    "on_stuck: retry",
    "dag",
    "inputs",
    "checkpoint handed on",
    "stored payload",
    "another queue",
    "retry of an ended job",
    "run of a schedule",
    "handed to a poll",
    "granted",
    "denied",
    "left",
    "restarted",
    "restarted from a snapshot",
    "twins",
];

/// Everything that must occur: every event, every end of an attempt and every fate of its workflow.
fn expected() -> impl Iterator<Item = &'static str> {
    // An attempt times out with its job, by the event of the job.
    let endings = EndingKind::ALL.into_iter().filter(|ending| *ending != EndingKind::TimedOut);
    let endings = endings.map(EndingKind::code);
    [EVENTS, NEXT_STATES, HAPPENINGS].into_iter().flatten().copied().chain(endings).filter(|what| !is_of_gates(what))
}

#[test]
fn a_day_passes_and_every_snapshot_of_it_is_the_machine() {
    let cases: u64 = std::env::var("ONWARD_SOAK_CASES").map_or(1, |text| text.parse().expect("a number"));
    let mut seen = BTreeMap::new();
    // A day takes seconds.
    for seed in 0..cases.div_ceil(300) {
        let mut day = Day::new(seed);
        while day.tick < TICKS {
            day.pass();
        }
        let keys = day.rig.manager.state().idempotency_keys();
        assert!(keys > 100, "{keys} idempotency keys are remembered");
        day.count_log();
        assert!(day.seen["beside steps"] >= 50, "{} snapshots took several steps", day.seen["beside steps"]);
        assert!(day.seen["snapshot"] >= 90, "{} snapshots", day.seen["snapshot"]);
        for (what, count) in day.seen {
            *seen.entry(what).or_insert(0) += count;
        }
    }
    let missing: Vec<_> = expected().filter(|what| !seen.contains_key(*what)).collect();
    assert!(missing.is_empty(), "these did not occur: {missing:?}; these did: {seen:#?}");
}
