//! A day in the life of a manager, under injected time: jobs of every sort, workers of every temper, operators, an
//! archive. Every quarter of an hour a snapshot is taken beside the work, and a machine made of it must be the same.
//!
//! It lasts 25 hours, so that idempotency keys expire. `ONWARD_SOAK_CASES` sets the number of days.

mod rig;
mod twins;

use std::collections::{BTreeMap, BTreeSet};

use onward_core::effect::Answer;
use onward_core::event::{Event, Then, Via};
use onward_core::ids::{Claim, ClientId, JobId, RequestId, SessionId};
use onward_core::input::{Call, Filter, Input, ReplayFrom};
use onward_core::job::{Draft, JobState, LimitDraft, OnStuck, Retry, Start, WorkflowDraft};
use onward_core::manager::SnapshotRecord;
use onward_core::message::{Assignment, Beat, ExtensionRequest, FromWorker, Hello, Report, Settlement, ToWorker};
use onward_core::payload::{Digest, Payload};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rig::{Rig, name, secs, subscription, worker_id};
use twins::{Twins, check_begin, restored};

const TICK_S: u64 = 5;
const TICKS: u64 = 25 * 3600 / TICK_S;
const SNAPSHOT_EVERY: u64 = 900 / TICK_S;
const KINDS: [&str; 4] = ["mail", "resize", "report", "rare"];
const QUEUES: [&str; 2] = ["default", "bulk"];
const WORKERS: [&str; 5] = ["w0", "w1", "w2", "w3", "w4"];

/// What a handler will do with one attempt.
#[derive(Clone, Copy, PartialEq)]
enum Temper {
    Works,
    Fails,
    FailsForGood,
    GivesBack,
    /// Beats, and gets nowhere.
    Stuck,
    Silent,
    Quiet,
    AsksForTime,
}

struct Handler {
    claim: Claim,
    temper: Temper,
    ticks: u64,
    left: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Well,
    /// Answers nothing until this tick.
    Mute(u64),
    /// Comes back at this tick: as another incarnation, or as the same.
    Away(u64, bool),
    /// Takes nothing more, and leaves when it holds nothing.
    Leaving,
}

