//! Backups over HTTP: where they may be written.

use crate::rig::{Request, config};
use onward_node::server::Node;
use serde_json::json;
use tempfile::tempdir;

#[tokio::test]
async fn a_path_that_no_file_can_have_is_the_callers_mistake() {
    let data = tempdir().unwrap();
    let node = Node::start(config(data.path())).await.unwrap();
    let token = std::fs::read_to_string(data.path().join("token")).unwrap();
    let ask = |path: String| {
        Request::post("/v1/backup", &json!({ "path": path }))
            .header("authorization", &format!("Bearer {}", token.trim()))
    };
    let folder = tempdir().unwrap();
    let good = folder.path().join("a.backup").display().to_string();
    for (path, words) in
        [("a.backup".to_owned(), "absolute"), (format!("{good}\0b"), "NUL"), (String::new(), "absolute")]
    {
        let reply = ask(path.clone()).send(node.address()).await;
        assert_eq!(reply.code(), (400, "invalid".into()), "{path:?}");
        let problem = reply.json();
        assert_eq!(problem["field"], "path");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
    assert_eq!(ask(good.clone()).send(node.address()).await.status, 200);
    assert_eq!(ask(good).send(node.address()).await.code(), (409, "exists".into()));
}
