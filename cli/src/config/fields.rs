//! Every setting by name: where it lives, how it is written and how it is read.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use onward_core::ids::{MAX_NAME_BYTES, Name};
use onward_core::settings::{BadSetting, Settings};
use onward_node::engine::{ArchiveRules, EngineStart};
use onward_node::outputs::OutputRules;
use onward_node::server::{DrainRule, HttpLimits, ProbeRule};
use onward_node::storage::{DEFAULT_DATACENTER, StorageChoice};

use crate::span;

/// Settings of the node itself, besides the rules.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeSettings {
    /// The node's name, unique among those that share its storage; without one it follows from its address.
    pub name: Option<String>,
    /// The datacenter that a manager is of.
    pub datacenter: Name,
    pub listen: SocketAddr,
    /// The address that others dial; without it, the one that it listens at.
    pub advertise: Option<String>,
    /// Addresses of other managers of this datacenter.
    pub peers: Vec<String>,
    /// Addresses of the gates that a manager reports to.
    pub gates: Vec<String>,
    pub data: PathBuf,
    /// The storage of log, archive, output, keys and tokens.
    pub storage: StorageChoice,
    /// The number of jobs that the local worker runs at a time; 0: there is none.
    pub slots: u32,
    pub require_tokens: bool,
    /// Listen on other addresses than loopback without TLS and tokens.
    pub insecure: bool,
    /// Names that clients may call this node by, besides its address.
    pub host_names: Vec<String>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// The authority that signs the certificates of nodes.
    pub tls_ca: Option<PathBuf>,
    /// The file with the keys that the nodes of a cluster share: one or two lines of base64.
    pub cluster_key_file: Option<PathBuf>,
    pub http: HttpLimits,
    /// A further address that answers probes, by threads that share nothing with the port's.
    pub http_probes: Option<SocketAddr>,
    pub archive: ArchiveRules,
    pub output: OutputRules,
    pub drain: DrainRule,
    pub probes: ProbeRule,
    /// A snapshot is due after so many events.
    pub snapshot_every: u64,
}

impl NodeSettings {
    pub fn new(data: PathBuf) -> Self {
        Self {
            name: None,
            datacenter: Name::new(DEFAULT_DATACENTER).expect("the default is a proper name"),
            listen: SocketAddr::from(([127, 0, 0, 1], 7400)),
            advertise: None,
            peers: Vec::new(),
            gates: Vec::new(),
            data,
            storage: StorageChoice::default(),
            slots: crate::work::cores(),
            require_tokens: false,
            insecure: false,
            host_names: Vec::new(),
            tls_cert: None,
            tls_key: None,
            tls_ca: None,
            cluster_key_file: None,
            http: HttpLimits::default(),
            http_probes: None,
            archive: ArchiveRules::default(),
            output: OutputRules::default(),
            drain: DrainRule::default(),
            probes: ProbeRule::default(),
            snapshot_every: EngineStart::SNAPSHOT_EVERY,
        }
    }

    /// All settings that are out of their range.
    pub fn check(&self) -> Vec<BadSetting> {
        let rules = [self.archive.check(), self.output.check(), self.drain.check(), self.probes.check()];
        let mut bad = [self.http.check(), rules.concat()].concat();
        if self.snapshot_every == 0 {
            bad.push(BadSetting { field: "snapshot_every", value: "0".into(), allowed: "at least 1".into() });
        }
        bad
    }
}

/// All settings, not yet checked.
#[derive(Clone, Debug)]
pub struct RawSettings {
    pub rules: Settings,
    pub node: NodeSettings,
}

/// The word for a setting that follows from others.
const AUTO: &str = "auto";

