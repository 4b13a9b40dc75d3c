//! The run loop: inputs → step → commit → effects.
//!
//! ```text
//!   API, sessions ──asks──▶ the machine ──events, and what waits for them──▶ the committer
//!        ▲                   │      ▲                                        │  │ one commit for all that waits
//!        │                   │      └─────────────── durable ────────────────┘  │
//!        └─ answers, once durable ──────────────────────────────────────────────┘
//!                            └── ended jobs ──▶ archive thread ── archived ──▶ (back to the machine)
//! ```
//!
//! The machine and the committer are two places, and two threads change between them (`run_loop/`): whoever has
//! decided something commits it, unless another does so already, and then that one takes it along. So a lone decision
//! wakes nobody, and while a commit is under way the machine goes on deciding.
//!
//! **Durable before visible.** Whatever leaves (an answer, a refusal, a read, an assignment, a notification) waits until
//! the newest event that it could have seen is durable. Reads are closures that run on the machine's thread and whose
//! result is held back in the same line as answers.
//!
//! **Failures.** If an append definitely failed, the machine is dropped, everyone who waits is told `Unavailable`, and
//! a new machine is built from the log under a new term, once a second at most. In doubt, the committer asks again until
//! there is an answer, for `seat_ttl`; then that is a failure too, and the next term reads what became of it. Where the
//! log does not return at all, whoever waits is told `Unavailable` after `seat_ttl`, and gives up: what becomes of it is
//! not known. So is whoever reads content or the archive (`disk_reads.rs`). A backup may take long, and is given up when
//! it does not go on (`backups.rs`).

mod archive_feed;
mod archived;
mod archivist;
mod backups;
mod calls;
pub(crate) mod content;
mod decision_log;
mod delivery;
mod disk_reads;
mod following;
mod gate_stream;
mod held_commands;
mod host;
pub(crate) mod ids;
pub(crate) mod load;
mod machine;
mod manager_machine;
mod memory;
mod notices;
mod outgoing;
mod pacing;
mod pending;
mod questions;
mod session;
mod spans;
mod start;
mod stats;
mod term;
mod terms;
mod timetable;
pub(crate) mod vitals;
pub(crate) mod watch;

use std::num::NonZero;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use onward_core::effect::Answer;
use onward_core::fence::Term;
use onward_core::gate::message::ToDatacenter;
use onward_core::health::overload::{OverloadLevel, OverloadReason};
use onward_core::ids::{Claim, JobId, Name, RequestId, SessionId, StreamId};
use onward_core::input::{Call, Input};
use onward_core::manager::Manager;
use onward_core::message::FromWorker;
use onward_core::refusal::{Refusal, RefusalCounts};
use onward_core::settings::Rules;
use onward_core::state::JobImage;
use onward_core::time::Wall;
use onward_health::LoopWatch;
use onward_log::{Archive, BlobReader, codec};
use tokio::sync::{Semaphore, oneshot, watch as watch_channel};

use crate::backlog::BacklogItem;
use crate::catalog::Catalog;
use crate::clock;
use crate::cluster::Heirs;
use crate::cluster::handover::{Handover, HandoverUnderWay};
use crate::cluster::leader::{LeaderAddress, LeaderView};
use crate::run_loop::{CommitAnswer, RunQueue};
use crate::traces::Exporter;
use content::Contents;
use following::FollowingGauge;
use ids::Ids;
use pending::{InFlightPermit, Pending};
use questions::Question;
pub(crate) use terms::may_pass;

pub use archived::ResultFault;
pub use archivist::ArchiveRules;
pub use backups::{Backup, BackupError, BackupMade, BackupProgress, MAX_BACKUPS};
pub use content::{ContentField, DamagedContent};
pub use delivery::{DeliveryGuard, DeliveryLimits};
pub use disk_reads::MAX_DISK_READS;
pub use gate_stream::{ForGate, GateReports, GateStream, GateStreamGone};
pub use pacing::Pacing;
pub use session::{SessionGone, WorkerSession};
pub use start::EngineStart;
pub use stats::{Counter, Stats};
pub use watch::ManagerJobWatch;

