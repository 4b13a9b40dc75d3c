//! The hostile world around one manager.

mod callers;
mod drafts;
mod healing;
mod trouble;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onward_core::effect::{Answer, Effect, Effects, PendingEffect};
use onward_core::event::StampedEvent;
use onward_core::fence::{AttemptFence, GateEpoch, Term};
use onward_core::health::overload::OverloadLevel;
use onward_core::ids::{Bytes, Claim, ClientId, Incarnation, JobId, Name, RequestId, Seq, SessionId, WorkerId};
use onward_core::input::{Call, Filter, Input, Poll, ReplayFrom, ScheduleDraft, Submission};
use onward_core::job::{Draft, LimitDraft, OnStuck, Retry, WorkflowDraft};
use onward_core::manager::{Manager, SnapshotRecord};
use onward_core::message::{Beat, EndReport, ExtensionRequest, FromWorker, Hello, Settlement, Subscription, ToWorker};
use onward_core::payload::{Digest, Payload};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::schedule::{MissedPolicy, Overlap, Timing};
use onward_core::settings::{Rules, Settings};
use onward_core::state::JobImage;
use onward_core::time::{Mono, Now, Wall};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::checks::{Leases, Witness, check_bounds};
use super::coverage::{CALLS, INPUTS, MESSAGES, call_name, input_name, is_of_gates, message_name};
use super::due::find_due;
use super::twins::{Twins, as_older, check_begin, ids_in_order, restored};

/// Trouble that must happen to the manager besides what is said to it.
const HAPPENINGS: &[&str] = &[
    "crash",
    "gap",
    "granted",
    "evicted",
    "lease_expired",
    "stuck",
    "timed_out",
    "snapshot",
    "snapshot_beside_steps",
    "restored",
];

/// Everything that must occur: every input, call and message, every refusal, and every trouble of the manager.
pub fn expected() -> impl Iterator<Item = &'static str> {
    // Nothing is refused for coming too soon by a manager.
    let refusals = RefusalKind::ALL.iter().filter(|kind| **kind != RefusalKind::TooSoon).map(|kind| kind.code());
    [INPUTS, CALLS, MESSAGES, HAPPENINGS]
        .into_iter()
        .flatten()
        .copied()
        .chain(refusals)
        .filter(|what| !is_of_gates(what))
}

const KINDS: [&str; 3] = ["a", "b", "c"];
const QUEUES: [&str; 2] = ["default", "other"];
const WORKERS: [&str; 4] = ["w0", "w1", "w2", "w3"];

struct SimWorker {
    incarnation: u32,
    session: Option<SessionId>,
    holding: Vec<Claim>,
    slots: u32,
}

pub struct World {
    rng: ChaCha8Rng,
    rules: Rules,
    manager: Manager,
    now: Now,
    term: u64,
    log: Vec<StampedEvent>,
    durable: usize,
    /// Effects that wait for their event.
    waiting: Vec<PendingEffect>,
    effects: Effects,
    /// Inputs on their way to the manager.
    pool: Vec<Input>,
    workers: Vec<SimWorker>,
    http_holding: Vec<Claim>,
    claims: Vec<Claim>,
    jobs: Vec<JobId>,
    acknowledged: BTreeSet<JobId>,
    to_archive: Vec<JobId>,
    /// The newest jobs of the archive.
    archive: Vec<JobImage>,
    open_requests: BTreeMap<RequestId, &'static str>,
    log_answers: bool,
    /// Records of the snapshot under way, and the newest whole one.
    snapshot: Option<Vec<SnapshotRecord>>,
    begun_with: String,
    whole: Option<Vec<SnapshotRecord>>,
    next: u64,
    witness: Witness,
    leases: Leases,
    pub seen: BTreeSet<&'static str>,
}

