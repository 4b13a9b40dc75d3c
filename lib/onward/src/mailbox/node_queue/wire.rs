//! Messages as jobs, in the words of the node's HTTP API.

use core::time::Duration;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use onward_api::dead_letter::{Replay, ReplayFromWord};
use onward_api::few::FewPairs;
use onward_api::job::{Job, Workflow};
use onward_api::lease::{
    BeatBody, BeatItem, BeatItemAnswer, BeatsBody, FailBody, Lease, PollBody, ReleaseBody, SettleBody, SettleItem,
    SucceedBody,
};
use onward_api::queue::QueueList;
use onward_api::submit::{KeyLimit, RetryPolicy, SubmitJob};
use onward_core::payload::Digest;
use serde::Serialize;
use serde_json::value::RawValue;

use super::pollers::QueuePoller;
use super::{DeadLetter, End, MAX_ATTEMPTS, MailboxError, Message, MessageId, Names, Receipt, Received, errors};

/// Our headers of a job: names that no message can have, since theirs are in small letters.
const GROUP: &str = "Onward-Group";
const REPLY_TO: &str = "Onward-Reply-To";
/// Content type of a body that is not JSON.
const BYTES: &str = "application/octet-stream";
/// Longest name, and longest key.
const MAX_NAME_BYTES: usize = 128;
/// Longest text of an error.
const MAX_WHY_BYTES: usize = 4 << 10;
/// The longest span that a node takes: 366 days.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);

/// A message on its way to the node.
pub fn submission(names: &Names, message: &Message, key: String) -> SubmitJob {
    let mut headers: BTreeMap<&str, &str> =
        message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    headers.extend(message.group.as_deref().map(|group| (GROUP, group)));
    headers.extend(message.reply_to.as_deref().map(|address| (REPLY_TO, address)));
    let mut pairs = FewPairs::default();
    headers.into_iter().for_each(|(name, value)| pairs.set(name.to_owned(), value.to_owned()));
    let limit = |group: &String| KeyLimit { key: group_key(&names.queue, group), max: 1, ordered: true };
    let json = as_json(&message.body);
    SubmitJob {
        kind: Some(names.kind.clone()),
        queue: Some(names.queue.clone()),
        payload: json.map(|json| json.to_owned().into()),
        payload_base64: json.is_none().then(|| STANDARD.encode(&message.body)),
        content_type: json.is_none().then(|| BYTES.to_owned()),
        headers: Some(pairs),
        limits: message.group.as_ref().map(|group| vec![limit(group)].into()),
        retry: Some(RetryPolicy { max_attempts: Some(MAX_ATTEMPTS), ..RetryPolicy::default() }),
        timeout_s: Some(LONGEST.as_secs_f64()),
        stuck_after_s: Some(LONGEST.as_secs_f64()),
        idempotency_key: Some(key),
        ..SubmitJob::default()
    }
}

/// A body that is JSON and nothing else is shown as such by the node, and comes back to the byte.
fn as_json(body: &Bytes) -> Option<&RawValue> {
    let json: &RawValue = serde_json::from_slice(body).ok()?;
    (json.get().len() == body.len()).then_some(json)
}

/// Messages under one key run one at a time and in order.
fn group_key(queue: &str, group: &str) -> String {
    let key = format!("mailbox:{queue}:{group}");
    if key.len() <= MAX_NAME_BYTES { key } else { format!("mailbox:{}", Digest::of(key.as_bytes())) }
}

pub fn poll(poller: &QueuePoller<'_>, names: &Names, max: usize, lease: Duration, wait: Duration) -> Vec<u8> {
    written(&PollBody {
        worker_id: poller.id().to_owned(),
        incarnation: poller.incarnation().to_owned(),
        queues: Some(vec![names.queue.clone()]),
        kinds: vec![names.kind.clone()],
        max: Some(u32::try_from(max).unwrap_or(u32::MAX)),
        wait_s: Some(wait.as_secs_f64()),
        lease_s: Some(lease.as_secs_f64()),
        poll_id: Some(poller.poll().to_owned()),
        inputs_by_reference: None,
    })
}

/// A lease as a message that was received.
pub fn received(lease: Lease<'_>) -> Result<Received, MailboxError> {
    let content = Content {
        payload: lease.payload.as_deref(),
        payload_base64: lease.payload_base64.as_deref(),
        content_type: lease.content_type.as_deref(),
    };
    let headers = lease.headers.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let message = message(content, headers)?;
    let id = MessageId::new(lease.job_id);
    Ok(Received {
        receipt: Receipt::new(id.clone(), format!("{} {}", lease.fence, lease.receipt)),
        id,
        message,
        delivery: lease.attempt,
        fence: lease.fence,
        lease: Duration::from_millis(lease.lease_remaining_ms),
    })
}

