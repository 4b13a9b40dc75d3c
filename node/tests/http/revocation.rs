//! Whatever is open with a token ends with it: sessions, streams and waits, each with a word why.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use crate::rig::{PATIENCE, Request, config, poll_body, read_reply, submit_kind, until};
use onward_core::ids::JobId;
use onward_core::input::Submission;
use onward_core::job::Draft;
use onward_core::job::JobState;
use onward_node::auth::{Scope, TOKENS_FILE, TokenFile};
use onward_node::gate::peers::PeerTrust;
use onward_node::server::{GateConfig, GateNode, Node, NodeConfig};
use onward_proto::draft;
use onward_proto::v1::job_service_client::JobServiceClient;
use onward_proto::v1::worker_service_client::WorkerServiceClient;
use onward_proto::v1::{Hello, ManagerFrame, SubmitAnswer, SubmitRequest, WorkerFrame};
use serde_json::Value;
use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

/// A node that lets nobody in without a token, and one token for each scope, named after it.
async fn strict(data: &Path) -> Node {
    Node::start(NodeConfig { require_tokens: true, ..config(data) }).await.unwrap()
}

fn token(data: &Path, name: &str, scope: Scope) -> String {
    TokenFile::add(data, name, [scope]).unwrap().text
}

fn with_token<T>(message: T, token: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

async fn channel_to(node: &Node) -> Channel {
    Endpoint::from_shared(node.url()).unwrap().connect().await.unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it should have happened by now")
}

fn assert_says_why(status: &Status) {
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    assert_eq!(status.metadata().get("onward-code").unwrap(), "unauthorized");
    assert!(status.message().contains("revoked"), "{status}");
}

async fn submit_stream(node: &Node, token: &str) -> (Sender<SubmitRequest>, Streaming<SubmitAnswer>) {
    let (out, requests) = channel(16);
    let request = with_token(ReceiverStream::new(requests), token);
    let answers = soon(JobServiceClient::new(channel_to(node).await).submit_stream(request)).await.unwrap();
    (out, answers.into_inner())
}

fn one_job() -> SubmitRequest {
    SubmitRequest { jobs: vec![draft::draft_out(Draft::of_kind("k", *b"1"))] }
}

#[tokio::test]
async fn a_stream_of_submissions_ends_with_its_token_and_takes_no_more() {
    let data = tempdir().unwrap();
    let submit = token(data.path(), "submit", Scope::Submit);
    let node = strict(data.path()).await;
    let (out, mut answers) = submit_stream(&node, &submit).await;
    out.send(one_job()).await.unwrap();
    assert_eq!(soon(answers.message()).await.unwrap().unwrap().jobs.len(), 1);

    TokenFile::revoke(data.path(), "submit").unwrap();
    assert_says_why(&soon(answers.message()).await.unwrap_err());
    // Whether it still can be sent is not ours to say; it is not taken.
    let _ = out.send(one_job()).await;
    assert_eq!(node.engine().read(|view| view.manager.view().jobs).await, Ok(1));
}

async fn session(node: &Node, token: &str) -> (Sender<WorkerFrame>, Streaming<ManagerFrame>) {
    let (out, requests) = channel(16);
    let hello = Hello {
        worker: "w".into(),
        incarnation: "1".into(),
        queues: vec!["default".into()],
        kinds: vec!["k".into()],
        slots: 2,
        ..Hello::default()
    };
    out.send(WorkerFrame { hello: Some(hello), ..WorkerFrame::default() }).await.unwrap();
    let request = with_token(ReceiverStream::new(requests), token);
    let mut frames =
        soon(WorkerServiceClient::new(channel_to(node).await).session(request)).await.unwrap().into_inner();
    assert!(soon(frames.message()).await.unwrap().unwrap().welcome.is_some());
    (out, frames)
}

#[tokio::test]
async fn a_session_ends_with_its_token_and_gets_no_assignment_afterwards() {
    let data = tempdir().unwrap();
    let work = token(data.path(), "work", Scope::Work);
    let node = strict(data.path()).await;
    let (_out, mut frames) = session(&node, &work).await;
    let first = submit_kind(node.engine(), "k").await;
    assert_eq!(soon(frames.message()).await.unwrap().unwrap().assignments.len(), 1);

    TokenFile::revoke(data.path(), "work").unwrap();
    let ended = soon(async {
        loop {
            match frames.message().await {
                Ok(Some(frame)) => assert!(frame.assignments.is_empty(), "nothing was submitted"),
                Ok(None) => panic!("it is said why"),
                Err(status) => return status,
            }
        }
    });
    assert_says_why(&ended.await);
    // It has a free slot, and yet: the machine knows that it is gone.
    let worker = onward_core::ids::WorkerId::new("w").unwrap();
    until(async || {
        let worker = worker.clone();
        let view = node.engine().read(move |view| view.manager.worker(&worker)).await.unwrap();
        view.is_none_or(|view| !view.judgement.signals.live)
    })
    .await;
    let second = submit_kind(node.engine(), "k").await;
    assert_eq!(state_of(&node, second).await, JobState::Ready);
    assert_eq!(state_of(&node, first).await, JobState::Running);
}

async fn state_of(node: &Node, job: JobId) -> JobState {
    node.engine().read(move |view| view.manager.job(job).map(|job| job.state)).await.unwrap().unwrap()
}

/// A request on a connection of its own, not answered yet.
async fn begin(node: &Node, request: Request, token: &str) -> TcpStream {
    begin_at(node.address(), request, token).await
}

async fn begin_at(address: SocketAddr, request: Request, token: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = request.header("authorization", &format!("Bearer {token}"));
    stream.write_all(request.text(address).as_bytes()).await.unwrap();
    stream
}

/// Reads until this has come.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    soon(async {
        while !String::from_utf8_lossy(&bytes).contains(end) {
            assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{:?}", String::from_utf8_lossy(&bytes));
        }
    })
    .await;
    String::from_utf8(bytes).unwrap()
}

