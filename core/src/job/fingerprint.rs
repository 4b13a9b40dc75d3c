//! The fingerprint that tells two submissions under one idempotency key apart.

use sha2::{Digest as _, Sha256};

use crate::time::span_ms;

use super::spec::{Extras, JobSpec, OnStuck, Start, TimeoutPolicy};

/// The first 16 bytes of a SHA-256 over the checked submission. It is stored for as long as the key is
/// remembered, so its encoding is fixed: parts are written in this order, each with its length, and a part that
/// is added later must write nothing while it is unset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint(pub [u8; 16]);

pub fn fingerprint(spec: &JobSpec) -> Fingerprint {
    let mut hash = Sha256::new();
    let mut text = |part: &[u8]| {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    text(spec.queue.as_str().as_bytes());
    for workflow in spec.workflows.iter() {
        text(b"workflow");
        text(workflow.name.as_str().as_bytes());
        text(workflow.kind.as_str().as_bytes());
        // Payloads count by their digest, which is the same whether the content was stored or not.
        text(&workflow.payload.digest().0);
        text(workflow.content_type.as_ref().map_or("", |name| name.as_str()).as_bytes());
        workflow.after.iter().for_each(|index| text(&index.to_be_bytes()));
    }
    for limit in spec.limits.iter() {
        text(b"limit");
        text(limit.key.as_str().as_bytes());
        text(&limit.max.to_be_bytes());
        if limit.ordered {
            text(b"ordered");
        }
    }
    for span in [spec.timeout, spec.stuck_after, spec.max_extension, spec.retry.base, spec.retry.max] {
        text(&span_ms(span).to_be_bytes());
    }
    match spec.start {
        Start::AtOnce => text(b"at once"),
        Start::After(delay) => text(&span_ms(delay).to_be_bytes()),
        Start::At(wall) => text(&[&wall.as_ms().to_be_bytes()[..], b"wall"].concat()),
    }
    text(&spec.retry.max_attempts.to_be_bytes());
    let on_stuck = match spec.on_stuck {
        OnStuck::Retry => 0,
        OnStuck::TimeOut => 1,
    };
    text(&[spec.priority as u8, on_stuck, u8::from(spec.require_progress)]);
    text(spec.unique_key().map_or("", |key| key.as_str()).as_bytes());
    if let Some(extras) = &spec.extras {
        write_extras(extras, &mut text);
    }
    let digest = hash.finalize();
    let mut first = [0; 16];
    first.copy_from_slice(&digest[..16]);
    Fingerprint(first)
}

fn write_extras(extras: &Extras, text: &mut impl FnMut(&[u8])) {
    for tag in &extras.tags {
        text(b"tag");
        text(tag.as_str().as_bytes());
    }
    for (key, value) in extras.headers.iter() {
        // A retried request carries a new trace context; it is still the same submission.
        if !matches!(key.as_str(), "traceparent" | "tracestate") {
            text(b"header");
            text(key.as_str().as_bytes());
            text(value.as_bytes());
        }
    }
    if let Some(retain) = extras.retain {
        text(b"retain");
        text(&span_ms(retain).to_be_bytes());
    }
    for datacenter in &extras.datacenters {
        text(b"datacenter");
        text(datacenter.as_str().as_bytes());
    }
    match extras.timeout_policy {
        TimeoutPolicy::Any => {}
        TimeoutPolicy::Majority => text(b"majority"),
        TimeoutPolicy::All => text(b"all"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::draft::{Draft, JobDefaults, LimitDraft, check};
    use super::*;
    use crate::ids::Bytes;
    use crate::limits::Limits;
    use crate::payload::{Digest, Payload};

    fn of(draft: Draft) -> Fingerprint {
        fingerprint(&check(draft, &Limits::default(), &JobDefaults::default()).unwrap())
    }

    fn base() -> Draft {
        Draft::of_kind("k", Bytes::from(*b"p"))
    }

    #[test]
    fn every_part_of_a_submission_is_told_apart() {
        let variants = [
            base(),
            Draft::of_kind("k2", Bytes::from(*b"p")),
            Draft::of_kind("k", Bytes::from(*b"q")),
            Draft { queue: Some("other".into()), ..base() },
            Draft { priority: 1, ..base() },
            Draft { require_progress: true, ..base() },
            Draft { on_stuck: OnStuck::TimeOut, ..base() },
            Draft { limits: vec![LimitDraft::new("a", 1)], ..base() },
            Draft { limits: vec![LimitDraft::ordered("a")], ..base() },
            Draft { unique_key: Some("u".into()), ..base() },
            Draft { tags: vec!["t".into()], ..base() },
            Draft { headers: vec![("h".into(), "v".into())], ..base() },
            Draft { datacenters: vec!["dc".into()], ..base() },
            Draft { timeout_policy: TimeoutPolicy::All, ..base() },
            Draft { delay: Some(core::time::Duration::from_secs(1)), ..base() },
            Draft { run_at: Some(crate::time::Wall::from_ms(1_000)), ..base() },
        ];
        for (a, left) in variants.iter().enumerate() {
            for (b, right) in variants.iter().enumerate() {
                assert_eq!(of(left.clone()) == of(right.clone()), a == b, "{left:?} against {right:?}");
            }
        }
    }

    #[test]
    fn the_key_itself_and_the_trace_are_not_part_of_the_body() {
        let keyed = Draft { idempotency_key: Some("key".into()), ..base() };
        let traced = Draft { headers: vec![("traceparent".into(), "00-1-2-01".into())], ..base() };
        assert_eq!(of(base()), of(keyed));
        assert_eq!(of(base()), of(traced));
    }

    #[test]
    fn content_counts_and_not_where_it_lies() {
        let stored = Payload::stored(Digest::of(b"p"), 1);
        assert_eq!(of(base()), of(Draft::of_kind("k", stored)));
        assert_ne!(of(base()), of(Draft::of_kind("k", Payload::stored(Digest::of(b"q"), 1))));
    }

    #[test]
    fn the_stored_encoding_does_not_change() {
        let Fingerprint(bytes) = of(base());
        assert_eq!(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            "c2a8d054131f9eff41ea3c9a05420594"
        );
    }
}
