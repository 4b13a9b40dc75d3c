//! Inputs that came while the seat was not confirmed.
//!
//! Without a confirmed seat this machine may decide nothing, so it does not take what it is told; but it is not the
//! fault of whoever says it. Such time is a *gap*, like one in which the process could not run (see [`super::seat`]):
//! awake time stands still, and what came during it is kept here and taken after the confirmation, in the order in which
//! it came and before any timer fires.
//!
//! | what | is kept |
//! |---|---|
//! | a worker's messages, and the end of its session | until the confirmation |
//! | jobs that were archived, callers that are gone | until the confirmation |
//! | calls | for `seat_ttl`; then they get `no_leader`, which waits for nothing. The caller repeats the call |
//!
//! **Memory is bounded.** Past [`MAX_BYTES`] calls and messages are refused with `no_leader` at once: a caller repeats
//! its call, and a worker says on a new session all that was not answered. The end of a session is kept only where the
//! session is known, the end of a call only where it is a poll, and what was archived is at most every job. Whoever
//! connects, hears nothing and goes again leaves nothing behind.
//!
//! **Taking is cut into bites**: so many inputs in a step, and the next step at once. Until the last of them was taken,
//! what comes anew goes behind them, so that nothing overtakes what its own session said before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::effect::{Effect, Effects, PendingEffect};
use crate::ids::{RequestId, Seq, SessionId};
use crate::input::{Call, Input};
use crate::message::{Beat, EndReport, FromWorker, Settlement, ToWorker};
use crate::payload::Payload;
use crate::refusal::Refusal;
use crate::time::Mono;

use super::{Manager, SeatState};

/// The size, about, that kept inputs reach before calls and messages are refused.
const MAX_BYTES: usize = 64 << 20;
/// The number of kept inputs that one step takes.
const TAKEN_PER_STEP: usize = 256;

#[derive(Debug, Default)]
pub(super) struct KeptInputs {
    /// All but calls, each with its number in the order in which they came.
    reports: VecDeque<(u64, Input)>,
    calls: VecDeque<KeptCall>,
    /// Sessions that have messages here.
    sessions: BTreeMap<SessionId, KeptSession>,
    /// Polls among the calls, whose caller must be told apart when it is gone.
    polls: BTreeSet<RequestId>,
    next_number: u64,
    bytes: usize,
}

#[derive(Debug)]
struct KeptCall {
    number: u64,
    came_at: Mono,
    request: RequestId,
    call: Call,
}

#[derive(Debug, Default)]
struct KeptSession {
    messages: u32,
    /// Set once the session has sent more than its hello.
    has_reported: bool,
}

impl KeptInputs {
    pub(super) fn is_empty(&self) -> bool {
        self.reports.is_empty() && self.calls.is_empty()
    }

