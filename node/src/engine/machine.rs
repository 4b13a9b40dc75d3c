//! The thread that owns the machine.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use onward_core::effect::{Answer, Effect, Effects};
use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::health::overload::{OverloadDetector, OverloadLevel};
use onward_core::ids::{RequestId, Seq, SessionId, StreamId};
use onward_core::input::Input;
use onward_core::manager::{Manager, SeatState};
use onward_core::message::ToWorker;
use onward_core::time::{Awake, Now};
use onward_log::{BlobDigest, OwnedBlob};
use tokio::sync::oneshot;

use super::archive_feed::ArchiveFeed;
use super::archivist::ToArchive;
use super::content::{self, Contents};
use super::decision_log::DecisionLog;
use super::gate_stream::{self, ForGate};
use super::load::{self, Meter};
use super::manager_machine::ManagerWithCatalog;
use super::notices::jobs_of;
use super::outgoing::Outgoing;
use super::questions::{KeptQuestions, Question};
use super::session::SessionSender;
use super::spans::Spans;
use super::term::Leading;
use super::timetable::FindDue;
use super::watch::Watchers;
use super::{Command, Deliver, EngineRefusal, EngineStart, EngineState, ReadView};
use crate::catalog::Catalog;
use crate::clock;
use crate::cluster::handover::Handover;
use crate::cluster::leader::LeaderView;
use crate::run_loop::{
    CommitAnswer, CommitQueue, CommitReply, CommitRequest, Commits, Committer, Host, OutgoingSender, Rounds, Snapshots,
    StateMachine, TermEnd, Wait, take_turns,
};

/// The number of asks that are taken before what they decided is handed to the log.
const ROUND: usize = 1_024;
/// The number of events that are worth a commit of their own, if more is asked: while it is under way, the next are
/// decided.
const WORTH_A_COMMIT: usize = 32;
/// The clock is read again after so many inputs.
const CLOCK_EVERY: usize = 64;
/// The wait before the next look at the log, if what waits for it concerns the machine alone.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The pause between two turns in which something is done for later: there may be somebody who waits for this core.
const BREATH: Duration = Duration::from_micros(500);

pub(super) fn machine_of<'a>(
    term: Leading,
    start: &EngineStart,
    shared: &'a Arc<EngineState>,
    (to_archive, find_due): (&Option<Sender<ToArchive>>, &Option<Sender<FindDue>>),
    watchers: &'a mut Watchers,
) -> (ManagerRoom<'a>, Committer<EngineState>) {
    let ManagerWithCatalog { manager, catalog } = term.machine;
    let (committer, log, outgoing) = Committer::new(term.log, (term.term, term.taken_at), term.last, shared.clone());
    let machine = ManagerRoom {
        catalog,
        manager,
        term: term.term,
        now: clock::now(),
        effects: Effects::default(),
        unsent: Vec::new(),
        unsent_blobs: Vec::new(),
        kept_contents: Contents::default(),
        kept_questions: KeptQuestions::default(),
        outgoing,
        held: VecDeque::new(),
        durable: term.last,
        decisions: DecisionLog::default(),
        spans: shared.exporter.clone().map(Spans::new),
        replies: HashMap::new(),
        sessions: HashMap::new(),
        gates: HashMap::new(),
        watchers,
        load: OverloadDetector::new(start.rules.overload),
        level: OverloadLevel::Normal,
        meter: Meter::default(),
        snapshots: Snapshots::after(term.snapshot, start.snapshot_every, shared.vitals.snapshots.clone()),
        leaving: ArchiveFeed::to(to_archive.clone(), term.term),
        find_due: find_due.clone(),
        log,
        stopping: None,
        hands_over: false,
        shared,
    };
    (machine, committer)
}

pub(super) fn serve(mut machine: ManagerRoom<'_>, mut committer: Committer<EngineState>) -> TermEnd {
    let shared = machine.shared;
    machine.step(Manager::seat_taken(machine.term));
    machine.hand_to_log();
    // Nobody is heard before the beginning of the term is durable: all would be refused.
    committer.work();
    if !committer.has_failed() {
        shared.set_trouble(String::new());
        shared.publish(LeaderView::Leading { term: machine.term });
        machine.request_commit(CommitRequest::ListBlobs { after: None });
    }
    machine.now = clock::now();
    machine.handle_commits();
    shared.vitals.takeover.rest();
    take_turns(machine, committer, shared)
}

