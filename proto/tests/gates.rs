//! What a datacenter and a gate say comes through the wire as it was, and what is malformed is named.

use std::time::Duration;

use onward_core::fence::{GateEpoch, Term};
use onward_core::gate::message::{
    Correction, FinalStatus, Frame, FromDatacenter, Hello, JobOutline, JobReport, Outcome, Placement, StaleToken,
    SubmitRefusal, ToDatacenter, WorkflowCounts,
};
use onward_core::health::DatacenterCounts;
use onward_core::ids::{JobId, Name};
use onward_core::job::{Draft, JobState, Retry, TimeoutPolicy};
use onward_core::refusal::RefusalKind;
use onward_core::timeout::{ExtensionTotals, TimeoutReason};
use onward_proto::gate::{down_in, down_out, up_in, up_out};
use onward_proto::v1;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn job() -> JobId {
    JobId::from_u128(77)
}

fn epoch() -> GateEpoch {
    GateEpoch { n: 5, gate: u64::MAX }
}

fn report(state: JobState, timed_out: Option<TimeoutReason>) -> JobReport {
    JobReport {
        job: job(),
        outline: JobOutline {
            kind: name("k"),
            queue: name("q"),
            targets: Box::new([name("a"), name("b")]),
            policy: TimeoutPolicy::All,
            timeout: Duration::from_secs(60),
            max_extension: Duration::from_secs(30),
        },
        epoch: Some(epoch()),
        elapsed: Some(Duration::from_millis(1_234)),
        extended: ExtensionTotals { grants: Duration::from_secs(1), by_hand: Duration::from_secs(2) },
        since_progress: None,
        state,
        timed_out,
        workflows: WorkflowCounts { total: 3, succeeded: 1, failed: 2 },
        attempts: 9,
    }
}

fn said() -> Vec<FromDatacenter> {
    let counts = DatacenterCounts {
        managers: 3,
        managers_live: 2,
        managers_ready: 1,
        managers_stuck: 4,
        workers: 5,
        workers_healthy_or_busy: 6,
        free_slots: 7,
    };
    let refused = SubmitRefusal::Refused { kind: RefusalKind::Overloaded, text: "later".into() };
    let mut list = vec![
        FromDatacenter::Hello(Hello { datacenter: name("a"), life: 3, epoch: Some(epoch()), counts }),
        FromDatacenter::Hello(Hello { datacenter: name("a"), life: 3, epoch: None, counts }),
        FromDatacenter::Health(counts),
        FromDatacenter::Progress(vec![report(JobState::Running, None), report(JobState::Cancelling, None)]),
        FromDatacenter::LeaderTransfer(vec![report(JobState::Delayed, None)]),
        FromDatacenter::TimedOut(Box::new(report(JobState::Running, Some(TimeoutReason::Stuck)))),
        FromDatacenter::TimedOut(Box::new(report(JobState::Ready, Some(TimeoutReason::Overall)))),
        FromDatacenter::Submitted { job: job(), answer: Ok(()) },
        FromDatacenter::Submitted { job: job(), answer: Err(SubmitRefusal::Withdrawn) },
        FromDatacenter::Submitted { job: job(), answer: Err(refused) },
        FromDatacenter::Withdrawn { job: job() },
        FromDatacenter::Unknown { job: job() },
    ];
    for stale in [StaleToken::Term, StaleToken::Epoch] {
        let correction = Correction { stale, report: report(JobState::Waiting, None) };
        list.push(FromDatacenter::Correction(Box::new(correction)));
    }
    for outcome in [Outcome::Succeeded, Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut] {
        list.push(FromDatacenter::Final(Box::new(FinalStatus {
            report: report(outcome.state(), None),
            outcome,
            result: Some((*b"ok").into()),
            error: Some("no".into()),
        })));
    }
    list
}

fn ordered() -> Vec<ToDatacenter> {
    let draft = Draft { datacenters: vec!["a".into()], retry: Some(Retry::default()), ..Draft::of_kind("k", *b"{}") };
    let placement = Placement { job: job(), epoch: epoch(), again: true, waited: Duration::from_secs(4), draft };
    let (term, reason) = (Term::new(8), TimeoutReason::Stuck);
    vec![
        ToDatacenter::Welcome { epoch: epoch() },
        ToDatacenter::Submit(Box::new(placement)),
        ToDatacenter::Cancel { job: job(), epoch: epoch() },
        ToDatacenter::GlobalTimeout { job: job(), epoch: epoch(), term, reason },
        ToDatacenter::Withdraw { job: job(), epoch: epoch() },
        ToDatacenter::Remaining { job: job(), epoch: epoch(), remaining: Duration::from_millis(7) },
        ToDatacenter::Heard { job: job() },
        ToDatacenter::FinalHeard { jobs: vec![job()] },
        ToDatacenter::Ask { jobs: vec![job(), JobId::from_u128(1)] },
    ]
}

#[test]
fn everything_comes_through_as_it_was() {
    for (number, message) in said().into_iter().enumerate() {
        let frame = Frame { term: Term::new(2), number: number as u64, message };
        assert_eq!(up_in(up_out(frame.clone())), Ok(frame));
    }
    for message in ordered() {
        assert_eq!(down_in(down_out(message.clone()), &Retry::default()), Ok(message));
    }
}

#[test]
fn what_is_malformed_is_named() {
    let up = |message| up_in(v1::DatacenterFrame { term: 1, number: 1, message }).unwrap_err().field;
    let Some(v1::datacenter_frame::Message::Final(good)) =
        up_out(Frame { term: Term::new(1), number: 1, message: said().pop().unwrap() }).message
    else {
        panic!("the last is a final status")
    };
    use v1::datacenter_frame::Message as Up;
    assert_eq!(up(None), "message");
    assert_eq!(up(Some(Up::Unknown(vec![1].into()))), "unknown");
    assert_eq!(up(Some(Up::Hello(v1::DatacenterHello::default()))), "hello.datacenter");
    let mut open = good.clone();
    open.report.as_mut().unwrap().state = v1::JobStatus::Running.into();
    assert_eq!(up(Some(Up::Final(open))), "final.report.state");
    let mut wrong = good.report.clone().unwrap();
    wrong.timed_out = 99;
    assert_eq!(up(Some(Up::TimedOut(wrong.clone()))), "timed_out.timed_out");
    let list = v1::JobReports { reports: vec![wrong] };
    assert_eq!(up(Some(Up::Progress(list))), "progress[0].timed_out");
    let bad = v1::JobCorrection { stale: 0, report: good.report };
    assert_eq!(up(Some(Up::Correction(bad))), "correction.stale");
    use v1::gate_frame::Message as Down;
    let down = |message| down_in(v1::GateFrame { message: Some(message) }, &Retry::default()).unwrap_err().field;
    assert_eq!(down(Down::Cancel(v1::JobOrder { job_id: vec![0; 16].into(), epoch: None })), "cancel.epoch");
    let order = v1::GlobalTimeout { job_id: vec![0; 16].into(), epoch: Some(v1::Epoch::default()), term: 1, reason: 0 };
    assert_eq!(down(Down::GlobalTimeout(order)), "global_timeout.reason");
    assert_eq!(down(Down::Ask(v1::JobIds { job_ids: vec![vec![1].into()] })), "ask[0].job_id");
}