    /// The instant when the oldest call came.
    pub(super) fn oldest_call(&self) -> Option<Mono> {
        self.calls.front().map(|call| call.came_at)
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= MAX_BYTES
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn add_call(&mut self, came_at: Mono, request: RequestId, call: Call) {
        let number = self.number();
        self.bytes += weight_of_call(&call);
        if matches!(call, Call::Poll(_)) {
            self.polls.insert(request);
        }
        self.calls.push_back(KeptCall { number, came_at, request, call });
    }

    /// A call that was taken and cannot be carried out yet: it stands before all that came after it.
    pub(super) fn put_call_back(&mut self, came_at: Mono, request: RequestId, call: Call) {
        self.bytes += weight_of_call(&call);
        self.calls.push_front(KeptCall { number: 0, came_at, request, call });
    }

    fn add_message(&mut self, session: SessionId, message: FromWorker) {
        let number = self.number();
        self.bytes += weight_of_message(&message);
        let kept = self.sessions.entry(session).or_default();
        kept.messages += 1;
        kept.has_reported |= is_report(&message);
        self.reports.push_back((number, Input::Session { session, message }));
    }

    fn add_notice(&mut self, notice: Input) {
        let number = self.number();
        self.reports.push_back((number, notice));
    }

    /// The session is closed, and nobody knows it but for what lies here. If it reported nothing, that is of no use any
    /// more. Returns whether its end has to be kept.
    fn close_unknown(&mut self, session: SessionId) -> bool {
        match self.sessions.get(&session) {
            None => false,
            Some(kept) if kept.has_reported => true,
            Some(_) => {
                let mut bytes = 0;
                self.reports.retain(|(_, input)| match input {
                    Input::Session { session: of, message } if *of == session => {
                        bytes += weight_of_message(message);
                        false
                    }
                    _ => true,
                });
                self.bytes -= bytes;
                self.sessions.remove(&session);
                false
            }
        }
    }

    fn pop(&mut self) -> Option<Input> {
        let report = self.reports.front().map(|(number, _)| *number);
        match (report, self.calls.front()) {
            (Some(number), call) if call.is_none_or(|call| number < call.number) => self.pop_report(),
            _ => self.pop_call().map(|(request, call)| Input::Call { request, call }),
        }
    }

    fn pop_report(&mut self) -> Option<Input> {
        let (_, input) = self.reports.pop_front()?;
        if let Input::Session { session, message } = &input {
            self.bytes -= weight_of_message(message);
            let kept = self.sessions.get_mut(session).expect("a session with messages is known");
            kept.messages -= 1;
            if kept.messages == 0 {
                self.sessions.remove(session);
            }
        }
        Some(input)
    }

    fn pop_call(&mut self) -> Option<(RequestId, Call)> {
        let KeptCall { request, call, .. } = self.calls.pop_front()?;
        self.bytes -= weight_of_call(&call);
        self.polls.remove(&request);
        Some((request, call))
    }
}

impl Manager {
    /// Takes what somebody said, or keeps it while it may not be taken.
    pub(super) fn handle_or_keep(&mut self, input: Input, fx: &mut Effects) {
        match self.seat_state() {
            SeatState::NeverTaken | SeatState::Lost => self.turn_away(input, fx),
            SeatState::Unconfirmed => self.keep(input, fx),
            SeatState::Settling | SeatState::Serving if self.kept.is_empty() => self.handle_report(input, fx),
            SeatState::Settling | SeatState::Serving => self.keep(input, fx),
        }
    }

    fn keep(&mut self, input: Input, fx: &mut Effects) {
        match input {
            Input::Call { request, call } => {
                if !self.kept.has_room(weight_of_call(&call)) {
                    return self.refuse_without_seat(request, fx);
                }
                self.kept.add_call(self.now.mono, request, call);
            }
            Input::Session { session, message } => {
                if !self.kept.has_room(weight_of_message(&message)) {
                    return self.turn_away(Input::Session { session, message }, fx);
                }
                self.kept.add_message(session, message);
            }
            Input::SessionClosed { session } => {
                if self.fleet.find_session(session).is_some() || self.kept.close_unknown(session) {
                    self.kept.add_notice(input);
                }
            }
            Input::CallGone { request, .. } => {
                if self.polls.is_poll(request) || self.kept.polls.contains(&request) {
                    self.kept.add_notice(input);
                }
            }
            // A gate repeats whatever was not answered.
            Input::Gate { .. } | Input::ArchivedFound { .. } => {}
            notice => self.kept.add_notice(notice),
        }
    }

    /// Takes kept inputs after the confirmation, before timers fire.
    pub(super) fn handle_kept(&mut self, fx: &mut Effects) {
        for _ in 0..TAKEN_PER_STEP {
            if !self.serving() {
                return;
            }
            let Some(input) = self.kept.pop() else { return };
            self.handle_report(input, fx);
        }
    }

    /// Calls that have waited for the seat as long as they may. If it is lost, nothing waits for it any more.
    pub(super) fn refuse_kept(&mut self, fx: &mut Effects) {
        match self.seat_state() {
            SeatState::Unconfirmed => {
                let ttl = self.rules.seat_ttl;
                while self.kept.oldest_call().is_some_and(|came_at| came_at + ttl <= self.now.mono) {
                    let (request, _) = self.kept.pop_call().expect("there is an oldest one");
                    self.refuse_without_seat(request, fx);
                }
            }
            SeatState::Lost => {
                while let Some(input) = self.kept.pop() {
                    self.turn_away(input, fx);
                }
            }
            SeatState::NeverTaken | SeatState::Settling | SeatState::Serving => {}
        }
    }

