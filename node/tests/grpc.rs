//! The gRPC services, from outside: over a socket, with a client made from the same protocol.

#[path = "grpc/inputs.rs"]
mod inputs;
#[path = "grpc/rig.rs"]
mod rig;
#[path = "grpc/submissions.rs"]
mod submissions;

use std::collections::HashSet;

use std::time::Duration;

use onward_core::health::LivenessRule;
use onward_core::health::verdict::Verdict;
use onward_core::ids::{Bytes, Claim, JobId};
use onward_core::job::JobState;
use onward_core::message::{Beat, CancelWhy, EndReport, ExtensionRequest, FromWorker, Settlement};
use onward_core::settings::Settings;
use onward_node::api::access::{Access, Scope};
use onward_proto::manager::ManagerMessage;
use onward_proto::{v1, worker};
use rig::{MAX_SESSIONS, Node, Worker, anybody, code, field, hello, job, soon, succeed};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request};

#[tokio::test]
async fn a_job_goes_from_submission_to_its_result() {
    let node = Node::start().await;
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    let ids = node.submit(vec![job("first"), job("second")]).await.expect("accepted");

    let first = worker.assignment().await;
    assert_eq!((first.claim.job, first.attempt), (ids[0].0, 1));
    assert_eq!((first.workflow.kind.as_str(), &first.workflow.payload), ("echo", &(*b"first").into()));
    assert!(first.lease > Duration::from_secs(200) && first.deadline_remaining > Duration::from_secs(3600));

    let beat = Beat { total: Some(10), note: Some("reading".into()), ..Beat::progress(first.claim, 3) };
    worker.say([FromWorker::Beats(vec![beat])]).await;
    let ManagerMessage::BeatAnswer { claim, answer: Ok(accepted) } = worker.hear().await else {
        panic!("a beat is answered")
    };
    assert!(claim == first.claim && !accepted.cancel && accepted.lease_remaining > Duration::from_secs(200));
    let running = node.job(ids[0].0).await.workflows.remove(0).running.expect("it runs");
    assert_eq!((running.watermark, running.note.as_deref()), (Some((3, Some(10))), Some("reading")));

    worker.say([FromWorker::Settle(vec![succeed(first.claim)])]).await;
    let (mut settled, mut next) = (false, None);
    while !settled || next.is_none() {
        match worker.hear().await {
            ManagerMessage::SettleAnswer { claim, answer: Ok(()) } if claim == first.claim => settled = true,
            ManagerMessage::Assign(assignment) => next = Some(assignment),
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(next.expect("the slot is free").claim.job, ids[1].0);
    assert_eq!(node.job(ids[0].0).await.state, JobState::Succeeded);

    // The same outcome again is answered as before; another one is refused.
    let other = Settlement::new(first.claim, EndReport::Release { delay: None });
    worker.say([FromWorker::Settle(vec![succeed(first.claim), other])]).await;
    assert_eq!(worker.hear().await, ManagerMessage::SettleAnswer { claim: first.claim, answer: Ok(()) });
    let ManagerMessage::SettleAnswer { answer: Err(refused), .. } = worker.hear().await else { panic!("refused") };
    assert_eq!(&*refused.code, "already_ended");
}

#[tokio::test]
async fn probes_that_are_answered_keep_a_worker_live() {
    let liveness = LivenessRule {
        probe_every: Duration::from_millis(50),
        answer_within: Duration::from_secs(60),
        max_misses: 2,
        ..LivenessRule::default()
    };
    let settings = Settings { liveness, ..rig::settings() };
    let node = Node::with(settings, anybody, MAX_SESSIONS).await;
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    let (mut last, mut answered) = (None, 0);
    // Were the answers not heard, it would be Suspect after two probes, and stay so.
    while answered < 6 || node.worker("w").await.expect("known").judgement.verdict != Verdict::Healthy {
        let ManagerMessage::Probe { probe } = worker.hear().await else { panic!("nothing but probes is to be heard") };
        assert_ne!(last.replace(probe), Some(probe));
        worker.say([FromWorker::ProbeAnswer { probe }]).await;
        answered += 1;
    }
    // From now on none is answered.
    node.until_verdict("w", Verdict::Suspect).await;
}

#[tokio::test]
async fn a_worker_that_comes_back_keeps_what_it_holds() {
    let node = Node::start().await;
    let id = node.submit_one().await;
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    let claim = worker.assignment().await.claim;
    drop(worker);

    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![claim]).await;
    worker.say([FromWorker::Settle(vec![succeed(claim)])]).await;
    assert_eq!(worker.hear().await, ManagerMessage::SettleAnswer { claim, answer: Ok(()) });
    let done = node.job(id).await;
    assert_eq!((done.state, done.workflows[0].ended.len()), (JobState::Succeeded, 1));
}

#[tokio::test]
async fn what_a_worker_does_not_hold_is_handed_out_again_and_the_old_claim_is_stale() {
    let node = Node::start().await;
    let id = node.submit_one().await;
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    let lost = worker.assignment().await.claim;
    drop(worker);

    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    let again = worker.assignment().await.claim;
    assert!(again.job == id && again.fence > lost.fence);
    worker.say([FromWorker::Beats(vec![Beat::plain(lost)])]).await;
    let ManagerMessage::BeatAnswer { answer: Err(refused), .. } = worker.hear().await else { panic!("refused") };
    assert_eq!(&*refused.code, "stale_attempt");

    drop(worker);
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![lost, again]).await;
    assert_eq!(worker.hear().await, ManagerMessage::Cancel { claim: lost, why: CancelWhy::Stale });
}

