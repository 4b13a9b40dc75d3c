//! The gate's engine: core's gate on the same run loop as a manager.
//!
//! ```text
//!   clients ──calls──▶ the machine ──events, and what waits for them──▶ the log of the gates
//!                       ▲      │
//!   datacenters ─frames─┘      └── orders, once durable ──▶ streams ──▶ datacenters
//! ```
//!
//! **Durable before visible**, as for a manager: an order, an answer and a read wait until the newest event that they could
//! have seen is durable. **One leads**: a gate that is alone with its log always does; of those that share a database, the
//! one that holds the seat of the log [`GATES_LOG`]. The others keep the streams that datacenters open to them, unheard,
//! until they lead themselves (`service`).
//!
//! `machine` is the thread that owns the machine, `term` says when it follows and when it leads, `streams` is a
//! datacenter's connection as the engine sees it, `service` is the same as gRPC sees it, [`api`] is what clients see.
//! [`peers`] is how a datacenter's leader proves who it is.

pub mod api;
mod gate_machine;
mod host;
mod machine;
mod notices;
pub mod peers;
mod reads;
pub(crate) mod service;
mod stats;
mod streams;
mod term;

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use onward_core::effect::AcceptedJob;
use onward_core::gate::Gate;
use onward_core::gate::effect::Answer;
use onward_core::gate::input::Call;
use onward_core::gate::message::{Frame, ToDatacenter};
use onward_core::health::overload::{OverloadLevel, OverloadReason};
use onward_core::ids::{JobId, Name, RequestId, StreamId};
use onward_core::input::Submission;
use onward_core::settings::Rules;
use onward_health::LoopWatch;
use onward_log::{BlobReader, Error, Log};
use tokio::sync::{Semaphore, oneshot, watch as watch_channel};

use crate::backlog::BacklogItem;
use crate::clock;
use crate::cluster::handover::{Handover, HandoverUnderWay};
use crate::cluster::leader::{LeaderAddress, LeaderView};
use crate::cluster::{HandoverError, Heirs, Leadership, handover};
use crate::engine::content::Contents;
use crate::engine::ids::Ids;
use crate::engine::vitals::Vitals;
use crate::engine::watch::Bell;
use crate::engine::{EngineRefusal, Pacing, load};
use crate::outbox::BacklogSender;
use crate::run_loop::{CommitAnswer, RunQueue};

pub use reads::GateJobWatch;
pub use stats::GateStats;
pub use streams::{DatacenterStream, Orders, StreamGone};

/// The log that gates share in a database. No datacenter can have this name.
pub const GATES_LOG: &str = ":gates";

type Deliver = Box<dyn FnOnce() + Send>;
type ReadWork = Box<dyn FnOnce(&Gate) -> Deliver + Send>;

/// Everything that a gate's engine is started with.
pub struct GateStart {
    pub rules: Rules,
    /// The number of the gate in epochs.
    pub id: u64,
    /// Gives a handle on the log; asked again for every term.
    pub log: Box<dyn FnMut() -> Result<Box<dyn Log>, Error> + Send>,
    /// Says when to try for the seat.
    pub leadership: Box<dyn Leadership>,
    /// Finds a gate to hand the seat over to; none where gates share no log.
    pub heirs: Option<Heirs>,
    /// The number of events after which a snapshot is due.
    pub snapshot_every: u64,
    pub pacing: Pacing,
    /// A loop that is at one thing for this long hangs.
    pub hang_after: Duration,
}

impl core::fmt::Debug for GateStart {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GateStart").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A command to the machine's thread.
enum Command {
    Call {
        request: RequestId,
        call: Call,
        contents: Contents,
        reply: oneshot::Sender<Result<Answer, EngineRefusal>>,
    },
    Read(ReadWork),
    Open {
        stream: StreamId,
        datacenter: Name,
        outbox: BacklogSender<ToDatacenter>,
    },
    Frame {
        stream: StreamId,
        frame: Box<Frame>,
        contents: Contents,
        backlogged: BacklogItem,
    },
    Close {
        stream: StreamId,
    },
    Watch {
        job: JobId,
        bell: Bell,
    },
    Unwatch {
        job: JobId,
        bell: u64,
    },
    FromLog(CommitAnswer),
    /// Everything that was queued before this has been fed in.
    Drained,
    HandOver(Handover),
    Stop,
}

/// A handle on a running gate. Cheap to clone.
#[derive(Clone)]
pub struct GateEngine(Arc<GateState>);

struct GateState {
    run_queue: RunQueue<Command>,
    in_hand: AtomicUsize,
    next: AtomicU64,
    ids: Mutex<Ids>,
    rules: Rules,
    pacing: Pacing,
    stats: GateStats,
    load: load::Gauge,
    vitals: Vitals,
    /// The reason why no machine serves, or why the one that does cannot store anything; else empty.
    trouble: Mutex<String>,
    leader_view: watch_channel::Sender<LeaderView>,
    /// Streams that wait until this gate leads, by the datacenter that opened them.
    waiting: Mutex<HashMap<Name, usize>>,
    thread: Mutex<Option<RunningThread>>,
    /// Set once nobody waits for the threads any more: what they still do is told to nobody.
    is_given_up: AtomicBool,
    /// The reader of the log of this term.
    blobs: Mutex<Option<BlobReader>>,
    stopping: AtomicBool,
    disk_reads: Arc<Semaphore>,
    heirs: Option<Heirs>,
    handover: HandoverUnderWay,
}

/// The machine's thread, and what tells that it has ended: nothing is ever sent.
struct RunningThread {
    thread: JoinHandle<()>,
    ended: Receiver<()>,
}

/// The number of calls that may wait for their answers at a time. Each holds memory.
const MAX_IN_HAND: usize = 65_536;
/// The wait on top of the time for which anybody waits for the log.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// The number of reads at the disk at a time.
const MAX_DISK_READS: usize = 64;

impl core::fmt::Debug for GateEngine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GateEngine").finish_non_exhaustive()
    }
}

