//! The run loop on a log in memory: what may be seen when, and what becomes of those who wait when the log fails.

#[path = "rig/waiting.rs"]
mod waiting;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_core::candidate::HolderId;
use onward_core::effect::Answer;
use onward_core::event::{Event, StampedEvent};
use onward_core::fence::Term;
use onward_core::gate::message::{FinalStatus, Frame, FromDatacenter, JobOutline, JobReport, Outcome, WorkflowCounts};
use onward_core::ids::{ClientId, Incarnation, JobId, Name, Seq, WorkerId};
use onward_core::input::{Call, Poll, Submission};
use onward_core::job::{Draft, JobState, TimeoutPolicy};
use onward_core::message::{EndReport, FromWorker, Hello, Settlement, Subscription, ToWorker};
use onward_core::payload::{self, Payload};
use onward_core::refusal::Refusal;
use onward_core::settings::{Rules, Settings};
use onward_core::time::Wall;
use onward_core::timeout::ExtensionTotals;
use onward_log::engines::memory::AppendFault;
use onward_log::{
    Archive, ArchivedJob, BatchId, BatchKey, Blob, BlobDigest, BlobReader, EmbeddedArchive, EmbeddedLog, Error, Log,
    LogRow, MemoryLog, ScanPage, Snapshot, StoredRow, Tail, codec,
};
use onward_node::cluster::leader::{LeaderAddress, LeaderView};
use onward_node::cluster::{HandoverError, Heir, Leadership, OwnStanding, SeatLook};
use onward_node::engine::{Engine, EngineRefusal, EngineStart, Pacing};
use onward_node::outputs::{OutputFolder, OutputRules, Outputs};
use onward_proto::worker::Output;
use waiting::until_seen;

/// Rules without gaps and questions about the seat: on a busy computer they would come in between.
fn rules() -> Rules {
    let long = Duration::from_secs(600);
    Settings { seat_ttl: 2 * long, gap_after: long, ..Settings::default() }.check().unwrap()
}

fn start(log: &MemoryLog) -> Engine {
    let log = log.clone();
    let log = move || Ok(Box::new(log.clone()) as Box<dyn Log>);
    Engine::start(EngineStart::new(rules(), log)).expect("a log in memory can be opened")
}

/// Longer than anything here takes, on a busy computer too.
const PATIENCE: Duration = Duration::from_secs(120);

fn draft() -> Draft {
    Draft::of_kind("resize", *b"{}")
}

fn submit(engine: &Engine, draft: Draft) -> (JobId, Call) {
    let id = engine.new_job_id();
    (id, Call::Submit(vec![Submission { id, draft }]))
}

fn poll(worker: &str) -> Poll {
    Poll {
        worker: WorkerId::new(worker).unwrap(),
        incarnation: Incarnation::new("1").unwrap(),
        subscription: subscription(),
        max: 1,
        wait: Duration::from_secs(60),
        lease: Duration::from_secs(3_600),
        id: None,
        client: ClientId::default(),
    }
}

fn subscription() -> Subscription {
    Subscription { queues: vec![Name::new("default").unwrap()], kinds: vec![Name::new("resize").unwrap()] }
}

async fn state_of(engine: &Engine, job: JobId) -> Option<JobState> {
    engine.read(move |view| view.manager.job(job).map(|job| job.state)).await.unwrap()
}

/// The refusal of the only submission of a batch.
fn in_batch<T>(cause: Refusal) -> Result<T, EngineRefusal> {
    Err(EngineRefusal::ByMachine(Refusal::InBatch { index: 0, cause: Box::new(cause) }))
}

