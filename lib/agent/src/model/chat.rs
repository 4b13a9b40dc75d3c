//! Chat completions over HTTP, streamed, for any server that speaks them.
//!
//! | what happens | what follows |
//! |---|---|
//! | no connection, 408, 409, 429, 5xx, or the stream ends, or has any other error in it, before its first delta | asked again, up to 4 times in all, after `Retry-After` or a backoff; the wait is a quiet section |
//! | the last of them fails, or `Retry-After` is more than a minute or beyond the deadline | [`ModelError::Unavailable`] with that time; [`ModelError::Cut`] if a server had the question |
//! | any other 4xx, or an error within the stream that is the question's own fault (`invalid_request_error`, `context_length_exceeded` …) | [`ModelError::Refused`], at once |
//! | the stream ends after its first delta, without its end | [`ModelError::Cut`] |
//! | the stream ends, breaks or hangs behind `finish_reason` | the answer is whole; its tokens are estimated if they were not counted within five seconds |
//! | no content for two minutes before the first delta, or for one after it | [`ModelError::Silent`] |
//! | a chunk that is not JSON, a line without end, or an answer in one piece | [`ModelError::Malformed`] |
//!
//! A question that no server took, which is one that ends as `Unavailable` or `Refused`, costs nothing. A try that was cut
//! before its first delta may have to be paid for: its input is charged by an estimate, also if a later one succeeds.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::reading::Reading;
use super::retry_after::retry_after;
use super::{Ask, ChatMessage, Delta, Model, ModelError, extra};
use crate::http::{self, Anywhere, HttpError, Response, Trust, Url};
use crate::novelty::cut;

const DEFAULT_URL: &str = "https://api.openai.com/v1";
const TRIES: u32 = 4;
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const FIRST_DELTA_WITHIN: Duration = Duration::from_secs(120);
const NEXT_DELTA_WITHIN: Duration = Duration::from_secs(60);
/// Tokens that every model of today can answer with. The agent itself ends an answer that passes a larger budget.
const SMALLEST_LONGEST_ANSWER: u64 = 4_096;
/// Bytes shown of a server's text.
const SHOWN_BYTES: usize = 1 << 10;

/// A model behind `/chat/completions`. Cheap to clone. Its key is never printed.
#[derive(Clone)]
pub struct ChatCompletions {
    url: Arc<Url>,
    model: Arc<str>,
    key: Option<Arc<str>>,
    extra: Arc<serde_json::Map<String, Value>>,
    limit_field: &'static str,
    forgets_thoughts: bool,
    trust: Trust,
    first_delta_within: Duration,
    next_delta_within: Duration,
}

/// The reason why there is no model to ask.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    #[error(
        "`{0}` is not the address of a model's server; write it like https://api.openai.com/v1, without a user or a password"
    )]
    NotAnAddress(String),
    #[error("the certificates to trust cannot be used: {0}; give those of the authority, in PEM")]
    Certificates(String),
    #[error("{0} is not set; it says {1}")]
    Missing(&'static str, &'static str),
}