/// The reason why an ask got no answer from the machine, or got a refusal.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum EngineRefusal {
    #[error("{0}")]
    ByMachine(Refusal),
    /// Another node leads, and this was surely not carried out here.
    #[error("this node does not lead: {0}")]
    NotBegun(String),
    /// No machine serves at the moment. Whether something was done is not known; repeating it is safe.
    #[error("this node does not serve at the moment: {0}")]
    Unavailable(String),
    /// The data are stored and cannot be read. Asking again gives the same.
    #[error("{0}")]
    Unreadable(onward_log::Error),
    /// The job is known, and what it refers to is not in the store. Asking again gives the same.
    #[error("the content of job {0} is missing from the store; restore a backup, or submit the job again")]
    Missing(JobId),
    #[error("this node has {0} calls in hand and takes no more; try again later")]
    TooManyCalls(usize),
}

impl EngineRefusal {
    /// Asking again gives the same, because of what is stored or is not.
    pub const fn is_for_good(&self) -> bool {
        matches!(self, Self::Unreadable(_) | Self::Missing(_))
    }
}

/// The view of everything that a read can see.
#[derive(Debug)]
pub struct ReadView<'a> {
    pub manager: &'a Manager,
    pub catalog: &'a Catalog,
}

type Deliver = Box<dyn FnOnce() + Send>;
type ReadWork = Box<dyn FnOnce(&ReadView<'_>) -> Deliver + Send>;

/// Learns which output is kept, one by one, and the term of the machine that says so.
type OutputsChecked = Box<dyn FnOnce(Term, Vec<Result<(), Refusal>>) + Send>;

/// A command to the machine's thread.
enum Command {
    Input(Input),
    /// A worker's session says something.
    WorkerMessage {
        session: SessionId,
        message: FromWorker,
        contents: Contents,
    },
    Call {
        request: RequestId,
        call: Call,
        contents: Contents,
        reply: oneshot::Sender<Result<Answer, EngineRefusal>>,
    },
    Ask(Question),
    Open {
        session: SessionId,
        outbox: session::SessionSender,
    },
    /// A stream to a gate is open.
    OpenGate {
        stream: StreamId,
        datacenter: Name,
        outbox: gate_stream::GateSender,
    },
    GateMessage {
        stream: StreamId,
        message: Box<ToDatacenter>,
        contents: Contents,
        backlogged: BacklogItem,
    },
    Watch {
        job: JobId,
        bell: watch::Bell,
    },
    Unwatch {
        job: JobId,
        bell: u64,
    },
    FromLog(CommitAnswer),
    /// Jobs that this term handed over and that are safely in the archive.
    Archived {
        term: Term,
        jobs: Vec<JobId>,
    },
    /// The archive takes the next jobs of this term.
    ArchiveReady {
        term: Term,
    },
    /// Everything that was queued before this has been fed in.
    QueueEmptied,
    HandOver(Handover),
    Stop,
}

/// A handle on a running engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<EngineState>);

struct EngineState {
    run_queue: RunQueue<Command>,
    in_hand: AtomicUsize,
    max_in_hand: usize,
    next: AtomicU64,
    ids: Mutex<Ids>,
    /// The last term of which it is known that new ids are above those of all archived jobs; 0 for none.
    above_archive_in: AtomicU64,
    rules: Rules,
    pacing: Pacing,
    stats: Stats,
    late_refusals: Mutex<RefusalCounts>,
    load: load::Gauge,
    vitals: vitals::Vitals,
    /// The reason why no machine serves, or why the one that does cannot store anything; else empty.
    trouble: Mutex<String>,
    leader_view: watch_channel::Sender<LeaderView>,
    thread: Mutex<Option<RunningThread>>,
    /// Set once nobody waits for the threads any more: what they still do is told to nobody.
    is_given_up: AtomicBool,
    /// The reader of the log of this term.
    blobs: Mutex<Option<BlobReader>>,
    /// None once the node has stopped: the file is free for the next one.
    archive: Mutex<Option<Arc<dyn Archive>>>,
    has_archive: bool,
    backup: Mutex<Option<Backup>>,
    /// Places, one for each backup that may be made at a time.
    backups: Arc<Semaphore>,
    stopping: AtomicBool,
    exporter: Option<Exporter>,
    delivery: DeliveryLimits,
    /// Places, one for each read that may be at the disk.
    disk_reads: Arc<Semaphore>,
    heirs: Option<Heirs>,
    following: FollowingGauge,
    /// Set while the machine ends its term for it.
    handover: HandoverUnderWay,
    /// A machine of this node has the seat.
    serves: AtomicBool,
}

impl core::fmt::Debug for Engine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// The number of calls that may wait for their answers at a time. Each holds memory.
const MAX_IN_HAND: usize = 65_536;

impl Engine {
    /// Starts the threads and returns once the log was replayed, and the seat was taken unless another holds it; or with what
    /// stood in the way.
    pub fn start(start: EngineStart) -> Result<Self, onward_log::Error> {
        let shared = Arc::new(EngineState::new(&start));
        terms::spawn(start, &shared)?;
        Ok(Self(shared))
    }

    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    pub fn stats(&self) -> &Stats {
        &self.0.stats
    }

    /// The load of this node. One atomic read.
    pub fn load(&self) -> OverloadLevel {
        self.0.load.level()
    }

    pub fn load_reason(&self) -> OverloadReason {
        self.0.load.reason()
    }

    /// The reason why nothing can be stored, if that is so.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.0.trouble();
        (!trouble.is_empty()).then_some(trouble)
    }

    /// Whether this node has the seat, as far as it knows. Deletions by the clock happen only then: a node
    /// whose clock is off may not lead, and must not delete what others keep.
    pub fn serves(&self) -> bool {
        self.0.serves.load(Ordering::Relaxed)
    }

    /// The channel on which it is published who leads.
    pub fn leader_view(&self) -> &watch_channel::Sender<LeaderView> {
        &self.0.leader_view
    }

    /// The loops of this engine, and whatever is watched beside them.
    pub fn loops(&self) -> &LoopWatch {
        &self.0.vitals.watch
    }

    /// The reason why only a restart would help, if that is so: a loop that everything needs has died, or hangs.
    pub fn needs_restart(&self) -> Option<String> {
        self.loops().health().report().why_not_live()
    }

    /// A new id; ids of one millisecond count up, so that jobs sort in the order in which they came.
    pub fn new_job_id(&self) -> JobId {
        let wall = clock::now().wall;
        self.0.ids.lock().expect("no thread panics while it holds this").next(wall)
    }

    /// Asks the machine and waits for its answer. Dropping the future says that the caller is gone. Payloads and
    /// results come with their bytes; the large ones go to the store from here.
    pub async fn call(&self, mut call: Call) -> Result<Answer, EngineRefusal> {
        let contents = Contents::of_call(&mut call);
        let answer = self.call_with(call, contents).await;
        self.answer_from_archive(answer).await
    }

    async fn call_with(&self, call: Call, contents: Contents) -> Result<Answer, EngineRefusal> {
        self.0.begin(call, contents)?.answer().await.map(|(answer, _)| answer)
    }

    /// Spans that were sent to a collector, and those that were dropped; none where there is no collector.
    pub fn exported_spans(&self) -> Option<(u64, u64)> {
        let counts = self.0.exporter.as_ref()?.counts();
        Some((counts.sent.get(), counts.dropped.get()))
    }

    /// A job that has left memory.
    pub async fn archived(&self, job: JobId) -> Result<Option<JobImage>, EngineRefusal> {
        let Some(archive) = self.0.archive_to_read()? else { return Ok(None) };
        let read = move || {
            let row = archive.get(job.as_u128())?;
            Ok(row.map(|row| codec::decode_image(&row)).transpose()?)
        };
        self.0.read_disk(read).await
    }

    /// Jobs that have left memory, the newest first, beginning before `before`; and whether there are more.
    pub async fn archived_before(
        &self,
        before: Option<JobId>,
        max: usize,
    ) -> Result<(Vec<JobImage>, bool), EngineRefusal> {
        const MAX_BYTES: usize = 8 << 20;
        let Some(archive) = self.0.archive_to_read()? else { return Ok((Vec::new(), false)) };
        let read = move || {
            let scanned = archive.scan(before.map(JobId::as_u128), max, MAX_BYTES)?;
            let images: Result<Vec<JobImage>, _> =
                scanned.rows.iter().map(|(_, row)| codec::decode_image(row)).collect();
            Ok((images?, scanned.has_more))
        };
        self.0.read_disk(read).await
    }

    /// The number of jobs that have left memory and are kept.
    pub async fn archived_count(&self) -> Result<u64, EngineRefusal> {
        let Some(archive) = self.0.archive_to_read()? else { return Ok(0) };
        self.0.read_disk(move || archive.count()).await
    }

    pub fn archive(&self) -> Option<Arc<dyn Archive>> {
        self.0.archive()
    }

    /// Asks the storage something that changes nothing, for no longer than anybody waits for it.
    pub async fn ask_storage<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> Result<T, onward_log::Error> + Send + 'static,
    ) -> Result<T, EngineRefusal> {
        self.0.read_disk(ask).await
    }

    /// Runs `work` on the machine's thread. It must be short: everything else waits. The result comes back once all that
    /// it could have seen is durable.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ReadView<'_>) -> T + Send + 'static,
    ) -> Result<T, EngineRefusal> {
        let _permit = self.0.admit_call()?;
        let (reply, mut answer) = oneshot::channel();
        let work = Box::new(move |view: &ReadView<'_>| {
            let value = work(view);
            // Nobody may be waiting any more, which is fine.
            Box::new(move || drop(reply.send(value))) as Deliver
        });
        self.0.send(Command::Ask(Question::Read(work)));
        self.0.wait_for(&mut answer).await
    }

    /// Now, as the instants of jobs are measured. After the wall clock was stepped it says something else.
    pub async fn log_time(&self) -> Result<Wall, EngineRefusal> {
        self.read(|view| view.manager.log_time_at(clock::mono())).await
    }

    /// Asks which of these attempts may print on this session. `told` learns it, one by one, before anybody hears of
    /// anything that is asked later; it is dropped if no machine serves.
    pub fn check_outputs(
        &self,
        claims: Vec<Claim>,
        session: SessionId,
        told: impl FnOnce(Term, Vec<Result<(), Refusal>>) + Send + 'static,
    ) {
        self.0.send(Command::Ask(Question::Printed { claims, session: Some(session), reply: Box::new(told) }));
    }

    /// Whether this attempt may print, and under which term, for a caller that waits for the answer and not longer than
    /// for that to a call.
    pub async fn check_output(&self, claim: Claim) -> Result<(Term, Result<(), Refusal>), EngineRefusal> {
        let _permit = self.0.admit_call()?;
        let (reply, mut answer) = oneshot::channel();
        // Nobody may be waiting any more, which is fine.
        let told = move |term, mut answers: Vec<_>| {
            drop(reply.send((term, answers.pop().expect("one answer to one claim"))));
        };
        self.0.send(Command::Ask(Question::Printed { claims: vec![claim], session: None, reply: Box::new(told) }));
        match self.0.wait_in_time(&mut answer).await {
            // Nothing is printed before there is an answer, so that nothing was.
            Some(Err(EngineRefusal::Unavailable(_))) => Err(self.0.not_begun()),
            Some(answer) => answer,
            None => Err(EngineRefusal::disk_hangs(self.0.rules.seat_ttl)),
        }
    }

    /// Rings when something about this job has changed, durably.
    pub fn watch(&self, job: JobId) -> ManagerJobWatch {
        ManagerJobWatch::new(self.0.clone(), job)
    }

    /// A worker has connected.
    pub fn open_session(&self) -> WorkerSession {
        WorkerSession::open(self.clone())
    }

    /// Takes no more asks, makes everything durable that was decided, and ends the threads. A store that does not return
    /// is not waited for for ever: what it still does was promised to nobody.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
        self.0.send(Command::Stop);
        let running = self.0.thread.lock().expect("no thread panics while it holds this").take();
        let Some(RunningThread { thread, ended }) = running else { return };
        let within = self.0.rules.seat_ttl + STOP_GRACE;
        if ended.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
            tracing::error!(?within, "the store has not answered in time; the node stops without it");
            return self.0.give_up();
        }
        if thread.join().is_err() {
            tracing::error!("the machine's thread panicked");
        }
    }
}

