//! One datacenter: a manager, its log and its archive, and a worker with a habit.

use std::collections::BTreeMap;
use std::time::Duration;

use onward_core::effect::{Effect, Effects, ManagerNotice};
use onward_core::event::{Event, StampedEvent};
use onward_core::fence::Term;
use onward_core::gate::message::{Frame, Outcome, ToDatacenter};
use onward_core::ids::{Claim, ClientId, Incarnation, JobId, Name, RequestId, Seq, SessionId, StreamId, WorkerId};
use onward_core::input::{Call, GateQuestion, Input};
use onward_core::job::JobState;
use onward_core::manager::{JobView, Manager};
use onward_core::message::{Beat, EndReport, ExtensionRequest, FromWorker, Hello, Settlement, Subscription, ToWorker};
use onward_core::settings::Rules;
use onward_core::state::JobImage;
use onward_core::time::{Mono, Now, Wall};

use super::{name, secs};

/// The behaviour of a datacenter's handlers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Habit {
    /// Handlers report progress, and go on for ever.
    Move,
    /// Handlers beat, and do not move.
    Hang,
    /// Handlers succeed at the next beat.
    Finish,
    Fail,
    /// They say nothing at all.
    Sleep,
}

pub struct Datacenter {
    pub name: Name,
    pub manager: Manager,
    pub log: Vec<StampedEvent>,
    pub term: u64,
    pub habit: Habit,
    pub holding: Vec<Claim>,
    pub cancelled: Vec<Claim>,
    /// Handlers that are asked to stop go on.
    pub is_stubborn: bool,
    pub archive: BTreeMap<JobId, JobImage>,
    pub to_gate: Vec<(StreamId, Frame)>,
    /// What was worth a line in its own log.
    pub said: Vec<ManagerNotice>,
    /// Instants at which a gate answered a timeout of each job.
    answered: BTreeMap<JobId, Wall>,
    /// The epoch under which each gate has let this leader in, by their streams.
    welcomed: BTreeMap<StreamId, Option<u64>>,
    /// What the archive is asked while it is slow.
    is_up: bool,
    session: u64,
    beat_at: Mono,
    watermark: u64,
    rules: Rules,
    effects: Effects,
}

impl Datacenter {
    pub fn new(text: &str, rules: &Rules, now: Now) -> Self {
        let mut datacenter = Self {
            name: name(text),
            manager: Manager::new(rules.clone(), 7, now),
            log: Vec::new(),
            term: 1,
            habit: Habit::Move,
            holding: Vec::new(),
            cancelled: Vec::new(),
            is_stubborn: false,
            archive: BTreeMap::new(),
            to_gate: Vec::new(),
            said: Vec::new(),
            answered: BTreeMap::new(),
            welcomed: BTreeMap::new(),
            is_up: true,
            session: 0,
            beat_at: now.mono + secs(5),
            watermark: 0,
            rules: rules.clone(),
            effects: Effects::default(),
        };
        datacenter.step(Input::SeatTaken { term: Term::new(1) }, now);
        datacenter.connect_worker(now);
        datacenter
    }

    fn connect_worker(&mut self, now: Now) {
        self.session += 1;
        let hello = Hello {
            worker: WorkerId::new("w").expect("valid"),
            incarnation: Incarnation::new("one").expect("valid"),
            subscription: Subscription { queues: vec![name("default")], kinds: vec![name("k")] },
            slots: 4,
            holding: self.holding.clone(),
            client: ClientId::default(),
        };
        self.say(FromWorker::Hello(hello), now);
    }

    fn say(&mut self, message: FromWorker, now: Now) {
        let session = SessionId(self.session);
        self.step(Input::Session { session, message }, now);
    }

    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// The leader is gone until somebody takes over.
    pub fn crash(&mut self) {
        self.is_up = false;
        self.to_gate.clear();
        self.welcomed.clear();
    }

    /// Another leader takes the seat, and the worker finds it.
    pub fn take_over(&mut self, now: Now) {
        self.term += 1;
        let mut next = Manager::new(self.rules.clone(), 7 + self.term, now);
        self.log.iter().for_each(|stamped| next.apply(stamped));
        assert_eq!(next.state().dump(), self.manager.state().dump(), "another leader has the same state");
        self.manager = next;
        self.is_up = true;
        self.step(Input::SeatTaken { term: Term::new(self.term) }, now);
        self.connect_worker(now);
    }

