//! Takes the reports of one attempt's processes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::attempt::Event;
use crate::report::{Answer, MAX_LINE_BYTES, Report};
use crate::wire;

/// Connections at a time; the next wait for one to end.
const CONNECTIONS: usize = 16;

/// A connection that says nothing for so long is closed. The next report makes a new one.
const IDLE: Duration = Duration::from_secs(30);

/// Serves until it is aborted. Each report is answered when it has become an event.
pub(crate) async fn serve(listener: UnixListener, events: mpsc::Sender<Event>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else { return };
        let events = events.clone();
        connections.spawn(async move {
            // The process at the other end sees that its connection is gone.
            let _ = converse(stream, &events).await;
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(stream: UnixStream, events: &mpsc::Sender<Event>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let limit = MAX_LINE_BYTES as u64 + 1;
        timeout(IDLE, (&mut stream).take(limit).read_until(b'\n', &mut line)).await??;
        if line.is_empty() {
            return Ok(());
        }
        let is_whole = line.ends_with(b"\n");
        let answer = if line.len() > MAX_LINE_BYTES {
            Answer::Refused(format!("the report is longer than {MAX_LINE_BYTES} bytes"))
        } else {
            match Report::parse(&line) {
                Ok(report) => match events.send(event(report)).await {
                    Ok(()) => Answer::Noted,
                    Err(_) => Answer::Refused("the attempt is being stopped".to_owned()),
                },
                Err(why) => Answer::Refused(why),
            }
        };
        stream.write_all(&wire::line(&answer)?).await?;
        if !is_whole {
            return Ok(());
        }
    }
}

fn event(report: Report) -> Event {
    match report {
        Report::Progress { done, total, note } => Event::Progress { done, total, note },
        Report::Quiet { for_ms } => Event::Quiet(Duration::from_millis(for_ms)),
        Report::Result(json) => Event::Result(json),
    }
}
