//! What a handler causes to be logged, and how often: checkpoints, quiet sections, denials.
//!
//! A handler in a loop may say all of these as often as it likes. What it says counts at once; the log is told of it so
//! seldom that nobody can fill it.
//!
//! - **Checkpoints:** one in `checkpoint_every` per attempt. One that comes sooner waits, in the place of any that waits
//!   already, and is logged when its time has come, or before the end of the attempt.
//! - **Quiet sections:** for a takeover the log has to cover what was allowed. A section that follows another within
//!   [`QUIET_EVERY`] is not logged where what was logged covers it, and else with twice the length that was logged last;
//!   when that time is over, what is left of it is logged as it is. An end within that time is logged when it is over.
//!   The budget is charged with all that was used.
//! - **Denials:** the first of a kind, and then each that makes it four times as many, with how many came in between.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::effect::Effects;
use crate::event::Event;
use crate::grant::Denial;
use crate::ids::{Bytes, Claim};
use crate::state::AttemptKey;
use crate::time::Awake;

use super::Manager;

/// The shortest time between two logged beginnings, or ends, of a quiet section per attempt.
const QUIET_EVERY: Duration = Duration::from_secs(1);
/// The factor by which denials must grow in number before one is logged again.
const DENIAL_FACTOR: u32 = 4;

/// Entries that the log has of one attempt, and those that wait to be logged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    checkpoint_at: Option<Awake>,
    /// The checkpoint that waits because it came too soon after the last.
    checkpoint: Option<Bytes>,
    quiet: QuietNotes,
    denials: Vec<DenialNotes>,
}

#[derive(Clone, Copy, Debug, Default)]
struct QuietNotes {
    /// The instant when the beginning of a section was last logged; below, the section's length, and whether its end
    /// was not logged yet.
    began: Option<Awake>,
    allowed: Duration,
    is_open: bool,
    /// Used, and not logged.
    used: Duration,
    /// The instant when the end is to be logged.
    end_at: Option<Awake>,
    /// More was logged than was allowed: when that is put right.
    exact_at: Option<Awake>,
}

#[derive(Clone, Copy, Debug)]
struct DenialNotes {
    denial: Denial,
    count: u32,
    unlogged: u32,
}

impl Notes {
    /// The next instant when something that waits is to be logged.
    pub(super) fn due(&self, checkpoint_every: Duration) -> Option<Awake> {
        let checkpoint = self.checkpoint.as_ref().and(self.checkpoint_at).map(|at| at + checkpoint_every);
        checkpoint.into_iter().chain(self.quiet.end_at).chain(self.quiet.exact_at).min()
    }

    /// Counts a denial. If it is to be logged: how many others it stands for.
    fn count_denial(&mut self, denial: Denial) -> Option<u32> {
        let at = self.denials.iter().position(|known| known.denial == denial).unwrap_or_else(|| {
            self.denials.push(DenialNotes { denial, count: 0, unlogged: 0 });
            self.denials.len() - 1
        });
        let known = &mut self.denials[at];
        known.count = known.count.saturating_add(1);
        let mut point = 1;
        while point < known.count {
            point = point.saturating_mul(DENIAL_FACTOR);
        }
        if point == known.count {
            return Some(core::mem::take(&mut known.unlogged));
        }
        known.unlogged += 1;
        None
    }
}

impl Manager {
    /// The handler leaves where the next attempt is to go on from.
    pub(super) fn handle_checkpoint(&mut self, key: AttemptKey, claim: Claim, data: Bytes, fx: &mut Effects) {
        let (now, every) = (self.awake, self.rules.checkpoint_every);
        let notes = &mut self.fleet.live_mut(key).notes;
        if notes.checkpoint_at.is_some_and(|at| now < at + every) {
            notes.checkpoint = Some(data);
            return;
        }
        notes.checkpoint_at = Some(now);
        notes.checkpoint = None;
        self.emit(Event::Checkpointed { claim, data }, fx);
    }

    /// Replaces the checkpoint by that of an attempt's last report: it is the one that counts.
    pub(super) fn replace_checkpoint(&mut self, key: AttemptKey, data: Option<Bytes>) {
        if data.is_some() {
            self.fleet.live_mut(key).notes.checkpoint = data;
        }
    }

    /// The attempt ends: what waits is logged before.
    pub(super) fn flush_checkpoint(&mut self, key: AttemptKey, claim: Claim, fx: &mut Effects) {
        if let Some(data) = self.fleet.live_mut(key).notes.checkpoint.take() {
            self.emit(Event::Checkpointed { claim, data }, fx);
        }
    }

