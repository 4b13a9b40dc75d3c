//! A manager machine with a hand on its clock: steps it, makes its events durable, answers what it asks of the shell,
//! and keeps what it sent. Time moves only when a test says so, from one wake-up to the next.

#![allow(dead_code, reason = "every test file uses its own part of the rig")]

mod clients;
mod shorthands;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onward_core::effect::{AcceptedJob, Answer, Effect, Effects, ManagerNotice, TimeoutAuthority};
use onward_core::event::{Event, StampedEvent};
use onward_core::fence::{AttemptFence, Term};
use onward_core::health::Verdict;
use onward_core::ids::{Bytes, Claim, ClientId, Incarnation, JobId, Name, RequestId, Seq, SessionId, WorkerId};
use onward_core::input::{Call, Filter, Input, Poll, Submission};
use onward_core::job::{Draft, JobState};
use onward_core::manager::{JobView, Manager, SnapshotRecord, WorkerView};
use onward_core::message::{
    Assignment, Beat, BeatAccepted, EndReport, ExtensionAnswer, ExtensionRequest, FromWorker, Hello, Settlement,
    Subscription, ToWorker,
};
use onward_core::payload::Digest;
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::settings::{Rules, Settings};
use onward_core::time::{Mono, Now, Wall};
use onward_core::timeout::TimeoutReason;

/// Wall clock at the start of every rig.
pub const EPOCH_MS: u64 = 1_800_000_000_000;

/// The number of jobs above which the state is not checked after every step.
const CHECKED_JOBS: usize = 64;

pub struct Rig {
    pub manager: Manager,
    pub log: Vec<StampedEvent>,
    pub sent: Vec<(SessionId, ToWorker)>,
    pub replies: BTreeMap<RequestId, Result<Answer, Refusal>>,
    pub notices: Vec<ManagerNotice>,
    pub closed: Vec<SessionId>,
    pub to_archive: Vec<JobId>,
    pub unreferenced: Vec<Digest>,
    /// Sessions that answer probes at once, as a live worker does.
    pub answering: BTreeSet<SessionId>,
    /// Off: events stay undurable and the seat unconfirmed until the test says otherwise.
    pub log_answers: bool,
    /// Off: instants that the machine asks for are found when the test says so.
    pub finds_due: bool,
    /// Inputs that were found and not told yet.
    pub found: Vec<Input>,
    pub now: Now,
    /// The newest question about the seat.
    pub question: u64,
    rules: Rules,
    term: u64,
    requests: u64,
    jobs: u64,
    effects: Effects,
}

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

pub fn bytes(text: &str) -> Bytes {
    text.as_bytes().into()
}

pub fn worker_id(text: &str) -> WorkerId {
    WorkerId::new(text).expect("a valid worker id")
}

pub fn subscription(queues: &[&str], kinds: &[&str]) -> Subscription {
    Subscription { queues: queues.iter().map(|q| name(q)).collect(), kinds: kinds.iter().map(|k| name(k)).collect() }
}

pub fn job(kind: &str) -> Draft {
    Draft::of_kind(kind, bytes("{}"))
}

