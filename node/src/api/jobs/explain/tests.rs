use core::time::Duration;
use std::path::Path;

use onward_core::event::Verb;
use onward_core::fence::{AttemptFence, GateEpoch};
use onward_core::grant::{Denial, ExtensionReason};
use onward_core::ids::{Claim, JobId, Name, WorkerId};
use onward_core::job::draft::{self, Draft, JobDefaults, LimitDraft, WorkflowDraft};
use onward_core::job::{Ending, JobSpec, JobState, OnStuck, WorkflowState};
use onward_core::limits::Limits;
use onward_core::manager::KeyWait;
use onward_core::payload::Payload;
use onward_core::refusal::RefusalKind;
use onward_core::state::{GateTie, LedgerFact, LocalTimeout};
use onward_core::timeout::TimeoutReason;

use super::*;

/// An instant on the day of all these tests, by its time `hms`.
fn at(hms: &str) -> Wall {
    format!("2026-11-16T{hms}Z").parse::<At>().unwrap().0
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn origin() -> JobId {
    JobId::parse("0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d0f").unwrap()
}

/// Submitted at 09:50, with two hours to run.
fn job(state: JobState, workflows: Vec<WorkflowView>) -> JobView {
    let drafts = workflows.iter().map(|workflow| WorkflowDraft {
        name: Some(workflow.name.as_str().into()),
        kind: workflow.kind.as_str().into(),
        ..WorkflowDraft::default()
    });
    let draft = Draft { queue: Some("media".into()), workflows: drafts.collect(), ..Draft::default() };
    JobView {
        id: JobId::parse("0190b2c4-6f1e-7d3a-9a55-2f1c5b7e8d10").unwrap(),
        queue: name("media"),
        spec: draft::check(draft, &Limits::default(), &JobDefaults::default()).unwrap(),
        state,
        created_at: at("09:50:00"),
        started_at: Some(at("09:50:00")),
        ended_at: state.is_terminal().then(|| at("09:57:10")),
        timed_out: None,
        deadline: Some(at("11:50:00")),
        extensions: Duration::ZERO,
        retry_of: None,
        gate: None,
        dead_letter: false,
        workflows,
        ledger: Vec::new(),
        ledger_dropped: 0,
    }
}

fn named(workflow: &str, state: WorkflowState) -> WorkflowView {
    WorkflowView {
        name: name(workflow),
        kind: name(workflow),
        state,
        taken_over: false,
        counted: 0,
        due_at: None,
        blocked: None,
        waits_for_key: None,
        running: None,
        ended: Vec::new(),
    }
}

/// The only one of its job.
fn workflow(state: WorkflowState) -> WorkflowView {
    WorkflowView { kind: name("transcode"), ..named("main", state) }
}

fn blocked(why: &'static str) -> WorkflowView {
    WorkflowView { blocked: Some(why), ..workflow(WorkflowState::Ready) }
}

fn of_hand_out(n: u32) -> AttemptFence {
    AttemptFence::from_raw((3 << 20) + u64::from(n))
}

fn running(n: u32, stuck_in: u64) -> AttemptView {
    AttemptView {
        claim: Claim { job: origin(), workflow: 0, fence: of_hand_out(n) },
        number: n,
        worker: worker(&format!("worker-{n}")),
        started_at: at("09:58:00"),
        watermark: None,
        note: None,
        lease_remaining: secs(250),
        stuck_in: secs(stuck_in),
        since_step: secs(120 - stuck_in),
        quiet_remaining: None,
    }
}

fn worker(id: &str) -> WorkerId {
    WorkerId::new(id).unwrap()
}

fn ended(n: u32, ending: Ending) -> EndedAttempt {
    EndedAttempt {
        number: n,
        fence: of_hand_out(n),
        worker: worker(&format!("worker-{n}")),
        started_at: at("09:50:10"),
        ended_at: at("09:57:10"),
        ending,
        refused: 0,
        note: None,
    }
}

fn failed(error: &str) -> Ending {
    Ending::Failed { error: error.into(), retryable: true, delay: None }
}

fn succeeded() -> Ending {
    Ending::Succeeded { result: Payload::default() }
}

/// A job whose only workflow runs, after `before`.
fn running_job(attempt: AttemptView, before: Vec<EndedAttempt>) -> JobView {
    let workflow = WorkflowView { running: Some(attempt), ended: before, ..workflow(WorkflowState::Running) };
    job(WorkflowState::Running, vec![workflow])
}

fn moved(mut attempt: AttemptView) -> AttemptView {
    attempt.watermark = Some((40, Some(100)));
    attempt
}

fn entry(hms: &str, what: LedgerFact) -> LedgerEntry {
    LedgerEntry { at: at(hms), what, times: 1 }
}

fn page(job: &JobView) -> String {
    explain(job, at("10:00:00")).to_string()
}

/// Compares with the file of that name; `ONWARD_WRITE_GOLDEN=1` writes it.
fn golden(name: &str, job: &JobView) {
    let text = page(job);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/api/jobs/explain/golden/{name}.txt"));
    if std::env::var_os("ONWARD_WRITE_GOLDEN").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, expected, "{name} differs from {}", file.display());
}

