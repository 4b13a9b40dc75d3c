//! What one client may take up.

use crate::rig::{Request, config, poll_body};
use onward_node::auth::{Scope, TokenFile};
use onward_node::server::{HttpLimits, Node, NodeConfig};
use serde_json::json;
use tempfile::tempdir;
use tokio::net::TcpStream;

#[tokio::test]
async fn headers_have_a_limit_and_it_is_kept_to_the_byte() {
    let data = tempdir().unwrap();
    let limits = HttpLimits { header_bytes: 10_000, ..HttpLimits::default() };
    let node = Node::start(NodeConfig { limits, ..config(data.path()) }).await.unwrap();
    let fixed = "host".len() + node.address().to_string().len() + "content-length0".len() + "x".len();
    let room = 10_000 - fixed - 3 * 32;
    for path in ["/v1/jobs", "/livez"] {
        let with = |bytes: usize| Request::get(path).header("x", &"y".repeat(bytes));
        let mut stream = TcpStream::connect(node.address()).await.unwrap();
        assert_eq!(with(room).send_on(&mut stream, node.address()).await.status, 200, "{path}");
        for over in [1, 9_000] {
            let refused = with(room + over).send_on(&mut stream, node.address()).await;
            assert_eq!(refused.code(), (431, "too_large".into()), "{path}: {over} bytes too many");
        }
        assert_eq!(with(room).send_on(&mut stream, node.address()).await.status, 200, "{path}: it goes on");
    }
    // So much is not even read.
    let flood = Request::get("/livez").header("x", &"y".repeat(300_000)).send(node.address()).await;
    assert_eq!(flood.status, 431);
}

#[tokio::test]
async fn one_client_cannot_use_up_all_subscriptions() {
    let data = tempdir().unwrap();
    let mut settings = crate::rig::settings();
    settings.limits.subscriptions = 4;
    settings.limits.subscriptions_per_client = 2;
    let rules = settings.check().unwrap();
    let greedy = TokenFile::add(data.path(), "greedy", [Scope::Work]).unwrap().text;
    let modest = TokenFile::add(data.path(), "modest", [Scope::Work]).unwrap().text;
    let node = Node::start(NodeConfig { rules, ..config(data.path()) }).await.unwrap();
    let poll = async |token: Option<&str>, kind: &str| {
        let mut body = poll_body("1");
        (body["wait_s"], body["kinds"]) = (json!(0), json!([kind]));
        body["worker_id"] = json!(format!("{token:?} {kind}"));
        let request = Request::post("/v1/leases", &body);
        let request = match token {
            Some(token) => request.header("authorization", &format!("Bearer {token}")),
            None => request,
        };
        request.send(node.address()).await
    };
    for kind in ["a", "b"] {
        assert_eq!(poll(Some(&greedy), kind).await.status, 200);
    }
    let refused = poll(Some(&greedy), "c").await;
    assert_eq!(refused.code(), (429, "limited".into()));
    assert!(refused.json()["detail"].as_str().unwrap().contains("one token or address"), "{}", refused.json());
    assert_eq!(poll(Some(&greedy), "a").await.status, 200, "what it has it may use");
    // Others have their own, with a token or without one.
    assert_eq!(poll(Some(&modest), "c").await.status, 200);
    assert_eq!(poll(None, "d").await.status, 200);
    assert_eq!(poll(Some(&greedy), "c").await.status, 200, "what others have brought in costs nothing");
    assert_eq!(poll(Some(&modest), "e").await.code(), (429, "limited".into()), "all together there are four");
}