/// The machine's thread, and what tells that it has ended: nothing is ever sent.
struct RunningThread {
    thread: JoinHandle<()>,
    ended: Receiver<()>,
}

/// The wait on top of the time for which anybody waits for the log: for the archive, and for the last snapshot.
const STOP_GRACE: Duration = Duration::from_secs(5);

impl EngineState {
    fn new(start: &EngineStart) -> Self {
        Self {
            run_queue: RunQueue::on(std::thread::available_parallelism().map_or(1, NonZero::get)),
            in_hand: AtomicUsize::new(0),
            max_in_hand: MAX_IN_HAND,
            next: AtomicU64::new(1),
            ids: Mutex::new(Ids::new()),
            above_archive_in: AtomicU64::new(0),
            rules: start.rules.clone(),
            pacing: start.pacing,
            stats: Stats::default(),
            late_refusals: Mutex::default(),
            load: load::Gauge::default(),
            vitals: vitals::Vitals::new(start.hang_after, start.rules.seat_ttl, start.archive.is_some()),
            trouble: Mutex::new(String::new()),
            leader_view: LeaderView::channel(),
            thread: Mutex::new(None),
            is_given_up: AtomicBool::new(false),
            blobs: Mutex::new(None),
            archive: Mutex::new(start.archive.clone()),
            has_archive: start.archive.is_some(),
            backup: Mutex::new(start.backup.clone()),
            backups: backups::permits(),
            stopping: AtomicBool::new(false),
            exporter: start.exporter.clone(),
            delivery: start.delivery,
            disk_reads: disk_reads::permits(),
            heirs: start.heirs.clone(),
            following: FollowingGauge::default(),
            handover: HandoverUnderWay::default(),
            serves: AtomicBool::new(false),
        }
    }

