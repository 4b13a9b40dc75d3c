//! A machine of a few lines on the same loop: it adds numbers up. That it runs, follows, leads, is snapshotted and
//! restored shows that nothing here knows more of a machine than its traits say.

mod doubt;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::time::{Mono, Now};
use onward_health::Pulse;
use onward_log::codec::DecodeError;
use onward_log::engines::memory::AppendFault;
use onward_log::{BlobDigest, Error, Log, MemoryLog, StoredRow, Tail};

use super::outgoing::channel as outgoing_channel;
use super::seat::SeatDeadline;
use super::*;
use crate::clock;

/// The sum of all numbers, and how many events there were.
#[derive(Clone, Default, Debug)]
pub(super) struct Toy {
    sum: u64,
    events: u64,
    snapshot: Option<(u64, u64)>,
}

pub(super) enum ToyInput {
    SeatTaken,
    Add(u64),
}

impl StateMachine for Toy {
    type Input = ToyInput;
    type Effects = Vec<u64>;
    type Event = u64;
    type Record = (u64, u64);

    fn step(&mut self, _: Now, input: ToyInput, out: &mut Vec<u64>) {
        let number = match input {
            ToyInput::SeatTaken => 0,
            ToyInput::Add(number) => number,
        };
        self.apply(&number);
        out.push(number);
    }
    fn seat_taken(_: Term) -> ToyInput {
        ToyInput::SeatTaken
    }
    fn next_wakeup(&self) -> Option<Mono> {
        None
    }
    fn apply(&mut self, number: &u64) {
        self.sum += number;
        self.events += 1;
    }
    fn newest(&self) -> Seq {
        Seq(self.events)
    }
    fn size(&self) -> u64 {
        1
    }
    fn refers_to(&self, _: &BlobDigest) -> bool {
        false
    }
    fn restore(&mut self, (sum, events): (u64, u64)) {
        (self.sum, self.events) = (sum, events);
    }
    fn finish_restore(&mut self) -> Result<Seq, Error> {
        Ok(self.newest())
    }
    fn begin_snapshot(&mut self) -> Seq {
        self.snapshot = Some((self.sum, self.events));
        self.newest()
    }
    fn next_records(&mut self, _: usize) -> (Vec<(u64, u64)>, bool) {
        (self.snapshot.take().into_iter().collect(), true)
    }
    fn abandon_snapshot(&mut self) {
        self.snapshot = None;
    }
    fn encode_events(events: &[u64], out: &mut Vec<u8>) {
        events.iter().for_each(|number| out.extend(number.to_le_bytes()));
    }
    fn decode_events(row: &StoredRow) -> Result<Vec<u64>, DecodeError> {
        let (numbers, rest) = row.body().as_chunks::<8>();
        assert!(rest.is_empty() && numbers.len() == row.count as usize);
        Ok(numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
    }
    fn encode_records(records: &[(u64, u64)], out: &mut Vec<u8>) {
        records.iter().for_each(|(sum, events)| Self::encode_events(&[*sum, *events], out));
    }
    fn decode_records(chunk: &[u8]) -> Result<Vec<(u64, u64)>, DecodeError> {
        let number = |at: usize| u64::from_le_bytes(chunk[at..at + 8].try_into().expect("eight bytes"));
        Ok((0..chunk.len()).step_by(16).map(|at| (number(at), number(at + 8))).collect())
    }
}

pub(super) enum ToyCommand {
    /// Answered with the sum, once that is durable.
    Add(u64, Sender<u64>),
    /// Answered with the sum, which may be so already; and held up until the test says so.
    Read(Sender<u64>, Option<Receiver<()>>),
    Seat,
    Log(CommitAnswer),
    Stop,
}

pub(super) struct ToyHost {
    run_queue: RunQueue<ToyCommand>,
    pulse: Pulse,
    seat_ttl: Duration,
    trouble: Mutex<String>,
    is_given_up: AtomicBool,
}

/// An answer, and where it goes.
type Answer = (Sender<u64>, u64);

impl Host for ToyHost {
    type Machine = Toy;
    type Command = ToyCommand;
    type Outgoing = Answer;

