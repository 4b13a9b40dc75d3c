//! Schedules: what becomes of each instant at which a job is due.
//!
//! **Every due instant has exactly one record**: *fired*, *skipped* or *missed*, each with its reason. A record is made
//! once and never taken back. This file decides which; it knows neither a zone nor a calendar, only instants in order.
//!
//! **Who decides, and on which clock.** Whoever holds the seat of the log (or, in a process without a server, whoever
//! writes the record first) decides, by its own wall clock: schedules are promises about the time that people read off
//! the wall. A clock that is stepped back makes nothing due twice, because an instant that has its record is behind the
//! schedule's *horizon* for good. A clock that is stepped forward makes instants due together, as a stop does.
//!
//! **What is due together.** After a stop, a step of the clock or a long stall several instants have come at once. Then
//! `missed` decides:
//!
//! | `missed` | the newest instant that has come | those before it |
//! |---|---|---|
//! | `skip` | starts, unless it is more than [`LATE_AFTER`] late: then missed, `late` | missed, `superseded` |
//! | `once` (default) | starts, however late it is | missed, `superseded` |
//! | `all` | starts | start, oldest first |
//!
//! **What still runs.** An instant that is to start meets the runs that its schedule began and that have not ended:
//!
//! | `overlap` | a run is open | none is |
//! |---|---|---|
//! | `skip` (default) | skipped, `still_running` | fired |
//! | `queue` | waits for its turn, at most [`MAX_WAITING`] of them; then skipped, `queue_full` | fired |
//! | `allow` | fired; past [`MAX_OPEN`] open runs skipped, `too_many_open` | fired |
//!
//! An instant that waits has no record yet. It is written down that it waits, so that it is neither lost nor decided
//! again, and its record says `queued` once it is fired.
//!
//! **Long gaps.** A second hand that stood still for a week leaves 604,800 instants. They come in lots of
//! [`DUE_PER_LOT`], each is decided in one step, and instants in a row that share one fate share one record, which
//! names the first, the last and how many they are. So a gap costs time in proportion to its instants, a step is
//! bounded, and memory holds one record of it.

mod record;

use core::time::Duration;

use crate::time::{Wall, span_ms};

pub use record::{RECORDS_KEPT, Record, RecordKind, RecordReason, Records};

/// An instant that starts later than this after its time is late.
pub const LATE_AFTER: Duration = Duration::from_secs(60);
/// The most instants of a schedule that wait for their turn.
pub const MAX_WAITING: usize = 64;
/// The most runs of a schedule that may be open at a time.
pub const MAX_OPEN: usize = 64;
/// The most instants that are looked at together.
pub const DUE_PER_LOT: usize = 4_096;
/// The number of instants ahead of the present that are computed with a lot, so that few lots are asked for.
pub const DUE_AHEAD: usize = 16;
/// The longest jitter.
pub const MAX_JITTER: Duration = Duration::from_secs(24 * 3600);

/// The due instants of a schedule, as people write them. They are computed outside: zones and calendars are not known
/// here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Timing {
    Cron {
        expression: Box<str>,
        /// A name of the IANA database.
        zone: Box<str>,
    },
    /// Every multiple of this since 1970-01-01T00:00:00Z, so that every node and every restart agree.
    Every(Duration),
}

/// The fate of an instant while an earlier run is open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Overlap {
    #[default]
    Skip,
    Queue,
    Allow,
}

impl Overlap {
    pub const ALL: [Self; 3] = [Self::Skip, Self::Queue, Self::Allow];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
            Self::Allow => "allow",
        }
    }
}

/// The fate of instants that have come together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MissedPolicy {
    Skip,
    #[default]
    Once,
    All,
}

impl MissedPolicy {
    pub const ALL: [Self; 3] = [Self::Skip, Self::Once, Self::All];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
            Self::All => "all",
        }
    }
}

/// The situation of a schedule when instants have come.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleSituation<'a> {
    pub now: Wall,
    /// Instants that have come and have no record, oldest first; at least one.
    pub due: &'a [Wall],
    /// The instant after the last of `due` has not come yet. If not, the newest that has come is not known.
    pub is_all: bool,
    pub paused: bool,
    pub overlap: Overlap,
    pub missed: MissedPolicy,
    /// The longest delay by which an instant starts late on purpose.
    pub jitter: Duration,
    /// Runs of this schedule that have not ended.
    pub open: usize,
    /// Instants that wait for their turn.
    pub waiting: usize,
    /// The number of runs that may be started now.
    pub room: usize,
}

