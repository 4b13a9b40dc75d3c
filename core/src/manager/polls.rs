//! Workers without a session: they poll, and their calls are their liveness.

use core::time::Duration;

use crate::effect::{Answer, Effects};
use crate::event::Via;
use crate::health::HttpLiveness;
use crate::ids::{Claim, Incarnation, Name, RequestId, WorkerId};
use crate::input::Poll;
use crate::job::Ending;
use crate::job::draft::{Invalid, Problem};
use crate::key::Key;
use crate::limits::Limit;
use crate::message::Assignment;
use crate::refusal::Refusal;
use crate::state::{AttemptKey, ClaimStanding};
use crate::time::{Awake, Mono};
use crate::wheel::TimerKey;

use super::timers::AwakeTimer;
use super::workers::{Link, Worker, WorkerKey};
use super::{Manager, SeatState};

pub(crate) type PollKey = Key<OpenPoll>;

#[derive(Debug)]
pub(crate) struct OpenPoll {
    request: RequestId,
    worker: WorkerKey,
    max: u32,
    pub(super) lease: Duration,
    pub(super) id: Option<Name>,
    assigned: Vec<Assignment>,
    timer: Option<TimerKey<AwakeTimer>>,
    /// When its wait is over for whoever waits, gaps of ours or not.
    ends: Mono,
    /// It is answered at the end of this step, whatever it has by then.
    due: bool,
}

impl OpenPoll {
    pub(super) fn room(&self) -> u32 {
        self.max - self.assigned.len() as u32
    }
}

/// Leases that went out in an answer which may not have arrived.
#[derive(Debug)]
pub(super) struct UnconfirmedAnswer {
    claims: Vec<Claim>,
}

impl Manager {
    pub(super) fn handle_poll(&mut self, request: RequestId, poll: Poll, fx: &mut Effects) -> Result<(), Refusal> {
        self.check_poll(&poll)?;
        let known = self.workers.find(&poll.worker);
        if known.is_none() {
            self.within(Limit::Workers, self.workers.len() + 1)?;
        }
        if self.was_replaced(&poll.worker, &poll.incarnation) {
            return Err(Refusal::StaleIncarnation);
        }
        if let Some(key) = known {
            let worker = self.workers.at(key);
            if worker.session().is_some() && worker.incarnation == poll.incarnation {
                // One incarnation speaks one way: its session knows what it holds.
                return Err(Refusal::Conflict);
            }
        }
        let group = self.join(&poll.subscription, poll.client)?;
        let key = self.polling_worker(known, &poll, fx);
        self.regroup(key, group);
        self.readmit_if_due(key, fx);
        let repeated = self.leases_of_poll(key, poll.id.as_ref());
        self.supersede_poll(key);
        let wait = if repeated.is_empty() { poll.wait } else { Duration::ZERO };
        self.open_poll(request, key, poll, wait, repeated);
        self.judge_if_suspect(key, fx);
        self.touch(key);
        Ok(())
    }

    fn check_poll(&self, poll: &Poll) -> Result<(), Refusal> {
        let rules = &self.rules;
        let spans = [
            ("wait_s", poll.wait, Duration::ZERO, rules.max_poll_wait),
            ("lease_s", poll.lease, rules.min_lease, rules.max_lease),
        ];
        for (field, value, min, max) in spans {
            if value < min || value > max {
                let problem = Problem::SpanOutOfRange { value, min, max };
                return Err(Refusal::Invalid(Invalid { field, problem }));
            }
        }
        if poll.max == 0 {
            let max = rules.limits.poll_leases as i64;
            let problem = Problem::OutOfRange { value: 0, min: 1, max };
            return Err(Refusal::Invalid(Invalid { field: "max", problem }));
        }
        self.within(Limit::PollLeases, poll.max as usize)?;
        self.within(Limit::OpenPolls, self.polls.len() + 1)
    }

    /// The worker that polls, known or new, heard of now.
    fn polling_worker(&mut self, known: Option<WorkerKey>, poll: &Poll, fx: &mut Effects) -> WorkerKey {
        let granted_until = self.grant_of_this_life(known, &poll.worker, &poll.incarnation);
        let fresh = Link::Http { liveness: HttpLiveness::first_called(self.awake, granted_until), poll: None };
        let key = match known {
            None => {
                let worker = Worker::new(poll.worker.clone(), poll.incarnation.clone(), fresh, self.awake);
                self.welcome_worker(worker, fx)
            }
            Some(key) => {
                self.note_heard(key);
                if self.workers.at(key).incarnation != poll.incarnation {
                    self.supersede_poll(key);
                    if let Some(session) = self.workers.at(key).session() {
                        self.push(crate::effect::Effect::CloseSession { session }, fx);
                    }
                    self.replace_incarnation(key, poll.incarnation.clone(), fx);
                    self.workers.relink(key, fresh);
                } else if !matches!(self.workers.at(key).link, Link::Http { .. }) {
                    self.workers.relink(key, fresh);
                    // One without a session counts for no hold, evicted or not.
                    self.back_in_hold(&poll.worker);
                }
                key
            }
        };
        let now = self.awake;
        let worker = self.workers.at_mut(key);
        worker.accepting = true;
        if let Link::Http { liveness, .. } = &mut worker.link {
            liveness.called(now);
            liveness.returned();
        }
        key
    }

