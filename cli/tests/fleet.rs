//! Workers that are killed, frozen and started again at random, while others are left alone: every job is done, each
//! is accepted once, and nobody who is well is taken for ill.
//!
//! `ONWARD_FLEET=full` makes it 20 workers of 50 slots for two minutes; `ONWARD_FLEET_SEED` sets the seed.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::Client;
use support::jobs::{attempts, shell, show, submit};
use support::worker::Worker;
use support::{Dice, Node, PATIENCE};
use tokio::time::sleep;

#[derive(Clone, Copy, Debug)]
struct Size {
    workers: u64,
    /// The first so many are left alone.
    untouched: u64,
    slots: u64,
    submits_for: Duration,
    /// The longest time of a command, in hundredths of a second.
    longest: u64,
    lease: Duration,
    /// The longest time from one blow to the next.
    blows_within: Duration,
    drains_within: Duration,
}

const SMALL: Size = Size {
    workers: 3,
    untouched: 1,
    slots: 4,
    submits_for: Duration::from_secs(30),
    longest: 60,
    // Nobody who is left alone is late by that much, on a busy computer either.
    lease: Duration::from_secs(12),
    blows_within: Duration::from_millis(1_500),
    drains_within: Duration::from_secs(300),
};

const FULL: Size = Size {
    workers: 20,
    untouched: 5,
    slots: 50,
    submits_for: Duration::from_secs(120),
    longest: 800,
    lease: Duration::from_secs(12),
    blows_within: Duration::from_millis(800),
    drains_within: Duration::from_secs(300),
};

impl Size {
    fn settings(&self) -> String {
        let (lease, interval) = (self.lease.as_millis(), self.lease.as_millis() / 4);
        format!("[lease]\ninitial = '{lease}ms'\nextension = '{lease}ms'\ninterval = '{interval}ms'\n")
    }
}