const LAST_CHUNK: &str = "\r\n0\r\n\r\n";

#[tokio::test]
async fn events_end_with_their_token_and_those_of_another_go_on() {
    let data = tempdir().unwrap();
    let (one, other) = (token(data.path(), "one", Scope::Read), token(data.path(), "other", Scope::Read));
    let node = strict(data.path()).await;
    let job = submit_kind(node.engine(), "k").await;
    let path = format!("/v1/jobs/{job}/events");
    let mut revoked = begin(&node, Request::get(&path), &one).await;
    let mut goes_on = begin(&node, Request::get(&path), &other).await;
    for stream in [&mut revoked, &mut goes_on] {
        read_until(stream, "\"state\":\"ready\"").await;
    }

    TokenFile::revoke(data.path(), "one").unwrap();
    let rest = read_until(&mut revoked, LAST_CHUNK).await;
    assert!(rest.contains("event: error") && rest.contains("\"code\":\"unauthorized\""), "{rest}");
    node.engine().call(onward_core::input::Call::Cancel { job, epoch: None }).await.unwrap();
    let rest = read_until(&mut goes_on, LAST_CHUNK).await;
    assert!(rest.contains("event: end") && !rest.contains("event: error"), "{rest}");
}

#[tokio::test]
async fn events_and_waits_at_a_gate_end_with_their_token() {
    let data = tempdir().unwrap();
    let read = token(data.path(), "read", Scope::Read);
    let node = NodeConfig { require_tokens: true, ..config(data.path()) };
    let gate = GateNode::start(GateConfig { node, trust: PeerTrust::Certificates }).await.unwrap();
    let submission = Submission { id: gate.engine().new_job_id(), draft: Draft::of_kind("k", *b"1") };
    let job = submission.id;
    gate.engine().submit(vec![submission]).await.unwrap();
    let mut events = begin_at(gate.address(), Request::get(&format!("/v1/jobs/{job}/events")), &read).await;
    read_until(&mut events, "no_usable_datacenter").await;
    let mut wait = begin_at(gate.address(), Request::get(&format!("/v1/jobs/{job}?wait_s=60")), &read).await;

    TokenFile::revoke(data.path(), "read").unwrap();
    let rest = read_until(&mut events, LAST_CHUNK).await;
    assert!(rest.contains("event: error") && rest.contains("\"code\":\"unauthorized\""), "{rest}");
    assert_eq!(read_reply(&mut wait).await.code(), (401, "unauthorized".into()));
}

#[tokio::test]
async fn waits_are_answered_when_their_token_ends_and_hand_out_nothing() {
    let data = tempdir().unwrap();
    let (read, work) = (token(data.path(), "read", Scope::Read), token(data.path(), "work", Scope::Work));
    let node = strict(data.path()).await;
    let waited_for = submit_kind(node.engine(), "other").await;
    let mut wait = begin(&node, Request::get(&format!("/v1/jobs/{waited_for}?wait_s=60")), &read).await;
    let mut poll = begin(&node, Request::post("/v1/leases", &poll_body("1")), &work).await;
    // Both wait: the poll is known to the machine, and the wait is one of its bells.
    let worker = onward_core::ids::WorkerId::new("w").unwrap();
    until(async || {
        let worker = worker.clone();
        node.engine().read(move |view| view.manager.worker(&worker).is_some()).await.unwrap()
    })
    .await;

    fs::write(data.path().join(TOKENS_FILE), "{\"tokens\":[]}").unwrap();
    for stream in [&mut wait, &mut poll] {
        let reply = read_reply(stream).await;
        assert_eq!(reply.code(), (401, "unauthorized".into()));
        assert!(reply.json()["detail"].as_str().unwrap().contains("revoked"), "{}", reply.json());
    }
    let job = submit_kind(node.engine(), "k").await;
    assert_eq!(state_of(&node, job).await, JobState::Ready);
}

