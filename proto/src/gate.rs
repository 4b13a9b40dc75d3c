//! What a datacenter and a gate say to each other ↔ core's messages.

use onward_core::fence::{GateEpoch, Term};
use onward_core::gate::message::{
    Correction, FinalStatus, Frame, FromDatacenter, Hello, JobOutline, JobReport, Outcome, Placement, StaleToken,
    SubmitRefusal, ToDatacenter, WorkflowCounts,
};
use onward_core::health::DatacenterCounts;
use onward_core::ids::{JobId, Name};
use onward_core::job::{Draft, JobState, Retry};
use onward_core::refusal::RefusalKind;
use onward_core::timeout::{ExtensionTotals, TimeoutReason};
use prost::Message as _;

use crate::common::{
    each, job_id_in, job_id_out, name_in, names_in, needed, payload_in, payload_out, some_span_in, span_in, span_out,
};
use crate::draft::{draft_in, draft_out, timeout_policy_in, timeout_policy_out};
use crate::malformed::{FieldProblem, MalformedMessage};
use crate::v1::datacenter_frame::Message as Up;
use crate::v1::gate_frame::Message as Down;
use crate::{MAX_FRAME_ENTRIES, v1};

/// The word for a submit that its gate has withdrawn.
const WITHDRAWN: &str = "withdrawn";

/// Everything in a datacenter's frame, or nothing of it.
pub fn up_in(wire: v1::DatacenterFrame) -> Result<Frame, MalformedMessage> {
    let message = match needed(wire.message, "message")? {
        Up::Hello(hello) => FromDatacenter::Hello(hello_in(&hello).map_err(|error| error.under("hello"))?),
        Up::Health(health) => FromDatacenter::Health(counts_in(&health)),
        Up::Progress(list) => FromDatacenter::Progress(reports_in(&list, "progress")?),
        Up::LeaderTransfer(list) => FromDatacenter::LeaderTransfer(reports_in(&list, "leader_transfer")?),
        Up::TimedOut(report) => {
            let report = report_in(&report).map_err(|error| error.under("timed_out"))?;
            FromDatacenter::TimedOut(Box::new(report))
        }
        Up::Submitted(submitted) => FromDatacenter::Submitted {
            job: job_id_in(&submitted.job_id, "submitted.job_id")?,
            answer: match submitted.problem {
                None => Ok(()),
                Some(problem) => Err(problem_in(problem)?),
            },
        },
        Up::Withdrawn(job) => FromDatacenter::Withdrawn { job: job_id_in(&job, "withdrawn")? },
        Up::Final(status) => FromDatacenter::Final(Box::new(final_in(&status).map_err(|error| error.under("final"))?)),
        Up::Correction(correction) => {
            let correction = correction_in(&correction).map_err(|error| error.under("correction"))?;
            FromDatacenter::Correction(Box::new(correction))
        }
        Up::Unknown(job) => FromDatacenter::Unknown { job: job_id_in(&job, "unknown")? },
    };
    Ok(Frame { term: Term::new(wire.term), number: wire.number, message })
}

