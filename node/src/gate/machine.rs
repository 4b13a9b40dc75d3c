//! The thread that owns the gate's machine.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use onward_core::fence::Term;
use onward_core::gate::Gate;
use onward_core::gate::effect::{Answer, Effect, Effects};
use onward_core::gate::event::{Event, StampedEvent};
use onward_core::gate::input::Input;
use onward_core::gate::message::ToDatacenter;
use onward_core::health::overload::{OverloadDetector, OverloadLevel, OverloadReason};
use onward_core::ids::{RequestId, Seq, StreamId};
use onward_core::manager::SeatState;
use onward_core::payload::Payload;
use onward_core::time::{Awake, Mono, Now};
use onward_log::{BlobDigest, Error, OwnedBlob};
use tokio::sync::oneshot;

use super::host::Outgoing;
use super::term::{FollowerLoad, GateStartRole, HeldCalls, LoopControl, begin, begin_first, follow_on, report_trouble};
use super::{Command, GateStart, GateState, ReadWork, RunningThread, notices};
use crate::clock;
use crate::cluster::leader::LeaderView;
use crate::engine::content::Contents;
use crate::engine::load::{self, Meter};
use crate::engine::vitals::DieOnPanic;
use crate::engine::watch::Watchers;
use crate::engine::{EngineRefusal, may_pass};
use crate::outbox::BacklogSender;
use crate::run_loop::{
    CloseAtEnd, CommitAnswer, CommitQueue, CommitReply, CommitRequest, Commits, Committer, Host as _, NewTerm,
    OutgoingSender, Rounds, Snapshots, StateMachine, TermEnd, Wait, take_turns,
};

/// The number of asks that are taken before what they decided is handed to the log.
const ROUND: usize = 1_024;
/// The clock is read again after so many inputs.
const CLOCK_EVERY: usize = 64;
/// The wait before the next look at the log, if what waits for it concerns the machine alone.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The pause between two turns in which something is done for later.
const BREATH: Duration = Duration::from_micros(500);

pub(super) fn spawn(mut start: GateStart, shared: &Arc<GateState>) -> Result<(), Error> {
    // The first term is begun here, so that whoever starts a gate learns at once what is wrong.
    let first = begin_first(&mut start, shared)?;
    let (theirs, (running, ended)) = (shared.clone(), channel());
    let work = move || {
        // Also if it panics: nobody may wait for a machine that is no more.
        let _end = (DieOnPanic(&theirs.vitals.machine), CloseAtEnd(&theirs.run_queue));
        run_terms(first, start, &theirs);
        theirs.close();
        drop(running);
    };
    let thread = thread::Builder::new().name("onward-machine".into()).spawn(work);
    let thread = thread.map_err(|error| Error::Io { cause: format!("cannot start a thread: {error}") })?;
    *shared.thread.lock().expect("no thread panics while it holds this") = Some(RunningThread { thread, ended });
    Ok(())
}

