//! What a question costs: before it is asked, when it is answered, and when nobody knows whether it was.

mod rig;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use onward_agent::session::SessionEvent;
use onward_agent::{
    Agent, Ask, Budget, BudgetPart, ChatCompletions, Delta, MemorySessions, Model, ModelError, Price, Sessions, Spent,
    Stopped, Tool, ToolContext, ToolError, Usage,
};
use rig::server::{Piece, Reply, Server, text};
use rig::{SOON, Say, ScriptedModel, TestAttempt, call, say};
use tokio::time::timeout;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Number {
    n: usize,
}

/// The spending of a run's second attempt, and the end of the first one, which found the first server.
async fn spent_after(first: &str, reply: fn() -> Reply) -> (Stopped, Spent) {
    let server = Server::start(move |_, _| reply()).await;
    let url = if first.is_empty() { server.url.clone() } else { first.to_owned() };
    let sessions = MemorySessions::new();
    // Not enough time for a second try: a failure is not waited out.
    let agent = |url: &str| Agent::new(ChatCompletions::at(url, "m").unwrap()).sessions(sessions.clone());
    let hurried = agent(&url).deadline(Duration::from_millis(450));
    let ended = timeout(SOON, hurried.run_text(&TestAttempt::new(), "hello")).await.expect("it ends by itself");
    let good = Server::start(|_, _| text("fine")).await;
    let finished = agent(&good.url).run_text(&TestAttempt::with_fence(2), "hello").await.unwrap();
    (ended.unwrap_err(), finished.spent)
}

#[tokio::test]
async fn a_question_that_no_server_took_costs_nothing() {
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/v1", listener.local_addr().unwrap())
    };
    let busy: fn() -> Reply = || Reply::Plain(429, "retry-after: 300\r\n".into(), "no".into());
    let wrong: fn() -> Reply = || Reply::Plain(401, String::new(), "no".into());
    let broken: fn() -> Reply = || Reply::Plain(503, String::new(), "no".into());
    for (first, reply) in [(nobody.as_str(), busy), ("", busy), ("", wrong), ("", broken)] {
        let (stopped, spent) = spent_after(first, reply).await;
        assert!(matches!(&stopped, Stopped::Model(error) if !error.was_taken()), "{stopped:?}");
        let counts = (spent.input_tokens, spent.output_tokens, spent.turns, spent.estimated);
        assert_eq!(counts, (10, 5, 1, false), "after {stopped}");
    }
}

