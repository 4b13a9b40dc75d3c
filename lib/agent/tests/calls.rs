//! Calls of tools: what they know, how they are seen, and how they end, in time that the tests decide.

mod rig;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_agent::metrics::Kind;
use onward_agent::{Agent, Budget, CallDecision, MemorySessions, Tool, ToolContext, ToolError};
use rig::{Say, ScriptedModel, TestAttempt, call, say};
use tokio::time::{Instant, sleep};

#[derive(serde::Deserialize, schemars::JsonSchema, Debug)]
struct Number {
    n: u32,
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn a_tool_knows_the_budget_and_what_was_spent_when_its_call_began() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let known = seen.clone();
    let look = move |ctx: ToolContext, number: Number| {
        let (budget, spent) = (ctx.budget(), ctx.spent());
        let left = (budget.tool_calls_left(&spent), budget.tokens_left(&spent));
        known.lock().unwrap().push((spent.turns, spent.tool_calls, left));
        async move { Ok(number.n) }
    };
    let model = ScriptedModel::new(|n, _| if n < 2 { call("look", &format!("{{\"n\": {n}}}")) } else { say("done") });
    let agent = Agent::new(model).tool(Tool::new("look", "", look)).budget(Budget::tokens(10_000).tool_calls(5));
    agent.run_text(&TestAttempt::new(), "go").await.unwrap();
    // An answer of the script has 110 tokens.
    assert_eq!(*seen.lock().unwrap(), [(1, 1, (4, Some(9_890))), (2, 2, (3, Some(9_780)))]);
}

#[tokio::test(start_paused = true)]
async fn a_tool_beats_on_its_attempt_and_from_its_own_place() {
    let (seen, heard) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let attempt = TestAttempt::new();
    let (known, count, above) = (seen.clone(), heard.clone(), attempt.heartbeat.clone());
    let beats = move |ctx: ToolContext, _: Number| {
        let (known, count, above) = (known.clone(), count.clone(), above.clone());
        async move {
            let look = |line: u32| {
                let places = [ctx.heartbeat(), &above].map(|one| one.last_beat().unwrap());
                known.lock().unwrap().push((line, places, count.swap(0, Ordering::SeqCst)));
            };
            look(0);
            ctx.beat();
            look(line!() - 1);
            ctx.progress(1, 2);
            look(line!() - 1);
            // No higher than before: a beat.
            ctx.progress(1, 2);
            look(line!() - 1);
            Ok("done")
        }
    };
    let _observer = attempt.heartbeat.observe(move |_| {
        heard.fetch_add(1, Ordering::SeqCst);
    });
    let agent = Agent::new(ScriptedModel::of([call("beats", r#"{"n": 1}"#), say("done")]));
    agent.tool(Tool::new("beats", "", beats)).run_text(&attempt, "go").await.unwrap();
    let seen = seen.lock().unwrap();
    let counts: Vec<usize> = seen[1..].iter().map(|(_, _, beats)| *beats).collect();
    assert_eq!(counts, [1, 2, 1], "each is heard on the attempt; a step is progress and a beat");
    for (line, places, _) in &seen[1..] {
        assert!(places.iter().all(|place| place.file() == file!() && place.line() == *line), "{line}: {places:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_whose_time_is_over_has_a_moment_to_stop() {
    let stopped = Arc::new(Mutex::new(Vec::new()));
    let seen = stopped.clone();
    let tidies = move |ctx: ToolContext, number: Number| {
        let seen = seen.clone();
        async move {
            ctx.cancelled().await;
            sleep(secs(u64::from(number.n))).await;
            seen.lock().unwrap().push(number.n);
            if number.n == 0 { Err(ToolError::new("cancelled")) } else { Ok("half of it") }
        }
    };
    let calls = (0..4).map(|n| ("tidies".to_owned(), format!("{{\"n\": {n}}}"))).collect();
    let model = ScriptedModel::of([Say::Calls(calls), say("done")]);
    let agent = Agent::new(model.clone()).tool(Tool::new("tidies", "", tidies).timeout(secs(30)));
    let began = Instant::now();
    agent.run_text(&TestAttempt::new(), "go").await.unwrap();
    assert_eq!(began.elapsed(), secs(32));
    let (asked, late) = (model.asked(), "Error: the tool did not end within 30s");
    let told: Vec<&str> = asked[1][2..].iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(told, [late, "half of it", "half of it", late]);
    assert_eq!(*stopped.lock().unwrap(), [0, 1, 2], "what takes longer is dropped");
}

async fn echo(_: ToolContext, number: Number) -> Result<u32, ToolError> {
    Ok(number.n)
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_not_made_are_counted_as_failed() {
    let suspended = Arc::new(AtomicUsize::new(0));
    let asked = suspended.clone();
    let all = [("made_up", "{}"), ("made up again", "{}"), ("echo", "no JSON"), ("echo", r#"{"n": 1}"#)];
    let calls = all.map(|(name, arguments)| (name.to_owned(), arguments.to_owned()));
    let model = ScriptedModel::of([Say::Calls(calls.to_vec()), say("done")]);
    let agent = Agent::new(model).tool(Tool::new("echo", "", echo)).sessions(MemorySessions::new()).policy(move |_| {
        let times = asked.fetch_add(1, Ordering::SeqCst);
        async move { if times == 0 { CallDecision::Suspend("who?".into()) } else { CallDecision::Deny("no".into()) } }
    });
    agent.run_text(&TestAttempt::new(), "go").await.unwrap_err();
    let counts = |name: &str| (agent.metrics().of(Kind::Tool, name).calls, agent.metrics().of(Kind::Tool, name).failed);
    assert_eq!((counts("other"), counts("echo"), counts("made_up")), ((2, 2), (2, 2), (0, 0)));
    agent.run_text(&TestAttempt::with_fence(2), "go").await.unwrap();
    assert_eq!(counts("echo"), (3, 3), "the one that was denied");
}

#[tokio::test(start_paused = true)]
async fn a_note_says_what_is_done_now_before_anything_has_ended() {
    let attempt = TestAttempt::new();
    let (seen, known) = (Arc::new(Mutex::new(Vec::new())), attempt.clone());
    let noted = seen.clone();
    let look = move |_: ToolContext, number: Number| {
        noted.lock().unwrap().push((known.last_note(), known.watermark()));
        async move { Ok(number.n) }
    };
    let (noted, known) = (seen.clone(), attempt.clone());
    let model = ScriptedModel::new(move |n, _| {
        noted.lock().unwrap().push((known.last_note(), known.watermark()));
        if n == 0 { call("look", r#"{"n": 1}"#) } else { say("done") }
    });
    Agent::new(model).tool(Tool::new("look", "", look)).run_text(&attempt, "go").await.unwrap();
    let all =
        [("turn 1: asks the model", 0), ("turn 1: runs look(n)", 0), ("turn 2: asks the model; last: look(n)", 1)];
    let seen = seen.lock().unwrap();
    assert_eq!(seen.iter().map(|(note, done)| (note.as_str(), *done)).collect::<Vec<_>>(), all);
    assert_eq!(attempt.progress.lock().unwrap().len(), 1, "a note is no progress");
}
