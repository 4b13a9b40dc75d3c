//! `/metrics`: what Prometheus scrapes.
//!
//! Everything is counted as it happens, so that a scrape costs as much as there are queues, kinds and workers, however
//! many jobs there are. Queues and kinds beyond the first [`NAMES_SHOWN`] share the label `other`. Units are seconds
//! and bytes.

use core::fmt::{Display, Write};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use onward_core::counts::{Histogram, KindCounts, QueueCounts};
use onward_core::health::Verdict;
use onward_core::job::{EndingKind, JobState};
use onward_core::manager::{ManagerView, WorkerState};
use onward_core::refusal::RefusalCounts;
use onward_gossip::{MemberState, RingView as GossipView};
use onward_health::{LoopReport, LoopState};
use tokio::time::timeout;

use super::pages::PageState;
use crate::api::may::{May, Read};
use crate::engine::ReadView;

/// The number of queues that have a label of their own; as many kinds are counted by name.
const NAMES_SHOWN: u32 = 100;
const OTHER: &str = "other";

/// Metrics for Prometheus, as text.
#[utoipa::path(get, path = "/metrics", responses((status = 200, content_type = "text/plain", body = String)))]
pub(super) async fn metrics(_: May<Read>, State(pages): State<PageState>) -> Response {
    let within = pages.about.probes.answer_within;
    let seen = match pages.app.engine.trouble() {
        Some(_) => None,
        None => timeout(within, pages.app.engine.read(ScrapeView::of)).await.ok().and_then(Result::ok),
    };
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], render(&pages, seen)).into_response()
}

