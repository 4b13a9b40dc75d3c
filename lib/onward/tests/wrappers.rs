//! The wrappers against a real node, in one process.

mod world;

use std::sync::Arc;
use std::time::Duration;

use onward::client::Progress;
use onward::{Context, Failure};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::Notify;
use tokio_stream::StreamExt;
use world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_through_a_wrapper_is_seen_at_the_node() {
    let world = World::start().await;
    let seen = Arc::new(Notify::new());
    let (of_reader, of_items, of_block) = (seen.clone(), seen.clone(), seen.clone());
    let stop = world.work(|worker| {
        worker
            .beat_every(Duration::from_millis(20))
            .handle("read", move |ctx: Context, text: String| {
                let seen = of_reader.clone();
                async move {
                    let mut read = String::new();
                    ctx.reader(text.as_bytes()).of_total(text.len() as u64).read_to_string(&mut read).await?;
                    seen.notified().await;
                    Ok(read.len())
                }
            })
            .handle("items", move |ctx: Context, list: Vec<u64>| {
                let seen = of_items.clone();
                async move {
                    let count = list.len() as u64;
                    let items: Vec<u64> = ctx.stream(tokio_stream::iter(list)).of_total(count).collect().await;
                    seen.notified().await;
                    Ok(items.iter().sum::<u64>())
                }
            })
            .handle("block", move |ctx: Context, n: u64| {
                let seen = of_block.clone();
                async move {
                    ctx.blocking(move |ctx| {
                        (1..=n).for_each(|done| ctx.progress(done, n));
                        Ok(())
                    })
                    .await?;
                    seen.notified().await;
                    Ok(n)
                }
            })
    });
    for (kind, payload, done, result) in
        [("read", "\"seventeen letters\"", 17, 17), ("items", "[1, 2, 3]", 3, 6), ("block", "5", 5, 5)]
    {
        let id = world.submit(kind, payload).await;
        world.until(&id, |job| job.progress == Progress { done, total: Some(done) }).await;
        seen.notify_one();
        let job = world.ended(&id).await;
        assert_eq!((&job["state"], &job["result"]), (&"succeeded".into(), &result.into()), "{job}");
    }
    stop.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_succeeds_or_fails_with_what_it_said() {
    let world = World::start().await;
    let stop = world.work(|worker| {
        worker.handle("sh", |ctx: Context, script: String| async move {
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            let output = ctx.command(command).await?;
            String::from_utf8(output.stdout).map_err(Failure::permanent)
        })
    });
    let job = world.ended(&world.submit("sh", "\"echo hello\"").await).await;
    assert_eq!((&job["state"], &job["result"]), (&"succeeded".into(), &"hello\n".into()), "{job}");
    let job = world.ended(&world.submit_once("sh", "\"echo no disk >&2; exit 2\"").await).await;
    assert_eq!(job["workflows"][0]["attempts"][0]["error"], "`sh` ended by exit status: 2: no disk", "{job}");
    stop.finish().await.unwrap();
}
