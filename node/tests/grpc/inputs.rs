//! What an attempt needs, on its way to a worker: in the frame, by reference, or not at all.

use std::time::Duration;

use onward_core::fence::AttemptFence;
use onward_core::health::verdict::Verdict;
use onward_core::ids::{Bytes, Claim, ClientId, Incarnation, JobId, Name, WorkerId};
use onward_core::input::{Call, Poll, Submission};
use onward_core::job::draft::WorkflowDraft;
use onward_core::job::{Draft, Ending, JobState, Retry};
use onward_core::manager::WorkflowView;
use onward_core::message::{Assignment, EndReport, FromWorker, Settlement, Subscription, ToWorker};
use onward_core::payload::{Digest, Payload};
use onward_log::{Log, MemoryLog};
use onward_node::engine::DeliveryLimits;
use onward_proto::v1::worker_service_client::WorkerServiceClient;
use onward_proto::v1::{FetchInputRequest, WorkerFrame};
use onward_proto::worker::fetch_out;
use onward_proto::{manager::ManagerMessage, worker};
use tonic::{Code, Status};

use crate::rig::{Node, Worker, code, field, hello, soon, succeed};

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn content(n: u8, bytes: usize) -> Bytes {
    vec![n; bytes].into()
}

/// A retry policy of so many attempts, without a pause.
fn attempts(max_attempts: u32) -> Option<Retry> {
    Some(Retry { max_attempts, base: Duration::ZERO, max: Duration::ZERO })
}

async fn submit(node: &Node, draft: Draft) -> JobId {
    let id = node.engine.new_job_id();
    soon(node.engine.call(Call::Submit(vec![Submission { id, draft }]))).await.expect("accepted");
    id
}

/// A job whose last workflow is ready, and has these inputs: `part-0`, `part-1` and so on.
async fn join_of(node: &Node, results: &[Bytes]) -> JobId {
    let part = |n| format!("part-{n}");
    let workflow = |name: String, kind: &str, after: Vec<String>| WorkflowDraft {
        name: Some(name.into()),
        kind: kind.into(),
        after: after.into_iter().map(Into::into).collect(),
        ..WorkflowDraft::default()
    };
    let mut workflows: Vec<_> = (0..results.len()).map(|n| workflow(part(n), "part", vec![])).collect();
    workflows.push(workflow("join".into(), "echo", (0..results.len()).map(part).collect()));
    let id = submit(node, Draft { workflows, retry: attempts(3), ..Draft::default() }).await;
    let poll = Poll {
        worker: WorkerId::new("parts").expect("a name"),
        incarnation: Incarnation::new("1").expect("a name"),
        subscription: Subscription { queues: vec![name("default")], kinds: vec![name("part")] },
        max: results.len() as u32,
        wait: Duration::from_secs(60),
        lease: Duration::from_secs(600),
        id: None,
        client: ClientId::default(),
    };
    let (leases, mut delivery) = soon(node.engine.poll(poll)).await.expect("they are ready");
    delivery.done();
    let settle = leases.iter().map(|lease| {
        let result = results[usize::from(lease.claim.workflow)].clone();
        Settlement::new(lease.claim, EndReport::Succeed { result: result.into() })
    });
    soon(node.engine.call(Call::Settle(settle.collect()))).await.expect("settled");
    id
}

/// A worker that says that it fetches inputs.
async fn fetching(node: &Node, id: &str, incarnation: &str) -> Worker {
    let mut frame = WorkerFrame::default();
    worker::put(&mut frame, hello(id, incarnation, 1, vec![]));
    frame.hello.as_mut().expect("it was put").fetches_inputs = true;
    let mut worker = Worker::open(node).await.expect("a session");
    worker.send(frame).await;
    assert!(matches!(worker.hear().await, ManagerMessage::Welcome { .. }));
    worker
}

async fn fetch(node: &Node, claim: Claim, workflow: &str) -> Result<bytes::Bytes, Status> {
    fetch_as(node, fetch_out(claim, &name(workflow))).await
}

async fn fetch_as(node: &Node, asked: FetchInputRequest) -> Result<bytes::Bytes, Status> {
    let answer = soon(WorkerServiceClient::new(node.channel().await).fetch_input(asked)).await?;
    Ok(answer.into_inner().result)
}

fn refused(answer: Result<bytes::Bytes, Status>) -> (Code, String) {
    let status = answer.expect_err("it is refused");
    (status.code(), code(&status).unwrap_or_default().to_owned())
}

async fn last_workflow(node: &Node, job: JobId) -> WorkflowView {
    node.job(job).await.workflows.pop().expect("it has one")
}

async fn until_failed(node: &Node, job: JobId) -> WorkflowView {
    soon(async { while node.job(job).await.state != JobState::Failed {} }).await;
    last_workflow(node, job).await
}

fn errors(workflow: &WorkflowView) -> Vec<&str> {
    workflow.ended.iter().map(|ended| error_of(&ended.ending)).collect()
}

