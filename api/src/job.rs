//! A job as it is shown.

use core::fmt;
use std::collections::BTreeMap;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::instant::At;
use crate::raw::Raw;
use crate::word::Word;

// The answer of `GET /v1/jobs/{id}`, and an entry of lists.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    pub id: String,
    /// The kind of all its workflows; none if they differ.
    pub kind: Option<String>,
    /// The command line of a job of kind `exec`; none where that is long and was not fetched.
    pub command: Option<String>,
    pub queue: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "running"))]
    pub state: JobState,
    /// The reason why the job is where it is: a stable word, and after a colon what there is to say about it.
    pub reason: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub created_at: At,
    /// The time when the job could first run: at its submission, or at the end of its delay. Its time counts from then
    /// on. When work on it began is in its attempts.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub started_at: Option<At>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub ended_at: Option<At>,
    pub priority: i8,
    pub tags: Vec<String>,
    pub progress: Progress,
    pub workflows: Vec<Workflow>,
    /// The result of the only workflow, or the results by name.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    pub result: Option<Raw>,
    /// Likewise, of those that are not JSON.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Raw>,
    /// The latest time at which the job is over, extensions included.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub deadline_at: Option<At>,
    pub timeout_s: f64,
    pub stuck_after_s: f64,
    pub max_extension_s: f64,
    pub extensions_s: f64,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "retry"))]
    pub on_stuck: Word,
    pub require_progress: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub run_at: Option<At>,
    pub retry: RetryShown,
    pub limits: Vec<LimitShown>,
    pub unique_key: Option<String>,
    pub idempotency_key: Option<String>,
    pub headers: BTreeMap<String, String>,
    /// The datacenters that it runs in: names, at a manager; at a gate, its state in each.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<serde_json::Value>))]
    pub datacenters: Vec<JobDatacenter>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub timeout_policy: Word,
    pub retain_s: Option<f64>,
    pub retry_of: Option<String>,
    pub dead_letter: bool,
    /// Payloads and results that are kept, and shown as `null` here: those over 4 KiB in lists, what is too large for one
    /// answer, and what is damaged. Ask for the job with `?workflow=NAME` to get those of one workflow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<LeftOutShown>))]
    pub left_out: Vec<LeftOutShown>,
}

impl Job {
    /// The result of a job of one workflow that has succeeded, to the digit that it was written with. A result that the
    /// node has and did not tell, because it is large or damaged, is an error and not `null`.
    pub fn result<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        if self.result.is_none()
            && let Some(left) = self.left_out.iter().find(|left| left.field == "result")
        {
            let why = format!("the node left the result out of its answer: {}", left.why);
            return Err(serde_json::Error::custom(why));
        }
        serde_json::from_str(self.result.as_ref().map_or("null", |result| result.get()))
    }

    /// The attempts of all workflows.
    pub fn attempts(&self) -> impl DoubleEndedIterator<Item = &Attempt> {
        self.workflows.iter().flat_map(|workflow| &workflow.attempts)
    }

    /// The error of the last attempt that failed.
    pub fn last_error(&self) -> Option<&str> {
        self.attempts().filter_map(|attempt| attempt.error.as_deref()).rfind(|error| !error.is_empty())
    }
}

/// A datacenter of a job.
#[derive(Clone, PartialEq, Debug)]
pub enum JobDatacenter {
    /// A name, as a manager shows it.
    Named(String),
    /// The job's state there, as a gate shows it.
    Seen(Box<JobInDatacenter>),
}

/// A job in one datacenter, as its gate knows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobInDatacenter {
    pub name: String,
    /// `submitting`, `running`, `succeeded`, `failed`, `cancelled`, `timed_out`, or `unreachable`.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "running"))]
    pub state: Word,
    /// Once the gate has decided that the job ends: the datacenter has said how it ended there. Before: that it has the
    /// job.
    pub confirmed: bool,
    pub reason: Option<String>,
    /// Since the newest forward step there, as it was reported last.
    pub since_progress_ms: Option<u64>,
    /// Since that report.
    pub since_report_ms: Option<u64>,
    pub attempts: u32,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub ended_at: Option<At>,
    pub error: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    pub result: Option<Raw>,
    /// Likewise, if it is not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<String>,
}

