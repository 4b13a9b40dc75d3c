//! What runs on after its end renews nothing: a thread cannot be stopped from outside, but its beats do not count.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onward_agent::{Agent, Delta, Failure, Stopped, Tool, ToolContext, ToolError};
use rig::{SOON, Say, ScriptedModel, TestAttempt, call};
use tokio::sync::watch;
use tokio::time::timeout;

/// Releases the thread at the end of the test, however that ends.
struct Release(Arc<AtomicBool>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A closure on a thread that beats until it is released, whatever it is told.
#[derive(Clone, Default)]
struct Stubborn {
    rounds: Arc<watch::Sender<u64>>,
    released: Arc<AtomicBool>,
    saw_cancel: Arc<watch::Sender<bool>>,
}

impl Stubborn {
    fn tool(&self) -> Tool {
        let own = self.clone();
        let run = move |ctx: ToolContext, _: serde_json::Value| {
            let own = own.clone();
            async move {
                let closure = ctx.clone();
                let work = move |beats: &onward_agent::Heartbeat| -> Result<(), Failure> {
                    let _quiet = closure.quiet(Duration::from_secs(3_600));
                    while !own.released.load(Ordering::SeqCst) {
                        beats.beat();
                        let round = *own.rounds.borrow();
                        closure.progress(round, None);
                        if closure.is_cancelled() {
                            own.saw_cancel.send_replace(true);
                        }
                        own.rounds.send_replace(round + 1);
                        std::thread::yield_now();
                    }
                    Ok(())
                };
                ctx.heartbeat().blocking(work).await.map_err(ToolError::new)
            }
        };
        Tool::with_schema("stubborn", "", serde_json::json!({}), run)
    }

    /// Waits until it has beaten some more.
    async fn goes_on(&self) {
        let until = *self.rounds.borrow() + 100;
        let mut rounds = self.rounds.subscribe();
        timeout(SOON, rounds.wait_for(|rounds| *rounds >= until)).await.expect("it beats").unwrap();
    }
}

/// Counts everything that is heard on an attempt.
fn heard(attempt: &TestAttempt) -> (watch::Receiver<u64>, onward_lease::heartbeat::Observer) {
    let (counts, count) = watch::channel(0);
    (count, attempt.heartbeat.observe(move |_| counts.send_modify(|count| *count += 1)))
}

async fn is_not_heard(stubborn: &Stubborn, attempt: &TestAttempt, count: &watch::Receiver<u64>) {
    // What was being said at the time of the end may still arrive.
    stubborn.goes_on().await;
    let (before, watermark) = (*count.borrow(), attempt.watermark());
    stubborn.goes_on().await;
    assert!(*stubborn.saw_cancel.borrow(), "it was told to stop");
    assert_eq!((*count.borrow(), attempt.watermark()), (before, watermark), "nothing of it counts");
    assert_eq!(attempt.heartbeat.quiet_left(), None, "nor does its silence");
    assert!(!attempt.heartbeat.is_cancelled());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_timed_out_and_runs_on_renews_nothing() {
    let stubborn = Stubborn::default();
    let release = Release(stubborn.released.clone());
    // The second answer never comes: nobody else beats.
    let silent = Say::Slowly(Duration::from_secs(1_000_000), vec![Delta::Text("never".into())]);
    let model = ScriptedModel::of([call("stubborn", "{}"), silent]);
    let agent = Agent::new(model.clone()).tool(stubborn.tool().timeout(Duration::from_millis(100)));
    let attempt = TestAttempt::new();
    let (count, _observer) = heard(&attempt);
    let running = tokio::spawn({
        let (agent, attempt) = (agent.clone(), attempt.clone());
        async move { agent.run_text(&attempt, "go").await }
    });
    stubborn.goes_on().await;
    assert!(attempt.watermark() > 0, "until then it counts");
    timeout(SOON, model.asked_times(2)).await.expect("the model is told that it timed out");
    let told = model.asked()[1][2]["content"].to_string();
    assert!(told.contains("did not end within"), "{told}");
    is_not_heard(&stubborn, &attempt, &count).await;
    drop(release);
    running.abort();
    timeout(SOON, attempt.heartbeat.unblocked()).await.expect("it has returned");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_does_one_whose_run_has_ended_or_was_dropped() {
    for is_dropped in [false, true] {
        let stubborn = Stubborn::default();
        let release = Release(stubborn.released.clone());
        let agent = Agent::new(ScriptedModel::of([call("stubborn", "{}")])).tool(stubborn.tool());
        let attempt = TestAttempt::new();
        let (mut count, _observer) = heard(&attempt);
        if is_dropped {
            let running = tokio::spawn({
                let (agent, attempt) = (agent.clone(), attempt.clone());
                async move { agent.run_text(&attempt, "go").await }
            });
            stubborn.goes_on().await;
            running.abort();
            assert!(running.await.unwrap_err().is_cancelled());
        } else {
            let stopped = agent.deadline(Duration::from_millis(100)).run_text(&attempt, "go").await;
            assert!(matches!(stopped, Err(Stopped::Deadline)), "{stopped:?}");
        }
        // A task that was aborted is dropped when its thread comes to it.
        let mut saw_cancel = stubborn.saw_cancel.subscribe();
        timeout(SOON, saw_cancel.wait_for(|saw| *saw)).await.expect("it is told").unwrap();
        let not_quiet = count.wait_for(|_| attempt.heartbeat.quiet_left().is_none());
        drop(timeout(SOON, not_quiet).await.expect("its quiet section is over"));
        is_not_heard(&stubborn, &attempt, &count).await;
        drop(release);
        timeout(SOON, attempt.heartbeat.unblocked()).await.expect("it has returned");
    }
}
