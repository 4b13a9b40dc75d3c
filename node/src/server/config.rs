//! What a node is started with, and why it may not start.

use core::time::Duration;
use std::net::SocketAddr;
use std::path::PathBuf;

use onward_core::settings::{BadSetting, Rules, in_range, span_in_range};
use onward_gossip::{NodeLabel, Role};

use crate::auth::{FileError, SecretError, TokenTableError};
use crate::cluster::forward::{self, LeaderTrust, Member};
use crate::engine::{ArchiveRules, EngineStart};
use crate::gates::GateLinks;
use crate::gossip::GossipConfig;
use crate::outputs::OutputRules;
use crate::storage::{DEFAULT_DATACENTER, DatabaseUrl, OpenError, StorageChoice};
use crate::traces::Endpoint;

/// About what a balancer needs to notice that a node is not ready.
const READY_GRACE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub listen: SocketAddr,
    /// Off: nothing listens, and only this process can reach the node, by its [`Door`](super::Door).
    pub listens: bool,
    /// The data folder: log, archive, output, keys and tokens, unless they are in a database; and the token of the command
    /// line on this machine.
    pub data: PathBuf,
    pub storage: StorageChoice,
    /// The node's name, unique among the managers of its datacenter; without one, its address.
    pub name: Option<String>,
    /// The datacenter that it is of; managers of one share a log.
    pub datacenter: String,
    /// `host:port`, or a URL with its scheme, at which others reach this node; without one, where it listens.
    pub advertise: Option<String>,
    /// PEM files: the certificates, the node's own first, and its private key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// PEM file: who signs the certificates of nodes. With it, those are asked for theirs.
    pub tls_ca: Option<PathBuf>,
    /// Set to let nobody do anything without a token.
    pub require_tokens: bool,
    /// The gates that this manager reports to, and as whom.
    pub gates: Option<GateLinks>,
    /// Listen beyond loopback without TLS or without tokens all the same.
    pub insecure: bool,
    /// The names, besides the address, by which clients may call this node: `name` with any port, or `name:port`.
    pub host_names: Vec<String>,
    pub rules: Rules,
    pub limits: HttpLimits,
    /// The limits on finished jobs that are kept.
    pub archive: ArchiveRules,
    pub drain: DrainRule,
    pub probes: ProbeRule,
    /// A snapshot is due after so many events, or as many as there are jobs.
    pub snapshot_every: u64,
    /// The limits on output of attempts that is kept.
    pub outputs: OutputRules,
    /// The endpoint for spans of jobs, if they are exported.
    pub traces: Option<Endpoint>,
    /// A file that shows from outside whether a commit is under way, for tests that kill nodes.
    pub commit_mark: Option<PathBuf>,
    /// The node's part in the gossip of its ring, if it has one.
    pub gossip: Option<GossipConfig>,
    /// Start with what is left, if acknowledged events are missing from the log.
    pub accept_loss: bool,
}

impl NodeConfig {
    pub fn new(listen: SocketAddr, data: impl Into<PathBuf>) -> Self {
        Self {
            listen,
            listens: true,
            data: data.into(),
            storage: StorageChoice::default(),
            name: None,
            datacenter: DEFAULT_DATACENTER.into(),
            advertise: None,
            tls: None,
            tls_ca: None,
            require_tokens: false,
            gates: None,
            insecure: false,
            host_names: Vec::new(),
            rules: Rules::default(),
            limits: HttpLimits::default(),
            archive: ArchiveRules::default(),
            drain: DrainRule::default(),
            probes: ProbeRule::default(),
            snapshot_every: EngineStart::SNAPSHOT_EVERY,
            outputs: OutputRules::default(),
            traces: None,
            commit_mark: None,
            gossip: None,
            accept_loss: false,
        }
    }

