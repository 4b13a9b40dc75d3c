//! A log that does not know, and what is left undone meanwhile.

use onward_log::OwnedBlob;

use super::*;

/// A committer on this log, and how it is told something.
fn committer(log: &MemoryLog) -> (Committer<ToyHost>, CommitQueue<ToyHost>) {
    let follower = Follower::read(Box::new(log.clone()), Toy::default()).expect("it can be read");
    let Ok(Tried::Leads(term)) = follower.lead() else { panic!("nobody else is there") };
    let host = Arc::new(ToyHost::new(LONG));
    let (committer, queue, _) = Committer::new(term.log, (term.term, term.taken_at), term.last, host, None);
    (committer, queue)
}

/// Whoever does not know what became of a write does not know who leads either.
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

/// What cannot be read of a log is not taken for nothing.
#[test]
fn a_machine_that_does_not_end_where_its_log_does_leads_nothing() {
    let elsewhere = Toy { events: 3, ..Toy::default() };
    let follower = Follower::read(Box::new(MemoryLog::new()), elsewhere).expect("an empty log");
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
    let mut follower = Follower::read(Box::new(log), Toy::default()).expect("it can be read");
    follower.machine = Toy { sum: 5, events: 1, snapshot: None };
    follower.catch_up().expect("it reads on");
    assert_eq!((follower.machine.sum, follower.machine.events), (12, 2));
}
