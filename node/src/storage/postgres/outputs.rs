//! Output in a database: worth keeping, and never worth waiting for. While the database does not answer, what is printed is
//! dropped at once, so that nobody waits for the output of many attempts in turn.

use core::time::Duration;
use std::io;
use std::time::Instant;

use onward_core::fence::AttemptFence;
use onward_core::ids::{Claim, JobId};
use onward_log::Error;
use onward_postgres::{OutputFound, OutputKey, PostgresOutputs};

use crate::outputs::{Index, Kept, OutputRules, OutputStats, OutputStore, Printed};

/// After a failure the database is left in peace for so long.
const ASK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::storage) struct OutputTable {
    stored: PostgresOutputs,
    rules: OutputRules,
    index: Index,
    /// When it last did not answer, and what was said then.
    failed: Option<(Instant, String)>,
}

impl OutputTable {
    pub(in crate::storage) fn new(stored: PostgresOutputs, rules: OutputRules) -> Self {
        Self { stored, rules, index: Index::default(), failed: None }
    }

    fn ask<T>(&mut self, question: impl FnOnce(&PostgresOutputs) -> Result<T, Error>) -> io::Result<T> {
        self.in_peace()?;
        let answer = question(&self.stored);
        self.failed = answer.as_ref().err().map(|error| (Instant::now(), error.cause()));
        answer.map_err(io::Error::other)
    }

    fn in_peace(&self) -> io::Result<()> {
        match &self.failed {
            Some((at, cause)) if at.elapsed() < ASK_AGAIN => Err(io::Error::other(cause.clone())),
            _ => Ok(()),
        }
    }

    fn count(&self, stats: &OutputStats) {
        stats.kept_bytes.set(self.index.bytes());
        stats.kept_files.set(self.index.len() as u64);
    }
}

impl OutputStore for OutputTable {
    fn scan(&mut self, stats: &OutputStats) -> io::Result<()> {
        for OutputFound { key, bytes, written_at_ms } in self.ask(PostgresOutputs::scan)? {
            self.index.put(claim(key), bytes, written_at_ms);
        }
        self.count(stats);
        Ok(())
    }

    /// Where it is not known what became of it, it counts as lost: at worst its bytes are counted twice.
    fn write(&mut self, claim: &Claim, printed: &Printed, now_ms: u64) -> Result<(), (u64, io::Error)> {
        let Printed { skipped, data } = printed;
        let stored = self.ask(|stored| stored.write(key(claim), *skipped, data, now_ms));
        let bytes = stored.map_err(|error| (skipped.saturating_add(data.len() as u64), error))?;
        self.index.put(*claim, bytes, now_ms);
        Ok(())
    }

    fn read(&self, claim: &Claim) -> io::Result<Option<Kept>> {
        self.in_peace()?;
        let kept = self.stored.read(key(claim)).map_err(io::Error::other)?;
        Ok(kept.map(|(skipped, data)| Kept { skipped, data }))
    }

    fn sweep(&mut self, now_ms: u64, stats: &OutputStats) -> io::Result<()> {
        let mut done = Ok(());
        while let Some(claim) = self.index.due(&self.rules, now_ms) {
            match self.ask(|stored| stored.remove(key(&claim))) {
                Ok(was_there) => stats.removed.add(u64::from(was_there)),
                // It is due at the next sweep as well.
                Err(error) => {
                    done = Err(error);
                    break;
                }
            }
            self.index.remove(&claim);
        }
        self.count(stats);
        done
    }
}

fn key(claim: &Claim) -> OutputKey {
    OutputKey { job: claim.job.as_u128(), workflow: claim.workflow, fence: claim.fence.get() }
}

fn claim(key: OutputKey) -> Claim {
    Claim { job: JobId::from_u128(key.job), workflow: key.workflow, fence: AttemptFence::from_raw(key.fence) }
}
