//! Streams of submissions.

use onward_core::health::overload::{LoadLimits, OverloadLevel, OverloadRule};
use onward_core::ids::JobId;
use onward_core::job::Draft;
use onward_core::settings::Settings;
use onward_proto::draft::{accepted_in, draft_out};
use onward_proto::v1::job_service_client::JobServiceClient;
use onward_proto::v1::{SubmitAnswer, SubmitRequest};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::rig::{MAX_SESSIONS, Node, anybody, code, field, job, settings, soon};

struct Submitter {
    out: UnboundedSender<SubmitRequest>,
    answers: Streaming<SubmitAnswer>,
}

impl Submitter {
    async fn open(node: &Node) -> Self {
        let (out, requests) = unbounded_channel();
        let mut client = JobServiceClient::new(node.channel().await);
        let answers = soon(client.submit_stream(UnboundedReceiverStream::new(requests))).await.expect("a stream");
        Self { out, answers: answers.into_inner() }
    }

    /// Sends a request without waiting for the answer.
    fn send(&self, drafts: Vec<Draft>) {
        let request = SubmitRequest { jobs: drafts.into_iter().map(draft_out).collect() };
        self.out.send(request).expect("the stream is open");
    }

    async fn next(&mut self) -> Result<Option<SubmitAnswer>, Status> {
        soon(self.answers.message()).await
    }

    /// The ids, or the code of the refusal.
    async fn answer(&mut self) -> Result<Vec<JobId>, String> {
        let answer = self.next().await.expect("the stream goes on").expect("an answer");
        match answer.refused {
            Some(refused) => {
                assert!(answer.jobs.is_empty() && !refused.text.is_empty(), "{refused:?}");
                Err(refused.code)
            }
            None => Ok(answer.jobs.iter().map(|one| accepted_in(one).expect("well formed").0).collect()),
        }
    }
}

fn refusal(code: &str) -> Result<Vec<JobId>, String> {
    Err(code.into())
}

#[tokio::test]
async fn a_command_without_a_token_is_forbidden() {
    let node = Node::start().await;
    let refused = node.submit(vec![Draft::of_kind("exec", *b"x")]).await.expect_err("a command needs a token");
    assert_eq!((refused.code(), code(&refused)), (Code::PermissionDenied, Some("exec_needs_token")));
}

#[tokio::test]
async fn each_request_is_answered_in_its_order_and_a_refusal_ends_nothing() {
    let node = Node::start().await;
    let mut stream = Submitter::open(&node).await;
    let keyed = |payload| Draft { idempotency_key: Some("k".into()), ..job(payload) };
    stream.send(vec![keyed("a")]);
    stream.send(vec![job("b"), Draft { priority: 101, ..job("c") }]);
    stream.send(vec![job("d"), keyed("other")]);
    stream.send(vec![]);
    stream.send(vec![Draft::of_kind("exec", *b"x")]);
    stream.send(vec![keyed("a"), job("e")]);

    let first = stream.answer().await.expect("accepted");
    assert_eq!(stream.answer().await, refusal("invalid"), "no such priority");
    assert_eq!(stream.answer().await, refusal("conflict"), "another body under the same key");
    assert_eq!(stream.answer().await, refusal("invalid"), "no jobs");
    assert_eq!(stream.answer().await, refusal("exec_needs_token"), "a command needs a token");
    let last = stream.answer().await.expect("accepted");
    assert_eq!((first.len(), last.len(), first[0]), (1, 2, last[0]), "the same submission gives the same job");
    for id in [first[0], last[1]] {
        assert_eq!(node.job(id).await.id, id);
    }
    let jobs = soon(node.engine.read(|view| view.manager.view().jobs)).await.expect("serving");
    assert_eq!(jobs, 2, "what was refused left nothing behind");

    drop(stream.out);
    assert_eq!(soon(stream.answers.message()).await.expect("a good end"), None);
}

#[tokio::test]
async fn more_than_there_is_room_for_is_read_as_room_comes_back() {
    const MANY: usize = 3_000;
    let node = Node::start().await;
    let mut stream = Submitter::open(&node).await;
    for _ in 0..MANY {
        stream.send(vec![job("x")]);
    }
    let mut ids = Vec::new();
    for _ in 0..MANY {
        ids.extend(stream.answer().await.expect("accepted"));
    }
    assert!(ids.len() == MANY && ids.is_sorted(), "ids count up, and answers come in the order of the requests");
}

#[tokio::test]
async fn what_is_no_request_ends_the_stream_once_what_came_before_is_answered() {
    let node = Node::start().await;
    let mut stream = Submitter::open(&node).await;
    stream.send(vec![job("fine")]);
    let too_large = "x".repeat(onward_proto::MAX_FRAME_BYTES);
    stream.send(vec![job(&too_large)]);
    stream.answer().await.expect("accepted");
    let refused = stream.next().await.expect_err("too large");
    assert_eq!(
        (refused.code(), code(&refused), field(&refused)),
        (Code::InvalidArgument, Some("invalid"), Some("frame"))
    );
}

#[tokio::test]
async fn a_node_that_drains_answers_what_it_has_and_ends_the_stream() {
    let node = Node::start().await;
    let (mut busy, mut idle) = (Submitter::open(&node).await, Submitter::open(&node).await);
    busy.send(vec![job("x")]);
    busy.answer().await.expect("accepted");
    node.draining.send_replace(true);
    for stream in [&mut busy, &mut idle] {
        let ended = stream.next().await.expect_err("it drains");
        assert_eq!((ended.code(), code(&ended)), (Code::Unavailable, Some("no_leader")));
    }
}

#[tokio::test]
async fn a_stream_that_was_opened_in_better_times_is_shed_like_a_call() {
    let far = LoadLimits { busy: 1e9, stressed: 2e9, overloaded: 3e9 };
    let latency_ms = LoadLimits { busy: 1e-9, stressed: 2e-9, ..far };
    let overload = OverloadRule { latency_ms, ..settings().overload };
    let node = Node::with(Settings { overload, ..settings() }, anybody, MAX_SESSIONS).await;
    let mut stream = Submitter::open(&node).await;
    // The first commits are what it judges by.
    soon(async {
        while node.engine.load() != OverloadLevel::Stressed {
            stream.send(vec![job("x")]);
            let _ = stream.answer().await;
        }
    })
    .await;
    stream.send(vec![job("x")]);
    assert_eq!(stream.answer().await, refusal("overloaded"));
    assert!(node.engine.stats().shed_submissions.get() > 0);
}