fn code_of<T>(answer: Result<T, onward_proto::manager::RemoteRefusal>) -> Option<String> {
    answer.err().map(|refused| refused.code.into())
}

#[tokio::test]
async fn a_job_in_the_archive_is_answered_for_as_if_it_were_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::with_archive(folder.path()).await;
    let id = node.submit_one().await;
    let mut worker = Worker::welcome(&node, "w", "1", 2, vec![]).await;
    let lost = worker.assignment().await.claim;
    drop(worker);
    let mut worker = Worker::welcome(&node, "w", "1", 2, vec![]).await;
    let claim = worker.assignment().await.claim;
    worker.say([FromWorker::Settle(vec![succeed(claim)])]).await;
    assert_eq!(worker.hear().await, ManagerMessage::SettleAnswer { claim, answer: Ok(()) });
    node.until_archived(id).await;

    node.submit_one().await;
    let held = worker.assignment().await.claim;
    let never = Claim { job: JobId::from_u128(1), ..claim };
    let release = |claim| Settlement::new(claim, EndReport::Release { delay: None });
    // One message after the other, each with answers from memory and from the archive.
    worker.say([FromWorker::Beats([lost, held, claim].map(Beat::plain).to_vec())]).await;
    worker.say([FromWorker::Settle(vec![succeed(claim), succeed(never), succeed(held), release(claim)])]).await;
    worker.say([FromWorker::Settle(vec![succeed(lost), succeed(held), succeed(claim)])]).await;
    let mut beats = Vec::new();
    let mut settled = Vec::new();
    while settled.len() < 7 {
        match worker.hear().await {
            ManagerMessage::BeatAnswer { claim, answer } => beats.push((claim, code_of(answer))),
            ManagerMessage::SettleAnswer { claim, answer } => settled.push((claim, code_of(answer))),
            other => panic!("unexpected: {other:?}"),
        }
    }
    let refused = |claim, code: &str| (claim, Some(code.to_owned()));
    assert_eq!(beats, [refused(lost, "stale_attempt"), (held, None), refused(claim, "already_ended")]);
    let first = [(claim, None), refused(never, "unknown_job"), (held, None), refused(claim, "already_ended")];
    assert_eq!(settled[..4], first);
    assert_eq!(settled[4..], [refused(lost, "stale_attempt"), (held, None), (claim, None)]);

    let (reason, estimated_remaining) = ("long_workflow".into(), None);
    let asked = ExtensionRequest { claims: vec![claim], reason, progress: 0.5, estimated_remaining };
    worker.say([FromWorker::RequestExtension(asked)]).await;
    let ManagerMessage::ExtensionAnswer { result, .. } = worker.hear().await else { panic!("an answer") };
    assert_eq!(code_of(result).as_deref(), Some("stale_attempt"));
}

