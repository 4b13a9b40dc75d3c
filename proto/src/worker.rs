//! A worker's frame: a batch of what core takes one by one.

use bytes::Bytes;
use onward_core::ids::{Claim, ClientId, Incarnation, Name, WorkerId};
use onward_core::message::{Beat, EndReport, ExtensionRequest, FromWorker, Hello, Settlement, Subscription};

use crate::common::{
    bytes_in, bytes_out, claim_in, claims_in, claims_out, each, name_in, names_in, needed, payload_in, payload_out,
    some_span_in, span_out,
};
use crate::malformed::{FieldProblem, MalformedMessage};
use crate::{MAX_FRAME_ENTRIES, MAX_OUTPUT_BYTES, v1};

/// Everything in a frame, in the order in which it is to be taken; or nothing of it.
pub fn frame_in(frame: &v1::WorkerFrame) -> Result<Vec<FromWorker>, MalformedMessage> {
    let count = entries(frame);
    if count > MAX_FRAME_ENTRIES {
        return Err(MalformedMessage::new("frame", FieldProblem::TooMany { count, max: MAX_FRAME_ENTRIES }));
    }
    let mut parts = Vec::new();
    if let Some(hello) = &frame.hello {
        parts.push(FromWorker::Hello(hello_in(hello).map_err(|error| error.under("hello"))?));
    }
    if let Some(v1::Capacity { slots, accepting }) = frame.capacity {
        parts.push(FromWorker::Capacity { slots, accepting });
    }
    if !frame.beats.is_empty() {
        parts.push(FromWorker::Beats(each(&frame.beats, "beats", beat_in)?));
    }
    if !frame.settlements.is_empty() {
        parts.push(FromWorker::Settle(each(&frame.settlements, "settlements", settlement_in)?));
    }
    parts.extend(frame.probe_answers.iter().map(|probe| FromWorker::ProbeAnswer { probe: *probe }));
    for request in each(&frame.extension_requests, "extension_requests", extension_in)? {
        parts.push(FromWorker::RequestExtension(request));
    }
    if !frame.ended.is_empty() {
        parts.push(FromWorker::Ended(claims_in(&frame.ended, "ended")?));
    }
    parts.extend(frame.goodbye.map(|v1::Goodbye {}| FromWorker::Goodbye));
    Ok(parts)
}

/// Entries of all parts together, the claims inside them included.
pub fn entries(frame: &v1::WorkerFrame) -> usize {
    let hello = frame.hello.as_ref().map_or(0, |hello| hello.holding.len() + hello.queues.len() + hello.kinds.len());
    let named: usize = frame.extension_requests.iter().map(|request| request.claims.len()).sum();
    let asked = frame.extension_requests.len() + named;
    hello
        + frame.beats.len()
        + frame.settlements.len()
        + frame.probe_answers.len()
        + asked
        + frame.ended.len()
        + frame.outputs.len()
}

/// Output of attempts, which is no business of core's.
pub fn outputs_in(frame: &v1::WorkerFrame) -> Result<Vec<Output>, MalformedMessage> {
    each(&frame.outputs, "outputs", |wire: &v1::Output| {
        if wire.data.len() > MAX_OUTPUT_BYTES {
            return Err(MalformedMessage::new(
                "data",
                FieldProblem::TooMany { count: wire.data.len(), max: MAX_OUTPUT_BYTES },
            ));
        }
        Ok(Output { claim: claim_in(wire.claim.as_ref())?, data: wire.data.clone(), skipped: wire.skipped })
    })
}

pub fn output_out(output: Output) -> v1::Output {
    v1::Output { claim: Some(output.claim.into()), data: output.data, skipped: output.skipped }
}

/// Output of an attempt since the last one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    pub claim: Claim,
    pub data: Bytes,
    /// Bytes before `data` that were printed and are not here.
    pub skipped: u64,
}

/// The input that is asked for, and the claim that asks.
pub fn fetch_in(wire: &v1::FetchInputRequest) -> Result<(Claim, Name), MalformedMessage> {
    Ok((claim_in(wire.claim.as_ref())?, name_in(&wire.workflow, "workflow")?))
}

pub fn fetch_out(claim: Claim, workflow: &Name) -> v1::FetchInputRequest {
    v1::FetchInputRequest { claim: Some(claim.into()), workflow: workflow.as_str().to_owned() }
}

/// Puts one more message into a frame. A later hello or capacity replaces an earlier one.
pub fn put(frame: &mut v1::WorkerFrame, message: FromWorker) {
    match message {
        FromWorker::Hello(hello) => frame.hello = Some(hello_out(hello)),
        FromWorker::Capacity { slots, accepting } => frame.capacity = Some(v1::Capacity { slots, accepting }),
        FromWorker::Beats(beats) => frame.beats.extend(beats.into_iter().map(beat_out)),
        FromWorker::Settle(list) => frame.settlements.extend(list.into_iter().map(settlement_out)),
        FromWorker::ProbeAnswer { probe } => frame.probe_answers.push(probe),
        FromWorker::RequestExtension(request) => frame.extension_requests.push(extension_out(request)),
        FromWorker::Ended(claims) => frame.ended.extend(claims_out(claims)),
        FromWorker::Goodbye => frame.goodbye = Some(v1::Goodbye {}),
    }
}