#[tokio::test]
async fn an_answer_that_broke_off_costs_its_estimate() {
    let half: fn() -> Reply = || Reply::Stream(vec![rig::server::text_chunk("half an answer"), Piece::Cut]);
    let (stopped, spent) = spent_after("", half).await;
    assert!(matches!(stopped, Stopped::Model(ModelError::Cut { .. })), "{stopped:?}");
    // `{"role":"user","content":"hello"}` are 33 bytes, and what came 14.
    assert_eq!((spent.input_tokens, spent.output_tokens, spent.turns, spent.estimated), (10 + 9, 5 + 4, 2, true));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_was_lost_with_its_attempt_is_charged_by_an_estimate() {
    let model = ScriptedModel::new(|n, _| match n {
        0 => Say::Slowly(Duration::from_secs(1_000_000), vec![Delta::Text("never".into())]),
        _ => say("done"),
    });
    let agent = Agent::new(model.clone()).sessions(MemorySessions::new());
    let first = TestAttempt::new();
    // Dropped in the middle of the answer, as a kill does.
    let gone = timeout(Duration::from_secs(9), agent.run_text(&first, "hello")).await;
    assert!(gone.is_err() && model.asked().len() == 1);
    for fence in 2..4 {
        let spent = agent.run_text(&TestAttempt::with_fence(fence), "hello").await.unwrap().spent;
        assert_eq!((spent.input_tokens, spent.output_tokens, spent.turns, spent.estimated), (109, 10, 2, true));
    }
    assert_eq!(model.asked().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_would_pass_the_budget_is_not_asked() {
    let large = "x".repeat(4_000);
    let price = Price { input: 1_000.0, output: 1_000.0 };
    for (budget, limit) in [
        (Budget::tokens(1_000), BudgetPart::Tokens),
        (Budget::default().input_tokens(999), BudgetPart::InputTokens),
        (Budget::default().money(0.9, price), BudgetPart::Money),
    ] {
        let model = ScriptedModel::of([say("done")]);
        let stopped = Agent::new(model.clone()).budget(budget).run_text(&TestAttempt::new(), large.as_str()).await;
        assert!(matches!(&stopped, Err(Stopped::Budget { limit: seen, .. }) if *seen == limit), "{stopped:?}");
        assert_eq!(model.asked().len(), 0, "{limit}");
    }
    // Nor is one that a tool has made large.
    let talk = |_: ToolContext, number: Number| async move { Ok::<_, ToolError>("x".repeat(number.n)) };
    let model = ScriptedModel::of([call("talk", r#"{"n": 4000}"#), say("done")]);
    let agent = Agent::new(model.clone()).tool(Tool::new("talk", "", talk)).budget(Budget::tokens(1_000));
    let stopped = agent.run_text(&TestAttempt::new(), "go").await;
    assert!(matches!(&stopped, Err(Stopped::Budget { limit: BudgetPart::Tokens, .. })), "{stopped:?}");
    assert_eq!(model.asked().len(), 1);
}

/// Notes what it was asked.
#[derive(Clone, Default)]
struct Curious(Arc<Mutex<Vec<String>>>);

impl Model for Curious {
    fn complete(&self, ask: Ask<'_>) -> impl Stream<Item = Result<Delta, ModelError>> + Send {
        let (most, left) = (ask.max_output_tokens.unwrap(), ask.budget.tokens_left(&ask.spent).unwrap());
        let until = ask.deadline.unwrap().duration_since(tokio::time::Instant::now());
        let seen = format!("{} {most} {left} {until:?} {}", ask.session, ask.messages.len());
        self.0.lock().unwrap().push(seen);
        ask.heartbeat.beat();
        let usage = Usage { input_tokens: 50, output_tokens: 50, estimated: false };
        stream::iter([Delta::Text("done".into()), Delta::Usage(usage)]).map(Ok)
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_session_deadline_budget_and_heartbeat_reach_the_model() {
    let model = Curious::default();
    let agent = Agent::new(model.clone()).budget(Budget::tokens(1_000)).deadline(Duration::from_secs(60));
    agent.run_text(&TestAttempt::new(), "hello").await.unwrap();
    assert_eq!(*model.0.lock().unwrap(), ["job-1 991 1000 60s 1"], "9 tokens are the question's");
}

#[tokio::test]
async fn a_server_that_counts_beyond_all_measure_overflows_nothing() {
    let huge =
        || Reply::Stream(vec![rig::server::text_chunk(" "), rig::server::usage(u64::MAX, u64::MAX), Piece::Done]);
    let server = Server::start(move |_, _| huge()).await;
    let agent = Agent::new(ChatCompletions::at(&server.url, "m").unwrap());
    // Not an output, so it asks again.
    let stopped = agent.run_text(&TestAttempt::new(), "hello").await.unwrap_err();
    assert!(matches!(stopped, Stopped::Output(_)), "{stopped:?}");
    let limited = agent.budget(Budget::tokens(1_000_000)).sessions(MemorySessions::new());
    let stopped = limited.run_text(&TestAttempt::new(), "hello").await.unwrap_err();
    assert!(matches!(stopped, Stopped::Budget { limit: BudgetPart::Tokens, .. }), "{stopped:?}");
}

#[tokio::test]
async fn a_question_and_its_estimate_are_in_the_session() {
    let sessions = MemorySessions::new();
    let agent = Agent::new(ScriptedModel::of([say("done")])).sessions(sessions.clone());
    agent.run_text(&TestAttempt::new(), "hello").await.unwrap();
    let entries = sessions.open("job-1", 1).await.unwrap().entries;
    assert!(matches!(entries[0].event, SessionEvent::Asked { input_tokens: 9, .. }), "{entries:?}");
}