/// An answer from the archive makes room for more, like every other.
#[tokio::test]
async fn a_worker_may_ask_about_archived_jobs_as_often_as_it_likes() {
    const OFTEN: usize = 1_500;
    let folder = tempfile::tempdir().unwrap();
    let node = Node::with_archive(folder.path()).await;
    let id = node.submit_one().await;
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    let claim = worker.assignment().await.claim;
    for round in 0..OFTEN {
        worker.say([FromWorker::Settle(vec![succeed(claim)])]).await;
        assert_eq!(worker.hear().await, ManagerMessage::SettleAnswer { claim, answer: Ok(()) }, "{round}");
        if round == 0 {
            node.until_archived(id).await;
        }
    }
}

#[tokio::test]
async fn an_older_incarnation_is_sent_away() {
    let node = Node::start().await;
    let mut old = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    let _new = Worker::welcome(&node, "w", "2", 1, vec![]).await;
    let closed = old.end().await.expect_err("its session was closed");
    assert_eq!((closed.code(), code(&closed)), (Code::Unavailable, Some("session_closed")));

    let mut old = Worker::open(&node).await.expect("a session");
    old.say([hello("w", "1", 1, vec![])]).await;
    let ManagerMessage::Rejected(refused) = old.hear().await else { panic!("rejected") };
    assert_eq!(&*refused.code, "stale_incarnation");
    old.end().await.expect("nothing to add");
    assert!(node.worker("w").await.expect("known").connected);
}

#[tokio::test]
async fn a_session_begins_with_a_hello_and_has_no_other() {
    let node = Node::start().await;
    let mut mute = Worker::open(&node).await.expect("a session");
    mute.say([FromWorker::ProbeAnswer { probe: 1 }]).await;
    let refused = mute.end().await.expect_err("no hello");
    assert_eq!(
        (refused.code(), code(&refused), field(&refused)),
        (Code::InvalidArgument, Some("invalid"), Some("hello"))
    );

    let mut twice = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    twice.say([hello("w", "1", 2, vec![])]).await;
    let refused = twice.end().await.expect_err("a second hello");
    assert_eq!((refused.code(), field(&refused)), (Code::InvalidArgument, Some("hello")));
    node.until_verdict("w", Verdict::Suspect).await;
}

#[tokio::test]
async fn a_malformed_frame_ends_its_session_and_no_other() {
    let node = Node::start().await;
    let mut good = Worker::welcome(&node, "good", "1", 1, vec![]).await;
    let mut bad = Worker::welcome(&node, "bad", "1", 1, vec![]).await;
    let short = v1::Claim { job_id: Bytes::from([1; 15]).to_vec().into(), workflow: 0, fence: 1 };
    bad.send(v1::WorkerFrame { ended: vec![short], ..Default::default() }).await;
    let refused = bad.end().await.expect_err("malformed");
    assert_eq!((refused.code(), field(&refused)), (Code::InvalidArgument, Some("ended[0].job_id")));

    let mut many = Worker::welcome(&node, "many", "1", 1, vec![]).await;
    many.send(v1::WorkerFrame { probe_answers: vec![0; 10_001], ..Default::default() }).await;
    let refused = many.end().await.expect_err("too many entries");
    assert_eq!((refused.code(), field(&refused)), (Code::InvalidArgument, Some("frame")));

    let mut large = Worker::welcome(&node, "large", "1", 1, vec![]).await;
    let result = vec![0; 5 << 20].into();
    let report = Some(v1::settlement::Report::Succeed(v1::Succeed { result }));
    let claim = Some(v1::Claim { job_id: vec![1; 16].into(), workflow: 0, fence: 1 });
    large.send(v1::WorkerFrame { settlements: vec![v1::Settlement { claim, report }], ..Default::default() }).await;
    let refused = large.end().await.expect_err("too large");
    assert_eq!((refused.code(), field(&refused)), (Code::InvalidArgument, Some("frame")));

    node.submit_one().await;
    good.assignment().await;
}

