//! Agents as handlers of a worker: judged by a manager's clocks, and on a real node.

#[allow(dead_code, reason = "the example's own `main` is not called")]
#[path = "../examples/agent.rs"]
mod example;
#[path = "../../agent/tests/rig/mod.rs"]
mod rig;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use onward::agent::metrics::Kind;
use onward::agent::session::SessionEvent;
use onward::agent::tools::CommandTool;
use onward::agent::{
    Agent, CallDecision, ChatCompletions, Effect, Folder, MemorySessions, ModelError, Sessions, Stopped, Tool,
    ToolContext, ToolError,
};
use onward::testing::{TestAttempt, TestOutcome};
use onward::{Context, Failure, Worker};
use rig::server::{Piece, Reply, Server, answers, calls, messages, text, text_chunk};
use rig::{Say, ScriptedModel, call, call_deltas, say};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;
use world::{World, job};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Number {
    n: u32,
}

async fn slow(_: ToolContext, number: Number) -> Result<u32, ToolError> {
    sleep(secs(80)).await;
    Ok(number.n)
}

async fn handle(agent: Agent, ctx: Context) -> Result<String, Failure> {
    Ok(agent.run_text(&ctx, "go").await?.output)
}

#[tokio::test(start_paused = true)]
async fn thirty_minutes_of_work_on_a_lease_of_five() {
    // Turns of seven and a half minutes: the model writes for 370 s, which is longer than the lease, and the tool works for
    // 80 s.
    let model = ScriptedModel::new(|n, _| {
        let mut deltas = call_deltas(&[("slow".to_owned(), format!("{{\"n\": {n}}}"))]);
        deltas.extend((0..35).map(|_| onward::agent::Delta::Text("thinking".into())));
        if n < 4 { Say::Slowly(secs(10), deltas) } else { say("done") }
    });
    let agent = Agent::new(model.clone()).tool(Tool::new("slow", "", slow));
    let attempt = TestAttempt::of("agent").lease(secs(300)).stuck_after(secs(500));
    let ended = attempt.run(|ctx: Context, (): ()| handle(agent, ctx)).await;
    assert_eq!(ended.outcome, TestOutcome::Succeeded("done".into()));
    assert_eq!((ended.took, model.asked().len()), (secs(30 * 60), 5));
    assert_eq!(ended.progress(), Some((4, None)));
    let kept = ended.reports.iter().find_map(|report| report.checkpoint.clone()).unwrap();
    assert_eq!(kept, b"onward-agent-session:00000000-0000-0000-0000-000000000001-0");
    assert_eq!(ended.checkpoint(), None, "the handler itself left nothing");
    let notes: Vec<String> = ended.reports.into_iter().filter_map(|report| report.note).collect();
    assert_eq!(notes.first().unwrap(), "turn 1: asks the model");
    assert_eq!(notes.last().unwrap(), "turn 5: asks the model; last: slow(n), slow(n), slow(n)");
}

/// Whether a process runs. A process that has ended may wait to be asked for its end.
fn is_there(pid: &str) -> bool {
    let is_alive = |state: String| !state.contains(") Z ");
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(is_alive)
}

