//! What `onward run` sees of its command: output to pass on, a line to draw, and what to say at the end.

use std::io;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use onward::Context;
use onward_exec::{AttemptEvent, Exit, OutputStream};
use tokio::io::{AsyncWriteExt, Stderr, Stdout};
use tokio::sync::Mutex as AsyncMutex;

use crate::screen::Screen;
use crate::span;
use crate::status_line::{LineStatus, StatusLine};
use crate::work::handler::Witness;

const DRAW_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct RunWatch {
    state: Mutex<State>,
    stdout: AsyncMutex<Stdout>,
    stderr: AsyncMutex<Stderr>,
    has_line: bool,
    began: Instant,
}

#[derive(Debug)]
struct State {
    output_at: Option<Instant>,
    activity_at: Option<Instant>,
    progress: Option<(u64, Option<u64>, Instant)>,
    exit: Option<Exit>,
    unwritten: Option<OutputFailure>,
    line: StatusLine,
    /// Output is being written, or its last line is not complete: there is no place for ours.
    is_busy: bool,
}

/// The reason why output of the command was not passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutputFailure {
    /// Nobody reads the output.
    NoReader,
    Failed(String),
}

impl RunWatch {
    pub fn new(screen: &Screen) -> Self {
        let state = State {
            output_at: None,
            activity_at: None,
            progress: None,
            exit: None,
            unwritten: None,
            line: StatusLine::default(),
            is_busy: false,
        };
        Self {
            state: Mutex::new(state),
            stdout: AsyncMutex::new(tokio::io::stdout()),
            stderr: AsyncMutex::new(tokio::io::stderr()),
            has_line: screen.bars,
            began: Instant::now(),
        }
    }

    /// Waits until the next drawing.
    pub async fn tick(&self) {
        if self.has_line {
            tokio::time::sleep(DRAW_EVERY).await;
        } else {
            std::future::pending().await
        }
    }

    pub fn draw(&self) {
        let mut state = self.lock();
        if state.is_busy {
            return;
        }
        let (done, total) = state.progress.map_or((None, None), |(done, total, _)| (Some(done), total));
        let status = LineStatus { what: String::new(), done, total, lasts: self.began.elapsed(), more: brief(&state) };
        state.line.draw(&status);
    }

    /// Nothing is drawn after this.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.line.clear();
        state.is_busy = true;
    }

    pub fn exit(&self) -> Option<Exit> {
        self.lock().exit.clone()
    }

    pub fn unwritten(&self) -> Option<OutputFailure> {
        self.lock().unwritten.clone()
    }

    /// The last signs of life.
    pub fn last_words(&self) -> String {
        last_words(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }

    async fn write(&self, stream: OutputStream, bytes: &[u8]) -> io::Result<()> {
        // What one of them has accepted is on its way: only a flush says what became of it.
        match stream {
            OutputStream::Stdout => {
                let mut out = self.stdout.lock().await;
                out.write_all(bytes).await?;
                out.flush().await
            }
            OutputStream::Stderr => {
                let mut out = self.stderr.lock().await;
                out.write_all(bytes).await?;
                out.flush().await
            }
        }
    }
}

/// The newest sign of life, for the line.
fn brief(state: &State) -> String {
    match (state.progress, state.output_at.max(state.activity_at)) {
        (Some((_, _, at)), _) => format!("last step {} ago", ago(at)),
        (None, Some(at)) => format!("last active {} ago", ago(at)),
        (None, None) => String::new(),
    }
}

fn ago(at: Instant) -> String {
    span::human(Duration::from_secs(at.elapsed().as_secs()))
}

fn last_words(state: &State) -> String {
    match (state.progress, state.output_at, state.activity_at) {
        (Some((done, total, at)), _, _) => {
            let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
            let ago = ago(at);
            format!("it reported {done}{of} {ago} ago; since it reports progress, only a higher number counts")
        }
        (None, None, None) => "it printed nothing, and neither its CPU time nor its I/O rose".to_owned(),
        (None, output, activity) => {
            let mut words = vec![match output {
                Some(at) => format!("it last printed {} ago", ago(at)),
                None => "it printed nothing".to_owned(),
            }];
            words.extend(activity.map(|at| format!("CPU time or I/O last rose {} ago", ago(at))));
            words.join("; ")
        }
    }
}

impl Witness for RunWatch {
    async fn output(&self, _context: &Context, stream: OutputStream, bytes: &[u8]) -> io::Result<()> {
        {
            let mut state = self.lock();
            state.output_at = Some(Instant::now());
            state.line.clear();
            state.is_busy = true;
        }
        let written = self.write(stream, bytes).await;
        let mut state = self.lock();
        state.is_busy = !bytes.ends_with(b"\n");
        if let Err(error) = &written {
            state.unwritten = Some(match error.kind() {
                io::ErrorKind::BrokenPipe => OutputFailure::NoReader,
                _ => OutputFailure::Failed(error.to_string()),
            });
        }
        written
    }

    fn event(&self, _context: &Context, event: &AttemptEvent) {
        let mut state = self.lock();
        match event {
            AttemptEvent::Started { .. } => state.exit = None,
            AttemptEvent::Activity => state.activity_at = Some(Instant::now()),
            AttemptEvent::Progress { done, total, .. } => {
                let is_new = state.progress.is_none_or(|(before, ..)| *done > before);
                if is_new {
                    state.progress = Some((*done, *total, Instant::now()));
                }
            }
            AttemptEvent::Ended(exit) => state.exit = Some(exit.clone()),
            AttemptEvent::Output { .. } | AttemptEvent::Quiet(_) | AttemptEvent::Result(_) => {}
        }
    }
}
