//! The loop between model and tools, in time that the tests decide.

mod rig;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_agent::metrics::Kind;
use onward_agent::{
    Agent, Budget, BudgetPart, CallDecision, CancelWhy, Delta, Effect, Failure, MemorySessions, ModelError, Price,
    Stopped, Tool, ToolContext, ToolError,
};
use onward_lease::FailureKind;
use rig::{Say, ScriptedModel, TestAttempt, call, say};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

#[derive(serde::Deserialize, schemars::JsonSchema, Debug)]
struct Number {
    n: u32,
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn echo(_: ToolContext, number: Number) -> Result<String, ToolError> {
    Ok(format!("got {}", number.n))
}

fn echo_tool() -> Tool {
    Tool::new("echo", "Says it again", echo)
}

fn told(messages: &[Value]) -> Vec<String> {
    messages.iter().map(|message| message["content"].as_str().unwrap_or_default().to_owned()).collect()
}

#[derive(serde::Deserialize, schemars::JsonSchema, Debug, PartialEq)]
struct Verdict {
    ok: bool,
    #[schemars(range(max = 10))]
    score: u32,
}

#[tokio::test(start_paused = true)]
async fn an_output_is_held_against_its_schema_and_the_model_is_told() {
    let model = ScriptedModel::of([
        say("Fine!"),
        say(r#"{"ok": true, "score": 11}"#),
        say("```json\n{\"ok\": true, \"score\": 9}\n```"),
    ]);
    let agent = Agent::new(model.clone());
    let finished = agent.run::<Verdict>(&TestAttempt::new(), "judge").await.unwrap();
    assert_eq!((finished.output, finished.spent.turns), (Verdict { ok: true, score: 9 }, 3));
    let last = told(&model.asked()[2]);
    assert!(last[2].contains("Your output does not fit: it is not JSON"), "{last:?}");
    assert!(last[4].contains("`output.score` must be at most 10"), "{last:?}");

    let agent = Agent::new(ScriptedModel::of([say("never"), say("")]));
    let stopped = agent.run::<Verdict>(&TestAttempt::new(), "judge").await.unwrap_err();
    assert!(matches!(&stopped, Stopped::Output(error) if error == "it is empty"), "{stopped:?}");
    assert!(!Failure::from(stopped).is_retryable());
}

#[tokio::test(start_paused = true)]
async fn a_new_call_is_progress_and_a_repeat_is_not_and_the_model_is_told() {
    let model = ScriptedModel::new(|n, _| match n {
        0 | 1 => call("echo", &format!("{{\"n\": {n}}}")),
        2..7 => call("echo", r#"{ "n": 1 }"#),
        _ => say("enough"),
    });
    let attempt = TestAttempt::new();
    let agent = Agent::new(model.clone()).tool(echo_tool());
    agent.run_text(&attempt, "go").await.unwrap();
    assert_eq!(attempt.watermark(), 2, "{:?}", attempt.progress);
    assert!(attempt.last_note().contains("echo(n) again, 6 times"), "{}", attempt.last_note());
    let notices = |asked: &[Value]| told(asked).iter().filter(|text| text.contains("the same each time")).count();
    let counts: Vec<usize> = model.asked().iter().map(|asked| notices(asked)).collect();
    assert_eq!(counts, [0, 0, 0, 0, 0, 1, 2, 3], "from the third repeat on");
}

#[tokio::test(start_paused = true)]
async fn polling_is_exempt() {
    let model = ScriptedModel::new(|n, _| if n < 8 { call("echo", r#"{"n": 1}"#) } else { say("done") });
    let attempt = TestAttempt::new();
    Agent::new(model.clone()).tool(echo_tool().polling()).run_text(&attempt, "go").await.unwrap();
    assert_eq!(attempt.watermark(), 8);
    assert!(!model.asked().iter().flatten().any(|message| message.to_string().contains("the same each time")));
}

#[tokio::test(start_paused = true)]
async fn stuck_says_which_call_and_how_often_also_after_a_resume() {
    let slow = |_: ToolContext, number: Number| async move {
        sleep(secs(10)).await;
        Ok(number.n)
    };
    let (sessions, model) = (MemorySessions::new(), ScriptedModel::of([call("look", r#"{"n": 1}"#)]));
    let agent = Agent::new(model).tool(Tool::new("look", "Looks", slow)).sessions(sessions);
    for (fence, times) in [(1, 4), (2, 8)] {
        let attempt = TestAttempt::with_fence(fence);
        let heartbeat = attempt.heartbeat.clone();
        let judge = async move {
            sleep(secs(45)).await;
            heartbeat.cancel(CancelWhy::Stuck);
        };
        let (stopped, ()) = tokio::join!(agent.run_text(&attempt, "go"), judge);
        let stopped = stopped.unwrap_err();
        let said = matches!(&stopped, Stopped::Stuck { call, times: seen } if call == "look(n)" && *seen == times);
        assert!(said, "{stopped:?}");
        assert!(stopped.to_string().contains("with the same result"), "{stopped}");
    }
}

/// In real time, which is never the same twice: what the model is told of a call must be.
#[tokio::test]
async fn a_tool_that_hangs_at_every_try_is_a_repeat() {
    let hangs = |ctx: ToolContext, _: Number| async move {
        ctx.cancelled().await;
        Err::<(), _>(ToolError::new("cancelled"))
    };
    let model = ScriptedModel::new(|n, _| if n < 5 { call("hangs", r#"{"n": 1}"#) } else { say("enough") });
    let agent = Agent::new(model.clone()).tool(Tool::new("hangs", "", hangs).timeout(Duration::from_millis(20)));
    let attempt = TestAttempt::new();
    agent.run_text(&attempt, "go").await.unwrap();
    assert_eq!(attempt.watermark(), 1, "{:?}", attempt.progress);
    let last = told(model.asked().last().unwrap());
    assert_eq!(last[2], "Error: the tool did not end within 20ms");
    let notices: Vec<&String> = last.iter().filter(|text| text.contains("the same each time")).collect();
    assert!(notices.len() == 2 && notices[0].contains("4 times"), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn stuck_in_an_answer_is_stuck_and_not_cancelled() {
    for (why, times) in [(CancelWhy::Stuck, 4), (CancelWhy::LeaseExpired, 0), (CancelWhy::TimedOut, 0)] {
        let model = ScriptedModel::new(|n, _| match n {
            0..4 => call("echo", r#"{"n": 1}"#),
            _ => Say::Slowly(secs(10), vec![Delta::Text("well".into()); 100]),
        });
        let agent = Agent::new(model).tool(echo_tool());
        let attempt = TestAttempt::new();
        let heartbeat = attempt.heartbeat.clone();
        let judge = async move {
            sleep(secs(45)).await;
            heartbeat.cancel(why);
        };
        let (stopped, ()) = tokio::join!(agent.run_text(&attempt, "go"), judge);
        let said = match stopped.as_ref().unwrap_err() {
            Stopped::Stuck { call, times: seen } => call == "echo(n)" && *seen == times,
            Stopped::Lost(seen) => *seen == why,
            Stopped::Deadline => why == CancelWhy::TimedOut,
            _ => false,
        };
        assert!(said, "{why:?}: {stopped:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn progress_of_a_tool_counts_until_it_repeats_itself() {
    let work = |ctx: ToolContext, number: Number| async move {
        for done in 1..=3 {
            ctx.progress(done, 3);
        }
        ctx.progress(2, 3);
        Ok(number.n)
    };
    let model = ScriptedModel::new(|n, _| if n < 4 { call("work", r#"{"n": 1}"#) } else { say("done") });
    let attempt = TestAttempt::new();
    Agent::new(model).tool(Tool::new("work", "Works", work)).run_text(&attempt, "go").await.unwrap();
    // 3 and the call; 3, for it might have been new; then nothing more.
    assert_eq!(attempt.watermark(), 7, "{:?}", attempt.progress);
    let notes = attempt.progress.lock().unwrap().clone();
    assert!(notes.iter().any(|(_, note)| note.starts_with("work: 2 of 3; turn 1")), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn tools_that_fail_panic_hang_or_talk_too_much_are_told_to_the_model() {
    let fails = |_: ToolContext, _: Number| async { Err::<(), _>(std::io::Error::other("no disk").into()) };
    let panics = |_: ToolContext, n: Number| async move { if n.n == 1 { panic!("boom {}", n.n) } else { Ok(1) } };
    let hangs = |_: ToolContext, _: Number| std::future::pending::<Result<(), ToolError>>();
    let talks = |_: ToolContext, _: Number| async { Ok("ä".repeat(1_000)) };
    let all = ["fails", "panics", "hangs", "talks"].map(|name| (name.to_owned(), r#"{"n": 1}"#.to_owned()));
    let model = ScriptedModel::of([Say::Calls(all.to_vec()), say("done")]);
    let agent = Agent::new(model.clone())
        .tool(Tool::new("fails", "", fails))
        .tool(Tool::new("panics", "", panics))
        .tool(Tool::new("hangs", "", hangs).timeout(secs(30)))
        .tool(Tool::new("talks", "", talks).output_limit(101));
    let began = Instant::now();
    agent.run_text(&TestAttempt::new(), "go").await.unwrap();
    assert_eq!(began.elapsed(), secs(30 + 2), "with a moment to stop");
    let told = told(&model.asked()[1]);
    assert_eq!(
        told[2..5],
        ["Error: no disk", "Error: the tool panicked: boom 1", "Error: the tool did not end within 30s"]
    );
    assert_eq!(told[5], format!("{}\n[cut: the first 100 of 2000 bytes]", "ä".repeat(50)));
    let metrics = agent.metrics();
    assert_eq!((metrics.of(Kind::Tool, "hangs").failed, metrics.of(Kind::Tool, "hangs").time), (1, secs(32)));
    assert_eq!((metrics.of(Kind::Model, "model").calls, metrics.of(Kind::Tool, "talks").beats), (2, 2));
    assert!(metrics.render().contains("onward_agent_calls_failed_total{kind=\"tool\",name=\"panics\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn of_a_call_that_is_made_once_and_did_not_end_the_model_learns_that_nothing_is_known() {
    let ends_badly = |_: ToolContext, number: Number| async move {
        if number.n == 1 { panic!("boom") } else { std::future::pending::<Result<(), ToolError>>().await }
    };
    for (n, effect, said) in [
        (0, Effect::Once, "Error: the tool did not end within 30s; whether it was carried out is not known."),
        (1, Effect::Once, "Error: the tool panicked: boom; whether it was carried out is not known."),
        (0, Effect::Idempotent, "Error: the tool did not end within 30s"),
        (1, Effect::None, "Error: the tool panicked: boom"),
    ] {
        let model = ScriptedModel::of([call("refund", &format!("{{\"n\": {n}}}")), say("done")]);
        let tool = Tool::new("refund", "", ends_badly).timeout(secs(30)).effect(effect);
        Agent::new(model.clone()).tool(tool).run_text(&TestAttempt::new(), "go").await.unwrap();
        let told = told(&model.asked()[1]);
        assert!(told[2].starts_with(said), "{}", told[2]);
        assert_eq!(told[2].contains("not known"), effect == Effect::Once, "{}", told[2]);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_answer_run_side_by_side_within_a_limit() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (running.clone(), most.clone());
    let work = move |_: ToolContext, number: Number| {
        let (now, peak) = (now.clone(), peak.clone());
        async move {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(secs(10 - u64::from(number.n))).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(number.n)
        }
    };
    let calls = (0..5).map(|n| ("work".to_owned(), format!("{{\"n\": {n}}}"))).collect();
    let model = ScriptedModel::of([Say::Calls(calls), say("done")]);
    let agent = Agent::new(model.clone()).tool(Tool::new("work", "", work)).calls_at_once(2);
    agent.run_text(&TestAttempt::new(), "go").await.unwrap();
    assert_eq!(most.load(Ordering::SeqCst), 2);
    assert_eq!(told(&model.asked()[1])[2..], ["0", "1", "2", "3", "4"], "in the order of the calls");
}

#[tokio::test(start_paused = true)]
async fn each_budget_ends_the_run_with_its_limit() {
    let price = Price { input: 10_000.0, output: 0.0 };
    for (budget, limit, turns) in [
        // The question after it would have been too large.
        (Budget::tokens(400), BudgetPart::Tokens, 3),
        (Budget::default().input_tokens(230), BudgetPart::InputTokens, 2),
        (Budget::default().output_tokens(40), BudgetPart::OutputTokens, 4),
        (Budget::default().turns(5), BudgetPart::Turns, 5),
        (Budget::default().tool_calls(2), BudgetPart::ToolCalls, 3),
        (Budget::default().time(secs(25)), BudgetPart::Time, 3),
        (Budget::default().money(2.3, price), BudgetPart::Money, 2),
    ] {
        let work = |_: ToolContext, number: Number| async move {
            sleep(secs(10)).await;
            Ok(number.n)
        };
        let model = ScriptedModel::new(|n, _| call("work", &format!("{{\"n\": {n}}}")));
        let agent = Agent::new(model).tool(Tool::new("work", "", work)).budget(budget).sessions(MemorySessions::new());
        let stopped = agent.run_text(&TestAttempt::new(), "go").await.unwrap_err();
        let Stopped::Budget { limit: seen, spent } = &stopped else { panic!("{limit}: {stopped:?}") };
        assert_eq!((*seen, spent.turns), (limit, turns), "{spent:?}");
        assert!(stopped.to_string().contains(&format!("budget of {limit} is spent")), "{stopped}");
        // The next attempt knows what was spent.
        let again = agent.run_text(&TestAttempt::with_fence(2), "go").await.unwrap_err();
        assert!(matches!(again, Stopped::Budget { .. }), "{again:?}");
        assert_eq!(Failure::from(again).kind(), FailureKind::Permanent);
    }
}

#[tokio::test(start_paused = true)]
async fn time_between_attempts_is_not_spent_and_tokens_that_are_not_told_are_estimated() {
    let model = ScriptedModel::new(|n, _| match n {
        0 => call("work", r#"{"n": 0}"#),
        1 => Say::Fail(ModelError::Unavailable { why: "down".into(), retry_after: None }),
        _ => Say::Unmetered("x".repeat(400)),
    });
    let work = |_: ToolContext, number: Number| async move {
        sleep(secs(10)).await;
        Ok(number.n)
    };
    let agent = Agent::new(model.clone()).tool(Tool::new("work", "", work)).sessions(MemorySessions::new());
    let stopped = agent.run_text(&TestAttempt::new(), "go").await.unwrap_err();
    assert_eq!(Failure::from(stopped).kind(), FailureKind::Retry { after: None });
    sleep(secs(1_000)).await;
    let finished = agent.run_text(&TestAttempt::with_fence(2), "another prompt").await.unwrap();
    assert_eq!((finished.spent.time, finished.spent.tool_calls), (secs(10), 1));
    assert!(finished.spent.estimated && finished.spent.output_tokens == 110, "{:?}", finished.spent);
    assert_eq!(model.asked()[2][0]["content"], "go", "it goes on with what it began with");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_and_a_cancel_reach_a_running_tool() {
    for by_cancel in [false, true] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let notes = seen.clone();
        let waits = move |ctx: ToolContext, _: Number| {
            let notes = notes.clone();
            async move {
                notes.lock().unwrap().push(ctx.deadline());
                ctx.cancelled().await;
                notes.lock().unwrap().push(secs(0));
                Err::<(), _>(ToolError::new("stopped"))
            }
        };
        let agent = Agent::new(ScriptedModel::of([call("waits", r#"{"n": 1}"#)])).tool(Tool::new("waits", "", waits));
        let agent = agent.deadline(secs(1_000));
        let mut attempt = TestAttempt::new();
        attempt.deadline = Some(secs(100));
        let heartbeat = attempt.heartbeat.clone();
        let cancel = async move {
            sleep(secs(50)).await;
            if by_cancel {
                heartbeat.cancel(CancelWhy::LeaseExpired);
            }
        };
        let began = Instant::now();
        let (stopped, ()) = tokio::join!(agent.run_text(&attempt, "go"), cancel);
        if by_cancel {
            assert!(matches!(stopped, Err(Stopped::Lost(CancelWhy::LeaseExpired))), "{stopped:?}");
        } else {
            assert!(matches!(stopped, Err(Stopped::Deadline)), "{stopped:?}");
        }
        assert_eq!(began.elapsed(), secs(if by_cancel { 50 } else { 100 }));
        assert_eq!(*seen.lock().unwrap(), [secs(100), secs(0)], "it was told, and had time to stop");
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_allows_denies_or_suspends_and_a_person_lets_it_go_on() {
    let approved: Arc<Mutex<Vec<String>>> = Arc::default();
    let paid = Arc::new(Mutex::new(Vec::new()));
    let (known, done) = (approved.clone(), paid.clone());
    let pay = move |ctx: ToolContext, number: Number| {
        done.lock().unwrap().push((number.n, ctx.call_key().to_owned()));
        async move { Ok("paid") }
    };
    let some = [5, 500, 600].map(|n| ("pay".to_owned(), format!("{{\"n\": {n}}}")));
    let three = vec![("pay".to_owned(), r#"{"n": 9999}"#.to_owned())];
    let model = ScriptedModel::of([Say::Calls(some.to_vec()), Say::Calls(three), say("done")]);
    let agent = Agent::new(model.clone())
        .tool(Tool::new("pay", "Pays", pay).effect(Effect::Once))
        .sessions(MemorySessions::new())
        .policy(move |call| {
            let known = known.clone();
            async move {
                match call.arguments["n"].as_u64() {
                    Some(..100) => CallDecision::Allow,
                    Some(..1_000) if known.lock().unwrap().contains(&call.key) => CallDecision::Allow,
                    Some(..1_000) => CallDecision::Suspend("more than 100".into()),
                    _ => CallDecision::Deny("more than 1000".into()),
                }
            }
        });
    for fence in 1..=2 {
        let attempt = TestAttempt::with_fence(fence);
        let stopped = agent.run_text(&attempt, "go").await.unwrap_err();
        let Stopped::Suspended { approvals, .. } = &stopped else { panic!("{stopped:?}") };
        let asked: Vec<(&str, &Value)> =
            approvals.iter().map(|one| (one.call.key.as_str(), &one.call.arguments["n"])).collect();
        assert_eq!(asked, [("job-1.1.1", &json!(500)), ("job-1.1.2", &json!(600))], "all of them are told");
        let said = "a person must approve pay under the key job-1.1.1 (more than 100), and pay under the key job-1.1.2";
        assert!(attempt.last_note().starts_with(said), "{}", attempt.last_note());
        let failure = Failure::from(stopped);
        assert!(matches!(failure.kind(), FailureKind::Release { after: Some(_) }), "it counts as no attempt");
        assert!(failure.to_string().starts_with(said), "{failure}");
    }
    assert_eq!(*paid.lock().unwrap(), [(5, "job-1.1.0".to_owned())], "the other call of the answer was made");
    approved.lock().unwrap().push("job-1.1.1".into());
    let stopped = agent.run_text(&TestAttempt::with_fence(3), "go").await.unwrap_err();
    assert!(matches!(&stopped, Stopped::Suspended { approvals, .. } if approvals.len() == 1), "{stopped:?}");
    approved.lock().unwrap().push("job-1.1.2".into());
    let finished = agent.run_text(&TestAttempt::with_fence(4), "go").await.unwrap();
    assert_eq!(finished.output, "done");
    let later = [(500, "job-1.1.1".to_owned()), (600, "job-1.1.2".to_owned())];
    assert_eq!(paid.lock().unwrap()[1..], later);
    assert_eq!(model.asked().len(), 3, "the model was asked once for each turn");
    let told = told(&model.asked()[2]);
    assert_eq!(told[6], "Error: this call is not allowed: more than 1000");
}

#[tokio::test(start_paused = true)]
async fn tools_find_resources_by_type() {
    struct Prices(u32);
    let price = |ctx: ToolContext, number: Number| async move {
        let prices = ctx.resource::<Prices>().ok_or_else(|| ToolError::new("no prices"))?;
        assert!(ctx.resource::<String>().is_none());
        Ok(prices.0 * number.n)
    };
    let model = ScriptedModel::of([call("price", r#"{"n": 3}"#), say("done")]);
    let agent = Agent::new(model.clone()).tool(Tool::new("price", "", price)).resource(Prices(7));
    agent.run_text(&TestAttempt::new(), "go").await.unwrap();
    assert_eq!(told(&model.asked()[1])[2], "21");
}

#[tokio::test(start_paused = true)]
async fn a_tool_with_a_schema_of_run_time_is_checked_by_it() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let tool = Tool::with_schema("remote", "", schema, |_, arguments: Value| async move { Ok(arguments) });
    let model = ScriptedModel::of([call("remote", r#"{"n": "x"}"#), call("remote", r#"{"n": 1}"#), say("done")]);
    Agent::new(model.clone()).tool(tool).run_text(&TestAttempt::new(), "go").await.unwrap();
    let told = told(&model.asked()[2]);
    assert_eq!(told[2], "Error: the arguments do not fit: `arguments.n` must be of type integer");
    assert_eq!(told[4], r#"{"n":1}"#);
}

#[tokio::test(start_paused = true)]
async fn a_tool_with_a_type_is_checked_by_the_schema_that_the_model_was_told() {
    let tool = Tool::new("judge", "", |_, verdict: Verdict| async move { Ok(verdict.score) });
    let model = ScriptedModel::of([
        call("judge", r#"{"ok": true, "score": 11}"#),
        call("judge", r#"{"ok": true, "score": 9}"#),
        say("done"),
    ]);
    Agent::new(model.clone()).tool(tool).run_text(&TestAttempt::new(), "go").await.unwrap();
    let told = told(&model.asked()[2]);
    assert_eq!(told[2], "Error: the arguments do not fit: `arguments.score` must be at most 10");
    assert_eq!(told[4], "9");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_cut_at_its_length_is_asked_for_again() {
    let cut = vec![Delta::Text("half".into()), Delta::Finish(onward_agent::model::Finish::Length)];
    let model = ScriptedModel::of([Say::Slowly(secs(1), cut), say("whole")]);
    assert_eq!(Agent::new(model.clone()).run_text(&TestAttempt::new(), "go").await.unwrap().output, "whole");
    assert!(told(&model.asked()[1])[2].contains("longer than allowed"));
}

#[tokio::test(start_paused = true)]
async fn calls_of_an_answer_that_was_cut_or_filtered_are_not_run() {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = made.clone();
    let pay = move |_: ToolContext, number: Number| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, ToolError>(number.n) }
    };
    let agent = |model: &ScriptedModel| Agent::new(model.clone()).tool(Tool::new("pay", "", pay.clone()));
    let pair = |first: &str, second: &str| [first, second].map(|one| ("pay".to_owned(), one.to_owned()));
    let ending = |finish, calls: &[(String, String)]| {
        let deltas = rig::call_deltas(calls).into_iter().chain([Delta::Finish(finish)]);
        Say::Slowly(secs(1), deltas.collect())
    };
    // Also the second, whose arguments happen to be whole: "n" may have been meant to be 10.
    let length = onward_agent::model::Finish::Length;
    let model = ScriptedModel::of([ending(length, &pair(r#"{"n": 1}"#, r#"{"n": 1}"#)), say("I will be shorter")]);
    assert_eq!(agent(&model).run_text(&TestAttempt::new(), "go").await.unwrap().output, "I will be shorter");
    let said = told(&model.asked()[1]);
    assert!(said[2].contains("none of its calls was made") && said[2] == said[3], "{said:?}");

    let filtered = onward_agent::model::Finish::Filtered;
    let model = ScriptedModel::of([ending(filtered, &pair(r#"{"n": 1}"#, r#"{"n": 2}"#))]);
    let stopped = agent(&model).run_text(&TestAttempt::new(), "go").await;
    assert!(matches!(stopped, Err(Stopped::Refused(_))), "{stopped:?}");
    assert_eq!(made.load(Ordering::SeqCst), 0, "nothing was paid");
}

#[tokio::test(start_paused = true)]
async fn only_what_has_something_in_it_is_a_beat() {
    let usage = || Delta::Usage(onward_agent::Usage { input_tokens: 1, output_tokens: 1, estimated: false });
    let empty = Delta::ToolCall { index: 0, id: None, name: None, arguments: String::new() };
    let deltas = vec![Delta::Text("a".into()), Delta::Text(String::new()), usage(), empty, Delta::Text("b".into())];
    let agent = Agent::new(ScriptedModel::of([Say::Slowly(secs(100), deltas)]));
    let attempt = TestAttempt::new();
    let beats = Arc::new(Mutex::new(Vec::new()));
    let (seen, began) = (beats.clone(), Instant::now());
    let _observer = attempt.heartbeat.observe(move |_| seen.lock().unwrap().push(began.elapsed()));
    assert_eq!(agent.run_text(&attempt, "go").await.unwrap().output, "ab");
    let seconds: Vec<u64> = beats.lock().unwrap().iter().map(Duration::as_secs).collect();
    assert_eq!(seconds, [0, 100, 500, 600], "at the turn, by each letter, and at the next turn");
}

#[tokio::test(start_paused = true)]
async fn a_tool_without_end_of_its_time_is_bounded_by_the_run_alone() {
    let left = Arc::new(Mutex::new(Vec::new()));
    let seen = left.clone();
    let wait = move |ctx: ToolContext, _: Number| {
        seen.lock().unwrap().push(ctx.deadline());
        async move {
            sleep(secs(1_000)).await;
            Ok("waited")
        }
    };
    let tool = || Tool::new("wait", "", wait.clone()).timeout(Duration::MAX);
    let model = || ScriptedModel::of([call("wait", r#"{"n": 1}"#), say("done")]);
    Agent::new(model()).tool(tool()).run_text(&TestAttempt::new(), "go").await.unwrap();
    let stopped = Agent::new(model()).tool(tool()).deadline(secs(10)).run_text(&TestAttempt::new(), "go").await;
    assert!(matches!(stopped, Err(Stopped::Deadline)), "{stopped:?}");
    assert_eq!(*left.lock().unwrap(), [Duration::MAX, secs(10)]);
}
