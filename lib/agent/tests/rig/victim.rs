//! An agent that is killed or frozen at the entry of its session that a test names.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{Stream, StreamExt};
use onward_agent::session::{Entry, Session};
use onward_agent::{
    Agent, AgentAttempt, Ask, ChatCompletions, Delta, Effect, Folder, Heartbeat, Model, ModelError, SessionError,
    Sessions, Sqlite, Stopped, Tool, ToolContext, ToolError,
};
use rustix::process::{Signal, getpid, kill_process};

/// The fate of this process, and the entry or answer at which it comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lives,
    DiesBefore(usize),
    DiesAfter(usize),
    FreezesBefore(usize),
    DiesInAnswer(usize),
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    loop {
        std::thread::park();
    }
}

struct DoomedProcess<S> {
    inner: S,
    fate: Fate,
    appended: Arc<AtomicUsize>,
}

impl<S: Sessions> Sessions for DoomedProcess<S> {
    async fn open(&self, id: &str, fence: u64) -> Result<Session, SessionError> {
        self.inner.open(id, fence).await
    }

    async fn append(&self, session: &Session, entry: &Entry) -> Result<(), SessionError> {
        let number = self.appended.fetch_add(1, Ordering::Relaxed);
        if self.fate == Fate::DiesBefore(number) {
            die();
        }
        if self.fate == Fate::FreezesBefore(number) {
            kill_process(getpid(), Signal::STOP).expect("a process may stop itself");
        }
        self.inner.append(session, entry).await?;
        if self.fate == Fate::DiesAfter(number) {
            die();
        }
        Ok(())
    }
}

struct DoomedModel {
    inner: ChatCompletions,
    fate: Fate,
    asked: AtomicUsize,
}

impl Model for DoomedModel {
    fn complete(&self, ask: Ask<'_>) -> impl Stream<Item = Result<Delta, ModelError>> + Send {
        let dies = self.fate == Fate::DiesInAnswer(self.asked.fetch_add(1, Ordering::Relaxed));
        self.inner.complete(ask).inspect(move |_| {
            if dies {
                die();
            }
        })
    }
}

#[derive(Clone)]
struct Victim {
    heartbeat: Heartbeat,
    fence: u64,
}

impl AgentAttempt for Victim {
    fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    fn fence(&self) -> u64 {
        self.fence
    }

    fn session(&self) -> String {
        "job-1".into()
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Number {
    number: u32,
}

/// What a tool has done is a line in a file.
fn done(tool: &str, ctx: &ToolContext, what: &Number) -> Result<(), ToolError> {
    let path = std::env::var("EFFECTS")?;
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
    Ok(writeln!(file, "{tool} {} {}", what.number, ctx.call_key())?)
}

async fn search(ctx: ToolContext, what: Number) -> Result<String, ToolError> {
    done("search", &ctx, &what)?;
    Ok(format!("found {}", what.number))
}

async fn refund(ctx: ToolContext, what: Number) -> Result<String, ToolError> {
    done("refund", &ctx, &what)?;
    Ok(format!("refunded {}", what.number))
}

fn fate() -> Fate {
    let text = std::env::var("FATE").unwrap_or_default();
    let Some((word, number)) = text.split_once(' ') else { return Fate::Lives };
    let number = number.parse().expect("a number");
    match word {
        "before" => Fate::DiesBefore(number),
        "after" => Fate::DiesAfter(number),
        "freeze" => Fate::FreezesBefore(number),
        "answer" => Fate::DiesInAnswer(number),
        other => panic!("no fate is called {other}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let get = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let fate = fate();
    let inner = match ChatCompletions::from_env() {
        Ok(model) => model,
        Err(error) => {
            writeln!(std::io::stdout(), "{error}").expect("the test reads it");
            return ExitCode::from(2);
        }
    };
    let model = DoomedModel { inner, fate, asked: AtomicUsize::new(0) };
    let appended = Arc::default();
    let agent = Agent::new(model)
        .instructions("Refund at most once.")
        .tool(Tool::new("search", "Searches", search).effect(Effect::Idempotent))
        .tool(Tool::new("refund", "Refunds", refund).effect(Effect::Once));
    let folder = get("SESSIONS");
    let agent = if folder.ends_with(".db") {
        agent.sessions(DoomedProcess { inner: Sqlite::at(folder).expect("a database"), fate, appended })
    } else {
        agent.sessions(DoomedProcess { inner: Folder::at(folder).expect("a folder"), fate, appended })
    };
    let victim = Victim { heartbeat: Heartbeat::new(), fence: get("FENCE").parse().expect("a number") };
    match agent.run_text(&victim, "Resolve the ticket.").await {
        Ok(finished) => {
            let mut out = std::io::stdout();
            writeln!(out, "{}\n{}", finished.output, finished.spent).expect("the test reads it");
            ExitCode::SUCCESS
        }
        Err(Stopped::Lost(_)) => ExitCode::from(3),
        Err(other) => {
            let mut out = std::io::stdout();
            writeln!(out, "{other}").expect("the test reads it");
            ExitCode::FAILURE
        }
    }
}