/// The findings of one short read of the machine.
struct ScrapeView {
    view: ManagerView,
    term: u64,
    queues: BTreeMap<String, (QueueCounts, Option<Duration>)>,
    kinds: BTreeMap<String, KindCounts>,
    verdicts: BTreeMap<&'static str, u64>,
    grants: u64,
    denials: Vec<(&'static str, u64)>,
    schedules: Schedules,
}

/// All schedules together, and the critical ones that are failing by name, as many as have a label.
#[derive(Default)]
struct Schedules {
    count: u64,
    paused: u64,
    failing: u64,
    fired: u64,
    skipped: u64,
    missed: u64,
    by_name: Vec<(String, u32)>,
    /// Those in trouble, and why.
    in_trouble: Vec<(String, &'static str)>,
}

impl Schedules {
    fn of(view: &ReadView<'_>) -> Self {
        let mut all = Self::default();
        let now = view.manager.log_time_at(crate::clock::now().mono);
        for (name, schedule) in view.manager.state().schedules() {
            all.count += 1;
            all.paused += u64::from(schedule.paused);
            if let Some((why, _)) = view.manager.schedule_trouble(name, now) {
                all.failing += 1;
                if all.in_trouble.len() < NAMES_SHOWN as usize {
                    all.in_trouble.push((name.to_string(), why.code()));
                }
            }
            all.fired += schedule.counts.fired;
            all.skipped += schedule.counts.skipped;
            all.missed += schedule.counts.missed;
            if schedule.plan.critical && schedule.failures > 0 && all.by_name.len() < NAMES_SHOWN as usize {
                all.by_name.push((name.to_string(), schedule.failures));
            }
        }
        all
    }
}

impl ScrapeView {
    fn of(view: &ReadView<'_>) -> Self {
        let (manager, counts) = (view.manager, view.manager.counts());
        let mut queues: BTreeMap<String, (QueueCounts, Option<Duration>)> = BTreeMap::new();
        let mut shown: BTreeMap<&str, &str> = BTreeMap::new();
        for (number, name, counts) in counts.queues() {
            let label = if number < NAMES_SHOWN { name.as_str() } else { OTHER };
            shown.insert(name.as_str(), label);
            queues.entry(label.to_owned()).or_default().0.add(counts);
        }
        if *counts.forgotten_queues() != QueueCounts::default() {
            queues.entry(OTHER.to_owned()).or_default().0.add(counts.forgotten_queues());
        }
        for (queue, waited) in manager.longest_waits() {
            let label = shown.get(queue.as_str()).copied().unwrap_or(OTHER);
            let longest = &mut queues.entry(label.to_owned()).or_default().1;
            *longest = (*longest).max(Some(waited));
        }
        let mut kinds: BTreeMap<String, KindCounts> = BTreeMap::new();
        for (name, counts) in counts.kinds() {
            kinds.entry(name.to_string()).or_default().add(counts);
        }
        if *counts.other_kinds() != KindCounts::default() {
            kinds.entry(OTHER.to_owned()).or_default().add(counts.other_kinds());
        }
        let known = Verdict::ALL.into_iter().map(Verdict::code).chain(WorkerState::CODES);
        let mut verdicts: BTreeMap<&str, u64> = known.map(|verdict| (verdict, 0)).collect();
        for verdict in manager.verdict_codes() {
            *verdicts.entry(verdict).or_default() += 1;
        }
        Self {
            view: manager.view(),
            term: manager.state().term().get(),
            queues,
            kinds,
            verdicts,
            grants: counts.grants(),
            denials: counts.denials().map(|(denial, count)| (denial.code(), count)).collect(),
            schedules: Schedules::of(view),
        }
    }
}

fn render(pages: &PageState, seen: Option<ScrapeView>) -> String {
    let mut text = Text::default();
    text.gauge(
        "ready",
        "Whether the core answers: 1 or 0. The metrics of jobs and workers are left out if it does not.",
    )
    .sample(&[], u64::from(seen.is_some()));
    text.gauge("load_level", "How busy the node is: 0 normal, 1 busy, 2 stressed, 3 overloaded.")
        .sample(&[], pages.app.engine.load() as u64);
    let health = pages.app.engine.loops().health().report();
    of_loops(&mut text, &health.loops);
    if let Some(executor) = health.executor {
        text.gauge("executor_lag_seconds", "How long a task that could run waits for the executor.")
            .sample(&[], Duration::from_millis(executor.lag_ms).as_secs_f64());
    }
    engine(&mut text, pages);
    outputs(&mut text, pages);
    if let Some(gossip) = &pages.app.gossip {
        of_gossip(&mut text, &gossip.view());
    }
    if let Some(seen) = seen {
        overview(&mut text, &seen, &pages.app.engine.refusals(&seen.view.refusals));
        of_queues(&mut text, &seen);
        of_kinds(&mut text, &seen);
        of_schedules(&mut text, &seen.schedules);
    }
    text.0
}

fn of_loops(text: &mut Text, loops: &[LoopReport]) {
    let mut states = text.gauge("loop_state", "1 for the state that a loop of the node is in, 0 for the others.");
    for one in loops {
        let critical = if one.critical { "true" } else { "false" };
        for state in LoopState::ALL {
            let labels = [("loop", one.name.as_str()), ("critical", critical), ("state", state.code())];
            states = states.sample(&labels, u8::from(state == one.state));
        }
    }
    let what = "How long ago a loop was last seen to do, or to wait for, what it is there for.";
    let mut ages = text.gauge("loop_success_age_seconds", what);
    for one in loops {
        if let Some(ms) = one.last_success_ms {
            ages = ages.sample(&[("loop", &one.name)], Duration::from_millis(ms).as_secs_f64());
        }
    }
    let mut restarts = text.counter("loop_restarts_total", "Restarts of a loop after crashes.");
    for one in loops {
        restarts = restarts.sample(&[("loop", &one.name)], one.restarts());
    }
}

/// The meaning of the gauge of room for bodies.
pub(super) const BODY_BYTES: &str = "Bytes held now for the bodies of requests, until each is answered.";

fn engine(text: &mut Text, pages: &PageState) {
    let stats = pages.app.engine.stats();
    for (name, what, value) in stats.described() {
        match name {
            "commit_us" => text
                .counter("commit_seconds_total", "Time spent in commits to the log.")
                .sample(&[], Duration::from_micros(value).as_secs_f64()),
            "last_commit_us" => text
                .gauge("last_commit_seconds", "How long the last commit to the log took.")
                .sample(&[], Duration::from_micros(value).as_secs_f64()),
            "followed_bytes" => text.gauge(name, what).sample(&[], value),
            _ => text.counter(&format!("{name}_total"), what).sample(&[], value),
        };
    }
    if let Some((sent, dropped)) = pages.app.engine.exported_spans() {
        text.counter("spans_sent_total", "Spans that were sent to the collector of traces.").sample(&[], sent);
        text.counter("spans_dropped_total", "Spans that the collector of traces did not take in time.")
            .sample(&[], dropped);
    }
    text.gauge("body_bytes", BODY_BYTES).sample(&[], pages.about.bodies.taken_bytes());
    let counts = &pages.about.counts;
    for (name, what, counter) in [
        ("accepted", "Connections that were accepted.", &counts.accepted),
        ("refused", "Connections that were refused because there were too many.", &counts.refused),
        ("failed", "Connections that ended without a proper request.", &counts.failed),
    ] {
        text.counter(&format!("http_connections_{name}_total"), what).sample(&[], counter.load(Ordering::Relaxed));
    }
    let counts = pages.about.forwarder.counts();
    for (name, what, counter) in [
        ("answered", "Calls that were passed on to the manager that leads, and answered by it.", &counts.answered),
        ("repeated", "Calls to the manager that leads that came to nothing and were made again.", &counts.repeated),
        ("refused", "Calls that were refused because no manager leads, or it was not reached.", &counts.refused),
        ("in_doubt", "Refused calls of which it is not known whether they were carried out.", &counts.in_doubt),
    ] {
        text.counter(&format!("forwarded_{name}_total"), what).sample(&[], counter.get());
    }
}

fn outputs(text: &mut Text, pages: &PageState) {
    let outputs = pages.app.outputs.stats();
    for (name, what, counter) in [
        ("written_bytes", "Output of attempts that was kept.", &outputs.written_bytes),
        (
            "dropped_bytes",
            "Output of attempts that was lost for lack of room or by a failing disk.",
            &outputs.dropped_bytes,
        ),
        (
            "refused",
            "Output that was refused because it came from somebody who does not hold the attempt.",
            &outputs.refused,
        ),
        ("removed", "Files with output that a limit has removed.", &outputs.removed),
        ("errors", "Reads, writes and removals of output that failed.", &outputs.errors),
    ] {
        text.counter(&format!("output_{name}_total"), what).sample(&[], counter.get());
    }
    text.gauge("output_kept_bytes", "Output of attempts that is kept now.").sample(&[], outputs.kept_bytes.get());
    text.gauge("output_kept_files", "Files with output that are kept now.").sample(&[], outputs.kept_files.get());
}

fn of_gossip(text: &mut Text, view: &GossipView) {
    text.counter("gossip_received_total", "Datagrams of gossip that came in.").sample(&[], view.received);
    text.counter("gossip_sent_total", "Datagrams of gossip that went out.").sample(&[], view.sent);
    let mut drops = text.counter("gossip_dropped_total", "Datagrams of gossip that were dropped, by reason.");
    for (reason, count) in view.drops.listed() {
        drops = drops.sample(&[("reason", reason.code())], count);
    }
    let mut members = text.gauge("gossip_members", "Other nodes, by how they look from here.");
    for state in [MemberState::Alive, MemberState::Suspect, MemberState::Down, MemberState::Left] {
        let count = view.members.iter().filter(|member| member.state == state).count();
        members = members.sample(&[("state", state.code())], count);
    }
    text.gauge("gossip_disagreements", "Nodes that some take for dead and others do not.")
        .sample(&[], view.disagreements.len());
    text.gauge("gossip_stretch", "By how much timers of gossip are stretched: 1 unless this node is slow.")
        .sample(&[], view.stretch);
}

fn overview(text: &mut Text, seen: &ScrapeView, refusals_given: &RefusalCounts) {
    let view = &seen.view;
    for (name, what, value) in [
        ("term", "The term of this node's seat.", seen.term),
        ("jobs", "Jobs in memory: open, or ended and not yet archived.", view.jobs as u64),
        ("open_jobs", "Jobs that have not ended.", view.open_jobs as u64),
        ("dead_letters", "Jobs with a dead letter.", view.dead_letters as u64),
        ("workers", "Workers that the node knows.", view.workers as u64),
        ("leases", "Attempts that workers hold.", view.leases as u64),
    ] {
        text.gauge(name, what).sample(&[], value);
    }
    let mut verdicts = text.gauge("worker_verdicts", "Workers by verdict.");
    for (verdict, count) in &seen.verdicts {
        verdicts = verdicts.sample(&[("verdict", verdict)], count);
    }
    text.counter("grants_total", "Extensions that were granted.").sample(&[], seen.grants);
    let mut denials = text.counter("denials_total", "Extensions that were denied, by reason.");
    for (reason, count) in &seen.denials {
        denials = denials.sample(&[("reason", reason)], count);
    }
    let mut refusals = text.counter("refusals_total", "Calls and messages that the manager refused, by code.");
    for (kind, count) in refusals_given.listed() {
        refusals = refusals.sample(&[("code", kind.code())], count);
    }
}

fn of_queues(text: &mut Text, seen: &ScrapeView) {
    let mut jobs = text.gauge("queue_jobs", "Jobs in memory, by queue and state.");
    for (queue, (counts, _)) in &seen.queues {
        for state in JobState::ALL {
            jobs = jobs.sample(&[("queue", queue), ("state", state.word())], counts.jobs[state as usize]);
        }
    }
    let what = "For how long the first job of a queue waits for a worker; 0 if none does.";
    let mut oldest = text.gauge("queue_oldest_waiting_seconds", what);
    for (queue, (_, waited)) in &seen.queues {
        oldest = oldest.sample(&[("queue", queue)], waited.unwrap_or_default().as_secs_f64());
    }
    let mut submitted = text.counter("jobs_submitted_total", "Jobs that were submitted, by queue.");
    for (queue, (counts, _)) in &seen.queues {
        submitted = submitted.sample(&[("queue", queue)], counts.submitted);
    }
    let mut ended = text.counter("jobs_ended_total", "Jobs that ended, by queue and outcome.");
    for (queue, (counts, _)) in &seen.queues {
        for outcome in JobState::ALL.into_iter().filter(|state| state.is_terminal()) {
            ended = ended.sample(&[("queue", queue), ("outcome", outcome.word())], counts.ended[outcome as usize]);
        }
    }
    let what = "From when a workflow could first run (its submission, or the end of its delay or of its predecessors) \
                until its first hand-out, by queue.";
    let mut wait = text.histogram("submit_to_start_seconds", what);
    for (queue, (counts, _)) in &seen.queues {
        wait = wait.spans(("queue", queue), &counts.wait);
    }
}

fn of_kinds(text: &mut Text, seen: &ScrapeView) {
    let mut attempts = text.counter("attempts_total", "Attempts that ended, by kind and outcome.");
    for (kind, counts) in &seen.kinds {
        for ending in EndingKind::ALL {
            let labels = [("kind", kind.as_str()), ("outcome", ending.code())];
            attempts = attempts.sample(&labels, counts.attempts[ending as usize]);
        }
    }
    let what = "From the hand-out of an attempt to its end, by kind.";
    let mut run = text.histogram("attempt_run_seconds", what);
    for (kind, counts) in &seen.kinds {
        run = run.spans(("kind", kind), &counts.run);
    }
}

fn of_schedules(text: &mut Text, seen: &Schedules) {
    text.gauge("schedules", "Schedules.").sample(&[], seen.count);
    text.gauge("schedules_paused", "Schedules that are paused.").sample(&[], seen.paused);
    let what = "Critical schedules that are failing: three runs in a row have failed, or none has succeeded in time.";
    text.gauge("schedules_failing", what).sample(&[], seen.failing);
    text.counter("schedule_instants_total", "Due instants of the schedules that there are, by what became of them.")
        .sample(&[("record", "fired")], seen.fired)
        .sample(&[("record", "skipped")], seen.skipped)
        .sample(&[("record", "missed")], seen.missed);
    let mut failing = text.gauge("schedule_failing", "1 for each critical schedule that is failing, with the reason.");
    for (name, reason) in &seen.in_trouble {
        failing = failing.sample(&[("schedule", name), ("reason", reason)], 1);
    }
    let what = "Runs of a critical schedule that have failed in a row, where there are some.";
    let mut failures = text.gauge("schedule_failures", what);
    for (name, count) in &seen.by_name {
        failures = failures.sample(&[("schedule", name)], count);
    }
}

/// The text format of Prometheus. Writing into a string cannot fail.
#[derive(Default)]
struct Text(String);

struct Family<'a> {
    text: &'a mut String,
    name: String,
}

impl Text {
    fn gauge(&mut self, name: &str, what: &str) -> Family<'_> {
        self.family("gauge", name, what)
    }

