//! What the probes' own listener answers, and to whom it does not.

use std::fmt;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onward_health::{
    Beating, Count, Dependency, HealthHandle, Heartbeats, LastBeat, Loop, Outcome, RunError, Stopper, Supervisor,
};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::support::{exchange, get, probe, until};

struct RefusedProbe;

impl fmt::Display for RefusedProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

/// A service that runs until it is dropped.
struct Service {
    runtime: Runtime,
    running: JoinHandle<Result<(), RunError>>,
    stopper: Stopper,
    health: HealthHandle,
    address: SocketAddr,
}

impl Service {
    fn start(service: Supervisor) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let service = service.probes("127.0.0.1:0").without_signals();
        let (health, stopper) = (service.health(), service.stopper());
        let running = runtime.spawn(service.run());
        let address = until("it listens", || health.probes_address());
        Self { runtime, running, stopper, health, address }
    }
}

fn idle(name: &str) -> Loop {
    Loop::new(name, |_| async { Ok::<_, RefusedProbe>(Outcome::Idle) }).every(Duration::from_millis(50)).critical()
}

#[test]
fn every_page() {
    let service = Supervisor::new("billing");
    service.add(idle("poll"));
    let parked = Count::new("parked", 2);
    service.add(parked.clone());
    let service = Service::start(service);
    let address = service.address;
    until("ready", || service.health.report().ready.then_some(()));
    let (code, body) = probe(address, "/readyz?verbose");
    assert_eq!((code, &body["status"], &body["reason"]), (200, &"ok".into(), &serde_json::Value::Null));
    let poll = &body["loops"][0];
    let fields = ["name", "critical", "state", "reason", "since_ms", "last_success_ms", "failures"];
    assert!(fields.iter().all(|field| !poll[field].is_null()), "{poll}");
    assert_eq!((&poll["name"], &poll["state"], &poll["critical"]), (&"poll".into(), &"healthy".into(), &true.into()));
    parked.set(3);
    let (code, body) = probe(address, "/readyz");
    assert_eq!((code, &body["reason"]), (503, &"parked: there are 3, 2 are tolerated".into()));
    assert_eq!(probe(address, "/livez").0, 200);
    assert_eq!(probe(address, "/startupz").0, 200);
    let (code, body) = probe(address, "/status");
    assert_eq!(
        (code, &body["service"], &body["live"], &body["ready"]),
        (200, &"billing".into(), &true.into(), &false.into())
    );
    let (code, text) = get(address, "/metrics");
    assert_eq!(code, 200);
    for line in [
        "onward_health_live{service=\"billing\"} 1",
        "onward_health_ready{service=\"billing\"} 0",
        "onward_input_value{service=\"billing\",input=\"parked\"} 3",
        "onward_input_good{service=\"billing\",input=\"parked\"} 0",
    ] {
        assert!(text.lines().any(|seen| seen == line), "{line} is not in\n{text}");
    }
    let figure = |name: &str| -> f64 {
        let line =
            text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let age = figure("onward_loop_success_age_seconds{service=\"billing\",loop=\"poll\"}");
    let body = probe(address, "/status").1;
    let ms = body["loops"][0]["last_success_ms"].as_f64().unwrap();
    assert!(age < 60.0 && ms < 60_000.0, "{age} s, {ms} ms");
    assert!(figure("onward_executor_lag_seconds{service=\"billing\"}") < 10.0);
    assert_eq!(get(address, "/").0, 404);
    service.stopper.stop();
    service.runtime.block_on(service.running).unwrap().unwrap();
    assert!(TcpStream::connect(address).is_err(), "nobody answers any more");
}

#[test]
fn a_page_says_how_old_a_success_is_and_before_it_that_there_is_none() {
    let service = Supervisor::new("billing");
    let turn = |_| async { Err::<Outcome, _>(RefusedProbe) };
    service.add(Loop::new("poll", turn).every(Duration::from_millis(50)).critical());
    let service = Service::start(service);
    let (code, body) = until("a failure", || {
        Some(probe(service.address, "/startupz")).filter(|(_, body)| !body["loops"][0]["error"].is_null())
    });
    assert_eq!((code, &body["loops"][0]["state"]), (503, &"starting".into()));
    assert!(body["loops"][0]["last_success_ms"].is_null() && body["loops"][0]["error"] == "refused", "{body}");
    assert_eq!(probe(service.address, "/livez").0, 200, "it is inside its grace");
}

#[test]
fn what_is_shown_only_fails_no_probe() {
    let message = Arc::new(Message { silent_s: AtomicU64::new(31), cancelled: AtomicU64::new(0) });
    let service = Supervisor::new("consumer");
    service.add(idle("receive"));
    service.add(Heartbeats::new("messages", Duration::from_secs(30), Messages(Arc::clone(&message))));
    let broker = Dependency::new("broker").reporting_only();
    service.add(broker.clone());
    let service = Service::start(service);
    broker.down("connection refused");
    until("cancelled", || (message.cancelled.load(Ordering::Relaxed) > 0).then_some(()));
    until("ready", || (probe(service.address, "/readyz").0 == 200).then_some(()));
    let report = service.health.report();
    assert!(report.live && report.ready, "the file and systemd go by these");
    let (code, body) = probe(service.address, "/livez");
    assert_eq!((code, &body["heartbeats"][0]["silent"]), (200, &true.into()));
    assert_eq!(body["inputs"][0]["problem"], "it is down: connection refused");
    let text = get(service.address, "/metrics").1;
    let line = "onward_heartbeat_silent_seconds{service=\"consumer\",heartbeats=\"messages\"} 31";
    assert!(text.lines().any(|seen| seen == line), "{text}");
}

#[test]
fn odd_requests_and_slow_callers_keep_nobody_else_waiting() {
    let service = Supervisor::new("billing");
    service.add(idle("poll"));
    let service = Service::start(service);
    let address = service.address;
    let first_line = |request: &str| exchange(address, request).lines().next().unwrap_or_default().to_owned();
    assert_eq!(first_line("POST /livez HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(first_line("\x16\x03\x01 what\r\n\r\n"), "HTTP/1.1 400 Bad Request");
    assert!(!exchange(address, "HEAD /livez HTTP/1.1\r\n\r\n").ends_with("}\n"));
    // More of them than there are places, each with half of a request: they are hung up on, and then it is our turn.
    let slow: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /livez").unwrap();
            stream
        })
        .collect();
    assert_eq!(get(address, "/livez").0, 200);
    drop(slow);
    assert_eq!(first_line(&"x".repeat(8 * 1024)), "HTTP/1.1 431 Request Header Fields Too Large");
    let mut long = TcpStream::connect(address).unwrap();
    // It may be hung up on before all of it is written.
    let _ = long.write_all(&vec![b'x'; 64 * 1024]);
    assert_eq!(get(address, "/livez").0, 200);
}

/// A message's heartbeat, with a hand on its clock.
struct Message {
    silent_s: AtomicU64,
    cancelled: AtomicU64,
}

struct Messages(Arc<Message>);

impl Beating for Messages {
    fn most_silent(&self) -> Option<LastBeat> {
        let ago = Duration::from_secs(self.0.silent_s.load(Ordering::Relaxed));
        Some(LastBeat { who: "message 7".into(), ago, place: Some(Location::caller()) })
    }

    fn cancel(&self, who: &str) {
        assert_eq!(who, "message 7");
        self.0.cancelled.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_silent_heartbeat_is_cancelled_once_and_fails_liveness_until_it_beats() {
    let message = Arc::new(Message { silent_s: AtomicU64::new(29), cancelled: AtomicU64::new(0) });
    let service = Supervisor::new("consumer");
    service.add(idle("receive"));
    service.add(Heartbeats::new("messages", Duration::from_secs(30), Messages(Arc::clone(&message))).critical());
    let service = Service::start(service);
    until("ready", || service.health.report().ready.then_some(()));
    assert_eq!(message.cancelled.load(Ordering::Relaxed), 0);
    message.silent_s.store(30, Ordering::Relaxed);
    let (code, body) = probe(service.address, "/livez");
    let reason = body["reason"].as_str().unwrap();
    assert_eq!(code, 503);
    assert!(
        reason.starts_with("messages: `message 7` has been silent for 30s; it beat last at lib/health/"),
        "{reason}"
    );
    until("cancelled", || (message.cancelled.load(Ordering::Relaxed) > 0).then_some(()));
    assert_eq!(probe(service.address, "/livez").0, 503);
    message.silent_s.store(0, Ordering::Relaxed);
    assert_eq!(probe(service.address, "/livez").0, 200);
    assert_eq!(message.cancelled.load(Ordering::Relaxed), 1);
}

#[test]
fn an_address_that_is_taken_is_an_error_and_nothing_starts() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let service = Supervisor::new("billing").probes(&address).without_signals();
    service.add(idle("poll"));
    let error = runtime.block_on(service.run()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("probes cannot be answered on {address}: ")), "{error}");
}
