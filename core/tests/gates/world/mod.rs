//! Gates, several datacenters with a manager and a worker each, and the streams between them. One gate leads; one that was
//! deposed may be about, with streams of its own (`deposed`). Time moves only when a test says so.

mod datacenter;
mod deposed;

use std::collections::BTreeMap;
use std::time::Duration;

use onward_core::effect::AcceptedJob;
use onward_core::fence::{GateEpoch, Term};
use onward_core::gate::effect::{Answer, Effect, Effects, GateNotice};
use onward_core::gate::event::{Event, StampedEvent};
use onward_core::gate::input::{Call, Input};
use onward_core::gate::message::{Frame, FromDatacenter, ToDatacenter};
use onward_core::gate::{Gate, JobView, SnapshotRecord, TargetState};
use onward_core::ids::{JobId, Name, RequestId, Seq, StreamId};
use onward_core::input::Submission;
use onward_core::job::{Draft, JobState, OnStuck, TimeoutPolicy};
use onward_core::refusal::Refusal;
use onward_core::settings::{Rules, Settings};
use onward_core::time::{Mono, Now, Wall};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use datacenter::{Datacenter, Habit};
use deposed::DeposedGate;
pub use deposed::Woke;

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

/// A parcel on its way between a gate and a datacenter.
#[derive(Clone)]
enum Parcel {
    Up(Frame),
    Down(ToDatacenter),
}

struct Wire {
    at: Mono,
    datacenter: usize,
    stream: StreamId,
    parcel: Parcel,
}

/// The state of the network.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    /// Drops in percent.
    pub drops: u64,
    pub doubles: u64,
    pub delay_ms: u64,
}

pub struct World {
    pub now: Now,
    /// The gate that has the seat.
    pub gate: Option<Gate>,
    /// Its number in epochs.
    gate_id: u64,
    deposed: Option<DeposedGate>,
    pub gate_log: Vec<StampedEvent>,
    pub gate_term: u64,
    pub datacenters: Vec<Datacenter>,
    /// Whether a datacenter reaches the gate.
    pub links: Vec<bool>,
    streams: Vec<Option<StreamId>>,
    wires: Vec<Wire>,
    pub weather: Weather,
    /// No order reaches this datacenter; it is let in, and what it says arrives.
    pub deaf: Option<usize>,
    pub notices: Vec<GateNotice>,
    pub replies: BTreeMap<RequestId, Result<Answer, Refusal>>,
    /// Every decision that was sent, by whether it is a global timeout: to whom, about what, under which tokens.
    pub sent: Vec<(usize, ToDatacenter)>,
    /// What the gate that leads has heard, and from whom.
    pub heard: Vec<(usize, FromDatacenter)>,
    pub rules: Rules,
    next: u64,
    rng: ChaCha8Rng,
    effects: Effects,
    snapshot: Option<Vec<SnapshotRecord>>,
}

/// A job that ends as stuck the first time that it is.
pub fn impatient(datacenters: &[&str]) -> Draft {
    Draft {
        on_stuck: OnStuck::TimeOut,
        require_progress: true,
        datacenters: datacenters.iter().map(|text| (*text).into()).collect(),
        ..Draft::of_kind("k", *b"{}")
    }
}

pub fn with_policy(policy: TimeoutPolicy, draft: Draft) -> Draft {
    Draft { timeout_policy: policy, ..draft }
}

impl World {
    pub fn new(datacenters: &[&str]) -> Self {
        Self::with(1, datacenters, |_| {})
    }

    pub fn with(seed: u64, datacenters: &[&str], change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        let rules = settings.check().expect("valid settings");
        let now = Now { mono: Mono::from_ms(5_000), wall: Wall::from_ms(1_800_000_000_000) };
        let count = datacenters.len();
        let mut world = Self {
            now,
            gate: None,
            gate_id: 7,
            deposed: None,
            gate_log: Vec::new(),
            gate_term: 0,
            datacenters: datacenters.iter().map(|name| Datacenter::new(name, &rules, now)).collect(),
            links: vec![true; count],
            streams: vec![None; count],
            wires: Vec::new(),
            weather: Weather::default(),
            deaf: None,
            notices: Vec::new(),
            replies: BTreeMap::new(),
            sent: Vec::new(),
            heard: Vec::new(),
            rules,
            next: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            effects: Effects::default(),
            snapshot: None,
        };
        world.start_gate();
        world.advance(secs(1));
        world
    }

    // ---- chance

    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    // ---- the gate

    /// A gate takes the seat and replays the log, from a snapshot if there is one.
    pub fn start_gate(&mut self) {
        self.gate_term += 1;
        let mut gate = Gate::new(self.rules.clone(), self.gate_id, self.now);
        let mut from = 0;
        if let Some(records) = &self.snapshot {
            records.iter().for_each(|record| gate.restore(record.clone()));
            from = gate.finish_restore().expect("a whole snapshot").0 as usize;
        }
        for stamped in &self.gate_log[from..] {
            gate.apply(stamped);
        }
        self.gate = Some(gate);
        self.step_gate(Input::SeatTaken { term: Term::new(self.gate_term) });
    }