/// A setting, to be read or written.
#[derive(Debug)]
pub enum SettingField<'a> {
    Span(&'a mut Duration),
    /// Depends on other settings unless it is given.
    AutoSpan(&'a mut Option<Duration>),
    Name(&'a mut Name),
    /// Follows from others, or is not there, unless it is given.
    Text(&'a mut Option<String>),
    Large(&'a mut u64),
    Size(&'a mut usize),
    Count(&'a mut u32),
    Small(&'a mut u8),
    Fraction(&'a mut f64),
    Switch(&'a mut bool),
    Address(&'a mut SocketAddr),
    /// Nowhere unless it is given.
    AnyAddress(&'a mut Option<SocketAddr>),
    Folder(&'a mut PathBuf),
    File(&'a mut Option<PathBuf>),
    Names(&'a mut Vec<String>),
    Storage(&'a mut StorageChoice),
}

impl SettingField<'_> {
    /// The value as it is printed, and could be written.
    pub fn text(&self) -> String {
        match self {
            Self::Span(span) => span::exact(**span),
            Self::AutoSpan(span) => span.map_or_else(|| AUTO.into(), span::exact),
            Self::Name(name) => name.to_string(),
            Self::Text(text) => text.as_deref().unwrap_or("-").to_owned(),
            Self::Large(count) => count.to_string(),
            Self::Size(size) => size.to_string(),
            Self::Count(count) => count.to_string(),
            Self::Small(count) => count.to_string(),
            Self::Fraction(fraction) => fraction.to_string(),
            Self::Switch(on) => on.to_string(),
            Self::Address(address) => address.to_string(),
            Self::AnyAddress(address) => address.map_or_else(|| "-".into(), |address| address.to_string()),
            Self::Folder(path) => path.display().to_string(),
            Self::File(path) => path.as_ref().map_or_else(|| "-".into(), |path| path.display().to_string()),
            Self::Names(names) if names.is_empty() => "-".into(),
            Self::Names(names) => names.join(","),
            Self::Storage(storage) => storage.to_string(),
        }
    }

    /// Whether the value may have a password in it.
    pub const fn may_be_secret(&self) -> bool {
        matches!(self, Self::Storage(_))
    }

    /// Says what it must be, if `text` is not that.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        fn whole<T: std::str::FromStr>(text: &str, target: &mut T) -> Result<(), String> {
            *target = text.trim().parse().map_err(|_| "a whole number, 0 or more, that is not too large".to_owned())?;
            Ok(())
        }
        match self {
            Self::Span(span) => {
                **span = span::parse(text).map_err(|_| "a duration like 250ms, 90s, 2m or 1h30m".to_owned())?
            }
            Self::AutoSpan(span) if text.trim() == AUTO => **span = None,
            Self::AutoSpan(span) => {
                let parsed = span::parse(text).map_err(|_| format!("{AUTO}, or a duration like 250ms, 90s or 2m"))?;
                **span = Some(parsed);
            }
            Self::Name(name) => {
                let allowed = || format!("1 to {MAX_NAME_BYTES} bytes without control characters");
                **name = Name::new(text).ok_or_else(allowed)?;
            }
            Self::Text(target) => {
                let allowed = || format!("1 to {MAX_NAME_BYTES} bytes without control characters");
                **target = Some(Name::new(text.trim()).ok_or_else(allowed)?.to_string());
            }
            Self::Large(count) => whole(text, *count)?,
            Self::Size(size) => whole(text, *size)?,
            Self::Count(count) => whole(text, *count)?,
            Self::Small(count) => whole(text, *count)?,
            Self::Fraction(fraction) => {
                let parsed = text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
                **fraction = parsed.ok_or_else(|| "a number".to_owned())?;
            }
            Self::Switch(on) => **on = text.trim().parse().map_err(|_| "true or false".to_owned())?,
            Self::Address(address) => {
                **address =
                    text.trim().parse().map_err(|_| "an address with a port, like 127.0.0.1:7400".to_owned())?;
            }
            Self::AnyAddress(address) => {
                let parsed = text.trim().parse();
                **address = Some(parsed.map_err(|_| "an address with a port, like 127.0.0.1:7401".to_owned())?);
            }
            Self::Folder(_) | Self::File(_) if text.is_empty() => return Err("a path".into()),
            Self::Folder(path) => **path = PathBuf::from(text),
            Self::File(path) => **path = Some(PathBuf::from(text)),
            Self::Names(names) => {
                **names = text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
            }
            Self::Storage(storage) => {
                let allowed = |error| format!("embedded, or postgres://USER:PASSWORD@HOST/DATABASE: {error}");
                **storage = text.trim().parse().map_err(allowed)?;
            }
        }
        Ok(())
    }
}

macro_rules! settings {
    (
        node { $($node_name:literal => $($node_field:ident).+: $node_kind:ident,)* }
        rules { $($rule_name:literal => $($rule_field:ident).+: $rule_kind:ident,)* }
        limits { $($limit:ident,)* }
    ) => {
        /// Every name, in the order in which they are printed.
        pub const NAMES: &[&str] = &[$($node_name,)* $($rule_name,)* $(stringify!($limit),)*];

        impl RawSettings {
            pub fn field(&mut self, name: &str) -> Option<SettingField<'_>> {
                Some(match name {
                    $($node_name => SettingField::$node_kind(&mut self.node.$($node_field).+),)*
                    $($rule_name => SettingField::$rule_kind(&mut self.rules.$($rule_field).+),)*
                    $(stringify!($limit) => SettingField::Size(&mut self.rules.limits.$limit),)*
                    _ => return None,
                })
            }
        }
    };
}

settings! {
    node {
        "name" => name: Text,
        "datacenter" => datacenter: Name,
        "listen" => listen: Address,
        "advertise" => advertise: Text,
        "peers" => peers: Names,
        "gates" => gates: Names,
        "data" => data: Folder,
        "storage" => storage: Storage,
        "slots" => slots: Count,
        "require_tokens" => require_tokens: Switch,
        "insecure" => insecure: Switch,
        "host_names" => host_names: Names,
        "tls.cert" => tls_cert: File,
        "tls.key" => tls_key: File,
        "tls.ca" => tls_ca: File,
        "cluster.key_file" => cluster_key_file: File,
        "http.connections" => http.connections: Size,
        "http.header_read" => http.header_read: Span,
        "http.header_bytes" => http.header_bytes: Count,
        "http.body_read" => http.body_read: Span,
        "http.body_bytes" => http.body_bytes: Size,
        "http.streams" => http.streams: Count,
        "http.sessions" => http.sessions: Size,
        "http.followers" => http.followers: Size,
        "http.probes" => http_probes: AnyAddress,
        "drain.ready_grace" => drain.ready_grace: AutoSpan,
        "drain.grace" => drain.grace: Span,
        "probes.hang_after" => probes.hang_after: Span,
        "probes.answer_within" => probes.answer_within: Span,
        "archive.retain" => archive.retain: Span,
        "archive.max_jobs" => archive.max_jobs: Large,
        "output.retain" => output.retain: Span,
        "output.max_bytes" => output.max_bytes: Large,
        "snapshot_every" => snapshot_every: Large,
    }
    rules {
        "lease.initial" => lease.initial: Span,
        "lease.extension" => lease.extension: Span,
        "lease.interval" => lease.interval: Span,
        "lease.enabled" => lease.enabled: Switch,
        "grant.base" => grant.base: Span,
        "grant.min" => grant.min: Span,
        "grant.max_grants" => grant.max_grants: Count,
        "liveness.probe_every" => liveness.probe_every: Span,
        "liveness.answer_within" => liveness.answer_within: Span,
        "liveness.forget_after" => liveness.forget_after: Span,
        "liveness.max_misses" => liveness.max_misses: Small,
        "progress.window" => progress.window: Span,
        "progress.stuck_after" => progress.stuck_after: Span,
        "progress.expected" => progress.expected: Fraction,
        "progress.normal_at" => progress.normal_at: Fraction,
        "progress.slow_at" => progress.slow_at: Fraction,
        "progress.min_samples" => progress.min_samples: Count,
        "progress.min_failures" => progress.min_failures: Count,
        "progress.min_failed_jobs" => progress.min_failed_jobs: Count,
        "eviction.suspect_grace" => eviction.suspect_grace: Span,
        "eviction.stuck_grace" => eviction.stuck_grace: Span,
        "eviction.backoff" => eviction.backoff: Span,
        "eviction.max_backoff" => eviction.max_backoff: Span,
        "eviction.remember_for" => eviction.remember_for: Span,
        "hold.recheck_every" => hold.recheck_every: Span,
        "hold.forget_after" => hold.forget_after: Span,
        "hold.evicted_within" => hold.evicted_within: Span,
        "quorum.log_answer_within" => quorum.log_answer_within: Span,
        "overload.rise.busy" => overload.rise.busy: Fraction,
        "overload.rise.stressed" => overload.rise.stressed: Fraction,
        "overload.rise.overloaded" => overload.rise.overloaded: Fraction,
        "overload.rise_from" => overload.rise_from: Span,
        "overload.latency_ms.busy" => overload.latency_ms.busy: Fraction,
        "overload.latency_ms.stressed" => overload.latency_ms.stressed: Fraction,
        "overload.latency_ms.overloaded" => overload.latency_ms.overloaded: Fraction,
        "overload.resource_percent.busy" => overload.resource_percent.busy: Fraction,
        "overload.resource_percent.stressed" => overload.resource_percent.stressed: Fraction,
        "overload.resource_percent.overloaded" => overload.resource_percent.overloaded: Fraction,
        "overload.decay_every" => overload.decay_every: Span,
        "overload.better_samples" => overload.better_samples: Small,
        "aging.step" => aging.step: Span,
        "aging.max_levels" => aging.max_levels: Count,
        "gate.progress_every" => gate.progress_every: Span,
        "gate.fallback_after" => gate.fallback_after: Span,
        "gate.silent_after" => gate.silent_after: Span,
        "job.queue" => job.queue: Name,
        "job.timeout" => job.timeout: Span,
        "job.stuck_after" => job.stuck_after: Span,
        "job.retry.max_attempts" => job.retry.max_attempts: Count,
        "job.retry.base" => job.retry.base: Span,
        "job.retry.max" => job.retry.max: Span,
        "seat_ttl" => seat_ttl: Span,
        "gap_after" => gap_after: Span,
        "takeover_grace" => takeover_grace: Span,
        "quiet_budget" => quiet_budget: Span,
        "checkpoint_every" => checkpoint_every: Span,
        "mark_every" => mark_every: Span,
        "max_poll_wait" => max_poll_wait: Span,
        "min_lease" => min_lease: Span,
        "max_lease" => max_lease: Span,
    }
    limits {
        jobs, batch_jobs, workflows_per_job, dependencies_per_job, payload_bytes, result_bytes, checkpoint_bytes,
        error_bytes, note_bytes, tags_per_job, headers_per_job, header_bytes, limits_per_job, shelves, limit_keys,
        paused_queues, workers, worker_slots, subscription_pairs, subscriptions, subscriptions_per_client,
        frame_items, open_polls, poll_leases, dead_letters, idempotency_keys, extensions_per_job, retries_per_job,
        schedules, schedule_runs, datacenters, finished_jobs, datacenters_per_job,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> RawSettings {
        RawSettings { rules: Settings::default(), node: NodeSettings::new("/data".into()) }
    }

    #[test]
    fn every_span_and_limit_of_the_rules_can_be_set_by_its_name() {
        let mut raw = raw();
        for (name, value) in Settings::default().spans() {
            assert_eq!(raw.field(name).map(|field| field.text()), Some(span::exact(value)), "{name}");
        }
        let limits: Vec<_> = Settings::default().limits.listed().collect();
        for (name, value) in limits {
            assert_eq!(raw.field(name).map(|field| field.text()), Some(value.to_string()), "{name}");
        }
    }

    #[test]
    fn a_setting_reaches_its_own_place() {
        for name in NAMES {
            let mut changed = raw();
            let text = match changed.field(name).unwrap() {
                SettingField::Span(_) | SettingField::AutoSpan(_) => "7s",
                SettingField::Size(_) | SettingField::Count(_) | SettingField::Small(_) | SettingField::Large(_) => "7",
                SettingField::Fraction(_) => "0.7",
                SettingField::Name(_) | SettingField::Text(_) => "seven",
                SettingField::Switch(on) => {
                    if *on {
                        "false"
                    } else {
                        "true"
                    }
                }
                SettingField::Address(_) | SettingField::AnyAddress(_) => "127.0.0.7:7",
                SettingField::Folder(_) | SettingField::File(_) => "/seven",
                SettingField::Names(_) => "seven,eight",
                SettingField::Storage(_) => "postgres://seven@host/seven",
            };
            changed.field(name).unwrap().set(text).unwrap();
            let differing: Vec<&&str> = NAMES
                .iter()
                .filter(|one| changed.field(one).unwrap().text() != raw().field(one).unwrap().text())
                .collect();
            assert_eq!((differing, changed.field(name).unwrap().text()), (vec![name], text.to_owned()));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        for (name, text) in [
            ("lease.initial", "90"),
            ("workers", "-1"),
            ("liveness.max_misses", "256"),
            ("progress.slow_at", "NaN"),
            ("insecure", "yes"),
            ("listen", "localhost"),
            ("http.probes", "7401"),
            ("data", ""),
            ("job.queue", ""),
            ("name", ""),
            ("datacenter", ""),
            ("drain.ready_grace", "soon"),
            ("archive.max_jobs", "1.5"),
            ("storage", "mysql://me@host/jobs"),
            ("storage", "postgres://"),
        ] {
            let mut changed = raw();
            assert!(changed.field(name).unwrap().set(text).is_err(), "{name}");
            assert_eq!(changed.field(name).unwrap().text(), raw().field(name).unwrap().text(), "{name}");
        }
    }
}