/// Term after term, until told to stop.
fn run_terms(first: GateStartRole, mut start: GateStart, shared: &Arc<GateState>) {
    let mut begun = Ok(first);
    let mut tried_at = Instant::now();
    let mut watchers = Watchers::default();
    let mut load = FollowerLoad::new(start.rules.overload);
    let mut held = HeldCalls::for_as_long_as(start.rules.seat_ttl);
    loop {
        let ended = match begun {
            Ok(GateStartRole::Leads(term)) => {
                held.give_back(shared);
                let ended = serve_term(term, &start, shared, &mut watchers);
                load = FollowerLoad::new(start.rules.overload);
                ended
            }
            Ok(GateStartRole::Follows(follower)) => {
                match follow_on(follower, &mut start, shared, &mut held, &mut watchers, &mut load) {
                    Some(next) => {
                        begun = next;
                        continue;
                    }
                    None => return,
                }
            }
            Err(error) => TermEnd::Failed(error),
        };
        shared.vitals.takeover.begin_unless_begun();
        if !matches!(ended, TermEnd::HandsOver) {
            shared.handover.give_up();
        }
        match ended {
            TermEnd::Stopped => return,
            TermEnd::HandsOver => {
                let view = shared.leader_view.borrow().clone();
                if shared.handover.carry_out(&mut *start.leadership, view, |view| shared.publish(view)) {
                    // Commands that were not begun are for the next leader, and their callers learn that at once.
                    let flow = held.wait_for(Duration::ZERO, shared, &mut watchers);
                    if flow == LoopControl::Stop || shared.is_stopping() {
                        return;
                    }
                    held.refuse(shared);
                    begun = begin(&mut start, shared);
                    continue;
                }
            }
            TermEnd::Failed(error) => {
                start.leadership.term_ended();
                // The next look at the seat may take long.
                if start.heirs.is_some() && may_pass(&error) {
                    shared.publish_cut_off();
                }
                report_trouble(shared, &error);
            }
            TermEnd::SeatLost => {
                start.leadership.term_ended();
                tracing::warn!("another process took the seat");
                shared.set_trouble("another process took the seat".into());
            }
        }
        // Whatever failed, the disk and the node's own log are left in peace for a while.
        let rest = start.pacing.term_every.saturating_sub(tried_at.elapsed());
        let is_told_to_stop = !rest.is_zero() && held.wait_for(rest, shared, &mut watchers) == LoopControl::Stop;
        if is_told_to_stop || shared.is_stopping() {
            return;
        }
        tried_at = Instant::now();
        begun = begin(&mut start, shared);
    }
}

fn serve_term(term: NewTerm<Gate>, start: &GateStart, shared: &Arc<GateState>, watchers: &mut Watchers) -> TermEnd {
    shared.load.set(OverloadLevel::Normal, OverloadReason::WithinLimits);
    let (mut committer, log, outgoing) =
        Committer::new(term.log, (term.term, term.taken_at), term.last, shared.clone());
    let mut machine = Machine {
        gate: term.machine,
        term: term.term,
        now: clock::now(),
        effects: Effects::default(),
        unsent: Vec::new(),
        unsent_blobs: Vec::new(),
        kept_contents: Contents::default(),
        kept_reads: VecDeque::new(),
        outgoing,
        held: VecDeque::new(),
        durable: term.last,
        replies: HashMap::new(),
        streams: HashMap::new(),
        watchers: &mut *watchers,
        load: OverloadDetector::new(start.rules.overload),
        level: OverloadLevel::Normal,
        meter: Meter::default(),
        snapshots: Snapshots::after(term.snapshot, start.snapshot_every, shared.vitals.snapshots.clone()),
        log,
        stopping: None,
        hands_over: false,
        shared,
    };
    machine.step(Gate::seat_taken(machine.term));
    machine.hand_to_log();
    // Nobody is heard before the beginning of the term is durable: all would be refused.
    committer.work();
    machine.now = clock::now();
    machine.handle_commits();
    if !committer.has_failed() {
        shared.set_trouble(String::new());
        shared.publish(LeaderView::Leading { term: machine.term });
        machine.log.push(CommitRequest::ListBlobs { after: None });
    }
    shared.vitals.takeover.rest();
    let ended = take_turns(machine, committer, shared);
    shared.vitals.machine.rest();
    watchers.ring_all();
    ended
}

struct Machine<'a> {
    gate: Gate,
    term: Term,
    now: Now,
    effects: Effects,
    /// Events of this round, not yet handed to the log.
    unsent: Vec<StampedEvent>,
    unsent_blobs: Vec<OwnedBlob>,
    /// Contents that came with inputs which the machine keeps until its seat is confirmed.
    kept_contents: Contents,
    /// Reads that wait for the seat, with when they came.
    kept_reads: VecDeque<(Mono, ReadWork)>,
    /// Messages for others; handed to the log with the events that they wait for.
    outgoing: OutgoingSender<GateState>,
    /// Effects that concern the machine itself, until they may be carried out.
    held: VecDeque<(Seq, Effect)>,
    durable: Seq,
    replies: HashMap<RequestId, oneshot::Sender<Result<Answer, EngineRefusal>>>,
    streams: HashMap<StreamId, BacklogSender<ToDatacenter>>,
    watchers: &'a mut Watchers,
    load: OverloadDetector,
    level: OverloadLevel,
    meter: Meter,
    snapshots: Snapshots<Gate>,
    log: CommitQueue<GateState>,
    /// Told to stop, when this was the newest event.
    stopping: Option<Seq>,
    /// The machine stops in order to hand the seat over.
    hands_over: bool,
    shared: &'a Arc<GateState>,
}

