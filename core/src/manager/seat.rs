//! Whether we may act at all, and which time counts.
//!
//! A leader serves only while its seat was confirmed within `seat_ttl`; the machine asks for confirmation every third
//! of that. What confirms it counts from when it was asked, or from when the event was decided that is now durable: the
//! answer may have been on its way for long.
//!
//! Time in which we did not listen is a **gap**. There are two kinds, and they may overlap:
//!
//! - A wake-up that comes late by more than `gap_after`: this process could not run, from the wake-up that it had asked
//!   for on. Nothing from before confirms the seat, and what queued up outside of this machine has to be fed in
//!   ([`crate::input::Input::Drained`]).
//! - The seat is not confirmed, from the end of `seat_ttl` on: we may not take what we are told.
//!
//! Either way the order is: the seat is confirmed, what queued up or was [kept](super::kept) is taken, and only then may
//! timers fire. A gap does not count on awake time: leases, health and stuck clocks stand still. Log time and with it
//! overall timeouts go on.

use core::time::Duration;
use std::collections::VecDeque;

use crate::effect::{Effect, Effects, Notice, PendingEffect};
use crate::event::Event;
use crate::fence::Term;
use crate::ids::Seq;
use crate::time::{Awake, LogClock, Mono, Now, Wall, span_ms};

use super::Manager;

#[derive(Debug)]
pub(crate) struct Seat {
    term: Term,
    clock: LogClock,
    taken_at: Wall,
    confirmed_at: Option<Mono>,
    asked_at: Mono,
    /// Questions that were not answered yet, with when they were asked; the newest last.
    questions: VecDeque<(u64, Mono)>,
    asked: u64,
    /// Nothing from before this confirms the seat: we have been away since.
    not_before: Mono,
    lost: bool,
    /// A gap was noticed and what queued up has not been heard yet.
    settling: bool,
    /// Sum of all gaps.
    gaps: Duration,
    /// Of it, the time in which this process could not run.
    frozen: Duration,
    /// Of it, the time without a confirmed seat that was not reported yet.
    unreported: Duration,
    /// The last wake-up that was asked for.
    pub(super) promised: Option<Mono>,
    /// The event by which this term began: nothing is acted on before it is durable.
    began: Seq,
}

/// How many unanswered questions about the seat are remembered.
const QUESTIONS_KEPT: usize = 16;

/// What can be seen of the seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeatState {
    NeverTaken,
    /// Taken, and not confirmed recently enough to serve.
    Unconfirmed,
    /// Confirmed after a gap; what queued up or was kept is taken before timers fire.
    Settling,
    Serving,
    Lost,
}

impl SeatState {
    pub const fn code(self) -> &'static str {
        match self {
            Self::NeverTaken => "never_taken",
            Self::Unconfirmed => "unconfirmed",
            Self::Settling => "settling",
            Self::Serving => "serving",
            Self::Lost => "lost",
        }
    }
}

impl Seat {
    pub(super) fn none(now: Now) -> Self {
        Self {
            term: Term::default(),
            clock: LogClock::start(Wall::ZERO, now),
            taken_at: Wall::ZERO,
            confirmed_at: None,
            asked_at: now.mono,
            questions: VecDeque::new(),
            asked: 0,
            not_before: now.mono,
            lost: false,
            settling: false,
            gaps: Duration::ZERO,
            frozen: Duration::ZERO,
            unreported: Duration::ZERO,
            promised: None,
            began: Seq::default(),
        }
    }

    pub(super) fn lose(&mut self) {
        self.lost = true;
    }

    pub(super) fn term(&self) -> Term {
        self.term
    }

    pub(super) fn clock(&self) -> &LogClock {
        &self.clock
    }

    pub(super) fn taken_at(&self) -> Wall {
        self.taken_at
    }

    pub(super) fn confirmed_at(&self) -> Option<Mono> {
        self.confirmed_at
    }

    /// Since when in the time from `before` to `now` the seat was not confirmed.
    fn unconfirmed_since(&self, ttl: Duration, before: Mono, now: Mono) -> Option<Mono> {
        let since = self.confirmed_at.map_or(before, |at| (at + ttl).max(before));
        (since < now).then_some(since)
    }

    /// Whether a question about the seat was asked in the step of this instant.
    pub(super) fn asked_at(&self, now: Mono) -> bool {
        self.asked_at == now
    }

    /// Awake time as monotonic time, as long as no further gap comes.
    pub(super) fn mono_of(&self, at: Awake) -> Mono {
        Mono::from_ms(at.as_ms()) + self.gaps
    }
}

impl Manager {
    pub fn seat_state(&self) -> SeatState {
        let seat = &self.seat;
        if seat.lost {
            SeatState::Lost
        } else if seat.term == Term::default() {
            SeatState::NeverTaken
        } else if seat.confirmed_at.is_none_or(|at| self.now.mono.since(at) > self.rules.seat_ttl) {
            SeatState::Unconfirmed
        } else if seat.settling || !self.kept.is_empty() {
            SeatState::Settling
        } else {
            SeatState::Serving
        }
    }

    /// Whether calls and messages may be answered.
    pub(super) fn serving(&self) -> bool {
        matches!(self.seat_state(), SeatState::Serving | SeatState::Settling)
    }

    /// Whether timers may fire and work may be handed out.
    pub(super) fn may_decide(&self) -> bool {
        self.seat_state() == SeatState::Serving
    }

