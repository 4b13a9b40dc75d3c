//! What is asked between two terms.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::run_queue::RunQueue;
use super::watch::Watchers;
use super::{Command, Shared};

#[derive(PartialEq, Eq)]
pub(super) enum Flow {
    Go,
    Stop,
}

/// What is asked while no machine serves is for the next one. Calls and reads wait for as long as they would wait for a
/// seat; then they are refused, by dropping what they are to be answered on.
pub(super) struct HeldCommands {
    wait_for: Duration,
    commands: VecDeque<(Instant, Command)>,
}

/// How often it is looked whether somebody has waited long enough.
const LOOK_FOR_OVERDUE: Duration = Duration::from_millis(100);

impl HeldCommands {
    pub(super) fn for_as_long_as(wait_for: Duration) -> Self {
        Self { wait_for, commands: VecDeque::new() }
    }

    pub(super) fn keep_for(&mut self, span: Duration, shared: &Shared, watchers: &mut Watchers) -> Flow {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match shared.run_queue.next_within(left.min(LOOK_FOR_OVERDUE)) {
                Some(Command::Stop) => return Flow::Stop,
                Some(Command::Watch { job, bell }) => watchers.add(job, bell),
                Some(Command::Unwatch { job, bell }) => watchers.remove(job, bell),
                // Of and to the machine that is no more.
                Some(
                    Command::FromLog(_) | Command::Archived { .. } | Command::ArchiveReady { .. } | Command::Drained,
                ) => {}
                Some(command) => self.commands.push_back((Instant::now(), command)),
                None => {
                    let waits = |command: &Command| match command {
                        Command::Call { .. } => true,
                        Command::Ask(question) => question.is_call(),
                        _ => false,
                    };
                    self.commands.retain(|(came_at, command)| !waits(command) || came_at.elapsed() < self.wait_for);
                    if left.is_zero() {
                        return Flow::Go;
                    }
                }
            }
        }
    }

    pub(super) fn give_back(&mut self, run_queue: &RunQueue) {
        let mut commands = core::mem::take(&mut self.commands).into_iter().map(|(_, command)| command).collect();
        run_queue.give_back(&mut commands);
    }
}