    /// Asks of a machine that is gone are dropped: whoever waits for an answer finds that out by itself.
    fn send(&self, command: Command) {
        self.run_queue.put(command);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn archive(&self) -> Option<Arc<dyn Archive>> {
        self.archive.lock().expect("no thread panics while it holds this").clone()
    }

    /// None if there never was one: an engine that has stopped does not know what is in its archive.
    fn archive_to_read(&self) -> Result<Option<Arc<dyn Archive>>, EngineRefusal> {
        match self.archive() {
            None if self.has_archive => Err(self.unavailable()),
            archive => Ok(archive),
        }
    }

    /// Lets go of the files, although handles on this engine may be left.
    fn close(&self) {
        self.blobs.lock().expect("no thread panics while it holds this").take();
        self.archive.lock().expect("no thread panics while it holds this").take();
        self.backup.lock().expect("no thread panics while it holds this").take();
    }

    /// Gives up: callers that wait are told so, and nothing leaves any more.
    fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
        self.run_queue.close();
        self.close();
    }

    fn blob_reader(&self) -> Option<BlobReader> {
        self.blobs.lock().expect("no thread panics while it holds this").clone()
    }

    /// The refusal of a call to a node that follows. Nothing was done.
    fn not_begun(&self) -> EngineRefusal {
        let view = self.leader_view.borrow();
        let LeaderView::Following { leader: Some(LeaderAddress { name, address }), .. } = &*view else {
            return EngineRefusal::NotBegun("nobody leads at the moment; try again soon".into());
        };
        EngineRefusal::NotBegun(format!("`{name}` leads, at {address}"))
    }

