//! A machine restored from a snapshot, and one that replayed the whole log, side by side: both must be one.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::time::Duration;

use onward_core::effect::{Answer, Effect, Effects};
use onward_core::event::{Event, StampedEvent};
use onward_core::fence::Term;
use onward_core::ids::{Claim, ClientId, Incarnation, JobId, Name, RequestId, Seq, SessionId, WorkerId};
use onward_core::input::{Call, Filter, Input, Poll, ReplayFrom, Submission};
use onward_core::job::{Draft, LimitDraft, Retry};
use onward_core::manager::{Manager, SnapshotRecord};
use onward_core::message::{Beat, EndReport, FromWorker, Hello, Settlement, Subscription, ToWorker};
use onward_core::settings::Rules;
use onward_core::time::{Mono, Now};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The jobs that a machine holds, wherever they lie.
pub fn ids_in_order(manager: &Manager) -> Vec<JobId> {
    let mut ids: Vec<JobId> = manager.state().jobs().map(|(_, job)| job.id).collect();
    ids.sort_unstable();
    ids
}

/// A machine made of a snapshot and the events after it.
pub fn restored(rules: &Rules, records: &[SnapshotRecord], log: &[StampedEvent], seed: u64, now: Now) -> Manager {
    let mut manager = Manager::new(rules.clone(), seed, now);
    records.iter().for_each(|record| manager.restore(record.clone()));
    let Seq(seq) = manager.finish_restore().expect("a whole snapshot");
    log[seq as usize..].iter().for_each(|stamped| manager.apply(stamped));
    manager
}

/// The records alone must say what the state was when they were begun; with the events since, they would hide what was
/// taken too late and is set again by an event.
pub fn check_begin(rules: &Rules, records: &[SnapshotRecord], begun_with: &str, now: Now) {
    let mut manager = Manager::new(rules.clone(), 1, now);
    records.iter().for_each(|record| manager.restore(record.clone()));
    manager.finish_restore().expect("a whole snapshot");
    assert_eq!(manager.state().dump(), begun_with, "the records differ from the state at the beginning");
    manager.state().check();
}

/// The same event as versions wrote it that did not say what becomes of a job.
pub fn as_older(stamped: &StampedEvent) -> StampedEvent {
    let mut older = stamped.clone();
    if let Event::AttemptEnded { end, .. } | Event::CancelAsked { end, .. } | Event::JobTimedOut { end, .. } =
        &mut older.event
    {
        *end = None;
    }
    older
}

pub fn replayed(rules: &Rules, log: &[StampedEvent], seed: u64, now: Now) -> Manager {
    let mut manager = Manager::new(rules.clone(), seed, now);
    log.iter().for_each(|stamped| manager.apply(stamped));
    manager
}

pub struct Twins {
    machines: [Manager; 2],
    now: Now,
    term: Term,
    seq: u64,
    rng: ChaCha8Rng,
    workers: Vec<(SessionId, Vec<Claim>)>,
    held_by_http: Vec<Claim>,
    to_archive: Vec<JobId>,
    next: u64,
    pub events: usize,
}

impl Twins {
    pub fn new(rules: &Rules, records: &[SnapshotRecord], log: &[StampedEvent], seed: u64, mut now: Now) -> Self {
        now.mono = Mono::from_ms(seed % 50_000);
        let machines = [replayed(rules, log, seed, now), restored(rules, records, log, seed, now)];
        let [one, other] = &machines;
        assert_eq!(one.state().dump(), other.state().dump(), "a restored machine differs from one that replayed all");
        let jobs = |manager: &Manager| -> Vec<(String, Vec<u64>)> {
            let of_queues =
                manager.counts().queues().map(|(_, queue, counts)| (queue.to_string(), counts.jobs.to_vec()));
            let mut jobs: Vec<_> = of_queues.filter(|(_, jobs)| jobs.iter().any(|count| *count > 0)).collect();
            jobs.sort();
            jobs
        };
        assert_eq!(jobs(one), jobs(other), "a restored machine counts its jobs as one that replayed all");
        let term = Term::new(one.state().term().get() + 1);
        Self {
            machines,
            now,
            term,
            seq: log.len() as u64,
            rng: ChaCha8Rng::seed_from_u64(seed),
            workers: Vec::new(),
            held_by_http: Vec::new(),
            to_archive: Vec::new(),
            next: 1,
            events: 0,
        }
    }

