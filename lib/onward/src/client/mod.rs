//! Calls to a node: submits jobs, follows them and acts on them ([`Client`] itself), and what operators need (queues,
//! nodes, dead letters, schedules: see `operate`). What is asked and answered has the types of [`onward_api`].

mod answer;
mod calls;
mod connection;
mod error;
mod job;
mod list;
mod operate;
mod watch;

use core::time::Duration;

pub use answer::{AttemptOutput, NodeAnswer};
pub use calls::Retries;
use calls::{ApiCall, Calls};
pub use connection::Protocol;
pub use error::{CallError, NoConnection, Silence};
pub use job::Job;
pub(crate) use job::random_key;
pub use list::{JobFilter, Page};
use onward_api::command::{CancelAnswer, CancelWhere, CancelWhereAnswer, Extend, ExtendAnswer, Nothing, RetryRequest};
use onward_api::explanation::Explanation;
pub use onward_api::job::{Job as JobInfo, JobList, JobState, Progress};
use onward_api::ledger::Ledger;
use onward_api::submit::{BatchSubmitted, MAX_BATCH, SubmitAnswer};
use serde::Serialize;
use serde::de::DeserializeOwned;
pub use watch::Watch;

use crate::address::{AddressError, NodeAddresses};

/// The longest that one call waits for a job; longer waits are several calls.
const WAIT: Duration = Duration::from_secs(30);

