//! What is run, in which order, and what the figures should be.

use std::sync::OnceLock;
use std::time::Instant;

use crate::contest::ours::grpc::{Grpc, OverGrpc};
use crate::contest::ours::http::Http;
use crate::contest::ours::mixed::{self, StageBacklog};
use crate::contest::ours::program::NodeProcess;
use crate::contest::rows::{ContestPlan, Measurement, What, measure};
use crate::contest::{Contender, ContestError};
use crate::growth;
use crate::limits::MachineLimits;
use crate::report::{BenchReport, Figure};
use crate::runs;

/// The parts of a whole run, by the names that `--only` knows.
pub const STAGES: [&str; 12] = [
    "limits", "contest", "mixed", "idle", "outbox", "cycles", "backlog", "workers", "steps", "reopen", "beats", "gates",
];
/// Parts that are run only by name.
pub const EXTRA: [&str; 9] = [
    "ours",
    "growth",
    "growth-backlog",
    "growth-workers",
    "growth-payload",
    "takeover",
    "takeover-large",
    "postgres",
    "decisions",
];

pub struct StageRun {
    pub quick: bool,
    /// None: all.
    pub only: Vec<String>,
}

impl StageRun {
    fn wants(&self, stage: &str) -> bool {
        if self.only.is_empty() { STAGES.contains(&stage) } else { self.only.iter().any(|only| only == stage) }
    }

    pub fn everything(&self) -> Result<BenchReport, ContestError> {
        // One thread for the client: waking another for every answer would be measured, too.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let plan = if self.quick { ContestPlan::QUICK } else { ContestPlan::FULL };
        let mut report = BenchReport::default();
        let ours_only = self.wants("ours");
        if self.wants("contest") || ours_only {
            runtime.block_on(contest(&mut report, plan, ours_only))?;
            report.figures.extend(judge(&report));
        } else if self.wants("limits") {
            report.limits = Some(limits(plan)?);
        }
        if self.wants("mixed") {
            let jobs = if self.quick { 100_000 } else { 1_000_000 };
            report.figures.extend(runtime.block_on(mixed_backlog(jobs, plan))?);
        }
        if self.wants("idle") {
            report.figures.extend(runtime.block_on(idle_sessions(1_000, plan))?);
        }
        if self.wants("outbox") {
            runtime.block_on(outbox(&mut report, self.quick));
        }
        for part in ["takeover", "takeover-large", "postgres", "decisions"].into_iter().filter(|part| self.wants(part))
        {
            runtime.block_on(cluster(&mut report, part, self.quick)).map_err(|error| format!("{part}: {error}"))?;
        }
        let curve = |name: &str| self.wants("growth") || self.wants(&format!("growth-{name}"));
        report.growth = runtime.block_on(growth::curves(self.quick, plan, curve, say))?;
        let core: Vec<&str> = ["cycles", "backlog", "workers", "steps", "reopen", "beats", "gates"]
            .into_iter()
            .filter(|stage| self.wants(stage))
            .collect();
        for stage in core {
            say(stage);
            report.figures.extend(runs::stage(stage, self.quick));
        }
        Ok(report)
    }
}

fn say(stage: &str) {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let so_far = BEGUN.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("{:>3}:{:02} running: {stage}", so_far / 60, so_far % 60);
}

/// The limits that ours is compared with are measured around it: a machine is not always as fast.
async fn contest(report: &mut BenchReport, plan: ContestPlan, ours_only: bool) -> Result<(), ContestError> {
    let before = limits(plan)?;
    contend(report, &Grpc, plan).await;
    let between = limits(plan)?;
    contend(report, &Http, plan).await;
    report.limits = Some(MachineLimits::median([before, between, limits(plan)?]));
    if !ours_only {
        others(report, plan).await;
    }
    Ok(())
}

fn limits(plan: ContestPlan) -> Result<MachineLimits, ContestError> {
    say("this machine's limits");
    Ok(MachineLimits::measure(plan.time)?)
}

#[cfg(feature = "peers")]
async fn others(report: &mut BenchReport, plan: ContestPlan) {
    use crate::contest::peers::{
        beanstalkd::Beanstalkd, bullmq::BullMq, nats::NatsPeer, postgres::PostgresPeer, rabbitmq::RabbitMq,
    };
    contend(report, &Beanstalkd::synced(), plan).await;
    contend(report, &Beanstalkd::lazy(), plan).await;
    contend(report, &NatsPeer::synced(), plan).await;
    contend(report, &NatsPeer::lazy(), plan).await;
    contend(report, &RabbitMq, plan).await;
    contend(report, &PostgresPeer, plan).await;
    contend(report, &BullMq, plan).await;
}