    /// This node, which listens at `address`, as a member among those of its role that share its log.
    pub(super) fn member(&self, address: SocketAddr, role: Role) -> Result<Member, StartError> {
        let own = self.tls.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path()));
        let tls = self.tls_ca.as_ref().map(|ca| forward::tls_client(ca, own)).transpose();
        let trust = match tls.map_err(|(path, what)| StartError::Tls { path, what })? {
            None => None,
            Some(config) if role == Role::Gate => Some(LeaderTrust::new(config, None)),
            Some(config) => {
                let wrong = |_| {
                    StartError::Settings(format!(
                        "`datacenter` is `{}`; give a shorter one, of letters, digits, dots and dashes",
                        self.datacenter
                    ))
                };
                Some(LeaderTrust::new(config, Some(NodeLabel::new(&self.datacenter).map_err(wrong)?)))
            }
        };
        let is_alone = self.storage == StorageChoice::Embedded && self.advertise.is_none();
        let listens = (!address.ip().is_unspecified()).then(|| address.to_string());
        let with_scheme = |address: String| match own.is_some() && !address.contains("://") {
            true => format!("https://{address}"),
            false => address,
        };
        Ok(Member {
            name: self.name.clone().unwrap_or_else(|| address.to_string()),
            address: self.advertise.clone().or(listens).map(with_scheme),
            is_alone,
            trust,
            gossip: None,
        })
    }

    /// See [`DrainRule::ready_grace`].
    pub fn effective_ready_grace(&self) -> Duration {
        let unless_said = if self.listen.ip().is_loopback() { Duration::ZERO } else { READY_GRACE };
        self.drain.ready_grace.unwrap_or(unless_said)
    }

    /// Settings within their ranges; and whoever can reach the port could run things here, so that what is open to others needs both locks.
    pub(super) fn check(&self) -> Result<(), StartError> {
        let rules = [self.archive.check(), self.outputs.check(), self.drain.check(), self.probes.check()];
        let bad = [self.limits.check(), rules.concat()].concat();
        if !bad.is_empty() {
            let bad: Vec<String> = bad.iter().map(BadSetting::to_string).collect();
            return Err(StartError::Settings(bad.join("; ")));
        }
        self.check_reach()?;
        let safe = self.listen.ip().is_loopback() || (self.tls.is_some() && self.require_tokens);
        if safe || self.insecure { Ok(()) } else { Err(StartError::Exposed { listen: self.listen }) }
    }

    /// Whoever shares a database is dialled by the others, and dials whichever of them leads.
    fn check_reach(&self) -> Result<(), StartError> {
        if self.storage == StorageChoice::Embedded {
            return Ok(());
        }
        let advertise = self.advertise.as_deref();
        let host_and_port = advertise.map(|text| text.split_once("://").map_or(text, |(_, rest)| rest));
        let advertised = host_and_port.and_then(|text| text.trim_end_matches('/').parse::<SocketAddr>().ok());
        let is_nowhere = |address: SocketAddr| address.ip().is_unspecified();
        if advertised.map_or(advertise.is_none() && is_nowhere(self.listen), is_nowhere) {
            return Err(StartError::NoAddress { listen: self.listen });
        }
        let dials_tls = self.tls.is_some() || advertise.is_some_and(|text| text.starts_with("https://"));
        if dials_tls && self.tls_ca.is_none() { Err(StartError::NoAuthority) } else { Ok(()) }
    }
}

/// The limits on what a client may take up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpLimits {
    pub connections: usize,
    /// The time from the start of a connection, or the end of the last answer on it, until the next request's headers
    /// are here. The same for the handshake of TLS.
    pub header_read: Duration,
    pub body_bytes: usize,
    pub body_read: Duration,
    /// Streams at a time, on one HTTP/2 connection.
    pub streams: u32,
    /// Bytes of one request's headers: names and values, and 32 for each, as HTTP/2 counts them.
    pub header_bytes: u32,
    /// Workers that are connected by gRPC.
    pub sessions: usize,
    /// Clients that wait for jobs or follow them.
    pub followers: usize,
}

