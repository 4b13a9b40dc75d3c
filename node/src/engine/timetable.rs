//! The thread that finds due instants: calendars and zones are known here, and nowhere else in a node.
//!
//! The machine asks for the instants of a schedule behind the last that it knows, and decides what becomes of them by
//! its own clock ([`onward_core::schedule`]). A search for a rare date, or for the thousands of instants of a long stop,
//! keeps nobody waiting but other schedules. What is found decides nothing: an answer that comes late, or to a machine
//! that is no more, is passed over.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use onward_core::ids::{Name, Seq};
use onward_core::input::{DueInstants, Input};
use onward_core::schedule::{Timing, take_lot};
use onward_core::time::Wall;
use onward_health::schedule::Calendar;

use super::vitals::DieOnPanic;
use super::{Command, EngineState};

/// A request for due instants, as `Effect::FindDue` makes it.
pub(super) struct FindDue {
    pub(super) schedule: Name,
    pub(super) revision: Seq,
    pub(super) timing: Timing,
    pub(super) after: Wall,
    pub(super) until: Wall,
}

/// More calendars than this are not kept ready.
const MAX_CALENDARS: usize = 16_384;

pub(super) fn spawn(shared: Arc<EngineState>) -> std::io::Result<(Sender<FindDue>, JoinHandle<()>)> {
    let (sender, asks) = channel();
    let thread = thread::Builder::new().name("onward-schedules".into()).spawn(move || answer(&asks, &shared))?;
    Ok((sender, thread))
}

fn answer(asks: &Receiver<FindDue>, shared: &EngineState) {
    let _die = DieOnPanic(&shared.vitals.schedules);
    let mut calendars = Calendars::default();
    while let Ok(ask) = asks.recv() {
        shared.vitals.schedules.begin();
        let (schedule, revision, after) = (ask.schedule.clone(), ask.revision, ask.after);
        let found = calendars.find(ask);
        let is_unsearchable = found.is_none();
        let (instants, is_end) = found.unwrap_or((Vec::new(), true));
        let due = DueInstants { schedule, revision, after, instants, is_end, is_unsearchable };
        shared.send(Command::Input(Input::Due(due)));
        shared.vitals.schedules.rest();
    }
}

#[derive(Default)]
struct Calendars(HashMap<Name, (Seq, Calendar)>);

impl Calendars {
    /// The next instants, and whether there are none behind them. `None` if the timing cannot be searched: then it is never
    /// due, and the node's log says why.
    fn find(&mut self, ask: FindDue) -> Option<(Vec<Wall>, bool)> {
        let FindDue { schedule, revision, timing, after, until } = ask;
        if self.0.get(&schedule).is_none_or(|(known, _)| *known != revision) {
            match Calendar::new(&timing) {
                Ok(calendar) => {
                    if self.0.len() >= MAX_CALENDARS {
                        self.0.clear();
                    }
                    self.0.insert(schedule.clone(), (revision, calendar));
                }
                Err(error) => {
                    tracing::error!(%schedule, %error, "this schedule is not due here; set it anew");
                    return None;
                }
            }
        }
        let (_, calendar) = &self.0[&schedule];
        let search = || take_lot(calendar.after(after), until);
        let found = catch_unwind(AssertUnwindSafe(search)).ok();
        if found.is_none() {
            tracing::error!(%schedule, "the search for its next instant failed; it is not due any more. Set it anew");
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(timing: Timing, revision: u64) -> FindDue {
        let at = |s: u64| Wall::from_ms(s * 1_000);
        let schedule = Name::new("s").unwrap();
        FindDue { schedule, revision: Seq(revision), timing, after: at(1_800_000_000), until: at(1_800_000_100) }
    }

    #[test]
    fn a_new_revision_is_another_calendar_and_a_zone_that_is_not_known_has_none() {
        let mut calendars = Calendars::default();
        let every = |s| Timing::Every(std::time::Duration::from_secs(s));
        let (first, is_end) = calendars.find(ask(every(60), 1)).unwrap();
        assert_eq!((first[0].as_ms() / 1_000, is_end), (1_800_000_060, false));
        assert_eq!(calendars.find(ask(every(7), 1)).unwrap().0, first, "the same revision has the same timing");
        assert_eq!(calendars.find(ask(every(10), 2)).unwrap().0[0].as_ms() / 1_000, 1_800_000_010);
        let nowhere = Timing::Cron { expression: "0 6 * * *".into(), zone: "Europe/Atlantis".into() };
        assert_eq!(calendars.find(ask(nowhere, 3)), None);
    }
}
