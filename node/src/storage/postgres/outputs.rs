//! Output in a database: worth keeping, and never worth waiting for. While the database does not answer, it is left in
//! peace between two tries, so that nobody waits for the output of many attempts in turn; output is offered again later.
//!
//! A write whose answer did not come may have been carried out. The time of each write is its mark: no two writes of a
//! process have the same one, so whoever offers the same output again can be told whether it is there.
//!
//! Output has the term under which it was admitted. A node whose database was away writes late, and another may have led
//! since: what the attempt printed there is newer, and nothing older comes behind it. Where the other has written nothing of
//! the attempt, late output is still in its place. So it is not the seat that is looked at, but what is stored.

use core::time::Duration;
use std::collections::HashMap;
use std::io;
use std::time::Instant;

use onward_core::fence::{AttemptFence, Term};
use onward_core::ids::{Claim, JobId};
use onward_log::Error;
use onward_postgres::{OutputFound, OutputKey, PostgresOutputs};

use crate::outputs::{Index, OutputRules, OutputStats, OutputStore, OutputTail, OutputWriteError, UnwrittenOutput};

/// The time for which the database is left in peace after a failure.
const ASK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::storage) struct OutputTable {
    stored: PostgresOutputs,
    rules: OutputRules,
    index: Index,
    /// The instant of the last failure, the time that it took, and its text.
    failed: Option<(Instant, Duration, String)>,
    in_doubt: HashMap<Claim, WriteInDoubt>,
    /// The mark of the newest write.
    marked_ms: u64,
}

/// A write of which it is not known whether it was carried out.
#[derive(Clone, Copy, Debug)]
struct WriteInDoubt {
    skipped: u64,
    bytes: usize,
    mark_ms: u64,
}

impl WriteInDoubt {
    /// Whether the output that is offered begins with the one in doubt, to the byte.
    fn begins(&self, offered: &UnwrittenOutput) -> bool {
        self.skipped == offered.skipped && self.bytes <= offered.data.len()
    }
}

/// Writes in doubt that are remembered. There is one for each failure of the database, so many mean an outage of hours.
const MAX_IN_DOUBT: usize = 4_096;