impl GateEngine {
    /// Starts the threads and returns once the log was replayed, and the seat was taken unless another holds it; or with what
    /// stood in the way.
    pub fn start(start: GateStart) -> Result<Self, Error> {
        let shared = Arc::new(GateState::new(&start));
        machine::spawn(start, &shared)?;
        Ok(Self(shared))
    }

    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    pub fn stats(&self) -> &GateStats {
        &self.0.stats
    }

    /// The load of this gate. One atomic read.
    pub fn load(&self) -> OverloadLevel {
        self.0.load.level()
    }

    pub fn load_reason(&self) -> OverloadReason {
        self.0.load.reason()
    }

    /// The reason why nothing can be stored, if that is so.
    pub fn trouble(&self) -> Option<String> {
        Some(self.0.trouble()).filter(|trouble| !trouble.is_empty())
    }

    /// The channel on which it is published who leads.
    pub fn leader_view(&self) -> &watch_channel::Sender<LeaderView> {
        &self.0.leader_view
    }

    pub fn loops(&self) -> &LoopWatch {
        &self.0.vitals.watch
    }

    /// A new id; ids of one millisecond count up, so that jobs sort in the order in which they came.
    pub fn new_job_id(&self) -> JobId {
        let wall = clock::now().wall;
        self.0.ids.lock().expect("no thread panics while it holds this").next(wall)
    }

    /// All or nothing. A refusal says which submission is at fault, where one is.
    pub async fn submit(&self, submissions: Vec<Submission>) -> Result<Vec<AcceptedJob>, EngineRefusal> {
        match self.call(Call::Submit(submissions)).await? {
            Answer::Submitted(accepted) => Ok(accepted),
            other => mismatch("submit", &other),
        }
    }

    pub async fn cancel(&self, job: JobId) -> Result<(), EngineRefusal> {
        match self.call(Call::Cancel { job }).await? {
            Answer::Done => Ok(()),
            other => mismatch("cancel", &other),
        }
    }

    /// Gives the time that was added in all.
    pub async fn extend(
        &self,
        job: JobId,
        by: Duration,
        reason: Box<str>,
        request: Name,
    ) -> Result<Duration, EngineRefusal> {
        match self.call(Call::Extend { job, by, reason, request }).await? {
            Answer::Extended { total } => Ok(total),
            other => mismatch("extend", &other),
        }
    }

    /// Hands the seat over to the best of the other gates, and gives its name. What was decided is durable and answered
    /// before, and nobody is served from then on but by the next leader.
    pub async fn hand_over(&self) -> Result<String, HandoverError> {
        let view = self.0.leader_view.borrow().clone();
        handover::hand_over(view, self.0.heirs.clone(), None, |handover| self.0.send(Command::HandOver(handover))).await
    }

    /// Asks the machine and waits for its answer. Payloads come with their bytes; the large ones go to the store from here.
    async fn call(&self, mut call: Call) -> Result<Answer, EngineRefusal> {
        let mut contents = Contents::default();
        if let Call::Submit(submissions) = &mut call {
            let workflows = submissions.iter_mut().flat_map(|submission| &mut submission.draft.workflows);
            workflows.for_each(|workflow| contents.replace(&mut workflow.payload));
        }
        let _permit = self.0.admit_call()?;
        let request = RequestId(self.0.next.fetch_add(1, Ordering::Relaxed));
        let (reply, mut answer) = oneshot::channel();
        self.0.send(Command::Call { request, call, contents, reply });
        self.0.wait_for(&mut answer).await?
    }

    /// Takes no more asks, makes everything durable that was decided, and ends the threads.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
        self.0.send(Command::Stop);
        let running = self.0.thread.lock().expect("no thread panics while it holds this").take();
        let Some(RunningThread { thread, ended }) = running else { return };
        let within = self.0.rules.seat_ttl + STOP_GRACE;
        if ended.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
            tracing::error!(?within, "the store has not answered in time; the gate stops without it");
            self.0.is_given_up.store(true, Ordering::Relaxed);
            self.0.run_queue.close();
            return self.0.close();
        }
        if thread.join().is_err() {
            tracing::error!("the machine's thread panicked");
        }
    }
}

