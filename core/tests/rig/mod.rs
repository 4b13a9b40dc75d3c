//! A manager machine with a hand on its clock: steps it, makes its events durable, answers what it asks of the shell,
//! and keeps what it sent. Time moves only when a test says so, from one wake-up to the next.

#![allow(dead_code, reason = "every test file uses its own part of the rig")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onward_core::effect::{AcceptedJob, Answer, Effect, Effects, Notice};
use onward_core::event::{Event, StampedEvent};
use onward_core::fence::{AttemptFence, Term};
use onward_core::health::Verdict;
use onward_core::ids::{Bytes, Claim, ClientId, Incarnation, JobId, Name, RequestId, Seq, SessionId, WorkerId};
use onward_core::input::{Call, Filter, Input, Poll, Submission};
use onward_core::job::{Draft, JobState};
use onward_core::manager::{JobView, Manager, SnapshotRecord, WorkerView};
use onward_core::message::{
    Assignment, Beat, BeatAccepted, ExtensionAnswer, ExtensionRequest, FromWorker, Hello, Report, Settlement,
    Subscription, ToWorker,
};
use onward_core::payload::Digest;
use onward_core::refusal::{Refusal, RefusalKind};
use onward_core::settings::{Rules, Settings};
use onward_core::time::{Mono, Now, Wall};

/// Wall clock at the start of every rig.
pub const EPOCH_MS: u64 = 1_800_000_000_000;

/// Where there are more jobs, the state is not checked after every step.
const CHECKED_JOBS: usize = 64;

