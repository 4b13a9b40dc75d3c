//! Agents as handlers of a message loop.

mod rig;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_agent::metrics::Kind;
use onward_agent::{
    Agent, AgentAttempt as _, CallDecision, CancelWhy, ChatCompletions, Delta, Effect, Failure,
    MemorySessions as Sessions, Stopped, Tool, ToolContext, ToolError,
};
use onward_lease::mailbox::{Depth, End, Mailbox, Memory, Message, Want};
use onward_lease::{Delivery, MessageLoop};
use rig::server::{Piece, Reply, Server, answers, calls, messages, text, text_chunk};
use rig::{SOON, Say, ScriptedModel, call, call_deltas, say};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Number {
    n: u32,
}

/// The numbers of the deliveries that were handled, each with how the agent ended.
type Ends = Vec<(u32, Result<String, String>)>;

/// Sends one message, and lets the agent handle it until nothing waits or is held.
async fn consume(agent: Agent, mailbox: &Memory, messages: MessageLoop) -> Ends {
    let (ends, changed) = (Arc::<Mutex<Ends>>::default(), Arc::new(Notify::new()));
    let (seen, told) = (ends.clone(), changed.clone());
    let messages = messages.handle(move |message: Delivery, prompt: String| {
        let (agent, seen, told) = (agent.clone(), seen.clone(), told.clone());
        async move {
            let ended = agent.run_text(&message, prompt).await;
            let shown = ended.as_ref().map(|finished| finished.output.clone()).map_err(ToString::to_string);
            seen.lock().unwrap().push((message.delivery(), shown));
            told.notify_one();
            ended.map(|finished| finished.output).map_err(Failure::from)
        }
    });
    mailbox.send(vec![Message::json(&"go").unwrap()]).await.remove(0).unwrap();
    let empty = async {
        changed.notified().await;
        while !matches!(mailbox.depth().await.unwrap(), Depth { waiting: 0, held: 0, .. }) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    messages.run_until(empty).await.unwrap();
    let ends = ends.lock().unwrap();
    ends.clone()
}

fn with_lease_of_five_minutes(mailbox: &Memory, stuck_after: Duration) -> MessageLoop {
    MessageLoop::on(mailbox.clone()).lease(secs(300)).stuck_after(stuck_after)
}

#[tokio::test]
async fn it_finishes_and_after_a_redelivery_it_goes_on_from_its_last_entry() {
    let server = Server::start(|number, asked| match (answers(asked), number) {
        (0, _) => calls(&[("count", r#"{"n": 1}"#)]),
        // Cut within its second answer, when it is asked for the first time.
        (1, 1) => Reply::Stream(vec![text_chunk("do"), Piece::Cut]),
        _ => text("done"),
    })
    .await;
    let (runs, mailbox) = (Arc::new(AtomicU32::new(0)), Memory::new());
    let counted = runs.clone();
    let count = move |_: ToolContext, number: Number| {
        counted.fetch_add(number.n, Ordering::SeqCst);
        async { Ok::<_, ToolError>("counted") }
    };
    let model = ChatCompletions::at(&server.url, "m").unwrap();
    let agent = Agent::new(model).tool(Tool::new("count", "Counts", count)).sessions(Sessions::new());
    let soon = Duration::from_millis(1);
    let messages_loop = MessageLoop::on(mailbox.clone()).retry(soon, soon);
    let ends = timeout(SOON, consume(agent.clone(), &mailbox, messages_loop)).await.expect("it ends");
    assert!(ends[0].0 == 1 && ends[0].1.as_ref().is_err_and(|why| why.contains("broke off")), "{ends:?}");
    assert_eq!(ends[1..], [(2, Ok("done".to_owned()))]);
    let asked = server.asked();
    assert_eq!((asked.len(), runs.load(Ordering::SeqCst)), (3, 1), "what was done is not done again");
    assert_eq!(messages(&asked[2])[2]["content"], "counted", "{:?}", asked[2]);
    assert_eq!(agent.metrics().of(Kind::Model, "m").calls, 3);
}

#[tokio::test(start_paused = true)]
async fn thirty_minutes_of_work_on_a_lease_of_five_are_one_delivery() {
    let slow = |_: ToolContext, number: Number| async move {
        sleep(secs(80)).await;
        Ok(number.n)
    };
    let model = ScriptedModel::new(|n, _| {
        let mut deltas = call_deltas(&[("slow".to_owned(), format!("{{\"n\": {n}}}"))]);
        deltas.extend((0..2).map(|_| Delta::Text("thinking".into())));
        if n < 15 { Say::Slowly(secs(10), deltas) } else { say("done") }
    });
    let agent = Agent::new(model.clone()).tool(Tool::new("slow", "", slow));
    let (mailbox, began) = (Memory::new(), Instant::now());
    let ends = consume(agent.clone(), &mailbox, with_lease_of_five_minutes(&mailbox, secs(150))).await;
    assert_eq!(ends, [(1, Ok("done".to_owned()))], "it was handed out once");
    assert!(began.elapsed() >= secs(30 * 60) && model.asked().len() == 16, "{:?}", began.elapsed());
    let metrics = agent.metrics();
    let extensions = metrics.of(Kind::Model, "model").extensions + metrics.of(Kind::Tool, "slow").extensions;
    assert!((6..=30).contains(&extensions), "{extensions} in thirty minutes, at most one in each");
}

#[tokio::test(start_paused = true)]
async fn one_answer_that_is_longer_than_its_lease_is_one_delivery() {
    // Nothing but the deltas beats for seven minutes.
    let model = ScriptedModel::of([Say::Slowly(secs(10), vec![Delta::Text("x".into()); 42])]);
    let (mailbox, began) = (Memory::new(), Instant::now());
    let messages_loop = with_lease_of_five_minutes(&mailbox, secs(900));
    let ends = consume(Agent::new(model.clone()).sessions(Sessions::new()), &mailbox, messages_loop).await;
    assert_eq!(ends, [(1, Ok("x".repeat(42)))], "it was handed out once");
    assert!(began.elapsed() >= secs(7 * 60) && model.asked().len() == 1, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_hangs_loses_its_lease_and_the_next_delivery_goes_on() {
    let hangs = Arc::new(Mutex::new(true));
    let once = hangs.clone();
    let wait = move |_: ToolContext, number: Number| {
        let hangs = std::mem::take(&mut *once.lock().unwrap());
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok::<_, ToolError>(number.n)
        }
    };
    let model = ScriptedModel::new(|_, said| if said.len() == 1 { call("wait", r#"{"n": 1}"#) } else { say("done") });
    let tool = Tool::new("wait", "", wait).timeout(secs(100_000));
    let agent = Agent::new(model.clone()).tool(tool).sessions(Sessions::new());
    let mailbox = Memory::new();
    let ends = consume(agent, &mailbox, with_lease_of_five_minutes(&mailbox, secs(3_600))).await;
    assert!(ends[0].0 == 1 && ends[0].1.as_ref().is_err_and(|why| why.contains("another attempt")), "{ends:?}");
    assert_eq!(ends[1..], [(2, Ok("done".to_owned()))]);
    assert_eq!(model.asked().len(), 2, "the first answer was not paid again");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_repeats_itself_is_ended_by_the_loop_as_stuck() {
    let look = |_: ToolContext, number: Number| async move {
        sleep(secs(60)).await;
        Ok(number.n)
    };
    let agent = Agent::new(ScriptedModel::of([call("look", r#"{"n": 1}"#)])).tool(Tool::new("look", "", look));
    let mailbox = Memory::builder().max_deliveries(1).build();
    let messages_loop = with_lease_of_five_minutes(&mailbox, secs(290));
    let ends = consume(agent.sessions(Sessions::new()), &mailbox, messages_loop).await;
    let said = "the agent is stuck: it made the call look(n) 5 times with the same result";
    assert_eq!(ends, [(1, Err(said.to_owned()))]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_person_is_made_once_they_have_approved_it() {
    let (approved, paid) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (known, counted) = (approved.clone(), paid.clone());
    let pay = move |_: ToolContext, number: Number| {
        counted.fetch_add(number.n, Ordering::SeqCst);
        async { Ok::<_, ToolError>("paid") }
    };
    let model = ScriptedModel::of([call("pay", r#"{"n": 5}"#), say("done")]);
    let agent = Agent::new(model.clone())
        .tool(Tool::new("pay", "Pays", pay).effect(Effect::Once))
        .sessions(Sessions::new())
        .ask_again_after(secs(10))
        .policy(move |_| {
            let is_approved = known.load(Ordering::SeqCst);
            async move { if is_approved { CallDecision::Allow } else { CallDecision::Suspend("5 are much".into()) } }
        });
    let person = tokio::spawn(async move {
        sleep(secs(25)).await;
        approved.store(true, Ordering::SeqCst);
    });
    // One delivery alone counts.
    let (mailbox, began) = (Memory::builder().max_deliveries(1).build(), Instant::now());
    let ends = consume(agent, &mailbox, with_lease_of_five_minutes(&mailbox, secs(290))).await;
    person.await.unwrap();
    let waits = ends[..3].iter().all(|(_, ended)| ended.as_ref().is_err_and(|why| why.contains("must approve pay")));
    assert!(waits && ends[3].1 == Ok("done".to_owned()) && ends.len() == 4, "{ends:?}");
    assert!((30..40).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(mailbox.depth().await.unwrap().dead, 0, "to give it back counts as no delivery");
    assert_eq!((paid.load(Ordering::SeqCst), model.asked().len()), (5, 2), "nothing is paid again");
}

async fn take(mailbox: &Arc<Memory>) -> Delivery {
    let want = Want { max: 1, lease: secs(300), wait: secs(3_600) };
    Delivery::new(mailbox.clone(), mailbox.receive(want).await.unwrap().remove(0), None)
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_lost_its_lease_is_refused_and_a_replayed_letter_goes_on() {
    let mailbox = Arc::new(Memory::builder().max_deliveries(2).build());
    mailbox.send(vec![Message::new("same"), Message::new("same")]).await;
    let model = ScriptedModel::of([say("done")]);
    let agent = Agent::new(model.clone()).sessions(Sessions::new());
    let (first, other) = (take(&mailbox).await, take(&mailbox).await);
    assert_ne!(first.session(), other.session(), "messages with one body are two");
    mailbox.settle(vec![(other.receipt().clone(), End::ACK)]).await.remove(0).unwrap();

    let second = take(&mailbox).await;
    assert_eq!((second.session(), second.delivery()), (first.session(), 2));
    agent.run_text(&second, "go").await.unwrap();
    let refused = agent.run_text(&first, "go").await.unwrap_err();
    assert!(matches!(refused, Stopped::Lost(CancelWhy::Stale)), "{refused:?}");

    // Counted from one again, it is a later holder all the same.
    mailbox.settle(vec![(second.receipt().clone(), End::Dead { why: "no".into() })]).await.remove(0).unwrap();
    assert_eq!(mailbox.replay(1).await.unwrap(), 1);
    let replayed = take(&mailbox).await;
    assert_eq!((replayed.session(), replayed.delivery()), (first.session(), 1));
    assert_eq!(agent.run_text(&replayed, "go").await.unwrap().output, "done");
    assert_eq!(model.asked().len(), 1, "nothing is paid again");
}

#[tokio::test(start_paused = true)]
async fn messages_of_two_mailboxes_are_two_even_with_one_place_for_sessions() {
    let model = ScriptedModel::new(|n, _| say(&n.to_string()));
    let agent = Agent::new(model.clone()).sessions(Sessions::new());
    let first = Memory::new();
    let (sibling, other) = (first.sibling("other"), Memory::new());
    let mut names = std::collections::HashSet::new();
    for (n, mailbox) in [first, sibling, other].into_iter().map(Arc::new).enumerate() {
        mailbox.send(vec![Message::new("same")]).await;
        let delivery = take(&mailbox).await;
        assert_eq!(delivery.id().as_str(), "1", "ids are unique in their mailbox only");
        assert!(names.insert(delivery.session()));
        assert_eq!(agent.run_text(&delivery, "go").await.unwrap().output, n.to_string());
    }
    assert_eq!(model.asked().len(), 3);
}