    fn turn_away(&mut self, input: Input, fx: &mut Effects) {
        match input {
            Input::Call { request, .. } => self.refuse_without_seat(request, fx),
            Input::Session { session, .. } => {
                let refusal = Refusal::NoLeader;
                self.refusals.count(refusal.kind());
                let effect = Effect::Send { session, message: ToWorker::Refused(refusal) };
                fx.list.push(PendingEffect { after: Seq::default(), effect });
            }
            _ => {}
        }
    }

    /// Depends on nothing that was decided, and so waits for no event.
    pub(super) fn refuse_without_seat(&mut self, request: RequestId, fx: &mut Effects) {
        let refusal = Refusal::NoLeader;
        self.refusals.count(refusal.kind());
        let effect = Effect::Reply { request, answer: Err(refusal) };
        fx.list.push(PendingEffect { after: Seq::default(), effect });
    }

    /// The number of inputs that have not been taken yet.
    pub fn kept_inputs(&self) -> usize {
        self.kept.reports.len() + self.kept.calls.len()
    }

    /// Whether content that came with an input may still be needed, because the input has not been carried out yet.
    pub fn needs_contents(&self) -> bool {
        self.kept_inputs() > 0 || !self.changes_of_schedules.is_empty()
    }
}

/// Whether the message reports on attempts, and does not only name its sender.
fn is_report(message: &FromWorker) -> bool {
    match message {
        FromWorker::Hello(_)
        | FromWorker::Capacity { .. }
        | FromWorker::ProbeAnswer { .. }
        | FromWorker::RequestExtension(_) => false,
        FromWorker::Beats(beats) => !beats.is_empty(),
        FromWorker::Settle(_) | FromWorker::Ended(_) | FromWorker::Goodbye => true,
    }
}

/// Size of a message in memory, about.
fn weight_of_message(message: &FromWorker) -> usize {
    const BASE: usize = 128;
    let more = match message {
        FromWorker::Hello(hello) => 64 * hello.holding.len() + weight_of_names(&hello.subscription),
        FromWorker::Beats(beats) => beats.iter().map(weight_of_beat).sum(),
        FromWorker::Settle(list) => list.iter().map(weight_of_settlement).sum(),
        FromWorker::RequestExtension(asked) => 64 * asked.claims.len(),
        FromWorker::Ended(claims) => 64 * claims.len(),
        FromWorker::Capacity { .. } | FromWorker::ProbeAnswer { .. } | FromWorker::Goodbye => 0,
    };
    BASE + more
}

fn weight_of_call(call: &Call) -> usize {
    const BASE: usize = 256;
    let more = match call {
        Call::Submit(list) => {
            let of_draft = |draft: &crate::job::Draft| -> usize {
                draft.workflows.iter().map(|workflow| 256 + weight_of_payload(&workflow.payload)).sum()
            };
            list.iter().map(|submission| 512 + of_draft(&submission.draft)).sum()
        }
        Call::Beat(beats) => beats.iter().map(weight_of_beat).sum(),
        Call::Settle(list) => list.iter().map(weight_of_settlement).sum(),
        Call::RequestExtension(asked) => 64 * asked.claims.len(),
        Call::SetSchedule(draft) => {
            draft.job.workflows.iter().map(|workflow| 256 + weight_of_payload(&workflow.payload)).sum()
        }
        Call::CancelWhere { jobs, .. } => 16 * jobs.len(),
        Call::Poll(poll) => weight_of_names(&poll.subscription),
        Call::RetryArchived { image, .. } => {
            let workflows = image.spec.workflows.iter();
            workflows.map(|workflow| 1_024 + weight_of_payload(&workflow.payload)).sum()
        }
        _ => 0,
    };
    BASE + more
}

fn weight_of_names(subscription: &crate::message::Subscription) -> usize {
    64 * (subscription.queues.len() + subscription.kinds.len())
}

fn weight_of_beat(beat: &Beat) -> usize {
    128 + beat.checkpoint.as_ref().map_or(0, |data| data.len()) + beat.note.as_ref().map_or(0, |note| note.len())
}

fn weight_of_settlement(settlement: &Settlement) -> usize {
    128 + settlement.checkpoint.as_ref().map_or(0, |data| data.len())
        + match &settlement.report {
            EndReport::Succeed { result } => weight_of_payload(result),
            EndReport::Fail { error, .. } => error.len(),
            EndReport::Release { .. } => 0,
        }
}

fn weight_of_payload(payload: &Payload) -> usize {
    match payload {
        Payload::Inline(bytes) => bytes.len(),
        // Its bytes lie with whoever feeds this machine until it was taken.
        Payload::Stored(stored) => stored.len as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::AttemptFence;
    use crate::ids::{Claim, JobId};

    fn settled(session: u64) -> (SessionId, FromWorker) {
        (SessionId(session), FromWorker::Settle(Vec::new()))
    }

    #[test]
    fn what_was_kept_comes_back_in_the_order_in_which_it_came() {
        let mut kept = KeptInputs::default();
        let (session, message) = settled(1);
        kept.add_message(session, message.clone());
        kept.add_call(Mono::from_ms(5), RequestId(7), Call::Beat(Vec::new()));
        kept.add_notice(Input::SessionClosed { session });
        kept.add_call(Mono::from_ms(6), RequestId(8), Call::Beat(Vec::new()));
        assert_eq!(kept.oldest_call(), Some(Mono::from_ms(5)));
        let order: Vec<Input> = core::iter::from_fn(|| kept.pop()).collect();
        let call = |request| Input::Call { request: RequestId(request), call: Call::Beat(Vec::new()) };
        assert_eq!(order, [Input::Session { session, message }, call(7), Input::SessionClosed { session }, call(8)]);
        assert!(kept.is_empty() && kept.bytes == 0 && kept.sessions.is_empty());
    }

    #[test]
    fn a_call_that_is_put_back_comes_before_all_that_came_after_it() {
        let mut kept = KeptInputs::default();
        let (session, message) = settled(1);
        kept.add_message(session, message);
        kept.add_call(Mono::from_ms(9), RequestId(9), Call::Beat(Vec::new()));
        kept.put_call_back(Mono::from_ms(6), RequestId(6), Call::Beat(Vec::new()));
        kept.put_call_back(Mono::from_ms(5), RequestId(5), Call::Beat(Vec::new()));
        assert_eq!(kept.oldest_call(), Some(Mono::from_ms(5)));
        let order: Vec<Option<u64>> = core::iter::from_fn(|| kept.pop())
            .map(|input| if let Input::Call { request, .. } = input { Some(request.0) } else { None })
            .collect();
        assert_eq!((order, kept.bytes), (vec![Some(5), Some(6), None, Some(9)], 0));
    }

    #[test]
    fn a_session_that_only_came_and_went_leaves_nothing() {
        let mut kept = KeptInputs::default();
        let (reporting, report) = settled(1);
        let silent = SessionId(2);
        kept.add_message(silent, FromWorker::ProbeAnswer { probe: 1 });
        kept.add_message(reporting, report);
        assert!(!kept.close_unknown(silent) && !kept.close_unknown(SessionId(3)));
        assert!(kept.close_unknown(reporting), "what it reported is taken, and then its end");
        assert_eq!(kept.reports.len(), 1);
        kept.pop();
        assert_eq!((kept.bytes, kept.sessions.len()), (0, 0));
    }

    #[test]
    fn there_is_room_for_so_many_bytes() {
        let mut kept = KeptInputs::default();
        let checkpoint = Some(vec![0; 64 << 10].into());
        let claim = Claim { job: JobId::from_u128(1), workflow: 0, fence: AttemptFence::NONE };
        let beat = Beat { checkpoint, ..Beat::plain(claim) };
        let message = FromWorker::Beats(vec![beat; 16]);
        let mut count = 0;
        while kept.has_room(weight_of_message(&message)) {
            kept.add_message(SessionId(1), message.clone());
            count += 1;
        }
        assert!((60..=64).contains(&count), "{count} of a megabyte each");
    }
}