#[tokio::test]
async fn a_tool_that_hangs_loses_its_lease_its_processes_are_gone_and_the_next_attempt_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = Folder::at(folder.path().join("sessions")).unwrap();
    let script = "setsid sleep 1000 & echo $! > pid; sleep 1000";
    let arguments = json!({ "program": "sh", "arguments": ["-c", script] }).to_string();
    let model = ScriptedModel::new(move |_, messages| match messages.len() {
        1 => call("command", &arguments),
        _ => say(messages[2]["content"].as_str().unwrap()),
    });
    let tool = CommandTool::programs(["sh"]).folder(folder.path()).tool();
    let agent = Agent::new(model.clone()).tool(tool.timeout(secs(100_000))).sessions(sessions);
    let first = TestAttempt::of("agent").lease(secs(300)).stuck_after(secs(3_600));
    let running = agent.clone();
    let file = folder.path().join("pid");
    // The processes are real, and must be there before five minutes pass in an instant.
    let hang = async {
        while !std::fs::read_to_string(&file).is_ok_and(|pid| pid.ends_with('\n')) {
            sleep(Duration::from_millis(5)).await;
        }
        tokio::time::pause();
    };
    let (ended, ()) = tokio::join!(first.run(|ctx: Context, (): ()| handle(running, ctx)), hang);
    assert_eq!(ended.outcome, TestOutcome::LeaseExpired, "it said nothing for five minutes");
    assert!(!is_there(&std::fs::read_to_string(&file).unwrap()), "its process tree is gone");

    let checkpoint = ended.reports.iter().find_map(|report| report.checkpoint.clone()).unwrap();
    let second = TestAttempt::of("agent").number(2).checkpoint(&checkpoint);
    let ended = second.run(|ctx: Context, (): ()| handle(agent, ctx)).await;
    let TestOutcome::Succeeded(Value::String(told)) = ended.outcome else { panic!("{:?}", ended.outcome) };
    assert!(told.contains("is not made again"), "{told}");
    assert_eq!(model.asked().len(), 2, "the first answer was not paid again");
}