#[test]
fn running_well() {
    let attempt = AttemptView { note: Some("part 40".into()), ..moved(running(1, 110)) };
    golden("running_well", &running_job(attempt, vec![]));
}

/// An attempt that is only known to have been handed out is not moving.
#[test]
fn nothing_heard_yet() {
    let attempt = AttemptView { started_at: at("09:59:30"), ..running(1, 90) };
    let mut job = running_job(attempt.clone(), vec![]);
    let refusal = RefusalKind::AlreadyEnded;
    let what = LedgerFact::Refused { workflow: 0, fence: of_hand_out(0), verb: Verb::Succeed, refusal };
    job.ledger.push(entry("09:59:40", what));
    golden("nothing_heard_yet", &job);
    let spoke = running_job(AttemptView { note: Some("reading".into()), ..attempt }, vec![]);
    assert!(page(&spoke).contains("is running and moving"));
}

#[test]
fn slow() {
    golden("slow", &running_job(moved(running(1, 12)), vec![]));
}

#[test]
fn quiet_section() {
    let mut job = running_job(AttemptView { quiet_remaining: Some(secs(90)), ..running(1, 100) }, vec![]);
    job.ledger.push(entry("09:59:30", LedgerFact::QuietBegan { workflow: 0, allowed: secs(120) }));
    golden("quiet_section", &job);
}

#[test]
fn stuck_and_redelivered() {
    let note = Some("file 3 of 10".into());
    let mut job = running_job(running(2, 118), vec![EndedAttempt { note, ..ended(1, Ending::Stuck) }]);
    let (fence, ending) = (of_hand_out(1), Ending::Stuck.kind());
    job.ledger.push(entry("09:57:10", LedgerFact::AttemptEnded { workflow: 0, fence, ending }));
    golden("stuck_and_redelivered", &job);
}

#[test]
fn no_worker_takes_the_kind() {
    let job = job(WorkflowState::Ready, vec![blocked("no_capable_worker")]);
    golden("no_capable_worker", &job);
    let explained = explain(&job, at("10:00:00"));
    assert_eq!((explained.code.as_str(), &explained.can_do[0].command), ("no_capable_worker", &None));
}

fn spec_that_times_out_when_stuck() -> JobSpec {
    let only = WorkflowDraft { kind: "transcode".into(), ..WorkflowDraft::default() };
    let draft = Draft { workflows: vec![only], on_stuck: OnStuck::TimeOut, ..Draft::default() };
    draft::check(draft, &Limits::default(), &JobDefaults::default()).unwrap()
}