#[derive(Default, Debug)]
struct Counts {
    kills: u64,
    freezes: u64,
    jobs: usize,
    attempts: usize,
    /// Attempts that did not succeed.
    lost: usize,
    refused: u64,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

fn name(index: u64) -> String {
    format!("w{index}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_ends_once_whatever_happens_to_workers() {
    let size = match std::env::var("ONWARD_FLEET").as_deref() {
        Ok("full") => FULL,
        Ok(other) => panic!("ONWARD_FLEET is `full` or not set, not {other}"),
        Err(_) => SMALL,
    };
    let seed = number("ONWARD_FLEET_SEED").unwrap_or(1);
    let folder = tempfile::tempdir().unwrap();
    let (data, records) = (folder.path().join("data"), folder.path().join("records"));
    for one in [&data, &records] {
        std::fs::create_dir(one).unwrap();
    }
    std::fs::write(data.join("onward.toml"), size.settings()).unwrap();
    let node = Node::start(&data);
    let client = || Client::with_token(node.address, &data);
    let start = |index: u64| Worker::start(&node.url, &data, &name(index), &["--slots", &size.slots.to_string()]);

    let well: Vec<Worker> = (0..size.untouched).map(start).collect();
    let over = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watch(client(), size.untouched, over.clone()));
    let mut unlucky: Vec<Worker> = (size.untouched..size.workers).map(start).collect();

    let began = Instant::now();
    let submitting = tokio::spawn(submit_all(client(), size, seed, records.clone()));
    let mut counts = Counts::default();
    let mut dice = Dice::new(seed ^ 0xb10);
    let mut frozen: BTreeMap<usize, Instant> = BTreeMap::new();
    while began.elapsed() < size.submits_for {
        sleep(part(&mut dice, size.blows_within)).await;
        frozen.retain(|at, until| {
            let stays = Instant::now() < *until;
            if !stays {
                unlucky[*at].signal(Signal::CONT);
            }
            stays
        });
        let at = dice.below(unlucky.len() as u64) as usize;
        if frozen.contains_key(&at) {
            continue;
        }
        // Taking turns, so that a short run has both.
        if counts.kills <= counts.freezes {
            counts.kills += 1;
            unlucky[at].kill();
            if dice.one_in(2) {
                sleep(part(&mut dice, size.blows_within)).await;
            }
            unlucky[at] = start(size.untouched + at as u64);
        } else {
            counts.freezes += 1;
            unlucky[at].signal(Signal::STOP);
            // Half of them past their leases.
            frozen.insert(at, Instant::now() + part(&mut dice, size.lease * 2));
        }
    }
    for at in frozen.into_keys() {
        unlucky[at].signal(Signal::CONT);
    }
    let ids = submitting.await.unwrap();

    let mut client = client();
    let deadline = Instant::now() + size.drains_within;
    while client.get("/v1/stats").await.json()["open_jobs"] != 0 {
        assert!(Instant::now() < deadline, "seed {seed}: not all jobs have ended within {:?}", size.drains_within);
        sleep(Duration::from_millis(50)).await;
    }
    over.store(true, Ordering::Relaxed);
    let seen = watching.await.unwrap();
    assert_eq!(seen.ill, Vec::<String>::new(), "seed {seed}: workers that were left alone");
    assert!(seen.looks > 10 && seen.well.len() as u64 == size.untouched, "{seen:?}");

    let mut wrong = Vec::new();
    for id in &ids {
        let job = show(&mut client, id).await;
        counts.attempts += attempts(&job).len();
        counts.lost += attempts(&job).iter().filter(|attempt| attempt.outcome != "succeeded").count();
        wrong.extend(judge(id, &job, &record(&records.join(id)), size.untouched));
    }
    counts.jobs = ids.len();
    counts.refused = client.get("/v1/stats").await.json()["refusals"]["stale_attempt"].as_u64().unwrap_or(0);
    let first = wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n  ");
    assert!(wrong.is_empty(), "seed {seed}, {counts:?}: {} jobs are wrong:\n  {first}", wrong.len());
    assert!(counts.kills > 0 && counts.freezes > 0 && counts.jobs > 20 && counts.lost > 0, "too little: {counts:?}");
    say(&format!("seed {seed}: {counts:?}, all in {:?}", began.elapsed()));
    for worker in well.iter().chain(&unlucky) {
        worker.is_alone(PATIENCE).await;
    }
}

fn part(dice: &mut Dice, of: Duration) -> Duration {
    Duration::from_millis(dice.below(of.as_millis() as u64))
}

/// Submits as many jobs at a time as keep all slots busy and some waiting.
async fn submit_all(mut client: Client, size: Size, seed: u64, records: std::path::PathBuf) -> Vec<String> {
    let mut dice = Dice::new(seed);
    let began = Instant::now();
    let mut ids = Vec::new();
    let retry = json!({ "retry": { "max_attempts": 100, "base_s": 0.05, "max_s": 0.5 } });
    let records = records.to_str().unwrap();
    while began.elapsed() < size.submits_for {
        let open = client.get("/v1/stats").await.json()["open_jobs"].as_u64().unwrap();
        for _ in open..size.workers * size.slots * 3 / 2 {
            let takes = dice.below(size.longest);
            let script = format!(
                "echo '@onward progress 1/2'; sleep {}.{:02}; echo '@onward progress 2/2'
                 echo $ONWARD_FENCE >> \"$RECORDS/$ONWARD_JOB_ID\"",
                takes / 100,
                takes % 100
            );
            ids.push(submit(&mut client, &shell(&script, &[("RECORDS", records)], &retry)).await);
        }
        sleep(Duration::from_millis(100)).await;
    }
    ids
}

/// The number of ends of each fence.
fn record(path: &Path) -> BTreeMap<u64, u32> {
    let mut fences = BTreeMap::new();
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        *fences.entry(line.parse().expect("a fence")).or_insert(0) += 1;
    }
    fences
}

