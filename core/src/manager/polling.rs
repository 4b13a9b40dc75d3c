//! What workers without a session ask for: work, and to leave.

use core::time::Duration;

use crate::effect::{Answer, Effects};
use crate::event::Via;
use crate::health::HttpLiveness;
use crate::ids::{Incarnation, Name, RequestId, WorkerId};
use crate::input::Poll;
use crate::job::Ending;
use crate::job::draft::{DraftProblem, Invalid};
use crate::limits::Limit;
use crate::message::Assignment;
use crate::refusal::Refusal;
use crate::state::{AttemptKey, ClaimStanding};

use super::fleet::{FleetWorker, WorkerKey, WorkerTransport};
use super::polls::{OpenPoll, PollKey};
use super::{Manager, SeatState};

impl Manager {
    pub(super) fn handle_poll(&mut self, request: RequestId, poll: Poll, fx: &mut Effects) -> Result<(), Refusal> {
        self.check_poll(&poll)?;
        let known = self.fleet.find(&poll.worker);
        if known.is_none() {
            self.within(Limit::Workers, self.fleet.len() + 1)?;
        }
        if self.was_replaced(&poll.worker, &poll.incarnation) {
            return Err(Refusal::StaleIncarnation);
        }
        if let Some(key) = known {
            let worker = self.fleet.worker(key);
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
        self.fleet.touch(key);
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
                let problem = DraftProblem::SpanOutOfRange { value, min, max };
                return Err(Refusal::Invalid(Invalid { field, problem }));
            }
        }
        if poll.max == 0 {
            let max = rules.limits.poll_leases as i64;
            let problem = DraftProblem::OutOfRange { value: 0, min: 1, max };
            return Err(Refusal::Invalid(Invalid { field: "max", problem }));
        }
        self.within(Limit::PollLeases, poll.max as usize)?;
        self.within(Limit::OpenPolls, self.polls.len() + 1)
    }

    /// The worker that polls, known or new, heard of now.
    fn polling_worker(&mut self, known: Option<WorkerKey>, poll: &Poll, fx: &mut Effects) -> WorkerKey {
        let granted_until = self.grant_of_this_life(known, &poll.worker, &poll.incarnation);
        let fresh =
            WorkerTransport::Http { liveness: HttpLiveness::first_called(self.awake, granted_until), poll: None };
        let key = match known {
            None => {
                let worker = FleetWorker::new(poll.worker.clone(), poll.incarnation.clone(), fresh, self.awake);
                self.welcome_worker(worker, fx)
            }
            Some(key) => {
                self.watch().note_heard(key);
                if self.fleet.worker(key).incarnation != poll.incarnation {
                    self.supersede_poll(key);
                    if let Some(session) = self.fleet.worker(key).session() {
                        self.push(crate::effect::Effect::CloseSession { session }, fx);
                    }
                    self.replace_incarnation(key, poll.incarnation.clone(), fx);
                    self.fleet.relink(key, fresh);
                } else if !matches!(self.fleet.worker(key).link, WorkerTransport::Http { .. }) {
                    self.fleet.relink(key, fresh);
                    // One without a session counts for no hold, evicted or not.
                    self.fleet.hold_mut().find_again(&poll.worker);
                }
                key
            }
        };
        let now = self.awake;
        let worker = self.fleet.worker_mut(key);
        worker.accepting = true;
        if let WorkerTransport::Http { liveness, .. } = &mut worker.link {
            liveness.called(now);
            liveness.returned();
        }
        key
    }

    /// Leases that an earlier poll with the same id was given and that are still held.
    fn leases_of_poll(&self, key: WorkerKey, id: Option<&Name>) -> Vec<Assignment> {
        let Some(id) = id else { return Vec::new() };
        let of_poll = |attempt: &AttemptKey| match &self.state.attempt(*attempt).via {
            Via::Http { poll } => poll.as_ref() == Some(id),
            Via::Session => false,
        };
        let mut held: Vec<AttemptKey> = self.fleet.attempts(key).filter(of_poll).collect();
        held.sort_by_key(|attempt| self.state.claim_of(*attempt));
        held.into_iter()
            .map(|attempt| {
                let left = self.fleet.live(attempt).clock.lease_end().since(self.awake);
                self.assignment(attempt, left)
            })
            .collect()
    }

    fn open_poll(&mut self, request: RequestId, key: WorkerKey, poll: Poll, wait: Duration, assigned: Vec<Assignment>) {
        let due = wait.is_zero() || !assigned.is_empty();
        let ends = self.awake + wait;
        let key_of_poll = self.polls.next_key();
        let timer = (!due).then(|| self.timers.arm_poll(key_of_poll, ends));
        // A repeated poll is answered with what it got before, and with nothing else.
        let max = if assigned.is_empty() { poll.max } else { assigned.len() as u32 };
        let Poll { lease, id, .. } = poll;
        let over = self.now.mono + wait;
        self.polls.open(OpenPoll { request, worker: key, max, lease, id, assigned, timer, ends: over, due });
        if let WorkerTransport::Http { liveness, poll } = &mut self.fleet.worker_mut(key).link {
            liveness.poll_opened(ends);
            *poll = Some(key_of_poll);
        }
    }

    /// A worker has one open poll: a newer one takes the place of the older, which is answered as it stands.
    fn supersede_poll(&mut self, key: WorkerKey) {
        if let WorkerTransport::Http { poll: Some(poll), .. } = self.fleet.worker(key).link {
            self.poll_over(poll);
        }
    }

    /// Ends the wait of a poll: it is answered at the end of this step.
    pub(super) fn poll_over(&mut self, key: PollKey) {
        if let Some(timer) = self.polls.end_wait(key) {
            self.timers.disarm(timer);
        }
        self.detach_poll(self.polls.at(key).worker, key);
    }

    fn detach_poll(&mut self, worker: WorkerKey, key: PollKey) {
        let now = self.awake;
        if self.fleet.get(worker).is_some()
            && let WorkerTransport::Http { liveness, poll } = &mut self.fleet.worker_mut(worker).link
            && *poll == Some(key)
        {
            *poll = None;
            liveness.poll_closed(now);
            self.offers().update(worker);
        }
    }

    /// Answers every poll that got something, or whose wait is over.
    pub(super) fn answer_polls(&mut self, fx: &mut Effects) {
        while let Some(key) = self.polls.pop_to_answer() {
            let poll = self.close_poll(key);
            if poll.id.is_none() && !poll.assigned.is_empty() {
                let claims = poll.assigned.iter().map(|assignment| assignment.claim).collect();
                self.polls.note_answered(poll.request, claims);
            }
            self.reply(poll.request, Ok(Answer::Leases(poll.assigned)), fx);
        }
    }

    fn close_poll(&mut self, key: PollKey) -> OpenPoll {
        self.detach_poll(self.polls.at(key).worker, key);
        let poll = self.polls.close(key);
        if let Some(timer) = poll.timer {
            self.timers.disarm(timer);
        }
        poll
    }

    /// Closes a poll without the answer that it may be about to get.
    fn give_up_poll(&mut self, key: PollKey) -> OpenPoll {
        self.polls.withdraw_answer(key);
        self.close_poll(key)
    }

    /// Refuses polls whose wait is over while the seat is not confirmed: there is nothing to hand out. Looked at
    /// whenever the seat is asked for, which is within a second.
    pub(super) fn refuse_polls(&mut self, fx: &mut Effects) {
        let now = self.now.mono;
        if self.seat_state() != SeatState::Unconfirmed || !self.seat.asked_at(now) {
            return;
        }
        for key in self.polls.over_by(now) {
            let poll = self.give_up_poll(key);
            self.refuse_without_seat(poll.request, fx);
        }
    }

    /// The caller is gone. What it was handed without getting it goes back uncounted, unless it can ask again by the
    /// id of its poll.
    pub(super) fn handle_call_gone(&mut self, request: RequestId, delivered: bool, fx: &mut Effects) {
        if let Some(key) = self.polls.find(request) {
            let worker = self.give_up_poll(key).worker;
            self.fleet.touch(worker);
        }
        let Some(claims) = self.polls.take_unconfirmed(request) else { return };
        if delivered {
            return;
        }
        for claim in claims {
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
        let Some(key) = self.fleet.find(id) else { return Ok(Answer::Left { held: 0 }) };
        if self.fleet.worker(key).incarnation != *incarnation {
            return Err(Refusal::StaleIncarnation);
        }
        if self.fleet.worker(key).is_session() {
            // One incarnation speaks one way.
            return Err(Refusal::Conflict);
        }
        self.supersede_poll(key);
        let now = self.awake;
        let worker = self.fleet.worker_mut(key);
        if let WorkerTransport::Http { liveness, .. } = &mut worker.link {
            liveness.called(now);
            liveness.left();
        }
        let held = worker.held();
        self.fleet.touch(key);
        Ok(Answer::Left { held })
    }
}
