//! Due instants of tests, and a witness of what became of them.
//!
//! Calendars are not known here: an interval is due at its multiples, and any expression every ten minutes.

#![allow(dead_code, reason = "every test uses its own part")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onward_core::effect::Effect;
use onward_core::event::{Event, StampedEvent};
use onward_core::ids::Name;
use onward_core::input::{DueInstants, Input};
use onward_core::schedule::{RecordReason, Timing, take_lot};
use onward_core::time::Wall;

fn interval_ms(timing: &Timing) -> u64 {
    match timing {
        Timing::Every(interval) => interval.as_millis() as u64,
        Timing::Cron { .. } => 600_000,
    }
}

/// The answer of a shell to `Effect::FindDue`; nothing to any other effect.
pub fn find_due(effect: &Effect) -> Option<Input> {
    let Effect::FindDue { schedule, revision, timing, after, until } = effect else { return None };
    let ms = interval_ms(timing);
    let first = after.as_ms() / ms + 1;
    let (instants, is_end) = take_lot((first..).map(|n| Wall::from_ms(n * ms)), *until);
    let (schedule, revision, after) = (schedule.clone(), *revision, *after);
    Some(Input::Due(DueInstants { schedule, revision, after, instants, is_end, is_unsearchable: false }))
}

/// Reads a log, and sees that every due instant has one fate, and none is left out.
#[derive(Default)]
pub struct DueWitness {
    schedules: BTreeMap<Name, SeenInstant>,
    /// Instants of all schedules that have their record.
    pub recorded: u64,
}

struct SeenInstant {
    timing: Timing,
    horizon: u64,
    waiting: BTreeSet<u64>,
}

impl SeenInstant {
    fn next(&self) -> u64 {
        let ms = interval_ms(&self.timing);
        (self.horizon / ms + 1) * ms
    }

    /// Notes the next instants, with none between them and the ones before.
    fn advance(&mut self, name: &Name, first: Wall, last: Wall, count: u64) {
        let ms = interval_ms(&self.timing);
        assert_eq!(first.as_ms(), self.next(), "{name}: an instant was left out, or has two records");
        assert_eq!(last.as_ms() - first.as_ms(), (count - 1) * ms, "{name}: not so many instants in a row");
        self.horizon = last.as_ms();
    }
}

impl DueWitness {
    pub fn note(&mut self, stamped: &StampedEvent) {
        match &stamped.event {
            Event::ScheduleSet(set) => {
                let known = self.schedules.entry(set.schedule.clone()).or_insert_with(|| SeenInstant {
                    timing: set.plan.timing.clone(),
                    horizon: set.horizon.as_ms(),
                    waiting: BTreeSet::new(),
                });
                if known.timing != set.plan.timing {
                    assert!(
                        known.next() > set.horizon.as_ms(),
                        "{}: an instant of the old plan was left out at a change of the timing",
                        set.schedule
                    );
                    known.timing = set.plan.timing.clone();
                    known.horizon = known.horizon.max(set.horizon.as_ms());
                }
            }
            Event::ScheduleRemoved { schedule } => {
                self.schedules.remove(schedule);
            }
            Event::InstantWaits { schedule, due } => {
                let seen = self.schedules.get_mut(schedule).expect("it is known");
                seen.advance(schedule, *due, *due, 1);
                seen.waiting.insert(due.as_ms());
            }
            Event::InstantsPassed { schedule, first, last, count, .. } => {
                let seen = self.schedules.get_mut(schedule).expect("it is known");
                self.recorded += count;
                if !(*count == 1 && seen.waiting.remove(&first.as_ms())) {
                    seen.advance(schedule, *first, *last, *count);
                }
            }
            Event::JobSubmitted(submitted) => {
                let Some(run) = &submitted.scheduled else { return };
                let seen = self.schedules.get_mut(&run.schedule).expect("it is known");
                match run.reason {
                    RecordReason::RunNow => return,
                    RecordReason::Queued => assert!(seen.waiting.remove(&run.due.as_ms()), "{:?} did not wait", run),
                    _ => seen.advance(&run.schedule, run.due, run.due, 1),
                }
                self.recorded += 1;
            }
            _ => {}
        }
    }

    /// Checks how far the schedules have come, and how many instants wait.
    pub fn check_horizon(&self, name: &Name, now: Wall, slack: Duration) {
        let seen = &self.schedules[name];
        let behind = now.since(Wall::from_ms(seen.horizon));
        let interval = Duration::from_millis(interval_ms(&seen.timing));
        assert!(behind <= interval + slack, "{name} is {behind:?} behind");
    }
}
