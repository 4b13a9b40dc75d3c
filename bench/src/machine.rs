//! A manager machine with a shell that costs nothing: events are dropped once counted, and are durable at once.

use std::collections::VecDeque;
use std::time::Duration;

use onward_core::effect::{Effect, Effects};
use onward_core::fence::Term;
use onward_core::ids::{Claim, ClientId, Incarnation, JobId, Name, RequestId, Seq, SessionId, WorkerId};
use onward_core::input::{Call, Input, Submission};
use onward_core::job::Draft;
use onward_core::manager::Manager;
use onward_core::message::{Beat, EndReport, FromWorker, Hello, Settlement, Subscription, ToWorker};
use onward_core::payload::Payload;
use onward_core::settings::{Rules, Settings};
use onward_core::time::{Mono, Now, Wall};

use crate::cpu::Stopwatch;

#[derive(Debug)]
pub struct BenchMachine {
    pub manager: Manager,
    pub now: Now,
    pub events: u64,
    effects: Effects,
    /// Claims that were assigned and not yet settled, by session.
    pub held: Vec<Vec<Claim>>,
    pub probes: Vec<(SessionId, u32)>,
    to_archive: Vec<JobId>,
    pub completed: u64,
    jobs: u64,
    result: Payload,
    /// The longest step since this began to be looked at; measuring takes time itself.
    longest: Option<Duration>,
}

fn rules() -> Rules {
    let mut settings = Settings::default();
    settings.limits.shelves = 10_000_000;
    settings.check().expect("valid settings")
}

impl BenchMachine {
    pub fn new() -> Self {
        let now = Now { mono: Mono::from_ms(1_000), wall: Wall::from_ms(1_800_000_000_000) };
        let mut machine = Self {
            manager: Manager::new(rules(), 1, now),
            now,
            events: 0,
            effects: Effects::default(),
            held: Vec::new(),
            probes: Vec::new(),
            to_archive: Vec::new(),
            completed: 0,
            jobs: 0,
            result: Payload::from(*b"{\"ok\":true}"),
            longest: None,
        };
        machine.feed(Input::SeatTaken { term: Term::new(1) });
        machine
    }