#[cfg(not(feature = "peers"))]
#[expect(clippy::unused_async, reason = "the other one waits")]
async fn others(report: &mut BenchReport, _: ContestPlan) {
    report.absent.push(("other systems", "this was built without the feature `peers`".into()));
}

#[cfg(feature = "outbox")]
async fn outbox(report: &mut BenchReport, quick: bool) {
    say("outbox");
    let (slices, rows) = if quick { (4, 50_000) } else { (10, 100_000) };
    match crate::outbox::run(slices, rows).await {
        Ok(figures) => report.figures.extend(figures),
        Err(error) => report.absent.push(("outbox", error.to_string())),
    }
}

#[cfg(not(feature = "outbox"))]
#[expect(clippy::unused_async, reason = "the other one waits")]
async fn outbox(report: &mut BenchReport, _: bool) {
    report.absent.push(("outbox", "this was built without the feature `outbox`".into()));
}

/// These parts run only where somebody asked for them: one that fails is an error, and no row that is missing.
#[cfg(feature = "peers")]
async fn cluster(report: &mut BenchReport, part: &'static str, quick: bool) -> Result<(), ContestError> {
    use crate::cluster::{drains, large_takeovers, takeovers};
    say(part);
    let figures = match part {
        "takeover" => takeovers(quick).await,
        "takeover-large" => large_takeovers(quick).await,
        "decisions" => crate::gate_world::decisions(quick).await,
        _ => drains(quick).await,
    }?;
    report.figures.extend(figures);
    Ok(())
}

#[cfg(not(feature = "peers"))]
#[expect(clippy::unused_async, reason = "the other one waits")]
async fn cluster(_: &mut BenchReport, _: &'static str, _: bool) -> Result<(), ContestError> {
    Err("this was built without the feature `peers`".into())
}

async fn contend(report: &mut BenchReport, contender: &impl Contender, plan: ContestPlan) {
    let name = contender.about().name;
    if let Some(missing) = contender.missing() {
        report.absent.push((name, missing));
        return;
    }
    say(name);
    match measure(contender, plan).await {
        Ok(measured) => report.contenders.push(measured),
        Err(error) => report.absent.push((name, error.to_string())),
    }
}

/// The goals of the contest.
fn judge(report: &BenchReport) -> Vec<Figure> {
    let find = |name: &str| report.contenders.iter().find(|one| one.about.name == name);
    let (Some(ours), Some(limits)) = (find(Grpc.about().name), report.limits) else { return Vec::new() };
    let http = find(Http.about().name);
    let thousands = 1e3;
    let one = ("one in flight, of what a sync and a round trip allow", What::EnqueueOne, limits.one_in_flight());
    let p50 = ("submission to handler at 200/s, p50", What::LatencyP50, 1.0);
    let mut figures: Vec<Figure> = [
        line(ours, "enqueue by 256", What::EnqueueBatched, thousands, "k jobs/s", 150.0, true),
        line(ours, "drain, 64 in flight", What::Drain64, thousands, "k jobs/s", 60.0, true),
        line(ours, "drain, 1,024 in flight", What::Drain1024, thousands, "k jobs/s", 120.0, true),
        line(ours, one.0, one.1, one.2, "×", 0.7, true),
        http.and_then(|http| line(http, &format!("{} (HTTP)", one.0), one.1, one.2, "×", 0.7, true)),
        line(ours, p50.0, p50.1, p50.2, "ms", 0.6, false),
        http.and_then(|http| line(http, &format!("{} (HTTP)", p50.0), p50.1, p50.2, "ms", 0.6, false)),
        line(ours, "submission to handler at 200/s, p99", What::LatencyP99, 1.0, "ms", 3.0, false),
        line(ours, "beats over 10k leases", What::Touch, thousands, "k/s", 500.0, true),
    ]
    .into_iter()
    .flatten()
    .collect();
    figures.extend(against(report, ours, true, "drain with 64, over the best that is durable before it answers", 3.0));
    figures.extend(against(report, ours, false, "drain with 64, over the best that is not", 1.0));
    figures
}

fn line(
    of: &Measurement,
    what: &str,
    measured: What,
    scale: f64,
    unit: &'static str,
    wanted: f64,
    more: bool,
) -> Option<Figure> {
    let (median, low, high) = of.of(measured)?;
    let spread = Some((low / scale, high / scale));
    Some(Figure { what: what.into(), value: median / scale, unit, wanted: Some(wanted), more, spread })
}

