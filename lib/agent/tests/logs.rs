//! What is logged. Alone in its program: what other tests do at the same time decides which spans there are.

mod rig;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_agent::metrics::Kind;
use onward_agent::tools::Files;
use onward_agent::{Agent, ChatCompletions, Failure};
use onward_lease::mailbox::{Mailbox, Message};
use onward_lease::{Delivery, MessageLoop};
use rig::server::{Piece, Reply, Server, calls, chunk, text, text_chunk};
use rig::{SOON, TestAttempt};
use serde_json::json;
use tokio::time::timeout;

/// All log lines of a test.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// All of this thread, until the value is dropped.
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

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
    let _here = log.listen();
    let server = Server::start(|n, _| match n {
        0 => Reply::Plain(503, String::new(), "you sent sk-secret and prompt-of-user".into()),
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
    let text = log.text();
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
    assert!(text.contains("status=503"), "{text}");
    assert_eq!(agent.metrics().of(Kind::Model, "model-7").calls, 2);
    let rendered = agent.metrics().render();
    for column in ["calls", "calls_failed", "call_seconds", "call_beats", "call_extensions"] {
        for (kind, name) in [("model", "model-7"), ("tool", "read_file")] {
            let line = format!("onward_agent_{column}_total{{kind=\"{kind}\",name=\"{name}\"}} ");
            assert!(rendered.contains(&line), "{line}: {rendered}");
        }
    }
    // What people are shown of a running agent is stored by others.
    assert_eq!(attempt.last_note(), "turn 2: asks the model; last: read_file(path)");
    let notes = format!("{:?}", attempt.notes.lock().unwrap());
    for secret in ["sk-secret", "password-of-arguments", "text-of-answer", "prompt-of-user"] {
        assert!(!text.contains(secret) && !notes.contains(secret), "{secret}: {text} {notes}");
    }
}

/// An answer that quotes this.
type SaysBack = fn(String) -> Reply;

/// What a model or its server says may quote what it was told, and a message loop logs why a handler failed.
#[tokio::test]
async fn why_an_agent_failed_is_logged_without_what_was_said() {
    let quoting = || "you said prompt-of-user".to_owned();
    let replies: [(&str, SaysBack); 6] = [
        ("cannot be reached", |said| Reply::Plain(503, "retry-after: 100\r\n".into(), said)),
        ("with 400", |said| Reply::Plain(400, String::new(), said)),
        ("does not speak the protocol", |said| Reply::Stream(vec![Piece::Raw(format!("data: {said}\n\n").into())])),
        ("broke off", |said| {
            Reply::Stream(vec![text_chunk("a"), Piece::Chunk(json!({ "error": { "message": said } }))])
        }),
        ("refuses", |said| {
            Reply::Stream(vec![Piece::Chunk(chunk(json!({ "refusal": said }), Some("stop"))), Piece::Done])
        }),
        ("does not fit", |said| text(&json!({ "answer": "", said: 1 }).to_string())),
    ];
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "nothing gets there")]
    struct Output {
        answer: String,
    }
    for (kind, reply) in replies {
        let log = Log::default();
        let _here = log.listen();
        let server = Server::start(move |_, _| reply(quoting())).await;
        let agent = Agent::new(ChatCompletions::at(&server.url, "m").unwrap()).output_tries(0);
        let mailbox = onward_lease::mailbox::Memory::new();
        let messages = MessageLoop::on(mailbox.clone()).handle(move |message: Delivery, prompt: String| {
            let agent = agent.clone();
            async move { agent.run::<Output>(&message, prompt).await.map(drop).map_err(Failure::from) }
        });
        let message = Message::json(&"prompt-of-user").unwrap();
        mailbox.send(vec![message]).await.remove(0).unwrap();
        let logged = async {
            while !log.text().contains(kind) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, messages.run_until(logged)).await.expect(kind).unwrap();
        assert!(!log.text().contains("prompt-of-user"), "{kind}: {}", log.text());
    }
}
