//! Clients that always have a call in flight, and write down every answer that reached them in full. Who was cut off
//! in the middle of a call makes the same call again after the restart.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::record::{
    Record, extension, is_doomed, is_terminal, output_path, replay_of, replayed_as, result_of, submission,
};
use crate::support::Dice;
use crate::support::http::{Client, Reply};

/// A node that takes longer is taken for gone, where there are others.
const ANSWERED_WITHIN: Duration = Duration::from_secs(8);

/// State that the clients of one stretch between two kills share.
#[derive(Debug)]
pub struct Stretch {
    pub address: SocketAddr,
    /// Others that answer as well as that one: whoever is cut off goes on with the next.
    pub others: Vec<SocketAddr>,
    pub record: Mutex<Record>,
    /// Ids that were acknowledged, for those who read.
    pub ids: Mutex<Vec<String>>,
    /// The number of new jobs that there may be yet.
    pub budget: AtomicI64,
    pub in_flight: AtomicU64,
    pub answers: AtomicU64,
    pub told_later: AtomicU64,
    /// The number of times that another node was tried because one was gone or did not answer.
    pub cut_off: AtomicU64,
    /// Nothing new is begun; used where the stretch ends without a kill.
    pub over: AtomicBool,
}

impl Stretch {
    pub fn new(address: SocketAddr, budget: i64, ids: Vec<String>) -> Arc<Self> {
        Arc::new(Self {
            address,
            others: Vec::new(),
            record: Mutex::default(),
            ids: Mutex::new(ids),
            budget: AtomicI64::new(budget),
            in_flight: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            told_later: AtomicU64::new(0),
            cut_off: AtomicU64::new(0),
            over: AtomicBool::new(false),
        })
    }

    /// The same, at any of several nodes.
    pub fn among(addresses: &[SocketAddr], budget: i64) -> Arc<Self> {
        let mut stretch = Self::new(addresses[0], budget, Vec::new());
        Arc::get_mut(&mut stretch).expect("nobody else has it yet").others = addresses[1..].to_vec();
        stretch
    }

    async fn call(&self, client: &mut Client, method: &str, path: &str, body: &Value) -> io::Result<Reply> {
        Ok(self.call_until_answered(client, method, path, body).await?.0)
    }

