//! The hostile world between workers and their manager.

mod manager;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onward::machine::{Effect, HandlerOutcome, Identity, Input, SessionConfig, SessionMachine};
use onward_core::effect::{Answer, Effect as Wanted, Effects, PendingEffect};
use onward_core::event::{Event, NextState, StampedEvent};
use onward_core::fence::{AttemptFence, Term};
use onward_core::ids::{Claim, Incarnation, JobId, Name, RequestId, Seq, SessionId, WorkerId};
use onward_core::input::{Call, Input as LinkEvent, Submission};
use onward_core::job::{Draft, Ending};
use onward_core::lease::LostPolicy;
use onward_core::manager::Manager;
use onward_core::message::{CancelWhy, EndReport, FromWorker, Subscription};
use onward_core::refusal::RefusalKind;
use onward_core::settings::{Rules, Settings};
use onward_core::time::{Mono, Now, Wall};
use onward_proto::manager::put;
use onward_proto::v1::ManagerFrame;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::handler::{Act, Handler, result_of};
use super::line::{Line, heard, over_the_wire};

const WORKERS: usize = 3;
const BROKEN_FOR: Duration = Duration::from_secs(180);
const HEALED_WITHIN: Duration = Duration::from_secs(3 * 3_600);
/// The longest delay of a message, one way.
const MAX_DELAY_MS: u64 = 3_000;
/// The longest silence of the log.
const MAX_SILENCE_MS: u64 = 9_000;
/// Far more than is ever needed for one moment.
const MAX_STEPS_AT_ONCE: u32 = 2_000;
const START: Mono = Mono::from_ms(1_000);

enum Happening {
    ToManager { line: usize, message: FromWorker },
    ToWorker { line: usize, frame: ManagerFrame },
    ManagerSees { line: usize },
    WorkerSees { line: usize },
    Dialled { worker: usize, life: u32 },
    Handler { worker: usize, life: u32, claim: Claim },
    Stop { worker: usize, life: u32, claim: Claim },
    Durable { term: u64, events: usize },
    SeatRead { term: u64, question: u64 },
    LogAnswers,
    Takeover,
    Awake { worker: usize, life: u32 },
}

struct Worker {
    machine: SessionMachine,
    life: u32,
    line: Option<usize>,
    policy: LostPolicy,
    handlers: BTreeMap<Claim, Handler>,
    /// Reported attempts, and whether each was a success.
    settled: BTreeMap<Claim, bool>,
    /// The manager has answered its goodbye.
    is_dismissed: bool,
    is_over: bool,
}

pub struct World {
    rng: ChaCha8Rng,
    now: Mono,
    steps_at_once: u32,
    queue: BTreeMap<(Mono, u64), Happening>,
    number: u64,
    rules: Rules,
    manager: Option<Manager>,
    stepped_at: Mono,
    term: u64,
    log: Vec<StampedEvent>,
    durable: usize,
    log_answers: bool,
    waiting: Vec<PendingEffect>,
    lines: Vec<Line>,
    workers: Vec<Worker>,
    jobs: Vec<JobId>,
    acknowledged: BTreeSet<JobId>,
    fences: BTreeMap<(JobId, u16), AttemptFence>,
    /// The attempt that decided each workflow, by the log.
    decided: BTreeMap<(JobId, u16), Claim>,
    succeeded: BTreeSet<Claim>,
    is_healed: bool,
    /// Nothing is left of what went wrong before.
    is_calm: bool,
    /// Workers that have drained stay away.
    is_ending: bool,
    pub seen: BTreeSet<&'static str>,
}