    /// Both take the seat, and then the same happens to both. Whatever one says and does, so does the other.
    pub fn live_alike(&mut self, workers: &[&str], queues: &[&str], kinds: &[&str], steps: u32) {
        let name = |text: &&str| Name::new(*text).expect("valid");
        let all = Subscription { queues: queues.iter().map(name).collect(), kinds: kinds.iter().map(name).collect() };
        self.feed(Input::SeatTaken { term: self.term });
        self.wait(Duration::from_millis(10));
        for (n, id) in workers.iter().enumerate() {
            let worker = WorkerId::new(*id).expect("valid");
            // Two subscriptions that overlap, so that groups compete.
            let kinds = all.kinds[..all.kinds.len() - n % 2].to_vec();
            self.hello(worker, Subscription { queues: all.queues.clone(), kinds }, 1 + n as u32);
        }
        for _ in 0..steps {
            self.act(&all);
        }
        let [one, other] = &self.machines;
        assert_eq!(one.state().dump(), other.state().dump(), "after living alike");
        one.state().check();
        other.state().check();
    }

    fn hello(&mut self, worker: WorkerId, subscription: Subscription, slots: u32) {
        let held = |held: &onward_core::state::Attempt| held.worker == worker;
        let state = self.machines[0].state();
        let mut holding: Vec<(Claim, Incarnation)> = state
            .attempts()
            .filter(|(_, attempt)| held(attempt))
            .map(|(_, attempt)| (attempt.claim, attempt.incarnation.clone()))
            .collect();
        holding.sort_by_key(|(claim, _)| *claim);
        let fresh = Incarnation::new("after").expect("valid");
        let incarnation = holding.first().map_or(fresh, |(_, incarnation)| incarnation.clone());
        let mut holding: Vec<Claim> = holding.into_iter().map(|(claim, _)| claim).collect();
        if self.below(3) == 0 {
            holding.pop();
        }
        self.next += 1;
        let session = SessionId(self.next);
        self.workers.push((session, holding.clone()));
        let hello = Hello { worker, incarnation, subscription, slots, holding, client: ClientId::default() };
        self.feed(Input::Session { session, message: FromWorker::Hello(hello) });
    }

    fn act(&mut self, all: &Subscription) {
        let at = self.below(self.workers.len() as u64) as usize;
        let (session, held) = (self.workers[at].0, self.workers[at].1.first().copied());
        match (self.below(12), held) {
            (0..=3, Some(claim)) => {
                self.workers[at].1.remove(0);
                let report = match self.below(4) {
                    0 => EndReport::Fail { error: "no".into(), retryable: self.below(2) == 0, delay: None },
                    1 => EndReport::Release { delay: None },
                    _ => EndReport::Succeed { result: (*b"done").into() },
                };
                let message = FromWorker::Settle(vec![Settlement::new(claim, report)]);
                self.feed(Input::Session { session, message });
            }
            (4, Some(claim)) => {
                let beat = Beat::progress(claim, self.next);
                self.feed(Input::Session { session, message: FromWorker::Beats(vec![beat]) });
            }
            (5, _) => {
                let draft = self.draft(all);
                let id = self.new_id();
                self.call(Call::Submit(vec![Submission { id, draft }]));
            }
            (6, _) => {
                let queue = all.queues[self.below(all.queues.len() as u64) as usize].clone();
                let pause = self.below(2) == 0;
                self.call(if pause { Call::PauseQueue(queue) } else { Call::ResumeQueue(queue) });
            }
            (7, _) => {
                let kind = all.kinds[self.below(all.kinds.len() as u64) as usize].clone();
                match self.below(6) {
                    0 => {
                        let jobs = ids_in_order(&self.machines[0]);
                        self.call(Call::CancelWhere { filter: Filter { kind: Some(kind), ..Filter::default() }, jobs });
                    }
                    1 => {
                        let state = self.machines[0].state();
                        let dead = state.dead_letters().next().map(|key| state.job(key).id);
                        if let Some(job) = dead {
                            let new_id = self.new_id();
                            self.call(Call::ReplayDeadLetter { job, new_id, request: kind, from: ReplayFrom::Failed });
                        }
                    }
                    _ => {
                        let jobs = std::mem::take(&mut self.to_archive);
                        self.feed(Input::Archived { jobs });
                    }
                }
            }
            (8, _) => {
                let poll = Poll {
                    worker: WorkerId::new("polling").expect("valid"),
                    incarnation: Incarnation::new("1").expect("valid"),
                    subscription: all.clone(),
                    max: 2,
                    wait: Duration::ZERO,
                    lease: Duration::from_secs(30),
                    id: None,
                    client: ClientId::default(),
                };
                self.call(Call::Poll(poll));
            }
            (9, _) if !self.held_by_http.is_empty() => {
                let claim = self.held_by_http.remove(0);
                let report = EndReport::Succeed { result: (*b"http").into() };
                self.call(Call::Settle(vec![Settlement::new(claim, report)]));
            }
            (10, _) => {
                let span = [1_000, 20_000, 130_000, 100_000_000][self.below(4) as usize];
                self.wait(Duration::from_millis(span));
            }
            _ => self.wait(Duration::from_millis(500)),
        }
    }

