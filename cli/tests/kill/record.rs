//! What clients were told in full, and whether it is still true.
//!
//! An answer is a promise: whoever got it may act on it, so that no crash may take it back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::http::{Client, Reply};

const TERMINAL: [&str; 4] = ["succeeded", "failed", "timed_out", "cancelled"];
const CHECKERS: usize = 32;

#[derive(Clone, Default, Debug)]
pub struct Record {
    /// Keys by idempotency key.
    pub keys: BTreeMap<String, Key>,
    /// Jobs by id.
    pub jobs: BTreeMap<String, Job>,
    /// The code of each refusal, by receipt and the result that was refused.
    pub refused: BTreeMap<(String, String), String>,
    /// Answers that were wrong when they came.
    pub wrong: Vec<String>,
}

#[derive(Clone, Default, Debug)]
pub struct Key {
    pub number: u64,
    pub id: String,
    /// The key with another body was refused.
    pub conflict: bool,
}

#[derive(Clone, Default, Debug)]
pub struct Job {
    /// Accepted outcomes: the results by their fences.
    pub outcomes: BTreeMap<u64, Value>,
    /// A terminal state that somebody read.
    pub ended: Option<String>,
    /// The highest fence that anybody was told.
    pub fence: u64,
    /// Workers that were handed each fence.
    pub holders: BTreeMap<u64, BTreeSet<String>>,
    /// The number that its payload was made from.
    pub number: Option<u64>,
    /// The job that it was made from.
    pub retry_of: Option<String>,
    /// The most that was said about how much more time it has.
    pub extensions_s: f64,
    /// Requests by which it was given more time.
    pub extended_by: BTreeSet<String>,
    /// Fences whose checkpoint was accepted: its content is the fence.
    pub checkpoints: BTreeSet<u64>,
    /// The checkpoint that was handed out with each fence; 0 for none.
    pub handed: BTreeMap<u64, u64>,
    /// The output of each fence that somebody has read, and when that was.
    pub printed: BTreeMap<u64, (String, Instant)>,
}

/// One in three is too large to stay in memory.
pub fn payload_of(number: u64) -> Value {
    json!({ "number": number, "pad": pad(number) })
}

pub fn result_of(job: &str, fence: u64) -> Value {
    json!({ "job": job, "fence": fence, "pad": pad(fence) })
}

fn pad(number: u64) -> String {
    if number.is_multiple_of(3) { format!("{number:016}").repeat(400) } else { String::new() }
}

/// Whether every attempt of it fails for good.
pub const fn is_doomed(number: u64) -> bool {
    number % 16 == 5
}

pub fn submission(key: &str, number: u64) -> Value {
    json!({
        "kind": "k", "payload": payload_of(number), "idempotency_key": key, "timeout_s": 3600,
        // What a crash costs must not use a job up.
        "retry": { "max_attempts": 900, "base_s": 0.01, "max_s": 0.05 },
    })
}

/// A replay under one request id for each job, so that it is the same however often it is asked for.
pub fn replay_of(job: &str) -> Value {
    json!({ "jobs": [job], "request_id": format!("r-{job}") })
}

/// The job that a replay of one job has made.
pub fn replayed_as(reply: &Reply) -> Option<String> {
    let new = || reply.json()["jobs"][0]["id"].as_str().map(str::to_owned);
    if reply.status == 200 { new() } else { None }
}

pub fn extension(request: &str) -> Value {
    json!({ "by_s": 1, "reason": "it takes longer", "request_id": request })
}

/// The path of this fence's output, if no newer attempt has the same number.
pub fn output_path(id: &str, fence: u64, shown: &Value) -> Option<String> {
    let attempts = shown["workflows"][0]["attempts"].as_array()?;
    let n = &attempts.iter().find(|attempt| attempt["fence"] == fence)?["n"];
    let newest = attempts.iter().filter(|attempt| attempt["n"] == *n).filter_map(|attempt| attempt["fence"].as_u64());
    (newest.max() == Some(fence)).then(|| format!("/v1/jobs/{id}/attempts/{n}/output"))
}

pub fn is_terminal(state: &str) -> bool {
    TERMINAL.contains(&state)
}

impl Record {
    /// Forgets the output that was read between these instants: it is stored without waiting for a disk or a standby.
    pub fn forget_output_between(&mut self, from: Instant, to: Instant) {
        for job in self.jobs.values_mut() {
            job.printed.retain(|_, (_, read_at)| !(from..to).contains(read_at));
        }
    }