impl Rounds for Machine<'_> {
    type Host = GateState;

    fn round(&mut self, commands: &mut VecDeque<Command>) -> Option<TermEnd> {
        self.shared.vitals.machine.begin();
        self.now = clock::now();
        self.handle_commits();
        if commands.is_empty() {
            self.step(Input::Wake);
        }
        let mut taken = 0;
        while let Some(command) = commands.pop_front() {
            if let Err(ended) = self.handle(command) {
                return Some(ended);
            }
            taken += 1;
            if taken % CLOCK_EVERY == 0 {
                self.now = clock::now();
            }
            if taken >= ROUND {
                break;
            }
            if commands.is_empty() {
                self.shared.run_queue.take_more(commands);
            }
        }
        // Work that goes on in bites has its share of every round, however much is asked.
        if taken > 0 && self.gate.next_wakeup().is_some_and(|(at, _)| at <= self.now.mono) {
            self.step(Input::Wake);
        }
        self.answer_kept_reads();
        self.judge_load();
        self.hand_to_log();
        if let Some(request) = self.snapshots.advance(Instant::now(), &mut self.gate) {
            self.log.push(request);
        }
        self.shared.vitals.machine.rest();
        if self.gate.seat_state() == SeatState::Lost {
            return Some(TermEnd::SeatLost);
        }
        // A stop waits for what was decided before it to be durable and answered, not for work that goes on in bites.
        if self.stopping.is_none_or(|decided| self.durable < decided) {
            return None;
        }
        if !self.hands_over {
            return Some(TermEnd::Stopped);
        }
        // Calls that still wait were not begun: they are for the next leader.
        for (_, reply) in self.replies.drain() {
            // Nobody may be waiting any more, which is fine.
            let _ = reply.send(Err(self.shared.not_begun()));
        }
        Some(TermEnd::HandsOver)
    }

    fn wait(&self) -> Wait {
        let for_timers = StateMachine::next_wakeup(&self.gate);
        let for_timers = for_timers.map_or(Duration::from_secs(3600), |at| at.since(clock::mono()));
        // Effects that wait for the log here are not urgent.
        let for_log = !self.held.is_empty() || self.gate.log_is_behind();
        let wait = if for_log { for_timers.min(LOOK_AGAIN) } else { for_timers };
        let wait = self.snapshots.rest(Instant::now()).map_or(wait, |rest| wait.min(rest.max(BREATH)));
        let for_all = if self.level == OverloadLevel::Normal { wait } else { wait.min(load::EVERY) };
        Wait { for_timers, for_all }
    }
}