impl JobDatacenter {
    pub fn name(&self) -> &str {
        match self {
            Self::Named(name) => name,
            Self::Seen(seen) => &seen.name,
        }
    }
}

impl Serialize for JobDatacenter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Named(name) => serializer.serialize_str(name),
            Self::Seen(seen) => seen.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for JobDatacenter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Derived as untagged it would lose a result as it was written.
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = JobDatacenter;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a datacenter, or an object that has one")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<JobDatacenter, E> {
                Ok(JobDatacenter::Named(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JobDatacenter, A::Error> {
                let seen = JobInDatacenter::deserialize(MapAccessDeserializer::new(map))?;
                Ok(JobDatacenter::Seen(Box::new(seen)))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// The state of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum JobState {
    Waiting,
    Ready,
    Delayed,
    Running,
    Cancelling,
    Succeeded,
    Failed,
    TimedOut,
    Cancelled,
    /// A state of a newer node. It is not taken for an end.
    Other(Word),
}

impl JobState {
    const KNOWN: [(&'static str, Self); 9] = [
        ("waiting", Self::Waiting),
        ("ready", Self::Ready),
        ("delayed", Self::Delayed),
        ("running", Self::Running),
        ("cancelling", Self::Cancelling),
        ("succeeded", Self::Succeeded),
        ("failed", Self::Failed),
        ("timed_out", Self::TimedOut),
        ("cancelled", Self::Cancelled),
    ];

    pub fn of_word(word: &str) -> Self {
        let known = Self::KNOWN.into_iter().find(|(known, _)| *known == word);
        known.map_or_else(|| Self::Other(word.to_owned().into()), |(_, state)| state)
    }

    pub fn word(&self) -> &str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Delayed => "delayed",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Other(word) => word,
        }
    }

    pub const fn is_terminal(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::TimedOut | Self::Cancelled)
    }
}

impl From<onward_core::job::JobState> for JobState {
    fn from(state: onward_core::job::JobState) -> Self {
        Self::of_word(state.word())
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Serialize for JobState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl<'de> Deserialize<'de> for JobState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Word::deserialize(deserializer).map(|word| Self::of_word(&word))
    }
}

/// Content that is kept and not in this answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeftOutShown {
    pub workflow: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "result"))]
    pub field: Word,
    pub bytes: usize,
    /// `size`: it can be asked for by itself. `damaged`: it cannot be read.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "size"))]
    pub why: Word,
}

impl LeftOutShown {
    pub fn is_damaged(&self) -> bool {
        self.why == "damaged"
    }
}

/// Units of the only workflow's running attempt if it reports them, else workflows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Progress {
    pub done: u64,
    pub total: Option<u64>,
}

