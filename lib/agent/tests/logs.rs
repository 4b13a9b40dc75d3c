//! What is logged. Alone in its program: what other tests do at the same time decides which spans there are.

mod rig;

use std::io::Write;
use std::sync::{Arc, Mutex};

use onward_agent::metrics::Kind;
use onward_agent::tools::Files;
use onward_agent::{Agent, ChatCompletions};
use rig::TestAttempt;
use rig::server::{Reply, Server, calls, text};

/// All that was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn calls_are_spans_and_nothing_secret_is_logged() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let server = Server::start(|n, _| match n {
        0 => Reply::Plain(503, String::new(), "you sent sk-secret".into()),
        1 => calls(&[("read_file", r#"{"path": "password-of-arguments"}"#)]),
        _ => text("text-of-answer"),
    })
    .await;
    let root = tempfile::tempdir().unwrap();
    let model = ChatCompletions::at(&server.url, "model-7").unwrap().key("sk-secret");
    let files = Files::beneath(root.path()).unwrap().tools();
    let agent = files.into_iter().fold(Agent::new(model), Agent::tool);
    let attempt = TestAttempt::new();
    agent.run_text(&attempt, "prompt-of-user").await.unwrap();
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let closed = |name: &str| {
        let is_end = |line: &&str| line.contains(name) && line.contains("close");
        text.lines().rfind(is_end).unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let (model, tool) = (closed("model_call{"), closed("tool_call{"));
    for (line, fields) in [
        (&model, ["name=\"model-7\"", "turn=2", "duration_ms=", "beats=", "extensions=0", "ended=\"answered\""]),
        (&tool, ["name=\"read_file\"", "duration_ms=", "beats=2", "extensions=0", "failed=true", "time.busy="]),
    ] {
        for field in fields {
            assert!(line.contains(field), "{field}: {line}");
        }
    }
    assert!(text.contains("503: you sent [key]"), "{text}");
    assert_eq!(agent.metrics().of(Kind::Model, "model-7").calls, 2);
    let rendered = agent.metrics().render();
    for column in ["calls", "calls_failed", "call_seconds", "call_beats", "call_extensions"] {
        for (kind, name) in [("model", "model-7"), ("tool", "read_file")] {
            let line = format!("onward_agent_{column}_total{{kind=\"{kind}\",name=\"{name}\"}} ");
            assert!(rendered.contains(&line), "{line}: {rendered}");
        }
    }
    // What people are shown of a running agent is stored by others.
    assert_eq!(attempt.last_note(), "turn 1; last: read_file(path)");
    let notes = format!("{:?}", attempt.progress.lock().unwrap());
    for secret in ["sk-secret", "password-of-arguments", "text-of-answer", "prompt-of-user"] {
        assert!(!text.contains(secret) && !notes.contains(secret), "{secret}: {text} {notes}");
    }
}