    /// The state as it was after so many events, under a term that was used before.
    pub fn restore_backup(&mut self, events: usize, term: u64, now: Now) {
        self.log.truncate(events);
        let mut next = Manager::new(self.rules.clone(), 99 + term, now);
        self.log.iter().for_each(|stamped| next.apply(stamped));
        self.manager = next;
        self.term = term;
        self.holding.clear();
        self.is_up = true;
        self.step(Input::SeatTaken { term: Term::new(term) }, now);
        self.connect_worker(now);
    }

    pub fn open_gate(&mut self, stream: StreamId, now: Now) {
        let datacenter = self.name.clone();
        self.welcomed.insert(stream, None);
        self.step(Input::GateOpened { stream, datacenter }, now);
    }

    pub fn close_gate(&mut self, stream: StreamId, now: Now) {
        self.welcomed.remove(&stream);
        self.step(Input::GateClosed { stream }, now);
    }

    pub fn hear_gate(&mut self, stream: StreamId, message: ToDatacenter, now: Now) {
        if let ToDatacenter::Heard { job } | ToDatacenter::Remaining { job, .. } = &message {
            self.answered.insert(*job, now.wall);
        }
        let tokens = match &message {
            ToDatacenter::GlobalTimeout { epoch, term, .. } => Some((epoch.n, *term)),
            ToDatacenter::Cancel { epoch, .. } => Some((epoch.n, Term::new(self.term))),
            _ => None,
        };
        if let (ToDatacenter::Welcome { epoch }, Some(known)) = (&message, self.welcomed.get_mut(&stream)) {
            *known = Some(epoch.n);
        }
        let before = self.log.len();
        self.step(Input::Gate { stream, message: Box::new(message.clone()) }, now);
        if self.log[before..].iter().any(|stamped| is_obedience(&stamped.event)) {
            let (n, term) = tokens.expect("only an order ends a job for a gate");
            assert_eq!(term, Term::new(self.term), "{message:?} is of another leader's reports, and was obeyed");
            assert!(Some(n) >= self.leading(), "{message:?} is of a gate that was replaced, and was obeyed");
        }
    }

    /// The highest epoch of the gates that have let this leader in.
    pub fn leading(&self) -> Option<u64> {
        self.welcomed.values().copied().flatten().max()
    }

