//! Inputs that are too large together for one frame: the worker fetches them before its handler begins.

mod world;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onward::{Context, Failure, Job, Worker};
use onward_core::ids::JobId;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{interval, timeout};
use world::{SOON, World};

/// The size of a part: as large as a result is likely to be.
const PART: usize = 1_000_000;

/// Like no other part, at either end.
fn part(n: u64) -> Bytes {
    const BLOCK: usize = 4_000;
    let block: Vec<u8> = (0..BLOCK as u64).map(|at| (at * 31 + n) as u8).collect();
    let mut part = block.repeat(PART / BLOCK);
    part[..8].copy_from_slice(&n.to_le_bytes());
    part[PART - 8..].copy_from_slice(&n.to_be_bytes());
    part.into()
}

/// A job of so many parts, and one workflow that gets all of them.
fn join_of(parts: u64) -> Job {
    let names: Vec<String> = (0..parts).map(|n| format!("part-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let job = names.iter().zip(0..).fold(Job::of_workflows(), |job, (name, n): (_, u64)| {
        job.workflow(name, if n + 1 == parts { "last" } else { "part" }, n, &[]).expect("a number is JSON")
    });
    job.workflow("join", "join", (), &names).expect("nothing is JSON")
}

fn number(payload: &[u8]) -> Result<u64, Failure> {
    serde_json::from_slice(payload).map_err(|error| Failure::permanent(error.to_string()))
}

/// Fails for good if any input is not what its part has made, to the byte.
fn check_parts(ctx: &Context, parts: u64) -> Result<(), Failure> {
    let mut seen = 0;
    for (name, bytes) in ctx.inputs() {
        let n = name.strip_prefix("part-").and_then(|n| n.parse().ok()).expect("a part");
        if bytes != part(n) {
            return Err(Failure::permanent(format!("{name} is {} bytes and not what was made", bytes.len())));
        }
        seen += 1;
    }
    if seen == parts { Ok(()) } else { Err(Failure::permanent(format!("{seen} inputs of {parts}"))) }
}

/// Says what the workflow that gets all parts has seen, and at which attempt.
type InputLog = (Result<(), Failure>, u32);

/// Makes parts, and compares them where they come together. The job itself is not looked at: all results are in it.
fn joining(worker: Worker, parts: u64, seen: UnboundedSender<InputLog>, began: Arc<Notify>) -> Worker {
    worker
        .slots(4)
        .handle_bytes("part", |_: Context, payload: Bytes| async move { Ok(part(number(&payload)?)) })
        .handle_bytes("last", move |_: Context, payload: Bytes| {
            began.notify_one();
            async move { Ok(part(number(&payload)?)) }
        })
        .handle_bytes("join", move |ctx: Context, _: Bytes| {
            let checked = check_parts(&ctx, parts);
            // The test may be over.
            let _ = seen.send((checked, ctx.attempt()));
            async { Ok(Bytes::new()) }
        })
}

async fn seen(told: &mut UnboundedReceiver<InputLog>) -> u32 {
    let (checked, attempt) = timeout(SOON, told.recv()).await.expect("it gets there").expect("it still runs");
    checked.expect("every input is what was made");
    attempt
}

/// The end of an attempt of the workflow that gets all parts, once one has ended without success. An input that cannot
/// be delivered is handed out again, and that may go on for ever.
async fn join_ended(world: &World, job: &str) -> &'static str {
    let job = JobId::parse(job).expect("an id");
    let mut looks = interval(Duration::from_millis(20));
    loop {
        looks.tick().await;
        let ended = world.node.engine().read(move |view| {
            let job = view.manager.job(job)?;
            job.workflows.last()?.ended.iter().map(|ended| ended.ending.code()).find(|code| *code != "succeeded")
        });
        if let Ok(Some(ending)) = ended.await {
            return ending;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_that_no_frame_could_carry_reach_the_handler_to_the_byte() {
    const PARTS: u64 = 275;
    let world = World::start().await;
    let (tell, mut told) = unbounded_channel();
    let stop = world.work(|worker| joining(worker, PARTS, tell, Arc::default()));
    let job = world.client.submit(join_of(PARTS)).await.unwrap();
    let attempt = tokio::select! {
        attempt = seen(&mut told) => attempt,
        ending = join_ended(&world, &job) => panic!("its attempt ended before the handler began: {ending}"),
    };
    assert_eq!(attempt, 1, "at the first attempt");
    stop.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_while_inputs_are_on_their_way_costs_no_attempt() {
    const PARTS: u64 = 12;
    let world = World::start().await;
    let (place, cutter) = world.place_to_cut();
    let ((tell, mut told), began) = (unbounded_channel(), Arc::<Notify>::default());
    let stop = world.work_at(place, |worker| joining(worker, PARTS, tell, began.clone()));
    world.client.submit(join_of(PARTS)).await.unwrap();
    timeout(SOON, began.notified()).await.expect("the last part is being made");
    // Wherever that is: in the results of the parts, in the assignment, or in one of its inputs.
    cutter.cut();
    assert_eq!(seen(&mut told).await, 1, "nothing of it counts");
    stop.finish().await.unwrap();
}
