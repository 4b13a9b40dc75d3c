//! Output of attempts: the last 64 KiB of each, beside log and archive: in files of their own, or in a table.
//!
//! ```text
//!   sessions, API ──▶ the machine: is it theirs? ──offer──▶ waiting (bounded, by attempt) ──▶ output thread
//!                                                                    output/<job>.<workflow>.<fence> ◀──┘
//!   API ──read──▶ (the same line, behind what was offered before) ◀── what is kept ──┘
//! ```
//!
//! Output is worth keeping and never worth waiting for: nobody who offers some is held up, what does not fit is dropped
//! and counted, and a disk that fails costs nothing but output. Output whose storage is away waits here for its return,
//! as far as there is room, and who wants to read it meanwhile is asked to come again. It is fenced like all else: only who holds an attempt, or
//! has just ended it, adds to its output, which the machine says. Where nodes share a storage, output keeps the term under which the machine
//! said so: what waited here while another node led is not put behind what came there. So nobody changes what is kept of a job that has ended,
//! and nobody fills the folder with what was never handed out.
//!
//! `waiting` is what was not written yet, `file` is one attempt's file, `index` says which files must go, and
//! `store` is the folder.

mod file;
mod index;
mod store;
mod waiting;

use core::time::Duration;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use onward_core::fence::Term;
use onward_core::ids::{Claim, SessionId};
use onward_core::job::draft::MAX_SPAN;
use onward_core::refusal::Refusal;
use onward_core::settings::{BadSetting, in_range, span_in_range};
use onward_proto::worker::Output;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::clock;
use crate::engine::{Counter, Engine, EngineRefusal};
pub use file::OutputTail;
pub(crate) use index::Index;
pub use store::OutputFolder;
pub use waiting::UnwrittenOutput;
use waiting::{OfferedOutput, Waiting};

/// The folder in the data folder.
pub const FOLDER: &str = "output";
/// Bytes that are kept of one attempt.
pub const KEEP_BYTES: usize = 64 << 10;
/// The size at which an output is cut back to [`KEEP_BYTES`]: rewriting is done once in a while, not with every line.
pub(crate) const CUT_BYTES: usize = 2 * KEEP_BYTES;
/// Offered and not written yet, of all attempts together.
const MAX_WAITING_BYTES: usize = 16 << 20;
/// Reads that may be in line at a time; the others wait outside.
const MAX_READS: usize = 64;
/// The interval at which old files are looked for while nothing is printed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// The pause after which output is offered again to a storage that was away.
const OFFER_AGAIN: Duration = Duration::from_millis(200);

/// The limits on output that is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputRules {
    /// Bytes on disk, in all; the attempts that printed longest ago go first.
    pub max_bytes: u64,
    /// Since the attempt printed last.
    pub retain: Duration,
}

impl Default for OutputRules {
    fn default() -> Self {
        Self { max_bytes: 1 << 30, retain: Duration::from_secs(7 * 24 * 3600) }
    }
}

impl OutputRules {
    pub fn check(&self) -> Vec<BadSetting> {
        let mut bad = Vec::new();
        in_range(&mut bad, "output.max_bytes", self.max_bytes, CUT_BYTES as u64..=u64::MAX);
        span_in_range(&mut bad, "output.retain", self.retain, Duration::from_millis(1)..=MAX_SPAN);
        bad
    }
}

/// Counted since the start, but for what is kept now.
#[derive(Debug, Default)]
pub struct OutputStats {
    pub written_bytes: Counter,
    /// Offered, and neither written nor pushed out by newer output of the same attempt.
    pub dropped_bytes: Counter,
    /// Output of attempts that are not, or no longer, held by whoever sent it.
    pub refused: Counter,
    /// Files that went because of a limit.
    pub removed: Counter,
    pub errors: Counter,
    pub kept_bytes: Counter,
    pub kept_files: Counter,
}

/// The reason why nothing could be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("the node stops")]
    Stopping,
    /// The output may be there, and can be read once its storage is reached again.
    #[error("its storage is not reached: {0}")]
    Away(io::Error),
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotConnected { Self::Away(error) } else { Self::Io(error) }
    }
}

/// The place where output is kept, by one thread. Each attempt has the end of what it printed, without a hole, and the
/// number of bytes before that.
pub trait OutputStore: Send {
    /// Finds what an earlier process has left.
    fn scan(&mut self, stats: &OutputStats) -> io::Result<()>;