#[tokio::test]
async fn what_attempts_print_is_kept_and_needs_no_answer() {
    let node = Node::start().await;
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    node.submit_one().await;
    let claim = worker.assignment().await.claim;
    let inputs = || node.engine.stats().inputs.get();
    let before = inputs();
    // More of them than may wait for an answer.
    for n in 0..3_000_u32 {
        let data = n.to_be_bytes().to_vec().into();
        let output = worker::output_out(worker::Output { claim, data, skipped: 0 });
        worker.send(v1::WorkerFrame { outputs: vec![output], ..Default::default() }).await;
    }
    let last = worker::output_out(worker::Output { claim, data: b"end".to_vec().into(), skipped: 7 });
    let mut frame = v1::WorkerFrame { outputs: vec![last], ..Default::default() };
    worker::put(&mut frame, FromWorker::Settle(vec![succeed(claim)]));
    worker.send(frame).await;
    assert_eq!(worker.hear().await, ManagerMessage::SettleAnswer { claim, answer: Ok(()) });
    let kept = soon(node.outputs.read(claim)).await.expect("readable").expect("kept");
    assert_eq!((kept.skipped, &*kept.data), (12_007, &b"end"[..]));
    assert_eq!(node.outputs.stats().dropped_bytes.get(), 0);
    assert!(inputs() - before < 1_000, "the machine is not asked about what it does not keep");

    let long = v1::Output { claim: Some(claim.into()), data: vec![0; (64 << 10) + 1].into(), skipped: 0 };
    worker.send(v1::WorkerFrame { outputs: vec![long], ..Default::default() }).await;
    let refused = worker.end().await.expect_err("malformed");
    assert_eq!((refused.code(), field(&refused)), (Code::InvalidArgument, Some("outputs[0].data")));
}

/// Bytes that are no frame at all: the text of a refusal, where a hello should be.
#[tokio::test]
async fn garbage_is_refused() {
    let node = Node::start().await;
    let mut raw = tonic::client::Grpc::new(node.channel().await);
    soon(raw.ready()).await.expect("connected");
    let (out, outgoing) = tokio::sync::mpsc::channel(1);
    let garbage = v1::Refusal { code: "\u{7f}\u{7f}\u{7f}".into(), text: String::new() };
    out.send(garbage).await.expect("nobody has closed it");
    let codec = tonic_prost::ProstCodec::<v1::Refusal, v1::ManagerFrame>::default();
    let path = "/onward.v1.WorkerService/Session".parse().expect("a path");
    let answer = soon(raw.streaming(Request::new(ReceiverStream::new(outgoing)), path, codec)).await;
    let refused = soon(answer.expect("a session").into_inner().message()).await.expect_err("garbage");
    assert_eq!((refused.code(), field(&refused)), (Code::InvalidArgument, Some("frame")));
}

#[tokio::test]
async fn a_closed_session_makes_its_worker_suspect() {
    let node = Node::start().await;
    let worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    node.until_verdict("w", Verdict::Healthy).await;
    drop(worker);
    node.until_verdict("w", Verdict::Suspect).await;
}

#[tokio::test]
async fn a_thousand_jobs_over_64_slots_each_succeed_once() {
    const JOBS: usize = 1_000;
    let node = Node::start().await;
    let drafts = (0..JOBS).map(|n| job(&n.to_string())).collect();
    let ids: HashSet<_> = node.submit(drafts).await.expect("accepted").into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), JOBS);
    let mut worker = Worker::welcome(&node, "w", "1", 64, vec![]).await;

    let (mut held, mut handed_out, mut succeeded, mut frames) = (0, HashSet::new(), HashSet::new(), 0);
    while succeeded.len() < JOBS {
        let frame = worker.frame().await.expect("the session lives").expect("the session goes on");
        frames += 1;
        let mut settle = Vec::new();
        for heard in frame {
            match heard {
                ManagerMessage::Assign(assignment) => {
                    assert!(handed_out.insert(assignment.claim.job), "handed out twice");
                    held += 1;
                    settle.push(succeed(assignment.claim));
                }
                ManagerMessage::SettleAnswer { claim, answer } => {
                    assert_eq!(answer, Ok(()));
                    assert!(succeeded.insert(claim.job), "succeeded twice");
                    held -= 1;
                }
                ManagerMessage::Probe { probe } => worker.say([FromWorker::ProbeAnswer { probe }]).await,
                other => panic!("unexpected: {other:?}"),
            }
        }
        assert!(held <= 64, "{held} at a time");
        if !settle.is_empty() {
            worker.say([FromWorker::Settle(settle)]).await;
        }
    }
    assert_eq!(succeeded, ids);
    assert!(frames < JOBS, "{frames} frames: they are batches");
}