impl Machine<'_> {
    fn handle(&mut self, command: Command) -> Result<(), TermEnd> {
        match command {
            Command::Call { request, call, contents, reply } => {
                self.replies.insert(request, reply);
                self.step_with(Input::Call { request, call }, contents);
            }
            Command::Read(work) => {
                self.shared.stats.reads.add(1);
                self.kept_reads.push_back((self.now.mono, work));
                self.answer_kept_reads();
            }
            Command::Open { stream, datacenter, outbox } => {
                self.streams.insert(stream, outbox);
                self.step(Input::StreamOpened { stream, datacenter });
            }
            Command::Frame { stream, frame, contents, backlogged } => {
                drop(backlogged);
                self.step_with(Input::Datacenter { stream, frame: *frame }, contents);
            }
            Command::Close { stream } => {
                if self.streams.remove(&stream).is_some() {
                    self.step(Input::StreamClosed { stream });
                }
            }
            Command::Watch { job, bell } => self.watchers.add(job, bell),
            Command::Unwatch { job, bell } => self.watchers.remove(job, bell),
            Command::FromLog(CommitAnswer { term, what }) if term == self.term => return self.handle_log(what),
            Command::FromLog(_) => {}
            Command::Drained => self.step(Input::Drained),
            Command::HandOver(handover) => {
                if self.shared.handover.begin(handover, self.stopping.is_some()) {
                    self.hands_over = true;
                    self.stop();
                }
            }
            Command::Stop => self.stop(),
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.stopping.get_or_insert(self.gate.newest());
        self.log.progress.wait_for(true);
        self.handle_commits();
    }

    fn handle_log(&mut self, reply: CommitReply) -> Result<(), TermEnd> {
        match reply {
            CommitReply::Progress => self.handle_commits(),
            CommitReply::Seat { question, term } => {
                self.step(Input::SeatConfirmed { term, question });
                // Commands that are queued now are fed in before this comes back.
                self.shared.send(Command::Drained);
            }
            CommitReply::ChunkStored => self.snapshots.chunk_stored(Instant::now()),
            CommitReply::SnapshotFinished => {
                self.shared.stats.snapshots.add(1);
                self.snapshots.finished();
            }
            CommitReply::Truncated => self.snapshots.truncated(),
            CommitReply::Blobs(digests) => self.sweep(&digests),
            CommitReply::SnapshotFailed(error) => {
                tracing::warn!(%error, "a snapshot failed; the next one is tried later");
                self.snapshots.failed(&error, &mut self.gate);
            }
            CommitReply::Failed(error) => return Err(TermEnd::Failed(error)),
        }
        Ok(())
    }

    /// Content that nothing refers to: a crash came between the event that gave it up and its deletion.
    fn sweep(&mut self, digests: &[BlobDigest]) {
        for digest in digests.iter().filter(|digest| !StateMachine::refers_to(&self.gate, digest)) {
            self.log.push(CommitRequest::DropBlob(*digest));
        }
        if let Some(last) = digests.last() {
            self.log.push(CommitRequest::ListBlobs { after: Some(*last) });
        }
    }

    /// Takes up what has become durable since the last look.
    fn handle_commits(&mut self) {
        let Some(Commits { durable, took }) = self.log.progress.take() else { return };
        self.durable = durable;
        for took in took {
            self.load.latency(awake(self.now), took);
        }
        self.step(Input::Durable { seq: durable });
        while let Some((after, _)) = self.held.front()
            && *after <= self.durable
        {
            let (_, effect) = self.held.pop_front().expect("there is a first");
            self.act(effect);
        }
    }

    /// Keeps reads while the seat is not confirmed, because nothing may be said of the state: they wait for as long as
    /// a call does, and are answered behind what the machine was told before.
    fn answer_kept_reads(&mut self) {
        if !matches!(self.gate.seat_state(), SeatState::Serving | SeatState::Settling) {
            let (now, ttl) = (self.now.mono, self.shared.rules.seat_ttl);
            // Dropping a read refuses it.
            self.kept_reads.retain(|(came_at, _)| *came_at + ttl > now);
            return;
        }
        while self.gate.kept_inputs() == 0
            && let Some((_, work)) = self.kept_reads.pop_front()
        {
            let deliver = work(&self.gate);
            self.send_once_durable(self.gate.newest(), Outgoing::Deliver(deliver));
        }
    }

    fn step(&mut self, input: Input) {
        self.step_with(input, Contents::default());
    }

    fn step_with(&mut self, input: Input, contents: Contents) {
        self.shared.stats.inputs.add(1);
        let mut effects = core::mem::take(&mut self.effects);
        StateMachine::step(&mut self.gate, self.now, input, &mut effects);
        for waiting in effects.list.drain(..) {
            match waiting.effect {
                Effect::ConfirmSeat { question } => self.log.push(CommitRequest::ConfirmSeat { question }),
                Effect::Send { stream, message } => {
                    if let Some(outbox) = self.streams.get(&stream) {
                        let outbox = outbox.clone();
                        self.send_once_durable(waiting.after, Outgoing::SendToDatacenter { stream, outbox, message });
                    }
                }
                Effect::Reply { request, answer } => {
                    if let Some(reply) = self.replies.remove(&request) {
                        let answer = answer.map_err(EngineRefusal::ByMachine);
                        self.send_once_durable(waiting.after, Outgoing::Reply { reply, answer });
                    }
                }
                effect if waiting.after <= self.durable && self.held.is_empty() => self.act(effect),
                effect => self.held.push_back((waiting.after, effect)),
            }
        }
        if !self.watchers.is_empty() {
            self.ring(&effects.events);
        }
        self.store_contents(&effects.events, contents);
        self.unsent.append(&mut effects.events);
        self.effects = effects;
    }

    fn ring(&mut self, events: &[StampedEvent]) {
        let newest = self.gate.newest();
        for stamped in events {
            stamped.event.for_each_job(&mut |job| {
                for bell in self.watchers.bells(job) {
                    self.outgoing.put(newest, Outgoing::Ring(bell), self.durable, self.shared);
                }
            });
        }
    }

    /// Stores contents that events name. An input that the machine has kept may name its content in a later step.
    fn store_contents(&mut self, events: &[StampedEvent], contents: Contents) {
        self.kept_contents.append(contents);
        if self.kept_contents.is_empty() {
            return;
        }
        self.unsent_blobs.append(&mut named_by(events, &self.kept_contents));
        if self.gate.kept_inputs() == 0 {
            self.kept_contents.clear();
        }
    }

    /// Once a second: how busy are we ourselves?
    fn judge_load(&mut self) {
        if let Some((cpu, memory)) = self.meter.sample(self.now.mono) {
            self.load.resources(awake(self.now), cpu, memory);
        }
        let level = self.load.level(awake(self.now));
        if level != self.level {
            let (_, reason) = self.load.judge(awake(self.now));
            tracing::info!(level = level.code(), reason = reason.code(), "load");
            self.level = level;
            self.shared.load.set(level, reason);
            self.step(Input::Load(level));
        }
    }

    /// Holds a message until its event is durable. One that waits for no event at all says that there is no seat: it
    /// must not stand in a line that waits for the log.
    fn send_once_durable(&mut self, after: Seq, out: Outgoing) {
        if after == Seq::default() {
            return self.shared.deliver(out);
        }
        self.outgoing.put(after, out, self.durable, self.shared);
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            // Messages that the stream was sent before are still heard there.
            Effect::CloseStream { stream } => {
                if self.streams.remove(&stream).is_some() {
                    self.step(Input::StreamClosed { stream });
                }
            }
            Effect::Unreferenced { digest } => {
                // The content may have come back since; then it is in the store, or on its way there behind what we say
                // now.
                if !self.gate.refers_to(&digest) {
                    self.log.push(CommitRequest::DropBlob(digest.0));
                }
            }
            Effect::Report(notice) => notices::write(&notice),
            Effect::Send { .. } | Effect::Reply { .. } | Effect::ConfirmSeat { .. } => {
                unreachable!("these do not wait here")
            }
        }
    }

    fn hand_to_log(&mut self) {
        if !self.unsent.is_empty() || !self.outgoing.is_empty() {
            let next = Vec::with_capacity(self.unsent.len());
            let events = core::mem::replace(&mut self.unsent, next);
            let blobs = core::mem::take(&mut self.unsent_blobs);
            let outs = self.outgoing.take();
            self.log.push(CommitRequest::Append { events, blobs, outs });
        }
    }
}

/// Contents that an event names, which alone are stored: the rest was refused, or is kept for later.
fn named_by(events: &[StampedEvent], contents: &Contents) -> Vec<OwnedBlob> {
    contents.named(|name: &mut dyn FnMut(&Payload)| {
        for stamped in events {
            match &stamped.event {
                Event::JobSubmitted(submitted) => {
                    submitted.spec.workflows.iter().for_each(|workflow| name(&workflow.payload));
                }
                Event::TargetEnded(ended) => ended.end.result.iter().for_each(&mut *name),
                _ => {}
            }
        }
    })
}

/// The detector measures spans only, so that gaps of ours do not matter to it.
fn awake(now: Now) -> Awake {
    Awake::from_ms(now.mono.as_ms())
}