pub(super) struct ManagerRoom<'a> {
    manager: Manager,
    catalog: Catalog,
    term: Term,
    now: Now,
    effects: Effects,
    /// Events of this round, not yet handed to the log.
    unsent: Vec<StampedEvent>,
    unsent_blobs: Vec<OwnedBlob>,
    /// Contents that came with inputs which the machine keeps until its seat is confirmed.
    kept_contents: Contents,
    kept_questions: KeptQuestions,
    /// Messages for others; handed to the log with the events that they wait for.
    outgoing: OutgoingSender<EngineState>,
    /// Effects that concern the machine itself, until they may be carried out.
    held: VecDeque<(Seq, Effect)>,
    durable: Seq,
    replies: HashMap<RequestId, oneshot::Sender<Result<Answer, EngineRefusal>>>,
    sessions: HashMap<SessionId, SessionSender>,
    gates: HashMap<StreamId, gate_stream::GateSender>,
    watchers: &'a mut Watchers,
    decisions: DecisionLog,
    spans: Option<Spans>,
    load: OverloadDetector,
    level: OverloadLevel,
    meter: Meter,
    snapshots: Snapshots<Manager>,
    leaving: ArchiveFeed,
    /// The sender to the thread that finds due instants.
    find_due: Option<Sender<FindDue>>,
    log: CommitQueue<EngineState>,
    /// Told to stop, when this was the newest event.
    stopping: Option<Seq>,
    /// The machine stops in order to hand the seat over.
    hands_over: bool,
    shared: &'a Arc<EngineState>,
}

impl Rounds for ManagerRoom<'_> {
    type Host = EngineState;

    /// Runs a round. After a time in which this thread could not run, or the log did not answer, what lies in the inbox
    /// comes before the log's answer about the seat. The machine keeps it until then; only questions are kept here.
    fn round(&mut self, commands: &mut VecDeque<Command>) -> Option<TermEnd> {
        self.shared.vitals.machine.begin();
        self.now = clock::now();
        self.handle_commits();
        if commands.is_empty() {
            self.step(Input::Wake);
        }
        // While one half is being committed and answered, the other is decided.
        let half = commands.len() / 2;
        let mut taken = 0;
        while let Some(command) = commands.pop_front() {
            if let Err(ended) = self.handle(command) {
                return Some(ended);
            }
            taken += 1;
            if taken % CLOCK_EVERY == 0 {
                self.now = clock::now();
            }
            if taken >= half && self.unsent.len() >= WORTH_A_COMMIT && !self.log.is_busy() && !commands.is_empty() {
                break;
            }
            if commands.is_empty() && taken < ROUND {
                self.shared.run_queue.take_more(commands);
            }
        }
        // Work that goes on in bites has its share of every round, however much is asked.
        if taken > 0 && self.manager.next_wakeup().is_some_and(|(at, _)| at <= self.now.mono) {
            self.step(Input::Wake);
        }
        self.answer_kept_questions();
        self.pass_on();
        self.shared.vitals.machine.rest();
        if self.manager.seat_state() == SeatState::Lost {
            return Some(TermEnd::SeatLost);
        }
        // A stop waits for what was decided before it to be durable and answered, not for work that goes on in bites.
        if self.stopping.is_none_or(|decided| self.durable < decided) {
            return None;
        }
        if !self.hands_over {
            return Some(TermEnd::Stopped);
        }
        // Commands that still wait were not begun: they are for the next leader.
        for (_, reply) in self.replies.drain() {
            // Nobody may be waiting any more, which is fine.
            let _ = reply.send(Err(self.shared.not_begun()));
        }
        Some(TermEnd::HandsOver)
    }

    /// The wait while there is nothing to do unless somebody asks. Load that is high is looked at again in a while:
    /// with everybody turned away, nobody may ask.
    fn wait(&self) -> Wait {
        let for_timers = StateMachine::next_wakeup(&self.manager);
        let for_timers = for_timers.map_or(Duration::from_secs(3600), |at| at.since(clock::mono()));
        let wait = for_timers;
        // Effects that wait for the log here are not urgent.
        let for_log = !self.held.is_empty() || self.manager.log_is_behind();
        let wait = if for_log { wait.min(LOOK_AGAIN) } else { wait };
        let wait = self.snapshots.rest(Instant::now()).map_or(wait, |rest| wait.min(rest.max(BREATH)));
        let wait = if self.leaving.is_under_way() { wait.min(BREATH) } else { wait };
        let for_all = if self.level == OverloadLevel::Normal { wait } else { wait.min(load::EVERY) };
        Wait { for_timers, for_all }
    }
}

