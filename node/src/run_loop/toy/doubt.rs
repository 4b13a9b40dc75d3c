//! A log that does not know, and what is left undone meanwhile.

use onward_log::{BatchKey, Blob, BlobReader, LogRow, OwnedBlob, Snapshot};

use super::*;

/// A committer on this log, and how it is told something.
fn committer(log: &MemoryLog) -> (Committer<ToyHost>, CommitQueue<ToyHost>) {
    let follower = Follower::read(Box::new(log.clone()), Toy::default).expect("it can be read");
    let Ok(SeatBid::Leads(term)) = follower.lead() else { panic!("nobody else is there") };
    let host = Arc::new(ToyHost::new(LONG));
    let (committer, queue, _) = Committer::new(term.log, (term.term, term.taken_at), term.last, host);
    (committer, queue)
}

/// A leader that does not know what became of a write does not know who leads either.
#[test]
fn while_the_log_is_in_doubt_nothing_leaves() {
    let log = MemoryLog::new();
    let run = Run::on(log.clone(), LONG, u64::MAX);
    run.add(1).recv().expect("it is answered");
    log.doubt(true);
    run.host.run_queue.put(ToyCommand::Seat);
    until("the log is in doubt", || !run.host.trouble.lock().expect("nobody panics").is_empty());
    let read = run.read(None);
    read.recv_timeout(Duration::from_millis(100)).expect_err("another may lead");
    log.doubt(false);
    assert_eq!(read.recv(), Ok(1), "nobody does");
    assert!(matches!(run.stop(), TermEnd::Stopped));
}

/// A log that says again and again that it does not know has not answered in between.
#[test]
fn all_tries_together_are_one_call_to_the_log() {
    let log = MemoryLog::new();
    let run = Run::on(log.clone(), LONG, u64::MAX);
    let is_stalled = || run.host.pulse.busy_for().is_some_and(|span| span >= 4 * SHORT);
    let added = {
        log.doubt(true);
        let added = run.add(1);
        until("an append takes long", is_stalled);
        log.doubt(false);
        added
    };
    added.recv().expect("it is answered");
    until("the log rests", || run.host.pulse.busy_for().is_none());
    log.doubt(true);
    run.host.run_queue.put(ToyCommand::Seat);
    until("a confirmation takes long", is_stalled);
    log.doubt(false);
    assert!(matches!(run.stop(), TermEnd::Stopped));
}

/// The same content was given up and brought again, and both were told before either was done.
#[test]
fn content_that_comes_back_before_it_was_dropped_stays() {
    let log = MemoryLog::new();
    let (mut committer, queue) = committer(&log);
    let [kept, gone] = [1, 2].map(|name| OwnedBlob { digest: [name; 32], bytes: vec![name].into() });
    let append = |blobs| CommitRequest::Append { events: vec![1], blobs, outs: Vec::new() };
    queue.push(append(vec![kept.clone(), gone.clone()]));
    committer.work();
    [&kept, &gone].into_iter().for_each(|blob| queue.push(CommitRequest::DropBlob(blob.digest)));
    queue.push(append(vec![kept.clone()]));
    committer.work();
    let stored = |blob: &OwnedBlob| log.clone().blob(&blob.digest).expect("in memory");
    assert_eq!((stored(&kept), stored(&gone)), (Some(vec![1]), None));
}

/// A log that cannot be read is not taken for an empty one.
#[test]
fn a_machine_that_does_not_end_where_its_log_does_leads_nothing() {
    let elsewhere = Toy { events: 3, ..Toy::default() };
    let follower = Follower::read(Box::new(MemoryLog::new()), || elsewhere.clone()).expect("an empty log");
    assert!(matches!(follower.lead(), Err(Error::Corrupt { .. })));
}

/// The answer may have been on its way for long.
#[test]
fn a_confirmation_counts_from_when_it_was_asked_for() {
    const TTL: Duration = Duration::from_secs(2);
    let log = MemoryLog::new();
    let run = Run::on(log.clone(), TTL, u64::MAX);
    run.add(1).recv().expect("it is answered");
    let is_in_doubt = || !run.host.trouble.lock().expect("nobody panics").is_empty();
    log.doubt(true);
    let asked = clock::mono();
    run.host.run_queue.put(ToyCommand::Seat);
    until("the log is in doubt", is_in_doubt);
    pass(TTL / 2);
    log.doubt(false);
    until("the log answers", || !is_in_doubt());
    let (thaw, gate) = channel();
    let read = run.read(Some(gate));
    pass((TTL + TTL / 4).saturating_sub(clock::mono().since(asked)));
    log.clone().take_seat(Term::new(1)).expect("it was seen");
    drop(thaw);
    read.recv().expect_err("it is of the past");
    assert!(matches!(run.ended(), TermEnd::Failed(Error::StaleTerm { .. })));
}

#[test]
fn a_follower_reads_on_from_the_middle_of_a_row() {
    let log = MemoryLog::new();
    let (mut committer, queue) = committer(&log);
    queue.push(CommitRequest::Append { events: vec![5, 7], blobs: Vec::new(), outs: Vec::new() });
    committer.work();
    let mut follower = Follower::read(Box::new(log), Toy::default).expect("it can be read");
    follower.machine = Toy { sum: 5, events: 1, snapshot: None };
    follower.catch_up().expect("it reads on");
    assert_eq!((follower.machine.sum, follower.machine.events), (12, 2));
}

type Change = Box<dyn FnOnce(&mut MemoryLog) + Send>;

/// A log in which something happens between two calls, as another node or another database server makes it.
struct InterruptedLog {
    log: MemoryLog,
    /// Called before the call of this number, of those that read rows or chunks.
    at: usize,
    calls: usize,
    then: Option<Change>,
}