fn error_of(ending: &Ending) -> &str {
    match ending {
        Ending::Failed { error, retryable: true, .. } => error,
        other => panic!("not a failure that is tried again: {other:?}"),
    }
}

/// Limits on what a session takes at once.
fn narrow() -> DeliveryLimits {
    DeliveryLimits { frame_inputs: 2_000, poll_inputs: 2_000, assignment: 10_000 }
}

fn drop_content(log: &MemoryLog, content: &[u8]) {
    let mut log = log.clone();
    let term = log.tail().expect("in memory").term;
    log.drop_blobs(term, &[Digest::of(content).0]).expect("the node has the seat");
}

#[tokio::test]
async fn inputs_that_are_large_together_come_by_reference_and_are_fetched_by_the_claim() {
    let node = Node::start().await;
    let results = [content(1, 1 << 20), content(2, 1 << 20), content(3, 1 << 20), content(4, 10)];
    let job = join_of(&node, &results).await;
    let mut worker = fetching(&node, "w", "1").await;
    let Assignment { claim, inputs, .. } = worker.assignment().await;
    let by_reference: Vec<bool> = inputs.iter().map(|(_, input)| input.as_stored().is_some()).collect();
    assert_eq!((claim.job, by_reference), (job, vec![true, true, true, false]), "what is small goes along");
    for ((name, input), result) in inputs.iter().zip(&results) {
        assert_eq!(*input, Payload::from(result.clone()), "the reference is to the content");
        assert!(fetch(&node, claim, name.as_str()).await.expect("it is ours") == **result, "{name}");
    }

    for workflow in ["join", "part-9"] {
        assert_eq!(refused(fetch(&node, claim, workflow).await), (Code::NotFound, "unknown_workflow".into()));
    }
    let nameless = FetchInputRequest { claim: Some(claim.into()), workflow: String::new() };
    let status = fetch_as(&node, nameless).await.expect_err("no name");
    assert_eq!((status.code(), field(&status)), (Code::InvalidArgument, Some("workflow")));

    worker.say([FromWorker::Settle(vec![succeed(claim)])]).await;
    assert_eq!(worker.hear().await, ManagerMessage::SettleAnswer { claim, answer: Ok(()) });
    let over = (Code::FailedPrecondition, "already_ended".to_owned());
    assert_eq!(refused(fetch(&node, claim, "part-0").await), over, "its attempt has ended");
}

#[tokio::test]
async fn nobody_fetches_for_an_attempt_that_another_has() {
    let node = Node::on_log(&MemoryLog::new(), narrow()).await;
    join_of(&node, &[content(1, 5_000)]).await;
    let zombie = fetching(&node, "w", "first life").await.assignment().await.claim;
    let claim = fetching(&node, "w", "second life").await.assignment().await.claim;
    assert!(claim.fence > zombie.fence);
    let stale = (Code::FailedPrecondition, "stale_attempt".to_owned());
    assert_eq!(refused(fetch(&node, zombie, "part-0").await), stale);
    let never = Claim { fence: AttemptFence::from_raw(claim.fence.get() + 1), ..claim };
    assert_eq!(refused(fetch(&node, never, "part-0").await), (Code::NotFound, "unknown_attempt".into()));
    assert_eq!(fetch(&node, claim, "part-0").await.expect("it is ours"), *content(1, 5_000));
}

#[tokio::test]
async fn a_worker_that_fetches_nothing_gets_everything_in_the_frame() {
    let node = Node::start().await;
    let results = [content(1, 1 << 20), content(2, 1 << 20), content(3, 1 << 20)];
    join_of(&node, &results).await;
    let mut worker = Worker::welcome(&node, "old", "1", 1, vec![]).await;
    let inputs = worker.assignment().await.inputs;
    let given: Vec<&Bytes> = inputs.iter().filter_map(|(_, input)| input.as_inline()).collect();
    assert!(given.into_iter().eq(&results));
}

#[tokio::test]
async fn what_no_frame_carries_counts_and_ends_in_the_dead_letters_and_blames_nobody() {
    let node = Node::on_log(&MemoryLog::new(), narrow()).await;
    let results = [content(1, 5_000), content(2, 5_000)];
    let mut poison = Vec::new();
    for _ in 0..3 {
        poison.push(join_of(&node, &results).await);
    }
    let mut old = Worker::welcome(&node, "old", "1", 1, vec![]).await;
    for job in poison {
        let join = until_failed(&node, job).await;
        let errors = errors(&join);
        assert_eq!((errors.len(), join.counted), (3, 3));
        assert!(
            errors.iter().all(|error| error.contains("bytes together") && error.contains("`fetches_inputs`")),
            "{errors:?}"
        );
        let dead = node.engine.read(move |view| view.manager.state().job(view.manager.state().find(job).unwrap()).dead);
        assert_eq!(soon(dead).await, Ok(true));
    }
    // Nine failures over three jobs would be its end, were they its own.
    assert_eq!(node.worker("old").await.expect("known").judgement.verdict, Verdict::Healthy);
    let other = node.submit_one().await;
    assert_eq!(old.assignment().await.claim.job, other, "its session goes on");
    drop(old);

    // A worker that fetches can have it.
    let job = join_of(&node, &results).await;
    let mut new = fetching(&node, "new", "1").await;
    let assignment = new.assignment().await;
    assert_eq!((assignment.claim.job, assignment.attempt), (job, 1));
    assert_eq!(fetch(&node, assignment.claim, "part-1").await.expect("it is ours"), *results[1]);
}