fn limited(job: &mut JobView, key: &str, max: u32, ordered: bool) {
    let limit = LimitDraft { key: key.into(), max, ordered };
    let only = WorkflowDraft { kind: "transcode".into(), ..WorkflowDraft::default() };
    let draft = Draft { workflows: vec![only], limits: vec![limit], ..Draft::default() };
    job.spec = draft::check(draft, &Limits::default(), &JobDefaults::default()).unwrap();
}

#[test]
fn blocked_by_a_limit_key() {
    let mut job = job(WorkflowState::Ready, vec![blocked("limit")]);
    limited(&mut job, "gpu", 2, false);
    golden("limit", &job);
}

#[test]
fn behind_a_job_that_keeps_its_key_in_order() {
    let wait = KeyWait { key: name("account-1"), kept_by: Some(origin()) };
    let mut job = job(WorkflowState::Ready, vec![WorkflowView { waits_for_key: Some(wait), ..blocked("limit") }]);
    limited(&mut job, "account-1", 1, true);
    golden("ordered", &job);
}

#[test]
fn paused_queue() {
    golden("queue_paused", &job(WorkflowState::Ready, vec![blocked("queue_paused")]));
}

#[test]
fn replayed_from_the_failed_workflow_on() {
    let fetch = WorkflowView {
        taken_over: true,
        ended: vec![ended(1, succeeded())],
        ..named("fetch", WorkflowState::Succeeded)
    };
    let cut = WorkflowView { running: Some(running(1, 110)), ..named("cut", WorkflowState::Running) };
    let job = JobView { retry_of: Some(origin()), ..job(WorkflowState::Running, vec![fetch, cut]) };
    golden("replayed", &job);
}

#[test]
fn delayed() {
    let workflow = WorkflowView { due_at: Some(at("10:05:00")), ..workflow(WorkflowState::Delayed) };
    let job = job(WorkflowState::Delayed, vec![workflow]);
    golden("delayed", &JobView { started_at: None, deadline: None, ..job });
}

#[test]
fn backing_off_after_a_failure() {
    let ended = vec![ended(1, failed("connection reset"))];
    let workflow = WorkflowView { due_at: Some(at("10:00:04")), ended, ..workflow(WorkflowState::Delayed) };
    golden("backing_off", &job(WorkflowState::Delayed, vec![workflow]));
}

#[test]
fn extension_denied() {
    let mut job = running_job(moved(running(1, 80)), vec![]);
    job.extensions = secs(30);
    let (who, reason, progress) = (worker("worker-1"), Some(ExtensionReason::LongWorkflow), 0.4);
    let granted = LedgerFact::Granted { worker: who.clone(), by: secs(30), reason, progress };
    let denied = LedgerFact::Denied { worker: who, denial: Denial::NoProgress, reason, progress };
    job.ledger = vec![entry("09:58:30", granted), LedgerEntry { times: 2, ..entry("09:59:30", denied) }];
    golden("extension_denied", &job);
}

#[test]
fn zombie_refused() {
    let mut job = running_job(running(2, 100), vec![ended(1, Ending::LeaseExpired)]);
    let refusal = RefusalKind::StaleAttempt;
    let what = LedgerFact::Refused { workflow: 0, fence: of_hand_out(1), verb: Verb::Succeed, refusal };
    job.ledger.push(entry("09:59:00", what));
    golden("zombie_refused", &job);
}

#[test]
fn dead_lettered() {
    let ended = vec![ended(1, failed("exit status 1")), ended(2, failed("no space left"))];
    let workflow = WorkflowView { ended, ..workflow(WorkflowState::Failed) };
    golden("dead_lettered", &JobView { dead_letter: true, ..job(WorkflowState::Failed, vec![workflow]) });
}

#[test]
fn timed_out_by_hand_of_the_clock() {
    let workflow = WorkflowView { ended: vec![ended(1, Ending::TimedOut)], ..workflow(WorkflowState::TimedOut) };
    let mut job = job(WorkflowState::TimedOut, vec![workflow]);
    job.timed_out = Some(TimeoutReason::Overall);
    job.ledger.push(entry("09:57:10", LedgerFact::TimedOut { reason: TimeoutReason::Overall, epoch: None }));
    golden("timed_out", &job);
}