    fn unavailable(&self) -> EngineRefusal {
        let trouble = self.trouble();
        if trouble.is_empty() && !self.is_stopping() && self.is_other_leading() {
            return self.not_begun();
        }
        EngineRefusal::Unavailable(if trouble.is_empty() {
            "it is stopping, or it has just begun a new term".into()
        } else {
            trouble
        })
    }

    fn trouble(&self) -> String {
        self.trouble.lock().expect("no thread panics while it holds this").clone()
    }

    fn admit_call(self: &Arc<Self>) -> Result<InFlightPermit, EngineRefusal> {
        if self.in_hand.fetch_add(1, Ordering::Relaxed) >= self.max_in_hand {
            self.in_hand.fetch_sub(1, Ordering::Relaxed);
            return Err(EngineRefusal::TooManyCalls(self.max_in_hand));
        }
        Ok(InFlightPermit(self.clone()))
    }

    fn begin(self: &Arc<Self>, call: Call, contents: Contents) -> Result<Pending, EngineRefusal> {
        let permit = self.admit_call()?;
        let request = RequestId(self.next.fetch_add(1, Ordering::Relaxed));
        let (reply, answer) = oneshot::channel();
        self.send(Command::Call { request, call, contents, reply });
        Ok(Pending { request, answer, permit, answered: false })
    }
}
