//! Commands that come between two terms.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::watch::Watchers;
use super::{Command, EngineState};
use crate::run_loop::RunQueue;

#[derive(PartialEq, Eq)]
pub(super) enum LoopControl {
    Continue,
    Stop,
}

/// Commands that come while no machine serves, for the next one. Each waits for as long as a call waits for a seat; then it
/// is refused by being dropped: callers find their reply channels closed, and sessions end, so that their workers look
/// for another node.
pub(super) struct HeldCommands {
    wait_for: Duration,
    commands: VecDeque<(Instant, Command)>,
}

/// The interval of the look whether somebody has waited long enough.
const LOOK_FOR_OVERDUE: Duration = Duration::from_millis(100);

impl HeldCommands {
    pub(super) fn for_as_long_as(wait_for: Duration) -> Self {
        Self { wait_for, commands: VecDeque::new() }
    }

    pub(super) fn keep_for(&mut self, span: Duration, shared: &EngineState, watchers: &mut Watchers) -> LoopControl {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.drop_overdue();
            match shared.run_queue.next_within(left.min(LOOK_FOR_OVERDUE)) {
                Some(Command::Stop) => return LoopControl::Stop,
                Some(Command::Watch { job, bell }) => watchers.add(job, bell),
                Some(Command::Unwatch { job, bell }) => watchers.remove(job, bell),
                // Commands of and to the machine that is no more.
                Some(
                    Command::FromLog(_)
                    | Command::Archived { .. }
                    | Command::ArchiveReady { .. }
                    | Command::QueueEmptied
                    | Command::HandOver(_),
                ) => {}
                Some(command) => self.commands.push_back((Instant::now(), command)),
                None if left.is_zero() => return LoopControl::Continue,
                None => {}
            }
        }
    }

    fn drop_overdue(&mut self) {
        while self.commands.front().is_some_and(|(came_at, _)| came_at.elapsed() >= self.wait_for) {
            self.commands.pop_front();
        }
    }

    /// Another node leads, and nobody knows when the next machine serves here: calls are told that nothing was begun, so
    /// that they are made again there; sessions end by this, and their workers look for who leads.
    pub(super) fn refuse_all(&mut self, shared: &EngineState) {
        for (_, command) in self.commands.drain(..) {
            if let Command::Call { reply, .. } = command {
                // Nobody may be waiting any more, which is fine.
                let _ = reply.send(Err(shared.not_begun()));
            }
        }
    }

    pub(super) fn give_back(&mut self, run_queue: &RunQueue<Command>) {
        let mut commands = core::mem::take(&mut self.commands).into_iter().map(|(_, command)| command).collect();
        run_queue.give_back(&mut commands);
    }
}