impl Rig {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// A rig whose settings differ from the defaults. It has taken the seat under term 1 and serves.
    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        let rules = settings.check().expect("valid settings");
        let now = Now { mono: Mono::from_ms(5_000), wall: Wall::from_ms(EPOCH_MS) };
        let mut rig = Self {
            manager: Manager::new(rules.clone(), 7, now),
            log: Vec::new(),
            sent: Vec::new(),
            replies: BTreeMap::new(),
            notices: Vec::new(),
            closed: Vec::new(),
            to_archive: Vec::new(),
            unreferenced: Vec::new(),
            answering: BTreeSet::new(),
            log_answers: true,
            finds_due: true,
            found: Vec::new(),
            now,
            question: 0,
            rules,
            term: 1,
            requests: 0,
            jobs: 0,
            effects: Effects::default(),
        };
        rig.step(Input::SeatTaken { term: Term::new(1) });
        rig
    }

    // ---- time and inputs

    /// Feeds one input now, then does what the shell would do at once.
    pub fn step(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            self.manager.step(self.now, input, &mut self.effects);
            if !self.effects.events.is_empty() {
                self.log.append(&mut self.effects.events);
                if self.log_answers {
                    inputs.push(Input::Durable { seq: Seq(self.log.len() as u64) });
                }
            }
            let list = std::mem::take(&mut self.effects.list);
            for waiting in list {
                assert!(waiting.after.0 <= self.log.len() as u64, "an effect waits for an event that exists");
                self.take(waiting.effect, &mut inputs);
            }
        }
        if let Some((at, _)) = self.manager.next_wakeup() {
            assert!(at >= self.now.mono, "the next wake-up is never in the past");
        }
        if self.manager.state().job_count() <= CHECKED_JOBS {
            self.manager.state().check();
        }
    }

    fn take(&mut self, effect: Effect, inputs: &mut Vec<Input>) {
        let found = if self.finds_due { &mut *inputs } else { &mut self.found };
        found.extend(crate::due::find_due(&effect));
        match effect {
            Effect::Send { session, mut message } => {
                match &mut message {
                    ToWorker::BeatAnswers(answers) => without_archive(answers.iter_mut().map(|beat| &mut beat.answer)),
                    ToWorker::SettleAnswers(answers) => without_archive(answers.iter_mut().map(|end| &mut end.answer)),
                    _ => {}
                }
                if let (ToWorker::Probe { probe }, true) = (&message, self.answering.contains(&session)) {
                    inputs.push(Input::Session { session, message: FromWorker::ProbeAnswer { probe: *probe } });
                }
                self.sent.push((session, message));
            }
            Effect::CloseSession { session } => self.closed.push(session),
            Effect::Reply { request, mut answer } => {
                match &mut answer {
                    Ok(Answer::Beats(answers)) => without_archive(answers.iter_mut().map(|beat| &mut beat.answer)),
                    Ok(Answer::Settled(answers)) => without_archive(answers.iter_mut().map(|end| &mut end.answer)),
                    answer => without_archive([answer]),
                }
                assert!(self.replies.insert(request, answer).is_none(), "one answer per call");
            }
            Effect::Archive { job } => self.to_archive.push(job),
            Effect::Unreferenced { digest } => self.unreferenced.push(digest),
            Effect::ConfirmSeat { question } => {
                self.question = question;
                if self.log_answers {
                    inputs.push(Input::QueueEmptied);
                    inputs.push(self.seat_answer());
                }
            }
            Effect::Report(notice) => self.notices.push(notice),
            Effect::FindDue { .. } | Effect::SendGate { .. } | Effect::FindArchived { .. } => {}
        }
    }

    /// The log's answer to the newest question about the seat.
    pub fn seat_answer(&self) -> Input {
        Input::SeatConfirmed { term: Term::new(self.term), question: self.question }
    }

    /// Lets time pass, waking the machine whenever it asks for it.
    pub fn advance(&mut self, span: Duration) {
        self.watch(span, |_| {});
    }

    /// Advances like [`Self::advance`], looking at the machine before, after every wake-up, and at the end.
    pub fn watch(&mut self, span: Duration, mut look: impl FnMut(&Self)) {
        let end = self.now.mono + span;
        let mut at_once = 0;
        look(self);
        while let Some((at, why)) = self.manager.next_wakeup() {
            if at > end {
                break;
            }
            at_once = if at == self.now.mono { at_once + 1 } else { 0 };
            assert!(at_once < 100, "it asks again and again to be woken at once, for {why:?}");
            self.jump(at.since(self.now.mono));
            self.step(Input::Wake);
            look(self);
        }
        self.jump(end.since(self.now.mono));
        look(self);
    }

    /// Sets the wall clock: it jumps, and no time passes.
    pub fn set_wall(&mut self, wall: Wall) {
        self.now.wall = wall;
    }

    /// Moves the clocks without waking the machine: the process was frozen.
    pub fn jump(&mut self, span: Duration) {
        self.now = Now { mono: self.now.mono + span, wall: self.now.wall + span };
    }

    /// The process dies; another takes the seat after `downtime` and replays the log.
    pub fn restart(&mut self, downtime: Duration) {
        self.jump(downtime);
        self.term += 1;
        // Another process has another monotonic clock.
        self.now.mono = Mono::from_ms(self.now.mono.as_ms() % 977_000);
        let mut next = Manager::new(self.rules.clone(), 7 + self.term, self.now);
        for stamped in &self.log {
            next.apply(stamped);
        }
        self.begin_anew(next);
    }

    /// Settings that hold from the next restart on.
    pub fn set_rules(&mut self, change: impl FnOnce(&mut Settings)) {
        let mut settings = Settings::default();
        change(&mut settings);
        self.rules = settings.check().expect("valid settings");
    }

    /// Restarts like [`Self::restart`], from a snapshot and the events after it.
    pub fn restart_from(&mut self, records: &[SnapshotRecord], downtime: Duration) {
        self.jump(downtime);
        self.term += 1;
        self.now.mono = Mono::from_ms(self.now.mono.as_ms() % 977_000);
        let mut next = Manager::new(self.rules.clone(), 7 + self.term, self.now);
        records.iter().for_each(|record| next.restore(record.clone()));
        let Seq(seq) = next.finish_restore().expect("a whole snapshot");
        for stamped in &self.log[seq as usize..] {
            next.apply(stamped);
        }
        self.begin_anew(next);
    }

    fn begin_anew(&mut self, next: Manager) {
        assert_eq!(next.state().dump(), self.manager.state().dump(), "another machine has the same state");
        self.manager = next;
        self.sent.clear();
        self.answering.clear();
        self.step(Input::SeatTaken { term: Term::new(self.term) });
    }
}

/// This shell keeps no archive: a job that is not in memory is nowhere.
fn without_archive<'a, T: 'a>(answers: impl IntoIterator<Item = &'a mut Result<T, Refusal>>) {
    for answer in answers {
        if let Err(refusal) = answer {
            *refusal = refusal.clone().without_archive();
        }
    }
}

pub fn success() -> EndReport {
    EndReport::Succeed { result: bytes("\"ok\"").into() }
}

pub fn failure() -> EndReport {
    EndReport::Fail { error: "no".into(), retryable: true, delay: None }
}

/// The fence of the n-th hand-out under a term.
pub fn fence(term: u64, handout: u32) -> AttemptFence {
    AttemptFence::new(Term::new(term), handout).expect("in range")
}

/// The notice of a job that met its overall deadline, and that no gate decides about.
pub fn timed_out(job: JobId) -> ManagerNotice {
    ManagerNotice::JobTimedOut { job, reason: TimeoutReason::Overall, by: TimeoutAuthority::Datacenter }
}

/// A job whose handler may go without a forward step for an hour.
pub fn patient(kind: &str) -> Draft {
    Draft { stuck_after: Some(secs(3600)), ..job(kind) }
}
