//! The hostile world around one manager.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onward_core::effect::{Answer, Effect, Effects, Waiting};
use onward_core::event::Stamped;
use onward_core::fence::{AttemptFence, GateEpoch, Term};
use onward_core::health::overload::OverloadLevel;
use onward_core::ids::{Bytes, Claim, ClientId, Incarnation, JobId, Name, RequestId, Seq, SessionId, WorkerId};
use onward_core::input::{Call, Filter, Input, Poll, ReplayFrom, Submission};
use onward_core::job::{Draft, LimitDraft, OnStuck, Retry, WorkflowDraft};
use onward_core::manager::{Manager, SnapshotRecord};
use onward_core::message::{Beat, ExtensionRequest, FromWorker, Hello, Report, Settlement, Subscription, ToWorker};
use onward_core::payload::{Digest, Payload};
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::settings::{Rules, Settings};
use onward_core::time::{Mono, Now, Wall};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::checks::{Leases, Witness, check_bounds};
use super::twins::{Twins, check_begin, ids_in_order, restored};

/// Every input, call and message must occur.
pub const EXPECTED: &[&str] = &[
    "Wake",
    "SeatTaken",
    "SeatConfirmed",
    "SeatLost",
    "Drained",
    "Durable",
    "Load",
    "Call",
    "CallGone",
    "Session",
    "SessionClosed",
    "Archived",
    "Submit",
    "Cancel",
    "CancelWhere",
    "Retry",
    "Extend",
    "Poll",
    "Beat",
    "Settle",
    "RequestExtension",
    "PauseQueue",
    "ResumeQueue",
    "DrainWorker",
    "UndrainWorker",
    "ReplayDeadLetter",
    "DropDeadLetter",
    "Hello",
    "Capacity",
    "Beats",
    "SessionSettle",
    "ProbeAnswer",
    "SessionExtension",
    "Ended",
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

pub fn refusals() -> Vec<&'static str> {
    RefusalKind::ALL.iter().filter(|kind| **kind != RefusalKind::TooSoon).map(|kind| kind.code()).collect()
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
    log: Vec<Stamped>,
    durable: usize,
    /// Effects that wait for their event.
    waiting: Vec<Waiting>,
    effects: Effects,
    /// Inputs on their way to the manager.
    pool: Vec<Input>,
    workers: Vec<SimWorker>,
    http_holding: Vec<Claim>,
    claims: Vec<Claim>,
    jobs: Vec<JobId>,
    acknowledged: BTreeSet<JobId>,
    to_archive: Vec<JobId>,
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

    /// Everything that could differ between two runs of one seed.
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
        self.saw(&input);
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
                    self.pool.push(Input::Drained);
                }
            }
            Effect::Unreferenced { .. } | Effect::Report(_) => {}
        }
    }

    fn replied(&mut self, request: RequestId, answer: Result<Answer, Refusal>) {
        assert!(self.open_requests.remove(&request).is_some(), "a call was answered twice, or never made");
        match answer {
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

    /// A message arrives at a worker, or is lost.
    fn message(&mut self, session: SessionId, message: ToWorker) {
        let lost = self.chance(5);
        let Some(at) = self.workers.iter().position(|worker| worker.session == Some(session)) else { return };
        match message {
            ToWorker::Assign(assignment) => {
                self.claims.push(assignment.claim);
                if !lost {
                    self.workers[at].holding.push(assignment.claim);
                }
            }
            ToWorker::Probe { probe } if !lost => {
                self.pool.push(Input::Session { session, message: FromWorker::ProbeAnswer { probe } });
            }
            ToWorker::Cancel { claim, .. } if !lost => {
                self.workers[at].holding.retain(|held| *held != claim);
                self.pool.push(Input::Session { session, message: FromWorker::Ended(vec![claim]) });
            }
            ToWorker::ExtensionAnswer(answer) if answer.result.is_ok() => {
                self.seen.insert("granted");
            }
            ToWorker::Rejected(_) => {
                // Only a new life helps.
                self.workers[at].incarnation += 10;
                self.workers[at].session = None;
                self.workers[at].holding.clear();
            }
            _ => {}
        }
    }

    /// The log makes everything durable, and says so.
    fn sync(&mut self) {
        if self.log_answers && self.durable < self.log.len() {
            self.durable = self.log.len();
            self.feed(Input::Durable { seq: Seq(self.durable as u64) });
        }
    }

    // ---- what can happen

    pub fn act(&mut self) {
        match self.below(100) {
            0..=17 => self.client(),
            18..=33 => self.session_worker(),
            34..=51 => self.deliver(),
            52..=59 => self.http_worker(),
            60..=73 => self.sync(),
            74..=83 => self.pass_time(),
            84..=88 => self.zombie(),
            89..=92 => self.operator(),
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

    fn call(&mut self, what: &'static str, call: Call) {
        self.seen.insert(what);
        let request = RequestId(self.fresh());
        self.open_requests.insert(request, what);
        self.feed(Input::Call { request, call });
    }

    fn client(&mut self) {
        let job = self.one_of(&self.jobs.clone()).unwrap_or(JobId::from_u128(1));
        match self.below(13) {
            0..=5 => {
                let count = if self.chance(20) { 3 } else { 1 };
                let submissions = (0..count)
                    .map(|_| {
                        let id = self.new_job_id();
                        self.jobs.push(id);
                        Submission { id, draft: self.draft() }
                    })
                    .collect();
                self.call("Submit", Call::Submit(submissions));
            }
            6..=8 => {
                let from = self.jobs.len().saturating_sub(4);
                let recent = self.jobs[from..].to_vec();
                let job = self.one_of(&recent).unwrap_or(job);
                let n = self.below(4);
                let epoch = self.chance(60).then_some(GateEpoch { n, gate: 1 });
                self.call("Cancel", Call::Cancel { job, epoch });
            }
            9 => {
                let (new_id, request) = (self.new_job_id(), name(["r1", "r2"][self.below(2) as usize]));
                self.call("Retry", Call::Retry { job, new_id, request });
            }
            10 => {
                let (by, request) =
                    (Duration::from_secs(self.below(3) * 60), name(["e1", "e2"][self.below(2) as usize]));
                self.call("Extend", Call::Extend { job, by, reason: "slow disk".into(), request });
            }
            11 => {
                let (new_id, dead) = (self.new_job_id(), self.dead_letter().unwrap_or(job));
                let from = if self.chance(70) { ReplayFrom::Failed } else { ReplayFrom::Start };
                let request = name("r3");
                self.call("ReplayDeadLetter", Call::ReplayDeadLetter { job: dead, new_id, request, from });
            }
            _ => {
                let dead = self.dead_letter().unwrap_or(job);
                self.call("DropDeadLetter", Call::DropDeadLetter { job: dead });
            }
        }
    }

    fn dead_letter(&mut self) -> Option<JobId> {
        let state = self.manager.state();
        state.dead_letters().next().map(|key| state.job(key).id)
    }

    fn draft(&mut self) -> Draft {
        let kind = KINDS[self.below(3) as usize];
        let size = if self.chance(3) { 65 } else { 8 };
        let mut draft = Draft::of_kind(kind, self.content(size));
        draft.queue = self.chance(30).then(|| QUEUES[1].into());
        draft.priority = if self.chance(4) { 101 } else { self.below(3) as i32 };
        draft.retry = Some(Retry {
            max_attempts: 1 + self.below(3) as u32,
            base: Duration::from_secs(1),
            max: Duration::from_secs(60),
        });
        draft.timeout = self.chance(30).then(|| Duration::from_secs(600));
        draft.max_extension = self.chance(30).then(|| Duration::from_secs(40));
        draft.require_progress = self.chance(10);
        if self.chance(10) {
            draft.on_stuck = OnStuck::TimeOut;
        }
        match self.below(10) {
            0 => draft.delay = Some(Duration::from_secs(self.below(100))),
            1 => draft.run_at = Some(self.now.wall + Duration::from_secs(self.below(100))),
            _ => {}
        }
        if self.chance(40) {
            // One bound per key, so that the check knows it.
            let key = self.below(3);
            let limit = LimitDraft::new(&format!("key{key}"), 1 + key as u32);
            draft.limits.push(LimitDraft { ordered: key == 0 && self.chance(50), ..limit });
            if self.chance(30) {
                let other = (key + 1) % 3;
                let limit = LimitDraft::new(&format!("key{other}"), 1 + other as u32);
                draft.limits.push(LimitDraft { ordered: other == 0 && self.chance(50), ..limit });
            }
        }
        draft.unique_key = self.chance(10).then(|| "only".into());
        draft.idempotency_key = self.chance(15).then(|| format!("idem{}", self.below(3)).into());
        if self.chance(20) {
            let step = |name: &str, after: &[&str]| WorkflowDraft {
                name: Some(name.into()),
                kind: kind.into(),
                after: after.iter().map(|before| (*before).into()).collect(),
                ..WorkflowDraft::default()
            };
            draft.workflows = vec![step("x", &[]), step("y", &["x"]), step("z", &["x", "y"])];
        }
        draft
    }

    /// Some of it lies in the store, and some of that is the same.
    fn content(&mut self, size: usize) -> Payload {
        match self.below(4) {
            0 => Payload::stored(Digest::of(&[self.below(5) as u8]), size as u32),
            _ => vec![0; size].into(),
        }
    }

    fn session_worker(&mut self) {
        let at = self.below(4) as usize;
        let Some(session) = self.workers[at].session else { return self.connect(at) };
        let holding = self.workers[at].holding.clone();
        let claim = self.one_of(&holding);
        let message = match (self.below(10), claim) {
            (0, _) => {
                self.seen.insert("Capacity");
                FromWorker::Capacity { slots: self.below(4) as u32, accepting: self.chance(85) }
            }
            (1..=4, Some(claim)) => {
                self.seen.insert("Beats");
                let count = if self.chance(25) { 2 } else { 1 };
                FromWorker::Beats((0..count).map(|_| self.beat(claim)).collect())
            }
            (5..=7, Some(claim)) => {
                self.seen.insert("SessionSettle");
                self.workers[at].holding.retain(|held| *held != claim);
                FromWorker::Settle(vec![self.settlement(claim)])
            }
            (8, claim) => {
                self.seen.insert("SessionExtension");
                FromWorker::RequestExtension(self.extension(claim))
            }
            _ => FromWorker::ProbeAnswer { probe: self.below(3) as u32 },
        };
        let input = Input::Session { session, message };
        match self.chance(50) {
            true => self.feed(input),
            false => self.pool.push(input),
        }
    }

    fn connect(&mut self, at: usize) {
        let session = SessionId(self.fresh());
        let worker = &self.workers[at];
        let hello = Hello {
            worker: WorkerId::new(WORKERS[at]).expect("valid"),
            incarnation: Incarnation::new(format!("{}", worker.incarnation)).expect("valid"),
            subscription: self.subscription(at),
            slots: worker.slots,
            holding: worker.holding.clone(),
            client: ClientId::default(),
        };
        self.workers[at].session = Some(session);
        self.feed(Input::Session { session, message: FromWorker::Hello(hello) });
    }

    fn subscription(&self, at: usize) -> Subscription {
        let kinds = if at == 0 { &KINDS[..] } else { &KINDS[..at.min(3)] };
        Subscription {
            queues: QUEUES.iter().map(|queue| name(queue)).collect(),
            kinds: kinds.iter().map(|kind| name(kind)).collect(),
        }
    }

    fn beat(&mut self, claim: Claim) -> Beat {
        let mut beat = Beat::plain(claim);
        beat.watermark = self.chance(50).then(|| self.below(20));
        beat.quiet = self.chance(35).then(|| Duration::from_secs([10, 60][self.below(2) as usize]));
        let size = if self.chance(5) { 65 } else { 4 };
        beat.checkpoint = self.chance(25).then(|| Bytes::from(vec![1; size]));
        beat
    }

    fn settlement(&mut self, claim: Claim) -> Settlement {
        let report = match self.below(10) {
            0..=5 => Report::Succeed { result: self.content(1) },
            6..=7 => Report::Fail { error: "no".into(), retryable: self.chance(60), delay: None },
            8 => Report::Fail { error: "later".into(), retryable: true, delay: Some(Duration::from_secs(5)) },
            _ => Report::Release { delay: self.chance(50).then_some(Duration::from_secs(2)) },
        };
        let checkpoint = self.chance(20).then(|| Bytes::from(vec![2; 4]));
        Settlement { claim, report, checkpoint }
    }

    fn extension(&mut self, claim: Option<Claim>) -> ExtensionRequest {
        let progress = match self.below(20) {
            0 => f64::NAN,
            n => n as f64 / 19.0,
        };
        ExtensionRequest {
            claims: if self.chance(70) { claim.into_iter().collect() } else { Vec::new() },
            reason: if self.chance(95) { "gc_pause" } else { "because" }.into(),
            progress,
            estimated_remaining: None,
        }
    }

    fn http_worker(&mut self) {
        let holding = self.http_holding.clone();
        match (self.below(6), self.one_of(&holding)) {
            (0..=2, _) | (_, None) => {
                let number = self.below(2);
                let poll = Poll {
                    worker: WorkerId::new(format!("h{number}")).expect("valid"),
                    incarnation: Incarnation::new(if self.chance(90) { "1" } else { "2" }).expect("valid"),
                    subscription: self.subscription(0),
                    max: self.below(3) as u32,
                    wait: Duration::from_secs(self.below(2) * 20),
                    lease: Duration::from_secs(20 + self.below(20)),
                    id: self.chance(40).then(|| name("poll")),
                    client: ClientId::default(),
                };
                self.call("Poll", Call::Poll(poll));
            }
            (3, Some(claim)) => {
                let beat = self.beat(claim);
                self.call("Beat", Call::Beat(vec![beat]));
            }
            (4, Some(claim)) => {
                let settlement = self.settlement(claim);
                if self.chance(80) {
                    self.http_holding.retain(|held| *held != claim);
                }
                self.call("Settle", Call::Settle(vec![settlement]));
            }
            (_, Some(claim)) => {
                let asked = ExtensionRequest { claims: vec![claim], ..self.extension(None) };
                self.call("RequestExtension", Call::RequestExtension(asked));
            }
        }
    }

    /// Somebody speaks under a claim from long ago, or one that never was.
    fn zombie(&mut self) {
        let Some(mut claim) = self.one_of(&self.claims.clone()) else { return };
        match self.below(12) {
            0 => claim.fence = AttemptFence::from_raw(claim.fence.get() + 1_000),
            1 => claim.workflow += 7,
            2 => claim.job = JobId::from_u128(claim.job.as_u128() ^ 1),
            _ => {}
        }
        match self.below(3) {
            0 => {
                let beat = self.beat(claim);
                self.call("Beat", Call::Beat(vec![beat]));
            }
            1 => {
                let settlement = self.settlement(claim);
                self.call("Settle", Call::Settle(vec![settlement]));
            }
            _ => {
                let asked = ExtensionRequest { claims: vec![claim], ..self.extension(None) };
                self.call("RequestExtension", Call::RequestExtension(asked));
            }
        }
    }

    fn operator(&mut self) {
        let worker = WorkerId::new(WORKERS[self.below(4) as usize]).expect("valid");
        let queue = name(QUEUES[self.below(2) as usize]);
        match self.below(6) {
            0 => self.call("PauseQueue", Call::PauseQueue(queue)),
            1 => self.call("ResumeQueue", Call::ResumeQueue(queue)),
            2 => self.call("DrainWorker", Call::DrainWorker(worker)),
            3 => self.call("UndrainWorker", Call::UndrainWorker(worker)),
            4 => {
                let filter = Filter { kind: Some(name(KINDS[self.below(3) as usize])), ..Filter::default() };
                let jobs = ids_in_order(&self.manager);
                self.call("CancelWhere", Call::CancelWhere { filter, jobs });
            }
            _ => {
                let level = [OverloadLevel::Normal, OverloadLevel::Stressed][self.below(2) as usize];
                self.feed(Input::Load(level));
            }
        }
    }

    fn archive(&mut self) {
        let jobs = std::mem::take(&mut self.to_archive);
        self.feed(Input::Archived { jobs });
    }

    fn log_trouble(&mut self) {
        self.log_answers = !self.log_answers;
        if self.log_answers {
            self.sync();
        }
    }

    /// Time passes, and the machine is woken when it asks for it.
    fn pass_time(&mut self) {
        let span = match self.below(10) {
            0..=4 => self.below(2_000),
            5..=7 => self.below(40_000),
            8 => self.below(200_000),
            _ => self.below(90_000_000),
        };
        self.wake_until(self.now.mono + Duration::from_millis(span), span < 300_000);
    }

    fn wake_until(&mut self, end: Mono, answering: bool) {
        let mut wakes = 0;
        while let Some((at, _)) = self.manager.next_wakeup() {
            if at > end || wakes > 3_000 {
                break;
            }
            wakes += 1;
            self.jump(at.since(self.now.mono));
            self.feed(Input::Wake);
            self.confirm_now();
            self.sync();
            if answering && self.chance(70) {
                self.answer_probes();
            }
        }
        if wakes <= 3_000 {
            self.jump(end.since(self.now.mono));
        }
    }

    /// What the shell does without delay: confirmations do not queue behind workers.
    fn confirm_now(&mut self) {
        let (urgent, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pool)
            .into_iter()
            .partition(|input| matches!(input, Input::SeatConfirmed { .. } | Input::Drained));
        self.pool = rest;
        for input in urgent {
            if self.log_answers {
                self.feed(input);
            }
        }
    }

    fn answer_probes(&mut self) {
        let (answers, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pool)
            .into_iter()
            .partition(|input| matches!(input, Input::Session { message: FromWorker::ProbeAnswer { .. }, .. }));
        self.pool = rest;
        for answer in answers {
            self.feed(answer);
        }
    }

    fn jump(&mut self, span: Duration) {
        self.now = Now { mono: self.now.mono + span, wall: self.now.wall + span };
    }

    fn freeze(&mut self) {
        self.seen.insert("gap");
        let span = Duration::from_millis(1_500 + self.below(400_000));
        self.jump(span);
        // The clocks of leases stand still meanwhile; their ends move.
        self.leases.forget();
        if self.chance(30) {
            let wall = self.below(100_000);
            self.now.wall = Wall::from_ms(self.now.wall.as_ms() - 50_000 + wall);
        }
        self.feed(Input::Wake);
        self.confirm_now();
    }

    fn worker_trouble(&mut self) {
        let at = self.below(4) as usize;
        let Some(session) = self.workers[at].session.take() else { return };
        if self.chance(40) {
            // It restarts, and knows nothing any more.
            self.workers[at].incarnation += 1;
            self.workers[at].holding.clear();
        } else if self.chance(20) {
            self.workers[at].incarnation = self.workers[at].incarnation.saturating_sub(1).max(1);
        }
        self.pool.push(Input::SessionClosed { session });
    }

    /// The process dies. Of what was not durable, some may be in the log all the same.
    fn crash(&mut self) {
        self.seen.insert("crash");
        let undurable = (self.log.len() - self.durable) as u64;
        let kept = self.durable + if undurable > 0 { self.below(undurable + 1) as usize } else { 0 };
        if kept == self.log.len() {
            self.check_replay();
        }
        self.log.truncate(kept);
        self.durable = kept;
        self.waiting.clear();
        self.pool.clear();
        self.to_archive.clear();
        for worker in &mut self.workers {
            worker.session = None;
        }
        if self.chance(50) {
            self.feed(Input::SeatLost);
            assert_eq!(self.manager.next_wakeup(), None);
            assert_eq!(self.manager.kept_inputs(), 0, "nothing waits for a seat that is lost");
            self.waiting.clear();
        }
        self.open_requests.clear();
        self.log.truncate(kept);
        self.witness = Witness::read(&self.log);
        self.leases.forget();
        self.log_answers = true;
        self.term += 1 + self.below(2);
        let downtime = Duration::from_millis(self.below(200_000));
        self.jump(downtime);
        let random = self.below(1_000_000);
        self.now.mono = Mono::from_ms(random);
        self.manager = Manager::new(self.rules.clone(), random, self.now);
        // What was begun is lost; what was taken of events that are lost is of no use.
        self.snapshot = None;
        self.whole = self.whole.take().filter(|records| snapshot_seq(records) <= kept);
        match &self.whole {
            Some(records) => {
                self.seen.insert("restored");
                self.manager = restored(&self.rules, records, &self.log, random, self.now);
            }
            None => self.log.iter().for_each(|stamped| self.manager.apply(stamped)),
        }
        self.feed(Input::SeatTaken { term: Term::new(self.term) });
        self.sync();
        self.witness.check_acknowledged(&self.acknowledged, &self.manager);
    }

    fn check_replay(&self) {
        let mut replayed = Manager::new(self.rules.clone(), 99, self.now);
        for stamped in &self.log {
            replayed.apply(stamped);
        }
        assert_eq!(replayed.state().dump(), self.manager.state().dump(), "replay differs from the live state");
    }

    // ---- the end

    /// The world heals: the log answers, workers are well and finish what they get. Then everything must end.
    pub fn heal_and_finish(&mut self) {
        self.check_replay();
        self.witness.check_acknowledged(&self.acknowledged, &self.manager);
        self.log_answers = true;
        self.sync();
        self.wake_until(self.now.mono + Duration::from_secs(5), true);
        self.feed(Input::Load(OverloadLevel::Normal));
        for queue in QUEUES {
            self.call("ResumeQueue", Call::ResumeQueue(name(queue)));
        }
        for (at, id) in WORKERS.iter().enumerate() {
            let worker = WorkerId::new(*id).expect("valid");
            self.call("UndrainWorker", Call::UndrainWorker(worker));
            self.workers[at].incarnation += 100;
            self.workers[at].slots = 3;
            self.workers[at].holding.clear();
            self.connect(at);
        }
        self.pool.clear();
        self.sync();
        for _ in 0..400 {
            if self.manager.state().open_jobs() == 0 {
                break;
            }
            self.work_through();
            let end = self.now.mono + Duration::from_secs(20);
            self.wake_until(end, true);
            self.answer_probes();
        }
        self.archive();
        self.sync();
        let open: Vec<_> = self
            .manager
            .state()
            .jobs()
            .filter(|(_, job)| !job.has_ended())
            .map(|(_, job)| self.manager.job(job.id))
            .collect();
        assert!(open.is_empty(), "these did not end in a healed world: {open:#?}");
        self.witness.check_acknowledged(&self.acknowledged, &self.manager);
        assert_eq!(self.manager.state().open_jobs(), 0);
        self.check_replay();
    }

    /// Every worker beats for and finishes what it holds.
    fn work_through(&mut self) {
        for at in 0..self.workers.len() {
            let Some(session) = self.workers[at].session else {
                self.connect(at);
                continue;
            };
            for claim in std::mem::take(&mut self.workers[at].holding) {
                let report = Report::Succeed { result: (*b"1").into() };
                let message = FromWorker::Settle(vec![Settlement::new(claim, report)]);
                self.feed(Input::Session { session, message });
                self.sync();
            }
        }
    }

    fn saw(&mut self, input: &Input) {
        let what = match input {
            Input::Wake => "Wake",
            Input::SeatTaken { .. } => "SeatTaken",
            Input::SeatConfirmed { .. } => "SeatConfirmed",
            Input::SeatLost => "SeatLost",
            Input::Drained => "Drained",
            Input::Durable { .. } => "Durable",
            Input::Load(_) => "Load",
            Input::Call { .. } => "Call",
            Input::CallGone { .. } => "CallGone",
            Input::Session { message, .. } => {
                match message {
                    FromWorker::Hello(_) => self.seen.insert("Hello"),
                    FromWorker::ProbeAnswer { .. } => self.seen.insert("ProbeAnswer"),
                    FromWorker::Ended(_) => self.seen.insert("Ended"),
                    _ => false,
                };
                "Session"
            }
            Input::SessionClosed { .. } => "SessionClosed",
            Input::Undeliverable { .. } => "Undeliverable",
            Input::Archived { .. } => "Archived",
        };
        self.seen.insert(what);
    }
}
