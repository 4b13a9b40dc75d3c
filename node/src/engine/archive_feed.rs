//! Ended jobs on their way from memory to the archive. Each step takes a few of them at a time, because everything else
//! waits for it; what is left is for the next turn.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;

use onward_core::fence::Term;
use onward_core::ids::JobId;
use onward_core::manager::Manager;
use onward_core::state::JobImage;

use super::archivist::ToArchive;

/// The number of jobs that take a step in one turn, or as many as the turn has decided events, if those are more: so
/// that as many leave as come. An image of a job takes about a microsecond, and forgetting it two.
const A_FEW: usize = 64;
/// The number of jobs that share a commit of the archive.
const BATCH: usize = 8_000;

pub(super) struct ArchiveFeed {
    term: Term,
    archive: Option<Sender<ToArchive>>,
    /// Ended jobs that are not in the archive yet.
    ended: VecDeque<JobId>,
    /// Images of the next batch, those of each step together: one large piece of memory would have to be moved as it
    /// grows.
    images: Vec<Vec<JobImage>>,
    imaged: usize,
    /// The archive works on a batch, or rests.
    is_busy: bool,
    /// Jobs that are in the archive, and still in memory.
    archived: Vec<JobId>,
}

impl ArchiveFeed {
    pub(super) fn to(archive: Option<Sender<ToArchive>>, term: Term) -> Self {
        Self {
            term,
            archive,
            ended: VecDeque::new(),
            images: Vec::new(),
            imaged: 0,
            is_busy: false,
            archived: Vec::new(),
        }
    }

    pub(super) fn ended(&mut self, job: JobId) {
        if self.archive.is_some() {
            self.ended.push_back(job);
        }
    }

    /// `of`: the term that handed over what the archive has done.
    pub(super) fn archive_is_ready(&mut self, of: Term) {
        self.is_busy &= of != self.term;
    }

    /// Only what this term has handed over counts: it hands over everything again that an earlier one did, and none of
    /// that may lose its content before.
    pub(super) fn archived(&mut self, of: Term, mut jobs: Vec<JobId>) {
        if of == self.term {
            self.archived.append(&mut jobs);
        }
    }

    /// Makes some images of the next batch, and hands it over once it is complete.
    pub(super) fn advance(&mut self, manager: &Manager, decided: usize) {
        let Some(archive) = &self.archive else { return };
        if self.is_busy || self.ended.is_empty() {
            return;
        }
        let count = self.ended.len().min(decided.max(A_FEW)).min(BATCH - self.imaged);
        let some: Vec<_> = self.ended.drain(..count).filter_map(|job| manager.image(job)).collect();
        if !some.is_empty() {
            self.imaged += some.len();
            self.images.push(some);
        }
        if (self.ended.is_empty() || self.imaged >= BATCH) && self.imaged > 0 {
            self.imaged = 0;
            let images = core::mem::take(&mut self.images);
            let batch = ToArchive { term: self.term, images, behind: self.ended.len() };
            self.is_busy = archive.send(batch).is_ok();
        }
    }

    /// Some that memory need not hold any more.
    pub(super) fn next_archived(&mut self, decided: usize) -> Vec<JobId> {
        self.archived.split_off(self.archived.len().saturating_sub(decided.max(A_FEW)))
    }

    /// Whether there is something to do that waits for nobody.
    pub(super) fn is_under_way(&self) -> bool {
        !self.archived.is_empty() || (!self.is_busy && !self.ended.is_empty() && self.archive.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use onward_core::settings::Rules;

    use super::*;
    use crate::clock;

    const TERM: Term = Term::new(7);

    #[test]
    fn what_was_archived_for_an_earlier_term_is_forgotten_when_it_was_archived_for_this_one() {
        let mut leaving = ArchiveFeed::to(None, TERM);
        leaving.archived(Term::new(6), vec![JobId::from_u128(1)]);
        assert_eq!(leaving.next_archived(0), []);
        leaving.archived(TERM, vec![JobId::from_u128(1)]);
        assert_eq!(leaving.next_archived(0), [JobId::from_u128(1)]);
    }

    #[test]
    fn memory_forgets_a_few_at_a_time() {
        let mut leaving = ArchiveFeed::to(None, TERM);
        assert!(!leaving.is_under_way());
        leaving.archived(TERM, (0..300).map(JobId::from_u128).collect());
        let mut forgotten = Vec::new();
        while leaving.is_under_way() {
            let some = leaving.next_archived(0);
            assert!((1..=A_FEW).contains(&some.len()));
            forgotten.extend(some);
            if forgotten.len() < 200 {
                let more = leaving.next_archived(100);
                assert_eq!(more.len(), 100, "as many as come");
                forgotten.extend(more);
            }
        }
        forgotten.sort_unstable();
        assert_eq!(forgotten, (0..300).map(JobId::from_u128).collect::<Vec<_>>());
        assert_eq!(leaving.next_archived(0), []);
    }

    #[test]
    fn without_an_archive_nothing_waits_for_one() {
        let mut leaving = ArchiveFeed::to(None, TERM);
        leaving.ended(JobId::from_u128(1));
        assert!(!leaving.is_under_way());
    }

    #[test]
    fn what_ends_waits_while_the_archive_is_busy() {
        let (archive, batches) = channel();
        let mut leaving = ArchiveFeed::to(Some(archive), TERM);
        let manager = Manager::new(Rules::default(), 1, clock::now());
        leaving.is_busy = true;
        for job in 0..2 * A_FEW as u128 {
            leaving.ended(JobId::from_u128(job));
        }
        leaving.advance(&manager, 0);
        assert_eq!((leaving.is_under_way(), leaving.ended.len()), (false, 2 * A_FEW));
        leaving.archive_is_ready(Term::new(6));
        assert!(!leaving.is_under_way(), "that was a batch of an earlier term");
        leaving.archive_is_ready(TERM);
        assert!(leaving.is_under_way());
        leaving.advance(&manager, 0);
        assert_eq!(leaving.ended.len(), A_FEW, "a few at a time");
        leaving.advance(&manager, 0);
        assert!(
            !leaving.is_under_way() && batches.try_recv().is_err(),
            "no image was found of any, so there is no batch"
        );
    }
}
