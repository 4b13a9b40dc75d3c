//! The committer, which has the log. It commits all that waits at once, then looks again; nothing waits for company.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::time::Mono;
use onward_log::{BlobDigest, Error, GroupCommit, Log, LogChange, OwnedBlob};

use super::outgoing::{self, OutgoingQueue, OutgoingSender};
use super::seat::SeatDeadline;
use super::snapshots::TRUNCATE_AT_ONCE;
use super::{Host, StateMachine};
use crate::clock;

/// A request to the log, carried out in the order of asking.
pub(crate) enum CommitRequest<H: Host> {
    /// Either may be empty, save that blobs come with events that name them.
    Append {
        events: Vec<<H::Machine as StateMachine>::Event>,
        blobs: Vec<OwnedBlob>,
        /// Messages to be let go once the event that each names is durable, in this order.
        outs: Vec<(Seq, H::Outgoing)>,
    },
    /// Nothing that was told before names it any more.
    DropBlob(BlobDigest),
    /// List the contents that the log has, page by page.
    ListBlobs {
        after: Option<BlobDigest>,
    },
    ConfirmSeat {
        question: u64,
    },
    Chunk {
        covers: Seq,
        index: u32,
        records: Vec<<H::Machine as StateMachine>::Record>,
    },
    FinishSnapshot {
        covers: Seq,
        chunks: u32,
    },
}

/// An answer of the committer, into the run queue of the machine. The term tells answers to an earlier machine apart.
pub(crate) struct CommitAnswer {
    pub(crate) term: Term,
    pub(crate) what: CommitReply,
}

pub(crate) enum CommitReply {
    /// The [`CommitProgress`] that was asked for is there.
    Progress,
    Seat {
        question: u64,
        term: Term,
    },
    ChunkStored,
    SnapshotFinished,
    Truncated,
    /// The next page of content that the log has; empty behind the last, or if the log cannot say.
    Blobs(Vec<BlobDigest>),
    /// The log goes on without it.
    SnapshotFailed(Error),
    /// Nothing of what was told since the last answer is stored, nor will be.
    Failed(Error),
}

/// More events than this do not go into one commit, so that no answer waits for a very long one.
const MAX_BATCH: usize = 16_384;
const MAX_BATCH_BLOB_BYTES: usize = 8 << 20;
/// The number of contents that are listed at once.
const BLOBS_PAGE: usize = 1_000;

/// The progress of the log. The machine looks before every round, and is woken by it only if it waits for it: waking a
/// thread takes longer than most of what it would do.
#[derive(Default)]
pub(crate) struct CommitProgress {
    commits: Mutex<Option<Commits>>,
    is_waited_for: AtomicBool,
}

/// Commits since the last look.
pub(crate) struct Commits {
    pub(crate) durable: Seq,
    /// The time of each commit, up to some of them.
    pub(crate) took: Vec<Duration>,
}

/// Enough to judge the load by.
const MAX_TOOK: usize = 64;

impl CommitProgress {
    pub(crate) fn take(&self) -> Option<Commits> {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Has every commit told from now on; look once more after this.
    pub(crate) fn wait_for(&self, is_waited_for: bool) {
        self.is_waited_for.store(is_waited_for, Ordering::SeqCst);
    }

    fn put(&self, seq: Seq, took: Duration) {
        let mut commits = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        let commits = commits.get_or_insert_with(|| Commits { durable: seq, took: Vec::new() });
        commits.durable = seq;
        if commits.took.len() < MAX_TOOK {
            commits.took.push(took);
        }
    }
}

/// The machine's way of making requests to the log.
pub(crate) struct CommitQueue<H: Host> {
    sender: Sender<CommitRequest<H>>,
    /// Told, and not yet taken up.
    pending: Arc<AtomicUsize>,
    is_busy: Arc<AtomicBool>,
    pub(crate) progress: Arc<CommitProgress>,
}

impl<H: Host> CommitQueue<H> {
    /// Whether a thread is at the log already, which will take along what is asked.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }

