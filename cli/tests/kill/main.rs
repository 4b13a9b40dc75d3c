//! A node that is killed again and again under load takes back nothing that it has answered.
//!
//! `ONWARD_SOAK_CASES` sets the number of kills, up to 200; `ONWARD_KILL_SEED` the seed.

mod cluster;
mod commands;
mod load;
mod record;
mod steady;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use load::{Stretch, Submitter, Worker, read};
use record::{Job, Key, Record, is_doomed, submission};
use serde_json::json;
use support::http::Client;
use support::{Dice, Node, PATIENCE, own_loopback};
use tokio::time::sleep;

const KILLS: u64 = 20;
const KILLS_ON_POSTGRESQL: u64 = 5;
const MOST_KILLS: u64 = 200;
const SUBMITTERS: u64 = 140;
const WORKERS: u64 = 90;
const READERS: u64 = 20;
const NEW_JOBS: i64 = 600;
const CROWD: u64 = 200;
const FEW_ANSWERS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

#[derive(Default, Debug)]
struct Counts {
    kills: u64,
    inside_a_commit: u64,
    /// Kills that cut off at least [`CROWD`] calls.
    in_a_crowd: u64,
    least_in_flight: u64,
    answers: u64,
    told_later: u64,
    checked: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_before_a_kill_is_true_after_it() {
    endure(KILLS, "embedded").await;
}

/// The database lives on, and has what the node was told that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_before_a_kill_is_true_after_it_on_postgresql() {
    let server = onward_testkit::PostgresServer::options().fsync().start().unwrap();
    endure(KILLS_ON_POSTGRESQL, &server.database().unwrap()).await;
}

/// Kills a node with this storage at least so often.
async fn endure(kills: u64, storage: &str) {
    let kills = number("ONWARD_SOAK_CASES").map_or(kills, |cases| cases.clamp(kills, MOST_KILLS));
    let seed = number("ONWARD_KILL_SEED").unwrap_or(1);
    let folder = tempfile::tempdir().unwrap();
    let (data, mark) = (folder.path().join("data"), folder.path().join("mark"));
    let flags = ["--commit-mark", mark.to_str().unwrap(), "--storage", storage];
    let mut dice = Dice::new(seed);
    let mut submitters: Vec<_> = (1..=SUBMITTERS).map(|index| Submitter::new(index, seed)).collect();
    let mut workers: Vec<_> = (1..=WORKERS).map(|index| Worker::new(index, seed)).collect();
    let mut all = Record::default();
    let mut counts = Counts { least_in_flight: u64::MAX, ..Counts::default() };
    let began = Instant::now();
    let mut node = Node::start_with(&data, &own_loopback(), &flags);
    let address = node.address;

    let mut kill = 0;
    // Which moment a kill hits is chance: there are more of them until each kind was there, within reason.
    while kill < kills || kill < 5 * kills && (counts.inside_a_commit == 0 || counts.in_a_crowd == 0 || !has_all(&all))
    {
        let ids = all.jobs.keys().cloned().collect();
        let stretch = Stretch::new(address, NEW_JOBS, ids);
        let submitting: Vec<_> = submitters.drain(..).map(|one| tokio::spawn(one.run(stretch.clone()))).collect();
        let working: Vec<_> = workers.drain(..).map(|one| tokio::spawn(one.run(stretch.clone()))).collect();
        let reading: Vec<_> =
            (0..READERS).map(|index| tokio::spawn(read(stretch.clone(), Dice::new(kill << 8 | index)))).collect();

        sleep(Duration::from_millis(40 + dice.below(500))).await;
        // On a computer that is busy little happens in that time.
        let began = Instant::now();
        while stretch.answers.load(Ordering::Relaxed) < FEW_ANSWERS && began.elapsed() < PATIENCE {
            sleep(Duration::from_millis(10)).await;
        }
        let further = Duration::from_micros(dice.below(1_000));
        if kill % 4 != 3 {
            wait_into_commit(&mark, further);
        }
        let in_flight = stretch.in_flight.load(Ordering::SeqCst);
        node.kill();
        for one in submitting {
            submitters.push(one.await.unwrap());
        }
        for one in working {
            workers.push(one.await.unwrap());
        }
        for one in reading {
            one.await.unwrap();
        }
        counts.kills += 1;
        counts.inside_a_commit += u64::from(is_committing(&mark));
        counts.in_a_crowd += u64::from(in_flight >= CROWD);
        counts.least_in_flight = counts.least_in_flight.min(in_flight);
        counts.answers += stretch.answers.load(Ordering::Relaxed);
        counts.told_later += stretch.told_later.load(Ordering::Relaxed);

        node = Node::start_with(&data, &address.to_string(), &flags);
        let stretch = Arc::into_inner(stretch).expect("nobody else has it any more");
        let mut record = stretch.record.into_inner().unwrap();
        record.merge(all.sample((all.jobs.len() / 300).max(20), kill as usize));
        counts.checked += record.count();
        none(&format!("seed {seed}, kill {kill}"), &record.broken(address).await);
        all.merge(record);
        none(&format!("seed {seed}, kill {kill}"), &all.contradictions());
        kill += 1;
    }

    let drained = Instant::now();
    drain(address, submitters, workers, &mut all).await;
    let drained = drained.elapsed();
    counts.checked += all.count();
    none(&format!("seed {seed}, at the end"), &all.broken(address).await);
    none(&format!("seed {seed}, at the end"), &all.contradictions());
    node.kill();
    let _node = Node::start_with(&data, &address.to_string(), &flags);
    none(&format!("seed {seed}, after the last kill"), &all.broken(address).await);
    let [replays, extended, handed_on, printed] = kinds(&all);
    let summary = format!(
        "{counts:?}; {replays} replays, {extended} extended, {handed_on} checkpoints handed on, {printed} outputs; {} jobs, {} outcomes, {} refused as stale, {} as ended, {} as conflicts; drained in {drained:?}, all in {:?}",
        all.jobs.len(),
        all.jobs.values().map(|job| job.outcomes.len()).sum::<usize>(),
        all.refused.values().filter(|code| *code == "stale_attempt").count(),
        all.refused.values().filter(|code| *code == "already_ended").count(),
        all.keys.values().filter(|key| key.conflict).count(),
        began.elapsed()
    );
    say(&summary);
    assert!(counts.inside_a_commit >= 1, "no kill fell into a commit: {summary}");
    assert!(counts.in_a_crowd >= 1, "never were {CROWD} calls in flight: {summary}");
    assert!(has_all(&all), "not all was tried: {summary}");
}

