//! Three managers on PostgreSQL with a synchronous standby, real processes, under load: whatever fails, nothing that was
//! answered is taken back, and work goes on.
//!
//! The load and the record of what was answered are those of the tests that kill a single node. Each test makes one kind
//! of failure; the times that must hold are in the assertions.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::load::{Stretch, Submitter, Worker, read};
use crate::number;
use crate::record::{Record, is_doomed, is_terminal};
use crate::steady::Steady;
use crate::support::http::Client;
use crate::support::process::until;
use crate::support::{Dice, PATIENCE, onward, own_loopback};
use onward_testkit::{Cluster, ClusterOptions};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const SUBMITTERS: u64 = 12;
const WORKERS: u64 = 8;
const READERS: u64 = 4;

pub fn options() -> ClusterOptions {
    ClusterOptions::of(env!("CARGO_BIN_EXE_onward"))
}

pub fn addresses(cluster: &Cluster) -> Vec<SocketAddr> {
    cluster.managers.iter().map(|manager| manager.address).collect()
}

/// The manager's own status; none if it does not answer.
pub async fn status(address: SocketAddr) -> Option<Value> {
    let asked = async { Client::new(address).try_call("GET", "/status", "").await };
    let reply = tokio::time::timeout(Duration::from_secs(2), asked).await.ok()?.ok()?;
    (reply.status == 200).then(|| reply.json())
}

pub async fn probe(address: SocketAddr, path: &str) -> Option<u16> {
    let asked = async { Client::new(address).try_call("GET", path, "").await };
    tokio::time::timeout(Duration::from_secs(2), asked).await.ok()?.ok().map(|reply| reply.status)
}

/// The manager that leads, and its term, once there is one that is not among `but`.
pub async fn leader(cluster: &Cluster, but: &[usize]) -> (usize, u64) {
    until("a manager leads", PATIENCE, async || {
        for (index, manager) in cluster.managers.iter().enumerate().filter(|(index, _)| !but.contains(index)) {
            let Some(status) = status(manager.address).await else { continue };
            if status["role"] == "leader" && status["manager"]["seat"] == "serving" {
                return Some((index, status["term"].as_u64().unwrap_or_default()));
            }
        }
        None
    })
    .await
}

/// What is added to a bound because this computer is busy with other things: as long as it now takes to start and end the
/// binary twenty times, which is a fraction of a second where nothing else runs.
fn slack() -> Duration {
    let began = Instant::now();
    assert!(onward(&["--version"]).output().expect("the binary is there").status.success());
    20 * began.elapsed()
}

/// Kind of jobs that are there to be handed out first by whoever leads next.
const FIRST: &str = "first";

/// Submits a job that only [`first_dispatch`] asks for.
async fn prepare_first(address: SocketAddr) {
    let reply = Client::new(address).post("/v1/jobs", &json!({ "kind": FIRST })).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
}

/// Asks this manager for such a job until it hands one out.
async fn first_dispatch(address: SocketAddr) {
    let poll = json!({
        "worker_id": FIRST, "incarnation": "1", "kinds": [FIRST], "max": 1, "wait_s": 0, "lease_s": 5,
    })
    .to_string();
    until("a job is handed out", PATIENCE, async || {
        let asked = async { Client::new(address).try_call("POST", "/v1/leases", &poll).await };
        let reply = tokio::time::timeout(Duration::from_secs(2), asked).await.ok()?.ok()?;
        (reply.status == 200 && reply.json()["leases"][0]["receipt"].is_string()).then_some(())
    })
    .await;
}

