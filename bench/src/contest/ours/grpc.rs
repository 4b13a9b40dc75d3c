//! Through gRPC: submissions by a stream, work by a session.

use std::path::Path;
use std::time::{Duration, Instant};

use onward_proto::v1::job_service_client::JobServiceClient;
use onward_proto::v1::worker_service_client::WorkerServiceClient;
use onward_proto::v1::{
    Assignment, Beat, Claim, Draft, Hello, ManagerFrame, Settlement, SubmitAnswer, SubmitRequest, Succeed, WorkerFrame,
    WorkflowDraft, beat_answer, settlement,
};
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::{Instant as Tick, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::program::NodeProcess;
use super::{KIND, about, number_of, payload, program};
use crate::contest::{BATCH, Contender, ContestError, PeerInfo, StartedPeer};

/// Beats in a frame, and frames that wait for their answers.
const BEATS: usize = 1_000;
const FRAMES: usize = 4;
/// Larger than what a manager puts into a frame.
const MAX_FRAME: usize = 64 << 20;

#[derive(Debug)]
pub struct Grpc;

#[derive(Debug)]
pub struct OverGrpc {
    pub node: NodeProcess,
    submissions: Submissions,
    submitted: u64,
    settled: u64,
    sessions: u32,
}

impl Contender for Grpc {
    type Running = OverGrpc;

    fn about(&self) -> PeerInfo {
        about("Onward, gRPC")
    }

    fn missing(&self) -> Option<String> {
        program::program().err().map(|error| error.to_string())
    }

    async fn start(&self, folder: &Path) -> Result<OverGrpc, ContestError> {
        OverGrpc::on(NodeProcess::start(folder)?).await
    }
}

impl OverGrpc {
    pub async fn on(node: NodeProcess) -> Result<Self, ContestError> {
        let submissions = Submissions::open(&node).await?;
        Ok(Self { node, submissions, submitted: 0, settled: 0, sessions: 0 })
    }

    async fn submit(&mut self, batch: usize) -> Result<(), ContestError> {
        let jobs = (0..batch as u64).map(|one| draft(self.submitted + one)).collect();
        self.submit_drafts(jobs).await
    }

    pub async fn submit_drafts(&mut self, jobs: Vec<Draft>) -> Result<(), ContestError> {
        let count = jobs.len() as u64;
        self.submissions.send(jobs).await?;
        self.submissions.accepted(count).await?;
        self.submitted += count;
        Ok(())
    }

    pub async fn session(&mut self, slots: usize, kinds: Vec<String>) -> Result<BenchSession, ContestError> {
        self.sessions += 1;
        let hello = Hello {
            worker: format!("bench-{}", self.sessions),
            incarnation: "1".into(),
            queues: vec!["default".into()],
            kinds,
            slots: u32::try_from(slots)?,
            holding: Vec::new(),
            fetches_inputs: false,
        };
        // A connection of its own, as a worker has.
        BenchSession::open(connect(&self.node).await?, hello).await
    }

    /// Settles jobs as they come, until so many have been.
    async fn settle(&mut self, mut session: BenchSession, jobs: u64) -> Result<Duration, ContestError> {
        let begun = Instant::now();
        let settled = session.settle_some(&mut Vec::new(), jobs).await?;
        let taken = begun.elapsed();
        self.settled += settled;
        session.close().await?;
        Ok(taken)
    }
}

impl StartedPeer for OverGrpc {
    async fn enqueue(&mut self, batch: usize, time: Duration) -> Result<u64, ContestError> {
        let begun = Instant::now();
        let before = self.submitted;
        while begun.elapsed() < time {
            self.submit(batch).await?;
        }
        Ok(self.submitted - before)
    }

    async fn fill(&mut self, jobs: u64) -> Result<(), ContestError> {
        let end = self.submitted + jobs;
        while self.submitted < end {
            self.submit((end - self.submitted).min(4 * BATCH as u64) as usize).await?;
        }
        Ok(())
    }

    async fn drain(&mut self, jobs: u64, in_flight: usize) -> Result<Duration, ContestError> {
        let session = self.session(in_flight, vec![KIND.into()]).await?;
        self.settle(session, jobs).await
    }

    async fn latency(&mut self, jobs: u64, every: Duration) -> Result<Vec<Duration>, ContestError> {
        let mut session = self.session(64, vec![KIND.into()]).await?;
        let first = self.submitted;
        let begun = Tick::now() + every;
        let mut taken = vec![None; jobs as usize];
        let Submissions { out, mut answers } = Submissions::open(&self.node).await?;
        let submitting = tokio::spawn(async move {
            let mut sent = Vec::new();
            for number in first..first + jobs {
                sleep_until(begun + every * u32::try_from(number - first).expect("few")).await;
                sent.push(Instant::now());
                // Its answer is not waited for: a slow one must not put off the next submission.
                out.send(SubmitRequest { jobs: vec![draft(number)] }).await?;
            }
            Ok::<_, ContestError>(sent)
        });
        let answered = tokio::spawn(async move {
            for _ in 0..jobs {
                accepted_by(&mut answers, 1).await?;
            }
            Ok::<_, ContestError>(())
        });
        let mut settled = 0;
        while settled < jobs {
            let frame = session.hear().await?;
            let now = Instant::now();
            settled += accepted(&frame)?;
            for assignment in &frame.assignments {
                let number = number_of(&assignment.payload).ok_or("a payload that is not ours")?;
                taken[(number - first) as usize] = Some(now);
            }
            let settlements = frame.assignments.into_iter().map(success).collect::<Result<Vec<_>, _>>()?;
            session.say(WorkerFrame { settlements, probe_answers: frame.probes, ..WorkerFrame::default() }).await?;
        }
        let sent = submitting.await??;
        answered.await??;
        session.close().await?;
        self.submitted += jobs;
        self.settled += settled;
        let waits = taken
            .into_iter()
            .zip(sent)
            .map(|(taken, sent)| Ok(taken.ok_or("a job did not come")?.duration_since(sent)));
        waits.collect()
    }

    async fn touch(&mut self, leases: u64, time: Duration) -> Result<Option<u64>, ContestError> {
        let mut session = self.session(leases as usize, vec![KIND.into()]).await?;
        let mut held: Vec<Claim> = Vec::new();
        while (held.len() as u64) < leases {
            let frame = session.hear().await?;
            held.extend(frame.assignments.into_iter().filter_map(|assignment| assignment.claim));
            session.answer(frame.probes).await?;
        }
        let (mut sent, mut answered, mut watermark) = (0, 0, 0);
        let mut claims = held.iter().cycle();
        let begun = Instant::now();
        loop {
            while sent < answered + (FRAMES * BEATS) as u64 && begun.elapsed() < time {
                watermark += 1;
                let beat =
                    |claim: &Claim| Beat { claim: Some(claim.clone()), watermark: Some(watermark), ..Beat::default() };
                let beats = claims.by_ref().take(BEATS).map(beat).collect();
                session.say(WorkerFrame { beats, ..WorkerFrame::default() }).await?;
                sent += BEATS as u64;
            }
            if sent == answered {
                break;
            }
            let frame = session.hear().await?;
            for answer in &frame.beat_answers {
                match &answer.answer {
                    Some(beat_answer::Answer::Accepted(accepted)) if accepted.lease_remaining_ms > 0 => answered += 1,
                    other => return Err(format!("a beat did not renew its lease: {other:?}").into()),
                }
            }
            session.answer(frame.probes).await?;
        }
        let taken = begun.elapsed();
        for some in held.chunks(BEATS) {
            let settlements = some.iter().cloned().map(succeeded).collect();
            session.say(WorkerFrame { settlements, ..WorkerFrame::default() }).await?;
        }
        let mut settled = 0;
        while settled < leases {
            settled += accepted(&session.hear().await?)?;
        }
        self.settled += settled;
        session.close().await?;
        Ok(Some((answered as f64 * time.as_secs_f64() / taken.as_secs_f64()) as u64))
    }

    async fn clear(&mut self) -> Result<(), ContestError> {
        match self.submitted - self.settled {
            0 => Ok(()),
            left => self.drain(left, 1_024).await.map(drop),
        }
    }

    async fn rest(&mut self) -> Result<(), ContestError> {
        self.node.rest().await
    }
}

/// A stream of submissions, on a connection of its own.
#[derive(Debug)]
struct Submissions {
    out: Sender<SubmitRequest>,
    answers: Streaming<SubmitAnswer>,
}

impl Submissions {
    async fn open(node: &NodeProcess) -> Result<Self, ContestError> {
        let (out, requests) = channel(8);
        let mut client = JobServiceClient::new(connect(node).await?);
        Ok(Self { out, answers: client.submit_stream(ReceiverStream::new(requests)).await?.into_inner() })
    }

    async fn send(&self, jobs: Vec<Draft>) -> Result<(), ContestError> {
        Ok(self.out.send(SubmitRequest { jobs }).await?)
    }

    async fn accepted(&mut self, count: u64) -> Result<(), ContestError> {
        accepted_by(&mut self.answers, count).await
    }
}

async fn accepted_by(answers: &mut Streaming<SubmitAnswer>, count: u64) -> Result<(), ContestError> {
    let answer = answers.message().await?.ok_or("the node ended the stream")?;
    match (answer.refused, answer.jobs.len() as u64) {
        (None, accepted) if accepted == count => Ok(()),
        (refused, accepted) => Err(format!("{accepted} of {count} jobs were accepted: {refused:?}").into()),
    }
}

/// The session of one worker.
#[derive(Debug)]
pub struct BenchSession {
    out: Sender<WorkerFrame>,
    frames: Streaming<ManagerFrame>,
}

impl BenchSession {
    async fn open(channel: Channel, hello: Hello) -> Result<Self, ContestError> {
        let (out, frames) = channel_of_frames();
        out.send(WorkerFrame { hello: Some(hello), ..WorkerFrame::default() }).await?;
        let mut client = WorkerServiceClient::new(channel).max_decoding_message_size(MAX_FRAME);
        Ok(Self { out, frames: client.session(frames).await?.into_inner() })
    }

    pub async fn hear(&mut self) -> Result<ManagerFrame, ContestError> {
        Ok(self.frames.message().await?.ok_or("the node ended the session")?)
    }

    /// Settles what is in hand and what comes, until so many have been or a few more. What is in hand then is left.
    pub async fn settle_some(&mut self, in_hand: &mut Vec<Assignment>, jobs: u64) -> Result<u64, ContestError> {
        let mut settled = 0;
        loop {
            let settlements = in_hand.drain(..).map(success).collect::<Result<Vec<_>, _>>()?;
            self.say(WorkerFrame { settlements, ..WorkerFrame::default() }).await?;
            let frame = self.hear().await?;
            settled += accepted(&frame)?;
            *in_hand = frame.assignments;
            self.answer(frame.probes).await?;
            if settled >= jobs {
                return Ok(settled);
            }
        }
    }

    async fn say(&self, frame: WorkerFrame) -> Result<(), ContestError> {
        let says_something =
            !(frame.settlements.is_empty() && frame.beats.is_empty() && frame.probe_answers.is_empty());
        if says_something {
            self.out.send(frame).await?;
        }
        Ok(())
    }

    /// Returns when the node has seen it: what is submitted from now on does not come to this session.
    pub async fn close(self) -> Result<(), ContestError> {
        let Self { out, mut frames } = self;
        drop(out);
        while frames.message().await?.is_some() {}
        Ok(())
    }

    pub async fn answer(&self, probe_answers: Vec<u32>) -> Result<(), ContestError> {
        self.say(WorkerFrame { probe_answers, ..WorkerFrame::default() }).await
    }
}

fn channel_of_frames() -> (Sender<WorkerFrame>, ReceiverStream<WorkerFrame>) {
    let (out, frames) = channel(8);
    (out, ReceiverStream::new(frames))
}

async fn connect(node: &NodeProcess) -> Result<Channel, ContestError> {
    let endpoint = Endpoint::from_shared(node.url.clone())?.tcp_nodelay(true);
    Ok(endpoint.initial_stream_window_size(8 << 20).initial_connection_window_size(8 << 20).connect().await?)
}

fn draft(number: u64) -> Draft {
    let workflow =
        WorkflowDraft { kind: KIND.into(), payload: payload(number).to_vec().into(), ..WorkflowDraft::default() };
    Draft { workflows: vec![workflow], ..Draft::default() }
}

fn succeeded(claim: Claim) -> Settlement {
    Settlement { claim: Some(claim), report: Some(settlement::Report::Succeed(Succeed::default())) }
}

fn success(assignment: Assignment) -> Result<Settlement, ContestError> {
    Ok(succeeded(assignment.claim.ok_or("an assignment without a claim")?))
}

fn accepted(frame: &ManagerFrame) -> Result<u64, ContestError> {
    match frame.settle_answers.iter().find_map(|answer| answer.refused.as_ref()) {
        Some(refused) => Err(format!("an outcome was refused: {}", refused.text).into()),
        None => Ok(frame.settle_answers.len() as u64),
    }
}