/// `3/10`, or `3` where the total is not known.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.total {
            Some(total) => write!(f, "{}/{total}", self.done),
            None => write!(f, "{}", self.done),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetryShown {
    pub max_attempts: u32,
    pub base_s: f64,
    pub max_s: f64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LimitShown {
    pub key: String,
    pub max: u32,
    pub ordered: bool,
}

/// The concurrency key that a workflow waits for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyWaitShown {
    pub key: String,
    /// The job that keeps it until its workflow has ended, because it asked for order; none where others merely use it.
    pub kept_by: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Workflow {
    pub name: String,
    pub kind: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub state: Word,
    /// The job that it succeeded in, where this one repeats that job from the failed workflow on.
    pub taken_from: Option<String>,
    /// The reason why the workflow does not run although it could.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub blocked: Option<Word>,
    /// The key whose limit blocks the workflow.
    pub waits_for_key: Option<KeyWaitShown>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub due_at: Option<At>,
    /// Names of the workflows that it waits for.
    pub after: Vec<String>,
    /// Attempts that count against `retry.max_attempts`.
    pub counted: u32,
    /// The payload, which lists leave out.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    pub content_type: Option<String>,
    /// The oldest first.
    pub attempts: Vec<Attempt>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attempt {
    pub n: u32,
    pub fence: u64,
    pub worker: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub started_at: At,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub ended_at: Option<At>,
    /// None while it runs.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub outcome: Option<Word>,
    pub error: Option<String>,
    #[serde(flatten)]
    pub running: Option<AttemptClocks>,
}

/// The clocks of an attempt that runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Running))]
pub struct AttemptClocks {
    pub lease_remaining_ms: u64,
    pub stuck_in_ms: u64,
    pub since_step_ms: u64,
    pub quiet_remaining_ms: Option<u64>,
    pub progress: Option<Progress>,
    pub note: Option<String>,
}

// The answer of `GET /v1/jobs`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobList {
    /// The newest first, without payloads.
    pub jobs: Vec<Job>,
    /// None at the end. A page may be short and have one all the same.
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job() -> serde_json::Value {
        json!({
            "id": "j", "kind": "k", "command": null, "queue": "q", "state": "running", "reason": null,
            "created_at": "2026-11-17T10:00:00.000Z", "started_at": null, "ended_at": null, "priority": 0, "tags": [],
            "progress": {"done": 3, "total": 10},
            "workflows": [{"name": "main", "kind": "k", "state": "running", "taken_from": null, "blocked": null,
                "waits_for_key": null, "due_at": null, "after": [], "counted": 1, "content_type": null,
                "attempts": [{"n": 1, "fence": 7, "worker": "w", "started_at": "2026-11-17T10:00:01.500Z",
                    "ended_at": null, "outcome": null, "error": null, "lease_remaining_ms": 1, "stuck_in_ms": 2,
                    "since_step_ms": 3, "quiet_remaining_ms": null, "progress": null, "note": "n"}]}],
            "result": null, "deadline_at": null, "timeout_s": 1.0, "stuck_after_s": 1.0, "max_extension_s": 1.0,
            "extensions_s": 0.0, "on_stuck": "retry", "require_progress": false, "run_at": null,
            "retry": {"max_attempts": 5, "base_s": 1.0, "max_s": 60.0}, "limits": [], "unique_key": null,
            "idempotency_key": null, "headers": {}, "datacenters": [], "timeout_policy": "any", "retain_s": null,
            "retry_of": null, "dead_letter": false,
        })
    }

    #[test]
    fn a_job_is_written_as_it_was_read() {
        let text = job().to_string();
        let read: Job = serde_json::from_str(&text).unwrap();
        assert_eq!(read.workflows[0].attempts[0].running.as_ref().unwrap().note.as_deref(), Some("n"));
        assert_eq!(serde_json::to_value(&read).unwrap(), job());
    }

    #[test]
    fn a_newer_node_may_say_more_and_in_other_words() {
        let mut newer = job();
        newer["mood"] = json!({"sunny": true});
        newer["state"] = "resting".into();
        newer["on_stuck"] = "shout".into();
        newer["workflows"][0]["attempts"][0]["outcome"] = "evaporated".into();
        newer["workflows"][0]["attempts"][0]["weight_g"] = 3.into();
        let read: Job = serde_json::from_str(&newer.to_string()).unwrap();
        assert_eq!((read.state.word(), read.state.is_terminal()), ("resting", false));
        assert_eq!(read.workflows[0].attempts[0].outcome.as_deref(), Some("evaporated"));
        assert_eq!(&*read.on_stuck, "shout");
    }

    #[test]
    fn a_result_is_read_to_the_digit_and_one_that_was_left_out_is_no_null() {
        let text = job().to_string().replace(r#""result":null"#, r#""result":[1.10, 1e999]"#);
        let mut read: Job = serde_json::from_str(&text).unwrap();
        assert_eq!(read.result.as_ref().unwrap().get(), "[1.10, 1e999]");
        read.result = None;
        assert_eq!(read.result::<Option<u8>>().unwrap(), None);
        read.left_out =
            vec![LeftOutShown { workflow: "main".into(), field: "result".into(), bytes: 9, why: "damaged".into() }];
        assert!(read.result::<Option<u8>>().unwrap_err().to_string().contains("damaged"));
    }

    #[test]
    fn the_states_are_those_of_the_core() {
        for state in onward_core::job::JobState::ALL {
            let shown = JobState::from(state);
            assert_eq!((shown.word(), shown.is_terminal()), (state.word(), state.is_terminal()));
            assert!(!matches!(shown, JobState::Other(_)), "{state:?}");
        }
        assert_eq!(onward_core::job::JobState::ALL.len(), JobState::KNOWN.len());
    }
}
