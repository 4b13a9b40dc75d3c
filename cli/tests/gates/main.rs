//! Gates and datacenters as real processes: a job runs where it was routed, and ends in all its datacenters by one decision,
//! whatever is killed or cut off meanwhile.

mod certificates;
mod decisions;
mod gossip;
mod late_orders;
mod outages;
mod page;
mod puppet;
mod routing;
mod succession;
#[path = "../support/mod.rs"]
mod support;
mod whole_world;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use onward_testkit::{ManagerOfDatacenter, World, WorldOptions};
use serde_json::{Value, json};
use support::PATIENCE;
use support::http::Client;
use support::process::{Mark, until};

/// Reports come often, and silence is noticed soon: what takes minutes takes seconds here.
const SOON: &str = "gate.progress_every = \"300ms\"\ngate.silent_after = \"3s\"\ngate.fallback_after = \"10m\"\n";
/// How busy the computer is that these tests run on is not what they are about: nobody is turned away for that.
const PATIENT: &str = "[overload]\nrise = { busy = 1e6, stressed = 2e6, overloaded = 3e6 }\nlatency_ms = { busy = 1e6, stressed = 2e6, overloaded = 3e6 }\nresource_percent = { busy = 1e6, stressed = 2e6, overloaded = 3e6 }\n";
/// The time for an end after a decision: workers have 10 s to end a process that does not obey.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

fn options() -> WorldOptions {
    WorldOptions::of(env!("CARGO_BIN_EXE_onward"))
}

/// One gate, so many datacenters, all of them connected and with a free slot.
async fn world(options: WorldOptions, datacenters: usize) -> World {
    let world = options.datacenters(datacenters).settings(SOON).settings(PATIENT).start().expect("a world");
    are_healthy(&gate(&world), datacenters).await;
    world
}

/// A client of the gate that may submit commands.
struct Gate {
    address: SocketAddr,
    data: PathBuf,
}

fn gate(world: &World) -> Gate {
    Gate { address: world.gates[0].address, data: world.gates[0].data() }
}

impl Gate {
    fn client(&self) -> Client {
        Client::with_token(self.address, &self.data)
    }

    async fn submit(&self, job: &Value) -> String {
        let reply = self.client().post("/v1/jobs", job).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
        reply.json()["id"].as_str().expect("an id").to_owned()
    }

    /// Also while the gate is away.
    async fn job(&self, id: &str) -> Option<Value> {
        let reply = self.client().try_call("GET", &format!("/v1/jobs/{id}"), "").await.ok()?;
        (reply.status == 200).then(|| reply.json())
    }

    /// The job, once `is_so`.
    async fn until_job(&self, id: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        until(what, PATIENCE, async || self.job(id).await.filter(&is_so)).await
    }

    async fn ended(&self, id: &str) -> Value {
        self.until_job(id, "the job ends", |job| !job["ended_at"].is_null()).await
    }
}

/// Waits until so many datacenters may be routed to.
async fn are_healthy(gate: &Gate, count: usize) {
    until("the datacenters are healthy", PATIENCE, async || {
        let reply = gate.client().try_call("GET", "/v1/datacenters", "").await.ok()?;
        let body = reply.json();
        let all = body["datacenters"].as_array()?;
        (all.iter().filter(|known| known["health"] == "healthy").count() >= count).then_some(())
    })
    .await;
}

/// A job of one command, known by its mark.
fn command(script: &str, mark: &Mark, more: Value) -> Value {
    let (name, value) = mark.variable();
    let mut job = json!({
        "kind": "exec",
        "payload": { "argv": ["sh", "-c", script], "env": { name: value } },
        "retry": { "max_attempts": 1 },
    });
    for (field, value) in more.as_object().expect("fields") {
        job[field] = value.clone();
    }
    job
}

/// The job in a datacenter, as the gate shows it.
fn in_datacenter<'a>(job: &'a Value, name: &str) -> &'a Value {
    let all = job["datacenters"].as_array().expect("datacenters");
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name} is not in {job}"))
}

/// The job as the manager of a datacenter shows it.
async fn at_manager(manager: &ManagerOfDatacenter, id: &str) -> Value {
    let reply = Client::new(manager.address).get(&format!("/v1/jobs/{id}")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn all_confirmed(job: &Value) -> bool {
    job["datacenters"].as_array().is_some_and(|all| all.iter().all(|one| one["confirmed"] == true))
}