/// How often what is rare was there: replays, extensions, checkpoints that were handed on, outputs that were read.
fn kinds(all: &Record) -> [usize; 4] {
    let sum = |count: fn(&Job) -> usize| all.jobs.values().map(count).sum::<usize>();
    [
        sum(|job| usize::from(job.retry_of.is_some())),
        sum(|job| usize::from(job.extensions_s > 0.0)),
        sum(|job| job.handed.values().filter(|handed| **handed > 0).count()),
        sum(|job| job.printed.len()),
    ]
}

/// Whether each of these was there, and refusals too.
fn has_all(all: &Record) -> bool {
    kinds(all).iter().all(|count| *count > 0) && !all.refused.is_empty() && all.keys.values().any(|key| key.conflict)
}

/// The numbers are what somebody who runs this by hand wants to see.
#[allow(clippy::print_stdout, reason = "a test reports to its reader")]
fn say(summary: &str) {
    println!("{summary}");
}

fn none(when: &str, found: &[String]) {
    let first = found.iter().take(10).cloned().collect::<Vec<_>>().join("\n  ");
    assert!(found.is_empty(), "{when}: {} answers are not true any more:\n  {first}", found.len());
}

fn is_committing(mark: &Path) -> bool {
    std::fs::read(mark).is_ok_and(|bytes| bytes == b"1")
}

/// Into a commit that has just begun: only its beginning can be lost to a SIGKILL, since what was written stays with the
/// system. There is always one soon under load; if there is none, the kill comes all the same.
fn wait_into_commit(mark: &Path, further: Duration) {
    let began = Instant::now();
    for committing in [false, true] {
        while is_committing(mark) != committing && began.elapsed() < Duration::from_secs(1) {
            std::thread::park_timeout(Duration::from_micros(10));
        }
    }
    // The moment of the kill is chosen here, nothing is waited for; parked, so that the node has the processor.
    std::thread::park_timeout(further);
}

/// No more kills: what is in doubt is settled, and every job that was acknowledged succeeds.
async fn drain(address: std::net::SocketAddr, submitters: Vec<Submitter>, workers: Vec<Worker>, all: &mut Record) {
    let stretch = Stretch::new(address, 0, Vec::new());
    let working: Vec<_> = workers.into_iter().map(|one| tokio::spawn(one.run(stretch.clone()))).collect();
    let submitting: Vec<_> = submitters.into_iter().map(|one| tokio::spawn(one.settle(stretch.clone()))).collect();
    for one in submitting {
        one.await.unwrap();
    }
    let began = Instant::now();
    let mut client = Client::new(address);
    loop {
        let open = client.get("/v1/stats").await.json()["open_jobs"].as_u64();
        if open == Some(0) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{open:?} jobs are still open after {PATIENCE:?}");
        sleep(Duration::from_millis(20)).await;
    }
    stretch.over.store(true, Ordering::Relaxed);
    for one in working {
        one.await.unwrap();
    }
    let stretch = Arc::into_inner(stretch).expect("nobody else has it any more");
    all.merge(stretch.record.into_inner().unwrap());
    // Whatever was acknowledged has succeeded, whether or not its worker heard so.
    for job in all.jobs.values_mut() {
        let state = if job.number.is_some_and(is_doomed) { "failed" } else { "succeeded" };
        job.ended = Some(state.into());
    }
}

