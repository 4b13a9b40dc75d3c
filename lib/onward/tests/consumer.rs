//! The example of a consumer, as a process of its own, on a stand-in for SQS.

#[path = "../examples/consumer.rs"]
mod consumer;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use onward::mailbox::{Depth, Mailbox, Message, Sqs};
use onward_testkit::SqsServer as Server;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

const CHILD: &str = "ONWARD_CONSUMER_CHILD";
const SOON: Duration = Duration::from_secs(120);

/// Stands in for the program that encodes: writes the file that is named last, and another one with a line for each run.
/// Where there is a pipe beside it, the program waits for a line of it, and has work for three seconds more: a loop that
/// does not let it finish has stopped it by then.
const ENCODER: &str = r#"#!/bin/sh
for last; do :; done
echo run >> "$last.runs"
if [ -p "$last.wait" ]; then read -r line < "$last.wait"; sleep 3; fi
echo "$last" | tee "$last"
"#;

/// It is there to be read.
#[test]
fn the_example_has_forty_lines() {
    let lines = include_str!("../examples/consumer.rs").lines().count();
    assert!(lines <= 40, "{lines} lines");
}

/// Does nothing, unless it is run by the test below: then it is the example.
#[test]
fn is_the_example() {
    if std::env::var(CHILD).is_ok() {
        consumer::main().unwrap();
    }
}

#[tokio::test]
async fn the_consumer_handles_what_is_sent_and_drains_when_it_is_told_to_stop() {
    let (server, folder) = (Server::ministack().unwrap(), tempfile::tempdir().unwrap());
    let encoder = folder.path().join("ffmpeg");
    std::fs::write(&encoder, ENCODER).unwrap();
    std::fs::set_permissions(&encoder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let aws = client(&server.url());
    let create = async |name: &str| aws.create_queue().queue_name(name).send().await.unwrap().queue_url.unwrap();
    create("videos-dead").await;
    let url = create("videos").await;
    let videos = Sqs::connect(aws.clone(), &url).await.unwrap();
    let parts = ["a", "b", "c"].map(|part| folder.path().join(part).display().to_string());
    let bodies = [serde_json::json!({ "parts": parts[..2] }), serde_json::json!({ "parts": parts[2..] })];
    let batch = bodies.iter().map(|body| Message::json(body).unwrap()).chain([Message::new("no video")]).collect();
    videos.send(batch).await.into_iter().for_each(|sent| drop(sent.unwrap()));

    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "is_the_example", "--nocapture"]).env(CHILD, "1").env("QUEUE_URL", &url);
    child.env("AWS_ENDPOINT_URL", server.url()).env("AWS_REGION", "us-east-1");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path);
    let folders = std::iter::once(folder.path().to_owned()).chain(folders);
    child.env("PATH", std::env::join_paths(folders).unwrap());
    child.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    let mut child = child.stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let id = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    let is_handled = async || videos.depth().await.unwrap() == (Depth { waiting: 0, held: 0, dead: 1 });
    soon(is_handled).await;
    for part in parts {
        let written = std::fs::read_to_string(format!("{part}.mp4")).unwrap();
        assert_eq!(written.trim(), format!("{part}.mp4"));
    }

    // Told to stop in the middle of a part, it finishes it.
    let part = folder.path().join("slow").display().to_string();
    let (pipe, runs) = (format!("{part}.mp4.wait"), format!("{part}.mp4.runs"));
    let made = Command::new("mkfifo").arg(&pipe).status().await.unwrap();
    assert!(made.success());
    let slow = Message::json(&serde_json::json!({ "parts": [part] })).unwrap();
    videos.send(vec![slow]).await.remove(0).unwrap();
    soon(async || std::fs::exists(&runs).unwrap()).await;
    kill_process(id, Signal::TERM).unwrap();
    assert!(child.try_wait().unwrap().is_none(), "it waits for its handler");
    // Also opened to be read: so it opens whether the encoder is there or not yet.
    let mut writer = std::fs::OpenOptions::new().read(true).write(true).open(pipe).unwrap();
    writeln!(writer, "go on").unwrap();
    assert!(child.wait().await.unwrap().success(), "it drains, and ends well");
    assert_eq!(std::fs::read_to_string(format!("{part}.mp4")).unwrap().trim(), format!("{part}.mp4"));
    assert_eq!(std::fs::read_to_string(runs).unwrap(), "run\n", "its message was handed out once");
    soon(is_handled).await;
}

/// Waits until it is so, on however slow a machine.
async fn soon(is_so: impl AsyncFn() -> bool) {
    let over = async {
        let mut looks = tokio::time::interval(Duration::from_millis(100));
        while !is_so().await {
            looks.tick().await;
        }
    };
    tokio::time::timeout(SOON, over).await.expect("it comes to be so");
}

fn client(url: &str) -> aws_sdk_sqs::Client {
    use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
    use aws_smithy_http_client::{Builder, tls};
    let ring = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    let config = aws_sdk_sqs::Config::builder().behavior_version(BehaviorVersion::latest()).endpoint_url(url);
    let config = config.credentials_provider(Credentials::new("test", "test", None, None, "tests"));
    let config = config.region(Region::new("us-east-1"));
    aws_sdk_sqs::Client::from_conf(config.http_client(Builder::new().tls_provider(ring).build_https()).build())
}