/// A client of a node. Cheap to clone; clones share a connection. A call whose connection was lost, or that the node could
/// not answer, is made again if it is the same as one: submissions and retries carry a key that makes them so. What must
/// not be made again is not, and [`CallError`] says whether the node may have carried it out.
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
    /// A client for the node at `url`, or for a cluster of which several are given with commas between them; nothing is
    /// sent yet. A token is taken from `ONWARD_TOKEN`.
    pub fn connect(url: &str) -> Result<Self, AddressError> {
        let place = NodeAddresses::at(url)?;
        Ok(Self::at(match std::env::var("ONWARD_TOKEN") {
            Ok(token) => place.with_token(&token),
            Err(_) => place,
        }))
    }

    /// A client for one node, or for a cluster: a call that one of them has surely not carried out is made to the next.
    pub fn at(place: impl Into<NodeAddresses>) -> Self {
        Self { calls: Calls::new(place.into()) }
    }

    /// Speaks another protocol than HTTP/2, over connections of its own.
    pub fn speaking(self, protocol: Protocol) -> Self {
        Self { calls: self.calls.speaking(protocol) }
    }

    /// Sets how often a call that came to nothing is made again.
    pub fn retrying(self, retries: Retries) -> Self {
        Self { calls: self.calls.retrying(retries) }
    }

    /// The node is behind something that serves it under this path.
    pub fn under(self, path: &str) -> Self {
        Self { calls: self.calls.under(path) }
    }

    /// An answer that takes longer is given up: 30 s at most, besides what the node was asked to wait.
    pub fn within(self, limit: Duration) -> Self {
        Self { calls: self.calls.within(limit) }
    }

    /// The id, once the job is durable.
    pub async fn submit(&self, job: Job) -> Result<String, CallError> {
        Ok(self.submit_written(&job.with_key()).await?.into_value().id)
    }

    /// A submission as it is written. It may be sent more than once, so it needs an `idempotency_key`.
    pub async fn submit_written(&self, body: &impl Serialize) -> Result<NodeAnswer<SubmitAnswer>, CallError> {
        self.calls.ask(ApiCall::post("/v1/jobs", body)?).await
    }

    /// The ids, in the order of the jobs; all of them are accepted or none. At most 10,000.
    pub async fn submit_all(&self, jobs: impl IntoIterator<Item = Job>) -> Result<Vec<String>, CallError> {
        let jobs: Vec<Job> = jobs.into_iter().map(Job::with_key).collect();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        if jobs.len() > MAX_BATCH {
            return Err(CallError::TooMany { count: jobs.len(), max: MAX_BATCH });
        }
        let accepted = self.submit_all_written(&jobs).await?.into_value().jobs;
        Ok(accepted.into_iter().map(|job| job.id).collect())
    }

    /// Submissions as they are written, each with an `idempotency_key`.
    pub async fn submit_all_written(&self, jobs: &[impl Serialize]) -> Result<NodeAnswer<BatchSubmitted>, CallError> {
        #[derive(Serialize)]
        struct Batch<'a, T> {
            jobs: &'a [T],
        }
        self.calls.ask(ApiCall::post("/v1/jobs/batch", &Batch { jobs })?).await
    }

    pub async fn job(&self, id: &str) -> Result<NodeAnswer<JobInfo>, CallError> {
        self.calls.ask(ApiCall::get(path(id, ""))).await
    }

    /// The job with payload and result of one of its workflows, however large they are.
    pub async fn job_with_content(&self, id: &str, workflow: &str) -> Result<NodeAnswer<JobInfo>, CallError> {
        self.calls.ask(ApiCall::get(format!("{}?workflow={}", path(id, ""), escaped(workflow)))).await
    }

    /// The job once it has ended, or as it is after `wait`: at most a minute.
    pub async fn job_within(&self, id: &str, wait: Duration) -> Result<NodeAnswer<JobInfo>, CallError> {
        let path = format!("{}?wait_s={}", path(id, ""), wait.as_secs_f64());
        self.calls.ask(ApiCall::get(path).waiting(wait)).await
    }

    /// The job, once it has ended.
    pub async fn wait(&self, id: &str) -> Result<NodeAnswer<JobInfo>, CallError> {
        loop {
            let job = self.job_within(id, WAIT).await?;
            if job.state.is_terminal() {
                return Ok(job);
            }
        }
    }

    /// The job as it is, and then again whenever something has changed, until it has ended.
    pub fn watch(&self, id: &str) -> Watch {
        Watch::new(self.calls.clone(), path(id, "/events"))
    }

    /// A page of the jobs that match, the newest first, without payloads.
    pub async fn jobs(&self, which: &JobFilter, page: &Page) -> Result<NodeAnswer<JobList>, CallError> {
        self.calls.ask(ApiCall::get(format!("/v1/jobs?{page}{which}"))).await
    }

    /// The output of an attempt, the last 64 KiB of it; none if nothing is kept. `n` is the attempt's number.
    pub async fn output(&self, id: &str, workflow: &str, n: u32) -> Result<Option<AttemptOutput>, CallError> {
        let path = path(id, &format!("/attempts/{n}/output?workflow={}", escaped(workflow)));
        match self.calls.ask_raw(ApiCall::get(path)).await {
            Ok((headers, bytes)) => {
                let skipped = headers.get("onward-skipped-bytes").and_then(|value| value.to_str().ok()?.parse().ok());
                Ok(Some(AttemptOutput { skipped: skipped.unwrap_or(0), bytes }))
            }
            Err(error) if error.code() == Some("no_output") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Cancels a job: workflows that wait end at once, workers of those that run are told to stop.
    pub async fn cancel(&self, id: &str) -> Result<NodeAnswer<CancelAnswer>, CallError> {
        self.calls.ask(ApiCall::post(path(id, "/cancel"), &Nothing {})?).await
    }

    /// Cancels the jobs that match, as many as one call may; `next_cursor` says where to go on.
    pub async fn cancel_where(&self, which: &CancelWhere) -> Result<NodeAnswer<CancelWhereAnswer>, CallError> {
        self.calls.ask(ApiCall::post("/v1/jobs/cancel", which)?).await
    }

    /// Submits a job that has ended once more; the id of the new one.
    pub async fn retry(&self, id: &str) -> Result<String, CallError> {
        Ok(self.retry_as(id, &random_key()).await?.into_value().id)
    }

    /// The same request again gives the same job.
    pub async fn retry_as(&self, id: &str, request_id: &str) -> Result<NodeAnswer<SubmitAnswer>, CallError> {
        self.calls.ask(ApiCall::post(path(id, "/retry"), &RetryRequest { request_id: request_id.into() })?).await
    }

    /// Moves the overall deadline of a job.
    pub async fn extend(&self, id: &str, by: Duration, reason: &str) -> Result<NodeAnswer<ExtendAnswer>, CallError> {
        self.extend_as(id, by, reason, &random_key()).await
    }

    /// The same request again extends no further.
    pub async fn extend_as(
        &self,
        id: &str,
        by: Duration,
        reason: &str,
        request_id: &str,
    ) -> Result<NodeAnswer<ExtendAnswer>, CallError> {
        let body = Extend { by_s: by.as_secs_f64(), reason: reason.into(), request_id: request_id.into() };
        self.calls.ask(ApiCall::post(path(id, "/extend"), &body)?).await
    }

    /// Every decision about the job's time.
    pub async fn ledger(&self, id: &str) -> Result<NodeAnswer<Ledger>, CallError> {
        self.calls.ask(ApiCall::get(path(id, "/ledger"))).await
    }

    /// A call whose answer is read as it was written: `GET`, or with a body `POST`. The node may take `wait` to answer.
    pub(crate) async fn exchange<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Option<Vec<u8>>,
        wait: Duration,
    ) -> Result<T, CallError> {
        let call = body.map_or_else(|| ApiCall::get(path), |body| ApiCall::post_text(path, body));
        let (_, text) = self.calls.ask_raw(call.waiting(wait)).await?;
        serde_json::from_slice(&text).map_err(|error| CallError::Unreadable(error.to_string()))
    }

    /// The reason why the job is where it is, its next step, and the remedies for people.
    pub async fn explain(&self, id: &str) -> Result<NodeAnswer<Explanation>, CallError> {
        self.calls.ask(ApiCall::get(path(id, "/explain"))).await
    }

    /// Any other call: `GET` of a path such as `/v1/stats`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CallError> {
        Ok(self.calls.ask::<T>(ApiCall::get(path)).await?.into_value())
    }

    /// Any other call: `POST` of JSON to a path such as `/v1/leases`. It may be sent more than once.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, CallError> {
        Ok(self.calls.ask::<T>(ApiCall::post(path, body)?).await?.into_value())
    }
}

fn path(id: &str, rest: &str) -> String {
    format!("/v1/jobs/{}{rest}", escaped(id))
}

/// Text as one segment of a path, or one value of a query.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments_are_escaped() {
        assert_eq!(escaped("a/b ü?"), "a%2Fb%20%C3%BC%3F");
        assert_eq!(escaped("0190-A_z.~"), "0190-A_z.~");
    }
}