impl OutputTable {
    pub(in crate::storage) fn new(stored: PostgresOutputs, rules: OutputRules) -> Self {
        Self { stored, rules, index: Index::default(), failed: None, in_doubt: HashMap::new(), marked_ms: 0 }
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

    /// Takes off the part of the output that a write in doubt has stored, if it has.
    fn without_stored_part(&mut self, claim: &Claim, printed: &UnwrittenOutput) -> io::Result<UnwrittenOutput> {
        let Some(doubt) = self.in_doubt.get(claim).copied().filter(|doubt| doubt.begins(printed)) else {
            self.in_doubt.remove(claim);
            return Ok(printed.clone());
        };
        let written_at_ms = self.ask(|stored| stored.written_at(key(claim)))?;
        self.in_doubt.remove(claim);
        Ok(match written_at_ms == Some(doubt.mark_ms) {
            true => UnwrittenOutput { skipped: 0, data: printed.data[doubt.bytes..].to_vec() },
            false => printed.clone(),
        })
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

    fn write(&mut self, claim: &Claim, printed: &UnwrittenOutput, now_ms: u64) -> Result<(), OutputWriteError> {
        self.write_under(Term::default(), claim, printed, now_ms)
    }

    /// Writes output, but for the part of it that an earlier write has stored, whose answer did not come.
    fn write_under(
        &mut self,
        term: Term,
        claim: &Claim,
        printed: &UnwrittenOutput,
        now_ms: u64,
    ) -> Result<(), OutputWriteError> {
        let rest = self.without_stored_part(claim, printed).map_err(|error| unwritten(printed.clone(), error))?;
        if rest.data.is_empty() {
            return Ok(());
        }
        let mark_ms = now_ms.max(self.marked_ms + 1);
        self.marked_ms = mark_ms;
        let mut is_in_doubt = false;
        let stored = self.ask(|stored| {
            let stored = stored.write(key(claim), term, rest.skipped, &rest.data, mark_ms);
            is_in_doubt = matches!(stored, Err(Error::Unknown { .. }));
            stored
        });
        if is_in_doubt && self.in_doubt.len() < MAX_IN_DOUBT {
            let doubt = WriteInDoubt { skipped: rest.skipped, bytes: rest.data.len(), mark_ms };
            self.in_doubt.insert(*claim, doubt);
        }
        let Some(bytes) = stored.map_err(|error| unwritten(rest.clone(), error))? else {
            return Err(superseded(&rest));
        };
        self.index.put(*claim, bytes, mark_ms);
        Ok(())
    }

    /// Reads the output as it is now, not as it was a second ago, unless the database keeps everybody waiting.
    fn read(&self, claim: &Claim) -> io::Result<Option<OutputTail>> {
        self.refuse_for(|took| took.min(ASK_AGAIN))?;
        let kept = self.stored.read(key(claim)).map_err(storage_error)?;
        Ok(kept.map(|(skipped, data)| OutputTail { skipped, data }))
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

/// Output waits where the database is away; else it is lost.
fn unwritten(printed: UnwrittenOutput, error: io::Error) -> OutputWriteError {
    match error.kind() == AWAY {
        true => OutputWriteError { lost: 0, later: Some(printed), is_superseded: false, error },
        false => {
            let lost = printed.skipped.saturating_add(printed.data.len() as u64);
            OutputWriteError { lost, later: None, is_superseded: false, error }
        }
    }
}

fn superseded(printed: &UnwrittenOutput) -> OutputWriteError {
    let error = io::Error::other("the attempt has printed more where another node led since");
    OutputWriteError { lost: printed.data.len() as u64, later: None, is_superseded: true, error }
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
    use onward_testkit::{FaultProxy, PostgresServer};

    use super::*;

    /// The stored output after a line whose writing met a fault, and another that was offered with it again.
    fn stored_after(fault: impl FnOnce(&FaultProxy)) -> String {
        let server = PostgresServer::options().fsync().start().unwrap();
        let proxy = FaultProxy::start(server.port()).unwrap();
        let url = server.database().unwrap();
        let behind = url.replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
        let database = Database::open(&behind).unwrap();
        let mut table = OutputTable::new(database.outputs("east", 1 << 16).unwrap(), OutputRules::default());
        let of = claim(OutputKey { job: 1, workflow: 0, fence: 1 });
        let again = UnwrittenOutput { skipped: 0, data: b"again ".to_vec() };
        table.write(&of, &again, 1).unwrap();
        fault(&proxy);
        let mut later = table.write(&of, &again, 1).unwrap_err().later.expect("it waits");
        later.data.extend_from_slice(b"last");
        // The pause after a failure is over.
        table.failed = None;
        proxy.refuse(false);
        table.write(&of, &later, 1).unwrap();
        let kept = table.read(&of).unwrap().expect("it is kept");
        assert_eq!(kept.skipped, 0);
        String::from_utf8(kept.data).unwrap()
    }

    #[test]
    fn output_whose_writing_is_in_doubt_is_stored_once_whether_it_was_written_or_not() {
        assert_eq!(stored_after(FaultProxy::lose_next_answer), "again again last", "it was written");
        assert_eq!(stored_after(|proxy| proxy.refuse(true)), "again again last", "it was not");
    }

    #[test]
    fn what_a_former_leader_writes_late_does_not_come_behind_what_its_heir_has_written() {
        let server = PostgresServer::options().fsync().start().unwrap();
        let url = server.database().unwrap();
        let table = || {
            let outputs = Database::open(&url).unwrap().outputs("east", 1 << 16).unwrap();
            OutputTable::new(outputs, OutputRules::default())
        };
        let (mut former, mut heir) = (table(), table());
        let (of, quiet) =
            (claim(OutputKey { job: 1, workflow: 0, fence: 1 }), claim(OutputKey { job: 2, workflow: 0, fence: 1 }));
        let printed = |text: &str| UnwrittenOutput { skipped: 0, data: text.as_bytes().to_vec() };
        let (first, second, third) = (Term::new(1), Term::new(2), Term::new(3));
        former.write_under(first, &of, &printed("one "), 1).unwrap();
        heir.write_under(second, &of, &printed("two "), 2).unwrap();
        let late = former.write_under(first, &of, &printed("late "), 3).unwrap_err();
        assert_eq!((late.lost, late.later, late.is_superseded), (5, None, true), "it is dropped, and counted");
        former.write_under(first, &quiet, &printed("late"), 3).unwrap();
        // A part that has grown is closed by its size: the next begins behind it, and counts as well.
        let long = "x".repeat(1 << 14);
        heir.write_under(second, &of, &printed(&long), 4).unwrap();
        assert!(former.write_under(first, &of, &printed("late "), 5).unwrap_err().is_superseded);
        former.write_under(third, &of, &printed("three"), 6).unwrap();
        let text = |claim| String::from_utf8(heir.read(&claim).unwrap().expect("it is kept").data).unwrap();
        assert_eq!(text(of), format!("one two {long}three"));
        assert_eq!(text(quiet), "late", "nobody has written anything newer");
    }

    #[test]
    fn output_that_cannot_be_read_now_is_told_from_output_that_is_damaged() {
        let server = PostgresServer::options().fsync().start().unwrap();
        let database = Database::open(&server.database().unwrap()).unwrap();
        let mut table = OutputTable::new(database.outputs("east", 1 << 16).unwrap(), OutputRules::default());
        let of = claim(OutputKey { job: 1, workflow: 0, fence: 1 });
        table.write(&of, &UnwrittenOutput { skipped: 0, data: b"hello".to_vec() }, 1).unwrap();
        assert_eq!(table.read(&of).unwrap().unwrap().data, b"hello");
        server.server().kill();
        assert_eq!(table.read(&of).unwrap_err().kind(), io::ErrorKind::NotConnected);
        let more = UnwrittenOutput { skipped: 0, data: b"more".to_vec() };
        let OutputWriteError { lost, later, error, .. } = table.write(&of, &more, 2).unwrap_err();
        assert_eq!((lost, later, error.kind()), (0, Some(more), io::ErrorKind::NotConnected));
        assert_eq!(storage_error(Error::Corrupt { what: "a hole".into() }).kind(), io::ErrorKind::Other);
    }
}
