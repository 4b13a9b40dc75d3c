//! The `openai` package of PyPI, pointed at the tests' own server, gets the same answers: the server is a fair stand-in.

mod rig;

use onward_agent::{Agent, ChatCompletions, Stopped, Tool, ToolContext, ToolError};
use rig::TestAttempt;
use rig::server::{Asked, Piece, Reply, Server, answers, calls, chunk, text, usage};
use serde_json::{Value, json};
use tokio::process::Command;

const PACKAGE: &str = "openai==3.51.0";

/// Plays a conversation with the client's own stream, and prints what came.
const PROGRAM: &str = r#"
import json, sys
import openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="k", max_retries=2)
tools = [{"type": "function", "function": {"name": "search", "description": "Searches",
          "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}}]
messages = [{"role": "user", "content": sys.argv[2]}]
said = []
try:
    while True:
        with client.chat.completions.stream(model="m", messages=messages, tools=tools,
                                            stream_options={"include_usage": True}) as stream:
            for _ in stream:
                pass
            answer = stream.get_final_completion()
        message, tokens = answer.choices[0].message, answer.usage
        calls = [[c.function.name, c.function.arguments] for c in message.tool_calls or []]
        said.append({"text": message.content or "", "refusal": message.refusal, "calls": calls,
                     "usage": [tokens.prompt_tokens, tokens.completion_tokens] if tokens else None})
        if not calls:
            break
        messages.append({"role": "assistant", "content": message.content, "tool_calls": [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in message.tool_calls]})
        for c in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": c.id, "content": "nothing about " + json.loads(c.function.arguments)["q"]})
except openai.APIStatusError as error:
    said.append({"status": error.status_code})
except Exception:
    said.append({"broken": True})
print(json.dumps(said))
"#;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Query {
    q: String,
}

async fn search(_: ToolContext, query: Query) -> Result<String, ToolError> {
    Ok(format!("nothing about {}", query.q))
}

/// What is asked for is in the prompt.
fn script(before: usize, asked: &Asked) -> Reply {
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
        "busy" if before == 0 => Reply::Plain(429, "retry-after: 0\r\n".into(), "{}".into()),
        "unauthorized" => Reply::Plain(401, String::new(), r#"{"error": {"message": "no"}}"#.into()),
        "cut" => Reply::Stream(vec![
            Piece::Chunk(chunk(json!({ "role": "assistant", "content": "half" }), None)),
            Piece::Wire(b"400\r\ndata: {\"choi".to_vec()),
            Piece::Cut,
        ]),
        _ => text("fine"),
    }
}

async fn by_openai(prompt: &str) -> (Value, usize) {
    let server = Server::start(script).await;
    let python = tokio::task::spawn_blocking(|| onward_testkit::venv::programs("openai", &[PACKAGE])).await.unwrap();
    let run = Command::new(python.unwrap().join("python")).args(["-c", PROGRAM, &server.url, prompt]).output();
    let output = run.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_slice(&output.stdout).unwrap(), server.asked().len())
}

async fn by_us(prompt: &str) -> (Value, usize) {
    use onward_agent::session::Event;
    use onward_agent::{Memory, Sessions};
    let server = Server::start(script).await;
    let sessions = Memory::new();
    let agent = Agent::new(ChatCompletions::at(&server.url, "m").unwrap());
    let agent = agent.tool(Tool::new("search", "Searches", search)).sessions(sessions.clone());
    let ended = agent.run_text(&TestAttempt::new(), prompt).await;
    let mut said = Vec::new();
    for entry in sessions.open("job-1", 1).await.unwrap().entries {
        if let Event::Answered(answer) = entry.event
            && answer.cut.is_none()
        {
            let calls: Vec<[&str; 2]> = answer.calls.iter().map(|call| [&*call.name, &*call.arguments]).collect();
            let usage = [answer.usage.input_tokens, answer.usage.output_tokens];
            said.push(json!({ "text": answer.text, "refusal": answer.refusal, "calls": calls, "usage": usage }));
        }
    }
    match ended {
        Err(Stopped::Model(onward_agent::ModelError::Refused { status, .. })) => said.push(json!({ "status": status })),
        Err(Stopped::Model(_)) => said.push(json!({ "broken": true })),
        _ => {}
    }
    (said.into(), server.asked().len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_clients_get_the_same_answers() {
    for prompt in ["tools", "refusal", "busy", "unauthorized", "cut"] {
        let (theirs, ours) = (by_openai(prompt).await, by_us(prompt).await);
        assert_eq!(ours, theirs, "{prompt}");
    }
}