#[tokio::test]
async fn a_drained_worker_gets_nothing_and_may_leave() {
    let node = Node::start().await;
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    // The beat is taken after the capacity: once it is answered, the worker accepts nothing.
    let unknown = Claim { job: JobId::from_u128(1), workflow: 0, fence: onward_core::fence::AttemptFence::NONE };
    worker
        .say([FromWorker::Capacity { slots: 1, accepting: false }, FromWorker::Beats(vec![Beat::plain(unknown)])])
        .await;
    let ManagerMessage::BeatAnswer { answer: Err(refused), .. } = worker.hear().await else { panic!("refused") };
    assert_eq!(&*refused.code, "unknown_job");
    let id = node.submit_one().await;
    assert_eq!(node.job(id).await.state, JobState::Ready);
    worker.say([FromWorker::Goodbye]).await;
    assert!(matches!(worker.hear().await, ManagerMessage::Goodbye));
    drop(worker);
    soon(async { while node.worker("w").await.is_some() {} }).await;
}

#[tokio::test]
async fn a_goodbye_is_answered_once_nothing_is_held_and_ends_the_session_well() {
    let node = Node::start().await;
    let id = node.submit_one().await;
    let mut worker = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    worker.say([FromWorker::Capacity { slots: 1, accepting: false }, FromWorker::Goodbye]).await;
    // The assignment was on its way.
    let mut heard = Vec::new();
    while let Some(frame) = worker.frame().await.expect("it ends well") {
        heard.extend(frame);
    }
    assert!(matches!(&heard[..], [ManagerMessage::Assign(_), ManagerMessage::Goodbye]), "{heard:?}");
    let job = node.job(id).await;
    assert_eq!((job.state, job.workflows[0].counted), (JobState::Ready, 0));
    assert!(node.worker("w").await.is_none());
}

#[tokio::test]
async fn a_submission_is_all_or_nothing_and_says_what_is_wrong() {
    let node = Node::start().await;
    let keyed = |payload| onward_core::job::Draft { idempotency_key: Some("k".into()), ..job(payload) };
    let first = node.submit(vec![keyed("a")]).await.expect("accepted");
    let again = node.submit(vec![keyed("a"), job("b")]).await.expect("accepted");
    assert_eq!((first[0].1, again[0], again[1].1), (false, (first[0].0, true), false));

    let jobs = || async { soon(node.engine.read(|view| view.manager.view().jobs)).await.expect("serving") };
    let before = jobs().await;
    let refused = node.submit(vec![job("c"), keyed("other")]).await.expect_err("another body");
    assert_eq!((refused.code(), code(&refused)), (Code::AlreadyExists, Some("conflict")));
    let refused = node.submit(vec![job("c"), onward_core::job::Draft { priority: 101, ..job("d") }]).await;
    let refused = refused.expect_err("no such priority");
    assert_eq!(
        (refused.code(), code(&refused), field(&refused)),
        (Code::InvalidArgument, Some("invalid"), Some("priority"))
    );
    let refused = node.submit(vec![]).await.expect_err("nothing to submit");
    assert_eq!((refused.code(), field(&refused)), (Code::InvalidArgument, Some("jobs")));
    let refused = node.submit(vec![job("x"); 10_001]).await.expect_err("too many");
    assert_eq!((refused.code(), field(&refused)), (Code::InvalidArgument, Some("jobs")));
    assert_eq!(jobs().await, before);
}

