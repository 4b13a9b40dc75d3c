//! Backups over HTTP: where they may be written.

use crate::rig::{Request, config};
use onward_log::OnLoss;
use onward_node::server::{Node, restore};
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

#[tokio::test]
async fn a_backup_is_not_written_among_the_nodes_own_files() {
    let (data, elsewhere) = (tempdir().unwrap(), tempdir().unwrap());
    let node = Node::start(config(data.path())).await.unwrap();
    let token = std::fs::read_to_string(data.path().join("token")).unwrap();
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(data.path(), &link).unwrap();
    std::fs::create_dir(data.path().join("deeper")).unwrap();
    let roundabout = elsewhere.path().join("..").join(data.path().file_name().unwrap()).join("onward.toml");
    for path in [
        data.path().join("onward.toml"),
        data.path().join("restoring"),
        link.join("x"),
        data.path().join("deeper/x"),
        roundabout,
    ] {
        let reply = Request::post("/v1/backup", &json!({ "path": path }))
            .header("authorization", &format!("Bearer {}", token.trim()))
            .send(node.address())
            .await;
        assert_eq!(reply.code(), (400, "invalid".into()), "{path:?}");
        let problem = reply.json();
        assert_eq!(problem["field"], "path");
        assert!(problem["detail"].as_str().unwrap().contains("write it to another folder"), "{problem}");
        assert!(!path.exists(), "{path:?}");
    }
}

#[tokio::test]
async fn a_folder_that_has_any_file_of_a_node_is_not_restored_into() {
    let (data, folder) = (tempdir().unwrap(), tempdir().unwrap());
    let node = Node::start(config(data.path())).await.unwrap();
    let token = std::fs::read_to_string(data.path().join("token")).unwrap();
    let backup = folder.path().join("a.backup");
    let made = Request::post("/v1/backup", &json!({ "path": backup }))
        .header("authorization", &format!("Bearer {}", token.trim()))
        .send(node.address())
        .await;
    assert_eq!(made.status, 200);
    for name in ["tokens.json", "receipt.key", "token", "output", "onward.redb", "onward.journal", "archive.redb"] {
        let occupied = folder.path().join(format!("has-{name}"));
        std::fs::create_dir(&occupied).unwrap();
        std::fs::write(occupied.join(name), "mine").unwrap();
        let refused = restore(&backup, &occupied, OnLoss::Refuse).unwrap_err().to_string();
        assert!(refused.contains(name) && refused.contains("restore into an empty folder"), "{refused}");
        assert_eq!(std::fs::read_to_string(occupied.join(name)).unwrap(), "mine");
        let ours = |entry: &std::fs::DirEntry| !entry.file_name().to_string_lossy().ends_with(".lock");
        let entries = std::fs::read_dir(&occupied).unwrap().map(Result::unwrap).filter(ours);
        assert_eq!(entries.count(), 1, "{name}: nothing else was made");
    }
    let own = folder.path().join("settings-only");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("onward.toml"), "").unwrap();
    restore(&backup, &own, OnLoss::Refuse).unwrap();
    assert!(own.join("tokens.json").exists() && own.join("receipt.key").exists());
}
