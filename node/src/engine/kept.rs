//! What is asked between two terms.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::inbox::Inbox;
use super::watch::Watchers;
use super::{Ask, Shared};

#[derive(PartialEq, Eq)]
pub(super) enum Flow {
    Go,
    Stop,
}

/// What is asked while no machine serves is for the next one. Calls and reads wait for as long as they would wait for a
/// seat; then they are refused, by dropping what they are to be answered on.
pub(super) struct KeptAsks {
    wait_for: Duration,
    asks: VecDeque<(Instant, Ask)>,
}

/// How often it is looked whether somebody has waited long enough.
const LOOK_FOR_OVERDUE: Duration = Duration::from_millis(100);

impl KeptAsks {
    pub(super) fn for_as_long_as(wait_for: Duration) -> Self {
        Self { wait_for, asks: VecDeque::new() }
    }

    pub(super) fn keep_for(&mut self, span: Duration, shared: &Shared, watchers: &mut Watchers) -> Flow {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match shared.inbox.next_within(left.min(LOOK_FOR_OVERDUE)) {
                Some(Ask::Stop) => return Flow::Stop,
                Some(Ask::Watch { job, bell }) => watchers.add(job, bell),
                Some(Ask::Unwatch { job, bell }) => watchers.remove(job, bell),
                // Of and to the machine that is no more.
                Some(Ask::FromLog(_) | Ask::Archived { .. } | Ask::ArchiveReady { .. } | Ask::Drained) => {}
                Some(ask) => self.asks.push_back((Instant::now(), ask)),
                None => {
                    let waits = |ask: &Ask| matches!(ask, Ask::Call { .. } | Ask::Read(_));
                    self.asks.retain(|(came_at, ask)| !waits(ask) || came_at.elapsed() < self.wait_for);
                    if left.is_zero() {
                        return Flow::Go;
                    }
                }
            }
        }
    }

    pub(super) fn give_back(&mut self, inbox: &Inbox) {
        let mut asks = core::mem::take(&mut self.asks).into_iter().map(|(_, ask)| ask).collect();
        inbox.give_back(&mut asks);
    }
}