/// The kept output of an attempt once everything that was said before has been taken.
async fn kept(node: &Node, worker: &mut Worker, claim: Claim) -> Option<Vec<u8>> {
    worker.say([FromWorker::Beats(vec![Beat::plain(claim)])]).await;
    while !matches!(worker.hear().await, ManagerMessage::BeatAnswer { .. }) {}
    soon(node.outputs.read(claim)).await.expect("it is read").map(|kept| kept.data)
}

fn printed(claim: Claim, data: &'static [u8]) -> v1::WorkerFrame {
    let output = worker::Output { claim, data: data.into(), skipped: 0 };
    v1::WorkerFrame { outputs: vec![worker::output_out(output)], ..v1::WorkerFrame::default() }
}

#[tokio::test]
async fn a_session_adds_to_the_output_of_what_its_worker_holds_and_of_nothing_else() {
    let node = Node::start().await;
    let id = node.submit_one().await;
    let mut holder = Worker::welcome(&node, "holder", "1", 1, vec![]).await;
    let claim = holder.assignment().await.claim;
    let mut stranger = Worker::welcome(&node, "stranger", "1", 0, vec![]).await;
    let never = Claim { job: JobId::from_u128(7), ..claim };
    let ahead = Claim { fence: onward_core::fence::AttemptFence::from_raw(claim.fence.get() + 1), ..claim };
    for claim in [claim, never, ahead] {
        stranger.send(printed(claim, b"not mine")).await;
        assert_eq!(kept(&node, &mut stranger, claim).await, None, "{claim:?}");
    }
    assert_eq!((node.outputs.stats().refused.get(), node.outputs.stats().kept_files.get()), (3, 0));

    holder.send(printed(claim, b"mine")).await;
    assert_eq!(kept(&node, &mut holder, claim).await, Some(b"mine".to_vec()));
    holder.say([FromWorker::Settle(vec![succeed(claim)])]).await;
    while !matches!(holder.hear().await, ManagerMessage::SettleAnswer { .. }) {}
    stranger.send(printed(claim, b"not mine")).await;
    holder.send(printed(claim, b", to the end")).await;
    assert_eq!(kept(&node, &mut holder, claim).await, Some(b"mine, to the end".to_vec()));
    assert_eq!(node.job(id).await.state, JobState::Succeeded);
}

#[tokio::test]
async fn access_is_checked_with_the_scope_of_the_service() {
    let find = |token: Option<&str>| {
        let scope: Scope = token?.strip_prefix("may-")?.parse().ok()?;
        Some(Access::of_token([scope].into_iter().collect()))
    };
    let node = Node::with(rig::settings(), find, MAX_SESSIONS).await;
    for refused in
        [Worker::open(&node).await.err().expect("no token"), node.submit(vec![job("x")]).await.expect_err("no token")]
    {
        assert_eq!((refused.code(), code(&refused)), (Code::Unauthenticated, Some("unauthorized")));
    }

    let mut client = v1::job_service_client::JobServiceClient::new(node.channel().await);
    for (token, is_allowed) in [("Bearer may-submit", true), ("bearer may-submit", true), ("Bearer may-work", false)] {
        let mut request = Request::new(v1::SubmitRequest { jobs: vec![onward_proto::draft::draft_out(job("x"))] });
        request.metadata_mut().insert("authorization", token.parse().expect("a header"));
        let answered = soon(client.submit(request)).await;
        assert_eq!(answered.is_ok(), is_allowed, "{token}");
        if let Err(refused) = answered {
            assert_eq!((refused.code(), code(&refused)), (Code::PermissionDenied, Some("forbidden")));
            assert!(refused.message().contains("`submit`"), "{refused}");
        }
    }
}

#[tokio::test]
async fn a_full_node_takes_no_more_sessions() {
    let node = Node::with(rig::settings(), anybody, 1).await;
    let first = Worker::welcome(&node, "w", "1", 1, vec![]).await;
    let refused = Worker::open(&node).await.err().expect("there is one place");
    assert_eq!((refused.code(), code(&refused)), (Code::ResourceExhausted, Some("limited")));
    drop(first);
    // The place is free once the node has noticed.
    soon(async { while Worker::open(&node).await.is_err() {} }).await;
}
