//! `onward gate`: a gate in this process, until it is told to stop.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use onward_health::OpenEye;
use onward_node::server::{GateConfig, GateNode, NodeConfig};
use serde_json::json;

use crate::args::UpArgs;
use crate::cluster::{self, Place, gate_trust};
use crate::config;
use crate::failure::CommandFailure;
use crate::screen::Screen;
use crate::service;
use crate::up::{STOPPED, STOPPING, Stop, flags, log_to_stderr, node_config, not_started, usable};

pub fn run(args: UpArgs, data: Option<PathBuf>, screen: &Screen) -> Result<u8> {
    let (accept_loss, log_format, file) = (args.accept_loss, args.log.log_format, args.config.clone());
    let given = flags(args, data);
    let effective =
        config::load(file.as_deref(), &given, |name| std::env::var_os(name)).map_err(CommandFailure::from)?;
    if !effective.node.gates.is_empty() {
        let failure = CommandFailure::new("a gate has no `gates`")
            .why("managers report to gates; gates of one ring share storage");
        return Err(failure.remedy("name the other gates in `peers`").usage().into());
    }
    let trust = gate_trust(&effective.node)?;
    log_to_stderr(log_format, screen);
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let probes = effective.node.http_probes;
    let (listen, key_file) = (effective.node.listen, effective.node.cluster_key_file.as_deref());
    let gossip = cluster::gossip(key_file, &effective.node.data, listen, Place::of_gate(&effective.node)?)?;
    let node = NodeConfig { gossip, ..node_config(effective, None, None, accept_loss)? };
    let config = GateConfig { node, trust };
    runtime.block_on(serve(config, probes, screen))
}

async fn serve(config: GateConfig, probes: Option<SocketAddr>, screen: &Screen) -> Result<u8> {
    let mut stop = Stop::new()?;
    let (grace, hang_after) = (config.node.drain.grace, config.node.probes.hang_after);
    let gate = tokio::select! {
        started = GateNode::start(config) => started.map_err(|error| not_started(&error))?,
        // Nobody was promised anything yet; the start may wait for a database that is away.
        () = stop.asked() => std::process::exit(0),
    };
    // Held until the end, whichever it is.
    let eye = service::ready(gate.engine().loops(), hang_after, probes)?;
    ready(&gate, eye.as_ref().and_then(OpenEye::probes_address), screen)?;
    stop.asked().await;
    screen.note(STOPPING);
    let finish = async {
        // Nobody may be routed to a gate that is about to go, and another leads before it has gone.
        gate.step_down().await;
        gate.shutdown(grace).await;
    };
    tokio::select! {
        () = finish => Ok(0),
        // Everything that was answered is durable; what is under way is cut.
        () = stop.asked() => std::process::exit(i32::from(STOPPED)),
    }
}

fn ready(gate: &GateNode, probes: Option<SocketAddr>, screen: &Screen) -> Result<()> {
    let url = usable(&gate.url(), gate.address());
    let probes = probes.map(|address| format!("http://{address}"));
    if screen.json {
        let mut line = json!({ "ready": url });
        if let Some(probes) = probes {
            line["probes"] = probes.into();
        }
        return screen.json_line(&line);
    }
    screen.line(format!("onward: ready on {url}"))?;
    if let Some(probes) = probes {
        screen.line(format!("onward: probes on {probes}"))?;
    }
    let server = if url == crate::args::DEFAULT_SERVER { String::new() } else { format!(" --server {url}") };
    screen.line("\nTry next, in another terminal:")?;
    screen.line(format!("  onward{server} datacenter list"))?;
    screen.line(format!("  onward{server} submit --wait -- sh -c 'echo hello; sleep 2'"))?;
    screen.line(format!("  onward{server} list"))
}