    pub fn count(&self) -> usize {
        let conflicts = self.keys.values().filter(|key| key.conflict).count();
        self.keys.len() + conflicts + self.jobs.len() + self.refused.len()
    }

    pub fn merge(&mut self, other: Self) {
        for (name, key) in other.keys {
            let known = self.keys.entry(name).or_insert_with(|| key.clone());
            known.conflict |= key.conflict;
        }
        for (id, job) in other.jobs {
            let known = self.jobs.entry(id).or_default();
            known.outcomes.extend(job.outcomes);
            known.ended = known.ended.take().or(job.ended);
            known.fence = known.fence.max(job.fence);
            known.number = known.number.or(job.number);
            known.retry_of = known.retry_of.take().or(job.retry_of);
            known.extensions_s = known.extensions_s.max(job.extensions_s);
            known.extended_by.extend(job.extended_by);
            known.checkpoints.extend(job.checkpoints);
            known.handed.extend(job.handed);
            known.printed.extend(job.printed);
            for (fence, holders) in job.holders {
                known.holders.entry(fence).or_default().extend(holders);
            }
        }
        self.refused.extend(other.refused);
        self.wrong.extend(other.wrong);
    }

    /// Contradictions of these answers among themselves.
    pub fn contradictions(&self) -> Vec<String> {
        let mut found = self.wrong.clone();
        for (id, job) in &self.jobs {
            if job.outcomes.len() > 1 {
                found.push(format!("job {id} has {} accepted outcomes: {:?}", job.outcomes.len(), job.outcomes));
            }
            for (fence, holders) in job.holders.iter().filter(|(_, holders)| holders.len() > 1) {
                found.push(format!("fence {fence} of job {id} was handed to {holders:?}"));
            }
            for (fence, handed) in &job.handed {
                let newest = job.checkpoints.range(..fence).next_back().copied().unwrap_or(0);
                if *handed < newest || *handed >= *fence {
                    found.push(format!("fence {fence} of job {id} got the checkpoint of {handed}, not of {newest}"));
                }
            }
        }
        found
    }

    /// Promises of all these that the node does not keep.
    pub async fn broken(&self, address: SocketAddr) -> Vec<String> {
        let jobs = self.jobs.iter().map(|(id, job)| Promise::Job(id.clone(), job.clone()));
        let keys = self.keys.iter().map(|(name, key)| Promise::Key(name.clone(), key.clone()));
        let refused = self.refused.iter();
        let refused =
            refused.map(|((receipt, result), code)| Promise::Refusal(receipt.clone(), result.clone(), code.clone()));
        let promises = Arc::new(Mutex::new(jobs.chain(keys).chain(refused).collect::<Vec<_>>()));
        let mut tasks = Vec::new();
        for _ in 0..CHECKERS {
            let promises = promises.clone();
            tasks.push(tokio::spawn(async move {
                let mut client = Client::new(address);
                let mut found = Vec::new();
                loop {
                    let Some(promise) = promises.lock().unwrap().pop() else { return found };
                    found.extend(promise.broken(&mut client).await);
                }
            }));
        }
        let mut found = Vec::new();
        for task in tasks {
            found.extend(task.await.expect("a check ends"));
        }
        found
    }

    /// Some of it, for a look at what is old.
    pub fn sample(&self, one_in: usize, at: usize) -> Self {
        fn every<K: Clone + Ord, V: Clone>(map: &BTreeMap<K, V>, one_in: usize, at: usize) -> BTreeMap<K, V> {
            map.iter().skip(at % one_in).step_by(one_in).map(|(key, value)| (key.clone(), value.clone())).collect()
        }
        Self {
            keys: every(&self.keys, one_in, at),
            jobs: every(&self.jobs, one_in, at),
            refused: every(&self.refused, one_in, at),
            wrong: Vec::new(),
        }
    }
}

enum Promise {
    Job(String, Job),
    Key(String, Key),
    Refusal(String, String, String),
}