impl ManagerRoom<'_> {
    fn stop(&mut self) {
        self.stopping.get_or_insert(self.manager.newest());
        self.log.progress.wait_for(true);
        self.handle_commits();
    }

    fn hand_over(&mut self, handover: Handover) {
        if self.shared.handover.begin(handover, self.stopping.is_some()) {
            self.hands_over = true;
            self.stop();
        }
    }

    /// Content that nothing refers to: a crash came between the event that gave it up and its deletion. It is looked for
    /// once a term, page by page, while others are served.
    fn sweep(&mut self, digests: &[BlobDigest]) {
        for digest in digests.iter().filter(|digest| !StateMachine::refers_to(&self.manager, digest)) {
            self.request_commit(CommitRequest::DropBlob(*digest));
        }
        if let Some(last) = digests.last() {
            self.request_commit(CommitRequest::ListBlobs { after: Some(*last) });
        }
    }

    /// Takes up what has become durable since the last look.
    fn handle_commits(&mut self) {
        let Some(Commits { durable, took }) = self.log.progress.take() else { return };
        self.durable = durable;
        for took in took {
            self.load.latency(awake(self.now), took);
        }
        if let Some(spans) = &mut self.spans {
            spans.release(durable);
        }
        self.step(Input::Durable { seq: durable });
        self.act_on_durable();
    }

    /// Hands on what a round has left to do for others.
    fn pass_on(&mut self) {
        self.judge_load();
        let decided = self.unsent.len();
        self.forget_archived(decided);
        self.hand_to_log();
        self.leaving.advance(&self.manager, decided);
        if let Some(request) = self.snapshots.advance(Instant::now(), &mut self.manager) {
            self.request_commit(request);
        }
    }

    fn handle(&mut self, command: Command) -> Result<(), TermEnd> {
        match command {
            Command::Input(input) => self.step(input),
            Command::WorkerMessage { session, message, contents } => {
                self.step_with(Input::Session { session, message }, contents);
            }
            Command::Call { request, call, contents, reply } => {
                self.replies.insert(request, reply);
                self.step_with(Input::Call { request, call }, contents);
            }
            Command::Ask(question) => {
                self.shared.stats.reads.add(u64::from(matches!(question, Question::Read(_))));
                self.kept_questions.add(self.now.mono, question);
                self.answer_kept_questions();
            }
            Command::Open { session, outbox } => {
                self.sessions.insert(session, outbox);
            }
            Command::OpenGate { stream, datacenter, outbox } => {
                self.gates.insert(stream, outbox);
                self.step(Input::GateOpened { stream, datacenter });
            }
            Command::GateMessage { stream, message, contents, backlogged } => {
                drop(backlogged);
                self.step_with(Input::Gate { stream, message }, contents);
            }
            Command::Watch { job, bell } => self.watchers.add(job, bell),
            Command::Unwatch { job, bell } => self.watchers.remove(job, bell),
            Command::FromLog(CommitAnswer { term, what }) if term == self.term => match what {
                CommitReply::Progress => self.handle_commits(),
                CommitReply::Seat { question, term } => {
                    self.step(Input::SeatConfirmed { term, question });
                    // Commands that are queued now are fed in before this comes back.
                    self.shared.send(Command::QueueEmptied);
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
                    self.snapshots.failed(&error, &mut self.manager);
                }
                CommitReply::Failed(error) => return Err(TermEnd::Failed(error)),
            },
            Command::FromLog(_) => {}
            Command::Archived { term, jobs } => self.leaving.archived(term, jobs),
            Command::ArchiveReady { term } => self.leaving.archive_is_ready(term),
            Command::QueueEmptied => self.step(Input::QueueEmptied),
            Command::HandOver(handover) => self.hand_over(handover),
            Command::Stop => {
                self.hands_over = false;
                self.stop();
            }
        }
        Ok(())
    }

    fn is_serving(&self) -> bool {
        matches!(self.manager.seat_state(), SeatState::Serving | SeatState::Settling)
    }

    fn answer(&mut self, question: Question) {
        let deliver: Deliver = match question {
            Question::Read(work) => work(&ReadView { manager: &self.manager, catalog: &self.catalog }),
            Question::Printed { claims, session, reply } => {
                let answers = claims.iter().map(|claim| self.manager.check_output(claim, session)).collect();
                let term = self.term;
                Box::new(move || reply(term, answers))
            }
        };
        self.send_once_durable(self.manager.newest(), Outgoing::Deliver(deliver));
    }

    fn answer_kept_questions(&mut self) {
        if !self.is_serving() {
            return self.kept_questions.refuse_overdue(self.now.mono, self.shared.rules.seat_ttl);
        }
        while self.manager.kept_inputs() == 0
            && let Some(question) = self.kept_questions.pop()
        {
            self.answer(question);
        }
    }

    fn step(&mut self, input: Input) {
        self.step_with(input, Contents::default());
    }

    fn step_with(&mut self, input: Input, contents: Contents) {
        self.shared.stats.inputs.add(1);
        match &input {
            Input::SessionClosed { session } => drop(self.sessions.remove(session)),
            Input::GateClosed { stream } => drop(self.gates.remove(stream)),
            _ => {}
        }
        let mut effects = core::mem::take(&mut self.effects);
        StateMachine::step(&mut self.manager, self.now, input, &mut effects);
        for stamped in &effects.events {
            self.catalog.follow(&stamped.event);
        }
        if let Some(spans) = &mut self.spans {
            spans.follow(&self.manager, &effects.events);
        }
        for waiting in effects.list.drain(..) {
            match waiting.effect {
                Effect::ConfirmSeat { question } => self.request_commit(CommitRequest::ConfirmSeat { question }),
                Effect::Send { session, message } => self.send_to_worker(waiting.after, session, message),
                Effect::SendGate { stream, frame } => self.send_to_gate(waiting.after, stream, ForGate::Send(frame)),
                Effect::FindArchived { stream, question } => {
                    self.send_to_gate(waiting.after, stream, ForGate::Find(question));
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
            let newest = self.manager.newest();
            for job in effects.events.iter().flat_map(|stamped| jobs_of(&stamped.event)) {
                for bell in self.watchers.bells(job) {
                    self.outgoing.put(newest, Outgoing::Ring(bell), self.durable, self.shared);
                }
            }
        }
        self.store_contents(&effects.events, contents);
        self.unsent.append(&mut effects.events);
        self.effects = effects;
    }

    /// Stores contents that events name. An input that the machine has kept may name its content in a later step.
    fn store_contents(&mut self, events: &[StampedEvent], contents: Contents) {
        if self.kept_contents.is_empty() && (contents.is_empty() || !self.manager.needs_contents()) {
            self.unsent_blobs.append(&mut content::named_by(events, &contents));
            return;
        }
        self.kept_contents.append(contents);
        self.unsent_blobs.append(&mut content::named_by(events, &self.kept_contents));
        if !self.manager.needs_contents() {
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

    fn send_to_worker(&mut self, after: Seq, session: SessionId, message: ToWorker) {
        if let Some(outbox) = self.sessions.get(&session) {
            let outbox = outbox.clone();
            self.send_once_durable(after, Outgoing::SendToWorker { session, outbox, message });
        }
    }

    fn send_to_gate(&mut self, after: Seq, stream: StreamId, message: ForGate) {
        if let Some(outbox) = self.gates.get(&stream) {
            let outbox = outbox.clone();
            self.send_once_durable(after, Outgoing::SendToGate { stream, outbox, message });
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

    fn act_on_durable(&mut self) {
        while let Some((after, _)) = self.held.front()
            && *after <= self.durable
        {
            let (_, effect) = self.held.pop_front().expect("there is a first");
            self.act(effect);
        }
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            // Messages that the session was sent before are still heard there.
            Effect::CloseSession { session } => {
                self.sessions.remove(&session);
            }
            Effect::Archive { job } => self.leaving.ended(job),
            Effect::Unreferenced { digest } => {
                // The content may have come back since; then it is in the store, or on its way there behind what we say
                // now.
                if self.manager.state().stored_refs(&digest) == 0 {
                    self.request_commit(CommitRequest::DropBlob(digest.0));
                }
            }
            Effect::Report(notice) => self.decisions.write(self.now.mono, &notice),
            Effect::FindDue { schedule, revision, timing, after, until } => {
                // A thread that has gone has said why; the end of this process is near.
                let ask = FindDue { schedule, revision, timing, after, until };
                drop(self.find_due.as_ref().map(|find_due| find_due.send(ask)));
            }
            Effect::Send { .. }
            | Effect::SendGate { .. }
            | Effect::FindArchived { .. }
            | Effect::Reply { .. }
            | Effect::ConfirmSeat { .. } => {
                unreachable!("these do not wait here")
            }
        }
    }

    fn forget_archived(&mut self, decided: usize) {
        let jobs = self.leaving.next_archived(decided);
        if !jobs.is_empty() {
            let count = jobs.len() as u64;
            self.step(Input::Archived { jobs });
            // Readers that are told so many jobs are archived may rely on it that these have left the memory.
            self.shared.stats.archived.add(count);
        }
    }

    fn hand_to_log(&mut self) {
        if !self.unsent.is_empty() || !self.outgoing.is_empty() {
            // The next are likely to be as many.
            let next = Vec::with_capacity(self.unsent.len());
            let events = core::mem::replace(&mut self.unsent, next);
            let blobs = core::mem::take(&mut self.unsent_blobs);
            let outs = self.outgoing.take();
            self.request_commit(CommitRequest::Append { events, blobs, outs });
        }
    }

    fn request_commit(&self, request: CommitRequest<EngineState>) {
        self.log.push(request);
    }
}

/// The detector measures spans only, so that gaps of ours do not matter to it.
fn awake(now: Now) -> Awake {
    Awake::from_ms(now.mono.as_ms())
}

#[cfg(test)]
mod tests;