    pub(crate) fn push(&self, request: CommitRequest<H>) {
        self.pending.fetch_add(1, Ordering::SeqCst);
        // If nobody takes it up any more, the reason is in our run queue already.
        let _ = self.sender.send(request);
    }
}

/// The log of one term, and what waits for it.
pub(crate) struct Committer<H: Host> {
    log: Box<dyn Log>,
    term: Term,
    group: GroupCommit,
    waiting: OutgoingQueue<H>,
    seat: SeatDeadline,
    requests: Receiver<CommitRequest<H>>,
    pending: Arc<AtomicUsize>,
    is_busy: Arc<AtomicBool>,
    progress: Arc<CommitProgress>,
    host: Arc<H>,
    questions: Vec<u64>,
    to_drop: Vec<BlobDigest>,
    /// Set while a list of contents is wanted, and behind which.
    to_list: Option<Option<BlobDigest>>,
    /// The next step of a snapshot. There is at most one at a time.
    snapshot_step: Option<CommitRequest<H>>,
    truncating: bool,
    has_failed: bool,
}

impl<H: Host> Committer<H> {
    /// The committer of a term whose seat was taken by a write that began at `taken_at`, when `last` was the newest
    /// event.
    pub(crate) fn new(
        log: Box<dyn Log>,
        (term, taken_at): (Term, Mono),
        last: Seq,
        host: Arc<H>,
    ) -> (Self, CommitQueue<H>, OutgoingSender<H>) {
        let (sender, requests) = channel();
        let (pending, progress) = (Arc::<AtomicUsize>::default(), Arc::<CommitProgress>::default());
        let is_busy = Arc::<AtomicBool>::default();
        let seat = SeatDeadline::of_seat_taken(taken_at, host.seat_ttl());
        let (outgoing, waiting) = outgoing::channel(last, seat.clone());
        let queue =
            CommitQueue { sender, pending: pending.clone(), is_busy: is_busy.clone(), progress: progress.clone() };
        let committer = Self {
            log,
            term,
            group: GroupCommit::new(term, last, MAX_BATCH, MAX_BATCH_BLOB_BYTES),
            waiting,
            seat,
            requests,
            pending,
            is_busy,
            progress,
            host,
            questions: Vec::new(),
            to_drop: Vec::new(),
            to_list: None,
            snapshot_step: None,
            truncating: false,
            has_failed: false,
        };
        (committer, queue, outgoing)
    }

    /// Does all that was told. After a failure nothing is done any more, and what waits is let go of unseen.
    pub(crate) fn work(&mut self) {
        self.is_busy.store(true, Ordering::Relaxed);
        self.work_off();
        self.is_busy.store(false, Ordering::Relaxed);
    }

    /// Whether the committer does nothing any more.
    pub(crate) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn work_off(&mut self) {
        if !self.has_failed {
            let failed = match catch_unwind(AssertUnwindSafe(|| self.serve())) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                // The commit under way is in doubt, as after a crash; the next term reads what is there.
                Err(_) => {
                    self.host.log_pulse().rest();
                    Error::Io { cause: "the log's thread panicked".into() }
                }
            };
            self.has_failed = true;
            self.answer(CommitReply::Failed(failed));
        }
        self.waiting.drop_all();
        while self.next().is_some() {}
    }

    fn serve(&mut self) -> Result<(), Error> {
        loop {
            loop {
                while let Some(more) = self.next() {
                    self.handle(more);
                }
                self.release()?;
                if !self.commit()? {
                    break;
                }
            }
            self.answer_questions()?;
            self.drop_blobs()?;
            self.list_blobs()?;
            self.snapshot()?;
            if !self.truncating {
                return Ok(());
            }
            self.truncate()?;
        }
    }

    /// Lets go what waits for no event any more. Past the seat's deadline another may lead, and what was decided before
    /// is of the past; so the seat is confirmed first.
    fn release(&mut self) -> Result<(), Error> {
        if self.host.is_given_up() {
            self.waiting.drop_all();
        }
        if !self.waiting.has_ready() {
            return Ok(());
        }
        while !self.seat.is_ahead() {
            self.confirm()?;
        }
        self.waiting.release(&self.host);
        Ok(())
    }

    /// Confirms the seat by a write, which counts from when it began.
    fn confirm(&mut self) -> Result<(), Error> {
        let (term, begun) = (self.term, clock::mono());
        self.ask_until_known(|log| log.confirm(term))?;
        self.seat.confirmed_as_of(begun);
        Ok(())
    }