    pub fn feed(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.step(input, &mut inputs);
        }
    }

    /// Makes a step; the log's answer to it comes next. Not by recursion: work that is cut into bites goes on with each
    /// word of the log, thousands of times.
    fn step(&mut self, input: Input, inputs: &mut VecDeque<Input>) {
        let begun = self.longest.map(|_| Stopwatch::start());
        self.manager.step(self.now, input, &mut self.effects);
        if let Some(begun) = begun {
            self.longest = self.longest.max(Some(begun.elapsed()));
        }
        let mut asked = None;
        for waiting in self.effects.list.drain(..) {
            match waiting.effect {
                Effect::Send { session, message: ToWorker::Assign(assignment) } => {
                    self.held[session.0 as usize].push(assignment.claim);
                }
                Effect::Send { session, message: ToWorker::Probe { probe } } => self.probes.push((session, probe)),
                Effect::Archive { job } => self.to_archive.push(job),
                Effect::ConfirmSeat { question } => asked = Some(question),
                _ => {}
            }
        }
        if !self.effects.events.is_empty() {
            self.events += self.effects.events.len() as u64;
            self.effects.events.clear();
            inputs.push_back(Input::Durable { seq: Seq(self.events) });
        }
        if let Some(question) = asked {
            inputs.push_back(Input::SeatConfirmed { term: Term::new(1), question });
            inputs.push_back(Input::QueueEmptied);
        }
    }

    /// Times steps from now on.
    pub fn begin_timing(&mut self) {
        self.longest = Some(Duration::ZERO);
    }

    /// The longest step since then.
    pub fn longest(&self) -> Duration {
        self.longest.expect("timing has begun")
    }

    pub fn call(&mut self, call: Call) {
        self.feed(Input::Call { request: RequestId(0), call });
    }

    /// Moves the clock and wakes the machine as often as it asks.
    pub fn advance(&mut self, span: Duration) {
        let end = self.now.mono + span;
        while let Some((at, _)) = self.manager.next_wakeup() {
            if at > end {
                break;
            }
            let step = at.since(self.now.mono);
            self.now = Now { mono: at, wall: self.now.wall + step };
            self.feed(Input::Wake);
        }
        let step = end.since(self.now.mono);
        self.now = Now { mono: end, wall: self.now.wall + step };
    }

    /// Advances like [`Self::advance`], and workers answer probes in time.
    pub fn advance_answering(&mut self, span: Duration) {
        let end = self.now.mono + span;
        while self.now.mono < end {
            self.advance(end.since(self.now.mono).min(Duration::from_secs(1)));
            self.answer_probes();
        }
    }

    pub fn worker(&mut self, id: String, slots: u32, kinds: &[Name]) {
        let session = SessionId(self.held.len() as u64);
        self.held.push(Vec::new());
        self.hello(id, session, slots, kinds);
    }

    fn hello(&mut self, id: String, session: SessionId, slots: u32, kinds: &[Name]) {
        let hello = Hello {
            worker: WorkerId::new(id).expect("valid"),
            incarnation: Incarnation::new(format!("{:016x}", session.0)).expect("valid"),
            subscription: Subscription { queues: vec![Name::new("default").expect("valid")], kinds: kinds.to_vec() },
            slots,
            holding: Vec::new(),
            client: ClientId::default(),
        };
        self.feed(Input::Session { session, message: FromWorker::Hello(hello) });
    }

    /// Another life of a worker of [`crate::steps`].
    pub fn worker_again(&mut self, worker: u64, slots: u32, kinds: &[Name]) {
        let session = SessionId(self.held.len() as u64);
        self.held.push(Vec::new());
        self.hello(format!("worker-{worker}"), session, slots, kinds);
    }

    pub fn submit(&mut self, drafts: impl Iterator<Item = Draft>) {
        let submissions: Vec<Submission> = drafts
            .map(|draft| {
                self.jobs += 1;
                // As generators of version 7 do: a counter within the millisecond, then random bits.
                let tail = self.jobs.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                let random = u128::from(self.jobs) << 32 | u128::from(tail);
                Submission { id: JobId::v7(self.now.wall, random), draft }
            })
            .collect();
        self.feed(Input::Call { request: RequestId(self.jobs), call: Call::Submit(submissions) });
    }

    /// Every worker beats once for what it holds, then reports it as done. Returns how many were.
    pub fn work(&mut self) -> u64 {
        let mut done = 0;
        for at in 0..self.held.len() {
            let session = SessionId(at as u64);
            let claims = std::mem::take(&mut self.held[at]);
            if claims.is_empty() {
                continue;
            }
            done += claims.len() as u64;
            let beats = claims.iter().map(|claim| Beat::plain(*claim)).collect();
            self.feed(Input::Session { session, message: FromWorker::Beats(beats) });
            let result = self.result.clone();
            let settled = claims
                .iter()
                .map(|claim| Settlement::new(*claim, EndReport::Succeed { result: result.clone() }))
                .collect();
            self.feed(Input::Session { session, message: FromWorker::Settle(settled) });
        }
        self.completed += done;
        done
    }

    pub fn archive(&mut self) {
        if !self.to_archive.is_empty() {
            let jobs = std::mem::take(&mut self.to_archive);
            self.feed(Input::Archived { jobs });
        }
    }

    /// A millisecond passes, and workers answer what they were asked.
    pub fn tick(&mut self) {
        self.advance(Duration::from_millis(1));
        self.answer_probes();
    }

    pub fn answer_probes(&mut self) {
        for (session, probe) in std::mem::take(&mut self.probes) {
            self.feed(Input::Session { session, message: FromWorker::ProbeAnswer { probe } });
        }
    }
}
