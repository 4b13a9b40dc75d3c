//! Several runs in one attempt: each has a session of its own, which a later attempt finds again.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onward_agent::{Agent, Effect, MemorySessions, ModelError, Sessions, Tool, ToolContext, ToolError};
use rig::{Say, ScriptedModel, TestAttempt, call, say};
use serde_json::Value;
use tokio::time::sleep;

/// Answers with the prompt of its conversation.
fn parrot() -> ScriptedModel {
    ScriptedModel::new(|_, messages: &[Value]| say(&format!("{}!", messages[0]["content"].as_str().unwrap())))
}

#[tokio::test]
async fn two_runs_of_a_handler_have_two_outputs_and_neither_is_paid_again() {
    let (model, sessions) = (parrot(), MemorySessions::new());
    let agent = Agent::new(model.clone()).sessions(sessions.clone());
    for fence in 1..=2 {
        let attempt = TestAttempt::with_fence(fence);
        for prompt in ["draft", "review"] {
            let finished = agent.run_text(&attempt, prompt).await.unwrap();
            assert_eq!(finished.output, format!("{prompt}!"), "attempt {fence}");
        }
    }
    assert_eq!(model.asked().len(), 2);
    for session in ["job-1", "job-1.run-2"] {
        assert_eq!(sessions.open(session, 2).await.unwrap().entries.len(), 2, "{session}");
    }
}

#[tokio::test]
async fn runs_side_by_side_have_two_sessions() {
    let agent = Agent::new(parrot()).sessions(MemorySessions::new());
    let attempt = TestAttempt::new();
    let (one, other) = tokio::join!(agent.run_text(&attempt, "one"), agent.run_text(&attempt, "other"));
    assert_eq!((one.unwrap().output.as_str(), other.unwrap().output.as_str()), ("one!", "other!"));
}

#[tokio::test]
async fn runs_with_names_are_found_again_in_any_order() {
    let model = parrot();
    let agent = Agent::new(model.clone()).sessions(MemorySessions::new());
    for (fence, order) in [(1, ["a", "b", "c"]), (2, ["c", "a", "b"])] {
        let attempt = TestAttempt::with_fence(fence);
        for name in order {
            let finished = agent.clone().named(name).run_text(&attempt, name).await.unwrap();
            assert_eq!((finished.output, finished.session), (format!("{name}!"), format!("job-1.name-{name}")));
        }
    }
    assert_eq!(model.asked().len(), 3);
}

#[tokio::test]
async fn a_run_that_stopped_is_gone_on_with_by_the_next() {
    let model = ScriptedModel::new(|n, _| match n {
        0 => call("pay", "{}"),
        1 => Say::Fail(ModelError::Unavailable { why: "down".into(), retry_after: None }),
        _ => say("paid"),
    });
    let paid = Arc::new(AtomicU32::new(0));
    let counted = paid.clone();
    let pay = move |_: ToolContext, _: Value| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("done") }
    };
    let tool = Tool::with_schema("pay", "", serde_json::json!({}), pay).effect(Effect::Once);
    let agent = Agent::new(model.clone()).tool(tool).sessions(MemorySessions::new());
    let attempt = TestAttempt::new();
    agent.run_text(&attempt, "go").await.unwrap_err();
    assert_eq!(agent.run_text(&attempt, "go").await.unwrap().output, "paid");
    assert_eq!((paid.load(Ordering::SeqCst), model.asked().len()), (1, 3), "nothing is done twice");
    assert_eq!(attempt.watermark(), 1, "nor is it a forward step twice");
}

/// Makes this many new calls, and ends.
fn counting(calls: usize) -> ScriptedModel {
    ScriptedModel::new(move |_, messages| match messages.len() / 2 {
        n if n < calls => call("echo", &format!("{{\"n\": {n}}}")),
        _ => say("done"),
    })
}

#[tokio::test]
async fn every_run_of_an_attempt_makes_forward_steps() {
    let echo = |_: ToolContext, arguments: Value| async move { Ok::<_, ToolError>(arguments) };
    let tool = Tool::with_schema("echo", "", serde_json::json!({}), echo);
    let agent = Agent::new(counting(3)).tool(tool).sessions(MemorySessions::new());
    let attempt = TestAttempt::new();
    for done in [3, 6] {
        agent.run_text(&attempt, "go").await.unwrap();
        assert_eq!(attempt.watermark(), done, "{:?}", attempt.progress);
    }
    let (one, other) = tokio::join!(agent.run_text(&attempt, "go"), agent.run_text(&attempt, "go"));
    assert_eq!((one.unwrap().output, other.unwrap().output), ("done".into(), "done".into()));
    assert_eq!(attempt.watermark(), 12, "{:?}", attempt.progress);
    // What the handler itself has reported is below what comes next.
    attempt.heartbeat.progress(100, 200);
    agent.run_text(&attempt, "go").await.unwrap();
    assert_eq!(attempt.watermark(), 103, "{:?}", attempt.progress);
    // A later attempt begins with what is done.
    let later = TestAttempt::with_fence(2);
    agent.run_text(&later, "go").await.unwrap();
    assert_eq!(later.watermark(), 3, "{:?}", later.progress);
}

#[tokio::test(start_paused = true)]
async fn of_two_runs_with_one_name_at_a_time_the_second_is_refused() {
    let paid = Arc::new(AtomicU32::new(0));
    let counted = paid.clone();
    let pay = move |_: ToolContext, _: Value| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            sleep(Duration::from_secs(1)).await;
            Ok::<_, ToolError>("done")
        }
    };
    let model = ScriptedModel::new(|_, messages| if messages.len() == 1 { call("pay", "{}") } else { say("paid") });
    let tool = Tool::with_schema("pay", "", serde_json::json!({}), pay).effect(Effect::Once);
    let agent = Agent::new(model.clone()).tool(tool).sessions(MemorySessions::new());
    let attempt = TestAttempt::new();
    let run = |attempt: TestAttempt| {
        let agent = agent.clone().named("payer");
        async move { agent.run_text(&attempt, "go").await.map(|finished| finished.output) }
    };
    let (one, other) = tokio::join!(run(attempt.clone()), run(attempt.clone()));
    assert_eq!(one.unwrap(), "paid");
    let refused = other.unwrap_err().to_string();
    assert!(refused.contains("`job-1.name-payer` is under way already"), "{refused}");
    assert_eq!((paid.load(Ordering::SeqCst), model.asked().len()), (1, 2), "nothing is done twice");
    // One after the other they are one run; and a later attempt is kept out by nobody.
    assert_eq!(run(attempt.clone()).await.unwrap(), "paid");
    drop(tokio::join!(run(TestAttempt::with_fence(2)), async {
        assert_eq!(run(TestAttempt::with_fence(3)).await.unwrap(), "paid");
    }));
    assert_eq!((paid.load(Ordering::SeqCst), model.asked().len()), (1, 2));
}