fn judge(id: &str, job: &Value, record: &BTreeMap<u64, u32>, untouched: u64) -> Option<String> {
    let attempts = attempts(job);
    let accepted: Vec<u64> =
        attempts.iter().filter(|attempt| attempt.outcome == "succeeded").map(|attempt| attempt.fence).collect();
    let handed_out: BTreeSet<u64> = attempts.iter().map(|attempt| attempt.fence).collect();
    let spared: Vec<String> = (0..untouched).map(name).collect();
    let failed_when_well =
        attempts.iter().find(|attempt| spared.contains(&attempt.worker) && attempt.outcome != "succeeded");
    let state = job["state"].as_str().unwrap_or_default();
    let why = if state != "succeeded" {
        format!("it is {state}")
    } else if accepted.len() != 1 {
        format!("{} attempts were accepted", accepted.len())
    } else if !record.contains_key(&accepted[0]) {
        format!("the accepted attempt {} has not done it", accepted[0])
    } else if record.values().any(|times| *times > 1) || !record.keys().all(|fence| handed_out.contains(fence)) {
        "a fence ran twice, or was never handed out".to_owned()
    } else if handed_out.len() != attempts.len() {
        "two attempts have one fence".to_owned()
    } else if let Some(attempt) = failed_when_well {
        format!("a worker that was left alone has lost it: {attempt:?}")
    } else {
        return None;
    };
    Some(format!("job {id}: {why}; done under {record:?}; {attempts:?}"))
}

#[derive(Default, Debug)]
struct FleetView {
    looks: u64,
    /// Workers that were left alone, and seen working.
    well: BTreeSet<String>,
    ill: Vec<String>,
}

/// Watches the node's verdicts on workers that are left alone.
async fn watch(mut client: Client, untouched: u64, over: Arc<AtomicBool>) -> FleetView {
    let spared: BTreeSet<String> = (0..untouched).map(name).collect();
    let mut seen = FleetView::default();
    while !over.load(Ordering::Relaxed) {
        let nodes = client.get("/v1/nodes").await.json();
        for node in nodes["nodes"].as_array().expect("a list") {
            let id = node["id"].as_str().unwrap_or_default().to_owned();
            if !spared.contains(&id) {
                continue;
            }
            let verdict = node["verdict"].as_str().unwrap_or_default();
            if matches!(verdict, "suspect" | "stuck" | "degraded") || node["evicted"] == true {
                seen.ill.push(node.to_string());
            } else if node["held"].as_u64() > Some(0) {
                seen.well.insert(id);
            }
        }
        seen.looks += 1;
        sleep(Duration::from_millis(100)).await;
    }
    seen
}

#[test]
fn a_job_that_went_wrong_is_noticed() {
    let at = "2026-01-01T00:00:00Z";
    let attempt = |fence: u64, worker: &str, outcome: &str| json!({ "fence": fence, "worker": worker, "outcome": outcome, "started_at": at, "ended_at": at });
    let job = |state: &str, attempts: &[Value]| json!({ "state": state, "workflows": [{ "attempts": attempts }] });
    let lost = attempt(1, "w9", "lease_expired");
    let good = job("succeeded", &[lost.clone(), attempt(2, "w0", "succeeded")]);
    assert_eq!(judge("x", &good, &BTreeMap::from([(1, 1), (2, 1)]), 1), None);
    for (what, job, record) in [
        ("an end", job("failed", std::slice::from_ref(&lost)), &[(1, 1)][..]),
        ("a second end", job("succeeded", &[attempt(1, "w9", "succeeded"), attempt(2, "w9", "succeeded")]), &[(2, 1)]),
        ("work that was not done", good.clone(), &[(1, 1)]),
        ("work that was done twice", good.clone(), &[(2, 2)]),
        ("work that nobody gave", good.clone(), &[(2, 1), (3, 1)]),
        ("a worker's loss", job("succeeded", &[attempt(1, "w0", "stuck"), attempt(2, "w9", "succeeded")]), &[(2, 1)]),
    ] {
        assert!(
            judge("x", &job, &record.iter().copied().collect(), 1).is_some(),
            "{what} was made up, and nobody noticed"
        );
    }
}

/// The numbers are what somebody who runs this by hand wants to see.
#[allow(clippy::print_stdout, reason = "a test reports to its reader")]
fn say(summary: &str) {
    println!("{summary}");
}