struct Worker {
    id: &'static str,
    incarnation: u64,
    session: SessionId,
    handlers: Vec<Handler>,
    mood: Mood,
}

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

    // ---- snapshots

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

    // ---- clients

    fn client(&mut self) {
        for _ in 0..self.below(3) {
            let draft = self.draft();
            if let Ok(id) = self.rig.try_submit(draft) {
                self.recent.push(id);
                if self.recent.len() > 40 {
                    self.recent.remove(0);
                }
            }
        }
        if self.recent.is_empty() {
            return;
        }
        let at = self.below(self.recent.len() as u64) as usize;
        let job = self.recent[at];
        match self.below(240) {
            0..=3 => {
                let running = self.workers.iter().find_map(|worker| worker.handlers.first());
                let job = running.filter(|_| at.is_multiple_of(2)).map_or(job, |handler| handler.claim.job);
                drop(self.rig.call(Call::Cancel { job, epoch: None }));
            }
            4..=6 => {
                let (new_id, request) = (self.rig.new_id(), name(&format!("r{}", self.below(3))));
                drop(self.rig.call(Call::Retry { job, new_id, request }));
            }
            7..=9 => {
                let (by, request) = (secs(30), name(&format!("e{}", self.tick)));
                drop(self.rig.call(Call::Extend { job, by, reason: "slow disk".into(), request }));
            }
            _ => {}
        }
    }

    fn payload(&mut self) -> Payload {
        let n = self.below(50);
        match self.below(4) {
            0 => Payload::stored(Digest::of(&n.to_be_bytes()), 5_000 + n as u32),
            _ => n.to_be_bytes().into(),
        }
    }

    fn draft(&mut self) -> Draft {
        let kind = KINDS[[0, 0, 1, 1, 2, 3][self.below(6) as usize]];
        let payload = self.payload();
        let mut draft = Draft::of_kind(kind, payload);
        draft.queue = self.one_in(4).then(|| "bulk".into());
        draft.priority = [0, 0, 10, -5][self.below(4) as usize];
        let max_attempts = 1 + self.below(3) as u32;
        draft.retry = Some(Retry { max_attempts, base: secs(10), max: secs(120) });
        draft.require_progress = self.one_in(8);
        if self.one_in(3) {
            draft.on_stuck = OnStuck::TimeOut;
        }
        if self.one_in(5) {
            draft.stuck_after = Some(secs(3600));
        }
        if self.one_in(12) {
            draft.timeout = Some(secs(60));
        }
        match self.below(10) {
            0 => draft.delay = Some(secs(1 + self.below(600))),
            1 => draft.run_at = Some(self.rig.now.wall + secs(60 * (1 + self.below(10)))),
            _ => {}
        }
        if self.one_in(3) {
            let tenant = self.below(3);
            let limit = LimitDraft::new(&format!("tenant-{tenant}"), 1 + tenant as u32);
            draft.limits.push(LimitDraft { ordered: tenant == 0 && self.one_in(2), ..limit });
            if self.one_in(3) {
                draft.limits.push(LimitDraft::new("region", 4));
            }
        }
        draft.unique_key = self.one_in(12).then(|| format!("unique-{}", self.tick % 4).into());
        draft.idempotency_key = self.one_in(6).then(|| format!("order-{}", self.tick % 3_000).into());
        draft.tags = vec!["daily".into()];
        if self.one_in(8) {
            let payload = self.payload();
            let step = |name: &str, after: &[&str]| WorkflowDraft {
                name: Some(name.into()),
                kind: kind.into(),
                payload: payload.clone(),
                after: after.iter().map(|before| (*before).into()).collect(),
                ..WorkflowDraft::default()
            };
            draft.workflows = vec![step("a", &[]), step("b", &["a"]), step("c", &["a"]), step("d", &["b", "c"])];
        }
        draft
    }

    // ---- operators

    fn operator(&mut self) {
        let now = self.tick;
        let over: Vec<&'static str> =
            self.paused.iter().filter(|(_, end)| **end <= now).map(|(queue, _)| *queue).collect();
        for queue in over {
            self.paused.remove(queue);
            self.rig.call(Call::ResumeQueue(name(queue))).unwrap();
        }
        if let Some((worker, _)) = self.drained.filter(|(_, end)| *end <= now) {
            self.drained = None;
            drop(self.rig.call(Call::UndrainWorker(worker_id(worker))));
        }
        let dead = self.rig.manager.state().dead_letters().next();
        let dead = dead.map(|key| self.rig.manager.state().job(key).id);
        match (self.below(700), dead) {
            (0, _) => {
                let queue = QUEUES[self.below(2) as usize];
                let end = now + 1 + self.below(24);
                self.paused.insert(queue, end);
                self.rig.call(Call::PauseQueue(name(queue))).unwrap();
            }
            (1, _) if self.drained.is_none() => {
                let worker = WORKERS[self.below(5) as usize];
                if self.rig.call(Call::DrainWorker(worker_id(worker))).is_ok() {
                    self.drained = Some((worker, now + 30));
                }
            }
            (2, _) => {
                let filter = Filter { kind: Some(name("rare")), state: Some(JobState::Ready), ..Filter::default() };
                self.rig.cancel_where(filter);
            }
            (3..=9, Some(job)) => {
                let new_id = self.rig.new_id();
                drop(self.rig.call(Call::ReplayDeadLetter {
                    job,
                    new_id,
                    request: name("replay"),
                    from: ReplayFrom::Failed,
                }));
            }
            (10..=13, Some(job)) => drop(self.rig.call(Call::DropDeadLetter { job })),
            _ => {}
        }
    }

    // ---- workers

    fn temper(&mut self) -> Temper {
        match self.below(100) {
            0..=7 => Temper::Fails,
            8..=11 => Temper::FailsForGood,
            12..=15 => Temper::GivesBack,
            16..=18 => Temper::Stuck,
            19..=20 => Temper::Silent,
            21..=24 => Temper::Quiet,
            25..=29 => Temper::AsksForTime,
            _ => Temper::Works,
        }
    }

    fn handler(&mut self, assignment: &Assignment) -> Handler {
        if !assignment.inputs.is_empty() {
            self.saw("inputs");
        }
        if assignment.checkpoint.is_some() {
            self.saw("checkpoint handed on");
        }
        Handler { claim: assignment.claim, temper: self.temper(), ticks: 0, left: 1 + self.below(8) }
    }

    fn read_messages(&mut self) {
        for (session, message) in std::mem::take(&mut self.rig.sent) {
            let Some(at) = self.workers.iter().position(|worker| worker.session == session) else { continue };
            match message {
                ToWorker::Assign(assignment) => {
                    let handler = self.handler(&assignment);
                    self.workers[at].handlers.push(handler);
                }
                ToWorker::Cancel { claim, .. } => {
                    self.workers[at].handlers.retain(|handler| handler.claim != claim);
                    if self.workers[at].mood == Mood::Well && !self.one_in(5) {
                        self.rig.tell(session, FromWorker::Ended(vec![claim]));
                    }
                }
                ToWorker::Rejected(_) => {
                    self.workers[at].handlers.clear();
                    self.workers[at].mood = Mood::Away(self.tick + 2, true);
                }
                ToWorker::BeatAnswers(answers) => {
                    let lost: BTreeSet<Claim> =
                        answers.iter().filter(|answer| answer.answer.is_err()).map(|answer| answer.claim).collect();
                    self.workers[at].handlers.retain(|handler| !lost.contains(&handler.claim));
                }
                _ => {}
            }
        }
    }

    fn worker(&mut self, at: usize) {
        let (session, mood) = (self.workers[at].session, self.workers[at].mood);
        match mood {
            Mood::Away(until, reborn) if until <= self.tick => self.come_back(at, reborn),
            Mood::Mute(until) if until <= self.tick => {
                self.rig.close(session);
                self.workers[at].mood = Mood::Away(self.tick + 1, false);
            }
            Mood::Leaving if self.workers[at].handlers.is_empty() => {
                self.rig.close(session);
                self.workers[at].mood = Mood::Away(self.tick + 60, true);
                self.saw("left");
            }
            Mood::Well | Mood::Leaving => {
                self.work(at);
                if mood == Mood::Well {
                    self.trouble(at);
                }
            }
            Mood::Away(..) | Mood::Mute(_) => {}
        }
    }

    fn come_back(&mut self, at: usize, reborn: bool) {
        self.sessions += 1;
        let session = SessionId(1_000 + self.sessions);
        let worker = &mut self.workers[at];
        if reborn {
            worker.incarnation += 1;
            worker.handlers.clear();
        }
        (worker.session, worker.mood) = (session, Mood::Well);
        let kinds = if at.is_multiple_of(2) { &KINDS[..] } else { &KINDS[..2] };
        let hello = Hello {
            worker: worker_id(worker.id),
            incarnation: onward_core::ids::Incarnation::new(format!("{}", worker.incarnation)).unwrap(),
            subscription: subscription(&QUEUES, kinds),
            slots: 3,
            holding: worker.handlers.iter().map(|handler| handler.claim).collect(),
            client: ClientId::default(),
        };
        self.rig.answering.insert(session);
        self.rig.tell(session, FromWorker::Hello(hello));
    }

    fn trouble(&mut self, at: usize) {
        let session = self.workers[at].session;
        match self.below(4_000) {
            0 => {
                self.rig.silence(session);
                self.workers[at].mood = Mood::Mute(self.tick + 24);
            }
            1 => {
                self.rig.close(session);
                self.workers[at].mood = Mood::Away(self.tick + 1, true);
            }
            2 | 3 => {
                self.rig.close(session);
                self.workers[at].mood = Mood::Away(self.tick + 1, false);
            }
            4 => {
                self.rig.tell(session, FromWorker::Capacity { slots: 3, accepting: false });
                self.workers[at].mood = Mood::Leaving;
            }
            _ => {}
        }
    }

    fn work(&mut self, at: usize) {
        let session = self.workers[at].session;
        let mut handlers = std::mem::take(&mut self.workers[at].handlers);
        let (mut beats, mut settled, mut asks) = (Vec::new(), Vec::new(), Vec::new());
        handlers.retain_mut(|handler| match self.go_on(handler) {
            Turn::Beat(beat) => {
                beats.push(beat);
                true
            }
            Turn::Ask => {
                asks.push(handler.claim);
                true
            }
            Turn::Nothing => true,
            Turn::End(report) => {
                settled.push(Settlement::new(handler.claim, report));
                false
            }
        });
        self.workers[at].handlers = handlers;
        if !beats.is_empty() {
            self.rig.tell(session, FromWorker::Beats(beats));
        }
        for claim in asks {
            let progress = (self.tick % 1_000) as f64 / 1_000.0;
            let asked = ExtensionRequest {
                claims: vec![claim],
                reason: "long_workflow".into(),
                progress,
                estimated_remaining: None,
            };
            self.rig.tell(session, FromWorker::RequestExtension(asked));
        }
        if !settled.is_empty() {
            self.rig.tell(session, FromWorker::Settle(settled));
        }
    }

    fn go_on(&mut self, handler: &mut Handler) -> Turn {
        handler.ticks += 1;
        let (claim, ticks, over) = (handler.claim, handler.ticks, handler.ticks >= handler.left);
        let step = Turn::Beat(Beat {
            checkpoint: self.one_in(10).then(|| (*b"so far").into()),
            ..Beat::progress(claim, ticks)
        });
        match handler.temper {
            Temper::Silent => Turn::Nothing,
            Temper::Stuck if ticks == 1 => step,
            Temper::Stuck => Turn::Beat(Beat::plain(claim)),
            Temper::Quiet if ticks == 1 => Turn::Beat(Beat { quiet: Some(secs(180)), ..Beat::plain(claim) }),
            // Half of them speak up before it is over.
            Temper::Quiet if ticks < 30 + 10 * (handler.left % 2) => Turn::Nothing,
            Temper::AsksForTime if ticks < 4 => Turn::Ask,
            Temper::Fails if over => Turn::End(Report::Fail { error: "no".into(), retryable: true, delay: None }),
            Temper::FailsForGood if over => {
                Turn::End(Report::Fail { error: "never".into(), retryable: false, delay: None })
            }
            Temper::GivesBack if over => Turn::End(Report::Release { delay: None }),
            _ if over => Turn::End(Report::Succeed { result: self.payload() }),
            _ => step,
        }
    }

    fn http_worker(&mut self) {
        let mut handlers = std::mem::take(&mut self.by_http);
        let mut calls = Vec::new();
        handlers.retain_mut(|handler| match self.go_on(handler) {
            Turn::Beat(beat) => {
                calls.push(Call::Beat(vec![beat]));
                true
            }
            Turn::Ask | Turn::Nothing => handler.ticks < 20,
            Turn::End(report) => {
                calls.push(Call::Settle(vec![Settlement::new(handler.claim, report)]));
                false
            }
        });
        self.by_http = handlers;
        for call in calls {
            self.rig.call(call).unwrap();
        }
        if self.open_poll.is_none() && self.by_http.len() < 3 {
            let mut poll = Rig::poll_of("http", &KINDS, 2, secs(if self.one_in(2) { 0 } else { 20 }));
            poll.subscription = subscription(&QUEUES, &KINDS);
            poll.id = self.one_in(3).then(|| name(&format!("poll-{}", self.tick)));
            self.open_poll = Some(self.rig.call_open(Call::Poll(poll)));
        }
        let Some(request) = self.open_poll else { return };
        if let Some(reply) = self.rig.reply(request) {
            self.open_poll = None;
            let delivered = !self.one_in(10);
            if let Ok(Answer::Leases(leases)) = reply {
                for lease in leases.iter().filter(|_| delivered) {
                    let handler = self.handler(lease);
                    self.by_http.push(handler);
                }
            }
            self.rig.step(Input::CallGone { request, delivered });
        }
    }

    // ---- what happened

    fn count_log(&mut self) {
        let mut specs = BTreeMap::new();
        for stamped in std::mem::take(&mut self.rig.log) {
            let text = format!("{:?}", stamped.event);
            self.saw(text.split([' ', '(']).next().expect("it has a name"));
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
                    ];
                    options.iter().filter(|(_, given)| *given).for_each(|(what, _)| self.saw(what));
                    specs.insert(submitted.id, submitted.spec);
                }
                Event::HandedOut(handed) if matches!(handed.via, Via::Http { .. }) => self.saw("handed to a poll"),
                Event::AttemptEnded { claim, ending, then } => {
                    self.saw(&format!("ended: {}", ending.code()));
                    let word = match then {
                        Then::Delayed { .. } => "then: delayed".to_owned(),
                        other => format!("then: {other:?}"),
                    };
                    self.saw(&word);
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

enum Turn {
    Beat(Beat),
    Ask,
    Nothing,
    End(Report),
}

const EXPECTED: &[&str] = &[
    // Every event.
    "TermBegan",
    "JobSubmitted",
    "WorkflowDue",
    "HandedOut",
    "AttemptEnded",
    "CancelAsked",
    "JobTimedOut",
    "QuietBegan",
    "QuietEnded",
    "Checkpointed",
    "ProgressMarked",
    "ExtensionDecided",
    "JobExtended",
    "ClaimRefused",
    "WorkerEvicted",
    "IncarnationReplaced",
    "ProbationBegan",
    "ProbationEnded",
    "GrantsReset",
    "WorkerDrained",
    "WorkerUndrained",
    "WorkerForgotten",
    "QueuePaused",
    "QueueResumed",
    "DeadLetterDropped",
    "JobsArchived",
    "KeysExpired",
    // Every option.
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
    "handed to a poll",
    "granted",
    "denied",
    "left",
    // Every end.
    "ended: succeeded",
    "ended: failed",
    "ended: released",
    "ended: lease_expired",
    "ended: stuck",
    "ended: evicted",
    "ended: crashed",
    "ended: never_arrived",
    "ended: cancelled",
    "then: Succeeded",
    "then: Ready",
    "then: delayed",
    "then: Failed",
    "then: TimedOut",
    "then: Cancelled",
    // Every way to begin anew.
    "restarted",
    "restarted from a snapshot",
    "twins",
];

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
    let missing: Vec<_> = EXPECTED.iter().filter(|what| !seen.contains_key(**what)).collect();
    assert!(missing.is_empty(), "these did not occur: {missing:?}; these did: {seen:#?}");
}