    pub fn step(&mut self, input: Input, now: Now) {
        if !self.is_up {
            return;
        }
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            self.manager.step(now, input, &mut self.effects);
            if !self.effects.events.is_empty() {
                self.log.append(&mut self.effects.events);
                inputs.push(Input::Durable { seq: Seq(self.log.len() as u64) });
            }
            for waiting in std::mem::take(&mut self.effects.list) {
                self.act(waiting.effect, &mut inputs);
            }
        }
        self.manager.state().check();
    }

    fn act(&mut self, effect: Effect, inputs: &mut Vec<Input>) {
        match effect {
            Effect::Send { session, message } if session.0 == self.session => self.hear(session, message, inputs),
            Effect::SendGate { stream, frame } => self.to_gate.push((stream, *frame)),
            Effect::FindArchived { stream, question } => {
                let image = self.archive.get(&question.job()).cloned().map(Box::new);
                if matches!(*question, GateQuestion::Final { .. })
                    || image.is_none()
                    || self.manager.job(question.job()).is_none()
                {
                    inputs.push(Input::ArchivedFound { stream, question, image });
                }
            }
            Effect::Archive { job } => {
                let state = self.manager.state();
                if let Some(key) = state.find(job) {
                    self.archive.insert(job, state.image(key));
                    inputs.push(Input::Archived { jobs: vec![job] });
                }
            }
            Effect::ConfirmSeat { question } => {
                inputs.push(Input::QueueEmptied);
                inputs.push(Input::SeatConfirmed { term: Term::new(self.term), question });
            }
            Effect::Send { .. }
            | Effect::CloseSession { .. }
            | Effect::Reply { .. }
            | Effect::Unreferenced { .. }
            | Effect::FindDue { .. } => {}
            Effect::Report(notice) => self.said.push(notice),
        }
    }

    fn hear(&mut self, session: SessionId, message: ToWorker, inputs: &mut Vec<Input>) {
        match message {
            ToWorker::Assign(assignment) => self.holding.push(assignment.claim),
            ToWorker::Probe { probe } => {
                inputs.push(Input::Session { session, message: FromWorker::ProbeAnswer { probe } });
            }
            ToWorker::Cancel { .. } if self.is_stubborn => {}
            ToWorker::Cancel { claim, .. } => {
                self.holding.retain(|held| *held != claim);
                self.cancelled.push(claim);
                inputs.push(Input::Session { session, message: FromWorker::Ended(vec![claim]) });
            }
            _ => {}
        }
    }

    pub fn next_wakeup(&self) -> Option<Mono> {
        if !self.is_up {
            return None;
        }
        self.manager.next_wakeup().map(|(at, _)| at.min(self.beat_at))
    }

    pub fn wake(&mut self, now: Now) {
        if !self.is_up {
            return;
        }
        if self.beat_at <= now.mono {
            self.beat_at = now.mono + secs(5);
            self.work(now);
        }
        if self.manager.next_wakeup().is_some_and(|(at, _)| at <= now.mono) {
            self.step(Input::Wake, now);
        }
    }

    fn work(&mut self, now: Now) {
        self.watermark += 1;
        let claims = self.holding.clone();
        if claims.is_empty() {
            return;
        }
        let message = match self.habit {
            Habit::Move => {
                let watermark = self.watermark;
                FromWorker::Beats(claims.into_iter().map(|claim| Beat::progress(claim, watermark)).collect())
            }
            Habit::Sleep => return,
            Habit::Hang => FromWorker::Beats(claims.into_iter().map(Beat::plain).collect()),
            Habit::Finish | Habit::Fail => {
                self.holding.clear();
                let report = || match self.habit {
                    Habit::Finish => EndReport::Succeed { result: (*b"\"ok\"").into() },
                    _ => EndReport::Fail { error: "no".into(), retryable: false, delay: None },
                };
                FromWorker::Settle(claims.into_iter().map(|claim| Settlement::new(claim, report())).collect())
            }
        };
        self.say(message, now);
    }

    /// Moves one of the handlers, whatever the habit of all.
    pub fn move_one(&mut self, claim: Claim, now: Now) {
        self.watermark += 1;
        self.say(FromWorker::Beats(vec![Beat::progress(claim, self.watermark)]), now);
    }

    /// One of the handlers says that it will be silent for a while.
    pub fn begin_quiet(&mut self, claim: Claim, quiet: Duration, now: Now) {
        self.say(FromWorker::Beats(vec![Beat { quiet: Some(quiet), ..Beat::plain(claim) }]), now);
    }

    /// An operator gives a job more time, at this manager.
    pub fn extend(&mut self, job: JobId, by: Duration, now: Now) {
        let call = Call::Extend { job, by, reason: "slow".into(), request: name("r") };
        self.step(Input::Call { request: RequestId(1), call }, now);
    }

    /// Every handler ends, and says this of its attempt.
    pub fn settle_all(&mut self, report: &EndReport, now: Now) {
        let claims = std::mem::take(&mut self.holding);
        let settled = claims.into_iter().map(|claim| Settlement::new(claim, report.clone())).collect();
        self.say(FromWorker::Settle(settled), now);
    }

    /// The worker asks for more time for all that it holds.
    pub fn request_extension(&mut self, progress: f64, now: Now) {
        let request = ExtensionRequest {
            claims: self.holding.clone(),
            reason: "long_workflow".into(),
            progress,
            estimated_remaining: None,
        };
        self.say(FromWorker::RequestExtension(request), now);
    }

    /// Whether a handler of this job runs here, or could be started.
    pub fn runs(&self, job: JobId) -> bool {
        self.holding.iter().any(|claim| claim.job == job)
            || self.state(job).is_some_and(|state| Outcome::of(state).is_none())
    }

    /// The job as it is in memory or in the archive.
    pub fn view(&self, job: JobId) -> Option<JobView> {
        self.manager.job(job).or_else(|| self.archive.get(&job).map(JobView::of_image))
    }

    pub fn state(&self, job: JobId) -> Option<JobState> {
        self.view(job).map(|view| view.state)
    }

    pub fn last_word(&self, job: JobId) -> Wall {
        self.answered.get(&job).copied().unwrap_or(Wall::ZERO)
    }

    /// The instant when the job would have ended here, the last time.
    pub fn timed_out_locally(&self, job: JobId) -> Wall {
        let is_it = |event: &Event| matches!(event, Event::LocallyTimedOut { job: of, .. } if *of == job);
        self.log.iter().rev().find(|stamped| is_it(&stamped.event)).map_or(Wall::ZERO, |stamped| stamped.at)
    }

    /// Global timeouts that were obeyed, with their epochs.
    pub fn obeyed(&self) -> impl Iterator<Item = &Event> {
        self.log.iter().map(|stamped| &stamped.event).filter(|event| is_obedience(event))
    }
}

/// Whether a gate's order was obeyed.
const fn is_obedience(event: &Event) -> bool {
    matches!(event, Event::JobTimedOut { epoch: Some(_), .. } | Event::CancelAsked { epoch: Some(_), .. })
}
