//! What runs on after its end renews nothing: a thread cannot be stopped from outside, but its beats do not count.

mod rig;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_agent::{Agent, Delta, Failure, Stopped, Tool, ToolContext, ToolError};
use rig::{SOON, Say, Scripted, TestAttempt, call};
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
    rounds: Arc<AtomicU64>,
    released: Arc<AtomicBool>,
    saw_cancel: Arc<AtomicBool>,
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
                        let round = own.rounds.fetch_add(1, Ordering::SeqCst);
                        closure.progress(round, None);
                        own.saw_cancel.fetch_or(closure.is_cancelled(), Ordering::SeqCst);
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
        let until = self.rounds.load(Ordering::SeqCst) + 100;
        let beaten = async {
            while self.rounds.load(Ordering::SeqCst) < until {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, beaten).await.expect("it beats");
    }
}

/// Everything that was heard on an attempt.
fn heard(attempt: &TestAttempt) -> (Arc<Mutex<u64>>, onward_lease::heartbeat::Observer) {
    let count = Arc::new(Mutex::new(0));
    let counted = count.clone();
    (count, attempt.heartbeat.observe(move |_| *counted.lock().unwrap() += 1))
}

async fn is_not_heard(stubborn: &Stubborn, attempt: &TestAttempt, count: &Mutex<u64>) {
    // What was being said at the time of the end may still arrive.
    stubborn.goes_on().await;
    let (before, watermark) = (*count.lock().unwrap(), attempt.watermark());
    stubborn.goes_on().await;
    assert!(stubborn.saw_cancel.load(Ordering::SeqCst), "it was told to stop");
    assert_eq!((*count.lock().unwrap(), attempt.watermark()), (before, watermark), "nothing of it counts");
    assert_eq!(attempt.heartbeat.quiet_left(), None, "nor does its silence");
    assert!(!attempt.heartbeat.is_cancelled());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_timed_out_and_runs_on_renews_nothing() {
    let stubborn = Stubborn::default();
    let release = Release(stubborn.released.clone());
    // The second answer never comes: nobody else beats.
    let silent = Say::Slowly(Duration::from_secs(1_000_000), vec![Delta::Text("never".into())]);
    let model = Scripted::of([call("stubborn", "{}"), silent]);
    let agent = Agent::new(model.clone()).tool(stubborn.tool().timeout(Duration::from_millis(100)));
    let attempt = TestAttempt::new();
    let (count, _observer) = heard(&attempt);
    let running = tokio::spawn({
        let (agent, attempt) = (agent.clone(), attempt.clone());
        async move { agent.run_text(&attempt, "go").await }
    });
    stubborn.goes_on().await;
    assert!(attempt.watermark() > 0, "until then it counts");
    let asked = async {
        while model.asked().len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SOON, asked).await.expect("the model is told that it timed out");
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
        let agent = Agent::new(Scripted::of([call("stubborn", "{}")])).tool(stubborn.tool());
        let attempt = TestAttempt::new();
        let (count, _observer) = heard(&attempt);
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
        let told = async {
            while !stubborn.saw_cancel.load(Ordering::SeqCst) || attempt.heartbeat.quiet_left().is_some() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, told).await.expect("it is told");
        is_not_heard(&stubborn, &attempt, &count).await;
        drop(release);
        timeout(SOON, attempt.heartbeat.unblocked()).await.expect("it has returned");
    }
}
