//! Output on its way from a command to its witness.
//!
//! While the command may go on, it waits for a slow witness: its output is taken when the last piece was passed on. Once
//! it is to stop, its end must not wait for anybody. What it prints then is kept for the witness up to a limit, and
//! after its end the witness has a moment to take it.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;

use onward::Context;
use onward_exec::OutputStream;

use super::handler::Witness;

/// More than any pipe holds; what a command prints beyond that while it is being stopped is dropped.
const MAX_WAITING_BYTES: usize = 1 << 20;

type Passing<'a> = Pin<Box<dyn Future<Output = (OutputStream, io::Result<()>)> + Send + 'a>>;

pub struct Relay<'a, W> {
    witness: &'a W,
    context: &'a Context,
    passing: Option<Passing<'a>>,
    waiting: VecDeque<(OutputStream, Vec<u8>)>,
    waiting_bytes: usize,
    /// Streams whose output nobody takes.
    closed: Vec<OutputStream>,
}

impl<'a, W: Witness> Relay<'a, W> {
    pub fn new(witness: &'a W, context: &'a Context) -> Self {
        Self { witness, context, passing: None, waiting: VecDeque::new(), waiting_bytes: 0, closed: Vec::new() }
    }

    /// Whether everything was passed on.
    pub fn is_idle(&self) -> bool {
        self.passing.is_none() && self.waiting.is_empty()
    }

    pub fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    pub fn push(&mut self, stream: OutputStream, bytes: Vec<u8>) {
        if !self.closed.contains(&stream) && self.waiting_bytes + bytes.len() <= MAX_WAITING_BYTES {
            self.waiting_bytes += bytes.len();
            self.waiting.push_back((stream, bytes));
        }
    }

    /// Passes on what there is. Safe to cancel. Comes back early if a stream's output cannot be passed on any more.
    pub async fn pass(&mut self) -> Result<(), (OutputStream, io::Error)> {
        loop {
            let passing = match &mut self.passing {
                Some(passing) => passing,
                None => {
                    let Some((stream, bytes)) = self.waiting.pop_front() else { return Ok(()) };
                    self.waiting_bytes -= bytes.len();
                    let (witness, context) = (self.witness, self.context);
                    let passing = async move { (stream, witness.output(context, stream, &bytes).await) };
                    self.passing.insert(Box::pin(passing))
                }
            };
            let (stream, passed) = passing.await;
            self.passing = None;
            if let Err(error) = passed {
                self.close(stream);
                return Err((stream, error));
            }
        }
    }

    fn close(&mut self, stream: OutputStream) {
        self.closed.push(stream);
        self.waiting.retain(|(of, _)| *of != stream);
        self.waiting_bytes = self.waiting.iter().map(|(_, bytes)| bytes.len()).sum();
    }
}