impl Promise {
    async fn broken(self, client: &mut Client) -> Option<String> {
        match self {
            Self::Job(id, job) => {
                let reply = client.get(&format!("/v1/jobs/{id}")).await;
                if reply.status != 200 {
                    return Some(format!("job {id} was acknowledged, and is now: {}", reply.text()));
                }
                let shown = reply.json();
                for (fence, (text, _)) in &job.printed {
                    let Some(path) = output_path(&id, *fence, &shown) else { continue };
                    let reply = client.get(&path).await;
                    if reply.status != 200 || reply.body != text.as_bytes() {
                        return Some(format!("fence {fence} of job {id} printed {text:?}, and now: {}", reply.text()));
                    }
                }
                match job.broken(&id, &shown) {
                    None => job.broken_by_repeating(&id, &shown, client).await,
                    broken => broken,
                }
            }
            Self::Key(name, key) => {
                let reply = client.post("/v1/jobs", &submission(&name, key.number)).await;
                if reply.status != 200 || reply.json()["id"] != key.id.as_str() {
                    return Some(format!("key {name} was job {}, and is now: {}", key.id, reply.text()));
                }
                if !key.conflict {
                    return None;
                }
                let reply = client.post("/v1/jobs", &submission(&name, key.number + 1)).await;
                (reply.status != 409 || reply.code() != "conflict")
                    .then(|| format!("key {name} with another body was refused, and is now: {}", reply.text()))
            }
            Self::Refusal(receipt, result, code) => {
                let body = format!("{{\"result\":{result}}}");
                let reply = client.call("POST", &format!("/v1/leases/{receipt}/succeed"), &body).await;
                let reply = reply.expect("the node answers");
                // Who is over may be superseded afterwards; never the other way round.
                let still = reply.code() == code || reply.code() == "stale_attempt";
                (reply.status != 409 || !still)
                    .then(|| format!("the outcome {result} was refused as {code}, and is now: {}", reply.text()))
            }
        }
    }
}

impl Job {
    /// Asks again for what was done by request: it was done once, and is not done again.
    async fn broken_by_repeating(&self, id: &str, shown: &Value, client: &mut Client) -> Option<String> {
        if let Some(retry_of) = &self.retry_of {
            let reply = client.post("/v1/dead-letters/replay", &replay_of(retry_of)).await;
            if replayed_as(&reply).as_deref() != Some(id) {
                return Some(format!("the replay of {retry_of} was {id}, and is now: {}", reply.text()));
            }
        }
        for request in &self.extended_by {
            let reply = client.post(&format!("/v1/jobs/{id}/extend"), &extension(request)).await;
            let total = reply.json()["extensions_s"].as_f64();
            if reply.status != 200 || total > shown["extensions_s"].as_f64() {
                let before = &shown["extensions_s"];
                return Some(format!("request {request} had extended job {id} to {before}, and now: {}", reply.text()));
            }
        }
        None
    }

    fn broken(&self, id: &str, shown: &Value) -> Option<String> {
        let state = shown["state"].as_str().unwrap_or_default();
        if let Some(ended) = &self.ended
            && ended != state
        {
            return Some(format!("job {id} was read as {ended}, and is now {state}"));
        }
        if let Some(number) = self.number
            && shown["workflows"][0]["payload"] != payload_of(number)
        {
            return Some(format!("the payload of job {id} was made from {number}, and is now another"));
        }
        if shown["extensions_s"].as_f64().is_none_or(|now| now < self.extensions_s) {
            return Some(format!("job {id} was given {} s, and now has {}", self.extensions_s, shown["extensions_s"]));
        }
        if let Some(retry_of) = &self.retry_of
            && shown["retry_of"] != retry_of.as_str()
        {
            return Some(format!("job {id} was made from {retry_of}, and is now from {}", shown["retry_of"]));
        }
        let attempts = shown["workflows"][0]["attempts"].as_array().cloned().unwrap_or_default();
        let newest = attempts.iter().filter_map(|attempt| attempt["fence"].as_u64()).max().unwrap_or(0);
        if newest < self.fence {
            return Some(format!("job {id} was handed out under fence {}, and now knows {newest}", self.fence));
        }
        let (fence, result) = self.outcomes.first_key_value()?;
        let by = attempts.iter().find(|attempt| attempt["outcome"] == "succeeded");
        let by = by.and_then(|attempt| attempt["fence"].as_u64());
        (state != "succeeded" || shown["result"] != *result || by != Some(*fence)).then(|| {
            let same = if shown["result"] == *result { "the same" } else { "another" };
            format!("job {id} succeeded under {fence}, and is now {state} under {by:?} with {same} result")
        })
    }
}