    /// The answer, and whether the call was made again although the first may have been carried out.
    async fn call_until_answered(
        &self,
        client: &mut Client,
        method: &str,
        path: &str,
        body: &Value,
    ) -> io::Result<(Reply, bool)> {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let mut was_repeated = false;
        let mut cut_off = 0;
        loop {
            self.in_flight.fetch_add(1, Ordering::SeqCst);
            let reply = match self.others.is_empty() {
                true => client.try_call(method, path, &body).await,
                false => timeout(ANSWERED_WITHIN, client.try_call(method, path, &body))
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
            };
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
            let reply = match reply {
                Err(_) if !self.others.is_empty() => {
                    self.cut_off.fetch_add(1, Ordering::Relaxed);
                    was_repeated = true;
                    cut_off += 1;
                    let next = cut_off % (self.others.len() + 1);
                    *client = Client::new(if next == 0 { self.address } else { self.others[next - 1] });
                    sleep(Duration::from_millis(20)).await;
                    continue;
                }
                reply => reply?,
            };
            self.answers.fetch_add(1, Ordering::Relaxed);
            if reply.status != 503 {
                return Ok((reply, was_repeated));
            }
            self.told_later.fetch_add(1, Ordering::Relaxed);
            was_repeated |= !reply.was_surely_not_done();
            // A node that is not ready is left, as by a balancer.
            if !self.others.is_empty() {
                cut_off += 1;
                let next = cut_off % (self.others.len() + 1);
                *client = Client::new(if next == 0 { self.address } else { self.others[next - 1] });
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn write(&self, note: impl FnOnce(&mut Record)) {
        note(&mut self.record.lock().unwrap());
    }

    fn wrong(&self, what: String) {
        self.write(|record| record.wrong.push(what));
    }
}

/// Submits new jobs under keys of its own, repeats old ones, and tries old keys with other bodies.
#[derive(Debug)]
pub struct Submitter {
    name: String,
    dice: Dice,
    /// Keys with the numbers in their bodies and, where it arrived, the answer.
    sent: Vec<(String, u64, Option<String>)>,
}

impl Submitter {
    pub fn new(index: u64, seed: u64) -> Self {
        Self { name: format!("s{index}"), dice: Dice::new(seed ^ (index << 20)), sent: Vec::new() }
    }

    pub async fn run(mut self, stretch: Arc<Stretch>) -> Self {
        let mut client = Client::new(stretch.address);
        while !stretch.over.load(Ordering::Relaxed) {
            if self.once(&stretch, &mut client).await.is_err() {
                break;
            }
        }
        self
    }

    /// Repeats calls until nothing is in doubt.
    pub async fn settle(mut self, stretch: Arc<Stretch>) {
        let mut client = Client::new(stretch.address);
        while self.sent.iter().any(|(.., id)| id.is_none()) {
            self.once(&stretch, &mut client).await.expect("the node answers");
        }
    }

    async fn once(&mut self, stretch: &Stretch, client: &mut Client) -> io::Result<()> {
        let in_doubt = self.sent.iter().position(|(.., id)| id.is_none());
        let new = in_doubt.is_none() && (self.sent.is_empty() || self.dice.one_in(2));
        if new && stretch.budget.fetch_sub(1, Ordering::Relaxed) > 0 {
            self.sent.push((format!("{}-{}", self.name, self.sent.len()), self.dice.below(1 << 40), None));
            return self.submit(stretch, client, self.sent.len() - 1).await;
        }
        if self.sent.is_empty() {
            return stretch.call(client, "GET", "/v1/stats", &Value::Null).await.map(|_| ());
        }
        match in_doubt {
            Some(at) => self.submit(stretch, client, at).await,
            None => {
                let at = self.dice.below(self.sent.len() as u64) as usize;
                if self.dice.one_in(2) {
                    self.contradict(stretch, client, at).await
                } else {
                    self.submit(stretch, client, at).await
                }
            }
        }
    }

    async fn submit(&mut self, stretch: &Stretch, client: &mut Client, at: usize) -> io::Result<()> {
        let (key, number, known) = &self.sent[at];
        let reply = stretch.call(client, "POST", "/v1/jobs", &submission(key, *number)).await?;
        let id = reply.json()["id"].as_str().unwrap_or_default().to_owned();
        let as_before = known.as_ref().is_none_or(|known| reply.status == 200 && *known == id);
        if id.is_empty() || !matches!(reply.status, 200 | 201) || !as_before {
            stretch.wrong(format!("submission {key}, which was {known:?}, got {}", reply.text()));
            return Ok(());
        }
        if known.is_none() {
            stretch.ids.lock().unwrap().push(id.clone());
        }
        stretch.write(|record| {
            record.jobs.entry(id.clone()).or_default().number = Some(*number);
            let noted = record.keys.entry(key.clone()).or_default();
            (noted.number, noted.id) = (*number, id.clone());
        });
        self.sent[at].2 = Some(id.clone());
        if self.dice.one_in(8) {
            self.extend(stretch, client, &id).await?;
        }
        Ok(())
    }

    async fn extend(&mut self, stretch: &Stretch, client: &mut Client, id: &str) -> io::Result<()> {
        let request = format!("{}-{}", self.name, self.dice.below(1 << 40));
        let reply = stretch.call(client, "POST", &format!("/v1/jobs/{id}/extend"), &extension(&request)).await?;
        match (reply.status, reply.code().as_str()) {
            (200, _) => {
                let total = reply.json()["extensions_s"].as_f64().unwrap_or(f64::MAX);
                stretch.write(|record| {
                    let job = record.jobs.entry(id.to_owned()).or_default();
                    job.extensions_s = job.extensions_s.max(total);
                    job.extended_by.insert(request);
                });
            }
            (409, "already_ended") => {}
            _ => stretch.wrong(format!("the extension of {id} got {}", reply.text())),
        }
        Ok(())
    }

    async fn contradict(&mut self, stretch: &Stretch, client: &mut Client, at: usize) -> io::Result<()> {
        let (key, number, id) = &self.sent[at];
        let reply = stretch.call(client, "POST", "/v1/jobs", &submission(key, number + 1)).await?;
        if (reply.status, reply.code().as_str()) != (409, "conflict") {
            stretch.wrong(format!("key {key} with another body got {}", reply.text()));
        } else if let Some(id) = id {
            stretch.write(|record| {
                let noted = record.keys.entry(key.clone()).or_default();
                (noted.number, noted.id, noted.conflict) = (*number, id.clone(), true);
            });
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct Lease {
    job: String,
    fence: u64,
    receipt: String,
    number: u64,
    beaten: bool,
    printed: bool,
}

/// Leases, beats, succeeds; sometimes comes back as a new incarnation and lets the old one try.
#[derive(Debug)]
pub struct Worker {
    name: String,
    dice: Dice,
    incarnation: u64,
    poll: u64,
    held: Vec<Lease>,
}

impl Worker {
    pub fn new(index: u64, seed: u64) -> Self {
        let dice = Dice::new(seed ^ (index << 40));
        Self { name: format!("w{index}"), dice, incarnation: 0, poll: 0, held: Vec::new() }
    }

    pub async fn run(mut self, stretch: Arc<Stretch>) -> Self {
        let mut client = Client::new(stretch.address);
        while !stretch.over.load(Ordering::Relaxed) {
            if self.once(&stretch, &mut client).await.is_err() {
                break;
            }
        }
        self
    }

    async fn once(&mut self, stretch: &Stretch, client: &mut Client) -> io::Result<()> {
        let Some(lease) = self.held.last_mut() else {
            self.held = self.poll(stretch, client).await?;
            if !self.held.is_empty() && self.dice.one_in(16) {
                // Its successor takes what it held; the old one does not know, and tries first.
                self.incarnation += 1;
                let new = self.poll(stretch, client).await?;
                self.held.splice(0..0, new);
            }
            return Ok(());
        };
        if !lease.beaten {
            let path = format!("/v1/leases/{}/beat", lease.receipt);
            let checkpoint = json!({ "fence": lease.fence });
            let beat = json!({ "watermark": lease.fence & 0xff, "note": "half", "checkpoint": checkpoint });
            let reply = stretch.call(client, "POST", &path, &beat).await?;
            match reply.status {
                200 => stretch.write(|record| {
                    record.jobs.entry(lease.job.clone()).or_default().checkpoints.insert(lease.fence);
                }),
                409 | 429 => {}
                _ => stretch.wrong(format!("the beat of {lease:?} got {}", reply.text())),
            }
            lease.beaten = true;
            // Sometimes nothing more is heard of it, so that another gets its checkpoint.
            if self.dice.one_in(8) {
                self.held.pop();
            }
            return Ok(());
        }
        let prints = !lease.printed && self.dice.one_in(4);
        lease.printed = true;
        let lease = lease.clone();
        if prints {
            return Self::print(stretch, client, &lease).await;
        }
        match is_doomed(lease.number) {
            true => Self::fail(stretch, client, &lease).await?,
            false => self.succeed(stretch, client, &lease).await?,
        }
        self.held.pop();
        Ok(())
    }

    /// What was printed is kept once somebody has read it, even if the node is killed then.
    async fn print(stretch: &Stretch, client: &mut Client, lease: &Lease) -> io::Result<()> {
        let text = format!("{} {}\n", lease.job, lease.fence);
        let path = format!("/v1/leases/{}/output", lease.receipt);
        let (reply, was_repeated) =
            stretch.call_until_answered(client, "POST", &path, &json!({ "text": text })).await?;
        if !matches!(reply.status, 200 | 202 | 204) {
            if reply.status != 409 {
                stretch.wrong(format!("the output of {lease:?} got {}", reply.text()));
            }
            return Ok(());
        }
        let taken_by = reply.leader();
        let reply = stretch.call(client, "GET", &format!("/v1/jobs/{}", lease.job), &Value::Null).await?;
        let Some(path) = output_path(&lease.job, lease.fence, &reply.json()) else { return Ok(()) };
        let reply = stretch.call(client, "GET", &path, &Value::Null).await?;
        let read_at = Instant::now();
        match reply.status == 200 && reply.body == text.as_bytes() && !was_repeated {
            true => stretch.write(|record| {
                record.jobs.entry(lease.job.clone()).or_default().printed.insert(lease.fence, (text, read_at));
            }),
            // Output that is sent twice is kept twice, as documented, and the first may be stored long after the second.
            _ if was_repeated && reply.status == 200 && is_repeated(&reply.body, text.as_bytes()) => {}
            // Whoever took it has ended since, and nobody had read it.
            false if reply.code() == "no_output" && reply.leader() != taken_by => {}
            false => {
                stretch.wrong(format!("fence {} printed {text:?}, and that was read: {}", lease.fence, reply.text()))
            }
        }
        Ok(())
    }

    async fn fail(stretch: &Stretch, client: &mut Client, lease: &Lease) -> io::Result<()> {
        let body = json!({ "error": "doomed", "retryable": false });
        let reply = stretch.call(client, "POST", &format!("/v1/leases/{}/fail", lease.receipt), &body).await?;
        match (reply.status, reply.code().as_str()) {
            (200, _) => {}
            (409, "stale_attempt" | "already_ended") => return Ok(()),
            _ => {
                stretch.wrong(format!("the failure of {lease:?} got {}", reply.text()));
                return Ok(());
            }
        }
        stretch.write(|record| record.jobs.entry(lease.job.clone()).or_default().ended = Some("failed".into()));
        if stretch.budget.load(Ordering::Relaxed) > 0 { Self::replay(stretch, client, lease).await } else { Ok(()) }
    }

    async fn replay(stretch: &Stretch, client: &mut Client, lease: &Lease) -> io::Result<()> {
        let reply = stretch.call(client, "POST", "/v1/dead-letters/replay", &replay_of(&lease.job)).await?;
        match replayed_as(&reply) {
            Some(new) => stretch.write(|record| {
                let job = record.jobs.entry(new).or_default();
                (job.number, job.retry_of) = (Some(lease.number), Some(lease.job.clone()));
            }),
            None => stretch.wrong(format!("the replay of {} got {}", lease.job, reply.text())),
        }
        Ok(())
    }

    async fn poll(&mut self, stretch: &Stretch, client: &mut Client) -> io::Result<Vec<Lease>> {
        let body = json!({
            "worker_id": self.name, "incarnation": self.incarnation.to_string(), "kinds": ["k"], "max": 4,
            "wait_s": 1, "lease_s": 2, "poll_id": self.poll.to_string(),
        });
        let reply = stretch.call(client, "POST", "/v1/leases", &body).await?;
        self.poll += 1;
        if reply.status != 200 {
            stretch.wrong(format!("poll {body} got {}", reply.text()));
            return Ok(Vec::new());
        }
        let answer = reply.json();
        let leases = answer["leases"].as_array().into_iter().flatten();
        let text = |lease: &Value, name: &str| lease[name].as_str().unwrap_or_default().to_owned();
        let leases = leases.map(|lease| Lease {
            job: text(lease, "job_id"),
            fence: lease["fence"].as_u64().unwrap_or(0),
            receipt: text(lease, "receipt"),
            number: lease["payload"]["number"].as_u64().unwrap_or(0),
            beaten: false,
            printed: false,
        });
        let leases: Vec<Lease> = leases.collect();
        let handed = answer["leases"].as_array().into_iter().flatten();
        let handed: Vec<u64> = handed.map(|lease| lease["checkpoint"]["fence"].as_u64().unwrap_or(0)).collect();
        stretch.write(|record| {
            for (lease, handed) in leases.iter().zip(handed) {
                let job = record.jobs.entry(lease.job.clone()).or_default();
                job.number = Some(lease.number);
                job.handed.insert(lease.fence, handed);
                job.fence = job.fence.max(lease.fence);
                job.holders.entry(lease.fence).or_default().insert(self.name.clone());
            }
        });
        Ok(leases)
    }

    async fn succeed(&mut self, stretch: &Stretch, client: &mut Client, lease: &Lease) -> io::Result<()> {
        let result = result_of(&lease.job, lease.fence);
        let path = format!("/v1/leases/{}/succeed", lease.receipt);
        let reply = stretch.call(client, "POST", &path, &json!({ "result": result })).await?;
        let refused = |stretch: &Stretch, result: &Value, reply: &Reply| {
            let known = reply.status == 409 && matches!(reply.code().as_str(), "stale_attempt" | "already_ended");
            match known {
                true => stretch.write(|record| {
                    record.refused.insert((lease.receipt.clone(), result.to_string()), reply.code());
                }),
                false => stretch.wrong(format!("the outcome {result} got {}", reply.text())),
            }
        };
        if reply.status != 200 {
            refused(stretch, &result, &reply);
            return Ok(());
        }
        stretch.write(|record| {
            let job = record.jobs.entry(lease.job.clone()).or_default();
            job.outcomes.insert(lease.fence, result);
        });
        if self.dice.one_in(4) {
            let other = json!({ "job": lease.job, "other": true });
            let reply = stretch.call(client, "POST", &path, &json!({ "result": other })).await?;
            refused(stretch, &other, &reply);
        }
        Ok(())
    }
}

/// Looks at jobs that were acknowledged.
pub async fn read(stretch: Arc<Stretch>, mut dice: Dice) {
    let mut client = Client::new(stretch.address);
    while !stretch.over.load(Ordering::Relaxed) {
        let id = {
            let ids = stretch.ids.lock().unwrap();
            let newest = ids.len().saturating_sub(500);
            ids.get(newest + dice.below((ids.len() - newest).max(1) as u64) as usize).cloned()
        };
        let path = id.as_ref().map_or_else(|| "/v1/stats".to_owned(), |id| format!("/v1/jobs/{id}"));
        let Ok(reply) = stretch.call(&mut client, "GET", &path, &Value::Null).await else { return };
        let Some(id) = id else { continue };
        if reply.status != 200 {
            stretch.wrong(format!("job {id}, which was acknowledged, was read as {}", reply.text()));
            continue;
        }
        let shown = reply.json();
        let attempts = shown["workflows"][0]["attempts"].as_array().into_iter().flatten();
        let fence = attempts.filter_map(|attempt| attempt["fence"].as_u64()).max().unwrap_or(0);
        let state = shown["state"].as_str().unwrap_or_default().to_owned();
        stretch.write(|record| {
            let job = record.jobs.entry(id).or_default();
            job.fence = job.fence.max(fence);
            if is_terminal(&state) {
                job.ended = Some(state);
            }
        });
    }
}

fn is_repeated(body: &[u8], text: &[u8]) -> bool {
    !body.is_empty() && body.len().is_multiple_of(text.len()) && body.chunks(text.len()).all(|chunk| chunk == text)
}