    pub fn kill_gate(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        let mut copy = Gate::new(self.rules.clone(), 7, self.now);
        self.gate_log.iter().for_each(|stamped| copy.apply(stamped));
        assert_eq!(copy.state().dump(), gate.state().dump(), "a replay gives the same state");
        for datacenter in 0..self.datacenters.len() {
            self.close_stream(datacenter);
        }
    }

    /// The gate's folder is lost: another begins with nothing.
    pub fn lose_gate(&mut self) {
        self.kill_gate();
        self.end_deposed();
        self.gate_log.clear();
        self.snapshot = None;
        self.gate_term = 0;
    }

    /// A snapshot of the gate, taken in one go.
    pub fn snapshot_gate(&mut self) {
        let Some(gate) = &mut self.gate else { return };
        gate.begin_snapshot();
        let mut records = Vec::new();
        loop {
            let (some, is_last) = gate.snapshot_next(3);
            records.extend(some);
            if is_last {
                break;
            }
        }
        self.snapshot = Some(records);
    }

    pub fn step_gate(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let Some(gate) = &mut self.gate else { return };
            gate.step(self.now, input, &mut self.effects);
            if !self.effects.events.is_empty() {
                self.gate_log.append(&mut self.effects.events);
                inputs.push(Input::Durable { seq: Seq(self.gate_log.len() as u64) });
            }
            for waiting in std::mem::take(&mut self.effects.list) {
                assert!(waiting.after.0 <= self.gate_log.len() as u64, "an effect waits for an event that exists");
                match waiting.effect {
                    Effect::Send { stream, message } => self.send_down(stream, message),
                    Effect::CloseStream { stream } => {
                        if let Some(at) = self.streams.iter().position(|open| *open == Some(stream)) {
                            self.disconnect(at);
                        }
                    }
                    Effect::Reply { request, answer } => {
                        assert!(self.replies.insert(request, answer).is_none(), "one answer per call");
                    }
                    Effect::Unreferenced { .. } => {}
                    Effect::ConfirmSeat { question } => {
                        inputs.push(Input::Drained);
                        inputs.push(Input::SeatConfirmed { term: Term::new(self.gate_term), question });
                    }
                    Effect::Report(notice) => self.notices.push(notice),
                }
            }
            if let Some((at, why)) = self.gate.as_ref().and_then(Gate::next_wakeup) {
                assert!(at >= self.now.mono, "the next wake-up ({why:?}) is in the past");
            }
        }
    }

    pub fn call(&mut self, call: Call) -> Result<Answer, Refusal> {
        let request = RequestId(self.fresh());
        self.step_gate(Input::Call { request, call });
        self.replies.remove(&request).expect("the gate serves")
    }

    pub fn submit(&mut self, draft: Draft) -> JobId {
        let random = u128::from(self.fresh());
        let id = JobId::v7(self.now.wall, random);
        match self.call(Call::Submit(vec![Submission { id, draft }])) {
            Ok(Answer::Submitted(accepted)) => {
                let [AcceptedJob { id, .. }] = accepted[..] else { panic!("one answer for one job") };
                id
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn gate(&self) -> &Gate {
        self.gate.as_ref().expect("the gate is up")
    }

    pub fn view(&self, job: JobId) -> JobView {
        self.gate().job(job).expect("the gate knows the job")
    }

    pub fn state(&self, job: JobId) -> JobState {
        self.view(job).state
    }

    pub fn target(&self, job: JobId, datacenter: &str) -> TargetState {
        let view = self.view(job);
        view.targets.iter().find(|target| target.datacenter.as_str() == datacenter).expect("a target").state
    }

    /// The instant when the end of a job was decided.
    pub fn declared(&self, job: JobId) -> Option<Wall> {
        self.gate_log.iter().find_map(|stamped| match &stamped.event {
            Event::EndDecided { job: of, .. } if *of == job => Some(stamped.at),
            _ => None,
        })
    }

    // ---- the network

    pub fn disconnect(&mut self, datacenter: usize) {
        self.close_stream(datacenter);
        self.close_stream_to_deposed(datacenter);
    }

    /// Closes the stream between a datacenter and the gate that leads.
    fn close_stream(&mut self, datacenter: usize) {
        let Some(stream) = self.streams[datacenter].take() else { return };
        self.wires.retain(|wire| wire.stream != stream || self.weather.delay_ms > 0);
        self.step_gate(Input::StreamClosed { stream });
        self.datacenters[datacenter].close_gate(stream, self.now);
        self.carry(datacenter);
    }

    /// The stream of a datacenter that has one.
    pub fn stream(&self, datacenter: usize) -> StreamId {
        self.streams[datacenter].expect("it is connected")
    }

    pub fn open_stream(&self, datacenter: usize) -> Option<StreamId> {
        self.streams[datacenter]
    }

    pub fn cut(&mut self, datacenter: usize) {
        self.links[datacenter] = false;
        self.disconnect(datacenter);
    }

    pub fn mend(&mut self, datacenter: usize) {
        self.links[datacenter] = true;
    }

    /// Datacenters that reach the gate and have no stream dial it.
    fn dial(&mut self) {
        for datacenter in 0..self.datacenters.len() {
            let can = self.gate.is_some() && self.links[datacenter] && self.datacenters[datacenter].is_up();
            if can && self.streams[datacenter].is_none() {
                let stream = StreamId(self.fresh());
                self.streams[datacenter] = Some(stream);
                let name = self.datacenters[datacenter].name.clone();
                self.step_gate(Input::StreamOpened { stream, datacenter: name });
                self.datacenters[datacenter].open_gate(stream, self.now);
                self.carry(datacenter);
            }
        }
    }

    fn send_down(&mut self, stream: StreamId, message: ToDatacenter) {
        let Some(datacenter) = self.streams.iter().position(|open| *open == Some(stream)) else { return };
        self.sent.push((datacenter, message.clone()));
        self.put_on_wire(datacenter, stream, Parcel::Down(message));
    }

    /// Sends what a datacenter has to say.
    pub fn carry(&mut self, datacenter: usize) {
        for (stream, frame) in std::mem::take(&mut self.datacenters[datacenter].to_gate) {
            if self.streams[datacenter] == Some(stream) || self.is_of_deposed(datacenter, stream) {
                self.put_on_wire(datacenter, stream, Parcel::Up(frame));
            }
        }
    }

    fn put_on_wire(&mut self, datacenter: usize, stream: StreamId, parcel: Parcel) {
        let Weather { drops, doubles, delay_ms } = self.weather;
        let is_hello = matches!(
            &parcel,
            Parcel::Up(Frame { message: FromDatacenter::Hello(_), .. }) | Parcel::Down(ToDatacenter::Welcome { .. })
        );
        let is_lost = matches!(parcel, Parcel::Down(_)) && self.deaf == Some(datacenter);
        if !is_hello && (is_lost || drops > 0 && self.chance(drops)) {
            return;
        }
        let copies = if doubles > 0 && self.chance(doubles) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = if delay_ms > 0 { self.below(delay_ms) } else { 0 };
            let at = self.now.mono + Duration::from_millis(1 + delay);
            self.wires.push(Wire { at, datacenter, stream, parcel: parcel.clone() });
        }
    }

    fn deliver_due(&mut self) {
        loop {
            let due = self.wires.iter().enumerate().filter(|(_, wire)| wire.at <= self.now.mono);
            let Some((index, _)) = due.min_by_key(|(index, wire)| (wire.at, *index)) else { return };
            let Wire { datacenter, stream, parcel, .. } = self.wires.remove(index);
            match parcel {
                Parcel::Up(frame) if self.is_of_deposed(datacenter, stream) => self.tell_deposed(stream, frame),
                Parcel::Up(frame) => {
                    self.heard.push((datacenter, frame.message.clone()));
                    self.step_gate(Input::Datacenter { stream, frame });
                }
                Parcel::Down(message) => {
                    self.datacenters[datacenter].hear_gate(stream, message, self.now);
                    self.carry(datacenter);
                }
            }
        }
    }

    // ---- time

    pub fn jump(&mut self, span: Duration) {
        self.now = Now { mono: self.now.mono + span, wall: self.now.wall + span };
    }

    pub fn advance(&mut self, span: Duration) {
        let end = self.now.mono + span;
        let mut at_once = 0;
        loop {
            self.dial();
            let gate = self.gate.as_ref().and_then(Gate::next_wakeup).map(|(at, _)| at);
            let wires = self.wires.iter().map(|wire| wire.at).min();
            let others = self.datacenters.iter().filter_map(Datacenter::next_wakeup).min();
            let gates = gate.into_iter().chain(self.deposed_wakes_at());
            let Some(next) = gates.chain(wires).chain(others).min().filter(|at| *at <= end) else { break };
            at_once = if next <= self.now.mono { at_once + 1 } else { 0 };
            assert!(at_once < 2_000, "something asks again and again to be woken at once");
            self.jump(next.since(self.now.mono));
            self.deliver_due();
            if self.gate.as_ref().and_then(Gate::next_wakeup).is_some_and(|(at, _)| at <= self.now.mono) {
                self.step_gate(Input::Wake);
            }
            if self.deposed_wakes_at().is_some_and(|at| at <= self.now.mono) {
                self.step_deposed(Input::Wake);
            }
            for datacenter in 0..self.datacenters.len() {
                self.datacenters[datacenter].wake(self.now);
                self.carry(datacenter);
            }
        }
        self.jump(end.since(self.now.mono));
    }

    /// Lets time pass until this holds, at most for `within`. Gives how long it took.
    pub fn until(&mut self, within: Duration, what: &str, holds: impl Fn(&Self) -> bool) -> Duration {
        let from = self.now.mono;
        while !holds(self) {
            assert!(self.now.mono.since(from) < within, "not within {within:?}: {what}");
            self.advance(Duration::from_millis(100));
        }
        self.now.mono.since(from)
    }

    pub fn has_ended_everywhere(&self, job: JobId) -> bool {
        self.datacenters.iter().all(|datacenter| !datacenter.runs(job))
    }

    pub fn epoch(&self, n: u64) -> GateEpoch {
        GateEpoch { n, gate: self.gate_id }
    }
}
