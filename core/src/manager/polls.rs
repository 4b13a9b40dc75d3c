//! Polls: calls of workers without a session that wait for work, and answers of which nobody knows whether they arrived.
//!
//! A poll is open until it is answered: with what it was assigned at the end of the step in which it got something, or
//! with nothing when its wait is over. A key of a poll is good for as long as the poll is open.

use core::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::ids::{Claim, Name, RequestId};
use crate::key::Key;
use crate::message::Assignment;
use crate::pages::Pages;
use crate::time::Mono;
use crate::wheel::TimerKey;

use super::fleet::WorkerKey;
use super::timers::AwakeTimer;

pub(crate) type PollKey = Key<OpenPoll>;

#[derive(Debug)]
pub(crate) struct OpenPoll {
    pub(super) request: RequestId,
    pub(super) worker: WorkerKey,
    pub(super) max: u32,
    pub(super) lease: Duration,
    pub(super) id: Option<Name>,
    pub(super) assigned: Vec<Assignment>,
    pub(super) timer: Option<TimerKey<AwakeTimer>>,
    /// The end of the wait for the caller, gaps of ours or not.
    pub(super) ends: Mono,
    /// Set if the poll is answered at the end of this step, whatever it has by then.
    pub(super) due: bool,
}

impl OpenPoll {
    /// The number of further attempts that the poll takes.
    pub(super) fn room(&self) -> u32 {
        self.max - self.assigned.len() as u32
    }
}

#[derive(Debug)]
pub(crate) struct Polls {
    open: Pages<OpenPoll>,
    of_request: HashMap<RequestId, PollKey, FixedState>,
    /// Claims that went out in an answer which may not have arrived.
    unconfirmed: HashMap<RequestId, Vec<Claim>, FixedState>,
    /// Polls to be answered at the end of this step; the last of them first.
    to_answer: Vec<PollKey>,
}

