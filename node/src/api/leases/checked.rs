//! From the shapes of calls to what the machine is told, or to what is wrong with them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use onward_api::lease::{BeatBody, FailBody, OutputBody, PollBody, ReleaseBody, SettleItem, SucceedBody};
use onward_core::ids::{Claim, ClientId, Incarnation, MAX_NAME_BYTES, Name, WorkerId};
use onward_core::input::Poll;
use onward_core::message::{Beat, EndReport, Subscription};
use onward_core::settings::Rules;
use onward_proto::MAX_OUTPUT_BYTES;
use serde_json::value::RawValue;

use crate::api::payload::{at_most, from_fields};
use crate::api::problem::ProblemResponse;
use crate::api::span;

pub(super) fn poll(body: PollBody, client: ClientId, rules: &Rules) -> Result<Poll, ProblemResponse> {
    let queues = body.queues.unwrap_or_else(|| vec![rules.job.queue.to_string()]);
    let pairs = queues.len().saturating_mul(body.kinds.len());
    if pairs > rules.limits.subscription_pairs {
        let (field, many) =
            if queues.len() > body.kinds.len() { ("queues", queues.len()) } else { ("kinds", body.kinds.len()) };
        let most = rules.limits.subscription_pairs;
        let detail = format!(
            "`{field}` has {many} entries, which makes {pairs} combinations of queue and kind; {most} are the most"
        );
        return Err(ProblemResponse::invalid(detail).of_field(field));
    }
    let max = body.max.unwrap_or(1);
    let most = rules.limits.poll_leases;
    if max == 0 || max as usize > most {
        return Err(ProblemResponse::invalid(format!("`max` is {max}; it must be from 1 to {most}")).of_field("max"));
    }
    let zero = core::time::Duration::ZERO;
    Ok(Poll {
        worker: WorkerId::new(body.worker_id).ok_or_else(|| not_a_name("worker_id"))?,
        incarnation: incarnation(body.incarnation)?,
        subscription: Subscription { queues: names("queues", queues)?, kinds: names("kinds", body.kinds)? },
        max,
        wait: span::from_seconds("wait_s", body.wait_s.unwrap_or(0.0), zero..=rules.max_poll_wait)?,
        lease: match body.lease_s {
            Some(seconds) => span::from_seconds("lease_s", seconds, rules.min_lease..=rules.max_lease)?,
            None => rules.lease.initial,
        },
        id: body.poll_id.map(|id| Name::new(id).ok_or_else(|| not_a_name("poll_id"))).transpose()?,
        client,
    })
}

pub(super) fn incarnation(text: String) -> Result<Incarnation, ProblemResponse> {
    Incarnation::new(text).ok_or_else(|| not_a_name("incarnation"))
}

fn names(field: &'static str, texts: Vec<String>) -> Result<Vec<Name>, ProblemResponse> {
    if texts.is_empty() {
        return Err(ProblemResponse::invalid(format!("`{field}` is empty; name at least one")).of_field(field));
    }
    texts.into_iter().map(|text| Name::new(text).ok_or_else(|| not_a_name(field))).collect()
}

fn not_a_name(field: &'static str) -> ProblemResponse {
    let detail = format!("`{field}` must be 1 to {MAX_NAME_BYTES} bytes without control characters");
    ProblemResponse::invalid(detail).of_field(field)
}

pub(super) fn count(field: &'static str, count: usize, rules: &Rules) -> Result<(), ProblemResponse> {
    let max = rules.limits.frame_items;
    if count <= max {
        return Ok(());
    }
    Err(ProblemResponse::invalid(format!("`{field}` has {count} items; it may have {max} at most")).of_field(field))
}

pub(super) fn output(body: OutputBody) -> Result<Bytes, ProblemResponse> {
    let (field, bytes) = match (body.text, body.data_base64) {
        (Some(text), None) => ("text", text.into_bytes()),
        (None, Some(text)) => {
            let not_base64 = |error| ProblemResponse::invalid(format!("`data_base64` is not base64: {error}"));
            ("data_base64", STANDARD.decode(text).map_err(|error| not_base64(error).of_field("data_base64"))?)
        }
        _ => return Err(ProblemResponse::invalid("give either `text` or `data_base64`").of_field("text")),
    };
    at_most(field, bytes.len(), MAX_OUTPUT_BYTES)?;
    Ok(bytes.into())
}

pub(super) fn beat(claim: Claim, body: BeatBody, rules: &Rules) -> Result<Beat, ProblemResponse> {
    at_most("note", body.note.as_ref().map_or(0, String::len), rules.limits.note_bytes)?;
    let checkpoint = checkpoint(body.checkpoint.as_deref(), rules)?;
    Ok(Beat {
        claim,
        watermark: body.watermark,
        total: body.total,
        note: body.note.map(Into::into),
        quiet: span::if_given("quiet_s", body.quiet_s)?,
        checkpoint,
    })
}

fn checkpoint(json: Option<&RawValue>, rules: &Rules) -> Result<Option<onward_core::ids::Bytes>, ProblemResponse> {
    json.map(|json| from_fields("checkpoint", Some(json), None, rules.limits.checkpoint_bytes)).transpose()
}

/// An outcome, and where the next attempt is to go on from.
pub(super) type CheckedOutcome = (EndReport, Option<onward_core::ids::Bytes>);

pub(super) fn succeed(body: &SucceedBody, rules: &Rules) -> Result<CheckedOutcome, ProblemResponse> {
    let max = rules.limits.result_bytes;
    let result = from_fields("result", body.result.as_deref(), body.result_base64.as_deref(), max)?;
    Ok((EndReport::Succeed { result: result.into() }, None))
}

pub(super) fn fail(body: FailBody, rules: &Rules) -> Result<CheckedOutcome, ProblemResponse> {
    at_most("error", body.error.len(), rules.limits.error_bytes)?;
    let report = EndReport::Fail {
        error: body.error.into(),
        retryable: body.retryable.unwrap_or(true),
        delay: span::if_given("delay_s", body.delay_s)?,
    };
    Ok((report, checkpoint(body.checkpoint.as_deref(), rules)?))
}

pub(super) fn release(body: &ReleaseBody, rules: &Rules) -> Result<CheckedOutcome, ProblemResponse> {
    let report = EndReport::Release { delay: span::if_given("delay_s", body.delay_s)? };
    Ok((report, checkpoint(body.checkpoint.as_deref(), rules)?))
}

pub(super) fn outcome(item: SettleItem, rules: &Rules) -> Result<CheckedOutcome, ProblemResponse> {
    match (item.succeed, item.fail, item.release) {
        (Some(body), None, None) => succeed(&body, rules),
        (None, Some(body), None) => fail(body, rules),
        (None, None, Some(body)) => release(&body, rules),
        _ => Err(ProblemResponse::invalid("give exactly one of `succeed`, `fail` and `release`")),
    }
}