/// The fate of some instants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstantDecision {
    /// A run starts for this instant.
    Fire { due: Wall, reason: RecordReason },
    /// This instant waits for its turn.
    Wait { due: Wall },
    /// No run starts for these.
    Pass(PassedInstants),
}

/// Instants in a row for which no run starts, all for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PassedInstants {
    pub reason: RecordReason,
    pub first: Wall,
    pub last: Wall,
    pub count: u64,
}

/// Decides about the instants that have come, oldest first. Those that are not named are left for the next time: more
/// of them must be known first, or there was no room.
pub fn decide(at: &ScheduleSituation<'_>) -> Vec<InstantDecision> {
    let mut run = Run { open: at.open, waiting: at.waiting, room: at.room, decisions: Vec::new() };
    if at.paused {
        run.pass(at.due, RecordReason::Paused);
        return run.decisions;
    }
    match (at.missed, at.due.split_last()) {
        (_, None) => {}
        (MissedPolicy::All, _) => {
            for due in at.due {
                if !run.start(*due, at) {
                    break;
                }
            }
        }
        (MissedPolicy::Skip | MissedPolicy::Once, Some((newest, before))) => {
            run.pass(before, RecordReason::Superseded);
            match at.missed {
                _ if !at.is_all => {}
                MissedPolicy::Skip if is_late(*newest, at) => run.pass(&[*newest], RecordReason::Late),
                _ => {
                    run.start(*newest, at);
                }
            }
        }
    }
    run.decisions
}

fn is_late(due: Wall, at: &ScheduleSituation<'_>) -> bool {
    at.now.since(due) > at.jitter + LATE_AFTER
}

/// The decisions so far, and what they leave.
struct Run {
    open: usize,
    waiting: usize,
    room: usize,
    decisions: Vec<InstantDecision>,
}

impl Run {
    /// Says whether there was room to decide.
    fn start(&mut self, due: Wall, at: &ScheduleSituation<'_>) -> bool {
        let is_busy = self.open > 0 || self.waiting > 0;
        match at.overlap {
            Overlap::Skip if is_busy => self.pass(&[due], RecordReason::StillRunning),
            Overlap::Queue if is_busy && self.waiting >= MAX_WAITING => self.pass(&[due], RecordReason::QueueFull),
            Overlap::Queue if is_busy => {
                self.waiting += 1;
                self.decisions.push(InstantDecision::Wait { due });
            }
            Overlap::Allow if self.open >= MAX_OPEN => self.pass(&[due], RecordReason::TooManyOpen),
            Overlap::Skip | Overlap::Queue | Overlap::Allow => {
                if self.room == 0 {
                    return false;
                }
                self.room -= 1;
                self.open += 1;
                let reason = if is_late(due, at) { RecordReason::CaughtUp } else { RecordReason::OnTime };
                self.decisions.push(InstantDecision::Fire { due, reason });
            }
        }
        true
    }

    fn pass(&mut self, due: &[Wall], reason: RecordReason) {
        let (Some(first), Some(last)) = (due.first(), due.last()) else { return };
        match self.decisions.last_mut() {
            Some(InstantDecision::Pass(before)) if before.reason == reason => {
                before.last = *last;
                before.count += due.len() as u64;
            }
            _ => {
                let passed = PassedInstants { reason, first: *first, last: *last, count: due.len() as u64 };
                self.decisions.push(InstantDecision::Pass(passed));
            }
        }
    }
}

/// A lot of due instants, from those behind the last that is known: all that have come by `until` and a few more. Says
/// whether there are none behind it.
pub fn take_lot(mut instants: impl Iterator<Item = Wall>, until: Wall) -> (Vec<Wall>, bool) {
    let (mut lot, mut ahead) = (Vec::new(), 0);
    while lot.len() < DUE_PER_LOT && ahead < DUE_AHEAD {
        let Some(instant) = instants.next() else { return (lot, true) };
        ahead += usize::from(instant > until);
        lot.push(instant);
    }
    (lot, false)
}

/// The delay by which this instant of this schedule starts on purpose: in `0..=max`, and the same on every node, so
/// that a takeover changes nothing and schedules that are due at one instant do not start at one.
pub fn jitter(schedule: &str, due: Wall, max: Duration) -> Duration {
    // FNV-1a, then the finalizer of splitmix64: written out, because the answer must not change with a library.
    let bytes = schedule.bytes().chain(due.as_ms().to_le_bytes());
    let mut hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    let choices = u128::from(span_ms(max)) + 1;
    Duration::from_millis(((choices * u128::from(hash)) >> u64::BITS) as u64)
}

#[cfg(test)]
mod tests;
