//! Ids of new jobs.

use std::sync::atomic::Ordering;

use onward_core::fence::Term;
use onward_core::ids::JobId;
use onward_core::time::Wall;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::EngineState;

/// Ids of one millisecond count up, so that jobs sort in the order in which they came; their ends are random, so that
/// nodes do not make the same ones. The system is asked for randomness once, not once a job.
pub(crate) struct Ids {
    at: Wall,
    turn: u64,
    random: ChaCha8Rng,
}

impl Ids {
    pub(crate) fn new() -> Self {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).expect("the system has randomness");
        Self { at: Wall::ZERO, turn: 0, random: ChaCha8Rng::from_seed(seed) }
    }

    /// Keeps ids above this one from now on, whatever the clock says.
    pub(crate) fn stay_above(&mut self, known: JobId) {
        let raw = known.as_u128();
        let at = Wall::from_ms((raw >> 80) as u64);
        if at >= self.at {
            // What is below its millisecond is not taken apart: the next one is above all of it.
            (self.at, self.turn) = (Wall::from_ms(at.as_ms() + 1), 0);
        }
    }

    pub(crate) fn next(&mut self, now: Wall) -> JobId {
        (self.at, self.turn) = if now > self.at { (now, 0) } else { (self.at, self.turn + 1) };
        JobId::v7(self.at, u128::from(self.turn) << 32 | u128::from(self.random.next_u32()))
    }
}

impl EngineState {
    /// Ids of new jobs are above those of all jobs that are known. Another node may have made these, with a clock that
    /// was ahead of ours, and our own clock may have been stepped back.
    pub(super) fn stay_above(&self, newest: Option<JobId>, term: Term) {
        if let Some(newest) = newest.max(self.newest_archived(term)) {
            self.ids.lock().expect("no thread panics while it holds this").stay_above(newest);
        }
    }

    /// Asked for until it is known: what is archived later was in memory before, and a term that begins later need not
    /// wait for an archive that is being written. Asked for again where another may have led in between: what that one has
    /// made and archived was never in memory here.
    fn newest_archived(&self, term: Term) -> Option<JobId> {
        let known_in = self.above_archive_in.load(Ordering::Relaxed);
        if known_in != 0 && term.get() == known_in + 1 {
            self.above_archive_in.store(term.get(), Ordering::Relaxed);
            return None;
        }
        match self.archive()?.scan(None, 1, 1) {
            Ok(scanned) => {
                self.above_archive_in.store(term.get(), Ordering::Relaxed);
                scanned.rows.first().map(|(id, _)| JobId::from_u128(*id))
            }
            Err(error) => {
                tracing::warn!(%error, "the newest job of the archive is not known; new ids may sort below it");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_even_when_the_clock_does_not() {
        let mut ids = Ids::new();
        let made: Vec<_> = [5, 5, 4, 5, 6, 1].map(|at| ids.next(Wall::from_ms(at))).into();
        assert!(made.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn ids_are_above_those_that_were_there_before() {
        let mut ids = Ids::new();
        let known = JobId::v7(Wall::from_ms(100), u128::MAX);
        ids.stay_above(known);
        let made: Vec<_> = [5, 99, 100, 101, 102].map(|at| ids.next(Wall::from_ms(at))).into();
        assert!(made[0] > known && made.is_sorted_by(|a, b| a < b), "{made:?}");
        ids.stay_above(known);
        assert!(ids.next(Wall::from_ms(1)) > made[4], "one that is long past changes nothing");
    }

    #[test]
    fn two_nodes_do_not_make_the_same_ids() {
        let at = Wall::from_ms(5);
        assert_ne!(Ids::new().next(at), Ids::new().next(at));
    }
}