/// Ends what is left of these jobs.
async fn cancel_first(address: SocketAddr) {
    let reply = Client::new(address).post("/v1/jobs/cancel", &json!({ "kind": FIRST })).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// Clients of every manager, until they are told to stop.
struct Load {
    stretch: Arc<Stretch>,
    submitters: Vec<JoinHandle<Submitter>>,
    workers: Vec<JoinHandle<Worker>>,
    readers: Vec<JoinHandle<()>>,
}

impl Load {
    fn on(addresses: &[SocketAddr]) -> Self {
        Self::round(addresses, 0)
    }

    /// Each round has clients of its own.
    fn round(addresses: &[SocketAddr], round: u64) -> Self {
        let stretch = Stretch::among(addresses, i64::MAX);
        let of_round = |count: u64| (1..=count).map(move |index| index + 100 * round);
        Self {
            submitters: of_round(SUBMITTERS)
                .map(|index| tokio::spawn(Submitter::new(index, 7).run(stretch.clone())))
                .collect(),
            workers: of_round(WORKERS).map(|index| tokio::spawn(Worker::new(index, 7).run(stretch.clone()))).collect(),
            readers: (1..=READERS).map(|index| tokio::spawn(read(stretch.clone(), Dice::new(index)))).collect(),
            stretch,
        }
    }

    fn answers(&self) -> u64 {
        self.stretch.answers.load(Ordering::Relaxed) - self.stretch.told_later.load(Ordering::Relaxed)
    }

    /// Waits until so many more calls were answered by something else than that nobody leads.
    async fn goes_on(&self, more: u64) {
        let before = self.answers();
        until("work goes on", PATIENCE, async || (self.answers() >= before + more).then_some(())).await;
    }

    /// No more failures: what is in doubt is settled, all jobs end, and all that was answered is true, whoever leads.
    async fn end(self, cluster: &Cluster) -> usize {
        let addresses = addresses(cluster);
        let all = self.settle(&addresses).await;
        for manager in &cluster.managers {
            let to = json!({ "to": manager.name });
            until("it leads", PATIENCE, async || {
                let reply = Client::new(manager.address).post("/v1/leader/transfer", &to).await;
                let leads_already = reply.code() == "cannot_transfer" && reply.text().contains("leads already");
                (reply.status == 200 || leads_already).then_some(())
            })
            .await;
            until("it serves", PATIENCE, async || {
                (status(manager.address).await?["manager"]["seat"] == "serving").then_some(())
            })
            .await;
            none(&all.broken(manager.address).await);
        }
        all.jobs.len()
    }

    /// The same, asked of these managers, whoever leads now.
    async fn end_at(self, addresses: &[SocketAddr]) {
        let all = self.settle(addresses).await;
        for address in addresses {
            none(&all.broken(*address).await);
        }
    }

    async fn settle(self, addresses: &[SocketAddr]) -> Record {
        self.stretch.over.store(true, Ordering::Relaxed);
        let (mut submitters, mut workers) = (Vec::new(), Vec::new());
        for one in self.submitters {
            submitters.push(one.await.unwrap());
        }
        for one in self.workers {
            workers.push(one.await.unwrap());
        }
        for one in self.readers {
            one.await.unwrap();
        }
        let stretch = Arc::into_inner(self.stretch).expect("nobody else has it any more");
        let mut all: Record = stretch.record.into_inner().unwrap();
        drain(addresses, submitters, workers, &mut all).await;
        none(&all.contradictions());
        assert!(all.jobs.len() > 50, "only {} jobs", all.jobs.len());
        all
    }
}

async fn drain(addresses: &[SocketAddr], submitters: Vec<Submitter>, workers: Vec<Worker>, all: &mut Record) {
    let stretch = Stretch::among(addresses, 0);
    let working: Vec<_> = workers.into_iter().map(|one| tokio::spawn(one.run(stretch.clone()))).collect();
    let submitting: Vec<_> = submitters.into_iter().map(|one| tokio::spawn(one.settle(stretch.clone()))).collect();
    for one in submitting {
        one.await.unwrap();
    }
    until("all jobs have ended", PATIENCE, async || {
        let reply = Client::new(addresses[0]).try_call("GET", "/v1/queues", "").await.ok()?;
        (reply.status == 200 && has_drained(&reply.json())).then_some(())
    })
    .await;
    stretch.over.store(true, Ordering::Relaxed);
    for one in working {
        one.await.unwrap();
    }
    let stretch = Arc::into_inner(stretch).expect("nobody else has it any more");
    all.merge(stretch.record.into_inner().unwrap());
    for job in all.jobs.values_mut() {
        let state = if job.number.is_some_and(is_doomed) { "failed" } else { "succeeded" };
        job.ended = Some(state.into());
    }
}

/// Whether all jobs of the queue that these clients use have ended; others may have theirs.
fn has_drained(shown: &Value) -> bool {
    let queues = shown["queues"].as_array().expect("a list").iter().filter(|queue| queue["name"] == "default");
    let mut counts = queues.flat_map(|queue| queue["counts"].as_object().expect("counts"));
    counts.all(|(state, count)| is_terminal(state) || *count == 0)
}

fn none(found: &[String]) {
    let first = found.iter().take(10).cloned().collect::<Vec<_>>().join("\n  ");
    assert!(found.is_empty(), "{} answers are not true any more:\n  {first}", found.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_killed_is_replaced_at_once() {
    let cluster = options().standby().start().unwrap();
    let addresses = addresses(&cluster);
    let (mut led, mut term) = leader(&cluster, &[]).await;
    let load = Load::on(&addresses);
    for _ in 0..3 {
        load.goes_on(200).await;
        prepare_first(addresses[led]).await;
        cluster.managers[led].server.kill();
        let killed = Instant::now();
        first_dispatch(addresses[(led + 1) % 3]).await;
        let took = killed.elapsed();
        assert!(took < Duration::from_secs(3) + slack(), "nothing was handed out for {took:?}");
        let (next, next_term) = leader(&cluster, &[led]).await;
        assert!(next_term > term, "{next_term} after {term}");
        cluster.managers[led].server.start_again().unwrap();
        (led, term) = (next, next_term);
    }
    load.goes_on(200).await;
    cancel_first(addresses[led]).await;
    load.end(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_frozen_finds_another_in_its_place_and_follows() {
    let cluster = options().start().unwrap();
    let addresses = addresses(&cluster);
    let (led, term) = leader(&cluster, &[]).await;
    let load = Load::on(&addresses);
    load.goes_on(200).await;
    prepare_first(addresses[led]).await;
    cluster.managers[led].server.freeze();
    let frozen = Instant::now();
    first_dispatch(addresses[(led + 1) % 3]).await;
    let took = frozen.elapsed();
    assert!(took < Duration::from_secs(6) + slack(), "nothing was handed out for {took:?}");
    let (next, next_term) = leader(&cluster, &[led]).await;
    assert!(next_term > term);
    load.goes_on(200).await;
    while number("ONWARD_SOAK_CASES").is_some() && frozen.elapsed() < Duration::from_secs(30) {
        load.goes_on(10).await;
    }
    cluster.managers[led].server.thaw();
    until("the old leader follows", PATIENCE, async || {
        let status = status(addresses[led]).await?;
        (status["role"] == "follower" && status["leader"]["name"] == cluster.managers[next].name.as_str()).then_some(())
    })
    .await;
    assert_eq!(leader(&cluster, &[]).await, (next, next_term), "nobody fights");
    assert_eq!(seats_lost(addresses[led]).await, 1, "what it still wanted to write was refused, and that is counted");
    load.goes_on(100).await;
    cancel_first(addresses[next]).await;
    load.end(&cluster).await;
}

async fn seats_lost(address: SocketAddr) -> u64 {
    let metrics = Client::new(address).try_call("GET", "/metrics", "").await.unwrap().text();
    let line = metrics.lines().find_map(|line| line.strip_prefix("onward_seats_lost_total "));
    line.expect("it is counted").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_seat_is_handed_over_by_name_and_no_call_fails() {
    let cluster = options().start().unwrap();
    let addresses = addresses(&cluster);
    let (led, term) = leader(&cluster, &[]).await;
    let load = Load::on(&addresses);
    load.goes_on(200).await;
    let (heir, other) = ((led + 1) % 3, (led + 2) % 3);
    let to = json!({ "to": cluster.managers[heir].name });
    // Asked of a manager that does not lead.
    let reply = Client::new(addresses[other]).post("/v1/leader/transfer", &to).await;
    assert_eq!((reply.status, reply.json()["leader"].clone()), (200, to["to"].clone()), "{}", reply.text());
    let (next, next_term) = leader(&cluster, &[led]).await;
    assert!(next == heir && next_term > term, "{next} leads");
    for (to, status, code) in
        [("nobody", 404, "unknown_manager"), (cluster.managers[heir].name.as_str(), 409, "cannot_transfer")]
    {
        let reply = Client::new(addresses[heir]).post("/v1/leader/transfer", &json!({ "to": to })).await;
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{}", reply.text());
    }
    load.goes_on(100).await;
    let (refused, cut_off) = (&load.stretch.told_later, &load.stretch.cut_off);
    assert_eq!((refused.load(Ordering::Relaxed), cut_off.load(Ordering::Relaxed)), (0, 0), "calls failed");
    for address in &addresses {
        assert_eq!(seats_lost(*address).await, 0, "who hands the seat over writes nothing under it afterwards");
    }
    load.end(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_managers_are_restarted_one_after_the_other_and_no_call_fails() {
    let cluster = options().settings("drain.ready_grace = \"300ms\"\n").start().unwrap();
    let addresses = addresses(&cluster);
    leader(&cluster, &[]).await;
    // Our own clients know all managers, and find one that answers by themselves.
    let steady = Steady::begin(&cluster);
    // Other clients of a manager that is being restarted are those of a balancer, which has taken it out by then.
    for (index, manager) in cluster.managers.iter().enumerate() {
        let others: Vec<SocketAddr> =
            addresses.iter().enumerate().filter(|(at, _)| *at != index).map(|(_, one)| *one).collect();
        let load = Load::round(&others, index as u64);
        load.goes_on(100).await;
        manager.server.stop(PATIENCE);
        load.goes_on(100).await;
        manager.server.start_again().unwrap();
        until("it follows", PATIENCE, async || (probe(addresses[index], "/readyz").await == Some(200)).then_some(()))
            .await;
        load.goes_on(100).await;
        let (refused, cut_off) = (&load.stretch.told_later, &load.stretch.cut_off);
        let failed = (refused.load(Ordering::Relaxed), cut_off.load(Ordering::Relaxed));
        assert_eq!(failed, (0, 0), "calls failed while {} was restarted", manager.name);
        load.end_at(&others).await;
    }
    steady.end().await;
}

/// The peer that a leader is cut off from: nothing that either side sends arrives, and no connection is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CutFrom {
    Database,
    Others,
    Both,
}

async fn cut_off_and_replaced(from: CutFrom) {
    let cluster = options().proxies().start().unwrap();
    let addresses = addresses(&cluster);
    let (led, term) = leader(&cluster, &[]).await;
    let manager = &cluster.managers[led];
    // Workers and clients call the managers where these say that they are.
    let called: Vec<SocketAddr> = match from {
        CutFrom::Database => addresses.clone(),
        _ => addresses.iter().copied().filter(|address| *address != addresses[led]).collect(),
    };
    let load = Load::on(&called);
    load.goes_on(200).await;
    let silence = |silent| {
        if from != CutFrom::Others {
            manager.to_databases.iter().for_each(|proxy| proxy.silence(silent));
        }
        if from != CutFrom::Database {
            manager.in_front.as_ref().expect("there are proxies").silence(silent);
        }
    };
    silence(true);
    let cut = Instant::now();
    let (next, next_term) = leader(&cluster, &[led]).await;
    assert!(next_term > term);
    // Two that do not reach each other wait for twice `seat_ttl`, and then look whether a third does.
    let within = Duration::from_secs(if from == CutFrom::Others { 10 } else { 6 });
    assert!(cut.elapsed() < within + slack(), "nobody else led for {:?}", cut.elapsed());
    assert_eq!(probe(manager.listen, "/livez").await, Some(200), "a restart does not help");
    load.goes_on(200).await;
    silence(false);
    let name = cluster.managers[next].name.as_str();
    until("it follows", PATIENCE, async || {
        let status = status(addresses[led]).await?;
        let follows = status["role"] == "follower" && status["leader"]["name"] == name;
        (follows && probe(addresses[led], "/readyz").await == Some(200)).then_some(())
    })
    .await;
    assert_eq!(leader(&cluster, &[]).await.1, next_term, "nobody fights");
    // One that cannot reach the database gives its term up by itself.
    if from == CutFrom::Others {
        assert_eq!(
            seats_lost(addresses[led]).await,
            1,
            "what it still wanted to write was refused, and that is counted"
        );
    }
    load.goes_on(100).await;
    load.end(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_from_the_database_is_replaced() {
    cut_off_and_replaced(CutFrom::Database).await;
}

/// A leader writes on, and nobody gets an answer from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_from_all_but_the_database_is_replaced() {
    cut_off_and_replaced(CutFrom::Others).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_from_everything_is_replaced() {
    cut_off_and_replaced(CutFrom::Both).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_primary_is_lost_the_standby_takes_its_place_with_all_that_was_acknowledged() {
    let cluster = options().standby().start().unwrap();
    let addresses = addresses(&cluster);
    leader(&cluster, &[]).await;
    let load = Load::on(&addresses);
    load.goes_on(300).await;
    // A crash of the database may lose the last second of what attempts print, and nothing else.
    let stored_by = Instant::now() - Duration::from_secs(2);
    cluster.database.server().kill();
    let killed_by = Instant::now();
    let standby = cluster.standby.as_ref().expect("there is one");
    standby.ask("alter system set synchronous_standby_names = ''").unwrap();
    standby.promote().unwrap();
    standby.ask("select pg_reload_conf()").unwrap();
    for address in &addresses {
        assert_eq!(probe(*address, "/livez").await, Some(200), "a restart does not help");
    }
    load.goes_on(300).await;
    load.stretch.record.lock().unwrap().forget_output_between(stored_by, killed_by);
    load.end(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_commits_hang_callers_are_told_so_in_time_and_nobody_is_asked_to_restart() {
    let cluster = options().standby().start().unwrap();
    let addresses = addresses(&cluster);
    let (led, _) = leader(&cluster, &[]).await;
    let standbys = status(addresses[led]).await.expect("it answers")["synchronous_standbys"].clone();
    assert!(standbys.as_str().is_some_and(|names| !names.is_empty()), "commits wait for one: {standbys}");
    let load = Load::on(&addresses);
    load.goes_on(200).await;
    let standby = cluster.standby.as_ref().expect("there is one");
    standby.server().freeze();
    // Who asks the leader now is answered within `seat_ttl`, and a little later through a manager that follows, which
    // looks whether another leads.
    let follower = (led + 1) % 3;
    let ask = async |at: usize, within: Duration| {
        let body = json!({ "kind": "other", "idempotency_key": format!("while it hangs, {at}") });
        let asked = Instant::now();
        let reply = Client::new(addresses[at]).try_call("POST", "/v1/jobs", &body.to_string()).await.unwrap();
        assert_eq!(reply.status, 503, "{}", reply.text());
        assert!(asked.elapsed() < within + slack(), "it took {:?}", asked.elapsed());
    };
    tokio::join!(ask(led, Duration::from_secs(3)), ask(follower, Duration::from_secs(6)));
    // Somebody who gives up waiting for the standby, at the server, makes nothing durable by that.
    let hanging = "select count(pg_cancel_backend(pid)) from pg_stat_activity where wait_event = 'SyncRep'";
    for give_up in [hanging.to_owned(), hanging.replace("pg_cancel_backend", "pg_terminate_backend")] {
        until("a commit waits for the standby", PATIENCE, async || {
            (cluster.database.ask(&give_up).unwrap().trim() != "0").then_some(())
        })
        .await;
    }
    for address in &addresses {
        assert_eq!(probe(*address, "/livez").await, Some(200), "a restart does not help");
    }
    // A manager that is restarted meanwhile takes its place, and is not ready.
    cluster.managers[led].server.kill();
    tokio::task::block_in_place(|| cluster.managers[led].server.start_again()).unwrap();
    assert!(cluster.managers[led].server.said().contains("this node is not ready until that is over"));
    assert_eq!((probe(addresses[led], "/livez").await, probe(addresses[led], "/readyz").await), (Some(200), Some(503)));
    standby.server().thaw();
    load.goes_on(200).await;
    Client::new(addresses[0]).post("/v1/jobs/cancel", &json!({ "kind": "other" })).await;
    load.end(&cluster).await;
}

/// A library that puts the wall clock of a process ahead, by `AHEAD_S` seconds, and leaves its other clocks alone.
fn clock_ahead(folder: &Path) -> String {
    let (source, library) = (folder.join("ahead.c"), folder.join("ahead.so"));
    let text = "#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *ts) {
    int failed = syscall(SYS_clock_gettime, id, ts);
    const char *ahead = getenv(\"AHEAD_S\");
    if (!failed && id == CLOCK_REALTIME && ahead) ts->tv_sec += atol(ahead);
    return failed;
}
";
    std::fs::write(&source, text).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(made.success(), "{made}");
    library.display().to_string()
}

/// Log time would jump: so it does not lead even if nobody else is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_whose_clock_is_five_minutes_off_never_leads() {
    let folder = tempfile::tempdir().unwrap();
    let library = clock_ahead(folder.path());
    let cluster = options().variable_of(3, "LD_PRELOAD", library).variable_of(3, "AHEAD_S", "300").start().unwrap();
    let (addresses, off) = (addresses(&cluster), &cluster.managers[2]);
    let (led, term) = leader(&cluster, &[]).await;
    assert_ne!(led, 2, "its clock is off");
    let load = Load::on(&addresses);
    load.goes_on(200).await;
    let reply = Client::new(addresses[led]).post("/v1/leader/transfer", &json!({ "to": off.name })).await;
    assert_eq!((reply.status, reply.code().as_str()), (409, "cannot_transfer"), "{}", reply.text());
    assert!(reply.text().contains("clock"), "{}", reply.text());
    let others = &cluster.managers[..2];
    others.iter().for_each(|manager| manager.server.kill());
    let alone = Instant::now();
    while alone.elapsed() < Duration::from_secs(8) {
        let status = status(off.address).await.expect("it answers");
        assert_eq!(status["role"], "follower", "{status}");
        assert_eq!(probe(off.address, "/livez").await, Some(200), "a restart does not help");
        sleep(Duration::from_millis(250)).await;
    }
    others.iter().for_each(|manager| manager.server.start_again().unwrap());
    let (next, next_term) = leader(&cluster, &[]).await;
    assert!(next != 2 && next_term > term, "{next} leads");
    load.goes_on(200).await;
    load.end_at(&addresses).await;
}

/// The commands of docs/cluster.md, word for word, and what it says that they print.
#[test]
fn the_page_about_clusters_is_true() {
    let (server, folder) =
        (onward_testkit::PostgresServer::options().fsync().start().unwrap(), tempfile::tempdir().unwrap());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/cluster.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = |kind: &str| -> Vec<&str> {
        page.split(&format!("```{kind}\n")).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
    };
    // The reader's database and managers have ports of their own; so have ours, on an address of our own.
    let (database, own) = (format!("127.0.0.1:{}", server.port()), own_loopback().replace(":0", ""));
    let script =
        block("sh").concat().replace("127.0.0.1:740", &format!("{own}:740")).replace("127.0.0.1:5432", &database);
    let script = format!("trap 'kill -9 $(cat *.pid) 2>/dev/null; wait' EXIT\nset -e\n{script}");
    let file = folder.path().join("script.sh");
    std::fs::write(&file, script).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_onward")).parent().unwrap().display().to_string();
    let path = format!("{binary}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = crate::support::in_own_environment(Command::new("sh"));
    command.arg(&file).current_dir(folder.path()).env("PATH", path);
    command.env("PGHOST", "127.0.0.1").env("PGPORT", server.port().to_string()).env("PGUSER", "onward");
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let log = |n: u32| std::fs::read_to_string(folder.path().join(format!("manager-{n}.log"))).unwrap_or_default();
    assert_eq!(
        text(&output.stdout),
        block("text")[1..].concat(),
        "{}\n{}",
        text(&output.stderr),
        (1..=3).map(log).collect::<String>()
    );
}