pub struct Rig {
    pub manager: Manager,
    pub log: Vec<StampedEvent>,
    pub sent: Vec<(SessionId, ToWorker)>,
    pub replies: BTreeMap<RequestId, Result<Answer, Refusal>>,
    pub notices: Vec<Notice>,
    pub closed: Vec<SessionId>,
    pub to_archive: Vec<JobId>,
    pub unreferenced: Vec<Digest>,
    /// Sessions that answer probes at once, as a live worker does.
    pub answering: BTreeSet<SessionId>,
    /// Off: events stay undurable and the seat unconfirmed until the test says otherwise.
    pub log_answers: bool,
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
        inputs.extend(crate::due::find_due(&effect));
        match effect {
            Effect::Send { session, message } => {
                if let (ToWorker::Probe { probe }, true) = (&message, self.answering.contains(&session)) {
                    inputs.push(Input::Session { session, message: FromWorker::ProbeAnswer { probe: *probe } });
                }
                self.sent.push((session, message));
            }
            Effect::CloseSession { session } => self.closed.push(session),
            Effect::Reply { request, answer } => {
                assert!(self.replies.insert(request, answer).is_none(), "one answer per call");
            }
            Effect::Archive { job } => self.to_archive.push(job),
            Effect::Unreferenced { digest } => self.unreferenced.push(digest),
            Effect::ConfirmSeat { question } => {
                self.question = question;
                if self.log_answers {
                    inputs.push(Input::Drained);
                    inputs.push(self.seat_answer());
                }
            }
            Effect::Report(notice) => self.notices.push(notice),
            Effect::FindDue { .. } => {}
        }
    }

    /// What the log answers to the newest question about the seat.
    pub fn seat_answer(&self) -> Input {
        Input::SeatConfirmed { term: Term::new(self.term), question: self.question }
    }

    /// Lets time pass, waking the machine whenever it asks for it.
    pub fn advance(&mut self, span: Duration) {
        self.watch(span, |_| {});
    }

    /// As [`Self::advance`], looking at the machine before, after every wake-up, and at the end.
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

    /// Somebody sets the wall clock: it jumps, and no time passes.
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

    /// As [`Self::restart`], from a snapshot and the events after it.
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

    // ---- clients

    pub fn call(&mut self, call: Call) -> Result<Answer, Refusal> {
        let request = self.call_open(call);
        self.replies.remove(&request).expect("this call is answered at once")
    }

    /// A call that may be answered later, under the id returned.
    pub fn call_open(&mut self, call: Call) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.step(Input::Call { request, call });
        request
    }

    pub fn reply(&mut self, request: RequestId) -> Option<Result<Answer, Refusal>> {
        self.replies.remove(&request)
    }

    pub fn new_id(&mut self) -> JobId {
        self.jobs += 1;
        JobId::v7(self.now.wall, u128::from(self.jobs))
    }

    pub fn try_submit(&mut self, draft: Draft) -> Result<JobId, Refusal> {
        let id = self.new_id();
        match self.call(Call::Submit(vec![Submission { id, draft }]))? {
            Answer::Submitted(accepted) => Ok(accepted[0].id),
            other => panic!("a submission is answered by {other:?}"),
        }
    }

    pub fn submit(&mut self, draft: Draft) -> JobId {
        self.try_submit(draft).expect("accepted")
    }

    pub fn cancel(&mut self, job: JobId) {
        assert_eq!(self.call(Call::Cancel { job, epoch: None }), Ok(Answer::Done));
    }

    /// Cancels all jobs that match, and says how many.
    pub fn cancel_where(&mut self, filter: Filter) -> usize {
        let mut jobs: Vec<JobId> = self.manager.state().jobs().map(|(_, job)| job.id).collect();
        jobs.sort_unstable();
        match self.call(Call::CancelWhere { filter, jobs }) {
            Ok(Answer::Cancelled { jobs }) => jobs,
            other => panic!("a cancel by filter is answered by {other:?}"),
        }
    }

    pub fn view(&self, job: JobId) -> JobView {
        self.manager.job(job).expect("the job is known")
    }

    pub fn state_of(&self, job: JobId) -> JobState {
        self.view(job).state
    }

    /// How the attempts of a job's first workflow ended so far, oldest first.
    pub fn endings(&self, job: JobId) -> Vec<&'static str> {
        self.view(job).workflows[0].ended.iter().map(|ended| ended.ending.code()).collect()
    }

    /// Attempts of a job's first workflow that count.
    pub fn counted(&self, job: JobId) -> u32 {
        self.view(job).workflows[0].counted
    }

    /// How many events of a kind are in the log.
    pub fn logged(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.log.iter().filter(|stamped| is(&stamped.event)).count()
    }

    pub fn eviction_count(&self) -> usize {
        self.logged(|event| matches!(event, Event::WorkerEvicted { .. }))
    }

    /// Notices since this was last asked.
    pub fn noticed(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    pub fn refused(&self, kind: RefusalKind) -> u64 {
        self.manager.refusals().of(kind)
    }

    // ---- workers with a session

    /// A worker of queue `default` says hello on a new session and answers probes from then on.
    pub fn worker(&mut self, id: &str, session: u64, slots: u32, kinds: &[&str]) -> SessionId {
        self.hello(id, "1", session, slots, kinds, vec![])
    }

    pub fn hello(
        &mut self,
        id: &str,
        incarnation: &str,
        session: u64,
        slots: u32,
        kinds: &[&str],
        holding: Vec<Claim>,
    ) -> SessionId {
        let session = SessionId(session);
        self.answering.insert(session);
        let hello = Hello {
            worker: worker_id(id),
            incarnation: Incarnation::new(incarnation).expect("valid"),
            subscription: subscription(&["default"], kinds),
            slots,
            holding,
            client: ClientId::default(),
        };
        self.tell(session, FromWorker::Hello(hello));
        session
    }

    pub fn tell(&mut self, session: SessionId, message: FromWorker) {
        self.step(Input::Session { session, message });
    }

    pub fn close(&mut self, session: SessionId) {
        self.answering.remove(&session);
        self.step(Input::SessionClosed { session });
    }

    /// What was assigned on a session since this was last asked.
    pub fn assigned(&mut self, session: SessionId) -> Vec<Assignment> {
        let mut assignments = Vec::new();
        self.sent.retain(|(to, message)| match message {
            ToWorker::Assign(assignment) if *to == session => {
                assignments.push(assignment.clone());
                false
            }
            _ => true,
        });
        assignments
    }

    /// The one claim that was assigned on a session since this was last asked.
    pub fn claim(&mut self, session: SessionId) -> Claim {
        let assigned = self.assigned(session);
        assert_eq!(assigned.len(), 1, "exactly one assignment was expected: {assigned:?}");
        assigned[0].claim
    }

    /// Cancels that were sent on a session since this was last asked.
    pub fn cancelled(&mut self, session: SessionId) -> Vec<Claim> {
        let mut claims = Vec::new();
        self.sent.retain(|(to, message)| match message {
            ToWorker::Cancel { claim, .. } if *to == session => {
                claims.push(*claim);
                false
            }
            _ => true,
        });
        claims
    }

    pub fn beat(&mut self, session: SessionId, beat: Beat) -> Result<BeatAccepted, Refusal> {
        self.tell(session, FromWorker::Beats(vec![beat]));
        match self.last_sent(session) {
            ToWorker::BeatAnswers(mut answers) => answers.remove(0).answer,
            other => panic!("a beat is answered by {other:?}"),
        }
    }

    pub fn progress(&mut self, session: SessionId, claim: Claim, watermark: u64) {
        self.beat(session, Beat::progress(claim, watermark)).expect("accepted");
    }

    pub fn settle(&mut self, session: SessionId, claim: Claim, report: Report) -> Result<(), Refusal> {
        self.tell(session, FromWorker::Settle(vec![Settlement::new(claim, report)]));
        let answers =
            self.sent.iter().rposition(|(to, message)| *to == session && matches!(message, ToWorker::SettleAnswers(_)));
        match self.sent.remove(answers.expect("a settlement is answered")) {
            (_, ToWorker::SettleAnswers(mut answers)) => answers.remove(0).answer,
            _ => unreachable!("found by its variant"),
        }
    }

    pub fn succeed(&mut self, session: SessionId, claim: Claim) -> Result<(), Refusal> {
        self.settle(session, claim, success())
    }

    pub fn fail(&mut self, session: SessionId, claim: Claim) -> Result<(), Refusal> {
        self.settle(session, claim, failure())
    }

    pub fn release(&mut self, session: SessionId, claim: Claim) -> Result<(), Refusal> {
        self.settle(session, claim, Report::Release { delay: None })
    }

    pub fn ask_extension(&mut self, session: SessionId, claims: Vec<Claim>, progress: f64) -> ExtensionAnswer {
        let asked = ExtensionRequest { claims, reason: "long_workflow".into(), progress, estimated_remaining: None };
        self.tell(session, FromWorker::RequestExtension(asked));
        match self.last_sent(session) {
            ToWorker::ExtensionAnswer(answer) => answer,
            other => panic!("an extension request is answered by {other:?}"),
        }
    }

    pub fn last_sent(&mut self, session: SessionId) -> ToWorker {
        let at = self.sent.iter().rposition(|(to, _)| *to == session).expect("something was sent");
        self.sent.remove(at).1
    }

    pub fn verdict(&self, id: &str) -> Verdict {
        self.worker_view(id).judgement.verdict
    }

    pub fn worker_view(&self, id: &str) -> WorkerView {
        self.manager.worker(&worker_id(id)).expect("the worker is known")
    }

    // ---- workers without one

    pub fn poll_of(id: &str, kinds: &[&str], max: u32, wait: Duration) -> Poll {
        Poll {
            worker: worker_id(id),
            incarnation: Incarnation::new("1").expect("valid"),
            subscription: subscription(&["default"], kinds),
            max,
            wait,
            lease: secs(30),
            id: None,
            client: ClientId::default(),
        }
    }

    pub fn leases(&mut self, poll: Poll) -> Vec<Assignment> {
        match self.call(Call::Poll(poll)) {
            Ok(Answer::Leases(leases)) => leases,
            other => panic!("a poll is answered by {other:?}"),
        }
    }

    pub fn http_beat(&mut self, beat: Beat) -> Result<BeatAccepted, Refusal> {
        match self.call(Call::Beat(vec![beat]))? {
            Answer::Beats(mut answers) => answers.remove(0).answer,
            other => panic!("a beat is answered by {other:?}"),
        }
    }

    pub fn http_settle(&mut self, claim: Claim, report: Report) -> Result<(), Refusal> {
        match self.call(Call::Settle(vec![Settlement::new(claim, report)]))? {
            Answer::Settled(mut answers) => answers.remove(0).answer,
            other => panic!("a settlement is answered by {other:?}"),
        }
    }

    pub fn http_ask_extension(&mut self, claim: Claim, progress: f64) -> Result<ExtensionAnswer, Refusal> {
        let asked = ExtensionRequest {
            claims: vec![claim],
            reason: "long_workflow".into(),
            progress,
            estimated_remaining: None,
        };
        match self.call(Call::RequestExtension(asked))? {
            Answer::Extension(answer) => Ok(answer),
            other => panic!("an extension request is answered by {other:?}"),
        }
    }
}

