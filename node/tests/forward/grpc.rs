//! gRPC through a follower: calls, streams and what their trailers say.

use onward_node::server::Node;
use onward_proto::v1::job_service_client::JobServiceClient;
use onward_proto::v1::worker_service_client::WorkerServiceClient;
use onward_proto::v1::{Draft, SubmitRequest, WorkflowDraft};
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::pair::{Pair, cut_off, follow_nobody};

fn request(kind: &str, payload: usize) -> SubmitRequest {
    let workflow = WorkflowDraft { kind: kind.into(), payload: vec![b'1'; payload].into(), ..Default::default() };
    SubmitRequest { jobs: vec![Draft { workflows: vec![workflow], ..Default::default() }] }
}

async fn client(node: &Node) -> JobServiceClient<Channel> {
    JobServiceClient::new(Endpoint::from_shared(node.url()).unwrap().connect().await.unwrap())
        .max_encoding_message_size(8 << 20)
}

fn word(status: &Status, name: &str) -> String {
    status.metadata().get(name).map_or("", |word| word.to_str().unwrap()).to_owned()
}

#[tokio::test]
async fn submissions_by_call_and_by_stream_reach_the_leader() {
    let pair = Pair::start().await;
    let mut direct = client(&pair.leader).await;
    let mut passed = client(&pair.follower).await;
    let answer = passed.submit(request("k", 1 << 20)).await.unwrap();
    let hint = answer.metadata().get("onward-leader").unwrap().to_str().unwrap();
    assert_eq!(hint, format!("{}; term=1", pair.leader.address()));
    assert_eq!(answer.into_inner().jobs.len(), 1);

    let requests: Vec<_> = (0..200).map(|_| request("k", 64 << 10)).collect();
    let answers = passed.submit_stream(tokio_stream::iter(requests)).await.unwrap();
    let answers: Vec<_> = answers.into_inner().collect().await;
    assert_eq!(answers.len(), 200);
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.refused.is_none())));
    assert_eq!(pair.leader.engine().read(|view| view.manager.view().jobs).await, Ok(201));

    // What is wrong is told in the same words.
    let said = |status: Status| (status.code(), status.message().to_owned(), word(&status, "onward-code"));
    let nothing = || SubmitRequest { jobs: Vec::new() };
    let wrong = said(passed.submit(nothing()).await.unwrap_err());
    assert_eq!(wrong, said(direct.submit(nothing()).await.unwrap_err()));
    assert_eq!((wrong.0, wrong.2.as_str()), (Code::InvalidArgument, "invalid"));
    let large = passed.submit(request("k", 5 << 20)).await.unwrap_err();
    assert_eq!(word(&large, "onward-code"), "invalid", "{large}");

    follow_nobody(&pair.follower);
    let refused = passed.submit(request("k", 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!((word(&refused, "onward-code"), word(&refused, "onward-done")), ("no_leader".into(), "no".into()));
}

/// Whoever is let in would wait for a machine that does not come, while another node may lead.
#[tokio::test]
async fn a_session_with_a_node_that_is_cut_off_is_refused_at_once() {
    let pair = Pair::start().await;
    cut_off(&pair.leader);
    let channel = Endpoint::from_shared(pair.leader.url()).unwrap().connect().await.unwrap();
    let mut workers = WorkerServiceClient::new(channel);
    let refused = workers.session(tokio_stream::pending()).await.unwrap_err();
    assert_eq!((refused.code(), word(&refused, "onward-code")), (Code::Unavailable, "no_leader".into()));
    assert_eq!(word(&refused, "onward-leader"), "", "nobody is sent here");
}