    /// Answers all questions that were asked before one write by that write.
    fn answer_questions(&mut self) -> Result<(), Error> {
        if self.questions.is_empty() {
            return Ok(());
        }
        let term = match self.confirm() {
            Ok(()) => self.term,
            // The machine is told who leads, and ends its term by that.
            Err(Error::StaleTerm { current, .. }) => current,
            Err(error) => return Err(error),
        };
        for question in core::mem::take(&mut self.questions) {
            self.answer(CommitReply::Seat { question, term });
        }
        Ok(())
    }

    fn next(&mut self) -> Option<CommitRequest<H>> {
        let request = self.requests.try_recv().ok()?;
        self.pending.fetch_sub(1, Ordering::SeqCst);
        Some(request)
    }

    /// Drops blobs that nobody needs. They take room, and nothing else: if they cannot be dropped, the next term does
    /// it.
    fn drop_blobs(&mut self) -> Result<(), Error> {
        if self.to_drop.is_empty() {
            return Ok(());
        }
        let (term, digests) = (self.term, core::mem::take(&mut self.to_drop));
        match self.ask_until_known(|log| log.drop_blobs(term, &digests)) {
            Err(error) if !ends_term(&error) => {
                tracing::warn!(%error, "content that nothing refers to could not be dropped; the next term tries again");
                Ok(())
            }
            done => done,
        }
    }

    fn list_blobs(&mut self) -> Result<(), Error> {
        let Some(after) = self.to_list.take() else { return Ok(()) };
        let listed = self.ask_until_known(|log| log.blobs(after.as_ref(), BLOBS_PAGE));
        let listed = match listed {
            Err(error) if !ends_term(&error) => {
                tracing::warn!(%error, "content that nothing refers to is not looked for; the next term tries again");
                Vec::new()
            }
            listed => listed?,
        };
        self.answer(CommitReply::Blobs(listed));
        Ok(())
    }

    /// A snapshot is worth nothing if the disk is full, and the log may have room for a batch all the same.
    fn snapshot(&mut self) -> Result<(), Error> {
        let done = match self.snapshot_step.take() {
            Some(CommitRequest::Chunk { covers, index, records }) => {
                let (term, mut chunk) = (self.term, Vec::new());
                H::Machine::encode_records(&records, &mut chunk);
                self.ask_until_known(|log| log.put_chunk(term, covers, index, &chunk))
                    .map(|()| CommitReply::ChunkStored)
            }
            Some(CommitRequest::FinishSnapshot { covers, chunks }) => {
                let term = self.term;
                let finished = self.ask_until_known(|log| log.finish_snapshot(term, covers, chunks));
                self.truncating = finished.is_ok();
                finished.map(|()| CommitReply::SnapshotFinished)
            }
            _ => return Ok(()),
        };
        match done {
            Ok(reply) => self.answer(reply),
            Err(error) if ends_term(&error) => return Err(error),
            Err(error) => self.answer(CommitReply::SnapshotFailed(error)),
        }
        Ok(())
    }

