//! Follows one attempt from the start of its guard to the end of its output.

use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::attempt::{AttemptEvent, ClosedStreams, Exit, OutputStream};
use crate::directive::{Directive, Piece, Splitter};
use crate::listen;
use crate::orphans::Mark;
use crate::wire::{self, ExitStatus, FailedKind, GuardMessage, GuardOrder, Spec};

const CHUNK_BYTES: usize = 16 * 1024;

/// A guard connects in milliseconds. On a machine so busy that it takes this long, nothing else would work either.
const CONNECT_WITHIN: Duration = Duration::from_secs(30);

/// The wait for the last output. Once the tree is gone all that it wrote is in the pipe, but somebody else may hold the
/// other end for ever.
const LAST_READ: Duration = Duration::from_millis(100);

pub(crate) struct AttemptSupervisor {
    pub folder: TempDir,
    pub child: Child,
    /// The listener for the guard, until it has connected.
    pub guard: Option<UnixListener>,
    /// The listener for reports, until it is served.
    pub reports: Option<UnixListener>,
    pub spec: Spec,
    pub events: mpsc::Sender<AttemptEvent>,
    pub orders: watch::Receiver<Option<GuardOrder>>,
    pub is_closed: watch::Receiver<ClosedStreams>,
    pub mark: Mark,
    pub directives: bool,
}

impl AttemptSupervisor {
    pub async fn run(mut self) {
        let (gone, is_gone) = watch::channel(false);
        let mut inside = Inside::default();
        let exit = match self.connect().await {
            Ok(guard) => self.follow(guard, &mut inside, is_gone).await,
            Err(exit) => exit,
        };
        gone.send_replace(true);
        inside.finish().await;
        // The guard has removed it already, unless it was killed.
        let _ = self.folder.close();
        // Whoever has dropped the attempt does not want to know.
        let _ = self.events.send(AttemptEvent::Ended(exit)).await;
    }

    /// Nothing of the job runs yet, and when it does nobody listens here any more. A stranger with our rights that is
    /// quicker than the guard has another pid.
    async fn connect(&mut self) -> Result<UnixStream, Exit> {
        let listener = self.guard.take().expect("it connects once");
        let deadline = Instant::now() + CONNECT_WITHIN;
        let why = loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) if self.is_guard(&stream) => return Ok(stream),
                    Ok(_) => {}
                    Err(error) => break format!("cannot talk to the guard: {error}"),
                },
                status = self.child.wait() => break match status {
                    Ok(status) => format!("the guard ended before it began ({status}){}", self.last_words().await),
                    Err(error) => format!("cannot wait for the guard: {error}"),
                },
                () = sleep_until(deadline) => break format!("the guard did not begin within {CONNECT_WITHIN:?}"),
            }
        };
        // It has no children yet. It may have ended already.
        let _ = self.child.kill().await;
        Err(Exit::NotStarted { why })
    }

    fn is_guard(&self, stream: &UnixStream) -> bool {
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        pid.is_some() && pid == self.child.id().and_then(|pid| i32::try_from(pid).ok())
    }

    async fn last_words(&mut self) -> String {
        let mut text = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            // Without them the status has to do.
            let _ = timeout(LAST_READ, stderr.take(1024).read_to_end(&mut text)).await;
        }
        let text = String::from_utf8_lossy(&text);
        if text.trim().is_empty() { String::new() } else { format!(": {}", text.trim()) }
    }

    /// Follows the command from the spec to the end of the tree.
    async fn follow(&mut self, guard: UnixStream, inside: &mut Inside, is_gone: watch::Receiver<bool>) -> Exit {
        let (input, mut output) = guard.into_split();
        let mut lines = BufReader::new(input).lines();
        if self.orders.borrow_and_update().is_some() || self.orders.has_changed().is_err() {
            drop((lines, output));
            let _ = self.child.wait().await;
            return Exit::NotStarted { why: "it was stopped before it began".to_owned() };
        }
        // If the guard is gone, so is its side of the connection, and we read that below.
        let _ = output.write_all(&wire::encode_line(&self.spec).expect("a spec is JSON")).await;

        let mut exit = None;
        let mut is_wanted = true;
        loop {
            tokio::select! {
                line = lines.next_line() => match line {
                    Ok(Some(line)) => match serde_json::from_str(&line) {
                        Ok(GuardMessage::Started { pid }) => self.started(pid, inside, &is_gone).await,
                        // A full queue holds output, which says as much.
                        Ok(GuardMessage::Activity(_)) => drop(self.events.try_send(AttemptEvent::Activity)),
                        Ok(GuardMessage::Failed { kind, text }) => exit = Some(failed(kind, text)),
                        Ok(GuardMessage::Exited(how)) => exit = Some(exited(how)),
                        Err(_) => break,
                    },
                    Ok(None) | Err(_) => break,
                },
                changed = self.orders.changed(), if is_wanted => {
                    is_wanted = changed.is_ok();
                    let order = self.orders.borrow_and_update().unwrap_or(GuardOrder::Stop);
                    let _ = output.write_all(&wire::encode_line(&order).expect("an order is JSON")).await;
                }
            }
        }
        drop((lines, output));
        let ended = self.child.wait().await;
        if !ended.as_ref().is_ok_and(|status| status.success()) {
            self.mark.end().await;
        }
        exit.unwrap_or_else(|| Exit::Lost {
            why: match ended {
                Ok(status) => format!("the guard of the attempt was ended from outside ({status})"),
                Err(error) => format!("the guard of the attempt cannot be waited for: {error}"),
            },
        })
    }

    /// Only now is its output read, so that this is the first event.
    async fn started(&mut self, pid: i32, inside: &mut Inside, is_gone: &watch::Receiver<bool>) {
        // Whoever has dropped the attempt does not want to know; that order is already on its way.
        let _ = self.events.send(AttemptEvent::Started { pid }).await;
        if let Some(pipe) = self.child.stdout.take() {
            let splitter = self.directives.then(Splitter::default);
            let teller = EventSender { stream: OutputStream::Stdout, splitter, events: self.events.clone() };
            inside.readers.push(tokio::spawn(read(pipe, teller, is_gone.clone(), self.is_closed.clone())));
        }
        if let Some(pipe) = self.child.stderr.take() {
            let teller = EventSender { stream: OutputStream::Stderr, splitter: None, events: self.events.clone() };
            inside.readers.push(tokio::spawn(read(pipe, teller, is_gone.clone(), self.is_closed.clone())));
        }
        if let Some(reports) = self.reports.take() {
            inside.reports = Some(tokio::spawn(listen::serve(reports, self.events.clone())));
        }
    }
}

