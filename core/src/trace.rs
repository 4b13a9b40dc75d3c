//! Which trace a job belongs to, by its W3C `traceparent`, and the ids of the spans that are made of it.
//!
//! Ids are functions of what they name, so that none is stored, and an attempt has the same id for the node that exports
//! it and for the worker that continues it.

use core::fmt;

use sha2::{Digest, Sha256};

use crate::ids::{Claim, JobId};

/// The header of a job that carries it.
pub const TRACEPARENT: &str = "traceparent";

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

/// The context that one span hands to the next: where both belong, and whether anybody looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceContext {
    pub trace: TraceId,
    /// None at the root.
    pub span: Option<SpanId>,
    pub sampled: bool,
}

impl TraceContext {
    /// The context of a job: given by whoever submitted it, else a trace of its own.
    pub fn of_job(job: JobId, traceparent: Option<&str>) -> Self {
        let own = Self { trace: TraceId(job.as_u128().to_be_bytes()), span: None, sampled: true };
        traceparent.and_then(Self::parse).unwrap_or(own)
    }

    /// `00-<trace>-<span>-<flags>`, as <https://www.w3.org/TR/trace-context/> has it; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version: [u8; 1] = from_hex(parts.next()?)?;
        let (trace, span) = (from_hex(parts.next()?)?, from_hex(parts.next()?)?);
        let [flags] = from_hex(parts.next()?)?;
        // Later versions may have more at the end, and this one has not.
        let is_known = match version {
            [0] => parts.next().is_none(),
            [version] => version != 0xff,
        };
        let is_valid = is_known && trace != [0; 16] && span != [0; 8];
        is_valid.then_some(Self { trace: TraceId(trace), span: Some(SpanId(span)), sampled: flags & 1 == 1 })
    }

    /// The context of a span in this trace, for those below it.
    pub fn below(self, span: SpanId) -> Self {
        Self { span: Some(span), ..self }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = self.span.unwrap_or(SpanId([0; 8]));
        write!(f, "00-{:?}-{span:?}-{:02x}", self.trace, u8::from(self.sampled))
    }
}

impl SpanId {
    pub fn of_submission(job: JobId) -> Self {
        Self::named(b"submit", job, &[])
    }

    pub fn of_wait(claim: &Claim) -> Self {
        Self::named(b"wait", claim.job, &claim_bytes(claim))
    }

    pub fn of_attempt(claim: &Claim) -> Self {
        Self::named(b"attempt", claim.job, &claim_bytes(claim))
    }

    fn named(what: &[u8], job: JobId, more: &[u8]) -> Self {
        let digest = Sha256::new().chain_update(what).chain_update(job.as_u128().to_be_bytes()).chain_update(more);
        let mut id = [0; 8];
        id.copy_from_slice(&digest.finalize()[..8]);
        // Zero means none.
        id[7] |= u8::from(id == [0; 8]);
        Self(id)
    }
}

fn claim_bytes(claim: &Claim) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&claim.workflow.to_be_bytes());
    bytes[2..].copy_from_slice(&claim.fence.get().to_be_bytes());
    bytes
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let is_hex = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 2 * N || !digits.iter().all(is_hex) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::{AttemptFence, Term};

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_alike() {
        let context = TraceContext::parse(GIVEN).unwrap();
        assert_eq!((context.to_string().as_str(), context.sampled), (GIVEN, true));
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-what-else";
        assert!(!TraceContext::parse(later).unwrap().sampled);
    }

    #[test]
    fn what_is_no_traceparent_is_ignored() {
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(wrong), None, "{wrong}");
            let own = TraceContext::of_job(JobId::from_u128(7), Some(wrong));
            assert_eq!((own.trace, own.span, own.sampled), (TraceId(7u128.to_be_bytes()), None, true));
        }
    }

    #[test]
    fn each_attempt_has_an_id_of_its_own_that_everybody_can_tell() {
        let claim = |fence| Claim {
            job: JobId::from_u128(7),
            workflow: 0,
            fence: AttemptFence::new(Term::new(1), fence).unwrap(),
        };
        assert_eq!(SpanId::of_attempt(&claim(1)), SpanId::of_attempt(&claim(1)));
        assert_ne!(SpanId::of_attempt(&claim(1)), SpanId::of_attempt(&claim(2)));
        assert_ne!(SpanId::of_attempt(&claim(1)), SpanId::of_wait(&claim(1)));
    }
}
