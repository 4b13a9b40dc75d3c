//! Through HTTP and JSON, over connections that stay open.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant as Tick, sleep_until};

use super::program::NodeProcess;
use super::{KIND, about, number_of, payload, program};
use crate::contest::{BATCH, Contender, ContestError, PeerInfo, StartedPeer};

/// The most jobs that one call takes or settles.
const AT_ONCE: usize = 256;
/// Leases that one poll gives at most, and beats in a call.
const POLL: u64 = 1_000;
const BEATS: usize = 1_000;

#[derive(Debug)]
pub struct Http;

#[derive(Debug)]
pub struct OverHttp {
    node: NodeProcess,
    connection: Connection,
    submitted: u64,
    settled: u64,
    workers: u32,
}

impl Contender for Http {
    type Running = OverHttp;

    fn about(&self) -> PeerInfo {
        about("Onward, HTTP")
    }

    fn missing(&self) -> Option<String> {
        program::program().err().map(|error| error.to_string())
    }

    async fn start(&self, folder: &Path) -> Result<OverHttp, ContestError> {
        let node = NodeProcess::start(folder)?;
        let connection = Connection::open(&node).await?;
        Ok(OverHttp { node, connection, submitted: 0, settled: 0, workers: 0 })
    }
}

impl OverHttp {
    async fn submit(&mut self, batch: usize) -> Result<(), ContestError> {
        let first = self.submitted;
        if batch == 1 {
            self.connection.post("/v1/jobs", job(first)).await?;
        } else {
            let jobs: Vec<String> = (first..first + batch as u64).map(job).collect();
            self.connection.post("/v1/jobs/batch", format!(r#"{{"jobs":[{}]}}"#, jobs.join(","))).await?;
        }
        self.submitted += batch as u64;
        Ok(())
    }

    async fn worker(&mut self) -> Result<Worker, ContestError> {
        self.workers += 1;
        let connection = Connection::open(&self.node).await?;
        Ok(Worker { connection, id: format!("bench-{}", self.workers), held: Vec::new() })
    }
}

impl StartedPeer for OverHttp {
    async fn enqueue(&mut self, batch: usize, time: Duration) -> Result<u64, ContestError> {
        let begun = Instant::now();
        let before = self.submitted;
        while begun.elapsed() < time {
            self.submit(batch).await?;
        }
        Ok(self.submitted - before)
    }

    async fn fill(&mut self, jobs: u64) -> Result<(), ContestError> {
        let end = self.submitted + jobs;
        while self.submitted < end {
            self.submit((end - self.submitted).min(4 * BATCH as u64) as usize).await?;
        }
        Ok(())
    }

    /// Two connections and more, so that one call is on its way while another is answered.
    async fn drain(&mut self, jobs: u64, in_flight: usize) -> Result<Duration, ContestError> {
        let workers = in_flight.div_ceil(AT_ONCE).max(2).min(in_flight) as u64;
        let at_once = (in_flight as u64 / workers).max(1);
        let begun = Instant::now();
        let mut working = JoinSet::new();
        for index in 0..workers {
            let mut worker = self.worker().await?;
            let mut left = jobs / workers + u64::from(index < jobs % workers);
            working.spawn(async move {
                while left > 0 {
                    worker.poll(left.min(at_once)).await?;
                    left -= worker.settle().await?;
                }
                Ok::<_, ContestError>(())
            });
        }
        while let Some(done) = working.join_next().await {
            done??;
        }
        self.settled += jobs;
        Ok(begun.elapsed())
    }

    async fn latency(&mut self, jobs: u64, every: Duration) -> Result<Vec<Duration>, ContestError> {
        let first = self.submitted;
        let mut taken = vec![None; jobs as usize];
        let mut worker = self.worker().await?;
        let mut connection = Connection::open(&self.node).await?;
        let begun = Tick::now() + every;
        let submitting = tokio::spawn(async move {
            let mut sent = Vec::new();
            for number in first..first + jobs {
                sleep_until(begun + every * u32::try_from(number - first).expect("few")).await;
                sent.push(Instant::now());
                connection.post("/v1/jobs", job(number)).await?;
            }
            Ok::<_, ContestError>(sent)
        });
        let mut settled = 0;
        while settled < jobs {
            for payload in worker.poll(1).await? {
                let number = number_of(payload.as_bytes()).ok_or("a payload that is not ours")?;
                taken[(number - first) as usize] = Some(Instant::now());
            }
            settled += worker.settle().await?;
        }
        let sent = submitting.await??;
        self.submitted += jobs;
        self.settled += jobs;
        let waits = taken.into_iter().zip(sent);
        waits.map(|(taken, sent)| Ok(taken.ok_or("a job did not come")?.duration_since(sent))).collect()
    }

    async fn touch(&mut self, leases: u64, time: Duration) -> Result<Option<u64>, ContestError> {
        let mut worker = self.worker().await?;
        while (worker.held.len() as u64) < leases {
            worker.poll(POLL.min(leases - worker.held.len() as u64)).await?;
        }
        let (begun, mut answered, mut watermark) = (Instant::now(), 0, 0);
        'time: loop {
            watermark += 1;
            for some in worker.held.chunks(BEATS) {
                let beat = |receipt: &String| format!(r#"{{"receipt":"{receipt}","watermark":{watermark}}}"#);
                let beats: Vec<String> = some.iter().map(beat).collect();
                let answer =
                    worker.connection.post("/v1/leases/beat", format!(r#"{{"beats":[{}]}}"#, beats.join(","))).await?;
                answered += every_one(&answer, "beats", "lease_remaining_ms")?;
                if begun.elapsed() > time {
                    break 'time;
                }
            }
        }
        let rate = answered as f64 / begun.elapsed().as_secs_f64();
        self.settled += worker.settle().await?;
        Ok(Some((rate * time.as_secs_f64()) as u64))
    }

    async fn clear(&mut self) -> Result<(), ContestError> {
        match self.submitted - self.settled {
            0 => Ok(()),
            left => self.drain(left, 1_024).await.map(drop),
        }
    }

    async fn rest(&mut self) -> Result<(), ContestError> {
        self.node.rest().await
    }
}

/// A worker in whatever language: it polls, and says how things ended.
struct Worker {
    connection: Connection,
    id: String,
    held: Vec<String>,
}

impl Worker {
    /// Up to so many more; gives their payloads.
    async fn poll(&mut self, max: u64) -> Result<Vec<String>, ContestError> {
        let body = format!(
            r#"{{"worker_id":"{}","incarnation":"1","kinds":["{KIND}"],"max":{max},"wait_s":20,"lease_s":600}}"#,
            self.id
        );
        let answer = self.connection.post("/v1/leases", body).await?;
        let leases = answer["leases"].as_array().ok_or("no leases in the answer")?;
        let text = |lease: &Value, name: &str| Ok(lease[name].as_str().ok_or("a lease lacks a field")?.to_owned());
        let receipts = leases.iter().map(|lease| text(lease, "receipt")).collect::<Result<Vec<_>, ContestError>>()?;
        self.held.extend(receipts);
        leases.iter().map(|lease| text(lease, "payload")).collect()
    }

    /// Reports success for everything that is held; gives how many that were.
    async fn settle(&mut self) -> Result<u64, ContestError> {
        let held = std::mem::take(&mut self.held);
        for some in held.chunks(BEATS) {
            let one = |receipt: &String| format!(r#"{{"receipt":"{receipt}","succeed":{{}}}}"#);
            let settlements: Vec<String> = some.iter().map(one).collect();
            let body = format!(r#"{{"settlements":[{}]}}"#, settlements.join(","));
            let answer = self.connection.post("/v1/leases/settle", body).await?;
            every_one(&answer, "settlements", "receipt")?;
        }
        Ok(held.len() as u64)
    }
}

/// The number of answers; every one must have this field and no error.
fn every_one(answer: &Value, list: &str, field: &str) -> Result<u64, ContestError> {
    let answers = answer[list].as_array().ok_or_else(|| format!("no `{list}` in the answer: {answer}"))?;
    match answers.iter().find(|answer| !answer["error"].is_null() || answer[field].is_null()) {
        Some(refused) => Err(format!("refused: {refused}").into()),
        None => Ok(answers.len() as u64),
    }
}

fn job(number: u64) -> String {
    format!(r#"{{"kind":"{KIND}","payload":"{}"}}"#, String::from_utf8_lossy(&payload(number)))
}

#[derive(Debug)]
struct Connection {
    host: String,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    async fn open(node: &NodeProcess) -> Result<Self, ContestError> {
        let stream = TcpStream::connect(node.address()).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self { host: node.address().to_owned(), sender })
    }

    async fn post(&mut self, path: &str, body: String) -> Result<Value, ContestError> {
        let request = Request::post(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            return Err(format!("POST {path}: {status}: {}", String::from_utf8_lossy(&body)).into());
        }
        Ok(serde_json::from_slice(&body)?)
    }
}
