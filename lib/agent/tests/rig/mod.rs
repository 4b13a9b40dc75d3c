//! What tests of agents share.

#![allow(dead_code, reason = "every test file uses its own part of the rig")]

pub mod conversation;
pub mod server;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, stream};
use onward_agent::{AgentAttempt, Ask, Delta, Heartbeat, Model, ModelError, Usage};
use serde_json::Value;
use tokio::sync::watch;

/// Longer than anything here takes, on a busy computer too.
pub const SOON: Duration = Duration::from_secs(120);

/// An attempt that nobody judges but the test.
#[derive(Clone)]
pub struct TestAttempt {
    pub heartbeat: Heartbeat,
    pub fence: u64,
    pub session: String,
    pub deadline: Option<Duration>,
    pub progress: Arc<Mutex<Vec<(u64, String)>>>,
    pub notes: Arc<Mutex<Vec<String>>>,
}

impl TestAttempt {
    pub fn new() -> Self {
        Self::with_fence(1)
    }

    pub fn with_fence(fence: u64) -> Self {
        Self {
            heartbeat: Heartbeat::new(),
            fence,
            session: "job-1".into(),
            deadline: None,
            progress: Arc::default(),
            notes: Arc::default(),
        }
    }

    pub fn watermark(&self) -> u64 {
        self.progress.lock().unwrap().iter().map(|(done, _)| *done).max().unwrap_or_default()
    }

    pub fn last_note(&self) -> String {
        self.notes.lock().unwrap().last().cloned().unwrap_or_default()
    }
}

impl AgentAttempt for TestAttempt {
    fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    fn progress(&self, done: u64, note: &str) {
        self.progress.lock().unwrap().push((done, note.to_owned()));
        self.note(note);
        self.heartbeat.progress(done, None);
    }

    fn note(&self, note: &str) {
        self.notes.lock().unwrap().push(note.to_owned());
    }

    fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    fn fence(&self) -> u64 {
        self.fence
    }

    fn session(&self) -> String {
        self.session.clone()
    }
}

/// The answer of a scripted model.
#[derive(Clone, Debug)]
pub enum Say {
    Text(String),
    Calls(Vec<(String, String)>),
    /// Deltas, each after this long.
    Slowly(Duration, Vec<Delta>),
    /// An answer without its usage.
    Unmetered(String),
    Fail(ModelError),
}

pub fn say(text: &str) -> Say {
    Say::Text(text.into())
}

pub fn call(name: &str, arguments: &str) -> Say {
    Say::Calls(vec![(name.into(), arguments.into())])
}

type Script = Arc<dyn Fn(usize, &[Value]) -> Say + Send + Sync>;

/// A model that answers by a script: the number of the question and the conversation in, an answer out.
#[derive(Clone)]
pub struct ScriptedModel {
    script: Script,
    asked: Arc<watch::Sender<Vec<Vec<Value>>>>,
}

impl ScriptedModel {
    pub fn new(script: impl Fn(usize, &[Value]) -> Say + Send + Sync + 'static) -> Self {
        Self { script: Arc::new(script), asked: Arc::default() }
    }

    /// These, one after the other, and the last one again and again.
    pub fn of(says: impl IntoIterator<Item = Say>) -> Self {
        let says: Vec<Say> = says.into_iter().collect();
        Self::new(move |n, _| says[n.min(says.len() - 1)].clone())
    }

    pub fn asked(&self) -> Vec<Vec<Value>> {
        self.asked.borrow().clone()
    }

    /// Waits until it was asked so often.
    pub async fn asked_times(&self, times: usize) {
        self.asked.subscribe().wait_for(|asked| asked.len() >= times).await.unwrap();
    }
}

impl Model for ScriptedModel {
    fn complete(&self, ask: Ask<'_>) -> impl Stream<Item = Result<Delta, ModelError>> + Send {
        let messages: Vec<Value> = ask.messages.iter().map(|one| serde_json::to_value(one).unwrap()).collect();
        let mut number = 0;
        self.asked.send_modify(|asked| {
            number = asked.len();
            asked.push(messages.clone());
        });
        let usage = Delta::Usage(Usage { input_tokens: 100, output_tokens: 10, estimated: false });
        let (pause, deltas) = match (self.script)(number, &messages) {
            Say::Text(text) => (Duration::ZERO, vec![Ok(Delta::Text(text)), Ok(usage)]),
            Say::Calls(calls) => (Duration::ZERO, call_deltas(&calls).into_iter().chain([usage]).map(Ok).collect()),
            Say::Slowly(pause, deltas) => (pause, deltas.into_iter().map(Ok).collect()),
            Say::Unmetered(text) => (Duration::ZERO, vec![Ok(Delta::Text(text))]),
            Say::Fail(error) => (Duration::ZERO, vec![Err(error)]),
        };
        stream::unfold(VecDeque::from(deltas), move |mut deltas| async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            Some((deltas.pop_front()?, deltas))
        })
    }
}

pub fn call_deltas(calls: &[(String, String)]) -> Vec<Delta> {
    let delta = |(index, (name, arguments)): (usize, &(String, String))| Delta::ToolCall {
        index: u32::try_from(index).unwrap(),
        id: Some(format!("call_{index}")),
        name: Some(name.clone()),
        arguments: arguments.clone(),
    };
    calls.iter().enumerate().map(delta).collect()
}
