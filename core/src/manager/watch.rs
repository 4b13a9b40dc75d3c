//! Running attempts under watch: what beats, calls and time make of their clocks, and when each is looked at again.
//!
//! The handler borrows the fleet and the timers, and reads the rules and the state. It decides nothing that is logged.

use crate::beat::{AttemptClock, Motion};
use crate::event::Via;
use crate::job::WorkflowState;
use crate::list::Links;
use crate::settings::Rules;
use crate::state::{AttemptKey, State};
use crate::time::Awake;

use super::Manager;
use super::fleet::{Fleet, LiveAttempt, WorkerKey};
use super::notes::Notes;
use super::timers::Timers;

pub(super) struct AttemptWatch<'a> {
    pub rules: &'a Rules,
    pub state: &'a State,
    pub fleet: &'a mut Fleet,
    pub timers: &'a mut Timers,
    pub now: Awake,
}

impl Manager {
    pub(super) fn watch(&mut self) -> AttemptWatch<'_> {
        AttemptWatch {
            rules: &self.rules,
            state: &self.state,
            fleet: &mut self.fleet,
            timers: &mut self.timers,
            now: self.awake,
        }
    }
}

impl AttemptWatch<'_> {
    /// The attempt is this worker's: its soft side begins.
    pub(super) fn begin(&mut self, key: AttemptKey, clock: AttemptClock, worker: WorkerKey) {
        let attempt = self.state.attempt(key);
        let spec = &self.state.job(self.state.workflow(attempt.workflow).job).spec;
        let live = LiveAttempt {
            clock,
            workflow: attempt.workflow,
            worker,
            lease: match attempt.via {
                Via::Session => self.rules.lease.extension,
                Via::Http { .. } => attempt.lease,
            },
            stuck_after: spec.stuck_after,
            require_progress: spec.require_progress,
            is_left_to_gate: false,
            motion: Motion::Young,
            counted_stuck_at: None,
            timer: None,
            armed: Awake::MAX,
            marked_at: self.now,
            notes: Notes::default(),
            note: None,
            links: Links::UNLINKED,
        };
        self.fleet.begin_attempt(key, live, &self.rules.progress, self.now);
        self.arm(key);
    }

    /// The attempt has ended: its soft side ends. Gives who held it, if anybody was watched for it.
    pub(super) fn finish(&mut self, key: AttemptKey) -> Option<WorkerKey> {
        let finished = self.fleet.finish_attempt(key, self.now)?;
        if let Some(timer) = finished.timer {
            self.timers.disarm_attempt(timer);
        }
        Some(finished.worker)
    }

    /// A call about an attempt, or a message, is a sign of life of the worker that holds it.
    pub(super) fn note_call(&mut self, key: AttemptKey) {
        let worker = self.fleet.live(key).worker;
        self.note_heard(worker);
        self.fleet.note_call(worker, self.now);
    }

    /// Judges the worker's attempts from now on, if it is heard of for the first time since we took the seat.
    pub(super) fn note_heard(&mut self, worker: WorkerKey) {
        let newest = self.fleet.attempts(worker).next();
        // Before it was heard of it was handed nothing: if its newest attempt was, all were.
        if !newest.is_some_and(|newest| self.fleet.live(newest).clock.is_unheard()) {
            return;
        }
        for attempt in self.fleet.held_by(worker) {
            self.fleet.live_mut(attempt).clock.heard_again(self.now);
            self.update_motion(attempt);
            self.arm(attempt);
        }
    }

    /// A forward step: the attempt moves, and so does its worker.
    pub(super) fn note_step(&mut self, key: AttemptKey) {
        self.fleet.note_step(self.fleet.live(key).worker, self.now);
        self.update_motion(key);
    }

    /// Counts the attempt as it moves by now.
    pub(super) fn update_motion(&mut self, key: AttemptKey) {
        let live = self.fleet.live(key);
        let is_spared = live.is_left_to_gate || self.is_cancelling(live);
        let motion = live.clock.motion(self.now, self.rules.progress.window, is_spared);
        self.fleet.set_motion(key, motion);
    }

    /// Arms the attempt's timer if it has to fire earlier than it would.
    pub(super) fn arm(&mut self, key: AttemptKey) {
        let Some(live) = self.fleet.get_live(key) else { return };
        let change = live.clock.next_change(self.now, self.rules.progress.window);
        let mut at = live.clock.lease_end().min(change.unwrap_or(Awake::MAX));
        if self.state.workflow(live.workflow).state == WorkflowState::Running && !live.is_left_to_gate {
            at = at.min(live.clock.stuck_at(live.stuck_after));
        }
        at = at.min(live.notes.due(self.rules.checkpoint_every).unwrap_or(Awake::MAX));
        let live = self.fleet.live_mut(key);
        self.timers.arm_attempt(key, at, &mut live.timer, &mut live.armed);
    }

    fn is_cancelling(&self, live: &LiveAttempt) -> bool {
        self.state.workflow(live.workflow).state == WorkflowState::Cancelling
    }
}