impl HttpLimits {
    pub fn check(&self) -> Vec<BadSetting> {
        const HOUR: Duration = Duration::from_secs(3_600);
        const MS: Duration = Duration::from_millis(1);
        let mut bad = Vec::new();
        in_range(&mut bad, "http.connections", self.connections, 1..=1_000_000);
        span_in_range(&mut bad, "http.header_read", self.header_read, MS..=HOUR);
        in_range(&mut bad, "http.header_bytes", self.header_bytes, 1..=16 << 20);
        span_in_range(&mut bad, "http.body_read", self.body_read, MS..=HOUR);
        in_range(&mut bad, "http.body_bytes", self.body_bytes, 1..=1 << 30);
        in_range(&mut bad, "http.streams", self.streams, 1..=1_000_000);
        in_range(&mut bad, "http.sessions", self.sessions, 1..=1_000_000);
        in_range(&mut bad, "http.followers", self.followers, 1..=1_000_000);
        bad
    }
}

/// The rule by which a node stops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DrainRule {
    /// The time for which a node that was told to stop still takes connections, while `/readyz` says that it drains;
    /// without it not at all on loopback, and for 5 s elsewhere, where somebody may route to us by what `/readyz` says.
    pub ready_grace: Option<Duration>,
    /// The longest time from the signal to stop until the process has ended: `ready_grace`, the local worker's commands
    /// and open requests share it.
    pub grace: Duration,
}

impl Default for DrainRule {
    fn default() -> Self {
        Self { ready_grace: None, grace: Duration::from_secs(30) }
    }
}

impl DrainRule {
    pub fn check(&self) -> Vec<BadSetting> {
        const DAY: Duration = Duration::from_secs(24 * 3_600);
        let mut bad = Vec::new();
        span_in_range(&mut bad, "drain.ready_grace", self.ready_grace.unwrap_or_default(), Duration::ZERO..=DAY);
        span_in_range(&mut bad, "drain.grace", self.grace, Duration::ZERO..=DAY);
        bad
    }
}

/// The rule by which probes say no.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbeRule {
    /// A loop that is at one thing for this long hangs: `/livez` says so.
    pub hang_after: Duration,
    /// A node whose machine takes longer to answer does not serve: `/readyz` says so.
    pub answer_within: Duration,
}

impl Default for ProbeRule {
    fn default() -> Self {
        Self { hang_after: EngineStart::HANG_AFTER, answer_within: Duration::from_secs(1) }
    }
}

impl ProbeRule {
    pub fn check(&self) -> Vec<BadSetting> {
        const HOUR: Duration = Duration::from_secs(3_600);
        let mut bad = Vec::new();
        span_in_range(&mut bad, "probes.hang_after", self.hang_after, Duration::from_secs(1)..=HOUR);
        span_in_range(&mut bad, "probes.answer_within", self.answer_within, Duration::from_millis(1)..=HOUR);
        bad
    }
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            header_read: Duration::from_secs(10),
            body_bytes: 16 << 20,
            body_read: Duration::from_secs(30),
            streams: 1_024,
            header_bytes: 64 << 10,
            sessions: 5_000,
            followers: 4_096,
        }
    }
}

