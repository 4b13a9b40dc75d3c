//! Workers, as they are shown.

use core::time::Duration;

use crate::rig::{Request, config, settings, submit_kind, until};
use onward_core::ids::{ClientId, Incarnation, Name, WorkerId};
use onward_core::message::{FromWorker, Hello, Subscription};
use onward_node::engine::WorkerSession;
use onward_node::server::{Node, NodeConfig};
use serde_json::{Value, json};
use tempfile::tempdir;

fn session(node: &Node, worker: &str) -> WorkerSession {
    let name = |text: &str| Name::new(text).unwrap();
    let mut session = node.engine().open_session();
    session.send(FromWorker::Hello(Hello {
        worker: WorkerId::new(worker).unwrap(),
        incarnation: Incarnation::new("1").unwrap(),
        subscription: Subscription { queues: vec![name("default")], kinds: vec![name("k")] },
        slots: 1,
        holding: Vec::new(),
        client: ClientId::default(),
    }));
    session
}

async fn shown(node: &Node, worker: &str) -> Value {
    Request::get(&format!("/v1/nodes/{worker}")).send(node.address()).await.json()
}

#[tokio::test]
async fn an_evicted_worker_is_shown_as_evicted_and_not_as_busy() {
    let data = tempdir().unwrap();
    let mut settings = settings();
    settings.eviction.suspect_grace = Duration::from_millis(1);
    let rules = settings.check().unwrap();
    let node = Node::start(NodeConfig { rules, ..config(data.path()) }).await.unwrap();
    let first = session(&node, "first");
    submit_kind(node.engine(), "k").await;
    until(async || shown(&node, "first").await["held"] == 1).await;
    assert_eq!(shown(&node, "first").await["verdict"], "busy");
    // One of one would not be evicted.
    let _second = session(&node, "second");
    until(async || shown(&node, "second").await["connected"] == true).await;
    drop(first);
    until(async || shown(&node, "first").await["evicted"] == true).await;
    let first = shown(&node, "first").await;
    assert_eq!((&first["verdict"], &first["action"]), (&json!("evicted"), &json!("evict")), "{first}");
}
