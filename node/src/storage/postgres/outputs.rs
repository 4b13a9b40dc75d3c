//! Output in a database: worth keeping, and never worth waiting for. While the database does not answer, what is printed is
//! dropped at once, so that nobody waits for the output of many attempts in turn; whoever reads is asked to come again.

use core::time::Duration;
use std::io;
use std::time::Instant;

use onward_core::fence::AttemptFence;
use onward_core::ids::{Claim, JobId};
use onward_log::Error;
use onward_postgres::{OutputFound, OutputKey, PostgresOutputs};

use crate::outputs::{Index, Kept, OutputRules, OutputStats, OutputStore, Printed};

/// The time for which the database is left in peace after a failure.
const ASK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::storage) struct OutputTable {
    stored: PostgresOutputs,
    rules: OutputRules,
    index: Index,
    /// The instant of the last failure, the time that it took, and its text.
    failed: Option<(Instant, Duration, String)>,
}

impl OutputTable {
    pub(in crate::storage) fn new(stored: PostgresOutputs, rules: OutputRules) -> Self {
        Self { stored, rules, index: Index::default(), failed: None }
    }

    fn ask<T>(&mut self, question: impl FnOnce(&PostgresOutputs) -> Result<T, Error>) -> io::Result<T> {
        self.refuse_for(|_| ASK_AGAIN)?;
        let began = Instant::now();
        let answer = question(&self.stored);
        self.failed = answer.as_ref().err().map(|error| (Instant::now(), began.elapsed(), error.cause()));
        answer.map_err(storage_error)
    }

    /// Refuses what is asked too soon after a failure, given how long that one took.
    fn refuse_for(&self, span: impl FnOnce(Duration) -> Duration) -> io::Result<()> {
        match &self.failed {
            Some((at, took, cause)) if at.elapsed() < span(*took) => Err(io::Error::new(AWAY, cause.clone())),
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

    /// Writes output. Where it is not known whether it was written, it counts as lost: at worst its bytes are counted
    /// twice.
    fn write(&mut self, claim: &Claim, printed: &Printed, now_ms: u64) -> Result<(), (u64, io::Error)> {
        let Printed { skipped, data } = printed;
        let stored = self.ask(|stored| stored.write(key(claim), *skipped, data, now_ms));
        let bytes = stored.map_err(|error| (skipped.saturating_add(data.len() as u64), error))?;
        self.index.put(*claim, bytes, now_ms);
        Ok(())
    }

    /// Reads the output as it is now, not as it was a second ago, unless the database keeps everybody waiting.
    fn read(&self, claim: &Claim) -> io::Result<Option<Kept>> {
        self.refuse_for(|took| took.min(ASK_AGAIN))?;
        let kept = self.stored.read(key(claim)).map_err(storage_error)?;
        Ok(kept.map(|(skipped, data)| Kept { skipped, data }))
    }

    fn sweep(&mut self, now_ms: u64, stats: &OutputStats) -> io::Result<()> {
        let mut done = Ok(());
        while let Some(claim) = self.index.due(&self.rules, now_ms) {
            match self.ask(|stored| stored.remove(key(&claim))) {
                Ok(was_there) => stats.removed.add(u64::from(was_there)),
                // The output is due at the next sweep as well.
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

/// The kind of an error for output that cannot be read now, which tells it from a damaged one.
const AWAY: io::ErrorKind = io::ErrorKind::NotConnected;

fn storage_error(error: Error) -> io::Error {
    match error {
        Error::Io { cause } | Error::Unknown { cause } => io::Error::new(AWAY, cause),
        damaged => io::Error::other(damaged),
    }
}

fn key(claim: &Claim) -> OutputKey {
    OutputKey { job: claim.job.as_u128(), workflow: claim.workflow, fence: claim.fence.get() }
}

fn claim(key: OutputKey) -> Claim {
    Claim { job: JobId::from_u128(key.job), workflow: key.workflow, fence: AttemptFence::from_raw(key.fence) }
}

#[cfg(test)]
mod tests {
    use onward_postgres::Database;
    use onward_testkit::Postgres;

    use super::*;

    #[test]
    fn output_that_cannot_be_read_now_is_told_from_output_that_is_damaged() {
        let server = Postgres::options().fsync().start().unwrap();
        let database = Database::open(&server.database().unwrap()).unwrap();
        let mut table = OutputTable::new(database.outputs("east", 1 << 16).unwrap(), OutputRules::default());
        let of = claim(OutputKey { job: 1, workflow: 0, fence: 1 });
        table.write(&of, &Printed { skipped: 0, data: b"hello".to_vec() }, 1).unwrap();
        assert_eq!(table.read(&of).unwrap().unwrap().data, b"hello");
        server.server().kill();
        assert_eq!(table.read(&of).unwrap_err().kind(), io::ErrorKind::NotConnected);
        let (lost, error) = table.write(&of, &Printed { skipped: 0, data: b"more".to_vec() }, 2).unwrap_err();
        assert_eq!((lost, error.kind()), (4, io::ErrorKind::NotConnected));
        assert_eq!(storage_error(Error::Corrupt { what: "a hole".into() }).kind(), io::ErrorKind::Other);
    }
}
