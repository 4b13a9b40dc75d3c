//! The calls of a mailbox as JSON of the node's HTTP API, and messages as jobs.

use core::time::Duration;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use onward_core::payload::Digest;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::pollers::Poller;
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
#[derive(Serialize)]
pub struct JobDraft<'a> {
    kind: &'a str,
    queue: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'static str>,
    headers: BTreeMap<&'a str, &'a str>,
    limits: Vec<Value>,
    retry: Value,
    timeout_s: f64,
    stuck_after_s: f64,
    idempotency_key: String,
}

impl<'a> JobDraft<'a> {
    pub fn of(names: &'a Names, message: &'a Message, key: String) -> Self {
        let mut headers: BTreeMap<&str, &str> =
            message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        headers.extend(message.group.as_deref().map(|group| (GROUP, group)));
        headers.extend(message.reply_to.as_deref().map(|address| (REPLY_TO, address)));
        let group = message.group.as_deref();
        let limits = group.map(|group| json!({ "key": group_key(&names.queue, group), "max": 1, "ordered": true }));
        let json = as_json(&message.body);
        Self {
            kind: &names.kind,
            queue: &names.queue,
            payload: json,
            payload_base64: json.is_none().then(|| STANDARD.encode(&message.body)),
            content_type: json.is_none().then_some(BYTES),
            headers,
            limits: limits.into_iter().collect(),
            retry: json!({ "max_attempts": MAX_ATTEMPTS }),
            timeout_s: LONGEST.as_secs_f64(),
            stuck_after_s: LONGEST.as_secs_f64(),
            idempotency_key: key,
        }
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

pub fn batch(drafts: &[JobDraft<'_>]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Batch<'a> {
        jobs: &'a [JobDraft<'a>],
    }
    written(&Batch { jobs: drafts })
}

#[derive(Deserialize)]
pub struct Submitted {
    pub jobs: Vec<SubmittedJob>,
}

#[derive(Deserialize)]
pub struct SubmittedJob {
    pub id: String,
}

pub fn poll(poller: &Poller<'_>, names: &Names, max: usize, lease: Duration, wait: Duration) -> Vec<u8> {
    written(&json!({
        "worker_id": poller.id(), "incarnation": poller.incarnation(), "poll_id": poller.poll(),
        "queues": [names.queue], "kinds": [names.kind],
        "max": max, "lease_s": lease.as_secs_f64(), "wait_s": wait.as_secs_f64(),
    }))
}

#[derive(Deserialize)]
pub struct Leases {
    pub leases: Vec<Leased>,
}

#[derive(Deserialize)]
pub struct Leased {
    pub receipt: String,
    fence: u64,
    job_id: String,
    pub attempt: u32,
    #[serde(default)]
    payload: Option<Box<RawValue>>,
    #[serde(default)]
    payload_base64: Option<String>,
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    lease_remaining_ms: u64,
}

impl Leased {
    fn content(&self) -> Content<'_> {
        Content {
            payload: self.payload.as_deref(),
            payload_base64: self.payload_base64.as_deref(),
            content_type: self.content_type.as_deref(),
        }
    }

    pub fn received(mut self) -> Result<Received, MailboxError> {
        let headers = core::mem::take(&mut self.headers);
        let message = message(self.content(), headers)?;
        let id = MessageId::new(self.job_id);
        Ok(Received {
            receipt: Receipt::new(id.clone(), format!("{} {}", self.fence, self.receipt)),
            id,
            message,
            delivery: self.attempt,
            fence: self.fence,
            lease: Duration::from_millis(self.lease_remaining_ms),
        })
    }
}

/// A payload, as a lease and a job show it. Not a part of them for serde, which would read JSON and not keep it.
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
    let beats: Vec<Value> = receipts.map(|receipt| json!({ "receipt": receipt })).collect();
    written(&json!({ "beats": beats }))
}

#[derive(Default, Deserialize)]
pub struct Beats {
    pub beats: Vec<BeatAnswer>,
}

#[derive(Deserialize)]
pub struct BeatAnswer {
    lease_remaining_ms: Option<u64>,
    #[serde(default)]
    pub cancel: bool,
    error: Option<Problem>,
}

impl BeatAnswer {
    /// The lease that was granted; none if the job was cancelled, which takes the message away.
    pub fn granted(self) -> Result<Duration, MailboxError> {
        match self {
            Self { error: Some(problem), .. } => Err(errors::of_problem(problem)),
            Self { cancel: true, .. } => Err(MailboxError::Stale),
            Self { lease_remaining_ms, .. } => {
                lease_remaining_ms.map(Duration::from_millis).ok_or_else(errors::strange)
            }
        }
    }
}

/// The reason why the node refuses.
#[derive(Clone, Debug, Deserialize)]
pub struct Problem {
    pub status: u16,
    pub code: String,
    pub detail: String,
}

/// The end of a hand-out.
#[derive(Serialize)]
pub struct Settlement<'a> {
    receipt: &'a str,
    #[serde(flatten)]
    end: Value,
}

