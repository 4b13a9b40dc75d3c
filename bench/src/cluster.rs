//! Several managers on PostgreSQL: how long nobody leads when the leader is killed or frozen, and how fast jobs are worked
//! off beside the queue that people write by themselves on the same database. Commits are synced everywhere.

use std::time::{Duration, Instant};

use onward::Client;
use onward::client::Retries;
use onward_testkit::{Cluster, ClusterOptions, PostgresServer};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_postgres::NoTls;

use crate::contest::ours::grpc::OverGrpc;
use crate::contest::ours::program::{NodeProcess, program};
use crate::contest::rows::drain;
use crate::contest::{Contender, ContestError};
use crate::report::Figure;
use crate::runs::median;

/// Jobs that one call submits.
const BATCH: u64 = 5_000;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The time after which a cluster is held for broken.
const PATIENCE: Duration = Duration::from_secs(120);

/// The way in which a leader is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Kill,
    Freeze,
}

/// Measures the time from the loss of the leader to the first hand-out by the next one.
pub async fn takeovers(quick: bool) -> Result<Vec<Figure>, ContestError> {
    let (kills, freezes) = if quick { (5, 2) } else { (20, 5) };
    let cluster = cluster(10_000).await?;
    let killed = lose_leaders(&cluster, Loss::Kill, kills).await?;
    let frozen = lose_leaders(&cluster, Loss::Freeze, freezes).await?;
    let longest = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let (middle, spread) = median(killed.clone());
    let line = |what: &str, value, wanted, spread| Figure {
        what: what.into(),
        value,
        unit: "s",
        wanted: Some(wanted),
        more: false,
        spread,
    };
    let count = format!("over {kills} kills");
    Ok(vec![
        line(&format!("leader killed, 10k jobs: until the next hands out, p50 {count}"), middle, 1.0, spread),
        line(&format!("the longest {count}"), longest(&killed), 3.0, None),
        line(&format!("leader frozen: the longest over {freezes}"), longest(&frozen), 6.0, None),
    ])
}

/// The same with a million jobs.
pub async fn large_takeovers(quick: bool) -> Result<Vec<Figure>, ContestError> {
    let jobs = if quick { 100_000 } else { 1_000_000 };
    let cluster = cluster(jobs).await?;
    let times = lose_leaders(&cluster, Loss::Kill, 3).await?;
    Ok(vec![Figure {
        what: format!("leader killed, {}k jobs: the longest until the next hands out, over 3", jobs / 1_000),
        value: times.into_iter().fold(0.0, f64::max),
        unit: "s",
        wanted: Some(4.0),
        more: false,
        spread: None,
    }])
}

/// No retries: a benchmark repeats calls by itself.
fn once() -> Retries {
    Retries { pauses: Vec::new(), unreachable: false }
}

async fn cluster(jobs: u64) -> Result<Cluster, ContestError> {
    let cluster = ClusterOptions::of(program()?).start()?;
    let leader = leader(&cluster, None).await?;
    let client = Client::connect(&cluster.managers[leader].url())?;
    let mut left = jobs;
    while left > 0 {
        let count = left.min(BATCH);
        let batch: Vec<Value> = (0..count).map(|_| json!({ "kind": "bench", "payload": { "n": 1 } })).collect();
        let _: Value = client.post("/v1/jobs/batch", &json!({ "jobs": batch })).await?;
        left -= count;
    }
    Ok(cluster)
}

/// The manager that leads and serves, and is not this one.
async fn leader(cluster: &Cluster, but: Option<usize>) -> Result<usize, ContestError> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        for (index, manager) in cluster.managers.iter().enumerate().filter(|(index, _)| Some(*index) != but) {
            let client = Client::connect(&manager.url())?.retrying(once()).within(Duration::from_secs(1));
            let status: Value = client.get("/status").await.unwrap_or_default();
            if status["role"] == "leader" && status["manager"]["seat"] == "serving" {
                return Ok(index);
            }
        }
        sleep(LOOK_EVERY).await;
    }
    Err("nobody leads".into())
}

async fn lose_leaders(cluster: &Cluster, loss: Loss, times: usize) -> Result<Vec<f64>, ContestError> {
    let mut spans = Vec::new();
    for round in 0..times {
        let led = leader(cluster, None).await?;
        follow(cluster, led).await?;
        let server = &cluster.managers[led].server;
        let (survivor, worker) = ((led + 1) % cluster.managers.len(), format!("{loss:?}-{round}"));
        let begun = Instant::now();
        match loss {
            Loss::Kill => server.kill(),
            Loss::Freeze => server.freeze(),
        }
        hand_out(&cluster.managers[survivor].url(), &worker).await?;
        spans.push(begun.elapsed().as_secs_f64());
        match loss {
            Loss::Kill => server.start_again()?,
            Loss::Freeze => server.thaw(),
        }
    }
    Ok(spans)
}