pub fn up_out(frame: Frame) -> v1::DatacenterFrame {
    let message = match frame.message {
        FromDatacenter::Hello(hello) => Up::Hello(v1::DatacenterHello {
            datacenter: hello.datacenter.as_str().to_owned(),
            life: hello.life,
            epoch: hello.epoch.map(epoch_out),
            health: Some(counts_out(&hello.counts)),
        }),
        FromDatacenter::Health(counts) => Up::Health(counts_out(&counts)),
        FromDatacenter::Progress(reports) => Up::Progress(reports_out(reports)),
        FromDatacenter::LeaderTransfer(reports) => Up::LeaderTransfer(reports_out(reports)),
        FromDatacenter::TimedOut(report) => Up::TimedOut(report_out(*report)),
        FromDatacenter::Submitted { job, answer } => {
            Up::Submitted(v1::SubmittedJob { job_id: job_id_out(job), problem: answer.err().map(problem_out) })
        }
        FromDatacenter::Withdrawn { job } => Up::Withdrawn(job_id_out(job)),
        FromDatacenter::Final(status) => {
            let FinalStatus { report, outcome, result, error } = *status;
            let mut report = report_out(report);
            report.state = state_out(outcome.state()).into();
            Up::Final(v1::JobFinal {
                report: Some(report),
                result: result.as_ref().map(payload_out),
                error: error.map(|text| String::from(&*text)),
            })
        }
        FromDatacenter::Correction(correction) => {
            let stale = match correction.stale {
                StaleToken::Term => v1::job_correction::Stale::Term,
                StaleToken::Epoch => v1::job_correction::Stale::Epoch,
            };
            Up::Correction(v1::JobCorrection { stale: stale.into(), report: Some(report_out(correction.report)) })
        }
        FromDatacenter::Unknown { job } => Up::Unknown(job_id_out(job)),
    };
    v1::DatacenterFrame { term: frame.term.get(), number: frame.number, message: Some(message) }
}

/// Everything in a gate's frame, or nothing of it. Fields that a retry policy leaves out are taken from `retry`.
pub fn down_in(wire: v1::GateFrame, retry: &Retry) -> Result<ToDatacenter, MalformedMessage> {
    Ok(match needed(wire.message, "message")? {
        Down::Welcome(epoch) => ToDatacenter::Welcome { epoch: epoch_in(&epoch) },
        Down::Submit(placement) => {
            let placement = placement_in(placement, retry).map_err(|error| error.under("submit"))?;
            ToDatacenter::Submit(Box::new(placement))
        }
        Down::Cancel(order) => {
            let (job, epoch) = order_in(&order).map_err(|error| error.under("cancel"))?;
            ToDatacenter::Cancel { job, epoch }
        }
        Down::GlobalTimeout(order) => {
            let field = |error: MalformedMessage| error.under("global_timeout");
            let reason = timeout_in(order.reason, "reason").map_err(field)?;
            ToDatacenter::GlobalTimeout {
                job: job_id_in(&order.job_id, "global_timeout.job_id")?,
                epoch: epoch_in(&needed(order.epoch, "global_timeout.epoch")?),
                term: Term::new(order.term),
                reason: needed(reason, "global_timeout.reason")?,
            }
        }
        Down::Withdraw(order) => {
            let (job, epoch) = order_in(&order).map_err(|error| error.under("withdraw"))?;
            ToDatacenter::Withdraw { job, epoch }
        }
        Down::Remaining(given) => ToDatacenter::Remaining {
            job: job_id_in(&given.job_id, "remaining.job_id")?,
            epoch: epoch_in(&needed(given.epoch, "remaining.epoch")?),
            remaining: span_in(given.remaining_ms, "remaining.remaining_ms")?,
        },
        Down::Heard(job) => ToDatacenter::Heard { job: job_id_in(&job, "heard")? },
        Down::FinalHeard(list) => ToDatacenter::FinalHeard { jobs: jobs_in(&list, "final_heard")? },
        Down::Ask(list) => ToDatacenter::Ask { jobs: jobs_in(&list, "ask")? },
    })
}

/// Bytes that an order to run this job takes in a frame. The draft has the bytes of its payloads, and nothing is
/// copied.
pub fn submit_bytes(draft: &Draft) -> usize {
    /// The id and epoch, and what stands before the draft.
    const AROUND: usize = 128;
    draft_out(draft.clone()).encoded_len() + AROUND
}

