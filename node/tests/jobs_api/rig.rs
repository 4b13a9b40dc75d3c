//! The router over an engine on a log in memory, asked without a socket.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt;
use onward_core::effect::Answer;
use onward_core::health::overload::{LoadLimits, OverloadRule};
use onward_core::ids::{ClientId, Incarnation, Name, Seq, WorkerId};
use onward_core::input::{Call, Poll};
use onward_core::manager::SeatState;
use onward_core::message::{Assignment, EndReport, Settlement, Subscription};
use onward_core::settings::Settings;
use onward_log::MemoryLog;
use onward_node::api::App;
use onward_node::api::access::Access;
use onward_node::api::jobs::follow::Followers;
use onward_node::api::jobs::routes_for;
use onward_node::api::receipt::Receipts;
use onward_node::engine::{Engine, EngineStart};
use onward_node::outputs::{OutputFolder, OutputRules, Outputs};
use serde_json::Value;
use tokio::sync::watch;
use tower::ServiceExt;

pub struct Rig {
    pub engine: Engine,
    pub outputs: Outputs,
    router: Router,
    pub access: Access,
    /// Nothing drains for as long as this is here.
    _draining: watch::Sender<bool>,
    _folder: tempfile::TempDir,
}

pub struct JsonAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl JsonAnswer {
    /// The status and the code of a problem.
    pub fn problem(&self) -> (u16, &str) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.body);
        assert_eq!(self.body["status"], self.status);
        assert!(!self.body["detail"].as_str().unwrap().is_empty());
        (self.status, self.body["code"].as_str().unwrap())
    }

    pub fn id(&self) -> String {
        self.body["id"].as_str().unwrap_or_else(|| panic!("no id in {}", self.body)).into()
    }
}

impl Rig {
    pub async fn new() -> Self {
        Self::with_settings(|_| {}).await
    }

    pub async fn with_settings(change: impl FnOnce(&mut Settings)) -> Self {
        Self::with(change, Followers::at_most(4_096)).await
    }

    pub async fn with_followers(followers: Followers) -> Self {
        Self::with(|_| {}, followers).await
    }

    pub async fn on(log: MemoryLog) -> Self {
        Self::with_log(log, |_| {}, Followers::at_most(4_096)).await
    }

    async fn with(change: impl FnOnce(&mut Settings), followers: Followers) -> Self {
        Self::with_log(MemoryLog::new(), change, followers).await
    }

    async fn with_log(log: MemoryLog, change: impl FnOnce(&mut Settings), followers: Followers) -> Self {
        let mut settings = settings();
        change(&mut settings);
        let start = EngineStart::new(settings.check().unwrap(), move || Ok(Box::new(log.clone())));
        let engine = Engine::start(start).unwrap();
        // It serves once the beginning of its term is durable.
        while engine.read(|view| view.manager.seat_state()).await != Ok(SeatState::Serving) {
            tokio::task::yield_now().await;
        }
        let folder = tempfile::tempdir().unwrap();
        let outputs =
            Outputs::start(Box::new(OutputFolder::new(folder.path().join("output"), OutputRules::default()))).unwrap();
        let draining = watch::Sender::new(false);
        let router = Router::new().nest("/v1", routes_for(followers)).with_state(App {
            engine: engine.clone(),
            receipts: Receipts::new(&[0; 32]),
            outputs: outputs.clone(),
            datacenter: "dc-a".into(),
            gossip: None,
            draining: draining.subscribe(),
        });
        Self { engine, outputs, router, access: Access::full(), _draining: draining, _folder: folder }
    }

    pub async fn send(&self, mut request: Request<Body>) -> Response<Body> {
        request.extensions_mut().insert(self.access.clone());
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// Sends a request without anybody having looked at who asks.
    pub async fn send_unseen(&self, request: Request<Body>) -> JsonAnswer {
        read(self.router.clone().oneshot(request).await.unwrap()).await
    }

    pub async fn get(&self, path: &str) -> JsonAnswer {
        read(self.send(Request::get(path).body(Body::empty()).unwrap()).await).await
    }

    pub async fn post(&self, path: &str, body: Value) -> JsonAnswer {
        self.post_text(path, &body.to_string()).await
    }

    pub async fn post_text(&self, path: &str, body: &str) -> JsonAnswer {
        read(self.send(request(Method::POST, path, body)).await).await
    }

    pub async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: Value) -> JsonAnswer {
        let mut request = request(Method::POST, path, &body.to_string());
        for (name, value) in headers {
            request.headers_mut().insert(name.parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap());
        }
        read(self.send(request).await).await
    }

    /// The id of a new job.
    pub async fn submit(&self, body: Value) -> String {
        let answer = self.post("/v1/jobs", body).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.id()
    }

    pub async fn job(&self, id: &str) -> Value {
        let answer = self.get(&format!("/v1/jobs/{id}")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }

    /// The newest event: what is refused leaves it as it was.
    pub async fn newest(&self) -> Seq {
        self.engine.read(|view| view.manager.newest()).await.unwrap()
    }

    /// Takes a workflow of this kind, as a worker without a session does.
    pub async fn take(&self, kind: &str) -> Assignment {
        self.take_from(kind, "default").await
    }

    pub async fn take_from(&self, kind: &str, queue: &str) -> Assignment {
        let name = |text: &str| Name::new(text).unwrap();
        let poll = Poll {
            worker: WorkerId::new("w1").unwrap(),
            incarnation: Incarnation::new("i1").unwrap(),
            subscription: Subscription { queues: vec![name(queue)], kinds: vec![name(kind)] },
            max: 1,
            wait: Duration::from_secs(60),
            lease: Duration::from_secs(3_600),
            id: None,
            client: ClientId::default(),
        };
        let (mut leases, mut delivery) = self.engine.poll(poll).await.unwrap();
        delivery.done();
        leases.pop().expect("there is work of this kind")
    }

    pub async fn settle(&self, taken: &Assignment, report: EndReport) {
        let settlement = Settlement::new(taken.claim, report);
        let Answer::Settled(answers) = self.engine.call(Call::Settle(vec![settlement])).await.unwrap() else {
            panic!("settled")
        };
        assert_eq!(answers[0].answer, Ok(()));
    }

    pub async fn succeed(&self, taken: &Assignment, result: &[u8]) {
        self.settle(taken, EndReport::Succeed { result: result.into() }).await;
    }

    pub async fn fail_for_good(&self, taken: &Assignment, error: &str) {
        self.settle(taken, EndReport::Fail { error: error.into(), retryable: false, delay: None }).await;
    }
}

/// Settings for any computer: its load is not what these tests are about, so load, gaps and the seat are out of the
/// way.
fn settings() -> Settings {
    let far = LoadLimits { busy: 1e9, stressed: 2e9, overloaded: 3e9 };
    let overload = OverloadRule { rise: far, latency_ms: far, resource_percent: far, ..OverloadRule::default() };
    let long = Duration::from_secs(600);
    Settings { overload, seat_ttl: 2 * long, gap_after: long, ..Settings::default() }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.outputs.stop();
        self.engine.stop();
    }
}

pub fn request(method: Method, path: &str, body: &str) -> Request<Body> {
    let builder = Request::builder().method(method).uri(path).header("content-type", "application/json");
    builder.body(Body::from(body.to_owned())).unwrap()
}

pub async fn read(response: Response<Body>) -> JsonAnswer {
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| panic!("{} is answered with no JSON: {}", parts.status, String::from_utf8_lossy(&bytes)));
    JsonAnswer { status: parts.status.as_u16(), headers: parts.headers, body }
}
