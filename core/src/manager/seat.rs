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

use crate::effect::{Effect, Effects, ManagerNotice, PendingEffect};
use crate::event::Event;
use crate::fence::Term;
use crate::ids::Seq;
use crate::settings::Rules;
use crate::time::{Awake, LogClock, Mono, Now, Wall, span_ms};

use super::Manager;

/// The state of the seat, whichever machine sits on it: a manager or a gate.
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
    /// The part of the gaps in which this process could not run.
    frozen: Duration,
    /// The part of the gaps without a confirmed seat that was not reported yet.
    unreported: Duration,
    /// The last wake-up that was asked for.
    pub(crate) promised: Option<Mono>,
    /// The event by which this term began: nothing is acted on before it is durable.
    began: Seq,
}

/// The number of unanswered questions about the seat that are remembered.
const QUESTIONS_KEPT: usize = 16;

/// The seat as it can be seen.
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
    pub(crate) fn none(now: Now) -> Self {
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

    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(crate) fn term(&self) -> Term {
        self.term
    }

    pub(crate) fn clock(&self) -> &LogClock {
        &self.clock
    }

    pub(crate) fn clock_mut(&mut self) -> &mut LogClock {
        &mut self.clock
    }

    pub(crate) fn taken_at(&self) -> Wall {
        self.taken_at
    }

    pub(crate) fn confirmed_at(&self) -> Option<Mono> {
        self.confirmed_at
    }

    /// `has_kept`: something that was said while it was not confirmed has not been taken yet.
    pub(crate) fn state(&self, now: Mono, ttl: Duration, has_kept: bool) -> SeatState {
        if self.lost {
            SeatState::Lost
        } else if self.term == Term::default() {
            SeatState::NeverTaken
        } else if self.confirmed_at.is_none_or(|at| now.since(at) > ttl) {
            SeatState::Unconfirmed
        } else if self.settling || has_kept {
            SeatState::Settling
        } else {
            SeatState::Serving
        }
    }

    /// Since when in the time from `before` to `now` the seat was not confirmed.
    fn unconfirmed_since(&self, ttl: Duration, before: Mono, now: Mono) -> Option<Mono> {
        let since = self.confirmed_at.map_or(before, |at| (at + ttl).max(before));
        (since < now).then_some(since)
    }

    /// Time passes. Gives for how long this process could not run, if that was a gap: then the seat is to be asked for at
    /// once.
    pub(crate) fn advance(&mut self, before: Mono, now: Mono, rules: &Rules) -> Option<Duration> {
        let unconfirmed_since = self.unconfirmed_since(rules.seat_ttl, before, now);
        let late_since = self.promised.filter(|at| now.since(*at) > rules.gap_after);
        if let Some(since) = unconfirmed_since.into_iter().chain(late_since).min() {
            self.gaps += now.since(since);
        }
        match (late_since, unconfirmed_since) {
            (Some(promised), _) => {
                self.frozen += now.since(promised);
                self.settling = true;
                self.confirmed_at = None;
                self.not_before = now;
                Some(now.since(promised))
            }
            (None, Some(since)) => {
                self.unreported += now.since(since);
                None
            }
            (None, None) => None,
        }
    }

    /// A gap without a confirmed seat that is over and was long enough to be told, once.
    pub(crate) fn take_unreported(&mut self, rules: &Rules) -> Option<Duration> {
        let gap = core::mem::take(&mut self.unreported);
        (gap > rules.gap_after).then_some(gap)
    }

    /// The number of a question about the seat, unless it is lost.
    pub(crate) fn ask(&mut self, now: Mono) -> Option<u64> {
        if self.lost {
            return None;
        }
        self.asked_at = now;
        self.asked += 1;
        self.questions.push_back((self.asked, now));
        if self.questions.len() > QUESTIONS_KEPT {
            self.questions.pop_front();
        }
        Some(self.asked)
    }

    /// The instant when the seat wants to be confirmed next.
    pub(crate) fn pulse(&self, ttl: Duration) -> Mono {
        let from = self.confirmed_at.map_or(self.asked_at, |at| at.max(self.asked_at));
        from + ttl / 3
    }

    /// The seat is ours under this term.
    pub(crate) fn begin(&mut self, term: Term, newest: Wall, now: Now) {
        self.term = term;
        self.clock = LogClock::start(newest, now);
        self.taken_at = self.clock.at(now.mono);
        self.asked_at = now.mono;
    }

    pub(crate) fn set_began(&mut self, began: Seq) {
        self.began = began;
    }

    /// An answer confirms the seat as of its question.
    pub(crate) fn handle_answer(&mut self, term: Term, question: u64, durable: Seq) {
        if term != self.term {
            self.lost = true;
            return;
        }
        while let Some((number, asked_at)) = self.questions.front().copied() {
            if number > question {
                return;
            }
            self.questions.pop_front();
            if number == question {
                self.confirm_as_of(asked_at, durable);
            }
        }
    }

    pub(crate) fn confirm_as_of(&mut self, at: Mono, durable: Seq) {
        if durable >= self.began && at >= self.not_before {
            self.confirmed_at = self.confirmed_at.max(Some(at));
        }
    }

    /// Notes that everything queued outside was fed in, and so was taken or is kept here.
    pub(crate) fn handle_drained(&mut self) {
        if self.confirmed_at.is_some() {
            self.settling = false;
        }
    }

    /// Whether a question about the seat was asked in the step of this instant.
    pub(super) fn asked_at(&self, now: Mono) -> bool {
        self.asked_at == now
    }

    /// Monotonic time without gaps.
    pub(crate) fn awake_at(&self, now: Mono) -> Awake {
        Awake::from_ms(now.as_ms().saturating_sub(span_ms(self.gaps)))
    }

    /// The clock by which whoever sits here is judged itself: a log that does not answer excuses others, and not us.
    pub(crate) fn own_awake_at(&self, now: Mono) -> Awake {
        Awake::from_ms(now.as_ms().saturating_sub(span_ms(self.frozen)))
    }

    /// Awake time as monotonic time, as long as no further gap comes.
    pub(crate) fn mono_of(&self, at: Awake) -> Mono {
        Mono::from_ms(at.as_ms()) + self.gaps
    }
}