#[tokio::test]
async fn a_body_that_comes_after_the_end_of_its_token_is_not_acted_on() {
    let data = tempdir().unwrap();
    let submit = token(data.path(), "submit", Scope::Submit);
    let node = strict(data.path()).await;
    let request = Request::post("/v1/jobs", &serde_json::json!({"kind": "k"})).header("expect", "100-continue");
    let whole = request.header("authorization", &format!("Bearer {submit}")).text(node.address());
    let (early, late) = whole.split_at(whole.len() - 4);
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    stream.write_all(early.as_bytes()).await.unwrap();
    let (message, messages) = channel(1);
    let request = with_token(ReceiverStream::new(messages), &submit);
    let call = tokio::spawn(unary_submission(channel_to(&node).await, request));
    // The node waits for the body now.
    read_until(&mut stream, "100 Continue\r\n\r\n").await;

    TokenFile::revoke(data.path(), "submit").unwrap();
    let reply = read_reply(&mut stream).await;
    assert_eq!(reply.code(), (401, "unauthorized".into()));
    assert!(reply.json()["detail"].as_str().unwrap().contains("revoked"), "{}", reply.json());
    message.send(one_job()).await.unwrap();
    drop(message);
    assert_says_why(&soon(call).await.unwrap().unwrap_err());
    let _ = stream.write_all(late.as_bytes()).await;
    assert_eq!(node.engine().read(|view| view.manager.state().open_jobs()).await.unwrap(), 0);
}

/// A call of one message, whose headers are sent before there is a message.
async fn unary_submission(
    channel: Channel,
    request: tonic::Request<ReceiverStream<SubmitRequest>>,
) -> Result<SubmitAnswer, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let path = tonic::codegen::http::uri::PathAndQuery::from_static("/onward.v1.JobService/Submit");
    let codec = tonic_prost::ProstCodec::default();
    Ok(client.client_streaming(request, path, codec).await?.into_inner())
}

#[tokio::test]
async fn a_token_that_allows_something_else_now_ends_what_was_open_with_it() {
    let data = tempdir().unwrap();
    let submit = token(data.path(), "submit", Scope::Submit);
    let node = strict(data.path()).await;
    let (_out, mut answers) = submit_stream(&node, &submit).await;
    let path = data.path().join(TOKENS_FILE);
    let mut stored: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let tokens = stored["tokens"].as_array_mut().unwrap();
    let changed = tokens.iter_mut().find(|token| token["name"] == "submit").unwrap();
    changed["scopes"] = serde_json::json!(["read"]);
    fs::write(&path, stored.to_string()).unwrap();
    assert_says_why(&soon(answers.message()).await.unwrap_err());
}

#[tokio::test]
async fn a_file_that_is_damaged_or_changed_elsewhere_ends_nothing() {
    let data = tempdir().unwrap();
    let submit = token(data.path(), "submit", Scope::Submit);
    let node = strict(data.path()).await;
    let (out, mut answers) = submit_stream(&node, &submit).await;
    let path = data.path().join(TOKENS_FILE);
    let good = fs::read(&path).unwrap();
    fs::write(&path, "{").unwrap();
    // One that is made later is known once the file was looked at again.
    fs::write(&path, good).unwrap();
    let read = token(data.path(), "read", Scope::Read);
    until(async || {
        let request = Request::get("/v1/jobs").header("authorization", &format!("Bearer {read}"));
        request.send(node.address()).await.status == 200
    })
    .await;
    out.send(one_job()).await.unwrap();
    assert_eq!(soon(answers.message()).await.unwrap().unwrap().jobs.len(), 1);
    drop(out);
    assert_eq!(soon(answers.message()).await.unwrap(), None);
}

#[tokio::test]
async fn a_token_that_is_wrong_from_the_start_is_refused_in_the_words_of_the_protocol() {
    let data = tempdir().unwrap();
    let node = strict(data.path()).await;
    let (_out, requests) = channel::<SubmitRequest>(1);
    let request = with_token(ReceiverStream::new(requests), "onw_wrong");
    let refused = soon(JobServiceClient::new(channel_to(&node).await).submit_stream(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    assert_eq!(refused.metadata().get("onward-code").unwrap(), "unauthorized");
}
