//! What `onward run` sees of its command: output to pass on, a bar to draw, and what to say at the end.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onward::Context;
use onward_exec::{Event, Exit, Stream};
use tokio::io::AsyncWriteExt;

use crate::screen::Screen;
use crate::span;
use crate::work::handler::Witness;

const DRAW_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct Seen {
    state: Mutex<State>,
    bar: ProgressBar,
    has_bar: bool,
}

#[derive(Debug, Default)]
struct State {
    output_at: Option<Instant>,
    activity_at: Option<Instant>,
    progress: Option<(u64, Option<u64>, Instant)>,
    exit: Option<Exit>,
    /// Whether the cursor stands at the beginning of a line, so that a bar may be drawn.
    is_at_line_start: bool,
}

impl Seen {
    pub fn new(screen: &Screen) -> Self {
        let bar = ProgressBar::no_length();
        bar.set_draw_target(if screen.bars { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
        bar.set_style(style("{spinner} {elapsed} {wide_msg}"));
        Self { state: Mutex::new(State { is_at_line_start: true, ..State::default() }), bar, has_bar: screen.bars }
    }

    /// When to draw next.
    pub async fn tick(&self) {
        if self.has_bar {
            tokio::time::sleep(DRAW_EVERY).await;
        } else {
            std::future::pending().await
        }
    }

    pub fn draw(&self) {
        let state = self.lock();
        if !state.is_at_line_start {
            return;
        }
        if let Some((done, total, _)) = state.progress {
            if let Some(total) = total.filter(|total| *total > 0) {
                self.bar.set_length(total);
                self.bar.set_style(style("[{bar:30}] {pos}/{len} {percent}% {elapsed} {wide_msg}"));
            }
            self.bar.set_position(done);
        }
        self.bar.set_message(brief(&state));
        self.bar.tick();
    }

    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    pub fn exit(&self) -> Option<Exit> {
        self.lock().exit.clone()
    }

    /// The last signs of life.
    pub fn last_words(&self) -> String {
        last_words(&self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }
}

/// For the bar: the newest sign of life.
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

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is ours and is tested")
}

impl Witness for Seen {
    async fn output(&self, _context: &Context, stream: Stream, bytes: &[u8]) {
        if self.has_bar {
            self.bar.suspend(|| ());
        }
        // A reader that is gone is the command's affair: its next write fails if it cares.
        match stream {
            Stream::Stdout => {
                let mut out = tokio::io::stdout();
                if out.write_all(bytes).await.is_ok() {
                    let _ = out.flush().await;
                }
            }
            Stream::Stderr => {
                let mut out = tokio::io::stderr();
                if out.write_all(bytes).await.is_ok() {
                    let _ = out.flush().await;
                }
            }
        }
        let mut state = self.lock();
        state.output_at = Some(Instant::now());
        state.is_at_line_start = bytes.ends_with(b"\n");
    }

    fn event(&self, _context: &Context, event: &Event) {
        let mut state = self.lock();
        match event {
            Event::Started { .. } => state.exit = None,
            Event::Activity => state.activity_at = Some(Instant::now()),
            Event::Progress { done, total, .. } => {
                let is_new = state.progress.is_none_or(|(before, ..)| *done > before);
                if is_new {
                    state.progress = Some((*done, *total, Instant::now()));
                }
            }
            Event::Ended(exit) => state.exit = Some(exit.clone()),
            Event::Output { .. } | Event::Quiet(_) | Event::Result(_) => {}
        }
    }
}