/// The machine answers every call in its own way, or refuses it.
#[track_caller]
fn mismatch(call: &str, answer: &Answer) -> ! {
    unreachable!("{call} is answered with {answer:?}")
}

/// A place among the calls in hand.
struct InFlightPermit(Arc<GateState>);

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.0.in_hand.fetch_sub(1, Ordering::Relaxed);
    }
}

const NOT_KNOWN: &str = "whether this was carried out is not known, and repeating it with the same idempotency key or \
                         request id does nothing twice";

impl GateState {
    fn new(start: &GateStart) -> Self {
        Self {
            run_queue: RunQueue::on(std::thread::available_parallelism().map_or(1, NonZero::get)),
            in_hand: AtomicUsize::new(0),
            next: AtomicU64::new(1),
            ids: Mutex::new(Ids::new()),
            rules: start.rules.clone(),
            pacing: start.pacing,
            stats: GateStats::default(),
            load: load::Gauge::default(),
            vitals: Vitals::of_gate(start.hang_after, start.rules.seat_ttl),
            trouble: Mutex::new(String::new()),
            leader_view: LeaderView::channel(),
            waiting: Mutex::new(HashMap::new()),
            thread: Mutex::new(None),
            is_given_up: AtomicBool::new(false),
            blobs: Mutex::new(None),
            stopping: AtomicBool::new(false),
            disk_reads: Arc::new(Semaphore::new(MAX_DISK_READS)),
            heirs: start.heirs.clone(),
            handover: HandoverUnderWay::default(),
        }
    }

    /// Asks of a machine that is gone are dropped: whoever waits for an answer finds that out by itself.
    fn send(&self, command: Command) {
        self.run_queue.put(command);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn trouble(&self) -> String {
        self.trouble.lock().expect("no thread panics while it holds this").clone()
    }

    /// Lets go of the files, although handles on this engine may be left.
    fn close(&self) {
        self.blobs.lock().expect("no thread panics while it holds this").take();
    }

    fn publish(&self, view: LeaderView) {
        view.publish(&self.leader_view);
    }

    /// Publishes that nobody here knows who leads, if it is this gate that was last known to.
    fn publish_cut_off(&self) {
        LeaderView::publish_cut_off(&self.leader_view);
    }

    /// Whether calls are better made elsewhere.
    fn is_other_leading(&self) -> bool {
        matches!(&*self.leader_view.borrow(), LeaderView::Following { leader: Some(_), .. })
    }

    fn admit_call(self: &Arc<Self>) -> Result<InFlightPermit, EngineRefusal> {
        if self.in_hand.fetch_add(1, Ordering::Relaxed) >= MAX_IN_HAND {
            self.in_hand.fetch_sub(1, Ordering::Relaxed);
            return Err(EngineRefusal::TooManyCalls(MAX_IN_HAND));
        }
        Ok(InFlightPermit(self.clone()))
    }

    /// The answer that is sent on `answer`. Nobody waits longer than `seat_ttl` for a log that does not return: what
    /// was asked is then given up, and may be carried out all the same.
    async fn wait_for<T>(&self, answer: &mut oneshot::Receiver<T>) -> Result<T, EngineRefusal> {
        // The machine refuses in time what it has not begun, and knows that nothing was done.
        const MACHINE_FIRST: Duration = Duration::from_millis(200);
        let patience = self.rules.seat_ttl + MACHINE_FIRST;
        let mut left = patience;
        while !left.is_zero() {
            match tokio::time::timeout(left, &mut *answer).await {
                Ok(answer) => return answer.map_err(|_| self.not_known()),
                Err(_) => left = patience.saturating_sub(self.vitals.stalled_for()),
            }
        }
        let span = self.rules.seat_ttl;
        Err(EngineRefusal::Unavailable(format!("its storage has not answered for {span:?}; {NOT_KNOWN}")))
    }

    /// The refusal of a caller that waited for a machine which was dropped.
    fn not_known(&self) -> EngineRefusal {
        let trouble = self.trouble();
        let why = if !trouble.is_empty() {
            trouble
        } else if !self.is_stopping() && self.is_other_leading() {
            "it leads no longer".into()
        } else {
            "it is stopping, or it has just begun a new term".into()
        };
        EngineRefusal::Unavailable(format!("{why}; {NOT_KNOWN}"))
    }

    /// The refusal of a call to a gate that follows. Nothing was done.
    fn not_begun(&self) -> EngineRefusal {
        let view = self.leader_view.borrow();
        let LeaderView::Following { leader: Some(LeaderAddress { name, address }), .. } = &*view else {
            return EngineRefusal::NotBegun("no gate leads at the moment; try again soon".into());
        };
        EngineRefusal::NotBegun(format!("it follows; `{name}` leads, at {address}"))
    }
}
