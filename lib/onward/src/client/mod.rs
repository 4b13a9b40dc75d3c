//! Submits jobs and follows them.

mod calls;
mod info;
mod job;
mod watch;

use core::time::Duration;

pub use calls::CallError;
use calls::Calls;
pub use info::{JobInfo, JobState, Progress};
pub use job::Job;
pub(crate) use job::random_key;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
pub use watch::Watch;

use crate::address::{AddressError, NodeAddress};

/// The longest that one call waits for a job; longer waits are several calls.
const WAIT: Duration = Duration::from_secs(30);
const MAX_BATCH: usize = 10_000;

/// A client of a node. Cheap to clone; clones share a connection. Every call may be repeated safely, and is, when the
/// connection was lost or the node could not answer: submissions carry a key that makes them one.
///
/// ```no_run
/// # async fn main_() -> Result<(), Box<dyn std::error::Error>> {
/// use onward::{Client, Job};
///
/// let client = Client::connect("http://127.0.0.1:7400")?;
/// let id = client.submit(Job::new("resize", serde_json::json!({"file": "cat.png"}))?.queue("images")).await?;
/// let done = client.wait(&id).await?;
/// println!("{}: {:?}", done.state, done.result::<serde_json::Value>());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    calls: Calls,
}

impl Client {
    /// For the node at `url`; nothing is sent yet. A token is taken from `ONWARD_TOKEN`.
    pub fn connect(url: &str) -> Result<Self, AddressError> {
        let place = NodeAddress::at(url)?;
        Ok(Self::at(match std::env::var("ONWARD_TOKEN") {
            Ok(token) => place.with_token(&token),
            Err(_) => place,
        }))
    }

    pub fn at(place: NodeAddress) -> Self {
        Self { calls: Calls::new(place) }
    }

    /// The id, once the job is durable.
    pub async fn submit(&self, job: Job) -> Result<String, CallError> {
        let body = job.with_key().into_body();
        let answer = self.calls.post("/v1/jobs", &Value::Object(body)).await?;
        answer.text("id")
    }

    /// The ids, in the order of the jobs; all of them are accepted or none. At most 10,000.
    pub async fn submit_all(&self, jobs: impl IntoIterator<Item = Job>) -> Result<Vec<String>, CallError> {
        let bodies: Vec<Value> = jobs.into_iter().map(|job| Value::Object(job.with_key().into_body())).collect();
        if bodies.is_empty() {
            return Ok(Vec::new());
        }
        if bodies.len() > MAX_BATCH {
            return Err(CallError::TooMany { count: bodies.len(), max: MAX_BATCH });
        }
        let answer = self.calls.post("/v1/jobs/batch", &json!({ "jobs": bodies })).await?;
        let accepted = answer.field("jobs")?.as_array().map(Vec::as_slice).unwrap_or_default();
        let id = |one: &Value| one["id"].as_str().map(str::to_owned);
        accepted.iter().map(|one| id(one).ok_or_else(|| CallError::Unreadable("`id` is missing".into()))).collect()
    }

    pub async fn job(&self, id: &str) -> Result<JobInfo, CallError> {
        self.calls.get(&path(id, "")).await?.job()
    }

    /// The job, once it has ended.
    pub async fn wait(&self, id: &str) -> Result<JobInfo, CallError> {
        let patient = format!("{}?wait_s={}", path(id, ""), WAIT.as_secs());
        loop {
            let job = self.calls.get_waiting(&patient, WAIT).await?.job()?;
            if job.state.is_terminal() {
                return Ok(job);
            }
        }
    }

    /// The job as it is, and then again whenever something has changed, until it has ended.
    pub fn watch(&self, id: &str) -> Watch {
        Watch::new(self.calls.clone(), path(id, "/events"))
    }

    /// What waits is cancelled at once, what runs is told to stop.
    pub async fn cancel(&self, id: &str) -> Result<JobInfo, CallError> {
        self.calls.post(&path(id, "/cancel"), &json!({})).await?;
        self.job(id).await
    }

    /// Submits a job that has ended once more; the id of the new one.
    pub async fn retry(&self, id: &str) -> Result<String, CallError> {
        let body = json!({ "request_id": random_key() });
        self.calls.post(&path(id, "/retry"), &body).await?.text("id")
    }

    /// Moves the overall deadline of a job.
    pub async fn extend(&self, id: &str, by: Duration, reason: &str) -> Result<(), CallError> {
        let body = json!({ "by_s": by.as_secs_f64(), "reason": reason, "request_id": random_key() });
        self.calls.post(&path(id, "/extend"), &body).await.map(drop)
    }

    /// Every decision about the job's time.
    pub async fn ledger(&self, id: &str) -> Result<Value, CallError> {
        self.get(&path(id, "/ledger")).await
    }

    /// A call whose answer is read as it was written: `GET`, or with a body `POST`. The node may take `wait` to answer.
    pub(crate) async fn exchange<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Option<Vec<u8>>,
        wait: Duration,
    ) -> Result<T, CallError> {
        let text = self.calls.text(path, body.map(Into::into), wait).await?;
        serde_json::from_slice(&text).map_err(|error| CallError::Unreadable(error.to_string()))
    }

    /// Any other call: `GET` of a path such as `/v1/nodes`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CallError> {
        self.calls.get(path).await?.into()
    }

    /// Any other call: `POST` of JSON to a path such as `/v1/queues/default/pause`. It may be sent more than once.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, CallError> {
        self.calls.post(path, body).await?.into()
    }
}

fn path(id: &str, rest: &str) -> String {
    format!("/v1/jobs/{}{rest}", encode(id))
}

/// A text as a part of a path or a query.
pub(crate) fn encode(text: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    text.bytes().map(|byte| if safe(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}
