//! How long it takes to open a node's files again, and how much memory it then needs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onward_core::ids::JobId;
use onward_core::input::{Call, Submission};
use onward_core::job::Draft;
use onward_core::payload::Payload;
use onward_core::settings::{Rules, Settings};
use onward_core::time::Wall;
use onward_log::{Archive, ArchivedJob, EmbeddedArchive, EmbeddedLog, Log, codec};
use onward_node::engine::{Engine, EngineStart};
use tokio::runtime::Runtime;

use crate::allocation::live_bytes;
use crate::report::Figure;
use crate::runs::Mix;

const BATCH: usize = 1_000;

/// So many jobs are queued and the files opened again; then so many are put into the archive, and again.
pub fn reopen(queued: usize, archived: usize) -> Vec<Figure> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(fill(folder.path(), queued));
    let before = live_bytes();
    let begun = Instant::now();
    let engine = open(folder.path());
    let alone = begun.elapsed();
    let bytes = (live_bytes() - before) as f64 / queued as f64;
    engine.stop();
    drop(engine);
    archive(folder.path(), archived);
    let begun = Instant::now();
    let engine = open(folder.path());
    let with_history = begun.elapsed();
    engine.stop();
    let seconds = |what: &str, took: Duration, wanted| Figure {
        what: what.into(),
        value: took.as_secs_f64(),
        unit: "s",
        wanted,
        more: false,
        spread: None,
    };
    vec![
        seconds("reopening 1M queued jobs", scaled(alone, queued), Some(5.0)),
        seconds("the same with 3M archived jobs", scaled(with_history, queued), None),
        Figure {
            what: "what 3M archived jobs add to reopening".into(),
            value: with_history.as_secs_f64() - alone.as_secs_f64(),
            unit: "s",
            wanted: Some(0.5),
            more: false,
            spread: None,
        },
        Figure {
            what: "memory per queued job after reopening".into(),
            value: bytes,
            unit: "bytes",
            wanted: Some(1_024.0),
            more: false,
            spread: None,
        },
    ]
}

/// A quick run queues fewer, and is shown as if it had queued all.
fn scaled(took: Duration, queued: usize) -> Duration {
    took.mul_f64(1_000_000.0 / queued as f64)
}

fn open(folder: &Path) -> Engine {
    let log = EmbeddedLog::open(folder).expect("the log opens");
    let mut start = EngineStart::new(rules(), move || Ok(Box::new(log.clone()) as Box<dyn Log>));
    start.archive = Some(Arc::new(EmbeddedArchive::open(folder).expect("the archive opens")));
    Engine::start(start).expect("the engine starts")
}

fn rules() -> Rules {
    let mut settings = Settings::default();
    settings.limits.shelves = 10_000_000;
    settings.check().expect("valid settings")
}

async fn fill(folder: &Path, queued: usize) {
    let engine = open(folder);
    let mut mix = Mix::new();
    for _ in 0..queued / BATCH {
        let submission = |draft| Submission { id: engine.new_job_id(), draft };
        let batch: Vec<Submission> = (0..BATCH).map(|_| submission(mix.next(true))).collect();
        // A disk that is slow for a moment may make the node shed submissions.
        while engine.call(Call::Submit(batch.clone())).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    tokio::task::spawn_blocking(move || engine.stop()).await.expect("stopping does not panic");
}

fn archive(folder: &Path, archived: usize) {
    let archive = EmbeddedArchive::open(folder).expect("the archive opens");
    let image = sample();
    for batch in 0..archived / BATCH {
        let rows: Vec<(u128, Vec<u8>)> = (0..BATCH)
            .map(|n| {
                let n = (batch * BATCH + n) as u64;
                let mut image = image.clone();
                image.id = JobId::v7(Wall::from_ms(1_700_000_000_000 + n / 64), u128::from(n));
                let mut row = Vec::new();
                codec::encode_image(&image, &mut row);
                (image.id.as_u128(), row)
            })
            .collect();
        let jobs: Vec<ArchivedJob<'_>> = rows
            .iter()
            .map(|(id, row)| ArchivedJob { id: *id, ended_at_ms: 1, expires_at_ms: None, row, blobs: &[] })
            .collect();
        archive.put(&jobs).expect("the archive stores");
    }
}

/// A job that has ended, as the archive keeps it.
fn sample() -> onward_core::state::JobImage {
    let mut machine = crate::machine::BenchMachine::new();
    let kind = onward_core::ids::Name::new("resize").expect("valid");
    machine.worker("worker".into(), 1, std::slice::from_ref(&kind));
    machine.submit(std::iter::once(Draft::of_kind("resize", Payload::from([b'x'; 100]))));
    machine.work();
    let id = machine.manager.state().jobs().next().expect("there is one").1.id;
    machine.manager.image(id).expect("it is there")
}