/// Shown as [`Display`](fmt::Display) does: a program whose `main` returns this error shows its debug form to its user.
impl fmt::Debug for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for ChatCompletions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatCompletions")
            .field("url", &self.url.to_string())
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl ChatCompletions {
    /// The server whose API begins at `url`, such as `http://127.0.0.1:8000/v1`.
    pub fn at(url: &str, model: &str) -> Result<Self, SetupError> {
        let wrong = |_| SetupError::NotAnAddress(http::without_user(url));
        let url = Url::parse(&format!("{}/chat/completions", url.trim_end_matches('/'))).map_err(wrong)?;
        Ok(Self {
            url: url.into(),
            model: model.into(),
            key: None,
            extra: Arc::default(),
            limit_field: "max_completion_tokens",
            forgets_thoughts: false,
            trust: Trust::public(),
            first_delta_within: FIRST_DELTA_WITHIN,
            next_delta_within: NEXT_DELTA_WITHIN,
        })
    }

    /// A model named by `OPENAI_MODEL`, `OPENAI_API_KEY` and, if set, `OPENAI_BASE_URL`.
    pub fn from_env() -> Result<Self, SetupError> {
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let model = get("OPENAI_MODEL").ok_or(SetupError::Missing("OPENAI_MODEL", "which model is asked"))?;
        let key = get("OPENAI_API_KEY")
            .ok_or(SetupError::Missing("OPENAI_API_KEY", "who asks; servers without keys take any"))?;
        let url = get("OPENAI_BASE_URL").unwrap_or_else(|| DEFAULT_URL.into());
        Ok(Self::at(&url, &model)?.key(key.trim()))
    }

    /// Proves who asks.
    pub fn key(self, key: &str) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Trusts only these certificates (PEM) of authorities, such as one of your own, and no public one.
    pub fn trusting(self, pem: &[u8]) -> Result<Self, SetupError> {
        Ok(Self { trust: Trust::only(pem).map_err(SetupError::Certificates)?, ..self })
    }

    /// Adds a field to every request, such as `temperature`.
    pub fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        Arc::make_mut(&mut self.extra).insert(name.into(), value.into());
        self
    }

    /// Limits answers by `max_tokens`, the only field that older servers know.
    pub fn with_max_tokens_field(self) -> Self {
        Self { limit_field: "max_tokens", ..self }
    }

    /// Gives back nothing of what the model thought aloud, for servers that refuse it.
    ///
    /// Otherwise `reasoning_details` go back with every answer, and `reasoning_content` with those that call tools. Either way
    /// the session has all of it.
    pub fn without_thoughts(self) -> Self {
        Self { forgets_thoughts: true, ..self }
    }

    /// The longest silence of a model before its first delta, which is a quiet section, and between two deltas.
    pub fn silence(self, first: Duration, next: Duration) -> Self {
        Self { first_delta_within: first, next_delta_within: next, ..self }
    }

    fn request(&self, ask: &Ask<'_>) -> Result<Bytes, ModelError> {
        let said = |message: &ChatMessage| match message {
            ChatMessage::Assistant(answer) => ChatMessage::Assistant(extra::given_back(answer, self.forgets_thoughts)),
            other => other.clone(),
        };
        let messages: Vec<ChatMessage> = ask.messages.iter().map(said).collect();
        let mut body = json!({
            "model": &*self.model,
            "messages": messages,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if !ask.tools.is_empty() {
            let shape = |tool: &super::ToolSpec| {
                let function = json!({ "name": tool.name, "description": tool.text, "parameters": tool.schema });
                json!({ "type": "function", "function": function })
            };
            body["tools"] = ask.tools.iter().map(shape).collect();
        }
        if let Some(schema) = ask.output {
            let named = json!({ "name": "output", "schema": schema });
            body["response_format"] = json!({ "type": "json_schema", "json_schema": named });
        }
        // Servers refuse a bound that is above what their model can answer at all.
        if let Some(most) = ask.max_output_tokens.filter(|most| *most <= SMALLEST_LONGEST_ANSWER) {
            body[self.limit_field] = most.into();
        }
        for (name, value) in self.extra.iter() {
            body[name] = value.clone();
        }
        let bytes = serde_json::to_vec(&body);
        bytes
            .map(Bytes::from)
            .map_err(|error| ModelError::Malformed { why: format!("the request is no JSON: {error}") })
    }

    async fn send(&self, body: &Bytes) -> Result<Response, TryFailure> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = &self.key {
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            let why = "the key has characters that no header may have".to_owned();
            let mut value = value.map_err(|_| TryFailure::For(ModelError::Refused { status: 0, why }))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let mut response =
            http::send(&self.url, request, &Anywhere, &self.trust).await.map_err(|error| match error {
                HttpError::Connect { .. } => TryFailure::again(error.to_string(), false),
                // The question may have got there.
                HttpError::Exchange { .. } => TryFailure::again(error.to_string(), true),
                other => TryFailure::For(ModelError::Refused { status: 0, why: other.to_string() }),
            })?;
        let status = response.status.as_u16();
        if response.status.is_success() {
            let kind = response.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            // An answer in one piece is paid for, and would be paid for again; a page is somebody else's.
            if ["application/json", "text/html"].iter().any(|whole| kind.starts_with(whole)) {
                let why = format!("it answers in one piece ({}), and not by a stream", self.shown(kind, false));
                return Err(TryFailure::For(ModelError::Malformed { why }));
            }
            return Ok(response);
        }
        let after = retry_after(&response.headers, SystemTime::now());
        // So much that a key which begins in what is shown is there in full, to be taken out.
        let bytes = SHOWN_BYTES + self.key.as_ref().map_or(0, |key| key.len());
        let text = timeout(self.next_delta_within, response.beginning(bytes)).await.unwrap_or_default();
        let why = self.shown(&text, text.len() >= bytes);
        if matches!(status, 408 | 409 | 429 | 500..=599) {
            let (why, status) = (format!("{status}: {why}"), Some(status));
            return Err(TryFailure::Again { why, is_own: false, status, after, was_taken: false });
        }
        Err(TryFailure::For(ModelError::Refused { status, why }))
    }

    /// The text of a server as it may be shown. It may quote the request: the key is taken out first, and then the rest
    /// is cut, so that no part of a key is left at the end. Where the text `is_cut` already, its own end may be such a
    /// part.
    fn shown(&self, text: &str, is_cut: bool) -> String {
        let Some(key) = self.key.as_deref().filter(|key| !key.is_empty()) else {
            return cut(text.trim(), SHOWN_BYTES).to_owned();
        };
        let mut text = text.replace(key, "[key]");
        if is_cut && let Some(part) = (1..key.len()).rev().find(|part| text.ends_with(cut(key, *part))) {
            text.truncate(text.len() - cut(key, part).len());
        }
        cut(text.trim(), SHOWN_BYTES).to_owned()
    }

    fn without_key(&self, error: ModelError) -> ModelError {
        match error {
            ModelError::Malformed { why } => ModelError::Malformed { why: self.shown(&why, false) },
            ModelError::Cut { why } => ModelError::Cut { why: self.shown(&why, false) },
            ModelError::Refused { status, why } => ModelError::Refused { status, why: self.shown(&why, false) },
            other => other,
        }
    }
}

/// The reason why one try gave no delta.
enum TryFailure {
    Again {
        why: String,
        /// The words are ours. The server's may quote the question.
        is_own: bool,
        status: Option<u16>,
        after: Option<Duration>,
        was_taken: bool,
    },
    For(ModelError),
}

impl TryFailure {
    fn again(why: String, was_taken: bool) -> Self {
        Self::Again { why, is_own: true, status: None, after: None, was_taken }
    }
}

/// Where a call stands.
enum State {
    Start { tries: u32 },
    Waiting { tries: u32, wait: Duration },
    Reading(Box<Reading>),
    Ended,
}

impl Model for ChatCompletions {
    fn name(&self) -> &str {
        &self.model
    }

    fn complete(&self, ask: Ask<'_>) -> impl Stream<Item = Result<Delta, ModelError>> + Send {
        stream::unfold(State::Start { tries: 0 }, move |mut state| {
            let ask = ask.clone();
            async move {
                loop {
                    let next = match state {
                        State::Start { tries } => match self.begin(&ask, tries).await {
                            Ok((state, true)) => return Some((Ok(Delta::LostTry), state)),
                            Ok((state, false)) => Ok(state),
                            Err(error) => Err(error),
                        },
                        State::Waiting { tries, wait } => {
                            let _quiet = ask.heartbeat.quiet(wait);
                            sleep(wait).await;
                            Ok(State::Start { tries })
                        }
                        State::Reading(mut reading) => match reading.next().await {
                            Ok(Some(delta)) => return Some((Ok(delta), State::Reading(reading))),
                            Ok(None) => return None,
                            Err(error) => Err(self.without_key(error)),
                        },
                        State::Ended => return None,
                    };
                    match next {
                        Ok(next) => state = next,
                        Err(error) => return Some((Err(error), State::Ended)),
                    }
                }
            }
        })
    }
}

impl ChatCompletions {
    /// Makes one try, up to its first delta. Gives the next state, and whether the try was lost and may have to be paid
    /// for.
    async fn begin(&self, ask: &Ask<'_>, tries: u32) -> Result<(State, bool), ModelError> {
        let quiet = ask.heartbeat.quiet(self.first_delta_within);
        let body = self.request(ask)?;
        let first = async {
            let response = self.send(&body).await?;
            let mut reading = Reading::new(response, self.first_delta_within);
            match reading.begin(self.next_delta_within).await {
                Ok(true) => {}
                Ok(false) => return Err(TryFailure::again("the answer ended before it began".into(), true)),
                // They may be the server's words.
                Err(ModelError::Cut { why }) => {
                    let (why, after) = (format!("before the answer began: {}", self.shown(&why, false)), None);
                    return Err(TryFailure::Again { why, is_own: false, status: None, after, was_taken: true });
                }
                Err(error) => return Err(TryFailure::For(self.without_key(error))),
            }
            Ok(reading)
        };
        let first = timeout(self.first_delta_within, first).await;
        drop(quiet);
        let (why, is_own, status, after, was_taken) = match first {
            Ok(Ok(reading)) => return Ok((State::Reading(Box::new(reading)), false)),
            Ok(Err(TryFailure::For(error))) => return Err(error),
            Ok(Err(TryFailure::Again { why, is_own, status, after, was_taken })) => {
                (why, is_own, status, after, was_taken)
            }
            Err(_) => return Err(ModelError::Silent(self.first_delta_within)),
        };
        let wait = after.unwrap_or(FIRST_BACKOFF * 2_u32.pow(tries));
        let own_words = is_own.then_some(&*why);
        let is_late = ask.deadline.is_some_and(|deadline| Instant::now() + wait >= deadline);
        if tries + 1 >= TRIES || wait > LONGEST_WAIT || is_late {
            tracing::warn!(status, why = own_words, "the model does not answer");
            let unavailable = ModelError::Unavailable { why: why.clone(), retry_after: after };
            return Err(if was_taken { ModelError::Cut { why } } else { unavailable });
        }
        tracing::warn!(status, why = own_words, ?wait, "the model does not answer; asking again");
        Ok((State::Waiting { tries: tries + 1, wait }, was_taken))
    }
}
