//! When a snapshot is taken, and how far it is. The machine gives a few records at a time, between its other work; the
//! committer encodes and stores them.

use onward_core::ids::Seq;
use onward_core::manager::Manager;

use super::committer::ToLog;

/// How many batches of the log are removed at once.
pub(super) const TRUNCATE_AT_ONCE: usize = 256;
const RECORDS: usize = 1_000;

#[derive(Debug)]
pub(super) struct Snapshots {
    every: u64,
    newest: Seq,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Idle,
    /// A chunk is on its way, unless `ready`.
    Taking {
        covers: Seq,
        next: u32,
        ready: bool,
        last: bool,
    },
    /// The snapshot is there, and what it covers is removed from the log.
    Truncating,
}

impl Snapshots {
    /// `newest`: up to where the newest snapshot reaches.
    pub(super) fn after(newest: Seq, every: u64) -> Self {
        Self { every, newest, stage: Stage::Idle }
    }

    /// What to tell the log now, if anything. A snapshot costs as much as there are jobs, so it is due after as many
    /// events.
    pub(super) fn advance(&mut self, manager: &mut Manager) -> Option<ToLog> {
        match &mut self.stage {
            Stage::Idle => {
                let events = manager.newest().0 - self.newest.0;
                if events < self.every.max(manager.state().job_count() as u64) {
                    return None;
                }
                let covers = manager.begin_snapshot();
                self.stage = Stage::Taking { covers, next: 0, ready: true, last: false };
                self.advance(manager)
            }
            Stage::Taking { covers, next, ready, last } if *ready => {
                *ready = false;
                let covers = *covers;
                if *last {
                    return Some(ToLog::FinishSnapshot { covers, chunks: *next });
                }
                let part = manager.snapshot_next(RECORDS);
                *last = part.done;
                let index = *next;
                *next += 1;
                Some(ToLog::Chunk { covers, index, records: part.records })
            }
            Stage::Taking { .. } | Stage::Truncating => None,
        }
    }

    pub(super) fn chunk_stored(&mut self) {
        if let Stage::Taking { ready, .. } = &mut self.stage {
            *ready = true;
        }
    }

    pub(super) fn finished(&mut self) {
        if let Stage::Taking { covers, .. } = self.stage {
            self.newest = covers;
            self.stage = Stage::Truncating;
        }
    }

    pub(super) fn truncated(&mut self) {
        self.stage = Stage::Idle;
    }

    /// It is begun anew after as many events as if it had been taken.
    pub(super) fn failed(&mut self, manager: &mut Manager) {
        manager.abandon_snapshot();
        self.newest = manager.newest();
        self.stage = Stage::Idle;
    }
}