    fn run_queue(&self) -> &RunQueue<ToyCommand> {
        &self.run_queue
    }
    fn deliver(&self, (to, sum): Answer) {
        let _ = to.send(sum);
    }
    fn goes_first((_, sum): &Answer) -> bool {
        *sum >= 1_000
    }
    fn answer(&self, answer: CommitAnswer) {
        self.run_queue.put(ToyCommand::Log(answer));
    }
    fn log_pulse(&self) -> &Pulse {
        &self.pulse
    }
    fn commit_begun(&self) {}
    fn committed(&self, _: usize, _: Duration) {}
    fn set_trouble(&self, why: String) {
        *self.trouble.lock().expect("nobody panics") = why;
    }
    fn seat_ttl(&self) -> Duration {
        self.seat_ttl
    }
    fn ask_again(&self) -> Duration {
        Duration::from_millis(1)
    }
    fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }
}

struct ToyRounds {
    toy: Toy,
    term: Term,
    effects: Vec<u64>,
    unsent: Vec<u64>,
    durable: Seq,
    outgoing: OutgoingSender<ToyHost>,
    log: CommitQueue<ToyHost>,
    snapshots: Snapshots<Toy>,
    stopping: Option<Seq>,
    host: Arc<ToyHost>,
}

impl ToyRounds {
    fn step(&mut self, input: ToyInput) {
        self.toy.step(clock::now(), input, &mut self.effects);
        self.unsent.append(&mut self.effects);
    }

    fn hand_to_log(&mut self) {
        if !self.unsent.is_empty() || !self.outgoing.is_empty() {
            let (events, outs) = (core::mem::take(&mut self.unsent), self.outgoing.take());
            self.log.push(CommitRequest::Append { events, blobs: Vec::new(), outs });
        }
    }

    fn look_at_log(&mut self) {
        if let Some(commits) = self.log.progress.take() {
            self.durable = commits.durable;
        }
    }
}

impl Rounds for ToyRounds {
    type Host = ToyHost;

    fn round(&mut self, commands: &mut VecDeque<ToyCommand>) -> Option<TermEnd> {
        self.look_at_log();
        while let Some(command) = commands.pop_front() {
            match command {
                ToyCommand::Add(number, to) => {
                    self.step(ToyInput::Add(number));
                    self.outgoing.put(self.toy.newest(), (to, self.toy.sum), self.durable, &self.host);
                }
                ToyCommand::Read(to, gate) => {
                    let sum = self.toy.sum;
                    let _ = gate.map(|gate| gate.recv());
                    self.outgoing.put(self.toy.newest(), (to, sum), self.durable, &self.host);
                }
                ToyCommand::Seat => self.log.push(CommitRequest::ConfirmSeat { question: 1 }),
                ToyCommand::Log(CommitAnswer { what, .. }) => match what {
                    CommitReply::Seat { term, .. } if term != self.term => return Some(TermEnd::SeatLost),
                    CommitReply::ChunkStored => self.snapshots.chunk_stored(Instant::now()),
                    CommitReply::SnapshotFinished => self.snapshots.finished(),
                    CommitReply::Truncated => self.snapshots.truncated(),
                    CommitReply::Failed(error) => return Some(TermEnd::Failed(error)),
                    CommitReply::Seat { .. }
                    | CommitReply::Blobs(_)
                    | CommitReply::Progress
                    | CommitReply::SnapshotFailed(_) => {
                        self.look_at_log();
                    }
                },
                ToyCommand::Stop => {
                    self.stopping = Some(self.toy.newest());
                    self.log.progress.wait_for(true);
                    self.look_at_log();
                }
            }
        }
        self.hand_to_log();
        if let Some(request) = self.snapshots.advance(Instant::now(), &mut self.toy) {
            self.log.push(request);
        }
        self.stopping.is_some_and(|decided| self.durable >= decided).then_some(TermEnd::Stopped)
    }

    fn wait(&self) -> Wait {
        let rest = self.snapshots.rest(Instant::now()).unwrap_or(Duration::from_secs(3_600));
        Wait { for_timers: rest, for_all: rest }
    }
}