/// The event that a snapshot was taken at.
fn snapshot_seq(records: &[SnapshotRecord]) -> usize {
    match records.first() {
        Some(SnapshotRecord::Head(head)) => head.seq.0 as usize,
        other => panic!("a snapshot begins with its head, not with {other:?}"),
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("valid")
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut settings = Settings::default();
        settings.limits.jobs = 40;
        settings.limits.payload_bytes = 64;
        settings.limits.checkpoint_bytes = 64;
        settings.limits.dead_letters = 3;
        settings.limits.open_polls = 3;
        settings.quiet_budget = Duration::from_secs(1);
        let rules = settings.check().expect("valid settings");
        let now = Now { mono: Mono::from_ms(1_000), wall: Wall::from_ms(1_800_000_000_000) };
        let worker = |_: &&str| SimWorker { incarnation: 1, session: None, holding: Vec::new(), slots: 2 };
        let mut world = Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            manager: Manager::new(rules.clone(), seed, now),
            rules,
            now,
            term: 1,
            log: Vec::new(),
            durable: 0,
            waiting: Vec::new(),
            effects: Effects::default(),
            pool: Vec::new(),
            workers: WORKERS.iter().map(worker).collect(),
            http_holding: Vec::new(),
            claims: Vec::new(),
            jobs: Vec::new(),
            acknowledged: BTreeSet::new(),
            to_archive: Vec::new(),
            archive: Vec::new(),
            open_requests: BTreeMap::new(),
            log_answers: true,
            snapshot: None,
            begun_with: String::new(),
            whole: None,
            next: 1,
            witness: Witness::default(),
            leases: Leases::default(),
            seen: BTreeSet::new(),
        };
        world.feed(Input::SeatTaken { term: Term::new(1) });
        world.sync();
        world
    }

    /// A trace of everything that could differ between two runs of one seed.
    pub fn trace(&self) -> String {
        format!("{}\n{:?}\n{:?}", self.manager.state().dump(), self.log, self.manager.refusals())
    }

    // ---- chance

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn one_of<T: Clone>(&mut self, list: &[T]) -> Option<T> {
        if list.is_empty() {
            return None;
        }
        let at = self.below(list.len() as u64) as usize;
        Some(list[at].clone())
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn new_job_id(&mut self) -> JobId {
        let random = u128::from(self.rng.next_u64());
        JobId::v7(self.now.wall, random)
    }

    // ---- one step of the machine

    fn feed(&mut self, input: Input) {
        self.note_input(&input);
        self.manager.step(self.now, input, &mut self.effects);
        let from = self.log.len();
        self.log.append(&mut self.effects.events);
        for stamped in &self.log[from..] {
            self.witness.note(stamped);
            if let onward_core::event::Event::AttemptEnded { ending, .. } = &stamped.event {
                self.seen.insert(ending.code());
            }
            if matches!(stamped.event, onward_core::event::Event::JobTimedOut { .. }) {
                self.seen.insert("timed_out");
            }
        }
        self.witness.check_effects(&self.effects.list);
        let new = std::mem::take(&mut self.effects.list);
        for waiting in &new {
            assert!(waiting.after.0 as usize <= self.log.len(), "an effect waits for an event that is not there");
        }
        self.waiting.extend(new);
        check_bounds(&self.manager);
        self.leases.check(&self.manager, self.now.mono);
        if let Some((at, why)) = self.manager.next_wakeup() {
            assert!(at >= self.now.mono, "the next wake-up ({why:?}) is in the past");
        }
        for (kind, count) in self.manager.refusals().listed() {
            if count > 0 {
                self.seen.insert(kind.code());
            }
        }
        self.take_snapshot();
        self.release();
    }

    /// Now and then a snapshot is begun, and goes on by a few records between steps. Once it is whole, a machine made
    /// of it must be like this one.
    fn take_snapshot(&mut self) {
        if self.manager.state().seq().0 as usize != self.log.len() {
            // It is dying, and the log has lost what it decided last.
            return;
        }
        if self.snapshot.is_none() && self.below(200) == 0 {
            self.manager.begin_snapshot();
            self.begun_with = self.manager.state().dump();
            self.snapshot = Some(Vec::new());
        }
        let Some(mut records) = self.snapshot.take() else { return };
        let most = self.below(4) as usize;
        let part = self.manager.snapshot_next(most);
        records.extend(part.records);
        if !part.done {
            self.snapshot = Some(records);
            return;
        }
        self.seen.insert("snapshot");
        if snapshot_seq(&records) < self.log.len() {
            self.seen.insert("snapshot_beside_steps");
        }
        check_begin(&self.rules, &records, &self.begun_with, self.now);
        let seed = self.below(1 << 32);
        let copy = restored(&self.rules, &records, &self.log, seed, self.now);
        assert_eq!(copy.state().dump(), self.manager.state().dump(), "a restored machine differs from the live one");
        if self.below(8) == 0 {
            let mut twins = Twins::new(&self.rules, &records, &self.log, seed, self.now);
            twins.live_alike(&WORKERS, &QUEUES, &KINDS, 60);
        }
        self.whole = Some(records);
    }

    /// Lets go every effect whose event is durable.
    fn release(&mut self) {
        let durable = Seq(self.durable as u64);
        let (ready, still): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.after <= durable);
        self.waiting = still;
        for waiting in ready {
            self.arrive(waiting.effect);
        }
    }

    fn arrive(&mut self, effect: Effect) {
        match effect {
            Effect::Send { session, message } => self.message(session, message),
            Effect::CloseSession { session } => {
                for worker in &mut self.workers {
                    if worker.session == Some(session) {
                        worker.session = None;
                    }
                }
            }
            Effect::Reply { request, answer } => self.replied(request, answer),
            Effect::Archive { job } => self.to_archive.push(job),
            Effect::ConfirmSeat { question } => {
                if self.log_answers {
                    let term = Term::new(self.term);
                    self.pool.push(Input::SeatConfirmed { term, question });
                    self.pool.push(Input::QueueEmptied);
                }
            }
            effect @ Effect::FindDue { .. } => self.pool.extend(find_due(&effect)),
            Effect::Unreferenced { .. } | Effect::Report(_) | Effect::SendGate { .. } | Effect::FindArchived { .. } => {
            }
        }
    }

    fn replied(&mut self, request: RequestId, answer: Result<Answer, Refusal>) {
        assert!(self.open_requests.remove(&request).is_some(), "a call was answered twice, or never made");
        match answer {
            // The manager leaves it to whoever looks into the archive to count this.
            Err(refusal @ Refusal::NotInMemory { .. }) => {
                self.seen.insert(refusal.kind().code());
            }
            Ok(Answer::Submitted(accepted)) => self.acknowledged.extend(accepted.iter().map(|one| one.id)),
            Ok(Answer::Retried { job }) => {
                self.acknowledged.insert(job);
                self.jobs.push(job);
            }
            Ok(Answer::Leases(leases)) => {
                let delivered = self.chance(80);
                self.pool.push(Input::CallGone { request, delivered });
                for lease in leases {
                    self.claims.push(lease.claim);
                    if delivered {
                        self.http_holding.push(lease.claim);
                    }
                }
            }
            Ok(Answer::Extension(answer)) if answer.result.is_ok() => {
                self.seen.insert("granted");
            }
            _ => {}
        }
    }

    fn note_input(&mut self, input: &Input) {
        self.seen.insert(input_name(input));
        match input {
            Input::Call { call, .. } => self.seen.insert(call_name(call)),
            Input::Session { message, .. } => self.seen.insert(message_name(message)),
            _ => false,
        };
    }

    /// The log makes everything durable, and says so.
    fn sync(&mut self) {
        if self.log_answers && self.durable < self.log.len() {
            self.durable = self.log.len();
            self.feed(Input::Durable { seq: Seq(self.durable as u64) });
        }
    }

    pub fn act(&mut self) {
        match self.below(100) {
            0..=17 => self.client(),
            18..=33 => self.session_worker(),
            34..=51 => self.deliver(),
            52..=59 => self.http_worker(),
            60..=73 => self.sync(),
            74..=83 => self.pass_time(),
            84..=88 => self.zombie(),
            89..=90 => self.operator(),
            91..=92 => self.scheduler(),
            93..=94 => self.archive(),
            95..=96 => self.log_trouble(),
            97 => self.freeze(),
            98 => self.crash(),
            _ => self.worker_trouble(),
        }
    }

    fn deliver(&mut self) {
        if self.pool.is_empty() {
            return self.feed(Input::Wake);
        }
        let at = self.below(self.pool.len() as u64) as usize;
        let input = self.pool[at].clone();
        let soft = matches!(input, Input::Session { .. });
        if !(soft && self.chance(10)) {
            // Otherwise it stays in the pool and arrives twice.
            self.pool.swap_remove(at);
        }
        if !(soft && self.chance(5)) {
            self.feed(input);
        }
    }
}
