//! The worker against a real node, in one process.

mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onward::client::JobState;
use onward::{Context, Failure, Job, Notice, Worker, WorkerError};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use world::{SOON, World};

/// Notices of a worker, to wait for.
fn notices() -> (impl Fn(Notice) + Send + Sync + 'static, UnboundedReceiver<Notice>) {
    let (told, notices) = unbounded_channel();
    (move |notice| drop(told.send(notice)), notices)
}

async fn next(notices: &mut UnboundedReceiver<Notice>, wanted: impl Fn(&Notice) -> bool) -> Notice {
    let find = async {
        loop {
            let notice = notices.recv().await.expect("it still runs");
            if wanted(&notice) {
                return notice;
            }
        }
    };
    timeout(SOON, find).await.expect("it is told")
}

/// The gate at which handlers wait until the test lets them go.
struct Gate {
    go: Notify,
    begun: Semaphore,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self { go: Notify::new(), begun: Semaphore::new(0) })
    }

    /// Waits until one more handler runs: the node says `running` before the worker has heard of it.
    async fn begun(&self) {
        timeout(SOON, self.begun.acquire()).await.expect("it begins").expect("nobody closes it").forget();
    }
}

/// A handler that ends when the test says so.
fn waits(gate: &Arc<Gate>) -> impl Fn(Context, Value) -> WaitRun + Send + Sync + 'static {
    let gate = gate.clone();
    move |_, payload| {
        let gate = gate.clone();
        Box::pin(async move {
            gate.begun.add_permits(1);
            gate.go.notified().await;
            Ok(payload)
        })
    }
}

type WaitRun = std::pin::Pin<Box<dyn Future<Output = Result<Value, Failure>> + Send>>;

/// A worker, as the node sees it.
async fn node(world: &World, id: &str) -> Value {
    let nodes: Value = world.client.get("/v1/nodes").await.unwrap();
    let listed = nodes["nodes"].as_array().unwrap();
    listed.iter().find(|node| node["id"] == id).cloned().unwrap_or_else(|| panic!("no {id} in {nodes}"))
}