/// The frame of a message. The sender of a submit has fetched its payloads before.
pub fn down_out(message: ToDatacenter) -> v1::GateFrame {
    let order = |job, epoch| v1::JobOrder { job_id: job_id_out(job), epoch: Some(epoch_out(epoch)) };
    let ids = |jobs: Vec<JobId>| v1::JobIds { job_ids: jobs.into_iter().map(job_id_out).collect() };
    let message = match message {
        ToDatacenter::Welcome { epoch } => Down::Welcome(epoch_out(epoch)),
        ToDatacenter::Submit(placement) => {
            let Placement { job, epoch, again, waited, draft } = *placement;
            Down::Submit(v1::JobPlacement {
                job_id: job_id_out(job),
                epoch: Some(epoch_out(epoch)),
                again,
                waited_ms: span_out(waited),
                draft: Some(draft_out(draft)),
            })
        }
        ToDatacenter::Cancel { job, epoch } => Down::Cancel(order(job, epoch)),
        ToDatacenter::GlobalTimeout { job, epoch, term, reason } => Down::GlobalTimeout(v1::GlobalTimeout {
            job_id: job_id_out(job),
            epoch: Some(epoch_out(epoch)),
            term: term.get(),
            reason: timeout_out(Some(reason)).into(),
        }),
        ToDatacenter::Withdraw { job, epoch } => Down::Withdraw(order(job, epoch)),
        ToDatacenter::Remaining { job, epoch, remaining } => Down::Remaining(v1::RemainingTime {
            job_id: job_id_out(job),
            epoch: Some(epoch_out(epoch)),
            remaining_ms: span_out(remaining),
        }),
        ToDatacenter::Heard { job } => Down::Heard(job_id_out(job)),
        ToDatacenter::FinalHeard { jobs } => Down::FinalHeard(ids(jobs)),
        ToDatacenter::Ask { jobs } => Down::Ask(ids(jobs)),
    };
    v1::GateFrame { message: Some(message) }
}

fn hello_in(wire: &v1::DatacenterHello) -> Result<Hello, MalformedMessage> {
    Ok(Hello {
        datacenter: name_in(&wire.datacenter, "datacenter")?,
        life: wire.life,
        epoch: wire.epoch.as_ref().map(epoch_in),
        counts: counts_in(needed(wire.health.as_ref(), "health")?),
    })
}

fn counts_in(wire: &v1::DatacenterHealth) -> DatacenterCounts {
    DatacenterCounts {
        managers: wire.managers,
        managers_live: wire.managers_live,
        managers_ready: wire.managers_ready,
        managers_stuck: wire.managers_stuck,
        workers: wire.workers,
        workers_healthy_or_busy: wire.workers_healthy_or_busy,
        free_slots: wire.free_slots,
    }
}

fn counts_out(counts: &DatacenterCounts) -> v1::DatacenterHealth {
    v1::DatacenterHealth {
        managers: counts.managers,
        managers_live: counts.managers_live,
        managers_ready: counts.managers_ready,
        managers_stuck: counts.managers_stuck,
        workers: counts.workers,
        workers_healthy_or_busy: counts.workers_healthy_or_busy,
        free_slots: counts.free_slots,
    }
}

fn epoch_in(wire: &v1::Epoch) -> GateEpoch {
    GateEpoch { n: wire.n, gate: wire.gate }
}

fn epoch_out(epoch: GateEpoch) -> v1::Epoch {
    v1::Epoch { n: epoch.n, gate: epoch.gate }
}

fn too_many(field: &str, count: usize) -> Result<(), MalformedMessage> {
    if count > MAX_FRAME_ENTRIES {
        return Err(MalformedMessage::new(field, FieldProblem::TooMany { count, max: MAX_FRAME_ENTRIES }));
    }
    Ok(())
}

fn reports_in(wire: &v1::JobReports, field: &str) -> Result<Vec<JobReport>, MalformedMessage> {
    too_many(field, wire.reports.len())?;
    each(&wire.reports, field, report_in)
}

fn reports_out(reports: Vec<JobReport>) -> v1::JobReports {
    v1::JobReports { reports: reports.into_iter().map(report_out).collect() }
}