/// The reason why a node did not start. Nothing is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "{listen} can be reached from other computers, and that needs TLS and tokens: give a certificate and its key, \
         and require tokens; or listen on 127.0.0.1; or, if the network is trusted with everything, say `--insecure`"
    )]
    Exposed { listen: SocketAddr },
    #[error(
        "{listen} is nobody's address, and whoever shares this database dials this node: say in `advertise` at which host \
         and port it is reached, or listen on the one address that the others know. Nothing was changed"
    )]
    NoAddress { listen: SocketAddr },
    #[error(
        "whoever shares this database dials the others by TLS, and without `tls.ca` none of them can be believed: give the \
         authority that signed their certificates (`tls.ca = …`; `onward certs ca` makes one). Nothing was changed"
    )]
    NoAuthority,
    #[error("{0}")]
    Settings(String),
    #[error("cannot listen on {listen}: {error}; free the port, or listen on another one")]
    Listen { listen: SocketAddr, error: std::io::Error },
    #[error("gossip cannot listen on {bind} (UDP): {error}; free the port, or listen on another one")]
    Gossip { bind: SocketAddr, error: std::io::Error },
    #[error("{0}")]
    Log(#[from] onward_log::Error),
    #[error("the node does not serve after {within:?}: {why}; see to its storage, and start again")]
    NotServing { within: Duration, why: String },
    #[error("{error} (storage = {url})")]
    Database { url: DatabaseUrl, error: OpenError },
    #[error(
        "another manager of this database is named `{name}` and lives; give each a name of its own (`name = …`). Nothing was \
         changed"
    )]
    NameTaken { name: String },
    #[error(
        "{} has an embedded node's jobs, which are not in this database; take them over by `onward migrate`, or give this \
         node another data folder. Nothing was changed", folder.display()
    )]
    EmbeddedData { folder: PathBuf },
    #[error(
        "a migration into this database did not end; run `onward migrate` again, with the same folder. Nothing was changed"
    )]
    HalfMigrated,
    #[error(
        "the jobs in {} were taken over into {to}; start the node with that storage. To go on with the folder as it was \
         before all the same, remove the file `moved` in it. Nothing was changed", folder.display()
    )]
    Moved { folder: PathBuf, to: String },
    #[error(
        "{} has the data of a {is}, and this is a {wanted}; give each node a data folder of its own. Nothing was \
         changed", folder.display()
    )]
    OtherRole { folder: PathBuf, is: &'static str, wanted: &'static str },
    #[error("{0}")]
    File(#[from] FileError),
    #[error("{0}")]
    Secret(#[from] SecretError),
    #[error("{0}")]
    Token(#[from] TokenTableError),
    #[error("no thread can be started: {0}; raise the limits of this process")]
    Thread(std::io::Error),
    #[error("{}: {what}; give PEM files with the certificates and their private key", path.display())]
    Tls { path: PathBuf, what: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_shares_a_database_says_where_it_is_reached_and_whom_it_believes() {
        let shared = |listen: &str, advertise: Option<&str>, has_tls: bool, has_ca: bool| {
            let mut config = NodeConfig::new(listen.parse().unwrap(), "data");
            config.storage = "postgres://onward@127.0.0.1/onward".parse().unwrap();
            config.advertise = advertise.map(Into::into);
            config.tls = has_tls.then(|| ("cert.pem".into(), "key.pem".into()));
            config.tls_ca = has_ca.then(|| "ca.pem".into());
            config.insecure = true;
            config
        };
        for (config, refused) in [
            (shared("127.0.0.1:7400", None, false, false), None),
            (shared("0.0.0.0:7400", None, false, false), Some("advertise")),
            (shared("[::]:7400", None, false, false), Some("advertise")),
            (shared("0.0.0.0:7400", Some("0.0.0.0:7400"), false, false), Some("advertise")),
            (shared("10.0.0.1:7400", Some("http://[::]:7400"), false, false), Some("advertise")),
            (shared("0.0.0.0:7400", Some("m1.internal:7400"), false, false), None),
            (shared("10.0.0.1:7400", None, true, false), Some("tls.ca")),
            (shared("10.0.0.1:7400", None, true, true), None),
            (shared("127.0.0.1:7400", Some("https://m1.internal:7400"), false, false), Some("tls.ca")),
        ] {
            let said = config.check().err().map(|error| error.to_string());
            let is_as_expected = match refused {
                None => said.is_none(),
                Some(setting) => said.as_ref().is_some_and(|said| said.contains(setting)),
            };
            assert!(is_as_expected, "{said:?} of {:?} {:?} {:?}", config.listen, config.advertise, config.tls);
        }
        // Nobody dials a node that is alone with its log.
        let mut alone = shared("0.0.0.0:7400", None, true, false);
        alone.storage = StorageChoice::Embedded;
        assert!(alone.check().is_ok());
    }
}
