//! The worker against a real node, in one process.

mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onward::{Context, Failure};
use world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_typed_handler_reports_and_succeeds() {
    let world = World::start().await;
    let stop = world.work(|worker| {
        worker.handle("double", |ctx: Context, input: Vec<u64>| async move {
            for n in 0..input.len() as u64 {
                ctx.progress(n + 1, input.len() as u64);
            }
            Ok(input.iter().map(|n| n * 2).collect::<Vec<_>>())
        })
    });
    let id = world.submit("double", "[1, 2, 3]").await;
    let job = world.ended(&id).await;
    assert_eq!(job["state"], "succeeded", "{job}");
    assert_eq!(job["result"], serde_json::json!([2, 4, 6]));
    stop.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_told_apart() {
    let world = World::start().await;
    let tries = Arc::new(AtomicU32::new(0));
    let stop = world.work(|worker| {
        worker.slots(4).handle("task", move |_: Context, what: String| {
            let tries = tries.clone();
            async move {
                match &*what {
                    "permanent" => Err(Failure::permanent("never")),
                    "panic" => panic!("at the disco"),
                    "flaky" if tries.fetch_add(1, Ordering::Relaxed) == 0 => {
                        Err(Failure::retry_after(Duration::ZERO, "not yet"))
                    }
                    _ => Ok(()),
                }
            }
        })
    });
    let job = world.ended(&world.submit("task", "\"permanent\"").await).await;
    assert_eq!((&job["state"], &job["workflows"][0]["attempts"][0]["error"]), (&"failed".into(), &"never".into()));
    let job = world.ended(&world.submit("task", "\"flaky\"").await).await;
    assert_eq!((&job["state"], job["workflows"][0]["attempts"].as_array().unwrap().len()), (&"succeeded".into(), 2));
    let job = world.ended(&world.submit_once("task", "\"panic\"").await).await;
    assert_eq!(job["workflows"][0]["attempts"][0]["error"], "the handler panicked: at the disco", "{job}");
    let job = world.ended(&world.submit("task", "{\"not\": \"a text\"}").await).await;
    assert_eq!((&job["state"], job["workflows"][0]["attempts"].as_array().unwrap().len()), (&"failed".into(), 1));
    stop.finish().await.unwrap();
}
