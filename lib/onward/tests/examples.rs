//! The examples, against a node in this process.

#![allow(dead_code, reason = "the examples' own `main` is not called")]

#[path = "../examples/submit.rs"]
mod submit;
#[path = "../examples/worker.rs"]
mod worker;
mod world;

use onward::{JobInfo, JobState};
use serde_json::{Value, json};
use world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_do_what_they_say() {
    let world = World::start().await;
    let stop = world.work(worker::with_handlers);
    let mut changes = 0;
    let job = submit::count_primes(&world.client, 100_000, |_| changes += 1).await.unwrap();
    let result = |job: &JobInfo| job.result::<Value>().unwrap();
    assert_eq!((&job.state, result(&job)), (&JobState::Succeeded, json!({ "count": 9592, "last": 99991 })));
    assert!(changes > 0);
    let none = submit::count_primes(&world.client, 2, |_| {}).await.unwrap();
    assert_eq!(result(&none), json!({ "count": 0, "last": null }));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("one"), "1").unwrap();
    let job = world.ended(&world.submit("files", &json!(folder.path()).to_string()).await).await;
    assert_eq!((&job["state"], &job["result"]), (&"succeeded".into(), &1.into()), "{job}");
    stop.finish().await.unwrap();
}