/// Waits until all managers but the leader follow and have caught up.
async fn follow(cluster: &Cluster, leader: usize) -> Result<(), ContestError> {
    for manager in cluster.managers.iter().enumerate().filter(|(index, _)| *index != leader).map(|(_, one)| one) {
        let client = Client::connect(&manager.url())?.retrying(once()).within(Duration::from_secs(1));
        let begun = Instant::now();
        loop {
            let status: Value = client.get("/status").await.unwrap_or_default();
            if status["role"] == "follower" && status["lag_ms"].as_u64().is_some_and(|lag| lag < 1_000) {
                break;
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{} does not follow: {status}", manager.name).into());
            }
            sleep(LOOK_EVERY).await;
        }
    }
    Ok(())
}

/// Asks this manager for work until there is some.
async fn hand_out(url: &str, worker: &str) -> Result<(), ContestError> {
    let client = Client::connect(url)?.retrying(once()).within(Duration::from_secs(2));
    let poll = json!({
        "worker_id": worker, "incarnation": "1", "kinds": ["bench"], "max": 1, "wait_s": 0, "lease_s": 60,
    });
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let leases: Value = client.post("/v1/leases", &poll).await.unwrap_or_default();
        if let Some(receipt) = leases["leases"][0]["receipt"].as_str() {
            let path = format!("/v1/leases/{receipt}/succeed");
            let _: Value = client.post(&path, &json!({})).await?;
            return Ok(());
        }
        sleep(Duration::from_millis(5)).await;
    }
    Err("nobody hands out".into())
}

/// Drains on PostgreSQL, in turns with a queue that is written by hand; then with one who follows, and while somebody
/// keeps a transaction open.
pub async fn drains(quick: bool) -> Result<Vec<Figure>, ContestError> {
    let (rounds, time) = if quick { (2, Duration::from_millis(500)) } else { (5, Duration::from_secs(2)) };
    let (database, folders) =
        (PostgresServer::options().fsync().start()?, (tempfile::tempdir()?, tempfile::tempdir()?));
    let url = database.database()?;
    let mut ours = OverGrpc::on(NodeProcess::start_on(folders.0.path(), &url)?).await?;
    let by_hand_folder = tempfile::tempdir()?;
    let mut by_hand = crate::contest::peers::postgres::PostgresPeer.start(by_hand_folder.path()).await?;
    let mut figures = Vec::new();
    let mut beside = Vec::new();
    for (in_flight, wanted) in [(64, 1.5), (1_024, 3.0)] {
        let (mut rates, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (rate, their) = (drain(&mut ours, in_flight, time).await?, drain(&mut by_hand, in_flight, time).await?);
            rates.push(rate / 1e3);
            theirs.push(their / 1e3);
            ratios.push(rate / their);
        }
        let line = |what: String, values: Vec<f64>, unit, wanted| {
            let (value, spread) = median(values);
            Figure { what, value, unit, wanted, more: true, spread }
        };
        beside.push(theirs.iter().sum::<f64>() / theirs.len() as f64);
        figures.push(line(format!("on PostgreSQL, drain with {in_flight}"), rates, "k jobs/s", None));
        figures.push(line(format!("`skip locked` by hand, drain with {in_flight}"), theirs, "k jobs/s", None));
        figures.push(line(format!("the first over the second, {in_flight} in flight"), ratios, "×", Some(wanted)));
    }
    drop(by_hand);
    let alone = drain(&mut ours, 64, time).await?;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    let connection = tokio::spawn(connection);
    client.batch_execute("begin isolation level repeatable read; select count(*) from onward.batch").await?;
    let (begun, open_for) = (Instant::now(), Duration::from_secs(if quick { 10 } else { 60 }));
    let mut while_open = alone;
    while begun.elapsed() < open_for {
        while_open = drain(&mut ours, 64, time).await?;
    }
    client.batch_execute("rollback").await?;
    let after = drain(&mut ours, 64, time).await?;
    drop(client);
    connection.await??;
    figures.push(Figure {
        what: format!(
            "drain with 64 beside a transaction that is open for {} s, over that without",
            open_for.as_secs()
        ),
        value: while_open / f64::midpoint(alone, after),
        unit: "×",
        wanted: Some(0.9),
        more: true,
        spread: None,
    });
    let _follower = NodeProcess::start_on(folders.1.path(), &url)?;
    for (in_flight, by_hand) in [64, 1_024].into_iter().zip(beside) {
        let mut rates = Vec::new();
        for _ in 0..rounds {
            rates.push(drain(&mut ours, in_flight, time).await? / 1e3);
        }
        let (value, spread) = median(rates);
        let over = value / by_hand;
        figures.push(Figure {
            what: format!("with one who follows, drain with {in_flight} ({over:.2} × by hand)"),
            value,
            unit: "k jobs/s",
            wanted: None,
            more: true,
            spread,
        });
    }
    Ok(figures)
}