fn failed(kind: FailedKind, why: String) -> Exit {
    match kind {
        FailedKind::NotFound => Exit::NotFound { why },
        FailedKind::NotExecutable => Exit::NotExecutable { why },
        FailedKind::Other => Exit::NotStarted { why },
    }
}

fn exited(how: ExitStatus) -> Exit {
    match how {
        ExitStatus::Code(code) => Exit::Code(code),
        ExitStatus::Signal(signal) => Exit::Signal(signal),
    }
}

/// Tasks that listen to the command while it runs.
#[derive(Default)]
struct Inside {
    readers: Vec<JoinHandle<()>>,
    reports: Option<JoinHandle<()>>,
}

impl Inside {
    async fn finish(self) {
        if let Some(reports) = self.reports {
            reports.abort();
        }
        for reader in self.readers {
            // It does not panic, and is aborted only with the whole runtime.
            let _ = reader.await;
        }
    }
}

/// Reads one stream of the command to its end, until the tree is gone and there is no more, or until nobody wants it.
async fn read(
    mut pipe: impl AsyncRead + Unpin,
    mut teller: EventSender,
    mut is_gone: watch::Receiver<bool>,
    mut is_closed: watch::Receiver<ClosedStreams>,
) {
    let stream = teller.stream;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let early = tokio::select! {
            biased;
            () = until_closed(&mut is_closed, stream) => return,
            read = pipe.read(&mut buffer) => Some(read),
            () = until(&mut is_gone) => None,
        };
        let read = match early {
            Some(read) => read,
            None => match timeout(LAST_READ, pipe.read(&mut buffer)).await {
                Ok(read) => read,
                Err(_) => break,
            },
        };
        match read {
            Ok(0) | Err(_) => break,
            Ok(bytes) if teller.send_output(&buffer[..bytes]).await.is_err() => return,
            Ok(_) => {}
        }
    }
    // Nobody listens: nothing to do about it here.
    let _ = teller.finish().await;
}

async fn until(is_gone: &mut watch::Receiver<bool>) {
    // Without its sender, the attempt is over too.
    let _ = is_gone.wait_for(|&is_gone| is_gone).await;
}

async fn until_closed(is_closed: &mut watch::Receiver<ClosedStreams>, stream: OutputStream) {
    // An attempt that was dropped closes nothing: it ends as it was, and its output is read to its end.
    if is_closed.wait_for(|closed| closed.has(stream)).await.is_err() {
        std::future::pending().await
    }
}

struct EventSender {
    stream: OutputStream,
    splitter: Option<Splitter>,
    events: mpsc::Sender<AttemptEvent>,
}

impl EventSender {
    async fn send_output(&mut self, bytes: &[u8]) -> Result<(), mpsc::error::SendError<AttemptEvent>> {
        let mut pieces = Vec::new();
        match &mut self.splitter {
            Some(splitter) => splitter.push(bytes, &mut pieces),
            None => pieces.push(Piece::Output(bytes.to_vec())),
        }
        self.send(pieces).await
    }

    async fn finish(&mut self) -> Result<(), mpsc::error::SendError<AttemptEvent>> {
        let mut pieces = Vec::new();
        if let Some(splitter) = &mut self.splitter {
            splitter.finish(&mut pieces);
        }
        self.send(pieces).await
    }

    async fn send(&mut self, pieces: Vec<Piece>) -> Result<(), mpsc::error::SendError<AttemptEvent>> {
        for piece in pieces {
            let event = match piece {
                Piece::Output(bytes) => AttemptEvent::Output { stream: self.stream, bytes },
                Piece::Directive(Directive::Progress { done, total, note }) => {
                    AttemptEvent::Progress { done, total, note }
                }
                Piece::Directive(Directive::Quiet(span)) => AttemptEvent::Quiet(span),
            };
            self.events.send(event).await?;
        }
        Ok(())
    }
}