fn report_in(wire: &v1::JobReport) -> Result<JobReport, MalformedMessage> {
    too_many("targets", wire.targets.len())?;
    Ok(JobReport {
        job: job_id_in(&wire.job_id, "job_id")?,
        outline: JobOutline {
            kind: name_in(&wire.kind, "kind")?,
            queue: name_in(&wire.queue, "queue")?,
            targets: names_in(&wire.targets, "targets")?.into(),
            policy: timeout_policy_in(wire.policy)?,
            timeout: span_in(wire.timeout_ms, "timeout_ms")?,
            max_extension: span_in(wire.max_extension_ms, "max_extension_ms")?,
        },
        epoch: wire.epoch.as_ref().map(epoch_in),
        elapsed: some_span_in(wire.elapsed_ms, "elapsed_ms")?,
        extended: ExtensionTotals {
            grants: span_in(wire.granted_ms, "granted_ms")?,
            by_hand: span_in(wire.given_ms, "given_ms")?,
        },
        since_progress: some_span_in(wire.since_progress_ms, "since_progress_ms")?,
        state: state_in(wire.state)?,
        timed_out: timeout_in(wire.timed_out, "timed_out")?,
        workflows: WorkflowCounts {
            total: wire.workflows_total,
            succeeded: wire.workflows_succeeded,
            failed: wire.workflows_failed,
        },
        attempts: wire.attempts,
    })
}

fn report_out(report: JobReport) -> v1::JobReport {
    let JobOutline { kind, queue, targets, policy, timeout, max_extension } = report.outline;
    let text = |name: &Name| name.as_str().to_owned();
    v1::JobReport {
        job_id: job_id_out(report.job),
        kind: text(&kind),
        queue: text(&queue),
        targets: targets.iter().map(text).collect(),
        policy: timeout_policy_out(policy).into(),
        timeout_ms: span_out(timeout),
        max_extension_ms: span_out(max_extension),
        epoch: report.epoch.map(epoch_out),
        elapsed_ms: report.elapsed.map(span_out),
        granted_ms: span_out(report.extended.grants),
        given_ms: span_out(report.extended.by_hand),
        since_progress_ms: report.since_progress.map(span_out),
        state: state_out(report.state).into(),
        timed_out: timeout_out(report.timed_out).into(),
        workflows_total: report.workflows.total,
        workflows_succeeded: report.workflows.succeeded,
        workflows_failed: report.workflows.failed,
        attempts: report.attempts,
    }
}

fn state_in(number: i32) -> Result<JobState, MalformedMessage> {
    let unknown = || MalformedMessage::new("state", FieldProblem::UnknownNumber(number));
    Ok(match v1::JobStatus::try_from(number).map_err(|_| unknown())? {
        v1::JobStatus::Unspecified => return Err(MalformedMessage::new("state", FieldProblem::Missing)),
        v1::JobStatus::Waiting => JobState::Waiting,
        v1::JobStatus::Ready => JobState::Ready,
        v1::JobStatus::Delayed => JobState::Delayed,
        v1::JobStatus::Running => JobState::Running,
        v1::JobStatus::Cancelling => JobState::Cancelling,
        v1::JobStatus::Succeeded => JobState::Succeeded,
        v1::JobStatus::Failed => JobState::Failed,
        v1::JobStatus::TimedOut => JobState::TimedOut,
        v1::JobStatus::Cancelled => JobState::Cancelled,
    })
}

fn state_out(state: JobState) -> v1::JobStatus {
    match state {
        JobState::Waiting => v1::JobStatus::Waiting,
        JobState::Ready => v1::JobStatus::Ready,
        JobState::Delayed => v1::JobStatus::Delayed,
        JobState::Running => v1::JobStatus::Running,
        JobState::Cancelling => v1::JobStatus::Cancelling,
        JobState::Succeeded => v1::JobStatus::Succeeded,
        JobState::Failed => v1::JobStatus::Failed,
        JobState::TimedOut => v1::JobStatus::TimedOut,
        JobState::Cancelled => v1::JobStatus::Cancelled,
    }
}

