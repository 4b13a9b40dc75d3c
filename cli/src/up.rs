//! `onward up`: a node in this process, until it is told to stop.

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use onward::Client;
use onward_health::OpenEye;
use onward_node::auth::read_or_make_token;
use onward_node::server::{Node, NodeConfig, StartError};
use onward_node::traces::Endpoint;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinError, JoinHandle};
use tracing::level_filters::LevelFilter;

use crate::args::{LogFormat, UpArgs};
use crate::cluster::{self, Place};
use crate::config::{self, Effective};
use crate::demo::Cast;
use crate::failure::CommandFailure;
use crate::screen::Screen;
use crate::service;
use crate::work::handler::Manner;
use crate::work::inside;
use crate::work::serve::{Commands, serve};

/// The exit code of what was stopped by a second signal.
pub const STOPPED: u8 = 130;
pub const STOPPING: &str = "onward: shutting down, waiting for running work; press Ctrl-C again to stop now";

pub fn run(args: UpArgs, data: Option<PathBuf>, screen: &Screen) -> Result<u8> {
    let (with_demo, accept_loss, log_format) = (args.demo, args.accept_loss, args.log.log_format);
    let (config, commit_mark, manner) = (args.config.clone(), args.commit_mark.clone(), Manner::from(&args.exec));
    let mut given = config::set(&args.set)?;
    given.extend(flags(args, data));
    let effective =
        config::load(config.as_deref(), &given, |name| std::env::var_os(name)).map_err(CommandFailure::from)?;
    let slots = effective.node.slots;
    let stop_within = worker_share(effective.node.drain.grace);
    let commands = Commands { id: Some("local".into()), slots, queues: Vec::new(), manner, stop_within };
    let traces = trace_endpoint()?;
    log_to_stderr(log_format, screen);
    // Deciding and committing have threads of their own; on few processors more would only be in their way.
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let probes = effective.node.http_probes;
    let (listen, key_file) = (effective.node.listen, effective.node.cluster_key_file.as_deref());
    let gossip = cluster::gossip(key_file, &effective.node.data, listen, Place::of_manager(&effective.node)?)?;
    let config = NodeConfig { gossip, ..node_config(effective, traces, commit_mark, accept_loss)? };
    runtime.block_on(up(config, probes, commands, with_demo, screen))
}

/// Writes the node's log: `ONWARD_LOG` is `error`, `warn`, `info` (the default), `debug`, `trace` or `off`;
/// lines of JSON where they, or output, are asked for in JSON.
pub fn log_to_stderr(format: LogFormat, screen: &Screen) {
    let given = std::env::var("ONWARD_LOG").ok();
    let level = given.as_deref().unwrap_or("info").parse().unwrap_or(LevelFilter::INFO);
    let lines = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    let set = if screen.json || format == LogFormat::Json {
        lines.json().flatten_event(true).try_init()
    } else {
        lines.with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()).try_init()
    };
    if let Err(error) = set {
        screen.note(format!("onward: no log lines: {error}"));
    }
}