    /// What an earlier poll with the same id was given and is still held.
    fn leases_of_poll(&self, key: WorkerKey, id: Option<&Name>) -> Vec<Assignment> {
        let Some(id) = id else { return Vec::new() };
        let of_poll = |attempt: &AttemptKey| match &self.state.attempt(*attempt).via {
            Via::Http { poll } => poll.as_ref() == Some(id),
            Via::Session => false,
        };
        let mut held: Vec<AttemptKey> = self.held_by_worker(key).into_iter().filter(of_poll).collect();
        held.sort_by_key(|attempt| self.state.claim_of(*attempt));
        held.into_iter()
            .map(|attempt| {
                let left =
                    self.live.get(attempt).map_or(Duration::ZERO, |live| live.clock.lease_end().since(self.awake));
                self.assignment(attempt, left)
            })
            .collect()
    }

    fn open_poll(&mut self, request: RequestId, key: WorkerKey, poll: Poll, wait: Duration, assigned: Vec<Assignment>) {
        let due = wait.is_zero() || !assigned.is_empty();
        let ends = self.awake + wait;
        let open = self.polls.next_key();
        let timer = (!due).then(|| self.timers.arm_poll(open, ends));
        // A repeated poll is answered with what it got before, and with nothing else.
        let max = if assigned.is_empty() { poll.max } else { assigned.len() as u32 };
        let Poll { lease, id, .. } = poll;
        let over = self.now.mono + wait;
        self.polls.insert(OpenPoll { request, worker: key, max, lease, id, assigned, timer, ends: over, due });
        self.poll_of.insert(request, open);
        if let Link::Http { liveness, poll } = &mut self.workers.at_mut(key).link {
            liveness.poll_opened(ends);
            *poll = Some(open);
        }
        if due {
            self.polls_to_answer.push(open);
        }
    }

    /// A worker has one open poll: a newer one takes the place of the older, which is answered as it stands.
    fn supersede_poll(&mut self, key: WorkerKey) {
        if let Link::Http { poll: Some(poll), .. } = self.workers.at(key).link {
            self.poll_over(poll);
        }
    }

    /// Its wait is over: it is answered at the end of this step.
    pub(super) fn poll_over(&mut self, key: PollKey) {
        let poll = &mut self.polls[key];
        if !poll.due {
            poll.due = true;
            self.polls_to_answer.push(key);
        }
        let timer = core::mem::take(&mut poll.timer);
        let worker = poll.worker;
        if let Some(timer) = timer {
            self.timers.disarm(timer);
        }
        self.detach_poll(worker, key);
    }

    pub(super) fn poll_timer_fired(&mut self, key: PollKey) {
        self.polls[key].timer = None;
    }

    fn detach_poll(&mut self, worker: WorkerKey, key: PollKey) {
        let now = self.awake;
        if let Some(known) = self.workers.get_mut(worker)
            && let Link::Http { liveness, poll } = &mut known.link
            && *poll == Some(key)
        {
            *poll = None;
            liveness.poll_closed(now);
            self.update_offer(worker);
        }
    }

    pub(super) fn hand_to_poll(&mut self, key: PollKey, assignment: Assignment) {
        let poll = &mut self.polls[key];
        poll.assigned.push(assignment);
        if !poll.due {
            poll.due = true;
            self.polls_to_answer.push(key);
        }
    }

    /// Answers every poll that got something, or whose wait is over.
    pub(super) fn answer_polls(&mut self, fx: &mut Effects) {
        while let Some(key) = self.polls_to_answer.pop() {
            let Some(poll) = self.close_poll(key) else { continue };
            if poll.id.is_none() && !poll.assigned.is_empty() {
                let claims = poll.assigned.iter().map(|assignment| assignment.claim).collect();
                self.answered.insert(poll.request, UnconfirmedAnswer { claims });
            }
            self.reply(poll.request, Ok(Answer::Leases(poll.assigned)), fx);
        }
    }