fn against(report: &BenchReport, ours: &Measurement, durable: bool, what: &str, wanted: f64) -> Option<Figure> {
    let rate = |one: &Measurement| one.of(What::Drain64).map(|(median, ..)| median);
    let peers = report.contenders.iter().filter(|one| !one.about.name.starts_with("Onward"));
    let best = peers.filter(|one| one.about.before_answer == durable).filter_map(|one| Some((rate(one)?, one)));
    let (best, peer) = best.max_by(|one, other| one.0.total_cmp(&other.0))?;
    let what = format!("{what} ({})", peer.about.name);
    Some(Figure { what, value: rate(ours)? / best, unit: "×", wanted: Some(wanted), more: true, spread: None })
}

/// A small and a large backlog by turns, so that what disturbs the machine disturbs both.
async fn mixed_backlog(jobs: usize, plan: ContestPlan) -> Result<Vec<Figure>, ContestError> {
    const SMALL: usize = 10_000;
    say("mixed backlog");
    let folders = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut small = StageBacklog::of(SMALL, folders.0.path()).await?;
    let mut large = StageBacklog::of(jobs, folders.1.path()).await?;
    let bytes = (mixed::memory(large.pid())? as f64 - mixed::memory(small.pid())? as f64) / (jobs - SMALL) as f64;
    mixed::calm(large.pid()).await?;
    let turn = plan.time / 4;
    // Both have to get warm.
    small.drain(turn).await?;
    large.drain(turn).await?;
    let (mut at_small, mut at_large, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.runs * 4 {
        let (of_small, of_large) = (small.drain(turn).await?.rate(), large.drain(turn).await?.rate());
        at_small.push(of_small / 1e3);
        at_large.push(of_large / 1e3);
        ratios.push(of_large / of_small);
    }
    let millions = jobs as f64 / 1e6;
    let median = |what: String, values: Vec<f64>, unit, wanted| {
        let (value, spread) = runs::median(values);
        Figure { what, value, unit, wanted, more: true, spread }
    };
    drop((small, large));
    let after_kill = vec![mixed::reopen(folders.1.path())?.as_secs_f64()];
    let mut after_stop = Vec::new();
    for _ in 0..plan.runs {
        after_stop.push(mixed::reopen(folders.1.path())?.as_secs_f64());
    }
    let reopened = |after: &str, values| {
        let (value, spread) = runs::median(values);
        let what = format!("{millions}M queued jobs after a {after}, from start to ready");
        Figure { what, value, unit: "s", wanted: Some(5.0 * millions), more: false, spread }
    };
    Ok(vec![
        median("drain with 10k queued, mixed".into(), at_small, "k wf/s", None),
        median(format!("drain with {millions}M queued, mixed"), at_large, "k wf/s", None),
        median("the larger over the smaller".into(), ratios, "×", Some(0.9)),
        Figure {
            what: "memory of the process per queued job, mixed".into(),
            value: bytes,
            unit: "bytes",
            wanted: Some(1024.0),
            more: false,
            spread: None,
        },
        reopened("stop", after_stop),
        reopened("kill", after_kill),
    ])
}

/// Workers that are connected and have nothing to do.
async fn idle_sessions(count: usize, plan: ContestPlan) -> Result<Vec<Figure>, ContestError> {
    say("idle sessions");
    let folder = tempfile::tempdir()?;
    let mut over = OverGrpc::on(NodeProcess::start(folder.path())?).await?;
    let pid = over.node.pid();
    let before = mixed::memory(pid)?;
    let mut tending = tokio::task::JoinSet::new();
    for _ in 0..count {
        let mut session = over.session(1, vec!["idle".into()]).await?;
        tending.spawn(async move {
            while let Ok(frame) = session.hear().await {
                let _ = session.answer(frame.probes).await;
            }
        });
    }
    let each = (mixed::memory(pid)? as f64 - before as f64) / count as f64;
    let (begun, used) = (Instant::now(), mixed::cpu_time(pid)?);
    tokio::time::sleep(plan.time * 5).await;
    let share = mixed::cpu_time(pid)?.saturating_sub(used).as_secs_f64() / begun.elapsed().as_secs_f64();
    let line = |what: &str, value, unit| Figure {
        what: format!("{count} idle sessions: {what}"),
        value,
        unit,
        wanted: None,
        more: false,
        spread: None,
    };
    Ok(vec![line("share of a core", share * 100.0, "%"), line("memory of the node for each", each / 1024.0, "KiB")])
}