fn name(text: &str) -> Name {
    Name::new(text).expect("valid")
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut settings = Settings::default();
        settings.lease.initial = Duration::from_secs(30);
        settings.lease.extension = Duration::from_secs(30);
        settings.lease.interval = Duration::from_secs(10);
        settings.quiet_budget = Duration::from_secs(20);
        let rules = settings.check().expect("valid settings");
        let mut world = Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: START,
            steps_at_once: 0,
            queue: BTreeMap::new(),
            number: 0,
            rules,
            manager: None,
            stepped_at: START,
            term: 0,
            log: Vec::new(),
            durable: 0,
            log_answers: true,
            waiting: Vec::new(),
            lines: Vec::new(),
            workers: Vec::new(),
            jobs: Vec::new(),
            acknowledged: BTreeSet::new(),
            fences: BTreeMap::new(),
            decided: BTreeMap::new(),
            succeeded: BTreeSet::new(),
            is_healed: false,
            is_calm: false,
            is_ending: false,
            seen: BTreeSet::new(),
        };
        for worker in 0..WORKERS {
            let fresh = world.new_worker(worker, 0);
            world.workers.push(fresh);
        }
        world.take_over();
        for worker in 0..WORKERS {
            world.tell_worker(worker, Input::Wake);
        }
        world
    }

    pub fn trace(&self) -> String {
        format!("{:?}\n{:?}\n{:?}", self.now, self.log, self.decided)
    }

    pub fn break_things(&mut self) {
        let end = self.now + BROKEN_FOR;
        while self.now < end {
            let pause = Duration::from_millis(self.below(2_500));
            self.run_until(self.now + pause);
            self.trouble();
        }
    }

    pub fn heal_and_finish(&mut self) {
        self.is_healed = true;
        let end = self.now + HEALED_WITHIN;
        while !self.all_done() {
            assert!(self.now < end, "not everything has ended: {:?}", self.open());
            self.run_until(self.now + Duration::from_secs(5));
        }
        self.leave_while_work_comes();
        self.is_ending = true;
        for worker in 0..WORKERS {
            self.tell_worker(worker, Input::Drain);
        }
        self.run_until(self.now + Duration::from_secs(60));
        assert!(self.workers.iter().all(|worker| worker.is_over), "a worker that holds nothing drains");
        let manager = self.manager.as_ref().expect("healed");
        for job in &self.acknowledged {
            assert!(manager.job(*job).is_some(), "acknowledged job {job} was lost");
        }
        for claim in &self.succeeded {
            assert_eq!(self.decided.get(&(claim.job, claim.workflow)), Some(claim), "a success that was taken is kept");
        }
    }

    /// Assignments cross the goodbyes of workers that hold nothing.
    fn leave_while_work_comes(&mut self) {
        self.is_calm = true;
        for worker in 0..WORKERS {
            self.submit();
            let pause = Duration::from_millis(self.below(30));
            self.run_until(self.now + pause);
            self.submit();
            self.tell_worker(worker, Input::Drain);
        }
        let end = self.now + HEALED_WITHIN;
        while !self.all_done() {
            assert!(self.now < end, "not everything has ended: {:?}", self.open());
            self.run_until(self.now + Duration::from_secs(5));
        }
    }

    fn all_done(&self) -> bool {
        self.manager.is_some()
            && self.open().is_empty()
            && self.workers.iter().all(|worker| worker.machine.holding() == 0 && worker.handlers.is_empty())
    }

    fn open(&self) -> Vec<JobId> {
        let Some(manager) = &self.manager else { return self.acknowledged.iter().copied().collect() };
        let is_open = |job: &&JobId| manager.job(**job).is_some_and(|view| view.ended_at.is_none());
        self.jobs.iter().filter(is_open).copied().collect()
    }

    // ---- chance and time

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn delay(&mut self) -> Duration {
        let slow = !self.is_healed && self.chance(5);
        Duration::from_millis(self.below(if slow { MAX_DELAY_MS } else { 20 }) + 1)
    }

    fn at(&mut self, at: Mono, happening: Happening) {
        self.number += 1;
        self.queue.insert((at, self.number), happening);
    }

    fn after(&mut self, span: Duration, happening: Happening) {
        self.at(self.now + span, happening);
    }

    /// Runs from one moment to the next at which anything is due; machines are woken before anything else happens then.
    fn run_until(&mut self, end: Mono) {
        loop {
            let of_workers = self.workers.iter().filter_map(|worker| worker.machine.next_wakeup()).min();
            let of_manager = self.manager.as_ref().and_then(Manager::next_wakeup).map(|(at, _)| at);
            let first = self.queue.first_key_value().map(|((at, _), _)| *at);
            let next = of_workers.into_iter().chain(of_manager).chain(first).min().unwrap_or(end).max(self.now);
            if next > end {
                self.now = end;
                return;
            }
            self.steps_at_once = if next == self.now { self.steps_at_once + 1 } else { 0 };
            assert!(self.steps_at_once < MAX_STEPS_AT_ONCE, "time stands still at {next:?}");
            self.now = next;
            let due = |worker: &Worker| worker.machine.next_wakeup().is_some_and(|at| at <= next);
            if let Some(worker) = self.workers.iter().position(due) {
                self.tell_worker(worker, Input::Wake);
            } else if of_manager.is_some_and(|at| at <= next) {
                self.tell_manager(LinkEvent::Wake);
            } else if let Some(entry) = self.queue.first_entry()
                && entry.key().0 <= next
            {
                let happening = entry.remove();
                self.check_leases();
                self.happen(happening);
            }
        }
    }

    /// No handler runs on past what its worker knows of its lease; and no worker knows more than the manager.
    fn check_leases(&self) {
        for worker in &self.workers {
            for (claim, handler) in &worker.handlers {
                let holds = handler.lease_until > self.now;
                let stops = handler.is_cancelled || worker.policy == LostPolicy::Continue;
                assert!(holds || stops, "{claim:?} runs on without a lease");
            }
        }
        let Some(manager) = &self.manager else { return };
        for worker in &self.workers {
            for (claim, handler) in &worker.handlers {
                let view = manager.job(claim.job);
                let running =
                    view.iter().flat_map(|job| &job.workflows).filter_map(|workflow| workflow.running.as_ref());
                let Some(attempt) = running.into_iter().find(|attempt| attempt.claim == *claim) else { continue };
                // Nobody asked for the first lease: it counts from when it came.
                let late_ms = if handler.is_renewed { 0 } else { MAX_DELAY_MS + MAX_SILENCE_MS };
                let slack = Duration::from_millis(late_ms);
                // A takeover keeps what was promised for a quiet section only while that lasts.
                let was_taken_over = claim.fence.term() < Term::new(self.term);
                let quiet = if was_taken_over { self.rules.quiet_budget } else { Duration::ZERO };
                let end = self.stepped_at + attempt.lease_remaining + slack + quiet;
                assert!(handler.lease_until <= end, "{claim:?} counts on {:?}, not {end:?}", handler.lease_until);
            }
        }
    }

    /// A worker that has left leaves nothing behind that others would have to miss first.
    fn check_leaving(&mut self, at: usize) {
        let worker = &self.workers[at];
        if !worker.is_dismissed {
            assert!(!self.is_calm, "in a healed world a goodbye is answered");
            self.seen.insert("left unanswered");
            return;
        }
        self.seen.insert("goodbye");
        let life = Incarnation::new(worker.life.to_string()).expect("valid");
        let id = WorkerId::new(format!("w{at}")).expect("valid");
        let known = self.manager.as_ref().and_then(|manager| manager.worker(&id));
        // An impostor may have come since.
        let left = known.filter(|view| view.incarnation == life).map_or(0, |view| view.held);
        assert_eq!(left, 0, "it has left, and is thought to work");
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::ToManager { line, message } if !self.lines[line].is_cut && !self.lines[line].manager_knows => {
                self.tell_manager(LinkEvent::Session { session: SessionId(line as u64), message });
            }
            Happening::ToWorker { line, frame } => {
                let Line { worker, is_cut, worker_knows, .. } = self.lines[line];
                if !is_cut && !worker_knows {
                    self.workers[worker].is_dismissed |= frame.goodbye.is_some();
                    for part in heard(&frame) {
                        self.tell_worker(worker, Input::FromManager(part));
                    }
                }
            }
            Happening::ManagerSees { line } if !self.lines[line].manager_knows => {
                self.lines[line].manager_knows = true;
                self.tell_manager(LinkEvent::SessionClosed { session: SessionId(line as u64) });
            }
            Happening::WorkerSees { line } if !self.lines[line].worker_knows => {
                let worker = self.lines[line].worker;
                self.lines[line].worker_knows = true;
                self.workers[worker].line = None;
                self.tell_worker(worker, Input::Disconnected);
            }
            Happening::Dialled { worker, life } if self.workers[worker].life == life => self.dialled(worker),
            Happening::Handler { worker, life, claim } if self.workers[worker].life == life => self.act(worker, claim),
            Happening::Stop { worker, life, claim } if self.workers[worker].life == life => self.stop(worker, claim),
            Happening::Awake { worker, life } if self.workers[worker].life == life => {
                self.tell_worker(worker, Input::ExecutorLag(Duration::ZERO));
            }
            Happening::Durable { term, events } if term == self.term && self.log_answers => {
                self.durable = self.durable.max(events);
                self.tell_manager(LinkEvent::Durable { seq: Seq(self.durable as u64) });
            }
            Happening::SeatRead { term, question } if term == self.term && self.log_answers => {
                self.tell_manager(LinkEvent::SeatConfirmed { term: Term::new(term), question });
                self.tell_manager(LinkEvent::QueueEmptied);
            }
            Happening::LogAnswers => {
                self.log_answers = true;
                self.after(Duration::ZERO, Happening::Durable { term: self.term, events: self.log.len() });
            }
            Happening::Takeover => self.take_over(),
            _ => {}
        }
    }

    // ---- the workers

    fn new_worker(&mut self, worker: usize, life: u32) -> Worker {
        let policy = if self.chance(70) { LostPolicy::Cancel } else { LostPolicy::Continue };
        let identity = Identity {
            worker: WorkerId::new(format!("w{worker}")).expect("valid"),
            incarnation: Incarnation::new(format!("{life}")).expect("valid"),
            subscription: Subscription { queues: vec![name("default")], kinds: vec![name("task")] },
            slots: 1 + worker as u32,
        };
        let config = SessionConfig { on_lost: policy, ..SessionConfig::default() };
        let machine = SessionMachine::new(identity, config, self.rng.next_u64(), self.now);
        let (handlers, settled) = Default::default();
        Worker { machine, life, line: None, policy, handlers, settled, is_dismissed: false, is_over: false }
    }

    fn tell_worker(&mut self, worker: usize, input: Input) {
        let mut effects = Vec::new();
        self.workers[worker].machine.step(self.now, input, &mut effects);
        for effect in effects {
            self.perform(worker, effect);
        }
    }

    fn perform(&mut self, at: usize, effect: Effect) {
        let life = self.workers[at].life;
        match effect {
            Effect::Dial => {
                let delay = self.delay();
                self.after(delay, Happening::Dialled { worker: at, life });
            }
            Effect::HangUp | Effect::Leave => {
                self.seen.insert("hung up");
                self.hang_up(at);
            }
            Effect::Send(message) => self.send(at, message),
            Effect::Start(assignment) => {
                let (claim, polite) = (assignment.claim, self.is_healed);
                let is_told = self.workers[at].policy == LostPolicy::Cancel;
                let handler = Handler::new(&mut self.rng, claim, self.now + assignment.lease, polite, is_told);
                let before = self.workers[at].handlers.insert(claim, handler);
                assert!(before.is_none(), "an attempt is started once");
                self.schedule(at, claim);
            }
            Effect::Cancel { claim, why } => {
                self.seen.insert(if why == CancelWhy::LeaseExpired { "lease lost here" } else { "cancel" });
                let Some(handler) = self.workers[at].handlers.get_mut(&claim) else { return };
                assert!(!std::mem::replace(&mut handler.is_cancelled, true), "told once");
                let grace = Duration::from_millis(self.below(12_000));
                self.after(grace, Happening::Stop { worker: at, life, claim });
            }
            Effect::Lease { claim, until } => {
                if let Some(handler) = self.workers[at].handlers.get_mut(&claim) {
                    handler.is_renewed |= until > handler.lease_until;
                    handler.lease_until = handler.lease_until.max(until);
                }
            }
            Effect::ExtensionAnswered { claim, answer } => {
                let code = answer.as_ref().err().map(|refused| &*refused.code);
                self.seen.insert(match code {
                    None => "extension granted",
                    Some("no_session") => "extension unanswered",
                    Some(_) => "extension denied",
                });
                if let Some(handler) = self.workers[at].handlers.get_mut(&claim) {
                    handler.asked = handler.asked.checked_sub(1).expect("one answer per question");
                }
            }
            Effect::Settled { answer: Err(_), .. } => drop(self.seen.insert("outcome refused")),
            Effect::Settled { claim, answer: Ok(()) } => {
                if self.workers[at].settled.get(&claim) == Some(&true) {
                    let decided = self.decided.get(&(claim.job, claim.workflow));
                    assert_eq!(decided, Some(&claim), "a success was taken that the log does not have");
                    self.succeeded.insert(claim);
                }
            }
            Effect::Noted(refused) => {
                if refused.kind() == Some(RefusalKind::QuietSpent) {
                    self.seen.insert("quiet spent");
                }
            }
            Effect::Drained => {
                self.check_leaving(at);
                self.workers[at].is_over = true;
                if !self.is_ending {
                    self.begin_anew(at);
                }
            }
            Effect::Rejected(_) => {
                self.seen.insert("rejected");
                self.begin_anew(at);
            }
        }
    }

    fn send(&mut self, at: usize, message: FromWorker) {
        match &message {
            FromWorker::Hello(hello) if self.workers[at].handlers.keys().any(|claim| hello.holding.contains(claim)) => {
                self.seen.insert("kept an attempt over a reconnect");
            }
            FromWorker::Settle(list) => {
                for settlement in list {
                    let is_success = matches!(settlement.report, EndReport::Succeed { .. });
                    if self.workers[at].settled.insert(settlement.claim, is_success).is_some() {
                        self.seen.insert("outcome repeated");
                    }
                }
            }
            _ => {}
        }
        let line = self.workers[at].line.expect("it speaks only on a session");
        for message in over_the_wire(message) {
            let delay = self.delay();
            let arrival = self.lines[line].arrives_up(self.now, delay);
            self.at(arrival, Happening::ToManager { line, message });
        }
    }

    fn dialled(&mut self, worker: usize) {
        if self.manager.is_none() || (!self.is_healed && self.chance(10)) {
            return self.tell_worker(worker, Input::Disconnected);
        }
        self.lines.push(Line::new(worker, self.now));
        self.workers[worker].line = Some(self.lines.len() - 1);
        self.tell_worker(worker, Input::Connected);
    }

    /// The worker's end is closed, and the manager hears of it after all that was said.
    fn hang_up(&mut self, worker: usize) {
        let Some(line) = self.workers[worker].line.take() else { return };
        self.lines[line].worker_knows = true;
        let delay = self.delay();
        let at = self.lines[line].arrives_up(self.now, delay);
        self.at(at, Happening::ManagerSees { line });
    }

    /// Another process under the same name. Whatever the old one ran is gone.
    fn begin_anew(&mut self, worker: usize) {
        self.hang_up(worker);
        let life = self.workers[worker].life + 1;
        self.workers[worker] = self.new_worker(worker, life);
    }

    fn schedule(&mut self, worker: usize, claim: Claim) {
        let Some(pause) = self.workers[worker].handlers.get(&claim).and_then(Handler::next_pause) else { return };
        let life = self.workers[worker].life;
        self.after(pause, Happening::Handler { worker, life, claim });
    }

    fn act(&mut self, worker: usize, claim: Claim) {
        let Some(handler) = self.workers[worker].handlers.get_mut(&claim) else { return };
        match handler.next() {
            None => return,
            Some(Act::Say(report)) => self.tell_worker(worker, Input::Reported { claim, report }),
            Some(Act::AskExtension) => {
                handler.asked += 1;
                let (reason, estimated_remaining) = ("long_workflow".into(), None);
                self.tell_worker(worker, Input::Extension { claim, reason, progress: 0.5, estimated_remaining });
            }
            Some(Act::End(end)) => return self.end(worker, claim, end),
        }
        self.schedule(worker, claim);
    }

    /// Ends a handler that was told to stop, and may just have succeeded.
    fn stop(&mut self, worker: usize, claim: Claim) {
        let end =
            if self.chance(15) { HandlerOutcome::Succeeded(result_of(claim).into()) } else { HandlerOutcome::Stopped };
        if self.workers[worker].handlers.contains_key(&claim) {
            self.end(worker, claim, end);
        }
    }

    fn end(&mut self, worker: usize, claim: Claim, outcome: HandlerOutcome) {
        let handler = self.workers[worker].handlers.remove(&claim).expect("it runs");
        if handler.is_cancelled && matches!(outcome, HandlerOutcome::Succeeded(_)) {
            self.seen.insert("success after a cancel");
        }
        self.tell_worker(worker, Input::Finished { claim, outcome });
    }
}