impl InterruptedLog {
    fn over(log: MemoryLog, at: usize, then: impl FnOnce(&mut MemoryLog) + Send + 'static) -> Box<dyn Log> {
        Box::new(Self { log, at, calls: 0, then: Some(Box::new(then)) })
    }

    fn count(&mut self) {
        self.calls += 1;
        if self.calls == self.at
            && let Some(then) = self.then.take()
        {
            then(&mut self.log);
        }
    }
}

impl Log for InterruptedLog {
    fn tail(&mut self) -> Result<Tail, Error> {
        self.log.tail()
    }
    fn take_seat(&mut self, seen: Term) -> Result<Tail, Error> {
        self.log.take_seat(seen)
    }
    fn confirm(&mut self, term: Term) -> Result<(), Error> {
        self.log.confirm(term)
    }
    fn append(&mut self, key: BatchKey, row: LogRow<'_>, blobs: &[Blob<'_>]) -> Result<(), Error> {
        self.log.append(key, row, blobs)
    }
    fn read(&mut self, from: Seq, max_events: usize) -> Result<Vec<StoredRow>, Error> {
        self.count();
        self.log.read(from, max_events)
    }
    fn blob(&mut self, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error> {
        self.log.blob(digest)
    }
    fn blob_reader(&self) -> BlobReader {
        self.log.blob_reader()
    }
    fn blobs(&mut self, after: Option<&BlobDigest>, max: usize) -> Result<Vec<BlobDigest>, Error> {
        self.log.blobs(after, max)
    }
    fn drop_blobs(&mut self, term: Term, digests: &[BlobDigest]) -> Result<(), Error> {
        self.log.drop_blobs(term, digests)
    }
    fn put_chunk(&mut self, term: Term, covers: Seq, index: u32, chunk: &[u8]) -> Result<(), Error> {
        self.log.put_chunk(term, covers, index, chunk)
    }
    fn finish_snapshot(&mut self, term: Term, covers: Seq, chunks: u32) -> Result<(), Error> {
        self.log.finish_snapshot(term, covers, chunks)
    }
    fn snapshot(&mut self) -> Result<Option<Snapshot>, Error> {
        self.log.snapshot()
    }
    fn chunk(&mut self, index: u32) -> Result<Vec<u8>, Error> {
        self.count();
        self.log.chunk(index)
    }
    fn truncate(&mut self, term: Term, max_batches: usize) -> Result<bool, Error> {
        self.log.truncate(term, max_batches)
    }
}

/// A log of its own with a batch of each of these.
fn log_of(batches: &[&[u64]]) -> MemoryLog {
    let log = MemoryLog::new();
    let (mut committer, queue) = committer(&log);
    for events in batches {
        queue.push(CommitRequest::Append { events: events.to_vec(), blobs: Vec::new(), outs: Vec::new() });
        committer.work();
    }
    log
}

/// Another database server took over, and has not all that was seen of the first one.
#[test]
fn a_follower_whose_newest_batch_is_gone_or_another_begins_anew() {
    let seen = log_of(&[&[1], &[2, 3]]);
    for (others, expected) in [
        (&[&[1][..], &[2, 3]][..], CatchUp::Complete),
        (&[&[1][..]][..], CatchUp::Outdated),
        (&[&[1][..], &[2], &[3], &[4]][..], CatchUp::Outdated),
    ] {
        let mut follower = Follower::read(Box::new(seen.clone()), Toy::default).expect("it can be read");
        assert_eq!(follower.machine.sum, 6);
        follower.seen = Term::new(99);
        follower.log = Box::new(log_of(others));
        assert_eq!(follower.catch_up(), Ok(expected), "{others:?}");
    }
}

/// Events that follow the newest batch are of the same history as that batch, also if it is replaced at any moment.
#[test]
fn a_history_that_changes_between_two_calls_is_not_mixed_with_the_one_before() {
    for at in 1..=4 {
        let (seen, other) = (log_of(&[&[1], &[2]]), log_of(&[&[1], &[10], &[20]]));
        let mut follower = Follower::read(Box::new(seen.clone()), Toy::default).expect("it can be read");
        follower.seen = Term::new(99);
        follower.log = InterruptedLog::over(seen, at, move |log| *log = other);
        let caught_up = follower.catch_up();
        let is_whole = caught_up == Ok(CatchUp::Complete) && follower.machine.sum == 3;
        assert!(is_whole || caught_up == Ok(CatchUp::Outdated), "at {at}: {caught_up:?}, {}", follower.machine.sum);
    }
}

/// A leader finishes another snapshot while a node that has just started reads the one before it.
#[test]
fn a_snapshot_that_is_replaced_while_it_is_read_is_read_anew() {
    let log = MemoryLog::new();
    let run = Run::on(log.clone(), LONG, 4);
    for number in 1..=20 {
        run.add(number).recv().expect("it is answered");
    }
    until("rows are gone", || log.clone().read(Seq(1), 1).is_err());
    assert!(matches!(run.stop(), TermEnd::Stopped));
    for at in 1..=4 {
        let newer = {
            let log = MemoryLog::new();
            let run = Run::on(log.clone(), LONG, 4);
            for number in 1..=40 {
                run.add(number).recv().expect("it is answered");
            }
            until("rows are gone", || log.clone().read(Seq(21), 1).is_err());
            assert!(matches!(run.stop(), TermEnd::Stopped));
            log
        };
        let interrupted = InterruptedLog::over(log.clone(), at, move |log| *log = newer);
        let follower = Follower::read(interrupted, Toy::default).expect("it is read anew");
        assert!([210, 820].contains(&follower.machine.sum), "at {at}: {}", follower.machine.sum);
    }
}