/// Settings that were given as flags, by their names.
pub fn flags(args: UpArgs, data: Option<PathBuf>) -> Vec<(String, String)> {
    let path = |path: PathBuf| path.to_string_lossy().into_owned();
    let data = data.filter(|data| std::env::var_os("ONWARD_DATA").is_none_or(|given| given != *data));
    let given = [
        ("listen", args.listen.map(|listen: SocketAddr| listen.to_string())),
        ("data", data.map(path)),
        ("storage", args.storage),
        ("slots", args.slots.map(|slots| slots.to_string())),
        ("require_tokens", args.require_tokens.then(|| "true".into())),
        ("insecure", args.insecure.then(|| "true".into())),
        ("host_names", (!args.host_names.is_empty()).then(|| args.host_names.join(","))),
        ("tls.cert", args.tls_cert.map(path)),
        ("tls.key", args.tls_key.map(path)),
    ];
    given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The time that the node itself needs after its worker has ended.
const NODE_SHARE: Duration = Duration::from_secs(2);

/// The part of the time to stop that the local worker may use.
fn worker_share(grace: Duration) -> Duration {
    grace - NODE_SHARE.min(grace / 10)
}

/// The failure with the options that help, which the node does not know.
pub fn not_started(error: &StartError) -> CommandFailure {
    let failure = CommandFailure::new("the node did not start").why(error);
    match error {
        StartError::Exposed { .. } => failure.remedy(
            "`onward certs new --host NAME --out DIR` makes a certificate for --tls-cert DIR/cert.pem --tls-key DIR/key.pem;\n\
             --require-tokens asks for tokens, and `onward token new` makes them",
        ),
        StartError::Listen { .. } => failure.remedy(
            "`onward status` tells whether a node runs here already; --listen ADDRESS:PORT names another port",
        ),
        StartError::Database { .. } => failure.remedy(
            "docs/storage.md says what a database must be; `onward config` shows which one is meant, and where that was set",
        ),
        _ => failure,
    }
}

async fn up(
    config: NodeConfig,
    probes: Option<SocketAddr>,
    commands: Commands,
    with_demo: bool,
    screen: &Screen,
) -> Result<u8> {
    let mut stop = Stop::new()?;
    let data = config.data.clone();
    let (grace, hang_after) = (config.drain.grace, config.probes.hang_after);
    let node = tokio::select! {
        started = Node::start(config) => started.map_err(|error| not_started(&error))?,
        // Nobody was promised anything yet; the start may wait for a database that is away.
        () = stop.asked() => std::process::exit(0),
    };
    // Held until the end, whichever it is.
    let eye = service::ready(node.engine().loops(), hang_after, probes)?;
    let (drain, drained) = tokio::sync::oneshot::channel::<()>();
    let has_worker = commands.slots > 0;
    let place = inside(&node, &read_or_make_token(&data)?);
    let mut working = has_worker.then(|| tokio::spawn(serve(commands, place.clone(), async { drop(drained.await) })));
    let cast = match with_demo {
        true => Some(Cast::begin(&Client::at(place.clone()), place, None).await?),
        false => None,
    };
    ready(&node, eye.as_ref().and_then(OpenEye::probes_address), has_worker, screen)?;
    tokio::select! {
        () = stop.asked() => {}
        ended = ended(&mut working) => {
            // Without its worker this is not what was asked for; whoever supervises us starts it again.
            node.shutdown(grace).await;
            return ended.map(|()| 1);
        }
    }
    screen.note(STOPPING);
    // Whatever runs here: nobody may be routed to a node that is about to go.
    node.step_down().await;
    drop(drain);
    let finish = async {
        if let Some(cast) = cast {
            cast.end().await;
        }
        // First the worker, whose outcomes the node has yet to take.
        if let Some(Err(error)) = match &mut working {
            Some(working) => Some(flat(working.await)),
            None => None,
        } {
            screen.note(format!("onward: {error:#}"));
        }
        node.shutdown(grace).await;
    };
    tokio::select! {
        () = finish => Ok(0),
        () = stop.asked() => {
            // Everything that was answered is durable; what is under way is cut, and guards end the commands.
            std::process::exit(i32::from(STOPPED))
        }
    }
}

async fn ended(working: &mut Option<JoinHandle<Result<()>>>) -> Result<()> {
    match working {
        Some(working) => flat(working.await),
        None => std::future::pending().await,
    }
}

fn flat(ended: Result<Result<()>, JoinError>) -> Result<()> {
    ended.map_err(anyhow::Error::from).and_then(|ended| ended)
}

/// The endpoint for traces that `OTEL_EXPORTER_OTLP_ENDPOINT` names.
fn trace_endpoint() -> Result<Option<Endpoint>> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(url) = set("OTEL_EXPORTER_OTLP_ENDPOINT").filter(|_| set("OTEL_SDK_DISABLED").as_deref() != Some("true"))
    else {
        return Ok(None);
    };
    let service = set("OTEL_SERVICE_NAME").unwrap_or_else(|| "onward".into());
    let endpoint = Endpoint::parse(&url, &service)
        .map_err(|bad| CommandFailure::new("OTEL_EXPORTER_OTLP_ENDPOINT cannot be used").why(bad).usage())?;
    Ok(Some(endpoint))
}

pub fn node_config(
    effective: Effective,
    traces: Option<Endpoint>,
    commit_mark: Option<PathBuf>,
    accept_loss: bool,
) -> Result<NodeConfig, CommandFailure> {
    let settings = effective.node;
    let gates = cluster::gate_links(&settings)?;
    // Named one by one, so that what a node can be told has a setting.
    Ok(NodeConfig {
        listen: settings.listen,
        listens: true,
        data: settings.data,
        storage: settings.storage,
        name: settings.name,
        datacenter: settings.datacenter.to_string(),
        advertise: settings.advertise,
        tls: settings.tls_cert.zip(settings.tls_key),
        tls_ca: settings.tls_ca,
        require_tokens: settings.require_tokens,
        insecure: settings.insecure,
        host_names: settings.host_names,
        rules: effective.rules,
        limits: settings.http,
        archive: settings.archive,
        outputs: settings.output,
        drain: settings.drain,
        probes: settings.probes,
        snapshot_every: settings.snapshot_every,
        traces,
        commit_mark,
        gossip: None,
        accept_loss,
        gates,
    })
}

fn ready(node: &Node, probes: Option<SocketAddr>, has_worker: bool, screen: &Screen) -> Result<()> {
    let url = usable(&node.url(), node.address());
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
    if has_worker {
        screen.line(format!("  onward{server} submit --wait -- sh -c 'echo hello; sleep 2'"))?;
        screen.line(format!("  onward{server} list"))?;
        return screen.line(format!("  onward{server} top"));
    }
    screen.line(format!("  onward{server} submit --kind hello --payload '{{\"to\": \"world\"}}'"))?;
    screen.line(format!("  onward{server} list"))?;
    screen.line(format!("  onward{server} status"))
}

/// A node that listens on every address is reached from here by loopback; `0.0.0.0` is nobody's address.
pub fn usable(url: &str, address: SocketAddr) -> String {
    if !address.ip().is_unspecified() {
        return url.to_owned();
    }
    let loopback = match address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    url.replace(&address.to_string(), &SocketAddr::new(loopback, address.port()).to_string())
}

/// Ctrl-C, or a request to end from whoever started us.
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_is_printed_can_be_used() {
        for (listen, shown) in [
            ("0.0.0.0:7400", "https://127.0.0.1:7400"),
            ("[::]:7400", "https://[::1]:7400"),
            ("10.0.0.7:7400", "https://10.0.0.7:7400"),
        ] {
            assert_eq!(usable(&format!("https://{listen}"), listen.parse().unwrap()), shown);
        }
    }
}