    fn draft(&mut self, all: &Subscription) -> Draft {
        let kind = all.kinds[self.below(all.kinds.len() as u64) as usize].clone();
        let mut draft = Draft::of_kind(kind.as_str(), *b"more");
        draft.limits = vec![LimitDraft { ordered: self.below(2) == 0, ..LimitDraft::new("key0", 1) }];
        draft.retry = Some(Retry { max_attempts: 2, ..Retry::default() });
        draft.unique_key = (self.below(4) == 0).then(|| "only".into());
        draft.idempotency_key = (self.below(4) == 0).then(|| format!("idem{}", self.next % 3).into());
        draft
    }

    /// Lets time pass, waking both whenever they ask for it; they ask for the same.
    fn wait(&mut self, span: Duration) {
        let end = self.now.mono + span;
        for _ in 0..400 {
            let wakeups = self.machines.each_ref().map(Manager::next_wakeup);
            assert_eq!(wakeups[0], wakeups[1], "they want to be woken at different times");
            let Some((at, _)) = wakeups[0].filter(|(at, _)| *at <= end) else { break };
            self.pass(at.since(self.now.mono));
            self.feed(Input::Wake);
        }
        self.pass(end.since(self.now.mono));
    }

    fn pass(&mut self, span: Duration) {
        self.now = Now { mono: self.now.mono + span, wall: self.now.wall + span };
    }

    fn call(&mut self, call: Call) {
        self.next += 1;
        self.feed(Input::Call { request: RequestId(self.next), call });
    }

    fn new_id(&mut self) -> JobId {
        self.next += 1;
        JobId::v7(self.now.wall, u128::from(self.next) << 40)
    }

    fn feed(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let [mut one, mut other] = [Effects::default(), Effects::default()];
            self.machines[0].step(self.now, input.clone(), &mut one);
            self.machines[1].step(self.now, input.clone(), &mut other);
            assert_eq!(one.events, other.events, "other events after {input:?}");
            assert_eq!(one.list, other.list, "other effects after {input:?}");
            self.events += one.events.len();
            if !one.events.is_empty() {
                self.seq += one.events.len() as u64;
                inputs.push(Input::Durable { seq: Seq(self.seq) });
            }
            for waiting in one.list {
                self.take(waiting.effect, &mut inputs);
            }
        }
    }

    fn take(&mut self, effect: Effect, inputs: &mut Vec<Input>) {
        inputs.extend(crate::due::find_due(&effect));
        match effect {
            Effect::Send { session, message: ToWorker::Probe { probe } } => {
                inputs.push(Input::Session { session, message: FromWorker::ProbeAnswer { probe } });
            }
            Effect::Send { session, message: ToWorker::Assign(assignment) } => {
                if let Some((_, held)) = self.workers.iter_mut().find(|(known, _)| *known == session) {
                    held.push(assignment.claim);
                }
            }
            Effect::Send { session, message: ToWorker::Cancel { claim, .. } } => {
                if let Some((_, held)) = self.workers.iter_mut().find(|(known, _)| *known == session) {
                    held.retain(|known| *known != claim);
                }
                inputs.push(Input::Session { session, message: FromWorker::Ended(vec![claim]) });
            }
            Effect::Reply { answer: Ok(Answer::Leases(leases)), .. } => {
                self.held_by_http.extend(leases.iter().map(|lease| lease.claim));
            }
            Effect::Archive { job } => self.to_archive.push(job),
            Effect::ConfirmSeat { question } => {
                inputs.push(Input::QueueEmptied);
                inputs.push(Input::SeatConfirmed { term: self.term, question });
            }
            _ => {}
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }
}