    fn close_poll(&mut self, key: PollKey) -> Option<OpenPoll> {
        self.polls.get(key)?;
        let worker = self.polls[key].worker;
        self.detach_poll(worker, key);
        let poll = self.polls.remove(key);
        self.poll_of.remove(&poll.request);
        if let Some(timer) = poll.timer {
            self.timers.disarm(timer);
        }
        Some(poll)
    }

    /// Closes a poll without the answer that it may be about to get: the next to lie in its place must not get it.
    fn give_up_poll(&mut self, key: PollKey) -> OpenPoll {
        let poll = self.close_poll(key).expect("it is open");
        if poll.due {
            self.polls_to_answer.retain(|due| *due != key);
        }
        poll
    }

    /// Whether this call is a poll that is open, or whose leases may not have arrived.
    pub(super) fn is_poll(&self, request: RequestId) -> bool {
        self.poll_of.contains_key(&request) || self.answered.contains_key(&request)
    }

    /// Without a confirmed seat there is nothing to hand out: a poll whose wait is over is refused. Looked at whenever the
    /// seat is asked for, which is within a second.
    pub(super) fn refuse_polls(&mut self, fx: &mut Effects) {
        let now = self.now.mono;
        if self.seat_state() != SeatState::Unconfirmed || !self.seat.asked_at(now) {
            return;
        }
        let over: Vec<PollKey> = self.polls.iter().filter(|(_, poll)| poll.ends <= now).map(|(key, _)| key).collect();
        for key in over {
            let poll = self.give_up_poll(key);
            self.refuse_without_seat(poll.request, fx);
        }
    }

    /// The caller is gone. What it was handed without getting it goes back uncounted, unless it can ask again by the
    /// id of its poll.
    pub(super) fn handle_call_gone(&mut self, request: RequestId, delivered: bool, fx: &mut Effects) {
        if let Some(key) = self.poll_of.get(&request).copied() {
            let worker = self.give_up_poll(key).worker;
            self.touch(worker);
        }
        let Some(answered) = self.answered.remove(&request) else { return };
        if delivered {
            return;
        }
        for claim in answered.claims {
            if let ClaimStanding::Current(attempt) = self.state.standing(&claim) {
                self.end(attempt, Ending::NeverArrived, fx);
            }
        }
    }

    /// The worker wants no more work: its open poll is answered as it stands, and it is away as soon as it holds nothing.
    /// Nothing is taken from it: what it holds goes on until it is settled or released, or its lease runs out.
    pub(super) fn handle_http_goodbye(&mut self, id: &WorkerId, incarnation: &Incarnation) -> Result<Answer, Refusal> {
        if self.was_replaced(id, incarnation) {
            return Err(Refusal::StaleIncarnation);
        }
        // Whom nobody knows, or knows no longer, has left already.
        let Some(key) = self.workers.find(id) else { return Ok(Answer::Left { held: 0 }) };
        if self.workers.at(key).incarnation != *incarnation {
            return Err(Refusal::StaleIncarnation);
        }
        if self.workers.at(key).is_session() {
            // One incarnation speaks one way.
            return Err(Refusal::Conflict);
        }
        self.supersede_poll(key);
        let now = self.awake;
        let worker = self.workers.at_mut(key);
        if let Link::Http { liveness, .. } = &mut worker.link {
            liveness.called(now);
            liveness.left();
        }
        let held = worker.held;
        self.touch(key);
        Ok(Answer::Left { held })
    }

    /// A call about an attempt is a sign of life of the worker that holds it.
    pub(super) fn note_http_call(&mut self, attempt: AttemptKey) {
        let (now, worker) = (self.awake, self.live.at(attempt).worker);
        self.note_heard(worker);
        if let Some(known) = self.workers.get_mut(worker)
            && let Link::Http { liveness, .. } = &mut known.link
        {
            liveness.called(now);
        }
    }

    /// The end of a lease moved, or the lease is over (`after` is none): a polling worker lives until the latest end of
    /// those that it holds.
    pub(super) fn lease_moved(&mut self, worker: WorkerKey, before: Awake, after: Option<Awake>) {
        let known = self.workers.at(worker);
        let Link::Http { liveness, .. } = &known.link else { return };
        let latest = liveness.holds_until();
        let end = match after {
            Some(after) if after >= latest => after,
            _ if before < latest => return,
            _ => {
                let ends = known.attempts(&self.live).map(|key| self.live[key].clock.lease_end());
                ends.max().unwrap_or(self.awake)
            }
        };
        let mut leaving = false;
        if let Link::Http { liveness, .. } = &mut self.workers.at_mut(worker).link {
            liveness.leases_end(end);
            leaving = liveness.has_left();
        }
        if end < latest || leaving {
            self.touch(worker);
        }
    }
}
