//! Whether the gate may act at all, and which time counts: the rules of [`crate::manager::seat`], for this machine.
//!
//! What is said while the seat is not confirmed is kept and taken after the confirmation, before any timer fires. Calls wait
//! for `seat_ttl` and are refused then. Past [`KEPT`] frames are dropped: a datacenter repeats whatever counts, but its hello,
//! which is kept.

use crate::fence::Term;
use crate::ids::{RequestId, Seq};
use crate::manager::SeatState;
use crate::refusal::Refusal;
use crate::time::{Awake, Now};

use super::Gate;
use super::effect::{Effect, Effects, GateNotice, PendingEffect};
use super::event::Event;
use super::input::Input;
use super::message::FromDatacenter;

/// The number of inputs that are kept while the seat is not confirmed.
const KEPT: usize = 10_000;
/// The number of kept inputs that one step takes.
const TAKEN_PER_STEP: usize = 256;

impl Gate {
    pub(super) fn begin_term(&mut self, term: Term, fx: &mut Effects) {
        if !self.replaying || term <= self.state.term() {
            // A term that is not newer than the log's cannot have been given to us.
            self.seat.lose();
            return;
        }
        assert!(self.restoring.is_none(), "a snapshot is restored as a whole");
        self.replaying = false;
        self.seat.begin(term, self.state.newest, self.now);
        self.datacenters.begin(self.awake);
        self.agenda.begin(self.now.mono, &self.rules.gate);
        self.emit(Event::TermBegan { term }, fx);
        self.rise_above_earlier_gates(fx);
        self.seat.set_began(self.state.seq());
        let known: Vec<_> = self.state.datacenters.keys().cloned().collect();
        for name in &known {
            self.datacenters.add(name, self.awake);
        }
        let jobs: Vec<_> = self.state.jobs.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.index(job));
    }

    /// Raises the epoch where epochs were raised above terms: there the term alone does not tell this gate from the one
    /// before it.
    fn rise_above_earlier_gates(&mut self, fx: &mut Effects) {
        let used = self.state.jobs().map(|job| job.n).max().unwrap_or_default().max(self.state.raised);
        if used >= self.seat.term().get() {
            self.raise_epoch_above(used, fx);
        }
    }

    pub(super) fn advance_clocks(&mut self, now: Now, fx: &mut Effects) {
        let before = self.now.mono;
        self.now = Now { mono: now.mono.max(before), wall: now.wall };
        if self.replaying {
            self.awake = Awake::from_ms(self.now.mono.as_ms());
            return;
        }
        let now = self.now.mono;
        if let Some(gap) = self.seat.advance(before, now, &self.rules) {
            self.report(GateNotice::GapNoticed { gap }, fx);
            self.ask_for_seat(fx);
        }
        self.awake = self.seat.awake_at(now);
        if let Some(step) = self.seat.clock_mut().wall_step(self.now) {
            self.report(GateNotice::WallClockStepped(step), fx);
        }
        if !self.seat.is_lost() && now >= self.seat.pulse(self.rules.seat_ttl) {
            self.ask_for_seat(fx);
        }
    }

    fn ask_for_seat(&mut self, fx: &mut Effects) {
        if let Some(question) = self.seat.ask(self.now.mono) {
            // The question reads the log, and so depends on no event of ours.
            fx.list.push(PendingEffect { after: Seq::default(), effect: Effect::ConfirmSeat { question } });
        }
    }

    pub(super) fn own_awake(&self) -> Awake {
        self.seat.own_awake_at(self.now.mono)
    }

    /// The number of inputs that wait for the seat to be confirmed.
    pub fn kept_inputs(&self) -> usize {
        self.kept.len()
    }

    /// Whether calls and frames may be taken.
    fn serving(&self) -> bool {
        matches!(self.seat_state(), SeatState::Serving | SeatState::Settling)
    }

    /// Whether timers may fire.
    pub(super) fn may_decide(&self) -> bool {
        self.seat_state() == SeatState::Serving
    }

    /// Takes what somebody said, or keeps it while it may not be taken.
    pub(super) fn handle_or_keep(&mut self, input: Input, fx: &mut Effects) {
        match self.seat_state() {
            SeatState::NeverTaken | SeatState::Lost => self.turn_away(input, fx),
            SeatState::Settling | SeatState::Serving if self.kept.is_empty() => self.handle_report(input, fx),
            SeatState::Unconfirmed | SeatState::Settling | SeatState::Serving => self.keep(input, fx),
        }
    }

    fn keep(&mut self, input: Input, fx: &mut Effects) {
        let is_bounded = match &input {
            Input::Call { .. } => true,
            // It is said once on a stream, and nothing else is taken from there before it.
            Input::Datacenter { frame, .. } => !matches!(frame.message, FromDatacenter::Hello(_)),
            _ => false,
        };
        if is_bounded && self.kept.len() >= KEPT {
            return self.turn_away(input, fx);
        }
        self.kept.push_back((self.now.mono, input));
    }

    /// Takes kept inputs after the confirmation, before timers fire. Calls that waited too long, and all of them once
    /// the seat is lost, are refused.
    pub(super) fn handle_kept(&mut self, fx: &mut Effects) {
        if self.kept.is_empty() {
            return;
        }
        match self.seat_state() {
            SeatState::Lost => {
                while let Some((_, input)) = self.kept.pop_front() {
                    self.turn_away(input, fx);
                }
            }
            SeatState::Unconfirmed => {
                let (now, ttl) = (self.now.mono, self.rules.seat_ttl);
                let mut late = Vec::new();
                self.kept.retain(|(came_at, input)| match input {
                    Input::Call { request, .. } if *came_at + ttl <= now => {
                        late.push(*request);
                        false
                    }
                    _ => true,
                });
                late.into_iter().for_each(|request| self.refuse_without_seat(request, fx));
            }
            SeatState::Settling | SeatState::Serving => {
                for _ in 0..TAKEN_PER_STEP {
                    if !self.serving() {
                        return;
                    }
                    let Some((_, input)) = self.kept.pop_front() else { return };
                    self.handle_report(input, fx);
                }
            }
            SeatState::NeverTaken => {}
        }
    }

    fn turn_away(&mut self, input: Input, fx: &mut Effects) {
        if let Input::Call { request, .. } = input {
            self.refuse_without_seat(request, fx);
        }
    }

    /// Depends on nothing that was decided, and so waits for no event.
    fn refuse_without_seat(&mut self, request: RequestId, fx: &mut Effects) {
        let refusal = Refusal::NoLeader;
        self.refusals.count(refusal.kind());
        let effect = Effect::Reply { request, answer: Err(refusal) };
        fx.list.push(PendingEffect { after: Seq::default(), effect });
    }
}