pub fn success() -> Report {
    Report::Succeed { result: bytes("\"ok\"").into() }
}

pub fn failure() -> Report {
    Report::Fail { error: "no".into(), retryable: true, delay: None }
}

/// The fence of the n-th hand-out under a term.
pub fn fence(term: u64, handout: u32) -> AttemptFence {
    AttemptFence::new(Term::new(term), handout).expect("in range")
}

/// A job whose handler may go without a forward step for an hour.
pub fn patient(kind: &str) -> Draft {
    Draft { stuck_after: Some(secs(3600)), ..job(kind) }
}

// ---- shorthands

impl Rig {
    /// Live workers that take nothing of what a test submits: they only count.
    pub fn bystanders(&mut self, count: u64) {
        for n in 0..count {
            self.worker(&format!("bystander-{n}"), 900 + n, 1, &["nothing"]);
        }
    }

    /// The session stays open, and the worker answers no probe from now on.
    pub fn silence(&mut self, session: SessionId) {
        self.answering.remove(&session);
    }

    pub fn knows(&self, id: &str) -> bool {
        self.manager.worker(&worker_id(id)).is_some()
    }

    pub fn submit_all(&mut self, drafts: Vec<Draft>) -> Result<Vec<AcceptedJob>, Refusal> {
        let batch = drafts.into_iter().map(|draft| Submission { id: self.new_id(), draft }).collect();
        match self.call(Call::Submit(batch))? {
            Answer::Submitted(accepted) => Ok(accepted),
            other => panic!("a submission is answered by {other:?}"),
        }
    }

