//! Commands on workers that are killed, frozen and cut off: each job is done once, and nothing stays behind.

mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::Client;
use support::jobs::{attempts, ended, facts, ledger, now, outcomes, refusals, shell, show, span, submit};
use support::process::{Mark, until, with_gaps};
use support::worker::Worker;
use support::{Node, PATIENCE, a_moment, onward, own_loopback};
use tempfile::TempDir;

/// Ignores SIGTERM, and so does what it has put into a session of its own.
const STUBBORN: &str = "trap '' TERM; setsid sh -c 'sleep 81; sleep 82' & sleep 83; sleep 84";

/// Who is gone, or holds a lease of 12 s, is without its job after this.
const REDELIVERED_WITHIN: Duration = Duration::from_secs(15);

/// A folder for files that commands and the test leave for each other, beside the node's data.
struct NodeAddress {
    folder: TempDir,
}

impl NodeAddress {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// A node with leases so short that a test can wait for their end.
    fn with_short_leases() -> Self {
        let place = Self::new();
        std::fs::create_dir(place.data()).unwrap();
        // And so long that one who is not frozen keeps its own, on a busy computer too.
        let settings = "[lease]\ninitial = '12s'\nextension = '12s'\ninterval = '1s'\n";
        std::fs::write(place.data().join("onward.toml"), settings).unwrap();
        place
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn touch(&self, name: &str) {
        std::fs::write(self.at(name), "").unwrap();
    }

    /// Lines that commands have written so far.
    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.at(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    async fn has_lines(&self, name: &str, count: usize, within: Duration) -> Vec<String> {
        until(&format!("{count} lines in {name}"), within, async || {
            Some(self.lines(name)).filter(|lines| lines.len() >= count)
        })
        .await
    }

    /// The time for which the node could not run at all, as it has noticed itself: its clocks do not count that.
    fn gaps(&self) -> Duration {
        let lines = self.lines("log");
        let of = |line: &String| line.split_once("gap_ms=")?.1.split_whitespace().next()?.parse::<u64>().ok();
        Duration::from_millis(lines.iter().filter_map(of).sum())
    }

    /// A node whose log goes to this folder.
    fn node(&self, listen: &str, slots: &str, mark: &Mark) -> Node {
        let log = std::fs::File::options().create(true).append(true).open(self.at("log")).unwrap();
        let mut command = onward(&["up", "--slots", slots, "--listen", listen, "--grace", "500ms", "--data"]);
        mark.put(command.arg(self.data()).env("ONWARD_LOG", "warn").stderr(log));
        Node::start_as(command)
    }

    /// A script that runs in this folder.
    fn job(&self, script: &str, more: &Value) -> Value {
        shell(&format!("cd '{}'; {script}", self.folder.path().display()), &[], more)
    }
}

async fn is_connected(client: &mut Client, id: &str, connected: bool) {
    until(&format!("{id} is connected: {connected}"), PATIENCE, async || {
        let nodes = client.get("/v1/nodes").await.json();
        let mut nodes = nodes["nodes"].as_array()?.iter();
        nodes.any(|node| node["id"] == id && node["connected"] == connected).then_some(())
    })
    .await;
}

fn with_retries() -> Value {
    json!({ "retry": { "max_attempts": 5, "base_s": 0.01, "max_s": 0.05 } })
}

#[tokio::test]
async fn a_killed_workers_job_goes_to_another_and_is_done_once() {
    let (place, mark) = (NodeAddress::new(), Mark::new());
    let node = place.node(&own_loopback(), "0", &mark);
    let mut client = Client::with_token(node.address, &place.data());
    let mut first = Worker::start(&node.url, &place.data(), "first", &["--slots", "1"]);
    // Only a successor finds the file.
    let script = "echo $ONWARD_FENCE >> begun; while [ ! -e go ]; do sleep 0.1; done; echo $ONWARD_FENCE >> done";
    let id = submit(&mut client, &place.job(script, &with_retries())).await;
    place.has_lines("begun", 1, PATIENCE).await;
    let second = Worker::start(&node.url, &place.data(), "second", &["--slots", "1"]);
    // One of one would not be evicted.
    is_connected(&mut client, "second", true).await;
    first.kill();
    is_connected(&mut client, "first", false).await;
    let missed = now(&mut client).await;
    first.mark.gone(PATIENCE).await;
    let begun = place.has_lines("begun", 2, PATIENCE).await;
    place.touch("go");
    let job = ended(&mut client, &id, PATIENCE).await;
    assert_eq!(job["state"], "succeeded", "{job}");
    let attempts = attempts(&job);
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert_eq!((&*attempts[0].worker, &*attempts[1].worker), ("first", "second"));
    assert_eq!(attempts[1].outcome, "succeeded");
    // Nobody has waited for the end of its lease, which is far longer.
    let took = span(missed, attempts[1].started_at);
    assert!(took <= REDELIVERED_WITHIN + place.gaps(), "redelivered after {took:?}: {job}");
    let fences: Vec<String> = attempts.iter().map(|attempt| attempt.fence.to_string()).collect();
    assert_eq!(begun, fences);
    assert_eq!(place.lines("done"), [fences[1].clone()], "it was finished once, by its last holder");
    second.is_alone(PATIENCE).await;
}

/// The worker is frozen past its lease, somebody else has its job, and then it wakes up.
async fn thaw(first_goes_on: bool) {
    let (place, mark) = (NodeAddress::with_short_leases(), Mark::new());
    let node = place.node(&own_loopback(), "0", &mark);
    let mut client = Client::with_token(node.address, &place.data());
    // A command that has ended is no less successful because its worker, which does not know that yet, stops it. But it
    // must have the time to find out.
    let grace = if first_goes_on { "500ms" } else { "10m" };
    let log = std::fs::File::create(place.at("first.log")).unwrap().into();
    let more = ["--slots", "1", "--grace", grace, "--log-format", "json"];
    let first = Worker::start_logging(&node.url, &place.data(), "first", &more, ("warn", log));
    // Each attempt says who it is, and waits for leave to end.
    let script = format!(
        "onward result \"\\\"attempt $ONWARD_ATTEMPT\\\"\"; echo $ONWARD_FENCE >> begun; {}
         while [ ! -e leave-$ONWARD_ATTEMPT ]; do echo tick; sleep 0.1; done; echo $ONWARD_FENCE >> done",
        if first_goes_on { "trap '' TERM; setsid sleep 1000 &" } else { "" },
    );
    let id = submit(&mut client, &place.job(&script, &with_retries())).await;
    place.has_lines("begun", 1, PATIENCE).await;
    first.signal(Signal::STOP);
    let frozen = now(&mut client).await;
    if !first_goes_on {
        place.touch("leave-1");
        place.has_lines("done", 1, PATIENCE).await;
    }
    let second = Worker::start(&node.url, &place.data(), "second", &["--slots", "1"]);
    place.has_lines("begun", 2, PATIENCE).await;
    let job = show(&mut client, &id).await;
    assert_eq!(outcomes(&job), ["lease_expired", ""]);
    let took = span(frozen, attempts(&job)[0].ended_at.expect("it has ended"));
    assert!(took <= REDELIVERED_WITHIN + place.gaps(), "the lease was over after {took:?}: {job}");
    first.signal(Signal::CONT);
    first.is_alone(PATIENCE).await;
    if !first_goes_on {
        let answer = until("the result of the first is answered", PATIENCE, async || {
            place.lines("first.log").into_iter().find(|line| line.contains("outcome refused") && line.ends_with('}'))
        })
        .await;
        assert!(answer.contains(&id) && answer.contains("stale_attempt"), "{answer}");
        // A beat may have been on its way when the worker froze. Then that was refused first, and of several refusals of
        // one kind the ledger tells the first.
        let ledger = ledger(&mut client, &id).await;
        let refused = ledger.iter().find(|entry| entry["what"] == "refused").expect("the ledger tells of it");
        assert_eq!(refused["refusal"], "stale_attempt", "{refused}");
        assert_eq!(refused["fence"].to_string(), place.lines("begun")[0], "{refused}");
        assert!(refusals(&mut client, "stale_attempt").await >= 1);
    }

    assert_eq!(show(&mut client, &id).await["state"], "running", "its successor goes on undisturbed");
    place.touch("leave-2");
    let job = ended(&mut client, &id, PATIENCE).await;
    assert_eq!((&job["state"], &job["result"]), (&json!("succeeded"), &json!("attempt 2")), "{job}");
    assert_eq!(outcomes(&job), ["lease_expired", "succeeded"]);
    assert_eq!(place.lines("begun").len(), 2);
    first.is_alone(PATIENCE).await;
    second.is_alone(PATIENCE).await;

    // It was no death: the first one works again.
    let again = submit(&mut client, &place.job("while [ ! -e both ]; do sleep 0.1; done", &json!({}))).await;
    let another = submit(&mut client, &place.job("while [ ! -e both ]; do sleep 0.1; done", &json!({}))).await;
    until("both workers work", PATIENCE, async || {
        let (one, two) = (show(&mut client, &again).await, show(&mut client, &another).await);
        (one["state"] == "running" && two["state"] == "running").then_some(())
    })
    .await;
    place.touch("both");
    for id in [again, another] {
        assert_eq!(ended(&mut client, &id, PATIENCE).await["state"], "succeeded");
    }
}

#[tokio::test]
async fn the_result_of_a_frozen_worker_is_refused_when_it_wakes() {
    thaw(false).await;
}

#[tokio::test]
async fn what_a_frozen_worker_still_runs_is_ended_when_it_wakes() {
    thaw(true).await;
}

#[tokio::test]
async fn nothing_survives_a_killed_node_and_its_jobs_run_again() {
    let (place, mark) = (NodeAddress::new(), Mark::new());
    let first = place.node(&own_loopback(), "2", &mark);
    let mut client = Client::with_token(first.address, &place.data());
    let script = format!("echo $ONWARD_FENCE >> \"$0\"; [ -e go ] || {{ {STUBBORN}; }}");
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        let mut job = place.job(&script, &with_retries());
        job["payload"]["argv"].as_array_mut().unwrap().push(json!(name));
        ids.push(submit(&mut client, &job).await);
    }
    mark.runs("sleep", 4).await;
    first.kill();
    mark.gone(PATIENCE).await;

    place.touch("go");
    let mark = Mark::new();
    let second = place.node(&own_loopback(), "2", &mark);
    let mut client = Client::with_token(second.address, &place.data());
    for (id, name) in ids.iter().zip(["a", "b"]) {
        let job = ended(&mut client, id, PATIENCE).await;
        assert_eq!(job["state"], "succeeded", "{job}");
        let fences: Vec<u64> = attempts(&job).iter().map(|attempt| attempt.fence).collect();
        let ran: Vec<u64> = place.lines(name).iter().map(|line| line.parse().unwrap()).collect();
        assert_eq!((ran.len(), &ran), (2, &fences), "{job}");
        assert!(fences[0] < fences[1]);
    }
}

#[tokio::test]
async fn a_job_runs_again_only_when_nothing_of_a_killed_node_runs_any_more() {
    let (place, mark) = (NodeAddress::new(), Mark::new());
    let start = || {
        let mut command = onward(&["up", "--slots", "2", "--listen", &own_loopback(), "--grace", "4s", "--data"]);
        mark.put(command.arg(place.data()));
        Node::start_as(command)
    };
    let first = start();
    let mut client = Client::with_token(first.address, &place.data());
    // The first attempt stays until it is killed; the second looks whether it is there.
    let script = "trap '' TERM; if [ $ONWARD_ATTEMPT = 1 ]; then echo $$ > pid; while :; do sleep 0.05; done; fi
        if kill -0 $(cat pid) 2>/dev/null; then echo beside > how; else echo after > how; fi";
    let id = submit(&mut client, &place.job(script, &with_retries())).await;
    place.has_lines("pid", 1, PATIENCE).await;
    first.kill();
    let second = start();
    let mut client = Client::with_token(second.address, &place.data());
    // It keeps no other job waiting.
    let other = submit(&mut client, &shell("true", &[], &json!({}))).await;
    assert_eq!(ended(&mut client, &other, PATIENCE).await["state"], "succeeded");
    let job = ended(&mut client, &id, PATIENCE).await;
    assert_eq!((&job["state"], outcomes(&job).len()), (&json!("succeeded"), 2), "{job}");
    assert_eq!(place.lines("how"), ["after"], "{job}");
}

#[tokio::test]
async fn a_cancelled_command_is_gone_after_its_grace_however_it_resists() {
    let (place, mark) = (NodeAddress::new(), Mark::new());
    let node = place.node(&own_loopback(), "2", &mark);
    let mut client = Client::with_token(node.address, &place.data());
    let mut jobs = Vec::new();
    for script in ["trap '' TERM; while :; do sleep 86; done", STUBBORN] {
        let own = Mark::new();
        let job = shell(script, &[own.variable()], &json!({}));
        jobs.push((submit(&mut client, &job).await, own));
    }
    jobs[0].1.runs("sleep", 1).await;
    jobs[1].1.runs("sleep", 2).await;
    for (id, _) in &jobs {
        let reply = client.post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    for (id, own) in &jobs {
        own.gone(PATIENCE).await;
        let job = ended(&mut client, id, PATIENCE).await;
        assert_eq!((&job["state"], outcomes(&job).len()), (&json!("cancelled"), 1), "{job}");
        let facts = facts(&ledger(&mut client, id).await);
        assert!(facts.contains(&"cancel_asked".to_owned()), "{facts:?}");
    }
}

#[tokio::test]
async fn the_first_interrupt_drains_and_the_second_stops_at_once() {
    let (place, mark) = (NodeAddress::new(), Mark::new());
    let mut first = place.node(&own_loopback(), "2", &mark);
    let mut client = Client::with_token(first.address, &place.data());
    let id = submit(&mut client, &place.job("echo b >> begun; sleep 2; echo d >> done", &json!({}))).await;
    place.has_lines("begun", 1, PATIENCE).await;
    first.signal(Signal::INT);
    assert_eq!(first.ended(PATIENCE).await, Some(0));
    assert_eq!(place.lines("done").len(), 1, "it was let finish");
    assert_eq!(mark.carriers(), []);

    let mut command = onward(&["up", "--slots", "2", "--listen", &own_loopback(), "--grace", "500ms", "--data"]);
    command.arg(place.data()).stderr(std::fs::File::create(place.at("said")).unwrap());
    mark.put(&mut command);
    let mut second = Node::start_as(command);
    let mut client = Client::with_token(second.address, &place.data());
    let job = show(&mut client, &id).await;
    assert_eq!((&job["state"], outcomes(&job).len()), (&json!("succeeded"), 1), "{job}");
    submit(&mut client, &shell(STUBBORN, &[], &json!({}))).await;
    mark.runs("sleep", 2).await;
    second.signal(Signal::INT);
    until("it has heard the first", PATIENCE, async || {
        place.lines("said").iter().any(|line| line.contains("press Ctrl-C again to stop now")).then_some(())
    })
    .await;
    let (moment, asked) = (a_moment(), Instant::now());
    second.signal(Signal::INT);
    let (code, gaps) = with_gaps(second.ended(PATIENCE)).await;
    let took = asked.elapsed();
    assert_eq!(code, Some(130));
    assert!(took < moment.max(a_moment()) + gaps, "it took {took:?}");
    mark.gone(PATIENCE).await;
}

#[tokio::test]
async fn a_worker_and_its_command_outlive_a_restart_of_the_node() {
    let (place, mark) = (NodeAddress::new(), Mark::new());
    let first = place.node(&own_loopback(), "0", &mark);
    let address = first.address;
    let mut client = Client::with_token(address, &place.data());
    let worker = Worker::start(&first.url, &place.data(), "far", &["--slots", "1"]);
    let script = "echo $$ >> begun; while [ ! -e go ]; do echo tick; sleep 0.1; done; echo $$ >> done";
    let id = submit(&mut client, &place.job(script, &with_retries())).await;
    let begun = place.has_lines("begun", 1, PATIENCE).await;
    let fence = attempts(&show(&mut client, &id).await)[0].fence;
    first.kill();
    let second = place.node(&address.to_string(), "0", &mark);
    let mut client = Client::with_token(second.address, &place.data());
    is_connected(&mut client, "far", true).await;
    place.touch("go");
    let job = ended(&mut client, &id, PATIENCE).await;
    assert_eq!((&job["state"], outcomes(&job)), (&json!("succeeded"), vec!["succeeded".to_owned()]), "{job}");
    assert_eq!(attempts(&job)[0].fence, fence, "the same attempt");
    assert_eq!((place.lines("begun"), place.lines("done")), (begun.clone(), begun), "one process from begin to end");
    worker.is_alone(PATIENCE).await;
}
