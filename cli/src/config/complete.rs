//! That every field of the settings can be set: each struct is taken apart by name, without `..`, so that a new field
//! does not compile until it is here; and what is here must be in the list.

use super::*;
use onward_core::dispatch::AgingRule;
use onward_core::gate::GateRule;
use onward_core::grant::GrantRule;
use onward_core::health::overload::LoadLimits as Levels;
use onward_core::health::{EvictionRule, HoldRule, LivenessRule, OverloadRule, ProgressRule, QuorumRule};
use onward_core::job::draft::JobDefaults;
use onward_core::job::spec::Retry;
use onward_core::lease::LeaseRule;
use onward_node::engine::ArchiveRules;
use onward_node::outputs::OutputRules;
use onward_node::server::{DrainRule, HttpLimits, ProbeRule};
use std::time::Duration;

use crate::span;

/// A setting as it would be printed.
trait Text {
    fn text(&self) -> String;
}

impl Text for Duration {
    fn text(&self) -> String {
        span::exact(*self)
    }
}

macro_rules! as_displayed {
    ($($kind:ty)*) => {
        $(impl Text for $kind {
            fn text(&self) -> String {
                self.to_string()
            }
        })*
    };
}

as_displayed! { bool u8 u32 u64 usize f64 std::net::SocketAddr onward_core::ids::Name }

/// Takes a struct apart, and adds each of its fields under its name with this prefix.
macro_rules! listed {
    ($into:ident, $prefix:literal, $kind:ident { $($field:ident),* } = $value:expr) => {
        let $kind { $($field),* } = $value;
        $($into.push((concat!($prefix, stringify!($field)).to_owned(), $field.text()));)*
    };
}

fn of_rules(settings: Settings) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let Settings {
        lease,
        grant,
        liveness,
        progress,
        eviction,
        hold,
        quorum,
        overload,
        gate,
        aging,
        job,
        limits,
        seat_ttl,
        gap_after,
        takeover_grace,
        quiet_budget,
        checkpoint_every,
        mark_every,
        max_poll_wait,
        min_lease,
        max_lease,
    } = settings;
    listed!(all, "lease.", LeaseRule { initial, extension, interval, enabled } = lease);
    listed!(all, "grant.", GrantRule { base, min, max_grants } = grant);
    listed!(all, "liveness.", LivenessRule { probe_every, answer_within, max_misses, forget_after } = liveness);
    listed!(
        all,
        "progress.",
        ProgressRule {
            window,
            expected,
            normal_at,
            slow_at,
            stuck_after,
            min_samples,
            min_failures,
            min_failed_jobs
        } = progress
    );
    listed!(
        all,
        "eviction.",
        EvictionRule { suspect_grace, stuck_grace, backoff, max_backoff, remember_for } = eviction
    );
    listed!(all, "hold.", HoldRule { recheck_every, forget_after, evicted_within } = hold);
    listed!(all, "quorum.", QuorumRule { log_answer_within } = quorum);
    let OverloadRule { rise, rise_from, latency_ms, resource_percent, better_samples, decay_every } = overload;
    listed!(all, "overload.rise.", Levels { busy, stressed, overloaded } = rise);
    listed!(all, "overload.latency_ms.", Levels { busy, stressed, overloaded } = latency_ms);
    listed!(all, "overload.resource_percent.", Levels { busy, stressed, overloaded } = resource_percent);
    all.push(("overload.rise_from".into(), rise_from.text()));
    all.push(("overload.better_samples".into(), better_samples.text()));
    all.push(("overload.decay_every".into(), decay_every.text()));
    listed!(all, "aging.", AgingRule { step, max_levels } = aging);
    listed!(all, "gate.", GateRule { progress_every, fallback_after, silent_after } = gate);
    let JobDefaults { queue, timeout, stuck_after, retry } = job;
    all.push(("job.queue".into(), queue.text()));
    all.push(("job.timeout".into(), timeout.text()));
    all.push(("job.stuck_after".into(), stuck_after.text()));
    listed!(all, "job.retry.", Retry { max_attempts, base, max } = retry);
    // The limits list themselves.
    all.extend(limits.listed().map(|(name, value)| (name.to_owned(), value.text())));
    let spans = [
        ("seat_ttl", seat_ttl),
        ("gap_after", gap_after),
        ("takeover_grace", takeover_grace),
        ("quiet_budget", quiet_budget),
        ("checkpoint_every", checkpoint_every),
        ("mark_every", mark_every),
        ("max_poll_wait", max_poll_wait),
        ("min_lease", min_lease),
        ("max_lease", max_lease),
    ];
    all.extend(spans.map(|(name, span)| (name.to_owned(), span.text())));
    all
}

fn of_node(settings: NodeSettings) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let NodeSettings {
        name,
        datacenter,
        listen,
        advertise,
        peers,
        gates,
        data,
        storage,
        slots,
        require_tokens,
        insecure,
        host_names,
        tls_cert,
        tls_key,
        tls_ca,
        cluster_key_file,
        http,
        http_probes,
        archive,
        output,
        drain,
        probes,
        snapshot_every,
    } = settings;
    all.push(("datacenter".into(), datacenter.text()));
    all.push(("listen".into(), listen.text()));
    assert!(name.is_none() && advertise.is_none() && peers.is_empty());
    assert!(gates.is_empty());
    all.extend(["name", "advertise", "peers", "gates"].map(|name| (name.to_owned(), "-".to_owned())));
    all.push(("data".into(), data.display().to_string()));
    all.push(("storage".into(), storage.to_string()));
    all.push(("slots".into(), slots.text()));
    all.push(("require_tokens".into(), require_tokens.text()));
    all.push(("insecure".into(), insecure.text()));
    assert!(host_names.is_empty() && tls_cert.is_none() && tls_key.is_none() && tls_ca.is_none());
    assert!(cluster_key_file.is_none() && http_probes.is_none());
    all.extend(
        ["host_names", "tls.cert", "tls.key", "tls.ca", "cluster.key_file", "http.probes"]
            .map(|name| (name.to_owned(), "-".to_owned())),
    );
    listed!(
        all,
        "http.",
        HttpLimits { connections, header_read, body_bytes, body_read, streams, header_bytes, sessions, followers } =
            http
    );
    listed!(all, "archive.", ArchiveRules { retain, max_jobs } = archive);
    listed!(all, "output.", OutputRules { retain, max_bytes } = output);
    let DrainRule { ready_grace, grace } = drain;
    all.push(("drain.ready_grace".into(), ready_grace.map_or_else(|| "auto".into(), |span| span.text())));
    all.push(("drain.grace".into(), grace.text()));
    listed!(all, "probes.", ProbeRule { hang_after, answer_within } = probes);
    all.push(("snapshot_every".into(), snapshot_every.text()));
    all
}

#[test]
fn every_field_of_the_settings_is_in_the_list_with_its_default() {
    let node = NodeSettings::new("/data".into());
    let mut raw = RawSettings { rules: Settings::default(), node: node.clone() };
    let all = [of_node(node), of_rules(Settings::default())].concat();
    for (name, text) in &all {
        assert_eq!(raw.field(name).map(|field| field.text()).as_ref(), Some(text), "{name}");
    }
    let names: std::collections::BTreeSet<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, NAMES.iter().copied().collect());
    assert_eq!(NAMES.len(), names.len(), "none twice");
}
