//! Which calls are the same once more: those may be sent again although an earlier try may have been carried out.
//!
//! Looked at only once a call came to nothing in doubt, so that its body is read by nobody in the ordinary case. What is
//! not known to be safe is not.

use axum::http::{HeaderMap, Method};
use onward_proto::v1::SubmitRequest;
use prost::Message as _;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Length and compression, in front of a message of gRPC.
const GRPC_PREFIX_BYTES: usize = 5;

pub(super) fn is_repeatable(method: &Method, path: &str, headers: &HeaderMap, body: &[u8]) -> bool {
    match path {
        "/onward.v1.WorkerService/FetchInput" => return true,
        "/onward.v1.JobService/Submit" => return every_job_has_a_key(body),
        _ => {}
    }
    let Some(path) = path.strip_prefix("/v1/") else { return false };
    if [Method::GET, Method::HEAD, Method::PUT, Method::DELETE].contains(method) {
        return true;
    }
    let segments: Vec<&str> = path.split('/').collect();
    match segments.as_slice() {
        ["jobs"] => headers.contains_key("idempotency-key") || has_keys(body, |keys: Keys| keys.idempotency_key),
        ["jobs", "batch"] => {
            let all = |batch: Batch| batch.jobs.iter().all(|job| job.idempotency_key.is_some()).then_some(IgnoredAny);
            has_keys(body, all)
        }
        // The same poll gives the same leases.
        ["leases"] => has_keys(body, |keys: Keys| keys.poll_id),
        ["jobs", _, "retry" | "extend"] | ["dead-letters", "replay"] | ["schedules", _, "run-now"] => {
            has_keys(body, |keys: Keys| keys.request_id)
        }
        ["jobs", "cancel"] | ["jobs", _, "cancel"] => true,
        // An outcome that was accepted is accepted again; a beat moves nothing back.
        ["leases", "beat" | "settle"] | ["leases", _, "beat" | "succeed" | "fail" | "release"] => true,
        ["nodes", _, "drain" | "undrain"] | ["workers", _, "goodbye"] => true,
        ["queues" | "schedules", _, "pause" | "resume"] => true,
        _ => false,
    }
}

#[derive(Deserialize)]
struct Keys {
    idempotency_key: Option<IgnoredAny>,
    request_id: Option<IgnoredAny>,
    poll_id: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Batch {
    jobs: Vec<Keys>,
}

fn has_keys<'a, T: Deserialize<'a>>(body: &'a [u8], key: impl FnOnce(T) -> Option<IgnoredAny>) -> bool {
    serde_json::from_slice::<T>(body).ok().and_then(key).is_some()
}

fn every_job_has_a_key(body: &[u8]) -> bool {
    let message = body.get(GRPC_PREFIX_BYTES..).filter(|_| body[0] == 0);
    let submitted = message.and_then(|message| SubmitRequest::decode(message).ok());
    submitted.is_some_and(|submitted| submitted.jobs.iter().all(|job| job.idempotency_key.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(call: &str, body: &str) -> bool {
        let (method, path) = call.split_once(' ').unwrap();
        is_repeatable(&method.parse().unwrap(), path, &HeaderMap::new(), body.as_bytes())
    }

    #[test]
    fn a_call_is_repeated_only_where_once_more_is_the_same() {
        for (call, body) in [
            ("GET /v1/jobs", ""),
            ("HEAD /v1/jobs", ""),
            ("PUT /v1/schedules/s", "{}"),
            ("DELETE /v1/schedules/s", ""),
            ("POST /v1/jobs", r#"{"kind":"k","idempotency_key":"a"}"#),
            ("POST /v1/jobs/batch", r#"{"jobs":[{"idempotency_key":"a"},{"idempotency_key":"b"}]}"#),
            ("POST /v1/leases", r#"{"poll_id":"p"}"#),
            ("POST /v1/leases/r/succeed", "{}"),
            ("POST /v1/leases/settle", "{}"),
            ("POST /v1/jobs/j/cancel", "{}"),
            ("POST /v1/jobs/cancel", "{}"),
            ("POST /v1/jobs/j/retry", r#"{"request_id":"r"}"#),
            ("POST /v1/schedules/s/run-now", r#"{"request_id":"r"}"#),
            ("POST /v1/queues/q/pause", "{}"),
            ("POST /onward.v1.WorkerService/FetchInput", ""),
        ] {
            assert!(asked(call, body), "{call} {body}");
        }
        for (call, body) in [
            ("POST /v1/jobs", r#"{"kind":"k"}"#),
            ("POST /v1/jobs", r#"{"kind":"k","idempotency_key":null}"#),
            ("POST /v1/jobs", r#"{"kind":"k","payload":{"idempotency_key":"a"}}"#),
            ("POST /v1/jobs/batch", r#"{"jobs":[{"idempotency_key":"a"},{}]}"#),
            ("POST /v1/leases", "{}"),
            ("POST /v1/leases/r/output", "{}"),
            ("POST /v1/leases/r/request-extension", "{}"),
            ("POST /v1/schedules/s/run-now", "{}"),
            ("POST /v1/backup", "{}"),
            ("POST /v1/new", "{}"),
            ("POST /onward.v1.JobService/SubmitStream", ""),
            ("POST /onward.v1.JobService/Submit", ""),
        ] {
            assert!(!asked(call, body), "{call} {body}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", "a".parse().unwrap());
        assert!(is_repeatable(&Method::POST, "/v1/jobs", &headers, b"{}"));
        assert!(!is_repeatable(&Method::POST, "/v1/jobs/batch", &headers, br#"{"jobs":[{}]}"#));
    }

    #[test]
    fn a_submission_by_grpc_is_repeated_if_all_its_jobs_have_keys() {
        let body = |keys: &[Option<&str>]| {
            let job = |key: &Option<&str>| onward_proto::v1::Draft {
                idempotency_key: key.map(str::to_owned),
                ..Default::default()
            };
            let message = SubmitRequest { jobs: keys.iter().map(job).collect() }.encode_to_vec();
            [vec![0; GRPC_PREFIX_BYTES], message].concat()
        };
        let submit =
            |body: &[u8]| is_repeatable(&Method::POST, "/onward.v1.JobService/Submit", &HeaderMap::new(), body);
        assert!(submit(&body(&[Some("a"), Some("b")])));
        assert!(!submit(&body(&[Some("a"), None])));
        let mut compressed = body(&[Some("a")]);
        compressed[0] = 1;
        assert!(!submit(&compressed));
    }
}