/// A term under way, on a thread of its own.
struct Run {
    host: Arc<ToyHost>,
    thread: JoinHandle<TermEnd>,
}

impl ToyHost {
    fn new(seat_ttl: Duration) -> Self {
        Self {
            run_queue: RunQueue::on(2),
            pulse: Pulse::default(),
            seat_ttl,
            trouble: Mutex::default(),
            is_given_up: AtomicBool::new(false),
        }
    }
}

impl Run {
    /// Follows to the end of the log, and leads.
    fn on(log: impl Log + 'static, seat_ttl: Duration, snapshot_every: u64) -> Self {
        let host = Arc::new(ToyHost::new(seat_ttl));
        let follower = Follower::read(Box::new(log), Toy::default).expect("it can be read");
        let Ok(SeatBid::Leads(term)) = follower.lead() else { panic!("nobody else is there") };
        let (mut committer, log, outgoing) =
            Committer::new(term.log, (term.term, term.taken_at), term.last, host.clone());
        let snapshots = Snapshots::after(term.snapshot, snapshot_every, Pulse::default());
        let mut rounds = ToyRounds {
            toy: term.machine,
            term: term.term,
            effects: Vec::new(),
            unsent: Vec::new(),
            durable: term.last,
            outgoing,
            log,
            snapshots,
            stopping: None,
            host: host.clone(),
        };
        rounds.step(Toy::seat_taken(term.term));
        rounds.hand_to_log();
        committer.work();
        rounds.look_at_log();
        let theirs = host.clone();
        Self { host, thread: thread::spawn(move || take_turns(rounds, committer, &*theirs)) }
    }

    fn add(&self, number: u64) -> Receiver<u64> {
        let (to, answer) = channel();
        self.host.run_queue.put(ToyCommand::Add(number, to));
        answer
    }

    fn read(&self, gate: Option<Receiver<()>>) -> Receiver<u64> {
        let (to, answer) = channel();
        self.host.run_queue.put(ToyCommand::Read(to, gate));
        answer
    }

    fn stop(self) -> TermEnd {
        self.host.run_queue.put(ToyCommand::Stop);
        self.ended()
    }

    fn ended(self) -> TermEnd {
        until("the term ends", || self.thread.is_finished());
        self.thread.join().expect("nothing panics")
    }
}

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(50);

/// Looks again and again until something that other threads do has happened, but not for ever.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < Duration::from_secs(120), "this never happened: {what}");
        thread::yield_now();
    }
}

/// Waits until so much time has passed by the clock that counts.
fn pass(span: Duration) {
    let from = clock::mono();
    while clock::mono().since(from) <= span {
        thread::yield_now();
    }
}

#[test]
fn another_machine_runs_on_the_same_loop_and_is_found_again_by_its_snapshot_and_its_rows() {
    let log = MemoryLog::new();
    for round in 1..=3 {
        let run = Run::on(log.clone(), LONG, 4);
        for number in 1..=10 {
            let sum = run.add(number).recv().expect("it is answered");
            assert_eq!(sum, (round - 1) * 55 + number * (number + 1) / 2);
        }
        assert_eq!(run.read(None).recv(), Ok(round * 55));
        until("a snapshot", || log.clone().snapshot().expect("in memory").is_some());
        assert!(matches!(run.stop(), TermEnd::Stopped));
        let end = log.clone().tail().expect("in memory");
        assert_eq!(end, Tail { term: Term::new(round), last: Seq(round * 11) });
    }
}

#[test]
fn a_follower_applies_what_the_leader_writes_for_as_long_as_it_takes_and_leads_with_all_of_it() {
    let log = MemoryLog::new();
    let mut follower = Follower::read(Box::new(log.clone()), Toy::default).expect("an empty log");
    let run = Run::on(log.clone(), LONG, u64::MAX);
    for number in 1..=3 {
        run.add(number).recv().expect("it is answered");
        follower.catch_up().expect("it reads on");
        assert_eq!((follower.machine.sum, follower.machine.events), (number * (number + 1) / 2, number + 1));
    }
    // Appended after the follower has looked: it is in the machine all the same once that leads.
    run.add(10).recv().expect("it is answered");
    let Ok(SeatBid::Leads(term)) = follower.lead() else { panic!("the term that it saw still holds") };
    assert_eq!((term.machine.sum, term.last, term.term), (16, Seq(5), Term::new(2)));
    run.add(1).recv().expect_err("who lost the seat answers nothing");
    assert!(matches!(run.ended(), TermEnd::Failed(Error::StaleTerm { .. })));
}

