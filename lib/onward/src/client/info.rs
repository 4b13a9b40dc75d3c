//! A job, as a node tells it.

use core::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
}

impl JobState {
    const ALL: [(&'static str, Self); 9] = [
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

    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::TimedOut | Self::Cancelled)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, state)| state == self).map_or("", |(word, _)| word))
    }
}

/// Units done, of how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    pub done: u64,
    pub total: Option<u64>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct JobInfo {
    pub id: String,
    pub kind: String,
    pub state: JobState,
    /// Why it is in that state, where there is more to say.
    pub reason: Option<String>,
    pub progress: Option<Progress>,
    /// All that the node told, as in the HTTP API. A payload or result that a [`Value`] cannot hold is a text in it; see
    /// [`json::read`](crate::json::read).
    pub json: Value,
    /// As it was written.
    result: Option<Box<str>>,
}

impl JobInfo {
    /// `json` is what could be read of `text`.
    pub(super) fn read(text: &[u8], json: Value) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Part<'a> {
            #[serde(borrow)]
            result: Option<&'a RawValue>,
        }
        let part: Part<'_> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let result = part.result.map(|result| result.get().into());
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        let state = text("state").ok_or("a job has no `state`")?;
        let known = JobState::ALL.iter().find(|(word, _)| *word == state);
        let (_, state) = known.ok_or_else(|| format!("unknown state `{state}`; a newer node? update this library"))?;
        let progress = json["progress"]["done"].as_u64();
        Ok(Self {
            id: text("id").ok_or("a job has no `id`")?,
            kind: text("kind").unwrap_or_default(),
            state: *state,
            reason: text("reason"),
            progress: progress.map(|done| Progress { done, total: json["progress"]["total"].as_u64() }),
            json,
            result,
        })
    }

    /// The result of a job of one workflow that has succeeded, to the digit that it was written with. A result that the
    /// node has and did not tell, because it is large or damaged, is an error and not `null`.
    pub fn result<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        let mut left_out = self.json["left_out"].as_array().into_iter().flatten();
        if self.result.is_none()
            && let Some(left) = left_out.find(|left| left["field"] == "result")
        {
            let why = left["why"].as_str().unwrap_or("size");
            return Err(serde::de::Error::custom(format!("the node left the result out of its answer: {why}")));
        }
        serde_json::from_str(self.result.as_deref().unwrap_or("null"))
    }
}