    fn truncate(&mut self) -> Result<(), Error> {
        let term = self.term;
        match self.ask_until_known(|log| log.truncate(term, TRUNCATE_AT_ONCE)) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if ends_term(&error) => return Err(error),
            Err(error) => tracing::warn!(%error, "the log was not truncated; the next snapshot tries again"),
        }
        self.truncating = false;
        self.answer(CommitReply::Truncated);
        Ok(())
    }

    fn handle(&mut self, request: CommitRequest<H>) {
        match request {
            CommitRequest::Append { events, mut blobs, outs } => {
                // A blob that comes back before it was dropped stays.
                if !self.to_drop.is_empty() {
                    self.to_drop.retain(|digest| blobs.iter().all(|blob| blob.digest != *digest));
                }
                self.group.push(events.len(), |out| H::Machine::encode_events(&events, out), &mut blobs);
                self.waiting.add(outs);
            }
            CommitRequest::DropBlob(digest) => self.to_drop.push(digest),
            CommitRequest::ListBlobs { after } => self.to_list = Some(after),
            CommitRequest::ConfirmSeat { question } => self.questions.push(question),
            step @ (CommitRequest::Chunk { .. } | CommitRequest::FinishSnapshot { .. }) => {
                self.snapshot_step = Some(step)
            }
        }
    }

    /// Commits what waits; false if nothing did.
    fn commit(&mut self) -> Result<bool, Error> {
        let Some(batch) = self.group.begin() else { return Ok(false) };
        let (begun, mut written_at) = (Instant::now(), clock::mono());
        self.host.commit_begun();
        let count = batch.row.count as usize;
        let pulse = self.host.log_pulse();
        pulse.begin();
        let mut doubt = Doubt::none();
        let mut answer = self.log.append(batch.key, batch.row, &batch.blobs);
        // At it until it is known what became of it: whoever waits, waits for all tries together.
        while let Err(error) = answer {
            doubt.wait(error, &*self.host, &self.seat).inspect_err(|_| pulse.rest())?;
            let batch = self.group.again().expect("a batch is under way until it is done");
            written_at = clock::mono();
            answer = self.log.append(batch.key, batch.row, &batch.blobs);
        }
        pulse.rest();
        doubt.end(&*self.host);
        let took = begun.elapsed();
        self.host.committed(count, took);
        let seq = self.group.done();
        self.seat.confirmed_as_of(written_at);
        self.waiting.made_durable(seq);
        self.release()?;
        self.progress.put(seq, took);
        if self.progress.is_waited_for.load(Ordering::SeqCst) {
            self.answer(CommitReply::Progress);
        }
        Ok(true)
    }

    fn ask_until_known<T>(&mut self, ask: impl Fn(&mut dyn Log) -> Result<T, Error>) -> Result<T, Error> {
        let mut doubt = Doubt::none();
        self.host.log_pulse().begin();
        let known = loop {
            match ask(&mut *self.log) {
                Err(error) if error.changed() == LogChange::Maybe => {
                    if let Err(error) = doubt.wait(error, &*self.host, &self.seat) {
                        break Err(error);
                    }
                }
                known => {
                    doubt.end(&*self.host);
                    break known;
                }
            }
        };
        self.host.log_pulse().rest();
        known
    }

    fn answer(&self, what: CommitReply) {
        self.host.answer(CommitAnswer { term: self.term, what });
    }
}

/// Whether the failure of a step that can be left out, or put off, leaves nothing to go on with.
fn ends_term(error: &Error) -> bool {
    matches!(error, Error::StaleTerm { .. } | Error::Unknown { .. })
}

/// The time for which the log has not known what became of something. Meanwhile all who look are told why nothing is
/// stored; after `seat_ttl` nobody is kept waiting any more.
struct Doubt {
    since: Option<Instant>,
}

impl Doubt {
    const fn none() -> Self {
        Self { since: None }
    }

    /// Waits until the log may be asked again; gives the error if that has no sense, or has had none for too long.
    /// A node that does not know what became of a write does not know either who leads.
    fn wait(&mut self, error: Error, host: &impl Host, seat: &SeatDeadline) -> Result<(), Error> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if error.changed() == LogChange::No || since.elapsed() >= host.seat_ttl() {
            return Err(error);
        }
        seat.unconfirm();
        tracing::warn!(%error, "asking the log again");
        host.set_trouble(error.cause());
        thread::sleep(host.ask_again());
        Ok(())
    }

    fn end(&self, host: &impl Host) {
        if self.since.is_some() {
            host.set_trouble(String::new());
        }
    }
}

/// Two threads that change places: one is the machine, and when it has decided something it becomes the committer,
/// unless there is one, while the other goes on as the machine. So a lone decision is committed by the very thread that
/// made it, without waking another, and under load deciding and committing go on side by side.
pub(super) fn commit_if_free<H: Host>(committer: &Mutex<Committer<H>>, pending: &AtomicUsize) {
    // Whoever leaves looks again: what was told meanwhile, while nobody else could take the place, must not lie.
    while pending.load(Ordering::SeqCst) > 0 {
        let Ok(mut committer) = committer.try_lock() else { return };
        committer.work();
    }
}

impl<H: Host> Committer<H> {
    /// Told, and not yet taken up.
    pub(super) fn pending(&self) -> Arc<AtomicUsize> {
        self.pending.clone()
    }
}