/// The check can go red: every kind of answer, made up, is found out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_was_never_given_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path());
    let mut client = Client::new(node.address);
    let id = client.post("/v1/jobs", &submission("a", 1)).await.json()["id"].as_str().unwrap().to_owned();
    let open = client.post("/v1/jobs", &submission("b", 1)).await.json()["id"].as_str().unwrap().to_owned();
    let poll = json!({ "worker_id": "w", "incarnation": "1", "kinds": ["k"], "wait_s": 5, "lease_s": 60 });
    let lease = client.post("/v1/leases", &poll).await.json()["leases"][0].clone();
    assert_eq!(lease["job_id"], id.as_str());
    let (receipt, fence) = (lease["receipt"].as_str().unwrap(), lease["fence"].as_u64().unwrap());
    let succeed = json!({ "result": 1 });
    assert_eq!(client.post(&format!("/v1/leases/{receipt}/succeed"), &succeed).await.status, 200);

    let one = |id: &str, job: Job| Record { jobs: [(id.to_owned(), job)].into(), ..Record::default() };
    let outcome = |fence: u64, result: i32| Job { outcomes: [(fence, json!(result))].into(), ..Job::default() };
    let ended = |state: &str| Job { ended: Some(state.into()), ..Job::default() };
    let key = |name: &str, number, id: &str, conflict| {
        let key = Key { number, id: id.into(), conflict };
        Record { keys: [(name.to_owned(), key)].into(), ..Record::default() }
    };
    let refused = |result: &str| Record {
        refused: [((receipt.to_owned(), result.to_owned()), "already_ended".to_owned())].into(),
        ..Record::default()
    };

    let mut truth = one(&id, Job { ended: Some("succeeded".into()), fence, ..outcome(fence, 1) });
    truth.merge(one(&open, Job::default()));
    truth.merge(key("a", 1, &id, true));
    truth.merge(refused("2"));
    assert_eq!(truth.broken(node.address).await, Vec::<String>::new());

    let unknown = "0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d10";
    for (lie, made_up) in [
        ("a job", one(unknown, Job::default())),
        ("a result", one(&id, outcome(fence, 2))),
        ("a fence", one(&id, outcome(fence + 1, 1))),
        ("an outcome", one(&open, outcome(fence, 1))),
        ("a state", one(&id, ended("failed"))),
        ("an end", one(&open, ended("succeeded"))),
        ("a lease", one(&open, Job { fence: 1, ..Job::default() })),
        ("a key", key("c", 1, unknown, false)),
        ("the id of a key", key("a", 1, &open, false)),
        ("the body of a key", key("a", 2, &id, false)),
        ("a refusal", refused("1")),
        ("a payload", one(&id, Job { number: Some(2), ..Job::default() })),
        ("more time", one(&id, Job { extensions_s: 1.0, ..Job::default() })),
        ("a replay", one(&id, Job { retry_of: Some(open.clone()), ..Job::default() })),
        ("an output", one(&id, Job { printed: [(fence, ("x".to_owned(), Instant::now()))].into(), ..Job::default() })),
    ] {
        assert_eq!(made_up.broken(node.address).await.len(), 1, "{lie} was made up, and nobody noticed");
    }

    let mut twice = one(&id, outcome(fence, 1));
    assert!(twice.contradictions().is_empty());
    twice.merge(one(&id, outcome(fence + 1, 1)));
    assert_eq!(twice.contradictions().len(), 1, "two outcomes");
    let holder = |name: &str| Job { holders: [(fence, [name.to_owned()].into())].into(), ..Job::default() };
    let mut shared = one(&id, holder("a"));
    shared.merge(one(&id, holder("b")));
    assert_eq!(shared.contradictions().len(), 1, "two holders");
    let after = |handed| {
        let (checkpoints, handed) = ([fence].into(), [(fence + 1, handed)].into());
        one(&id, Job { checkpoints, handed, ..Job::default() })
    };
    assert_eq!(after(fence).contradictions().len(), 0);
    assert_eq!(after(0).contradictions().len(), 1, "a checkpoint that was lost");
    assert_eq!(after(fence + 1).contradictions().len(), 1, "a checkpoint that nobody made");
    let wrong = Record { wrong: vec!["x".into()], ..Record::default() };
    assert_eq!(wrong.contradictions(), ["x"]);
}