/// The same on a real node, whose own clocks judge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_node_a_tool_that_hangs_is_ended_with_its_processes_and_the_job_is_redelivered() {
    let lease = secs(3);
    let world = World::start_with(|settings| {
        (settings.lease.initial, settings.lease.extension, settings.lease.interval) = (lease, lease, lease / 3);
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let script = "setsid sleep 1000 & echo $! > pid; sleep 1000";
    let arguments = json!({ "program": "sh", "arguments": ["-c", script] }).to_string();
    let model = ScriptedModel::new(move |_, messages| match messages.len() {
        1 => call("command", &arguments),
        _ => say(messages[2]["content"].as_str().unwrap()),
    });
    let tool = CommandTool::programs(["sh"]).folder(folder.path()).tool().timeout(secs(100_000));
    let agent = Agent::new(model.clone()).tool(tool).sessions(Folder::at(folder.path().join("sessions")).unwrap());
    let working = world.work(|worker| worker.handle("agent", move |ctx: Context, (): ()| handle(agent.clone(), ctx)));
    let soon = Duration::from_millis(1);
    let id = world.client.submit(job("agent", "null").backoff(soon, soon)).await.unwrap();
    let job = world.ended(&id).await;
    let attempts = job["workflows"][0]["attempts"].as_array().unwrap();
    let outcomes: Vec<&Value> = attempts.iter().map(|attempt| &attempt["outcome"]).collect();
    assert_eq!(outcomes, ["lease_expired", "succeeded"], "{job}");
    let told = job["result"].as_str().unwrap();
    assert!(told.contains("is not made again"), "{told}");
    assert_eq!(model.asked().len(), 2, "the first answer was not paid again");
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    let gone = async {
        while is_there(&pid) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(world::SOON, gone).await.expect("its process tree is gone");
    working.finish().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_repeats_itself_ends_as_stuck_by_the_ordinary_rule() {
    let model = ScriptedModel::of([call("slow", r#"{"n": 1}"#)]);
    let agent = Agent::new(model).tool(Tool::new("slow", "", slow));
    let (reasons, mut reason) = mpsc::unbounded_channel();
    let handler = |ctx: Context, (): ()| async move {
        let stopped = agent.run_text(&ctx, "go").await.unwrap_err();
        reasons.send(stopped.to_string()).unwrap();
        assert!(matches!(stopped, Stopped::Stuck { .. }), "{stopped:?}");
        Err::<(), Failure>(stopped.into())
    };
    let ended = TestAttempt::of("agent").stuck_after(secs(390)).run(handler).await;
    assert_eq!(ended.outcome, TestOutcome::Stuck);
    // New after 80 s; by 470 s it has been made four times more.
    let said = "the agent is stuck: it made the call slow(n) 5 times with the same result";
    assert_eq!(reason.recv().await.unwrap(), said);
    let note = ended.reports.iter().rev().find_map(|report| report.note.clone()).unwrap();
    assert!(note.contains("slow(n) again, 5 times"), "{note}");
}

/// The handler's own reason comes too late on a real node: the node keeps what the agent said last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_node_an_agent_that_repeats_itself_ends_as_stuck_and_explain_says_which_call_it_made() {
    let world = World::start().await;
    let model = ScriptedModel::of([call("look", r#"{"n": 1}"#)]);
    let tool = |_: ToolContext, _: Value| async {
        sleep(Duration::from_millis(50)).await;
        Ok::<_, ToolError>("the same".to_owned())
    };
    let agent = Agent::new(model).tool(Tool::with_schema("look", "", json!({ "type": "object" }), tool));
    let working = world.work(|worker| worker.handle("agent", move |ctx: Context, (): ()| handle(agent.clone(), ctx)));
    let asked = job("agent", "null").stuck_after(secs(2)).time_out_when_stuck();
    let id = world.client.submit(asked).await.unwrap();
    let job = world.ended(&id).await;
    assert_eq!((&job["state"], &job["reason"]), (&json!("timed_out"), &json!("stuck")), "{job}");
    let told = world.client.explain(&id).await.unwrap().text().get().to_owned();
    assert!(told.contains("as stuck (no forward step in time)") && told.contains("look(n) again, "), "{told}");
    working.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_node_a_call_that_waits_for_a_person_is_made_once_they_have_approved_it() {
    let world = World::start().await;
    let (asked, approved, paid) = (watch::Sender::new(0), AtomicBool::new(false), AtomicU32::new(0));
    let shared = Arc::new((asked, approved, paid));
    let (known, counted) = (shared.clone(), shared.clone());
    let pay = move |_: ToolContext, number: Number| {
        counted.2.fetch_add(number.n, Ordering::SeqCst);
        async { Ok::<_, ToolError>("paid") }
    };
    let model = ScriptedModel::of([call("pay", r#"{"n": 5}"#), say("done")]);
    let agent = Agent::new(model.clone())
        .tool(Tool::new("pay", "", pay).effect(Effect::Once))
        .sessions(MemorySessions::new())
        .ask_again_after(Duration::from_millis(50))
        .policy(move |_| {
            known.0.send_modify(|times| *times += 1);
            let is_approved = known.1.load(Ordering::SeqCst);
            async move { if is_approved { CallDecision::Allow } else { CallDecision::Suspend("5 are much".into()) } }
        });
    let working = world.work(|worker| worker.handle("agent", move |ctx: Context, (): ()| handle(agent.clone(), ctx)));
    // One attempt alone counts.
    let id = world.client.submit(job("agent", "null").max_attempts(1)).await.unwrap();
    let asked =
        tokio::time::timeout(world::SOON, async { shared.0.subscribe().wait_for(|times| *times >= 3).await.map(drop) });
    asked.await.expect("the policy is asked again").unwrap();
    assert_eq!(shared.2.load(Ordering::SeqCst), 0, "nothing is paid before");
    shared.1.store(true, Ordering::SeqCst);
    let job = world.ended(&id).await;
    assert_eq!(job["result"], "done", "{job}");
    assert_eq!((shared.2.load(Ordering::SeqCst), model.asked().len()), (5, 2), "nothing is paid again");
    working.finish().await.unwrap();
}

/// The worker knows the deadline as it was at the hand-out; the node moves it, and judges by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_node_an_agent_works_on_behind_a_deadline_that_was_moved() {
    let world = World::start().await;
    let (began, moved) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, waiting) = (began.clone(), moved.clone());
    let wait = move |ctx: ToolContext, _: Number| {
        let (told, waiting) = (told.clone(), waiting.clone());
        async move {
            told.notify_one();
            waiting.notified().await;
            while !ctx.deadline().is_zero() {
                sleep(Duration::from_millis(10)).await;
                ctx.beat();
            }
            Ok("behind it")
        }
    };
    let last = vec![onward::agent::Delta::Text("done".into())];
    let model = ScriptedModel::of([call("wait", r#"{"n": 1}"#), Say::Slowly(Duration::from_millis(50), last)]);
    let agent = Agent::new(model).tool(Tool::new("wait", "", wait));
    let working = world.work(|worker| worker.handle("agent", move |ctx: Context, (): ()| handle(agent.clone(), ctx)));
    let id = world.client.submit(job("agent", "null").max_attempts(1).timeout(secs(5))).await.unwrap();
    tokio::time::timeout(world::SOON, began.notified()).await.expect("it begins");
    world.client.extend(&id, secs(600), "it needs longer").await.unwrap();
    moved.notify_one();
    let job = world.ended(&id).await;
    assert_eq!(job["result"], "done", "{job}");
    working.finish().await.unwrap();
}

const CHILD_OF: &str = "ONWARD_TEST_WORKER_OF";

/// Of a process that [`a_worker_that_was_killed_is_gone_on_from_by_another`] starts.
#[tokio::test]
async fn is_a_worker_for_that_process_to_kill() {
    let Ok(node) = std::env::var(CHILD_OF) else { return };
    let sessions = Folder::at(std::env::var("SESSIONS").unwrap()).unwrap();
    let agent = example::agent(ChatCompletions::from_env().unwrap(), sessions);
    example::with_handler(Worker::connect(&node).await.unwrap(), agent).run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_killed_is_gone_on_from_by_another() {
    let server = Server::start(|number, asked| match (answers(asked), number) {
        (0, _) => calls(&[("search", r#"{"words": "broken"}"#)]),
        (1, _) => calls(&[("refund", r#"{"order": 7, "cents": 500}"#)]),
        // It is killed in its third answer.
        (_, 2) => Reply::Stream(vec![text_chunk("{"), Piece::Hang]),
        _ => text(r#"{"refunded": true, "answer": "You get 500 cents back."}"#),
    })
    .await;
    let lease = secs(3);
    let world = World::start_listening(|settings| {
        (settings.lease.initial, settings.lease.extension, settings.lease.interval) = (lease, lease, lease / 3);
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let mut child = tokio::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "is_a_worker_for_that_process_to_kill", "--nocapture"]);
        child.env(CHILD_OF, format!("http://{}", world.node.address())).env("SESSIONS", folder.path());
        child.env("OPENAI_BASE_URL", &server.url).env("OPENAI_MODEL", "m").env("OPENAI_API_KEY", "k");
        child.stdout(std::process::Stdio::null()).kill_on_drop(true).spawn().unwrap()
    };
    let soon = Duration::from_millis(1);
    let ticket = job("ticket", r#"{"text": "Order 7 came broken."}"#).backoff(soon, soon);
    let id = world.client.submit(ticket).await.unwrap();
    let mut first = start();
    tokio::time::timeout(world::SOON, server.asked_times(3)).await.expect("it gets to its third answer");
    first.kill().await.unwrap();
    let mut second = start();
    let job = world.ended(&id).await;
    assert_eq!(job["result"], json!({ "refunded": true, "answer": "You get 500 cents back." }), "{job}");
    let asked = server.asked();
    assert_eq!(asked.len(), 4, "once for each answer, and once more for the one that it was killed in");
    assert_eq!(messages(&asked[2]), messages(&asked[3]), "it goes on from where the other was");
    assert_eq!(messages(&asked[3])[5]["content"], "refunded 500 cents for order 7");
    let session = Folder::at(folder.path()).unwrap().open(&format!("{id}-0"), u64::MAX).await.unwrap();
    let keys: Vec<&str> = session
        .entries
        .iter()
        .filter_map(|entry| match &entry.event {
            SessionEvent::ToolBegun { key, .. } => Some(key.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(
        keys,
        [format!("{id}-0.1.0"), format!("{id}-0.2.0")],
        "each call has a key of its own, and was begun once"
    );
    second.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_resolves_a_ticket_on_a_node() {
    let server = Server::start(|_, asked| match answers(asked) {
        0 => calls(&[("search", r#"{"words": "broken"}"#)]),
        1 => calls(&[("refund", r#"{"order": 7, "cents": 500}"#)]),
        _ => text(r#"{"refunded": true, "answer": "You get 500 cents back."}"#),
    })
    .await;
    let (world, folder) = (World::start().await, tempfile::tempdir().unwrap());
    let model = ChatCompletions::at(&server.url, "m").unwrap();
    let agent = example::agent(model, Folder::at(folder.path()).unwrap());
    let working = world.work(|worker| example::with_handler(worker, agent.clone()));
    let id = world.submit("ticket", r#"{"text": "Order 7 came broken."}"#).await;
    let job = world.ended(&id).await;
    assert_eq!(job["result"], json!({ "refunded": true, "answer": "You get 500 cents back." }), "{job}");
    let asked = server.asked();
    assert_eq!(messages(&asked[0])[0]["content"], "Resolve the ticket. Refund at most once.");
    assert_eq!(messages(&asked[2])[3]["content"], r#"["Order 3 came broken: refunded 500 cents."]"#);
    assert_eq!(messages(&asked[2])[5]["content"], "refunded 500 cents for order 7");
    assert_eq!(agent.metrics().of(Kind::Tool, "refund").calls, 1);
    working.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_the_last_turns_of_a_running_agent() {
    let world = World::start().await;
    let go_on = Arc::new(Notify::new());
    let waiting = go_on.clone();
    let wait = move |_: ToolContext, number: Number| {
        let waiting = waiting.clone();
        async move {
            if number.n == 2 {
                waiting.notified().await;
            }
            Ok(number.n)
        }
    };
    let model = ScriptedModel::new(|n, _| if n < 3 { call("wait", &format!("{{\"n\": {n}}}")) } else { say("done") });
    let sessions = MemorySessions::new();
    let agent = Agent::new(model).tool(Tool::new("wait", "", wait)).sessions(sessions.clone());
    let working = world.work(|worker| worker.handle("agent", move |ctx: Context, (): ()| handle(agent.clone(), ctx)));
    let id = world.client.submit(job("agent", "null")).await.unwrap();
    let shown = "it says: turn 3: runs wait(n); last: wait(n), wait(n)";
    let explained = async {
        loop {
            let explained: Value = world.client.get(&format!("/v1/jobs/{id}/explain")).await.unwrap();
            if explained.to_string().contains(shown) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(world::SOON, explained).await.expect("it is shown");
    go_on.notify_one();
    assert_eq!(world.ended(&id).await["result"], "done");
    let fence = u64::MAX;
    assert_eq!(sessions.open(&format!("{id}-0"), fence).await.unwrap().entries.len(), 14);
    working.finish().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_checkpoint_of_a_handler_and_the_pointer_to_its_session_stand_beside_each_other() {
    let agent = Agent::new(ScriptedModel::of([say("done")])).sessions(MemorySessions::new());
    let handler = |agent: Agent, page: &'static str| {
        move |ctx: Context, (): ()| async move {
            let found = ctx.checkpoint().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
            ctx.set_checkpoint("before");
            agent.run_text(&ctx, "go").await?;
            sleep(secs(2)).await;
            if !page.is_empty() {
                ctx.set_checkpoint(page);
            }
            Ok::<_, Failure>(found)
        }
    };
    let first = TestAttempt::of("agent").run(handler(agent.clone(), "page 3")).await;
    assert_eq!(
        (first.outcome.clone(), first.checkpoint()),
        (TestOutcome::Succeeded(Value::Null), Some(&b"page 3"[..]))
    );
    let kept: Vec<Vec<u8>> = first.reports.iter().filter_map(|report| report.checkpoint.clone()).collect();
    let pointer = "onward-agent-session:00000000-0000-0000-0000-000000000001-0\n";
    // What is said at one instant travels together: the newest is kept.
    assert_eq!(kept, [format!("{pointer}before").into_bytes(), format!("{pointer}page 3").into_bytes()]);

    let second = TestAttempt::of("agent").number(2).checkpoint(kept.last().unwrap());
    let second = second.run(handler(agent, "")).await;
    assert_eq!(second.outcome, TestOutcome::Succeeded("page 3".into()), "it finds what was its own");
    assert_eq!(second.checkpoint(), Some(&b"before"[..]));
}

#[tokio::test(start_paused = true)]
async fn the_session_that_the_checkpoint_names_is_gone_on_from() {
    let model = ScriptedModel::new(|n, _| match n {
        0 => call("slow", r#"{"n": 1}"#),
        1 => Say::Fail(ModelError::Unavailable { why: "down".into(), retry_after: None }),
        _ => say("done"),
    });
    let agent = Agent::new(model.clone()).tool(Tool::new("slow", "", slow)).sessions(MemorySessions::new());
    let mut before = rig::TestAttempt::new();
    before.session = "other".into();
    agent.run_text(&before, "go").await.unwrap_err();
    let handler = |ctx: Context, (): ()| async move { Ok::<_, Failure>(agent.run_text(&ctx, "go").await?.session) };
    let ended = TestAttempt::of("agent").number(2).checkpoint(b"onward-agent-session:other").run(handler).await;
    assert_eq!(
        (ended.outcome, ended.took),
        (TestOutcome::Succeeded("other".into()), secs(0)),
        "the call is not made again"
    );
    assert_eq!(model.asked()[2].len(), 3, "it is asked with what was said");
}

#[tokio::test(start_paused = true)]
async fn each_run_of_a_handler_keeps_it_from_being_stuck() {
    let model = ScriptedModel::new(|_, messages| match messages.len() / 2 {
        n if n < 3 => call("slow", &format!("{{\"n\": {n}}}")),
        _ => say("done"),
    });
    let agent = Agent::new(model).tool(Tool::new("slow", "", slow)).sessions(MemorySessions::new());
    let handler = |ctx: Context, (): ()| async move {
        ctx.progress(100, None);
        agent.run_text(&ctx, "go").await?;
        agent.run_text(&ctx, "go").await?;
        let both = tokio::join!(agent.run_text(&ctx, "go"), agent.run_text(&ctx, "go"));
        both.0?;
        both.1?;
        Ok::<_, Failure>(())
    };
    let ended = TestAttempt::of("agent").stuck_after(secs(100)).run(handler).await;
    assert_eq!((&ended.outcome, ended.took), (&TestOutcome::Succeeded(Value::Null), secs(9 * 80)));
    assert_eq!(ended.progress(), Some((112, None)));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_section_goes_on_whatever_else_is_said() {
    async fn quiet(ctx: ToolContext, number: Number) -> Result<u32, ToolError> {
        let _quiet = ctx.quiet(secs(400));
        sleep(secs(400)).await;
        Ok(number.n)
    }
    for (calls, has_checkpoint) in [(vec!["quiet", "quick"], false), (vec!["quiet"], true)] {
        let calls: Vec<(String, String)> =
            calls.into_iter().map(|name| (name.to_owned(), r#"{"n": 1}"#.to_owned())).collect();
        let quick = |_: ToolContext, number: Number| async move { Ok::<_, ToolError>(number.n) };
        let agent = Agent::new(ScriptedModel::of([Say::Calls(calls), say("done")]))
            .tool(Tool::new("quiet", "", quiet))
            .tool(Tool::new("quick", "", quick));
        let handler = |ctx: Context, (): ()| async move {
            let beside = async {
                sleep(secs(10)).await;
                if has_checkpoint {
                    ctx.set_checkpoint("page 3");
                }
            };
            Ok::<_, Failure>(tokio::join!(agent.run_text(&ctx, "go"), beside).0?.output)
        };
        let ended = TestAttempt::of("agent").stuck_after(secs(120)).run(handler).await;
        assert_eq!((&ended.outcome, ended.took), (&TestOutcome::Succeeded("done".into()), secs(400)), "{ended:?}");
    }
}