    pub(super) fn log_now(&self) -> Wall {
        self.seat.clock.at(self.now.mono)
    }

    /// Log time at this moment: what the instants of jobs are measured by, whatever the wall clock says.
    pub fn log_time_at(&self, now: Mono) -> Wall {
        self.seat.clock.at(now)
    }

    /// Moves the clocks. What of the time since the last step was a gap does not count; a step of the wall clock is
    /// reported.
    pub(super) fn advance_clocks(&mut self, now: Now, fx: &mut Effects) {
        let before = self.now.mono;
        self.now = Now { mono: now.mono.max(before), wall: now.wall };
        if self.replaying {
            self.awake = Awake::from_ms(self.now.mono.as_ms());
            return;
        }
        let now = self.now.mono;
        let unconfirmed_since = self.seat.unconfirmed_since(self.rules.seat_ttl, before, now);
        let late_since = self.seat.promised.filter(|at| now.since(*at) > self.rules.gap_after);
        if let Some(since) = unconfirmed_since.into_iter().chain(late_since).min() {
            self.seat.gaps += now.since(since);
        }
        match (late_since, unconfirmed_since) {
            (Some(promised), _) => {
                self.seat.frozen += now.since(promised);
                self.seat.settling = true;
                self.seat.confirmed_at = None;
                self.seat.not_before = now;
                self.report(Notice::GapNoticed { gap: now.since(promised) }, fx);
                self.ask_for_seat(fx);
            }
            (None, Some(since)) => self.seat.unreported += now.since(since),
            (None, None) => {}
        }
        self.awake = Awake::from_ms(now.as_ms().saturating_sub(span_ms(self.seat.gaps)));
        if let Some(step) = self.seat.clock.wall_step(self.now) {
            self.report(Notice::WallClockStepped(step), fx);
        }
        if !self.seat.lost && now >= self.seat_pulse() {
            self.ask_for_seat(fx);
        }
    }

    /// The clock by which this manager judges itself: a log that does not answer excuses others, and not us.
    pub(super) fn own_awake(&self) -> Awake {
        Awake::from_ms(self.now.mono.as_ms().saturating_sub(span_ms(self.seat.frozen)))
    }

    /// Time without a confirmed seat is reported when it is over, if it was long.
    pub(super) fn report_gap(&mut self, fx: &mut Effects) {
        if self.seat.unreported.is_zero() || !self.serving() {
            return;
        }
        let gap = core::mem::take(&mut self.seat.unreported);
        if gap > self.rules.gap_after {
            self.report(Notice::GapNoticed { gap }, fx);
        }
    }

    fn ask_for_seat(&mut self, fx: &mut Effects) {
        let seat = &mut self.seat;
        if seat.lost {
            return;
        }
        seat.asked_at = self.now.mono;
        seat.asked += 1;
        seat.questions.push_back((seat.asked, self.now.mono));
        if seat.questions.len() > QUESTIONS_KEPT {
            seat.questions.pop_front();
        }
        // It reads the log, and so depends on no event of ours.
        fx.list.push(PendingEffect { after: Seq::default(), effect: Effect::ConfirmSeat { question: seat.asked } });
    }

    /// When the seat wants to be confirmed next.
    pub(super) fn seat_pulse(&self) -> Mono {
        let from = self.seat.confirmed_at.map_or(self.seat.asked_at, |at| at.max(self.seat.asked_at));
        from + self.rules.seat_ttl / 3
    }

    /// The log has been replayed and the seat is ours: everything soft is built anew.
    pub(super) fn begin_term(&mut self, term: Term, fx: &mut Effects) {
        if !self.replaying || term <= self.state.term() {
            // A term that is not newer than the log's cannot have been given to us.
            self.seat.lost = true;
            return;
        }
        assert!(self.restoring.is_none(), "a snapshot is restored as a whole");
        self.replaying = false;
        self.sharing = None;
        self.seat.term = term;
        self.seat.clock = LogClock::start(self.state.newest(), self.now);
        self.seat.taken_at = self.log_now();
        self.seat.asked_at = self.now.mono;
        let first_term = self.state.term() == Term::default();
        self.emit(Event::TermBegan { term }, fx);
        self.seat.began = self.state.seq();
        if !first_term {
            self.resume();
        }
    }

    /// An answer confirms the seat as of its question.
    pub(super) fn handle_seat_answer(&mut self, term: Term, question: u64) {
        if term != self.seat.term {
            self.seat.lost = true;
            return;
        }
        while let Some((number, asked_at)) = self.seat.questions.front().copied() {
            if number > question {
                return;
            }
            self.seat.questions.pop_front();
            if number == question {
                self.confirm_as_of(asked_at);
            }
        }
    }

    fn confirm_as_of(&mut self, at: Mono) {
        if self.durability.durable() >= self.seat.began && at >= self.seat.not_before {
            self.seat.confirmed_at = self.seat.confirmed_at.max(Some(at));
        }
    }

    /// An append that returned confirms the seat as of its decision.
    pub(super) fn handle_durable(&mut self, seq: Seq) {
        self.durability.advance(seq);
        while let Some(step) = self.durability.pop_synced() {
            self.flow.count(&self.rules.progress, self.own_awake(), step.handouts);
            self.confirm_as_of(step.decided_at);
        }
    }

    /// What queued up outside was fed in, and so it was taken or is kept here.
    pub(super) fn handle_queue_drained(&mut self) {
        if self.seat.confirmed_at.is_some() {
            self.seat.settling = false;
        }
    }
}