/// A payload, as a lease and a job show it.
#[derive(Clone, Copy)]
struct Content<'a> {
    payload: Option<&'a RawValue>,
    payload_base64: Option<&'a str>,
    content_type: Option<&'a str>,
}

impl Content<'_> {
    /// The bytes of the content. An empty body is shown as `null`, and so is the JSON `null`: the type tells them
    /// apart.
    fn body(self) -> Result<Bytes, MailboxError> {
        Ok(match (self.payload, self.payload_base64) {
            (Some(json), _) => Bytes::copy_from_slice(json.get().as_bytes()),
            (None, Some(text)) => STANDARD.decode(text).map_err(|_| errors::strange())?.into(),
            (None, None) if self.content_type == Some(BYTES) => Bytes::new(),
            (None, None) => Bytes::from_static(b"null"),
        })
    }
}

/// The message of a job. What others put into headers is kept where it could be sent by us.
fn message(content: Content<'_>, mut headers: BTreeMap<String, String>) -> Result<Message, MailboxError> {
    let (group, reply_to) = (headers.remove(GROUP), headers.remove(REPLY_TO));
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    headers.retain(|name, _| name.bytes().all(is_plain));
    Ok(Message { body: content.body()?, headers, group, reply_to })
}

/// The node's own receipt.
pub fn token_of(receipt: &Receipt) -> Result<&str, MailboxError> {
    Ok(read(receipt)?.1)
}

pub fn fence_of(receipt: &Receipt) -> Result<u64, MailboxError> {
    Ok(read(receipt)?.0)
}

/// A receipt that we did not make is of no message.
fn read(receipt: &Receipt) -> Result<(u64, &str), MailboxError> {
    let (fence, token) = receipt.token().split_once(' ').ok_or(MailboxError::Stale)?;
    Ok((fence.parse().map_err(|_| MailboxError::Stale)?, token))
}

pub fn beats<'a>(receipts: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let beat = |receipt: &str| BeatItem::new(receipt.to_owned(), BeatBody::default());
    written(&BeatsBody { beats: receipts.map(beat).collect() })
}

/// The lease that was granted; none if the job was cancelled, which takes the message away.
pub fn granted(answer: BeatItemAnswer) -> Result<Duration, MailboxError> {
    match answer {
        BeatItemAnswer { error: Some(problem), .. } => Err(errors::of_problem(problem)),
        BeatItemAnswer { cancel: Some(true), .. } => Err(MailboxError::Stale),
        BeatItemAnswer { lease_remaining_ms, .. } => {
            lease_remaining_ms.map(Duration::from_millis).ok_or_else(errors::strange)
        }
    }
}

/// The end of a hand-out.
pub fn settlement(receipt: &str, end: &End) -> SettleItem {
    let delay_s = |after: &Duration| Some((*after).min(LONGEST).as_secs_f64());
    let settlement = SettleItem { receipt: receipt.to_owned(), succeed: None, fail: None, release: None };
    match end {
        End::Ack { .. } => SettleItem { succeed: Some(SucceedBody::default()), ..settlement },
        End::Retry { after } => {
            SettleItem { fail: Some(failure("to be tried again", true, delay_s(after))), ..settlement }
        }
        End::Release { after } => {
            SettleItem { release: Some(ReleaseBody { delay_s: delay_s(after), checkpoint: None }), ..settlement }
        }
        End::Dead { why } => burial(receipt, why),
    }
}

/// The end of a hand-out that puts its message into the dead letters.
pub fn burial(receipt: &str, why: &str) -> SettleItem {
    let why = &why[..why.floor_char_boundary(MAX_WHY_BYTES)];
    SettleItem { receipt: receipt.to_owned(), succeed: None, fail: Some(failure(why, false, None)), release: None }
}

fn failure(error: &str, retryable: bool, delay_s: Option<f64>) -> FailBody {
    FailBody { error: error.to_owned(), retryable: Some(retryable), delay_s, checkpoint: None }
}

pub fn settlements(batch: &[SettleItem]) -> Vec<u8> {
    written(&SettleBody { settlements: batch.to_vec() })
}

pub fn jobs_in(list: &QueueList, state: &str) -> u64 {
    list.queues.iter().map(|queue| queue.count(state)).sum()
}

/// The only workflow of a job that is a message.
pub fn workflow_of(job: &Job) -> Result<&Workflow, MailboxError> {
    job.workflows.first().ok_or_else(errors::strange)
}