    /// Adds to what an attempt has printed.
    fn write(&mut self, claim: &Claim, printed: &UnwrittenOutput, now_ms: u64) -> Result<(), OutputWriteError>;

    /// The same for output that was admitted under this term. A storage that nodes share refuses output of an attempt that
    /// has output of a later term there.
    fn write_under(
        &mut self,
        _term: Term,
        claim: &Claim,
        printed: &UnwrittenOutput,
        now_ms: u64,
    ) -> Result<(), OutputWriteError> {
        self.write(claim, printed, now_ms)
    }

    /// The end of what an attempt has printed; none if it has not, or if that was removed. Storage that is not reached now
    /// is [`io::ErrorKind::NotConnected`].
    fn read(&self, claim: &Claim) -> io::Result<Option<OutputTail>>;

    /// Removes what is too old, and the oldest of what is too much.
    fn sweep(&mut self, now_ms: u64, stats: &OutputStats) -> io::Result<()>;
}

/// Output that could not be written: the part that is lost, or the part to be written later.
#[derive(Debug)]
pub struct OutputWriteError {
    /// Bytes that are lost, those included that were skipped before them.
    pub lost: u64,
    /// The output to be offered again, where the storage is only away.
    pub later: Option<UnwrittenOutput>,
    /// The attempt has printed under a later term since: what is lost leaves no hole before what comes next.
    pub is_superseded: bool,
    pub error: io::Error,
}

/// A handle on the thread that keeps output. Cheap to clone.
#[derive(Clone)]
pub struct Outputs(Arc<OutputsState>);

struct OutputsState {
    /// Bytes that the machine is asked about.
    asked_bytes: AtomicUsize,
    line: Mutex<Line>,
    bell: Condvar,
    reads: Arc<Semaphore>,
    stats: OutputStats,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The work of the thread.
#[derive(Default)]
struct Line {
    waiting: Waiting,
    reads: Vec<OutputRead>,
    stopping: bool,
}

struct OutputRead {
    claim: Claim,
    reply: oneshot::Sender<io::Result<Option<OutputTail>>>,
    /// Held until the read is done, also if nobody waits for it any more: so many wait for the disk, and not more.
    _place: OwnedSemaphorePermit,
}

impl core::fmt::Debug for Outputs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Outputs").field("stats", &self.0.stats).finish_non_exhaustive()
    }
}

impl Outputs {
    /// Starts the thread, which looks through what there is. Fails only if there can be no thread.
    pub fn start(store: Box<dyn OutputStore>) -> io::Result<Self> {
        Self::start_among_others(store, || true)
    }

    /// The same where several nodes share what there is: old output is removed only by the one of which `leads` says so.
    pub fn start_among_others(
        mut store: Box<dyn OutputStore>,
        leads: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(OutputsState {
            asked_bytes: AtomicUsize::new(0),
            line: Mutex::default(),
            bell: Condvar::new(),
            reads: Arc::new(Semaphore::new(MAX_READS)),
            stats: OutputStats::default(),
            thread: Mutex::new(None),
        });
        let run = {
            let shared = shared.clone();
            move || shared.run(&mut *store, &leads)
        };
        let thread = thread::Builder::new().name("onward-output".into()).spawn(run)?;
        *shared.thread.lock().expect("no thread panics while it holds this") = Some(thread);
        Ok(Self(shared))
    }

    /// Takes what attempts have printed on a session, as far as it is theirs. Never waits.
    pub fn offer_from_session(&self, engine: &Engine, session: SessionId, outputs: Vec<Output>) {
        if !outputs.is_empty() {
            let asked = PendingOutputs::new(self.clone(), outputs);
            let claims = asked.outputs.iter().map(|output| output.claim).collect();
            engine.check_outputs(claims, session, move |term, answers| asked.answered(term, &answers));
        }
    }

    /// Takes what an attempt has printed, if it is the one that holds its workflow. Who is refused, or gives up waiting,
    /// may send it again: nothing of it was kept.
    pub async fn offer_with_receipt(&self, engine: &Engine, output: Output) -> Result<(), EngineRefusal> {
        let (claim, asked) = (output.claim, PendingOutputs::new(self.clone(), vec![output]));
        let (term, answer) = engine.check_output(claim).await?;
        asked.answered(term, core::slice::from_ref(&answer));
        match answer {
            Ok(()) => Ok(()),
            Err(Refusal::NotInMemory { report }) => Err(EngineRefusal::ByMachine(engine.refusal_of(*report).await?)),
            Err(refusal) => Err(EngineRefusal::ByMachine(refusal)),
        }
    }