impl Manager {
    pub fn seat_state(&self) -> SeatState {
        self.seat.state(self.now.mono, self.rules.seat_ttl, !self.kept.is_empty())
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
        if let Some(gap) = self.seat.advance(before, now, &self.rules) {
            self.report(ManagerNotice::GapNoticed { gap }, fx);
            self.ask_for_seat(fx);
        }
        self.awake = self.seat.awake_at(now);
        if let Some(step) = self.seat.clock.wall_step(self.now) {
            self.report(ManagerNotice::WallClockStepped(step), fx);
        }
        if !self.seat.lost && now >= self.seat_pulse() {
            self.ask_for_seat(fx);
        }
    }

    /// The clock by which this manager judges itself: a log that does not answer excuses others, and not us.
    pub(super) fn own_awake(&self) -> Awake {
        self.seat.own_awake_at(self.now.mono)
    }

    /// Time without a confirmed seat is reported when it is over, if it was long.
    pub(super) fn report_gap(&mut self, fx: &mut Effects) {
        if self.seat.unreported.is_zero() || !self.serving() {
            return;
        }
        if let Some(gap) = self.seat.take_unreported(&self.rules) {
            self.report(ManagerNotice::GapNoticed { gap }, fx);
        }
    }

    fn ask_for_seat(&mut self, fx: &mut Effects) {
        if let Some(question) = self.seat.ask(self.now.mono) {
            // The question reads the log, and so depends on no event of ours.
            fx.list.push(PendingEffect { after: Seq::default(), effect: Effect::ConfirmSeat { question } });
        }
    }

    /// The instant when the seat wants to be confirmed next.
    pub(super) fn seat_pulse(&self) -> Mono {
        self.seat.pulse(self.rules.seat_ttl)
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
        self.seat.begin(term, self.state.newest(), self.now);
        let first_term = self.state.term() == Term::default();
        self.emit(Event::TermBegan { term }, fx);
        self.seat.set_began(self.state.seq());
        if !first_term {
            self.resume();
        }
    }

    pub(super) fn handle_seat_answer(&mut self, term: Term, question: u64) {
        self.seat.handle_answer(term, question, self.durability.durable());
    }

    /// An append that returned confirms the seat as of its decision.
    pub(super) fn handle_durable(&mut self, seq: Seq) {
        self.durability.advance(seq);
        while let Some(step) = self.durability.pop_synced() {
            self.flow.count(&self.rules.progress, self.own_awake(), step.handouts);
            self.seat.confirm_as_of(step.decided_at, self.durability.durable());
        }
    }

    pub(super) fn handle_queue_drained(&mut self) {
        self.seat.handle_drained();
    }
}
