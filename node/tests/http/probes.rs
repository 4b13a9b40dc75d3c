//! Probes that are answered beside the port, whatever the executor does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use onward_core::fence::Term;
use onward_core::settings::Settings;
use onward_log::{Archive, ArchivedJob, Blob, Error, MemoryLog, ScanPage};
use onward_node::engine::{Engine, EngineStart, Pacing};
use onward_node::server::Node;
use serde_json::Value;
use tempfile::tempdir;
use tokio::runtime::Builder;

use crate::rig::{PATIENCE, config};

const WORKERS: usize = 2;
const LAG: Duration = Duration::from_millis(800);

/// Asked from a thread of the test's own: no executor takes part.
fn ask(address: SocketAddr, path: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap())
}

fn until(address: SocketAddr, path: &str, status: u16) -> Value {
    let begun = Instant::now();
    loop {
        match ask(address, path) {
            (found, answer) if found == status => return answer,
            (_, answer) => assert!(begun.elapsed() < PATIENCE, "{path} is not {status}: {answer}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_frozen_executor_fails_liveness_with_its_reason_and_a_thawed_one_does_not() {
    let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build().unwrap();
    let data = tempdir().unwrap();
    let (node, eye) = runtime.block_on(async {
        let node = Node::start(config(data.path())).await.unwrap();
        let eye = node.engine().loops().open_eye(LAG, Some("127.0.0.1:0".parse().unwrap())).unwrap();
        (node, eye)
    });
    let probes = eye.probes_address().expect("it was asked for");
    for path in ["/livez", "/readyz", "/startupz"] {
        until(probes, path, 200);
    }
    let (_, status) = ask(probes, "/status");
    let names: Vec<&str> =
        status["loops"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["machine", "committer", "schedules", "snapshots", "archive", "acceptor"]);

    let (entered, has_entered) = channel();
    let mut thaw = Vec::new();
    let frozen_at = Instant::now();
    for _ in 0..WORKERS {
        let (release, released) = channel::<()>();
        let entered = entered.clone();
        runtime.spawn(async move {
            entered.send(()).unwrap();
            // A thread of the executor stands still here.
            let _ = released.recv();
        });
        thaw.push(release);
    }
    (0..WORKERS).for_each(|_| has_entered.recv().unwrap());
    let answer = until(probes, "/livez", 503);
    assert!(frozen_at.elapsed() >= LAG, "a moment is nothing");
    assert!(answer["reason"].as_str().unwrap().starts_with("the executor has run no task for "), "{answer}");
    assert_eq!(ask(probes, "/readyz").0, 503);

    drop(thaw);
    until(probes, "/livez", 200);
    until(probes, "/readyz", 200);
    node.leave();
    let answer = until(probes, "/readyz", 503);
    assert_eq!((answer["reason"].as_str(), ask(probes, "/livez").0), (Some("the service was told to stop"), 200));
    drop(eye);
    runtime.block_on(node.shutdown(PATIENCE));
}

/// An archive with a bug in it.
#[derive(Debug)]
struct Panicking;

impl Archive for Panicking {
    fn put(&self, _jobs: &[ArchivedJob<'_>]) -> Result<(), Error> {
        Ok(())
    }
    fn put_blobs(&self, _id: u128, _blobs: &[Blob<'_>]) -> Result<(), Error> {
        Ok(())
    }
    fn get(&self, _id: u128) -> Result<Option<Vec<u8>>, Error> {
        Ok(None)
    }
    fn blob(&self, _id: u128, _digest: &[u8; 32]) -> Result<Option<Vec<u8>>, Error> {
        Ok(None)
    }
    fn scan(&self, _before: Option<u128>, _max_rows: usize, _max_bytes: usize) -> Result<ScanPage, Error> {
        Ok(ScanPage::default())
    }
    fn count(&self) -> Result<u64, Error> {
        Ok(0)
    }
    fn expire(&self, _now_ms: u64, _keep_at_most: u64, _max_rows: usize) -> Result<usize, Error> {
        panic!("as a bug would")
    }
    fn under(&self, _term: Term) -> Arc<dyn Archive> {
        Arc::new(Self)
    }
}

#[test]
fn an_archive_whose_thread_has_panicked_is_shown_as_dead_and_fails_no_probe() {
    let mut start = EngineStart::new(Settings::default().check().unwrap(), || Ok(Box::new(MemoryLog::new())));
    start.archive = Some(Arc::new(Panicking));
    start.pacing = Pacing { expire_every: Duration::from_millis(1), ..start.pacing };
    let engine = Engine::start(start).unwrap();
    let begun = Instant::now();
    let report = loop {
        let report = engine.loops().health().report();
        let archive = report.loops.iter().find(|one| one.name == "archive").expect("it has one");
        if archive.state.code() == "dead" {
            assert_eq!((archive.reason.code(), archive.critical), ("gone", false));
            break report;
        }
        assert!(begun.elapsed() < PATIENCE, "{archive:?}");
        std::thread::yield_now();
    };
    assert!(report.live && report.ready, "{:?}", report.why_not_ready());
    engine.stop();
}