    /// Messages of a session that were not looked at, without probes.
    pub fn messages(&mut self, session: SessionId) -> Vec<ToWorker> {
        let (of_session, others) = std::mem::take(&mut self.sent).into_iter().partition(|(to, _)| *to == session);
        self.sent = others;
        let of_session: Vec<(SessionId, ToWorker)> = of_session;
        let messages = of_session.into_iter().map(|(_, message)| message);
        messages.filter(|message| !matches!(message, ToWorker::Probe { .. })).collect()
    }

    pub fn http_extension(&mut self, asked: ExtensionRequest) -> ExtensionAnswer {
        match self.call(Call::RequestExtension(asked)) {
            Ok(Answer::Extension(answer)) => answer,
            other => panic!("an extension request is answered by {other:?}"),
        }
    }

    pub fn fail_for_good(&mut self, session: SessionId, claim: Claim) -> Result<(), Refusal> {
        self.settle(session, claim, Report::Fail { error: "no".into(), retryable: false, delay: None })
    }

    /// Five jobs of kind `k` fail for good on a worker that has room for one.
    pub fn fail_five(&mut self, session: SessionId) {
        for _ in 0..5 {
            self.submit(job("k"));
            let claim = self.claim(session);
            self.fail_for_good(session, claim).expect("accepted");
        }
    }

    /// Everything that a worker gets fails, for 119 s: it is stuck a second later, and evicted 30 s after that.
    pub fn fail_for_119_s(&mut self, session: SessionId) {
        for wait_s in [50, 50, 19] {
            self.fail_five(session);
            self.advance(secs(wait_s));
        }
    }

    /// The same of a worker without a session.
    pub fn http_fail_for_119_s(&mut self, poll: &Poll) {
        for wait_s in [50, 50, 19] {
            for _ in 0..5 {
                self.submit(job("k"));
                let claim = self.leases(poll.clone()).remove(0).claim;
                let report = Report::Fail { error: "no".into(), retryable: false, delay: None };
                self.http_settle(claim, report).expect("accepted");
            }
            self.advance(secs(wait_s));
        }
    }

    /// A worker answers no probe until it is evicted, 40 s later, and answers again from then on.
    pub fn evict(&mut self, session: SessionId) {
        let before = self.eviction_count();
        self.silence(session);
        self.advance(secs(40));
        assert_eq!(self.eviction_count(), before + 1, "it was suspect for ten seconds");
        self.answering.insert(session);
    }

    /// The workers that were evicted so far.
    pub fn evictions(&self) -> Vec<&str> {
        let evicted = self.notices.iter().filter_map(|notice| match notice {
            Notice::WorkerEvicted { worker } => Some(worker.as_str()),
            _ => None,
        });
        evicted.collect()
    }
}