    fn counter(&mut self, name: &str, what: &str) -> Family<'_> {
        self.family("counter", name, what)
    }

    fn histogram(&mut self, name: &str, what: &str) -> Family<'_> {
        self.family("histogram", name, what)
    }

    fn family(&mut self, kind: &str, name: &str, what: &str) -> Family<'_> {
        let name = format!("onward_{name}");
        let _ = writeln!(self.0, "# HELP {name} {what}\n# TYPE {name} {kind}");
        Family { text: &mut self.0, name }
    }
}

impl Family<'_> {
    fn sample(self, labels: &[(&str, &str)], value: impl Display) -> Self {
        self.part("", labels, value)
    }

    fn spans(mut self, label: (&str, &str), histogram: &Histogram) -> Self {
        for (bound, count) in histogram.cumulative() {
            self = self.part("_bucket", &[label, ("le", &bound.as_secs_f64().to_string())], count);
        }
        self.part("_bucket", &[label, ("le", "+Inf")], histogram.count())
            .part("_sum", &[label], histogram.sum().as_secs_f64())
            .part("_count", &[label], histogram.count())
    }

    fn part(self, suffix: &str, labels: &[(&str, &str)], value: impl Display) -> Self {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{}{suffix}{labels} {value}", self.name);
        self
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_help_type_and_escaped_labels() {
        let mut text = Text::default();
        text.gauge("jobs", "Jobs.").sample(&[("queue", "a\"b\\c")], 3).sample(&[], 0.25);
        let expected = "# HELP onward_jobs Jobs.\n# TYPE onward_jobs gauge\n\
                        onward_jobs{queue=\"a\\\"b\\\\c\"} 3\nonward_jobs 0.25\n";
        assert_eq!(text.0, expected);
    }

    #[test]
    fn a_histogram_is_cumulative_and_in_seconds() {
        let mut histogram = Histogram::default();
        histogram.observe(Duration::from_millis(30));
        histogram.observe(Duration::from_secs(100_000));
        let mut text = Text::default();
        text.histogram("run_seconds", "Runs.").spans(("kind", "k"), &histogram);
        for line in [
            "onward_run_seconds_bucket{kind=\"k\",le=\"0.025\"} 0",
            "onward_run_seconds_bucket{kind=\"k\",le=\"0.1\"} 1",
            "onward_run_seconds_bucket{kind=\"k\",le=\"14400\"} 1",
            "onward_run_seconds_bucket{kind=\"k\",le=\"+Inf\"} 2",
            "onward_run_seconds_sum{kind=\"k\"} 100000.03",
            "onward_run_seconds_count{kind=\"k\"} 2",
        ] {
            assert!(text.0.lines().any(|found| found == line), "{line} in {}", text.0);
        }
    }
}
