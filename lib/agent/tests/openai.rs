//! The `openai` package of PyPI, pointed at the tests' own server, gets the same answers: the server is a fair stand-in.

mod rig;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onward_agent::session::SessionEvent;
use onward_agent::{
    Agent, Budget, ChatCompletions, MemorySessions, ModelError, Sessions, Stopped, Tool, ToolContext, ToolError,
};
use rig::server::{ModelRequest, Piece, Reply, Server, answers, calls, chunk, text, text_chunk, usage};
use rig::{SOON, TestAttempt};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

const PACKAGE: &str = "openai==3.51.0";

/// The number of letters after which both servers stop an answer that has no end.
const ENOUGH: usize = 40_000;

/// Plays conversations with the client's own stream, and prints for each what came. Arguments: addresses and prompts.
const PROGRAM: &str = r#"
import json, sys
import openai

def use(call):
    try:
        return "nothing about " + json.loads(call.function.arguments)["q"]
    except Exception as error:
        return "Error: " + str(error)

def play(url, prompt):
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=2)
    tools = [{"type": "function", "function": {"name": "search", "description": "Searches",
              "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}}]
    messages = [{"role": "user", "content": prompt}]
    said = []
    try:
        while True:
            with client.chat.completions.stream(model="m", messages=messages, tools=tools,
                                                stream_options={"include_usage": True}) as stream:
                for event in stream:
                    if event.type == "content.delta" and len(event.snapshot) >= ENOUGH:
                        return said + [{"stopped": True}]
                answer = stream.get_final_completion()
            message, tokens = answer.choices[0].message, answer.usage
            calls = [[c.function.name, c.function.arguments] for c in message.tool_calls or []]
            said.append({"text": message.content or "", "refusal": message.refusal, "calls": calls,
                         "usage": [tokens.prompt_tokens, tokens.completion_tokens] if tokens else None})
            if not calls:
                return said
            messages.append({"role": "assistant", "content": message.content, "tool_calls": [
                {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
                for c in message.tool_calls]})
            messages += [{"role": "tool", "tool_call_id": c.id, "content": use(c)} for c in message.tool_calls]
    except openai.APIStatusError as error:
        return said + [{"status": error.status_code}]
    except Exception:
        return said + [{"broken": True}]

print(json.dumps([play(url, prompt) for url, prompt in zip(sys.argv[1::2], sys.argv[2::2])]))
"#;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Query {
    q: String,
}

async fn search(_: ToolContext, query: Query) -> Result<String, ToolError> {
    Ok(format!("nothing about {}", query.q))
}

/// Every way in which the server breaks or is slow, by the prompt that asks for it.
const PROMPTS: [&str; 12] = [
    "fine",
    "tools",
    "refusal",
    "busy",
    "unauthorized",
    "cut",
    "half a chunk",
    "slow",
    "bad arguments",
    "unknown tool",
    "no JSON",
    "endless",
];

fn script(before: usize, asked: &ModelRequest) -> Reply {
    let begun = |text: &str| Piece::Chunk(chunk(json!({ "role": "assistant", "content": text }), None));
    match asked.body["messages"][0]["content"].as_str().unwrap() {
        "tools" => match answers(asked) {
            0 => calls(&[("search", r#"{"q": "ä"}"#), ("search", r#"{"q": "b"}"#)]),
            _ => text("It is not there. ✓"),
        },
        "refusal" => Reply::Stream(vec![
            Piece::Chunk(chunk(json!({ "role": "assistant", "refusal": "I will " }), None)),
            Piece::Chunk(chunk(json!({ "refusal": "not." }), None)),
            Piece::Chunk(chunk(json!({}), Some("stop"))),
            usage(7, 3),
            Piece::Done,
        ]),
        "busy" if before == 0 => Reply::Plain(429, "retry-after: 1\r\n".into(), "{}".into()),
        "unauthorized" => Reply::Plain(401, String::new(), r#"{"error": {"message": "no"}}"#.into()),
        "cut" => Reply::Stream(vec![begun("half"), Piece::Cut]),
        "half a chunk" => Reply::Stream(vec![begun("half"), Piece::Wire(b"400\r\ndata: {\"choi".to_vec()), Piece::Cut]),
        "slow" => {
            let mut pieces = vec![begun("")];
            for letter in ["s", "l", "o", "w"] {
                pieces.extend([Piece::Wait(Duration::from_millis(50)), text_chunk(letter)]);
            }
            pieces.extend([Piece::Chunk(chunk(json!({}), Some("stop"))), usage(4, 4), Piece::Done]);
            Reply::Stream(pieces)
        }
        "bad arguments" if answers(asked) == 0 => calls(&[("search", r#"{"q": "#)]),
        "unknown tool" if answers(asked) == 0 => calls(&[("fly", "{}")]),
        "no JSON" => Reply::Stream(vec![begun("x"), Piece::Raw(b"data: {\"choices\": [}\n\n".to_vec()), Piece::Done]),
        "endless" => {
            Reply::Stream(vec![begun(""), Piece::Endless(chunk(json!({ "content": "x".repeat(1_000) }), None))])
        }
        _ => text("fine"),
    }
}

/// A server for one prompt, and when it was asked.
struct Stage {
    server: Server,
    times: Arc<Mutex<Vec<Instant>>>,
}

impl Stage {
    async fn new() -> Self {
        let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let noted = times.clone();
        let server = Server::start(move |before, asked| {
            noted.lock().unwrap().push(Instant::now());
            script(before, asked)
        });
        Self { server: server.await, times }
    }

    /// The number of questions, and whether a second passed between two of them. No connection is left.
    async fn end(self) -> (usize, bool) {
        timeout(SOON, self.server.idle()).await.expect("no connection is left");
        let times = self.times.lock().unwrap();
        (times.len(), times.windows(2).any(|pair| pair[1] - pair[0] >= Duration::from_secs(1)))
    }
}

async fn by_openai() -> Vec<(Value, (usize, bool))> {
    let python = tokio::task::spawn_blocking(|| onward_testkit::venv::programs("openai", &[PACKAGE])).await.unwrap();
    let mut command = Command::new(python.unwrap().join("python"));
    command.args(["-c", &PROGRAM.replace("ENOUGH", &ENOUGH.to_string())]).kill_on_drop(true);
    let mut stages = Vec::new();
    for prompt in PROMPTS {
        let stage = Stage::new().await;
        command.args([&stage.server.url, prompt]);
        stages.push(stage);
    }
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mut all = Vec::new();
    for (said, stage) in said.into_iter().zip(stages) {
        all.push((said, stage.end().await));
    }
    all
}

async fn by_us(prompt: &str) -> (Value, (usize, bool)) {
    let (stage, sessions) = (Stage::new().await, MemorySessions::new());
    let agent = Agent::new(ChatCompletions::at(&stage.server.url, "m").unwrap());
    let agent = agent.tool(Tool::new("search", "Searches", search)).sessions(sessions.clone());
    // Four letters are taken for a token.
    let agent = agent.budget(Budget::default().output_tokens(ENOUGH as u64 / 4));
    let ended = agent.run_text(&TestAttempt::new(), prompt).await;
    let mut said = Vec::new();
    for entry in sessions.open("job-1", 1).await.unwrap().entries {
        if let SessionEvent::Answered(answer) = entry.event
            && answer.cut.is_none()
        {
            let calls: Vec<[&str; 2]> = answer.calls.iter().map(|call| [&*call.name, &*call.arguments]).collect();
            let usage = [answer.usage.input_tokens, answer.usage.output_tokens];
            said.push(json!({ "text": answer.text, "refusal": answer.refusal, "calls": calls, "usage": usage }));
        }
    }
    match ended {
        Err(Stopped::Model(ModelError::Refused { status, .. })) => said.push(json!({ "status": status })),
        Err(Stopped::Model(_)) => said.push(json!({ "broken": true })),
        Err(Stopped::Budget { .. }) => said.push(json!({ "stopped": true })),
        _ => {}
    }
    (said.into(), stage.end().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_clients_get_the_same_answers() {
    for (prompt, theirs) in PROMPTS.into_iter().zip(by_openai().await) {
        assert_eq!(by_us(prompt).await, theirs, "{prompt}");
        assert_eq!(theirs.1.1, prompt == "busy", "{prompt}: only `Retry-After` is waited for");
    }
}