impl<'a> Settlement<'a> {
    pub fn of(receipt: &'a str, end: &End) -> Self {
        let seconds = |after: &Duration| (*after).min(LONGEST).as_secs_f64();
        let end = match end {
            End::Ack { .. } => json!({ "succeed": {} }),
            End::Retry { after } => {
                json!({ "fail": { "error": "to be tried again", "retryable": true, "delay_s": seconds(after) } })
            }
            End::Release { after } => json!({ "release": { "delay_s": seconds(after) } }),
            End::Dead { why } => return Self::dead(receipt, why),
        };
        Self { receipt, end }
    }

    pub fn dead(receipt: &'a str, why: &str) -> Self {
        let why = &why[..why.floor_char_boundary(MAX_WHY_BYTES)];
        Self { receipt, end: json!({ "fail": { "error": why, "retryable": false } }) }
    }
}

pub fn settlements(batch: &[Settlement<'_>]) -> Vec<u8> {
    written(&json!({ "settlements": batch }))
}

#[derive(Deserialize)]
pub struct Settled {
    pub settlements: Vec<SettledItem>,
}

#[derive(Deserialize)]
pub struct SettledItem {
    pub error: Option<Problem>,
}

#[derive(Deserialize)]
pub struct Queues {
    queues: Vec<QueueCounts>,
}

#[derive(Deserialize)]
struct QueueCounts {
    counts: BTreeMap<String, u64>,
}

impl Queues {
    pub fn jobs_in(&self, state: &str) -> u64 {
        self.queues.iter().filter_map(|queue| queue.counts.get(state)).sum()
    }
}

#[derive(Deserialize)]
pub struct LetterPage {
    pub dead_letters: Vec<JobShown>,
    pub next_cursor: Option<String>,
}

/// A job as the node shows it, in a list without its payload.
#[derive(Deserialize)]
pub struct JobShown {
    pub id: String,
    headers: BTreeMap<String, String>,
    workflows: Vec<WorkflowShown>,
}

#[derive(Deserialize)]
struct WorkflowShown {
    name: String,
    counted: u32,
    #[serde(default)]
    payload: Option<Box<RawValue>>,
    #[serde(default)]
    payload_base64: Option<String>,
    #[serde(default)]
    content_type: Option<String>,
    attempts: Vec<AttemptShown>,
}

impl WorkflowShown {
    fn content(&self) -> Content<'_> {
        Content {
            payload: self.payload.as_deref(),
            payload_base64: self.payload_base64.as_deref(),
            content_type: self.content_type.as_deref(),
        }
    }
}

#[derive(Deserialize)]
struct AttemptShown {
    outcome: Option<String>,
    error: Option<String>,
}

impl JobShown {
    /// The name of its only workflow.
    pub fn workflow(&self) -> Result<&str, MailboxError> {
        self.workflows.first().map(|workflow| workflow.name.as_str()).ok_or_else(errors::strange)
    }

    pub fn letter(self) -> Result<DeadLetter, MailboxError> {
        let workflow = self.workflows.into_iter().next().ok_or_else(errors::strange)?;
        let message = message(workflow.content(), self.headers)?;
        let last = workflow.attempts.into_iter().next_back();
        let why = last.and_then(|attempt| attempt.error.or(attempt.outcome)).unwrap_or_default();
        // The hand-out in which it was buried is none that a handler saw.
        let deliveries = deliveries_of(&why).unwrap_or(workflow.counted);
        Ok(DeadLetter { id: MessageId::new(self.id), message, why, deliveries })
    }
}

const TOO_OFTEN: (&str, &str) = ("handed out ", " times without success");

pub fn too_often(deliveries: u32) -> String {
    format!("{}{deliveries}{}", TOO_OFTEN.0, TOO_OFTEN.1)
}

fn deliveries_of(why: &str) -> Option<u32> {
    why.strip_prefix(TOO_OFTEN.0)?.strip_suffix(TOO_OFTEN.1)?.parse().ok()
}

pub fn replay<'a>(jobs: impl Iterator<Item = &'a str>, request: &str) -> Vec<u8> {
    let jobs: Vec<&str> = jobs.collect();
    written(&json!({ "jobs": jobs, "request_id": request, "from": "start" }))
}

#[derive(Deserialize)]
pub struct Replayed {
    pub jobs: Vec<ReplayedJob>,
}

#[derive(Deserialize)]
pub struct ReplayedJob {
    pub id: Option<String>,
}

fn written(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("texts and numbers are JSON")
}

#[cfg(test)]
mod tests {
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
            let lease = r#""receipt": "r", "fence": 1, "job_id": "j", "attempt": 1, "lease_remaining_ms": 1"#;
            let leased: Leased = serde_json::from_str(&format!("{{{lease}, {fields}}}")).unwrap();
            leased.received().unwrap().message.body
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
        let draft = serde_json::to_value(JobDraft::of(&names, &Message::new("1"), "k".into())).unwrap();
        let longest = json!(LONGEST.as_secs_f64());
        assert_eq!((&draft["timeout_s"], &draft["stuck_after_s"]), (&longest, &longest));
        assert_eq!(draft["retry"], json!({ "max_attempts": MAX_ATTEMPTS }));
    }

    #[test]
    fn a_reason_is_no_longer_than_a_node_takes() {
        let why = "\u{fc}".repeat(MAX_WHY_BYTES) + "!";
        let Value::String(error) = Settlement::dead("r", &why).end["fail"]["error"].take() else { panic!("a text") };
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