#[tokio::test]
async fn submit_lease_and_succeed_and_all_of_it_survives() {
    let log = MemoryLog::new();
    let engine = start(&log);
    let (id, call) = submit(&engine, draft());
    assert!(matches!(engine.call(call).await, Ok(Answer::Submitted(accepted)) if accepted[0].id == id));
    let (leases, mut delivery) = engine.poll(poll("w")).await.unwrap();
    delivery.done();
    let claim = leases[0].claim;
    engine.stop();

    let engine = start(&log);
    assert_eq!(state_of(&engine, id).await, Some(JobState::Running), "the lease survived the restart");
    let succeed = || Call::Settle(vec![Settlement::new(claim, EndReport::Succeed { result: (*b"1").into() })]);
    for _ in 0..2 {
        match engine.call(succeed()).await {
            Ok(Answer::Settled(answers)) => assert_eq!(answers[0].answer, Ok(())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(state_of(&engine, id).await, Some(JobState::Succeeded));
    engine.stop();
    assert_eq!(state_of(&start(&log), id).await, Some(JobState::Succeeded));
}

/// A log whose appends wait until the test lets them go on.
struct GatedLog {
    log: MemoryLog,
    entered: Sender<()>,
    gate: Arc<Mutex<Receiver<()>>>,
    /// The next append does.
    panics: Arc<AtomicBool>,
}

impl GatedLog {
    /// How to make one, when an append is entered, the gate, and what makes it panic.
    #[expect(clippy::type_complexity, reason = "taken apart at once")]
    fn over(
        log: MemoryLog,
    ) -> (impl FnMut() -> Result<Box<dyn Log>, Error>, Receiver<()>, Sender<()>, Arc<AtomicBool>) {
        let (entered, has_entered) = channel();
        let (open, gate) = channel();
        let (gate, panics) = (Arc::new(Mutex::new(gate)), Arc::new(AtomicBool::new(false)));
        let told = panics.clone();
        let make = move || {
            let (log, entered, gate, panics) = (log.clone(), entered.clone(), gate.clone(), told.clone());
            Ok(Box::new(Self { log, entered, gate, panics }) as Box<dyn Log>)
        };
        (make, has_entered, open, panics)
    }
}

impl Log for GatedLog {
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
        let _ = self.entered.send(());
        let _ = self.gate.lock().unwrap().recv();
        assert!(!self.panics.swap(false, Ordering::Relaxed), "as a bug would");
        self.log.append(key, row, blobs)
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
    fn read(&mut self, from: Seq, max_events: usize) -> Result<Vec<StoredRow>, Error> {
        self.log.read(from, max_events)
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
        self.log.chunk(index)
    }
    fn truncate(&mut self, term: Term, max_batches: usize) -> Result<bool, Error> {
        self.log.truncate(term, max_batches)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_seen_before_it_is_durable() {
    let (make, has_entered, open, _) = GatedLog::over(MemoryLog::new());
    let engine = Engine::start(EngineStart::new(rules(), make)).unwrap();
    has_entered.recv().unwrap();
    open.send(()).unwrap(); // the beginning of the term
    until_seen("it serves", || engine.stats().commits.get() == 1).await;

    let (id, call) = submit(&engine, draft());
    let watch = engine.watch(id);
    let submitted = tokio::spawn({
        let engine = engine.clone();
        async move { engine.call(call).await }
    });
    has_entered.recv().unwrap();
    // The commit is under way and waits. A refusal, a read and a hand-out that come now have seen the job.
    let begun = engine.stats().inputs.get();
    let refused = tokio::spawn({
        let engine = engine.clone();
        let again = Call::Submit(vec![Submission { id, draft: draft() }]);
        async move { engine.call(again).await }
    });
    let read = tokio::spawn({
        let engine = engine.clone();
        async move { state_of(&engine, id).await }
    });
    let leased = tokio::spawn({
        let engine = engine.clone();
        async move { engine.poll(poll("w")).await.map(|(leases, _)| leases.len()) }
    });
    until_seen("all were taken", || engine.stats().inputs.get() >= begun + 2 && engine.stats().reads.get() >= 1).await;
    let rung = tokio::time::timeout(Duration::from_millis(20), watch.changed()).await;
    assert!(rung.is_err(), "a change is not announced before it is durable");
    assert!(!submitted.is_finished() && !refused.is_finished() && !read.is_finished() && !leased.is_finished());

    drop(open); // all gates are open from now on
    assert!(submitted.await.unwrap().is_ok());
    assert_eq!(refused.await.unwrap(), in_batch(Refusal::Conflict));
    assert!(matches!(read.await.unwrap(), Some(JobState::Ready | JobState::Running)));
    assert_eq!(leased.await.unwrap(), Ok(1));
    watch.changed().await;
}

/// Nothing else wakes the machine here: what it decided goes to the log without waiting for anybody.
#[tokio::test]
async fn a_call_that_comes_before_the_term_has_begun_is_answered() {
    let (make, has_entered, open, _) = GatedLog::over(MemoryLog::new());
    let engine = Engine::start(EngineStart::new(rules(), make)).unwrap();
    has_entered.recv().unwrap();
    let mut call = core::pin::pin!(engine.call(submit(&engine, draft()).1));
    assert!(tokio::time::timeout(Duration::from_millis(1), &mut call).await.is_err(), "the term has not begun");
    drop(open);
    let answer = tokio::time::timeout(Duration::from_secs(60), call).await.expect("it does not wait for a wake-up");
    assert!(matches!(answer, Ok(Answer::Submitted(_))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_that_hangs_or_has_died_is_noticed_and_one_that_waits_is_not() {
    let (make, has_entered, open, _) = GatedLog::over(MemoryLog::new());
    // No time at all is allowed, so whatever is at something hangs.
    let engine = Engine::start(EngineStart { hang_after: Duration::ZERO, ..EngineStart::new(rules(), make) }).unwrap();
    has_entered.recv().unwrap();
    assert_eq!(engine.needs_restart(), None, "a restart does not help against a log that hangs");
    let committer = engine.loops().health().report().loops.into_iter().find(|one| one.name == "committer").unwrap();
    assert_eq!(committer.state.code(), "stalled", "and it is seen");
    drop(open);
    until_seen("both wait", || engine.trouble().is_none() && engine.needs_restart().is_none()).await;

    let (go_on, told) = channel::<()>();
    let (begun, has_begun) = channel();
    let reading = engine.clone();
    let read = tokio::spawn(async move {
        let work = move |_: &onward_node::engine::ReadView<'_>| {
            begun.send(()).unwrap();
            told.recv().unwrap_err();
        };
        reading.read(work).await
    });
    has_begun.recv().unwrap();
    let why = engine.needs_restart().expect("the machine is at it");
    assert!(why.contains("loop `machine` is stalled"), "{why}");
    drop(go_on);
    read.await.unwrap().unwrap();
    until_seen("it waits", || engine.needs_restart().is_none()).await;

    assert!(engine.read(|_| panic!("as a bug would")).await.is_err());
    until_seen("it has ended", || engine.needs_restart().is_some_and(|why| why.contains("loop `machine` is dead")))
        .await;
    assert!(engine.read(|_| ()).await.is_err(), "nobody waits for it");
}

#[tokio::test]
async fn a_log_that_panics_is_opened_anew() {
    let (make, _, open, panics) = GatedLog::over(MemoryLog::new());
    drop(open);
    let engine = Engine::start(EngineStart::new(rules(), make)).unwrap();
    let (first, call) = submit(&engine, draft());
    engine.call(call).await.unwrap();
    panics.store(true, Ordering::Relaxed);
    let lost = tokio::time::timeout(Duration::from_secs(60), engine.call(submit(&engine, draft()).1)).await;
    assert!(matches!(lost.expect("it is answered"), Err(EngineRefusal::Unavailable(_))));
    until_seen("a second term", || engine.stats().terms.get() == 2).await;
    while engine.call(submit(&engine, draft()).1).await.is_err() {}
    assert_eq!(state_of(&engine, first).await, Some(JobState::Ready));
    assert_eq!((engine.trouble(), engine.needs_restart()), (None, None));
}

#[tokio::test]
async fn after_an_append_that_failed_nothing_of_it_is_true_and_the_node_serves_again() {
    for fault in [AppendFault::Fails, AppendFault::Full] {
        let log = MemoryLog::new();
        let engine = start(&log);
        let (first, call) = submit(&engine, draft());
        engine.call(call).await.unwrap();
        log.inject(fault);
        let (lost, call) = submit(&engine, draft());
        assert!(matches!(engine.call(call).await, Err(EngineRefusal::Unavailable(_))), "{fault:?}");
        until_seen("a second term", || engine.stats().terms.get() == 2).await;
        // The first call of the new term may come before its beginning is durable.
        let mut again = Err(EngineRefusal::Unavailable(String::new()));
        while again.is_err() {
            again = engine.call(submit(&engine, draft()).1).await;
        }
        assert_eq!(state_of(&engine, lost).await, None, "{fault:?}");
        assert_eq!(state_of(&engine, first).await, Some(JobState::Ready), "{fault:?}");
        assert_eq!(engine.trouble(), None);
    }
}

#[tokio::test]
async fn in_doubt_the_log_is_asked_again_and_the_answer_is_given_once() {
    for fault in [AppendFault::RequestLost, AppendFault::AnswerLost] {
        let log = MemoryLog::new();
        let engine = start(&log);
        log.inject(fault);
        let (id, call) = submit(&engine, draft());
        engine.call(call).await.unwrap();
        engine.stop();
        let engine = start(&log);
        assert_eq!(state_of(&engine, id).await, Some(JobState::Ready), "{fault:?}");
        assert_eq!(engine.read(|view| view.manager.view().jobs).await, Ok(1), "{fault:?}");
    }
}

#[tokio::test]
async fn leases_that_were_not_delivered_go_back_without_counting() {
    let engine = start(&MemoryLog::new());
    let (id, call) = submit(&engine, draft());
    engine.call(call).await.unwrap();
    let (leases, delivery) = engine.poll(poll("a")).await.unwrap();
    assert_eq!((leases.len(), leases[0].attempt), (1, 1));
    drop(delivery);
    let (leases, mut delivery) = engine.poll(poll("b")).await.unwrap();
    delivery.done();
    assert_eq!((leases[0].claim.job, leases[0].attempt), (id, 1), "the first hand-out does not count");
}

#[tokio::test]
async fn a_caller_that_goes_away_is_handed_nothing() {
    let engine = start(&MemoryLog::new());
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { engine.poll(poll("gone")).await.map(|_| ()) }
    });
    let polls = || engine.read(|view| view.manager.workers().any(|worker| worker.free > 0));
    let asking = async { while !polls().await.unwrap() {} };
    tokio::time::timeout(Duration::from_secs(60), asking).await.expect("it polls");
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let (_, call) = submit(&engine, draft());
    engine.call(call).await.unwrap();
    let (leases, mut delivery) = engine.poll(poll("here")).await.unwrap();
    delivery.done();
    assert_eq!(leases.len(), 1);
}

fn hello(worker: &WorkerId) -> FromWorker {
    FromWorker::Hello(Hello {
        worker: worker.clone(),
        incarnation: Incarnation::new("1").unwrap(),
        subscription: subscription(),
        slots: 1,
        holding: Vec::new(),
        client: ClientId::default(),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_nothing_does_not_overtake_what_does() {
    let (make, has_entered, open, _) = GatedLog::over(MemoryLog::new());
    let engine = Engine::start(EngineStart::new(Rules::default(), make)).unwrap();
    has_entered.recv().unwrap();
    open.send(()).unwrap(); // the beginning of the term
    let (_, call) = submit(&engine, draft());
    let submitted = tokio::spawn({
        let engine = engine.clone();
        async move { engine.call(call).await }
    });
    has_entered.recv().unwrap();
    open.send(()).unwrap(); // the job
    submitted.await.unwrap().unwrap();

    let mut session = engine.open_session();
    session.send(hello(&WorkerId::new("w").unwrap()));
    has_entered.recv().unwrap(); // the assignment, which has to wait
    let before = engine.stats().inputs.get();
    for _ in 0..3 {
        session.send(FromWorker::Beats(Vec::new()));
    }
    until_seen("the beats were taken", || engine.stats().inputs.get() >= before + 3).await;
    open.send(()).unwrap();
    let mut heard = Vec::new();
    while heard.len() < 5 {
        session.receive(&mut heard, 10).await.unwrap();
    }
    assert!(matches!(&heard[..2], [ToWorker::Welcome { .. }, ToWorker::Assign(_)]), "{heard:?}");
    assert!(heard[2..].iter().all(|message| matches!(message, ToWorker::BeatAnswers(_))), "{heard:?}");
    drop(open);
}

#[tokio::test]
async fn a_session_is_welcomed_given_work_and_closed_with_its_handle() {
    let engine = start(&MemoryLog::new());
    let (id, call) = submit(&engine, draft());
    engine.call(call).await.unwrap();
    let mut session = engine.open_session();
    let worker = WorkerId::new("w").unwrap();
    session.send(hello(&worker));
    let mut heard = Vec::new();
    while heard.len() < 2 {
        session.receive(&mut heard, 10).await.unwrap();
    }
    assert!(matches!(heard[0], ToWorker::Welcome { .. }), "{heard:?}");
    assert!(matches!(&heard[1], ToWorker::Assign(assignment) if assignment.claim.job == id), "{heard:?}");
    drop(session);
    let connected = engine.read(move |view| view.manager.worker(&worker).map(|worker| worker.connected)).await;
    assert_eq!(connected, Ok(Some(false)));
}

/// How many jobs wait for their time.
/// What is said first on every stream must be sayable, or a gate hears nothing of this datacenter any more.
#[tokio::test]
async fn the_end_of_a_job_whose_result_is_lost_is_told_without_the_result() {
    let engine = start(&MemoryLog::new());
    let (stream, _reports) = engine.open_gate(Name::new("dc-a").expect("a name"));
    let (known, call) = submit(&engine, draft());
    engine.call(call).await.expect("it is accepted");
    let name = Name::new("k").expect("a name");
    for job in [known, JobId::from_u128(1)] {
        let outline = JobOutline {
            kind: name.clone(),
            queue: name.clone(),
            targets: [].into(),
            policy: TimeoutPolicy::default(),
            timeout: Duration::ZERO,
            max_extension: Duration::ZERO,
        };
        let report = JobReport {
            job,
            outline,
            epoch: None,
            elapsed: None,
            extended: ExtensionTotals::default(),
            since_progress: None,
            state: JobState::Succeeded,
            timed_out: None,
            workflows: WorkflowCounts::default(),
            attempts: 1,
        };
        let lost = Some(Payload::stored(payload::Digest([7; 32]), 5_000));
        let status = FinalStatus { report, outcome: Outcome::Succeeded, result: lost, error: None };
        let message = FromDatacenter::Final(Box::new(status));
        let mut frame = Frame { term: Term::new(1), number: 1, message };
        stream.complete(&mut frame).await.expect("it can be said");
        let FromDatacenter::Final(status) = frame.message else { panic!("{frame:?}") };
        assert_eq!((status.outcome, &status.result), (Outcome::Succeeded, &None));
        let error = status.error.expect("it says what is missing");
        assert!(error.starts_with("its result cannot be read in this datacenter: "), "{error}");
    }
}

async fn delayed(engine: &Engine) -> usize {
    let count = |view: &onward_node::engine::ReadView<'_>| {
        let state = view.manager.state();
        state.jobs().filter(|(key, _)| state.job_state(*key) == JobState::Delayed).count()
    };
    engine.read(count).await.unwrap()
}

#[tokio::test]
async fn whoever_asks_while_very_many_jobs_are_due_is_served_before_all_of_them_are() {
    const JOBS: usize = 10_000;
    let (make, has_entered, open, _) = GatedLog::over(MemoryLog::new());
    let starting = tokio::task::spawn_blocking(move || Engine::start(EngineStart::new(rules(), make)).unwrap());
    has_entered.recv().unwrap();
    open.send(()).unwrap(); // the beginning of the term
    let engine = starting.await.unwrap();
    let past = Draft { run_at: Some(Wall::from_ms(1)), ..draft() };
    let jobs = (0..JOBS).map(|_| Submission { id: engine.new_job_id(), draft: past.clone() }).collect();
    let submitting = tokio::spawn({
        let engine = engine.clone();
        async move { engine.call(Call::Submit(jobs)).await }
    });
    let entered = tokio::task::spawn_blocking(move || has_entered.recv().map(|()| has_entered));
    let _has_entered = entered.await.unwrap().unwrap();
    // All of them are due at once. The log is at the first batch, and more is decided in bulk only as it gets on.
    let asking = tokio::spawn({
        let engine = engine.clone();
        async move { delayed(&engine).await }
    });
    until_seen("the read is taken", || engine.stats().reads.get() > 0).await;
    drop(open);
    let seen = asking.await.unwrap();
    assert!((JOBS / 2..JOBS).contains(&seen), "{seen} are left");
    assert!(matches!(submitting.await.unwrap(), Ok(Answer::Submitted(_))));
    assert_eq!(engine.needs_restart(), None);
    while delayed(&engine).await > 0 {}
    engine.stop();
}

#[tokio::test]
async fn ids_made_here_rise() {
    let engine = start(&MemoryLog::new());
    let ids: Vec<JobId> = (0..10_000).map(|_| engine.new_job_id()).collect();
    assert!(ids.is_sorted());
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]));
}

#[tokio::test]
async fn large_payloads_are_in_the_store_and_what_was_refused_is_not() {
    let log = MemoryLog::new();
    let engine = start(&log);
    let large: Arc<[u8]> = vec![7; 100_000].into();
    let (id, call) = submit(&engine, Draft::of_kind("resize", large.clone()));
    engine.call(call).await.unwrap();
    let payload =
        engine.read(move |view| view.manager.image(id).unwrap().spec.workflows[0].payload.clone()).await.unwrap();
    assert!(payload.as_stored().is_some(), "the machine holds its digest only");
    let other: Arc<[u8]> = vec![8; 100_000].into();
    let again = Call::Submit(vec![Submission { id, draft: Draft::of_kind("resize", other) }]);
    assert_eq!(engine.call(again).await, in_batch(Refusal::Conflict));
    assert_eq!(log.clone().blobs(None, 10).unwrap(), [payload.digest().0]);
    engine.stop();
    let engine = start(&log);
    assert_eq!(engine.content(id, &payload).await, Ok(large.clone()));
    let (leases, mut delivery) = engine.poll(poll("w")).await.unwrap();
    delivery.done();
    assert_eq!(leases[0].workflow.payload.as_inline(), Some(&large), "a lease has the bytes");
}

/// An engine on files, as a node has it.
fn start_on(folder: &std::path::Path, snapshot_every: u64) -> Engine {
    let log = EmbeddedLog::open(folder).unwrap();
    let mut start = EngineStart::new(rules(), move || Ok(Box::new(log.clone()) as Box<dyn Log>));
    start.archive = Some(Arc::new(EmbeddedArchive::open(folder).unwrap()));
    start.snapshot_every = snapshot_every;
    Engine::start(start).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_jobs_move_to_the_archive_and_snapshots_carry_the_rest_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let large: Arc<[u8]> = vec![9; 50_000].into();
    let mut open = Vec::new();
    let mut done = Vec::new();
    for round in 0..3 {
        let engine = start_on(folder.path(), 300);
        for _ in 0..200 {
            let (id, call) = submit(&engine, Draft::of_kind("resize", large.clone()));
            engine.call(call).await.unwrap();
            open.push(id);
        }
        for _ in 0..150 {
            let (leases, mut delivery) = engine.poll(poll("w")).await.unwrap();
            delivery.done();
            let claim = leases[0].claim;
            let report = EndReport::Succeed { result: (*b"1").into() };
            engine.call(Call::Settle(vec![Settlement::new(claim, report)])).await.unwrap();
            open.retain(|id| *id != claim.job);
            done.push(claim.job);
        }
        until_seen("all are archived", || engine.stats().archived.get() >= 150).await;
        assert_eq!(engine.read(|view| view.manager.state().job_count()).await, Ok(open.len()), "and gone from memory");
        let stats = engine.stats();
        until_seen("a snapshot", || stats.snapshots.get() >= 1 || round == 0 && stats.events.get() < 300).await;
        engine.stop();
    }
    let engine = start_on(folder.path(), 300);
    assert_eq!(engine.read(|view| view.manager.state().job_count()).await, Ok(open.len()));
    for id in &open {
        assert_eq!(state_of(&engine, *id).await, Some(JobState::Ready));
    }
    for id in &done {
        assert_eq!(state_of(&engine, *id).await, None);
        let image = engine.archived(*id).await.unwrap().expect("it is in the archive");
        assert_eq!(image.state(), JobState::Succeeded);
        assert_eq!(engine.content(*id, &image.spec.workflows[0].payload).await, Ok(large.clone()));
    }
    let (again, true) = engine.retry(done[0], Name::new("r").unwrap()).await.unwrap() else { panic!("it is new") };
    assert_eq!(engine.retry(done[0], Name::new("r").unwrap()).await, Ok((again, false)));
    let spec = engine.read(move |view| view.manager.image(again).unwrap().spec).await.unwrap();
    assert_eq!(engine.content(again, &spec.workflows[0].payload).await, Ok(large.clone()));
    let (listed, more) = engine.archived_before(None, 1_000).await.unwrap();
    assert!(!more);
    assert_eq!(listed.len(), done.len());
    assert!(listed.windows(2).all(|pair| pair[0].id > pair[1].id), "the newest first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_ids_are_above_those_of_log_and_archive_whatever_the_clock_says() {
    let folder = tempfile::tempdir().unwrap();
    // As if the clock had been ahead once, and further the second time: then nothing in the log is above the archive.
    let ahead = |ms: u64| JobId::v7(Wall::from_ms(9_000_000_000_000 + ms), u128::MAX);
    for (ms, ends) in [(0, false), (1_000, true)] {
        let engine = start_on(folder.path(), 300);
        let id = ahead(ms);
        engine.call(Call::Submit(vec![Submission { id, draft: draft() }])).await.unwrap();
        if ends {
            engine.call(Call::Cancel { job: id, epoch: None }).await.unwrap();
            until_seen("it is archived", || engine.stats().archived.get() == 1).await;
        }
        engine.stop();
        drop(engine);
        let engine = start_on(folder.path(), 300);
        let (next, call) = submit(&engine, draft());
        assert!(next > id && engine.new_job_id() > next, "{next} after {id}");
        engine.call(call).await.unwrap();
        engine.stop();
    }
}

/// Another's clock may be ahead of ours, and what it has made and archived while it led was never in memory here.
#[tokio::test]
async fn new_ids_are_above_those_that_another_archived_while_it_led() {
    let (log, folder) = (MemoryLog::new(), tempfile::tempdir().unwrap());
    let archive = EmbeddedArchive::open(folder.path()).unwrap();
    let handle = log.clone();
    let mut start = EngineStart::new(rules(), move || Ok(Box::new(handle.clone()) as Box<dyn Log>));
    start.archive = Some(Arc::new(archive.clone()));
    start.pacing.term_every = Duration::ZERO;
    let engine = Engine::start(start).unwrap();
    let (_, call) = submit(&engine, draft());
    engine.call(call).await.unwrap();

    let ahead = JobId::v7(Wall::from_ms(onward_node::clock::now().wall.as_ms() + 3_600_000), 7);
    log.clone().take_seat(Term::new(1)).expect("it is free to be taken");
    let job = ArchivedJob { id: ahead.as_u128(), ended_at_ms: 1, expires_at_ms: None, row: b"", blobs: &[] };
    archive.put(&[job]).unwrap();
    // What this one still wanted to write is refused.
    while engine.call(submit(&engine, draft()).1).await.is_err() {}
    until_seen("it leads again", || engine.stats().terms.get() >= 2).await;
    let made = engine.new_job_id();
    assert!(made > ahead, "{made} is below {ahead}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_has_stopped_does_not_say_that_an_archived_job_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start_on(folder.path(), 300);
    let (id, call) = submit(&engine, draft());
    engine.call(call).await.unwrap();
    engine.call(Call::Cancel { job: id, epoch: None }).await.unwrap();
    until_seen("it is archived", || engine.stats().archived.get() == 1).await;
    assert!(matches!(engine.archived(id).await, Ok(Some(_))));
    engine.stop();
    let refused = engine.archived(id).await;
    assert!(matches!(refused, Err(EngineRefusal::Unavailable(_))), "{refused:?}");
    let refused = engine.archived_before(None, 1).await;
    assert!(matches!(refused, Err(EngineRefusal::Unavailable(_))), "{refused:?}");
}

// ---- time in which nobody listened

/// A seat that is soon unconfirmed; a wake-up that comes late is no gap.
fn short_seat() -> Rules {
    let (seat_ttl, gap_after) = (Duration::from_millis(600), Duration::from_millis(599));
    Settings { seat_ttl, gap_after, ..Settings::default() }.check().unwrap()
}

fn succeed(claim: onward_core::ids::Claim, result: &[u8]) -> FromWorker {
    FromWorker::Settle(vec![Settlement::new(claim, EndReport::Succeed { result: result.into() })])
}

/// A session that was handed one job.
async fn working_session(engine: &Engine) -> (onward_node::engine::WorkerSession, onward_core::ids::Claim) {
    let (_, call) = submit(engine, draft());
    engine.call(call).await.unwrap();
    let mut session = engine.open_session();
    session.send(hello(&WorkerId::new("w").unwrap()));
    let mut heard = Vec::new();
    loop {
        session.receive(&mut heard, 10).await.unwrap();
        if let Some(ToWorker::Assign(assignment)) = heard.last() {
            return (session, assignment.claim);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_queued_up_while_the_machine_could_not_run_is_taken_and_not_refused() {
    let log = MemoryLog::new();
    let gap_after = Duration::from_millis(20);
    let rules = Settings { seat_ttl: Duration::from_secs(600), gap_after, ..Settings::default() }.check().unwrap();
    let engine = Engine::start(EngineStart::new(rules, move || Ok(Box::new(log.clone()) as Box<dyn Log>))).unwrap();
    let (mut session, claim) = working_session(&engine).await;

    let (go_on, told) = channel::<()>();
    let (begun, has_begun) = channel();
    let frozen = engine.clone();
    let freeze = tokio::spawn(async move {
        let work = move |view: &onward_node::engine::ReadView<'_>| {
            let wake = view.manager.next_wakeup().expect("it asks for the seat").0;
            begun.send(()).unwrap();
            told.recv().unwrap_err();
            // It is late by more than a gap.
            while onward_node::clock::mono().since(wake) <= 2 * gap_after {
                std::thread::yield_now();
            }
        };
        frozen.read(work).await
    });
    has_begun.recv().unwrap();
    session.send(succeed(claim, &[7; 10_000]));
    let mut pause = core::pin::pin!(engine.call(Call::PauseQueue(Name::new("q").unwrap())));
    assert!(tokio::time::timeout(Duration::from_millis(1), &mut pause).await.is_err(), "it queues up behind");
    drop(go_on);
    freeze.await.unwrap().unwrap();
    let mut heard = Vec::new();
    session.receive(&mut heard, 10).await.unwrap();
    assert!(matches!(&heard[..], [ToWorker::SettleAnswers(answers)] if answers[0].answer.is_ok()), "{heard:?}");
    assert_eq!(pause.await, Ok(Answer::Done));
    assert_eq!(state_of(&engine, claim.job).await, Some(JobState::Succeeded));
}

/// The state of a job of which nobody knew whether it was stored; none while the node does not serve.
async fn state_of_stalled(engine: &Engine, job: JobId) -> Option<JobState> {
    engine.read(move |view| view.manager.job(job).expect("it was stored").state).await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_log_stalls_calls_are_refused_in_time_and_reports_are_kept_with_their_content() {
    let (make, has_entered, open, _) = GatedLog::over(MemoryLog::new());
    let gate = tokio::spawn(async move {
        // Until the job is handed out: its term, the job, the hand-out.
        for _ in 0..3 {
            has_entered.recv().unwrap();
            open.send(()).unwrap();
        }
        (has_entered, open)
    });
    let engine = tokio::task::block_in_place(|| Engine::start(EngineStart::new(short_seat(), make)).unwrap());
    let (mut session, claim) = working_session(&engine).await;
    let (has_entered, open) = gate.await.unwrap();
    // A commit hangs from here on.
    let (stalled_id, call) = submit(&engine, draft());
    let stalled = tokio::spawn({
        let engine = engine.clone();
        async move { engine.call(call).await }
    });
    has_entered.recv().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let outputs =
        Outputs::start(Box::new(OutputFolder::new(folder.path().join("output"), OutputRules::default()))).unwrap();
    let print = async || {
        let output = Output { claim, data: bytes::Bytes::from_static(b"hello"), skipped: 0 };
        let answer = tokio::time::timeout(PATIENCE / 4, outputs.offer_with_receipt(&engine, output)).await;
        answer.expect("it does not wait for the log")
    };
    // Also what is asked while the seat is still confirmed: it waits for the commit.
    assert!(matches!(print().await, Err(EngineRefusal::Unavailable(_))), "nobody knows whether it may still print");
    // What is asked while the seat is still confirmed waits for the commit, and nobody knows what becomes of it; later
    // nothing is begun.
    let is_unknown = |answer: &Result<Answer, EngineRefusal>| match answer {
        Err(EngineRefusal::Unavailable(why)) => why.contains("not known"),
        _ => false,
    };
    let first = tokio::time::timeout(PATIENCE, stalled).await.expect("it does not wait for the log").unwrap();
    assert!(is_unknown(&first), "{first:?}");
    let refused = loop {
        let answer = engine.call(Call::PauseQueue(Name::new("q").unwrap())).await;
        if !is_unknown(&answer) {
            break answer;
        }
    };
    assert_eq!(refused, Err(EngineRefusal::ByMachine(Refusal::NoLeader)));
    assert!(matches!(engine.read(|_| ()).await, Err(EngineRefusal::Unavailable(_))), "reads are refused as well");
    assert!(
        matches!(print().await, Err(EngineRefusal::NotBegun(_))),
        "without a seat likewise, and nothing was printed"
    );
    let (reply, on_session) = tokio::sync::oneshot::channel();
    engine.check_outputs(vec![claim], session.id(), move |_, answers| drop(reply.send(answers)));
    session.send(succeed(claim, &[7; 10_000]));
    drop(open);
    while state_of_stalled(&engine, stalled_id).await.is_none() {}
    let mut heard = Vec::new();
    while !heard.iter().any(|message| matches!(message, ToWorker::SettleAnswers(_))) {
        session.receive(&mut heard, 10).await.unwrap();
    }
    let settled = heard.iter().find_map(|message| match message {
        ToWorker::SettleAnswers(answers) => Some(answers[0].answer.clone()),
        _ => None,
    });
    assert_eq!(settled, Some(Ok(())));
    assert_eq!(on_session.await, Ok(vec![Ok(())]), "what a session has printed is kept with its reports");
    assert!(outputs.read(claim).await.unwrap().is_none(), "who was refused may print it again");
    outputs.stop();
    let view = engine.read(move |view| view.manager.job(claim.job)).await.unwrap().unwrap();
    let result = view.workflows[0].ended[0].result().expect("a success").clone();
    assert_eq!(engine.content(claim.job, &result).await.unwrap().len(), 10_000, "it came along");
}

#[tokio::test]
async fn a_call_between_two_terms_is_for_the_next_one() {
    let log = MemoryLog::new();
    let engine = start(&log);
    log.inject(AppendFault::Fails);
    let (_, call) = submit(&engine, draft());
    assert!(engine.call(call).await.is_err(), "this one was decided by the first");
    let (id, call) = submit(&engine, draft());
    assert!(engine.call(call).await.is_ok(), "no machine served when it came");
    assert_eq!((state_of(&engine, id).await, engine.stats().terms.get()), (Some(JobState::Ready), 2));
}

// ---- following and leading

struct WhenTold(Arc<AtomicBool>);

impl Leadership for WhenTold {
    fn look(&mut self, own: OwnStanding) -> SeatLook {
        let leader = LeaderAddress { name: "another".into(), address: "127.0.0.1:1".into() };
        match own.is_caught_up && self.0.load(Ordering::Relaxed) {
            true => SeatLook::Try,
            false => SeatLook::Follow { term: Term::new(1), leader: Some(leader) },
        }
    }

    fn hand_over(&mut self, _term: Term, _heir: &Heir) -> Result<(), HandoverError> {
        Err(HandoverError::Alone)
    }
}

/// An engine that leads once it is told to, and how it is told.
fn start_following(log: &MemoryLog, rules: Rules) -> (Engine, Arc<AtomicBool>) {
    let (log, may_lead) = (log.clone(), Arc::new(AtomicBool::new(false)));
    let told = may_lead.clone();
    let mut start = EngineStart::new(rules, move || Ok(Box::new(log.clone()) as Box<dyn Log>));
    start.leadership = Box::new(WhenTold(told));
    (Engine::start(start).expect("a log in memory can be opened"), may_lead)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_follows_until_it_may_lead_and_who_loses_the_seat_follows() {
    let log = MemoryLog::new();
    let (one, one_may_lead) = start_following(&log, short_seat());
    one_may_lead.store(true, Ordering::Relaxed);
    let (first, call) = submit(&one, draft());
    while one.call(call.clone()).await.is_err() {}
    one_may_lead.store(false, Ordering::Relaxed);
    let (other, other_may_lead) = start_following(&log, short_seat());
    let refused = other.call(submit(&other, draft()).1).await;
    let Err(EngineRefusal::NotBegun(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("`another` leads"), "{why}");
    assert_eq!(other.needs_restart(), None);
    // What the leader goes on writing is there when the other leads.
    let (second, call) = submit(&one, draft());
    while one.call(call.clone()).await.is_err() {}
    other_may_lead.store(true, Ordering::Relaxed);
    until_seen("the other leads", || other.stats().terms.get() == 1).await;
    let found = async |job| loop {
        if let Ok(state) = other.read(move |view| view.manager.job(job).map(|job| job.state)).await {
            return state;
        }
    };
    assert_eq!((found(first).await, found(second).await), (Some(JobState::Ready), Some(JobState::Ready)));
    // The first learns it by the first thing that it wants to store or to confirm, and does not fight.
    until_seen("it follows", || one.leader_view().borrow().role() == "follower").await;
    let (third, call) = submit(&other, draft());
    while other.call(call.clone()).await.is_err() {}
    assert_eq!(found(third).await, Some(JobState::Ready));
    assert_eq!((one.stats().terms.get(), other.stats().terms.get()), (1, 1));
    one.stop();
    other.stop();
}

/// Leads, until its storage is away.
struct CutOffWhenTold(Arc<AtomicBool>);

impl Leadership for CutOffWhenTold {
    fn look(&mut self, own: OwnStanding) -> SeatLook {
        match self.0.load(Ordering::Relaxed) {
            true => SeatLook::Unseen,
            false if own.is_caught_up => SeatLook::Try,
            false => SeatLook::Follow { term: Term::default(), leader: None },
        }
    }

    fn hand_over(&mut self, _term: Term, _heir: &Heir) -> Result<(), HandoverError> {
        Err(HandoverError::Alone)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_from_its_storage_keeps_no_worker_waiting_and_leads_again() {
    let (log, is_away) = (MemoryLog::new(), Arc::new(AtomicBool::new(false)));
    let (theirs, away) = (log.clone(), is_away.clone());
    let mut start = EngineStart::new(short_seat(), move || match away.load(Ordering::Relaxed) {
        true => Err(Error::Unknown { cause: "it is away".into() }),
        false => Ok(Box::new(theirs.clone()) as Box<dyn Log>),
    });
    start.pacing =
        Pacing { ask_again: Duration::from_millis(1), term_every: Duration::from_millis(10), ..start.pacing };
    start.leadership = Box::new(CutOffWhenTold(is_away.clone()));
    let engine = Engine::start(start).unwrap();
    let role = || engine.leader_view().borrow().role();
    until_seen("it leads", || role() == "leader").await;
    is_away.store(true, Ordering::Relaxed);
    log.doubt(true);
    assert!(engine.call(submit(&engine, draft()).1).await.is_err());
    until_seen("it does not know who leads", || role() == "cut_off").await;
    let mut session = engine.open_session();
    session.send(hello(&WorkerId::new("w").unwrap()));
    let ended = tokio::time::timeout(PATIENCE, session.receive(&mut Vec::new(), 10)).await.expect("it ends");
    assert!(ended.is_err(), "the worker looks for another node");
    is_away.store(false, Ordering::Relaxed);
    log.doubt(false);
    until_seen("it leads again", || role() == "leader").await;
    working_session(&engine).await;
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_shares_its_log_starts_while_nothing_can_be_stored_and_one_that_is_alone_says_why_not() {
    let (log, is_away) = (MemoryLog::new(), Arc::new(AtomicBool::new(true)));
    let start = || {
        let (theirs, away) = (log.clone(), is_away.clone());
        let mut start = EngineStart::new(short_seat(), move || match away.load(Ordering::Relaxed) {
            true => Err(Error::Unknown { cause: "it is away".into() }),
            false => Ok(Box::new(theirs.clone()) as Box<dyn Log>),
        });
        start.pacing.term_every = Duration::from_millis(10);
        start
    };
    assert_eq!(Engine::start(start()).unwrap_err(), Error::Unknown { cause: "it is away".into() });
    let shared = EngineStart { heirs: Some(Arc::new(|_| Err(HandoverError::Alone))), ..start() };
    let engine = Engine::start(shared).unwrap();
    until_seen("it says why it does not serve", || engine.trouble().is_some()).await;
    assert_eq!((engine.needs_restart(), engine.leader_view().borrow().role()), (None, "starting"));
    is_away.store(false, Ordering::Relaxed);
    until_seen("it leads", || engine.leader_view().borrow().role() == "leader").await;
    engine.stop();
}

/// Follows a leader of a newer version. Counts the looks before the log is read, and those after.
struct FollowsNewer(Arc<[AtomicU64; 2]>);

impl Leadership for FollowsNewer {
    fn look(&mut self, own: OwnStanding) -> SeatLook {
        self.0[usize::from(own.is_caught_up)].fetch_add(1, Ordering::Relaxed);
        let leader = LeaderAddress { name: "newer".into(), address: "127.0.0.1:1".into() };
        SeatLook::Follow { term: Term::new(1), leader: Some(leader) }
    }

    fn leader_version(&self) -> Option<String> {
        Some("7.1".into())
    }

    fn hand_over(&mut self, _term: Term, _heir: &Heir) -> Result<(), HandoverError> {
        Err(HandoverError::Alone)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_meets_what_a_newer_version_wrote_says_so_and_does_not_try_for_the_seat() {
    let (log, looks) = (MemoryLog::new(), Arc::new([AtomicU64::new(0), AtomicU64::new(0)]));
    let (theirs, counted) = (log.clone(), looks.clone());
    let mut start = EngineStart::new(short_seat(), move || Ok(Box::new(theirs.clone()) as Box<dyn Log>));
    start.pacing.term_every = Duration::from_millis(10);
    start.leadership = Box::new(FollowsNewer(counted));
    let engine = Engine::start(start).unwrap();
    let mut leader = log.clone();
    let tail = leader.take_seat(Term::default()).unwrap();
    let event = StampedEvent { at: Wall::from_ms(0), event: Event::TermBegan { term: tail.term } };
    let mut body = Vec::new();
    codec::encode_events(&[event], &mut body);
    // Behind the stamp stands the number of the event.
    body[1] = 100;
    let key = BatchKey { term: tail.term, id: BatchId(1), first: Seq(1) };
    leader.append(key, LogRow { count: 1, body: &body }, &[]).unwrap();
    until_seen("it says so", || engine.trouble().is_some()).await;
    let trouble = engine.trouble().unwrap();
    assert!(trouble.contains("newer version") && trouble.contains("runs onward 7.1"), "{trouble}");
    assert_eq!(engine.needs_restart(), None);
    let view = engine.leader_view().borrow().clone();
    assert!(matches!(view, LeaderView::Following { leader: Some(_), .. }), "calls go to the leader: {view:?}");
    let count = |at: usize| looks[at].load(Ordering::Relaxed);
    let (begun, caught_up) = (count(0), count(1));
    until_seen("it has read the log anew", || count(0) >= begun + 3).await;
    assert_eq!(count(1), caught_up, "it has not read the log to its end, and so does not ask whether it may lead");
    engine.stop();
}

/// Leads whenever it can, and hands over whatever it is asked to.
struct HandsOver;

impl Leadership for HandsOver {
    fn look(&mut self, own: OwnStanding) -> SeatLook {
        match own.is_caught_up {
            true => SeatLook::Try,
            false => SeatLook::Follow { term: Term::default(), leader: None },
        }
    }

    fn hand_over(&mut self, _term: Term, _heir: &Heir) -> Result<(), HandoverError> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_that_came_to_nothing_is_not_in_the_way_of_the_next() {
    let log = MemoryLog::new();
    let theirs = log.clone();
    let mut start = EngineStart::new(short_seat(), move || Ok(Box::new(theirs.clone()) as Box<dyn Log>));
    start.pacing.ask_again = Duration::from_millis(1);
    start.leadership = Box::new(HandsOver);
    let leader = LeaderAddress { name: "heir".into(), address: "127.0.0.1:1".into() };
    start.heirs = Some(Arc::new(move |_| Ok(Heir { holder: HolderId(2), leader: leader.clone() })));
    let engine = Engine::start(start).unwrap();
    let (_, call) = submit(&engine, draft());
    while engine.call(call.clone()).await.is_err() {}
    // It waits for what was decided before to be durable, and the term ends first.
    log.doubt(true);
    let before = engine.stats().commits_begun.get();
    let deciding = tokio::spawn({
        let (engine, (_, call)) = (engine.clone(), submit(&engine, draft()));
        async move { engine.call(call).await }
    });
    until_seen("a commit of what was decided", || engine.stats().commits_begun.get() > before).await;
    assert_eq!(engine.hand_over(None).await, Err(HandoverError::TermOver));
    deciding.await.unwrap().unwrap_err();
    log.doubt(false);
    until_seen("a second term", || engine.stats().terms.get() == 2).await;
    assert_eq!(engine.hand_over(None).await, Ok("heir".to_owned()));
    engine.stop();
}

/// An archive of several nodes, and how often one of them asked for what is too old to be removed.
#[derive(Debug)]
struct SharedArchive {
    archive: Arc<EmbeddedArchive>,
    expiries: Arc<AtomicU64>,
}

impl Archive for SharedArchive {
    fn put(&self, jobs: &[ArchivedJob<'_>]) -> Result<(), Error> {
        self.archive.put(jobs)
    }
    fn put_blobs(&self, id: u128, blobs: &[Blob<'_>]) -> Result<(), Error> {
        self.archive.put_blobs(id, blobs)
    }
    fn get(&self, id: u128) -> Result<Option<Vec<u8>>, Error> {
        self.archive.get(id)
    }
    fn blob(&self, id: u128, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error> {
        self.archive.blob(id, digest)
    }
    fn scan(&self, before: Option<u128>, max_rows: usize, max_bytes: usize) -> Result<ScanPage, Error> {
        self.archive.scan(before, max_rows, max_bytes)
    }
    fn count(&self) -> Result<u64, Error> {
        self.archive.count()
    }
    fn expire(&self, now_ms: u64, keep_at_most: u64, max_rows: usize) -> Result<usize, Error> {
        self.expiries.fetch_add(1, Ordering::Relaxed);
        self.archive.expire(now_ms, keep_at_most, max_rows)
    }
    fn under(&self, _term: Term) -> Arc<dyn Archive> {
        Arc::new(Self { archive: self.archive.clone(), expiries: self.expiries.clone() })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_node_that_leads_removes_what_is_too_old() {
    let (log, folder) = (MemoryLog::new(), tempfile::tempdir().unwrap());
    let archive = Arc::new(EmbeddedArchive::open(folder.path()).unwrap());
    let node = || {
        let (log, may_lead) = (log.clone(), Arc::new(AtomicBool::new(false)));
        let own = Arc::new(SharedArchive { archive: archive.clone(), expiries: Arc::default() });
        let mut start = EngineStart::new(short_seat(), move || Ok(Box::new(log.clone()) as Box<dyn Log>));
        start.leadership = Box::new(WhenTold(may_lead.clone()));
        start.archive = Some(own.clone());
        start.pacing = Pacing { expire_every: Duration::from_millis(2), ..start.pacing };
        (Engine::start(start).expect("a log in memory can be opened"), may_lead, own)
    };
    let ((one, one_may_lead, by_one), (other, other_may_lead, by_other)) = (node(), node());
    let asked = |archive: &SharedArchive| archive.expiries.load(Ordering::Relaxed);
    one_may_lead.store(true, Ordering::Relaxed);
    until_seen("the one that leads asks", || asked(&by_one) > 20).await;
    assert_eq!(asked(&by_other), 0, "the other follows");
    one_may_lead.store(false, Ordering::Relaxed);
    other_may_lead.store(true, Ordering::Relaxed);
    until_seen("the first follows", || one.leader_view().borrow().role() == "follower").await;
    let (before, by_heir) = (asked(&by_one), asked(&by_other));
    until_seen("its heir asks", || asked(&by_other) > by_heir + 20).await;
    // It may have been about to ask when it lost the seat.
    assert!(asked(&by_one) <= before + 1, "{} after {before}", asked(&by_one));
    one.stop();
    other.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_a_log_that_hangs_no_longer_than_anybody_does() {
    let (make, has_entered, open, _) = GatedLog::over(MemoryLog::new());
    let engine = tokio::task::block_in_place(|| Engine::start(EngineStart::new(short_seat(), make)).unwrap());
    has_entered.recv().unwrap();
    open.send(()).unwrap(); // the beginning of the term
    until_seen("it serves", || engine.stats().commits.get() == 1).await;
    let (_, call) = submit(&engine, draft());
    let hanging = tokio::spawn({
        let engine = engine.clone();
        async move { engine.call(call).await }
    });
    has_entered.recv().unwrap();
    // The gate stays shut: this append never returns.
    let stopping = tokio::task::spawn_blocking({
        let engine = engine.clone();
        move || engine.stop()
    });
    tokio::time::timeout(PATIENCE, stopping).await.expect("it does not wait for the log").unwrap();
    let answer = tokio::time::timeout(PATIENCE, hanging).await.expect("nor does who asked").unwrap();
    assert!(matches!(&answer, Err(EngineRefusal::Unavailable(why)) if why.contains("not known")), "{answer:?}");
    drop(open);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_when_a_term_ends_in_doubt_is_told_that_it_is_not_known() {
    let log = MemoryLog::new();
    let theirs = log.clone();
    let mut start = EngineStart::new(short_seat(), move || Ok(Box::new(theirs.clone()) as Box<dyn Log>));
    start.pacing.ask_again = Duration::from_millis(1);
    let engine = Engine::start(start).unwrap();
    let (first, call) = submit(&engine, draft());
    while engine.call(call.clone()).await.is_err() {}
    // For longer than a seat is held nobody knows what became of it.
    log.doubt(true);
    let (id, call) = submit(&engine, draft());
    let answer = engine.call(call).await;
    assert!(matches!(&answer, Err(EngineRefusal::Unavailable(why)) if why.contains("not known")), "{answer:?}");
    until_seen("the node says so", || engine.trouble().is_some()).await;
    assert_eq!(engine.needs_restart(), None);
    log.doubt(false);
    until_seen("a second term", || engine.stats().terms.get() == 2).await;
    let found = async |job| loop {
        if let Ok(state) = engine.read(move |view| view.manager.job(job).map(|job| job.state)).await {
            return state;
        }
    };
    assert_eq!((found(first).await, found(id).await), (Some(JobState::Ready), Some(JobState::Ready)), "it was stored");
    engine.stop();
}