impl Polls {
    pub(super) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self {
            open: Pages::new(),
            of_request: HashMap::with_hasher(hasher.clone()),
            unconfirmed: HashMap::with_hasher(hasher),
            to_answer: Vec::new(),
        }
    }

    /// The number of open polls.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn at(&self, key: PollKey) -> &OpenPoll {
        &self.open[key]
    }

    pub(super) fn find(&self, request: RequestId) -> Option<PollKey> {
        self.of_request.get(&request).copied()
    }

    /// Whether this call is a poll that is open, or whose leases may not have arrived.
    pub(super) fn is_poll(&self, request: RequestId) -> bool {
        self.of_request.contains_key(&request) || self.unconfirmed.contains_key(&request)
    }

    /// The key of the poll that is opened next.
    pub(super) fn next_key(&self) -> PollKey {
        self.open.next_key()
    }

    pub(super) fn open(&mut self, poll: OpenPoll) {
        let (request, is_due) = (poll.request, poll.due);
        let key = self.open.insert(poll);
        self.of_request.insert(request, key);
        if is_due {
            self.to_answer.push(key);
        }
    }

    /// Ends the wait: the poll is answered at the end of this step, with what it has by then. Its timer, if it has one,
    /// is no longer wanted.
    pub(super) fn end_wait(&mut self, key: PollKey) -> Option<TimerKey<AwakeTimer>> {
        self.make_due(key);
        self.open[key].timer.take()
    }

    /// Notes that the poll's timer has fired.
    pub(super) fn note_timer_fired(&mut self, key: PollKey) {
        self.open[key].timer = None;
    }

    pub(super) fn assign(&mut self, key: PollKey, assignment: Assignment) {
        self.open[key].assigned.push(assignment);
        self.make_due(key);
    }

    fn make_due(&mut self, key: PollKey) {
        let poll = &mut self.open[key];
        if !poll.due {
            poll.due = true;
            self.to_answer.push(key);
        }
    }

    /// A poll that is to be answered now.
    pub(super) fn pop_to_answer(&mut self) -> Option<PollKey> {
        self.to_answer.pop()
    }

    /// Takes out a poll; whoever closes it takes its timer back.
    pub(super) fn close(&mut self, key: PollKey) -> OpenPoll {
        let poll = self.open.remove(key);
        self.of_request.remove(&poll.request);
        poll
    }

    /// The poll gets no answer though it may be due: the next to lie in its place must not get it.
    pub(super) fn withdraw_answer(&mut self, key: PollKey) {
        if self.open[key].due {
            self.to_answer.retain(|due| *due != key);
        }
    }

    /// Polls whose wait is over by now.
    pub(super) fn over_by(&self, now: Mono) -> Vec<PollKey> {
        self.open.iter().filter(|(_, poll)| poll.ends <= now).map(|(key, _)| key).collect()
    }

    /// Notes claims that went out in the answer to a poll that cannot be repeated.
    pub(super) fn note_answered(&mut self, request: RequestId, claims: Vec<Claim>) {
        self.unconfirmed.insert(request, claims);
    }

    /// Takes the claims that went out to this caller in an answer which may not have arrived. Gives them once.
    pub(super) fn take_unconfirmed(&mut self, request: RequestId) -> Option<Vec<Claim>> {
        self.unconfirmed.remove(&request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn polls() -> Polls {
        Polls::new(7)
    }

    fn poll(request: u64, due: bool) -> OpenPoll {
        OpenPoll {
            request: RequestId(request),
            worker: WorkerKey::FIRST,
            max: 2,
            lease: LEASE,
            id: None,
            assigned: Vec::new(),
            timer: None,
            ends: Mono::from_ms(request * 1_000),
            due,
        }
    }

    fn open(polls: &mut Polls, poll: OpenPoll) -> PollKey {
        let key = polls.next_key();
        polls.open(poll);
        key
    }

    #[test]
    fn a_poll_is_known_by_its_call_until_it_is_closed() {
        let mut polls = polls();
        let key = open(&mut polls, poll(1, false));
        assert_eq!((polls.find(RequestId(1)), polls.len()), (Some(key), 1));
        assert_eq!(polls.close(key).request, RequestId(1));
        assert_eq!((polls.find(RequestId(1)), polls.len()), (None, 0));
        assert!(!polls.is_poll(RequestId(1)));
    }

    #[test]
    fn a_poll_is_answered_once_however_many_reasons_there_are() {
        let mut polls = polls();
        let waiting = open(&mut polls, poll(1, false));
        let due = open(&mut polls, poll(2, true));
        polls.end_wait(waiting);
        polls.end_wait(waiting);
        polls.end_wait(due);
        assert_eq!(polls.pop_to_answer(), Some(waiting));
        assert_eq!(polls.pop_to_answer(), Some(due));
        assert_eq!(polls.pop_to_answer(), None);
    }

    #[test]
    fn whoever_gets_the_place_of_a_poll_does_not_get_its_answer() {
        let mut polls = polls();
        let gone = open(&mut polls, poll(1, true));
        polls.withdraw_answer(gone);
        polls.close(gone);
        let next = open(&mut polls, poll(2, false));
        assert_eq!((next, polls.pop_to_answer()), (gone, None));
    }

    #[test]
    fn a_wait_is_over_at_its_instant() {
        let mut polls = polls();
        let first = open(&mut polls, poll(1, false));
        let second = open(&mut polls, poll(2, false));
        assert_eq!(polls.over_by(Mono::from_ms(999)), []);
        assert_eq!(polls.over_by(Mono::from_ms(1_000)), [first]);
        assert_eq!(polls.over_by(Mono::from_ms(2_000)), [first, second]);
    }

    #[test]
    fn what_may_not_have_arrived_is_asked_for_once() {
        let mut polls = polls();
        polls.note_answered(RequestId(1), Vec::new());
        assert!(polls.is_poll(RequestId(1)));
        assert_eq!(polls.take_unconfirmed(RequestId(1)), Some(Vec::new()));
        assert_eq!(polls.take_unconfirmed(RequestId(1)), None);
    }
}