#[test]
fn who_comes_second_goes_on_following() {
    let log = MemoryLog::new();
    let second = Follower::read(Box::new(log.clone()), Toy::default).expect("an empty log");
    let run = Run::on(log.clone(), LONG, u64::MAX);
    run.add(7).recv().expect("it is answered");
    let Ok(SeatBid::Follows(mut second)) = second.lead() else { panic!("another has the seat") };
    run.add(8).recv().expect("who leads is left in peace");
    second.catch_up().expect("it reads on");
    assert_eq!((second.machine.sum, log.clone().tail().expect("in memory").term), (15, Term::new(1)));
    assert!(matches!(run.stop(), TermEnd::Stopped));
}

#[test]
fn a_follower_that_was_left_behind_is_told_to_begin_with_the_snapshot() {
    let log = MemoryLog::new();
    let mut follower = Follower::read(Box::new(log.clone()), Toy::default).expect("an empty log");
    let run = Run::on(log.clone(), LONG, 4);
    for number in 1..=20 {
        run.add(number).recv().expect("it is answered");
    }
    until("rows are gone", || log.clone().read(Seq(1), 1).is_err());
    assert!(matches!(run.stop(), TermEnd::Stopped));
    assert_eq!(follower.catch_up(), Ok(CatchUp::Outdated));
    let follower = Follower::read(Box::new(log), Toy::default).expect("the snapshot is there");
    assert_eq!(follower.machine.sum, 210);
}

#[test]
fn the_seat_is_confirmed_by_a_write_and_who_lost_it_learns_that() {
    let log = MemoryLog::new();
    let run = Run::on(log.clone(), LONG, u64::MAX);
    run.host.run_queue.put(ToyCommand::Seat);
    assert_eq!(run.read(None).recv(), Ok(0), "it is still its own");
    log.clone().take_seat(Term::new(1)).expect("it was seen");
    run.host.run_queue.put(ToyCommand::Seat);
    assert!(matches!(run.ended(), TermEnd::SeatLost));
}

/// The thread was frozen between a decision and the moment at which it leaves, and another took the seat meanwhile.
#[test]
fn nothing_that_was_decided_before_leaves_after_the_seats_deadline() {
    let log = MemoryLog::new();
    let run = Run::on(log.clone(), SHORT, u64::MAX);
    run.add(1).recv().expect("it is answered");
    let (thaw, gate) = channel();
    let read = run.read(Some(gate));
    pass(SHORT);
    log.clone().take_seat(Term::new(1)).expect("it was seen");
    drop(thaw);
    read.recv().expect_err("it is of the past");
    assert!(matches!(run.ended(), TermEnd::Failed(Error::StaleTerm { .. })));
}

#[test]
fn past_its_deadline_a_seat_that_is_still_ours_is_confirmed_and_nothing_is_lost() {
    let run = Run::on(MemoryLog::new(), SHORT, u64::MAX);
    for number in 1..=3 {
        pass(SHORT);
        assert_eq!(run.read(None).recv(), Ok(number * (number - 1) / 2));
        run.add(number).recv().expect("it is answered");
    }
    assert!(matches!(run.stop(), TermEnd::Stopped));
}

#[test]
fn in_doubt_for_as_long_as_a_seat_is_held_ends_the_term_and_nobody_is_answered() {
    let log = MemoryLog::new();
    let run = Run::on(log.clone(), SHORT, u64::MAX);
    log.doubt(true);
    let answer = run.add(5);
    answer.recv().expect_err("whether it was stored is not known");
    assert!(matches!(run.ended(), TermEnd::Failed(Error::Unknown { .. })));
    log.doubt(false);
    let run = Run::on(log, LONG, u64::MAX);
    assert_eq!(run.read(None).recv(), Ok(5), "it was, and who follows knows");
}