fn hello_in(wire: &v1::Hello) -> Result<Hello, MalformedMessage> {
    let not_a_name = |field| move || MalformedMessage::new(field, FieldProblem::NotAName);
    Ok(Hello {
        worker: WorkerId::new(&*wire.worker).ok_or_else(not_a_name("worker"))?,
        incarnation: Incarnation::new(&*wire.incarnation).ok_or_else(not_a_name("incarnation"))?,
        subscription: Subscription {
            queues: names_in(&wire.queues, "queues")?,
            kinds: names_in(&wire.kinds, "kinds")?,
        },
        slots: wire.slots,
        holding: claims_in(&wire.holding, "holding")?,
        client: ClientId::default(),
    })
}

fn hello_out(hello: Hello) -> v1::Hello {
    let texts = |names: &[Name]| names.iter().map(|name| name.as_str().to_owned()).collect();
    v1::Hello {
        worker: hello.worker.as_str().to_owned(),
        incarnation: hello.incarnation.as_str().to_owned(),
        queues: texts(&hello.subscription.queues),
        kinds: texts(&hello.subscription.kinds),
        slots: hello.slots,
        holding: claims_out(hello.holding),
        // Not the machine's to know: whoever opens the session says whether it does.
        fetches_inputs: false,
    }
}

fn beat_in(wire: &v1::Beat) -> Result<Beat, MalformedMessage> {
    Ok(Beat {
        claim: claim_in(wire.claim.as_ref())?,
        watermark: wire.watermark,
        total: wire.total,
        note: wire.note.as_deref().map(Box::from),
        quiet: some_span_in(wire.quiet_ms, "quiet_ms")?,
        checkpoint: wire.checkpoint.as_ref().map(bytes_in),
    })
}

fn beat_out(beat: Beat) -> v1::Beat {
    v1::Beat {
        claim: Some(beat.claim.into()),
        watermark: beat.watermark,
        total: beat.total,
        note: beat.note.map(String::from),
        quiet_ms: beat.quiet.map(span_out),
        checkpoint: beat.checkpoint.as_ref().map(bytes_out),
    }
}

fn settlement_in(wire: &v1::Settlement) -> Result<Settlement, MalformedMessage> {
    let (report, checkpoint) = match needed(wire.report.as_ref(), "report")? {
        v1::settlement::Report::Succeed(v1::Succeed { result }) => {
            (EndReport::Succeed { result: payload_in(result) }, &None)
        }
        v1::settlement::Report::Fail(v1::Fail { error, retryable, delay_ms, checkpoint }) => {
            let delay = some_span_in(*delay_ms, "fail.delay_ms")?;
            (EndReport::Fail { error: error.as_str().into(), retryable: *retryable, delay }, checkpoint)
        }
        v1::settlement::Report::Release(v1::Release { delay_ms, checkpoint }) => {
            (EndReport::Release { delay: some_span_in(*delay_ms, "release.delay_ms")? }, checkpoint)
        }
    };
    let checkpoint = checkpoint.as_ref().map(bytes_in);
    Ok(Settlement { claim: claim_in(wire.claim.as_ref())?, report, checkpoint })
}

fn settlement_out(settlement: Settlement) -> v1::Settlement {
    let checkpoint = settlement.checkpoint.as_ref().map(bytes_out);
    let report = match settlement.report {
        EndReport::Succeed { result } => {
            let result: Bytes = payload_out(&result);
            v1::settlement::Report::Succeed(v1::Succeed { result })
        }
        EndReport::Fail { error, retryable, delay } => {
            let delay_ms = delay.map(span_out);
            v1::settlement::Report::Fail(v1::Fail { error: (*error).to_owned(), retryable, delay_ms, checkpoint })
        }
        EndReport::Release { delay } => {
            v1::settlement::Report::Release(v1::Release { delay_ms: delay.map(span_out), checkpoint })
        }
    };
    v1::Settlement { claim: Some(settlement.claim.into()), report: Some(report) }
}

fn extension_in(wire: &v1::ExtensionRequest) -> Result<ExtensionRequest, MalformedMessage> {
    Ok(ExtensionRequest {
        claims: claims_in(&wire.claims, "claims")?,
        reason: wire.reason.as_str().into(),
        progress: wire.progress,
        estimated_remaining: some_span_in(wire.estimated_remaining_ms, "estimated_remaining_ms")?,
    })
}

fn extension_out(request: ExtensionRequest) -> v1::ExtensionRequest {
    v1::ExtensionRequest {
        claims: claims_out(request.claims),
        reason: request.reason.into(),
        progress: request.progress,
        estimated_remaining_ms: request.estimated_remaining.map(span_out),
    }
}