/// A dead letter, of its job with its payload.
pub fn letter(job: Job) -> Result<DeadLetter, MailboxError> {
    let workflow = workflow_of(&job)?;
    let content = Content {
        payload: workflow.payload.as_deref(),
        payload_base64: workflow.payload_base64.as_deref(),
        content_type: workflow.content_type.as_deref(),
    };
    let last = workflow.attempts.last();
    let error = last.and_then(|attempt| attempt.error.clone());
    let why = error.or_else(|| last?.outcome.as_deref().map(str::to_owned)).unwrap_or_default();
    // The hand-out in which it was buried is none that a handler saw.
    let deliveries = deliveries_of(&why).unwrap_or(workflow.counted);
    let message = message(content, job.headers.clone())?;
    Ok(DeadLetter { id: MessageId::new(job.id), message, why, deliveries })
}

const TOO_OFTEN: (&str, &str) = ("handed out ", " times without success");

pub fn too_often(deliveries: u32) -> String {
    format!("{}{deliveries}{}", TOO_OFTEN.0, TOO_OFTEN.1)
}

fn deliveries_of(why: &str) -> Option<u32> {
    why.strip_prefix(TOO_OFTEN.0)?.strip_suffix(TOO_OFTEN.1)?.parse().ok()
}

pub fn replay(jobs: Vec<String>, request_id: String) -> Vec<u8> {
    written(&Replay { jobs: jobs.into(), request_id, from: ReplayFromWord::Start })
}

fn written(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("texts and numbers are JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The node keeps JSON as it was written, and shows no bytes as `null`.
    #[test]
    fn a_body_travels_as_json_only_if_that_is_all_it_is() {
        for (body, is_json) in
            [(r#"{"a": 1.10}"#, true), ("null", true), ("", false), (" 1", false), ("1\n", false), ("text", false)]
        {
            assert_eq!(as_json(&Bytes::from(body)).is_some(), is_json, "{body:?}");
        }
        let body = |fields: &str| {
            let lease = r#""receipt": "r", "fence": 1, "job_id": "j", "workflow": "main", "attempt": 1, "kind": "message",
                "queue": "q", "inputs": {}, "headers": {}, "lease_remaining_ms": 1, "deadline_remaining_ms": 1"#;
            let lease: Lease<'static> = serde_json::from_str(&format!("{{{lease}, {fields}}}")).unwrap();
            received(lease).unwrap().message.body
        };
        assert_eq!(body(r#""payload": {"n": 1e999} "#), r#"{"n": 1e999}"#);
        assert_eq!(body(r#""payload": null"#), "null");
        assert_eq!(body(r#""payload": null, "content_type": "application/octet-stream""#), "");
        assert_eq!(body(r#""payload_base64": "/w==""#), &b"\xff"[..]);
    }

    #[test]
    fn headers_that_no_message_can_have_are_left_out() {
        let headers =
            ["trace-id", "X-Other", "with space", GROUP, REPLY_TO].map(|name| (name.to_owned(), "v".to_owned()));
        let content = Content { payload: None, payload_base64: None, content_type: Some(BYTES) };
        let message = message(content, headers.into()).unwrap();
        assert_eq!(message.headers.keys().collect::<Vec<_>>(), ["trace-id"]);
        assert_eq!((message.group.as_deref(), message.reply_to.as_deref()), (Some("v"), Some("v")));
    }

    /// The process that runs the handler of a message judges it, not the node.
    #[test]
    fn a_message_has_all_the_time_that_a_node_allows() {
        let names = Names { queue: "orders".into(), kind: "message".into() };
        let draft = serde_json::to_value(submission(&names, &Message::new("1"), "k".into())).unwrap();
        let longest = json!(LONGEST.as_secs_f64());
        assert_eq!((&draft["timeout_s"], &draft["stuck_after_s"]), (&longest, &longest));
        assert_eq!(draft["retry"], json!({ "max_attempts": MAX_ATTEMPTS }));
    }

    #[test]
    fn a_reason_is_no_longer_than_a_node_takes() {
        let why = "\u{fc}".repeat(MAX_WHY_BYTES) + "!";
        let error = burial("r", &why).fail.unwrap().error;
        assert_eq!((error.len(), why.starts_with(&error)), (MAX_WHY_BYTES, true));
    }

    #[test]
    fn a_group_of_any_length_is_one_key() {
        assert_eq!(group_key("orders", "a"), "mailbox:orders:a");
        let long = group_key("orders", &"g".repeat(128));
        assert!(long.len() <= MAX_NAME_BYTES && long != group_key("order", &"g".repeat(128)), "{long}");
    }

    #[test]
    fn a_letter_that_was_buried_says_how_often_it_was_handed_out() {
        assert_eq!(deliveries_of(&too_often(5)), Some(5));
        assert_eq!(deliveries_of("no such order"), None);
    }
}