#[test]
fn of_a_gates_job_the_gate_decides() {
    let mut job = running_job(moved(running(1, 0)), vec![]);
    job.spec = spec_that_times_out_when_stuck();
    let local = LocalTimeout { reason: TimeoutReason::Stuck, at: at("09:59:00"), stuck: None };
    job.gate = Some(GateTie { local: Some(local), ..GateTie::default() });
    job.ledger = vec![
        entry("09:58:00", LedgerFact::TimeGiven { until: at("11:50:00") }),
        entry("09:59:00", LedgerFact::LocallyTimedOut { reason: TimeoutReason::Stuck }),
        entry("09:59:01", LedgerFact::GateAnswered),
    ];
    golden("locally_timed_out", &job);
}

#[test]
fn of_a_gates_job_it_is_told_who_ended_it() {
    for (epoch, file) in [(Some(GateEpoch { n: 7, gate: 1 }), "timed_out_by_gate"), (None, "timed_out_alone")] {
        // It moved here, and was stuck elsewhere.
        let workflow = WorkflowView { ended: vec![ended(1, Ending::TimedOut)], ..workflow(WorkflowState::TimedOut) };
        let mut job = job(WorkflowState::TimedOut, vec![workflow]);
        (job.timed_out, job.gate) = (Some(TimeoutReason::Stuck), Some(GateTie::default()));
        job.ledger.push(entry("09:57:10", LedgerFact::TimedOut { reason: TimeoutReason::Stuck, epoch }));
        golden(file, &job);
    }
}

#[test]
fn succeeded_after_a_while() {
    let workflow = WorkflowView { ended: vec![ended(1, succeeded())], ..workflow(WorkflowState::Succeeded) };
    golden("succeeded", &job(WorkflowState::Succeeded, vec![workflow]));
}

#[test]
fn of_an_ended_graph_every_workflow_is_told() {
    let on = |attempt: EndedAttempt, id: &str| EndedAttempt { worker: worker(id), ..attempt };
    let fetch =
        WorkflowView { ended: vec![on(ended(1, succeeded()), "a")], ..named("fetch", WorkflowState::Succeeded) };
    let ended = vec![
        on(ended(1, Ending::LeaseExpired), "b"),
        on(ended(2, Ending::Stuck), "b"),
        on(ended(3, failed("no space")), "c"),
    ];
    let cut = WorkflowView { ended, ..named("cut", WorkflowState::Failed) };
    let mut job = job(WorkflowState::Failed, vec![fetch, cut, named("join", WorkflowState::Cancelled)]);
    job.dead_letter = true;
    let reason = Some(ExtensionReason::GcPause);
    let granted = |id: &str| LedgerFact::Granted { worker: worker(id), by: secs(30), reason, progress: f64::NAN };
    job.ledger = ["a", "c", "nobody"].map(|id| entry("09:55:00", granted(id))).to_vec();
    job.ledger.push(entry("09:56:00", LedgerFact::QuietBegan { workflow: 1, allowed: secs(60) }));
    golden("ended_graph", &job);
    let text = page(&job);
    assert!(!text.contains("matters now"), "{text}");
    for line in [
        "  fetch: attempt 1 on a",
        "  cut: attempt 3 on c",
        "  fetch: 5m ago: a asked",
        "  cut: 5m ago: c asked",
        "  5m ago: nobody asked",
        "  cut: 4m ago: a quiet",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn of_several_workflows_the_one_that_matters_is_told() {
    let cut = WorkflowView { blocked: Some("no_capable_worker"), ..named("cut", WorkflowState::Ready) };
    let (fetch, join) = (named("fetch", WorkflowState::Succeeded), named("join", WorkflowState::Waiting));
    golden("several_workflows", &job(WorkflowState::Ready, vec![fetch, cut, join]));
}
