//! The small things that every message is made of.

use core::time::Duration;

use bytes::Bytes;
use onward_core::fence::AttemptFence;
use onward_core::ids::{self, Claim, JobId, Name};
use onward_core::payload::Payload;
use onward_core::time::span_ms;

use crate::malformed::{FieldProblem, MalformedMessage};
use crate::v1;

/// Longer than any rule allows, and short enough that sums of spans mean something.
pub const MAX_SPAN: Duration = Duration::from_secs(10 * 366 * 86_400);

/// A user's bytes, on their way in.
pub fn bytes_in(bytes: &Bytes) -> ids::Bytes {
    ids::Bytes::from(&**bytes)
}

/// A user's bytes, on their way out: shared, not copied.
pub fn bytes_out(bytes: &ids::Bytes) -> Bytes {
    if bytes.is_empty() { Bytes::new() } else { Bytes::from_owner(bytes.clone()) }
}

pub fn payload_in(bytes: &Bytes) -> Payload {
    Payload::Inline(bytes_in(bytes))
}

/// The bytes of a payload. The sender has fetched them before; a payload that was not fetched goes without them.
pub fn payload_out(payload: &Payload) -> Bytes {
    payload.as_inline().map_or_else(Bytes::new, bytes_out)
}

pub fn job_id_in(bytes: &[u8], field: &str) -> Result<JobId, MalformedMessage> {
    let raw: [u8; 16] = bytes
        .try_into()
        .map_err(|_| MalformedMessage::new(field, FieldProblem::WrongLength { bytes: bytes.len(), expected: 16 }))?;
    Ok(JobId::from_u128(u128::from_be_bytes(raw)))
}

pub fn job_id_out(id: JobId) -> Bytes {
    Bytes::copy_from_slice(&id.as_u128().to_be_bytes())
}

impl TryFrom<&v1::Claim> for Claim {
    type Error = MalformedMessage;

    fn try_from(wire: &v1::Claim) -> Result<Self, MalformedMessage> {
        let workflow = u16::try_from(wire.workflow).map_err(|_| {
            MalformedMessage::new(
                "workflow",
                FieldProblem::TooLarge { value: wire.workflow.into(), max: u16::MAX.into() },
            )
        })?;
        Ok(Self { job: job_id_in(&wire.job_id, "job_id")?, workflow, fence: AttemptFence::from_raw(wire.fence) })
    }
}

impl From<Claim> for v1::Claim {
    fn from(claim: Claim) -> Self {
        Self { job_id: job_id_out(claim.job), workflow: claim.workflow.into(), fence: claim.fence.get() }
    }
}

/// The field `claim`, which everything about an attempt has.
pub(crate) fn claim_in(wire: Option<&v1::Claim>) -> Result<Claim, MalformedMessage> {
    needed(wire, "claim")?.try_into().map_err(|error: MalformedMessage| error.under("claim"))
}

pub(crate) fn claims_in(wire: &[v1::Claim], field: &str) -> Result<Vec<Claim>, MalformedMessage> {
    each(wire, field, Claim::try_from)
}

pub(crate) fn claims_out(claims: Vec<Claim>) -> Vec<v1::Claim> {
    claims.into_iter().map(v1::Claim::from).collect()
}

pub(crate) fn needed<T>(value: Option<T>, field: &str) -> Result<T, MalformedMessage> {
    value.ok_or_else(|| MalformedMessage::new(field, FieldProblem::Missing))
}

/// Converts a list; what is wrong with one entry is reported with its index.
pub(crate) fn each<'a, W, T>(
    wire: &'a [W],
    field: &str,
    convert: impl Fn(&'a W) -> Result<T, MalformedMessage>,
) -> Result<Vec<T>, MalformedMessage> {
    let convert = |(index, one)| convert(one).map_err(|error| error.at(field, index));
    wire.iter().enumerate().map(convert).collect()
}

pub(crate) fn name_in(text: &str, field: &str) -> Result<Name, MalformedMessage> {
    Name::new(text).ok_or_else(|| MalformedMessage::new(field, FieldProblem::NotAName))
}

pub(crate) fn names_in(texts: &[String], field: &str) -> Result<Vec<Name>, MalformedMessage> {
    let name = |(index, text): (usize, &String)| name_in(text, &format!("{field}[{index}]"));
    texts.iter().enumerate().map(name).collect()
}

pub(crate) fn span_in(ms: u64, field: &str) -> Result<Duration, MalformedMessage> {
    let value = Duration::from_millis(ms);
    if value > MAX_SPAN {
        return Err(MalformedMessage::new(field, FieldProblem::TooLong { value, max: MAX_SPAN }));
    }
    Ok(value)
}

pub(crate) fn some_span_in(ms: Option<u64>, field: &str) -> Result<Option<Duration>, MalformedMessage> {
    ms.map(|ms| span_in(ms, field)).transpose()
}

/// Whole milliseconds, rounded down: a lease must not look longer than it is.
pub(crate) fn span_out(span: Duration) -> u64 {
    span_ms(span.min(MAX_SPAN))
}