fn attempts(job: &Value) -> usize {
    job["workflows"][0]["attempts"].as_array().map_or(0, Vec::len)
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_the_handler() {
    let world = World::start().await;
    let stop = world.work(|worker| {
        worker.handle("task", |ctx: Context, (): ()| async move {
            ctx.cancelled().await;
            ctx.check()
        })
    });
    let id = world.submit("task", "null").await;
    world.until(&id, |job| job.state == JobState::Running).await;
    world.client.cancel(&id).await.unwrap();
    let job = world.ended(&id).await;
    assert_eq!((&job["state"], attempts(&job)), (&"cancelled".into(), 1), "{job}");
    stop.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_survives_its_session() {
    let world = World::start().await;
    let (place, cutter) = world.place_to_cut();
    let (gate, (watch, mut told)) = (Gate::new(), notices());
    let stop = world.work_at(place, |worker| worker.on_notice(watch).handle("task", waits(&gate)));
    let id = world.submit("task", "1").await;
    world.until(&id, |job| job.state == JobState::Running).await;
    gate.begun().await;
    next(&mut told, |notice| *notice == Notice::Connected).await;
    for _ in 0..3 {
        cutter.cut();
        next(&mut told, |notice| matches!(notice, Notice::Disconnected { .. })).await;
        next(&mut told, |notice| *notice == Notice::Connected).await;
    }
    gate.go.notify_one();
    let job = world.ended(&id).await;
    assert_eq!((&job["state"], attempts(&job)), (&"succeeded".into(), 1), "{job}");
    next(&mut told, |notice| matches!(notice, Notice::Settled { job_id, .. } if *job_id == id)).await;
    stop.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_attempt_goes_on_from_the_checkpoint() {
    let world = World::start().await;
    let stop = world.work(|worker| {
        worker.handle("task", |ctx: Context, (): ()| async move {
            match ctx.checkpoint() {
                None => {
                    ctx.set_checkpoint("half");
                    Err(Failure::retry_after(Duration::ZERO, "not yet"))
                }
                Some(checkpoint) => Ok(format!("{} by {}", String::from_utf8_lossy(checkpoint), ctx.attempt())),
            }
        })
    });
    let job = world.ended(&world.submit("task", "null").await).await;
    assert_eq!((&job["state"], &job["result"]), (&"succeeded".into(), &"half by 2".into()), "{job}");
    stop.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_gets_the_results_of_those_before_it() {
    let world = World::start().await;
    let (told, mut sums) = unbounded_channel();
    let stop = world.work(|worker| {
        worker.handle("number", |_: Context, n: u64| async move { Ok(n) }).handle("add", move |ctx: Context, (): ()| {
            let told = told.clone();
            async move {
                let names: Vec<&str> = ctx.inputs().map(|(name, _)| name).collect();
                assert_eq!(names.len(), 2);
                told.send(ctx.input::<u64>("a")? + ctx.input::<u64>("b")?)?;
                assert!(ctx.input::<u64>("c").unwrap_err().to_string().contains("name it in `after`"));
                Ok(())
            }
        })
    });
    let job = Job::of_workflows().workflow("a", "number", 20, &[]).unwrap();
    let job = job.workflow("b", "number", 3, &[]).unwrap().workflow("sum", "add", (), &["a", "b"]).unwrap();
    let job = world.ended(&world.client.submit(job).await.unwrap()).await;
    assert_eq!((&job["state"], sums.recv().await), (&"succeeded".into(), Some(23)), "{job}");
    stop.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_the_submission_reach_the_handler() {
    let world = World::start().await;
    let stop = world.work(|worker| {
        worker.handle("task", |ctx: Context, (): ()| async move {
            Ok((ctx.traceparent().map(str::to_owned), ctx.header("X-Tenant").map(str::to_owned), ctx.job_id()))
        })
    });
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let job = world::job("task", "null").header("traceparent", trace).header("x-tenant", "blue");
    let id = world.client.submit(job).await.unwrap();
    assert_eq!(world.ended(&id).await["result"], json!([trace, "blue", id]));
    stop.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_with_slots_of_its_own_keeps_to_them() {
    let world = World::start().await;
    let (most, now) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (seen, gate) = (most.clone(), Gate::new());
    let stop = world.work(|worker| {
        let narrow = move |_: Context, (): ()| {
            let (now, most) = (now.clone(), most.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        };
        worker.slots(4).handle("narrow", narrow).at_most("narrow", 1).handle("wide", waits(&gate))
    });
    let wide = submit_many(&world, "wide", 4).await;
    for id in &wide {
        world.until(id, |job| job.state == JobState::Running).await;
    }
    for id in submit_many(&world, "narrow", 6).await {
        assert_eq!(world.ended(&id).await["state"], "succeeded", "all four slots of the others are taken");
    }
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    let slots = [node(&world, "tester").await["slots"].clone(), node(&world, "tester.narrow").await["slots"].clone()];
    assert_eq!(slots, [4, 1]);
    wide.iter().for_each(|_| gate.go.notify_one());
    for id in wide {
        assert_eq!(world.ended(&id).await["state"], "succeeded");
    }
    stop.finish().await.unwrap();
}

async fn submit_many(world: &World, kind: &str, count: usize) -> Vec<String> {
    let jobs = (0..count).map(|_| world::job(kind, "null"));
    world.client.submit_all(jobs).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_finishes_what_runs_and_takes_nothing_more() {
    let world = World::start().await;
    let gate = Gate::new();
    let working = world.work(|worker| worker.slots(2).handle("task", waits(&gate)));
    let first = world.submit("task", "1").await;
    world.until(&first, |job| job.state == JobState::Running).await;
    gate.begun().await;
    let draining = working.stop();
    let is_draining = async {
        loop {
            if node(&world, "tester").await["verdict"] == "busy" {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, is_draining).await.expect("it says that it takes nothing more");
    let second = world.submit("task", "2").await;
    gate.go.notify_one();
    assert_eq!(world.ended(&first).await["state"], "succeeded");
    timeout(SOON, draining).await.expect("it is over").unwrap().unwrap();
    assert_eq!(world.client.job(&second).await.unwrap().state, JobState::Ready);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_on_its_way_to_a_worker_that_leaves_is_not_lost() {
    let world = World::start().await;
    let mut ids = Vec::new();
    for round in 0..40 {
        let (told, mut notices) = notices();
        let done = |_: Context, _: Value| async { Ok(json!(null)) };
        let working = world.work(|worker| worker.id(format!("w{round}")).slots(8).on_notice(told).handle("task", done));
        next(&mut notices, |notice| *notice == Notice::Connected).await;
        let (submitted, over) = tokio::join!(submit_many(&world, "task", 8), working.finish());
        over.unwrap();
        ids.extend(submitted);
        for id in &ids {
            let job = world.client.job(id).await.unwrap();
            assert_ne!(job.state, JobState::Running, "round {round}, whose worker is gone: {job:?}");
            assert!(job.workflows[0].counted <= 1, "{job:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_end_in_time_is_given_back_by_a_drain() {
    let (world, gate) = (World::start().await, Gate::new());
    let grace = Duration::from_millis(50);
    let working = world.work(|worker| worker.drain_grace(grace).cancel_grace(grace).handle("task", waits(&gate)));
    let id = world.submit("task", "null").await;
    world.until(&id, |job| job.state == JobState::Running).await;
    gate.begun().await;
    working.finish().await.unwrap();
    let job = world.client.job(&id).await.unwrap();
    assert_eq!((&job.state, job.workflows[0].counted), (&JobState::Ready, 0), "{job:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_dropped_gives_back_what_it_runs_and_is_gone() {
    let world = World::start().await;
    let (gate, (watch, mut told)) = (Gate::new(), notices());
    let grace = Duration::from_millis(50);
    let working = world.work(|worker| worker.on_notice(watch).cancel_grace(grace).handle("task", waits(&gate)));
    let id = world.submit("task", "1").await;
    world.until(&id, |job| job.state == JobState::Running).await;
    gate.begun().await;
    working.abort();
    next(&mut told, |notice| matches!(notice, Notice::Settled { .. })).await;
    let job = world.client.job(&id).await.unwrap();
    assert_eq!((&job.state, job.workflows[0].counted), (&JobState::Ready, 0), "{job:?}");
}

/// The session has a thread of its own, which must not go on for handlers that nobody runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_executor_is_gone_gives_back_what_it_ran() {
    let world = World::start().await;
    let (gate, (watch, mut told)) = (Gate::new(), notices());
    let worker = Worker::at(world.place()).id("tester").on_notice(watch).handle("task", waits(&gate));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.spawn(worker.run_until(core::future::pending()));
    let id = world.submit("task", "1").await;
    world.until(&id, |job| job.state == JobState::Running).await;
    gate.begun().await;
    runtime.shutdown_background();
    next(&mut told, |notice| matches!(notice, Notice::Settled { .. })).await;
    // It may have been given it once more before the node knew that it takes nothing any more.
    world.until(&id, |job| job.state == JobState::Ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_with_the_same_id_takes_the_place_of_the_first() {
    let world = World::start().await;
    let gate = Gate::new();
    let (watch, mut told) = notices();
    let first = world.work(|worker| worker.on_notice(watch).handle("task", waits(&gate)));
    let id = world.submit("task", "1").await;
    world.until(&id, |job| job.state == JobState::Running).await;
    gate.begun().await;
    next(&mut told, |notice| *notice == Notice::Connected).await;
    let second = world.work(|worker| worker.handle("task", waits(&gate)));
    match first.over().await {
        Err(WorkerError::Rejected(refused)) => assert_eq!(&*refused.code, "stale_incarnation"),
        other => panic!("{other:?}"),
    }
    world.until(&id, |job| job.workflows[0].attempts.len() == 2).await;
    gate.go.notify_waiters();
    gate.go.notify_one();
    assert_eq!(world.ended(&id).await["state"], "succeeded");
    second.finish().await.unwrap();
}

/// The node ends a silent attempt when its lease is over, and says so to the worker. What that does to the handler is the
/// worker's policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_whose_lease_is_lost_is_stopped_unless_it_is_to_continue() {
    for (continues, expected) in [(false, "stopped"), (true, "finished")] {
        let second = Duration::from_secs(1);
        let world = World::start_with(|settings| {
            (settings.lease.initial, settings.lease.extension, settings.lease.interval) = (second, second, second / 3);
        })
        .await;
        let (gate, (watch, mut told)) = (Gate::new(), notices());
        let (says, mut said) = unbounded_channel();
        let waits = gate.clone();
        let stop = world.work(|worker| {
            let worker = if continues { worker.continue_when_lost() } else { worker };
            let worker = worker.slots(2).on_notice(watch).handle("silent", move |ctx: Context, (): ()| {
                let (gate, says) = (waits.clone(), says.clone());
                async move {
                    gate.begun.add_permits(1);
                    tokio::select! {
                        biased;
                        () = ctx.cancelled() => says.send("stopped").unwrap(),
                        () = gate.go.notified() => says.send("finished").unwrap(),
                    }
                    Ok(())
                }
            });
            worker.handle("quick", |_: Context, (): ()| async { Ok(()) })
        });
        let id = world.submit_once("silent", "null").await;
        gate.begun().await;
        let job = world.ended(&id).await;
        assert_eq!(job["workflows"][0]["attempts"][0]["outcome"], "lease_expired", "{job}");
        // What is handed out later comes behind the word that the lease is over.
        world.ended(&world.submit("quick", "null").await).await;
        gate.go.notify_one();
        assert_eq!(timeout(SOON, said.recv()).await.expect("it ends"), Some(expected));
        if continues {
            let refused = |notice: &Notice| matches!(notice, Notice::Refused { job_id, .. } if *job_id == id);
            next(&mut told, refused).await;
        }
        assert_eq!(world.client.job(&id).await.unwrap().state, JobState::Failed, "its result is refused all the same");
        stop.finish().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_too_large_fails_for_good_and_says_so() {
    let world = World::start().await;
    let stop =
        world.work(|worker| worker.handle("fill", |_: Context, bytes: usize| async move { Ok("x".repeat(bytes)) }));
    for (bytes, text) in [("1500000", "the manager did not take the outcome"), ("5000000", "too large to be sent")] {
        let job = world.ended(&world.submit("fill", bytes).await).await;
        let error = job["workflows"][0]["attempts"][0]["error"].as_str().unwrap_or_default().to_owned();
        assert_eq!((&job["state"], attempts(&job)), (&"failed".into(), 1), "{error}");
        assert!(error.contains(text), "{error}");
    }
    stop.finish().await.unwrap();
}

/// Handlers on an executor of one thread that one of them blocks: the session lives on, and says that it takes no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_executor_is_seen_and_does_not_stop_the_session() {
    let world = World::start_with(|settings| {
        settings.liveness.probe_every = Duration::from_millis(100);
        settings.liveness.answer_within = Duration::from_millis(400);
    })
    .await;
    let (watch, mut told) = notices();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let worker = Worker::at(world.place()).id("tester").on_notice(watch).handle("block", move |_: Context, (): ()| {
        let waited = released.lock().unwrap().recv().is_ok();
        async move { Ok(waited) }
    });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(worker.run_until(async { drop(stopped.await) }))
    });
    let id = world.submit("block", "null").await;
    next(&mut told, |notice| matches!(notice, Notice::Starved { .. })).await;
    // More probes went by than may be missed; on a busy computer an answer may be late, but it comes.
    let is_live = async { while node(&world, "tester").await["signals"]["live"] != true {} };
    timeout(SOON, is_live).await.expect("it answers probes while the executor is blocked");
    release.send(()).unwrap();
    let job = world.ended(&id).await;
    assert_eq!((&job["state"], &job["result"], attempts(&job)), (&"succeeded".into(), &true.into(), 1), "{job}");
    stop.send(()).unwrap();
    tokio::task::spawn_blocking(|| thread.join()).await.unwrap().unwrap().unwrap();
}
