//! The test kit, as a user of the library would use it.

use std::time::Duration;

use onward::testing::{TestAttempt, TestOutcome};
use onward::{Client, Context, Failure, Job, Reason, Worker};
use onward_node::testing::TestNode;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

const SOON: Duration = Duration::from_secs(120);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_run_in_injected_time_and_what_it_says_is_kept() {
    let handler = |ctx: Context, parts: u64| async move {
        assert_eq!((ctx.kind(), ctx.attempt(), ctx.checkpoint()), ("encode", 2, Some(&b"1"[..])));
        assert_eq!(ctx.input::<Value>("fetch").unwrap(), json!("film"));
        for done in 2..=parts {
            sleep(secs(100)).await;
            ctx.progress_note(done, parts, "part done");
            ctx.set_checkpoint(done.to_string());
        }
        ctx.output(b"all parts\n");
        assert_eq!(ctx.deadline(), secs(24 * 3_600 - 200), "its clocks are the test's");
        Ok(json!({ "parts": parts }))
    };
    let attempt = TestAttempt::of("encode").payload(&3).number(2).checkpoint(b"1").input("fetch", &"film");
    let ended = attempt.run(handler).await;
    assert_eq!(ended.outcome, TestOutcome::Succeeded(json!({ "parts": 3 })));
    assert_eq!((ended.took, ended.progress(), ended.checkpoint()), (secs(200), Some((3, Some(3))), Some(&b"3"[..])));
    assert_eq!(ended.reports.iter().map(|report| report.at).collect::<Vec<_>>(), [secs(100), secs(200)]);
    assert_eq!(ended.output, b"all parts\n");
}

#[tokio::test(start_paused = true)]
async fn it_is_judged_by_the_clocks_of_a_manager() {
    let hangs = |_: Context, (): ()| async { std::future::pending::<Result<(), Failure>>().await };
    let ended = TestAttempt::of("k").run(hangs).await;
    assert_eq!((ended.outcome, ended.took), (TestOutcome::Stuck, secs(130)), "after 120 s, and 10 s of grace");

    let busywork = |ctx: Context, (): ()| async move {
        ctx.progress(1, 10);
        while !ctx.is_cancelled() {
            sleep(secs(10)).await;
            ctx.beat();
        }
        Err::<(), _>(Failure::cancelled())
    };
    assert_eq!(TestAttempt::of("k").run(busywork).await.outcome, TestOutcome::Stuck, "busy, and no further");

    let silent = |ctx: Context, (): ()| async move {
        ctx.quiet(secs(500));
        sleep(secs(450)).await;
        Ok(())
    };
    assert_eq!(TestAttempt::of("k").run(silent).await.outcome, TestOutcome::Succeeded(Value::Null), "it had said so");
    let sleeps = |_: Context, (): ()| async {
        sleep(secs(90)).await;
        Ok(())
    };
    let short = TestAttempt::of("k").lease(secs(30));
    assert_eq!(short.run(sleeps).await.outcome, TestOutcome::LeaseExpired);
    assert_eq!(TestAttempt::of("k").deadline(secs(60)).run(sleeps).await.outcome, TestOutcome::TimedOut);
}

/// Between two looks everything is one word: the newest, and a quiet section only where nothing came after it.
#[tokio::test(start_paused = true)]
async fn what_is_said_on_the_heartbeat_is_reported_in_its_order() {
    let handler = |ctx: Context, (): ()| async move {
        let beats = ctx.heartbeat().child();
        for _ in 0..1_000 {
            beats.beat();
        }
        sleep(secs(1)).await;
        ctx.progress(3, 9);
        ctx.progress(2, 9);
        sleep(secs(1)).await;
        beats.beat();
        sleep(secs(1)).await;
        let section = beats.quiet(secs(60));
        sleep(secs(1)).await;
        ctx.progress(4, 9);
        sleep(secs(1)).await;
        drop(section);
        sleep(secs(1)).await;
        ctx.quiet(secs(50));
        beats.beat();
        sleep(secs(1)).await;
        beats.beat();
        ctx.quiet(secs(40));
        ctx.heartbeat().beat();
        ctx.quiet(secs(30));
        sleep(secs(1)).await;
        ctx.progress(5, 9);
        Ok(())
    };
    let ended = TestAttempt::of("k").payload(&()).run(handler).await;
    let said = ended.reports.iter().map(|one| (one.at.as_secs(), one.progress, one.quiet));
    let of_nine = |done| Some((done, Some(9)));
    let expected = [
        (0, None, None),
        (1, of_nine(3), None),
        (2, None, None),
        (3, None, Some(secs(60))),
        (4, of_nine(4), Some(secs(59))),
        (5, None, None),
        (6, None, None),
        (7, None, Some(secs(30))),
        (8, of_nine(5), None),
    ];
    assert_eq!(said.collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn cancels_grants_and_failures_are_what_the_test_says() {
    let stops = |ctx: Context, (): ()| async move {
        ctx.cancelled().await;
        Err::<(), _>(Failure::cancelled())
    };
    let ended = TestAttempt::of("k").cancel_after(secs(5)).run(stops).await;
    assert_eq!((ended.outcome, ended.took), (TestOutcome::Cancelled, secs(5)));

    let asks = |ctx: Context, (): ()| async move {
        let granted =
            ctx.request_extension(Reason::LongWorkflow, 0.5, None).await.map_err(|no| Failure::permanent(no.code))?;
        assert_eq!(granted.extension, secs(30));
        let denied = ctx.request_extension(Reason::LongWorkflow, 0.6, None).await.unwrap_err();
        Err::<(), _>(Failure::retry_after(secs(7), denied.code))
    };
    let ended = TestAttempt::of("k").grant(secs(30)).run(asks).await;
    let failed = TestOutcome::Failed { error: "attempt_grants_spent".into(), retryable: true, after: Some(secs(7)) };
    assert_eq!(ended.outcome, failed);
    let ended = TestAttempt::of("k").payload(&"text").run(|_: Context, _: u64| async { Ok(()) }).await;
    assert!(matches!(ended.outcome, TestOutcome::Failed { retryable: false, .. }), "{ended:?}");
}

#[tokio::test]
async fn a_node_in_the_tests_own_process_runs_a_job_and_leaves_nothing() {
    let node = TestNode::start().await.unwrap();
    let worker = Worker::connect(&node.url()).await.unwrap();
    let worker = worker.handle("double", |_: Context, number: u64| async move { Ok(2 * number) });
    let working = tokio::spawn(worker.run_until(std::future::pending()));
    let client = Client::connect(&node.url()).unwrap();
    let id = client.submit(Job::new("double", 21).unwrap()).await.unwrap();
    let info = timeout(SOON, client.wait(&id)).await.unwrap().unwrap();
    assert_eq!(info.result::<u64>().unwrap(), 42);
    working.abort();
}
