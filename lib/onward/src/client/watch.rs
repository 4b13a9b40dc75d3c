//! Follows a job by its events.

use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::JobInfo;
use super::answer::NodeAnswer;
use super::calls::Calls;
use super::connection::Busy;
use super::error::{CallError, Silence};

const MAX_EVENT_BYTES: usize = 16 << 20;
/// Connections that may be lost in a row without an event in between.
const MAX_FAILURES: u32 = 10;

/// A job, each time that it has changed.
#[derive(Debug)]
pub struct Watch {
    calls: Calls,
    path: String,
    body: Option<(Incoming, Busy)>,
    unread: Vec<u8>,
    failures: u32,
    over: bool,
}

impl Watch {
    pub(super) fn new(calls: Calls, path: String) -> Self {
        Self { calls, path, body: None, unread: Vec::new(), failures: 0, over: false }
    }

    /// `None` once it has told of the job's end.
    pub async fn next(&mut self) -> Result<Option<NodeAnswer<JobInfo>>, CallError> {
        if self.over {
            return Ok(None);
        }
        loop {
            if let Some(event) = self.take_event()? {
                self.failures = 0;
                self.over = event.state.is_terminal();
                return Ok(Some(event));
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> Result<(), CallError> {
        let Some((body, _)) = &mut self.body else {
            match self.calls.stream(&self.path).await {
                Ok(body) => self.body = Some(body),
                Err(error @ (CallError::Unanswered { .. } | CallError::Unreachable { .. })) => {
                    self.failed(error).await?
                }
                // None leads at the moment, and one will.
                Err(error) if error.code() == Some("no_leader") => self.failed(error).await?,
                Err(error) => return Err(error),
            }
            return Ok(());
        };
        match body.frame().await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.unread.extend_from_slice(&data);
                }
                if self.unread.len() > MAX_EVENT_BYTES {
                    return Err(CallError::Unreadable(format!("an event has more than {MAX_EVENT_BYTES} bytes")));
                }
                Ok(())
            }
            Some(Err(error)) => self.lost(error.to_string()).await,
            None => self.lost("the node closed the connection".into()).await,
        }
    }

    async fn lost(&mut self, why: String) -> Result<(), CallError> {
        self.body = None;
        self.unread.clear();
        self.failed(CallError::Unanswered { authority: self.calls.authority(), why: Silence::Lost(why) }).await
    }

    async fn failed(&mut self, error: CallError) -> Result<(), CallError> {
        self.failures += 1;
        if self.failures > MAX_FAILURES {
            return Err(error);
        }
        tokio::time::sleep(core::time::Duration::from_millis(200)).await;
        Ok(())
    }

    /// The next whole event, as server-sent events are written: lines, then an empty one.
    fn take_event(&mut self) -> Result<Option<NodeAnswer<JobInfo>>, CallError> {
        loop {
            let Some(end) = self.unread.windows(2).position(|pair| pair == b"\n\n") else { return Ok(None) };
            let event: Vec<u8> = self.unread.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&event);
            let lines: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim_start).collect();
            if lines.is_empty() {
                continue;
            }
            return NodeAnswer::read(lines.join("\n").as_bytes()).map(Some);
        }
    }
}