    /// Logs what has waited long enough.
    pub(super) fn note_due(&mut self, key: AttemptKey, claim: Claim, fx: &mut Effects) {
        let (now, every) = (self.awake, self.rules.checkpoint_every);
        let notes = &mut self.fleet.live_mut(key).notes;
        if notes.checkpoint_at.is_none_or(|at| at + every <= now)
            && let Some(data) = notes.checkpoint.take()
        {
            notes.checkpoint_at = Some(now);
            self.emit(Event::Checkpointed { claim, data }, fx);
        }
        if self.fleet.live_mut(key).notes.quiet.end_at.is_some_and(|at| at <= now) {
            self.log_quiet_end(key, claim, fx);
        }
        let live = self.fleet.live_mut(key);
        if live.notes.quiet.exact_at.is_some_and(|at| at <= now) {
            live.notes.quiet.exact_at = None;
            if let Some(until) = live.clock.quiet_until().filter(|until| *until > now) {
                self.log_quiet_begin(key, claim, until.since(now), fx);
            }
        }
    }

    /// A quiet section of this length was begun.
    pub(super) fn note_quiet_begin(&mut self, key: AttemptKey, claim: Claim, allowed: Duration, fx: &mut Effects) {
        let (now, budget) = (self.awake, self.rules.quiet_budget);
        let live = self.fleet.live_mut(key);
        let left = live.clock.quiet_left(budget);
        let quiet = &mut live.notes.quiet;
        let mut logged = allowed;
        if quiet.is_open {
            let (began, before) = (quiet.began.unwrap_or(now), quiet.allowed);
            if now < began + QUIET_EVERY {
                quiet.end_at = None;
                if now + allowed <= began + before {
                    quiet.exact_at = Some(began + QUIET_EVERY).filter(|_| now + allowed < began + before);
                    return;
                }
                logged = allowed.max(2 * before).min(left);
            } else {
                self.log_quiet_end(key, claim, fx);
            }
        }
        self.fleet.live_mut(key).notes.quiet.exact_at = Some(now + QUIET_EVERY).filter(|_| logged > allowed);
        self.log_quiet_begin(key, claim, logged, fx);
    }

    fn log_quiet_begin(&mut self, key: AttemptKey, claim: Claim, allowed: Duration, fx: &mut Effects) {
        let now = self.awake;
        let quiet = &mut self.fleet.live_mut(key).notes.quiet;
        (quiet.began, quiet.allowed, quiet.is_open) = (Some(now), allowed, true);
        self.emit(Event::QuietBegan { claim, allowed }, fx);
    }

    /// A quiet section has ended, of which so much was used; `goes_on` if another follows at once.
    pub(super) fn note_quiet_end(
        &mut self,
        key: AttemptKey,
        claim: Claim,
        used: Duration,
        goes_on: bool,
        fx: &mut Effects,
    ) {
        let now = self.awake;
        let quiet = &mut self.fleet.live_mut(key).notes.quiet;
        quiet.used += used;
        if goes_on {
            return;
        }
        match quiet.began.map(|began| began + QUIET_EVERY) {
            Some(at) if now < at => quiet.end_at = Some(at),
            _ => self.log_quiet_end(key, claim, fx),
        }
    }

    /// Takes up notes after a takeover: the log knows of a section that goes on.
    pub(super) fn resume_quiet_notes(&mut self, key: AttemptKey, began: Awake, allowed: Duration) {
        let quiet = &mut self.fleet.live_mut(key).notes.quiet;
        (quiet.began, quiet.allowed, quiet.is_open) = (Some(began), allowed, true);
    }

    fn log_quiet_end(&mut self, key: AttemptKey, claim: Claim, fx: &mut Effects) {
        let quiet = &mut self.fleet.live_mut(key).notes.quiet;
        (quiet.is_open, quiet.end_at) = (false, None);
        let used = core::mem::take(&mut quiet.used);
        self.emit(Event::QuietEnded { claim, used }, fx);
    }

    /// Counts a denial of these attempts, each for itself. Those of which it is to be logged, by how many others it
    /// stands for; what is over has none, and is logged with its refusal.
    pub(super) fn count_denials(
        &mut self,
        attempts: impl Iterator<Item = (Claim, Option<AttemptKey>)>,
        denial: Denial,
        was_refused: bool,
    ) -> BTreeMap<u32, Vec<Claim>> {
        let mut logged: BTreeMap<u32, Vec<Claim>> = BTreeMap::new();
        for (claim, key) in attempts {
            let repeats = match key {
                Some(key) => self.fleet.live_mut(key).notes.count_denial(denial),
                None => was_refused.then_some(0),
            };
            if let Some(repeats) = repeats {
                logged.entry(repeats).or_default().push(claim);
            }
        }
        logged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_are_logged_ever_more_seldom_and_none_is_forgotten() {
        let mut notes = Notes::default();
        let logged: Vec<(u32, u32)> = (1..=1_000)
            .filter_map(|count| notes.count_denial(Denial::NoProgress).map(|others| (count, others)))
            .collect();
        assert_eq!(logged, [(1, 0), (4, 2), (16, 11), (64, 47), (256, 191)]);
        assert_eq!(notes.count_denial(Denial::WorkerSuspect), Some(0), "another kind is counted for itself");
    }
}
