//! Who may do what over HTTP.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::rig::{self, Reply, Request, config, poll_body, start};
use onward_node::api::access::Access;
use onward_node::auth::{Scope, TokenFile};
use onward_node::server::{Node, NodeConfig};
use serde_json::json;
use tempfile::tempdir;

async fn start_strict(data: &Path) -> Node {
    Node::start(NodeConfig { require_tokens: true, ..config(data) }).await.unwrap()
}

fn poll() -> Request {
    let mut body = poll_body("1");
    body["wait_s"] = json!(0);
    Request::post("/v1/leases", &body)
}

async fn with(node: &Node, request: Request, token: &str) -> Reply {
    request.header("authorization", &format!("Bearer {token}")).send(node.address()).await
}

#[tokio::test]
async fn where_tokens_are_required_one_is_needed_with_the_right_scope() {
    let data = tempdir().unwrap();
    let read = TokenFile::add(data.path(), "reader", [Scope::Read]).unwrap().text;
    let work = TokenFile::add(data.path(), "worker", [Scope::Work]).unwrap().text;
    let node = start_strict(data.path()).await;

    let none = poll().send(node.address()).await;
    assert_eq!(none.code(), (401, "unauthorized".into()));
    assert!(none.head.contains("www-authenticate: bearer\r\n"), "{}", none.head);
    assert_eq!(with(&node, poll(), "onw_wrong").await.code(), (401, "unauthorized".into()));
    assert_eq!(with(&node, poll(), &read).await.code(), (403, "forbidden".into()));
    assert_eq!(with(&node, poll(), &work).await.status, 200);
    assert_eq!(with(&node, Request::get("/status"), &work).await.code(), (403, "forbidden".into()));
    for path in ["/status", "/metrics"] {
        assert_eq!(Request::get(path).send(node.address()).await.code(), (401, "unauthorized".into()));
        assert_eq!(with(&node, Request::get(path), &read).await.status, 200);
    }
    let basic = poll().header("authorization", &format!("Basic {work}")).send(node.address()).await;
    assert_eq!(basic.code(), (401, "unauthorized".into()));
    // Probes and pages without news need none.
    for path in ["/livez", "/readyz", "/startupz", "/", "/openapi.json"] {
        assert_eq!(Request::get(path).send(node.address()).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn on_loopback_no_token_will_do_and_a_wrong_one_will_not() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    assert_eq!(poll().send(node.address()).await.status, 200);
    assert_eq!(with(&node, poll(), "onw_wrong").await.code(), (401, "unauthorized".into()));
    let own = fs::read_to_string(data.path().join("token")).unwrap();
    assert_eq!(with(&node, poll(), own.trim()).await.status, 200);
}

#[test]
fn only_a_token_with_the_scope_to_submit_may_run_commands() {
    assert!(Access::full().may_exec());
    assert!(!Access::without_token().may_exec());
    assert!(Access::of_token([Scope::Submit].into_iter().collect()).may_exec());
    assert!(!Access::of_token([Scope::Work, Scope::Operate].into_iter().collect()).may_exec());
    for scope in Scope::ALL {
        assert!(Access::without_token().need(scope).is_ok());
        let only = Access::of_token([scope].into_iter().collect());
        assert!(Scope::ALL.into_iter().all(|other| only.need(other).is_ok() == (other == scope)));
    }
}

#[tokio::test]
async fn tokens_are_made_and_revoked_while_the_node_runs() {
    let data = tempdir().unwrap();
    let node = start_strict(data.path()).await;
    let made = TokenFile::add(data.path(), "late", [Scope::Work]).unwrap();
    rig::until(async || with(&node, poll(), &made.text).await.status == 200).await;
    assert!(TokenFile::revoke(data.path(), "late").unwrap());
    assert!(!TokenFile::revoke(data.path(), "late").unwrap());
    rig::until(async || with(&node, poll(), &made.text).await.status == 401).await;
}

#[tokio::test]
async fn secrets_are_for_their_owner_and_the_token_itself_is_not_kept() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    for name in ["token", "tokens.json", "receipt.key"] {
        let mode = fs::metadata(data.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let own = fs::read_to_string(data.path().join("token")).unwrap();
    let kept = fs::read_to_string(data.path().join("tokens.json")).unwrap();
    assert!(own.starts_with("onw_") && !kept.contains(own.trim()));
    let listed = TokenFile::list(data.path()).unwrap();
    assert_eq!(listed.len(), 1);
    assert!(own.trim().ends_with(&listed[0].hint));
    assert_eq!(listed[0].scopes.iter().collect::<Vec<_>>(), Scope::ALL);
    let twice = TokenFile::add(data.path(), "local", [Scope::Read]).unwrap_err();
    assert!(twice.to_string().contains("another name"), "{twice}");
    // A restart makes no second one.
    node.shutdown(rig::PATIENCE).await;
    let node = start(data.path()).await;
    assert_eq!(fs::read_to_string(data.path().join("token")).unwrap(), own);
    assert_eq!(TokenFile::list(data.path()).unwrap(), listed);
    drop(node);
}

#[tokio::test]
async fn a_damaged_file_of_tokens_stops_the_start_and_says_which() {
    let data = tempdir().unwrap();
    fs::write(data.path().join("tokens.json"), "{").unwrap();
    let error = Node::start(config(data.path())).await.unwrap_err().to_string();
    assert!(error.contains("tokens.json") && error.contains("restore"), "{error}");
}
