//! One run of an agent against a server with a script, after which nothing is left of it.

#![allow(dead_code, reason = "every test file uses its own part of it")]

use std::sync::{Arc, Mutex};

use onward_agent::model::ModelAnswer;
use onward_agent::session::{Entry, SessionEvent};
use onward_agent::{
    Agent, ChatCompletions, MemorySessions, ModelError, Sessions, Stopped, Tool, ToolContext, ToolError,
};
use onward_lease::heartbeat::Beat;
use tokio::time::timeout;

use super::server::{ModelRequest, Reply, Server};
use super::{SOON, TestAttempt};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Query {
    q: String,
}

async fn search(_: ToolContext, query: Query) -> Result<String, ToolError> {
    Ok(format!("nothing about {}", query.q))
}

/// The end of a run, and its traces.
pub struct Ran {
    pub ended: Result<String, Stopped>,
    pub asked: Vec<ModelRequest>,
    pub sessions: MemorySessions,
    pub attempt: TestAttempt,
    /// All beats on the attempt's heartbeat.
    pub beats: Vec<Beat>,
}

impl Ran {
    pub fn model_error(&self) -> &ModelError {
        match &self.ended {
            Err(Stopped::Model(error)) => error,
            other => panic!("no error of the model: {other:?}"),
        }
    }

    pub async fn entries(&self) -> Vec<Entry> {
        self.sessions.open("job-1", 1).await.unwrap().entries
    }

    /// The estimated input of the first question, and its answer.
    pub async fn first_answer(&self) -> (u64, ModelAnswer) {
        let entries = self.entries().await;
        match (&entries[0].event, &entries[1].event) {
            (SessionEvent::Asked { input_tokens, .. }, SessionEvent::Answered(answer)) => {
                (*input_tokens, answer.clone())
            }
            _ => panic!("{entries:?}"),
        }
    }

    /// The number of beats that are no quiet sections.
    pub fn plain_beats(&self) -> usize {
        self.beats.iter().filter(|beat| **beat == Beat::Beat).count()
    }
}

/// Runs an agent against a server with this script, and waits until no connection and nothing that was spawned is left.
pub async fn run_with(
    script: impl Fn(usize, &ModelRequest) -> Reply + Send + Sync + 'static,
    change: impl FnOnce(Agent) -> Agent,
    model: impl FnOnce(ChatCompletions) -> ChatCompletions,
) -> Ran {
    let server = Server::start(script).await;
    let (sessions, attempt) = (MemorySessions::new(), TestAttempt::new());
    let beats = Arc::new(Mutex::new(Vec::new()));
    let seen = beats.clone();
    let observer = attempt.heartbeat.observe(move |beat| seen.lock().unwrap().push(beat));
    let model = model(ChatCompletions::at(&server.url, "m").unwrap().key("sk-secret"));
    let agent = Agent::new(model).tool(Tool::new("search", "Searches", search)).sessions(sessions.clone());
    let ended = timeout(SOON, change(agent).run_text(&attempt, "hello")).await.expect("it ends by itself");
    timeout(SOON, server.idle()).await.expect("no connection is left");
    let asked = server.asked();
    drop((server, observer));
    let alone = async {
        while tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, alone).await.expect("nothing is left that runs by itself");
    let beats = beats.lock().unwrap().clone();
    Ran { ended: ended.map(|finished| finished.output), asked, sessions, attempt, beats }
}

pub async fn run(script: impl Fn(usize, &ModelRequest) -> Reply + Send + Sync + 'static) -> Ran {
    run_with(script, |agent| agent, |model| model).await
}