#[test]
fn a_log_that_is_cut_off_confirms_nothing_although_it_answers_reads() {
    let log = MemoryLog::new();
    let run = Run::on(log.clone(), SHORT, u64::MAX);
    log.doubt(true);
    run.host.run_queue.put(ToyCommand::Seat);
    assert!(matches!(run.ended(), TermEnd::Failed(Error::Unknown { .. })));
}

#[test]
fn a_batch_that_was_in_doubt_for_a_moment_is_answered_once() {
    let log = MemoryLog::new();
    let run = Run::on(log.clone(), LONG, u64::MAX);
    log.inject(AppendFault::AnswerLost);
    assert_eq!(run.add(5).recv(), Ok(5));
    assert_eq!(*run.host.trouble.lock().expect("nobody panics"), "", "it is over");
    assert!(matches!(run.stop(), TermEnd::Stopped));
}

#[test]
fn what_becomes_durable_after_all_hope_was_given_up_is_told_to_nobody() {
    let run = Run::on(MemoryLog::new(), LONG, u64::MAX);
    run.host.is_given_up.store(true, Ordering::Relaxed);
    run.add(5).recv().expect_err("nobody listens");
    assert!(matches!(run.stop(), TermEnd::Stopped));
}

/// Both ends of a line, what is seen, and the deadline of the seat.
fn line() -> (ToyHost, OutgoingSender<ToyHost>, outgoing::OutgoingQueue<ToyHost>, SeatDeadline) {
    let seat = SeatDeadline::of_seat_taken(clock::mono(), LONG);
    let (sender, queue) = outgoing_channel(Seq(10), seat.clone());
    (ToyHost::new(LONG), sender, queue, seat)
}

#[test]
fn what_waits_goes_in_order_once_it_may_and_nothing_overtakes_it() {
    let ((host, mut sender, mut queue, _), (to, seen)) = (line(), channel());
    let out = |name: u64| (to.clone(), name);
    let now = || seen.try_iter().collect::<Vec<u64>>();
    sender.put(Seq(10), out(1), Seq(10), &host);
    assert_eq!(now(), [1], "it waits for nothing");

    sender.put(Seq(12), out(2), Seq(10), &host);
    sender.put(Seq(10), out(3), Seq(10), &host);
    let outs = sender.take();
    assert_eq!(outs.len(), 2);
    // The machine may hear that all is durable before the committer has come to these.
    sender.put(Seq(12), out(4), Seq(12), &host);
    assert!(now().is_empty(), "those before it have not been let go");
    queue.add(outs);
    queue.made_durable(Seq(11));
    assert!(!queue.has_ready());
    queue.made_durable(Seq(12));
    assert!(queue.has_ready());
    queue.release(&host);
    assert_eq!(now(), [2, 3]);
    queue.add(sender.take());
    queue.release(&host);
    assert_eq!(now(), [4], "what comes late need not wait");
    sender.put(Seq(12), out(5), Seq(12), &host);
    assert_eq!(now(), [5]);
}

#[test]
fn some_go_first_and_each_in_order() {
    let ((host, mut sender, mut queue, _), (to, seen)) = (line(), channel());
    for name in [10, 1_001, 11, 1_002] {
        sender.put(Seq(11), (to.clone(), name), Seq(10), &host);
    }
    sender.put(Seq(12), (to.clone(), 1_003), Seq(10), &host);
    queue.add(sender.take());
    queue.made_durable(Seq(11));
    queue.release(&host);
    assert_eq!(seen.try_iter().collect::<Vec<u64>>(), [1_001, 1_002, 10, 11]);
}

#[test]
fn the_machine_itself_lets_nothing_go_when_the_seat_is_in_doubt() {
    let ((host, mut sender, _, seat), (to, seen)) = (line(), channel());
    seat.unconfirm();
    sender.put(Seq(10), (to.clone(), 1), Seq(10), &host);
    assert!(seen.try_recv().is_err() && !sender.is_empty(), "it is for the committer, who asks the log first");
}