    /// Takes what attempts have printed, or drops it. Never waits.
    fn offer(&self, term: Term, outputs: Vec<Output>) {
        if outputs.is_empty() {
            return;
        }
        let mut line = self.0.line();
        for output in outputs {
            let bytes = output.data.len() as u64;
            if line.stopping || !line.waiting.add(term, output.claim, output.skipped, &output.data) {
                self.0.stats.dropped_bytes.add(bytes);
            }
        }
        drop(line);
        self.0.bell.notify_one();
    }

    /// The kept output of an attempt, everything that was offered before included.
    pub async fn read(&self, claim: Claim) -> Result<Option<OutputTail>, Unreadable> {
        let place = self.0.reads.clone().acquire_owned().await.map_err(|_| Unreadable::Stopping)?;
        let (reply, answer) = oneshot::channel();
        {
            let mut line = self.0.line();
            if line.stopping {
                return Err(Unreadable::Stopping);
            }
            line.reads.push(OutputRead { claim, reply, _place: place });
        }
        self.0.bell.notify_one();
        Ok(answer.await.map_err(|_| Unreadable::Stopping)??)
    }

    pub fn stats(&self) -> &OutputStats {
        &self.0.stats
    }

    /// Writes what waits, and ends the thread. What is offered later is dropped.
    pub fn stop(&self) {
        self.0.line().stopping = true;
        self.0.bell.notify_one();
        let thread = self.0.thread.lock().expect("no thread panics while it holds this").take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that keeps output panicked");
        }
    }
}

/// A question to the machine. Dropped without an answer, it is lost.
struct PendingOutputs {
    of: Outputs,
    outputs: Vec<Output>,
    bytes: usize,
}

impl PendingOutputs {
    fn new(of: Outputs, mut outputs: Vec<Output>) -> Self {
        let bytes = |outputs: &[Output]| outputs.iter().map(|output| output.data.len()).sum::<usize>();
        let asked = bytes(&outputs);
        if of.0.asked_bytes.fetch_add(asked, Ordering::Relaxed) + asked > MAX_WAITING_BYTES {
            // That there was something is still said, so that the next has no hole before it.
            of.0.asked_bytes.fetch_sub(asked, Ordering::Relaxed);
            of.0.stats.dropped_bytes.add(asked as u64);
            for output in &mut outputs {
                output.skipped = output.skipped.saturating_add(output.data.len() as u64);
                output.data = bytes::Bytes::new();
            }
        }
        let bytes = bytes(&outputs);
        Self { of, outputs, bytes }
    }

    fn answered(mut self, term: Term, answers: &[Result<(), Refusal>]) {
        let outputs = core::mem::take(&mut self.outputs);
        let (mut theirs, mut refused) = (Vec::with_capacity(outputs.len()), 0);
        for (output, answer) in outputs.into_iter().zip(answers) {
            match answer {
                Ok(()) => theirs.push(output),
                Err(_) => refused += 1,
            }
        }
        self.of.0.stats.refused.add(refused);
        self.of.offer(term, theirs);
    }
}

impl Drop for PendingOutputs {
    fn drop(&mut self) {
        self.of.0.asked_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        let lost: usize = self.outputs.iter().map(|output| output.data.len()).sum();
        self.of.0.stats.dropped_bytes.add(lost as u64);
    }
}