/// However many attempts wait for it, and however slowly it reads.
#[tokio::test]
async fn a_session_holds_little_more_than_a_frame_of_content() {
    const BYTES: usize = 300_000;
    let node = Node::start().await;
    let drafts = (0..20).map(|n| Draft::of_kind("echo", content(n, BYTES)));
    let submissions = drafts.map(|draft| Submission { id: node.engine.new_job_id(), draft }).collect();
    soon(node.engine.call(Call::Submit(submissions))).await.expect("accepted");
    let mut session = node.engine.open_session();
    session.send(hello("w", "1", 20, vec![]));
    let mut heard = 0;
    while heard < 20 {
        let mut told = Vec::new();
        soon(session.receive(&mut told, 1_000)).await.expect("it is open");
        let assigned = told.iter().filter(|message| matches!(message, ToWorker::Assign(_))).count();
        assert!((assigned - 1.min(assigned)) * BYTES <= 1 << 20, "{assigned} at once");
        heard += assigned;
    }
}

#[tokio::test]
async fn content_that_is_missing_counts() {
    let log = MemoryLog::new();
    let node = Node::on_log(&log, DeliveryLimits::default()).await;
    let payload = content(9, 5_000);
    let draft = Draft { retry: attempts(2), ..Draft::of_kind("echo", payload.clone()) };
    let job = submit(&node, draft).await;
    drop_content(&log, &payload);
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    let lost = until_failed(&node, job).await;
    assert_eq!(lost.counted, 2);
    assert!(errors(&lost).iter().all(|error| error.contains("missing from the store; restore a backup")));
    let other = node.submit_one().await;
    assert_eq!(worker.assignment().await.claim.job, other, "its session goes on");
}

#[tokio::test]
async fn an_input_that_is_missing_when_it_is_fetched_ends_the_attempt() {
    let log = MemoryLog::new();
    let node = Node::on_log(&log, narrow()).await;
    let results = [content(1, 5_000), content(2, 6_000)];
    let job = join_of(&node, &results).await;
    let mut worker = fetching(&node, "w", "1").await;
    let claim = worker.assignment().await.claim;
    drop_content(&log, &results[1]);
    assert_eq!(fetch(&node, claim, "part-0").await.expect("it is there"), *results[0]);
    assert_eq!(refused(fetch(&node, claim, "part-1").await), (Code::DataLoss, "damaged".into()));
    assert!(worker.assignment().await.claim.fence > claim.fence, "it counts, and is tried again");
    let ended = last_workflow(&node, job).await;
    assert!(errors(&ended)[0].contains("missing from the store"), "{ended:?}");
}

#[tokio::test]
async fn a_store_that_cannot_be_read_counts_nothing() {
    let log = MemoryLog::new();
    let node = Node::on_log(&log, narrow()).await;
    let results = [content(1, 5_000), content(2, 6_000)];
    let mut worker = fetching(&node, "w", "1").await;
    let job = join_of(&node, &results).await;
    let claim = worker.assignment().await.claim;
    log.fail_blobs(true);
    assert_eq!(refused(fetch(&node, claim, "part-0").await), (Code::Unavailable, "no_leader".into()));
    log.fail_blobs(false);
    assert_eq!(fetch(&node, claim, "part-0").await.expect("the attempt goes on"), *results[0]);
    worker.say([FromWorker::Settle(vec![succeed(claim)])]).await;
    assert_eq!(worker.hear().await, ManagerMessage::SettleAnswer { claim, answer: Ok(()) });
    assert_eq!(last_workflow(&node, job).await.counted, 1);

    // The same for what goes into the frame: the session ends, and the hand-out has never arrived.
    log.fail_blobs(true);
    let job = submit(&node, Draft { retry: attempts(1), ..Draft::of_kind("echo", content(9, 5_000)) }).await;
    assert_eq!(worker.end().await.expect_err("it is closed").code(), Code::Unavailable);
    log.fail_blobs(false);
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    let assignment = worker.assignment().await;
    assert_eq!((assignment.claim.job, assignment.attempt), (job, 1));
    let ended = last_workflow(&node, job).await.ended;
    assert_eq!(ended.iter().map(|ended| ended.ending.code()).collect::<Vec<_>>(), ["never_arrived"]);
}
