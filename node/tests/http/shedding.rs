//! Load: what is turned away at which level, and that a node which turns everybody away finds out that it may stop.

use std::time::Duration;

use crate::rig::{self, PATIENCE, Request, config, lease, poll_body, start, submit_kind, until, verb};
use onward_core::health::overload::{LoadClass, OverloadLevel, OverloadRule, sheds};
use onward_core::health::overload::{LoadLimits, OverloadLevel::*};
use onward_core::ids::Name;
use onward_core::input::Call;
use onward_core::settings::Settings;
use onward_node::server::{Node, NodeConfig};
use onward_proto::v1::job_service_client::JobServiceClient;
use onward_proto::v1::worker_service_client::WorkerServiceClient;
use onward_proto::v1::{SubmitRequest, WorkerFrame};
use serde_json::json;
use tempfile::tempdir;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

/// Settings under which the first commit, however quick, puts a node on this level.
fn at(level: OverloadLevel, decay_every: Duration) -> Settings {
    let far = LoadLimits { busy: 1e9, stressed: 2e9, overloaded: 3e9 };
    let latency_ms = match level {
        Normal => far,
        Busy => LoadLimits { busy: 1e-9, ..far },
        Stressed => LoadLimits { busy: 1e-9, stressed: 2e-9, ..far },
        Overloaded => LoadLimits { busy: 1e-9, stressed: 2e-9, overloaded: 3e-9 },
    };
    let overload =
        OverloadRule { rise: far, latency_ms, resource_percent: far, decay_every, ..OverloadRule::default() };
    Settings { overload, ..rig::settings() }
}

async fn start_at(data: &std::path::Path, settings: Settings) -> Node {
    let rules = settings.check().unwrap();
    Node::start(NodeConfig { rules, ..config(data) }).await.unwrap()
}

async fn level(node: &Node) -> String {
    let status = Request::get("/status").send(node.address()).await.json();
    status["load"]["level"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn each_level_sheds_its_classes_and_control_never_is() {
    use LoadClass::*;
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let job = submit_kind(node.engine(), "k").await.to_string();
    let held = lease(&node, poll_body("1")).await.remove(0);
    node.shutdown(PATIENCE).await;

    let get = |path: &str| Request::get(path);
    let post = |path: &str| Request::post(path, &json!({}));
    let of_job = |tail: &str| format!("/v1/jobs/{job}{tail}");
    let poll = json!({ "worker_id": "p", "incarnation": "1", "kinds": ["none"], "wait_s": 0 });
    let calls = [
        (Telemetry, get("/metrics")),
        (Telemetry, get("/v1/stats")),
        (Telemetry, get(&of_job("/events"))),
        (Submission, Request::post("/v1/jobs", &json!({ "kind": "other" }))),
        (Submission, post("/v1/jobs/batch")),
        (Submission, post(&of_job("/retry"))),
        (Submission, post("/v1/dead-letters/replay")),
        (Other, get("/v1/jobs")),
        (Other, get(&of_job(""))),
        (Other, get("/v1/nodes")),
        (Other, Request::post("/v1/leases", &poll)),
        (Other, get("/openapi.json")),
        (Control, get("/livez")),
        (Control, get("/readyz")),
        (Control, get("/startupz")),
        (Control, get("/status")),
        (Control, post(&verb(&held, "beat"))),
        (Control, Request::post("/v1/leases/settle", &json!({ "settlements": [] }))),
        (Control, post("/v1/nodes/w/drain")),
        (Control, post("/v1/nodes/w/undrain")),
        (Control, post("/v1/jobs/01890000-0000-7000-8000-000000000000/cancel")),
    ];
    for (word, now) in [("normal", Normal), ("busy", Busy), ("stressed", Stressed), ("overloaded", Overloaded)] {
        let node = start_at(data.path(), at(now, Duration::from_secs(3600))).await;
        until(async || level(&node).await == word).await;
        for (class, call) in &calls {
            let reply = call.send(node.address()).await;
            let shed = reply.status == 503 && reply.code().1 == "overloaded";
            assert_eq!(shed, sheds(now, *class), "{word}: {} {}", call.line, reply.status);
            assert!(!shed || reply.head.contains("retry-after: 1"), "{}", reply.head);
        }
        grpc(&node, now).await;
        if now == Overloaded {
            let done = Request::post(&verb(&held, "succeed"), &json!({ "result": 1 }));
            assert_eq!(done.send(node.address()).await.status, 200, "what ends load is taken");
            assert!(node.engine().stats().shed_other.get() >= 5);
        }
        node.shutdown(PATIENCE).await;
    }
}

/// Submissions are shed as by HTTP; a session, over which beats and results come, is not.
async fn grpc(node: &Node, now: OverloadLevel) {
    let channel = tonic::transport::Endpoint::from_shared(node.url()).unwrap().connect().await.unwrap();
    let mut jobs = JobServiceClient::new(channel.clone());
    let refused = timeout(PATIENCE, jobs.submit(SubmitRequest::default())).await.unwrap().expect_err("it is empty");
    let code = refused.metadata().get("onward-code").unwrap().to_str().unwrap();
    let shed = (refused.code(), code) == (tonic::Code::Unavailable, "overloaded");
    assert_eq!(shed, sheds(now, LoadClass::Submission), "{refused:?}");

    let (out, outgoing) = tokio::sync::mpsc::channel(1);
    let mut workers = WorkerServiceClient::new(channel);
    let session = timeout(PATIENCE, workers.session(ReceiverStream::new(outgoing))).await.unwrap();
    out.send(WorkerFrame::default()).await.unwrap();
    let refused = timeout(PATIENCE, session.unwrap().into_inner().message()).await.unwrap().expect_err("no hello");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "it was let in, and heard");
}

/// Nothing else wakes this node: no seat to confirm for long, no timer, and nobody asks.
#[tokio::test]
async fn a_node_that_nobody_asks_recovers() {
    let data = tempdir().unwrap();
    let node = start_at(data.path(), at(Overloaded, Duration::from_millis(300))).await;
    let queue = Name::new("q").unwrap();
    while node.engine().load() != Overloaded {
        // Each of them is a commit.
        node.engine().call(Call::PauseQueue(queue.clone())).await.unwrap();
        node.engine().call(Call::ResumeQueue(queue.clone())).await.unwrap();
    }
    until(async || {
        tokio::task::yield_now().await;
        node.engine().load() == Normal
    })
    .await;
}