impl OutputsState {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().expect("no thread panics while it holds this")
    }

    fn run(&self, store: &mut dyn OutputStore, leads: &dyn Fn() -> bool) {
        let mut trouble = Trouble { stats: &self.stats, failed_at: None };
        let mut is_scanned = false;
        let mut away: Option<(Instant, String)> = None;
        loop {
            let offer_at = away.as_ref().map(|(failed_at, _)| *failed_at + OFFER_AGAIN);
            let may_write = || offer_at.is_none_or(|at| at <= Instant::now());
            let nothing =
                |line: &mut Line| !line.stopping && line.reads.is_empty() && (line.waiting.is_empty() || !may_write());
            let span = offer_at.map_or(SWEEP_EVERY, |at| at.saturating_duration_since(Instant::now()));
            let (mut line, _) =
                self.bell.wait_timeout_while(self.line(), span, nothing).expect("no thread panics while it holds this");
            let writes = line.stopping || may_write();
            let printed = if writes { line.waiting.take() } else { HashMap::new() };
            let (reads, stopping) = (core::mem::take(&mut line.reads), line.stopping);
            drop(line);
            let now_ms = clock::now().wall.as_ms();
            if writes {
                away = self.write(store, printed, now_ms, &mut trouble).map(|cause| (Instant::now(), cause));
            }
            if leads() {
                // What others have written meanwhile is known after a look at all of it.
                if !is_scanned {
                    let scanned = store.scan(&self.stats);
                    is_scanned = scanned.is_ok();
                    trouble.note_result(scanned);
                }
                trouble.note_result(store.sweep(now_ms, &self.stats));
            } else {
                is_scanned = false;
            }
            for OutputRead { claim, reply, _place } in reads {
                let answer = match &away {
                    Some((_, cause)) if self.line().waiting.contains(&claim) => {
                        Err(io::Error::new(io::ErrorKind::NotConnected, cause.clone()))
                    }
                    _ => store.read(&claim),
                };
                // Whoever asked may be gone.
                let _ = reply.send(answer);
            }
            if stopping {
                self.stats.dropped_bytes.add(self.line().waiting.bytes_of_output());
                return;
            }
        }
    }

    /// Writes what was taken. Where the storage is away, the rest goes back to be offered again, and the cause is
    /// returned.
    fn write(
        &self,
        store: &mut dyn OutputStore,
        offered: HashMap<Claim, OfferedOutput>,
        now_ms: u64,
        trouble: &mut Trouble<'_>,
    ) -> Option<String> {
        let mut away = None;
        for (claim, OfferedOutput { term, printed }) in offered {
            if away.is_some() {
                self.put_back(claim, OfferedOutput { term, printed });
                continue;
            }
            let offered = printed.data.len() as u64;
            let written = store.write_under(term, &claim, &printed, now_ms);
            let (mut lost, mut waits, mut is_superseded) = (0, 0, false);
            let done = written.map_err(|unwritten| {
                (lost, is_superseded) = (unwritten.lost, unwritten.is_superseded);
                if let Some(later) = unwritten.later {
                    waits = later.data.len() as u64;
                    away = Some(unwritten.error.to_string());
                    self.put_back(claim, OfferedOutput { term, printed: later });
                }
                unwritten.error
            });
            self.stats.written_bytes.add(offered.saturating_sub(lost).saturating_sub(waits));
            if lost > 0 {
                self.stats.dropped_bytes.add(lost.min(offered));
                if !is_superseded {
                    self.line().waiting.lost_taken(claim, lost);
                }
            }
            if is_superseded {
                tracing::debug!(?claim, lost, "what an attempt printed before another node led is dropped");
                continue;
            }
            trouble.note_result(done);
        }
        away
    }

    fn put_back(&self, claim: Claim, offered: OfferedOutput) {
        let bytes = offered.printed.data.len() as u64;
        if !self.line().waiting.put_back(claim, offered) {
            self.stats.dropped_bytes.add(bytes);
        }
    }
}

/// Says once that output is being lost, and once that it no longer is. On a disk that is nearly full every other write
/// may fit: it is over only when none has failed for a while.
struct Trouble<'a> {
    stats: &'a OutputStats,
    failed_at: Option<Instant>,
}

/// The time without a failure after which output is kept again.
const KEPT_AGAIN_AFTER: Duration = Duration::from_secs(60);

impl Trouble<'_> {
    fn note_result(&mut self, done: io::Result<()>) {
        if let Err(error) = &done {
            self.stats.errors.add(1);
            if self.begins(Instant::now()) {
                tracing::warn!(%error, "what attempts print cannot be written, and is dropped as far as it cannot wait; all else goes on");
            }
        } else if self.is_over(Instant::now()) {
            tracing::info!("what attempts print is kept again");
        }
    }

    /// A write has failed: is it the first?
    fn begins(&mut self, now: Instant) -> bool {
        self.failed_at.replace(now).is_none()
    }

    /// A write has not failed: is that the end of it?
    fn is_over(&mut self, now: Instant) -> bool {
        self.failed_at.take_if(|failed_at| now.duration_since(*failed_at) >= KEPT_AGAIN_AFTER).is_some()
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod tests;
