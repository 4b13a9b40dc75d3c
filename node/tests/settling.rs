//! After a time in which the machine could not run: what was said by the time that the log confirms the seat comes
//! before any timer, also what stands in line behind the log's answer.

#[path = "rig/waiting.rs"]
mod waiting;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::ids::{Claim, ClientId, Incarnation, Name, Seq, WorkerId};
use onward_core::input::{Call, Submission};
use onward_core::job::{Draft, JobState};
use onward_core::message::{FromWorker, Hello, Report, Settlement, Subscription, ToWorker};
use onward_core::settings::Settings;
use onward_log::{Batch, BatchKey, Blob, BlobReader, Digest, Error, Log, MemoryLog, Snapshot, Tail};
use onward_node::clock;
use onward_node::engine::{Engine, Session, Start, View};
use tokio::task::{block_in_place, yield_now};
use waiting::until_seen;

const JOBS: usize = 200;
const GAP: Duration = Duration::from_millis(50);
/// Long enough to be handed out within.
const TIMEOUT: Duration = Duration::from_secs(3);

const NONE: u8 = 0;
const WAIT: u8 = 1;
const DOUBT: u8 = 2;

/// A log that can be made not to know whose the seat is, and then to wait when it is asked again.
#[derive(Clone)]
struct Asked {
    log: MemoryLog,
    trouble: Arc<AtomicU8>,
    entered: Sender<()>,
    gate: Arc<Mutex<Receiver<()>>>,
}

impl Log for Asked {
    fn tail(&mut self) -> Result<Tail, Error> {
        match self.trouble.load(Ordering::SeqCst) {
            DOUBT => {
                self.trouble.store(WAIT, Ordering::SeqCst);
                return Err(Error::Unknown { cause: "it does not know".into() });
            }
            WAIT => {
                self.trouble.store(NONE, Ordering::SeqCst);
                let _ = self.entered.send(());
                let _ = self.gate.lock().unwrap().recv();
            }
            _ => {}
        }
        self.log.tail()
    }
    fn take_seat(&mut self) -> Result<Tail, Error> {
        self.log.take_seat()
    }
    fn append(&mut self, key: BatchKey, events: &[StampedEvent], blobs: &[Blob<'_>]) -> Result<(), Error> {
        self.log.append(key, events, blobs)
    }
    fn blob(&mut self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        self.log.blob(digest)
    }
    fn blob_reader(&self) -> BlobReader {
        self.log.blob_reader()
    }
    fn blobs(&mut self, after: Option<&Digest>, max: usize) -> Result<Vec<Digest>, Error> {
        self.log.blobs(after, max)
    }
    fn drop_blobs(&mut self, term: Term, digests: &[Digest]) -> Result<(), Error> {
        self.log.drop_blobs(term, digests)
    }
    fn read(&mut self, from: Seq, max_events: usize) -> Result<Vec<Batch>, Error> {
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

/// A worker that was handed all the jobs, each of which ends soon unless it succeeds.
async fn working_session(engine: &Engine) -> (Session, Vec<Claim>) {
    let mut session = engine.open_session();
    session.say(FromWorker::Hello(Hello {
        worker: WorkerId::new("w").unwrap(),
        incarnation: Incarnation::new("1").unwrap(),
        subscription: Subscription {
            queues: vec![Name::new("default").unwrap()],
            kinds: vec![Name::new("resize").unwrap()],
        },
        slots: JOBS as u32,
        holding: vec![],
        client: ClientId::default(),
    }));
    let draft = || Draft { timeout: Some(TIMEOUT), ..Draft::of_kind("resize", *b"1") };
    let submissions = (0..JOBS).map(|_| Submission { id: engine.new_job_id(), draft: draft() }).collect();
    engine.call(Call::Submit(submissions)).await.unwrap();
    let (mut heard, mut claims) = (Vec::new(), Vec::new());
    while claims.len() < JOBS {
        session.hear(&mut heard, JOBS).await.unwrap();
        claims.extend(heard.drain(..).filter_map(|message| match message {
            ToWorker::Assign(assignment) => Some(assignment.claim),
            _ => None,
        }));
    }
    (session, claims)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_behind_the_answer_about_the_seat_comes_before_timers() {
    let ((entered, has_entered), (open, gate)) = (channel(), channel());
    let trouble = Arc::new(AtomicU8::new(NONE));
    let log = Asked { log: MemoryLog::new(), trouble: trouble.clone(), entered, gate: Arc::new(Mutex::new(gate)) };
    let rules = Settings { seat_ttl: Duration::from_secs(600), gap_after: GAP, ..Settings::default() };
    let make = move || Ok(Box::new(log.clone()) as Box<dyn Log>);
    let engine = Engine::start(Start::new(rules.check().unwrap(), make)).unwrap();
    let (mut session, claims) = working_session(&engine).await;
    let deadline = clock::mono() + TIMEOUT;

    // The machine does not run until all of the jobs should have ended, and is late by more than a gap.
    trouble.store(DOUBT, Ordering::SeqCst);
    let (_says_nothing, silence) = channel::<()>();
    let freeze = move |view: &View<'_>| {
        let wake = view.manager.next_wakeup().expect("there are timers").0;
        let until = deadline.max(wake) + 2 * GAP;
        let _ = silence.recv_timeout(until.since(clock::mono()));
    };
    engine.read(freeze).await.unwrap();
    block_in_place(|| has_entered.recv()).expect("it asks for its seat");
    // It is busy while the log answers, and while the worker reports.
    let ((is_busy, has_begun), (go_on, told)) = (channel(), channel::<()>());
    engine.check_outputs(vec![claims[0]], None, move |_| {
        is_busy.send(()).unwrap();
        let _ = told.recv();
    });
    block_in_place(|| has_begun.recv()).unwrap();
    open.send(()).unwrap();
    // The doubt is over just before the answer stands in line.
    until_seen("the log answers", || engine.trouble().is_none()).await;
    for claim in &claims {
        let report = Report::Succeed { result: (*b"1").into() };
        session.say(FromWorker::Settle(vec![Settlement::new(*claim, report)]));
        yield_now().await;
    }
    drop(go_on);

    let states = move |view: &View<'_>| claims.iter().map(|claim| view.manager.job(claim.job).unwrap().state).collect();
    let states: Vec<JobState> = engine.read(states).await.unwrap();
    let late = states.iter().filter(|state| **state != JobState::Succeeded).count();
    assert_eq!(late, 0, "what was said in time counts: {states:?}");
    engine.stop();
}