fn timeout_in(number: i32, field: &str) -> Result<Option<TimeoutReason>, MalformedMessage> {
    match v1::TimeoutCause::try_from(number) {
        Ok(v1::TimeoutCause::Unspecified) => Ok(None),
        Ok(v1::TimeoutCause::Overall) => Ok(Some(TimeoutReason::Overall)),
        Ok(v1::TimeoutCause::Stuck) => Ok(Some(TimeoutReason::Stuck)),
        Err(_) => Err(MalformedMessage::new(field, FieldProblem::UnknownNumber(number))),
    }
}

fn timeout_out(reason: Option<TimeoutReason>) -> v1::TimeoutCause {
    match reason {
        None => v1::TimeoutCause::Unspecified,
        Some(TimeoutReason::Overall) => v1::TimeoutCause::Overall,
        Some(TimeoutReason::Stuck) => v1::TimeoutCause::Stuck,
    }
}

fn problem_in(wire: v1::SubmitProblem) -> Result<SubmitRefusal, MalformedMessage> {
    if wire.code == WITHDRAWN {
        return Ok(SubmitRefusal::Withdrawn);
    }
    let kind = RefusalKind::ALL.into_iter().find(|kind| kind.code() == wire.code);
    // A word that is not known is that of a newer version: the job was refused for good.
    Ok(SubmitRefusal::Refused { kind: kind.unwrap_or(RefusalKind::Invalid), text: wire.text.into() })
}

fn problem_out(refusal: SubmitRefusal) -> v1::SubmitProblem {
    match refusal {
        SubmitRefusal::Withdrawn => v1::SubmitProblem { code: WITHDRAWN.into(), text: String::new() },
        SubmitRefusal::Refused { kind, text } => v1::SubmitProblem { code: kind.code().into(), text: text.into() },
    }
}

fn final_in(wire: &v1::JobFinal) -> Result<FinalStatus, MalformedMessage> {
    let report = report_in(needed(wire.report.as_ref(), "report")?).map_err(|error| error.under("report"))?;
    let outcome = Outcome::of(report.state);
    let number = wire.report.as_ref().map_or(0, |report| report.state);
    Ok(FinalStatus {
        outcome: outcome.ok_or_else(|| MalformedMessage::new("report.state", FieldProblem::UnknownNumber(number)))?,
        report,
        result: wire.result.as_ref().map(payload_in),
        error: wire.error.as_deref().map(Into::into),
    })
}

fn correction_in(wire: &v1::JobCorrection) -> Result<Correction, MalformedMessage> {
    let stale = match v1::job_correction::Stale::try_from(wire.stale) {
        Ok(v1::job_correction::Stale::Term) => StaleToken::Term,
        Ok(v1::job_correction::Stale::Epoch) => StaleToken::Epoch,
        Ok(v1::job_correction::Stale::Unspecified) => {
            return Err(MalformedMessage::new("stale", FieldProblem::Missing));
        }
        Err(_) => return Err(MalformedMessage::new("stale", FieldProblem::UnknownNumber(wire.stale))),
    };
    let report = report_in(needed(wire.report.as_ref(), "report")?).map_err(|error| error.under("report"))?;
    Ok(Correction { stale, report })
}

fn order_in(wire: &v1::JobOrder) -> Result<(JobId, GateEpoch), MalformedMessage> {
    Ok((job_id_in(&wire.job_id, "job_id")?, epoch_in(needed(wire.epoch.as_ref(), "epoch")?)))
}

fn jobs_in(wire: &v1::JobIds, field: &str) -> Result<Vec<JobId>, MalformedMessage> {
    too_many(field, wire.job_ids.len())?;
    each(&wire.job_ids, field, |bytes| job_id_in(bytes, "job_id"))
}

fn placement_in(wire: v1::JobPlacement, retry: &Retry) -> Result<Placement, MalformedMessage> {
    Ok(Placement {
        job: job_id_in(&wire.job_id, "job_id")?,
        epoch: epoch_in(&needed(wire.epoch, "epoch")?),
        again: wire.again,
        waited: span_in(wire.waited_ms, "waited_ms")?,
        draft: draft_in(needed(wire.draft, "draft")?, retry).map_err(|error| error.under("draft"))?,
    })
}
